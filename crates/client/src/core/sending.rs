//! The messages to the server: their order on a connection, and the events that depend on time.

use conclave_core::{Code, Error};
use conclave_wire::frame::Frames;
use conclave_wire::v1;

use super::{
    Body, Connection, Core, Held, MAX_SILENCE_DOUBLED, Out, Pending, Reply, SILENCE, Session, Watched,
};
use crate::guard::LossReason;
use crate::lease::{LeaseState, Now};

/// The maximum number of messages sent from `Open` on, before its answer. More messages wait in the client,
/// because the server holds only a bounded number.
pub(super) const MAX_SENT_BEFORE_OPEN: usize = 256;

impl Core {
    /// Starts a new connection: resumes the session, and sends all requests and watches again.
    pub(crate) fn on_connected(&mut self, now: Now) {
        self.connected = true;
        self.connection = Connection { quiet_since: now, ..Connection::default() };
        self.out.clear();
        let lowest = self.lowest();
        if let Session::Open { id, secret, lease, attached } = &mut self.session {
            *attached = false;
            let resume = v1::Resume { session: *id, secret: secret.clone(), lowest };
            let alive = v1::KeepAlive { token: lease.on_reconnected(now) };
            self.out.extend([Out::Message(resume.into()), Out::Message(alive.into())]);
            return;
        }
        self.send_again(now);
    }

    /// Records the preface of the server.
    pub(crate) fn on_greeted(&mut self, now: Now) {
        self.connection.is_greeted = true;
        self.connection.quiet_since = now;
    }

    /// Ends the connection, with the reason. Returns whether the connection was productive.
    pub(crate) fn on_disconnected(&mut self, now: Now, why: Error) -> bool {
        self.connected = false;
        self.out.clear();
        self.sent_before_open = 0;
        let Connection { is_productive, is_refused, goodbye, .. } = std::mem::take(&mut self.connection);
        let opening = matches!(self.session, Session::Opening(_));
        if opening {
            self.session = Session::None;
        }
        let mut orphans = Vec::new();
        for (id, pending) in &mut self.pending {
            pending.retry = false;
            let is_orphan = pending.sent && opening && !is_refused;
            match (&pending.body, &pending.reply) {
                (Body::Request(v1::request::Op::Acquire(_)), Reply::Acquire { .. }) => {
                    pending.uncertain |= pending.sent && !opening;
                }
                (Body::Request(_), _) if is_orphan => orphans.push(*id),
                (Body::Request(_), _) => pending.uncertain |= pending.sent && !opening,
                (Body::Query(_), _) => {}
            }
            if opening {
                pending.sent = false;
            }
        }
        self.watches.values_mut().for_each(|watched| watched.retry = false);
        let why = goodbye.unwrap_or(why);
        for id in orphans {
            let text = format!(
                "before the session was open, {}; the requests may have had their effect",
                why.message
            );
            self.fail(id, Error::new(Code::Disconnected, text));
        }
        let is_productive = is_productive && !is_refused;
        if is_productive {
            self.silent_servers = 0;
        } else {
            self.on_failed_attempt(now, &why);
        }
        is_productive
    }

    /// Processes a failed attempt to connect, or the end of an unproductive connection. Fails the requests
    /// whose `retry_timeout` or lease is over.
    pub(crate) fn on_failed_attempt(&mut self, now: Now, why: &Error) {
        self.on_tick(now);
        if let Some(deadline) = self.deadline() {
            // Queries and watches do not fail with the session. They get the full `retry_timeout`, although
            // the deadline may have passed during a suspension.
            let reads = self.pending.values_mut().filter(|pending| matches!(pending.body, Body::Query(_)));
            let since = reads.map(|pending| &mut pending.refused_since);
            let since = since.chain(self.watches.values_mut().map(|watched| &mut watched.refused_since));
            since.for_each(|since| _ = since.get_or_insert(now));
            if now < deadline {
                return;
            }
            let text = format!("the connection was lost, and {}", why.message);
            self.end(&LossReason::Session(text.clone()), &Error::new(Code::Disconnected, text));
        }
        let retry_timeout = self.retry_timeout;
        let is_over = |since: &mut Option<Now>| now >= *since.get_or_insert(now) + retry_timeout;
        let over = self
            .pending
            .iter_mut()
            .filter_map(|(id, pending)| is_over(&mut pending.refused_since).then_some(*id));
        let over: Vec<u64> = over.collect();
        over.into_iter().for_each(|id| self.fail(id, why.clone()));
        for (_, watched) in self.watches.extract_if(.., |_, watched| is_over(&mut watched.refused_since)) {
            watched.fail(why.clone());
        }
    }

