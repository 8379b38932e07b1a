//! Vector clocks: the number of events of each site that an event knows. They decide exactly which event
//! happened before which.
//!
//! **Rules** \[F88\], \[M89\]: tick the site's own entry before every event. On receipt, take the maximum of
//! each entry, *then* tick. One event happened before another iff its clock is smaller: at most as large in
//! every entry, and not equal. If the site of an event is known, a single comparison decides
//! ([`VectorClock::knows`]).
//!
//! **Trap**: a vector clock costs N numbers, unlike Lamport's single count. In general, fewer numbers are not
//! enough \[CB91\].

use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::NodeId;
use serde::{Deserialize, Serialize};

/// The knowledge of an event, or of a site, about the events of all sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VectorClock(Vec<u32>);

/// The causal relation of two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Causal {
    /// The clocks are of the same event.
    Equal,
    /// The first happened before the second.
    Before,
    /// The second happened before the first.
    After,
    /// Neither event could have caused the other.
    Concurrent,
}

impl VectorClock {
    /// Creates a clock of zeros for a group of that size.
    pub fn new(nodes: u32) -> Self {
        Self(vec![0; nodes as usize])
    }

    /// Returns the number of that site's events that the clock knows.
    pub fn get(&self, site: NodeId) -> u32 {
        self.0.get(site.index()).copied().unwrap_or(0)
    }

    /// Returns all entries, in order of sites.
    pub fn entries(&self) -> impl Iterator<Item = (NodeId, u32)> + '_ {
        self.0.iter().enumerate().map(|(site, count)| (NodeId(site as u32), *count))
    }

    /// Counts an event at that site.
    pub fn tick(&mut self, site: NodeId) {
        self.0[site.index()] += 1;
    }

    /// Counts the receipt at that site of a message that was sent with the clock `theirs`.
    pub fn receive(&mut self, site: NodeId, theirs: &Self) {
        self.merge(theirs);
        self.tick(site);
    }

    /// Takes over the knowledge of another clock, without counting an event.
    pub fn merge(&mut self, theirs: &Self) {
        self.0.iter_mut().zip(&theirs.0).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
    }

    /// Whether an event at `site` with the clock `theirs` is this event, or happened before it.
    pub fn knows(&self, site: NodeId, theirs: &Self) -> bool {
        theirs.get(site) <= self.get(site)
    }

    /// Returns the causal relation of two events of one run.
    pub fn compare(&self, other: &Self) -> Causal {
        let at_most = |a: &Self, b: &Self| a.0.iter().zip(&b.0).all(|(a, b)| a <= b);
        match (at_most(self, other), at_most(other, self)) {
            (true, true) => Causal::Equal,
            (true, false) => Causal::Before,
            (false, true) => Causal::After,
            (false, false) => Causal::Concurrent,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;
    use crate::clock::LamportClock;

    /// The three processes of the lectures: P1: A B C D E; P2: E' F G; P3: H I J; messages H->E', B->F, G->D,
    /// E->J.
    #[test]
    fn the_example_of_three_processes_has_its_clocks() {
        let (mut vectors, mut lamport) = (vec![VectorClock::new(3); 3], [LamportClock::new(); 3]);
        let mut seen: BTreeMap<&str, (u64, VectorClock)> = BTreeMap::new();
        let order = [
            ("A", 0, None),
            ("H", 2, None),
            ("B", 0, None),
            ("C", 0, None),
            ("E'", 1, Some("H")),
            ("F", 1, Some("B")),
            ("G", 1, None),
            ("D", 0, Some("G")),
            ("I", 2, None),
            ("E", 0, None),
            ("J", 2, Some("E")),
        ];
        for (name, site, heard) in order {
            let node = NodeId(site as u32);
            let time = match heard.map(|sender| seen[sender].clone()) {
                Some((time, vector)) => {
                    vectors[site].receive(node, &vector);
                    lamport[site].receive(time)
                }
                None => {
                    vectors[site].tick(node);
                    lamport[site].tick()
                }
            };
            seen.insert(name, (time, vectors[site].clone()));
        }
        let expected: [(&str, u64, [u32; 3]); 11] = [
            ("A", 1, [1, 0, 0]),
            ("B", 2, [2, 0, 0]),
            ("C", 3, [3, 0, 0]),
            ("D", 5, [4, 3, 1]),
            ("E", 6, [5, 3, 1]),
            ("E'", 2, [0, 1, 1]),
            ("F", 3, [2, 2, 1]),
            ("G", 4, [2, 3, 1]),
            ("H", 1, [0, 0, 1]),
            ("I", 2, [0, 0, 2]),
            ("J", 7, [5, 3, 3]),
        ];
        for (name, time, vector) in expected {
            assert_eq!(seen[name], (time, VectorClock(vector.to_vec())), "{name}");
        }
        let compare = |a: &str, b: &str| seen[a].1.compare(&seen[b].1);
        for (a, b) in [("A", "B"), ("B", "F"), ("A", "F"), ("H", "G"), ("F", "J"), ("H", "J"), ("C", "J")] {
            assert_eq!((compare(a, b), compare(b, a)), (Causal::Before, Causal::After), "{a} {b}");
        }
        assert_eq!((compare("C", "F"), compare("H", "C")), (Causal::Concurrent, Causal::Concurrent));
        assert!(seen["J"].1.knows(NodeId(0), &seen["C"].1) && !seen["F"].1.knows(NodeId(0), &seen["C"].1));
    }
}
