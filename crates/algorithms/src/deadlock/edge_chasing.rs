//! Chandy, Misra and Haas for AND: a probe runs along the waits, and who gets its own back waits for itself.
//!
//! **Rules** \[CMH83 §3\]
//! 1. A process that blocks starts a computation, numbered by its request: PROBE to all it waits for.
//! 2. A probe of i that comes from j is *meaningful* at k if k is blocked, has not yet had it in this computation, and has not
//!    granted j. Then: if k = i, deadlock; else PROBE on to all that k waits for.
//! 3. What k remembers of i's computations is forgotten when k runs again, or when i starts a new one.
//!
//! **Traps.** Without "has not granted j" a probe goes over an edge that is no more: a phantom. A process that merely
//! *leads to* a cycle never gets its probe back: so everybody who blocks starts one, and the last one closes the
//! cycle. Several on one cycle may find it at once: the resolution makes one victim of them.
//!
//! To forget when k runs again makes a probe that is late find a cycle sooner than who closed it does. Nothing would be
//! missed without it: the last to block on a cycle starts a computation with a number of its own, and everybody else on the
//! cycle blocks for good before the first probe of that number is sent.
//!
//! The m(n-1)/2 messages of the literature, for m processes on n sites, count every pair of processes once: a graph
//! in which two wait for each other may have twice as many edges, and then needs as many probes.
//!
//! **Where we depart**: a process is a site, so that all edges are between sites; to wait for oneself is found without a message.

use alloc::boxed::Box;

use conclave_kernel::{Card, Cost, Load, Measure, NodeId, NodeMap};
use serde::{Deserialize, Serialize};

use super::site::{Detection, Model, Out};
use super::underlying::Underlying;

/// The detector of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EdgeChasing {
    me: NodeId,
    /// `dependent(i)`: which computation of i has passed here since the process blocked.
    dependent: Box<NodeMap<u64>>,
}

/// probe(i, j, k): j and k are the ends of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Probe {
    /// i: whose computation.
    pub initiator: NodeId,
    /// Which of them: the number of i's request.
    pub number: u64,
}

impl Detection for EdgeChasing {
    type Message = Probe;

    const CARD: Card = super::card(
        "edge-chasing",
        "Chandy-Misra-Haas, AND",
        "a probe runs along the waits; who gets its own back waits for itself",
        &["CMH83"],
        super::EXACT,
        &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "one a wait edge: at most m(n-1)/2, unless two wait for each other",
            range: |size| (0.0, size.n() * (size.n() - 1.0)),
        }],
    );
    const MODEL: Model = Model::And;

    fn new(me: NodeId, nodes: u32) -> Self {
        Self { me, dependent: Box::new(NodeMap::new(nodes)) }
    }

    fn kind(_: &Probe) -> &'static str {
        "PROBE"
    }

    fn on_blocked(&mut self, process: &Underlying, out: &mut Out<Probe>) {
        let Some(wait) = process.wait() else { return };
        if wait.of.contains(self.me) {
            return out.accuse(self.me, wait.number);
        }
        out.send_to(&wait.of, &Probe { initiator: self.me, number: wait.number });
    }

    fn on_runs(&mut self, _process: &Underlying, _out: &mut Out<Probe>) {
        self.dependent.drain(|_, _| ());
    }

    fn on_message(&mut self, from: NodeId, probe: Probe, process: &Underlying, out: &mut Out<Probe>) {
        let Some(wait) = process.wait() else { return };
        let has_granted = process.pending().get(from).is_none();
        let is_known = self.dependent.get(probe.initiator).is_some_and(|known| known >= probe.number);
        if has_granted || is_known {
            return;
        }
        if probe.initiator == self.me {
            if probe.number == wait.number {
                self.dependent.insert(self.me, probe.number);
                out.accuse(self.me, wait.number);
            }
            return;
        }
        self.dependent.insert(probe.initiator, probe.number);
        out.send_to(&process.waits_for(), &probe);
    }
}
