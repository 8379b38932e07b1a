//! Mutual exclusion: at most one site is in the critical section, and every site that requests it gets its
//! turn.
//!
//! All algorithms take the same [`Command`]s and emit the same [`Event`]s. The specification, the metrics and
//! user code therefore work with every algorithm.
//!
//! In the table, N is the number of sites, K the size of a quorum and T the time that a message takes.
//!
//! | algorithm | idea | messages per entry | sync delay |
//! |---|---|---|---|
//! | [`central`] | one site, the coordinator, keeps the queue | 3, 0 for the coordinator | 2T |
//! | [`token_ring`] | a token circulates all the time | 1 saturated, else unbounded | T..(N-1)T |
//! | [`fair_ring`] | a circulating token finds the oldest request | N+1 saturated, < 2N | (N+1)T..(2N-1)T |
//! | [`lamport`] | every site keeps the same queue | 3(N-1), 2(N-1)..3(N-1) without needless replies | T |
//! | [`ricart_agrawala`] | request from all; the older request is served first | 2(N-1) | T |
//! | [`roucairol_carvalho`] | the same, but a permission lasts until requested back | 0..2(N-1) | 0 or T |
//! | [`maekawa`] | request permission from a quorum; any two quorums intersect | 3(K-1)..7(K-1) | 2T |
//! | [`suzuki_kasami`] | one token; request it from all sites | 0 or N | 0 or T |
//! | [`raymond`] | one token in a tree of sites | about 4 saturated, at most 4 log2 N | T..2 log2 N T |
//! | [`naimi_trehel`] | one token; guess the last requester | O(log N) on average, at most N | 0 or T |
//!
//! Two algorithms use a failure detector and survive crashes: [`central::elected`], which elects a new
//! coordinator, and [`ricart_agrawala::crash_tolerant`].

#[cfg(test)]
pub(crate) mod by_hand;
pub mod central;
pub mod door;
pub mod fair_ring;
pub mod lamport;
pub mod layered;
pub mod maekawa;
pub mod mutants;
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

use crate::detector;

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

/// A command from the layer above to a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Requests the critical section. The layer above may send it again before the grant: the site queues its
    /// requests and serves them one at a time.
    Acquire,
    /// Leaves the critical section.
    Release,
    /// Reports that the site received an application message. The number is the sender's logical clock when
    /// the message was sent. An algorithm that orders requests by happened-before needs it for causality
    /// outside of its own messages.
    Witness(u64),
}

/// An event that a site reports to the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The site is in the critical section.
    Granted {
        /// The fence of this grant, larger than that of every earlier grant at any site. A store that
        /// remembers the largest fence it has seen can reject a holder that is late.
        fence: Fence,
    },
    /// The site has left the critical section.
    Released,
    /// The site rejected the command.
    Refused(Refusal),
}

/// The reason for which a site rejects a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// A release by a site that is not in the critical section.
    NotInside,
    /// A request while [`door::MOST_WAITING`] requests of the same site are already waiting.
    TooManyWaiting,
}

/// A number that grows with every grant, across all sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl Fence {
    /// Returns the next fence.
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

/// A mutual-exclusion algorithm.
pub trait Mutex: Protocol<Command = Command, Event = Event> {
    /// The algorithm's card: name, needs, promises and costs.
    const CARD: Card;

    /// Whether a site requests permission from a quorum instead of all sites. If so, [`Group::quorums`] is
    /// used.
    const USES_QUORUMS: bool = false;

    /// Creates one site of a group.
    fn new(me: NodeId, group: &Group) -> Self;

    /// Classifies a message for the metrics.
    fn bill(message: &Self::Message, from: NodeId, to: NodeId) -> Bill;

    /// Returns the site's logical clock, which an application message would carry. 0 if the algorithm has no
    /// clock.
    fn clock(&self) -> u64 {
        0
    }
}

