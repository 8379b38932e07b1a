//! Mutual exclusion: at most one site in the critical section, everybody in turn.
//!
//! Every algorithm takes the same [`Command`]s and emits the same [`Event`]s, so that specification, metrics and
//! user code talk to the problem, never to the algorithm.
//!
//! | algorithm | idea | messages per entry | sync delay |
//! |---|---|---|---|
//! | [`central`] | one site keeps the queue | 3, 0 for the coordinator | 2T |
//! | [`token_ring`] | a token goes round for ever | 1 saturated, else unbounded | T..(N-1)T |
//! | [`fair_ring`] | a token goes round and looks for the oldest request | N+1 saturated, below 2N | (N+1)T..(2N-1)T |
//! | [`lamport`] | everybody keeps the same queue | 3(N-1), 2(N-1)..3(N-1) without needless replies | T |
//! | [`ricart_agrawala`] | ask everybody; they defer while they come first | 2(N-1) | T |
//! | [`roucairol_carvalho`] | the same, but a permission lasts until it is asked back | 0..2(N-1) | 0 or T |
//! | [`maekawa`] | ask a quorum, of which any two meet | 3(K-1)..7(K-1) | 2T |
//! | [`suzuki_kasami`] | one token; ask everybody for it | 0 or N | 0 or T |
//! | [`raymond`] | one token in a tree; ask in its direction | about 4 saturated, at most 4 log2 N | T..2 log2 N T |
//! | [`naimi_trehel`] | one token; ask who probably asked last | O(log N) on average, at most N | 0 or T |
//!
//! Over a detector, and so through crashes: [`central::elected`], whose master is elected again, and
//! [`ricart_agrawala::crash_tolerant`].

#[cfg(test)]
pub(crate) mod by_hand;
pub mod central;
pub mod door;
pub mod fair_ring;
pub mod lamport;
pub mod maekawa;
pub mod naimi_trehel;
pub mod raymond;
pub mod ricart_agrawala;
pub mod roucairol_carvalho;
pub mod spec;
pub mod suzuki_kasami;
pub mod token_ring;

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use conclave_kernel::{Card, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use crate::detector::{self, Heartbeat};

pub use central::Central;
pub use central::elected::{CentralBully, CentralElected, CentralRing};
pub use door::Door;
pub use fair_ring::FairRing;
pub use lamport::{Lamport, LamportOmission};
pub use maekawa::Maekawa;
pub use naimi_trehel::NaimiTrehel;
pub use raymond::Raymond;
pub use ricart_agrawala::RicartAgrawala;
pub use ricart_agrawala::crash_tolerant::{CrashTolerant, RicartAgrawalaFt};
pub use roucairol_carvalho::RoucairolCarvalho;
pub use suzuki_kasami::SuzukiKasami;
pub use token_ring::TokenRing;

/// What the layer above asks of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Let me in. May be asked again before the answer: requests of one site queue up, and are served one
    /// at a time.
    Acquire,
    /// I am done.
    Release,
    /// An application message arrived that was sent when the sender's logical clock showed this. Algorithms
    /// that order requests by happened-before need it to see causality that flows outside of them.
    Witness(u64),
}

/// What a site tells the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// You are in.
    Granted {
        /// Larger than that of every earlier grant, at whatever site: a store that remembers the largest it
        /// has seen can refuse a latecomer.
        fence: Fence,
    },
    /// You are out.
    Released,
    /// The command made no sense.
    Refused(Refusal),
}

/// Why a command made no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// A release by a site that is not inside.
    NotInside,
    /// Another request while [`door::MOST_WAITING`] of the same site wait already.
    TooManyWaiting,
}

/// A number that grows from grant to grant across all sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl Fence {
    /// The next one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An algorithm of the problem.
pub trait Mutex: Protocol<Command = Command, Event = Event> {
    /// What it says of itself.
    const CARD: Card;

    /// Whether a site asks a quorum rather than everybody: whether [`Group::quorums`] must be given.
    const USES_QUORUMS: bool = false;

