//! The properties by which every algorithm is judged, one per item, and a judge that observes everything.
//!
//! The truth is the reduction of both ends of all edges at one moment. A grant in transit counts as granted.
//! A detector has less information. It is judged at the moment at which it declares a process.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use conclave_kernel::{Kind, NodeId, NodeMap, NodeSet, Property};

use super::records::Known;
use super::underlying::{Underlying, Wait};

/// Only deadlocked processes are declared deadlocked.
pub const NO_PHANTOM: Property = Property {
    name: "no-phantom",
    kind: Kind::Always,
    statement: "a process that is declared deadlocked is stuck at that moment, unless an abort has just freed it",
    source: "[CMH83 §2]",
};
/// Every deadlock is found.
pub const NO_MISS: Property = Property {
    name: "no-miss",
    kind: Kind::Eventually,
    statement: "every deadlock is found: at rest, no process is stuck if the declared ones are left out",
    source: "[CMH83 §2]",
};
/// No process is aborted without need.
pub const ONE_VICTIM: Property = Property {
    name: "one-victim",
    kind: Kind::Always,
    statement: "an aborted process waits for itself, directly or through others, at that moment: a deadlock has one victim",
    source: "[K87 §4]",
};
/// No dead edge remains.
pub const PURGED: Property = Property {
    name: "purged",
    kind: Kind::Eventually,
    statement: "at rest, no process remembers a request by which its sender no longer waits",
    source: "[K87 §4]",
};

/// All properties of the problem.
pub const PROPERTIES: [Property; 4] = [NO_PHANTOM, NO_MISS, ONE_VICTIM, PURGED];

/// A violation of a property in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The violated property.
    pub property: Property,
    /// The reason, in a sentence.
    pub why: String,
}

/// A judge that observes a run from outside. The caller reports every request and every grant at the moment
/// when it is made.
///
/// Each call costs at most one reduction of all waits. The checker keeps a copy in every state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Judge {
    processes: Vec<Process>,
    /// The number of aborts.
    aborts: u64,
    /// The number of late declarations: an abort has freed the process since it blocked. They are not
    /// phantoms.
    late: u64,
    phantoms: u64,
    needless: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    requests: u64,
    wait: Option<Wait>,
    /// The number of aborts before the process blocked.
    aborts_before: u64,
    /// The request by which the process was last declared deadlocked.
    declared: u64,
    granted: NodeMap<u64>,
}

impl Judge {
    /// Creates a judge for a group of this size.
    pub fn new(nodes: u32) -> Self {
        let process = |_| Process {
            requests: 0,
            wait: None,
            aborts_before: 0,
            declared: 0,
            granted: NodeMap::new(nodes),
        };
        Self { processes: (0..nodes).map(process).collect(), aborts: 0, late: 0, phantoms: 0, needless: 0 }
    }

    /// Records that a process blocks. Returns whether it closes a deadlock: it is stuck and waits, directly
    /// or indirectly, for itself.
    pub fn asks(&mut self, process: NodeId, need: u32, of: NodeSet) -> bool {
        let state = &mut self.processes[process.index()];
        state.requests += 1;
        state.aborts_before = self.aborts;
        state.wait = Some(Wait { number: state.requests, need, of });
        self.truth(&NodeSet::new(), |known| known.is_on_cycle(process))
    }

    /// Records that process `by` grants the request of `to` with this number.
    pub fn grants(&mut self, by: NodeId, to: NodeId, number: u64) {
        self.processes[by.index()].granted.insert(to, number);
    }

    /// Records that a process has enough grants.
    pub fn runs(&mut self, process: NodeId) {
        self.processes[process.index()].wait = None;
    }

