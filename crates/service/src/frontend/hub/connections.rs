//! Connections and the sessions on them: what a client asks goes to where it belongs.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use conclave_api::proto::v1::ServerMessage;
use conclave_api::{Code, Error, RequestId, SessionId};

use super::super::metrics;
use super::super::outbox::Outbox;
use super::super::wire::{self, Ask, Query};
use super::effects::Origin;
use super::gathering::Asked;
use super::rounds::{ALIVE_BEATS, Alive, Read, Wanted, no_majority};
use super::{
    AT_ONCE, ConnectionId, Hub, Inbound, MAX_BEHIND, MAX_BYTES, MAX_IN_FLIGHT, MAX_PARKED, PARKED_BYTES,
    overloaded, stopping,
};
use crate::lease::Now;
use crate::machine::{op_weight, weight};
use crate::state::{Command, OpenSession, Request};

/// One connection of a client.
pub(super) struct Connection {
    pub(super) outbox: Arc<Outbox>,
    pub(super) session: Option<SessionId>,
    /// Asks that wait for the session, if one is being opened or resumed.
    parked: Option<Parked>,
    touched: Touched,
    asked: Asked,
    /// It was granted something ahead of the disk, and has asked nothing since.
    pub(super) is_heir: bool,
    /// The outbox had too much when something was last put into it.
    pub(super) is_full: bool,
    /// Queries that wait for room in the outbox.
    pub(super) behind: VecDeque<(u64, Query)>,
    /// The keep-alive that waits for the next round, and since when one does.
    pub(super) alive: Option<(Now, Alive)>,
    /// What else of it waits for a round, is in one, or has gone to the leader.
    pub(super) waiting: usize,
    /// There was a session, though there may be none any more.
    had_session: bool,
    /// Requests without an answer, `queued` included, where a client can say that it will ask nothing more: on a gRPC stream.
    unanswered: Option<HashSet<RequestId>>,
    /// The client asks nothing more: the connection ends when all is answered.
    pub(super) finishing: bool,
}

impl Connection {
    fn new(outbox: Arc<Outbox>) -> Self {
        Self {
            unanswered: (!outbox.has_socket()).then(HashSet::new),
            outbox,
            session: None,
            parked: None,
            touched: Touched::No,
            asked: Asked::default(),
            is_heir: false,
            is_full: false,
            behind: VecDeque::new(),
            alive: None,
            waiting: 0,
            had_session: false,
            finishing: false,
        }
    }

    /// Whether nothing of what was asked is without an answer. What a session has asked ends with it.
    fn is_answered(&self) -> bool {
        let is_read = self.waiting == 0 && self.behind.is_empty() && self.alive.is_none();
        let is_done = self.session.is_none() || self.unanswered.as_ref().is_none_or(HashSet::is_empty);
        self.parked.is_none() && is_read && is_done
    }

    /// Has the task read on, or not: to be called when what waits here has become more or less.
    pub(super) fn pace(&self) {
        let is_parked = self.parked.as_ref().is_some_and(|parked| parked.bytes >= PARKED_BYTES);
        self.outbox.set_behind(is_parked || self.behind.len() >= MAX_BEHIND / 2);
    }
}

/// Asks that wait for a session.
#[derive(Default)]
struct Parked {
    asks: Vec<Ask>,
    /// What they weigh.
    bytes: usize,
}

/// What was put into an outbox since the last flush.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Touched {
    No,
    Told,
    Granted,
}

impl Hub {
    pub(super) fn on_inbound(&mut self, inbound: Inbound) {
        match inbound {
            Inbound::Attach { connection, outbox } => {
                self.connections.insert(connection, Connection::new(outbox));
                metrics::set(&self.metrics.connections, self.connections.len());
            }
            Inbound::Asks { connection, asks } => {
                asks.into_iter().for_each(|ask| self.on_ask(connection, ask));
            }
            Inbound::Fail { connection, error } => self.close(connection, &error),
            Inbound::Finish { connection } => {
                if let Some(known) = self.connections.get_mut(&connection) {
                    known.finishing = true;
                    self.touch(connection);
                }
            }
            Inbound::Drained { connection } => self.drained.push_back(connection),
            Inbound::Detach { connection } => self.detach(connection),
            Inbound::Forwarded { sessions, answer } => {
                let now = self.now();
                let kept = sessions.iter().map(|session| self.keeper.on_keep_alive(now, *session)).collect();
                let term = self.keeper.term();
                self.wait(Wanted::Forwarded { sessions, kept, term, answer });
            }
            Inbound::Stop { .. } => {}
        }
    }

