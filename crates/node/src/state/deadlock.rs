//! Overtaking and deadlock: the two questions about who waits for whom.
//!
//! **Intuition.** A waiter waits for *holders* (hard edges) and for the *claims* of waiters before it (soft
//! edges). A cycle with a soft edge needs no victim: whoever stands behind the claim may overtake, because
//! the claimant cannot proceed before it has finished anyway. Only a cycle of hard edges is a deadlock.
//!
//! *W cannot proceed until R's owner has finished* means two things: W is left over by the reduction (claims
//! and all) in which R never finishes; and W waits in the end for something that R's owner holds. The first
//! alone would let R pass anybody who is stuck for other reasons, such as a deadlock that was left standing.
//!
//! **Rules** (docs/service.md 3 and 4). Both questions are decided by the reduction of [`WaitGraph`]. An owner for
//! whose holds nobody waits closes nothing: no search. The policy of the request that closes a deadlock names
//! the victim; its waiting request is refused, its holds stay; repeated until no deadlock is left. A deadlock
//! that was left standing stays so: only those who were in none before are victims.
//!
//! A deadlock is closed by a new wait; or by a grant to somebody who waits, or a lower limit ([`Cause`]): then
//! others may come to be in it who did nothing, and the first of them is taken for the one that closed it.
//!
//! **How.** No second copy of holds and queues is kept in step with the tables of [`super::lock`]: the part
//! of the graph that can matter, what is reachable from the request in question over blocked owners, is built
//! when the question is asked. Building it costs what searching it costs, and it is asked only of owners who
//! hold and wait and are waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use conclave_algorithms::deadlock::{Claim, Turn, WaitGraph, Why};
use conclave_api::{Deadlock, Error, VictimPolicy, WaitsFor};

use super::grant::{Moment, Outcome, Work};
use super::lock::{Claims, LockId, Locks, OwnerId, Waiter};
use super::rank::{Rank, Ticket};

/// The edges of a deadlock that are told; a knot may have thousands.
const MAX_EDGES_TOLD: usize = 32;

/// Which edges are followed.
#[derive(Clone, Copy, PartialEq)]
enum Edges {
    Hard,
    HardAndSoft,
}

/// What closes deadlocks, but for a new wait.
#[derive(Clone, Copy)]
pub(super) enum Cause {
    /// The owner of this waiter is granted another request, of this policy.
    Grant { waiting: Ticket, policy: VictimPolicy },
    /// The limit of this name is lowered.
    Limit(LockId),
}

impl Locks {
    /// The first waiter in order that may overtake now, with what it takes.
    pub(super) fn overtaker(&mut self) -> Option<(Ticket, Vec<Claim<LockId>>)> {
        let candidates: Vec<Rank> = self.soft_blocked.iter().copied().collect();
        // Everybody who waits for any of them: one search for all, so that those whom others keep back need none of
        // their own. The first is tried without: where each may go in its turn, that is all.
        let mut dependents: Option<BTreeSet<OwnerId>> = None;
        for (number, rank) in candidates.iter().enumerate() {
            let waiter = self.waiters.get(&rank.ticket).filter(|waiter| {
                !self.owner(waiter.owner).holds.is_empty() && self.fits_ignoring_claims(waiter)
            });
            let Some(waiter) = waiter else {
                self.soft_blocked.remove(rank);
                continue;
            };
            if !self.is_waited_for(waiter.owner) {
                continue;
            }
            if number > 0 {
                let all = dependents.get_or_insert_with(|| self.dependents_of_any(&candidates[number..]));
                if self.choice(waiter, Claims::BindExcept(all)).is_none() {
                    continue;
                }
            }
            if let Some(choice) = self.overtaking_choice(rank.ticket) {
                return Some((rank.ticket, choice));
            }
        }
        None
    }

    /// What a waiter may take if the claims of those who cannot proceed before its owner has finished do not
    /// bind it.
    pub(super) fn overtaking_choice(&self, ticket: Ticket) -> Option<Vec<Claim<LockId>>> {
        let waiter = self.waiter(ticket);
        if !self.is_waited_for(waiter.owner) {
            return None;
        }
        // Few wait for the owner, as a rule: they are looked up in its queues, not the queues in them.
        let is_before = |other: &OwnerId| {
            let rank = self.owner(*other).waiting.expect("a dependent waits");
            waiter.claims.iter().map(|claim| self.lock(claim.resource)).any(|lock| {
                lock.upgraders.contains(&rank) || rank < waiter.rank && lock.queue.contains_key(&rank)
            })
        };
        let mut before = self.dependents(&[waiter.owner]);
        before.retain(is_before);
        // The graph can only tell that some of these bind after all.
        self.choice(waiter, Claims::BindExcept(&before))?;
        let graph = self.graph(&self.reach([waiter], Edges::HardAndSoft));
        let free: BTreeSet<OwnerId> = graph.held_up_without(before, &[waiter.owner]).into_iter().collect();
        self.choice(waiter, Claims::BindExcept(&free))
    }

