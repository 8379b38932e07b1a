//! Rounds: a quorum confirms the leader, once for all requests that wait.
//!
//! Most requests of a round are reads of the state. They are served some at a time, because a read may cost
//! far more than its reply. While a batch is in flight, the state of a single node may contain entries that
//! are not on disk. So reads are served between two batches. Keep-alives are not held up by the disk or by
//! reads.
//!
//! A node that does not lead forwards keep-alives to the leader, because the leader counts the leases.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use conclave_core::report::WatchEvent;
use conclave_core::{Code, Error, SessionId};

use super::Query;
use super::reply::event_size;
use super::watches::{WatcherEvent, WatcherId};
use super::{
    ConnectionId, Cx, FULL_BYTES, MAX_PER_TURN, Node, Outbox, Output, Reply, View, metrics, read_state,
    stopping,
};
use crate::cluster::{LogId, ReadError};
use crate::leases::{KeepAliveResult, Now};
use crate::state::State;
use crate::state::watch::WatchTarget;

/// The longest wait for a round. Then the request is rejected.
const ROUND_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait of a keep-alive or an opening, in heartbeats: longer than an election takes. Then the
/// node closes the connection, and the client tries another node.
const KEEP_ALIVE_BEATS: u32 = 16;

/// The number of a round.
pub type RoundId = u64;
/// The number of a call between nodes.
pub type CallId = u64;

/// A request that waits for a round, with the time of its arrival.
pub(super) struct RoundEntry {
    pub(super) since: Now,
    pub(super) request: RoundRequest,
}

/// A request that needs a round.
pub(super) enum RoundRequest {
    KeepAlive(PendingKeepAlive),
    /// Keep-alives that another node forwarded, with this node's result for each and the term in which they
    /// were counted.
    Forwarded {
        call: CallId,
        sessions: Vec<SessionId>,
        results: Vec<KeepAliveResult>,
        term: Option<u64>,
    },
    Read(Read),
}

/// A request that is served from the state.
pub(super) enum Read {
    Resume { connection: ConnectionId, session: SessionId, secret: u128 },
    Query { connection: ConnectionId, id: u64, query: Query },
    Watch { connection: ConnectionId, id: u64, after: Option<u64>, target: WatchTarget },
    Unwatch { connection: ConnectionId, id: u64 },
}

/// A keep-alive of a client of this node.
#[derive(Debug)]
pub(super) struct PendingKeepAlive {
    pub(super) connection: ConnectionId,
    pub(super) session: SessionId,
    pub(super) token: u64,
    /// The term in which this node has extended the lease; `None` if it has not.
    pub(super) term: Option<u64>,
}

impl RoundRequest {
    /// Returns the connection in whose share the request counts.
    fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Read(read) => read.connection(),
            Self::KeepAlive(pending) => Some(pending.connection),
            Self::Forwarded { .. } => None,
        }
    }

    /// Returns whether the request counts towards [`super::MAX_WAITING`]. Keep-alives do not, because each
    /// connection has at most one waiting.
    fn is_limited(&self) -> bool {
        !matches!(self, Self::KeepAlive(_))
    }
}

impl Read {
    fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Query { connection, .. }
            | Self::Watch { connection, .. }
            | Self::Unwatch { connection, .. } => Some(*connection),
            Self::Resume { .. } => None,
        }
    }
}

/// The requests that wait for a round, are in one, or were confirmed by one.
#[derive(Default)]
pub(super) struct Rounds {
    /// The requests for the next round.
    waiting: Vec<RoundEntry>,
    /// The connections with a keep-alive for the next round.
    keep_alives: Vec<ConnectionId>,
    /// The round in progress.
    current: Option<(RoundId, Vec<RoundEntry>)>,
    /// The reads that a round has confirmed and that are not served yet.
    confirmed: VecDeque<Read>,
    /// The earliest start of the next round.
    not_before: Now,
    /// The keep-alives that were forwarded to the leader.
    forwarded: BTreeMap<CallId, Vec<PendingKeepAlive>>,
    last_round: RoundId,
    last_call: CallId,
}

