//! The order of grants: acquire, release, cancel, and the walk of the queues that follows each.
//!
//! **Intuition.** A command that changes a name puts the first waiter of that name on the *agenda*. The walk
//! takes waiters from the agenda in their total order and grants each one that fits. After each waiter, the
//! walk continues with the next one of the same name, until the name is *closed*. A name is closed when
//! holders take all of it, or when a waiter that must keep waiting claims it. So a release of a lock with
//! 100,000 waiters examines two of them. Waiters that the change cannot help are not examined.
//!
//! **Rules** (docs/service.md 3). Waiters are examined by priority, then by the number of their command. A
//! granted waiter drops its claims on the alternatives that it did not take, so these names join the agenda
//! too. Overtaking is considered only after the walk (see [`super::deadlock`]). It grants one waiter at a
//! time, and each such grant is followed by a new walk.
//!
//! **Trap.** Behind the claim that closes a name there may be a waiter that holds what the claimant needs.
//! The walk must not *examine* these waiters, but it must *remember* them in `Locks::soft_blocked`. Otherwise
//! no later step lets them overtake.

use std::collections::{BTreeMap, BTreeSet};

use conclave_core::{Code, Error, Expr, Fence, LockName, OwnerLabel};
use conclave_core::{Deadlock, Priority, RequestId, SessionId, VictimPolicy, Wait};
use conclave_deadlock::{Claim, Demand, Request};

use super::command::Position;
use super::deadlock::Cause;
use super::lock::{Claims, Counted, Grant, Hold, Item, LockId, Locks};
use super::lock::{Owner, OwnerId, Waiter};
use super::lower::too_many_names;
use super::rank::{Rank, Ticket};

/// An acquire whose session and owner are known.
pub(super) struct AcquireRequest {
    pub(super) session: SessionId,
    pub(super) request: RequestId,
    pub(super) owner: RequestOwner,
    pub(super) expr: Expr,
    pub(super) priority: Priority,
    pub(super) wait: Wait,
    pub(super) policy: VictimPolicy,
    pub(super) value: Option<Vec<u8>>,
}

/// The owner of a request.
pub(super) enum RequestOwner {
    /// A new owner for this request alone.
    New,
    /// The owner with that label in the session, created if necessary.
    Label(OwnerLabel),
    /// An owner that already exists.
    Known(OwnerId),
}

/// The immediate result of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcquireResult {
    /// The request is granted.
    Granted,
    /// The request waits.
    Waiting,
    /// The request was rejected to end the deadlock that it closed. The rejection is among the outcomes.
    Victim,
}

/// A consequence of a command for other requests, or for names.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    Granted(Ticket),
    Refused { ticket: Ticket, session: SessionId, request: RequestId, error: Error },
    Taken { name: LockName, fence: Fence },
    Released { name: LockName },
    Deadlock(Deadlock),
}

/// The remaining work of one command, and its results so far.
#[derive(Default)]
pub(super) struct Work {
    /// The waiters to examine next. If a name is given, its later waiters follow.
    agenda: BTreeSet<(Rank, Option<LockId>)>,
    /// `true` if overtaking may be possible: claims keep a request waiting, or a request waits for a new
    /// holder.
    may_overtake: bool,
    /// The permits claimed before the current position of the walk.
    counted: Counted,
    /// The grant that its own client releases by this command.
    pub(super) given_back: Option<Ticket>,
    /// The waiter that got the released name, and the name.
    pub(super) next_waiter: Option<(Ticket, LockId)>,
    /// The names that a request left in an irregular way (see [`super::early_grant`]).
    pub(super) order_broken: Vec<LockId>,
    /// The names that may have fallen out of use.
    pub(super) touched: Vec<LockId>,
    pub(super) outcomes: Vec<Outcome>,
}

/// The reason why a name has nothing for the rest of its queue.
#[derive(PartialEq)]
enum Closed {
    Taken,
    Claimed,
}

