//! All deadlocks of a graph, and all that one wait closes, each with one search.
//!
//! A wait may close as many deadlocks as it has holders before it, and each has its victim. A victim's wait is over, so
//! it runs, finishes and gives back: the reduction that found the first deadlock only has to be carried on.

use alloc::vec::Vec;

use super::reduction::{Order, Reduction};
use super::slots::Slot;
use super::{WaitGraph, Why};

impl<R: Ord + Copy, O: Ord + Copy> WaitGraph<R, O> {
    /// What the wait of `owner` closes, to be ended one after the other.
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

    /// Who waits for whom and in the end for itself: every deadlock, sorted. Whoever merely waits for one is in none.
    pub fn deadlocks(&self) -> Vec<Vec<O>> {
        let mut reduction = Reduction::new(self, Order::Ignored, Vec::new());
        let owners = self.owners.names().map(|(_, slot)| slot);
        reduction.reduce_all(owners.filter(|slot| self.owners[*slot].wait.is_some()));
        let stuck: Vec<Slot> = reduction.stuck().collect();
        let components = self.ahead(&mut reduction, stuck).components();
        // Alone it is in none, unless it waits for permits of its own. (That it holds the lock it upgrades is no wait.)
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
}

/// The deadlocks that one wait closes, while their victims are chosen.
pub struct Resolution<'g, R, O> {
    graph: &'g WaitGraph<R, O>,
    /// The owner, if its wait closes any.
    start: Option<Slot>,
    reduction: Reduction<'g, R, O>,
    /// The same once the owner has finished: whoever is stuck here is held by another deadlock, left standing.
    others: Option<Reduction<'g, R, O>>,
}

impl<R: Ord + Copy, O: Ord + Copy> Resolution<'_, R, O> {
    /// A deadlock that the wait closes, if there is one left: as [`WaitGraph::examine`] tells it.
    pub fn find(&mut self) -> Option<Why<R, O>> {
        let start = self.start.filter(|start| self.reduction.is_stuck(*start))?;
        self.graph.closes(&mut self.reduction, start)
    }

    /// Whether the owner is stuck even if the one that waits finishes: then it is no part of what that closes.
    pub fn is_stuck_anyway(&self, owner: O) -> bool {
        let others = self.others.as_ref().zip(self.graph.owners.slot(&owner));
        others.is_some_and(|(others, slot)| others.is_stuck(slot))
    }

    /// The victim's wait is over; its holds stay until it has finished.
    pub fn cancel(&mut self, victim: O) {
        let Some(slot) = self.graph.owners.slot(&victim) else { return };
        self.reduction.finish(slot);
        if let Some(others) = &mut self.others {
            others.finish(slot);
        }
    }
}
