//! Naimi and Trehel: one token, and a tree of guesses about the last requester.
//!
//! Every site remembers one site, its father: probably the last requester. A request follows the fathers to
//! the actual last requester, which records the new one as its successor. Every site on the path sets its
//! father to the new requester, which is now the last one. The successors form the queue. The fathers form a
//! tree, which every request rebuilds and flattens.
//!
//! **Rules** \[NT96\]: FATHER is nil at the root, which is the last requester or the idle owner of the token.
//! NEXT is the site that gets the token after this one.
//! 1. To request: if FATHER is not nil, send it REQUEST(me); then FATHER := nil. The site is now the root.
//! 2. On REQUEST(k): if FATHER is not nil, forward it to FATHER. Otherwise, if waiting or in the critical
//!    section, NEXT := k; else send the TOKEN to k. In all cases FATHER := k.
//! 3. Enter when the token is here. On exit, send it to NEXT if there is one; NEXT := nil.
//!
//! **Trap**
//! - A site that only forwards a request also sets FATHER := k. This flattens the tree; without it paths stay
//!   long.
//! - A root that neither waits nor is in the critical section always has the token.
//! - Channels need not be FIFO.
//! - A duplicated REQUEST(k) is fatal. The fathers on its path can lead the copy to k itself, which then
//!   becomes its own father and its own successor.
//!
//! **Costs**: a request visits a site at most once. So an entry costs between 0 messages (the idle token is
//! here) and N (N-1 along a chain of fathers, and 1 for the token). By the analysis of path reversal
//! \[NT96\], the average over a run is log2 N.
//!
//! **Differences from the paper**: at the start, the father of every other site is site 0, which has the
//! token. A REQUEST carries its number. The TOKEN carries the fence and the number of the request that it
//! serves, so that a site recognises a late copy.

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, Protocol, Size};
use serde::{Deserialize, Serialize};

use super::door::Place;
use super::{Bill, Command, Door, Event, Fence, Group, Mutex};

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NaimiTrehel {
    pub(crate) door: Door,
    /// The number of this site's latest request: how many it has made.
    asked: u64,
    /// FATHER: the site to send a request to; `None` at the root.
    pub(crate) father: Option<NodeId>,
    /// NEXT: the site that gets the token after this one, and the number of its request.
    pub(crate) next: Option<(NodeId, u64)>,
    /// The token, if it is here: the fence of the latest grant.
    pub(crate) token: Option<Fence>,
}

/// A message between two sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Requests the token.
    Request {
        /// The requester; the sender may only forward the message.
        origin: NodeId,
        /// The number of the requester's request.
        number: u64,
    },
    /// Hands over the token.
    Token {
        /// The receiver's request that the token serves.
        number: u64,
        /// The fence of the latest grant.
        fence: Fence,
    },
}

impl Protocol for NaimiTrehel {
    type Message = Message;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, _from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Request { origin, number } => {
                match self.father {
                    Some(father) => cx.send(father, Message::Request { origin, number }),
                    None if self.door.place() != Place::Outside => self.next = Some((origin, number)),
                    None => self.give(origin, number, cx),
                }
                self.father = Some(origin);
            }
            Message::Token { number, fence } if self.door.is_asking() && number == self.asked => {
                self.token = Some(fence);
            }
            Message::Token { .. } => {} // a late copy
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Acquire => self.door.knock(cx),
            Command::Release if self.door.leave(cx) => {
                if let Some((site, number)) = self.next.take() {
                    self.give(site, number, cx);
                }
            }
            Command::Release | Command::Witness(_) => {}
        }
    }

    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.door.must_ask() {
            self.asked += 1;
            if let Some(father) = self.father.take() {
                cx.send(father, Message::Request { origin: cx.me(), number: self.asked });
            }
        }
        if self.door.is_asking()
            && let Some(fence) = &mut self.token
        {
            *fence = fence.next();
            self.door.enter(*fence, cx);
        }
    }
}

impl NaimiTrehel {
    pub(crate) fn give(&mut self, site: NodeId, number: u64, cx: &mut Cx<'_, Self>) {
        if let Some(fence) = self.token.take() {
            cx.send(site, Message::Token { number, fence });
        }
    }
}

impl Mutex for NaimiTrehel {
    const CARD: Card = Card {
        problem: "mutex",
        name: "naimi-trehel",
        title: "Naimi-Trehel",
        summary: "a request follows guesses to the last requester and improves each guess on its way",
        papers: &["NT96"],
        needs: Needs::RELIABLE,
        promises: &["ME1", "ME1-causal", "ME2", "fences"],
        costs: &[
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::Low,
                formula: "0..N; O(log N) on average",
                range: |size| (0.0, messages_most(size)),
            },
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::High,
                formula: "0..N; O(log N) on average",
                range: |size| (0.0, messages_most(size)),
            },
            Cost {
                measure: Measure::ClientDelay,
                load: Load::Low,
                formula: "0..NT; O(log N)T on average",
                range: |size| (0.0, messages_most(size)),
            },
            Cost {
                measure: Measure::SyncDelay,
                load: Load::High,
                formula: "T (0 to re-enter)",
                range: |size| (0.0, if size.nodes == 1 { 0.0 } else { 1.0 }),
            },
        ],
        survives: "only the crash of an idle site that is the father of no site",
        idle_traffic: false,
        reads_clock: false,
    };

    fn new(me: NodeId, _group: &Group) -> Self {
        let is_root = me == NodeId(0);
        Self {
            door: Door::default(),
            asked: 0,
            father: (!is_root).then_some(NodeId(0)),
            next: None,
            token: is_root.then(Fence::default),
        }
    }

    fn bill(message: &Message, _from: NodeId, to: NodeId) -> Bill {
        match message {
            Message::Request { origin, number } => Bill::enter("REQUEST", *origin, *number),
            Message::Token { number, .. } => Bill::enter("TOKEN", to, *number),
        }
    }
}

