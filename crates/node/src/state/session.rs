//! Sessions: the lease, and the answers remembered so that a retry takes effect once.
//!
//! **Rules** (docs/service.md 5 and 7). Every request carries its number and the lowest number whose answer the
//! client lacks. An answer is remembered until it is older than that. A retry is answered from memory; a
//! retried acquire that still waits keeps its place. At most [`MAX_UNANSWERED`] requests are unanswered; then
//! new ones are refused, clearly. What gives something back has a reserve of as many: who has asked too much
//! must still be able to let go.
//!
//! A client may count `queued` as an answer: otherwise one long wait would pin the lowest number, and a busy
//! session would run into the bound. The final answer to such an acquire comes *late*, below the lowest
//! number; the last [`MAX_UNANSWERED`] late answers are remembered as well.
//!
//! What was taken away from a session is remembered until its client releases it, and told again whenever the
//! session is resumed: a holder that was not connected when it happened must not go on believing. The last
//! [`MAX_BROKEN`] are.
//!
//! **The trap.** A number below the lowest that is not remembered may have been done or not: the answer is
//! [`Code::Forgotten`], never "not done". Unless it is seen to hold something: then it was granted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use conclave_api::request::MAX_SESSION_LABEL_BYTES;
use conclave_api::{Code, Error, LockName, RequestId};
use serde::{Deserialize, Serialize};

use super::command::{Answer, Op, OpenSession};
use super::path::FilePath;
use super::rank::Ticket;

/// The most requests of a session whose answers the client has not acknowledged.
pub const MAX_UNANSWERED: usize = 1024;
/// The most that was taken away from a session and that its client has not released.
pub const MAX_BROKEN: usize = 1024;
/// The most acquires of a session that are held or wait.
pub const MAX_LIVE: usize = 65_536;
/// The most sessions, with those that have ended and still keep names back.
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
    /// The lease before a shorter one, and the request that changed it: the client may count by it until it has
    /// acknowledged that.
    former_lease: Option<(RequestId, u64)>,
    pub(super) since_ms: u64,
    lowest: RequestId,
    answers: BTreeMap<RequestId, Answer>,
    /// Answers to acquires that waited, given when the client no longer asked for so old a number.
    late: BTreeMap<RequestId, Answer>,
    /// The late answers by age, the oldest first.
    late_order: VecDeque<RequestId>,
    /// What was taken away, the oldest first.
    broken: VecDeque<Broken>,
    /// Acquires without a final answer.
    pub(super) waiting: BTreeMap<RequestId, Ticket>,
    /// Acquires that are held or wait.
    pub(super) live: BTreeMap<RequestId, Ticket>,
    pub(super) ephemerals: BTreeSet<FilePath>,
}

/// A name that was taken away from a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// The number of the acquire.
    pub grant: RequestId,
    /// What was taken away.
    pub name: LockName,
    /// Why.
    pub reason: String,
}

/// Whether a request is new.
pub(super) enum Admission {
    New,
    /// It waits already.
    Waiting(Ticket),
    /// It holds something, and its answer is forgotten.
    Held(Ticket),
    /// It was answered so, or must be refused.
    Answered(Answer),
}

impl Session {
    pub(super) fn new(open: OpenSession, now_ms: u64) -> Self {
        Self {
            open,
            generation: 1,
            former_lease: None,
            since_ms: now_ms,
            lowest: RequestId(0),
            answers: BTreeMap::new(),
            late: BTreeMap::new(),
            late_order: VecDeque::new(),
            broken: VecDeque::new(),
            waiting: BTreeMap::new(),
            live: BTreeMap::new(),
            ephemerals: BTreeSet::new(),
        }
    }

