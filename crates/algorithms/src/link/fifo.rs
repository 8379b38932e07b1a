//! FIFO over arbitrary order: messages of a link are numbered, and wait for those before them.
//!
//! **Rules**: a sender numbers what it sends to each site 0, 1, 2, ...; a receiver takes in number n of a
//! link when it has taken in all before it, and holds what comes early. A number that was taken in already is
//! a copy, and ignored: duplication does no harm either.
//!
//! **Trap**: one lost message stops its link for ever. Over a network that loses, put
//! [`Retransmit`](super::Retransmit) around it.

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
    /// The next number, by receiver; and by sender.
    next_out: Vec<u64>,
    next_in: Vec<u64>,
    /// What came early, by sender and number.
    held: BTreeMap<(NodeId, u64), I::Message>,
}

/// A message with its number on its link.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Numbered<M> {
    /// Its number.
    pub number: u64,
    /// What it says.
    pub body: M,
}

impl<I: Protocol> Fifo<I> {
    /// The layer around a site of a group of that size.
    pub fn new(inner: I, nodes: u32) -> Self {
        let zero = vec![0; nodes as usize];
        Self { inner, next_out: zero.clone(), next_in: zero, held: BTreeMap::new() }
    }

    /// The protocol inside.
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

/// Any mutual exclusion over FIFO links of its own: it no longer needs them of the network.
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

/// Any snapshot over FIFO links of its own: Chandy-Lamport on a network that reorders.
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
