//! The wait-for graph that a lock service lives on: waiter -> resource -> holders, decided at every wait.
//!
//! **Intuition.** A deadlock is not "a cycle": with alternatives a cycle may be harmless, and an owner off every cycle
//! may be stuck. What is exact in every request model is *reduction*: let whoever can proceed proceed, finish and give
//! back what it holds; repeat; whoever is left waits for ever. Running owners finish; so only *blocked* holders matter,
//! and only those reachable from the new wait.
//!
//! **Rules.**
//! - Adding a wait can only close a deadlock through its own owner. If nobody waits for anything that owner holds
//!   there is nothing to close, and nothing is searched.
//! - Otherwise: explore forward (request -> resources -> blocked holders -> their requests), reduce, and see whether
//!   the owner is left, and waits in the end for itself.
//! - Releases, grants and cancellations never create a deadlock: no search.
//!
//! **Traps.**
//! - Two paths to one holder are not a cycle (matrixone#26302): reduction does not count paths.
//! - An owner does not block itself by a lock (it is re-entrant; shared to exclusive is an *upgrade*), but two
//!   upgraders block each other, and permits it holds itself are *not* available to it (self-wait, citus#1572).
//! - Identity is per owner, never per node or session (citus#1803). Only a hold that was granted is an edge:
//!   an earlier waiter is "perhaps next", not a holder (matrixone#26922).
//! - Queue order is a fact of the resource (its waiters are sorted), not edges: 100,000 waiters on one name cost
//!   100,000 entries, not five thousand million edges.
//!
//! **Waiting one's turn.** An earlier waiter's *claim* may hold back a later one although the resource is free: a soft
//! edge, never a reason for a victim. [`WaitGraph::grantable`] decides who may overtake.
//!
//! Costs, with `b` the blocked part reachable: wait `O(b)`, or `O(claims + holds)` where nothing can close; grant,
//! release, cancel `O(claims + holds)`; all times a logarithm. A request of `s` claims is re-examined at most `s`
//! times. Bounds are the caller's: the graph holds exactly what was put in.

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

/// A waiter's place in the one total order: smaller goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Turn {
    /// Priority class; smaller goes first.
    pub class: i64,
    /// When it came.
    pub entry: u64,
}

/// Who waits for what, and who holds it.
///
/// `R` names resources and `O` owners, the unit that holds, waits and gets stuck.
#[derive(Clone, Debug)]
pub struct WaitGraph<R, O> {
    resources: Slots<R, Resource>,
    owners: Slots<O, Owner>,
}

/// Why an operation was refused; the graph is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GraphError {
    /// The owner waits already: one waiting request at a time.
    AlreadyWaiting,
    /// A lock that others hold in a conflicting mode cannot be held as well.
    Conflict,
    /// Permits of a name without a limit.
    NotASemaphore,
    /// A lock on a name that is a semaphore, or a limit for a name in use as a lock.
    NotALock,
    /// More permits than there are: it could wait for ever.
    Impossible,
    /// The graph's names are 32 bits wide, and they are all in use.
    Full,
}

impl<R: Ord + Copy, O: Ord + Copy> WaitGraph<R, O> {
    /// Nobody holds, nobody waits.
    pub fn new() -> Self {
        Self { resources: Slots::new(), owners: Slots::new() }
    }

    /// Makes `resource` a semaphore, or changes its limit; `None` forgets an unused one. A limit below what is held
    /// takes nothing away; waiters that it makes impossible are told by [`WaitGraph::impossible`].
    ///
    /// # Errors
    /// [`GraphError::NotALock`] if the resource is in use as a lock, or a semaphore in use is to be forgotten.
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

    /// Adds a wait and decides whether it closes a deadlock: [`WaitGraph::enqueue`], then [`WaitGraph::examine`].
    ///
    /// The wait stays in the graph whatever the verdict; a victim's is taken out by [`WaitGraph::cancel`].
    ///
    /// # Errors
    /// As [`WaitGraph::enqueue`].
    pub fn wait(&mut self, owner: O, turn: Turn, request: Request<R>) -> Result<Verdict<R, O>, GraphError> {
        self.enqueue(owner, turn, request)?;
        Ok(self.examine(owner))
    }

    /// Adds a wait without a search: for a request that may be [`WaitGraph::grantable`] at once.
    ///
    /// # Errors
    /// The owner waits already; the request asks permits of a lock, a lock of a semaphore, or more permits than
    /// exist in every one of its alternatives.
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

    /// Ends the owner's wait, whether it gave up, timed out or was chosen as victim; its holds stay.
    /// Answers whether it was waiting.
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

