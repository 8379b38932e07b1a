//! Raymond: a token in a tree; every site knows only in which direction the token is.
//!
//! Requests move through the tree towards the token. Every site on the way sends one request for all that
//! wait behind it. The token returns along the same path. A site needs to know only its neighbours.
//!
//! **Rules** \[R89\]: HOLDER is the neighbour towards the token, or the site itself. REQUEST_Q holds the
//! neighbours that have sent a request, and the site itself if it waits. ASKED is true if the site has
//! already sent a REQUEST to HOLDER.
//! 1. ASSIGN_PRIVILEGE: if HOLDER is the site itself, it is not in the critical section and the queue is not
//!    empty: remove the first entry and set HOLDER to it; ASKED := false. If that is the site itself, enter;
//!    otherwise send it the PRIVILEGE.
//! 2. MAKE_REQUEST: if HOLDER is another site, the queue is not empty and ASKED is false: send a REQUEST to
//!    HOLDER; ASKED := true.
//! 3. On every input (a local request, a REQUEST, the PRIVILEGE, an exit): record it, then do 1 and 2, in
//!    this order.
//!
//! **Trap**: a site may send a REQUEST directly after the PRIVILEGE, to get it back. ASKED must be reset in
//! between. Channels need not be FIFO: that REQUEST may overtake the PRIVILEGE, and then waits at the end of
//! the queue.
//!
//! **Bounds** \[R89\]: no site is in a queue twice, so a queue has at most one entry for each neighbour and
//! one for the site itself.
//!
//! **Costs**, where D is the diameter of the tree. A site never sends the PRIVILEGE back to the neighbour
//! from which it just came: the site had requested it for another one, which is first in its queue. So
//! between two entries the token moves along a simple path of at most D hops, and every hop answers one
//! REQUEST. Over a run, an entry therefore costs at most 2D messages. A lone request costs exactly twice its
//! distance to the token. If every site always waits, the token goes round the tree: 2(N-1) hops for N
//! entries, which is 4(N-1)/N messages per entry.
//!
//! **Differences from the paper**: the tree is fixed and balanced. The father of site i is (i-1)/2, and the
//! token starts at the root. The token carries the fence.

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, Protocol, Size};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{Bill, Command, Door, Event, Fence, Group, Mutex};

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Raymond {
    pub(crate) door: Door,
    /// HOLDER: where the token is, as far as this site knows.
    pub(crate) holder: Holder,
    /// ASKED: whether this site has sent a REQUEST to the neighbour towards the token.
    pub(crate) asked: bool,
    /// REQUEST_Q: at most the father, two children and the site itself, each once.
    queue: SmallVec<[NodeId; 4]>,
}

/// The position of the token, as far as a site knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Holder {
    /// Here, with the fence of the latest grant.
    Me(Fence),
    /// Behind that neighbour, or in flight to it.
    Towards(NodeId),
}

/// A message between neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Requests the token for a site on the sender's side.
    Request,
    /// Hands over the token, with the fence of the latest grant.
    Privilege(Fence),
}

impl Protocol for Raymond {
    type Message = Message;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, from: NodeId, message: Message, _cx: &mut Cx<'_, Self>) {
        match message {
            Message::Request => self.enqueue(from),
            Message::Privilege(fence) => self.holder = Holder::Me(fence),
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Acquire => self.door.knock(cx),
            Command::Release => _ = self.door.leave(cx),
            Command::Witness(_) => {}
        }
    }

    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.door.must_ask() {
            self.enqueue(cx.me());
        }
        self.assign_privilege(cx);
        self.make_request(cx);
    }
}

impl Raymond {
    fn assign_privilege(&mut self, cx: &mut Cx<'_, Self>) {
        if let Holder::Me(fence) = self.holder
            && !self.door.is_inside()
            && !self.queue.is_empty()
        {
            let first = self.queue.remove(0);
            self.asked = false;
            if first == cx.me() {
                self.holder = Holder::Me(fence.next());
                self.door.enter(fence.next(), cx);
            } else {
                self.holder = Holder::Towards(first);
                cx.send(first, Message::Privilege(fence));
            }
        }
    }

    fn make_request(&mut self, cx: &mut Cx<'_, Self>) {
        if let Holder::Towards(neighbour) = self.holder
            && !self.queue.is_empty()
            && !self.asked
        {
            self.asked = true;
            cx.send(neighbour, Message::Request);
        }
    }

    fn enqueue(&mut self, who: NodeId) {
        if !self.queue.contains(&who) {
            self.queue.push(who);
        }
    }
}

impl Mutex for Raymond {
    const CARD: Card = Card {
        problem: "mutex",
        name: "raymond",
        title: "Raymond's tree",
        summary: "a token moves in a tree; each site knows its direction and asks once for all sites behind it",
        papers: &["R89"],
        needs: Needs::RELIABLE,
        promises: &["ME1", "ME1-causal", "ME2", "fences"],
        costs: &[
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::Low,
                formula: "2d, d <= 2 log2 N hops to the token",
                range: |size| (0.0, 2.0 * diameter(size)),
            },
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::High,
                formula: "about 4(N-1)/N, at most 4 log2 N",
                range: |size| (0.0, 2.0 * diameter(size)),
            },
            Cost {
                measure: Measure::ClientDelay,
                load: Load::Low,
                formula: "2dT, d <= 2 log2 N hops to the token",
                range: |size| (0.0, 2.0 * diameter(size)),
            },
            Cost {
                measure: Measure::SyncDelay,
                load: Load::High,
                formula: "dT, d <= 2 log2 N hops to the next",
                range: |size| (0.0, diameter(size)),
            },
        ],
        survives: "the crash of a leaf that neither has the token nor waits for it; any other crash cuts the tree",
        idle_traffic: false,
        reads_clock: false,
    };

    fn new(me: NodeId, _group: &Group) -> Self {
        let holder = match me.0.checked_sub(1) {
            Some(before) => Holder::Towards(NodeId(before / 2)),
            None => Holder::Me(Fence::default()),
        };
        Self { door: Door::default(), holder, asked: false, queue: SmallVec::new() }
    }

    fn bill(message: &Message, _from: NodeId, _to: NodeId) -> Bill {
        match message {
            Message::Request => Bill::shared("REQUEST"),
            Message::Privilege(_) => Bill::shared("PRIVILEGE"),
        }
    }
}

