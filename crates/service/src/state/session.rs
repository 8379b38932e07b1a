//! Sessions: the lease, and the answers remembered so that a retry takes effect once.
//!
//! **Rules** (SERVICE 5 and 7). Every request carries its number and the lowest number whose answer the
//! client lacks. An answer is remembered until it is older than that. A retry is answered from memory; a
//! retried acquire that still waits keeps its place. At most [`MAX_UNANSWERED`] requests are unanswered; then
//! new ones are refused, clearly.
//!
//! A client may count `queued` as an answer: otherwise one long wait would pin the lowest number, and a busy
//! session would run into the bound. The final answer to such an acquire comes *late*, below the lowest
//! number; the last [`MAX_UNANSWERED`] late answers are remembered as well.
//!
//! **The trap.** A number below the lowest that is not remembered may have been done or not: the answer is
//! [`Code::Forgotten`], never "not done".

use std::collections::{BTreeMap, BTreeSet};

use conclave_api::request::MAX_SESSION_LABEL_BYTES;
use conclave_api::{Code, Error, RequestId};
use serde::{Deserialize, Serialize};

use super::command::{Answer, OpenSession};
use super::lock::Ticket;
use super::path::FilePath;

/// The most requests of a session whose answers the client has not acknowledged.
pub const MAX_UNANSWERED: usize = 1024;
/// The most acquires of a session that are held or wait.
pub const MAX_LIVE: usize = 65_536;
/// The most sessions.
pub const MAX_SESSIONS: usize = 1 << 20;
/// The shortest and the longest lease.
pub const TTL_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;
/// The longest lock-delay.
pub const MAX_LOCK_DELAY_MS: u64 = 86_400_000;

/// A session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Session {
    pub(super) open: OpenSession,
    /// Raised when the lease is changed: an expiry of an older one has no effect.
    pub(super) generation: u64,
    pub(super) since_ms: u64,
    lowest: RequestId,
    answers: BTreeMap<RequestId, Answer>,
    /// Answers to acquires that waited, given when the client no longer asked for so old a number.
    late: BTreeMap<RequestId, Answer>,
    /// Acquires without a final answer.
    pub(super) waiting: BTreeMap<RequestId, Ticket>,
    /// Acquires that are held or wait.
    pub(super) live: BTreeMap<RequestId, Ticket>,
    pub(super) ephemerals: BTreeSet<FilePath>,
}

/// Whether a request is new.
pub(super) enum Admission {
    New,
    /// It waits already.
    Waiting(Ticket),
    /// It was answered so, or must be refused.
    Answered(Answer),
}

impl Session {
    pub(super) fn new(open: OpenSession, now_ms: u64) -> Self {
        Self {
            open,
            generation: 1,
            since_ms: now_ms,
            lowest: RequestId(0),
            answers: BTreeMap::new(),
            late: BTreeMap::new(),
            waiting: BTreeMap::new(),
            live: BTreeMap::new(),
            ephemerals: BTreeSet::new(),
        }
    }

    /// Decides whether a request is new, and forgets what its client has.
    pub(super) fn admit(&mut self, id: RequestId, lowest: RequestId) -> Admission {
        self.lowest = self.lowest.max(lowest.min(id));
        while let Some(oldest) = self.answers.first_entry()
            && *oldest.key() < self.lowest
        {
            oldest.remove();
        }
        if let Some(ticket) = self.waiting.get(&id) {
            return Admission::Waiting(*ticket);
        }
        match self.answers.get(&id).or_else(|| self.late.get(&id)) {
            Some(answer) => Admission::Answered(answer.clone()),
            None if id < self.lowest => {
                let message = format!("request {id} is older than {}: its answer is forgotten", self.lowest);
                Admission::Answered(Answer::Refused(Error::new(Code::Forgotten, message)))
            }
            None if self.unanswered() >= MAX_UNANSWERED => {
                let message = format!("{MAX_UNANSWERED} requests of this session are not acknowledged");
                Admission::Answered(Answer::Refused(Error::new(Code::TooManyUnanswered, message)))
            }
            None => Admission::New,
        }
    }

    /// Remembers a final answer.
    pub(super) fn remember(&mut self, id: RequestId, answer: Answer) {
        self.waiting.remove(&id);
        if id >= self.lowest {
            self.answers.insert(id, answer);
            return;
        }
        self.late.insert(id, answer);
        if self.late.len() > MAX_UNANSWERED {
            self.late.pop_first();
        }
    }

    /// Whether the request was seen, as far as is remembered; those before the lowest were.
    pub(super) fn has_seen(&self, id: RequestId) -> bool {
        id < self.lowest || self.answers.contains_key(&id) || self.waiting.contains_key(&id)
    }

    /// Answers that the client has not acknowledged. Waits are not among them: `queued` was their answer, and
    /// [`MAX_LIVE`] is their bound. Who waits often must still be able to release and to cancel.
    pub(super) fn unanswered(&self) -> usize {
        self.answers.len()
    }
}

/// Checks what a session is to be.
pub(super) fn check(open: &OpenSession) -> Result<(), Error> {
    let refuse = |message: String| Err(Error::new(Code::InvalidArgument, message));
    check_ttl(open.ttl_ms)?;
    if open.lock_delay_ms > MAX_LOCK_DELAY_MS {
        return refuse(format!("a lock-delay has at most {MAX_LOCK_DELAY_MS} ms"));
    }
    if open.label.len() > MAX_SESSION_LABEL_BYTES || open.label.chars().any(char::is_control) {
        return refuse(format!(
            "a label has at most {MAX_SESSION_LABEL_BYTES} bytes and no control characters"
        ));
    }
    Ok(())
}

pub(super) fn check_ttl(ttl_ms: u64) -> Result<(), Error> {
    if TTL_MS.contains(&ttl_ms) {
        return Ok(());
    }
    let message = format!("a lease has {} to {} ms, not {ttl_ms}", TTL_MS.start(), TTL_MS.end());
    Err(Error::new(Code::InvalidArgument, message))
}
