//! A client: the real core of the client library, and a workload that wants one lock again and again.

use std::fmt;
use std::time::Duration;

use conclave_client::lease::LeaseState;
use conclave_client::testing::{Conversation, Pending};
use conclave_core::{Code, Error, Wait};
use conclave_kernel::{Cx, NodeId, Time};
use conclave_node::node::ConnectionId;
use conclave_wire::v1;

use crate::bug::Bug;
use crate::site::{Clock, Event, Message, SERVERS, Site, TTL, Timer};

/// The time for which the client library offers a request to servers that do not accept it.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest time for which the lock is held.
const MAX_HOLD_MS: u32 = 2_500;
/// The longest pause before a new connection, and before a new wish.
const MAX_PAUSE_MS: u32 = 200;

/// The time between two looks at the clock while there is no connection.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A client.
pub struct Client {
    clock: Clock,
    conversation: Conversation,
    server: NodeId,
    /// The present connection, and the number of the last one.
    connection: Option<ConnectionId>,
    last_connection: ConnectionId,
    wish: Wish,
    /// The last deadline of the lease, to notice an extension.
    deadline: Option<Duration>,
}

/// The state of the workload.
enum Wish {
    None,
    Waiting { id: u64, granted: Pending<v1::Granted> },
    Holding { id: u64, fence: u64, standing: LeaseState },
}

impl Client {
    pub fn new(me: NodeId, clock: Clock, server: NodeId, bug: Option<Bug>) -> Self {
        let flaw = bug.and_then(Bug::of_client);
        Self {
            clock,
            // A lock-delay would hide a lease that ends too soon.
            conversation: Conversation::new(TTL, Duration::ZERO, PATIENCE, flaw),
            server,
            connection: None,
            last_connection: u64::from(me.0) << 32,
            wish: Wish::None,
            deadline: None,
        }
    }

    /// Returns the fence by which the client believes to hold the lock, at this moment of the world.
    pub fn believes(&self, world: Time) -> Option<u64> {
        let Wish::Holding { id, fence, .. } = self.wish else { return None };
        let standing = self.conversation.standing(self.clock.read(world), id);
        (standing != LeaseState::Lost).then_some(fence)
    }

    pub fn on_start(&mut self, cx: &mut Cx<'_, Site>) {
        self.connect(cx);
        self.want(cx);
        self.end_step(cx);
    }

    pub fn move_to(&mut self, server: NodeId, cx: &mut Cx<'_, Site>) {
        self.disconnect("the script moves the client", cx);
        self.server = server;
        self.connect(cx);
        self.end_step(cx);
    }

    pub fn on_timer(&mut self, timer: Timer, cx: &mut Cx<'_, Site>) {
        match timer {
            Timer::Turn => {}
            Timer::Connect => self.connect(cx),
            Timer::Work => self.work(cx),
        }
        self.end_step(cx);
    }

    pub fn on_message(&mut self, message: Message, cx: &mut Cx<'_, Site>) {
        let now = self.clock.read(cx.now());
        match message {
            Message::Accepted { connection } if self.connection == Some(connection) => {
                self.conversation.on_greeted(now);
            }
            Message::Bytes { connection, bytes } if self.connection == Some(connection) => {
                self.conversation.on_bytes(now, &bytes).expect("the server encoded it");
            }
            Message::Closed { connection } if self.connection == Some(connection) => {
                self.leave("the server closed the connection", cx);
            }
            _ => {}
        }
        self.end_step(cx);
    }

    fn now(&self, cx: &Cx<'_, Site>) -> Duration {
        self.clock.read(cx.now())
    }

    fn connect(&mut self, cx: &mut Cx<'_, Site>) {
        if self.connection.is_none() {
            self.last_connection += 1;
            self.connection = Some(self.last_connection);
            cx.disarm(Timer::Connect);
            cx.send(self.server, Message::Connect { connection: self.last_connection });
            self.conversation.on_connected(self.now(cx));
        }
    }

