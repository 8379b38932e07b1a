//! The analysis of a whole wait-for graph at once: a million processes, every request model, with reasons.
//!
//! **Intuition.** *Peeling*: a running process finishes, and each process that waited for it counts down by
//! one. A process that has enough runs and finishes too, and so on. The processes that are never peeled are
//! stuck. The models differ only in the start value of the count: 1 for single and OR, all for AND, p for
//! p-out-of-q. A nested request or a semaphore is a further node that counts like a process
//! ([`Snapshot::gate`], [`Snapshot::semaphore`]).
//!
//! **Rules.** Peeling follows the waits backwards. So each added wait is linked into the list of all waits
//! for the same node, and peeling reads it once. The time is linear, without recursion, and all data is in
//! arrays. With a million processes, random memory access determines the time. Linking costs one such access
//! per wait; sorting the waits would cost three. A cycle is searched only after peeling, and only as the
//! reason. In the OR model a cycle alone proves nothing.
//!
//! **The trap.** A search for cycles *first* (Tarjan over everything) is slower, and it is correct for AND
//! only.

#[cfg(test)]
mod tests;
mod why;

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use super::request::{Claim, Demand, Node as Part, Request};

pub use why::Reason;

/// A process, or a gate or semaphore between processes.
pub type NodeIndex = u32;

/// The waits between processes at one moment. Processes have the indices `0..processes`. A process runs until
/// a wait is added.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    processes: u32,
    nodes: Vec<Node>,
    /// The members of all nodes, one node after the other.
    targets: Vec<NodeIndex>,
    /// The same waits, as lists of the waiters of each target.
    dependents: Vec<Dependent>,
    /// The weight of each member; empty while all weights are one.
    weights: Vec<u32>,
}

/// The reason why a wait was rejected. Nothing was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SnapshotError {
    /// A process or node that does not exist.
    Unknown(NodeIndex),
    /// The process waits already.
    AlreadyWaiting(NodeIndex),
    /// The threshold is zero or larger than the total weight of the members.
    Threshold,
    /// More nodes or waits than 32 bits can count.
    Full,
}

impl Snapshot {
    /// Creates a snapshot of `processes` running processes.
    pub fn new(processes: u32) -> Self {
        let nodes = vec![Node::default(); processes as usize];
        Self { processes, nodes, targets: Vec::new(), dependents: Vec::new(), weights: Vec::new() }
    }

    /// Lets `process` wait for all of `targets`: single resource, AND.
    ///
    /// # Errors
    /// As [`Snapshot::wait_for`].
    pub fn wait_for_all(&mut self, process: NodeIndex, targets: &[NodeIndex]) -> Result<(), SnapshotError> {
        let all = u32::try_from(targets.len()).map_err(|_| SnapshotError::Full)?;
        self.wait_for(process, all, targets)
    }

    /// Lets `process` wait for any of `targets`: OR.
    ///
    /// # Errors
    /// As [`Snapshot::wait_for`].
    pub fn wait_for_any(&mut self, process: NodeIndex, targets: &[NodeIndex]) -> Result<(), SnapshotError> {
        self.wait_for(process, 1, targets)
    }

    /// Lets `process` wait for `need` of `targets`: p-out-of-q.
    ///
    /// # Errors
    /// Returns an error for an unknown node, a process that waits already, or a threshold that is zero or too
    /// large.
    pub fn wait_for(
        &mut self,
        process: NodeIndex,
        need: u32,
        targets: &[NodeIndex],
    ) -> Result<(), SnapshotError> {
        self.check_runs(process)?;
        self.add_members(process, need, targets.iter().map(|target| (*target, 1)))
    }

    /// Adds a node that stands for `need` of `targets`. Other nodes can wait for it: AND-OR of any depth.
    ///
    /// # Errors
    /// As [`Snapshot::wait_for`].
    pub fn gate(&mut self, need: u32, targets: &[NodeIndex]) -> Result<NodeIndex, SnapshotError> {
        self.add_node(need, targets.iter().map(|target| (*target, 1)))
    }

