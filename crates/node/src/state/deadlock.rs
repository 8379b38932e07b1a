//! Overtaking and deadlock detection, on the wait-for graph.
//!
//! **Intuition.** A waiter waits for *holders* (hard edges) and for the *claims* of waiters before it (soft
//! edges). A cycle with a soft edge needs no victim. The waiter behind the claim may overtake, because the
//! claimant cannot proceed before this waiter's owner has finished. Only a cycle of hard edges is a deadlock.
//!
//! *W cannot proceed until R's owner has finished* means two things. First, W never finishes in the reduction
//! (with all claims) in which R's owner never finishes. Second, W waits, directly or not, for a name that R's
//! owner holds. The first condition alone would let R pass waiters that are stuck for other reasons, such as
//! a deadlock that was left standing.
//!
//! **Rules** (docs/service.md 3 and 4).
//! - Both questions are decided by the reduction of [`WaitGraph`].
//! - If no request waits for the names of an owner, the owner closes no cycle, and no search is needed.
//! - The policy of the request that closes a deadlock chooses the victim. The waiting request of the victim
//!   is rejected, and its holds stay. This is repeated until no deadlock is left.
//! - Owners in a deadlock that was left standing are not victims of a later deadlock.
//! - A new wait can close a deadlock. So can a grant to an owner that already waits, and a lowered limit
//!   ([`Cause`]). In these cases the members may have done nothing themselves; the first of them counts as
//!   the closer.
//!
//! **Method.** The graph is not kept beside the tables of [`super::lock`]. It is built for each question,
//! from the part that is reachable from the request over blocked owners. Building it costs as much as
//! searching it. The question arises only for owners that hold, wait and are waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use conclave_core::{Deadlock, Error, VictimPolicy, WaitsFor};
use conclave_deadlock::{Claim, Turn, WaitGraph, Why};

use super::command::Position;
use super::grant::{Outcome, Work};
use super::lock::{Claims, LockId, Locks, OwnerId, Waiter};
use super::rank::{Rank, Ticket};

/// The largest number of edges in the report of a deadlock. Further edges are left out; a knot may have
/// thousands.
const MAX_EDGES_SENT: usize = 32;

/// The edges that a search follows.
#[derive(Clone, Copy, PartialEq)]
enum Edges {
    Hard,
    HardAndSoft,
}

/// The causes of a deadlock other than a new wait.
#[derive(Clone, Copy)]
pub(super) enum Cause {
    /// The owner of this waiter is granted another request, which has this policy.
    Grant { waiting: Ticket, policy: VictimPolicy },
    /// The limit of this name is lowered.
    Limit(LockId),
}

impl Locks {
    /// Returns the first waiter in order that may overtake now, with the claims that it takes.
    pub(super) fn overtaker(&mut self) -> Option<(Ticket, Vec<Claim<LockId>>)> {
        let candidates: Vec<Rank> = self.soft_blocked.iter().copied().collect();
        // All owners that wait for any of the candidates, found by one search. A candidate that does not fit
        // even without the claims of these owners needs no search of its own. The first candidate is tried
        // without this search, which is often enough.
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

    /// Returns the claims that a waiter may take by overtaking. The claims of waiters that cannot proceed
    /// before its owner has finished do not bind it.
    pub(super) fn overtaking_choice(&self, ticket: Ticket) -> Option<Vec<Claim<LockId>>> {
        let waiter = self.waiter(ticket);
        if !self.is_waited_for(waiter.owner) {
            return None;
        }
        // Usually few requests wait for the owner. So these are looked up in its queues, instead of searching
        // the queues.
        let is_before = |other: &OwnerId| {
            let rank = self.owner(*other).waiting.expect("a dependent waits");
            waiter.claims.iter().map(|claim| self.lock(claim.resource)).any(|lock| {
                lock.upgraders.contains(&rank) || rank < waiter.rank && lock.queue.contains_key(&rank)
            })
        };
        let mut before = self.dependents(&[waiter.owner]);
        before.retain(is_before);
        // The graph can only remove owners from this set. If even the full set does not help, the graph is
        // not needed.
        self.choice(waiter, Claims::BindExcept(&before))?;
        let graph = self.graph(&self.reach([waiter], Edges::HardAndSoft));
        let free: BTreeSet<OwnerId> = graph.held_up_without(before, &[waiter.owner]).into_iter().collect();
        self.choice(waiter, Claims::BindExcept(&free))
    }

    /// Rejects victims until the waiter closes no deadlock any more. Members of `standing` are never victims.
    /// Returns whether a deadlock was left standing.
    pub(super) fn end_deadlocks(
        &mut self,
        at: Position,
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
            // The graph remains valid for the next deadlock as long as the rejections cause no grants.
            while self.waiters.contains_key(&ticket) {
                let Some(why) = resolution.find() else { return false };
                let mut candidates = why.candidates();
                // Owners that are stuck in any case belong to another deadlock, which was left standing.
                candidates.retain(|owner| !resolution.is_stuck_anyway(*owner) && !standing.contains(owner));
                let victim = self.victim(self.waiter(ticket), policy, &candidates);
                let owner = victim.map(|victim| self.waiter(victim).owner);
                let deadlock = Deadlock {
                    cycle: self.deadlock_edges(&why),
                    victim: owner.map(|owner| self.owner_name(owner)),
                };
                work.outcomes.push(Outcome::Deadlock(deadlock.clone()));
                let Some((victim, owner)) = victim.zip(owner) else { return true };
                self.refuse(victim, Error::deadlock(deadlock), work);
                let outcomes = work.outcomes.len();
                self.grant_waiters(at, work);
                if work.outcomes.len() > outcomes {
                    break;
                }
                resolution.cancel(owner);
            }
        }
        false
    }

