//! Chandy, Misra and Haas for OR: a question spreads over all that could help; if everybody answers, nobody can.
//!
//! **Rules** \[CMH83 §4\]
//! 1. A process that blocks starts a computation, numbered by its request: QUERY to all it waits for.
//! 2. The first query of a computation at a blocked process *engages* it: it asks on, and waits for as many answers.
//!    Any further one is answered at once. A process that runs says nothing.
//! 3. Who has all its answers sends REPLY to its engager; the initiator that has all of them is deadlocked.
//! 4. A process that runs, however briefly, has no part any more in the computations that engaged it.
//!
//! **The trap** is rule 4: a process that ran in between and is blocked again must not answer for the computation that
//! engaged it before, or a way out is overlooked.
//!
//! Exactly e queries and e replies for e wait edges reached, if it ends; to wait for oneself costs none.

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
    /// What the latest computation of each initiator has come to here.
    computations: Box<[Computation]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Computation {
    /// `latest`.
    number: u64,
    engager: NodeId,
    /// `num`: answers to come.
    missing: u32,
    /// `wait`: blocked ever since it was engaged.
    is_engaged: bool,
}

/// What detectors say to each other, of which computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Can you be helped?
    Query(NodeId, u64),
    /// Not by anybody I know of.
    Reply(NodeId, u64),
}

impl Detection for Diffusion {
    type Message = Message;

    const CARD: Card = super::card(
        "diffusion",
        "Chandy-Misra-Haas, OR",
        "a question spreads over all that could help; if everybody answers, nobody can",
        &["CMH83"],
        super::EXACT,
        &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "2e: a query and a reply a wait edge",
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
                if computation.is_engaged && computation.number == number {
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
        // A query to itself would be answered at once: it is left out.
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
