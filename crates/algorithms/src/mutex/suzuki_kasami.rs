//! Suzuki and Kasami: one token; a site that needs it sends a request to all sites, because any of them may
//! have it.
//!
//! The token records the number of each site's last served request. Its holder compares these numbers with
//! the requests that it has received, and so knows which sites still wait. The token also carries the queue
//! of waiting sites.
//!
//! **Rules** \[SK85\]: RN\[j\] is the largest request number received from site j. LN\[j\], in the token, is
//! the number of j's last served request.
//! 1. To request without the token: add one to RN\[me\] and send that number to all.
//! 2. On request n of j: RN\[j\] := max(RN\[j\], n). If the token is here, idle, and RN\[j\] = LN\[j\] + 1,
//!    send it to j.
//! 3. Enter when the token is here. On exit: LN\[me\] := RN\[me\]; append every j that is not in the token's
//!    queue and has RN\[j\] = LN\[j\] + 1; send the token to the first of the queue, if any.
//!
//! **Trap**
//! - Without the max, a request that is overtaken by a later one causes a deadlock.
//! - An idle holder must reply at once, or the system halts.
//! - A reply to an outdated request moves the token to a site that does not need it.
//! - The queue must be first in, first out; last in, first out starves sites.
//! - Grants do not follow the order of requests (no ME3).
//!
//! **Differences from the paper**: the token carries the fence. A site accepts the token only while it waits
//! with the request for which the token was sent, number LN\[me\] + 1. It thus recognises a late copy of the
//! token, which is fatal in the paper. New requests are appended in ring order, starting after the holder, so
//! that no site is preferred for its id.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::door::Place;
use super::{Bill, Command, Door, Event, Fence, Group, Mutex};

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SuzukiKasami {
    pub(crate) door: Door,
    /// RN: the largest request number received from each site. This site's own entry is the number of its
    /// latest request.
    pub(crate) heard: Box<[u64]>,
    /// The token, if it is here. The box moves with it, so the token is not copied.
    pub(crate) token: Option<Box<Token>>,
}

/// The token: the right to enter, with the queue of waiting sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token {
    /// LN: the number of each site's last served request.
    pub(crate) served: Box<[u64]>,
    /// The sites that get the token next, in order; at most N-1.
    pub(crate) queue: VecDeque<NodeId>,
    /// The same sites as a set, because every exit looks up N sites in the queue.
    pub(crate) queued: NodeSet,
    /// The fence of the latest grant.
    fence: Fence,
}

/// A message between two sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Requests the token. The number is that of the sender's request.
    Request(u64),
    /// Hands over the token.
    Privilege(Box<Token>),
}

impl Protocol for SuzukiKasami {
    type Message = Message;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Request(number) => {
                let heard = &mut self.heard[from.index()];
                *heard = number.max(*heard);
                if self.door.place() == Place::Outside
                    && let Some(token) = &mut self.token
                {
                    token.enqueue(from, &self.heard);
                    self.pass(cx);
                }
            }
            Message::Privilege(token) => {
                let mine = self.heard[cx.me().index()];
                if self.door.is_asking() && token.serves(cx.me()) == mine {
                    self.token = Some(token);
                } // otherwise it is a late copy, for an earlier request
            }
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Acquire => self.door.knock(cx),
            Command::Release if self.door.leave(cx) => self.exit(cx),
            Command::Release | Command::Witness(_) => {}
        }
    }

    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.door.must_ask() && self.token.is_none() {
            let mine = &mut self.heard[cx.me().index()];
            *mine += 1;
            cx.broadcast(Message::Request(*mine));
        }
        if self.door.is_asking()
            && let Some(token) = &mut self.token
        {
            token.fence = token.fence.next();
            self.door.enter(token.fence, cx);
        }
    }
}

