//! What goes out: the order of things on a connection, and what a clock makes due.

use conclave_api::proto::frame::Frames;
use conclave_api::proto::v1;
use conclave_api::{Code, Error};

use super::{Core, Held, Out, Pending, Reply, Session, What};
use crate::guard::Loss;
use crate::lease::{Now, Standing};

/// What may be sent behind an opening that is not answered; the server keeps a bounded number of these.
const MAX_BEHIND: usize = 256;

impl Core {
    /// A connection stands: everything is asked again on it.
    pub(crate) fn on_connected(&mut self, now: Now) {
        self.connected = true;
        self.out.clear();
        let lowest = self.lowest();
        if let Session::Open { id, secret, lease, attached } = &mut self.session {
            *attached = false;
            let resume = v1::Resume { session: *id, secret: secret.clone(), lowest };
            let alive = v1::KeepAlive { token: lease.on_reconnected(now) };
            self.out.extend([Out::Message(resume.into()), Out::Message(alive.into())]);
            return;
        }
        self.ask_again(now);
    }

    /// The connection is gone.
    pub(crate) fn on_disconnected(&mut self) {
        self.connected = false;
        self.out.clear();
        self.behind = 0;
        let opening = matches!(self.session, Session::Opening(_));
        if opening {
            self.session = Session::None;
        }
        let mut orphans = Vec::new();
        for (id, pending) in &mut self.pending {
            pending.retry = false;
            match &pending.what {
                What::Request(v1::request::Op::Acquire(_)) => pending.uncertain |= pending.sent && !opening,
                What::Request(_) if pending.sent && opening => orphans.push(*id),
                What::Request(_) => pending.uncertain |= pending.sent,
                What::Query(_) => {}
            }
            if opening {
                pending.sent = false;
            }
        }
        for id in orphans {
            let text = "the connection broke before the session was known: what was asked may have been done";
            self.fail(id, Error::new(Code::Disconnected, text));
        }
    }

    /// Everything in the table, in the order of the numbers.
    pub(super) fn ask_again(&mut self, now: Now) {
        if self.pending.values().any(|pending| matches!(pending.what, What::Request(_))) {
            self.open_if_needed(now);
        }
        self.out.extend(self.pending.keys().map(|id| Out::Pending(*id)));
        self.out.extend(self.watches.keys().map(|id| Out::Watch(*id)));
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

    /// What the clock makes due.
    pub(crate) fn on_tick(&mut self, now: Now) {
        if let Session::Open { lease, .. } = &mut self.session {
            let standing = lease.standing(now);
            if self.connected
                && let Some(token) = lease.poll(now)
            {
                self.out.push_back(Out::Message(v1::KeepAlive { token }.into()));
            }
            if standing != self.standing {
                self.standing = standing;
                if standing == Standing::Lost {
                    self.lose(now);
                }
                self.changed();
            }
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.retry(now);
        }
    }

    /// When [`Core::on_tick`] is to be called next.
    pub(crate) fn next_tick(&self, now: Now) -> Option<Now> {
        let lease = match &self.session {
            Session::Open { lease, .. } => Some(lease.next_change(now)),
            _ => None,
        };
        lease.into_iter().chain(self.retry_at).min()
    }

    /// Everything held is lost, finally; if the session should still be alive, it is given back.
    pub(super) fn lose(&mut self, now: Now) {
        let lost = self.held.iter_mut().filter(|(_, held)| held.loss.is_none());
        let ids: Vec<u64> = lost
            .map(|(id, held): (_, &mut Held)| {
                held.loss = Some(Loss::Deadline);
                *id
            })
            .collect();
        for grant in ids {
            self.request_quietly(now, v1::request::Op::Release(v1::Release { grant }));
        }
    }

    fn retry(&mut self, now: Now) {
        let mut over = Vec::new();
        for (id, pending) in self.pending.iter_mut().filter(|(_, pending)| pending.retry) {
            pending.retry = false;
            let is_late = pending.refused_since.is_some_and(|since| now > since + self.patience);
            // An acquire that was queued was taken once: its place is kept.
            let is_offered_on = matches!(pending.reply, Reply::Forget) || !self.unanswered.contains(id);
            if is_late && !is_offered_on {
                over.push(*id);
            } else {
                self.out.push_back(Out::Pending(*id));
            }
        }
        for (id, watched) in self.watches.iter_mut().filter(|(_, watched)| watched.retry) {
            watched.retry = false;
            self.out.push_back(Out::Watch(*id));
        }
        over.into_iter().for_each(|id| self.lose_patience(now, id));
    }

    fn lose_patience(&mut self, now: Now, id: u64) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        let code = if pending.uncertain { Code::NoAnswer } else { Code::NoQuorum };
        let error =
            Error::new(code, "no server has taken the request: there is no majority, or too much to do");
        if pending.lets_go() {
            // Whoever waits for it waits no longer; others still do.
            std::mem::replace(&mut pending.reply, Reply::Forget).fail(error);
            return self.out.push_back(Out::Pending(id));
        }
        let may_hold = pending.is_acquire() && pending.uncertain;
        self.fail(id, error);
        if may_hold {
            self.request_quietly(now, v1::request::Op::Cancel(v1::Cancel { request: id }));
        }
    }

    /// Appends everything that may be sent now.
    pub(crate) fn drain(&mut self, out: &mut Frames) {
        while self.may_send() {
            let Some(next) = self.out.pop_front() else { break };
            if let Some(message) = self.message(next) {
                out.push(&message).expect("a message beyond the bound is not taken in");
            }
        }
    }

    /// Whether what there is to say is likely to be all for a moment: as many were asked as the last time.
    pub(crate) fn is_likely_all(&self) -> bool {
        !self.closing && self.out.len() == self.together && self.together == self.usually_together
    }

    fn may_send(&self) -> bool {
        match &self.session {
            Session::None | Session::Open { attached: true, .. } => true,
            Session::Opening(_) => self.behind < MAX_BEHIND,
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

    fn message(&mut self, out: Out) -> Option<v1::ClientMessage> {
        let lowest = self.lowest();
        if matches!(self.session, Session::Opening(_)) {
            self.behind += 1;
        }
        match out {
            Out::Message(message) => Some(message),
            Out::Watch(id) => {
                let watched = self.watches.get(&id)?;
                Some(v1::Watch { id, after: watched.after, target: Some(watched.target.clone()) }.into())
            }
            Out::Pending(id) => {
                let pending: &mut Pending = self.pending.get_mut(&id)?;
                pending.sent = true;
                Some(match &pending.what {
                    What::Request(op) => v1::Request { id, lowest, op: Some(op.clone()) }.into(),
                    What::Query(what) => v1::Query { id, stale: false, what: Some(what.clone()) }.into(),
                })
            }
        }
    }

    fn lowest(&self) -> u64 {
        self.unanswered.first().copied().unwrap_or(self.next_id)
    }
}

/// How many bytes it says.
pub(super) fn encoded_len(what: &What) -> usize {
    match what {
        What::Request(op) => op.encoded_len(),
        What::Query(what) => what.encoded_len(),
    }
}
