//! Rounds: a quorum confirms the leader, once for all who wait.
//!
//! Also what a node that does not lead does with keep-alives: it passes them on to the node that does.

use std::time::Duration;

use conclave_api::proto::v1::{self, ServerMessage};
use conclave_api::{Code, Error, SessionId};
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::super::wire::{self, Query};
use super::super::{metrics, query};
use super::connections::watcher;
use super::{ConnectionId, Hub, MAX_WAITING, overloaded, stopping};
use crate::lease::{Kept, Now};
use crate::replica::log::LogId;
use crate::replica::{NodeId, ReadError};
use crate::state::watch::WatchTarget;
use crate::state::{EndCause, State};

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
    Resume {
        connection: ConnectionId,
        session: SessionId,
        secret: u128,
    },
    Query {
        connection: ConnectionId,
        id: u64,
        query: Query,
    },
    Watch {
        connection: ConnectionId,
        id: u64,
        after: Option<u64>,
        target: WatchTarget,
    },
    Unwatch {
        connection: ConnectionId,
        id: u64,
    },
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

pub(super) struct Round {
    pub(super) serves: Vec<Waiting>,
    pub(super) confirmed: BoxFuture<'static, Result<LogId, ReadError>>,
}

impl Hub {
    pub(super) fn keep_alive(&mut self, mut alive: Alive) {
        let now = self.now();
        match self.keeper.on_keep_alive(now, alive.session) {
            // Its end is on its way, and will be told.
            Kept::Ending => {}
            // Whether it has ended, or its beginning has not yet come by here, the round will tell.
            Kept::Unknown | Kept::NotLeading => self.wait(Wanted::KeepAlive(alive)),
            Kept::Extended => {
                alive.term = self.keeper.term();
                self.wait(Wanted::KeepAlive(alive));
            }
        }
    }

    pub(super) fn has_ended(&self, session: SessionId) -> bool {
        self.replica.read_stale(|service| service.state().session(session).is_none())
    }

    pub(super) fn end_unknown(&mut self, alive: &Alive) {
        let ended = wire::ended(alive.session, EndCause::Expired);
        self.push(alive.connection, &ended);
        self.forget(alive.session);
    }

    pub(super) fn wait(&mut self, what: Wanted) {
        let waiting = Waiting { since: self.now(), what };
        if self.waiting.len() >= MAX_WAITING {
            return self.refuse_waiting(waiting, &overloaded());
        }
        self.waiting.push(waiting);
    }

    pub(super) fn begin_round(&mut self) {
        if self.round.is_some() || self.waiting.is_empty() || self.now() < self.next_round {
            return;
        }
        let replica = self.replica.clone();
        let confirmed = Box::pin(async move {
            let id = replica.read_index().await?;
            replica.applied(id.index).await;
            Ok(id)
        });
        self.round = Some(Round { serves: std::mem::take(&mut self.waiting), confirmed });
    }

    pub(super) fn on_round(&mut self, result: Result<LogId, ReadError>) {
        let Some(Round { serves, .. }) = self.round.take() else { return };
        match result {
            Ok(id) => {
                let mut elsewhere = Vec::new();
                for waiting in serves {
                    self.on_confirmed(waiting, id.term, &mut elsewhere);
                }
                self.forward(elsewhere);
            }
            Err(ReadError::Retry) => {
                let now = self.now();
                self.next_round = now + self.timing.heartbeat;
                let limit = |what: &Wanted| match what {
                    Wanted::KeepAlive(_) => self.timing.heartbeat * ALIVE_BEATS,
                    _ => ROUND_LIMIT,
                };
                let (again, late): (Vec<_>, Vec<_>) =
                    serves.into_iter().partition(|waiting| waiting.since + limit(&waiting.what) > now);
                self.waiting.splice(0..0, again);
                let error = no_majority();
                for waiting in late {
                    // The lease runs: this node may be cut off from a majority that another one belongs to.
                    if let Wanted::KeepAlive(alive) = &waiting.what {
                        self.close(alive.connection, &error);
                    }
                    self.refuse_waiting(waiting, &error);
                }
            }
            Err(ReadError::Stopped) => {
                serves.into_iter().for_each(|waiting| self.refuse_waiting(waiting, &stopping()));
            }
        }
    }