    /// Adds a node that stands for `shortage` missing permits. Each holder can return its number of permits.
    ///
    /// # Errors
    /// As [`Snapshot::wait_for`].
    pub fn semaphore(
        &mut self,
        shortage: u32,
        holders: &[(NodeIndex, u32)],
    ) -> Result<NodeIndex, SnapshotError> {
        self.add_node(shortage, holders.iter().copied())
    }

    /// Lets `process` wait as `request` states. Its names are processes or nodes, and its modes are ignored.
    /// A claim of several permits is rejected; use [`Snapshot::semaphore`] for them.
    ///
    /// # Errors
    /// As [`Snapshot::wait_for`]; [`SnapshotError::Threshold`] for more than one permit.
    pub fn wait_for_request(
        &mut self,
        process: NodeIndex,
        request: &Request<NodeIndex>,
    ) -> Result<(), SnapshotError> {
        let is_plural = |claim: &Claim<NodeIndex>| matches!(claim.demand, Demand::Permits(2..));
        if request.claims().any(is_plural) {
            return Err(SnapshotError::Threshold);
        }
        if let Some(unknown) = request.names().find(|name| **name as usize >= self.nodes.len()) {
            return Err(SnapshotError::Unknown(*unknown));
        }
        self.check_runs(process)?;
        // Go from right to left, so that the members of a gate are on top of the stack when it comes. The
        // outermost gate is the process itself.
        let mut members: Vec<NodeIndex> = Vec::new();
        for part in request.nodes().iter().skip(1).rev() {
            let node = match part {
                Part::Claim(claim) => claim.resource,
                Part::Gate(gate) => {
                    let mut of = members.split_off(members.len() - gate.members as usize);
                    of.reverse();
                    self.gate(gate.need, &of)?
                }
            };
            members.push(node);
        }
        members.reverse();
        match &request.nodes()[0] {
            Part::Claim(claim) => self.wait_for(process, 1, &[claim.resource]),
            Part::Gate(gate) => self.wait_for(process, gate.need, &members),
        }
    }

    /// Peels the graph.
    pub fn analyse(&self) -> Analysis<'_> {
        let mut missing: Vec<u32> = self.nodes.iter().map(|node| node.need).collect();
        let running = (0..).zip(&self.nodes).filter(|(_, node)| node.need == 0);
        let mut finished: Vec<NodeIndex> = running.map(|(index, _)| index).collect();
        self.peel(&mut finished, |waiter, weight| count_down(&mut missing[waiter as usize], weight));
        Analysis { snapshot: self, missing }
    }

    fn check_runs(&self, process: NodeIndex) -> Result<(), SnapshotError> {
        match self.nodes.get(process as usize) {
            Some(Node { need: 0, .. }) => Ok(()),
            Some(_) if process < self.processes => Err(SnapshotError::AlreadyWaiting(process)),
            _ => Err(SnapshotError::Unknown(process)),
        }
    }

    fn add_node(
        &mut self,
        need: u32,
        members: impl Iterator<Item = (NodeIndex, u32)> + Clone,
    ) -> Result<NodeIndex, SnapshotError> {
        let index = u32::try_from(self.nodes.len()).map_err(|_| SnapshotError::Full)?;
        self.add_members(index, need, members)?;
        Ok(index)
    }

    /// Adds waits; all waits come through here. It checks them first, so that nothing is added in case of an
    /// error.
    fn add_members(
        &mut self,
        waiter: NodeIndex,
        need: u32,
        members: impl Iterator<Item = (NodeIndex, u32)> + Clone,
    ) -> Result<(), SnapshotError> {
        let (mut count, mut worth, mut is_weighted) = (0usize, 0u64, !self.weights.is_empty());
        for (target, weight) in members.clone() {
            if target as usize >= self.nodes.len() {
                return Err(SnapshotError::Unknown(target));
            }
            count += 1;
            worth += u64::from(weight);
            is_weighted |= weight != 1;
        }
        if need == 0 || worth < u64::from(need) {
            return Err(SnapshotError::Threshold);
        }
        // The largest number is reserved: it marks the end of a list.
        let end = u32::try_from(self.targets.len() + count).ok().filter(|end| *end != END_OF_LIST);
        let end = end.ok_or(SnapshotError::Full)?;
        let first = u32::try_from(self.targets.len()).expect("no later than the end");
        if is_weighted {
            self.weights.resize(self.targets.len(), 1);
            self.weights.extend(members.clone().map(|(_, weight)| weight));
        }
        for (at, (target, _)) in (first..).zip(members) {
            let next = core::mem::replace(&mut self.nodes[target as usize].dependents, at);
            self.targets.push(target);
            self.dependents.push(Dependent { waiter, next });
        }
        if waiter as usize == self.nodes.len() {
            self.nodes.push(Node::default());
        }
        let node = &mut self.nodes[waiter as usize];
        (node.need, node.first, node.end) = (need, first, end);
        Ok(())
    }

    fn members(&self, node: NodeIndex) -> impl Iterator<Item = (NodeIndex, u32)> {
        let Node { first, end, .. } = self.nodes[node as usize];
        (first..end).map(move |at| (self.targets[at as usize], self.weight(at)))
    }

    fn weight(&self, at: u32) -> u32 {
        self.weights.get(at as usize).copied().unwrap_or(1)
    }
}

