//! Rounds: a quorum confirms the leader, once for all who wait.
//!
//! Most of what a round serves is read from the state, some of it at a time: a read may cost far more than its answer. On a node that
//! is alone the state may be ahead of the disk while a flush is on its way: then it is served between two flushes. Keep-alives
//! are not: neither a disk nor the reads of others may hold them up.
//!
//! Also what a node that does not lead does with keep-alives: it passes them on to the node that does.

use std::time::Duration;

use conclave_api::proto::v1::{self, ServerMessage};
use conclave_api::{Code, Error, SessionId};
use futures_util::future::BoxFuture;
use prost::Message;
use tokio::sync::oneshot;

use super::super::outbox::FULL_BYTES;
use super::super::wire::{self, Query};
use super::super::{metrics, query};
use super::connections::watcher;
use super::{AT_ONCE, ConnectionId, Hub, MAX_BEHIND, MAX_WAITING, MAX_WAITING_EACH, overloaded, stopping};
use crate::lease::{Kept, Now};
use crate::replica::log::LogId;
use crate::replica::{NodeId, ReadError};
use crate::state::State;
use crate::state::watch::{Event, Notice, WatchTarget};

/// What waits for a round longer than this is refused.
const ROUND_LIMIT: Duration = Duration::from_secs(5);
/// A client whose keep-alive waits for so many heartbeats is sent to another node: longer than an election takes.
pub(super) const ALIVE_BEATS: u32 = 16;

/// Something that waits for a round.
pub(super) struct Waiting {
    pub(super) since: Now,
    pub(super) what: Wanted,
}

pub(super) enum Wanted {
    KeepAlive(Alive),
    /// Keep-alives of another node's clients, with what they came to here.
    Forwarded {
        sessions: Vec<SessionId>,
        kept: Vec<Kept>,
        term: Option<u64>,
        answer: oneshot::Sender<Vec<Kept>>,
    },
    Read(Read),
}

/// What is served from the state.
pub(super) enum Read {
    Resume { connection: ConnectionId, session: SessionId, secret: u128 },
    Query { connection: ConnectionId, id: u64, query: Query },
    Watch { connection: ConnectionId, id: u64, after: Option<u64>, target: WatchTarget },
    Unwatch { connection: ConnectionId, id: u64 },
}

/// A keep-alive of a client of this node.
pub(super) struct Alive {
    pub(super) connection: ConnectionId,
    pub(super) session: SessionId,
    pub(super) token: u64,
    /// The term in which it was counted here.
    pub(super) term: Option<u64>,
}

/// Keep-alives that were passed on, and what the leader said; nothing if it did not answer.
pub(super) type Forwarded = (Vec<Alive>, Option<Vec<Kept>>);

impl Wanted {
    /// Whose share of the table it takes.
    fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Read(read) => read.connection(),
            Self::KeepAlive(alive) => Some(alive.connection),
            Self::Forwarded { .. } => None,
        }
    }
}

impl Read {
    /// Whose share of the table it takes.
    fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Query { connection, .. }
            | Self::Watch { connection, .. }
            | Self::Unwatch { connection, .. } => Some(*connection),
            Self::Resume { .. } => None,
        }
    }
}

pub(super) struct Round {
    pub(super) serves: Vec<Waiting>,
    confirmed: BoxFuture<'static, Result<LogId, ReadError>>,
}

impl Hub {
    pub(super) fn keep_alive(&mut self, mut alive: Alive) {
        let now = self.now();
        match self.keeper.on_keep_alive(now, alive.session) {
            // Its end is on its way, and will be told.
            Kept::Ending => {}
            // Whether it has ended, or its beginning has not yet come by here, the round will tell.
            Kept::Unknown | Kept::NotLeading => self.wait_alive(now, alive),
            Kept::Extended => {
                alive.term = self.keeper.term();
                self.wait_alive(now, alive);
            }
        }
    }

    /// Only the newest keep-alive of a connection waits: its answer says all that answers to those before it would say.
    fn wait_alive(&mut self, now: Now, alive: Alive) {
        let connection = alive.connection;
        let Some(known) = self.connections.get_mut(&connection) else { return };
        if let Some((_, before)) = &mut known.alive {
            *before = alive;
            return;
        }
        known.alive = Some((now, alive));
        self.alive.push(connection);
    }

    /// A keep-alive that no round has confirmed waits for the next, unless a newer one does.
    fn wait_again(&mut self, since: Now, alive: Alive) {
        match self.connections.get_mut(&alive.connection).and_then(|known| known.alive.as_mut()) {
            Some((first, _)) => *first = since.min(*first),
            None => self.wait_alive(since, alive),
        }
    }

