//! The naive central detector: every site reports its wait edges to one site whenever they change.
//!
//! **Rules** \[HR82 §2\]
//! 1. A process that blocks reports the processes for which it waits. A process that receives a grant reports
//!    the rest of its wait, or that it runs.
//! 2. The coordinator stores the latest report of each process. It searches for a deadlock whenever a process
//!    blocks.
//!
//! **The trap: the phantom.** Reports of different sites arrive in any order.
//! 1. p waits for q, and reports it.
//! 2. q grants p. So p runs and sends a second report.
//! 3. q then waits for p, and its report overtakes p's second report.
//! 4. The coordinator sees the cycle p -> q -> p, which never existed.
//!
//! FIFO channels do not help, because the two reports come over different channels. The algorithm is here to
//! show this failure. It promises only that it misses no deadlock. It aborts a declared process without a
//! second check.

use alloc::collections::BTreeMap;

use conclave_kernel::{Card, Cost, Load, Measure, NodeId};
use serde::{Deserialize, Serialize};

use super::records::Known;
use super::site::{Detection, Model, Out};
use super::spec::{NO_MISS, PURGED};
use super::underlying::{Underlying, Wait};

/// The site that collects the reports.
pub const COORDINATOR: NodeId = NodeId(0);

/// The detector of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Central {
    me: NodeId,
    /// At the coordinator only: the reported waits, at most one per process.
    reported: Option<BTreeMap<NodeId, Wait>>,
}

/// A message from a site to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The sender's process has blocked.
    Blocked(Wait),
    /// The sender's process has received a grant; this is the rest of its wait.
    Left(Wait),
    /// The sender's process runs.
    Runs,
}

impl Detection for Central {
    type Message = Message;

    const CARD: Card = super::card(
        "central",
        "Central, naive",
        "every site reports each new and each removed wait edge to one site, which looks for cycles",
        &["HR82"],
        &[NO_MISS.name, PURGED.name],
        &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "1 per request and 1 per grant",
            range: |size| (0.0, size.n()),
        }],
    );
    const MODEL: Model = Model::POutOfQ;
    const CONFIRMS: bool = false;

    fn new(me: NodeId, _nodes: u32) -> Self {
        Self { me, reported: (me == COORDINATOR).then(BTreeMap::default) }
    }

    fn kind(message: &Message) -> &'static str {
        match message {
            Message::Blocked(_) => "BLOCKED",
            Message::Left(_) => "LEFT",
            Message::Runs => "RUNS",
        }
    }

    fn on_blocked(&mut self, process: &Underlying, out: &mut Out<Message>) {
        self.report(process, Message::Blocked, out);
    }

    fn on_granted(&mut self, process: &Underlying, out: &mut Out<Message>) {
        self.report(process, Message::Left, out);
    }

    fn on_runs(&mut self, process: &Underlying, out: &mut Out<Message>) {
        self.report(process, Message::Left, out);
    }

    fn on_message(&mut self, from: NodeId, message: Message, _process: &Underlying, out: &mut Out<Message>) {
        self.take(from, message, out);
    }
}

impl Central {
    fn report(&mut self, process: &Underlying, waits: fn(Wait) -> Message, out: &mut Out<Message>) {
        let message = process.wait().cloned().map_or(Message::Runs, waits);
        if self.me == COORDINATOR {
            self.take(self.me, message, out);
        } else {
            out.send(COORDINATOR, message);
        }
    }

    fn take(&mut self, from: NodeId, message: Message, out: &mut Out<Message>) {
        let Some(reported) = &mut self.reported else { return };
        match message {
            Message::Blocked(wait) => {
                let number = wait.number;
                reported.insert(from, wait);
                let known = Known::new(reported.iter().map(|(process, wait)| (*process, wait)), &|_, _| 0);
                // Before this wait, no process was stuck except those already accused. So every newly stuck
                // process waits for this one, directly or indirectly.
                if known.is_on_cycle(from) {
                    out.accuse(from, number);
                }
            }
            Message::Left(wait) => _ = reported.insert(from, wait),
            Message::Runs => _ = reported.remove(&from),
        }
    }
}
