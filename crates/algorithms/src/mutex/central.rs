//! The central coordinator: one site, the master, keeps the queue, and the others send their requests to it.
//!
//! The master receives every request and grants them one after the other, in the order of receipt. This is
//! the simplest algorithm and costs few messages, but everything depends on one site.
//!
//! **Rules** \[CDK §15.2\]
//! 1. To request: send REQUEST to the master. On exit: send RELEASE to the master.
//! 2. The master sends GRANT to the head of its queue whenever no site is in the critical section.
//! 3. The master puts its own requests into the same queue, without a message.
//!
//! **Trap**: the order of receipt is not the order of requests. Site 1's REQUEST is slow, site 2 learns of
//! it, requests too, and its REQUEST arrives first. Grants then do not follow happened-before (ME3).
//!
//! **Bounds**: the queue holds at most one request of each site, so at most N.
//!
//! **A new master**: the layer that runs an election calls [`Central::on_elected`] at the winner. The new
//! master sends POLL to every site that is still alive, and grants nothing before all have replied. A waiting
//! site sends its REQUEST again, a site in the critical section replies HOLDING, and any other site replies
//! IDLE. From these replies the new master rebuilds the queue. The upper bits of a fence are the master's
//! term, so fences grow from master to master, whatever messages were lost.
//!
//! **Differences from the paper**: requests are numbered, and every message carries the master's term. Sites
//! therefore recognise late and duplicated messages, and channels need not be FIFO.

pub mod elected;

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, NodeMap, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::{Bill, Command, Door, Event, Fence, Group, Mutex};

/// One site: always a client, and possibly the master.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Central {
    door: Door,
    /// The master, as far as this site knows: the site to which it sends its requests.
    master: NodeId,
    /// The master's term: 0 for the first master, larger for each later one.
    term: u32,
    /// The number of this site's latest request.
    number: u64,
    /// The master's state; `None` at every other site.
    pub(crate) desk: Option<Box<Desk>>,
}

/// The state that only the master keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Desk {
    /// The waiting requests in order of receipt: at most one of each site.
    pub(crate) queue: VecDeque<Ticket>,
    /// The granted request that is not yet released.
    pub(crate) holder: Option<Ticket>,
    /// The number of each site's latest request. A request with no larger number is a duplicate.
    latest: NodeMap<u64>,
    /// The fence of the latest grant.
    fence: Fence,
    /// The sites that have not yet replied to a new master's POLL.
    unheard: NodeSet,
}

/// The identity of a request: the site, and the number of the request at that site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Ticket {
    pub(crate) site: NodeId,
    pub(crate) number: u64,
}

/// A message between two sites, with the term of the master that it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    term: u32,
    pub(crate) body: Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Body {
    /// To the master: requests the critical section.
    Request { number: u64 },
    /// From the master: grants a request.
    Grant { number: u64, fence: Fence },
    /// To the master: the site has left the critical section.
    Release { number: u64 },
    /// From a new master: announces itself and requests the site's state.
    Poll,
    /// To a new master: the site neither waits nor is in the critical section.
    Idle,
    /// To a new master: the site is in the critical section.
    Holding { number: u64 },
}