/// Returns the largest number of messages for an entry: a path through all other sites, and the token back. 0
/// for a lone site.
fn messages_most(size: Size) -> f64 {
    if size.nodes == 1 { 0.0 } else { size.n() }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use conclave_kernel::Prng;

    use super::super::by_hand::ByHand;
    use super::*;

    fn group(nodes: u32) -> ByHand<NaimiTrehel> {
        ByHand::new(nodes, |me| NaimiTrehel::new(me, &Group::new(nodes)))
    }

    fn fathers(group: &ByHand<NaimiTrehel>) -> Vec<Option<u32>> {
        group.nodes.iter().map(|site| site.father.map(|father| father.0)).collect()
    }

    fn enter_and_leave(group: &mut ByHand<NaimiTrehel>, site: u32) -> u64 {
        let before = group.sent;
        group.acquire(site);
        group.settle();
        assert_eq!(group.inside(), [site]);
        group.release(site);
        group.sent - before
    }

    #[test]
    fn the_idle_owner_enters_without_a_message() {
        let mut group = group(3);
        assert_eq!(enter_and_leave(&mut group, 0), 0);
        assert_eq!(enter_and_leave(&mut group, 2), 2);
        assert_eq!(enter_and_leave(&mut group, 2), 0);
    }

    /// \[NT96\]: every site on the path sets its father to the requester.
    #[test]
    fn a_request_reverses_its_path() {
        let mut group = group(4);
        enter_and_leave(&mut group, 1);
        assert_eq!(fathers(&group), [Some(1), None, Some(0), Some(0)]);
        enter_and_leave(&mut group, 2); // through 0 to 1
        assert_eq!(fathers(&group), [Some(2), Some(2), None, Some(0)]);
        assert_eq!(enter_and_leave(&mut group, 3), 3, "by way of 0 to 2, and the token");
        assert_eq!(fathers(&group), [Some(3), Some(2), Some(3), None], "site 1 was not on the path");
    }

    /// The bound is reached: a chain of fathers goes through all sites, and the request starts at its end.
    #[test]
    fn the_worst_request_costs_n_messages() {
        let nodes = 8;
        let mut group = group(nodes);
        for site in 0..nodes - 1 {
            group.nodes[site as usize].father = Some(NodeId(site + 1));
            group.nodes[site as usize].token = None;
        }
        group.nodes[nodes as usize - 1].father = None;
        group.nodes[nodes as usize - 1].token = Some(Fence(0));
        assert_eq!(enter_and_leave(&mut group, 0), u64::from(nodes));
        assert_eq!(enter_and_leave(&mut group, 3), 2, "now everybody is next to the root");
    }

    #[test]
    fn those_who_wait_form_a_queue_of_successors() {
        let mut group = group(4);
        group.acquire(0);
        for site in [2, 1, 3] {
            group.acquire(site);
            group.settle();
        }
        let next = |site: usize| group.nodes[site].next.map(|(site, _)| site.0);
        assert_eq!([next(0), next(2), next(1), next(3)], [Some(2), Some(1), Some(3), None]);
        for _ in 0..3 {
            group.release(group.inside()[0]);
            group.settle();
        }
        assert_eq!(group.order(), [0, 2, 1, 3]);
    }

    #[test]
    fn a_late_copy_of_the_token_is_ignored() {
        let mut group = group(2);
        group.acquire(1);
        group.deliver(1, 0);
        let copy = group.peek(0, 1);
        group.settle();
        group.release(1);
        enter_and_leave(&mut group, 0);
        group.inject(0, 1, copy); // while idle
        group.acquire(0);
        group.acquire(1);
        group.inject(0, 1, copy); // while waiting, with another request
        assert_eq!(group.inside(), [0]);
    }

    #[test]
    fn a_request_that_overtakes_the_token_of_its_sender_is_queued() {
        let mut group = group(2);
        group.acquire(0);
        group.acquire(1);
        group.deliver(1, 0);
        group.release(0);
        group.acquire(0);
        let token = group.take(0, 1);
        group.deliver(0, 1); // the request, first
        group.inject(0, 1, token);
        assert_eq!(group.inside(), [1]);
        group.release(1);
        group.settle();
        assert_eq!(group.order(), [0, 1, 0]);
    }

    #[test]
    fn a_site_is_small_enough_for_a_hundred_thousand_of_them() {
        assert!(size_of::<NaimiTrehel>() <= 72);
        assert!(size_of::<Message>() <= 24);
    }

    #[test]
    fn everybody_gets_in_whatever_the_order_of_messages() {
        for seed in 0..300 {
            let mut dice = Prng::new(seed);
            let nodes = 1 + dice.below(8) as u32;
            let mut group = group(nodes);
            for _ in 0..3 {
                (0..nodes).for_each(|site| group.acquire(site));
                group.churn(&mut dice);
            }
            let entries = 3 * u64::from(nodes);
            assert_eq!(group.fences(), (1..=entries).collect::<Vec<_>>(), "seed {seed}");
            assert!(group.sent <= entries * u64::from(nodes), "seed {seed}");
            assert_eq!(group.nodes.iter().filter(|site| site.father.is_none()).count(), 1, "seed {seed}");
            assert!(group.nodes.iter().all(|site| site.next.is_none()), "seed {seed}");
        }
    }
}
