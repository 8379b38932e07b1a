//! Causal delivery: if the sending of one message happened before that of another, every site delivers the
//! two in that order.
//!
//! There are two layers.
//! - [`CausalBroadcast`] is for protocols that send to all sites. A message carries N numbers: for each site,
//!   the number of its broadcasts that the sender had delivered. The receiver delivers the message after it
//!   has delivered as many. \[BSS91 §5\]
//! - [`CausalLinks`] is for messages to one site, where a receiver cannot count the messages to other sites.
//!   A message carries N² numbers: for each pair of sites, the number of messages sent between them, as far
//!   as the sender knows. The receiver delivers the message after all of those that are addressed to it.
//!   \[RST91 §3\]
//!
//! **Trap**: FIFO links are not enough. n0 sends a message to n2 and then one to n1. n1 receives its message
//! and sends one to n2. The message of n1 can reach n2 before that of n0.
//!
//! **Differences from the paper**: in a [`CausalBroadcast`], a message to a single site waits for the
//! broadcasts that its sender knew of. No other message waits for it.

use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{Cx, Effect, Input, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::MOST_HELD;
use super::tap::{each_receiver, tap};
use crate::clock::VectorClock;

/// A protocol whose broadcasts are delivered in causal order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct CausalBroadcast<I: Protocol> {
    inner: I,
    /// The number of broadcasts of each site that were delivered here; for this site, of those it sent.
    taken: VectorClock,
    held: Vec<(NodeId, Cast<I::Message>)>,
}

/// A message with the broadcasts that its sender had delivered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cast<M> {
    /// The number of broadcasts of each site that the sender had delivered. A broadcast counts itself.
    pub known: VectorClock,
    /// Whether the message is a broadcast.
    pub to_all: bool,
    /// The message of the inner protocol.
    pub body: M,
}

impl<I: Protocol> CausalBroadcast<I> {
    /// Creates the layer around a site, in a group of that size.
    pub fn new(inner: I, nodes: u32) -> Self {
        Self { inner, taken: VectorClock::new(nodes), held: Vec::new() }
    }

    /// Returns the inner protocol.
    pub fn inner(&self) -> &I {
        &self.inner
    }

    fn run(&mut self, input: Input<I>, cx: &mut Cx<'_, Self>) {
        for effect in tap(cx, &mut self.inner, input) {
            match effect {
                Effect::Broadcast { message } => {
                    self.taken.tick(cx.me());
                    cx.broadcast(Cast { known: self.taken.clone(), to_all: true, body: message });
                }
                Effect::Arm { timer, min, max } => cx.arm(timer, min..=max),
                Effect::Disarm { timer } => cx.disarm(timer),
                Effect::Emit { event } => cx.emit(event),
                sends => each_receiver(cx, sends, |cx, to, body| {
                    cx.send(to, Cast { known: self.taken.clone(), to_all: false, body });
                }),
            }
        }
    }

    /// Whether all broadcasts that must be delivered before this message have been delivered.
    fn may_take(&self, from: NodeId, cast: &Cast<I::Message>) -> bool {
        let next = u32::from(cast.to_all);
        cast.known.entries().all(|(site, known)| match site == from {
            true => known == self.taken.get(site) + next || !cast.to_all && known <= self.taken.get(site),
            false => known <= self.taken.get(site),
        })
    }

    fn take_what_may(&mut self, cx: &mut Cx<'_, Self>) {
        while let Some(next) = self.held.iter().position(|(from, cast)| self.may_take(*from, cast)) {
            let (from, cast) = self.held.remove(next);
            if cast.to_all {
                self.taken.tick(from);
            }
            self.run(Input::Message { from, message: cast.body }, cx);
        }
    }
}

impl<I: Protocol> Protocol for CausalBroadcast<I> {
    type Message = Cast<I::Message>;
    type Timer = I::Timer;
    type Command = I::Command;
    type Event = I::Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.run(Input::Start, cx);
    }

    fn on_message(&mut self, from: NodeId, cast: Self::Message, cx: &mut Cx<'_, Self>) {
        if self.held.len() < MOST_HELD {
            self.held.push((from, cast));
        }
        self.take_what_may(cx);
    }

    fn on_timer(&mut self, timer: I::Timer, cx: &mut Cx<'_, Self>) {
        self.run(Input::Timer(timer), cx);
    }

    fn on_command(&mut self, command: I::Command, cx: &mut Cx<'_, Self>) {
        self.run(Input::Command(command), cx);
    }

    fn on_recover(&mut self, cx: &mut Cx<'_, Self>) {
        self.run(Input::Recover, cx);
    }
}

