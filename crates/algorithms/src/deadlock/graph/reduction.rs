//! Graph reduction over what is reachable: whoever can proceed does, finishes, and gives everything back.
//!
//! Exploration goes forward from some waiters: to the resources they ask for, to the holders of those that are
//! themselves blocked (a running holder finishes by assumption, so it is no obstacle), to what those ask for. Then
//! waiters are examined; one whose request is satisfied is *reduced*, and only the waiters that this can help are
//! examined again. What is left over is stuck. The order of steps does not matter: helping never hurts.
//!
//! Two readings of "can proceed": [`Order::Ignored`] looks at holders only (hard edges), which decides deadlock;
//! [`Order::Kept`] also makes a waiter wait for those before it in the line (soft edges), which decides overtaking.

use alloc::vec::Vec;
use core::ops::Bound;

use super::super::request::{Claim, Demand};
use super::slots::{Local, Slot};
use super::{Place, Resource, Wait, WaitGraph, permits};

/// Whether waiters stand back for those before them in line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Ignored,
    Kept,
}

pub(super) struct Reduction<'g, R, O> {
    graph: &'g WaitGraph<R, O>,
    order: Order,
    /// Owners assumed never to finish.
    never: Vec<Slot>,
    met_owners: Local,
    owners: Vec<MetOwner>,
    explored: usize,
    met_resources: Local,
    resources: Vec<MetResource>,
    /// Owner holds resource: a list for each owner, threaded through one array.
    holds: Vec<HoldEdge>,
    /// Owners to be examined.
    agenda: Vec<usize>,
    /// Claims, holds and places looked at, and requests examined: the work done.
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

/// A resource as the reduction sees it: less and less in the way.
#[derive(Default)]
struct MetResource {
    /// Holders that are blocked and not reduced, and the exclusive or of their slots: the last one's name.
    blockers: u32,
    last: Slot,
    is_exclusive: bool,
    blocked_permits: u64,
    /// Order ignored: who to examine when this gets free; for a semaphore, the most modest last.
    watchers: Vec<(u32, usize)>,
    /// Watchers of a semaphore that add up several claims, so that any permit may help.
    adders: Vec<usize>,
    /// Order kept: the waiters met so far, in turn, and how far they are served.
    line: Vec<InLine>,
    first: usize,
    first_exclusive: usize,
    sharing: usize,
    /// Of a semaphore's line: whoever stands before this place will have all it claims, and was enlisted; and what
    /// those of them who still wait claim. Permits only come back and claims only go, so it never moves back.
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

    /// Reduces everything that `start` can reach, and answers whether `start` itself can proceed. May be asked
    /// again for others; what was found so far stays.
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

    /// Reduces everything that `start` can reach, once `start` has finished. It may have been met before.
    pub(super) fn finish(&mut self, start: Slot) {
        let start = self.meet_owner(start);
        if !self.owners[start].is_reduced {
            self.reduce(start);
        }
        self.run();
    }

    /// Met, and left over.
    pub(super) fn is_stuck(&self, owner: Slot) -> bool {
        self.met_owners.number(owner).is_some_and(|number| !self.owners[number].is_reduced)
    }

    /// Everybody met and left over, in order of meeting.
    pub(super) fn stuck(&self) -> impl Iterator<Item = Slot> {
        let left = self.owners.iter().enumerate().filter(|(_, owner)| !owner.is_reduced);
        left.map(|(number, _)| self.met_owners.slot(number))
    }

    /// Whether `owner` could have so much of the resource, once everybody who is reduced has finished.
    pub(super) fn available(&mut self, owner: Slot, resource: Slot, demand: Demand) -> bool {
        // What was not met stands in nobody's way.
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

    /// Follows requests to blocked holders until nothing new is met.
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

    /// Whether no blocked holder and nobody in line can be in the way of all that is claimed.
    fn is_unhindered(&self, owner: Slot, claim: &Claim<Slot>) -> bool {
        let state = &self.graph.resources[claim.resource];
        let is_held_for_ever = self.never.iter().any(|never| state.holders.contains_key(never));
        if self.order == Order::Kept || is_held_for_ever {
            return false;
        }
        match claim.demand {
            Demand::Exclusive => state.blocked.keys().all(|holder| *holder == owner),
            // One exclusive holder is the only holder.
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

    /// Meets everybody in line up to and including `place`.
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

    /// Whether the request is satisfied by now.
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

    /// The owner finishes: its holds are given back, its places in line are left.
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

    /// The resource is less in the way than before: enlists whom that may help.
    fn wake(&mut self, resource: usize) {
        let met = &self.resources[resource];
        if met.blockers == 1
            && let Some(last) = self.met_owners.number(met.last)
        {
            self.enlist(last); // an upgrader that waited for the other sharers
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

/// Order kept: the line, served by cursors that only move forward.
impl<R: Ord + Copy, O: Ord + Copy> Reduction<'_, R, O> {
    /// Whether nobody earlier in line, still waiting, claims what stands against `demand`.
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
            // Before the cursor there is enough for everybody, beyond it for nobody.
            Demand::Permits(count) => match met.line.get(met.served) {
                Some(next) if next.place == place => {
                    met.served_permits + u64::from(count) <= met.potential(state)
                }
                next => next.is_none_or(|next| place < next.place),
            },
        }
    }

    /// Moves the cursors over those that have finished.
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

    /// Moves the cursor of a semaphore's line over those for whom there will be permits, and enlists them.
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

    /// The owner has finished: what it claimed of semaphores is nobody's any more.
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

    /// Enlists those whose turn it may be: the first, all sharers before the first exclusive claim, and of a
    /// semaphore's waiters those that the permits now reach.
    fn wake_line(&mut self, number: usize) {
        let state = &self.graph.resources[self.met_resources.slot(number)];
        if state.limit.is_some() {
            self.serve(number);
            let met = &self.resources[number];
            // The next one may be content with less than it claims.
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

    /// Permits there will be when everybody who can finish has.
    fn potential(&self, semaphore: &Resource) -> u64 {
        u64::from(semaphore.limit.unwrap_or(0)).saturating_sub(self.blocked_permits)
    }
}
