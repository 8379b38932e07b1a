//! Graph reduction over the part that can be reached: an owner that can proceed finishes and releases
//! everything.
//!
//! Exploration goes forward from some waiters to the resources that they request. From there it goes to the
//! holders that are blocked themselves, and to their requests. A running holder finishes by assumption, so it
//! is no obstacle. Then the waiters are examined. A waiter whose request is satisfied is *reduced*, and only
//! waiters that this can help are examined again. The owners that are left over are stuck. The order of the
//! steps does not matter, because a reduction never makes another one impossible.
//!
//! "Can proceed" has two meanings. [`Order::Ignored`] considers only holders (hard edges) and decides about
//! deadlock. With [`Order::Kept`] a waiter also waits for earlier waiters (soft edges); this decides about
//! overtaking.

use alloc::vec::Vec;
use core::ops::Bound;

use super::super::request::{Claim, Demand};
use super::slots::{Local, Slot};
use super::{Place, Resource, Wait, WaitGraph, permits};

/// Whether a waiter also waits for the waiters before it in the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Ignored,
    Kept,
}

pub(super) struct Reduction<'g, R, O> {
    graph: &'g WaitGraph<R, O>,
    order: Order,
    /// The owners that are assumed never to finish.
    never: Vec<Slot>,
    met_owners: Local,
    owners: Vec<MetOwner>,
    explored: usize,
    met_resources: Local,
    resources: Vec<MetResource>,
    /// The edges from owners to held resources: one linked list per owner, all in one array.
    holds: Vec<HoldEdge>,
    /// The owners that are still to be examined.
    agenda: Vec<usize>,
    /// The work done: the number of claims, holds, places and requests that were examined.
    pub(super) steps: u64,
}

struct MetOwner {
    is_reduced: bool,
    is_on_agenda: bool,
    first_hold: usize,
}

struct HoldEdge {
    resource: usize,
    next: usize,
}

const NO_EDGE: usize = usize::MAX;

/// The state of a resource during the reduction. Its obstacles only become fewer.
#[derive(Default)]
struct MetResource {
    /// The number of holders that are blocked and not reduced, and the XOR of their slots. If one blocker is
    /// left, the XOR is its slot.
    blockers: u32,
    last: Slot,
    is_exclusive: bool,
    blocked_permits: u64,
    /// For `Order::Ignored`: the owners to examine when this resource becomes free. For a semaphore, the
    /// smallest demand is last.
    watchers: Vec<(u32, usize)>,
    /// Watchers of a semaphore with several claims on it. Any permit may help them.
    adders: Vec<usize>,
    /// For `Order::Kept`: the waiters met so far in order of turns, and cursors into them.
    line: Vec<InLine>,
    first: usize,
    first_exclusive: usize,
    sharing: usize,
    /// For the queue of a semaphore: the permits suffice for all waiters before this index, and these were
    /// enlisted. `served_permits` is the sum of the claims of those that still wait. Permits only return and
    /// claims only end, so the index never moves back.
    served: usize,
    served_permits: u64,
}

struct InLine {
    place: Place,
    owner: usize,
    claim: Demand,
}

impl<'g, R: Ord + Copy, O: Ord + Copy> Reduction<'g, R, O> {
    pub(super) fn new(graph: &'g WaitGraph<R, O>, order: Order, never: Vec<Slot>) -> Self {
        Self {
            graph,
            order,
            never,
            met_owners: Local::new(),
            owners: Vec::new(),
            explored: 0,
            met_resources: Local::new(),
            resources: Vec::new(),
            holds: Vec::new(),
            agenda: Vec::new(),
            steps: 0,
        }
    }

    /// Reduces everything that `start` can reach, and returns whether `start` can proceed. May be called
    /// again for other owners; it keeps the results so far.
    pub(super) fn can_proceed(&mut self, start: Slot) -> bool {
        let start = self.meet_owner(start);
        self.run();
        self.owners[start].is_reduced
    }

    /// Reduces everything that any of `starts` can reach.
    pub(super) fn reduce_all(&mut self, starts: impl Iterator<Item = Slot>) {
        for start in starts {
            self.meet_owner(start);
        }
        self.run();
    }

    /// Assumes that `start` has finished, and reduces everything that it can reach. It may have been met
    /// before.
    pub(super) fn finish(&mut self, start: Slot) {
        let start = self.meet_owner(start);
        if !self.owners[start].is_reduced {
            self.reduce(start);
        }
        self.run();
    }

