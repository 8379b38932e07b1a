//! A reference implementation: it applies the definitions to the whole graph until nothing changes.

use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

use super::super::{Demand, Turn};
use crate::request::{Claim, Request, Term};

#[derive(Clone, Default)]
pub(super) struct Naive {
    pub(super) limits: BTreeMap<u32, u32>,
    pub(super) holds: BTreeMap<(u32, u32), Demand>,
    pub(super) waits: BTreeMap<u32, (Turn, Request<u32>)>,
}

type Owners = BTreeSet<u32>;

impl Naive {
    /// Reduction. Returns the owners that wait for ever if the owners in `never` never finish. `ordered` adds
    /// the soft edges.
    pub(super) fn left_over(&self, never: &Owners, ordered: bool) -> Owners {
        let mut left: Owners = self.waits.keys().chain(never).copied().collect();
        loop {
            let is_left = |other: u32| left.contains(&other);
            let can = |owner: &&u32| {
                let fits = |claim: &Claim<u32>| {
                    self.fits(**owner, claim, is_left, |other| ordered && is_left(other))
                };
                !never.contains(owner) && self.terms(**owner).iter().any(|term| term.iter().all(fits))
            };
            let Some(next) = left.iter().find(can).copied() else { return left };
            left.remove(&next);
        }
    }

    pub(super) fn stuck(&self) -> Owners {
        self.left_over(&Owners::new(), false)
    }

    /// Returns the first alternative that is free and not claimed by an earlier waiter that can proceed
    /// without the owner.
    pub(super) fn grantable(&self, owner: u32) -> Option<Term<u32>> {
        let needs_us = self.left_over(&Owners::from([owner]), true);
        let fits = |claim: &Claim<u32>| self.fits(owner, claim, |_| true, |other| !needs_us.contains(&other));
        self.terms(owner).into_iter().find(|term| term.iter().all(fits))
    }

    /// Returns whether the owner is stuck and waits, directly or indirectly, for itself.
    pub(super) fn closes(&self, owner: u32) -> bool {
        let stuck = self.stuck();
        let mut reached = Owners::new();
        let mut next: Vec<u32> = stuck.get(&owner).copied().into_iter().collect();
        while let Some(waiter) = next.pop() {
            for claim in self.lacking(waiter, &stuck) {
                let holders = self.holds.keys().filter(|(_, resource)| *resource == claim.resource);
                let others = holders.filter(|(holder, _)| claim.demand.is_permits() || *holder != waiter);
                let stuck = others.map(|(holder, _)| *holder).filter(|holder| stuck.contains(holder));
                next.extend(stuck.filter(|holder| reached.insert(*holder)));
            }
        }
        reached.contains(&owner)
    }

    /// Returns the claims that do not fit beside the holds of stuck owners, except claims in satisfied gates.
    fn lacking(&self, owner: u32, stuck: &Owners) -> Vec<Claim<u32>> {
        let most = self.most(owner);
        let leaf = |claim: &Claim<u32>| {
            let together =
                most.iter().find(|most| claim.demand.is_permits() && most.resource == claim.resource);
            let claim = together.unwrap_or(claim);
            let fits = self.fits(owner, claim, |holder| stuck.contains(&holder), |_| false);
            if fits { Vec::new() } else { Vec::from([*claim]) }
        };
        self.waits[&owner].1.fold(leaf, |gate, members| {
            let satisfied = members.iter().filter(|member| member.is_empty()).count();
            if satisfied < gate.need as usize { members.concat() } else { Vec::new() }
        })
    }

    /// Returns whether the claim fits beside the holds of certain owners and the earlier claims of certain
    /// waiters.
    fn fits(
        &self,
        owner: u32,
        claim: &Claim<u32>,
        holds_count: impl Fn(u32) -> bool,
        claims_count: impl Fn(u32) -> bool,
    ) -> bool {
        let Claim { resource, demand } = *claim;
        let held = self.holds.iter().filter(|((_, held), _)| *held == resource);
        let held: Vec<(u32, Demand)> = held
            .map(|((holder, _), held)| (*holder, *held))
            .filter(|(holder, _)| holds_count(*holder))
            .collect();
        let earlier =
            self.earlier(owner, resource, !demand.is_permits()).into_iter().filter(|o| claims_count(*o));
        let claims = earlier.flat_map(|other| self.most(other)).filter(|claim| claim.resource == resource);
        let claims: Vec<Demand> = claims.map(|claim| claim.demand).collect();
        match demand {
            Demand::Exclusive => held.iter().all(|(holder, _)| *holder == owner) && claims.is_empty(),
            Demand::Shared => {
                held.iter().all(|(holder, mode)| *holder == owner || *mode == Demand::Shared)
                    && claims.iter().all(|claim| *claim == Demand::Shared)
            }
            Demand::Permits(count) => {
                let held: u32 = held.into_iter().map(|(_, held)| count_of(held)).sum();
                let claimed: u32 = claims.into_iter().map(count_of).sum();
                count + held + claimed <= self.limits[&resource]
            }
        }
    }

    /// Returns the waiters before the owner; none if the owner holds the lock.
    fn earlier(&self, owner: u32, resource: u32, is_lock: bool) -> Vec<u32> {
        let place = |waiter: u32| {
            let is_upgrader = is_lock && self.holds.contains_key(&(waiter, resource));
            (!is_upgrader, self.waits[&waiter].0, waiter)
        };
        if !self.waits.contains_key(&owner) || !place(owner).0 {
            return Vec::new();
        }
        self.waits.keys().copied().filter(|other| place(*other) < place(owner)).collect()
    }

    fn terms(&self, owner: u32) -> Vec<Term<u32>> {
        self.waits.get(&owner).map_or(Vec::new(), |(_, request)| request.to_and_or(u64::MAX).expect("small"))
    }

    /// Returns the most that any term takes of each resource.
    fn most(&self, owner: u32) -> Vec<Claim<u32>> {
        let mut most: BTreeMap<u32, Demand> = BTreeMap::new();
        for claim in self.terms(owner).into_iter().flatten() {
            let demand = most.entry(claim.resource).or_insert(claim.demand);
            *demand = claim.demand.max(*demand);
        }
        most.into_iter().map(|(resource, demand)| Claim { resource, demand }).collect()
    }
}

pub(super) fn count_of(demand: Demand) -> u32 {
    match demand {
        Demand::Permits(count) => count,
        Demand::Shared | Demand::Exclusive => 0,
    }
}
