//! Roucairol and Carvalho: as Ricart and Agrawala, but a permission lasts until the other site requests it.
//!
//! Every pair of sites shares one permission: one of the two holds it, or it is in flight. A site that holds
//! all of its N-1 permissions may enter, again and again, without a message.
//!
//! **Rules** \[CR83\]
//! 1. To request: stamp the request, and send it to the sites whose permission is missing.
//! 2. On a request: defer it if in the critical section or if waiting with a smaller (number, site);
//!    otherwise send the permission. If waiting, also request the permission back at once, with the *same*
//!    stamp.
//! 3. Enter when holding every permission. On exit, send their permission to the deferred sites.
//!
//! **Trap**
//! - At the start, exactly one of the two sites holds the permission (here the one with the smaller id).
//! - A site in the critical section defers every request, whatever the stamps say. It may have entered on
//!   permissions that it already had, with a stamp younger than that of a request that arrives now.
//! - A stamp cannot serve as a fence, because grants do not follow stamps. A site that re-enters advances its
//!   clock without a message to the others.
//! - Channels need not be FIFO. A request may overtake the permission that its sender gave away just before.
//!   It then waits among the deferred requests.
//!
//! **Differences from the paper**
//! - Every REPLY carries the largest fence that its sender knows. The fence of an entry is one more than the
//!   largest fence known. Between two consecutive entries of different sites, their permission passes
//!   directly from the first site to the second, after the first entry. So fences grow.
//! - A permission is a token: a REPLY to a late copy of a request would lose it. But a site sends each of its
//!   requests to each peer at most once. It requests again only a permission that it *held* when it made the
//!   request. After a peer's REPLY, no older request of that peer can arrive. So the requests of one peer
//!   arrive with growing numbers, and a number that does not grow marks a copy. The stamp that a REPLY echoes
//!   marks copies of the REPLY.

use alloc::boxed::Box;
use alloc::vec;

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, NodeMap, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::{Bill, Command, Door, Event, Fence, Group, Mutex};
use crate::clock::{LamportClock, Stamp};

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RoucairolCarvalho {
    pub(crate) door: Door,
    /// The highest number seen, including the numbers of this site's own requests.
    pub(crate) clock: LamportClock,
    /// This site's request, from the moment of the request until the exit.
    pub(crate) wanted: Option<Stamp>,
    /// The sites whose shared permission this site holds.
    pub(crate) held: NodeSet,
    /// The sites whose requests wait until this site leaves, with the number of each request.
    pub(crate) deferred: NodeMap<u64>,
    /// The number of the latest request from each site; a request whose number does not grow is a copy.
    pub(crate) seen: Box<[u64]>,
    /// The largest fence that this site knows.
    pub(crate) fence: Fence,
}

/// A message between two sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Requests the permission that the two sites share.
    Request(Stamp),
    /// Hands over the permission.
    Reply {
        /// The request that this message replies to.
        request: Stamp,
        /// The largest fence that the sender knows.
        fence: Fence,
    },
}

impl Protocol for RoucairolCarvalho {
    type Message = Message;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Request(theirs) if theirs.time > self.seen[from.index()] => {
                self.seen[from.index()] = theirs.time;
                self.clock.merge(theirs.time);
                match self.wanted {
                    Some(mine) if self.door.is_inside() || mine < theirs => {
                        self.deferred.insert(from, theirs.time);
                    }
                    wanted => {
                        self.held.remove(from);
                        cx.send(from, Message::Reply { request: theirs, fence: self.fence });
                        if let Some(mine) = wanted {
                            cx.send(from, Message::Request(mine));
                        }
                    }
                }
            }
            Message::Reply { request, fence } if self.wanted == Some(request) => {
                self.held.insert(from);
                self.fence = self.fence.max(fence);
            }
            Message::Request(_) | Message::Reply { .. } => {} // a late copy
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Acquire => self.door.knock(cx),
            Command::Release if self.door.leave(cx) => self.exit(cx),
            Command::Release => {}
            Command::Witness(time) => self.clock.merge(time),
        }
    }

    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.door.must_ask() {
            let mine = Stamp::new(self.clock.tick(), cx.me());
            self.wanted = Some(mine);
            for missing in cx.peers().iter().filter(|peer| !self.held.contains(*peer)) {
                cx.send(missing, Message::Request(mine));
            }
        }
        if self.door.is_asking() && self.held.len() == cx.peers().len() {
            self.fence = self.fence.next();
            self.door.enter(self.fence, cx);
        }
    }
}

impl RoucairolCarvalho {
    fn exit(&mut self, cx: &mut Cx<'_, Self>) {
        self.wanted = None;
        let (held, fence) = (&mut self.held, self.fence);
        self.deferred.drain(|site, time| {
            held.remove(site);
            cx.send(site, Message::Reply { request: Stamp::new(time, site), fence });
        });
    }
}

