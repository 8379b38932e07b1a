//! A server: the real node, between the simulated network and the model of consensus.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use conclave_core::{Error, SessionId};
use conclave_kernel::{Cx, NodeId};
use conclave_node::cluster::ReadError;
use conclave_node::codec;
use conclave_node::entry::Batch;
use conclave_node::leases::Timing;
use conclave_node::node::{
    self, CallId, Capacity, Cause, ConnectionId, Input, Node, Outbox, Output, Reply, RoundId,
};
use conclave_node::testing::{Entry, Replica};
use conclave_wire::frame::{self, Frames};
use conclave_wire::v1;

use crate::bug::Bug;
use crate::site::{Clock, Event, Message, ORDER, SERVERS, Site, Timer};

/// The longest wait for the leader's results of forwarded keep-alives.
const CALL_LIMIT: Duration = Duration::from_secs(1);
/// The time between two polls of a node that does not sleep.
const POLL: Duration = Duration::from_micros(50);

/// A server.
pub struct Server {
    clock: Clock,
    node: Node<Arc<Replies>>,
    replica: Replica,
    connections: BTreeMap<ConnectionId, Connection>,
    /// The ends of rounds and calls that have no answer.
    limits: BTreeMap<(Duration, u64), Limit>,
    last_limit: u64,
    /// The servers that forwarded keep-alives, with their numbers of the calls.
    callers: BTreeMap<CallId, (NodeId, CallId)>,
    last_call: CallId,
    last_secret: u128,
    /// The outputs of the present turn.
    outputs: Vec<Output>,
}

struct Connection {
    client: NodeId,
    replies: Arc<Replies>,
}

/// The replies of one connection that are not sent yet.
#[derive(Default)]
pub struct Replies(Mutex<(Frames, bool)>);

enum Limit {
    Round(RoundId),
    Call(CallId),
}

impl Replies {
    fn with<R>(&self, act: impl FnOnce(&mut Frames, &mut bool) -> R) -> R {
        let (frames, is_closed) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(frames, is_closed)
    }
}

impl Outbox for Replies {
    fn push(&self, reply: &Reply) -> Capacity {
        self.with(|frames, is_closed| {
            if !*is_closed {
                frames.push(&codec::encode(reply)).expect("replies are small here");
            }
        });
        Capacity::Free
    }

    fn close(&self, why: &Error) {
        let goodbye: v1::ServerMessage = v1::Goodbye { error: Some(why.into()) }.into();
        self.with(|frames, is_closed| {
            if !std::mem::replace(is_closed, true) {
                frames.push(&goodbye).expect("an error is small");
            }
        });
    }

    fn pause_reading(&self, _: bool) {}

    fn capacity(&self) -> Capacity {
        Capacity::Free
    }
}

impl Server {
    pub fn new(me: NodeId, clock: Clock, multi_core: bool, bug: Option<Bug>) -> Self {
        let timing = Timing { drift_ppm: Bug::assumed_drift_ppm(bug), heartbeat: Duration::from_millis(150) };
        Self {
            clock,
            node: Node::new(timing, multi_core, Arc::default()).with_flaw(bug.and_then(Bug::of_node)),
            replica: Replica::new(u64::from(me.0), (1..=SERVERS).map(u64::from)),
            connections: BTreeMap::new(),
            limits: BTreeMap::new(),
            last_limit: 0,
            callers: BTreeMap::new(),
            last_call: 0,
            last_secret: u128::from(me.0) << 64,
            outputs: Vec::new(),
        }
    }

    pub fn on_start(&mut self, cx: &mut Cx<'_, Site>) {
        self.end_turn(Cause::Other, cx);
    }

