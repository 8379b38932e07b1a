//! Converts the effects of applied entries into replies, in the order of the log.
//!
//! Effects describe every applied entry, whichever node proposed it. The result of a batch matters only if an
//! entry was not applied.

use conclave_core::{Code, Error, RequestId, SessionId};

use super::batches::{BatchId, Origin};
use super::reply::SessionTerms;
use super::watches::{WatcherEvent, WatcherId};
use super::{ConnectionId, Cx, Node, Outbox, Reply, View, metrics, read_state};
use crate::cluster::{LogId, ProposeError};
use crate::state::session::Broken;
use crate::state::{Answer, Effect};

impl<O: Outbox> Node<O> {
    /// Handles an applied entry.
    pub(super) fn on_applied(&mut self, id: LogId, effects: Vec<Effect>, cx: &mut Cx<'_>) {
        if self.leases.on_applied_term(id.term) {
            self.check_role(cx);
        }
        let mut ended = Vec::new();
        for effect in effects {
            if let Effect::SessionEnded { session, .. } = effect {
                ended.push(session);
            }
            self.on_effect(effect, cx);
        }
        // Unbind only now, because the reply to `Close` follows `SessionEnded`.
        for session in ended {
            self.clients.unbind(session);
        }
        metrics::set(&self.metrics.sessions_here, self.clients.sessions_len());
    }

    /// Handles an effect of an entry that is not on disk. The next request of a client with an early grant
    /// need not wait for the sync either.
    pub(super) fn on_early(&mut self, effect: Effect, cx: &mut Cx<'_>) {
        if let Effect::Reply { session, .. } = &effect
            && let Some(connection) = self.clients.of_session(*session)
            && let Some(known) = self.clients.get_mut(connection)
        {
            self.batches.policy.on_early_grant(&mut known.activity);
            metrics::add(&self.metrics.early_grants_total, 1);
        }
        self.on_effect(effect, cx);
    }

    fn on_effect(&mut self, effect: Effect, cx: &mut Cx<'_>) {
        match effect {
            Effect::Reply { session, request, answer, .. } => {
                if let Some(connection) = self.clients.of_session(session) {
                    metrics::add(&self.metrics.replies_total, 1);
                    let is_last = !matches!(answer, Answer::Queued(_));
                    self.clients.push(connection, &Reply::Answered { id: request.0, answer });
                    self.on_answered(connection, request, is_last);
                }
            }
            Effect::SessionOpened { session, secret } => {
                if let Some(connection) = self.clients.take_opening(secret) {
                    match read_state(cx.view, |state| state.session(session).map(|info| info.ttl_ms)) {
                        Some(ttl_ms) => {
                            let terms = self.terms(ttl_ms, cx.view);
                            self.bind(connection, session, &Reply::Opened { session, secret, terms }, cx);
                        }
                        // A later entry, whose effects follow, has ended it.
                        None => self.clients.close(connection, &ended_at_once(session)),
                    }
                }
            }
            Effect::SessionRefused { secret, error } => {
                if let Some(connection) = self.clients.take_opening(secret) {
                    self.clients.close(connection, &error);
                }
            }
            Effect::Broken { session, grant, name, reason } => {
                if let Some(connection) = self.clients.of_session(session) {
                    self.push(connection, &Reply::Broken(Broken { grant, name, reason }));
                }
            }
            Effect::SessionEnded { session, cause } => {
                if let Some(connection) = self.clients.of_session(session) {
                    self.push(connection, &Reply::SessionEnded { session, cause });
                }
            }
            Effect::StartTimer { .. } | Effect::StopTimer { .. } => self.leases.on_effect(cx.now, &effect),
            Effect::Changed(change) => {
                let events = self.watches.on_change(&change);
                self.send_watcher_events(events);
            }
        }
    }

    /// Records that a request got a reply, perhaps its last.
    fn on_answered(&mut self, connection: ConnectionId, request: RequestId, is_last: bool) {
        if let Some(known) = self.clients.get_mut(connection) {
            if is_last {
                self.batches.policy.on_reply(&mut known.activity);
            }
            known.on_reply(request);
        }
    }

    /// Handles the results of a batch.
    pub(super) fn on_proposed(
        &mut self,
        batch: BatchId,
        results: &[Result<LogId, ProposeError>],
        cx: &Cx<'_>,
    ) {
        let missing = std::iter::repeat(&Err(ProposeError::Unknown));
        for (origins, result) in self.batches.on_results(batch).iter().zip(results.iter().chain(missing)) {
            origins.iter().for_each(|origin| self.on_result(origin, *result, cx));
        }
    }

    fn on_result(&mut self, origin: &Origin, result: Result<LogId, ProposeError>, cx: &Cx<'_>) {
        let Err(error) = result else {
            if let Origin::Timer { timer, term } = *origin
                && self.leases.term() == Some(term)
            {
                self.leases.on_applied(timer);
            }
            return;
        };
        metrics::add(&self.metrics.proposals_failed_total, 1);
        let error = propose_error(error);
        match *origin {
            Origin::Request { session, id } => {
                if let Some(connection) = self.clients.of_session(session) {
                    self.push(connection, &Reply::Refused { id: id.0, error });
                    self.on_answered(connection, id, true);
                }
            }
            Origin::Open { secret } => {
                if let Some(connection) = self.clients.take_opening(secret) {
                    self.clients.close(connection, &error);
                }
            }
            // In another term the same timer was started again, and may be ending once more.
            Origin::Timer { timer, term } if self.leases.term() == Some(term) => {
                self.leases.on_refused(cx.now, timer);
            }
            Origin::Timer { .. } => {}
        }
    }

    /// Returns the conditions of a session for its client.
    pub(super) fn terms(&self, ttl_ms: u64, view: &dyn View) -> SessionTerms {
        let members = view.status().membership.nodes;
        let nodes = members.into_values().map(|member| member.address).collect();
        SessionTerms { ttl_ms, drift_ppm: self.timing.drift_ppm, nodes }
    }

    pub(super) fn send_watcher_events(&mut self, events: Vec<WatcherEvent>) {
        for WatcherEvent { watcher: WatcherId(connection), watch, event } in events {
            if has_flaw!(self, DropsEventsWhenFull)
                && self.clients.get(connection).is_some_and(|known| known.is_full)
            {
                continue;
            }
            self.push(connection, &Reply::Event { watch, event });
        }
    }

    /// Handles a snapshot that has replaced the state. This node never sends the replies of the entries that
    /// it covers, so clients resume and repeat their requests.
    pub(super) fn on_restored(&mut self, id: LogId, cx: &mut Cx<'_>) {
        self.leases.on_applied_term(id.term);
        self.check_role(cx);
        let watches = &mut self.watches;
        let events = read_state(cx.view, |state| watches.on_snapshot(state));
        self.send_watcher_events(events);
        let error = Error::new(
            Code::Disconnected,
            "this node has installed a snapshot and cannot send the missing replies",
        );
        for connection in self.clients.take_bound() {
            self.clients.close(connection, &error);
        }
    }
}

fn ended_at_once(session: SessionId) -> Error {
    Error::new(Code::SessionEnded, format!("session {session} has ended before its client got it"))
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
