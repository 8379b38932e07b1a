//! The tables of locks, semaphores, owners and waiters, and the test that decides if a request can be granted
//! now.
//!
//! **Intuition.** A lock knows its holders and its waiters, in order. A waiter may take a name if two things
//! allow it: the *holds* of other owners, and the *claims* of the waiters before it.
//!
//! **Rules** (docs/service.md 2 and 3). Exclusive and shared holds are re-entrant and counted; permits are
//! not re-entrant. A waiter claims every name of its expression, in its modes and counts. Its claims bind all
//! waiters after it. An *upgrader* holds a name shared and requests it exclusively. It goes before all other
//! waiters of that name. Their claims do not bind it there, and its claim binds all of them.
//!
//! **Trap.** The holds of an owner can change while its request waits, because another of its grants is
//! released. Then the request may become an upgrader, or stop being one. So [`Locks::unindex`] and
//! [`Locks::index`] are called around every such change.
//!
//! Every index below can be recomputed from holds, owners and waiters. [`super::State::audit`] does this in
//! tests and when a snapshot is read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use conclave_core::{Fence, LockName, OwnerLabel, RequestId, SessionId, VictimPolicy};
use conclave_deadlock::{Claim, Demand, Request};
use serde::{Deserialize, Serialize};

use super::rank::{Rank, Ticket};

/// The index of a name in the table. It is reused after the name falls out of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct LockId(u32);

/// The identity of an owner: the ticket of the first request that it made since it last held or waited for
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct OwnerId(pub(super) u64);

/// A name in use, with its holders and its waiters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Lock {
    pub(super) name: LockName,
    /// The limit of permits, if the name is a semaphore.
    pub(super) limit: Option<u32>,
    pub(super) holds: BTreeMap<OwnerId, Hold>,
    /// The sum of the permits held.
    pub(super) permits_held: u64,
    /// All waiters, each with the largest demand that it may take of this name.
    pub(super) queue: BTreeMap<Rank, Demand>,
    /// The sum of the permits claimed in the queue.
    pub(super) permits_claimed: u64,
    /// The waiters that claim the name exclusively.
    pub(super) exclusive: BTreeSet<Rank>,
    /// The upgraders: waiters whose owner holds the name shared and that request it exclusively.
    pub(super) upgraders: BTreeSet<Rank>,
    /// The waiters whose owner holds any name. Only they can overtake.
    pub(super) holding: BTreeSet<Rank>,
    /// The holders that wait for another name. The wait-for graph continues through them.
    pub(super) blocked_holders: BTreeSet<OwnerId>,
    /// The value that the holder proclaims, if the name is used as an election.
    pub(super) value: Option<Vec<u8>>,
    /// The grant that proclaims the value. The value ends with this grant, even if other grants of its owner
    /// still hold the name.
    pub(super) campaign: Option<Ticket>,
    /// The number of the last command by which a request left the queue or the holders in an irregular way.
    /// The regular way is to be granted the name and to release it (see [`super::early_grant`]).
    pub(super) order_broken_at: u64,
}

/// The holds of one owner on one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hold {
    /// The number of grants that hold the name exclusively.
    pub(super) exclusive: u32,
    /// The number of grants that hold the name shared.
    pub(super) shared: u32,
    /// The permits held, over all grants.
    pub(super) permits: u64,
    pub(super) fence: Fence,
    /// The wall time of the command that began the hold, in milliseconds; for display.
    pub(super) since_ms: u64,
}

impl Hold {
    /// Returns the hold as one demand.
    pub(super) fn demand(&self) -> Demand {
        if self.exclusive > 0 {
            Demand::Exclusive
        } else if self.shared > 0 {
            Demand::Shared
        } else {
            Demand::Permits(u32::try_from(self.permits).unwrap_or(u32::MAX))
        }
    }

    fn is_empty(&self) -> bool {
        self.exclusive == 0 && self.shared == 0 && self.permits == 0
    }
}

/// The party that holds and waits: the unit of re-entrancy and of deadlock detection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Owner {
    pub(super) session: SessionId,
    pub(super) label: Option<OwnerLabel>,
    pub(super) holds: BTreeSet<LockId>,
    /// The request that waits. An owner has at most one.
    pub(super) waiting: Option<Rank>,
}