    pub(super) fn on_confirmed(&mut self, waiting: Waiting, term: u64, elsewhere: &mut Vec<Alive>) {
        match waiting.what {
            Wanted::KeepAlive(alive) if alive.term == Some(term) => {
                metrics::add(&self.metrics.keep_alives_total, 1);
                self.push(alive.connection, &v1::KeptAlive { token: alive.token }.into());
            }
            Wanted::KeepAlive(alive) if self.has_ended(alive.session) => self.end_unknown(&alive),
            Wanted::KeepAlive(alive) => elsewhere.push(alive),
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
            Wanted::Resume { connection, session, secret } => {
                let known = self.replica.read_stale(|service| service.state().authenticate(session, secret));
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
            Wanted::Query { connection, id, query } => self.answer_query(connection, id, &query),
            Wanted::Watch { connection, id, after, target } => {
                if self.connections.contains_key(&connection) {
                    self.watch(connection, id, after, target);
                }
            }
            Wanted::Unwatch { connection, id } => self.watchers.unwatch(watcher(connection), id),
        }
    }

    /// Whoever was not connected has not heard it; whoever has, hears it once more until the grant is released.
    fn repeat_broken(&mut self, connection: ConnectionId, session: SessionId) {
        let broken = |state: &State| state.broken(session).map(wire::broken).collect();
        let broken: Vec<ServerMessage> = self.replica.read_stale(|service| broken(service.state()));
        broken.iter().for_each(|broken| self.push(connection, broken));
    }

    pub(super) fn refuse_waiting(&mut self, waiting: Waiting, error: &Error) {
        match waiting.what {
            // An answer that does not come is one that says nothing: the client goes on trying until its deadline.
            Wanted::KeepAlive(_) | Wanted::Unwatch { .. } => {}
            Wanted::Forwarded { answer, .. } => drop(answer),
            Wanted::Resume { connection, .. } => self.close(connection, error),
            Wanted::Query { connection, id, .. } | Wanted::Watch { connection, id, .. } => {
                self.refuse(connection, id, error);
            }
        }
    }

    pub(super) fn answer_query(&mut self, connection: ConnectionId, id: u64, query: &Query) {
        metrics::add(&self.metrics.queries_total, 1);
        let nodes = || query::cluster(&self.replica);
        let result = self.replica.read_stale(|service| query::answer(service.state(), query, nodes));
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
        match self.replica.read_stale(|service| begin(service.state())) {
            (index, Ok(missed)) => {
                self.push(
                    connection,
                    &wire::answer(id, v1::answer::Result::Watching(v1::Watching { index })),
                );
                self.tell_watchers(missed);
            }
            (_, Err(error)) => self.refuse(connection, id, &error),
        }
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
                let sessions: Vec<SessionId> = alive.iter().map(|alive| alive.session).collect();
                let peers = self.peers.clone();
                self.forwards.push(Box::pin(async move {
                    let kept = peers.keep_alive(leader, &member, &sessions).await;
                    (alive, kept.ok())
                }));
            }
            // This node leads meanwhile, or nobody does: the next round will tell.
            None => alive.into_iter().for_each(|alive| self.keep_alive(alive)),
        }
    }

    pub(super) fn on_forwarded(&mut self, alive: Vec<Alive>, kept: Option<Vec<Kept>>) {
        let kept = kept.unwrap_or_default().into_iter().chain(std::iter::repeat(Kept::NotLeading));
        for (alive, kept) in alive.into_iter().zip(kept) {
            match kept {
                Kept::Extended => {
                    metrics::add(&self.metrics.keep_alives_total, 1);
                    self.push(alive.connection, &v1::KeptAlive { token: alive.token }.into());
                }
                Kept::Unknown => self.end_unknown(&alive),
                // The client will ask again.
                Kept::Ending | Kept::NotLeading => {}
            }
        }
    }
}

pub(super) fn no_majority() -> Error {
    Error::new(Code::NoQuorum, "no leader that a majority confirms: resume elsewhere")
}

/// The end of the round, if there is one.
pub(super) async fn confirmed(round: &mut Option<Round>) -> Result<LogId, ReadError> {
    match round {
        Some(round) => round.confirmed.as_mut().await,
        None => std::future::pending().await,
    }
}