    /// Records that a process is declared deadlocked, and judges it.
    pub fn declares(&mut self, process: NodeId, number: u64) -> Option<Breach> {
        let is_stuck = self.truth(&NodeSet::new(), |known| known.stuck().contains(process));
        let state = &mut self.processes[process.index()];
        let is_current = state.wait.as_ref().is_some_and(|wait| wait.number == number);
        state.declared = number;
        if is_stuck && is_current {
            return None;
        }
        if self.aborts > state.aborts_before || number < state.requests && self.aborts > 0 {
            self.late += 1;
            return None;
        }
        self.phantoms += 1;
        let why = format!("{process} is declared deadlocked by its request {number}, but it can proceed");
        Some(Breach { property: NO_PHANTOM, why })
    }

    /// Returns whether a process was last declared deadlocked by this request.
    pub fn is_declared(&self, process: NodeId, number: u64) -> bool {
        self.processes[process.index()].declared == number
    }

    /// Records that a process is aborted, and judges it.
    pub fn aborts(&mut self, process: NodeId) -> Option<Breach> {
        let is_deadlocked = self.truth(&NodeSet::new(), |known| known.is_on_cycle(process));
        self.aborts += 1;
        self.processes[process.index()].wait = None;
        if is_deadlocked {
            return None;
        }
        self.needless += 1;
        let why =
            format!("{process} is aborted, but it does not wait for itself: the abort resolves no deadlock");
        Some(Breach { property: ONE_VICTIM, why })
    }

    /// Judges the state at rest. A process that is stuck now was missed, unless an abort of the declared
    /// processes would free it.
    pub fn rests(&self) -> Option<Breach> {
        let missed = self.missed();
        (!missed.is_empty()).then(|| Breach {
            property: NO_MISS,
            why: format!("{missed:?} are stuck, but no deadlock was declared that involves them"),
        })
    }

    /// Returns the processes that are stuck now, and would still be stuck if the declared ones were aborted.
    pub fn missed(&self) -> NodeSet {
        let is_declared =
            |state: &Process| state.wait.as_ref().is_some_and(|wait| wait.number == state.declared);
        let declared = (0..).map(NodeId).zip(&self.processes).filter(|(_, state)| is_declared(state));
        let declared: NodeSet = declared.map(|(process, _)| process).collect();
        self.truth(&declared, |known| known.stuck().clone())
    }

    /// Returns the processes that are stuck now.
    pub fn stuck(&self) -> NodeSet {
        self.truth(&NodeSet::new(), |known| known.stuck().clone())
    }

    /// Returns the processes that wait.
    pub fn waiting(&self) -> NodeSet {
        let waiting = (0..).map(NodeId).zip(&self.processes).filter(|(_, state)| state.wait.is_some());
        waiting.map(|(process, _)| process).collect()
    }

    /// Returns the number of late declarations.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Returns the number of declared processes that could proceed.
    pub fn phantoms(&self) -> u64 {
        self.phantoms
    }

    /// Returns the number of processes that were aborted without need.
    pub fn needless_aborts(&self) -> u64 {
        self.needless
    }

    fn truth<T>(&self, without: &NodeSet, judge: impl FnOnce(&Known<'_>) -> T) -> T {
        let granted = |by: NodeId, to: NodeId| self.processes[by.index()].granted.get(to).unwrap_or(0);
        let waits = (0..).map(NodeId).zip(&self.processes).filter(|(id, _)| !without.contains(*id));
        let waits = waits.filter_map(|(id, state)| Some((id, state.wait.as_ref()?)));
        judge(&Known::new(waits, &granted))
    }
}

/// Judges the state at rest. Returns the first request that a process remembers although the requesting
/// process does not wait because of it.
pub fn dead_edge(processes: &[&Underlying]) -> Option<Breach> {
    let dead = |process: &&Underlying| {
        let mut asked = process.pending().iter();
        asked.find(|(from, number)| !processes[from.index()].waits_by(*number))
    };
    let (at, (from, _)) =
        (0..).map(NodeId).zip(processes).find_map(|(at, process)| Some((at, dead(process)?)))?;
    let why = format!("{at} still remembers a request of {from}, but {from} no longer waits because of it");
    Some(Breach { property: PURGED, why })
}