/// An acquire that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Waiter {
    pub(super) session: SessionId,
    pub(super) request: RequestId,
    pub(super) owner: OwnerId,
    pub(super) rank: Rank,
    pub(super) wants: Request<LockId>,
    /// The largest demand that the request may take of each name.
    pub(super) claims: Vec<Claim<LockId>>,
    pub(super) policy: VictimPolicy,
    /// The value to proclaim after the election.
    pub(super) value: Option<Vec<u8>>,
    pub(super) since_ms: u64,
}

/// An acquire that was granted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Grant {
    pub(super) session: SessionId,
    pub(super) request: RequestId,
    pub(super) owner: OwnerId,
    pub(super) items: Vec<Item>,
}

/// One name of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Item {
    pub(super) lock: LockId,
    pub(super) demand: Demand,
    pub(super) fence: Fence,
}

/// The claims that count in a test of [`Locks::fits`].
#[derive(Clone, Copy)]
pub(super) enum Claims<'a> {
    /// The claims of all waiters before.
    Bind,
    /// The claims of all waiters before, except those of these owners.
    BindExcept(&'a BTreeSet<OwnerId>),
}

/// The tables of all names, owners, waiters and grants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Locks {
    names: BTreeMap<LockName, LockId>,
    slots: Vec<Option<Lock>>,
    vacant: Vec<LockId>,
    pub(super) labels: BTreeMap<(SessionId, OwnerLabel), OwnerId>,
    pub(super) owners: BTreeMap<OwnerId, Owner>,
    pub(super) waiters: BTreeMap<Ticket, Waiter>,
    pub(super) grants: BTreeMap<Ticket, Grant>,
    /// Waiters that hold a name and were blocked only by claims when last examined. This is a superset, so
    /// each member is checked before use.
    pub(super) soft_blocked: BTreeSet<Rank>,
    /// The number that is added to every fence. It grows when fences may have been sent that the log does not
    /// contain.
    pub(super) fence_base: u64,
}

impl Locks {
    /// The largest number of names in use. Beyond it, requests for new names are rejected.
    pub(super) const MAX_NAMES: usize = 1 << 22;

    pub(super) fn find(&self, name: &LockName) -> Option<LockId> {
        self.names.get(name).copied()
    }