    /// Returns whether the server is silent although an answer is due. The caller must then leave the
    /// connection.
    pub(crate) fn is_silent(&mut self, now: Now) -> bool {
        let is_lease_silent = match &mut self.session {
            Session::Open { lease, .. } if lease.silent_at().is_some_and(|at| at <= now) => {
                lease.on_server_left();
                true
            }
            _ => false,
        };
        let is_silent = is_lease_silent || self.silent_at().is_some_and(|at| at <= now);
        if is_silent {
            self.silent_servers += 1;
        }
        is_silent
    }

    /// The time at which the server counts as silent if nothing arrives. With a confirmed session the
    /// keep-alives decide, so this is `None`.
    fn silent_at(&self) -> Option<Now> {
        if !self.connected || self.is_attached() || !self.is_waiting() {
            return None;
        }
        // A client with a short `retry_timeout` must have time for another server.
        let limit = match self.connection.is_greeted {
            true => SILENCE.1.min(self.retry_timeout / 2),
            false => SILENCE.0.min(self.retry_timeout / 4),
        };
        Some(self.connection.quiet_since + limit * (1 << self.silent_servers.min(MAX_SILENCE_DOUBLED)))
    }

    /// Returns whether an answer is due.
    pub(super) fn is_waiting(&self) -> bool {
        !self.connection.is_greeted
            || matches!(self.session, Session::Opening(_) | Session::Open { attached: false, .. })
            || !self.unanswered.is_empty()
            || self.watches.values().any(|watched| watched.begun.is_some())
    }

    fn is_attached(&self) -> bool {
        matches!(self.session, Session::Open { attached: true, .. })
    }

    /// Queues every request and watch again, in the order of the numbers.
    pub(super) fn send_again(&mut self, now: Now) {
        if self.needs_session() {
            self.open_if_needed(now);
        }
        self.out.extend(self.pending.keys().map(|id| Out::Pending(*id)));
        self.out.extend(self.watches.keys().map(|id| Out::Watch(*id)));
    }

    pub(super) fn needs_session(&self) -> bool {
        !self.watches.is_empty()
            || self.pending.values().any(|pending| matches!(pending.body, Body::Request(_)))
    }

    pub(super) fn open_if_needed(&mut self, now: Now) {
        if matches!(self.session, Session::None) {
            self.session = Session::Opening(now);
            let open = v1::Open {
                ttl_ms: self.opening.ttl_ms,
                lock_delay_ms: self.opening.lock_delay_ms,
                label: self.opening.label.clone(),
            };
            self.out.push_back(Out::Message(open.into()));
        }
    }

    /// Processes everything that is due at `now`.
    pub(crate) fn on_tick(&mut self, now: Now) {
        if let Session::Open { lease, .. } = &mut self.session {
            let state = lease.state(now);
            if self.connected
                && let Some(token) = lease.poll(now)
            {
                self.out.push_back(Out::Message(v1::KeepAlive { token }.into()));
            }
            if state != self.lease_state {
                self.lease_state = state;
                if state == LeaseState::Lost {
                    self.lose(now);
                }
                self.changed();
            }
        }
        if self.connection.check_at.is_some_and(|at| at <= now) {
            self.connection.check_at = None;
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.retry(now);
        }
    }

    /// The time of the next call of [`Core::on_tick`].
    pub(crate) fn next_tick(&mut self, now: Now) -> Option<Now> {
        if self.connection.check_at.is_none() {
            self.connection.check_at = self.silent_at();
        }
        let (lease, silent_at) = match &self.session {
            Session::Open { lease, .. } => (Some(lease.next_change(now)), lease.silent_at()),
            _ => (None, None),
        };
        [lease, silent_at, self.connection.check_at, self.retry_at].into_iter().flatten().min()
    }

    /// Marks every grant as lost, finally. Also sends releases, because the session may still be alive on the
    /// server.
    pub(super) fn lose(&mut self, now: Now) {
        let lost = self.held.iter_mut().filter(|(_, held)| held.loss.is_none());
        let mut ids: Vec<u64> = lost
            .map(|(id, held): (_, &mut Held)| {
                held.loss = Some(LossReason::Deadline);
                *id
            })
            .collect();
        // The order of a hash map differs from run to run, but a seed must give the same releases in the same
        // order.
        ids.sort_unstable();
        for grant in ids {
            self.request_quietly(now, v1::request::Op::Release(v1::Release { grant }));
        }
    }

    fn retry(&mut self, now: Now) {
        let mut over = Vec::new();
        for (id, pending) in self.pending.iter_mut().filter(|(_, pending)| pending.retry) {
            pending.retry = false;
            let is_late = pending.refused_since.is_some_and(|since| now > since + self.retry_timeout);
            // A queued acquire was accepted once: keep its place.
            let is_retried = matches!(pending.reply, Reply::Forget) || !self.unanswered.contains(id);
            if is_late && !is_retried {
                over.push(*id);
            } else {
                self.out.push_back(Out::Pending(*id));
            }
        }
        over.into_iter().for_each(|id| self.end_retries(now, id));
        self.retry_watches(now);
    }

