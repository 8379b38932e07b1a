//! The wait-for graph of a lock service: waiter -> resource -> holders. It decides about deadlock at every
//! wait.
//!
//! **Intuition.** A deadlock is not the same as a cycle. With alternatives a cycle may be harmless, and an
//! owner that is on no cycle may be stuck. The exact method in every request model is *reduction*: each owner
//! that can proceed proceeds, finishes and releases what it holds. Repeat this; the owners that are left wait
//! for ever. Running owners finish, so only *blocked* holders matter, and only those that can be reached from
//! the new wait.
//!
//! **Rules.**
//! - A new wait can close a deadlock only through its own owner. If no owner waits for anything that this
//!   owner holds, nothing can be closed and no search is needed.
//! - Otherwise explore forward (request -> resources -> blocked holders -> their requests) and reduce. The
//!   wait closes a deadlock if its owner is left over and waits, directly or indirectly, for itself.
//! - Releases, grants and cancellations never create a deadlock, so they need no search.
//!
//! **Traps.**
//! - Two paths to one holder are not a cycle (matrixone#26302). Reduction does not count paths.
//! - An owner does not block itself by a lock: locks are re-entrant, and shared to exclusive is an *upgrade*.
//!   But two upgraders block each other. Permits that an owner holds itself are *not* available to it
//!   (self-wait, citus#1572).
//! - The unit is the owner, never the node or the session (citus#1803). Only a granted hold is an edge: an
//!   earlier waiter may be next, but it is not a holder (matrixone#26922).
//! - The order of the queue is stored as the sorted waiters of a resource, not as edges. So 100,000 waiters
//!   for one name need 100,000 entries, not five billion edges.
//!
//! **Turns.** The *claim* of an earlier waiter may hold back a later one although the resource is free. This
//! is a soft edge, which never justifies a victim. [`WaitGraph::grantable`] decides which waiters may
//! overtake.
//!
//! **Bounds.** Let `b` be the size of the blocked part that can be reached. A wait costs `O(b)`, or
//! `O(claims + holds)` if nothing can be closed. A grant, release or cancellation costs `O(claims + holds)`.
//! All costs are multiplied by a logarithm. A request of `s` claims is examined again at most `s` times. The
//! caller limits the size of the graph.

mod explain;
mod picture;
mod reduction;
mod resolution;
mod slots;
#[cfg(test)]
mod tests;
mod turns;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use self::slots::{Slot, Slots};
use super::request::{Claim, Demand, Request};

pub use explain::{Deadlock, Link, Verdict, Why};
pub use resolution::Resolution;

/// The place of a waiter in the total order of all waiters. Smaller turns go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Turn {
    /// The priority class; smaller classes go first.
    pub class: i64,
    /// The number of the arrival; earlier arrivals go first within a class.
    pub entry: u64,
}

/// The owners, the resources they hold, and the resources for which they wait.
///
/// `R` names resources. `O` names owners, which hold, wait and get stuck.
#[derive(Clone, Debug)]
pub struct WaitGraph<R, O> {
    resources: Slots<R, Resource>,
    owners: Slots<O, Owner>,
}

/// The reason why an operation was rejected. The graph is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GraphError {
    /// The owner waits already. An owner has at most one waiting request.
    AlreadyWaiting,
    /// Other owners hold the lock in a conflicting mode.
    Conflict,
    /// A demand for permits of a name that has no limit.
    NotASemaphore,
    /// A demand for a lock whose name is a semaphore, or a limit for a name that is in use as a lock.
    NotALock,
    /// A demand for more permits than the limit. It could wait for ever.
    Impossible,
    /// All names, which are 32 bits wide, are in use.
    Full,
}

impl<R: Ord + Copy, O: Ord + Copy> WaitGraph<R, O> {
    /// Creates an empty graph.
    pub fn new() -> Self {
        Self { resources: Slots::new(), owners: Slots::new() }
    }

    /// Makes `resource` a semaphore, or changes its limit; `None` removes an unused one. A limit below the
    /// held permits takes no permits away. [`WaitGraph::impossible`] lists the waiters that the limit makes
    /// impossible.
    ///
    /// # Errors
    /// [`GraphError::NotALock`] if the resource is in use as a lock, or if a semaphore in use is to be
    /// removed.
    pub fn set_limit(&mut self, resource: R, limit: Option<u32>) -> Result<(), GraphError> {
        let slot = self.resources.intern(resource)?;
        let state = &mut self.resources[slot];
        let in_use = !state.holders.is_empty() || !state.line.is_empty();
        if in_use && (state.limit.is_none() || limit.is_none()) {
            return Err(GraphError::NotALock);
        }
        state.limit = limit;
        self.forget_unused_resource(slot);
        Ok(())
    }

