//! The replicated state of the service: sessions, locks and files, as a pure function of the log.
//!
//! **Intuition.** Every node applies the same commands with [`State::apply`]. All nodes get the same state,
//! byte for byte, and the same effects. So every decision that all nodes must share is made here. Examples
//! are the holder of a lock, the next waiter, the victim of a deadlock and the reply to a retry. The state
//! has no access to anything outside the log.
//!
//! **Rules.** The state reads and compares no clocks. A lease, a wait or a lock-delay ends by a command that
//! the leader proposes. The command names the generation that it ends (docs/service.md 5). No unordered map
//! is iterated. No input causes a panic: an invalid request gets an error. Every table has a bound,
//! documented at its definition.
//!
//! **Modules.** [`command`]: commands, replies and effects. [`session`]: leases and remembered answers.
//! `lock`: the tables of locks and waiters. `grant`: the order of grants. `lower`: from lock expressions to
//! requests. `rank`: the position in a queue. [`early_grant`]: early grants. `deadlock`: overtaking and victims.
//! [`tree`]: files. [`watch`]: the history of changes. [`query`]: read-only reports.
//! [`snapshot`]: the state as bytes. [`backup`]: the part of the state that outlives the cluster.
//!
//! **Departure.** Watches are not replicated. Only the history of changes is replicated (see [`watch`]).

pub mod backup;
pub mod command;
mod deadlock;
pub mod early_grant;
mod grant;
mod lock;
mod lower;
pub mod query;
mod rank;
pub mod session;
pub mod snapshot;
#[cfg(test)]
mod tests;
pub mod tree;
pub mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use conclave_core::{Code, Deadlock, Error, LockName, Owner, RequestId, SessionId, Wait};
use serde::{Deserialize, Serialize};

use self::grant::{AcquireRequest, AcquireResult, Outcome, RequestOwner, Work};
use self::lock::Locks;
use self::session::{Admission, Broken, MAX_LIVE, MAX_SESSIONS, Session};
use self::tree::{FileChange, FileOp, Tree, TreeChange};
use self::watch::{Change, ChangedObject, History, LockChange};

pub use self::command::{
    Acquire, Answer, Command, Effect, EndCause, Granted, GrantedName, Op, OpenSession, Position, Request,
    TimerId,
};
pub use self::rank::Ticket;

/// The largest value of an election, in bytes. A larger value is rejected with [`Code::TooLarge`].
pub const MAX_VALUE_BYTES: usize = 64 * 1024;
/// The longest reason of a break, in bytes. A longer reason is rejected with [`Code::InvalidArgument`].
pub const MAX_REASON_BYTES: usize = 1024;
/// The number of deadlocks, and of breaks, that are kept for `conclave why`. Beyond it the oldest is dropped.
pub const INCIDENTS: usize = 64;

/// The complete replicated state of the service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    applied: u64,
    sessions: BTreeMap<SessionId, Session>,
    locks: Locks,
    /// The waiting acquires with a time limit, by ticket.
    waits: BTreeMap<Ticket, WaitLimit>,
    /// The ended sessions whose lock-delay is still running. Their names cannot be granted to other sessions
    /// yet.
    delays: BTreeMap<SessionId, Delay>,
    tree: Tree,
    history: History,
    incidents: Incidents,
    /// The bug that a test has planted.
    #[cfg(feature = "testing")]
    #[serde(skip)]
    flaw: Option<crate::testing::Flaw>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct WaitLimit {
    session: SessionId,
    request: RequestId,
    after_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Delay {
    generation: u64,
    after_ms: u64,
    grants: BTreeSet<Ticket>,
}

/// The latest deadlocks and breaks, for `conclave why`. Each has the index of its command and its wall time
/// in ms.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Incidents {
    deadlocks: VecDeque<(u64, u64, Deadlock)>,
    deadlocks_total: u64,
    breaks: VecDeque<(u64, u64, LockName, String)>,
}

/// The working data of one command while it is applied.
struct Step<'a> {
    at: Position,
    work: Work,
    effects: &'a mut Vec<Effect>,
}

impl Step<'_> {
    fn reply(&mut self, session: SessionId, request: RequestId, answer: Answer) {
        self.effects.push(Effect::Reply { session, request, answer, after: self.at.index });
    }
}