    pub(super) fn has_ended(&self, session: SessionId) -> bool {
        self.replica.peek(|service| service.state().session(session).is_none())
    }

    pub(super) fn wait(&mut self, what: Wanted) {
        let known = what.connection().and_then(|connection| self.connections.get_mut(&connection));
        let has_more = known.as_ref().is_some_and(|known| known.waiting >= MAX_WAITING_EACH);
        if self.waiting.len() + self.confirmed.len() >= MAX_WAITING || has_more {
            return self.refuse_waiting(what, &overloaded());
        }
        if let Some(known) = known {
            known.waiting += 1;
        }
        self.waiting.push(Waiting { since: self.now(), what });
    }

    /// Something of a connection waits no longer, and is about to be answered.
    fn waits_no_longer(&mut self, connection: Option<ConnectionId>) {
        let Some(connection) = connection else { return };
        if let Some(known) = self.connections.get_mut(&connection) {
            known.waiting = known.waiting.saturating_sub(1);
            if known.finishing {
                // It may have been the last, and not everything is answered by a message.
                self.touch(connection);
            }
        }
    }

    /// Whether anything waits for the next round.
    pub(super) fn wants_round(&self) -> bool {
        !self.waiting.is_empty() || !self.alive.is_empty()
    }

    pub(super) fn begin_round(&mut self) {
        if self.round.is_some() || !self.wants_round() || self.now() < self.next_round {
            return;
        }
        let mut serves = std::mem::take(&mut self.waiting);
        for connection in self.alive.drain(..) {
            if let Some(known) = self.connections.get_mut(&connection)
                && let Some((since, alive)) = known.alive.take()
            {
                known.waiting += 1;
                serves.push(Waiting { since, what: Wanted::KeepAlive(alive) });
            }
        }
        let (replica, limit) = (self.replica.clone(), self.timing.heartbeat * ALIVE_BEATS);
        let confirmed = Box::pin(async move {
            // What a leader said that then lost its office may never be applied here.
            tokio::time::timeout(limit, replica.confirm()).await.unwrap_or(Err(ReadError::Retry))
        });
        self.round = Some(Round { serves, confirmed });
    }

    /// Whether all that is in the state may be told.
    pub(super) fn may_tell(&self) -> bool {
        self.proposals.is_empty() || !self.replica.may_be_ahead()
    }

    /// Whether somebody waits to be served, and may be.
    pub(super) fn may_serve(&self) -> bool {
        (!self.confirmed.is_empty() || !self.drained.is_empty()) && self.may_tell()
    }

    /// Serves who waits for a round that was confirmed, or for room in the outbox.
    pub(super) fn serve(&mut self) {
        if !self.may_serve() {
            return;
        }
        for _ in 0..AT_ONCE {
            let Some(read) = self.confirmed.pop_front() else { break };
            self.waits_no_longer(read.connection());
            self.on_confirmed(read);
        }
        self.catch_up();
    }

    pub(super) fn on_round(&mut self, result: Result<LogId, ReadError>) {
        let Some(Round { serves, .. }) = self.round.take() else { return };
        let error = match result {
            Ok(id) => return self.on_round_confirmed(serves, id.term),
            Err(error) => error,
        };
        match error {
            ReadError::Retry => {
                let now = self.now();
                self.next_round = now + self.timing.heartbeat;
                let limit = |what: &Wanted| match what {
                    Wanted::KeepAlive(_) => self.timing.heartbeat * ALIVE_BEATS,
                    _ => ROUND_LIMIT,
                };
                let (again, late): (Vec<_>, Vec<_>) =
                    serves.into_iter().partition(|waiting| waiting.since + limit(&waiting.what) > now);
                let (alive, again): (Vec<_>, Vec<_>) =
                    again.into_iter().partition(|waiting| matches!(waiting.what, Wanted::KeepAlive(_)));
                self.waiting.splice(0..0, again);
                for Waiting { since, what } in alive {
                    self.waits_no_longer(what.connection());
                    if let Wanted::KeepAlive(alive) = what {
                        self.wait_again(since, alive);
                    }
                }
                let error = no_majority();
                for Waiting { what, .. } in late {
                    self.waits_no_longer(what.connection());
                    // The lease runs: this node may be cut off from a majority that another one belongs to.
                    if let Wanted::KeepAlive(alive) = &what {
                        self.close(alive.connection, &error);
                    }
                    self.refuse_waiting(what, &error);
                }
            }
            ReadError::Stopped => {
                for Waiting { what, .. } in serves {
                    self.waits_no_longer(what.connection());
                    self.refuse_waiting(what, &stopping());
                }
            }
        }
    }