    /// Returns whether the owner was met and is left over.
    pub(super) fn is_stuck(&self, owner: Slot) -> bool {
        self.met_owners.number(owner).is_some_and(|number| !self.owners[number].is_reduced)
    }

    /// Iterates over the owners that were met and are left over, in the order of meeting.
    pub(super) fn stuck(&self) -> impl Iterator<Item = Slot> {
        let left = self.owners.iter().enumerate().filter(|(_, owner)| !owner.is_reduced);
        left.map(|(number, _)| self.met_owners.slot(number))
    }

    /// Returns whether `owner` could have that much of the resource after all reduced owners have finished.
    pub(super) fn available(&mut self, owner: Slot, resource: Slot, demand: Demand) -> bool {
        // A resource that was not met has no obstacle.
        let Some(number) = self.met_resources.number(resource) else { return true };
        let state = &self.graph.resources[resource];
        let met = &self.resources[number];
        let is_only_mine = met.blockers == 0 || (met.blockers == 1 && met.last == owner);
        let hard = match demand {
            Demand::Exclusive => is_only_mine,
            Demand::Shared => is_only_mine || !met.is_exclusive,
            Demand::Permits(count) => u64::from(count) <= met.potential(state),
        };
        hard && (self.order == Order::Ignored || self.is_in_turn(owner, number, demand))
    }

