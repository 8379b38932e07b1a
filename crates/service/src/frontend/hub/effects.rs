//! Proposals to the replica, and what comes back from it.
//!
//! What was applied is told by its effects, in the order of the log, whoever proposed it and on whatever node. The result of a
//! proposal matters only when it failed.

use std::time::{SystemTime, UNIX_EPOCH};

use conclave_api::proto::v1::{self, ServerMessage};
use conclave_api::{Code, Error, RequestId, SessionId};

use super::super::metrics;
use super::super::wire;
use super::{ConnectionId, Hub};
use crate::awake;
use crate::lease::Now;
use crate::machine::{Stamped, weight};
use crate::replica::log::LogId;
use crate::replica::{Delivery, ProposeError};
use crate::state::session::Broken;
use crate::state::watch::Notice;
use crate::state::{Answer, Effect, TimerId};

/// A flush that was answered.
pub(super) struct Proposed {
    /// The entries, by whose commands are in each.
    pub(super) origins: Vec<Vec<Origin>>,
    /// What became of each.
    pub(super) results: Vec<Result<LogId, ProposeError>>,
    /// What all of them weigh.
    pub(super) bytes: usize,
}

/// Whose a proposal is.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    Request {
        session: SessionId,
        id: RequestId,
    },
    Open {
        secret: u128,
    },
    /// An expiry, by the term in which the time was counted.
    Timer {
        timer: TimerId,
        term: u64,
    },
}

impl Hub {
    /// Proposes what has gathered, unless a flush is on its way or more is about to come: then that shares one entry and one
    /// sync. What an heir has asked goes at once: the next in line may be told of it before any sync.
    pub(super) fn propose(&mut self, now: Now) {
        // Whoever is to be served from the state is served between two flushes.
        let is_urgent = self.is_urgent && self.confirmed.is_empty() && self.drained.is_empty();
        if !self.proposals.is_empty() && !is_urgent {
            return;
        }
        // On a single processor nobody looks whether more comes.
        let waits =
            !is_urgent && awake::is_worth_it() && self.gathering.waits(now, !self.commands.is_empty());
        if self.commands.is_empty() {
            return;
        }
        if self.gathering.is_time_to_rouse() {
            // The log's writer wakes while the last ones come back and consensus has its say.
            self.replica.rouse();
        }
        if waits {
            return;
        }
        self.gathering.on_proposed();
        self.is_urgent = false;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_ms = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        self.in_flight += self.commands.len();
        let bytes = self.commands.iter().map(|(_, command)| weight(command)).sum();
        let (origins, entries) = Stamped::gather(wall_ms, self.commands.drain(..));
        let results = self.replica.propose_all(entries);
        self.proposals.push(Box::pin(async move { Proposed { origins, results: results.await, bytes } }));
        metrics::set(&self.metrics.in_flight, self.in_flight);
    }

    /// A flush of proposals was answered.
    pub(super) fn on_proposals(&mut self, Proposed { origins, results, bytes }: Proposed) {
        self.bytes -= bytes;
        for (origins, result) in origins.iter().zip(results) {
            origins.iter().for_each(|origin| self.on_proposed(origin, result));
        }
        metrics::set(&self.metrics.in_flight, self.in_flight);
    }

    /// What was applied is told by its effects; here only what was not.
    fn on_proposed(&mut self, origin: &Origin, result: Result<LogId, ProposeError>) {
        self.in_flight -= 1;
        let Err(error) = result else {
            if let Origin::Timer { timer, term } = *origin
                && self.keeper.term() == Some(term)
            {
                self.keeper.on_applied(timer);
            }
            return;
        };
        metrics::add(&self.metrics.proposals_failed_total, 1);
        let error = propose_error(error);
        match *origin {
            Origin::Request { session, id } => {
                if let Some(connection) = self.sessions.get(&session).copied() {
                    self.push(connection, &wire::refusal(id.0, &error));
                    self.on_answered(connection, id, true);
                }
            }
            Origin::Open { secret } => {
                if let Some((connection, _)) = self.opening.remove(&secret) {
                    self.close(connection, &error);
                }
            }
            // In another term the same timer has been started anew, and may be ending once more.
            Origin::Timer { timer, term } if self.keeper.term() == Some(term) => {
                self.keeper.on_refused(self.now(), timer);
            }
            Origin::Timer { .. } => {}
        }
    }

