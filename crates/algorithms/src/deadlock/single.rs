//! Mitchell and Merritt, for single-resource requests: labels flow against the waits, and one returns to its
//! maker.
//!
//! **Intuition.** Every process has a *private* and a *public* label. A process that blocks makes a new
//! label, larger than its own and than that of the process for which it waits. Larger public labels flow back
//! along the waits. On a cycle the largest label goes all the way round. Exactly one process made it, and
//! this process finds the deadlock.
//!
//! **Rules** \[MM84 §2\]
//! 1. *Block*: both labels become a new one, larger than both public labels. Labels with equal counts are
//!    ordered by the process.
//! 2. *Transmit*: if a process waits for one with a larger public label, it takes that label over.
//! 3. *Detect*: a process is deadlocked if it waits for one whose public label is its own private and public
//!    label.
//!
//! **Differences from the paper**: labels are sent, not read. A process that receives a request answers with
//! its label; this is the read of rule 1. It also sends every new label to all processes that wait for it. A
//! label names the request that it answers, so a label for an earlier wait is ignored.
//!
//! **Bounds.** On a cycle of s processes at most s(s-1)/2 labels are transmitted. In addition there is the
//! answer to each request, and the new label of each process that blocks.

use conclave_kernel::{Card, Cost, Load, Measure, NodeId};
use serde::{Deserialize, Serialize};

use super::site::{Detection, Model, Out};
use super::underlying::Underlying;

/// The detector of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MitchellMerritt {
    me: NodeId,
    public: Label,
    private: Label,
    /// The number of the request for which the block step was done.
    blocked: u64,
}

/// A label. It is ordered by count, then by the process that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Label {
    count: u64,
    maker: NodeId,
}

/// A message with the sender's public label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    /// The number of the receiver's request that the sender has not granted.
    request: u64,
    public: Label,
}

impl Detection for MitchellMerritt {
    type Message = Message;

    const CARD: Card = super::card(
        "mitchell-merritt",
        "Mitchell-Merritt, single resource",
        "labels travel against the waits; on a cycle, exactly one process gets its own label back",
        &["MM84"],
        super::EXACT,
        &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "2 per wait, plus at most s(s-1)/2 on a cycle of s processes",
            range: |size| (0.0, 2.0 * size.n() + size.n() * (size.n() - 1.0) / 2.0),
        }],
    );
    const MODEL: Model = Model::Single;

    fn new(me: NodeId, _nodes: u32) -> Self {
        let label = Label { count: 0, maker: me };
        Self { me, public: label, private: label, blocked: 0 }
    }

    fn kind(_: &Message) -> &'static str {
        "LABEL"
    }

    fn on_blocked(&mut self, process: &Underlying, out: &mut Out<Message>) {
        let Some(wait) = process.wait().filter(|wait| wait.of.contains(self.me)) else { return };
        out.accuse(self.me, wait.number);
    }

    fn on_asked(&mut self, from: NodeId, process: &Underlying, out: &mut Out<Message>) {
        if let Some(request) = process.pending().get(from) {
            out.send(from, Message { request, public: self.public });
        }
    }

    fn on_message(&mut self, _from: NodeId, message: Message, process: &Underlying, out: &mut Out<Message>) {
        if !process.waits_by(message.request) {
            return; // answers an earlier wait
        }
        if self.blocked != message.request {
            self.blocked = message.request;
            let count = self.public.count.max(message.public.count) + 1;
            self.private = Label { count, maker: self.me };
            self.publish(self.private, process, out);
        } else if message.public > self.public {
            self.publish(message.public, process, out);
        } else if message.public == self.public && self.public == self.private {
            out.accuse(self.me, message.request);
        }
    }
}

impl MitchellMerritt {
    fn publish(&mut self, label: Label, process: &Underlying, out: &mut Out<Message>) {
        self.public = label;
        for (waiter, request) in process.pending().iter() {
            out.send(waiter, Message { request, public: label });
        }
    }
}