/// The stuck processes of a [`Snapshot`].
#[derive(Clone, Debug)]
pub struct Analysis<'s> {
    snapshot: &'s Snapshot,
    /// The number that each node still lacks; zero for nodes that can proceed.
    missing: Vec<u32>,
}

impl Analysis<'_> {
    /// Returns whether the process waits for ever.
    pub fn is_stuck(&self, process: NodeIndex) -> bool {
        self.missing.get(process as usize).is_some_and(|missing| *missing > 0)
    }

    /// Iterates over the processes that wait for ever.
    pub fn stuck(&self) -> impl Iterator<Item = NodeIndex> {
        (0..self.snapshot.processes).filter(|process| self.is_stuck(*process))
    }

    /// Chooses processes to abort so that no process is stuck. While a cycle of stuck waits exists, it
    /// chooses the process on it with the least `cost`; of equals, the one with the lower index. An aborted
    /// process no longer waits, so it runs and finishes.
    ///
    /// Every victim is on a cycle when it is chosen. The set need not be the smallest: that is NP-hard for
    /// AND (feedback vertex set \[Karp72\]). The time is linear. A victim in the middle of a long cycle makes
    /// the search walk part of the cycle again. After [`WALKED_AGAIN`] such nodes, only the last [`LAST`]
    /// processes of a cycle are considered.
    pub fn victims<C: Ord>(&self, cost: impl FnMut(NodeIndex) -> C) -> Vec<NodeIndex> {
        self.victims_within(WALKED_AGAIN, cost)
    }

    fn victims_within<C: Ord>(
        &self,
        mut walks: usize,
        mut cost: impl FnMut(NodeIndex) -> C,
    ) -> Vec<NodeIndex> {
        let snapshot = self.snapshot;
        let mark = |(node, missing): (&Node, &u32)| Mark {
            missing: *missing,
            ahead: node.first,
            member: snapshot.targets.get(node.first as usize).copied().unwrap_or(0),
            place: OFF_PATH,
        };
        let mut marks: Vec<Mark> = snapshot.nodes.iter().zip(&self.missing).map(mark).collect();
        let mut victims = Vec::new();
        let mut path: Vec<NodeIndex> = Vec::new();
        let mut finished = Vec::new();
        for start in 0..snapshot.processes {
            while marks[start as usize].missing > 0 {
                let next = path.last().map_or(start, |last| snapshot.first_stuck(*last, &mut marks));
                let mark = &mut marks[next as usize];
                if mark.place == OFF_PATH {
                    mark.place = u32::try_from(path.len()).expect("a path has no node twice");
                    path.push(next);
                    continue;
                }
                let cycle = &path[mark.place as usize..];
                let considered = if walks > 0 { cycle.len() } else { LAST };
                // Gates wait only for older nodes, so there is a process on every cycle.
                let processes = cycle.iter().rev().copied().filter(|node| *node < snapshot.processes);
                let victim = processes.take(considered).min_by_key(|node| (cost(*node), *node));
                let victim = victim.expect("a process on the cycle");
                victims.push(victim);
                marks[victim as usize].missing = 0;
                let mut keep = marks[victim as usize].place;
                finished.push(victim);
                snapshot.peel(&mut finished, |waiter, weight| {
                    let mark = &mut marks[waiter as usize];
                    let is_peeled = count_down(&mut mark.missing, weight);
                    keep = if is_peeled { keep.min(mark.place) } else { keep };
                    is_peeled
                });
                walks = walks.saturating_sub(path.len() - keep as usize);
                for left in path.drain(keep as usize..) {
                    marks[left as usize].place = OFF_PATH;
                }
            }
        }
        victims
    }
}

