//! The wait-for graph of a lock service: waiter -> resource -> holders. It decides whether a wait closes a
//! deadlock, and which waiters may be overtaken.
//!
//! **Intuition.** A deadlock is not the same as a cycle. With alternatives a cycle may be harmless, and an
//! owner that is on no cycle may be stuck. The exact method in every request model is *reduction*: each owner
//! that can proceed proceeds, finishes and releases what it holds. Repeat this; the owners that are left wait
//! for ever. Running owners finish, so only *blocked* holders matter, and only those that can be reached from
//! the new wait.
//!
//! **Rules.**
//! - A graph is built for one question: limits first, then holds, then waits. Nothing is removed.
//! - A new wait can close a deadlock only through its own owner. If no owner waits for anything that this
//!   owner holds, nothing can be closed and no search is needed.
//! - Otherwise explore forward (request -> resources -> blocked holders -> their requests) and reduce. The
//!   wait closes a deadlock if its owner is left over and waits, directly or indirectly, for itself.
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
//! is a soft edge, which never justifies a victim. [`WaitGraph::held_up_without`] decides which claims do not
//! bind a request, so that it may overtake.
//!
//! **Bounds.** Let `b` be the size of the blocked part that can be reached. A question costs `O(b)`, or
//! `O(claims + holds)` if nothing can be closed. All costs are multiplied by a logarithm. A request of `s`
//! claims is examined again at most `s` times. The caller limits the size of the graph.

mod explain;
mod reduction;
mod resolution;
mod slots;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use self::reduction::{Order, Reduction};
use self::slots::{Slot, Slots};
use super::request::{Claim, Demand, Request};

pub use explain::{Link, Why};
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
    /// The owner waits already. It has at most one waiting request, and its holds come before it.
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

    /// Makes `resource` a semaphore with that many permits; `None` makes it a lock.
    ///
    /// # Errors
    /// [`GraphError::NotALock`] if the resource is in use as a lock, or if a semaphore in use is to become
    /// one.
    pub fn set_limit(&mut self, resource: R, limit: Option<u32>) -> Result<(), GraphError> {
        let slot = self.resources.intern(resource)?;
        let state = &mut self.resources[slot];
        let in_use = !state.holders.is_empty() || !state.line.is_empty();
        if in_use && (state.limit.is_none() || limit.is_none()) {
            return Err(GraphError::NotALock);
        }
        state.limit = limit;
        Ok(())
    }

    /// Gives the owner one more resource: modes merge to the stronger one, and permits are added.
    ///
    /// # Errors
    /// Returns an error if the owner waits already, if another owner holds the lock in a conflicting mode,
    /// or if the resource is of the other kind.
    pub fn hold(&mut self, owner: O, claim: Claim<R>) -> Result<(), GraphError> {
        self.check_hold(owner, &claim)?;
        let (slot, resource) = (self.owners.intern(owner)?, self.resources.intern(claim.resource)?);
        let holders = &mut self.resources[resource].holders;
        let held = holders.get(&slot).copied();
        if let Some(total) = held.map_or(Some(claim.demand), |held| held.and(claim.demand)) {
            holders.insert(slot, total);
            self.owners[slot].holds.insert(resource);
        }
        Ok(())
    }

    /// Adds a wait.
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

    /// Returns those of `waiters` that cannot proceed, with the order kept, if no owner in `excluded` ever
    /// finishes. Their claims do not bind the requests of these owners: to wait behind them would close a
    /// cycle through a soft edge.
    pub fn held_up_without(&self, waiters: impl IntoIterator<Item = O>, excluded: &[O]) -> Vec<O> {
        let never = excluded.iter().filter_map(|owner| self.owners.slot(owner)).collect();
        let mut reduction = Reduction::new(self, Order::Kept, never);
        let known = waiters.into_iter().filter_map(|owner| Some((owner, self.owners.slot(&owner)?)));
        let known: Vec<(O, Slot)> = known.collect();
        reduction.reduce_all(known.iter().map(|(_, slot)| *slot));
        known.into_iter().filter(|(_, slot)| reduction.is_stuck(*slot)).map(|(owner, _)| owner).collect()
    }

    fn is_waiting(&self, owner: O) -> bool {
        self.owners.slot(&owner).is_some_and(|slot| self.owners[slot].wait.is_some())
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
        for claim in &claims {
            let resource = &mut self.resources[claim.resource];
            let place = resource.place(slot, turn);
            resource.line.insert(place, claim.demand);
        }
        self.owners[slot].wait = Some(Wait { turn, request, claims });
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
        if self.is_waiting(owner) {
            return Err(GraphError::AlreadyWaiting);
        }
        self.check_kind(claim)?;
        let own = self.owners.slot(&owner);
        let resource = self.resources.slot(&claim.resource);
        let mut holders = resource.into_iter().flat_map(|slot| &self.resources[slot].holders);
        let other = holders.find(|(holder, _)| Some(**holder) != own).map(|(_, demand)| *demand);
        match (other, claim.demand) {
            (None, _) | (Some(Demand::Shared), Demand::Shared) | (_, Demand::Permits(_)) => Ok(()),
            _ => Err(GraphError::Conflict),
        }
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

    fn block(&mut self, owner: Slot) {
        if let Some(demand) = self.holders.get(&owner) {
            self.blocked.insert(owner, *demand);
            self.blocked_permits += permits(Some(*demand));
        }
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
