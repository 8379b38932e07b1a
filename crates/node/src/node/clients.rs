//! The connections of this node, the session of each, and the order in which replies are sent.

use std::collections::{HashSet, VecDeque};

use conclave_core::{Code, Error, RequestId, SessionId};

use super::ClientRequest;
use super::budget::{MAX_BYTES, request_size};
use super::flush::Activity;
use super::number_map::NumberMap;
use super::rounds::PendingKeepAlive;
use super::{Capacity, ConnectionId, Outbox, Reply};
use crate::leases::Now;

/// The most requests that wait on one connection. A connection with more is closed if it has no session yet;
/// otherwise the request gets the reply `overloaded`.
pub const MAX_QUEUED: usize = 1024;
/// The size of waiting requests, in bytes, from which on nothing more is read from a connection without a
/// session.
pub(super) const PAUSE_BYTES: usize = 1024 * 1024;
/// The number of waiting requests from which on nothing more is read from a connection without a session.
const PAUSE_COUNT: usize = MAX_QUEUED / 2;
const _: () = assert!(PAUSE_BYTES < MAX_BYTES);

/// One connection of a client.
pub(super) struct Connection<O> {
    pub(super) outbox: O,
    pub(super) session: ConnectionSession,
    /// The requests that wait for the session, for space in the outbox, or for the disk.
    pub(super) inbox: Inbox,
    /// Whether the connection is in the queue of the next sending.
    is_to_be_sent: bool,
    pub(super) activity: Activity,
    /// Whether the outbox was full after the last reply.
    pub(super) is_full: bool,
    /// The keep-alive that waits for the next round, and the time since which one waits.
    pub(super) keep_alive: Option<(Now, PendingKeepAlive)>,
    /// The number of its other requests that wait for a round, are in one, or are forwarded to the leader.
    pub(super) waiting: usize,
    /// The requests without a final reply. Kept only where a client can close its half of the connection: on
    /// a gRPC stream.
    unanswered: Option<HashSet<RequestId>>,
    /// The client has closed its half. The connection ends when every request has a reply.
    pub(super) is_half_closed: bool,
}

/// The session of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionSession {
    /// None yet.
    None,
    /// One is being opened or resumed. All other requests wait for it.
    Pending,
    /// The session.
    Bound(SessionId),
    /// The session has ended, or was resumed on another connection.
    Ended,
}

impl ConnectionSession {
    /// Returns the session, if there is one now.
    pub(super) fn id(self) -> Option<SessionId> {
        match self {
            Self::Bound(session) => Some(session),
            _ => None,
        }
    }
}

/// The requests of one connection that wait: for a session, for a reader that is slow, or for the disk.
#[derive(Default)]
pub(super) struct Inbox {
    queue: VecDeque<ClientRequest>,
    /// The size of all of them.
    bytes: usize,
}

impl Inbox {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds a request, whose size the budget has admitted.
    fn push(&mut self, request: ClientRequest, bytes: usize) {
        self.bytes += bytes;
        self.queue.push_back(request);
    }

    fn is_large(&self) -> bool {
        self.bytes >= PAUSE_BYTES || self.len() >= PAUSE_COUNT
    }
}

impl<O: Outbox> Connection<O> {
    fn new(outbox: O, half_close: bool) -> Self {
        Self {
            outbox,
            session: ConnectionSession::None,
            inbox: Inbox::default(),
            is_to_be_sent: false,
            activity: Activity::default(),
            is_full: false,
            keep_alive: None,
            waiting: 0,
            unanswered: half_close.then(HashSet::new),
            is_half_closed: false,
        }
    }

    /// Adds a request that waits, whose size the budget has admitted.
    pub(super) fn enqueue(&mut self, request: ClientRequest, bytes: usize) {
        self.inbox.push(request, bytes);
        self.outbox.pause_reading(self.must_pause());
    }

    /// Returns whether nothing more is read until some requests have been served. The node always reads a
    /// connection with a session, because the next message may be a keep-alive. Its queries beyond
    /// [`MAX_QUEUED`] are rejected.
    fn must_pause(&self) -> bool {
        self.session.id().is_none() && self.inbox.is_large()
    }