    /// A site of a group.
    fn new(me: NodeId, group: &Group) -> Self;

    /// What a message is, for those who count.
    fn bill(message: &Self::Message, from: NodeId, to: NodeId) -> Bill;

    /// What the site's logical clock shows: what an application message would carry. 0 if it has none.
    fn clock(&self) -> u64 {
        0
    }
}

/// Something to be done with an algorithm whose name is known only at run time.
pub trait Visit {
    /// What comes of it.
    type Out;

    /// Does it.
    fn visit<P: Mutex>(self) -> Self::Out;
}

/// Lists the algorithms once: their cards, and the way from a name to a type.
macro_rules! algorithms {
    ($($algorithm:ty),+; $($layered:ty),+ $(,)?) => {
        /// The cards of all algorithms, in the order in which the problem is told.
        pub const CARDS: &[Card] = &[$(<$algorithm as Mutex>::CARD),+];

        /// The cards of those that stand on a detector and survive crashes. Their heartbeats never end, so that
        /// they are not compared with the others.
        pub const LAYERED: &[Card] = &[$(<$layered as Mutex>::CARD),+];

        /// Does something with the algorithm of that name; `None` if nobody has it.
        pub fn visit<V: Visit>(name: &str, visitor: V) -> Option<V::Out> {
            $(if name == <$algorithm as Mutex>::CARD.name {
                return Some(visitor.visit::<$algorithm>());
            })+
            $(if name == <$layered as Mutex>::CARD.name {
                return Some(visitor.visit::<$layered>());
            })+
            None
        }
    };
}

algorithms![
    Central,
    TokenRing,
    FairRing,
    Lamport,
    LamportOmission,
    RicartAgrawala,
    RoucairolCarvalho,
    Maekawa,
    SuzukiKasami,
    Raymond,
    NaimiTrehel;
    CentralBully, CentralRing, RicartAgrawalaFt<Heartbeat>,
];

/// The longest that a message may take under the layered algorithms: what their timeouts are made of.
pub const LONGEST_DELAY: Duration = Duration::from_millis(20);

/// What the detector under a layered algorithm is given: a heartbeat as often as the longest delay.
const fn watching(nodes: u32) -> detector::Group {
    detector::Group::new(nodes, LONGEST_DELAY, LONGEST_DELAY)
}

/// What the sites of a group know of each other from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// N.
    pub nodes: u32,
    /// Whose permission each site asks for; empty for algorithms that use no quorums.
    pub quorums: Vec<NodeSet>,
}

impl Group {
    /// A group of that size, without quorums.
    pub const fn new(nodes: u32) -> Self {
        Self { nodes, quorums: Vec::new() }
    }
}

/// What a message is, for those who count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bill {
    /// Its kind, as the paper spells it: `REQUEST`.
    pub kind: &'static str,
    /// The request that it serves: the site and a number that grows from one request of that site to the
    /// next. `None` where messages serve nobody in particular, as a token that circulates.
    pub request: Option<(NodeId, u64)>,
    /// Whether it is sent to get in or to get out.
    pub phase: Phase,
}

impl Bill {
    /// A message to get in.
    pub const fn enter(kind: &'static str, site: NodeId, number: u64) -> Self {
        Self { kind, request: Some((site, number)), phase: Phase::Enter }
    }

    /// A message to get out.
    pub const fn exit(kind: &'static str, site: NodeId, number: u64) -> Self {
        Self { kind, request: Some((site, number)), phase: Phase::Exit }
    }

    /// Whether its sender sends it to get in itself.
    pub fn is_own_wish(&self, sender: NodeId) -> bool {
        self.phase == Phase::Enter && self.request.is_some_and(|(site, _)| site == sender)
    }

    /// A message that serves whoever comes next.
    pub const fn shared(kind: &'static str) -> Self {
        Self { kind, request: None, phase: Phase::Enter }
    }
}

/// What a message is sent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// To get in.
    Enter,
    /// To get out.
    Exit,
}