    pub(super) fn on_ask(&mut self, connection: ConnectionId, ask: Ask) {
        let Some(known) = self.connections.get_mut(&connection) else { return };
        if let Some(parked) = &mut known.parked {
            let bytes = ask.weight();
            if parked.asks.len() >= MAX_PARKED {
                let error = Error::new(
                    Code::Overloaded,
                    format!("the client sent more than {MAX_PARKED} requests before its session was open"),
                );
                return self.close(connection, &error);
            }
            if self.bytes + bytes > MAX_BYTES && !ask.lets_go() {
                return self.close(connection, &overloaded());
            }
            self.bytes += bytes;
            parked.bytes += bytes;
            parked.asks.push(ask);
            return known.pace();
        }
        let session = known.session;
        match (ask, session) {
            (Ask::Request { id, lowest, op }, Some(session)) => {
                self.request(connection, Request { session, id, lowest, op });
            }
            (Ask::KeepAlive { token }, Some(session)) => {
                self.keep_alive(Alive { connection, session, token, term: None });
            }
            (Ask::Request { id: RequestId(id), .. }, None) => self.refuse(connection, id, &no_session()),
            // It has crossed the end of its session, which was told.
            (Ask::KeepAlive { .. }, None) if known.had_session => {}
            (Ask::KeepAlive { .. }, None) => self.close(connection, &no_session()),
            (Ask::Open { .. } | Ask::Resume { .. }, Some(session)) => {
                let text = format!("this connection already has session {session}");
                self.close(connection, &Error::new(Code::InvalidArgument, text));
            }
            (Ask::Open { ttl_ms, lock_delay_ms, label }, None) => {
                self.open(connection, ttl_ms, lock_delay_ms, label);
            }
            (Ask::Resume { session, secret }, None) => {
                known.parked = Some(Parked::default());
                self.wait(Wanted::Read(Read::Resume { connection, session, secret }));
            }
            // How the nodes stand is asked above all when no majority answers.
            (
                Ask::Query { id, stale: true, what } | Ask::Query { id, what: what @ Query::Cluster, .. },
                _,
            ) => {
                self.answer_query(connection, id, what);
            }
            (Ask::Query { id, stale: false, what }, _) => {
                self.wait(Wanted::Read(Read::Query { connection, id, query: what }));
            }
            (Ask::Watch { id, after, target }, _) => {
                self.wait(Wanted::Read(Read::Watch { connection, id, after, target }));
            }
            // Behind the watch it may end, which waits for a round.
            (Ask::Unwatch { id }, _) => self.wait(Wanted::Read(Read::Unwatch { connection, id })),
            (Ask::Nonsense { id, error }, _) => self.refuse(connection, id, &error),
            (Ask::Garbage(error), _) => self.close(connection, &error),
        }
    }

    pub(super) fn request(&mut self, connection: ConnectionId, request: Request) {
        metrics::add(&self.metrics.requests_total, 1);
        let Request { session, id, .. } = request;
        if !self.has_room(op_weight(&request.op), wire::lets_go(&request.op)) {
            return self.refuse(connection, id.0, &overloaded());
        }
        self.add(Origin::Request { session, id }, Command::Request(request));
        if let Some(known) = self.connections.get_mut(&connection) {
            self.gathering.on_asked(&mut known.asked);
            self.is_urgent |= std::mem::take(&mut known.is_heir);
            if let Some(unanswered) = &mut known.unanswered {
                unanswered.insert(id);
            }
        }
    }

    /// Whether one more may be proposed.
    fn has_room(&self, bytes: usize, lets_go: bool) -> bool {
        self.in_flight + self.commands.len() < MAX_IN_FLIGHT && (lets_go || self.bytes + bytes <= MAX_BYTES)
    }

    /// An answer to a request is on its way, perhaps the last.
    pub(super) fn on_answered(&mut self, connection: ConnectionId, request: RequestId, is_last: bool) {
        if let Some(known) = self.connections.get_mut(&connection) {
            if is_last {
                self.gathering.on_answered(&mut known.asked);
            }
            if let Some(unanswered) = &mut known.unanswered {
                unanswered.remove(&request);
            }
        }
    }

    pub(super) fn open(&mut self, connection: ConnectionId, ttl_ms: u64, lock_delay_ms: u64, label: String) {
        let Some(secret) = secret() else {
            return self.close(
                connection,
                &Error::new(Code::Internal, "the operating system returns no random numbers"),
            );
        };
        let open = Command::OpenSession(OpenSession { secret, ttl_ms, lock_delay_ms, label });
        if !self.has_room(weight(&open), false) {
            return self.close(connection, &overloaded());
        }
        let now = self.now();
        if let Some(known) = self.connections.get_mut(&connection) {
            known.parked = Some(Parked::default());
            self.opening.insert(secret, (connection, now));
            self.add(Origin::Open { secret }, open);
        }
    }

    /// Sends away who waits for a session in vain: this node may lead without a majority, and never hear that it does not.
    /// Should the session be opened after all, nobody knows its secret, and it ends with its lease.
    pub(super) fn check_openings(&mut self, now: Now) {
        let limit = self.timing.heartbeat * ALIVE_BEATS;
        let late = |(_, since): &(ConnectionId, Now)| *since + limit <= now;
        let late: Vec<_> = self.opening.extract_if(|_, opening| late(opening)).collect();
        for (_, (connection, _)) in late {
            self.close(connection, &no_majority());
        }
    }