impl Rounds {
    /// Returns the time of the next start, if a request waits and no round is in progress.
    pub(super) fn next_start(&self) -> Option<Now> {
        (self.is_wanted() && self.current.is_none()).then_some(self.not_before)
    }

    /// Turns a watch that waits into its own end. It keeps its place, because it was counted.
    fn cancel_watch(&mut self, connection: ConnectionId, id: u64) {
        let in_round = self.current.iter_mut().flat_map(|(_, entries)| entries);
        let entries = self.waiting.iter_mut().chain(in_round);
        let reads = entries.filter_map(|entry| match &mut entry.request {
            RoundRequest::Read(read) => Some(read),
            _ => None,
        });
        for read in reads.chain(&mut self.confirmed) {
            if matches!(read, Read::Watch { connection: of, id: watch, .. } if (*of, *watch) == (connection, id))
            {
                *read = Read::Unwatch { connection, id };
            }
        }
    }

    fn is_wanted(&self) -> bool {
        !self.waiting.is_empty() || !self.keep_alives.is_empty()
    }
}

impl<O: Outbox> Node<O> {
    pub(super) fn keep_alive(&mut self, mut pending: PendingKeepAlive, cx: &Cx<'_>) {
        match self.leases.on_keep_alive(cx.now, pending.session) {
            // The end is proposed; the client gets `SessionEnded` when it is applied.
            KeepAliveResult::Ending => {}
            // The session has ended, or this node has not applied its opening: the round decides.
            KeepAliveResult::Unknown | KeepAliveResult::NotLeading => {
                self.wait_for_keep_alive(cx.now, pending);
            }
            KeepAliveResult::Extended if has_flaw!(self, AnswersWithoutRound) => self.on_kept(&pending),
            KeepAliveResult::Extended => {
                pending.term = self.leases.term();
                self.wait_for_keep_alive(cx.now, pending);
            }
        }
    }

    /// Makes a keep-alive wait for the next round. It replaces an older one of the same connection, because
    /// the client needs only the newest reply.
    fn wait_for_keep_alive(&mut self, since: Now, pending: PendingKeepAlive) {
        let connection = pending.connection;
        let Some(known) = self.clients.get_mut(connection) else { return };
        match &mut known.keep_alive {
            Some((_, older)) => *older = pending,
            None => {
                known.keep_alive = Some((since, pending));
                self.rounds.keep_alives.push(connection);
            }
        }
    }

    /// Makes an unconfirmed keep-alive wait for the next round, unless a newer one waits already.
    fn wait_again(&mut self, since: Now, pending: PendingKeepAlive) {
        match self.clients.get_mut(pending.connection).and_then(|known| known.keep_alive.as_mut()) {
            Some((first, _)) => *first = since.min(*first),
            None => self.wait_for_keep_alive(since, pending),
        }
    }

    fn has_ended(view: &dyn View, session: SessionId) -> bool {
        read_state(view, |state| state.session(session).is_none())
    }

    /// Handles keep-alives that another node forwards for its clients.
    pub(super) fn on_forwarded(&mut self, call: CallId, sessions: Vec<SessionId>, cx: &mut Cx<'_>) {
        let results = sessions.iter().map(|session| self.leases.on_keep_alive(cx.now, *session)).collect();
        let term = self.leases.term();
        self.wait(RoundRequest::Forwarded { call, sessions, results, term }, cx);
    }

    /// Lets a request wait for the next round, or rejects it.
    pub(super) fn wait(&mut self, request: RoundRequest, cx: &mut Cx<'_>) {
        let known = request.connection().and_then(|connection| self.clients.get_mut(connection));
        if let Err(error) = self.batches.budget.admit_waiting(known.as_ref().map(|known| known.waiting)) {
            return self.refuse_waiting(&request, &error, cx);
        }
        if let Some(known) = known {
            known.waiting += 1;
        }
        self.rounds.waiting.push(RoundEntry { since: cx.now, request });
    }

