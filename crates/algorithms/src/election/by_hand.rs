//! A group for tests, stepped by hand: messages wait on their links, and timers wait until a test fires them.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use conclave_kernel::{Buffer, Cx, Effect, Env, Input, NodeId, Prng};

use super::{Command, Election, Event, Group};

/// The sites, their links, and counters for the tests.
pub(crate) struct ByHand<E: Election> {
    nodes: Vec<Site<E>>,
    /// The number of messages sent from one site to another.
    pub(crate) sent: u64,
    links: BTreeMap<(u32, u32), VecDeque<E::Message>>,
}

struct Site<E: Election> {
    state: E,
    up: bool,
    incarnation: u32,
    leader: Option<u32>,
    elected: u32,
    armed: Vec<E::Timer>,
}

impl<E: Election> ByHand<E> {
    /// Creates a group and starts all its sites.
    pub(crate) fn new(group: &Group) -> Self {
        let site = |id| Site {
            state: E::new(NodeId(id), group),
            up: true,
            incarnation: 0,
            leader: None,
            elected: 0,
            armed: Vec::new(),
        };
        let nodes = (0..group.nodes).map(site).collect();
        let mut by_hand = Self { nodes, sent: 0, links: BTreeMap::new() };
        (0..group.nodes).for_each(|site| by_hand.step(site, Input::Start));
        by_hand
    }

    pub(crate) fn command(&mut self, site: u32, command: Command) {
        self.step(site, Input::Command(command));
    }

    /// Fires a timer, which must be armed.
    pub(crate) fn fire(&mut self, site: u32, timer: E::Timer) {
        let armed = &mut self.nodes[site as usize].armed;
        let at = armed.iter().position(|armed| *armed == timer);
        armed.remove(at.expect("only what is armed goes off"));
        self.step(site, Input::Timer(timer));
    }

    pub(crate) fn crash(&mut self, site: u32) {
        let row = &mut self.nodes[site as usize];
        row.up = false;
        row.armed.clear();
    }

    pub(crate) fn recover(&mut self, site: u32) {
        let row = &mut self.nodes[site as usize];
        (row.up, row.incarnation) = (true, row.incarnation + 1);
        self.step(site, Input::Recover);
    }

    /// Delivers the oldest message of a link.
    pub(crate) fn deliver(&mut self, from: u32, to: u32) {
        let message = self.take(from, to);
        self.hand_over(from, to, message);
    }

    /// Takes the oldest message off a link. The test can deliver it later with `inject`, or lose it.
    pub(crate) fn take(&mut self, from: u32, to: u32) -> E::Message {
        let message = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        message.expect("something is under way on this link")
    }

    /// Delivers a message that need not be on any link.
    pub(crate) fn inject(&mut self, from: u32, to: u32, message: E::Message) {
        self.hand_over(from, to, message);
    }

    /// Delivers messages until none is in flight.
    pub(crate) fn settle(&mut self) {
        loop {
            let next = self.busy().next();
            let Some((from, to)) = next else { return };
            self.deliver(from, to);
        }
    }

    /// Delivers all messages in a random order, also within a link, until none is in flight.
    pub(crate) fn churn(&mut self, dice: &mut Prng) {
        loop {
            let busy: Vec<_> = self.busy().collect();
            if busy.is_empty() {
                return;
            }
            let (from, to) = busy[dice.below(busy.len() as u64) as usize];
            let link = self.links.get_mut(&(from, to)).expect("it is busy");
            let message = link.remove(dice.below(link.len() as u64) as usize).expect("within the queue");
            self.hand_over(from, to, message);
        }
    }

    /// Returns the number of messages in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.links.values().map(VecDeque::len).sum()
    }

    /// Returns the leader of each site, as far as the site knows.
    pub(crate) fn leaders(&self) -> Vec<Option<u32>> {
        self.nodes.iter().map(|site| site.leader).collect()
    }

    /// Returns how often a site has decided.
    pub(crate) fn elected_events(&self, site: u32) -> u32 {
        self.nodes[site as usize].elected
    }

    fn busy(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.links.iter().filter(|(_, queue)| !queue.is_empty()).map(|(link, _)| *link)
    }

    fn hand_over(&mut self, from: u32, to: u32, message: E::Message) {
        if self.nodes[to as usize].up {
            self.step(to, Input::Message { from: NodeId(from), message });
        }
    }

    fn step(&mut self, site: u32, input: Input<E>) {
        let nodes = self.nodes.len() as u32;
        let row = &mut self.nodes[site as usize];
        let env = Env { incarnation: row.incarnation, ..Env::new(NodeId(site), nodes) };
        let mut buffer = Buffer::default();
        row.state.step(input, &mut Cx::new(env, &mut buffer));
        for effect in buffer.effects {
            match effect {
                Effect::Send { to, message } => self.post(site, to.0, message),
                Effect::SendTo { to, message } => {
                    to.iter().for_each(|to| self.post(site, to.0, message.clone()));
                }
                Effect::Broadcast { message } => {
                    let peers = (0..nodes).filter(|to| *to != site);
                    peers.for_each(|to| self.post(site, to, message.clone()));
                }
                Effect::Emit { event: Event::Elected { leader } } => {
                    let row = &mut self.nodes[site as usize];
                    (row.leader, row.elected) = (Some(leader.0), row.elected + 1);
                }
                Effect::Emit { event: Event::Vacant } => self.nodes[site as usize].leader = None,
                Effect::Arm { timer, .. } => {
                    let armed = &mut self.nodes[site as usize].armed;
                    armed.retain(|other| *other != timer);
                    armed.push(timer);
                }
                Effect::Disarm { timer } => {
                    self.nodes[site as usize].armed.retain(|other| *other != timer);
                }
            }
        }
    }

    fn post(&mut self, from: u32, to: u32, message: E::Message) {
        assert_ne!(from, to, "a site needs no message to itself");
        self.sent += 1;
        self.links.entry((from, to)).or_default().push_back(message);
    }
}