    /// Adds a wait and decides whether it closes a deadlock: calls [`WaitGraph::enqueue`], then
    /// [`WaitGraph::examine`].
    ///
    /// The wait stays in the graph, whatever the verdict is. [`WaitGraph::cancel`] removes the wait of a
    /// victim.
    pub fn wait(&mut self, owner: O, turn: Turn, request: Request<R>) -> Result<Verdict<R, O>, GraphError> {
        self.enqueue(owner, turn, request)?;
        Ok(self.examine(owner))
    }

    /// Adds a wait without a search, for a request that may be [`WaitGraph::grantable`] at once.
    ///
    /// # Errors
    /// Returns an error if the owner waits already, or if a name is used as the wrong kind of resource.
    /// [`GraphError::Impossible`] if every alternative needs more permits than exist.
    pub fn enqueue(&mut self, owner: O, turn: Turn, request: Request<R>) -> Result<(), GraphError> {
        self.check_waiter(owner, &request)?;
        let exists = |name: &R, demand| {
            self.resources.slot(name).is_none_or(|resource| self.resources[resource].exists(demand))
        };
        if !request.is_satisfied(exists) {
            return Err(GraphError::Impossible);
        }
        self.add_wait(owner, turn, request)
    }

    /// Ends the wait of an owner that gave up, timed out or was chosen as victim. Its holds stay. Returns
    /// whether it was waiting.
    pub fn cancel(&mut self, owner: O) -> bool {
        let Some(slot) = self.owners.slot(&owner) else { return false };
        self.leave_lines(slot);
        let Some(wait) = self.owners[slot].wait.take() else { return false };
        for held in &self.owners[slot].holds {
            self.resources[*held].unblock(slot);
        }
        for claim in wait.claims {
            self.forget_unused_resource(claim.resource);
        }
        self.forget_unused_owner(slot);
        true
    }

    /// Ends the owner's wait, if any, and gives it `claims`, which [`Request::satisfy`] chose.
    ///
    /// # Errors
    /// As [`WaitGraph::hold`]. Then nothing is changed.
    pub fn grant(&mut self, owner: O, claims: &[Claim<R>]) -> Result<(), GraphError> {
        claims.iter().try_for_each(|claim| self.check_hold(owner, claim))?;
        self.cancel(owner);
        claims.iter().try_for_each(|claim| self.hold(owner, *claim))
    }

    /// Gives the owner one more resource: modes merge to the stronger one, and permits are added. If the
    /// owner waits at the same time, call [`WaitGraph::examine`] again, because other owners may now wait for
    /// it.
    ///
    /// # Errors
    /// Returns an error if another owner holds the lock in a conflicting mode, or if the resource is of the
    /// other kind.
    pub fn hold(&mut self, owner: O, claim: Claim<R>) -> Result<(), GraphError> {
        self.check_hold(owner, &claim)?;
        let (slot, resource) = (self.owners.intern(owner)?, self.resources.intern(claim.resource)?);
        let held = self.resources[resource].holders.get(&slot).copied();
        let total = held.map_or(Some(claim.demand), |held| held.and(claim.demand));
        self.set_hold(slot, resource, total);
        Ok(())
    }

    /// Releases the resource, except for the part that the owner keeps: nothing, the shared mode, or fewer
    /// permits. Returns whether the owner held it. A `keep` that exceeds the hold, or is of the other kind,
    /// changes nothing.
    pub fn release(&mut self, owner: O, resource: R, keep: Option<Demand>) -> bool {
        let (Some(slot), Some(resource)) = (self.owners.slot(&owner), self.resources.slot(&resource)) else {
            return false;
        };
        let Some(held) = self.resources[resource].holders.get(&slot).copied() else { return false };
        let keep = keep.filter(|keep| *keep != Demand::Permits(0));
        if keep.is_none_or(|keep| keep.or(held) == Some(held)) {
            self.set_hold(slot, resource, keep);
        }
        true
    }

    /// Removes the owner with its wait and all its holds.
    pub fn remove(&mut self, owner: O) {
        self.cancel(owner);
        let Some(slot) = self.owners.slot(&owner) else { return };
        for resource in self.owners[slot].holds.clone() {
            self.set_hold(slot, resource, None);
        }
    }