    /// Ends the connection. Returns whether there was one.
    fn disconnect(&mut self, why: &str, cx: &mut Cx<'_, Site>) {
        if let Some(connection) = self.connection.take() {
            cx.send(self.server, Message::Closed { connection });
            self.conversation.on_disconnected(self.now(cx), Error::new(Code::Disconnected, why));
        }
    }

    /// Ends the connection and connects to some server after a pause.
    fn leave(&mut self, why: &str, cx: &mut Cx<'_, Site>) {
        self.disconnect(why, cx);
        self.server = NodeId(1 + cx.choose(SERVERS));
        pause(Timer::Connect, MAX_PAUSE_MS, cx);
    }

    /// Continues the workload: releases the lock, or requests it.
    fn work(&mut self, cx: &mut Cx<'_, Site>) {
        let now = self.now(cx);
        match std::mem::replace(&mut self.wish, Wish::None) {
            Wish::None => self.want(cx),
            Wish::Holding { id, .. } => {
                let released = self.conversation.release(now, id);
                cx.emit(if released.is_ok() { Event::Released } else { Event::Lost });
                self.want(cx);
            }
            waiting @ Wish::Waiting { .. } => self.wish = waiting,
        }
    }

    fn want(&mut self, cx: &mut Cx<'_, Site>) {
        let mut acquire = v1::Acquire::of("x");
        if cx.choose(4) == 0 {
            acquire.set_wait(Wait::AtMost(u64::from(cx.choose(MAX_HOLD_MS))));
        }
        let now = self.now(cx);
        let (id, granted) = self.conversation.acquire(now, acquire).expect("few requests are open");
        self.wish = Wish::Waiting { id, granted };
    }

    /// Does everything that is due, sends, and sets the alarm: the loop of the client's task.
    fn end_step(&mut self, cx: &mut Cx<'_, Site>) {
        let now = self.now(cx);
        self.conversation.on_tick(now);
        if self.connection.is_some() && self.conversation.is_silent(now) {
            self.leave("the server sends nothing", cx);
        }
        self.look(cx);
        let bytes = self.conversation.take_output();
        if let Some(connection) = self.connection.filter(|_| !bytes.is_empty()) {
            cx.send(self.server, Message::Bytes { connection, bytes });
        }
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
    }

    /// Looks whether the wish was granted, or the grant was lost.
    fn look(&mut self, cx: &mut Cx<'_, Site>) {
        let now = self.now(cx);
        let deadline = self.conversation.deadline();
        let is_extended = std::mem::replace(&mut self.deadline, deadline) != deadline;
        match &mut self.wish {
            Wish::None => {}
            Wish::Waiting { id, granted } => match granted.poll() {
                None => {}
                Some(Ok(granted)) => {
                    let fence = granted.names.iter().map(|name| name.fence).max().unwrap_or_default();
                    self.wish = Wish::Holding { id: *id, fence, standing: LeaseState::Valid };
                    cx.emit(Event::Believes { fence });
                    pause(Timer::Work, MAX_HOLD_MS, cx);
                }
                Some(Err(_)) => {
                    self.wish = Wish::None;
                    pause(Timer::Work, MAX_PAUSE_MS, cx);
                }
            },
            Wish::Holding { id, fence, standing } => {
                let before = std::mem::replace(standing, self.conversation.standing(now, *id));
                if *standing == LeaseState::Lost {
                    self.conversation.abandon(now, *id);
                    cx.emit(Event::Lost);
                    self.wish = Wish::None;
                    return pause(Timer::Work, MAX_PAUSE_MS, cx);
                }
                if is_extended {
                    cx.emit(Event::Believes { fence: *fence });
                }
                if *standing == LeaseState::Jeopardy && before == LeaseState::Valid {
                    cx.emit(Event::Jeopardy);
                }
            }
        }
    }
}

fn pause(timer: Timer, most_ms: u32, cx: &mut Cx<'_, Site>) {
    let pause = Duration::from_millis(u64::from(cx.choose(most_ms)));
    cx.arm(timer, pause..=pause);
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("conversation", &self.conversation).finish_non_exhaustive()
    }
}