    /// Takes the first request that waits, with its size.
    pub(super) fn dequeue(&mut self) -> Option<(ClientRequest, usize)> {
        let request = self.inbox.queue.pop_front()?;
        let bytes = request_size(&request);
        self.inbox.bytes -= bytes;
        self.outbox.pause_reading(self.must_pause());
        Some((request, bytes))
    }

    /// Records a proposed request. A half-closed connection stays open until the final reply to it.
    pub(super) fn on_request(&mut self, id: RequestId) {
        if let Some(unanswered) = &mut self.unanswered {
            unanswered.insert(id);
        }
    }

    /// Records a reply. `Queued` counts as one: a client that closes its half does not wait for a lock.
    pub(super) fn on_reply(&mut self, id: RequestId) {
        if let Some(unanswered) = &mut self.unanswered {
            unanswered.remove(&id);
        }
    }

    /// Takes all requests that wait, with their size.
    pub(super) fn take_inbox(&mut self) -> (VecDeque<ClientRequest>, usize) {
        let Inbox { queue, bytes } = std::mem::take(&mut self.inbox);
        self.outbox.pause_reading(false);
        (queue, bytes)
    }

    /// Returns whether every request has a reply. The requests of a session end with the session.
    fn is_answered(&self) -> bool {
        let is_read = self.waiting == 0 && self.inbox.is_empty() && self.keep_alive.is_none();
        let is_done = self.session.id().is_none() || self.unanswered.as_ref().is_none_or(HashSet::is_empty);
        self.session != ConnectionSession::Pending && is_read && is_done
    }
}

/// All connections.
pub(super) struct Clients<O> {
    connections: NumberMap<ConnectionId, Connection<O>>,
    sessions: NumberMap<SessionId, ConnectionId>,
    /// The connections whose session is being opened, by the secret of the session, with the time of the
    /// request.
    opening: NumberMap<u128, (ConnectionId, Now)>,
    /// The connections with replies to send, in the order of their first unsent reply.
    replied: VecDeque<ConnectionId>,
    /// The connections whose waiting requests can go on: their outboxes have room again.
    writable: VecDeque<ConnectionId>,
}

impl<O: Outbox> Clients<O> {
    pub(super) fn new() -> Self {
        Self {
            connections: NumberMap::default(),
            sessions: NumberMap::default(),
            opening: NumberMap::default(),
            replied: VecDeque::new(),
            writable: VecDeque::new(),
        }
    }

    pub(super) fn attach(&mut self, connection: ConnectionId, outbox: O, half_close: bool) {
        self.connections.insert(connection, Connection::new(outbox, half_close));
    }

    /// Forgets a connection and returns it.
    pub(super) fn detach(&mut self, connection: ConnectionId) -> Option<Connection<O>> {
        let known = self.connections.remove(&connection)?;
        if let Some(session) = known.session.id()
            && self.sessions.get(&session) == Some(&connection)
        {
            self.sessions.remove(&session);
        }
        Some(known)
    }

    pub(super) fn get(&self, connection: ConnectionId) -> Option<&Connection<O>> {
        self.connections.get(&connection)
    }

    pub(super) fn get_mut(&mut self, connection: ConnectionId) -> Option<&mut Connection<O>> {
        self.connections.get_mut(&connection)
    }

    /// Returns the connection of a session.
    pub(super) fn of_session(&self, session: SessionId) -> Option<ConnectionId> {
        self.sessions.get(&session).copied()
    }

    pub(super) fn connections_len(&self) -> usize {
        self.connections.len()
    }

    pub(super) fn sessions_len(&self) -> usize {
        self.sessions.len()
    }

    /// Records that a session is being opened on a connection.
    pub(super) fn begin_opening(&mut self, secret: u128, connection: ConnectionId, now: Now) {
        self.opening.insert(secret, (connection, now));
    }

    /// Takes the connection on which a session is being opened.
    pub(super) fn take_opening(&mut self, secret: u128) -> Option<ConnectionId> {
        self.opening.remove(&secret).map(|(connection, _)| connection)
    }