    /// Returns the id of the name, and creates the lock if necessary. Returns `None` at [`Self::MAX_NAMES`].
    pub(super) fn intern(&mut self, name: &LockName) -> Option<LockId> {
        if let Some(id) = self.find(name) {
            return Some(id);
        }
        if self.names.len() >= Self::MAX_NAMES {
            return None;
        }
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            LockId(self.slots.len() as u32 - 1)
        });
        self.slots[id.0 as usize] = Some(Lock::new(name.clone()));
        self.names.insert(name.clone(), id);
        Some(id)
    }

    /// Forgets the name if it has no holder, no waiter and no limit.
    pub(super) fn forget_if_idle(&mut self, id: LockId) {
        let slot = &mut self.slots[id.0 as usize];
        if slot.as_ref().is_some_and(Lock::is_idle) {
            let lock = slot.take().expect("it was found just before");
            self.names.remove(&lock.name);
            self.vacant.push(id);
        }
    }

    pub(super) fn lock(&self, id: LockId) -> &Lock {
        self.slots[id.0 as usize].as_ref().expect("a lock exists while it is held, waited for or limited")
    }

    pub(super) fn lock_mut(&mut self, id: LockId) -> &mut Lock {
        self.slots[id.0 as usize].as_mut().expect("a lock exists while it is held, waited for or limited")
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns every name in use, in order.
    pub(super) fn all(&self) -> impl Iterator<Item = (LockId, &Lock)> {
        self.names.values().map(|id| (*id, self.lock(*id)))
    }

    pub(super) fn beginning_with(
        &self,
        prefix: &str,
        after: Option<&LockName>,
    ) -> impl Iterator<Item = &Lock> {
        let from =
            after.map(LockName::as_str).filter(|after| *after >= prefix).map_or(Included(prefix), Excluded);
        let names = self.names.range::<str, _>((from, Unbounded));
        names.take_while(move |(name, _)| name.as_str().starts_with(prefix)).map(|(_, id)| self.lock(*id))
    }

    pub(super) fn waiter(&self, ticket: Ticket) -> &Waiter {
        self.waiters.get(&ticket).expect("a queue contains only waiters")
    }

    pub(super) fn owner(&self, id: OwnerId) -> &Owner {
        self.owners.get(&id).expect("an owner exists while it holds or waits")
    }

    /// Returns whether a waiter may take `demand` of `id` now.
    pub(super) fn fits(
        &self,
        id: LockId,
        demand: Demand,
        rank: Rank,
        owner: OwnerId,
        claims: Claims<'_>,
    ) -> bool {
        let lock = self.lock(id);
        if !lock.leaves(demand, owner) {
            return false;
        }
        let own = lock.holds.get(&owner);
        let binds = |other: &Rank| {
            let claimant = self.waiter(other.ticket).owner;
            match claims {
                Claims::Bind => claimant != owner,
                Claims::BindExcept(free) => claimant != owner && !free.contains(&claimant),
            }
        };
        match demand {
            Demand::Shared => {
                own.is_some() || !lock.exclusive.range(..rank).any(binds) && !lock.upgraders.iter().any(binds)
            }
            Demand::Exclusive if own.is_some_and(|hold| hold.exclusive > 0) => true,
            Demand::Exclusive if own.is_some() => !lock.upgraders.range(..rank).any(binds),
            Demand::Exclusive => {
                !lock.queue.range(..rank).any(|(other, _)| binds(other)) && !lock.upgraders.iter().any(binds)
            }
            Demand::Permits(count) => {
                let mut left = lock.free_permits();
                if left >= lock.permits_claimed.saturating_add(count.into()) {
                    return true;
                }
                let mut before = lock.queue.range(..rank).filter(|(other, _)| binds(other));
                // This loop takes at most one step for each free permit, over the claims that bind.
                loop {
                    if left < u64::from(count) {
                        return false;
                    }
                    match before.next() {
                        Some((_, claimed)) => left = left.saturating_sub(permits(*claimed)),
                        None => return true,
                    }
                }
            }
        }
    }

    /// Returns the claims that the waiter would take now, or `None` if it must wait.
    pub(super) fn choice(&self, waiter: &Waiter, claims: Claims<'_>) -> Option<Vec<Claim<LockId>>> {
        choose(waiter, |id, demand| self.fits(*id, demand, waiter.rank, waiter.owner, claims))
    }

    /// Does the same as [`Locks::choice`] during a walk of the queues. All claims before the waiter bind.
    pub(super) fn choice_counting(
        &self,
        waiter: &Waiter,
        counted: &mut Counted,
    ) -> Option<Vec<Claim<LockId>>> {
        choose(waiter, |id, demand| match demand {
            Demand::Permits(count) => counted.leaves(*id, self.lock(*id), waiter.rank, count.into()),
            _ => self.fits(*id, demand, waiter.rank, waiter.owner, Claims::Bind),
        })
    }

    /// Returns whether the holders alone leave enough for the waiter.
    pub(super) fn fits_ignoring_claims(&self, waiter: &Waiter) -> bool {
        waiter.wants.is_satisfied(|id, demand| self.lock(*id).leaves(demand, waiter.owner))
    }

    /// Adds a waiter to the queues and indexes of its names.
    pub(super) fn index(&mut self, ticket: Ticket) {
        let waiter = self.waiters.get(&ticket).expect("the request waits");
        let owner = self.owners.get(&waiter.owner).expect("a waiter has an owner");
        let (rank, owner_id, holds) = (waiter.rank, waiter.owner, !owner.holds.is_empty());
        let slots = &mut self.slots;
        for claim in &waiter.claims {
            let lock = slots[claim.resource.0 as usize].as_mut().expect("a waiter keeps its names in use");
            lock.queue.insert(rank, claim.demand);
            lock.permits_claimed += permits(claim.demand);
            if claim.demand == Demand::Exclusive {
                lock.exclusive.insert(rank);
                if lock.holds.get(&owner_id).is_some_and(|hold| hold.exclusive == 0) {
                    lock.upgraders.insert(rank);
                }
            }
            if holds {
                lock.holding.insert(rank);
            }
        }
        for id in &owner.holds {
            let lock = slots[id.0 as usize].as_mut().expect("a hold keeps its name in use");
            lock.blocked_holders.insert(owner_id);
        }
    }

    /// Removes a waiter from the queues and indexes of its names.
    pub(super) fn unindex(&mut self, ticket: Ticket) {
        let waiter = self.waiters.get(&ticket).expect("the request waits");
        let (rank, owner_id) = (waiter.rank, waiter.owner);
        let slots = &mut self.slots;
        for claim in &waiter.claims {
            let lock = slots[claim.resource.0 as usize].as_mut().expect("a waiter keeps its names in use");
            lock.permits_claimed -= lock.queue.remove(&rank).map_or(0, permits);
            lock.exclusive.remove(&rank);
            lock.upgraders.remove(&rank);
            lock.holding.remove(&rank);
        }
        for id in &self.owners.get(&owner_id).expect("a waiter has an owner").holds {
            let lock = slots[id.0 as usize].as_mut().expect("a hold keeps its name in use");
            lock.blocked_holders.remove(&owner_id);
        }
        self.soft_blocked.remove(&rank);
    }

    /// Adds a claim to the holds of an owner. Returns the fence of the hold.
    pub(super) fn add_hold(
        &mut self,
        owner: OwnerId,
        claim: Claim<LockId>,
        fence: Fence,
        now_ms: u64,
    ) -> Fence {
        let lock = self.slots[claim.resource.0 as usize].as_mut().expect("a granted name is in use");
        let hold = lock.holds.entry(owner).or_insert(Hold { fence, since_ms: now_ms, ..Hold::default() });
        match claim.demand {
            Demand::Shared => hold.shared += 1,
            Demand::Exclusive => {
                hold.exclusive += 1;
                if hold.exclusive == 1 {
                    hold.fence = fence;
                }
            }
            Demand::Permits(count) => {
                hold.permits += u64::from(count);
                hold.fence = fence;
                lock.permits_held += u64::from(count);
            }
        }
        let fence = hold.fence;
        self.owners.get_mut(&owner).expect("a granted owner exists").holds.insert(claim.resource);
        fence
    }

    /// Removes a demand from the holds of an owner.
    pub(super) fn remove_hold(&mut self, owner: OwnerId, id: LockId, demand: Demand) {
        let lock = self.slots[id.0 as usize].as_mut().expect("a hold keeps its name in use");
        let hold = lock.holds.get_mut(&owner).expect("a grant's items are held");
        match demand {
            Demand::Shared => hold.shared -= 1,
            Demand::Exclusive => hold.exclusive -= 1,
            Demand::Permits(count) => {
                hold.permits -= u64::from(count);
                lock.permits_held -= u64::from(count);
            }
        }
        if hold.is_empty() {
            lock.holds.remove(&owner);
            self.owners.get_mut(&owner).expect("a holder exists").holds.remove(&id);
        }
    }

    /// Ends the election of a grant that no longer holds the name exclusively. Returns whether the grant was
    /// the campaign.
    pub(super) fn end_campaign(&mut self, ticket: Ticket, id: LockId) -> bool {
        let lock = self.lock_mut(id);
        let is_campaign = lock.campaign == Some(ticket);
        if is_campaign {
            lock.campaign = None;
            lock.value = None;
        }
        is_campaign
    }

    /// Forgets an owner that holds nothing and does not wait.
    pub(super) fn forget_owner_if_idle(&mut self, id: OwnerId) {
        let Some(owner) = self.owners.get(&id) else { return };
        if owner.holds.is_empty() && owner.waiting.is_none() {
            let owner = self.owners.remove(&id).expect("it was found just before");
            if let Some(label) = owner.label {
                self.labels.remove(&(owner.session, label));
            }
        }
    }

    pub(super) fn contains(&self, id: LockId) -> bool {
        self.slots.get(id.0 as usize).is_some_and(Option::is_some)
    }

    /// Empties everything that [`Locks::index`] fills.
    pub(super) fn clear_indexes(&mut self) {
        for lock in self.slots.iter_mut().flatten() {
            lock.queue.clear();
            lock.permits_claimed = 0;
            lock.exclusive.clear();
            lock.upgraders.clear();
            lock.holding.clear();
            lock.blocked_holders.clear();
        }
    }

    /// Checks that names and slots refer to each other.
    pub(super) fn audit_table(&self) -> Result<(), &'static str> {
        let is_named = |(name, id): (&LockName, &LockId)| self.contains(*id) && self.lock(*id).name == *name;
        let used = self.slots.iter().flatten().count();
        let is_vacant = |id: &LockId| self.slots.get(id.0 as usize).is_some_and(Option::is_none);
        let vacant: BTreeSet<&LockId> = self.vacant.iter().collect();
        if self.names.iter().all(is_named)
            && self.names.len() == used
            && self.vacant.iter().all(is_vacant)
            && vacant.len() == self.vacant.len()
            && vacant.len() + used == self.slots.len()
            && !self.slots.iter().flatten().any(Lock::is_idle)
        {
            Ok(())
        } else {
            Err("names and slots do not agree")
        }
    }

    /// Returns whether a request waits for a name that the owner holds. Only then can the owner close a
    /// cycle.
    pub(super) fn is_waited_for(&self, id: OwnerId) -> bool {
        self.owner(id).holds.iter().any(|lock| !self.lock(*lock).queue.is_empty())
    }
}