    /// Refuses victims, but none of `standing`, until the waiter closes no deadlock any more. Whether one is left
    /// standing.
    pub(super) fn end_deadlocks(
        &mut self,
        moment: Moment,
        ticket: Ticket,
        policy: VictimPolicy,
        standing: &BTreeSet<OwnerId>,
        work: &mut Work,
    ) -> bool {
        while let Some(waiter) = self.waiters.get(&ticket) {
            if !self.is_waited_for(waiter.owner) {
                return false;
            }
            let graph = self.graph(&self.reach([waiter], Edges::Hard));
            let mut resolution = graph.resolution(waiter.owner);
            // As long as victims are all that changes, the graph is good for the next deadlock too.
            while self.waiters.contains_key(&ticket) {
                let Some(why) = resolution.find() else { return false };
                let mut candidates = why.candidates();
                // Whoever is stuck anyway is held by another deadlock, which somebody left standing.
                candidates.retain(|owner| !resolution.is_stuck_anyway(*owner) && !standing.contains(owner));
                let victim = self.victim(self.waiter(ticket), policy, &candidates);
                let owner = victim.map(|victim| self.waiter(victim).owner);
                let deadlock =
                    Deadlock { cycle: self.tell(&why), victim: owner.map(|owner| self.owner_name(owner)) };
                work.outcomes.push(Outcome::Deadlock(deadlock.clone()));
                let Some((victim, owner)) = victim.zip(owner) else { return true };
                self.refuse(victim, Error::deadlock(deadlock), work);
                let told = work.outcomes.len();
                self.settle(moment, work);
                if work.outcomes.len() > told {
                    break;
                }
                resolution.cancel(owner);
            }
        }
        false
    }

    /// Ends the deadlocks that were closed otherwise than by a wait; `standing` were in deadlocks before.
    pub(super) fn end_closed_deadlocks(
        &mut self,
        moment: Moment,
        cause: Cause,
        mut standing: BTreeSet<OwnerId>,
        work: &mut Work,
    ) {
        loop {
            let deadlocks = self.deadlocks_near(cause);
            let new = deadlocks.iter().flatten().filter(|owner| !standing.contains(owner));
            let waiting = new.filter_map(|owner| self.owner(*owner).waiting);
            // Those first whose wait it was that changed.
            let is_closer = |rank: &Rank| match cause {
                Cause::Grant { waiting, .. } => rank.ticket == waiting,
                Cause::Limit(id) => self.lock(id).queue.contains_key(rank),
            };
            let Some(rank) = waiting.min_by_key(|rank| (!is_closer(rank), *rank)) else { return };
            let closer = self.waiter(rank.ticket);
            let owner = closer.owner;
            let policy = match cause {
                Cause::Grant { policy, .. } => policy,
                Cause::Limit(_) => closer.policy,
            };
            if self.end_deadlocks(moment, rank.ticket, policy, &standing, work) {
                let left = deadlocks.iter().filter(|members| members.contains(&owner));
                standing.extend(left.flatten());
            }
            standing.insert(owner);
        }
    }

    /// Everybody who is in a deadlock with, or before, those whom such a change makes wait for more.
    pub(super) fn deadlocked(&self, cause: Cause) -> BTreeSet<OwnerId> {
        self.deadlocks_near(cause).into_iter().flatten().collect()
    }

    fn deadlocks_near(&self, cause: Cause) -> Vec<Vec<OwnerId>> {
        match cause {
            Cause::Grant { waiting, .. } => self.deadlocks(self.waiters.get(&waiting)),
            Cause::Limit(id) => {
                self.deadlocks(self.lock(id).holding.iter().map(|rank| self.waiter(rank.ticket)))
            }
        }
    }

