//! Kshemkalyani and Singhal, p-out-of-q: one sweep outwards records the waits, one inwards reduces them, at once.
//!
//! **Intuition.** FLOOD spreads from the initiator along the waits, and each process it reaches records what it waits for.
//! Processes that run answer with ECHO, as a grant would; who has enough echoes is *reduced* and echoes in turn. Every
//! message carries a piece of a weight of 1. What goes no further goes home as SHORT. When all the weight is home and
//! the initiator is not reduced, nothing can reduce it any more: it is deadlocked.
//!
//! **Rules** \[KS94 §3\], of a computation at process i:
//! 1. First FLOOD, from j that still waits for i: record; if i runs, ECHO to j; else FLOOD on, the weight split.
//! 2. FLOOD from j that i has granted already: ECHO, for the grant is under way.
//! 3. Further FLOOD: ECHO if i is reduced, else remember j and send the weight home.
//! 4. ECHO: one wait less. If that is enough, i is reduced: ECHO to all that were remembered, the weight split; if not, or if
//!    i was reduced already, the weight goes home.
//!
//! **Traps.** Weights must be exact ([`Weight`]). What was recorded counts, not what happens to the process meanwhile.
//! A computation is numbered by the initiator's request; an older one is ignored.
//!
//! At most 4e - 2n + 2l messages for e edges, n processes and l of them leaves. **Where we depart**: the initiator sends
//! itself no message; an edge to oneself can never be reduced, and is not flooded.

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
    /// `LS`: the local snapshot of the latest computation of each initiator.
    snapshots: BTreeMap<NodeId, Snapshot>,
    /// The weight that is home, of the own computation.
    home: Weight,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Snapshot {
    /// `t`: which computation.
    number: u64,
    /// `in`: who waits for an echo.
    remembered: NodeSet,
    /// `p`: how many echoes are still needed; zero: reduced.
    need: u32,
}

/// What detectors say to each other: which computation, and a piece of its weight.
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
    /// Along a wait: record.
    Flood,
    /// Against a wait: count one less.
    Echo,
    /// To the initiator: this piece goes no further.
    Short,
}

impl Detection for POutOfQ {
    type Message = Message;

    const CARD: Card = super::card(
        "p-out-of-q",
        "Kshemkalyani-Singhal, p-out-of-q",
        "one sweep outwards records the waits, one inwards reduces them; weights tell when it is over",
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
            What::Echo | What::Short => {} // of an earlier computation
        }
    }
}

impl POutOfQ {
    /// Rule 1.
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

    /// Rule 3.
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

    /// Rule 4.
    fn on_echo(&mut self, initiator: NodeId, number: u64, weight: Weight, out: &mut Out<Message>) {
        let Some(snapshot) = self.snapshots.get_mut(&initiator) else { return };
        if snapshot.need != 1 {
            snapshot.need = snapshot.need.saturating_sub(1);
            return self.go_home(initiator, number, weight, out);
        }
        snapshot.need = 0;
        let to = snapshot.remembered.take();
        if initiator == self.me {
            return; // reduced: not deadlocked, and the rest of the weight does not matter
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
