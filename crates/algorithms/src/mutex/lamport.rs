//! Lamport: every site keeps a copy of the same queue of requests, and the first request in it may enter.
//!
//! A site sends its request to all, and every site inserts it into its queue in the order of the stamps. A
//! site may act on its own copy once no older request can still be in flight to it. That is so when every
//! other site has sent it a message stamped *later* than its own request. On FIFO channels, everything sent
//! before that message has arrived.
//!
//! **Rules** \[L78, rules 1-5\]
//! 1. To request: stamp the request, insert it into the site's own queue, and send it to all.
//! 2. On a request: insert it into the queue and send a reply with a later stamp.
//! 3. To leave: remove the request from the site's own queue and send a release to all. On a release: remove
//!    *that* request.
//! 4. Enter when two conditions hold. (L1) Every other site has sent a message stamped later than the site's
//!    own request. (L2) That request is the first in the queue.
//!
//! **Trap**: channels must be FIFO. Otherwise a reply overtakes an older request, and two sites are inside.
//! Or a release overtakes its request, and this *ghost* stays at the head of the queue forever. The tests
//! below contain both sequences. Every message advances the clock. *Any* later message counts for L1, not
//! only a reply.
//!
//! **The omission** (`lamport-omission`): any later message satisfies L1, so a reply is needless if a later
//! message is already in flight. A site therefore does not reply to a request that is older than its own last
//! broadcast (request or release). This is sound for two reasons:
//! - The requester had not received that broadcast when it made its request, or the request would have a
//!   later stamp. So the broadcast will still arrive.
//! - On the FIFO link, older requests of the silent site arrive before the broadcast.
//!
//! Remembering replies too would gain nothing: a requester cannot make its next request before it has
//! received the reply that it needed. A request costs between 2(N-1) messages, if all other sites made
//! requests meanwhile, and 3(N-1).
//!
//! **Differences from the paper**: replies and releases name their request. The metrics can therefore
//! attribute them to it, and a release removes no other request of the same site.

use alloc::collections::VecDeque;

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::{Bill, Command, Door, Event, Fence, Group, Mutex};
use crate::clock::{LamportClock, Stamp};

/// The algorithm as published: every request gets a reply.
pub type Lamport = LamportQueue<false>;

/// The algorithm without needless replies.
pub type LamportOmission = LamportQueue<true>;

/// One site; with `OMIT` it does not send needless replies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LamportQueue<const OMIT: bool> {
    pub(crate) door: Door,
    clock: LamportClock,
    /// This site's request, from the moment of the request until the exit.
    pub(crate) wanted: Option<Stamp>,
    /// The other sites that have sent a message later than `wanted`.
    pub(crate) later: NodeSet,
    /// All known requests, this site's own included, oldest first. On FIFO channels there is at most one of
    /// each site. Without FIFO, ghosts accumulate: at 2N entries the site drops further requests and does not
    /// reply to them.
    pub(crate) queue: VecDeque<Stamp>,
    /// The time of this site's last broadcast, if replies are omitted; otherwise 0.
    told: u64,
}

/// A message between two sites, with the sender's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    /// The sender's clock when it sent the message.
    pub time: u64,
    /// The content of the message.
    pub says: Says,
}

/// The three kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Says {
    /// Requests the critical section. The message's time identifies the request.
    Request,
    /// Confirms the receiver's request of that time.
    Reply(u64),
    /// Ends the sender's request of that time: the sender has left the critical section.
    Release(u64),
}

