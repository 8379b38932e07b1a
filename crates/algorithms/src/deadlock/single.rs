//! Mitchell and Merritt, for one resource at a time: labels flow against the waits, and one comes home.
//!
//! **Intuition.** Every process has a *private* label and a *public* one. To block is to take a new label, larger than one's
//! own and than that of whom one waits for. Larger public labels flow back along the waits. On a cycle the largest
//! goes all the way round, and exactly one process made it: that one finds the deadlock.
//!
//! **Rules** \[MM84 §2\]
//! 1. *Block*: both labels become a new one, larger than both publics; labels of equal count are told apart by the process.
//! 2. *Transmit*: who waits for a process with a larger public label takes it over.
//! 3. *Detect*: who waits for a process whose public label is its own private (and public) one is deadlocked.
//!
//! **Where we depart**: labels are not read but sent: a process that is asked answers with its label (the read of rule 1)
//! and sends every new one to all that wait for it. A label names the request it answers, so that none is taken
//! for one of an earlier wait. On a cycle of s processes at most s(s-1)/2 labels are transmitted; what is sent besides is the
//! answer to each request and the new label of each that blocks.

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
    /// The request for which the block step was taken.
    blocked: u64,
}

/// Larger by count, then by the process that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Label {
    count: u64,
    maker: NodeId,
}

/// The sender's public label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    /// The receiver's request that the sender has not granted.
    request: u64,
    public: Label,
}

impl Detection for MitchellMerritt {
    type Message = Message;

    const CARD: Card = super::card(
        "mitchell-merritt",
        "Mitchell-Merritt, single resource",
        "labels flow against the waits; on a cycle exactly one process gets its own back",
        &["MM84"],
        super::EXACT,
        &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "2 a wait, and at most s(s-1)/2 on a cycle of s",
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
            return; // of an earlier wait
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