    /// Returns whether the owner waits.
    pub fn is_waiting(&self, owner: O) -> bool {
        self.request_of(owner).is_some()
    }

    /// Iterates over the holds of the owner, in order of resources.
    pub fn holds(&self, owner: O) -> impl Iterator<Item = Claim<R>> {
        let slot = self.owners.slot(&owner);
        slot.into_iter().flat_map(move |slot| {
            let claim = move |&resource: &Slot| Claim {
                resource: *self.resources.name(resource),
                demand: self.resources[resource].holders[&slot],
            };
            self.owners[slot].holds.iter().map(claim)
        })
    }

    /// Iterates over the holders of the resource.
    pub fn holders(&self, resource: R) -> impl Iterator<Item = (O, Demand)> {
        let slot = self.resources.slot(&resource);
        let holders = slot.into_iter().flat_map(|slot| &self.resources[slot].holders);
        holders.map(|(&owner, &demand)| (*self.owners.name(owner), demand))
    }

    /// Iterates over the waiters of the resource in order of turns, each with the most that it may take.
    pub fn waiters(&self, resource: R) -> impl Iterator<Item = (O, Demand)> {
        let slot = self.resources.slot(&resource);
        let line = slot.into_iter().flat_map(|slot| &self.resources[slot].line);
        line.map(|(place, &demand)| (*self.owners.name(place.owner), demand))
    }

    /// Returns the waiters of the resource that can never be satisfied, because a limit was lowered.
    pub fn impossible(&self, resource: R) -> Vec<O> {
        let hopeless = |owner: &O| {
            let within = |&slot: &Slot, demand| self.resources[slot].exists(demand);
            !self.request_of(*owner).is_some_and(|request| request.is_satisfied(within))
        };
        self.waiters(resource).map(|(owner, _)| owner).filter(hopeless).collect()
    }

    fn request_of(&self, owner: O) -> Option<&Request<Slot>> {
        let slot = self.owners.slot(&owner)?;
        self.owners[slot].wait.as_ref().map(|wait| &wait.request)
    }

    fn add_wait(&mut self, owner: O, turn: Turn, request: Request<R>) -> Result<(), GraphError> {
        self.owners.intern(owner)?;
        for name in request.names() {
            self.resources.intern(*name)?;
        }
        let by_slot = request.map(|name| self.resources.slot(&name).expect("interned above"));
        let request = by_slot.expect("different names have different slots");
        let slot = self.owners.slot(&owner).expect("interned above");
        let claims = request.envelope();
        for held in &self.owners[slot].holds {
            self.resources[*held].block(slot);
        }
        self.owners[slot].wait = Some(Wait { turn, request, claims });
        self.join_lines(slot);
        Ok(())
    }

    /// Rejects a second wait of the owner, and names that are used as the wrong kind of resource.
    fn check_waiter(&self, owner: O, request: &Request<R>) -> Result<(), GraphError> {
        if self.is_waiting(owner) {
            return Err(GraphError::AlreadyWaiting);
        }
        request.claims().try_for_each(|claim| self.check_kind(claim))
    }

    fn check_kind(&self, claim: &Claim<R>) -> Result<(), GraphError> {
        let limit = self.resources.slot(&claim.resource).and_then(|slot| self.resources[slot].limit);
        match (claim.demand.is_permits(), limit.is_some()) {
            (true, false) => Err(GraphError::NotASemaphore),
            (false, true) => Err(GraphError::NotALock),
            _ => Ok(()),
        }
    }

    /// Rejects conflicting holds: if several owners hold one lock, all must share it. Permits are not checked
    /// against the limit, which may have been lowered after they were given.
    fn check_hold(&self, owner: O, claim: &Claim<R>) -> Result<(), GraphError> {
        self.check_kind(claim)?;
        let others = self.holders(claim.resource).filter(|(holder, _)| *holder != owner);
        let worst = others.map(|(_, demand)| demand).take(1).max();
        match (worst, claim.demand) {
            (None, _) | (Some(Demand::Shared), Demand::Shared) | (_, Demand::Permits(_)) => Ok(()),
            _ => Err(GraphError::Conflict),
        }
    }