    /// Retries the watches. A watch that has begun is retried without a time limit, because it loses no event
    /// while it waits.
    fn retry_watches(&mut self, now: Now) {
        let retry_timeout = self.retry_timeout;
        let is_over = |watched: &Watched| {
            watched.begun.is_some() && watched.refused_since.is_some_and(|since| now > since + retry_timeout)
        };
        for (_, watched) in self.watches.extract_if(.., |_, watched| watched.retry && is_over(watched)) {
            watched.fail(not_taken(Code::NoQuorum));
        }
        for (id, watched) in self.watches.iter_mut().filter(|(_, watched)| watched.retry) {
            watched.retry = false;
            self.out.push_back(Out::Watch(*id));
        }
    }

    fn end_retries(&mut self, now: Now, id: u64) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        let code = if pending.uncertain { Code::NoAnswer } else { Code::NoQuorum };
        let error = not_taken(code);
        if pending.only_releases() {
            // The caller gets the error now; the release itself is still retried.
            std::mem::replace(&mut pending.reply, Reply::Forget).fail(error);
            return self.out.push_back(Out::Pending(id));
        }
        let may_hold = pending.is_acquire() && pending.uncertain;
        self.fail(id, error);
        if may_hold {
            self.request_quietly(now, v1::request::Op::Cancel(v1::Cancel { request: id }));
        }
    }

    /// Appends every message that may be sent now to `out`.
    pub(crate) fn drain(&mut self, out: &mut Frames) {
        while self.may_send() {
            let Some(next) = self.out.pop_front() else { break };
            if let Some(message) = self.message(next) {
                self.count_before_open(&message);
                out.push(&message).expect("submit and watch reject a message that no frame can carry");
            }
        }
    }

    /// Returns whether the caller should write now instead of the task; `WritePolicy` decides. The task must
    /// write if the client closes. It must also write if no check for silence is scheduled yet: no confirmed
    /// session, and no `check_at`.
    pub(crate) fn caller_should_write(&self) -> bool {
        let is_watched = self.is_attached() || self.connection.check_at.is_some();
        !self.closing && is_watched && self.write_policy.caller_should_write()
    }

    fn may_send(&self) -> bool {
        match &self.session {
            Session::None | Session::Open { attached: true, .. } => true,
            Session::Opening(_) => self.sent_before_open < MAX_SENT_BEFORE_OPEN,
            Session::Open { attached: false, .. } => {
                let resuming = |out: &Out| match out {
                    Out::Message(message) => matches!(
                        message.message,
                        Some(
                            v1::client_message::Message::Resume(_)
                                | v1::client_message::Message::KeepAlive(_)
                        )
                    ),
                    Out::Pending(_) | Out::Watch(_) => false,
                };
                self.out.front().is_some_and(resuming)
            }
        }
    }

    /// Counts `Open` and the messages after it until its answer. Queries may be ahead of `Open` in the queue.
    /// They do not count, because they could reach the bound and delay `Open`.
    fn count_before_open(&mut self, message: &v1::ClientMessage) {
        let is_open = matches!(message.message, Some(v1::client_message::Message::Open(_)));
        if is_open || self.sent_before_open > 0 {
            self.sent_before_open += 1;
        }
    }

    fn message(&mut self, out: Out) -> Option<v1::ClientMessage> {
        let lowest = self.lowest();
        match out {
            Out::Message(message) => Some(message),
            Out::Watch(id) => {
                let watched = self.watches.get_mut(&id)?;
                Some(watched.resume_message(id).into())
            }
            Out::Pending(id) => {
                let pending: &mut Pending = self.pending.get_mut(&id)?;
                pending.sent = true;
                Some(match &pending.body {
                    Body::Request(op) => v1::Request { id, lowest, op: Some(op.clone()) }.into(),
                    Body::Query(query) => v1::Query { id, stale: false, kind: Some(query.clone()) }.into(),
                })
            }
        }
    }

    fn lowest(&self) -> u64 {
        self.unanswered.first().copied().unwrap_or(self.next_id)
    }
}

fn not_taken(code: Code) -> Error {
    Error::new(
        code,
        "no server has accepted the request: there is no majority, or the servers are overloaded",
    )
}

/// The encoded length in bytes.
pub(super) fn encoded_len(body: &Body) -> usize {
    match body {
        Body::Request(op) => op.encoded_len(),
        Body::Query(query) => query.encoded_len(),
    }
}