    /// Decides whether a request is new, and forgets what its client has.
    pub(super) fn admit(&mut self, id: RequestId, lowest: RequestId, op: &Op) -> Admission {
        self.lowest = self.lowest.max(lowest.min(id));
        while let Some(oldest) = self.answers.first_entry()
            && *oldest.key() < self.lowest
        {
            oldest.remove();
        }
        if let Some(ticket) = self.waiting.get(&id) {
            return Admission::Waiting(*ticket);
        }
        if let Some(answer) = self.answers.get(&id).or_else(|| self.late.get(&id)) {
            return Admission::Answered(answer.clone());
        }
        if let Some(ticket) = self.live.get(&id) {
            return Admission::Held(*ticket);
        }
        if id < self.lowest {
            let message = format!("request {id} is older than {}, and its answer is forgotten", self.lowest);
            return Admission::Answered(Answer::Refused(Error::new(Code::Forgotten, message)));
        }
        let most = if op.only_releases() { 2 * MAX_UNANSWERED } else { MAX_UNANSWERED };
        if self.unanswered() >= most {
            let message = format!("{MAX_UNANSWERED} answers of this session are not acknowledged");
            return Admission::Answered(Answer::Refused(Error::new(Code::TooManyUnanswered, message)));
        }
        Admission::New
    }

    /// The lease as it must be counted: no shorter than the client may believe.
    pub(super) fn lease_ms(&self) -> u64 {
        self.former_lease.map_or(self.open.ttl_ms, |(_, former_ms)| former_ms.max(self.open.ttl_ms))
    }

    /// Changes the lease by a request.
    pub(super) fn set_ttl(&mut self, request: RequestId, ttl_ms: u64) {
        let counted_ms = self.lease_ms();
        self.open.ttl_ms = ttl_ms;
        self.former_lease = (counted_ms > ttl_ms).then_some((request, counted_ms));
    }

    /// Whether the client has acknowledged a shorter lease that it was not known to have heard of. Once.
    pub(super) fn has_heard_of_lease(&mut self) -> bool {
        let lowest = self.lowest;
        self.former_lease.take_if(|(request, _)| *request < lowest).is_some()
    }

    /// Remembers a final answer.
    pub(super) fn remember(&mut self, id: RequestId, answer: Answer) {
        self.waiting.remove(&id);
        if id >= self.lowest {
            self.answers.insert(id, answer);
            return;
        }
        if self.late.insert(id, answer).is_none() {
            self.late_order.push_back(id);
        }
        if self.late_order.len() > MAX_UNANSWERED
            && let Some(oldest) = self.late_order.pop_front()
        {
            self.late.remove(&oldest);
        }
    }

    /// Remembers what was taken away. Of a grant of which nothing is left nobody is told any more that it was made.
    pub(super) fn remember_broken(&mut self, broken: Broken, is_gone: bool) {
        let Broken { grant, name, reason } = &broken;
        if is_gone && let Some(answer) = self.answers.get_mut(grant).or_else(|| self.late.get_mut(grant)) {
            let message = format!("request {grant} was granted, but {name} was taken away: {reason}");
            *answer = Answer::Refused(Error::new(Code::NotHeld, message));
        }
        if self.broken.len() >= MAX_BROKEN {
            self.broken.pop_front();
        }
        self.broken.push_back(broken);
    }

    /// The client knows what was taken away from a grant.
    pub(super) fn forget_broken(&mut self, grant: RequestId) {
        self.broken.retain(|broken| broken.grant != grant);
    }

    /// What was taken away and the client has not released, the oldest first.
    pub(super) fn broken(&self) -> impl Iterator<Item = &Broken> {
        self.broken.iter()
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

    /// Checks what is kept twice, and every bound that others rely on.
    ///
    /// # Errors
    /// What contradicts what.
    pub(super) fn audit(&self) -> Result<(), &'static str> {
        let order: BTreeSet<RequestId> = self.late_order.iter().copied().collect();
        if order.len() != self.late_order.len() || !order.iter().eq(self.late.keys()) {
            return Err("late answers that are not as old as any");
        }
        if self.late.len() > MAX_UNANSWERED || self.broken.len() > MAX_BROKEN {
            return Err("more is remembered of a session than may be");
        }
        Ok(())
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
    let message = format!("a lease must have {} to {} ms, not {ttl_ms}", TTL_MS.start(), TTL_MS.end());
    Err(Error::new(Code::InvalidArgument, message))
}