    /// Ends the deadlocks that were closed by `cause`. The owners in `standing` were in deadlocks before.
    pub(super) fn end_closed_deadlocks(
        &mut self,
        at: Position,
        cause: Cause,
        mut standing: BTreeSet<OwnerId>,
        work: &mut Work,
    ) {
        loop {
            let deadlocks = self.deadlocks_near(cause);
            let new = deadlocks.iter().flatten().filter(|owner| !standing.contains(owner));
            let waiting = new.filter_map(|owner| self.owner(*owner).waiting);
            // The waits changed by the cause come first.
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
            if self.end_deadlocks(at, rank.ticket, policy, &standing, work) {
                let left = deadlocks.iter().filter(|members| members.contains(&owner));
                standing.extend(left.flatten());
            }
            standing.insert(owner);
        }
    }

    /// Returns the members of all deadlocks that contain, or block, the waiters concerned by `cause`. Called
    /// before the change, to find the deadlocks that already exist.
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

    /// Returns the deadlocks that contain these waiters, or owners that they wait for.
    fn deadlocks<'a>(&'a self, waiters: impl IntoIterator<Item = &'a Waiter>) -> Vec<Vec<OwnerId>> {
        self.graph(&self.reach(waiters, Edges::Hard)).deadlocks()
    }

    /// Returns those of these waiters, and of the owners that they wait for, that will wait for ever. The
    /// result is sorted.
    pub(super) fn stuck<'a>(&'a self, waiters: impl IntoIterator<Item = &'a Waiter>) -> Vec<OwnerId> {
        self.graph(&self.reach(waiters, Edges::Hard)).stuck()
    }

    /// Returns the number of owners in deadlocks. Every existing deadlock was left standing; all others were
    /// ended.
    pub(super) fn left_standing(&self) -> usize {
        let waiters = self.waiters.values().filter(|waiter| self.is_waited_for(waiter.owner));
        self.deadlocks(waiters).iter().map(Vec::len).sum()
    }

    fn victim(&self, closer: &Waiter, policy: VictimPolicy, candidates: &[OwnerId]) -> Option<Ticket> {
        let waiting = candidates.iter().filter_map(|owner| self.owner(*owner).waiting);
        let waiting = waiting.map(|rank| self.waiter(rank.ticket));
        // Of equal candidates, the youngest owner is chosen. It has the largest id.
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

    /// Returns the edges of a deadlock, at most [`MAX_EDGES_SENT`].
    fn deadlock_edges(&self, why: &Why<LockId, OwnerId>) -> Vec<WaitsFor> {
        let edge = |waiter: OwnerId, lock: LockId, holder: OwnerId| WaitsFor {
            waiter: self.owner_name(waiter),
            name: self.lock(lock).name.clone(),
            holder: self.owner_name(holder),
        };
        if let Why::Cycle(links) = why {
            let links = links.iter().take(MAX_EDGES_SENT);
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
        edges.take(MAX_EDGES_SENT).map(|(waiter, lock, holder)| edge(waiter, lock, holder)).collect()
    }

    /// Returns the owners of `starts` and all owners that they wait for, directly or not.
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

    /// Returns the owners that wait, directly or not, for a name that the owner of any of these waiters
    /// holds.
    fn dependents_of_any(&self, ranks: &[Rank]) -> BTreeSet<OwnerId> {
        let owners =
            ranks.iter().filter_map(|rank| self.waiters.get(&rank.ticket)).map(|waiter| waiter.owner);
        self.dependents(&owners.collect::<Vec<_>>())
    }

    /// Returns the owners that wait, directly or not, for a name that any of `owners` holds. If there are
    /// several `owners`, the result may contain some of them.
    fn dependents(&self, owners: &[OwnerId]) -> BTreeSet<OwnerId> {
        let mut found = BTreeSet::new();
        let mut open = owners.to_vec();
        // The names whose holders were followed through the whole queue, and the rank behind which each queue
        // was followed because of a claim.
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
                // The claims of a start owner do not count. An upgrader is the exception: it blocks all other
                // waiters by its shared hold.
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

    /// Returns the waiters of a queue that the holders block. Waiters that could share the name, or take free
    /// permits, are not blocked.
    fn lacking(&self, id: LockId) -> impl Iterator<Item = &Rank> {
        let lock = self.lock(id);
        let is_lacking = |rank: &Rank, demand| !lock.leaves(demand, self.waiter(rank.ticket).owner);
        lock.queue.iter().filter(move |(rank, demand)| is_lacking(rank, **demand)).map(|(rank, _)| rank)
    }

    /// Adds the waiters of a queue that the claim of `rank` blocks.
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

    /// Returns the wait-for graph of these owners: their waiting requests, and their holds on the names of
    /// this part.
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

/// A part of the wait-for graph: owners, and the names that they request. Each name has the rank up to which
/// its queue was followed.
struct Reach {
    owners: BTreeSet<OwnerId>,
    names: BTreeMap<LockId, Option<Rank>>,
}
