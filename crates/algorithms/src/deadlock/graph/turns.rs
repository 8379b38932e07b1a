//! Whose turn it is: free, and not claimed by an earlier waiter whose claim binds.
//!
//! Every waiter claims all names of its request against those after it, so that a wide request is not starved by
//! narrow ones. A claim does *not* bind `R` when the claimant `W` cannot proceed anyway until `R`'s owner has
//! finished: standing back would close a cycle through this soft edge, and `R` overtakes instead. "Cannot proceed"
//! is reduction with order kept and `R`'s owner never finishing: soft edges further on count too, since a cycle may
//! go through several.
//!
//! Why nobody is left standing for want of an overtaker: among waiters who are all stuck by soft edges only, the
//! reduction finds one that depends on nobody else there, and such a one is in turn and free, hence granted. The price
//! of keeping order in the question is that `R` may pass a `W` that a *third* waiter's later overtaking would
//! have freed: never unsafe, and only while such a latent cycle stands.

use alloc::vec::Vec;

use super::super::request::{Claim, Demand};
use super::reduction::{Order, Reduction};
use super::slots::Slot;
use super::{Wait, WaitGraph, permits};

impl<R: Ord + Copy, O: Ord + Copy> WaitGraph<R, O> {
    /// What a waiting owner may be given now: the first alternative that is free and not claimed against it, or
    /// `None`. The caller then [`WaitGraph::grant`]s it.
    pub fn grantable(&self, owner: O) -> Option<Vec<Claim<R>>> {
        self.grantable_counting(owner).0
    }

    /// Whether a waiting owner can proceed, in turn, even if none of `excluded` ever finishes. Exactly when not,
    /// its claims do not bind a request of theirs. True for an owner that does not wait.
    pub fn can_proceed_without(&self, waiter: O, excluded: &[O]) -> bool {
        let Some(waiter) = self.owners.slot(&waiter) else { return true };
        let never = excluded.iter().filter_map(|owner| self.owners.slot(owner)).collect();
        Reduction::new(self, Order::Kept, never).can_proceed(waiter)
    }

    /// Those of `waiters` who cannot proceed, in turn, if none of `excluded` ever finishes: as
    /// [`WaitGraph::can_proceed_without`] of each, but one reduction for all.
    pub fn held_up_without(&self, waiters: impl IntoIterator<Item = O>, excluded: &[O]) -> Vec<O> {
        let never = excluded.iter().filter_map(|owner| self.owners.slot(owner)).collect();
        let mut reduction = Reduction::new(self, Order::Kept, never);
        let known = waiters.into_iter().filter_map(|owner| Some((owner, self.owners.slot(&owner)?)));
        let known: Vec<(O, Slot)> = known.collect();
        reduction.reduce_all(known.iter().map(|(_, slot)| *slot));
        known.into_iter().filter(|(_, slot)| reduction.is_stuck(*slot)).map(|(owner, _)| owner).collect()
    }

    /// As [`WaitGraph::grantable`], with the steps of work it took.
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
        // The rule where there is no crowd: nobody stands before us for any of it.
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

    /// Not held by others in the way of `demand`, as things are now.
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

    /// Whether earlier waiters who can proceed without `owner` claim what stands against `demand`. They are
    /// asked from the front, and no further than needed.
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

    /// Who stands before the owner in the resource's line. Nobody does where it holds the lock already: it goes
    /// on, or upgrades.
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