    /// The session of a connection is known: what waited for it goes on.
    pub(super) fn bind(&mut self, connection: ConnectionId, session: SessionId, hello: &ServerMessage) {
        let Some(known) = self.connections.get_mut(&connection) else { return };
        known.session = Some(session);
        known.had_session = true;
        let parked = known.parked.take().unwrap_or_default();
        self.bytes -= parked.bytes;
        known.pace();
        if let Some(before) = self.sessions.insert(session, connection).filter(|before| *before != connection)
        {
            let error = Error::new(
                Code::Disconnected,
                format!("session {session} was resumed on another connection"),
            );
            if let Some(before) = self.connections.get_mut(&before) {
                before.session = None;
            }
            self.close(before, &error);
        }
        metrics::set(&self.metrics.sessions_here, self.sessions.len());
        self.push(connection, hello);
        parked.asks.into_iter().for_each(|ask| self.on_ask(connection, ask));
    }

    pub(super) fn detach(&mut self, connection: ConnectionId) {
        let Some(known) = self.connections.remove(&connection) else { return };
        if let Some(session) = known.session
            && self.sessions.get(&session) == Some(&connection)
        {
            self.sessions.remove(&session);
        }
        self.bytes -= known.parked.map_or(0, |parked| parked.bytes);
        self.gathering.on_detached(known.asked);
        self.watchers.end_session(watcher(connection));
        metrics::set(&self.metrics.connections, self.connections.len());
        metrics::set(&self.metrics.sessions_here, self.sessions.len());
    }

    pub(super) fn push(&mut self, connection: ConnectionId, message: &ServerMessage) {
        if self.put(connection, message, Touched::Told) {
            self.touched.push_back(connection);
        }
    }

    /// As [`Hub::push`], and before all that is merely told.
    pub(super) fn push_grant(&mut self, connection: ConnectionId, message: &ServerMessage) {
        if self.put(connection, message, Touched::Granted) {
            self.granted.push_back(connection);
        }
    }

    /// Whether the connection is now more urgent than it was.
    fn put(&mut self, connection: ConnectionId, message: &ServerMessage, touched: Touched) -> bool {
        let Some(known) = self.connections.get_mut(&connection) else { return false };
        known.is_full = known.outbox.push(message);
        let is_more = known.touched < touched;
        known.touched = known.touched.max(touched);
        is_more
    }

    /// Has [`Hub::flush`] look at a connection, though nothing was put into its outbox.
    pub(super) fn touch(&mut self, connection: ConnectionId) {
        if let Some(known) =
            self.connections.get_mut(&connection).filter(|known| known.touched == Touched::No)
        {
            known.touched = Touched::Told;
            self.touched.push_back(connection);
        }
    }

    /// Whether something waits for [`Hub::flush`], or may be served at once.
    pub(super) fn has_answers(&self) -> bool {
        !self.granted.is_empty() || !self.touched.is_empty() || self.may_serve()
    }

    pub(super) fn refuse(&mut self, connection: ConnectionId, id: u64, error: &Error) {
        metrics::add(&self.metrics.requests_refused_total, 1);
        self.push(connection, &wire::refusal(id, error));
    }

    pub(super) fn close(&mut self, connection: ConnectionId, error: &Error) {
        if let Some(known) = self.connections.get(&connection) {
            known.outbox.close(error);
        }
    }

    pub(super) fn goodbye(&self) {
        self.connections.values().for_each(|known| known.outbox.close(&stopping()));
    }

    /// Sends what is in the outboxes, of some connections at a time: there may be thousands, and other things to do.
    pub(super) fn flush(&mut self) {
        if !self.has_answers() {
            return;
        }
        for _ in 0..AT_ONCE {
            let Some(connection) = self.granted.pop_front().or_else(|| self.touched.pop_front()) else {
                break;
            };
            // Who was told something and then granted something is in both, and sent to once.
            if let Some(known) = self.connections.get_mut(&connection)
                && std::mem::replace(&mut known.touched, Touched::No) != Touched::No
            {
                if known.finishing && known.is_answered() {
                    known.outbox.close(&Error::new(Code::Disconnected, "the client has ended the stream"));
                }
                known.outbox.flush(&mut self.spare);
                if !known.behind.is_empty() && !known.outbox.must_wait() {
                    self.drained.push_back(connection);
                }
            }
        }
        self.gathering.on_sent();
    }
}

/// Watches belong to connections: their number is the watcher's.
pub(super) fn watcher(connection: ConnectionId) -> SessionId {
    SessionId(connection)
}

fn secret() -> Option<u128> {
    let mut bytes = [0; 16];
    let read = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    (read == Ok(16)).then(|| u128::from_be_bytes(bytes))
}

fn no_session() -> Error {
    Error::new(Code::SessionEnded, "no session was opened or resumed on this connection")
}
