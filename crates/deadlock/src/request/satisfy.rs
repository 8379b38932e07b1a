//! The evaluation of a request: leftmost-first, minimal and exact.
//!
//! It reads the preorder array from left to right with a stack of open gates. If the gate can be satisfied
//! without a member, the member leaves a *choice point*: take it, or else skip it. After a claim that is not
//! available, the search returns to the last choice point. A member that succeeded and names no repeated
//! semaphore cannot make another member impossible, so its choice points are removed. Then each leaf is read
//! once. Only entangled members are ever tried again.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Claim, Demand, Gate, Node, Request};

impl<R: Ord> Request<R> {
    /// Returns the claims to take if the available resources satisfy the request: those of the first
    /// available alternative from the left. Each name occurs once, in order of first mention; modes merge to
    /// the stronger one, and permits are added.
    ///
    /// `available(name, demand)` must be monotone: if a demand is available, every weaker one is available
    /// too.
    pub fn satisfy(&self, available: impl FnMut(&R, Demand) -> bool) -> Option<Vec<Claim<R>>>
    where
        R: Clone,
    {
        let mut search = Search::new(self);
        search.run(available).then(|| merge(search.taken))
    }

    /// Returns whether the available resources satisfy the request.
    pub fn is_satisfied(&self, available: impl FnMut(&R, Demand) -> bool) -> bool {
        Search::new(self).run(available)
    }
}

/// Merges claims so that each name occurs once, in order of first mention. Modes merge to the stronger one,
/// and permits are added.
pub(super) fn merge<'a, R: Ord + Clone + 'a>(
    claims: impl IntoIterator<Item = &'a Claim<R>>,
) -> Vec<Claim<R>> {
    let mut merged: Vec<Claim<R>> = Vec::new();
    let mut place: BTreeMap<&R, usize> = BTreeMap::new();
    for claim in claims {
        let at = *place.entry(&claim.resource).or_insert(merged.len());
        match merged.get_mut(at) {
            None => merged.push(claim.clone()),
            Some(both) => {
                both.demand = both.demand.and(claim.demand).expect("a request names no lock as semaphore");
            }
        }
    }
    merged
}

/// The parent of the outermost gate: no gate is open.
const ROOT: usize = usize::MAX;

struct Search<'a, R> {
    nodes: &'a [Node<R>],
    /// Versions of open gates. A version never changes, so a choice point can return to it.
    gates: Vec<Open>,
    choices: Vec<Choice>,
    taken: Vec<&'a Claim<R>>,
    /// The permits taken of each semaphore. Used only if the request is entangled.
    permits: BTreeMap<&'a R, u32>,
}

/// A gate whose members are being chosen.
#[derive(Clone, Copy)]
struct Open {
    parent: usize,
    gate: Gate,
    missing: u32,
    /// The number of members that have not begun.
    ahead: u32,
    /// The number of choice points before the current member.
    choices: usize,
    /// Whether the current member cannot make another member impossible.
    free: bool,
}

/// A place to which the search can return, in order to skip a member that it took.
struct Choice {
    member: usize,
    /// The version of the gate at the start of this member.
    gate: usize,
    taken: usize,
}

impl<'a, R: Ord> Search<'a, R> {
    fn new(request: &'a Request<R>) -> Self {
        let nodes = request.nodes();
        Self { nodes, gates: Vec::new(), choices: Vec::new(), taken: Vec::new(), permits: BTreeMap::new() }
    }

    fn run(&mut self, mut available: impl FnMut(&R, Demand) -> bool) -> bool {
        let (mut at, mut top) = (0, ROOT);
        loop {
            match &self.nodes[at] {
                Node::Gate(gate) => {
                    let Gate { need: missing, members: ahead, .. } = *gate;
                    self.gates.push(Open {
                        parent: top,
                        gate: *gate,
                        missing,
                        ahead,
                        choices: 0,
                        free: true,
                    });
                    at += 1;
                    top = self.begin_member(at, self.gates.len() - 1);
                }
                Node::Claim(claim) => {
                    let next = if self.take(claim, &mut available) {
                        self.succeed(at + 1, top)
                    } else {
                        match self.backtrack() {
                            Some(next) => next,
                            None => return false,
                        }
                    };
                    if next.1 == ROOT {
                        return true;
                    }
                    at = next.0;
                    top = self.begin_member(at, next.1);
                }
            }
        }
    }

    /// Begins the member at `at`. Leaves a choice point if the gate can be satisfied without it.
    fn begin_member(&mut self, at: usize, gate: usize) -> usize {
        let mut open = self.gates[gate];
        open.choices = self.choices.len();
        open.free = match &self.nodes[at] {
            Node::Gate(member) => !member.entangled,
            Node::Claim(claim) => !(open.gate.entangled && claim.demand.is_permits()),
        };
        let optional = open.ahead > open.missing;
        open.ahead -= 1;
        self.gates.push(open);
        let gate = self.gates.len() - 1;
        if optional {
            self.choices.push(Choice { member: at, gate, taken: self.taken.len() });
        }
        gate
    }

    /// Records that a member of `gate` is satisfied, and closes every gate that this completes. The search
    /// continues at `at`.
    fn succeed(&mut self, mut at: usize, mut gate: usize) -> (usize, usize) {
        while gate != ROOT {
            let mut open = self.gates[gate];
            if open.free {
                self.choices.truncate(open.choices);
            }
            open.missing -= 1;
            if open.missing > 0 {
                self.gates.push(open);
                return (at, self.gates.len() - 1);
            }
            (at, gate) = (open.gate.end as usize, open.parent);
        }
        (at, ROOT)
    }

    /// Undoes everything since the last choice point, and skips the member of that choice point.
    fn backtrack(&mut self) -> Option<(usize, usize)> {
        let Choice { member, gate, taken } = self.choices.pop()?;
        for claim in self.taken.drain(taken..) {
            if let (Demand::Permits(count), Some(sum)) = (claim.demand, self.permits.get_mut(&claim.resource))
            {
                *sum -= count;
            }
        }
        self.gates.truncate(gate + 1);
        let next = match &self.nodes[member] {
            Node::Gate(skipped) => skipped.end as usize,
            Node::Claim(_) => member + 1,
        };
        Some((next, gate))
    }

    /// Takes a claim in addition to those already taken, if that much is available. Modes need no addition:
    /// the stronger of two is available exactly when both are.
    fn take(&mut self, claim: &'a Claim<R>, available: &mut impl FnMut(&R, Demand) -> bool) -> bool {
        let demand = claim.demand;
        if let (Demand::Permits(count), true) = (demand, self.nodes[0].is_entangled()) {
            let sum = self.permits.entry(&claim.resource).or_insert(0);
            let Some(total) = sum.checked_add(count) else { return false };
            if !available(&claim.resource, Demand::Permits(total)) {
                return false;
            }
            *sum = total;
        } else if !available(&claim.resource, demand) {
            return false;
        }
        self.taken.push(claim);
        true
    }
}