    /// Takes the connections that have waited for a session since `since` or longer, in the order of their
    /// numbers. `None` takes none.
    pub(super) fn take_late_openings(&mut self, since: Option<Now>) -> Vec<ConnectionId> {
        let Some(since) = since else { return Vec::new() };
        let late = self.opening.extract_if(|_, (_, began)| *began <= since);
        let mut late: Vec<ConnectionId> = late.map(|(_, (connection, _))| connection).collect();
        late.sort_unstable();
        late
    }

    /// Binds a session to a connection. Closes the connection that had it before.
    pub(super) fn bind(&mut self, connection: ConnectionId, session: SessionId) {
        let before = self.sessions.insert(session, connection).filter(|before| *before != connection);
        if let Some(before) = before.and_then(|before| self.connections.get_mut(&before)) {
            before.session = ConnectionSession::Ended;
            let text = format!("session {session} was resumed on another connection");
            before.outbox.close(&Error::new(Code::Disconnected, text));
        }
        if let Some(known) = self.connections.get_mut(&connection) {
            known.session = ConnectionSession::Bound(session);
        }
    }

    /// Forgets a session that has ended.
    pub(super) fn unbind(&mut self, session: SessionId) {
        if let Some(known) =
            self.sessions.remove(&session).and_then(|connection| self.connections.get_mut(&connection))
        {
            known.session = ConnectionSession::Ended;
        }
    }

    /// Takes all connections that have a session or are opening one, in the order of their numbers. The
    /// openings are forgotten.
    pub(super) fn take_bound(&mut self) -> Vec<ConnectionId> {
        let opening = self.opening.drain().map(|(_, (connection, _))| connection);
        let mut bound: Vec<ConnectionId> = opening.chain(self.sessions.values().copied()).collect();
        bound.sort_unstable();
        bound
    }

    /// Puts a reply into the outbox of a connection.
    pub(super) fn push(&mut self, connection: ConnectionId, reply: &Reply) {
        if let Some(known) = self.connections.get_mut(&connection) {
            known.is_full = known.outbox.push(reply) == Capacity::Full;
            self.touch(connection);
        }
    }

    /// Adds a connection to the next sending, which also checks whether it can close or continue.
    pub(super) fn touch(&mut self, connection: ConnectionId) {
        if let Some(known) = self.connections.get_mut(&connection)
            && !std::mem::replace(&mut known.is_to_be_sent, true)
        {
            self.replied.push_back(connection);
        }
    }

    pub(super) fn close(&self, connection: ConnectionId, why: &Error) {
        if let Some(known) = self.connections.get(&connection) {
            known.outbox.close(why);
        }
    }

    pub(super) fn close_all(&self, why: &Error) {
        self.connections.values().for_each(|known| known.outbox.close(why));
    }

    /// Returns whether some connection has replies to send.
    pub(super) fn has_replies(&self) -> bool {
        !self.replied.is_empty()
    }

    /// Takes the next connection to send to, calls `send` with its outbox, and returns whether there was one.
    pub(super) fn send_next(&mut self, send: &mut impl FnMut(&O)) -> bool {
        let Some(connection) = self.replied.pop_front() else { return false };
        let Some(known) = self.connections.get_mut(&connection) else { return true };
        known.is_to_be_sent = false;
        if known.is_half_closed && known.is_answered() {
            known.outbox.close(&Error::new(Code::Disconnected, "the client has ended the stream"));
        }
        send(&known.outbox);
        let is_pending = known.session == ConnectionSession::Pending;
        if !known.inbox.is_empty() && !is_pending && known.outbox.capacity() == Capacity::Free {
            self.writable.push_back(connection);
        }
        true
    }

    /// Records that the outbox of a connection has space again.
    pub(super) fn on_writable(&mut self, connection: ConnectionId) {
        self.writable.push_back(connection);
    }

    pub(super) fn has_writable(&self) -> bool {
        !self.writable.is_empty()
    }

    pub(super) fn writable_len(&self) -> usize {
        self.writable.len()
    }

    pub(super) fn take_writable(&mut self) -> Option<ConnectionId> {
        self.writable.pop_front()
    }
}