    /// The deadlocks that they, and those they wait for, are in.
    fn deadlocks<'a>(&'a self, waiters: impl IntoIterator<Item = &'a Waiter>) -> Vec<Vec<OwnerId>> {
        self.graph(&self.reach(waiters, Edges::Hard)).deadlocks()
    }

    /// Who of them, and of those they wait for, will wait for ever; sorted.
    pub(super) fn stuck<'a>(&'a self, waiters: impl IntoIterator<Item = &'a Waiter>) -> Vec<OwnerId> {
        self.graph(&self.reach(waiters, Edges::Hard)).stuck()
    }

    /// How many are in deadlocks that were left standing: all that there are, or they would have been ended.
    pub(super) fn left_standing(&self) -> usize {
        let waiters = self.waiters.values().filter(|waiter| self.is_waited_for(waiter.owner));
        self.deadlocks(waiters).iter().map(Vec::len).sum()
    }

    fn victim(&self, closer: &Waiter, policy: VictimPolicy, candidates: &[OwnerId]) -> Option<Ticket> {
        let waiting = candidates.iter().filter_map(|owner| self.owner(*owner).waiting);
        let waiting = waiting.map(|rank| self.waiter(rank.ticket));
        // Of equal ones the youngest owner, the one with the largest id.
        let victim = match policy {
            VictimPolicy::None => None,
            VictimPolicy::Requester => Some(closer),
            VictimPolicy::Youngest => waiting.max_by_key(|waiter| waiter.owner),
            VictimPolicy::LowestPriority => waiting.max_by_key(|waiter| (waiter.rank.class(), waiter.owner)),
            VictimPolicy::FewestLocks => {
                let locks = |waiter: &Waiter| self.owner(waiter.owner).holds.len();
                waiting.max_by_key(|waiter| (std::cmp::Reverse(locks(waiter)), waiter.owner))
            }
        };
        victim.map(|waiter| waiter.rank.ticket)
    }

    /// Who waits for whom, in words.
    fn tell(&self, why: &Why<LockId, OwnerId>) -> Vec<WaitsFor> {
        let edge = |waiter: OwnerId, lock: LockId, holder: OwnerId| WaitsFor {
            waiter: self.owner_name(waiter),
            name: self.lock(lock).name.clone(),
            holder: self.owner_name(holder),
        };
        if let Why::Cycle(links) = why {
            let links = links.iter().take(MAX_EDGES_TOLD);
            return links.map(|link| edge(link.waiter, link.resource, link.holder)).collect();
        }
        let members = why.candidates();
        let waits = members.iter().filter_map(|owner| self.owner(*owner).waiting);
        let claims = waits.flat_map(|rank| {
            let waiter = self.waiter(rank.ticket);
            waiter.claims.iter().map(move |claim| (waiter.owner, claim))
        });
        let edges = claims.flat_map(|(owner, claim)| {
            let holders = self.lock(claim.resource).blocked_holders.iter();
            let holders = holders.filter(|holder| members.binary_search(holder).is_ok());
            let others = holders.filter(move |holder| **holder != owner || claim.demand.is_permits());
            others.map(move |holder| (owner, claim.resource, *holder))
        });
        edges.take(MAX_EDGES_TOLD).map(|(waiter, lock, holder)| edge(waiter, lock, holder)).collect()
    }

    /// Everybody whom `starts` wait for, directly or not, and they themselves.
    fn reach<'a>(&'a self, starts: impl IntoIterator<Item = &'a Waiter>, edges: Edges) -> Reach {
        let mut open: Vec<&Waiter> = starts.into_iter().collect();
        let owners = open.iter().map(|waiter| waiter.owner).collect();
        let mut reach = Reach { owners, names: BTreeMap::new() };
        while let Some(waiter) = open.pop() {
            for claim in &waiter.claims {
                let lock = self.lock(claim.resource);
                let is_new = !reach.names.contains_key(&claim.resource);
                let down_to = reach.names.entry(claim.resource).or_insert(None);
                let mut next: Vec<OwnerId> = Vec::new();
                if is_new {
                    next.extend(&lock.blocked_holders);
                }
                if edges == Edges::HardAndSoft && down_to.is_none_or(|rank| rank < waiter.rank) {
                    let from = down_to.map_or(Unbounded, Included);
                    let unseen = lock.queue.range((from, Excluded(waiter.rank))).map(|(rank, _)| rank);
                    next.extend(unseen.chain(&lock.upgraders).map(|rank| self.waiter(rank.ticket).owner));
                    *down_to = Some(waiter.rank);
                }
                for owner in next {
                    if reach.owners.insert(owner)
                        && let Some(rank) = self.owner(owner).waiting
                    {
                        open.push(self.waiter(rank.ticket));
                    }
                }
            }
        }
        reach
    }

    /// Those who wait, directly or not, for something that the owner of any of these waiters holds.
    fn dependents_of_any(&self, ranks: &[Rank]) -> BTreeSet<OwnerId> {
        let owners =
            ranks.iter().filter_map(|rank| self.waiters.get(&rank.ticket)).map(|waiter| waiter.owner);
        self.dependents(&owners.collect::<Vec<_>>())
    }

    /// Those who wait, directly or not, for something that any of `owners` holds; of several they may be among them.
    fn dependents(&self, owners: &[OwnerId]) -> BTreeSet<OwnerId> {
        let mut found = BTreeSet::new();
        let mut open = owners.to_vec();
        // How far up its queue each name was followed, as in `reach`; holders are followed by the whole
        // queue.
        let mut held: BTreeSet<LockId> = BTreeSet::new();
        let mut claimed: BTreeMap<LockId, Rank> = BTreeMap::new();
        let mut next: Vec<Rank> = Vec::new();
        while let Some(current) = open.pop() {
            for id in &self.owner(current).holds {
                if held.insert(*id) {
                    next.extend(self.lacking(*id));
                }
            }
            if let Some(rank) = self.owner(current).waiting {
                let is_found = found.contains(&current);
                // What it holds shared and wants alone, it keeps from everybody by holding it.
                let binds = |id: &LockId| is_found || self.lock(*id).upgraders.contains(&rank);
                let names = self.waiter(rank.ticket).claims.iter().map(|claim| claim.resource);
                for id in names.filter(binds) {
                    self.waiting_behind(id, rank, &mut claimed, &mut next);
                }
            }
            for rank in next.drain(..) {
                let waiting = self.waiter(rank.ticket).owner;
                if owners != [waiting] && found.insert(waiting) {
                    open.push(waiting);
                }
            }
        }
        found
    }

    /// Those of a queue whom the holders keep waiting. Not who could share the name, or have permits that are free.
    fn lacking(&self, id: LockId) -> impl Iterator<Item = &Rank> {
        let lock = self.lock(id);
        let is_lacking = |rank: &Rank, demand| !lock.leaves(demand, self.waiter(rank.ticket).owner);
        lock.queue.iter().filter(move |(rank, demand)| is_lacking(rank, **demand)).map(|(rank, _)| rank)
    }

    /// Those of a queue whom the claim of `rank` keeps waiting.
    fn waiting_behind(
        &self,
        id: LockId,
        rank: Rank,
        claimed: &mut BTreeMap<LockId, Rank>,
        next: &mut Vec<Rank>,
    ) {
        let lock = self.lock(id);
        if lock.upgraders.contains(&rank) {
            next.extend(lock.queue.keys().filter(|other| !lock.upgraders.contains(other) || **other > rank));
        } else if claimed.get(&id).is_none_or(|from| rank < *from) {
            let to = claimed.insert(id, rank).map_or(Unbounded, Included);
            let behind = lock.queue.range((Excluded(rank), to)).map(|(other, _)| other);
            next.extend(behind.filter(|other| !lock.upgraders.contains(other)));
        }
    }

    /// The wait-for graph of those owners: what they wait for, and what they hold of the names that matter.
    fn graph(&self, part: &Reach) -> WaitGraph<LockId, OwnerId> {
        const CONSISTENT: &str = "the tables keep what the graph checks";
        let mut graph = WaitGraph::new();
        for id in part.names.keys() {
            if let Some(limit) = self.lock(*id).limit {
                graph.set_limit(*id, Some(limit)).expect(CONSISTENT);
            }
        }
        for owner in &part.owners {
            for id in self.owner(*owner).holds.iter().filter(|id| part.names.contains_key(id)) {
                let demand = self.lock(*id).holds[owner].demand();
                graph.hold(*owner, Claim { resource: *id, demand }).expect(CONSISTENT);
            }
        }
        for rank in part.owners.iter().filter_map(|owner| self.owner(*owner).waiting) {
            let waiter = self.waiter(rank.ticket);
            let turn = Turn { class: rank.class(), entry: rank.ticket.0 };
            graph.enqueue(waiter.owner, turn, waiter.wants.clone()).expect(CONSISTENT);
        }
        graph
    }
}

/// A part of the wait-for graph: owners, and the names they ask for with how far down their queues were
/// followed.
struct Reach {
    owners: BTreeSet<OwnerId>,
    names: BTreeMap<LockId, Option<Rank>>,
}
