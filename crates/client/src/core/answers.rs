//! The messages from the server, and their effects on the core.

use std::time::Duration;

use conclave_core::{Code, Error};
use conclave_wire::v1::server_message::Message;
use conclave_wire::{secret_from_wire, v1};

use super::{Core, Held, Out, RETRY_AFTER, Reply, Session};
use crate::guard::LossReason;
use crate::lease::{Lease, LeaseState, Now};

impl Core {
    /// Processes one message.
    pub(crate) fn on_message(&mut self, now: Now, message: v1::ServerMessage) {
        self.connection.quiet_since = now;
        match message.message {
            Some(Message::Answer(v1::Answer { id, result: Some(result) })) => self.on_answer(now, id, result),
            Some(Message::KeptAlive(v1::KeptAlive { token })) => self.on_kept_alive(now, token),
            Some(Message::Opened(opened)) => self.on_opened(now, opened),
            Some(Message::Resumed(resumed)) => self.on_resumed(now, resumed),
            Some(Message::Event(event)) => {
                if let Some(watched) = self.watches.get_mut(&event.id) {
                    watched.on_event(event);
                }
            }
            Some(Message::Resync(v1::Resync { id, index })) => {
                if let Some(watched) = self.watches.get_mut(&id) {
                    watched.on_resync(index);
                }
            }
            Some(Message::Broken(broken)) => self.on_broken(now, broken),
            Some(Message::SessionEnded(ended)) => self.on_ended(now, &ended),
            Some(Message::Goodbye(goodbye)) => self.on_goodbye(goodbye.error.as_ref()),
            // A message or an answer of a later version: ignore it.
            Some(Message::Answer(_)) | None => {}
        }
    }

    fn on_answer(&mut self, now: Now, id: u64, result: v1::answer::Result) {
        use v1::answer::Result as Answer;
        self.connection.is_productive = true;
        if self.watches.contains_key(&id) {
            return self.on_watching(now, id, result);
        }
        let Some(pending) = self.pending.get_mut(&id) else { return };
        match result {
            Answer::Queued(place) => {
                self.unanswered.remove(&id);
                pending.refused_since = None;
                if let Reply::Acquire { queued, .. } = &mut pending.reply
                    && let Some(queued) = queued.take()
                {
                    // The caller may no longer wait for the place.
                    drop(queued.send(place));
                }
            }
            Answer::Granted(granted) if matches!(pending.reply, Reply::Acquire { .. }) => {
                if self.is_lost(now) {
                    self.late.push((id, granted));
                } else {
                    self.deliver(now, id, granted);
                }
            }
            Answer::Granted(_) if pending.is_acquire() => {
                // The acquire was abandoned. Its cancel releases the grant, unless the cancel was rejected.
                self.forget(id);
                if !self.is_submitted(&v1::request::Op::Cancel(v1::Cancel { request: id })) {
                    self.request_quietly(now, v1::request::Op::Release(v1::Release { grant: id }));
                }
            }
            Answer::Error(error) => {
                let error = Error::from(&error);
                // Retry a release, a cancel or a close: it frees resources on the server.
                let is_full = error.code == Code::TooManyUnanswered && pending.only_releases();
                if is_passing(error.code) || is_full {
                    pending.retry = true;
                    pending.refused_since.get_or_insert(now);
                    pending.uncertain |= !error.code.is_definite();
                    self.retry_at.get_or_insert(now + RETRY_AFTER);
                } else {
                    self.fail(id, error);
                }
            }
            result => {
                if let Some(Reply::Once(reply)) = self.forget(id).map(|pending| pending.reply) {
                    // The caller may have stopped waiting.
                    drop(reply.send(Ok(result)));
                }
            }
        }
    }

    fn on_watching(&mut self, now: Now, id: u64, result: v1::answer::Result) {
        let Some(watched) = self.watches.get_mut(&id) else { return };
        match result {
            v1::answer::Result::Watching(v1::Watching { index }) => {
                watched.refused_since = None;
                if watched.after.is_none() {
                    watched.after = Some(index);
                }
                if let Some(begun) = watched.begun.take() {
                    // The caller may have stopped waiting. Its drop then ends the watch.
                    drop(begun.send(Ok(index)));
                }
            }
            v1::answer::Result::Error(error) => {
                let error = Error::from(&error);
                if is_passing(error.code) {
                    watched.retry = true;
                    watched.refused_since.get_or_insert(now);
                    self.retry_at.get_or_insert(now + RETRY_AFTER);
                    return;
                }
                if let Some(watched) = self.watches.remove(&id) {
                    watched.fail(error);
                }
            }
            _ => {}
        }
    }

    /// Delivers a grant while the lease is not lost.
    fn deliver(&mut self, now: Now, id: u64, granted: v1::Granted) {
        let Some(Reply::Acquire { done, .. }) = self.forget(id).map(|pending| pending.reply) else { return };
        let Session::Open { lease, .. } = &self.session else { return };
        self.held.insert(id, Held { epoch: lease.epoch(), loss: None, ended: false });
        if done.send(Ok(granted)).is_err() {
            self.abandon(now, id);
        }
    }

