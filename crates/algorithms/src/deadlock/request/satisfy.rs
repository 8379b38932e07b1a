//! The choice a request makes: leftmost-first, minimal, exact.
//!
//! The preorder array is read from left to right with a stack of open gates. At a member that its gate could do
//! without, a *choice point* is left behind: "taken; otherwise skip it". A claim that is not available goes back to
//! the last choice point. A member that succeeded and names no repeated semaphore can stand in nobody's way, so its
//! choice points are cut; then every leaf is looked at once. Only entangled members are ever reconsidered.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::{Claim, Demand, Gate, Node, Request};

impl<R: Ord> Request<R> {
    /// The set to take when the request is satisfied by what is available: the first alternative from the left,
    /// each name once, modes merged to the stronger and permits added, in order of first mention.
    ///
    /// `available(name, demand)` must be monotone: what is available in a demand is available in a weaker one.
    pub fn satisfy(&self, available: impl FnMut(&R, Demand) -> bool) -> Option<Vec<Claim<R>>>
    where
        R: Clone,
    {
        let mut search = Search::new(self);
        search.run(available).then(|| merge(search.taken))
    }

    /// Whether the request is satisfied by what is available.
    pub fn is_satisfied(&self, available: impl FnMut(&R, Demand) -> bool) -> bool {
        Search::new(self).run(available)
    }
}

/// Each name once, in order of first mention: modes to the stronger, permits added.
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

/// No gate is open: the root is done.
const ROOT: usize = usize::MAX;

struct Search<'a, R> {
    nodes: &'a [Node<R>],
    /// Versions of open gates; a version is never changed, so that a choice point can go back to one.
    gates: Vec<Open>,
    choices: Vec<Choice>,
    taken: Vec<&'a Claim<R>>,
    /// Permits taken of each semaphore; filled only if the request is entangled.
    permits: BTreeMap<&'a R, u32>,
}

/// A gate whose members are being chosen.
#[derive(Clone, Copy)]
struct Open {
    parent: usize,
    gate: Gate,
    missing: u32,
    /// Members not yet begun.
    ahead: u32,
    /// Choice points there were before the member in hand.
    choices: usize,
    /// The member in hand can stand in nobody's way.
    free: bool,
}

/// Where to go back to, to skip a member that was taken.
struct Choice {
    member: usize,
    /// The gate, as it is once the member is begun.
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

    /// Takes the member at `at` in hand; leaves a choice point if the gate could do without it.
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

    /// A member of `gate` holds, and the array goes on at `at`: closes every gate that this completes.
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

    /// Undoes everything since the last choice point, and skips the member taken there.
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

    /// Takes a claim on top of what is taken already, if that much is available. Modes need no adding up: the
    /// stronger of two is available exactly when both are.
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
