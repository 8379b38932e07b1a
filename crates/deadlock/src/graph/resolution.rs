//! All deadlocks of a graph, and all deadlocks that one wait closes, each found with one search.
//!
//! One wait may close as many deadlocks as its resources have holders, and each deadlock has its own victim.
//! The wait of a victim ends, so the victim runs, finishes and releases its holds. So the reduction that
//! found the first deadlock is simply continued.

use alloc::vec::Vec;

use super::reduction::{Order, Reduction};
use super::slots::Slot;
use super::{WaitGraph, Why};

impl<R: Ord + Copy, O: Ord + Copy> WaitGraph<R, O> {
    /// Starts the resolution of all deadlocks that the wait of `owner` closes. They are resolved one after
    /// the other.
    pub fn resolution(&self, owner: O) -> Resolution<'_, R, O> {
        let mut reduction = Reduction::new(self, Order::Ignored, Vec::new());
        let start = self.owners.slot(&owner).filter(|slot| self.can_close(*slot));
        let start = start.filter(|slot| !reduction.can_proceed(*slot));
        let others = start.map(|slot| {
            let mut others = Reduction::new(self, Order::Ignored, Vec::new());
            others.finish(slot);
            others
        });
        Resolution { graph: self, start, reduction, others }
    }

    /// Returns all stuck owners, sorted. Reduces the whole graph.
    pub fn stuck(&self) -> Vec<O> {
        self.sorted(self.reduced().stuck())
    }

    /// Returns all deadlocks: sets of owners that wait for each other, sorted. An owner that only waits for a
    /// deadlock is in none.
    pub fn deadlocks(&self) -> Vec<Vec<O>> {
        let mut reduction = self.reduced();
        let stuck: Vec<Slot> = reduction.stuck().collect();
        let components = self.ahead(&mut reduction, stuck).components();
        // A single owner is in a deadlock only if it waits for permits that it holds itself. An upgrader does
        // not wait for the lock that it holds.
        let mut waits_for_itself = |owner: Slot| {
            let lacking = self.lacking(&mut reduction, owner);
            let is_own = |resource: Slot| self.resources[resource].blocked.contains_key(&owner);
            lacking.iter().any(|claim| claim.demand.is_permits() && is_own(claim.resource))
        };
        let is_deadlock = |members: &Vec<Slot>| members.len() > 1 || waits_for_itself(members[0]);
        let deadlocks = components.into_iter().filter(is_deadlock);
        let mut deadlocks: Vec<Vec<O>> = deadlocks.map(|members| self.sorted(members.into_iter())).collect();
        deadlocks.sort_unstable();
        deadlocks
    }

    /// Returns the reduction of the whole graph.
    fn reduced(&self) -> Reduction<'_, R, O> {
        let mut reduction = Reduction::new(self, Order::Ignored, Vec::new());
        let owners = self.owners.names().map(|(_, slot)| slot);
        reduction.reduce_all(owners.filter(|slot| self.owners[*slot].wait.is_some()));
        reduction
    }
}

/// The deadlocks that one wait closes, while the caller chooses victims.
pub struct Resolution<'g, R, O> {
    graph: &'g WaitGraph<R, O>,
    /// The owner, if its wait closes any deadlock.
    start: Option<Slot>,
    pub(super) reduction: Reduction<'g, R, O>,
    /// The same reduction, but after the owner has finished. Owners that are stuck here are stuck because of
    /// another, older deadlock.
    others: Option<Reduction<'g, R, O>>,
}

impl<R: Ord + Copy, O: Ord + Copy> Resolution<'_, R, O> {
    /// Returns the reason for a deadlock that the wait closes and that is not yet resolved; `None` if there
    /// is none. The owner is then stuck and waits, directly or indirectly, for itself. An owner that only
    /// waits for an older deadlock closes none.
    pub fn find(&mut self) -> Option<Why<R, O>> {
        let start = self.start.filter(|start| self.reduction.is_stuck(*start))?;
        self.graph.closes(&mut self.reduction, start)
    }

    /// Returns whether `owner` is stuck even if the waiting owner finishes. Then it is not part of the
    /// deadlocks that the wait closes.
    pub fn is_stuck_anyway(&self, owner: O) -> bool {
        let others = self.others.as_ref().zip(self.graph.owners.slot(&owner));
        others.is_some_and(|(others, slot)| others.is_stuck(slot))
    }

    /// Ends the wait of a victim. Its holds stay until it has finished.
    pub fn cancel(&mut self, victim: O) {
        let Some(slot) = self.graph.owners.slot(&victim) else { return };
        self.reduction.finish(slot);
        if let Some(others) = &mut self.others {
            others.finish(slot);
        }
    }
}