/// Returns the diameter of the tree: the path from the lowest level of one half to that of the other.
fn diameter(size: Size) -> f64 {
    let Some(depth @ 1..) = size.nodes.checked_ilog2() else { return 0.0 };
    let right_half_is_as_deep = size.nodes >= 3 << (depth - 1);
    f64::from(2 * depth - u32::from(!right_half_is_as_deep))
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use conclave_kernel::Prng;

    use super::super::by_hand::ByHand;
    use super::*;

    fn group(nodes: u32) -> ByHand<Raymond> {
        ByHand::new(nodes, |me| Raymond::new(me, &Group::new(nodes)))
    }

    fn distance(mut a: u32, mut b: u32) -> u32 {
        let mut hops = 0;
        while a != b {
            if a > b {
                a = (a - 1) / 2;
            } else {
                b = (b - 1) / 2;
            }
            hops += 1;
        }
        hops
    }

    #[test]
    fn the_diameter_is_the_longest_distance() {
        for nodes in 1..130 {
            let ends = (0..nodes).flat_map(|a| (0..nodes).map(move |b| distance(a, b)));
            let size = Size { nodes, quorum_min: 0, quorum_max: 0 };
            assert_eq!(diameter(size), f64::from(ends.max().unwrap()), "{nodes} sites");
        }
    }

    /// \[R89\]: a lone request costs twice its distance to the token.
    #[test]
    fn a_lone_request_costs_twice_its_distance_to_the_token() {
        let mut group = group(15);
        let mut token = 0;
        for site in [0, 14, 7, 8, 8, 3, 0, 11] {
            let before = group.sent;
            group.acquire(site);
            group.settle();
            assert_eq!(group.inside(), [site]);
            group.release(site);
            assert_eq!(group.sent - before, u64::from(2 * distance(token, site)));
            token = site;
        }
    }

    #[test]
    fn a_site_asks_once_for_all_behind_it() {
        let mut group = group(7);
        group.acquire(0);
        for leaf in [3, 4] {
            group.acquire(leaf);
            group.deliver(leaf, 1);
        }
        group.acquire(1);
        assert_eq!(group.sent, 3, "one REQUEST from each leaf, one from their father");
        assert_eq!(group.nodes[1].queue[..], [3, 4, 1].map(NodeId));
        group.settle();
        for next in [3, 4, 1] {
            group.release(group.inside()[0]);
            group.settle();
            assert_eq!(group.inside(), [next]);
        }
    }

    #[test]
    fn the_privilege_is_followed_by_a_request_if_others_wait() {
        let mut group = group(3);
        group.acquire(0);
        group.acquire(1);
        group.acquire(2);
        group.deliver(1, 0);
        group.deliver(2, 0);
        group.release(0);
        let (first, second) = (group.take(0, 1), group.take(0, 1));
        assert_eq!((first, second), (Message::Privilege(Fence(1)), Message::Request));
    }

    /// \[R89\]: a message may overtake another one.
    #[test]
    fn a_request_that_overtakes_the_privilege_waits_at_the_end_of_the_queue() {
        let mut group = group(3);
        for site in [0, 1, 2] {
            group.acquire(site);
        }
        group.deliver(1, 0);
        group.deliver(2, 0);
        group.release(0);
        let privilege = group.take(0, 1);
        group.deliver(0, 1);
        assert_eq!(group.nodes[1].queue[..], [1, 0].map(NodeId));
        group.inject(0, 1, privilege);
        assert_eq!(group.inside(), [1]);
        group.release(1);
        group.settle();
        assert_eq!(group.inside(), [2]);
    }

    #[test]
    fn a_site_is_small_enough_for_a_hundred_thousand_of_them() {
        assert!(size_of::<Raymond>() <= 64);
        assert!(size_of::<Message>() <= 16);
    }

    #[test]
    fn everybody_gets_in_whatever_the_order_of_messages_within_twice_the_diameter_an_entry() {
        for seed in 0..300 {
            let mut dice = Prng::new(seed);
            let nodes = 1 + dice.below(9) as u32;
            let mut group = group(nodes);
            for _ in 0..3 {
                (0..nodes).for_each(|site| group.acquire(site));
                group.churn(&mut dice);
            }
            let entries = 3 * u64::from(nodes);
            assert_eq!(group.fences(), (1..=entries).collect::<Vec<_>>(), "seed {seed}");
            let most = 2 * diameter(Size { nodes, quorum_min: 0, quorum_max: 0 }) as u64;
            assert!(group.sent <= most * entries, "seed {seed}");
            assert!(group.nodes.iter().all(|site| site.queue.is_empty() && !site.asked), "seed {seed}");
        }
    }
}