impl Lock {
    fn new(name: LockName) -> Self {
        Self {
            name,
            limit: None,
            holds: BTreeMap::new(),
            permits_held: 0,
            queue: BTreeMap::new(),
            permits_claimed: 0,
            exclusive: BTreeSet::new(),
            upgraders: BTreeSet::new(),
            holding: BTreeSet::new(),
            blocked_holders: BTreeSet::new(),
            value: None,
            campaign: None,
            order_broken_at: 0,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.queue.is_empty() && self.limit.is_none()
    }

    /// Returns whether an owner holds the name exclusively. Then it is the only holder.
    pub(super) fn is_exclusive(&self) -> bool {
        self.holds.first_key_value().is_some_and(|(_, hold)| hold.exclusive > 0)
    }

    /// Returns the number of permits not held. It is 0 if the limit was lowered below the permits held.
    pub(super) fn free_permits(&self) -> u64 {
        u64::from(self.limit.unwrap_or(0)).saturating_sub(self.permits_held)
    }

    /// Returns whether the holders leave nothing for any waiter.
    pub(super) fn is_taken(&self) -> bool {
        if self.limit.is_some() { self.free_permits() == 0 } else { self.is_exclusive() }
    }

    /// Returns whether the other holders leave enough for an owner. Waiters are ignored.
    pub(super) fn leaves(&self, demand: Demand, owner: OwnerId) -> bool {
        let own = self.holds.get(&owner);
        match demand {
            Demand::Shared => own.is_some() || !self.is_exclusive(),
            Demand::Exclusive => self.holds.len() == usize::from(own.is_some()),
            Demand::Permits(count) => u64::from(count) <= self.free_permits(),
        }
    }

    /// Returns the next waiter after `rank`.
    pub(super) fn next_after(&self, rank: Rank) -> Option<Rank> {
        self.queue.range((Excluded(rank), Unbounded)).next().map(|(next, _)| *next)
    }
}

/// The permits claimed before a position in a queue. A walk visits the waiters in order, so each count
/// continues at the position of the previous one.
#[derive(Default)]
pub(super) struct Counted(BTreeMap<LockId, (Rank, u64)>);

impl Counted {
    /// Returns whether the holders, and the claims before `rank`, leave `count` permits.
    pub(super) fn leaves(&mut self, id: LockId, lock: &Lock, rank: Rank, count: u64) -> bool {
        let free = lock.free_permits();
        if lock.permits_claimed.saturating_add(count) <= free {
            return true;
        }
        let known = self.0.get(&id).filter(|(last, _)| *last < rank).copied();
        let (from, mut claimed) = known.map_or((Unbounded, 0), |(last, claimed)| (Excluded(last), claimed));
        let mut before = lock.queue.range((from, Excluded(rank)));
        // Stops as soon as the result is known.
        while claimed.saturating_add(count) <= free {
            let Some((other, demand)) = before.next() else { return true };
            claimed += permits(*demand);
            self.0.insert(id, (*other, claimed));
        }
        false
    }

    /// Subtracts the claim of a waiter that left the queue.
    pub(super) fn leave(&mut self, rank: Rank, claim: Claim<LockId>) {
        if let Some((last, claimed)) = self.0.get_mut(&claim.resource)
            && rank <= *last
        {
            *claimed -= permits(claim.demand);
        }
    }

    /// Forgets all counts. Must be called if the queues may have changed in other ways.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Returns the claims that a waiter would take if exactly the demands accepted by `fits` are available.
fn choose(waiter: &Waiter, mut fits: impl FnMut(&LockId, Demand) -> bool) -> Option<Vec<Claim<LockId>>> {
    match waiter.wants.as_single() {
        Some(claim) => fits(&claim.resource, claim.demand).then(|| vec![*claim]),
        None => waiter.wants.satisfy(fits),
    }
}

/// Returns the permits of a demand; 0 for a lock.
pub(super) fn permits(demand: Demand) -> u64 {
    if let Demand::Permits(count) = demand { count.into() } else { 0 }
}