    /// Keep-alives are answered now, the rest in its turn.
    fn on_round_confirmed(&mut self, serves: Vec<Waiting>, term: u64) {
        let mut elsewhere = Vec::new();
        for Waiting { what, .. } in serves {
            match what {
                Wanted::KeepAlive(alive) => {
                    self.waits_no_longer(Some(alive.connection));
                    if alive.term == Some(term) {
                        self.on_kept(&alive);
                    } else if !self.has_ended(alive.session) {
                        elsewhere.push(alive);
                    }
                    // Else its end is on its way here, behind whatever else it is still to be told.
                }
                Wanted::Forwarded { sessions, mut kept, term: counted, answer } => {
                    for (session, kept) in sessions.into_iter().zip(&mut kept) {
                        *kept = match *kept {
                            Kept::Extended | Kept::Ending if counted == Some(term) => *kept,
                            _ if self.has_ended(session) => Kept::Unknown,
                            _ => Kept::NotLeading,
                        };
                    }
                    // The other node may have given up.
                    drop(answer.send(kept));
                }
                Wanted::Read(read) => self.confirmed.push_back(read),
            }
        }
        self.forward(elsewhere);
    }

    fn on_kept(&mut self, alive: &Alive) {
        metrics::add(&self.metrics.keep_alives_total, 1);
        self.push(alive.connection, &v1::KeptAlive { token: alive.token }.into());
    }

    fn on_confirmed(&mut self, read: Read) {
        match read {
            Read::Resume { connection, session, secret } => {
                let known = self.replica.peek(|service| service.state().authenticate(session, secret));
                match known {
                    Ok(info) => {
                        let resumed = v1::Resumed {
                            session: session.0,
                            ttl_ms: info.ttl_ms,
                            drift_ppm: self.timing.drift_ppm,
                            nodes: self.nodes(),
                        };
                        self.bind(connection, session, &resumed.into());
                        self.repeat_broken(connection, session);
                    }
                    Err(error) => self.close(connection, &error),
                }
            }
            Read::Query { connection, id, query } => self.answer_query(connection, id, query),
            Read::Watch { connection, id, after, target } => {
                if self.connections.contains_key(&connection) {
                    self.watch(connection, id, after, target);
                }
            }
            Read::Unwatch { connection, id } => self.watchers.unwatch(watcher(connection), id),
        }
    }

    /// Whoever was not connected has not heard it; whoever has, hears it once more until the grant is released.
    fn repeat_broken(&mut self, connection: ConnectionId, session: SessionId) {
        let broken = |state: &State| state.broken(session).map(wire::broken).collect();
        let broken: Vec<ServerMessage> = self.replica.peek(|service| broken(service.state()));
        broken.iter().for_each(|broken| self.push(connection, broken));
    }

    pub(super) fn refuse_waiting(&mut self, what: Wanted, error: &Error) {
        match what {
            // An answer that does not come is one that says nothing: the client goes on trying until its deadline.
            Wanted::KeepAlive(_) => {}
            // Who has too much may always give something up, though then not behind a watch that still waits.
            Wanted::Read(Read::Unwatch { connection, id }) => {
                self.watchers.unwatch(watcher(connection), id);
            }
            Wanted::Forwarded { answer, .. } => drop(answer),
            Wanted::Read(Read::Resume { connection, .. }) => self.close(connection, error),
            Wanted::Read(Read::Query { connection, id, .. } | Read::Watch { connection, id, .. }) => {
                self.refuse(connection, id, error);
            }
        }
    }

    /// Answers a query, or keeps it until the client has read what it was answered before and the answer may be told. Many
    /// are kept before nothing more is read: a keep-alive may be behind them.
    pub(super) fn answer_query(&mut self, connection: ConnectionId, id: u64, query: Query) {
        // How the nodes stand is not in the state.
        let may_tell = self.may_tell() || matches!(query, Query::Cluster);
        let Some(known) = self.connections.get_mut(&connection) else { return };
        if may_tell && !known.is_full && known.behind.is_empty() {
            return self.answer_now(connection, id, &query);
        }
        if known.behind.len() >= MAX_BEHIND {
            return self.refuse(connection, id, &overloaded());
        }
        known.behind.push_back((id, query));
        known.pace();
        // The flush sees whether there is room after it.
        self.touch(connection);
    }

