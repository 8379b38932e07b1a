//! FIFO links over a network that reorders: it numbers the messages of a link and delivers them in order.
//!
//! **Rules**: a sender numbers its messages to each site 0, 1, 2, ... A receiver delivers message n of a link
//! after all messages before it, and holds back a message that arrives early. A message whose number was
//! already delivered is a copy, and the receiver ignores it. So duplication does no harm either.
//!
//! **Trap**: one lost message stops its link forever. For a network that loses messages, put
//! [`Retransmit`](super::Retransmit) around this layer.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{Card, Cx, Input, Needs, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::MOST_HELD;
use super::tap::{relay, tap};
use crate::mutex::{Bill, Group, Mutex};
use crate::snapshot::Snapshot;

/// A protocol whose links are FIFO.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Fifo<I: Protocol> {
    inner: I,
    /// The number of the next message to each receiver.
    next_out: Vec<u64>,
    /// The number of the next message to deliver from each sender.
    next_in: Vec<u64>,
    /// The messages that arrived early, by sender and number.
    held: BTreeMap<(NodeId, u64), I::Message>,
}

/// A message with its number on its link.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Numbered<M> {
    /// The message's number on its link, from 0.
    pub number: u64,
    /// The message of the inner protocol.
    pub body: M,
}

impl<I: Protocol> Fifo<I> {
    /// Creates the layer around a site, in a group of that size.
    pub fn new(inner: I, nodes: u32) -> Self {
        let zero = vec![0; nodes as usize];
        Self { inner, next_out: zero.clone(), next_in: zero, held: BTreeMap::new() }
    }

    /// Returns the inner protocol.
    pub fn inner(&self) -> &I {
        &self.inner
    }

    fn run(&mut self, input: Input<I>, cx: &mut Cx<'_, Self>) {
        let effects = tap(cx, &mut self.inner, input);
        relay(
            cx,
            effects,
            |timer| timer,
            |cx, to, body| {
                let number = self.next_out[to.index()];
                self.next_out[to.index()] += 1;
                cx.send(to, Numbered { number, body });
            },
        );
    }
}

impl<I: Protocol> Protocol for Fifo<I> {
    type Message = Numbered<I::Message>;
    type Timer = I::Timer;
    type Command = I::Command;
    type Event = I::Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.run(Input::Start, cx);
    }

    fn on_message(&mut self, from: NodeId, Numbered { number, body }: Self::Message, cx: &mut Cx<'_, Self>) {
        if number < self.next_in[from.index()] {
            return; // a copy
        }
        if number > self.next_in[from.index()] {
            if self.held.len() < MOST_HELD {
                self.held.insert((from, number), body);
            }
            return;
        }
        let mut next = Some(body);
        while let Some(message) = next {
            self.next_in[from.index()] += 1;
            self.run(Input::Message { from, message }, cx);
            next = self.held.remove(&(from, self.next_in[from.index()]));
        }
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

/// A mutual-exclusion algorithm over FIFO links: the network need not be FIFO.
impl<M: Mutex> Mutex for Fifo<M> {
    const CARD: Card = Card {
        needs: Needs { fifo: false, no_duplication: false, ..M::CARD.needs },
        promises: super::PROMISES,
        ..M::CARD
    };
    const USES_QUORUMS: bool = M::USES_QUORUMS;

    fn new(me: NodeId, group: &Group) -> Self {
        Self::new(M::new(me, group), group.nodes)
    }

    fn bill(message: &Self::Message, from: NodeId, to: NodeId) -> Bill {
        M::bill(&message.body, from, to)
    }

    fn clock(&self) -> u64 {
        self.inner.clock()
    }
}

/// A snapshot algorithm over FIFO links, for example Chandy-Lamport on a network that reorders.
impl<A: Protocol, S: Snapshot<A>> Snapshot<A> for Fifo<S> {
    const CARD: Card =
        Card { needs: Needs { fifo: false, no_duplication: false, ..S::CARD.needs }, ..S::CARD };

    fn new(me: NodeId, nodes: u32, app: A) -> Self {
        Self::new(S::new(me, nodes, app), nodes)
    }

    fn app(&self) -> &A {
        self.inner.app()
    }

    fn kind(message: &Self::Message) -> &'static str {
        S::kind(&message.body)
    }

    fn carried(message: &Self::Message) -> Option<&A::Message> {
        S::carried(&message.body)
    }
}