impl Protocol for Central {
    type Message = Message;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        if message.body == Body::Poll && message.term > self.term {
            self.follow(from, message.term, cx);
            return;
        }
        if message.term != self.term {
            return; // from the term of an earlier master
        }
        match (message.body, &mut self.desk) {
            (Body::Grant { number, fence }, _) if number == self.number && self.door.is_asking() => {
                self.door.enter(fence, cx);
            }
            (Body::Request { number }, Some(desk)) => desk.on_request(Ticket { site: from, number }),
            (Body::Release { number }, Some(desk)) => desk.on_release(Ticket { site: from, number }),
            (Body::Idle, Some(desk)) => _ = desk.unheard.remove(from),
            (Body::Holding { number }, Some(desk)) => desk.on_holding(Ticket { site: from, number }),
            _ => {} // a late duplicate
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Acquire => self.door.knock(cx),
            Command::Release if self.door.leave(cx) => match &mut self.desk {
                Some(desk) => desk.on_release(Ticket { site: cx.me(), number: self.number }),
                None => self.tell_master(Body::Release { number: self.number }, cx),
            },
            Command::Release | Command::Witness(_) => {}
        }
    }

    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.door.must_ask() {
            // After an amnesia restart a site must not reuse a number: the upper 32 bits are its incarnation.
            self.number = self.number.max(u64::from(cx.incarnation()) << 32) + 1;
            match &mut self.desk {
                Some(desk) => desk.on_request(Ticket { site: cx.me(), number: self.number }),
                None => self.tell_master(Body::Request { number: self.number }, cx),
            }
        }
        if let Some((next, fence)) = self.desk.as_mut().and_then(|desk| desk.admit()) {
            if next.site == cx.me() {
                self.door.enter(fence, cx);
            } else {
                let body = Body::Grant { number: next.number, fence };
                cx.send(next.site, Message { term: self.term, body });
            }
        }
    }
}

impl Central {
    /// Returns the site that this site takes for the master.
    pub fn master(&self) -> NodeId {
        self.master
    }

    /// Makes this site the master, because an election chose it. `term` must be larger than that of every
    /// earlier master; the call is ignored if it is not larger than this site's own. `alive` must contain
    /// every site that may be in the critical section. A site left out by a wrong suspicion may still be
    /// inside, and then only its smaller fence shows that it is out of date.
    pub fn on_elected(&mut self, term: u32, alive: &NodeSet, cx: &mut Cx<'_, Self>) {
        if let Some(polled) = self.install(cx.me(), cx.members().len() as u32, term, alive) {
            cx.send_to(polled, Message { term, body: Body::Poll });
            self.guards(cx);
        }
    }

    /// Makes this site the master and returns the sites to poll. `None` if the term is not newer.
    fn install(&mut self, me: NodeId, nodes: u32, term: u32, alive: &NodeSet) -> Option<NodeSet> {
        if term <= self.term {
            return None;
        }
        (self.master, self.term) = (me, term);
        let mut desk = Box::new(Desk::new(nodes, term));
        desk.unheard.clone_from(alive);
        desk.unheard.remove(me);
        let mine = Ticket { site: me, number: self.number };
        if self.door.is_asking() {
            desk.on_request(mine);
        } else if self.door.is_inside() {
            desk.holder = Some(mine);
        }
        let polled = desk.unheard.clone();
        self.desk = Some(desk);
        Some(polled)
    }

    /// Follows a new master and sends it this site's state.
    fn follow(&mut self, master: NodeId, term: u32, cx: &mut Cx<'_, Self>) {
        (self.master, self.term, self.desk) = (master, term, None);
        let number = self.number;
        let stand = match (self.door.is_asking(), self.door.is_inside()) {
            (true, _) => Body::Request { number },
            (_, true) => Body::Holding { number },
            _ => Body::Idle,
        };
        self.tell_master(stand, cx);
    }

    fn tell_master(&self, body: Body, cx: &mut Cx<'_, Self>) {
        cx.send(self.master, Message { term: self.term, body });
    }
}

/// The number of fence bits that count entries. The bits above them are the term.
const COUNTER_BITS: u32 = 40;

impl Desk {
    fn new(nodes: u32, term: u32) -> Self {
        Self {
            queue: VecDeque::new(),
            holder: None,
            latest: NodeMap::new(nodes),
            fence: Fence(u64::from(term) << COUNTER_BITS),
            unheard: NodeSet::new(),
        }
    }

    fn on_request(&mut self, ticket: Ticket) {
        // A waiting site is not in the critical section: this replaces any other reply to the POLL.
        self.unheard.remove(ticket.site);
        if self.latest.get(ticket.site).is_none_or(|latest| latest < ticket.number) {
            self.latest.insert(ticket.site, ticket.number);
            self.queue.push_back(ticket);
        }
    }

