//! Chandy, Misra and Haas for OR: a query spreads over all processes that could help. If all answer, none can
//! help.
//!
//! **Rules** \[CMH83 §4\]
//! 1. A process that blocks starts a computation, numbered by its request. It sends QUERY to all processes
//!    for which it waits.
//! 2. The first query of a computation at a blocked process *engages* the process. It sends QUERY to the
//!    processes for which it waits, and expects a REPLY from each. It answers each further query with REPLY
//!    at once. A running process does not answer.
//! 3. A process that has all its replies sends REPLY to its engager. An initiator that has all its replies is
//!    deadlocked.
//! 4. A process that runs, however briefly, no longer takes part in the computations that engaged it.
//!
//! **The trap** is rule 4. Suppose that a process has run since it was engaged, and is blocked again. If it
//! answers for the old computation, a way out of the deadlock is overlooked.
//!
//! **Bounds.** For e wait edges that are reached there are exactly e queries and e replies, if the
//! computation ends. A wait for oneself costs no message.

use alloc::boxed::Box;
use alloc::vec;

use conclave_kernel::{Card, Cost, Load, Measure, NodeId};
use serde::{Deserialize, Serialize};

use super::site::{Detection, Model, Out};
use super::underlying::Underlying;

/// The detector of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Diffusion {
    me: NodeId,
    /// The state of the latest computation of each initiator at this site.
    computations: Box<[Computation]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Computation {
    /// `latest`: the number of the computation.
    number: u64,
    engager: NodeId,
    /// `num`: the number of missing replies.
    missing: u32,
    /// `wait`: whether the process has been blocked since it was engaged.
    is_engaged: bool,
}

/// A message between detectors, with the initiator and the number of the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The question whether the receiver can be helped.
    Query(NodeId, u64),
    /// The answer that no process known to the sender can help it.
    Reply(NodeId, u64),
}

impl Detection for Diffusion {
    type Message = Message;

    const CARD: Card = super::card(
        "diffusion",
        "Chandy-Misra-Haas, OR",
        "a query goes to every process that could help; if all of them reply, all of them are blocked",
        &["CMH83"],
        super::EXACT,
        &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "2e: one query and one reply per wait edge",
            range: |size| (0.0, 2.0 * size.n() * (size.n() - 1.0)),
        }],
    );
    const MODEL: Model = Model::Or;

    fn new(me: NodeId, nodes: u32) -> Self {
        Self { me, computations: vec![Computation::default(); nodes as usize].into_boxed_slice() }
    }

    fn kind(message: &Message) -> &'static str {
        match message {
            Message::Query(..) => "QUERY",
            Message::Reply(..) => "REPLY",
        }
    }

    fn on_blocked(&mut self, process: &Underlying, out: &mut Out<Message>) {
        if let Some(wait) = process.wait() {
            self.engage(self.me, wait.number, self.me, process, out);
        }
    }

    fn on_runs(&mut self, _process: &Underlying, _out: &mut Out<Message>) {
        self.computations.iter_mut().for_each(|computation| computation.is_engaged = false);
    }

    fn on_message(&mut self, from: NodeId, message: Message, process: &Underlying, out: &mut Out<Message>) {
        match message {
            Message::Query(initiator, number) => {
                let computation = self.computations[initiator.index()];
                if process.wait().is_none() || number < computation.number {
                    return;
                }
                if number > computation.number {
                    self.engage(initiator, number, from, process, out);
                } else if computation.is_engaged {
                    out.send(from, Message::Reply(initiator, number));
                }
            }
            Message::Reply(initiator, number) => {
                let computation = &mut self.computations[initiator.index()];
                // A duplicate may arrive after the last reply. Then no reply is missing.
                if computation.is_engaged && computation.number == number && computation.missing > 0 {
                    computation.missing -= 1;
                    self.conclude(initiator, out);
                }
            }
        }
    }
}

impl Diffusion {
    fn engage(
        &mut self,
        initiator: NodeId,
        number: u64,
        engager: NodeId,
        process: &Underlying,
        out: &mut Out<Message>,
    ) {
        // A query to itself would be answered at once, so it is left out.
        let of = process.waits_for();
        let missing = u32::try_from(of.len()).expect("no more than there are sites");
        self.computations[initiator.index()] = Computation { number, engager, missing, is_engaged: true };
        out.send_to(&of, &Message::Query(initiator, number));
        self.conclude(initiator, out);
    }

    fn conclude(&mut self, initiator: NodeId, out: &mut Out<Message>) {
        let computation = self.computations[initiator.index()];
        if computation.missing > 0 {
            return;
        }
        if initiator == self.me {
            out.accuse(self.me, computation.number);
        } else {
            out.send(computation.engager, Message::Reply(initiator, computation.number));
        }
    }
}