impl Locks {
    /// Grants, queues or rejects an acquire.
    pub(super) fn acquire(
        &mut self,
        at: Position,
        request: AcquireRequest,
        work: &mut Work,
    ) -> Result<AcquireResult, Error> {
        let wants = self.lower(&request.expr, work)?;
        self.check_possible(&wants)?;
        let single_lock = wants.as_single().is_some_and(|claim| claim.demand == Demand::Exclusive);
        if request.value.is_some() && !single_lock {
            let message = "only a single exclusive name can be campaigned for";
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let ticket = Ticket(at.index);
        let (owner, busy) = self.resolve_owner(request.owner, request.session, ticket);
        if request.value.is_some() {
            self.check_campaign(owner, &wants)?;
        }
        let rank = Rank::new(request.priority, ticket);
        let claims = if let Some(claim) = wants.as_single() { vec![*claim] } else { wants.envelope() };
        let waiter = Waiter {
            session: request.session,
            request: request.request,
            owner,
            rank,
            wants,
            claims,
            policy: request.policy,
            value: request.value,
            since_ms: at.wall_ms,
        };
        if let Some(choice) = self.choice(&waiter, Claims::Bind) {
            // The owner already waits with another request. Requests that wait for the names granted now will
            // wait for this owner, which can complete a deadlock.
            let closes = |waiting: &Rank| {
                let is_wanted = choice.iter().any(|claim| !self.lock(claim.resource).queue.is_empty());
                let cause = Cause::Grant { waiting: waiting.ticket, policy: request.policy };
                is_wanted.then(|| (cause, self.deadlocked(cause)))
            };
            let closes = busy.as_ref().and_then(closes);
            self.grant(at, waiter, &choice, work);
            self.grant_waiters(at, work);
            if let Some((cause, standing)) = closes {
                self.end_closed_deadlocks(at, cause, standing, work);
            }
            return Ok(AcquireResult::Granted);
        }
        if let Some(waiting) = busy {
            let request = self.waiter(waiting.ticket).request;
            let message = format!("this owner already waits for request {request}");
            return Err(Error::new(Code::OwnerBusy, message));
        }
        self.enqueue(waiter);
        if request.wait == Wait::Try {
            return self.try_to_overtake(at, ticket, work);
        }
        work.may_overtake |= self.can_close_a_cycle(ticket);
        self.grant_waiters(at, work);
        self.end_deadlocks(at, ticket, request.policy, &BTreeSet::new(), work);
        if self.waiters.contains_key(&ticket) {
            Ok(AcquireResult::Waiting)
        } else if self.grants.contains_key(&ticket) {
            // The caller sends the reply to this grant. Another reply would repeat it.
            work.outcomes.retain(|outcome| *outcome != Outcome::Granted(ticket));
            Ok(AcquireResult::Granted)
        } else {
            Ok(AcquireResult::Victim)
        }
    }

    /// Releases everything that a grant holds.
    pub(super) fn release(&mut self, ticket: Ticket, work: &mut Work) {
        let Some(grant) = self.grants.remove(&ticket) else { return };
        if work.given_back != Some(ticket) || !self.is_simple_grant(ticket, &grant) {
            work.order_broken.extend(grant.items.iter().map(|item| item.lock));
        }
        self.around_waiting(grant.owner, work, |locks, work| {
            for item in &grant.items {
                locks.end_campaign(ticket, item.lock);
                locks.release_item(grant.owner, item, work);
            }
        });
        self.forget_owner_if_idle(grant.owner);
    }

    /// Takes one name away from grants, which keep their other names. Returns the grants that held it, with
    /// their requests.
    pub(super) fn release_name(
        &mut self,
        tickets: impl IntoIterator<Item = Ticket>,
        id: LockId,
        work: &mut Work,
    ) -> Vec<(Ticket, RequestId)> {
        let mut had = Vec::new();
        work.order_broken.push(id);
        // Grouped by owner, so that the waiting request of each owner is indexed again only once.
        let mut broken: BTreeMap<OwnerId, Vec<(Ticket, Item)>> = BTreeMap::new();
        for ticket in tickets {
            let Some(grant) = self.grants.get_mut(&ticket) else { continue };
            let taken: Vec<Item> = grant.items.extract_if(.., |item| item.lock == id).collect();
            if taken.is_empty() {
                continue;
            }
            had.push((ticket, grant.request));
            broken.entry(grant.owner).or_default().extend(taken.into_iter().map(|item| (ticket, item)));
            if grant.items.is_empty() {
                self.grants.remove(&ticket);
            }
        }
        for (owner, items) in broken {
            self.around_waiting(owner, work, |locks, work| {
                for (ticket, item) in &items {
                    locks.end_campaign(*ticket, item.lock);
                    locks.release_item(owner, item, work);
                }
            });
            self.forget_owner_if_idle(owner);
        }
        had
    }

    /// Turns the exclusive holds of a grant into shared holds. The fences stay.
    pub(super) fn downgrade(&mut self, ticket: Ticket, work: &mut Work) {
        let Some(mut grant) = self.grants.remove(&ticket) else { return };
        let owner = grant.owner;
        self.around_waiting(owner, work, |locks, work| {
            for item in grant.items.iter_mut().filter(|item| item.demand == Demand::Exclusive) {
                item.demand = Demand::Shared;
                work.order_broken.push(item.lock);
                if locks.end_campaign(ticket, item.lock) {
                    work.outcomes.push(Outcome::Released { name: locks.lock(item.lock).name.clone() });
                }
                let hold = locks.lock_mut(item.lock).holds.get_mut(&owner).expect("a grant's items are held");
                hold.exclusive -= 1;
                hold.shared += 1;
                if hold.exclusive == 0 {
                    locks.examine_all(item.lock, work);
                }
            }
        });
        self.grants.insert(ticket, grant);
    }

    /// Ends a wait without a grant.
    pub(super) fn refuse(&mut self, ticket: Ticket, error: Error, work: &mut Work) {
        let waiter = self.dequeue(ticket, work);
        self.forget_owner_if_idle(waiter.owner);
        let Waiter { session, request, claims, .. } = waiter;
        work.order_broken.extend(claims.iter().map(|claim| claim.resource));
        work.outcomes.push(Outcome::Refused { ticket, session, request, error });
    }

    /// Creates or changes a semaphore, and returns its limit before. A limit of 0 turns an unused semaphore
    /// into a plain name.
    ///
    /// # Errors
    /// The name is held or waited for as a lock; the semaphore to remove is held or waited for; or there are
    /// too many names.
    pub(super) fn set_limit(
        &mut self,
        at: Position,
        name: &LockName,
        permits: u32,
        work: &mut Work,
    ) -> Result<Option<u32>, Error> {
        let Some(id) = self.intern(name) else { return Err(too_many_names()) };
        work.touched.push(id);
        let lock = self.lock_mut(id);
        let before = lock.limit;
        let is_used = !lock.holds.is_empty() || !lock.queue.is_empty();
        if before.is_none() && is_used {
            let message = format!("{name} is held or waited for as a lock and cannot become a semaphore now");
            return Err(Error::new(Code::WrongKind, message));
        }
        if permits == 0 {
            if is_used {
                let message = format!("the semaphore {name} is held or waited for and cannot be removed now");
                return Err(Error::new(Code::InvalidArgument, message));
            }
            lock.limit = None;
            return Ok(before);
        }
        // Free permits may disappear. Requests that waited only for claims then wait for holders, which may
        // complete deadlocks.
        let is_lowered = before.is_some_and(|before| permits < before);
        let standing = is_lowered.then(|| self.deadlocked(Cause::Limit(id)));
        self.lock_mut(id).limit = Some(permits);
        if is_lowered {
            self.refuse_impossible(id, work);
            work.may_overtake = true;
        }
        self.examine_all(id, work);
        self.grant_waiters(at, work);
        if let Some(standing) = standing {
            self.end_closed_deadlocks(at, Cause::Limit(id), standing, work);
        }
        Ok(before)
    }

    /// Walks the agenda, then lets waiters overtake, until no more requests can be granted.
    pub(super) fn grant_waiters(&mut self, at: Position, work: &mut Work) {
        work.counted.clear();
        loop {
            while let Some((rank, walk)) = work.agenda.pop_first() {
                self.examine(at, rank, walk, work);
            }
            if !work.may_overtake {
                return;
            }
            match self.overtaker() {
                Some((ticket, choice)) => self.grant_waiter(at, ticket, &choice, work),
                None => work.may_overtake = false,
            }
        }
    }

    /// Forgets the names that fell out of use. This ends the command.
    pub(super) fn finish(&mut self, work: &mut Work) {
        for id in work.touched.drain(..) {
            self.forget_if_idle(id);
        }
    }

    /// Examines one waiter of the agenda.
    fn examine(&mut self, at: Position, rank: Rank, walk: Option<LockId>, work: &mut Work) {
        // The waiter may have left the queue meanwhile. The walk then continues from its position.
        if let Some(waiter) = self.waiters.get(&rank.ticket) {
            let closed =
                walk.and_then(|id| self.closed(id, rank, &mut work.counted).map(|closed| (id, closed)));
            match closed {
                Some((_, Closed::Taken)) => return,
                Some((id, Closed::Claimed)) => return self.remember_soft_blocked(id, rank, work),
                None => {}
            }
            if let Some(choice) = self.choice_counting(waiter, &mut work.counted) {
                self.grant_waiter(at, rank.ticket, &choice, work);
            } else {
                work.may_overtake = true;
                if !self.owner(waiter.owner).holds.is_empty() && self.fits_ignoring_claims(waiter) {
                    self.soft_blocked.insert(rank);
                }
            }
        }
        if let Some(id) = walk
            && let Some(next) = self.lock(id).next_after(rank)
        {
            work.agenda.insert((next, Some(id)));
        }
    }

    /// Returns the reason why the name has nothing for `rank` and the waiters after it, or `None` if it may
    /// have.
    fn closed(&self, id: LockId, rank: Rank, counted: &mut Counted) -> Option<Closed> {
        let lock = self.lock(id);
        if lock.is_taken() {
            return Some(Closed::Taken);
        }
        let claimed = if lock.limit.is_some() {
            !counted.leaves(id, lock, rank, 1)
        } else {
            !lock.upgraders.contains(&rank)
                && (!lock.upgraders.is_empty() || lock.exclusive.first().is_some_and(|first| *first < rank))
        };
        claimed.then_some(Closed::Claimed)
    }

    fn remember_soft_blocked(&mut self, id: LockId, from: Rank, work: &mut Work) {
        work.may_overtake = true;
        let behind: Vec<Rank> = self.lock(id).holding.range(from..).copied().collect();
        for rank in behind {
            if self.fits_ignoring_claims(self.waiter(rank.ticket)) {
                self.soft_blocked.insert(rank);
            }
        }
    }

    /// Grants a request that must not wait, if it may overtake. Otherwise rejects it.
    fn try_to_overtake(
        &mut self,
        at: Position,
        ticket: Ticket,
        work: &mut Work,
    ) -> Result<AcquireResult, Error> {
        let choice = if self.can_close_a_cycle(ticket) { self.overtaking_choice(ticket) } else { None };
        let waiter = self.dequeue(ticket, work);
        match choice {
            Some(choice) => {
                self.grant(at, waiter, &choice, work);
                self.grant_waiters(at, work);
                Ok(AcquireResult::Granted)
            }
            None => {
                // The request was in the queues only for this test. Its removal changed nothing for other
                // waiters.
                work.agenda.clear();
                self.forget_owner_if_idle(waiter.owner);
                Err(Error::new(
                    Code::WouldWait,
                    format!("the request cannot be granted now: {}", self.obstacle(&waiter)),
                ))
            }
        }
    }

    /// Returns whether edges lead *to* the waiter: a request waits for a name of its owner, or behind its
    /// claims.
    fn can_close_a_cycle(&self, ticket: Ticket) -> bool {
        let waiter = self.waiter(ticket);
        self.is_waited_for(waiter.owner)
            || waiter.claims.iter().any(|claim| self.lock(claim.resource).next_after(waiter.rank).is_some())
    }

    fn grant_waiter(&mut self, at: Position, ticket: Ticket, choice: &[Claim<LockId>], work: &mut Work) {
        work.next_waiter = self.next_waiter(ticket).map(|id| (ticket, id)).or(work.next_waiter);
        let waiter = self.dequeue(ticket, work);
        let left = waiter.claims.iter().map(|claim| claim.resource);
        work.order_broken.extend(left.filter(|id| choice.iter().all(|chosen| chosen.resource != *id)));
        self.grant(at, waiter, choice, work);
        work.outcomes.push(Outcome::Granted(ticket));
    }

    /// Creates a grant of the chosen claims. The waiter is not in any queue.
    fn grant(&mut self, at: Position, waiter: Waiter, choice: &[Claim<LockId>], work: &mut Work) {
        let Waiter { session, request, owner, rank, value, .. } = waiter;
        let fence = Fence(self.fence_base.saturating_add(at.index));
        let mut items = Vec::with_capacity(choice.len());
        self.around_waiting(owner, work, |locks, work| {
            for claim in choice {
                let fence = locks.add_hold(owner, *claim, fence, at.wall_ms);
                items.push(Item { lock: claim.resource, demand: claim.demand, fence });
                let lock = locks.lock_mut(claim.resource);
                if value.is_some() {
                    lock.value.clone_from(&value);
                    lock.campaign = Some(rank.ticket);
                }
                work.outcomes.push(Outcome::Taken { name: lock.name.clone(), fence });
            }
        });
        self.grants.insert(rank.ticket, Grant { session, request, owner, items });
    }

    fn release_item(&mut self, owner: OwnerId, item: &Item, work: &mut Work) {
        let lock = self.lock(item.lock);
        // If all claims fitted before, no request waited for permits. While the holds of an owner change, its
        // waiting request is in no queue. Its claims are then not counted, so the test must exclude it.
        let is_no_help = lock.permits_claimed <= lock.free_permits() && self.owner(owner).waiting.is_none();
        self.remove_hold(owner, item.lock, item.demand);
        work.touched.push(item.lock);
        let lock = self.lock(item.lock);
        work.outcomes.push(Outcome::Released { name: lock.name.clone() });
        let own = lock.holds.get(&owner).copied().unwrap_or(Hold::default());
        match item.demand {
            Demand::Permits(_) if is_no_help => {}
            Demand::Permits(_) => self.examine_all(item.lock, work),
            Demand::Exclusive if own.exclusive == 0 => self.examine_all(item.lock, work),
            // Other shared requests were not blocked by this hold. Exclusive requests can be granted when the
            // name is free.
            Demand::Shared if lock.holds.is_empty() => self.examine_all(item.lock, work),
            Demand::Shared if lock.holds.len() == 1 => {
                work.agenda.extend(lock.upgraders.iter().map(|rank| (*rank, None)));
            }
            Demand::Exclusive | Demand::Shared => {}
        }
    }

    /// Puts the first waiter of a name and all upgraders on the agenda.
    fn examine_all(&self, id: LockId, work: &mut Work) {
        let lock = self.lock(id);
        if let Some((first, _)) = lock.queue.first_key_value() {
            work.agenda.insert((*first, Some(id)));
        }
        work.agenda.extend(lock.upgraders.iter().map(|rank| (*rank, None)));
    }

    fn enqueue(&mut self, waiter: Waiter) {
        let (ticket, rank, owner) = (waiter.rank.ticket, waiter.rank, waiter.owner);
        let soft = !self.owner(owner).holds.is_empty() && self.fits_ignoring_claims(&waiter);
        self.waiters.insert(ticket, waiter);
        self.owners.get_mut(&owner).expect("the owner exists").waiting = Some(rank);
        self.index(ticket);
        if soft {
            self.soft_blocked.insert(rank);
        }
    }

    /// Removes a waiter, and puts the waiters that its claims blocked on the agenda.
    fn dequeue(&mut self, ticket: Ticket, work: &mut Work) -> Waiter {
        let rank = self.waiter(ticket).rank;
        let upgraded: Vec<LockId> = self
            .waiter(ticket)
            .claims
            .iter()
            .map(|claim| claim.resource)
            .filter(|id| self.is_upgrader(*id, rank))
            .collect();
        self.unindex(ticket);
        let waiter = self.waiters.remove(&ticket).expect("the request waits");
        self.owners.get_mut(&waiter.owner).expect("a waiter has an owner").waiting = None;
        for claim in &waiter.claims {
            let id = claim.resource;
            work.touched.push(id);
            work.counted.leave(rank, *claim);
            let lock = self.lock(id);
            if upgraded.contains(&id) {
                self.examine_all(id, work);
            } else if claim.demand == Demand::Shared {
                // A shared claim blocks only exclusive requests. Of these, only the first in the queue can be
                // granted now. But waiters that are behind other claims only may overtake these now.
                work.may_overtake |= lock.holding.range(rank..).next().is_some();
                if let Some((first, Demand::Exclusive)) = lock.queue.first_key_value() {
                    work.agenda.insert((*first, None));
                }
            } else if let Some(next) = lock.next_after(rank) {
                work.agenda.insert((next, Some(id)));
            }
        }
        waiter
    }

    fn is_upgrader(&self, id: LockId, rank: Rank) -> bool {
        self.lock(id).upgraders.contains(&rank)
    }

    /// Changes the holds of an owner while its waiting request is out of the indexes, which depend on the
    /// holds. Afterwards the request is examined.
    fn around_waiting(&mut self, owner: OwnerId, work: &mut Work, change: impl FnOnce(&mut Self, &mut Work)) {
        let Some(rank) = self.owners.get(&owner).and_then(|owner| owner.waiting) else {
            return change(self, work);
        };
        let names: Vec<LockId> = self.waiter(rank.ticket).claims.iter().map(|claim| claim.resource).collect();
        let upgraded: Vec<LockId> = names.iter().copied().filter(|id| self.is_upgrader(*id, rank)).collect();
        self.unindex(rank.ticket);
        change(self, work);
        self.index(rank.ticket);
        for id in upgraded {
            if !self.is_upgrader(id, rank) {
                self.examine_all(id, work);
            }
        }
        work.agenda.insert((rank, None));
        work.may_overtake = true;
    }

    /// Returns the owner of a request, created if necessary, and the rank of its request that already waits.
    fn resolve_owner(
        &mut self,
        owner: RequestOwner,
        session: SessionId,
        ticket: Ticket,
    ) -> (OwnerId, Option<Rank>) {
        let (id, label) = match owner {
            RequestOwner::Known(id) => (id, None),
            RequestOwner::New => (OwnerId(ticket.0), None),
            RequestOwner::Label(label) => match self.labels.get(&(session, label.clone())) {
                Some(id) => (*id, None),
                None => {
                    self.labels.insert((session, label.clone()), OwnerId(ticket.0));
                    (OwnerId(ticket.0), Some(label))
                }
            },
        };
        let fresh = || Owner { session, label, holds: BTreeSet::new(), waiting: None };
        (id, self.owners.entry(id).or_insert_with(fresh).waiting)
    }

    /// Rejects a second campaign of an owner for the same name. A proclaimed value belongs to one grant and
    /// ends with it.
    fn check_campaign(&self, owner: OwnerId, wants: &Request<LockId>) -> Result<(), Error> {
        let Some(id) = wants.as_single().map(|claim| claim.resource) else { return Ok(()) };
        let lock = self.lock(id);
        let elected = lock.campaign.and_then(|ticket| self.grants.get(&ticket));
        let elected = elected.filter(|grant| grant.owner == owner).map(|grant| grant.request);
        let waiting = || {
            let waiter = self.waiter(self.owner(owner).waiting?.ticket);
            let is_same = waiter.wants.as_single().is_some_and(|claim| claim.resource == id);
            (is_same && waiter.value.is_some()).then_some(waiter.request)
        };
        let Some(request) = elected.or_else(waiting) else { return Ok(()) };
        let message = format!("this owner already campaigns for {} with request {request}", lock.name);
        Err(Error::new(Code::InvalidArgument, message))
    }

    fn refuse_impossible(&mut self, id: LockId, work: &mut Work) {
        let waiting: Vec<Ticket> = self.lock(id).queue.keys().map(|rank| rank.ticket).collect();
        for ticket in waiting {
            if let Err(error) = self.check_possible(&self.waiter(ticket).wants) {
                self.refuse(ticket, error, work);
            }
        }
    }
}