/// Expands to an array of `$entry!(P)`, for each algorithm P without a failure detector. The algorithms are
/// in the order of the module's table.
#[macro_export]
macro_rules! each_mutex {
    ($entry:ident) => {
        [
            $entry!($crate::mutex::Central),
            $entry!($crate::mutex::TokenRing),
            $entry!($crate::mutex::FairRing),
            $entry!($crate::mutex::Lamport),
            $entry!($crate::mutex::LamportOmission),
            $entry!($crate::mutex::RicartAgrawala),
            $entry!($crate::mutex::RoucairolCarvalho),
            $entry!($crate::mutex::Maekawa),
            $entry!($crate::mutex::SuzukiKasami),
            $entry!($crate::mutex::Raymond),
            $entry!($crate::mutex::NaimiTrehel),
        ]
    };
}

/// Expands to an array of `$entry!(P)`, for each algorithm P that uses a failure detector and survives
/// crashes.
#[macro_export]
macro_rules! each_layered_mutex {
    ($entry:ident) => {
        [
            $entry!($crate::mutex::CentralBully),
            $entry!($crate::mutex::CentralRing),
            $entry!($crate::mutex::RicartAgrawalaFt<$crate::detector::Heartbeat>),
        ]
    };
}

pub use crate::{each_layered_mutex as each_layered, each_mutex as each};

macro_rules! card {
    ($algorithm:ty) => {
        <$algorithm as Mutex>::CARD
    };
}

/// The cards of all algorithms that use no failure detector, in the order of the module's table.
pub const CARDS: &[Card] = &each_mutex!(card);

/// The cards of the algorithms that use a failure detector and survive crashes. Their heartbeats never end,
/// so they are not compared with the others.
pub const LAYERED: &[Card] = &each_layered_mutex!(card);

/// The longest time that a message may take under the layered algorithms. Their timeouts are derived from it.
pub const LONGEST_DELAY: Duration = Duration::from_millis(20);

/// Returns the configuration of the failure detector under a layered algorithm. Its heartbeat period is
/// [`LONGEST_DELAY`].
const fn watching(nodes: u32) -> detector::Group {
    detector::Group::new(nodes, LONGEST_DELAY, LONGEST_DELAY)
}

/// The configuration that all sites of a group know from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// N, the number of sites.
    pub nodes: u32,
    /// The quorum of each site: the sites from which it requests permission. Empty for algorithms without
    /// quorums.
    pub quorums: Vec<NodeSet>,
}

impl Group {
    /// Creates a group of that size, without quorums.
    pub const fn new(nodes: u32) -> Self {
        Self { nodes, quorums: Vec::new() }
    }
}

/// The classification of a message for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bill {
    /// The message's kind, as the paper spells it, for example `REQUEST`.
    pub kind: &'static str,
    /// The request that the message serves: the site, and a number that grows with each request of that site.
    /// `None` for a message that serves no particular request, such as a circulating token.
    pub request: Option<(NodeId, u64)>,
    /// Whether the message serves to enter or to leave.
    pub phase: Phase,
}

impl Bill {
    /// Classifies a message that serves to enter.
    pub const fn enter(kind: &'static str, site: NodeId, number: u64) -> Self {
        Self { kind, request: Some((site, number)), phase: Phase::Enter }
    }

    /// Classifies a message that serves to leave.
    pub const fn exit(kind: &'static str, site: NodeId, number: u64) -> Self {
        Self { kind, request: Some((site, number)), phase: Phase::Exit }
    }

    /// Whether the message serves the sender's own request to enter.
    pub fn is_own_wish(&self, sender: NodeId) -> bool {
        self.phase == Phase::Enter && self.request.is_some_and(|(site, _)| site == sender)
    }

    /// Classifies a message that serves no particular request.
    pub const fn shared(kind: &'static str) -> Self {
        Self { kind, request: None, phase: Phase::Enter }
    }
}

/// The purpose of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The message serves to enter.
    Enter,
    /// The message serves to leave.
    Exit,
}
