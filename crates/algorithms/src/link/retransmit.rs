//! Retransmission over a network that loses messages: the sender repeats unacknowledged messages, and the
//! receiver delivers each message once.
//!
//! **Rules**: a sender numbers its messages to each site and keeps each one until it is acknowledged. When
//! [`PATIENCE`] has passed, it sends all kept messages again. A receiver acknowledges *every* copy, because
//! the acknowledgement of an earlier one may be lost, and delivers only the first. The layer does not restore
//! the order: see [`Fifo`](super::Fifo).
//!
//! **Trap**: a receiver cannot remember every number forever. It remembers the number below which it has all
//! messages, and the numbers above it that it has. Their count is bounded by how far a sender runs ahead of
//! its acknowledgements.
//!
//! The layer survives crashes with stable memory: on recovery, a site sends its kept messages again. It does
//! not survive amnesia: a site that restarts at number 0 sends messages that the others take for copies.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use conclave_kernel::{Card, Cx, Input, Needs, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::tap::{relay, tap};
use crate::mutex::{Bill, Group, Mutex};

/// The time after which a sender sends all unacknowledged messages again.
pub const PATIENCE: Duration = Duration::from_millis(10);

/// The limit of unacknowledged messages that a site keeps. Further messages are dropped for good. In
/// practice, a sender reaches the limit only when a receiver is gone.
pub const MOST_KEPT: usize = 1 << 16;

/// A protocol whose messages are all delivered once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Retransmit<I: Protocol> {
    inner: I,
    /// The number of the next message to each receiver.
    next_out: Vec<u64>,
    /// The unacknowledged messages, by receiver and number.
    kept: BTreeMap<(NodeId, u64), I::Message>,
    /// For each sender, the number below which all messages have arrived.
    all_below: Vec<u64>,
    /// The numbers above `all_below` that have arrived, by sender.
    beyond: BTreeSet<(NodeId, u64)>,
}

/// A message between two sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packet<M> {
    /// A message of the inner protocol.
    Data {
        /// The message's number on its link, from 0.
        number: u64,
        /// The inner message.
        body: M,
    },
    /// Acknowledges the message of that number.
    Ack(u64),
}

/// A timer of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timer<T> {
    /// Sends the unacknowledged messages again.
    Resend,
    /// A timer of the inner protocol.
    Inner(T),
}

impl<I: Protocol> Retransmit<I> {
    /// Creates the layer around a site, in a group of that size.
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

    /// Returns the inner protocol.
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

    /// Records that the message has arrived, and returns whether it is the first copy.
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

/// A mutual-exclusion algorithm over reliable links: the network may lose and duplicate messages.
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
