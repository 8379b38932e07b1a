//! Sessions: the lease, and the remembered answers that let a retry take effect only once.
//!
//! **Rules** (docs/service.md 5 and 7). Every request carries its number, and the lowest number whose answer
//! the client has not received. An answer is remembered until its number is below the lowest. A retry gets
//! the remembered answer; a retried acquire that still waits keeps its place. A session has at most
//! [`MAX_UNANSWERED`] unanswered requests. Beyond that, new requests are rejected with
//! [`Code::TooManyUnanswered`]. Operations that only release have twice this limit, so that a busy session
//! can still release its locks.
//!
//! A client may count `queued` as an answer. Otherwise one long wait would pin the lowest number, and a busy
//! session would reach the limit. The final answer to such an acquire is *late*: its number is below the
//! lowest. The last [`MAX_UNANSWERED`] late answers are remembered as well.
//!
//! A break is remembered until the client releases the grant. It is sent again when the session is resumed,
//! because a holder that was not connected must learn of it. The last [`MAX_BROKEN`] breaks are remembered.
//!
//! **Trap.** A number below the lowest without a remembered answer may have been done or not. The answer is
//! then [`Code::Forgotten`], never "not done". One case is certain: a request that still holds a grant was
//! granted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use conclave_core::request::MAX_SESSION_LABEL_BYTES;
use conclave_core::{Code, Error, FilePath, LockName, RequestId};
use serde::{Deserialize, Serialize};

use super::command::{Answer, Op, OpenSession};
use super::rank::Ticket;

/// The largest number of answers that the client has not acknowledged. Beyond it, new requests are rejected.
/// Operations that only release are rejected beyond twice this number.
pub const MAX_UNANSWERED: usize = 1024;
/// The largest number of breaks remembered for a session. Beyond it, the oldest is forgotten.
pub const MAX_BROKEN: usize = 1024;
/// The largest number of acquires of a session that hold or wait. Beyond it, new acquires are rejected.
pub const MAX_LIVE: usize = 65_536;
/// The largest number of sessions, including ended sessions with a running lock-delay. Beyond it, new
/// sessions are rejected.
pub const MAX_SESSIONS: usize = 1 << 20;
/// The allowed lengths of a lease, in milliseconds. Other lengths are rejected.
pub const TTL_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;
/// The longest lock-delay, in milliseconds. A longer one is rejected.
pub const MAX_LOCK_DELAY_MS: u64 = 86_400_000;

/// A session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Session {
    pub(super) open: OpenSession,
    /// The generation of the lease. It grows with each change of the lease; an expiry of an older generation
    /// has no effect.
    pub(super) generation: u64,
    /// The request that shortened the lease, and the longer lease before it, in milliseconds. The client may
    /// count by the longer lease until it has acknowledged that request.
    former_lease: Option<(RequestId, u64)>,
    pub(super) since_ms: u64,
    lowest: RequestId,
    answers: BTreeMap<RequestId, Answer>,
    /// The late answers: their numbers are below `lowest`.
    late: BTreeMap<RequestId, Answer>,
    /// The numbers of the late answers, the oldest answer first.
    late_order: VecDeque<RequestId>,
    /// The breaks that the client has not acknowledged by a release, the oldest first.
    broken: VecDeque<Broken>,
    /// The acquires without a final answer.
    pub(super) waiting: BTreeMap<RequestId, Ticket>,
    /// The acquires that hold or wait.
    pub(super) live: BTreeMap<RequestId, Ticket>,
    pub(super) ephemerals: BTreeSet<FilePath>,
}

/// A name that was taken away from a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// The number of the acquire.
    pub grant: RequestId,
    /// The name.
    pub name: LockName,
    /// The reason.
    pub reason: String,
}

/// The result of [`Session::admit`].
pub(super) enum Admission {
    New,
    /// A retry of an acquire that still waits.
    Waiting(Ticket),
    /// A retry of an acquire that holds its grant. Its answer was forgotten.
    Held(Ticket),
    /// A retry with a remembered answer, or a rejected request.
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

    /// Decides if a request is new. Forgets the answers that the client has acknowledged.
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

    /// Returns the length of the lease that the leader must count, in milliseconds. It is never shorter than
    /// the lease that the client may count.
    pub(super) fn lease_ms(&self) -> u64 {
        self.former_lease.map_or(self.open.ttl_ms, |(_, former_ms)| former_ms.max(self.open.ttl_ms))
    }

    /// Changes the length of the lease.
    pub(super) fn set_ttl(&mut self, request: RequestId, ttl_ms: u64) {
        let counted_ms = self.lease_ms();
        self.open.ttl_ms = ttl_ms;
        self.former_lease = (counted_ms > ttl_ms).then_some((request, counted_ms));
    }

    /// Returns `true` once after the client has acknowledged the request that shortened the lease.
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

    /// Remembers a break. If the grant has no names left, its remembered answer becomes an error. So a retry
    /// does not receive the grant.
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

    /// Forgets the breaks of a grant, because the client has released or cancelled it.
    pub(super) fn forget_broken(&mut self, grant: RequestId) {
        self.broken.retain(|broken| broken.grant != grant);
    }

    /// Returns the remembered breaks, the oldest first.
    pub(super) fn broken(&self) -> impl Iterator<Item = &Broken> {
        self.broken.iter()
    }

    /// Returns whether the request is known. All numbers below the lowest count as known.
    pub(super) fn has_seen(&self, id: RequestId) -> bool {
        id < self.lowest || self.answers.contains_key(&id) || self.waiting.contains_key(&id)
    }

    /// Returns the number of answers that the client has not acknowledged. Waiting acquires do not count:
    /// their answer was `queued`, and [`MAX_LIVE`] limits them. So a session with many waits can still
    /// release and cancel.
    pub(super) fn unanswered(&self) -> usize {
        self.answers.len()
    }

    /// Checks that redundant data agree, and that the bounds of this module hold.
    ///
    /// # Errors
    /// The contradiction.
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

/// Checks the parameters of a new session.
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
    let message =
        format!("the TTL of a lease must be {} to {} ms, not {ttl_ms}", TTL_MS.start(), TTL_MS.end());
    Err(Error::new(Code::InvalidArgument, message))
}