    /// Ends the owner's wait, if any, and gives it `claims` (what [`Request::satisfy`] chose).
    ///
    /// # Errors
    /// As [`WaitGraph::hold`], before anything is changed.
    pub fn grant(&mut self, owner: O, claims: &[Claim<R>]) -> Result<(), GraphError> {
        claims.iter().try_for_each(|claim| self.check_hold(owner, claim))?;
        self.cancel(owner);
        claims.iter().try_for_each(|claim| self.hold(owner, *claim))
    }

    /// Gives the owner one resource on top of what it holds: modes merge to the stronger, permits add. An owner
    /// that waits at the same time should be [`WaitGraph::examine`]d again: others may now wait for it.
    ///
    /// # Errors
    /// Another owner holds the lock in a conflicting mode; or the resource is of the other kind.
    pub fn hold(&mut self, owner: O, claim: Claim<R>) -> Result<(), GraphError> {
        self.check_hold(owner, &claim)?;
        let (slot, resource) = (self.owners.intern(owner)?, self.resources.intern(claim.resource)?);
        let held = self.resources[resource].holders.get(&slot).copied();
        let total = held.map_or(Some(claim.demand), |held| held.and(claim.demand));
        self.set_hold(slot, resource, total);
        Ok(())
    }

    /// The owner gives the resource back, but for what it keeps: nothing, the shared mode, or fewer permits.
    /// Answers whether it held it; keeping more than it had, or another kind, changes nothing.
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

    /// The owner is gone: its wait and all its holds with it.
    pub fn remove(&mut self, owner: O) {
        self.cancel(owner);
        let Some(slot) = self.owners.slot(&owner) else { return };
        for resource in self.owners[slot].holds.clone() {
            self.set_hold(slot, resource, None);
        }
    }

    /// Whether the owner waits.
    pub fn is_waiting(&self, owner: O) -> bool {
        self.request_of(owner).is_some()
    }

    /// What the owner holds, by resource.
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

    /// Who holds the resource.
    pub fn holders(&self, resource: R) -> impl Iterator<Item = (O, Demand)> {
        let slot = self.resources.slot(&resource);
        let holders = slot.into_iter().flat_map(|slot| &self.resources[slot].holders);
        holders.map(|(&owner, &demand)| (*self.owners.name(owner), demand))
    }

    /// Who waits for the resource, in turn, with the most it may take.
    pub fn waiters(&self, resource: R) -> impl Iterator<Item = (O, Demand)> {
        let slot = self.resources.slot(&resource);
        let line = slot.into_iter().flat_map(|slot| &self.resources[slot].line);
        line.map(|(place, &demand)| (*self.owners.name(place.owner), demand))
    }

    /// Who waits for the resource but can never be satisfied since its limit was lowered.
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

    /// One waiting request at a time, and a name is a lock or a semaphore.
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

    /// Holds of one lock by different owners are all shared. Permits are not checked against the limit, which may
    /// have been lowered under its holders.
    fn check_hold(&self, owner: O, claim: &Claim<R>) -> Result<(), GraphError> {
        self.check_kind(claim)?;
        let others = self.holders(claim.resource).filter(|(holder, _)| *holder != owner);
        let worst = others.map(|(_, demand)| demand).take(1).max();
        match (worst, claim.demand) {
            (None, _) | (Some(Demand::Shared), Demand::Shared) | (_, Demand::Permits(_)) => Ok(()),
            _ => Err(GraphError::Conflict),
        }
    }

    /// The only place where holds change. An owner that waits for the very resource may become an upgrader by
    /// it, or cease to be one: it takes its place in the lines anew.
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

/// A lock (no limit) or a semaphore.
#[derive(Clone, Debug, Default)]
struct Resource {
    limit: Option<u32>,
    holders: BTreeMap<Slot, Demand>,
    /// The holders that wait themselves: the only ones that may never finish.
    blocked: BTreeMap<Slot, Demand>,
    held_permits: u64,
    blocked_permits: u64,
    /// Who waits, in turn, with the most it may take.
    line: BTreeMap<Place, Demand>,
}

/// A place in a resource's line. Upgraders stand before all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    is_newcomer: bool,
    turn: Turn,
    owner: Slot,
}

/// Who holds and waits.
#[derive(Clone, Debug, Default)]
struct Owner {
    holds: BTreeSet<Slot>,
    wait: Option<Wait>,
}

#[derive(Clone, Debug)]
struct Wait {
    turn: Turn,
    request: Request<Slot>,
    /// The request's envelope: each resource once.
    claims: Vec<Claim<Slot>>,
}

impl Resource {
    /// Whether so much exists at all.
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
            Self::AlreadyWaiting => "the owner waits already",
            Self::Conflict => "others hold the lock in a conflicting mode",
            Self::NotASemaphore => "permits of a name without a limit",
            Self::NotALock => "a lock on a name that is a semaphore",
            Self::Impossible => "more permits than there are",
            Self::Full => "too many names",
        })
    }
}

impl core::error::Error for GraphError {}
