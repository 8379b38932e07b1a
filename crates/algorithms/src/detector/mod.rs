//! Failure detection: which sites seem to be alive.
//!
//! A detector reports only *suspected* or *trusted*, and it may take either report back. Whether a site has
//! failed is a fact; a suspicion is another site's opinion about it. All algorithms send a heartbeat every T
//! ([`pulse`]). They differ in how long silence may last before they suspect the sender.
//!
//! | algorithm | suspects a site | assumption |
//! |---|---|---|
//! | [`heartbeat`] | after T + D of silence, with a fixed D | D is at least the largest delay |
//! | [`adaptive`] | at the expected arrival plus a margin that follows the prediction errors | delays change slowly |
//! | [`phi_accrual`] | when the tail of a normal distribution falls below 10^-Phi | gaps are normally distributed |
//!
//! [`oracle`] is not an algorithm. It stands in for any detector of a class when the checker examines the
//! layer above.

pub mod adaptive;
pub mod heartbeat;
pub mod mutants;
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

/// A report of a detector to the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The site has been silent for too long.
    Suspected(NodeId),
    /// The site is no longer suspected: a heartbeat arrived, or the detector itself restarted.
    Trusted(NodeId),
}

/// A failure-detection algorithm. It takes no commands: from its start on it watches the other sites.
pub trait Detector: Protocol<Command = Never, Event = Event> {
    /// The card of the algorithm.
    const CARD: Card;

    /// Creates the site `me` of a group.
    fn new(me: NodeId, group: &Group) -> Self;

    /// Returns the kind of a message. Meters count messages by kind.
    fn kind(message: &Self::Message) -> &'static str;

    /// Returns the sites that this site suspects.
    fn suspects(&self) -> &NodeSet;
}

/// Expands to an array of `$entry!(P)`, for each algorithm P, in the order of the module's table.
#[macro_export]
macro_rules! each_detector {
    ($entry:ident) => {
        [
            $entry!($crate::detector::Heartbeat),
            $entry!($crate::detector::Adaptive),
            $entry!($crate::detector::PhiAccrual),
        ]
    };
}

pub use crate::each_detector as each;

macro_rules! card {
    ($algorithm:ty) => {
        <$algorithm as Detector>::CARD
    };
}

/// The cards of all algorithms, in the order of the module's table.
pub const CARDS: &[Card] = &each_detector!(card);

/// The parameters of a group. All sites know them from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Group {
    /// N, the number of sites.
    pub nodes: u32,
    /// T, the time between two heartbeats of a site.
    pub period: Duration,
    /// D, the silence that is allowed beyond T. [`heartbeat`] always uses it. The other detectors use it
    /// until they have enough samples; [`adaptive`] also keeps its margin at or above D/8.
    pub margin: Duration,
    /// Phi, used by [`phi_accrual`]: a suspicion is wrong once in 10^Phi times, if the model holds.
    pub threshold: u32,
    /// The number of latest arrivals that a detector keeps.
    pub window: u32,
}

impl Group {
    /// Creates a group with a heartbeat every `period` and an allowed silence of `period + margin`. The
    /// threshold is 8, and the window holds the latest 100 arrivals.
    pub const fn new(nodes: u32, period: Duration, margin: Duration) -> Self {
        Self { nodes, period, margin, threshold: 8, window: 100 }
    }
}
