//! The token ring: a token goes round for ever, and whoever has it may go in.
//!
//! The sites stand in a ring, in order of their ids. There is one token; the site that has it goes in if it
//! wants to, and hands the token to its successor when it is done, or at once. No request is ever sent.
//!
//! **Rules** \[LeLann77\]
//! 1. When the token comes: go in if you wait for it; otherwise pass it on.
//! 2. On exit: pass it on. Only the successor in the ring is ever addressed.
//!
//! **Trap**: one entry a visit. A site that goes in again while it has the token keeps everybody waiting as
//! long as it likes; with one entry a visit nobody is bypassed by more than N-1 entries. Order of entry is
//! order in the ring, not of requests (no ME3), and a duplicated token is the end of exclusion.
//!
//! **A lost token** is made anew by [`TokenRing::on_token_lost`], in the next generation: a site that has
//! seen a generation destroys tokens of an earlier one. If the token was *not* lost, two go round until the
//! older meets a site that knows better, and two sites may be inside. Fences have the generation in their
//! upper part, so that a store can tell which of the two is out of date.
//!
//! **Where we depart**: a lone site keeps the token, for it has nobody to pass it to.

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Bill, Command, Door, Event, Fence, Group, Mutex};

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TokenRing {
    pub(crate) door: Door,
    /// The latest generation of the token that I have seen.
    generation: u32,
    /// The token, while I am inside with it.
    pub(crate) token: Option<Token>,
}

/// The right to go in. The only message: one word, for it is sent more often than any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(Fence);

/// A fence counts entries in its lower 40 bits; above them stands the generation of the token. Should the
/// count ever overflow, the generation grows with it at every site that the token passes.
const COUNTER_BITS: u32 = 40;

impl Token {
    /// The first token of a generation.
    pub const fn of_generation(generation: u32) -> Self {
        Self(Fence((generation as u64) << COUNTER_BITS))
    }

    /// How often the token was made anew.
    pub const fn generation(self) -> u32 {
        (self.0.0 >> COUNTER_BITS) as u32
    }

    /// Takes the next fence, for an entry.
    pub const fn next_fence(&mut self) -> Fence {
        self.0 = self.0.next();
        self.0
    }
}

impl Protocol for TokenRing {
    type Message = Token;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        // A site that comes back must not make a second one.
        if cx.me() == NodeId(0) && cx.incarnation() == 0 {
            self.token = Some(Token::of_generation(0));
        }
    }

    #[inline]
    fn on_message(&mut self, _from: NodeId, token: Token, _cx: &mut Cx<'_, Self>) {
        if token.generation() >= self.generation {
            self.generation = token.generation();
            self.token = Some(token);
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Acquire => self.door.knock(cx),
            Command::Release if self.door.leave(cx) => self.pass(cx),
            Command::Release | Command::Witness(_) => {}
        }
    }

    #[inline]
    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        self.door.must_ask();
        if let Some(token) = &mut self.token
            && !self.door.is_inside()
        {
            if self.door.is_asking() {
                self.door.enter(token.next_fence(), cx);
            } else {
                self.pass(cx);
            }
        }
    }
}

impl TokenRing {
    /// The token is believed lost, and this site was chosen to make it anew. Whoever believes so should be
    /// right: see the head of this file.
    pub fn on_token_lost(&mut self, cx: &mut Cx<'_, Self>) {
        if self.token.is_none() {
            self.generation += 1;
            self.token = Some(Token::of_generation(self.generation));
            self.guards(cx);
        }
    }

    /// Hands the token, if I have it, to my successor, if I have one.
    #[inline]
    fn pass(&mut self, cx: &mut Cx<'_, Self>) {
        let successor = cx.members().after(cx.me());
        if successor != cx.me()
            && let Some(token) = self.token.take()
        {
            cx.send(successor, token);
        }
    }
}