impl<const OMIT: bool> Protocol for LamportQueue<OMIT> {
    type Message = Message;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        self.clock.receive(message.time);
        let stamp = Stamp::new(message.time, from);
        if self.door.is_asking() && self.wanted < Some(stamp) {
            self.later.insert(from);
        }
        match message.says {
            Says::Request => {
                if self.enqueue(stamp, cx) && !(OMIT && stamp < Stamp::new(self.told, cx.me())) {
                    let time = self.clock.tick();
                    cx.send(from, Message { time, says: Says::Reply(stamp.time) });
                }
            }
            Says::Reply(_) => {}
            Says::Release(time) => self.dequeue(Stamp::new(time, from)),
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Acquire => self.door.knock(cx),
            Command::Release if self.door.leave(cx) => self.exit(cx),
            Command::Release => {}
            Command::Witness(time) => _ = self.clock.receive(time),
        }
    }

    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.door.must_ask() {
            let mine = Stamp::new(self.tell_all(Says::Request, cx), cx.me());
            self.wanted = Some(mine);
            self.enqueue(mine, cx);
        }
        if let Some(mine) = self.wanted
            && self.door.is_asking()
        {
            let l1 = self.later.len() == cx.peers().len();
            let l2 = self.queue.front() == Some(&mine);
            if l1 && l2 {
                self.door.enter(Fence(mine.rank(cx.members().len() as u32)), cx);
            }
        }
    }
}

impl<const OMIT: bool> LamportQueue<OMIT> {
    fn exit(&mut self, cx: &mut Cx<'_, Self>) {
        if let Some(mine) = self.wanted.take() {
            self.dequeue(mine);
            self.later.clear();
            self.tell_all(Says::Release(mine.time), cx);
        }
    }

    fn tell_all(&mut self, says: Says, cx: &mut Cx<'_, Self>) -> u64 {
        let time = self.clock.tick();
        if OMIT {
            self.told = time;
        }
        cx.broadcast(Message { time, says });
        time
    }

    /// Inserts a request into the queue. Returns `false` if it is already there or the queue is full.
    fn enqueue(&mut self, request: Stamp, cx: &Cx<'_, Self>) -> bool {
        match self.queue.binary_search(&request) {
            Err(place) if self.queue.len() < 2 * cx.members().len() => {
                self.queue.insert(place, request);
                true
            }
            _ => false,
        }
    }

    fn dequeue(&mut self, request: Stamp) {
        if let Ok(place) = self.queue.binary_search(&request) {
            self.queue.remove(place);
        }
    }
}

impl<const OMIT: bool> Mutex for LamportQueue<OMIT> {
    const CARD: Card = if OMIT { OMISSION } else { AS_PUBLISHED };

    fn new(_me: NodeId, group: &Group) -> Self {
        Self {
            door: Door::default(),
            clock: LamportClock::new(),
            wanted: None,
            later: NodeSet::new(),
            queue: VecDeque::with_capacity(group.nodes as usize),
            told: 0,
        }
    }

    fn bill(message: &Message, from: NodeId, to: NodeId) -> Bill {
        match message.says {
            Says::Request => Bill::enter("REQUEST", from, message.time),
            Says::Reply(time) => Bill::enter("REPLY", to, time),
            Says::Release(time) => Bill::exit("RELEASE", from, time),
        }
    }

    fn clock(&self) -> u64 {
        self.clock.time()
    }
}

const AS_PUBLISHED: Card = Card {
    problem: "mutex",
    name: "lamport",
    title: "Lamport",
    summary: "all sites keep the same queue; its first request enters once no older one can be in transit",
    papers: &["L78"],
    needs: Needs::RELIABLE_FIFO,
    promises: &["ME1", "ME1-causal", "ME2", "ME3", "fences"],
    costs: &[
        Cost {
            measure: Measure::MessagesPerEntry,
            load: Load::Low,
            formula: "3(N-1)",
            range: |size| (3.0 * (size.n() - 1.0), 3.0 * (size.n() - 1.0)),
        },
        Cost {
            measure: Measure::MessagesPerEntry,
            load: Load::High,
            formula: "3(N-1)",
            range: |size| (3.0 * (size.n() - 1.0), 3.0 * (size.n() - 1.0)),
        },
        CLIENT_DELAY,
        SYNC_DELAY,
    ],
    survives: "no crash: a message from every site is needed",
    idle_traffic: false,
    reads_clock: false,
};

