//! Kshemkalyani and Singhal, p-out-of-q: one sweep outwards records the waits, and one sweep inwards reduces
//! them. Both run at the same time.
//!
//! **Intuition.** FLOOD spreads from the initiator along the waits, and each process that it reaches records
//! its wait. Running processes answer with ECHO, which counts like a grant. A process with enough echoes is
//! *reduced* and sends ECHO too. Every message carries a part of a weight of 1. Weight that is not passed on
//! returns to the initiator in SHORT. If all the weight has returned and the initiator is not reduced,
//! nothing can reduce it any more. So it is deadlocked.
//!
//! **Rules** \[KS94 §3\], for a computation at process i:
//! 1. First FLOOD, from a process j that still waits for i: record the wait. If i runs, send ECHO to j.
//!    Otherwise send FLOOD to all for which i waits, and split the weight.
//! 2. FLOOD from a process j that i has already granted: send ECHO, because the grant is in transit.
//! 3. Further FLOOD: send ECHO if i is reduced. Otherwise remember j and return the weight to the initiator.
//! 4. ECHO: one wait less. If this is enough, i is reduced: send ECHO to all remembered processes, and split
//!    the weight. If it is not enough, or if i was reduced already, return the weight to the initiator.
//!
//! **Traps.** Weights must be exact ([`Weight`]). The recorded wait counts, even if the process changes in
//! the meantime. The initiator's request numbers the computation, and messages of an older one are ignored.
//!
//! **Bounds.** At most 4e - 2n + 2l messages for e edges and n processes, of which l are leaves.
//!
//! **Differences from the paper**: the initiator sends no message to itself. An edge to oneself can never be
//! reduced, so it is not flooded.

use alloc::collections::BTreeMap;

use conclave_kernel::{Card, Cost, Load, Measure, NodeId, NodeSet};
use serde::{Deserialize, Serialize};

use super::site::{Detection, Model, Out};
use super::underlying::Underlying;
use super::weight::Weight;

/// The detector of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct POutOfQ {
    me: NodeId,
    /// `LS`: the local snapshot for the latest computation of each initiator.
    snapshots: BTreeMap<NodeId, Snapshot>,
    /// The weight of this site's own computation that has returned.
    home: Weight,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Snapshot {
    /// `t`: the number of the computation.
    number: u64,
    /// `in`: the processes that wait for an echo.
    remembered: NodeSet,
    /// `p`: the number of echoes that are still needed. Zero means that the process is reduced.
    need: u32,
}

/// A message between detectors: the computation, and a part of its weight.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    what: What,
    initiator: NodeId,
    number: u64,
    weight: Weight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum What {
    /// Along a wait: the receiver records its wait.
    Flood,
    /// Against a wait: the receiver has one wait less.
    Echo,
    /// To the initiator: this part of the weight is not passed on.
    Short,
}

impl Detection for POutOfQ {
    type Message = Message;

    const CARD: Card = super::card(
        "p-out-of-q",
        "Kshemkalyani-Singhal, p-out-of-q",
        "a sweep outwards records the waits, a sweep inwards reduces them, and weights show when both are over",
        &["KS94"],
        super::EXACT,
        &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "at most 4e - 2n + 2l",
            range: |size| (0.0, 4.0 * size.n() * (size.n() - 1.0)),
        }],
    );
    const MODEL: Model = Model::POutOfQ;

    fn new(me: NodeId, _nodes: u32) -> Self {
        Self { me, snapshots: BTreeMap::new(), home: Weight::ZERO }
    }

    fn kind(message: &Message) -> &'static str {
        match message.what {
            What::Flood => "FLOOD",
            What::Echo => "ECHO",
            What::Short => "SHORT",
        }
    }

    fn on_blocked(&mut self, process: &Underlying, out: &mut Out<Message>) {
        let Some(wait) = process.wait() else { return };
        self.home = Weight::ZERO;
        self.record(process, self.me, wait.number, None, Weight::one(), out);
    }

    fn on_message(&mut self, from: NodeId, message: Message, process: &Underlying, out: &mut Out<Message>) {
        let Message { what, initiator, number, weight } = message;
        let latest = self.snapshots.get(&initiator).map_or(0, |snapshot| snapshot.number);
        match what {
            What::Flood if number < latest => {}
            What::Flood if process.pending().get(from).is_none() => {
                out.send(from, Message { what: What::Echo, initiator, number, weight });
            }
            What::Flood if number > latest => {
                self.record(process, initiator, number, Some(from), weight, out);
            }
            What::Flood => self.on_further_flood(from, initiator, number, weight, out),
            What::Echo if number == latest => self.on_echo(initiator, number, weight, out),
            What::Short if number == latest && initiator == self.me => self.bring_home(number, &weight, out),
            What::Echo | What::Short => {} // they belong to an earlier computation
        }
    }
}

impl POutOfQ {
    /// Applies rule 1: records the wait for a computation.
    fn record(
        &mut self,
        process: &Underlying,
        initiator: NodeId,
        number: u64,
        from: Option<NodeId>,
        weight: Weight,
        out: &mut Out<Message>,
    ) {
        let mut snapshot = Snapshot { number, remembered: NodeSet::new(), need: 0 };
        let Some(wait) = process.wait() else {
            self.snapshots.insert(initiator, snapshot);
            if let Some(from) = from {
                out.send(from, Message { what: What::Echo, initiator, number, weight });
            }
            return;
        };
        snapshot.need = wait.need;
        snapshot.remembered = from.into_iter().collect();
        self.snapshots.insert(initiator, snapshot);
        let of = process.waits_for();
        if of.is_empty() {
            return self.go_home(initiator, number, weight, out);
        }
        for (to, weight) in of.iter().zip(weight.split(of.len())) {
            out.send(to, Message { what: What::Flood, initiator, number, weight });
        }
    }

    /// Applies rule 3.
    fn on_further_flood(
        &mut self,
        from: NodeId,
        initiator: NodeId,
        number: u64,
        weight: Weight,
        out: &mut Out<Message>,
    ) {
        let Some(snapshot) = self.snapshots.get_mut(&initiator) else { return };
        if snapshot.need == 0 {
            out.send(from, Message { what: What::Echo, initiator, number, weight });
        } else {
            snapshot.remembered.insert(from);
            self.go_home(initiator, number, weight, out);
        }
    }

    /// Applies rule 4.
    fn on_echo(&mut self, initiator: NodeId, number: u64, weight: Weight, out: &mut Out<Message>) {
        let Some(snapshot) = self.snapshots.get_mut(&initiator) else { return };
        if snapshot.need != 1 {
            snapshot.need = snapshot.need.saturating_sub(1);
            return self.go_home(initiator, number, weight, out);
        }
        snapshot.need = 0;
        let to = snapshot.remembered.take();
        if initiator == self.me {
            return; // it is reduced, so it is not deadlocked, and the rest of the weight does not matter
        }
        for (to, weight) in to.iter().zip(weight.split(to.len())) {
            out.send(to, Message { what: What::Echo, initiator, number, weight });
        }
    }

    fn go_home(&mut self, initiator: NodeId, number: u64, weight: Weight, out: &mut Out<Message>) {
        if initiator == self.me {
            self.bring_home(number, &weight, out);
        } else {
            out.send(initiator, Message { what: What::Short, initiator, number, weight });
        }
    }

    fn bring_home(&mut self, number: u64, weight: &Weight, out: &mut Out<Message>) {
        if self.snapshots.get(&self.me).is_some_and(|own| own.need > 0) {
            self.home.add(weight);
            if self.home.is_one() {
                out.accuse(self.me, number);
            }
        }
    }
}