impl Mutex for TokenRing {
    const CARD: Card = Card {
        problem: "mutex",
        name: "token-ring",
        title: "Token ring",
        summary: "a token goes round for ever; whoever has it may go in, once a visit",
        papers: &["LeLann77", "CDK"],
        needs: Needs::RELIABLE,
        promises: &["ME1", "ME1-causal", "ME2", "fences"],
        costs: &[
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::Low,
                formula: "1 or more, without bound while idle",
                range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (1.0, f64::INFINITY) },
            },
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::High,
                formula: "1",
                range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (1.0, 1.0) },
            },
            Cost {
                measure: Measure::ClientDelay,
                load: Load::Low,
                formula: "0..NT",
                range: |size| (0.0, if size.nodes == 1 { 0.0 } else { size.n() }),
            },
            Cost {
                measure: Measure::SyncDelay,
                load: Load::High,
                formula: "T..(N-1)T, NT for the same site",
                range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (1.0, size.n()) },
            },
        ],
        survives: "no crash: the ring is broken",
        idle_traffic: true,
        reads_clock: false,
    };

    fn new(_me: NodeId, _group: &Group) -> Self {
        Self { door: Door::default(), generation: 0, token: None }
    }

    #[inline]
    fn bill(_token: &Token, _from: NodeId, _to: NodeId) -> Bill {
        Bill::shared("TOKEN")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutex::by_hand::ByHand;

    fn group(nodes: u32) -> ByHand<TokenRing> {
        ByHand::new(nodes, |me| TokenRing::new(me, &Group::new(nodes)))
    }

    #[test]
    fn an_idle_token_goes_round_and_only_successors_are_addressed() {
        let mut group = group(3);
        for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 1)] {
            group.deliver(from, to);
        }
        assert_eq!(group.peek(1, 2), Token::of_generation(0));
        assert_eq!(group.sent, 5);
    }

    #[test]
    fn a_lone_site_keeps_the_token_and_enters_again_and_again_without_a_message() {
        let mut group = group(1);
        for fence in 1..=3 {
            group.acquire(0);
            assert_eq!(group.inside(), [0]);
            group.acquire(0);
            group.release(0);
            assert_eq!(group.fences().len(), fence * 2, "the second was waiting");
            group.release(0);
        }
        assert_eq!(group.sent, 0);
        assert!(group.fences().is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_site_that_waits_again_must_let_the_token_go_round_first() {
        // One entry a visit: a request is bypassed by at most N-1 entries.
        let mut group = group(4);
        for _ in 0..5 {
            (0..4).for_each(|site| group.acquire(site));
        }
        let mut at = 0;
        while group.order().len() < 20 {
            let next = (at + 1) % 4;
            group.deliver(at, next);
            assert_eq!(group.inside(), [next]);
            group.release(next);
            at = next;
        }
        assert_eq!(group.order()[..8], [1, 2, 3, 0, 1, 2, 3, 0]);
        assert_eq!(group.sent, 20 + 1, "one hop an entry, and one under way");
        assert!(group.fences().is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_site_that_comes_back_makes_no_second_token() {
        let mut group = group(2);
        let env = conclave_kernel::Env { incarnation: 1, ..conclave_kernel::Env::new(NodeId(0), 2) };
        let mut buffer = conclave_kernel::Buffer::default();
        group.nodes[0].step(conclave_kernel::Input::Recover, &mut Cx::new(env, &mut buffer));
        assert_eq!(buffer.effects, []);
    }

    #[test]
    fn a_token_of_an_earlier_generation_is_destroyed() {
        let mut group = group(3);
        let old = group.take(0, 1);
        group.with(2, TokenRing::on_token_lost);
        for (from, to) in [(2, 0), (0, 1)] {
            group.deliver(from, to);
        }
        group.inject(0, 1, old);
        assert_eq!(group.take(1, 2), Token::of_generation(1));
        assert_eq!(group.sent, 4, "only one token was passed on");
    }

    #[test]
    fn a_wrong_suspicion_lets_two_in_and_only_the_fence_tells_them_apart() {
        let mut group = group(3);
        group.acquire(1);
        group.acquire(0);
        group.deliver(0, 1);
        group.with(2, TokenRing::on_token_lost); // wrong: 1 is inside with it
        group.deliver(2, 0);
        assert_eq!(group.inside(), [1, 0]);
        assert!(group.fences()[0] < group.fences()[1]);
    }
}
