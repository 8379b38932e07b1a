//! Chandy, Misra and Haas for AND: a probe runs along the waits. A process that gets its own probe back waits
//! for itself.
//!
//! **Rules** \[CMH83 §3\]
//! 1. A process that blocks starts a computation, numbered by its request. It sends PROBE to all processes
//!    for which it waits.
//! 2. A probe of i that comes from j is *meaningful* at k on three conditions. k is blocked, it has not yet
//!    received the probe in this computation, and it has not granted j. Then there is a deadlock if k = i.
//!    Otherwise k sends PROBE to all processes for which it waits.
//! 3. k forgets the computations of i when k runs again, or when i starts a new one.
//!
//! **Traps.**
//! - Without the condition "has not granted j", a probe passes an edge that no longer exists: a phantom.
//! - A process that only *leads to* a cycle never gets its probe back. So every process that blocks starts a
//!   computation, and the last one closes the cycle.
//! - Several processes on one cycle may find it at the same time. The resolution makes sure that there is
//!   only one victim.
//!
//! The first part of rule 3 is not needed for correctness. It only lets a late probe find a cycle before the
//! computation of the process that closed it. The last process that blocks on a cycle starts a computation
//! with a new number. All others on the cycle have blocked for ever before the first probe with that number
//! is sent. So no deadlock would be missed without it.
//!
//! **Bounds.** The literature gives m(n-1)/2 messages for m processes on n sites. This counts every pair of
//! processes once. A graph in which two processes wait for each other may have twice as many edges, and then
//! needs as many probes.
//!
//! **Differences from the paper**: each process has its own site, so all edges are between sites. A wait for
//! oneself is found without a message.

use alloc::boxed::Box;

use conclave_kernel::{Card, Cost, Load, Measure, NodeId, NodeMap};
use serde::{Deserialize, Serialize};

use super::site::{Detection, Model, Out};
use super::underlying::Underlying;

/// The detector of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EdgeChasing {
    me: NodeId,
    /// `dependent(i)`: the number of i's last computation that has passed here since the process blocked.
    dependent: Box<NodeMap<u64>>,
}

/// probe(i, j, k): j and k are the ends of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Probe {
    /// i, which started the computation.
    pub initiator: NodeId,
    /// The number of the computation: the number of i's request.
    pub number: u64,
}

impl Detection for EdgeChasing {
    type Message = Probe;

    const CARD: Card = super::card(
        "edge-chasing",
        "Chandy-Misra-Haas, AND",
        "a probe follows the waits; a process that gets its own probe back waits for itself",
        &["CMH83"],
        super::EXACT,
        &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "1 per wait edge: at most m(n-1)/2, unless two processes wait for each other",
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