const OMISSION: Card = Card {
    name: "lamport-omission",
    title: "Lamport without needless replies",
    summary: "like lamport, but a site sends no reply to a request older than its own last broadcast",
    costs: &[
        Cost {
            measure: Measure::MessagesPerEntry,
            load: Load::Low,
            formula: "3(N-1)",
            range: |size| (3.0 * (size.n() - 1.0), 3.0 * (size.n() - 1.0)),
        },
        Cost {
            measure: Measure::MessagesPerEntry,
            load: Load::High,
            formula: "2(N-1)..3(N-1)",
            range: |size| (2.0 * (size.n() - 1.0), 3.0 * (size.n() - 1.0)),
        },
        CLIENT_DELAY,
        SYNC_DELAY,
    ],
    ..AS_PUBLISHED
};

/// The client delay; 0 for a lone site, which waits for no message.
const CLIENT_DELAY: Cost = Cost {
    measure: Measure::ClientDelay,
    load: Load::Low,
    formula: "2T",
    range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (2.0, 2.0) },
};

const SYNC_DELAY: Cost = Cost {
    measure: Measure::SyncDelay,
    load: Load::High,
    formula: "T",
    range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (1.0, 1.0) },
};

#[cfg(test)]
mod tests {
    use conclave_kernel::Input;

    use super::super::by_hand::ByHand;
    use super::*;

    fn group<const OMIT: bool>(nodes: u32) -> ByHand<LamportQueue<OMIT>> {
        ByHand::new(nodes, |me| LamportQueue::new(me, &Group::new(nodes)))
    }

    #[test]
    fn a_lone_site_enters_at_once_and_again() {
        let mut group = group::<false>(1);
        group.acquire(0);
        group.acquire(0);
        assert_eq!(group.inside(), [0]);
        group.release(0);
        assert_eq!((group.order(), group.sent), (&[0, 0][..], 0));
    }

    /// Of three sites, S1 and S2 request. S1 enters first and sends its release to all; then S2 enters.
    /// (Example from the lectures.)
    #[test]
    fn the_older_of_two_requests_goes_first_and_its_release_lets_the_other_in() {
        let mut group = group::<false>(4);
        let (s1, s2, s3) = (1, 2, 3);
        group.acquire(s1);
        group.acquire(s2); // at the same logical time: the smaller id goes first
        group.settle();
        assert_eq!(group.inside(), [s1]);
        group.release(s1);
        for other in [0, s2, s3] {
            assert!(matches!(group.peek(s1, other).says, Says::Release(_)));
        }
        assert!(group.inside().is_empty(), "the release is still on its way");
        group.deliver(s1, s2);
        assert_eq!(group.inside(), [s2]);
        group.release(s2);
        group.settle();
        assert_eq!(group.sent, 2 * 3 * 3);
        assert!(group.nodes.iter().all(|site| site.queue.is_empty()));
        assert!(group.fences().is_sorted_by(|a, b| a < b));
    }

    /// Of the nodes A, B and C, B requests at logical time 1 and C at 0: C enters before B. (Example from the
    /// lectures. Our clocks tick before they stamp, so the times here are 2 and 1.)
    #[test]
    fn a_smaller_stamp_goes_first_although_its_site_has_the_larger_id() {
        let mut group = group::<false>(3);
        let (b, c) = (1, 2);
        group.step(b, Input::Command(Command::Witness(0)));
        group.acquire(b);
        group.acquire(c);
        group.settle();
        assert_eq!(group.inside(), [c]);
        group.release(c);
        group.settle();
        assert_eq!(group.order(), [c, b]);
    }

    /// \[L78, rule 5\]
    #[test]
    fn any_later_message_counts_not_only_a_reply() {
        let mut group = group::<false>(2);
        group.acquire(0);
        group.acquire(1);
        group.deliver(1, 0); // a request, stamped (1, 1), later than (1, 0)
        assert_eq!(group.inside(), [0]);
    }

    #[test]
    fn an_earlier_message_does_not_count() {
        let mut group = group::<false>(2);
        group.acquire(0);
        group.acquire(1);
        group.deliver(0, 1); // stamped (1, 0), before (1, 1)
        assert!(group.nodes[1].later.is_empty());
    }

    #[test]
    fn every_message_advances_the_clock() {
        let mut group = group::<false>(2);
        group.acquire(0); // sent at 1
        group.deliver(0, 1); // received at 2, replied to at 3
        assert_eq!(group.nodes[1].clock(), 3);
        group.deliver(1, 0); // received at 4
        assert_eq!(group.nodes[0].clock(), 4);
        group.release(0); // sent at 5
        group.deliver(0, 1);
        assert_eq!(group.nodes[1].clock(), 6);
    }

