//! A client: the real core of the client library, with its connection.

use std::fmt;
use std::time::Duration;

use bytes::BytesMut;
use conclave_client::testing::Conversation;
use conclave_core::{Code, Error};
use conclave_kernel::{Cx, NodeId, Time};
use conclave_node::node::ConnectionId;
use conclave_wire::{frame, v1};

use crate::bug::Bug;
use crate::scenario::{Config, Scenario};
use crate::site::{Clock, Message, Note, Notes, Site, TTL, Timer, send_bytes};
use crate::workload::{Belief, Moment, Served, Workload};

/// The longest pause before a new connection.
const MAX_PAUSE_MS: u32 = 200;
/// The longest time for which a slow client does not read.
const MAX_UNREAD_MS: u32 = 300;
/// The time between two looks at the clock while there is no connection.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A client.
pub struct Client {
    config: Config,
    clock: Clock,
    conversation: Conversation,
    workload: Workload,
    server: NodeId,
    /// The present connection, and the number of the last one.
    connection: Option<ConnectionId>,
    last_connection: ConnectionId,
    /// The bytes that have arrived and that a slow client has not read.
    unread: Vec<u8>,
    /// The bytes of a frame that has not arrived completely, for the judge.
    input: BytesMut,
    pub notes: Notes,
}

impl Client {
    pub fn new(me: NodeId, clock: Clock, server: NodeId, config: Config) -> Self {
        let flaw = config.bug.and_then(Bug::of_client);
        // The time for which the client library offers a request to servers that do not accept it.
        let retry_timeout = Duration::from_secs(if config.scenario == Scenario::Leases { 10 } else { 4 });
        Self {
            config,
            clock,
            // A lock-delay would hide a lease that ends too soon.
            conversation: Conversation::new(TTL, Duration::ZERO, retry_timeout, flaw),
            workload: Workload::new(me, config),
            server,
            connection: None,
            last_connection: u64::from(me.0) << 32,
            unread: Vec::new(),
            input: BytesMut::new(),
            notes: Notes::default(),
        }
    }

    /// Returns the grants on which the client relies at this moment of the world.
    pub fn beliefs(&self, world: Time) -> Vec<Belief> {
        self.workload.beliefs(self.clock.read(world), &self.conversation)
    }

    /// Returns the times at which the client was served last.
    pub fn served(&self) -> Served {
        self.workload.served
    }

    /// Describes what the client waits for, if it does.
    pub fn open(&self) -> Option<String> {
        self.workload.open()
    }

    pub fn on_start(&mut self, cx: &mut Cx<'_, Site>) {
        self.connect(cx);
        self.with_workload(cx, Workload::begin);
        self.end_step(cx);
    }

    /// Leaves the present connection, sometimes without a message, and connects to this server.
    pub fn move_to(&mut self, server: NodeId, cx: &mut Cx<'_, Site>) {
        self.disconnect("the script moves the client", cx.choose(2) == 0, cx);
        self.server = server;
        self.connect(cx);
        self.end_step(cx);
    }

    pub fn on_timer(&mut self, timer: Timer, cx: &mut Cx<'_, Site>) {
        match timer {
            Timer::Connect => self.connect(cx),
            Timer::Work(slot) => self.with_workload(cx, |workload, at| workload.work(slot, at)),
            Timer::Read => self.read(cx),
            Timer::Turn | Timer::Sync | Timer::Effects => {}
        }
        self.end_step(cx);
    }

