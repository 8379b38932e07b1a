//! The token ring: a token circulates all the time, and the site that has it may enter.
//!
//! The sites form a ring in the order of their ids. There is one token. A site that receives it enters if it
//! waits, and otherwise passes the token to its successor at once. No request is ever sent.
//!
//! **Rules** \[LeLann77\]
//! 1. When the token arrives: enter if waiting; otherwise pass the token on.
//! 2. On exit: pass the token on. A site sends only to its successor in the ring.
//!
//! **Trap**: a site may enter only once per visit of the token. If it enters again while it has the token,
//! the other sites can wait without limit. With one entry per visit, at most N-1 entries bypass a request.
//! Entries follow the order of the ring, not of requests (no ME3), and a duplicated token violates exclusion.
//!
//! **A lost token**: [`TokenRing::on_token_lost`] creates a new token in the next generation. A site that has
//! seen a generation destroys tokens of earlier ones. If the token was *not* lost, two tokens circulate until
//! the older one meets a site that has seen the newer one. Until then two sites may be in the critical
//! section. The upper bits of a fence are the generation, so a store can tell which of the two is out of
//! date.
//!
//! **Differences from the paper**: a lone site keeps the token, because it has no successor.

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Bill, Command, Door, Event, Fence, Group, Mutex};

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TokenRing {
    pub(crate) door: Door,
    /// The latest generation of the token that this site has seen.
    generation: u32,
    /// The token, while this site is in the critical section (or alone in the ring).
    pub(crate) token: Option<Token>,
}

/// The token: the right to enter. It is the only message, and a single word, because it is sent more often
/// than any other message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(Fence);

/// The number of fence bits that count entries. The bits above them are the token's generation. If the
/// counter overflows, the generation grows, and every site that the token visits adopts it.
const COUNTER_BITS: u32 = 40;

impl Token {
    /// Returns the first token of a generation.
    pub const fn of_generation(generation: u32) -> Self {
        Self(Fence((generation as u64) << COUNTER_BITS))
    }

    /// Returns the generation: the number of times that the token was recreated.
    pub const fn generation(self) -> u32 {
        (self.0.0 >> COUNTER_BITS) as u32
    }

    /// Increments the fence and returns it, for an entry.
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
        // Only the first incarnation creates the token; a restarted site must not create a second one.
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
    /// Creates the token again, in the next generation. The caller believes that the token is lost, and has
    /// chosen this site. If the belief is wrong, two sites may enter: see the module's head.
    pub fn on_token_lost(&mut self, cx: &mut Cx<'_, Self>) {
        if self.token.is_none() {
            self.generation += 1;
            self.token = Some(Token::of_generation(self.generation));
            self.guards(cx);
        }
    }

    /// Passes the token, if it is here, to the successor, if there is one.
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
        summary: "a token travels round a ring for ever; a site may enter once per visit of the token",
        papers: &["LeLann77", "CDK"],
        needs: Needs::RELIABLE,
        promises: &["ME1", "ME1-causal", "ME2", "fences"],
        costs: &[
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::Low,
                formula: "1 or more; without bound while idle",
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
                formula: "T..(N-1)T; NT for the same site",
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
        // One entry per visit: at most N-1 entries bypass a request.
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
        group.with(2, TokenRing::on_token_lost); // wrong: site 1 is inside with the token
        group.deliver(2, 0);
        assert_eq!(group.inside(), [1, 0]);
        assert!(group.fences()[0] < group.fences()[1]);
    }
}
