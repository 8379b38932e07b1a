//! Causal delivery: if the sending of one message happened before that of another, no site takes them in the
//! other way round.
//!
//! Two layers. [`CausalBroadcast`] is for protocols that talk to everybody: a message carries how many
//! broadcasts of each site its sender had taken in, N numbers, and waits until the receiver has taken in as
//! many. \[BSS91 §5\] [`CausalLinks`] is for messages from one to one, where a receiver cannot count what was
//! sent to others: a message carries, for every pair of sites, how many messages its sender knows to have
//! been sent, N² numbers, and waits until the receiver has taken in all that are addressed to it. \[RST91
//! §3\]
//!
//! **Trap**: FIFO links are not enough. n0 tells n2, then n1; n1, having heard, tells n2; and n2 hears n1
//! first.
//!
//! **Where we depart from the paper**: point-to-point messages inside a [`CausalBroadcast`] wait for the
//! broadcasts that their sender knew of, and nobody waits for them.

use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{Cx, Effect, Input, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::MOST_HELD;
use super::tap::{each_receiver, tap};
use crate::clock::VectorClock;

/// A protocol whose broadcasts are taken in in causal order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct CausalBroadcast<I: Protocol> {
    inner: I,
    /// How many broadcasts of each site were taken in; of this one, made.
    taken: VectorClock,
    held: Vec<(NodeId, Cast<I::Message>)>,
}

/// A message with what its sender had taken in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cast<M> {
    /// How many broadcasts of each site the sender had taken in; if it is a broadcast, itself included.
    pub known: VectorClock,
    /// Whether it is a broadcast.
    pub to_all: bool,
    /// What it says.
    pub body: M,
}

impl<I: Protocol> CausalBroadcast<I> {
    /// The layer around a site of a group of that size.
    pub fn new(inner: I, nodes: u32) -> Self {
        Self { inner, taken: VectorClock::new(nodes), held: Vec::new() }
    }

    /// The protocol inside.
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

    /// Whether everything that must come first has come.
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

/// A protocol whose messages, to whomever, are taken in in causal order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct CausalLinks<I: Protocol> {
    inner: I,
    sent: Matrix,
    /// How many messages of each site were taken in.
    taken: Vec<u32>,
    held: Vec<(NodeId, Known<I::Message>)>,
}

/// A message with what its sender knew to have been sent before.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Known<M> {
    /// How many messages from each site to each.
    pub sent: Matrix,
    /// What it says.
    pub body: M,
}

/// How many messages were sent from each site to each, as far as somebody knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Matrix {
    nodes: u32,
    /// A row a sender.
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
    /// The layer around a site of a group of that size.
    pub fn new(inner: I, nodes: u32) -> Self {
        Self { inner, sent: Matrix::new(nodes), taken: vec![0; nodes as usize], held: Vec::new() }
    }

    /// The protocol inside.
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

    /// The copies of one message are sent at once: each knows of all the others, or whoever hears the first
    /// could tell the second something that then overtakes its copy.
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

    /// Whether everything that was sent here before it has come.
    fn may_take(&self, me: NodeId, message: &Known<I::Message>) -> bool {
        let mut senders = (0..self.sent.nodes).map(NodeId);
        senders.all(|from| message.sent.get(from, me) <= self.taken[from.index()])
    }

    fn take_what_may(&mut self, cx: &mut Cx<'_, Self>) {
        let me = cx.me();
        while let Some(next) = self.held.iter().position(|(_, message)| self.may_take(me, message)) {
            let (from, Known { mut sent, body }) = self.held.remove(next);
            self.taken[from.index()] += 1;
            sent.count(from, me); // it counts itself from now on
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