    /// Passes one event to the node, then ends the turn.
    pub fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Site>) {
        let cause = match message {
            Message::Connect { .. }
            | Message::Bytes { .. }
            | Message::Closed { .. }
            | Message::Proposed { .. } => Cause::Work,
            Message::Entry { .. } => Cause::Applied,
            _ => Cause::Other,
        };
        let inputs = match message {
            Message::Connect { connection } => vec![self.attach(from, connection, cx)],
            Message::Bytes { connection, bytes } => vec![decode(connection, &bytes)],
            Message::Closed { connection } => {
                self.connections.remove(&connection);
                vec![Input::Detached(connection)]
            }
            Message::Proposed { batch, results } => vec![Input::Proposed { batch, results }],
            Message::Confirmed { round, result } => self.replica.confirm(round, result).into_iter().collect(),
            Message::Elected { term, leader } => {
                self.replica.on_leader(term, leader);
                Vec::new()
            }
            Message::Entry { id, batch } => {
                let decode = |bytes: Vec<u8>| postcard::from_bytes(&bytes).expect("the log is whole");
                self.replica.apply(Entry { id, batch: batch.map(decode) })
            }
            Message::Forward { call, sessions } => {
                cx.emit(Event::Forwarded);
                self.last_call += 1;
                self.callers.insert(self.last_call, (from, call));
                let sessions = sessions.into_iter().map(SessionId).collect();
                vec![Input::KeepAlivesForwarded { call: self.last_call, sessions }]
            }
            Message::Forwarded { call, results } => {
                vec![Input::KeepAlivesAnswered { call, results: Some(results) }]
            }
            Message::Accepted { .. } | Message::Propose { .. } | Message::Confirm { .. } => Vec::new(),
        };
        inputs.into_iter().for_each(|input| self.handle(input, cx));
        self.end_turn(cause, cx);
    }

    pub fn on_timer(&mut self, cx: &mut Cx<'_, Site>) {
        let now = self.clock.read(cx.now());
        while let Some(limit) = self.limits.first_entry().filter(|limit| limit.key().0 <= now) {
            let input = match limit.remove() {
                Limit::Round(round) => Input::Confirmed { round, result: Err(ReadError::Retry) },
                Limit::Call(call) => Input::KeepAlivesAnswered { call, results: None },
            };
            self.handle(input, cx);
        }
        self.end_turn(Cause::Other, cx);
    }

    fn attach(
        &mut self,
        client: NodeId,
        connection: ConnectionId,
        cx: &mut Cx<'_, Site>,
    ) -> Input<Arc<Replies>> {
        let replies = Arc::<Replies>::default();
        self.connections.insert(connection, Connection { client, replies: replies.clone() });
        cx.send(client, Message::Accepted { connection });
        Input::Attached { connection, outbox: replies, half_close: false }
    }

    fn handle(&mut self, input: Input<Arc<Replies>>, cx: &Cx<'_, Site>) {
        self.with_node(cx, |node, cx| node.handle(input, cx));
    }

    fn with_node<R>(
        &mut self,
        cx: &Cx<'_, Site>,
        act: impl FnOnce(&mut Node<Arc<Replies>>, &mut node::Cx<'_>) -> R,
    ) -> R {
        let secret = &mut self.last_secret;
        let mut secret = || {
            *secret += 1;
            Some(*secret)
        };
        let now = self.clock.read(cx.now());
        let mut cx = node::Cx { now, view: &self.replica, out: &mut self.outputs, secret: &mut secret };
        act(&mut self.node, &mut cx)
    }

    /// Ends the turn as the driver does: carries out the outputs, sends the replies, and sets the alarm.
    fn end_turn(&mut self, mut cause: Cause, cx: &mut Cx<'_, Site>) {
        let turn = loop {
            let turn = self.with_node(cx, |node, cx| node.end_turn(cause, cx));
            self.carry_out(cx);
            if turn.send {
                self.node.take_sends(|_| {});
                self.send(cx);
            }
            if !self.node.has_work(&self.replica) {
                break turn;
            }
            cause = Cause::Other;
        };
        self.close(cx);
        let now = self.clock.read(cx.now());
        let mut wake = turn.wake_at;
        if turn.spin {
            wake = wake.min(now + POLL);
        }
        if let Some(((limit, _), _)) = self.limits.first_key_value() {
            wake = wake.min(*limit);
        }
        let wait = self.clock.wait(cx.now(), wake);
        cx.arm(Timer::Turn, wait..=wait);
    }

    fn carry_out(&mut self, cx: &mut Cx<'_, Site>) {
        let now = self.clock.read(cx.now());
        for output in std::mem::take(&mut self.outputs) {
            match output {
                Output::Propose { batch, entries } => {
                    let encode = |commands| {
                        let batch = Batch { wall_ms: 0, commands };
                        postcard::to_stdvec(&batch).expect("a batch can be encoded")
                    };
                    let entries = entries.into_iter().map(encode).collect();
                    cx.send(ORDER, Message::Propose { batch, entries });
                }
                Output::Confirm { round, limit } => {
                    self.limit(now + limit, Limit::Round(round));
                    cx.send(ORDER, Message::Confirm { round });
                }
                Output::ForwardKeepAlives { call, to, sessions } => {
                    self.limit(now + CALL_LIMIT, Limit::Call(call));
                    let to = NodeId(u32::try_from(to).expect("a site"));
                    let sessions = sessions.into_iter().map(|session| session.0).collect();
                    cx.send(to, Message::Forward { call, sessions });
                }
                Output::AnswerKeepAlives { call, results } => {
                    if let Some((caller, call)) = self.callers.remove(&call) {
                        cx.send(caller, Message::Forwarded { call, results });
                    }
                }
                Output::WakeLogWriter => {}
            }
        }
    }

    fn limit(&mut self, at: Duration, limit: Limit) {
        self.last_limit += 1;
        self.limits.insert((at, self.last_limit), limit);
    }

    /// Sends the replies of all connections.
    fn send(&self, cx: &mut Cx<'_, Site>) {
        for (id, connection) in &self.connections {
            let bytes = connection.replies.with(|frames, _| frames.take().to_vec());
            if !bytes.is_empty() {
                cx.send(connection.client, Message::Bytes { connection: *id, bytes });
            }
        }
    }

    /// Ends the connections that the node has closed, behind their last message.
    fn close(&mut self, cx: &mut Cx<'_, Site>) {
        let closed = |(id, connection): (&ConnectionId, &Connection)| {
            connection.replies.with(|_, is_closed| *is_closed).then_some(*id)
        };
        let closed: Vec<ConnectionId> = self.connections.iter().filter_map(closed).collect();
        if closed.is_empty() {
            return;
        }
        self.send(cx);
        for id in closed {
            if let Some(connection) = self.connections.remove(&id) {
                cx.send(connection.client, Message::Closed { connection: id });
            }
            self.handle(Input::Detached(id), cx);
        }
    }
}

fn decode(connection: ConnectionId, bytes: &[u8]) -> Input<Arc<Replies>> {
    let (mut bytes, mut requests) = (BytesMut::from(bytes), Vec::new());
    while let Some(frame) = frame::decode::<v1::ClientFrame>(&mut bytes).expect("the client encoded it") {
        requests.extend(frame.messages.into_iter().map(Into::into));
    }
    Input::Requests { connection, requests }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}