    fn on_kept_alive(&mut self, now: Now, token: u64) {
        let Session::Open { lease, .. } = &mut self.session else { return };
        let before = lease.epoch();
        if !lease.on_kept_alive(now, token) {
            return;
        }
        #[cfg(feature = "testing")]
        if self.flaw == Some(crate::testing::Flaw::CountsFromReply) {
            lease.count_from(now);
        }
        let renewed = lease.epoch() != before;
        if renewed {
            self.lose(now);
        }
        if renewed || self.lease_state != LeaseState::Valid {
            self.lease_state = LeaseState::Valid;
            self.changed();
        }
        if !self.is_lost(now) {
            for (id, granted) in std::mem::take(&mut self.late) {
                self.deliver(now, id, granted);
            }
        }
    }

    fn on_opened(&mut self, now: Now, opened: v1::Opened) {
        let Session::Opening(sent) = self.session else { return };
        self.connection.is_productive = true;
        if secret_from_wire(&opened.secret).is_err() {
            let text = "the server opened a session without a secret; the requests may have had their effect";
            return self.give_up(&Error::new(Code::Disconnected, text));
        }
        #[cfg(feature = "testing")]
        let sent = if self.flaw.is_some() { now } else { sent };
        let lease = Lease::new(sent, Duration::from_millis(opened.ttl_ms), opened.drift_ppm);
        self.lease_state = lease.state(now);
        self.nodes = opened.nodes;
        self.sent_before_open = 0;
        self.session = Session::Open { id: opened.session, secret: opened.secret, lease, attached: true };
    }

    fn on_resumed(&mut self, now: Now, resumed: v1::Resumed) {
        let Session::Open { attached, .. } = &mut self.session else { return };
        *attached = true;
        self.connection.is_productive = true;
        self.nodes = resumed.nodes;
        // Requests that were submitted during the resumption go after the older ones.
        self.out.retain(|out| matches!(out, Out::Message(_)));
        self.send_again(now);
    }

    /// Processes `Broken`. It may arrive before `Granted`, and the grant must then not be delivered. The
    /// server repeats it at each resumption until the grant is released. The guard releases the grant; if
    /// there is no guard, this function does.
    fn on_broken(&mut self, now: Now, broken: v1::Broken) {
        let v1::Broken { grant, name, reason } = broken;
        let loss = LossReason::Broken { name, reason };
        if let Some(held) = self.held.get_mut(&grant) {
            held.loss.get_or_insert(loss);
            return self.changed();
        }
        self.late.retain(|(late, _)| *late != grant);
        if self.pending.get(&grant).is_some_and(|pending| pending.is_acquire()) {
            self.fail(grant, Error::new(Code::NotHeld, loss.to_string()));
        }
        let release = v1::request::Op::Release(v1::Release { grant });
        if !self.is_submitted(&release) {
            self.request_quietly(now, release);
        }
    }

    fn on_ended(&mut self, now: Now, ended: &v1::SessionEnded) {
        if self.session() != Some(ended.session) {
            return;
        }
        let why = match ended.cause() {
            v1::EndCause::Closed => "it was closed",
            v1::EndCause::Expired => "its lease expired",
            v1::EndCause::Ended => "an operator ended it",
            v1::EndCause::Unspecified => "the server gave no reason",
        };
        let text = format!("session {} has ended: {why}", ended.session);
        self.end(&LossReason::Session(text.clone()), &Error::new(Code::SessionEnded, text));
        // The watches continue on this connection, and they need a session.
        if self.needs_session() {
            self.open_if_needed(now);
        }
    }

    /// Processes `Goodbye`: the connection ends. After a passing error the next connection sends everything
    /// again; any other error fails all requests.
    fn on_goodbye(&mut self, error: Option<&v1::Error>) {
        let Some(error) = error.map(Error::from) else { return };
        if is_passing(error.code) || error.code == Code::Disconnected {
            // A server also sends `Overloaded` if too many answers wait for this client. `Open` may have been
            // applied in that case.
            if matches!(self.session, Session::Opening(_))
                && is_passing(error.code)
                && error.code != Code::Overloaded
            {
                self.on_refused();
            }
            self.connection.goodbye = Some(error);
            return;
        }
        self.end(&LossReason::Session(error.message.clone()), &error);
        if error.code != Code::SessionEnded {
            self.fail_all(&error);
        }
    }

    /// Records that the server applied none of the requests that were sent after `Open`.
    pub(crate) fn on_refused(&mut self) {
        self.connection.is_refused = true;
    }

    fn is_lost(&self, now: Now) -> bool {
        match &self.session {
            Session::Open { lease, .. } => lease.state(now) == LeaseState::Lost,
            _ => true,
        }
    }
}

/// Returns whether the same request may succeed a little later, on this server or another.
fn is_passing(code: Code) -> bool {
    matches!(code, Code::NotLeader | Code::NoQuorum | Code::Overloaded | Code::ShuttingDown | Code::NoAnswer)
}