impl Snapshot {
    /// Calls `is_done` with each waiter of a finished node and the weight of the wait. If `is_done` returns
    /// true, the waiter is finished too.
    fn peel(&self, finished: &mut Vec<NodeIndex>, mut is_done: impl FnMut(NodeIndex, u32) -> bool) {
        while let Some(node) = finished.pop() {
            let mut at = self.nodes[node as usize].dependents;
            while at != END_OF_LIST {
                let Dependent { waiter, next } = self.dependents[at as usize];
                if is_done(waiter, self.weight(at)) {
                    finished.push(waiter);
                }
                at = next;
            }
        }
    }

    /// Returns the first stuck member. A member that is no longer stuck never gets stuck again, so the search
    /// only moves forward.
    fn first_stuck(&self, node: NodeIndex, marks: &mut [Mark]) -> NodeIndex {
        let mut member = marks[node as usize].member;
        while marks[member as usize].missing == 0 {
            let mark = &mut marks[node as usize];
            mark.ahead += 1;
            member = self.targets[mark.ahead as usize];
            mark.member = member;
        }
        member
    }
}

/// Counts down. Returns whether nothing is missing now, but something was before.
fn count_down(missing: &mut u32, weight: u32) -> bool {
    let before = *missing;
    *missing = before.saturating_sub(weight);
    before > 0 && *missing == 0
}

/// The data of a node for the search for victims. It is in one place, because memory access determines the
/// time.
struct Mark {
    /// The number that the node still lacks.
    missing: u32,
    /// The index of the current wait, and its target.
    ahead: u32,
    member: NodeIndex,
    /// The index on the path, or `OFF_PATH`.
    place: u32,
}

/// The number of nodes that may be walked again in the search for the cheapest victims.
pub const WALKED_AGAIN: usize = 250_000;
/// The number of processes of a cycle that are considered after that.
pub const LAST: usize = 8;

const OFF_PATH: u32 = u32::MAX;

/// The threshold of a node, the range of its members, and the list of its waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    /// The threshold; zero if the node runs.
    need: u32,
    first: u32,
    end: u32,
    /// The last wait for this node: the head of its list.
    dependents: u32,
}

impl Default for Node {
    fn default() -> Self {
        Self { need: 0, first: 0, end: 0, dependents: END_OF_LIST }
    }
}

/// A wait in the list of its target: the waiter, and the previous wait for the same target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Dependent {
    waiter: NodeIndex,
    next: u32,
}

const END_OF_LIST: u32 = u32::MAX;

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(node) => write!(f, "there is no node {node}"),
            Self::AlreadyWaiting(process) => write!(f, "process {process} already waits"),
            Self::Threshold => f.write_str("the threshold must be from 1 to the number of awaited processes"),
            Self::Full => f.write_str("too many nodes: at most 2^32 fit"),
        }
    }
}

impl core::error::Error for SnapshotError {}
