//! The fair token ring: a circulating token finds the oldest request, and entries follow the order of
//! requests.
//!
//! The token carries the stamp of the oldest request that it has met. It then makes one full round to find
//! out that no older request waits. When it returns to the site that wrote the stamp, that site enters. The
//! price of the order is one round per entry.
//!
//! **Rules**: the ring of \[LeLann77\] with the stamps of \[L78\]. When the token arrives at a waiting site:
//! 1. if the token carries the site's own stamp, keep it and enter;
//! 2. if it carries an older stamp, pass it on;
//! 3. if it carries a younger stamp or none, write the site's own stamp on it and pass it on.
//!
//! A site without a request passes the token on. On exit, a site erases the stamp and passes the token on.
//!
//! **Trap**: the stamps are Lamport stamps, and the arrival of the token must advance the clock. Otherwise a
//! site that the token has just visited can make a request that is older than the stamp on the token. Entries
//! then violate the order of requests in every random run.
//!
//! **Differences from the paper**
//! - It is not enough to merge the stamp on the token: the token also visits sites that wait with *younger*
//!   requests. The next site would know of such a request and still make an older one. So the token carries
//!   the sender's clock, like every message in Lamport's algorithm.
//! - On exit with another request waiting, the site replaces the stamp by its new one (rule 3 at once). This
//!   saves a round.
//! - Fences and generations are those of the plain [`token_ring`](super::token_ring).

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::token_ring::Token;
use super::{Bill, Command, Door, Event, Group, Mutex};
use crate::clock::{LamportClock, Stamp};

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FairRing {
    pub(crate) door: Door,
    pub(crate) clock: LamportClock,
    /// This site's request, from the moment of the request until the exit.
    pub(crate) wanted: Option<Stamp>,
    /// The latest generation of the token that this site has seen.
    generation: u32,
    /// The token, while this site is in the critical section (or alone in the ring).
    pub(crate) token: Option<FairToken>,
}

/// The token: the right to enter, for the oldest request. It is the only message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FairToken {
    /// The plain token.
    pub token: Token,
    /// The oldest request that the token has met since the last entry.
    pub oldest: Option<Stamp>,
    /// The sender's clock.
    pub time: u64,
}

impl Protocol for FairRing {
    type Message = FairToken;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        // Only the first incarnation creates the token; a restarted site must not create a second one.
        if cx.me() == NodeId(0) && cx.incarnation() == 0 {
            self.token = Some(FairToken::blank(0));
        }
    }

    fn on_message(&mut self, _from: NodeId, token: FairToken, _cx: &mut Cx<'_, Self>) {
        self.clock.receive(token.time);
        if token.token.generation() >= self.generation {
            self.generation = token.token.generation();
            self.token = Some(token);
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Acquire => self.door.knock(cx),
            Command::Release if self.door.leave(cx) => self.exit(),
            Command::Release => {}
            Command::Witness(time) => self.clock.merge(time),
        }
    }

    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.door.must_ask() {
            self.wanted = Some(Stamp::new(self.clock.tick(), cx.me()));
        }
        let Some(token) = self.token.as_mut().filter(|_| !self.door.is_inside()) else { return };
        let alone = cx.members().len() == 1;
        match self.wanted {
            Some(mine) if token.oldest == Some(mine) || alone => {
                token.oldest = Some(mine);
                self.door.enter(token.token.next_fence(), cx);
            }
            Some(mine) => {
                token.oldest = Some(token.oldest.map_or(mine, |oldest| oldest.min(mine)));
                self.pass(cx);
            }
            None if alone => {}
            None => self.pass(cx),
        }
    }
}

impl FairRing {
    /// Creates the token again, in the next generation; see
    /// [`TokenRing::on_token_lost`](super::TokenRing::on_token_lost).
    pub fn on_token_lost(&mut self, cx: &mut Cx<'_, Self>) {
        if self.token.is_none() {
            self.generation += 1;
            self.token = Some(FairToken::blank(self.generation));
            self.guards(cx);
        }
    }

    fn exit(&mut self) {
        self.wanted = None;
        if let Some(token) = &mut self.token {
            token.oldest = None;
        }
    }

    fn pass(&mut self, cx: &mut Cx<'_, Self>) {
        if let Some(token) = self.token.take() {
            let time = self.clock.tick();
            cx.send(cx.members().after(cx.me()), FairToken { time, ..token });
        }
    }
}