    #[test]
    fn a_release_removes_no_other_request_of_its_site() {
        let mut group = group::<false>(2);
        group.acquire(0);
        group.deliver(0, 1);
        group.inject(0, 1, Message { time: 9, says: Says::Release(7) });
        assert_eq!(group.nodes[1].queue, [Stamp::new(1, NodeId(0))]);
    }

    #[test]
    fn a_newer_request_of_mine_is_my_reply() {
        let mut group = group::<true>(2);
        group.acquire(0);
        group.acquire(1);
        group.deliver(0, 1); // (1, 0) is older than (1, 1), which is in flight to 0
        assert_eq!(group.sent, 2);
        group.deliver(1, 0); // (1, 1) is younger than (1, 0): site 0 has sent nothing later, so it replies
        assert_eq!((group.sent, group.inside()), (3, &[0][..]));
        group.release(0);
        group.settle();
        group.release(1);
        group.settle();
        assert_eq!(group.order(), [0, 1]);
        assert_eq!(group.sent, 2 + 3, "2(N-1) for the older, 3(N-1) for the younger");
    }

    #[test]
    fn a_release_under_way_is_my_reply() {
        let mut group = group::<true>(3);
        group.acquire(0);
        group.settle();
        group.release(0);
        group.acquire(1); // does not know of the release yet
        let before = group.sent;
        group.deliver(1, 0);
        assert_eq!(group.sent, before);
        group.settle();
        assert_eq!(group.inside(), [1]);
    }

    #[test]
    fn one_request_at_a_time_omits_nothing() {
        let mut group = group::<true>(3);
        for site in [0, 1, 2, 1, 0] {
            let before = group.sent;
            group.acquire(site);
            group.settle();
            group.release(site);
            group.settle();
            assert_eq!(group.sent - before, 3 * 2);
        }
    }

    /// Shows that ME1 needs FIFO: a reply overtakes the older request of its sender. Eight steps.
    fn two_inside_over_a_link_that_reorders<const OMIT: bool>() {
        let mut group = group::<OMIT>(2);
        group.acquire(0); // (1, 0)
        group.acquire(1); // (1, 1)
        group.deliver(1, 0); // site 0 has L1 and L2, and replies
        assert_eq!(group.inside(), [0]);
        let request = group.take(0, 1);
        group.deliver(0, 1); // the reply, first: site 1 has L1, and knows only its own request
        assert_eq!(group.inside(), [0, 1]);
        group.inject(0, 1, request); // too late
    }

    #[test]
    fn two_are_inside_if_a_reply_overtakes_a_request() {
        two_inside_over_a_link_that_reorders::<false>();
        two_inside_over_a_link_that_reorders::<true>();
    }

    /// Shows that ME2 needs FIFO: a release overtakes its request, which then stays forever.
    #[test]
    fn a_ghost_blocks_the_queue_if_a_release_overtakes_its_request() {
        let mut group = group::<false>(2);
        group.acquire(0);
        group.acquire(1);
        group.deliver(1, 0); // site 0 enters on the other's request, which is later
        group.release(0);
        let (request, reply) = (group.take(0, 1), group.take(0, 1));
        group.deliver(0, 1); // the release, first: there is nothing to remove yet
        group.inject(0, 1, request);
        group.inject(0, 1, reply);
        group.release(1); // site 0's release was a later message, and so let site 1 in
        group.acquire(1);
        group.settle();
        assert!(group.inside().is_empty(), "nothing is under way, nobody is inside, and site 1 waits");
        assert!(group.nodes[1].door.is_asking());
        assert_eq!(group.nodes[1].queue[0], Stamp::new(1, NodeId(0)), "a request that ended long ago");
    }

    #[test]
    fn ghosts_do_not_fill_the_memory() {
        let mut group = group::<false>(2);
        for time in 1..100 {
            group.inject(0, 1, Message { time, says: Says::Request });
        }
        assert_eq!(group.nodes[1].queue.len(), 4);
    }
}