impl Mutex for RoucairolCarvalho {
    const CARD: Card = Card {
        problem: "mutex",
        name: "roucairol-carvalho",
        title: "Roucairol-Carvalho",
        summary: "like ricart-agrawala, but a permission stays valid until its giver asks for it back",
        papers: &["CR83"],
        needs: Needs { no_duplication: false, ..Needs::RELIABLE },
        promises: &["ME1", "ME1-causal", "ME2", "fences"],
        costs: &[
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::Low,
                formula: "0..2(N-1)",
                range: |size| (0.0, 2.0 * (size.n() - 1.0)),
            },
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::High,
                formula: "0..2(N-1)",
                range: |size| (0.0, 2.0 * (size.n() - 1.0)),
            },
            Cost {
                measure: Measure::ClientDelay,
                load: Load::Low,
                formula: "0 or 2T",
                range: |size| (0.0, if size.nodes == 1 { 0.0 } else { 2.0 }),
            },
            Cost {
                measure: Measure::SyncDelay,
                load: Load::High,
                formula: "T (0 to re-enter)",
                range: |size| (0.0, if size.nodes == 1 { 0.0 } else { 1.0 }),
            },
        ],
        survives: "the crash of an idle site, for sites that hold its permission; the others wait for ever",
        idle_traffic: false,
        reads_clock: false,
    };

    fn new(me: NodeId, group: &Group) -> Self {
        Self {
            door: Door::default(),
            clock: LamportClock::new(),
            wanted: None,
            held: (me.0 + 1..group.nodes).map(NodeId).collect(),
            deferred: NodeMap::new(group.nodes),
            seen: vec![0; group.nodes as usize].into_boxed_slice(),
            fence: Fence::default(),
        }
    }

    fn bill(message: &Message, _from: NodeId, _to: NodeId) -> Bill {
        match message {
            Message::Request(stamp) => Bill::enter("REQUEST", stamp.site, stamp.time),
            Message::Reply { request, .. } => Bill::enter("REPLY", request.site, request.time),
        }
    }

    fn clock(&self) -> u64 {
        self.clock.time()
    }
}

#[cfg(test)]
mod tests {
    use conclave_kernel::{Input, Prng};

    use super::super::by_hand::ByHand;
    use super::*;

    fn group(nodes: u32) -> ByHand<RoucairolCarvalho> {
        ByHand::new(nodes, |me| RoucairolCarvalho::new(me, &Group::new(nodes)))
    }

    /// Checks that exactly one site of each pair holds their permission. No message may be in flight.
    fn assert_permissions_are_single(group: &ByHand<RoucairolCarvalho>) {
        let holds = |a: usize, b: usize| group.nodes[a].held.contains(NodeId(b as u32));
        for a in 0..group.nodes.len() {
            assert!(!holds(a, a));
            for b in 0..a {
                assert!(holds(a, b) ^ holds(b, a), "the permission of {a} and {b}");
            }
        }
    }

    #[test]
    fn a_lone_site_enters_at_once() {
        let mut group = group(1);
        group.acquire(0);
        assert_eq!((group.inside(), group.sent), (&[0][..], 0));
    }

    #[test]
    fn whoever_holds_all_permissions_re_enters_without_a_message() {
        let mut group = group(3);
        group.acquire(2);
        group.settle();
        group.release(2);
        assert_eq!(group.sent, 2 * 2, "the larger id holds nothing at first");
        group.acquire(2);
        group.release(2);
        assert_eq!((group.order(), group.sent), (&[2, 2][..], 4));
        assert_permissions_are_single(&group);
    }

    #[test]
    fn only_the_missing_permissions_are_asked_for() {
        let mut group = group(4);
        group.acquire(2); // holds the permission of 3
        group.settle();
        assert_eq!((group.inside(), group.sent), (&[2][..], 4));
    }

    /// \[CR83\]
    #[test]
    fn a_waiting_site_gives_way_to_an_older_request_and_asks_again_with_the_same_stamp() {
        let mut group = group(3);
        group.acquire(2); // (1, 2): requests from 0 and 1
        group.step(1, Input::Command(Command::Witness(4)));
        group.acquire(1); // (5, 1): requests from 0 only, because it holds the permission of 2
        group.deliver(2, 1);
        let (older, younger) = (Stamp::new(1, NodeId(2)), Stamp::new(5, NodeId(1)));
        assert_eq!(group.peek(1, 2), Message::Reply { request: older, fence: Fence(0) });
        group.deliver(1, 2);
        assert_eq!(group.peek(1, 2), Message::Request(younger));
        group.settle();
        assert_eq!(group.inside(), [2]);
        group.release(2);
        group.settle();
        assert_eq!((group.order(), group.sent), (&[2, 1][..], 4 + 4), "2(N-1) each");
    }

