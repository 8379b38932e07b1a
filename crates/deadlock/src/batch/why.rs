//! The reason why a process of a snapshot is stuck.
//!
//! First it follows *necessary* waits: those without which a node cannot proceed, however the other waits
//! end. If this path closes, the cycle is the reason. Otherwise it looks for a component of stuck nodes that
//! no wait leaves. This is a knot if each of its nodes needs only one member. Otherwise the reason is what
//! the process lacks.

use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::super::scc::first_component;
use super::{Analysis, Node, NodeIndex, OFF_PATH};

/// The reason why a process is stuck. It names processes and leaves out the gates and semaphores between
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// Each process needs the next one, and the last needs the first.
    Cycle(Vec<NodeIndex>),
    /// Each process needs any one of several, and all of these are in the knot; sorted.
    Knot(Vec<NodeIndex>),
    /// The missing number could come only from these nodes, which are stuck.
    Unsatisfiable {
        /// The number that is missing.
        missing: u32,
        /// The members that will never finish.
        stuck: Vec<NodeIndex>,
    },
}

impl Analysis<'_> {
    /// Returns the reason why the process is stuck; `None` if it is not. Linear in the stuck nodes that can
    /// be reached.
    pub fn why(&self, process: NodeIndex) -> Option<Reason> {
        if !self.is_stuck(process) || process >= self.snapshot.processes {
            return None;
        }
        let cycle = self.necessary_cycle(process).map(Reason::Cycle);
        Some(cycle.or_else(|| self.knot(process).map(Reason::Knot)).unwrap_or_else(|| {
            Reason::Unsatisfiable {
                missing: self.missing[process as usize],
                stuck: self.stuck_members(process).map(|(member, _)| member).collect(),
            }
        }))
    }

    /// Returns one stuck process of each cycle that the first stuck members form. Every stuck process leads
    /// to one of these cycles, so their reasons explain all stuck processes.
    pub fn representatives(&self) -> Vec<NodeIndex> {
        let mut walk = vec![0u32; self.snapshot.nodes.len()];
        let mut found = Vec::new();
        for start in self.stuck() {
            let number = start + 1;
            let mut at = start;
            while walk[at as usize] == 0 {
                walk[at as usize] = number;
                at = self.first_stuck(at);
            }
            if walk[at as usize] == number {
                // Gates wait only for older nodes, so a process comes soon.
                while at >= self.snapshot.processes {
                    at = self.first_stuck(at);
                }
                found.push(at);
            }
        }
        found
    }

    /// Returns the first member of a stuck node that is stuck too.
    fn first_stuck(&self, node: NodeIndex) -> NodeIndex {
        let mut stuck = self.stuck_members(node);
        stuck.next().map(|(member, _)| member).expect("a stuck node waits for a stuck one")
    }

    fn stuck_members(&self, node: NodeIndex) -> impl Iterator<Item = (NodeIndex, u32)> {
        self.snapshot.members(node).filter(|(member, _)| self.is_stuck(*member))
    }

    /// Returns a stuck member without which `node` cannot proceed: all other members together are not enough.
    fn necessary(&self, node: NodeIndex) -> Option<NodeIndex> {
        let worth: u64 = self.snapshot.members(node).map(|(_, weight)| u64::from(weight)).sum();
        let spare = worth - u64::from(self.snapshot.nodes[node as usize].need);
        self.stuck_members(node).find(|(_, weight)| u64::from(*weight) > spare).map(|(member, _)| member)
    }

    fn necessary_cycle(&self, process: NodeIndex) -> Option<Vec<NodeIndex>> {
        let mut place = vec![OFF_PATH; self.snapshot.nodes.len()];
        let mut path = Vec::new();
        let mut at = process;
        while place[at as usize] == OFF_PATH {
            place[at as usize] = u32::try_from(path.len()).expect("a path has no node twice");
            path.push(at);
            at = self.necessary(at)?;
        }
        Some(self.processes(path.split_off(place[at as usize] as usize)))
    }

    fn knot(&self, process: NodeIndex) -> Option<Vec<NodeIndex>> {
        let snapshot = self.snapshot;
        let edges = |node: u32| {
            let Node { first, end, .. } = snapshot.nodes[node as usize];
            first..end
        };
        let stuck = self.missing.iter().map(|missing| *missing > 0);
        let nodes = first_component(process, stuck, edges, |place| snapshot.targets[place as usize]);
        let is_or = |node: &NodeIndex| {
            let need = snapshot.nodes[*node as usize].need;
            need == 1 || snapshot.members(*node).all(|(_, weight)| weight >= need)
        };
        nodes.iter().all(is_or).then(|| self.processes(nodes))
    }

    fn processes(&self, mut nodes: Vec<NodeIndex>) -> Vec<NodeIndex> {
        nodes.retain(|node| *node < self.snapshot.processes);
        nodes
    }
}
