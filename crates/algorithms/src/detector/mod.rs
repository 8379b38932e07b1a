//! Failure detection: who seems alive.
//!
//! A detector only ever says *suspected* or *trusted*, and may take either back: failed is what a site is,
//! suspected is what another thinks of it. All algorithms send a heartbeat every T ([`pulse`]) and differ in how
//! long silence may last before they draw the conclusion.
//!
//! | algorithm | silence is suspicious after | what it rests on |
//! |---|---|---|
//! | [`heartbeat`] | T + D, D fixed | D is at least the largest delay |
//! | [`adaptive`] | the expected arrival and a margin that follows the errors seen | delays that change slowly |
//! | [`phi_accrual`] | the moment at which a normal tail falls below 10^-Phi | gaps that look normal |
//!
//! [`oracle`] is no algorithm: it stands in for any detector of a class when the layer above is checked.

pub mod adaptive;
pub mod heartbeat;
pub mod oracle;
pub mod phi_accrual;
pub mod pulse;
pub mod spec;

use core::time::Duration;

use conclave_kernel::{Card, Never, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

pub use adaptive::Adaptive;
pub use heartbeat::Heartbeat;
pub use oracle::{Class, Mute, Oracle};
pub use phi_accrual::PhiAccrual;

/// What a detector tells the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// That site has been silent for too long.
    Suspected(NodeId),
    /// That site was suspected, and has been heard again.
    Trusted(NodeId),
}

/// An algorithm of the problem. Nothing is asked of it: it watches from its start on.
pub trait Detector: Protocol<Command = Never, Event = Event> {
    /// What it says of itself.
    const CARD: Card;

    /// A site of a group.
    fn new(me: NodeId, group: &Group) -> Self;

    /// The kind of a message, for those who count.
    fn kind(message: &Self::Message) -> &'static str;

    /// Whom the site suspects.
    fn suspects(&self) -> &NodeSet;
}

/// Something to be done with an algorithm whose name is known only at run time.
pub trait Visit {
    /// What comes of it.
    type Out;

    /// Does it.
    fn visit<P: Detector>(self) -> Self::Out;
}

/// Lists the algorithms once: their cards, and the way from a name to a type.
macro_rules! algorithms {
    ($($algorithm:ty),+ $(,)?) => {
        /// The cards of all algorithms, in the order in which the problem is told.
        pub const CARDS: &[Card] = &[$(<$algorithm as Detector>::CARD),+];

        /// Does something with the algorithm of that name; `None` if nobody has it.
        pub fn visit<V: Visit>(name: &str, visitor: V) -> Option<V::Out> {
            $(if name == <$algorithm as Detector>::CARD.name {
                return Some(visitor.visit::<$algorithm>());
            })+
            None
        }
    };
}

algorithms![Heartbeat, Adaptive, PhiAccrual];

/// What the sites of a group know from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Group {
    /// N.
    pub nodes: u32,
    /// T: a heartbeat is sent so often.
    pub period: Duration,
    /// D: how much longer than T silence may last, where that is fixed; and until enough has been observed.
    pub margin: Duration,
    /// Phi: a suspicion is wrong once in 10^Phi times, if the model holds.
    pub threshold: u32,
    /// How many of the latest arrivals are remembered.
    pub window: u32,
}

impl Group {
    /// A group with a heartbeat every `period`, suspected after `period + margin` of silence; a threshold of
    /// 8 and the latest 100 arrivals where these matter.
    pub const fn new(nodes: u32, period: Duration, margin: Duration) -> Self {
        Self { nodes, period, margin, threshold: 8, window: 100 }
    }
}
