//! The central detector, naively: every site reports its wait edges to one site, as they come and go.
//!
//! **Rules** \[HR82 §2\]
//! 1. A process that blocks reports whom it waits for; one that is granted something reports what is left, or that it runs.
//! 2. The coordinator keeps the latest report of each process and looks for a deadlock whenever one blocks.
//!
//! **The trap: the phantom.** Reports of different sites arrive in any order. p waits for q, q grants it and then waits
//! for p: if q's report overtakes p's second one, the coordinator sees p -> q -> p, which never was. FIFO channels do not
//! help, for the two reports come by different channels. It is kept here to be seen failing; it promises to miss
//! nothing, and no more. It aborts whom it accuses without looking again.

use alloc::collections::BTreeMap;

use conclave_kernel::{Card, Cost, Load, Measure, NodeId};
use serde::{Deserialize, Serialize};

use super::records::Known;
use super::site::{Detection, Model, Out};
use super::spec::{NO_MISS, PURGED};
use super::underlying::{Underlying, Wait};

/// Who collects the reports.
pub const COORDINATOR: NodeId = NodeId(0);

/// The detector of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Central {
    me: NodeId,
    /// At the coordinator: who waits, as far as reported; at most one wait a process.
    reported: Option<BTreeMap<NodeId, Wait>>,
}

/// What detectors say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// To the coordinator: my process has blocked.
    Blocked(Wait),
    /// To the coordinator: it was granted something, this is left.
    Left(Wait),
    /// To the coordinator: it runs.
    Runs,
}

impl Detection for Central {
    type Message = Message;

    const CARD: Card = super::card(
        "central",
        "Central, naive",
        "every site reports its wait edges to one site, as they come and go",
        &["HR82"],
        &[NO_MISS.name, PURGED.name],
        &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "1, and 1 for each grant",
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
                // Nobody was stuck before, or was accused before: whoever is newly stuck waits for the newcomer.
                if known.is_on_cycle(from) {
                    out.accuse(from, number);
                }
            }
            Message::Left(wait) => _ = reported.insert(from, wait),
            Message::Runs => _ = reported.remove(&from),
        }
    }
}