    #[test]
    fn a_waiting_site_keeps_its_permission_from_a_younger_request() {
        let mut group = group(3);
        group.acquire(1); // (1, 1): requests from 0 only, because it holds the permission of 2
        group.acquire(2); // (1, 2): requests from 0 and 1
        group.deliver(2, 1);
        assert!(group.nodes[1].held.contains(NodeId(2)));
        assert_eq!(group.nodes[1].deferred.get(NodeId(2)), Some(1));
        group.settle();
        group.release(1);
        group.settle();
        assert_eq!(group.order(), [1, 2]);
    }

    /// Shows that ME3 fails: a site needs no message for permissions that it holds, so it overtakes an older
    /// request that it could know of.
    #[test]
    fn a_site_re_enters_before_an_older_request_that_it_could_know_of() {
        let mut group = group(2);
        group.acquire(1); // its request is in flight
        let seen = group.nodes[1].clock();
        group.step(0, Input::Command(Command::Witness(seen))); // an application message was faster
        group.acquire(0);
        assert_eq!(group.inside(), [0]);
        assert!(group.nodes[0].wanted > group.nodes[1].wanted, "in stamp order site 1 comes first");
    }

    #[test]
    fn inside_means_defer_even_an_older_request() {
        let mut group = group(2);
        group.acquire(1); // (1, 1)
        for _ in 0..3 {
            group.acquire(0); // (1, 0), (2, 0), (3, 0) with the permission that it holds
            group.release(0);
        }
        group.acquire(0);
        group.deliver(1, 0); // (1, 1) is older than (4, 0), which is inside
        assert_eq!(group.inside(), [0]);
        group.release(0);
        group.deliver(0, 1);
        assert_eq!(group.inside(), [1]);
    }

    /// By stamps, the last grant would go backwards, from (4, 0) to (1, 1).
    #[test]
    fn fences_grow_where_stamps_do_not() {
        let mut group = group(2);
        group.acquire(1); // (1, 1)
        for _ in 0..4 {
            group.acquire(0);
            group.release(0);
        }
        group.settle();
        assert_eq!(group.order(), [0, 0, 0, 0, 1]);
        assert!(group.nodes[0].clock() >= 4 && group.nodes[1].wanted == Some(Stamp::new(1, NodeId(1))));
        assert_eq!(group.fences(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_request_that_overtakes_the_permission_waits_as_a_deferred_one() {
        let mut group = group(2);
        group.acquire(1);
        group.deliver(1, 0); // site 0 sends the permission
        group.acquire(0); // and requests it back
        let permission = group.take(0, 1);
        group.deliver(0, 1); // the request, first
        assert!(group.inside().is_empty());
        group.inject(0, 1, permission);
        assert_eq!(group.inside(), [1]);
        group.release(1);
        group.settle();
        assert_eq!(group.order(), [1, 0]);
    }

    #[test]
    fn a_late_copy_of_a_request_does_not_lose_the_permission() {
        let mut group = group(2);
        group.acquire(1);
        let copy = group.peek(1, 0);
        group.deliver(1, 0);
        group.deliver(0, 1);
        group.release(1);
        group.acquire(0);
        group.settle();
        assert_eq!(group.inside(), [0]);
        group.inject(1, 0, copy); // if deferred, it would get a reply at exit, which site 1 would ignore
        group.release(0);
        assert_permissions_are_single(&group);
    }

    #[test]
    fn a_late_copy_of_a_permission_forges_none() {
        let mut group = group(2);
        group.acquire(1);
        group.deliver(1, 0);
        let copy = group.peek(0, 1);
        group.deliver(0, 1);
        group.release(1);
        group.acquire(0);
        group.settle();
        group.acquire(1); // waits for site 0, which is inside
        group.inject(0, 1, copy);
        assert_eq!(group.inside(), [0]);
    }

    #[test]
    fn everybody_gets_in_and_permissions_stay_single_in_whatever_order_messages_arrive() {
        for seed in 0..300 {
            let mut dice = Prng::new(seed);
            let nodes = 2 + dice.below(4) as u32;
            let mut group = group(nodes);
            for _ in 0..3 {
                (0..nodes).for_each(|site| group.acquire(site));
                group.churn(&mut dice);
            }
            assert_eq!(group.order().len(), 3 * nodes as usize, "seed {seed}");
            assert!(group.fences().is_sorted_by(|a, b| a < b), "seed {seed}");
            assert!(group.sent <= u64::from(3 * nodes * 2 * (nodes - 1)), "seed {seed}");
            assert_permissions_are_single(&group);
        }
    }
}