    /// Changes a hold; all changes of holds come through here. An owner that waits for the same resource may
    /// become an upgrader or stop being one. So its places in the queues are computed again.
    fn set_hold(&mut self, owner: Slot, resource: Slot, demand: Option<Demand>) {
        self.leave_lines(owner);
        match demand {
            Some(_) => self.owners[owner].holds.insert(resource),
            None => self.owners[owner].holds.remove(&resource),
        };
        let is_blocked = self.owners[owner].wait.is_some();
        self.resources[resource].set_hold(owner, demand, is_blocked);
        self.join_lines(owner);
        self.forget_unused_resource(resource);
        self.forget_unused_owner(owner);
    }

    fn join_lines(&mut self, owner: Slot) {
        let Some(wait) = &self.owners[owner].wait else { return };
        for claim in &wait.claims {
            let line_of = &mut self.resources[claim.resource];
            let place = line_of.place(owner, wait.turn);
            line_of.line.insert(place, claim.demand);
        }
    }

    fn leave_lines(&mut self, owner: Slot) {
        let Some(wait) = &self.owners[owner].wait else { return };
        for claim in &wait.claims {
            let line_of = &mut self.resources[claim.resource];
            let place = line_of.place(owner, wait.turn);
            line_of.line.remove(&place);
        }
    }

    fn forget_unused_resource(&mut self, slot: Slot) {
        let unused = |resource: &Resource| {
            resource.limit.is_none() && resource.holders.is_empty() && resource.line.is_empty()
        };
        self.resources.remove_if(slot, unused);
    }

    fn forget_unused_owner(&mut self, slot: Slot) {
        self.owners.remove_if(slot, |owner| owner.holds.is_empty() && owner.wait.is_none());
    }
}

impl<R: Ord + Copy, O: Ord + Copy> Default for WaitGraph<R, O> {
    fn default() -> Self {
        Self::new()
    }
}

/// A lock (without a limit) or a semaphore.
#[derive(Clone, Debug, Default)]
struct Resource {
    limit: Option<u32>,
    holders: BTreeMap<Slot, Demand>,
    /// The holders that wait. Only they may never finish.
    blocked: BTreeMap<Slot, Demand>,
    held_permits: u64,
    blocked_permits: u64,
    /// The queue: the waiters in order of turns, each with the most that it may take.
    line: BTreeMap<Place, Demand>,
}

/// A place in a resource's queue. Upgraders come before all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    is_newcomer: bool,
    turn: Turn,
    owner: Slot,
}

/// The holds and the wait of an owner.
#[derive(Clone, Debug, Default)]
struct Owner {
    holds: BTreeSet<Slot>,
    wait: Option<Wait>,
}

#[derive(Clone, Debug)]
struct Wait {
    turn: Turn,
    request: Request<Slot>,
    /// The request's envelope: each resource once, with the most that the request may take.
    claims: Vec<Claim<Slot>>,
}

impl Resource {
    /// Returns whether the resource has that much in total, held or not.
    fn exists(&self, demand: Demand) -> bool {
        match demand {
            Demand::Permits(count) => self.limit.is_some_and(|limit| count <= limit),
            Demand::Shared | Demand::Exclusive => true,
        }
    }

    fn place(&self, owner: Slot, turn: Turn) -> Place {
        let is_upgrader = self.limit.is_none() && self.holders.contains_key(&owner);
        Place { is_newcomer: !is_upgrader, turn, owner }
    }

    fn set_hold(&mut self, owner: Slot, demand: Option<Demand>, is_blocked: bool) {
        self.unblock(owner);
        let before = match demand {
            Some(demand) => self.holders.insert(owner, demand),
            None => self.holders.remove(&owner),
        };
        self.held_permits = self.held_permits - permits(before) + permits(demand);
        if is_blocked {
            self.block(owner);
        }
    }

    fn block(&mut self, owner: Slot) {
        if let Some(demand) = self.holders.get(&owner) {
            self.blocked.insert(owner, *demand);
            self.blocked_permits += permits(Some(*demand));
        }
    }

    fn unblock(&mut self, owner: Slot) {
        self.blocked_permits -= permits(self.blocked.remove(&owner));
    }
}

fn permits(demand: Option<Demand>) -> u64 {
    match demand {
        Some(Demand::Permits(count)) => u64::from(count),
        _ => 0,
    }
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlreadyWaiting => "the owner already waits",
            Self::Conflict => "others hold the lock in a conflicting mode",
            Self::NotASemaphore => "the name has no permits, because it has no limit: request it as a lock",
            Self::NotALock => "the name is a semaphore: request permits of it, not a lock",
            Self::Impossible => "the request needs more permits than the semaphore has",
            Self::Full => "too many names",
        })
    }
}

impl core::error::Error for GraphError {}