impl SuzukiKasami {
    fn exit(&mut self, cx: &mut Cx<'_, Self>) {
        if let Some(token) = &mut self.token {
            let me = cx.me();
            token.served[me.index()] = self.heard[me.index()];
            let (before, behind) = (0..me.0, me.0 + 1..self.heard.len() as u32);
            for site in behind.chain(before).map(NodeId) {
                token.enqueue(site, &self.heard);
            }
            self.pass(cx);
        }
    }

    /// Sends the token to the first site of its queue, if any.
    pub(crate) fn pass(&mut self, cx: &mut Cx<'_, Self>) {
        if let Some(mut token) = self.token.take_if(|token| !token.queue.is_empty())
            && let Some(next) = token.queue.pop_front()
        {
            token.queued.remove(next);
            cx.send(next, Message::Privilege(token));
        }
    }
}

impl Token {
    /// Returns the number of the request for which that site would get the token. 0 for a site outside the
    /// group, which only a damaged token could name.
    fn serves(&self, site: NodeId) -> u64 {
        self.served.get(site.index()).map_or(0, |served| served + 1)
    }

    /// Appends a site to the queue if its latest request is still to be served.
    pub(crate) fn enqueue(&mut self, site: NodeId, heard: &[u64]) {
        if heard[site.index()] == self.serves(site) && self.queued.insert(site) {
            self.queue.push_back(site);
        }
    }
}