    fn wait_of(&self, number: usize) -> Option<&'g Wait> {
        self.graph.owners[self.met_owners.slot(number)].wait.as_ref()
    }

    fn run(&mut self) {
        self.explore();
        while let Some(number) = self.agenda.pop() {
            self.owners[number].is_on_agenda = false;
            if !self.owners[number].is_reduced && self.examine(number) {
                self.reduce(number);
            }
        }
    }

    /// Follows requests to blocked holders until no new owner is met.
    fn explore(&mut self) {
        let fresh = self.resources.len();
        while self.explored < self.owners.len() {
            let number = self.explored;
            self.explored += 1;
            let owner = self.met_owners.slot(number);
            let Some(wait) = self.wait_of(number) else { continue };
            for claim in &wait.claims {
                self.steps += 1;
                if !self.is_unhindered(owner, claim) {
                    self.watch(number, wait, claim);
                }
            }
            self.enlist(number);
        }
        for met in &mut self.resources[fresh..] {
            met.watchers.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    /// Returns whether neither a blocked holder nor a queue can prevent the claim in its full size.
    fn is_unhindered(&self, owner: Slot, claim: &Claim<Slot>) -> bool {
        let state = &self.graph.resources[claim.resource];
        let is_held_for_ever = self.never.iter().any(|never| state.holders.contains_key(never));
        if self.order == Order::Kept || is_held_for_ever {
            return false;
        }
        match claim.demand {
            Demand::Exclusive => state.blocked.keys().all(|holder| *holder == owner),
            // If one holder is exclusive, it is the only holder.
            Demand::Shared => state
                .blocked
                .first_key_value()
                .is_none_or(|(holder, mode)| *holder == owner || *mode == Demand::Shared),
            Demand::Permits(count) => {
                u64::from(count) + state.blocked_permits <= u64::from(state.limit.unwrap_or(0))
            }
        }
    }

    fn watch(&mut self, number: usize, wait: &Wait, claim: &Claim<Slot>) {
        let resource = self.meet_resource(claim.resource);
        if self.order == Order::Kept {
            let place = self.graph.resources[claim.resource].place(self.met_owners.slot(number), wait.turn);
            self.meet_line(resource, claim.resource, place);
            return;
        }
        let met = &mut self.resources[resource];
        match claim.demand {
            Demand::Permits(_) if wait.request.is_entangled() => met.adders.push(number),
            Demand::Permits(count) => met.watchers.push((count, number)),
            Demand::Shared | Demand::Exclusive => met.watchers.push((0, number)),
        }
    }

    fn meet_owner(&mut self, owner: Slot) -> usize {
        let (number, is_new) = self.met_owners.meet(owner);
        if is_new {
            let is_running = self.graph.owners[owner].wait.is_none();
            let is_reduced = is_running && !self.never.contains(&owner);
            self.owners.push(MetOwner { is_reduced, is_on_agenda: false, first_hold: NO_EDGE });
        }
        number
    }

    fn meet_resource(&mut self, resource: Slot) -> usize {
        let (number, is_new) = self.met_resources.meet(resource);
        if is_new {
            let state = &self.graph.resources[resource];
            self.resources.push(MetResource::default());
            let never = self.never.clone();
            let running_for_ever = never.iter().filter(|never| !state.blocked.contains_key(never));
            let running = running_for_ever.filter_map(|never| state.holders.get_key_value(never));
            for (&holder, &demand) in state.blocked.iter().chain(running) {
                self.steps += 1;
                let holder_number = self.meet_owner(holder);
                if !self.owners[holder_number].is_reduced {
                    self.resources[number].add_blocker(holder, demand);
                    let next = self.owners[holder_number].first_hold;
                    self.owners[holder_number].first_hold = self.holds.len();
                    self.holds.push(HoldEdge { resource: number, next });
                }
            }
        }
        number
    }

    /// Meets all waiters in the queue up to `place`, included.
    fn meet_line(&mut self, number: usize, resource: Slot, place: Place) {
        let known = self.resources[number].line.last().map(|last| last.place);
        if known.is_some_and(|known| known >= place) {
            return;
        }
        let from = known.map_or(Bound::Unbounded, Bound::Excluded);
        for (&place, &claim) in self.graph.resources[resource].line.range((from, Bound::Included(place))) {
            self.steps += 1;
            let owner = self.meet_owner(place.owner);
            self.resources[number].line.push(InLine { place, owner, claim });
        }
    }

    /// Puts a waiter on the agenda.
    fn enlist(&mut self, number: usize) {
        let owner = &mut self.owners[number];
        if !owner.is_reduced && !owner.is_on_agenda {
            owner.is_on_agenda = true;
            self.agenda.push(number);
        }
    }

    /// Returns whether the request is satisfied now.
    fn examine(&mut self, number: usize) -> bool {
        let (owner, Some(wait)) = (self.met_owners.slot(number), self.wait_of(number)) else { return false };
        if self.never.contains(&owner) {
            return false;
        }
        if let Some(claim) = wait.request.as_single() {
            self.steps += 1;
            return self.available(owner, claim.resource, claim.demand);
        }
        wait.request.is_satisfied(|&resource, demand| {
            self.steps += 1;
            self.available(owner, resource, demand)
        })
    }

    /// Lets the owner finish: it releases its holds and leaves its places in queues.
    fn reduce(&mut self, number: usize) {
        self.owners[number].is_reduced = true;
        self.leave_lines(number);
        let owner = self.met_owners.slot(number);
        let mut edge = self.owners[number].first_hold;
        while edge != NO_EDGE {
            self.steps += 1;
            let HoldEdge { resource, next } = self.holds[edge];
            let held = self.graph.resources[self.met_resources.slot(resource)].holders.get(&owner);
            self.resources[resource].remove_blocker(owner, held.copied());
            self.wake(resource);
            edge = next;
        }
        if let (Order::Kept, Some(wait)) = (self.order, self.wait_of(number)) {
            for claim in &wait.claims {
                if let Some(resource) = self.met_resources.number(claim.resource) {
                    self.wake(resource);
                }
            }
        }
    }

    /// Enlists the owners that may be helped, because the resource has fewer obstacles than before.
    fn wake(&mut self, resource: usize) {
        let met = &self.resources[resource];
        if met.blockers == 1
            && let Some(last) = self.met_owners.number(met.last)
        {
            self.enlist(last); // may be an upgrader that waited for the other sharers
        }
        match self.order {
            Order::Kept => self.wake_line(resource),
            Order::Ignored => self.wake_watchers(resource),
        }
    }

    fn wake_watchers(&mut self, resource: usize) {
        let state = &self.graph.resources[self.met_resources.slot(resource)];
        let met = &mut self.resources[resource];
        let potential = if state.limit.is_some() { met.potential(state) } else { 0 };
        let mut helped = met.adders.clone();
        if state.limit.is_some() || met.blockers == 0 {
            while let Some((_, watcher)) = met.watchers.pop_if(|(count, _)| u64::from(*count) <= potential) {
                helped.push(watcher);
            }
        }
        for watcher in helped {
            self.enlist(watcher);
        }
    }
}

/// `Order::Kept`: the queue, with cursors that only move forward.
impl<R: Ord + Copy, O: Ord + Copy> Reduction<'_, R, O> {
    /// Returns whether no earlier waiter that still waits has a claim that excludes `demand`.
    fn is_in_turn(&mut self, owner: Slot, number: usize, demand: Demand) -> bool {
        let state = &self.graph.resources[self.met_resources.slot(number)];
        let Some(wait) = &self.graph.owners[owner].wait else { return true };
        let place = state.place(owner, wait.turn);
        if !place.is_newcomer {
            return true;
        }
        if state.limit.is_some() {
            self.serve(number);
        } else {
            self.advance(number);
        }
        let met = &self.resources[number];
        let is_later = |at: usize| met.line.get(at).is_none_or(|earliest| earliest.place >= place);
        match demand {
            Demand::Exclusive => is_later(met.first),
            Demand::Shared => is_later(met.first_exclusive),
            // Before the cursor the permits suffice for all waiters, behind it for none.
            Demand::Permits(count) => match met.line.get(met.served) {
                Some(next) if next.place == place => {
                    met.served_permits + u64::from(count) <= met.potential(state)
                }
                next => next.is_none_or(|next| place < next.place),
            },
        }
    }

    /// Moves the cursors over waiters that have finished.
    fn advance(&mut self, number: usize) {
        let (met, owners) = (&mut self.resources[number], &self.owners);
        let line = &met.line;
        let gone = |at: usize| line.get(at).is_some_and(|entry| owners[entry.owner].is_reduced);
        let shares = |at: usize| line.get(at).is_some_and(|entry| entry.claim == Demand::Shared);
        while gone(met.first) {
            met.first += 1;
        }
        while gone(met.first_exclusive) || shares(met.first_exclusive) {
            met.first_exclusive += 1;
        }
    }

    /// Moves the cursor of a semaphore's queue over the waiters for which the permits suffice, and enlists
    /// them.
    fn serve(&mut self, number: usize) {
        let state = &self.graph.resources[self.met_resources.slot(number)];
        let potential = self.resources[number].potential(state);
        loop {
            let met = &mut self.resources[number];
            let Some(&InLine { owner, claim, .. }) = met.line.get(met.served) else { return };
            self.steps += 1;
            if !self.owners[owner].is_reduced {
                let with_it = met.served_permits + permits(Some(claim));
                if with_it > potential {
                    return;
                }
                met.served_permits = with_it;
            }
            met.served += 1;
            self.enlist(owner);
        }
    }

    /// Removes the claims of a finished owner from the queues of semaphores.
    fn leave_lines(&mut self, number: usize) {
        let (Order::Kept, Some(wait)) = (self.order, self.wait_of(number)) else { return };
        for claim in wait.claims.iter().filter(|claim| claim.demand.is_permits()) {
            let Some(resource) = self.met_resources.number(claim.resource) else { continue };
            let place = self.graph.resources[claim.resource].place(self.met_owners.slot(number), wait.turn);
            let met = &mut self.resources[resource];
            let served = &met.line[..met.served];
            if served.last().is_some_and(|last| place <= last.place) {
                met.served_permits -= permits(Some(claim.demand));
            }
        }
    }

    /// Enlists the waiters that may proceed now. For a lock these are the first waiter, the first exclusive
    /// one, and all sharers before that. For a semaphore these are the waiters that the permits now reach.
    fn wake_line(&mut self, number: usize) {
        let state = &self.graph.resources[self.met_resources.slot(number)];
        if state.limit.is_some() {
            self.serve(number);
            let met = &self.resources[number];
            // The next waiter may proceed with less than it claims.
            if let Some(&InLine { owner, .. }) = met.line.get(met.served) {
                self.enlist(owner);
            }
            return;
        }
        self.advance(number);
        let met = &mut self.resources[number];
        if met.blockers > 0 && met.is_exclusive {
            return;
        }
        let mut turns: Vec<usize> = Vec::new();
        turns.extend(met.line.get(met.first).map(|entry| entry.owner));
        turns.extend(met.line.get(met.first_exclusive).map(|entry| entry.owner));
        let sharing = met.sharing.max(met.first)..met.first_exclusive;
        met.sharing = met.first_exclusive;
        turns.extend(met.line.get(sharing).into_iter().flatten().map(|entry| entry.owner));
        for owner in turns {
            self.enlist(owner);
        }
    }
}

impl MetResource {
    fn add_blocker(&mut self, holder: Slot, demand: Demand) {
        self.blockers += 1;
        self.last ^= holder;
        self.is_exclusive |= demand == Demand::Exclusive;
        self.blocked_permits += permits(Some(demand));
    }

    fn remove_blocker(&mut self, holder: Slot, demand: Option<Demand>) {
        self.blockers -= 1;
        self.last ^= holder;
        self.blocked_permits -= permits(demand);
    }

    /// Returns the number of permits that are available after all owners that can finish have finished.
    fn potential(&self, semaphore: &Resource) -> u64 {
        u64::from(semaphore.limit.unwrap_or(0)).saturating_sub(self.blocked_permits)
    }
}
