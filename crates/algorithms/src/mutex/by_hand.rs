//! A group that a test steps by hand: every message stays on its link until the test delivers it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use conclave_kernel::{Buffer, Cx, Effect, Env, Input, NodeId, Prng, Ratio};

use super::{Command, Event, Mutex};

/// The sites, their links, and a record of the run so far.
pub(crate) struct ByHand<M: Mutex> {
    pub(crate) nodes: Vec<M>,
    /// The number of messages between different sites.
    pub(crate) sent: u64,
    links: BTreeMap<(u32, u32), VecDeque<M::Message>>,
    inside: Vec<u32>,
    fences: Vec<u64>,
    order: Vec<u32>,
}

impl<M: Mutex> ByHand<M> {
    /// Creates a group and starts every site.
    pub(crate) fn new(nodes: u32, make: impl Fn(NodeId) -> M) -> Self {
        let mut group = Self {
            nodes: (0..nodes).map(|id| make(NodeId(id))).collect(),
            sent: 0,
            links: BTreeMap::new(),
            inside: Vec::new(),
            fences: Vec::new(),
            order: Vec::new(),
        };
        (0..nodes).for_each(|site| group.step(site, Input::Start));
        group
    }

    pub(crate) fn acquire(&mut self, site: u32) {
        self.step(site, Input::Command(Command::Acquire));
    }

    pub(crate) fn release(&mut self, site: u32) {
        self.step(site, Input::Command(Command::Release));
    }

    pub(crate) fn step(&mut self, site: u32, input: Input<M>) {
        self.with(site, |node, cx| node.step(input, cx));
    }

    /// Runs any method of a site and carries out its effects.
    pub(crate) fn with(&mut self, site: u32, run: impl FnOnce(&mut M, &mut Cx<'_, M>)) {
        let env = Env::new(NodeId(site), self.nodes.len() as u32);
        let mut buffer = Buffer::default();
        let node = &mut self.nodes[site as usize];
        run(node, &mut Cx::new(env, &mut buffer));
        let mut again = Buffer::default();
        node.clone().guards(&mut Cx::new(env, &mut again));
        assert_eq!(again.effects, [], "guards left something enabled");
        for effect in buffer.effects {
            match effect {
                Effect::Send { to, message } => self.post(site, to.0, message),
                Effect::SendTo { to, message } => {
                    for to in to.iter().filter(|to| to.0 != site) {
                        self.post(site, to.0, message.clone());
                    }
                }
                Effect::Broadcast { message } => {
                    for to in (0..self.nodes.len() as u32).filter(|to| *to != site) {
                        self.post(site, to, message.clone());
                    }
                }
                Effect::Emit { event: Event::Granted { fence } } => {
                    self.inside.push(site);
                    self.order.push(site);
                    self.fences.push(fence.0);
                }
                Effect::Emit { event: Event::Released } => self.inside.retain(|inside| *inside != site),
                other => panic!("not expected by hand: {other:?}"),
            }
        }
    }

    /// Delivers the oldest message of a link.
    pub(crate) fn deliver(&mut self, from: u32, to: u32) {
        let message = self.take(from, to);
        self.inject(from, to, message);
    }

    /// Delivers the messages that a site sends to itself, until there are none left.
    pub(crate) fn soliloquy(&mut self, site: u32) {
        while self.links.get(&(site, site)).is_some_and(|link| !link.is_empty()) {
            self.deliver(site, site);
        }
    }

    /// Takes the oldest message off a link. The test can inject it later or lose it.
    pub(crate) fn take(&mut self, from: u32, to: u32) -> M::Message {
        let link = self.links.get_mut(&(from, to)).expect("something was sent on this link");
        link.pop_front().expect("something is under way on this link")
    }

    /// Returns the message that a link would deliver next.
    pub(crate) fn peek(&self, from: u32, to: u32) -> M::Message {
        self.links[&(from, to)].front().expect("something is under way on this link").clone()
    }

    /// Delivers a message to a site, whether or not it was ever sent.
    pub(crate) fn inject(&mut self, from: u32, to: u32, message: M::Message) {
        self.step(to, Input::Message { from: NodeId(from), message });
    }

    /// Loses all messages in flight to or from a site.
    pub(crate) fn lose(&mut self, site: u32) {
        self.links.retain(|(from, to), _| *from != site && *to != site);
    }

    /// Delivers messages until none is in flight.
    pub(crate) fn settle(&mut self) {
        while let Some(&(from, to)) = self.busy().first() {
            self.deliver(from, to);
        }
    }

    /// Delivers messages in a random order, also within a link, and at random times releases the site that is
    /// inside. Ends when no message is in flight and no site is inside. Panics if two sites are inside.
    pub(crate) fn churn(&mut self, dice: &mut Prng) {
        self.churn_with_copies(dice, Ratio::ZERO);
    }

    /// The same as [`Self::churn`], but a delivered message stays on its link with probability `copies`, and
    /// so arrives again.
    pub(crate) fn churn_with_copies(&mut self, dice: &mut Prng, copies: Ratio) {
        loop {
            assert!(self.inside.len() <= 1, "{:?} are inside", self.inside);
            let busy = self.busy();
            if let Some(inside) = self.inside.first().copied()
                && (busy.is_empty() || dice.below(4) == 0)
            {
                self.release(inside);
            } else if !busy.is_empty() {
                let link = busy[dice.below(busy.len() as u64) as usize];
                let queue = self.links.get_mut(&link).expect("it is busy");
                let at = dice.below(queue.len() as u64) as usize;
                let message = if dice.chance(copies) { queue.get(at).cloned() } else { queue.remove(at) };
                let message = message.expect("within the queue");
                self.inject(link.0, link.1, message);
            } else {
                return;
            }
        }
    }

    /// Returns the sites in the critical section.
    pub(crate) fn inside(&self) -> &[u32] {
        &self.inside
    }

    /// Returns the fences of all grants, in the order of the grants.
    pub(crate) fn fences(&self) -> &[u64] {
        &self.fences
    }

    /// Returns the sites that were granted, in the order of the grants.
    pub(crate) fn order(&self) -> &[u32] {
        &self.order
    }

    fn busy(&self) -> Vec<(u32, u32)> {
        self.links.iter().filter(|(_, queue)| !queue.is_empty()).map(|(link, _)| *link).collect()
    }

    fn post(&mut self, from: u32, to: u32, message: M::Message) {
        self.sent += u64::from(from != to);
        self.links.entry((from, to)).or_default().push_back(message);
    }
}
