//! Turns: a waiter gets a resource that is free and that no earlier waiter claims with a binding claim.
//!
//! **Rules.**
//! - Every waiter claims all names of its request against later waiters. So narrow requests cannot starve a
//!   wide one.
//! - The claim of a waiter `W` does *not* bind a request `R` if `W` cannot proceed anyway before `R`'s owner
//!   has finished. To wait for `W` would then close a cycle through this soft edge, so `R` overtakes `W`.
//! - The test for "cannot proceed" is a reduction that keeps the order and in which `R`'s owner never
//!   finishes. It counts further soft edges too, because a cycle may go through several.
//!
//! **Overtaking is always possible where it is needed.** Consider waiters that are all held up only by soft
//! edges. The reduction finds one of them that depends on no other of them. No binding claim stands before it
//! and its resources are free, so it is granted.
//!
//! **Trap.** `R` may overtake a `W` that could proceed after a *third* waiter has overtaken too. This is the
//! price of a reduction that keeps the order. It is never unsafe, and it happens only while such a cycle
//! through soft edges exists.

use alloc::vec::Vec;

use super::super::request::{Claim, Demand};
use super::reduction::{Order, Reduction};
use super::slots::Slot;
use super::{Wait, WaitGraph, permits};

impl<R: Ord + Copy, O: Ord + Copy> WaitGraph<R, O> {
    /// Returns the claims that a waiting owner may be given now, or `None`. They are the first alternative
    /// that is free and not claimed by a binding claim. The caller then calls [`WaitGraph::grant`].
    pub fn grantable(&self, owner: O) -> Option<Vec<Claim<R>>> {
        self.grantable_counting(owner).0
    }

    /// Returns whether a waiting owner can proceed, with the order kept, even if no owner in `excluded` ever
    /// finishes. If not, its claims do not bind the requests of those owners. Returns true for an owner that
    /// does not wait.
    pub fn can_proceed_without(&self, waiter: O, excluded: &[O]) -> bool {
        let Some(waiter) = self.owners.slot(&waiter) else { return true };
        let never = excluded.iter().filter_map(|owner| self.owners.slot(owner)).collect();
        Reduction::new(self, Order::Kept, never).can_proceed(waiter)
    }

    /// Returns those of `waiters` that cannot proceed, with the order kept, if no owner in `excluded` ever
    /// finishes. It equals [`WaitGraph::can_proceed_without`] for each, but needs one reduction for all.
    pub fn held_up_without(&self, waiters: impl IntoIterator<Item = O>, excluded: &[O]) -> Vec<O> {
        let never = excluded.iter().filter_map(|owner| self.owners.slot(owner)).collect();
        let mut reduction = Reduction::new(self, Order::Kept, never);
        let known = waiters.into_iter().filter_map(|owner| Some((owner, self.owners.slot(&owner)?)));
        let known: Vec<(O, Slot)> = known.collect();
        reduction.reduce_all(known.iter().map(|(_, slot)| *slot));
        known.into_iter().filter(|(_, slot)| reduction.is_stuck(*slot)).map(|(owner, _)| owner).collect()
    }

    /// Like [`WaitGraph::grantable`], and also returns the number of steps of work.
    pub(super) fn grantable_counting(&self, owner: O) -> (Option<Vec<Claim<R>>>, u64) {
        let Some(owner) = self.owners.slot(&owner) else { return (None, 0) };
        let Some(wait) = &self.owners[owner].wait else { return (None, 0) };
        let mut steps = 0;
        let mut is_free = |resource: Slot, demand| {
            steps += 1;
            self.is_free(owner, resource, demand)
        };
        let Some(free) = wait.request.satisfy(|resource, demand| is_free(*resource, demand)) else {
            return (None, steps);
        };
        // The simple case: no earlier waiter claims any of these resources.
        let is_first = |claim: &Claim<Slot>| self.earlier(owner, wait, claim.resource).next().is_none();
        if free.iter().all(is_first) {
            return (Some(self.named(&free)), steps);
        }
        let mut others = Reduction::new(self, Order::Kept, [owner].into());
        let choice = wait.request.satisfy(|resource, demand| {
            is_free(*resource, demand) && !self.is_claimed(&mut others, owner, wait, *resource, demand)
        });
        (choice.map(|choice| self.named(&choice)), steps + others.steps)
    }

    /// Returns whether no other owner holds the resource in a way that excludes `demand`, at this moment.
    fn is_free(&self, owner: Slot, resource: Slot, demand: Demand) -> bool {
        let state = &self.resources[resource];
        let mut others = state.holders.iter().filter(|(holder, _)| **holder != owner);
        match demand {
            Demand::Exclusive => others.next().is_none(),
            Demand::Shared => others.next().is_none_or(|(_, mode)| *mode == Demand::Shared),
            Demand::Permits(count) => {
                u64::from(count) + state.held_permits <= u64::from(state.limit.unwrap_or(0))
            }
        }
    }

    /// Returns whether claims of earlier waiters that can proceed without `owner` exclude `demand`. Examines
    /// the waiters from the front, and no more of them than necessary.
    fn is_claimed(
        &self,
        others: &mut Reduction<'_, R, O>,
        owner: Slot,
        wait: &Wait,
        resource: Slot,
        demand: Demand,
    ) -> bool {
        let state = &self.resources[resource];
        let taken = state.held_permits + permits(Some(demand));
        let mut left = u64::from(state.limit.unwrap_or(0)).saturating_sub(taken);
        self.earlier(owner, wait, resource).any(|(claimant, claim)| match (demand, claim) {
            (Demand::Shared, Demand::Shared) => false,
            (Demand::Permits(_), Demand::Permits(count)) => {
                let binds = others.can_proceed(claimant);
                let fits = left >= u64::from(count);
                if binds {
                    left = left.saturating_sub(u64::from(count));
                }
                binds && !fits
            }
            _ => others.can_proceed(claimant),
        })
    }

    /// Iterates over the waiters before the owner in the resource's queue. There are none if the owner holds
    /// the lock already: it enters again or upgrades.
    fn earlier(&self, owner: Slot, wait: &Wait, resource: Slot) -> impl Iterator<Item = (Slot, Demand)> {
        let state = &self.resources[resource];
        let place = state.place(owner, wait.turn);
        let ahead = state.line.range(..place).filter(move |_| place.is_newcomer);
        ahead.map(|(place, claim)| (place.owner, *claim))
    }

    fn named(&self, claims: &[Claim<Slot>]) -> Vec<Claim<R>> {
        let name = |claim: &Claim<Slot>| Claim {
            resource: *self.resources.name(claim.resource),
            demand: claim.demand,
        };
        claims.iter().map(name).collect()
    }
}