    /// Removes a request from the counts of waiting requests, before its reply.
    fn stop_waiting(&mut self, connection: Option<ConnectionId>, is_limited: bool) {
        if is_limited {
            self.batches.budget.give_back_waiting(1);
        }
        let Some(connection) = connection else { return };
        if let Some(known) = self.clients.get_mut(connection) {
            known.waiting = known.waiting.saturating_sub(1);
            if known.is_half_closed {
                // It may have been the last, and not every request gets a reply.
                self.clients.touch(connection);
            }
        }
    }

    /// Starts a round if a request waits and none is in progress.
    pub(super) fn start_round(&mut self, cx: &mut Cx<'_>) {
        if self.rounds.next_start().is_none_or(|start| cx.now < start) {
            return;
        }
        let mut entries = std::mem::take(&mut self.rounds.waiting);
        for connection in self.rounds.keep_alives.drain(..) {
            if let Some(known) = self.clients.get_mut(connection)
                && let Some((since, pending)) = known.keep_alive.take()
            {
                known.waiting += 1;
                entries.push(RoundEntry { since, request: RoundRequest::KeepAlive(pending) });
            }
        }
        self.rounds.last_round += 1;
        let round = self.rounds.last_round;
        self.rounds.current = Some((round, entries));
        // The limit is needed because a deposed leader may name an entry that this node never applies.
        cx.out.push(Output::Confirm { round, limit: self.timing.heartbeat * KEEP_ALIVE_BEATS });
    }

    /// Returns whether reads wait to be served.
    pub(super) fn has_reads(&self) -> bool {
        !self.rounds.confirmed.is_empty() || self.clients.has_writable()
    }

    /// Returns whether reads wait and may be served now.
    pub(super) fn may_serve(&self, view: &dyn View) -> bool {
        self.has_reads() && self.may_read(view)
    }

    /// Serves reads that a round has confirmed, and queries that waited for room in an outbox.
    pub(super) fn serve(&mut self, cx: &mut Cx<'_>) {
        for _ in 0..MAX_PER_TURN {
            let Some(read) = self.rounds.confirmed.pop_front() else { break };
            self.stop_waiting(read.connection(), true);
            self.on_confirmed(read, cx);
        }
        self.serve_waiting(cx);
    }

    /// Handles the end of a round.
    pub(super) fn on_round(&mut self, round: RoundId, result: Result<LogId, ReadError>, cx: &mut Cx<'_>) {
        let Some((_, mut entries)) = self.rounds.current.take_if(|(current, _)| *current == round) else {
            return;
        };
        if has_flaw!(self, ServesLateRequests) {
            entries.append(&mut self.rounds.waiting);
        }
        match result {
            Ok(id) => self.on_round_confirmed(entries, id.term, cx),
            Err(ReadError::Retry) => self.on_round_failed(entries, cx),
            Err(ReadError::Stopped) => {
                for RoundEntry { request, .. } in entries {
                    self.stop_waiting(request.connection(), request.is_limited());
                    self.refuse_waiting(&request, &stopping(), cx);
                }
            }
        }
    }

    /// No quorum has confirmed a leader: requests wait for the next round, and those that have waited too
    /// long are rejected.
    fn on_round_failed(&mut self, entries: Vec<RoundEntry>, cx: &mut Cx<'_>) {
        self.rounds.not_before = cx.now + self.timing.heartbeat;
        let error = no_majority();
        let mut again = Vec::new();
        for RoundEntry { since, request } in entries {
            let limit = match request {
                RoundRequest::KeepAlive(_) => self.timing.heartbeat * KEEP_ALIVE_BEATS,
                _ => ROUND_LIMIT,
            };
            let is_late = since + limit <= cx.now;
            match request {
                request if !is_late && request.is_limited() => again.push(RoundEntry { since, request }),
                RoundRequest::KeepAlive(pending) => {
                    self.stop_waiting(Some(pending.connection), false);
                    match is_late {
                        // The lease runs: this node may be cut off from a majority that another node belongs
                        // to.
                        true => self.clients.close(pending.connection, &error),
                        false => self.wait_again(since, pending),
                    }
                }
                request => {
                    self.stop_waiting(request.connection(), true);
                    self.refuse_waiting(&request, &error, cx);
                }
            }
        }
        self.rounds.waiting.splice(0..0, again);
    }

