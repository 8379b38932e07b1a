//! Ricart and Agrawala: request permission from all other sites, and enter when all have replied.
//!
//! A reply means "you may enter before me". A site that is in the critical section, or has an older request,
//! defers its reply until it leaves. The replies carry both the permission and the queue, so no release
//! message is needed.
//!
//! **Rules** \[RA81 §2\]
//! 1. To request: stamp the request with one more than the highest number seen, and send it to all.
//! 2. On a request: defer the reply if in the critical section or if waiting with a smaller (number, site);
//!    otherwise reply.
//! 3. Enter when all have replied. On exit, reply to all deferred requests.
//!
//! **Trap**: two requests can have the same number, so the comparison must include the site's id. Without the
//! id, exclusion fails in a third of random runs at N = 3. A request must raise the receiver's "highest seen"
//! even when its reply is deferred. Channels need not be FIFO.
//!
//! **Differences from the paper**
//! - A reply echoes the stamp of its request, and a site counts distinct senders. The paper counts replies:
//!   one duplicated message then lets two sites in, after 9 steps.
//! - A reply carries the sender's highest number, which the paper's reply does not. Otherwise a site that
//!   knows of a request only through another site's reply could overtake it (ME3).

pub mod crash_tolerant;

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, NodeMap, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::{Bill, Command, Door, Event, Fence, Group, Mutex};
use crate::clock::{LamportClock, Stamp};

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RicartAgrawala {
    pub(crate) door: Door,
    pub(crate) clock: LamportClock,
    /// This site's request, from the moment of the request until the exit.
    pub(crate) wanted: Option<Stamp>,
    /// The sites that have replied to it.
    pub(crate) replies: NodeSet,
    /// The sites whose replies are deferred, with the number of each one's request.
    pub(crate) deferred: NodeMap<u64>,
}

/// A message between two sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Requests permission to enter.
    Request(Stamp),
    /// Gives permission to enter before the sender.
    Reply {
        /// The request that this message replies to.
        to: Stamp,
        /// The highest number that the sender has seen.
        seen: u64,
    },
}

impl Protocol for RicartAgrawala {
    type Message = Message;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Request(theirs) => {
                self.clock.merge(theirs.time);
                match self.wanted {
                    Some(mine) if mine < theirs => _ = self.deferred.insert(from, theirs.time),
                    _ => cx.send(from, Message::Reply { to: theirs, seen: self.clock.time() }),
                }
            }
            Message::Reply { to, seen } => {
                self.clock.merge(seen);
                // Any other reply is a late duplicate for an earlier request.
                if self.wanted == Some(to) {
                    self.replies.insert(from);
                }
            }
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
            cx.broadcast(Message::Request(mine));
        }
        if let Some(mine) = self.wanted
            && self.door.is_asking()
            && self.replies.len() == cx.peers().len()
        {
            self.door.enter(Fence(mine.rank(cx.members().len() as u32)), cx);
        }
    }
}

impl RicartAgrawala {
    fn exit(&mut self, cx: &mut Cx<'_, Self>) {
        self.wanted = None;
        self.replies.clear();
        let seen = self.clock.time();
        self.deferred.drain(|site, time| cx.send(site, Message::Reply { to: Stamp::new(time, site), seen }));
    }
}