    /// Answers queries that have waited for room, of each connection until there is none.
    fn catch_up(&mut self) {
        for _ in 0..self.drained.len().min(AT_ONCE) {
            let Some(connection) = self.drained.pop_front() else { return };
            let Some(known) = self.connections.get_mut(&connection) else { continue };
            known.is_full = false;
            while let Some(known) = self.connections.get_mut(&connection).filter(|known| !known.is_full) {
                let Some((id, query)) = known.behind.pop_front() else { break };
                known.pace();
                self.answer_now(connection, id, &query);
            }
        }
    }

    fn answer_now(&mut self, connection: ConnectionId, id: u64, query: &Query) {
        metrics::add(&self.metrics.queries_total, 1);
        let nodes = || query::cluster(&self.replica);
        let result = self.replica.peek(|service| query::answer(service.state(), query, nodes));
        self.push(connection, &wire::answer(id, result));
    }

    pub(super) fn watch(
        &mut self,
        connection: ConnectionId,
        id: u64,
        after: Option<u64>,
        target: WatchTarget,
    ) {
        let watchers = &mut self.watchers;
        let begin =
            |state: &State| (state.applied(), watchers.watch(state, watcher(connection), id, target, after));
        match self.replica.peek(|service| begin(service.state())) {
            (index, Ok(missed)) => {
                self.push(
                    connection,
                    &wire::answer(id, v1::answer::Result::Watching(v1::Watching { index })),
                );
                self.tell_missed(connection, id, index, missed);
            }
            (_, Err(error)) => self.refuse(connection, id, &error),
        }
    }

    /// Tells a watch what it has missed, or only that it has, if that is more than can wait for the client.
    pub(super) fn tell_missed(&mut self, connection: ConnectionId, id: u64, index: u64, missed: Vec<Notice>) {
        let is_full = self.connections.get(&connection).is_some_and(|known| known.is_full);
        let missed: Vec<ServerMessage> =
            missed.into_iter().map(|Notice { watch, event, .. }| wire::event(watch, event)).collect();
        let bytes: usize = missed.iter().map(ServerMessage::encoded_len).sum();
        if !missed.is_empty() && (is_full || bytes > FULL_BYTES) {
            return self.push(connection, &wire::event(id, Event::Resync { index }));
        }
        missed.iter().for_each(|event| self.push(connection, event));
    }

    /// Keep-alives of a node that does not lead go to the one that does, which counts leases.
    pub(super) fn forward(&mut self, alive: Vec<Alive>) {
        if alive.is_empty() {
            return;
        }
        let status = self.replica.status();
        let leader: Option<NodeId> = status.leader.filter(|leader| *leader != status.node);
        match leader
            .and_then(|leader| status.membership.nodes.get(&leader).map(|member| (leader, member.clone())))
        {
            Some((leader, member)) => {
                for alive in &alive {
                    if let Some(known) = self.connections.get_mut(&alive.connection) {
                        known.waiting += 1;
                    }
                }
                let sessions: Vec<SessionId> = alive.iter().map(|alive| alive.session).collect();
                let peers = self.peers.clone();
                self.forwards.push(Box::pin(async move {
                    let kept = peers.keep_alive(leader, &member, &sessions).await;
                    (alive, kept.ok())
                }));
            }
            // This node leads meanwhile, or nobody does: the next round will tell.
            None => {
                for alive in alive {
                    // A newer one is on its way already, and counts for this one.
                    if self.connections.get(&alive.connection).is_some_and(|known| known.alive.is_none()) {
                        self.keep_alive(alive);
                    }
                }
            }
        }
    }

    pub(super) fn on_forwarded(&mut self, alive: Vec<Alive>, kept: Option<Vec<Kept>>) {
        let kept = kept.unwrap_or_default().into_iter().chain(std::iter::repeat(Kept::NotLeading));
        for (alive, kept) in alive.into_iter().zip(kept) {
            self.waits_no_longer(Some(alive.connection));
            match kept {
                Kept::Extended => self.on_kept(&alive),
                // Its end is on its way, and will be told: to whoever has a session here by the log.
                Kept::Unknown | Kept::Ending => {}
                // The client will ask again.
                Kept::NotLeading => {}
            }
        }
    }
}

pub(super) fn no_majority() -> Error {
    Error::new(Code::NoQuorum, "no majority confirms a leader")
}

/// The end of the round, if one is under way.
pub(super) async fn confirmed(round: &mut Option<Round>) -> Result<LogId, ReadError> {
    match round {
        Some(Round { confirmed, .. }) => confirmed.as_mut().await,
        _ => std::future::pending().await,
    }
}