    /// Answers keep-alives now; reads are served in their turn.
    fn on_round_confirmed(&mut self, entries: Vec<RoundEntry>, term: u64, cx: &mut Cx<'_>) {
        let mut to_leader = Vec::new();
        for RoundEntry { request, .. } in entries {
            match request {
                RoundRequest::KeepAlive(pending) => {
                    self.stop_waiting(Some(pending.connection), false);
                    let is_any_term = has_flaw!(self, AnswersInAnyTerm) && pending.term.is_some();
                    if pending.term == Some(term) || is_any_term {
                        self.on_kept(&pending);
                    } else if !Self::has_ended(cx.view, pending.session) {
                        to_leader.push(pending);
                    }
                    // Otherwise the session has ended, and `SessionEnded` follows the earlier replies.
                }
                RoundRequest::Forwarded { call, sessions, mut results, term: counted } => {
                    self.stop_waiting(None, true);
                    for (session, result) in sessions.into_iter().zip(&mut results) {
                        *result = match *result {
                            KeepAliveResult::Extended | KeepAliveResult::Ending if counted == Some(term) => {
                                *result
                            }
                            _ if Self::has_ended(cx.view, session) => KeepAliveResult::Unknown,
                            _ => KeepAliveResult::NotLeading,
                        };
                    }
                    cx.out.push(Output::AnswerKeepAlives { call, results });
                }
                RoundRequest::Read(read) => self.rounds.confirmed.push_back(read),
            }
        }
        self.forward(to_leader, cx);
    }

    fn on_kept(&mut self, pending: &PendingKeepAlive) {
        metrics::add(&self.metrics.keep_alives_total, 1);
        self.push(pending.connection, &Reply::KeptAlive { token: pending.token });
    }

    /// Serves one read that a round has confirmed.
    fn on_confirmed(&mut self, read: Read, cx: &mut Cx<'_>) {
        match read {
            Read::Resume { connection, session, secret } => self.resume(connection, session, secret, cx),
            Read::Query { connection, id, query } => self.answer_query(connection, id, query, cx),
            Read::Watch { connection, id, after, target } => {
                if self.clients.get(connection).is_some() {
                    self.watch(connection, id, after, target, cx);
                }
            }
            Read::Unwatch { connection, id } => self.watches.unwatch(WatcherId(connection), id),
        }
    }

    fn resume(&mut self, connection: ConnectionId, session: SessionId, secret: u128, cx: &mut Cx<'_>) {
        match read_state(cx.view, |state| state.authenticate(session, secret)) {
            Ok(info) => {
                let terms = self.terms(info.ttl_ms, cx.view);
                self.bind(connection, session, &Reply::Resumed { session, terms }, cx);
                // The client may have missed these reports. If not, it gets them twice.
                let broken: Vec<_> =
                    read_state(cx.view, |state: &State| state.broken(session).cloned().collect());
                for broken in broken {
                    self.push(connection, &Reply::Broken(broken));
                }
            }
            Err(error) => self.clients.close(connection, &error),
        }
    }

    /// Rejects a request that cannot wait for a round, or whose round has failed for too long.
    fn refuse_waiting(&mut self, request: &RoundRequest, error: &Error, cx: &mut Cx<'_>) {
        match *request {
            // Without a reply the client tries again until its deadline.
            RoundRequest::KeepAlive(_) => {}
            // An unwatch over the limit takes effect at once, also on a watch that still waits for its round.
            RoundRequest::Read(Read::Unwatch { connection, id }) => {
                self.watches.unwatch(WatcherId(connection), id);
                self.rounds.cancel_watch(connection, id);
            }
            RoundRequest::Forwarded { call, .. } => {
                cx.out.push(Output::AnswerKeepAlives { call, results: Vec::new() });
            }
            RoundRequest::Read(Read::Resume { connection, .. }) => self.clients.close(connection, error),
            RoundRequest::Read(Read::Query { connection, id, .. } | Read::Watch { connection, id, .. }) => {
                self.refuse(connection, id, error.clone());
            }
        }
    }