    pub fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Site>) {
        let now = self.now(cx);
        match message {
            Message::Accepted { connection } if self.connection == Some(connection) => {
                self.conversation.on_greeted(now);
            }
            Message::Bytes { connection, bytes } if self.connection == Some(connection) => {
                self.unread.extend(bytes);
                if !self.config.is_slow() || self.config.scenario.is_healed(cx.now()) {
                    self.read(cx);
                } else {
                    pause(Timer::Read, MAX_UNREAD_MS, cx);
                }
            }
            Message::Closed { connection } if self.connection == Some(connection) => {
                self.read(cx);
                self.leave("the server closed the connection", cx);
            }
            Message::Reset if self.connection.is_some() && from == self.server => {
                self.leave("the server has restarted", cx);
            }
            _ => {}
        }
        self.end_step(cx);
    }

    fn now(&self, cx: &Cx<'_, Site>) -> Duration {
        self.clock.read(cx.now())
    }

    fn with_workload(&mut self, cx: &mut Cx<'_, Site>, act: impl FnOnce(&mut Workload, &mut Moment<'_, '_>)) {
        let now = self.now(cx);
        let (conversation, notes) = (&mut self.conversation, &mut self.notes);
        act(&mut self.workload, &mut Moment { now, conversation, notes, cx });
    }

    fn connect(&mut self, cx: &mut Cx<'_, Site>) {
        if self.connection.is_none() {
            self.last_connection += 1;
            self.connection = Some(self.last_connection);
            cx.disarm(Timer::Connect);
            cx.send(self.server, Message::Connect { connection: self.last_connection });
            self.notes.add(Note::Connected(self.last_connection));
            self.unread.clear();
            self.input.clear();
            self.conversation.on_connected(self.now(cx));
        }
    }

    /// Ends the connection. The server events it, unless the network has failed.
    fn disconnect(&mut self, why: &str, is_noticed: bool, cx: &mut Cx<'_, Site>) {
        if let Some(connection) = self.connection.take() {
            if is_noticed || self.config.scenario == Scenario::Leases {
                cx.send(self.server, Message::Closed { connection });
            }
            self.conversation.on_disconnected(self.now(cx), Error::new(Code::Disconnected, why));
        }
    }

    /// Ends the connection and connects to some server after a pause.
    fn leave(&mut self, why: &str, cx: &mut Cx<'_, Site>) {
        self.disconnect(why, cx.choose(2) == 0, cx);
        self.server = self.config.scenario.server(cx.choose(3));
        pause(Timer::Connect, MAX_PAUSE_MS, cx);
    }

    /// Reads everything that has arrived.
    fn read(&mut self, cx: &mut Cx<'_, Site>) {
        let (now, bytes) = (self.now(cx), std::mem::take(&mut self.unread));
        let Some(connection) = self.connection.filter(|_| !bytes.is_empty()) else { return };
        self.input.extend_from_slice(&bytes);
        while let Some(frame) =
            frame::decode::<v1::ServerFrame>(&mut self.input).expect("the server encoded it")
        {
            let received = |message| Note::Received { connection, message };
            frame.messages.into_iter().for_each(|message| self.notes.add(received(message)));
        }
        self.conversation.on_bytes(now, &bytes).expect("the server encoded it");
        if self.config.is_slow() {
            cx.send(self.server, Message::Read { connection, bytes: bytes.len() });
        }
    }

    /// Does everything that is due, sends, and sets the alarm: the loop of the client's task.
    fn end_step(&mut self, cx: &mut Cx<'_, Site>) {
        let now = self.now(cx);
        self.conversation.on_tick(now);
        if self.connection.is_some() && self.conversation.is_silent(now) {
            self.leave("the server sends nothing", cx);
        }
        self.with_workload(cx, Workload::poll);
        self.send(cx);
        let next = match self.connection {
            Some(_) => self.conversation.next_tick(now),
            None => Some(now + LOOK_EVERY),
        };
        match next {
            Some(at) => {
                let wait = self.clock.wait(cx.now(), at);
                cx.arm(Timer::Turn, wait..=wait);
            }
            None => cx.disarm(Timer::Turn),
        }
        self.notes.emit(cx);
    }

    fn send(&mut self, cx: &mut Cx<'_, Site>) {
        let bytes = self.conversation.take_output();
        let Some(connection) = self.connection.filter(|_| !bytes.is_empty()) else { return };
        let mut copy = BytesMut::from(&bytes[..]);
        while let Some(frame) = frame::decode::<v1::ClientFrame>(&mut copy).expect("whole frames") {
            let sent = |message| Note::Sent { connection, message };
            frame.messages.into_iter().for_each(|message| self.notes.add(sent(message)));
        }
        if !send_bytes(&self.config, self.server, connection, bytes, cx) {
            self.leave("the connection broke", cx);
        }
    }
}

/// Arms a timer after a random pause.
pub fn pause(timer: Timer, most_ms: u32, cx: &mut Cx<'_, Site>) {
    let pause = Duration::from_millis(u64::from(cx.choose(most_ms)));
    cx.arm(timer, pause..=pause);
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("conversation", &self.conversation).finish_non_exhaustive()
    }
}