impl State {
    /// Creates the empty state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Plants a bug.
    #[cfg(feature = "testing")]
    pub(crate) fn plant(&mut self, flaw: Option<crate::testing::Flaw>) {
        self.flaw = flaw;
    }

    /// The number of commands that were applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Returns whether no session exists and no lock-delay is running. Then no lock is held and no request
    /// waits.
    pub fn is_quiet(&self) -> bool {
        self.sessions.is_empty() && self.delays.is_empty()
    }

    /// Applies one command and returns its effects. A command that was applied before has no effect.
    pub fn apply(&mut self, at: Position, command: Command) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.apply_into(at, command, &mut effects);
        effects
    }

    /// Does the same as [`State::apply`], but appends the effects to a buffer that the caller can reuse.
    pub fn apply_into(&mut self, at: Position, command: Command, effects: &mut Vec<Effect>) {
        if at.index <= self.applied {
            return;
        }
        self.applied = at.index;
        let mut step = Step { at, work: Work::default(), effects };
        match command {
            Command::OpenSession(open) => self.open_session(&mut step, open),
            Command::Request(request) => self.request(&mut step, request),
            Command::Expire { timer, term } => self.expire(&mut step, timer, term),
            Command::SingleNodeRestarted { fences } => self.on_single_node_restarted(fences),
        }
        self.finish(&mut step);
    }

    fn on_single_node_restarted(&mut self, fences: u64) {
        if !has_flaw!(self, KeepsFencesAtRestart) {
            self.locks.raise_fences(fences);
        }
        if !has_flaw!(self, KeepsQueuesAtRestart) {
            self.locks.move_waiters_on();
        }
    }

    fn open_session(&mut self, step: &mut Step<'_>, open: OpenSession) {
        let secret = open.secret;
        // An ended session counts until its lock-delay is over.
        let room = if self.sessions.len() + self.delays.len() < MAX_SESSIONS {
            Ok(())
        } else {
            Err(Error::new(
                Code::LimitReached,
                format!("the service has {MAX_SESSIONS} sessions, which is the most"),
            ))
        };
        if let Err(error) = room.and_then(|()| session::check(&open)) {
            step.effects.push(Effect::SessionRefused { secret, error });
            return;
        }
        let session = SessionId(step.at.index);
        let after_ms = open.ttl_ms;
        self.sessions.insert(session, Session::new(open, step.at.wall_ms));
        step.effects.push(Effect::SessionOpened { session, secret });
        step.effects.push(Effect::StartTimer { timer: TimerId::Lease { session, generation: 1 }, after_ms });
    }

    fn request(&mut self, step: &mut Step<'_>, request: Request) {
        let Request { session: id, id: request, lowest, op } = request;
        let Some(session) = self.sessions.get_mut(&id) else {
            return step.reply(id, request, Answer::Refused(session_ended(id)));
        };
        let admission = session.admit(request, lowest, &op);
        if session.has_heard_of_lease() {
            self.restart_lease(step, id);
        }
        match admission {
            Admission::Answered(answer) => return self.answer_again(step, id, request, answer),
            Admission::Waiting(ticket) => {
                return step.reply(id, request, Answer::Queued(self.locks.queued(ticket)));
            }
            // The answer was forgotten, but the grant still exists.
            Admission::Held(ticket) => {
                let granted = Answer::Granted(self.locks.granted(ticket));
                return self.answer_again(step, id, request, granted);
            }
            Admission::New => {}
        }
        let answer = match op {
            Op::Acquire(acquire) => return self.acquire(step, id, request, acquire),
            Op::Release { grant } => self.release(step, id, grant),
            Op::Cancel { request } => self.cancel(step, id, request),
            Op::Downgrade { grant } => self.downgrade(step, id, grant),
            Op::Proclaim { grant, value } => self.proclaim(step, id, grant, value),
            Op::Limit { name, permits } => self.limit(step, &name, permits),
            Op::Break { name, reason } => self.break_name(step, &name, reason),
            Op::SetTtl { ttl_ms } => self.set_ttl(step, id, request, ttl_ms),
            Op::Files(operations) => self.files(step, id, operations),
            Op::Close => {
                self.end_session(step, id, EndCause::Closed);
                Ok(Answer::Done)
            }
            Op::EndSession { session } => {
                if self.end_session(step, session, EndCause::Ended) {
                    Ok(Answer::Done)
                } else {
                    Err(session_ended(session))
                }
            }
        };
        self.answer(step, id, request, answer.unwrap_or_else(Answer::Refused));
    }

    /// Remembers a final answer and sends it.
    fn answer(&mut self, step: &mut Step<'_>, session: SessionId, request: RequestId, answer: Answer) {
        self.remember(session, request, &answer);
        step.reply(session, request, answer);
    }

    fn remember(&mut self, session: SessionId, request: RequestId, answer: &Answer) {
        if has_flaw!(self, AppliesRetries) && matches!(answer, Answer::Files(_)) {
            return;
        }
        if let Some(session) = self.sessions.get_mut(&session) {
            session.remember(request, answer.clone());
        }
    }

    /// Sends an answer again. A client that has not received its grant has not received the breaks of that
    /// grant either. So they are sent again too.
    fn answer_again(&self, step: &mut Step<'_>, id: SessionId, request: RequestId, answer: Answer) {
        let is_granted = matches!(answer, Answer::Granted(_));
        step.reply(id, request, answer);
        if is_granted {
            let broken = self.broken(id).filter(|broken| broken.grant == request);
            step.effects.extend(broken.map(|broken| Effect::broken(id, broken.clone())));
        }
    }

    fn acquire(&mut self, step: &mut Step<'_>, id: SessionId, request: RequestId, acquire: Acquire) {
        let ticket = Ticket(step.at.index);
        let wait = acquire.wait;
        let checked = self.check_acquire(id, request, acquire);
        let result = checked.and_then(|acquire| self.locks.acquire(step.at, acquire, &mut step.work));
        let session = self.sessions.get_mut(&id).expect("the caller found the session");
        match result {
            Ok(AcquireResult::Granted) => {
                session.live.insert(request, ticket);
                let granted = Answer::Granted(self.locks.granted(ticket));
                self.answer(step, id, request, granted);
            }
            Ok(AcquireResult::Waiting) => {
                session.live.insert(request, ticket);
                session.waiting.insert(request, ticket);
                step.reply(id, request, Answer::Queued(self.locks.queued(ticket)));
                if let Wait::AtMost(after_ms) = wait {
                    self.waits.insert(ticket, WaitLimit { session: id, request, after_ms });
                    let timer = TimerId::Wait { session: id, request, ticket };
                    step.effects.push(Effect::StartTimer { timer, after_ms });
                }
            }
            Ok(AcquireResult::Victim) => {} // its refusal is among the outcomes
            Err(error) => self.answer(step, id, request, Answer::Refused(error)),
        }
    }

    fn check_acquire(
        &self,
        id: SessionId,
        request: RequestId,
        acquire: Acquire,
    ) -> Result<AcquireRequest, Error> {
        let session = self.sessions.get(&id).ok_or_else(|| session_ended(id))?;
        if session.live.len() >= MAX_LIVE {
            let message = format!("a session holds or waits for at most {MAX_LIVE} requests");
            return Err(Error::new(Code::LimitReached, message));
        }
        check_value(acquire.value.as_deref().unwrap_or_default())?;
        let Acquire { expr, owner, wait, priority, policy, value } = acquire;
        let owner = match owner {
            Owner::Request => RequestOwner::New,
            Owner::Label(label) => RequestOwner::Label(label),
            Owner::OfGrant(grant) => {
                let held = session.live.get(&grant).and_then(|ticket| self.locks.grants.get(ticket));
                RequestOwner::Known(held.ok_or_else(|| not_held(grant))?.owner)
            }
        };
        Ok(AcquireRequest { session: id, request, owner, expr, priority, wait, policy, value })
    }

    /// Returns the ticket of a grant that the session holds.
    fn held(&self, session: SessionId, grant: RequestId) -> Result<Ticket, Error> {
        let ticket = self.sessions.get(&session).and_then(|session| session.live.get(&grant));
        let held = ticket.filter(|ticket| self.locks.grants.contains_key(ticket));
        held.copied().ok_or_else(|| not_held(grant))
    }

    fn release(&mut self, step: &mut Step<'_>, id: SessionId, grant: RequestId) -> Result<Answer, Error> {
        self.forget_broken(id, grant);
        let live = self.sessions.get(&id).and_then(|session| session.live.get(&grant).copied());
        if let Some(ticket) = live.filter(|ticket| self.locks.may_have_early_grant(*ticket)) {
            self.locks.refuse(ticket, cancelled(), &mut step.work);
            return Ok(Answer::Done);
        }
        let ticket = self.held(id, grant)?;
        self.forget_live(id, grant);
        step.work.given_back = Some(ticket);
        self.locks.release(ticket, &mut step.work);
        Ok(Answer::Done)
    }

    fn cancel(&mut self, step: &mut Step<'_>, id: SessionId, target: RequestId) -> Result<Answer, Error> {
        self.forget_broken(id, target);
        let session = self.sessions.get_mut(&id).ok_or_else(|| session_ended(id))?;
        match session.live.get(&target).copied() {
            Some(ticket) if self.locks.waiters.contains_key(&ticket) => {
                self.locks.refuse(ticket, cancelled(), &mut step.work);
                Ok(Answer::Cancelled { released: false })
            }
            Some(ticket) => {
                session.live.remove(&target);
                session.remember(target, Answer::Refused(cancelled()));
                self.locks.release(ticket, &mut step.work);
                Ok(Answer::Cancelled { released: true })
            }
            None => {
                // The acquire may still arrive on another connection. Its answer is then `cancelled`.
                if !session.has_seen(target) {
                    session.remember(target, Answer::Refused(cancelled()));
                }
                Ok(Answer::Cancelled { released: false })
            }
        }
    }

    fn downgrade(&mut self, step: &mut Step<'_>, id: SessionId, grant: RequestId) -> Result<Answer, Error> {
        let ticket = self.held(id, grant)?;
        self.locks.downgrade(ticket, &mut step.work);
        Ok(Answer::Granted(self.locks.granted(ticket)))
    }

    fn proclaim(
        &mut self,
        step: &mut Step<'_>,
        id: SessionId,
        grant: RequestId,
        value: Vec<u8>,
    ) -> Result<Answer, Error> {
        check_value(&value)?;
        let ticket = self.held(id, grant)?;
        let [item] = self.locks.grants[&ticket].items[..] else { return Err(not_an_election(grant)) };
        let lock = self.locks.lock_mut(item.lock);
        if lock.campaign != Some(ticket) {
            return Err(not_an_election(grant));
        }
        lock.value = Some(value);
        let name = lock.name.clone();
        self.changed(step, name, LockChange::Proclaimed);
        Ok(Answer::Done)
    }

    fn limit(&mut self, step: &mut Step<'_>, name: &LockName, permits: u32) -> Result<Answer, Error> {
        let before = self.locks.set_limit(step.at, name, permits, &mut step.work)?;
        if before.unwrap_or(0) != permits {
            self.changed(step, name.clone(), LockChange::Limited(permits));
        }
        Ok(Answer::Limited { before })
    }

    fn break_name(&mut self, step: &mut Step<'_>, name: &LockName, reason: String) -> Result<Answer, Error> {
        if reason.len() > MAX_REASON_BYTES || reason.chars().any(char::is_control) {
            let message = format!("a reason has at most {MAX_REASON_BYTES} bytes and no control characters");
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let free = || Error::new(Code::NotHeld, format!("nobody holds {name}"));
        let lock =
            self.locks.find(name).filter(|id| !self.locks.lock(*id).holds.is_empty()).ok_or_else(free)?;
        let sessions: BTreeSet<SessionId> =
            self.locks.lock(lock).holds.keys().map(|owner| self.locks.owner(*owner).session).collect();
        for id in sessions {
            let live = self.sessions.get(&id).map(|session| session.live.values().copied().collect());
            let delayed = || self.delays.get(&id).map(|delay| delay.grants.iter().copied().collect());
            let tickets: Vec<Ticket> = live.or_else(delayed).unwrap_or_default();
            for (ticket, request) in self.locks.release_name(tickets, lock, &mut step.work) {
                let is_gone = !self.locks.grants.contains_key(&ticket);
                if is_gone {
                    self.forget_live(id, request);
                    self.delays.entry(id).and_modify(|delay| _ = delay.grants.remove(&ticket));
                }
                if let Some(session) = self.sessions.get_mut(&id) {
                    let broken = Broken { grant: request, name: name.clone(), reason: reason.clone() };
                    session.remember_broken(broken.clone(), is_gone);
                    step.effects.push(Effect::broken(id, broken));
                }
            }
        }
        let incident = (step.at.index, step.at.wall_ms, name.clone(), reason);
        push_bounded(&mut self.incidents.breaks, incident);
        Ok(Answer::Done)
    }

    fn set_ttl(
        &mut self,
        step: &mut Step<'_>,
        id: SessionId,
        request: RequestId,
        ttl_ms: u64,
    ) -> Result<Answer, Error> {
        session::check_ttl(ttl_ms)?;
        self.sessions.get_mut(&id).ok_or_else(|| session_ended(id))?.set_ttl(request, ttl_ms);
        self.restart_lease(step, id);
        Ok(Answer::Done)
    }

    /// Restarts the lease of a session with its current length. The new timer starts before the old one
    /// stops. So [`crate::leases`] can see the old deadline and end the new lease no earlier.
    fn restart_lease(&mut self, step: &mut Step<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let lease = |generation| TimerId::Lease { session: id, generation };
        let former = lease(session.generation);
        session.generation += 1;
        let (timer, after_ms) = (lease(session.generation), session.lease_ms());
        step.effects.push(Effect::StartTimer { timer, after_ms });
        step.effects.push(Effect::StopTimer { timer: former });
    }

    fn files(
        &mut self,
        step: &mut Step<'_>,
        id: SessionId,
        operations: Vec<FileOp>,
    ) -> Result<Answer, Error> {
        let (done, changes) = self.tree.apply(step.at.index, id, operations)?;
        for TreeChange { path, change, ephemeral } in &changes {
            let Some(owner) = ephemeral.and_then(|owner| self.sessions.get_mut(&owner)) else { continue };
            match change {
                FileChange::Created => _ = owner.ephemerals.insert(path.clone()),
                FileChange::Deleted => _ = owner.ephemerals.remove(path),
                FileChange::Written(_) => {}
            }
        }
        self.files_changed(step, changes);
        Ok(Answer::Files(done))
    }

    fn expire(&mut self, step: &mut Step<'_>, timer: TimerId, term: u64) {
        match timer {
            TimerId::Lease { session, generation } => {
                let is_due = self.sessions.get(&session).is_some_and(|known| known.generation == generation);
                if is_due && term == step.at.term {
                    self.end_session(step, session, EndCause::Expired);
                }
            }
            TimerId::Wait { session, request, ticket } => {
                let is_due = |limit: &WaitLimit| limit.session == session && limit.request == request;
                if let Some(limit) = self.waits.get(&ticket).filter(|limit| is_due(limit)) {
                    let limit = match limit.after_ms {
                        ms if ms.is_multiple_of(1_000) => format!("{} s", ms / 1_000),
                        ms => format!("{ms} ms"),
                    };
                    let message = format!("the request was not granted within {limit}");
                    self.locks.refuse(ticket, Error::new(Code::TimedOut, message), &mut step.work);
                }
            }
            TimerId::LockDelay { session, generation } => {
                if self.delays.get(&session).is_some_and(|delay| delay.generation == generation) {
                    let delay = self.delays.remove(&session).expect("it was found just before");
                    for ticket in delay.grants {
                        self.locks.release(ticket, &mut step.work);
                    }
                }
            }
        }
    }

    /// Ends a session and rejects its waiting requests. Its names are released, or kept for the lock-delay
    /// after an unclean end. Returns `false` if there is no such session.
    fn end_session(&mut self, step: &mut Step<'_>, id: SessionId, cause: EndCause) -> bool {
        let Some(session) = self.sessions.remove(&id) else { return false };
        let timer = TimerId::Lease { session: id, generation: session.generation };
        step.effects.push(Effect::StopTimer { timer });
        let is_waiting = |ticket: &Ticket| self.locks.waiters.contains_key(ticket);
        let (waiting, grants): (BTreeSet<Ticket>, BTreeSet<Ticket>) =
            session.live.values().partition(|t| is_waiting(t));
        for ticket in waiting {
            self.locks.refuse(ticket, session_ended(id), &mut step.work);
        }
        let after_ms = session.open.lock_delay_ms;
        if cause != EndCause::Closed && after_ms > 0 && !grants.is_empty() {
            let generation = step.at.index;
            self.delays.insert(id, Delay { generation, after_ms, grants });
            let timer = TimerId::LockDelay { session: id, generation };
            step.effects.push(Effect::StartTimer { timer, after_ms });
        } else {
            for ticket in grants {
                self.locks.release(ticket, &mut step.work);
            }
        }
        let changes = self.tree.end_session(step.at.index, session.ephemerals);
        self.files_changed(step, changes);
        step.effects.push(Effect::SessionEnded { session: id, cause });
        true
    }

    fn forget_live(&mut self, session: SessionId, request: RequestId) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.live.remove(&request);
        }
    }

    fn forget_broken(&mut self, session: SessionId, grant: RequestId) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.forget_broken(grant);
        }
    }

    /// Grants the names that became free. Then creates the effects of all outcomes of the command.
    fn finish(&mut self, step: &mut Step<'_>) {
        self.locks.grant_waiters(step.at, &mut step.work);
        let early_grant = self.locks.early_grant(step.at, &mut step.work);
        self.locks.finish(&mut step.work);
        for outcome in std::mem::take(&mut step.work.outcomes) {
            match outcome {
                Outcome::Granted(ticket) => {
                    let grant = &self.locks.grants[&ticket];
                    let (session, request) = (grant.session, grant.request);
                    let after = match early_grant {
                        Some((next_waiter, after))
                            if next_waiter == ticket && !self.waits.contains_key(&ticket) =>
                        {
                            after
                        }
                        _ => step.at.index,
                    };
                    self.stop_wait(step, ticket);
                    let answer = Answer::Granted(self.locks.granted(ticket));
                    self.remember(session, request, &answer);
                    step.effects.push(Effect::Reply { session, request, answer, after });
                }
                Outcome::Refused { ticket, session, request, error } => {
                    self.stop_wait(step, ticket);
                    self.forget_live(session, request);
                    if self.sessions.contains_key(&session) {
                        self.answer(step, session, request, Answer::Refused(error));
                    }
                }
                Outcome::Taken { name, fence } => self.changed(step, name, LockChange::Taken(fence)),
                Outcome::Released { name } => self.changed(step, name, LockChange::Released),
                Outcome::Deadlock(deadlock) => {
                    self.incidents.deadlocks_total += 1;
                    let incident = (step.at.index, step.at.wall_ms, deadlock);
                    push_bounded(&mut self.incidents.deadlocks, incident);
                }
            }
        }
    }

    fn stop_wait(&mut self, step: &mut Step<'_>, ticket: Ticket) {
        if let Some(WaitLimit { session, request, .. }) = self.waits.remove(&ticket) {
            step.effects.push(Effect::StopTimer { timer: TimerId::Wait { session, request, ticket } });
        }
    }

    fn changed(&mut self, step: &mut Step<'_>, name: LockName, change: LockChange) {
        self.record(step, ChangedObject::Lock { name, change });
    }

    fn files_changed(&mut self, step: &mut Step<'_>, changes: Vec<TreeChange>) {
        for TreeChange { path, change, .. } in changes {
            self.record(step, ChangedObject::File { path, change });
        }
    }

    fn record(&mut self, step: &mut Step<'_>, object: ChangedObject) {
        let change = Change { index: step.at.index, object };
        self.history.push(change.clone());
        step.effects.push(Effect::Changed(change));
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() >= INCIDENTS {
        queue.pop_front();
    }
    queue.push_back(item);
}

fn check_value(value: &[u8]) -> Result<(), Error> {
    if value.len() <= MAX_VALUE_BYTES {
        return Ok(());
    }
    Err(Error::new(Code::TooLarge, format!("a value has at most {MAX_VALUE_BYTES} bytes")))
}

fn session_ended(session: SessionId) -> Error {
    Error::new(Code::SessionEnded, format!("session {session} has ended or never existed"))
}

fn cancelled() -> Error {
    Error::new(Code::Cancelled, "the request was cancelled")
}

fn not_held(grant: RequestId) -> Error {
    Error::new(Code::NotHeld, format!("request {grant} holds nothing"))
}

fn not_an_election(grant: RequestId) -> Error {
    Error::new(
        Code::InvalidArgument,
        format!("request {grant} is not a campaign and has nothing to proclaim"),
    )
}