impl Mutex for SuzukiKasami {
    const CARD: Card = Card {
        problem: "mutex",
        name: "suzuki-kasami",
        title: "Suzuki-Kasami",
        summary: "a token carries its own queue; a site asks all others for it and keeps it until asked",
        papers: &["SK85"],
        needs: Needs { no_duplication: false, ..Needs::RELIABLE },
        promises: &["ME1", "ME1-causal", "ME2", "fences"],
        costs: &[
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::Low,
                formula: "N; 0 if the site has the token",
                range: |size| (0.0, if size.nodes == 1 { 0.0 } else { size.n() }),
            },
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::High,
                formula: "N; 0 if the site has the token",
                range: |size| (0.0, if size.nodes == 1 { 0.0 } else { size.n() }),
            },
            Cost {
                measure: Measure::ClientDelay,
                load: Load::Low,
                formula: "2T; 0 if the site has the token",
                range: |size| (0.0, if size.nodes == 1 { 0.0 } else { 2.0 }),
            },
            Cost {
                measure: Measure::SyncDelay,
                load: Load::High,
                formula: "T (0 to re-enter)",
                range: |size| (0.0, if size.nodes == 1 { 0.0 } else { 1.0 }),
            },
        ],
        survives: "the crash of a site that neither has the token nor waits for it",
        idle_traffic: false,
        reads_clock: false,
    };

    fn new(me: NodeId, group: &Group) -> Self {
        let table = || vec![0; group.nodes as usize].into_boxed_slice();
        let token = || {
            Box::new(Token {
                served: table(),
                queue: VecDeque::with_capacity(group.nodes as usize),
                queued: NodeSet::new(),
                fence: Fence::default(),
            })
        };
        Self { door: Door::default(), heard: table(), token: (me == NodeId(0)).then(token) }
    }

    fn bill(message: &Message, from: NodeId, to: NodeId) -> Bill {
        match message {
            Message::Request(number) => Bill::enter("REQUEST", from, *number),
            Message::Privilege(token) => Bill::enter("PRIVILEGE", to, token.serves(to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use conclave_kernel::Prng;

    use super::super::by_hand::ByHand;
    use super::*;

    fn group(nodes: u32) -> ByHand<SuzukiKasami> {
        ByHand::new(nodes, |me| SuzukiKasami::new(me, &Group::new(nodes)))
    }

    fn queue(group: &ByHand<SuzukiKasami>, site: usize) -> Vec<u32> {
        let token = group.nodes[site].token.as_ref().expect("the token is here");
        assert_eq!(token.queued, token.queue.iter().copied().collect());
        token.queue.iter().map(|site| site.0).collect()
    }

    #[test]
    fn who_has_the_idle_token_enters_without_a_message() {
        let mut group = group(3);
        group.acquire(0);
        group.release(0);
        group.acquire(0);
        assert_eq!((group.order(), group.sent), (&[0, 0][..], 0));
    }

    /// \[SK85\]: N-1 requests and the token.
    #[test]
    fn who_does_not_have_it_pays_n_messages_and_an_idle_holder_answers_at_once() {
        let mut group = group(4);
        group.acquire(3);
        group.deliver(3, 0);
        group.deliver(0, 3);
        assert_eq!((group.inside(), group.sent), (&[3][..], 4));
        assert!(group.nodes[0].token.is_none());
    }

    #[test]
    fn requests_that_came_while_inside_are_served_in_the_order_of_the_queue() {
        let mut group = group(4);
        group.acquire(1);
        group.settle();
        for site in [0, 3, 2] {
            group.acquire(site);
        }
        group.settle();
        group.release(1); // at once appended to the queue, starting after site 1
        group.settle();
        assert_eq!((group.inside(), queue(&group, 2)), (&[2][..], [3, 0].to_vec()));
        group.acquire(1); // requests again: behind the sites that wait
        group.settle();
        for _ in 0..3 {
            group.release(group.inside()[0]);
            group.settle();
        }
        assert_eq!(group.order(), [1, 2, 3, 0, 1]);
    }

    #[test]
    fn an_outdated_request_does_not_move_the_token() {
        let mut group = group(3);
        group.acquire(1);
        let late = group.take(1, 2);
        group.settle();
        group.release(1);
        group.acquire(2);
        group.settle();
        group.release(2); // site 2 has the token, idle, and has not received site 1's request
        let before = group.sent;
        group.inject(1, 2, late);
        assert!(group.nodes[2].token.is_some());
        assert_eq!(group.sent, before);
    }

    /// The mutant `RN[j] := n` deadlocks here.
    #[test]
    fn a_request_that_was_overtaken_does_not_hide_the_later_one() {
        let mut group = group(3);
        group.acquire(1);
        let overtaken = group.take(1, 2);
        group.settle();
        group.release(1);
        group.acquire(2);
        group.settle();
        assert_eq!(group.inside(), [2]);
        group.acquire(1); // request 2
        group.settle();
        group.inject(1, 2, overtaken); // request 1
        group.release(2);
        group.settle();
        assert_eq!(group.inside(), [1]);
    }

    #[test]
    fn a_late_copy_of_the_token_is_ignored() {
        let mut group = group(3);
        group.acquire(1);
        group.deliver(1, 0);
        let copy = group.peek(0, 1);
        group.settle();
        group.inject(0, 1, copy.clone()); // while inside
        group.release(1);
        group.inject(0, 1, copy.clone()); // while idle with the token
        group.acquire(2);
        group.settle();
        group.inject(0, 1, copy.clone()); // while idle without the token
        assert!(group.nodes[1].token.is_none());
        group.acquire(1);
        group.inject(0, 1, copy); // while waiting, with another request
        assert_eq!(group.inside(), [2]);
    }

    #[test]
    fn the_token_is_billed_to_the_request_that_it_serves() {
        let mut group = group(2);
        for number in 1..4 {
            group.acquire(1);
            let request = group.peek(1, 0);
            assert_eq!(SuzukiKasami::bill(&request, NodeId(1), NodeId(0)).request, Some((NodeId(1), number)));
            group.deliver(1, 0);
            let token = group.peek(0, 1);
            assert_eq!(SuzukiKasami::bill(&token, NodeId(0), NodeId(1)).request, Some((NodeId(1), number)));
            group.deliver(0, 1);
            group.release(1);
            group.acquire(0);
            group.settle();
            group.release(0);
        }
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
            assert_eq!(group.fences(), (1..=3 * u64::from(nodes)).collect::<Vec<_>>(), "seed {seed}");
            assert_eq!(group.nodes.iter().filter(|site| site.token.is_some()).count(), 1, "seed {seed}");
        }
    }
}
