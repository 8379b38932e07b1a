//! Retransmission over loss: what is not acknowledged is sent again, what comes twice is taken in once.
//!
//! **Rules**: a sender numbers what it sends to each site, keeps it until it is acknowledged, and sends all
//! that it keeps again when its patience is over. A receiver acknowledges *every* copy, for the
//! acknowledgement of an earlier one may be lost, and takes in the first. Order is as the network has it: see
//! [`Fifo`](super::Fifo).
//!
//! **Trap**: a receiver cannot remember every number for ever. It remembers up to where it has all, and those
//! beyond that it has: bounded by how far a sender runs ahead of what is acknowledged.
//!
//! Survives crashes with stable memory: what was kept is sent again on recovery. Not amnesia: who begins
//! again at number 0 is taken for a copy of his former self.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use conclave_kernel::{Card, Cx, Input, Needs, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::tap::{relay, tap};
use crate::mutex::{Bill, Group, Mutex};

/// How long a sender waits for an acknowledgement.
pub const PATIENCE: Duration = Duration::from_millis(10);

/// At most so many messages of a site are kept unacknowledged. More are dropped, as if the network had lost
/// them for good: whoever lets it come to that talks to a site that is gone.
pub const MOST_KEPT: usize = 1 << 16;

/// A protocol whose messages all arrive, once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Retransmit<I: Protocol> {
    inner: I,
    /// The next number, by receiver.
    next_out: Vec<u64>,
    /// What is not acknowledged, by receiver and number.
    kept: BTreeMap<(NodeId, u64), I::Message>,
    /// By sender: everything below this number came in.
    all_below: Vec<u64>,
    /// And these, beyond it.
    beyond: BTreeSet<(NodeId, u64)>,
}

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packet<M> {
    /// A message.
    Data {
        /// Its number on its link.
        number: u64,
        /// What it says.
        body: M,
    },
    /// The message of that number came in.
    Ack(u64),
}

/// What a site waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timer<T> {
    /// Acknowledgements are overdue.
    Resend,
    /// The inner protocol's.
    Inner(T),
}

impl<I: Protocol> Retransmit<I> {
    /// The layer around a site of a group of that size.
    pub fn new(inner: I, nodes: u32) -> Self {
        let zero = vec![0; nodes as usize];
        Self {
            inner,
            next_out: zero.clone(),
            kept: BTreeMap::new(),
            all_below: zero,
            beyond: BTreeSet::new(),
        }
    }

    /// The protocol inside.
    pub fn inner(&self) -> &I {
        &self.inner
    }

    fn run(&mut self, input: Input<I>, cx: &mut Cx<'_, Self>) {
        let effects = tap(cx, &mut self.inner, input);
        let idle = self.kept.is_empty();
        relay(cx, effects, Timer::Inner, |cx, to, body| {
            if self.kept.len() < MOST_KEPT {
                let number = self.next_out[to.index()];
                self.next_out[to.index()] += 1;
                self.kept.insert((to, number), body.clone());
                cx.send(to, Packet::Data { number, body });
            }
        });
        if idle && !self.kept.is_empty() {
            cx.arm(Timer::Resend, PATIENCE..=PATIENCE);
        }
    }

    /// Whether that message is new; from now on it is not.
    fn is_new(&mut self, from: NodeId, number: u64) -> bool {
        let below = &mut self.all_below[from.index()];
        if number < *below || !self.beyond.insert((from, number)) {
            return false;
        }
        while self.beyond.remove(&(from, *below)) {
            *below += 1;
        }
        true
    }

    fn send_again(&self, cx: &mut Cx<'_, Self>) {
        for ((to, number), body) in &self.kept {
            cx.send(*to, Packet::Data { number: *number, body: body.clone() });
        }
        if !self.kept.is_empty() {
            cx.arm(Timer::Resend, PATIENCE..=PATIENCE);
        }
    }
}

impl<I: Protocol> Protocol for Retransmit<I> {
    type Message = Packet<I::Message>;
    type Timer = Timer<I::Timer>;
    type Command = I::Command;
    type Event = I::Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.run(Input::Start, cx);
    }

    fn on_message(&mut self, from: NodeId, packet: Self::Message, cx: &mut Cx<'_, Self>) {
        match packet {
            Packet::Data { number, body } => {
                cx.send(from, Packet::Ack(number));
                if self.is_new(from, number) {
                    self.run(Input::Message { from, message: body }, cx);
                }
            }
            Packet::Ack(number) => {
                let was_kept = self.kept.remove(&(from, number)).is_some();
                if was_kept && self.kept.is_empty() {
                    cx.disarm(Timer::Resend);
                }
            }
        }
    }

    fn on_timer(&mut self, timer: Self::Timer, cx: &mut Cx<'_, Self>) {
        match timer {
            Timer::Resend => self.send_again(cx),
            Timer::Inner(timer) => self.run(Input::Timer(timer), cx),
        }
    }

    fn on_command(&mut self, command: I::Command, cx: &mut Cx<'_, Self>) {
        self.run(Input::Command(command), cx);
    }

    fn on_recover(&mut self, cx: &mut Cx<'_, Self>) {
        self.send_again(cx);
        self.run(Input::Recover, cx);
    }
}

/// Any mutual exclusion over reliable links of its own: the network may lose and duplicate.
impl<M: Mutex> Mutex for Retransmit<M> {
    const CARD: Card = Card {
        needs: Needs { no_loss: false, no_duplication: false, ..M::CARD.needs },
        promises: super::PROMISES,
        ..M::CARD
    };
    const USES_QUORUMS: bool = M::USES_QUORUMS;

    fn new(me: NodeId, group: &Group) -> Self {
        Self::new(M::new(me, group), group.nodes)
    }

    fn bill(message: &Self::Message, from: NodeId, to: NodeId) -> Bill {
        match message {
            Packet::Data { body, .. } => M::bill(body, from, to),
            Packet::Ack(_) => Bill::shared("ACK"),
        }
    }

    fn clock(&self) -> u64 {
        self.inner.clock()
    }
}