impl FairToken {
    const fn blank(generation: u32) -> Self {
        Self { token: Token::of_generation(generation), oldest: None, time: 0 }
    }
}

impl Mutex for FairRing {
    const CARD: Card = Card {
        problem: "mutex",
        name: "fair-ring",
        title: "Fair token ring",
        summary: "a token travels round a ring and serves the oldest request",
        papers: &["LeLann77", "L78"],
        needs: Needs::RELIABLE,
        promises: &["ME1", "ME1-causal", "ME2", "ME3", "fences"],
        costs: &[
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::Low,
                formula: "N..2N-1; without bound while idle",
                range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (size.n(), f64::INFINITY) },
            },
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::High,
                formula: "N+1, below 2N",
                range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (size.n(), 2.0 * size.n()) },
            },
            Cost {
                measure: Measure::ClientDelay,
                load: Load::Low,
                formula: "NT..2NT",
                range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (size.n(), 2.0 * size.n()) },
            },
            Cost {
                measure: Measure::SyncDelay,
                load: Load::High,
                formula: "(N+1)T..(2N-1)T; NT for the same site",
                range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (size.n(), 2.0 * size.n() - 1.0) },
            },
        ],
        survives: "no crash: the ring is broken",
        idle_traffic: true,
        reads_clock: false,
    };

    fn new(_me: NodeId, _group: &Group) -> Self {
        Self { door: Door::default(), clock: LamportClock::new(), wanted: None, generation: 0, token: None }
    }

    fn bill(_token: &FairToken, _from: NodeId, _to: NodeId) -> Bill {
        Bill::shared("TOKEN")
    }

    fn clock(&self) -> u64 {
        self.clock.time()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutex::by_hand::ByHand;
    use alloc::vec::Vec;
    use conclave_kernel::{Input, Prng};

    fn group(nodes: u32) -> ByHand<FairRing> {
        ByHand::new(nodes, |me| FairRing::new(me, &Group::new(nodes)))
    }

    /// Passes the token on from `at` until a site is inside, and returns the number of hops. `at` is then
    /// that site.
    fn run(group: &mut ByHand<FairRing>, at: &mut u32) -> u64 {
        let nodes = group.nodes.len() as u32;
        let mut hops = 0;
        while group.inside().is_empty() {
            let next = (*at + 1) % nodes;
            group.deliver(*at, next);
            *at = next;
            hops += 1;
            assert!(hops <= 2 * u64::from(nodes), "somebody must be served within two rounds");
        }
        hops
    }

    #[test]
    fn base_case_a_blank_token_goes_round() {
        let mut group = group(4);
        for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 0), (0, 1)] {
            group.deliver(from, to);
            assert_eq!(group.peek(to, (to + 1) % 4).oldest, None);
        }
    }

    #[test]
    fn single_case_the_stamp_goes_round_once() {
        let mut group = group(4);
        group.acquire(2);
        let stamp = Some(Stamp::new(1, NodeId(2)));
        group.deliver(0, 1);
        assert_eq!(group.peek(1, 2).oldest, None);
        group.deliver(1, 2);
        for (from, to) in [(2, 3), (3, 0), (0, 1), (1, 2)] {
            assert_eq!(group.peek(from, to).oldest, stamp);
            assert!(group.inside().is_empty());
            group.deliver(from, to);
        }
        assert_eq!(group.inside(), [2]);
        group.release(2);
        assert_eq!(group.peek(2, 3).oldest, None, "wiped on exit");
    }

    /// Sites 1 and 2 of 4 wait; `older` has the older request.
    fn competing(older: u32, younger: u32) -> ByHand<FairRing> {
        let mut group = group(4);
        group.acquire(older);
        group.step(younger, Input::Command(Command::Witness(group.nodes[older as usize].clock())));
        group.acquire(younger);
        group
    }

    #[test]
    fn competing_case_the_older_request_is_reached_first() {
        let mut group = competing(1, 2);
        let mut at = 0;
        assert_eq!(run(&mut group, &mut at), 1 + 4, "the younger one never writes");
        assert_eq!(group.inside(), [1]);
        group.release(1);
        assert_eq!(run(&mut group, &mut at), 1 + 4);
        assert_eq!(group.inside(), [2]);
    }

    #[test]
    fn competing_case_the_younger_request_is_reached_first() {
        let mut group = competing(2, 1);
        let mut at = 0;
        group.deliver(0, 1);
        assert_eq!(group.peek(1, 2).oldest.map(|oldest| oldest.site), Some(NodeId(1)));
        group.deliver(1, 2);
        assert_eq!(group.peek(2, 3).oldest.map(|oldest| oldest.site), Some(NodeId(2)), "overwritten");
        at += 2;
        assert_eq!(run(&mut group, &mut at), 4);
        assert_eq!(group.inside(), [2]);
        group.release(2);
        assert_eq!(run(&mut group, &mut at), 3 + 4, "wiped, so that 1 writes again");
        assert_eq!(group.inside(), [1]);
    }

    #[test]
    fn saturated_an_entry_costs_n_plus_one_hops() {
        // With N = 7, an entry costs 8 hops.
        let mut group = group(7);
        (0..7).for_each(|site| group.acquire(site));
        let mut at = 0;
        run(&mut group, &mut at);
        for _ in 0..30 {
            let inside = group.inside()[0];
            group.release(inside);
            group.acquire(inside);
            assert_eq!(run(&mut group, &mut at), 8);
        }
    }

    #[test]
    fn a_lone_request_costs_less_than_two_rounds() {
        // N..2N-1 hops, depending on where the token is when the request is made; earlier hops are not
        // counted.
        let mut costs = Vec::new();
        for site in 0..7 {
            let mut group = group(7);
            group.acquire(site); // the token is in flight from 0 to 1
            group.sent = 0;
            run(&mut group, &mut 0);
            costs.push(group.sent);
        }
        costs.sort_unstable();
        assert_eq!(costs, (7..14).collect::<Vec<_>>());
    }

    #[test]
    fn the_same_site_again_waits_one_round() {
        let mut group = group(5);
        group.acquire(3);
        group.acquire(3);
        let mut at = 0;
        run(&mut group, &mut at);
        group.release(3);
        assert_eq!(run(&mut group, &mut at), 5);
        assert_eq!(group.order(), [3, 3]);
    }

    #[test]
    fn entries_follow_the_stamps_of_requests() {
        for seed in 0..200 {
            let mut dice = Prng::new(seed);
            let mut group = group(5);
            let (mut at, mut stamps) = (0, Vec::new());
            while stamps.len() < 30 {
                let site = dice.below(5) as u32;
                if dice.below(3) == 0 && group.nodes[site as usize].wanted.is_none() {
                    group.acquire(site);
                }
                if let Some(inside) = group.inside().first().copied() {
                    stamps.push(group.nodes[inside as usize].wanted.unwrap());
                    group.release(inside);
                } else {
                    let next = (at + 1) % 5;
                    group.deliver(at, next);
                    at = next;
                }
            }
            assert!(stamps.is_sorted_by(|a, b| a < b), "seed {seed}: {stamps:?}");
            assert!(group.fences().is_sorted_by(|a, b| a < b));
        }
    }

    #[test]
    fn a_token_that_passed_a_younger_request_carries_the_news_of_it() {
        // Site 1 requests. Site 2, whose clock is far ahead, then requests with a much younger stamp. The
        // token carries the older stamp past site 2, so a later request of site 3 must be younger than both.
        let mut group = group(4);
        group.acquire(1);
        group.step(2, Input::Command(Command::Witness(100)));
        group.acquire(2);
        for (from, to) in [(0, 1), (1, 2), (2, 3)] {
            group.deliver(from, to);
        }
        group.acquire(3);
        assert!(group.nodes[2].wanted < group.nodes[3].wanted);
    }

    #[test]
    fn a_lone_site_enters_again_and_again_without_a_message() {
        let mut group = group(1);
        group.acquire(0);
        group.acquire(0);
        group.release(0);
        assert_eq!(group.inside(), [0]);
        group.release(0);
        assert_eq!((group.sent, group.fences()), (0, &[1, 2][..]));
    }

    #[test]
    fn a_token_of_an_earlier_generation_is_destroyed() {
        let mut group = group(3);
        let old = group.take(0, 1);
        group.with(1, FairRing::on_token_lost);
        group.inject(0, 1, old);
        assert_eq!(group.take(1, 2).token.generation(), 1);
        assert_eq!(group.sent, 2);
    }
}