/// A protocol whose messages are all delivered in causal order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct CausalLinks<I: Protocol> {
    inner: I,
    sent: Matrix,
    /// The number of messages of each site that were delivered here.
    taken: Vec<u32>,
    held: Vec<(NodeId, Known<I::Message>)>,
}

/// A message with its sender's knowledge of the messages sent before it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Known<M> {
    /// The number of messages that each site had sent to each other one.
    pub sent: Matrix,
    /// The message of the inner protocol.
    pub body: M,
}

/// The number of messages that each site has sent to each other one, as far as one site knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Matrix {
    nodes: u32,
    /// One row per sender.
    counts: Vec<u32>,
}

impl Matrix {
    fn new(nodes: u32) -> Self {
        Self { nodes, counts: vec![0; nodes as usize * nodes as usize] }
    }

    fn index(&self, from: NodeId, to: NodeId) -> usize {
        from.index() * self.nodes as usize + to.index()
    }

    fn get(&self, from: NodeId, to: NodeId) -> u32 {
        self.counts[self.index(from, to)]
    }

    fn count(&mut self, from: NodeId, to: NodeId) {
        let index = self.index(from, to);
        self.counts[index] += 1;
    }

    fn discount(&mut self, from: NodeId, to: NodeId) {
        let index = self.index(from, to);
        self.counts[index] -= 1;
    }

    fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
    }
}

impl<I: Protocol> CausalLinks<I> {
    /// Creates the layer around a site, in a group of that size.
    pub fn new(inner: I, nodes: u32) -> Self {
        Self { inner, sent: Matrix::new(nodes), taken: vec![0; nodes as usize], held: Vec::new() }
    }

    /// Returns the inner protocol.
    pub fn inner(&self) -> &I {
        &self.inner
    }

    fn run(&mut self, input: Input<I>, cx: &mut Cx<'_, Self>) {
        for effect in tap(cx, &mut self.inner, input) {
            match effect {
                Effect::Arm { timer, min, max } => cx.arm(timer, min..=max),
                Effect::Disarm { timer } => cx.disarm(timer),
                Effect::Emit { event } => cx.emit(event),
                sends => self.send(sends, cx),
            }
        }
    }

    /// Sends all copies of one message. Every copy counts all the others as sent. Otherwise the first
    /// receiver could send the second one a message that overtakes the second's copy.
    fn send(&mut self, effect: Effect<I>, cx: &mut Cx<'_, Self>) {
        let mut copies = Vec::new();
        each_receiver(cx, effect, |_, to, body| copies.push((to, body)));
        let me = cx.me();
        copies.iter().for_each(|(to, _)| self.sent.count(me, *to));
        for (to, body) in copies {
            let mut sent = self.sent.clone();
            sent.discount(me, to);
            cx.send(to, Known { sent, body });
        }
    }

    /// Whether all messages that were sent to this site before this one have been delivered.
    fn may_take(&self, me: NodeId, message: &Known<I::Message>) -> bool {
        let mut senders = (0..self.sent.nodes).map(NodeId);
        senders.all(|from| message.sent.get(from, me) <= self.taken[from.index()])
    }

    fn take_what_may(&mut self, cx: &mut Cx<'_, Self>) {
        let me = cx.me();
        while let Some(next) = self.held.iter().position(|(_, message)| self.may_take(me, message)) {
            let (from, Known { mut sent, body }) = self.held.remove(next);
            self.taken[from.index()] += 1;
            sent.count(from, me); // on the wire, the matrix does not count its own message
            self.sent.merge(&sent);
            self.run(Input::Message { from, message: body }, cx);
        }
    }
}

impl<I: Protocol> Protocol for CausalLinks<I> {
    type Message = Known<I::Message>;
    type Timer = I::Timer;
    type Command = I::Command;
    type Event = I::Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.run(Input::Start, cx);
    }

    fn on_message(&mut self, from: NodeId, message: Self::Message, cx: &mut Cx<'_, Self>) {
        if self.held.len() < MOST_HELD && message.sent.counts.len() == self.sent.counts.len() {
            self.held.push((from, message));
        }
        self.take_what_may(cx);
    }

    fn on_timer(&mut self, timer: I::Timer, cx: &mut Cx<'_, Self>) {
        self.run(Input::Timer(timer), cx);
    }

    fn on_command(&mut self, command: I::Command, cx: &mut Cx<'_, Self>) {
        self.run(Input::Command(command), cx);
    }

    fn on_recover(&mut self, cx: &mut Cx<'_, Self>) {
        self.run(Input::Recover, cx);
    }
}