    pub(super) fn on_delivery(&mut self, delivery: Delivery<Effect>) {
        match delivery {
            Delivery::Applied { id, effects } => {
                if id.term != self.applied_term {
                    self.applied_term = id.term;
                    self.check_role(self.now());
                }
                let mut ended = Vec::new();
                for effect in effects {
                    if let Effect::SessionEnded { session, .. } = effect {
                        ended.push(session);
                    }
                    self.on_effect(effect);
                }
                // Only now: the reply to a close comes behind the end.
                ended.into_iter().for_each(|session| self.forget(session));
            }
            Delivery::Foregone { effects } => {
                for effect in effects {
                    self.on_heir(&effect);
                    self.on_effect(effect);
                }
            }
            Delivery::Restored { id } => self.on_restored(id),
        }
    }

    /// Whoever was granted something ahead of the disk need not wait for the disk either to hand it on.
    fn on_heir(&mut self, effect: &Effect) {
        if let Effect::Reply { session, .. } = effect
            && let Some(connection) = self.sessions.get(session)
            && let Some(known) = self.connections.get_mut(connection)
        {
            known.is_heir = true;
            metrics::add(&self.metrics.handovers_total, 1);
        }
    }

    pub(super) fn on_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Reply { session, request, answer, .. } => {
                if let Some(connection) = self.sessions.get(&session).copied() {
                    metrics::add(&self.metrics.replies_total, 1);
                    let (is_grant, is_last) =
                        (matches!(answer, Answer::Granted(_)), !matches!(answer, Answer::Queued(_)));
                    let message = wire::answer(request.0, wire::result(answer));
                    if is_grant {
                        self.push_grant(connection, &message);
                    } else {
                        self.push(connection, &message);
                    }
                    self.on_answered(connection, request, is_last);
                }
            }
            Effect::SessionOpened { session, secret } => {
                if let Some((connection, _)) = self.opening.remove(&secret) {
                    let opened = self.opened(session, secret);
                    self.bind(connection, session, &opened);
                }
            }
            Effect::SessionRefused { secret, error } => {
                if let Some((connection, _)) = self.opening.remove(&secret) {
                    self.close(connection, &error);
                }
            }
            Effect::Broken { session, grant, name, reason } => {
                if let Some(connection) = self.sessions.get(&session).copied() {
                    self.push(connection, &wire::broken(&Broken { grant, name, reason }));
                }
            }
            Effect::SessionEnded { session, cause } => {
                if let Some(connection) = self.sessions.get(&session).copied() {
                    self.push(connection, &wire::ended(session, cause));
                }
            }
            Effect::StartTimer { .. } | Effect::StopTimer { .. } => {
                let now = self.now();
                self.keeper.on_effect(now, &effect);
            }
            Effect::Changed(change) => {
                let notices = self.watchers.on_change(&change);
                self.tell_watchers(notices);
            }
        }
    }

    pub(super) fn opened(&self, session: SessionId, secret: u128) -> ServerMessage {
        let ttl_ms =
            self.replica.peek(|service| service.state().session(session)).map_or(0, |info| info.ttl_ms);
        v1::Opened {
            session: session.0,
            secret: secret.to_be_bytes().to_vec(),
            ttl_ms,
            drift_ppm: self.timing.drift_ppm,
            nodes: self.nodes(),
        }
        .into()
    }

    pub(super) fn nodes(&self) -> Vec<String> {
        let members = self.replica.status().membership.nodes;
        members.into_values().map(|member| member.address).collect()
    }

    pub(super) fn forget(&mut self, session: SessionId) {
        if let Some(connection) = self.sessions.remove(&session)
            && let Some(known) = self.connections.get_mut(&connection)
        {
            known.session = None;
        }
        metrics::set(&self.metrics.sessions_here, self.sessions.len());
    }

    pub(super) fn tell_watchers(&mut self, notices: Vec<Notice>) {
        for Notice { session: SessionId(connection), watch, event } in notices {
            self.push(connection, &wire::event(watch, event));
        }
    }

    /// A snapshot has jumped over entries whose replies nobody will ever send from here: clients resume, and ask again.
    pub(super) fn on_restored(&mut self, id: LogId) {
        self.applied_term = id.term;
        self.check_role(self.now());
        let notices = self.replica.peek(|service| self.watchers.on_snapshot(service.state()));
        self.tell_watchers(notices);
        let error = Error::new(
            Code::Disconnected,
            "this node has installed a snapshot and cannot send the missing replies",
        );
        let opening = self.opening.values().map(|(connection, _)| connection);
        let bound: Vec<ConnectionId> = self.sessions.values().chain(opening).copied().collect();
        bound.into_iter().for_each(|connection| self.close(connection, &error));
        self.opening.clear();
    }
}

fn propose_error(error: ProposeError) -> Error {
    let code = match error {
        ProposeError::Retry => Code::NoQuorum,
        ProposeError::Unknown => Code::NoAnswer,
        ProposeError::Stopped => Code::ShuttingDown,
        ProposeError::TooLarge => Code::TooLarge,
    };
    Error::new(code, error.to_string())
}
