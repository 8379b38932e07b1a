//! Mutual exclusion: at most one site in the critical section, everybody in turn.
//!
//! Every tenant takes the same [`Command`]s and emits the same [`Event`]s, so that specification, metrics and
//! user code talk to the room, never to the tenant.
//!
//! | tenant | idea | messages per entry | sync delay |
//! |---|---|---|---|
//! | [`ricart_agrawala`] | ask everybody; they defer while they come first | 2(N-1) | T |

pub mod door;
pub mod ricart_agrawala;
pub mod spec;

use alloc::vec::Vec;
use core::fmt;

use conclave_kernel::{Card, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

pub use door::Door;
pub use ricart_agrawala::RicartAgrawala;

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

/// A tenant of the room.
pub trait Mutex: Protocol<Command = Command, Event = Event> {
    /// What it says of itself.
    const CARD: Card;

    /// A site of a group.
    fn new(me: NodeId, group: &Group) -> Self;

    /// What a message is, for those who count.
    fn bill(message: &Self::Message, from: NodeId, to: NodeId) -> Bill;

    /// What the site's logical clock shows: what an application message would carry. 0 if it has none.
    fn clock(&self) -> u64 {
        0
    }
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