impl Mutex for RicartAgrawala {
    const CARD: Card = Card {
        problem: "mutex",
        name: "ricart-agrawala",
        title: "Ricart-Agrawala",
        summary: "a site asks all others; a site that is inside or asked earlier replies when it leaves",
        papers: &["RA81"],
        needs: Needs { no_duplication: false, ..Needs::RELIABLE },
        promises: &["ME1", "ME1-causal", "ME2", "ME3", "fences"],
        costs: &[
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::Low,
                formula: "2(N-1)",
                range: |size| (2.0 * (size.n() - 1.0), 2.0 * (size.n() - 1.0)),
            },
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::High,
                formula: "2(N-1)",
                range: |size| (2.0 * (size.n() - 1.0), 2.0 * (size.n() - 1.0)),
            },
            Cost {
                measure: Measure::ClientDelay,
                load: Load::Low,
                formula: "2T",
                range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (2.0, 2.0) },
            },
            Cost {
                measure: Measure::SyncDelay,
                load: Load::High,
                formula: "T",
                range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (1.0, 1.0) },
            },
        ],
        survives: "no crash: the reply of every site is needed",
        idle_traffic: false,
        reads_clock: false,
    };

    fn new(_me: NodeId, group: &Group) -> Self {
        Self {
            door: Door::default(),
            clock: LamportClock::new(),
            wanted: None,
            replies: NodeSet::new(),
            deferred: NodeMap::new(group.nodes),
        }
    }

    fn bill(message: &Message, _from: NodeId, _to: NodeId) -> Bill {
        match message {
            Message::Request(stamp) => Bill::enter("REQUEST", stamp.site, stamp.time),
            Message::Reply { to, .. } => Bill::enter("REPLY", to.site, to.time),
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

    fn group(nodes: u32) -> ByHand<RicartAgrawala> {
        ByHand::new(nodes, |me| RicartAgrawala::new(me, &Group::new(nodes)))
    }

    /// Makes a site see that number.
    fn witness(group: &mut ByHand<RicartAgrawala>, site: u32, time: u64) {
        group.step(site, Input::Command(Command::Witness(time)));
    }

    #[test]
    fn a_lone_site_enters_at_once() {
        let mut group = group(1);
        group.acquire(0);
        assert_eq!((group.inside(), group.sent), (&[0][..], 0));
    }

    /// \[CDK\]: p1 requests at 41, p2 at 34, and p3 does not request. So p2 enters first, and replies to p1
    /// when it leaves.
    #[test]
    fn of_41_and_34_the_latter_enters_first() {
        let mut group = group(3);
        let (p1, p2, p3) = (0, 1, 2);
        witness(&mut group, p1, 40);
        witness(&mut group, p2, 33);
        group.acquire(p1);
        group.acquire(p2);
        assert_eq!(group.nodes[0].wanted, Some(Stamp::new(41, NodeId(p1))));
        assert_eq!(group.nodes[1].wanted, Some(Stamp::new(34, NodeId(p2))));
        group.deliver(p1, p3);
        group.deliver(p2, p3);
        group.deliver(p3, p1);
        group.deliver(p3, p2); // p3 has replied to both
        group.deliver(p1, p2); // 34 < 41: p2 does not reply
        assert!(group.inside().is_empty());
        group.deliver(p2, p1); // p1 does reply
        group.deliver(p1, p2);
        assert_eq!(group.inside(), [p2]);
        group.release(p2);
        group.deliver(p2, p1);
        assert_eq!((group.order(), group.sent), (&[p2, p1][..], 2 * 2 * 2));
    }

    /// Of three sites, S1 and S2 request. S1 enters first, and its deferred reply then lets S2 in. (Example
    /// from the lectures.)
    #[test]
    fn the_older_of_two_requests_goes_first_and_its_reply_lets_the_other_in() {
        let mut group = group(3);
        let (s1, s2) = (0, 1);
        group.acquire(s1);
        group.acquire(s2);
        group.settle();
        assert_eq!(group.inside(), [s1]);
        group.release(s1);
        assert!(group.inside().is_empty());
        group.deliver(s1, s2);
        assert_eq!(group.inside(), [s2]);
    }

    /// Of the nodes A, B and C, B requests at logical time 1 and C at 0: C enters before B. (Example from the
    /// lectures. Our clocks tick before they stamp, so the times here are 2 and 1.)
    #[test]
    fn a_smaller_stamp_goes_first_although_its_site_has_the_larger_id() {
        let mut group = group(3);
        let (b, c) = (1, 2);
        witness(&mut group, b, 1);
        group.acquire(b);
        group.acquire(c);
        group.settle();
        group.release(c);
        group.settle();
        assert_eq!(group.order(), [c, b]);
    }

    #[test]
    fn a_tie_goes_to_the_smaller_id() {
        let mut group = group(2);
        group.acquire(1);
        group.acquire(0);
        assert_eq!(group.nodes[0].wanted.map(|mine| mine.time), group.nodes[1].wanted.map(|mine| mine.time));
        group.settle();
        assert_eq!(group.inside(), [0]);
    }

    /// \[RA81 §2\]
    #[test]
    fn a_request_that_comes_while_inside_is_answered_on_exit() {
        let mut group = group(2);
        group.acquire(0);
        group.settle();
        group.acquire(1);
        group.settle();
        assert_eq!((group.inside(), group.sent), (&[0][..], 3));
        group.release(0);
        let theirs = Stamp::new(2, NodeId(1));
        assert!(matches!(group.peek(0, 1), Message::Reply { to, .. } if to == theirs));
        group.settle();
        assert_eq!(group.inside(), [1]);
    }

    /// \[RA81 §2\]: the number is one more than the highest number *seen*.
    #[test]
    fn a_deferred_request_raises_the_next_number_too() {
        let mut group = group(2);
        group.acquire(0); // (1, 0)
        group.settle();
        witness(&mut group, 1, 7);
        group.acquire(1); // (8, 1)
        group.deliver(1, 0); // deferred
        group.release(0);
        group.acquire(0);
        assert_eq!(group.nodes[0].wanted, Some(Stamp::new(9, NodeId(0))));
    }

    /// Tests our difference from the paper, made for ME3: site 2 learns of site 0's request through site 1
    /// and must not overtake it.
    #[test]
    fn a_request_known_only_through_a_reply_raises_the_next_number() {
        let mut group = group(3);
        witness(&mut group, 0, 7);
        group.acquire(0); // (8, 0); its message to site 2 stays in flight
        group.deliver(0, 1);
        group.acquire(2); // (1, 2)
        group.deliver(2, 1);
        group.deliver(1, 2);
        assert_eq!(group.nodes[2].clock(), 8);
    }

    /// A reply to an earlier request does not count for this one.
    #[test]
    fn a_late_copy_of_a_reply_does_not_let_anybody_in() {
        let mut group = group(2);
        group.acquire(0);
        group.deliver(0, 1);
        let copy = group.peek(1, 0);
        group.deliver(1, 0);
        group.release(0);
        group.acquire(1);
        group.settle();
        assert_eq!(group.inside(), [1]);
        group.acquire(0);
        group.inject(1, 0, copy);
        assert_eq!(group.inside(), [1]);
    }

    /// Two replies of one site count once.
    #[test]
    fn two_copies_of_one_reply_are_not_the_replies_of_two() {
        let mut group = group(3);
        group.acquire(0);
        group.deliver(0, 1);
        let copy = group.peek(1, 0);
        group.deliver(1, 0);
        group.inject(1, 0, copy);
        assert!(group.inside().is_empty());
    }

    #[test]
    fn everybody_gets_in_whatever_the_order_of_messages() {
        for seed in 0..300 {
            let mut dice = Prng::new(seed);
            let nodes = 1 + dice.below(5) as u32;
            let mut group = group(nodes);
            for _ in 0..3 {
                (0..nodes).for_each(|site| group.acquire(site));
                group.churn(&mut dice);
            }
            assert_eq!(group.order().len(), 3 * nodes as usize, "seed {seed}");
            assert!(group.fences().is_sorted_by(|a, b| a < b), "seed {seed}");
            assert_eq!(group.sent, u64::from(3 * nodes * 2 * (nodes - 1)), "seed {seed}");
        }
    }
}