    fn watch(
        &mut self,
        connection: ConnectionId,
        id: u64,
        after: Option<u64>,
        target: WatchTarget,
        cx: &Cx<'_>,
    ) {
        let after = after.filter(|_| !has_flaw!(self, ForgetsWatchIndex));
        let watches = &mut self.watches;
        let (index, missed) = read_state(cx.view, |state| {
            (state.applied(), watches.watch(state, WatcherId(connection), id, target, after))
        });
        match missed {
            Ok(missed) => {
                self.push(connection, &Reply::Watching { id, index });
                self.send_missed(connection, id, index, missed);
            }
            Err(error) => self.refuse(connection, id, error),
        }
    }

    /// Sends the events that a watch has missed, or a single resync if their size is over [`FULL_BYTES`] or
    /// the outbox is full.
    pub(super) fn send_missed(
        &mut self,
        connection: ConnectionId,
        id: u64,
        index: u64,
        missed: Vec<WatcherEvent>,
    ) {
        let is_full = self.clients.get(connection).is_some_and(|known| known.is_full);
        let bytes: usize = missed.iter().map(|missed| event_size(&missed.event)).sum();
        if !missed.is_empty() && (is_full || bytes > FULL_BYTES) {
            return self.push(connection, &Reply::Event { watch: id, event: WatchEvent::Resync { index } });
        }
        for WatcherEvent { watch, event, .. } in missed {
            self.push(connection, &Reply::Event { watch, event });
        }
    }

    /// Forwards keep-alives to the leader, if that is another node.
    fn forward(&mut self, pending: Vec<PendingKeepAlive>, cx: &mut Cx<'_>) {
        if pending.is_empty() {
            return;
        }
        let status = cx.view.status();
        let leader = status.leader.filter(|leader| *leader != status.node);
        let Some(to) = leader.filter(|leader| status.membership.nodes.contains_key(leader)) else {
            // This node leads meanwhile, or none does: the next round decides.
            for pending in pending {
                // A newer keep-alive that waits stands for this one.
                if self.clients.get(pending.connection).is_some_and(|known| known.keep_alive.is_none()) {
                    self.keep_alive(pending, cx);
                }
            }
            return;
        };
        for pending in &pending {
            if let Some(known) = self.clients.get_mut(pending.connection) {
                known.waiting += 1;
            }
        }
        let sessions = pending.iter().map(|pending| pending.session).collect();
        self.rounds.last_call += 1;
        let call = self.rounds.last_call;
        self.rounds.forwarded.insert(call, pending);
        cx.out.push(Output::ForwardKeepAlives { call, to, sessions });
    }

    /// Handles the leader's replies to forwarded keep-alives, or their absence.
    pub(super) fn on_keep_alives_answered(&mut self, call: CallId, results: Option<Vec<KeepAliveResult>>) {
        let forwarded = self.rounds.forwarded.remove(&call).unwrap_or_default();
        let missing = std::iter::repeat(KeepAliveResult::NotLeading);
        let results = results.unwrap_or_default().into_iter().chain(missing);
        for (pending, result) in forwarded.into_iter().zip(results) {
            self.stop_waiting(Some(pending.connection), false);
            match result {
                KeepAliveResult::Extended => self.on_kept(&pending),
                // The end arrives with the log, for every session on this node.
                KeepAliveResult::Unknown | KeepAliveResult::Ending => {}
                // The client will try again.
                KeepAliveResult::NotLeading => {}
            }
        }
    }

    /// Closes connections whose session was not opened in time: this node may lead without a majority and
    /// never learn that it was deposed. If the session is opened after all, no client knows its secret, and
    /// it ends with its lease.
    pub(super) fn check_openings(&mut self, now: Now) {
        let since = now.checked_sub(self.timing.heartbeat * KEEP_ALIVE_BEATS);
        for connection in self.clients.take_late_openings(since) {
            self.clients.close(connection, &no_majority());
        }
    }
}

pub(super) fn no_majority() -> Error {
    Error::new(Code::NoQuorum, "no majority confirms a leader")
}