    fn on_release(&mut self, ticket: Ticket) {
        self.unheard.remove(ticket.site);
        if self.holder == Some(ticket) {
            self.holder = None;
        }
    }

    fn on_holding(&mut self, ticket: Ticket) {
        if self.unheard.remove(ticket.site) {
            self.holder = Some(ticket);
        }
    }

    /// Grants the head of the queue if no grant is outstanding and all polled sites have replied.
    fn admit(&mut self) -> Option<(Ticket, Fence)> {
        if self.holder.is_some() || !self.unheard.is_empty() {
            return None;
        }
        self.holder = Some(self.queue.pop_front()?);
        self.fence = self.fence.next();
        self.holder.map(|next| (next, self.fence))
    }
}

impl Mutex for Central {
    const CARD: Card = Card {
        problem: "mutex",
        name: "central",
        title: "Central coordinator",
        summary: "one site keeps the queue and lets the others enter, one after the other",
        papers: &["CDK"],
        needs: Needs { no_duplication: false, ..Needs::RELIABLE },
        promises: &["ME1", "ME1-causal", "ME2", "fences"],
        costs: &[
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::Low,
                formula: "3; 0 for the coordinator",
                range: |size| (0.0, if size.nodes == 1 { 0.0 } else { 3.0 }),
            },
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::High,
                formula: "3; 0 for the coordinator",
                range: |size| (0.0, if size.nodes == 1 { 0.0 } else { 3.0 }),
            },
            Cost {
                measure: Measure::ClientDelay,
                load: Load::Low,
                formula: "2T; 0 for the coordinator",
                range: |size| (0.0, if size.nodes == 1 { 0.0 } else { 2.0 }),
            },
            Cost {
                measure: Measure::SyncDelay,
                load: Load::High,
                formula: "2T; T from or to the coordinator",
                range: |size| (0.0, if size.nodes == 1 { 0.0 } else { 2.0 }),
            },
        ],
        survives: "the crash of a client that neither waits nor is inside",
        idle_traffic: false,
        reads_clock: false,
    };

    fn new(me: NodeId, group: &Group) -> Self {
        let master = NodeId(0);
        let desk = (me == master).then(|| Box::new(Desk::new(group.nodes, 0)));
        Self { door: Door::default(), master, term: 0, number: 0, desk }
    }

    fn bill(message: &Message, from: NodeId, to: NodeId) -> Bill {
        match message.body {
            Body::Request { number } => Bill::enter("REQUEST", from, number),
            Body::Grant { number, .. } => Bill::enter("GRANT", to, number),
            Body::Release { number } => Bill::exit("RELEASE", from, number),
            Body::Poll => Bill::shared("POLL"),
            Body::Idle => Bill::shared("IDLE"),
            Body::Holding { .. } => Bill::shared("HOLDING"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutex::by_hand::ByHand;
    use alloc::vec::Vec;

    fn group(nodes: u32) -> ByHand<Central> {
        ByHand::new(nodes, |me| Central::new(me, &Group::new(nodes)))
    }

    #[test]
    fn a_client_pays_three_messages_and_the_coordinator_none() {
        let mut group = group(3);
        group.acquire(1);
        group.settle();
        assert_eq!(group.inside(), [1]);
        group.release(1);
        group.settle();
        assert_eq!(group.sent, 3);
        group.acquire(0);
        assert_eq!(group.inside(), [0]);
        group.release(0);
        assert_eq!(group.sent, 3);
    }

    #[test]
    fn grants_follow_the_order_of_receipt_and_fences_grow() {
        let mut group = group(4);
        [2, 0, 3, 1].into_iter().for_each(|site| group.acquire(site));
        group.deliver(3, 0);
        group.deliver(1, 0);
        group.deliver(2, 0);
        assert_eq!(group.nodes[0].desk.as_ref().unwrap().queue.len(), 3);
        for site in [0, 3, 1, 2] {
            group.settle();
            assert_eq!(group.inside(), [site]);
            group.release(site);
        }
        group.settle();
        assert_eq!(group.fences(), [1, 2, 3, 4]);
    }

    #[test]
    fn a_request_that_was_caused_by_another_may_overtake_it() {
        // ME3 is not promised: site 2 requests because it knows of site 1's request, and its REQUEST arrives
        // first.
        let mut group = group(3);
        group.acquire(1);
        group.acquire(2);
        group.deliver(2, 0);
        group.settle();
        assert_eq!(group.inside(), [2]);
    }

    #[test]
    fn duplicates_of_request_grant_and_release_change_nothing() {
        let mut group = group(3);
        group.acquire(1);
        let request = group.peek(1, 0);
        group.settle();
        let grant = Message { term: 0, body: Body::Grant { number: 1, fence: Fence(1) } };
        group.release(1);
        let release = group.peek(1, 0);
        group.settle();
        group.acquire(2);
        group.settle();
        let before = group.nodes.clone();
        for copy in [request, release] {
            group.inject(1, 0, copy);
        }
        group.inject(0, 1, grant);
        assert_eq!(group.nodes, before);
        assert_eq!(group.inside(), [2]);
    }

    #[test]
    fn a_next_request_may_overtake_the_release_before_it() {
        let mut group = group(2);
        group.acquire(1);
        group.acquire(1);
        group.settle();
        group.release(1); // sends RELEASE of the first and REQUEST of the second
        let release = group.take(1, 0);
        group.settle();
        assert_eq!(group.inside(), [0; 0]);
        group.inject(1, 0, release);
        group.settle();
        assert_eq!(group.inside(), [1]);
    }

    #[test]
    fn a_new_master_rebuilds_the_queue_from_those_who_wait() {
        let mut group = group(4);
        group.acquire(1);
        group.settle();
        group.acquire(2);
        group.settle();
        group.acquire(3);
        group.lose(0); // the master dies with 1 inside, 2 queued and 3 on its way
        let alive: NodeSet = [1, 2, 3].map(NodeId).into_iter().collect();
        group.with(3, |site, cx| site.on_elected(1, &alive, cx));
        group.deliver(3, 2);
        group.deliver(2, 3);
        assert_eq!(group.inside(), [1], "nothing is granted before everybody was heard");
        group.settle();
        assert_eq!(group.inside(), [1]);
        group.release(1);
        group.settle();
        assert_eq!(group.inside(), [3], "its own request was first");
        group.release(3);
        group.settle();
        assert_eq!(group.inside(), [2]);
        assert!(group.fences().is_sorted_by(|a, b| a < b));
        assert!([1, 2, 3].iter().all(|site| group.nodes[*site].master() == NodeId(3)));
    }

    #[test]
    fn a_release_that_overtakes_the_report_of_its_holder_frees_the_lock() {
        let mut group = group(3);
        group.acquire(1);
        group.settle();
        let alive: NodeSet = [0, 1, 2].map(NodeId).into_iter().collect();
        group.with(2, |site, cx| site.on_elected(1, &alive, cx));
        group.deliver(2, 1);
        let holding = group.take(1, 2);
        group.release(1);
        group.acquire(0);
        group.settle();
        assert_eq!(group.inside(), [0], "the deposed master, still alive, is a client now");
        group.inject(1, 2, holding);
        group.release(0);
        group.acquire(1);
        group.settle();
        assert_eq!(group.inside(), [1]);
    }

    #[test]
    fn the_queue_never_holds_two_requests_of_one_site() {
        let mut group = group(5);
        for round in 0..50 {
            (0..5).for_each(|site| group.acquire(site));
            group.settle();
            let queue = &group.nodes[0].desk.as_ref().unwrap().queue;
            let mut sites: Vec<_> = queue.iter().map(|ticket| ticket.site).collect();
            sites.sort();
            sites.dedup();
            assert_eq!(sites.len(), queue.len(), "round {round}");
            let inside = group.inside()[0];
            group.release(inside);
        }
    }
}
