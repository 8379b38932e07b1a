//! Global state: a picture of all sites and channels that could have been taken at one instant.
//!
//! An algorithm wraps *any* application: it runs the application's steps unchanged and, when asked, records the
//! site's state and what is on its way to it. The parts are sent to everybody, so that every site ends up
//! with the same [`Picture`]. What a picture is good for stands beside the algorithms.
//!
//! | algorithm | idea | messages | channels |
//! |---|---|---|---|
//! | [`chandy_lamport`] | a marker on every channel divides before from after | 2N(N-1) | FIFO |
//! | [`lai_yang`] | every message has a colour; counts say when the white ones are in | 2N(N-1) | any order |
//!
//! | file | what it holds |
//! |---|---|
//! | [`picture`] | [`Part`] and [`Picture`]: what is recorded |
//! | `album`, `hosted` | what both algorithms keep: recordings, parts, what is over; the application inside |
//! | [`spec`] | the properties, and the judge |
//! | [`cut`] | any cut of any recorded run: consistent, transitless, and why not |
//! | [`restart`] | checkpoint and restart: a system that goes on from a picture |
//! | [`bank`] | an application: transfers, and the sum that is conserved |
//! | [`work`] | an application: work that spreads and dies out; termination is a stable property |
//! | [`heap`] | an application: objects that refer to each other across sites; garbage is one too |

mod album;
pub mod bank;
pub mod chandy_lamport;
pub mod cut;
pub mod heap;
mod hosted;
pub mod lai_yang;
pub mod picture;
pub mod restart;
pub mod spec;
#[cfg(test)]
mod tests;
pub mod work;

use alloc::collections::BTreeSet;
use alloc::string::String;
use core::fmt;

use conclave_kernel::{Card, NodeId, Protocol};
use serde::{Deserialize, Serialize};

pub use chandy_lamport::ChandyLamport;
pub use lai_yang::LaiYang;
pub use picture::{Channel, Part, Picture, Reminder};

/// Which snapshot. Several sites may start one snapshot; different snapshots have different numbers, and may
/// be under way at the same time. Numbers grow: one that lies [`MOST_REMEMBERED`] finished ones back is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SnapshotId(pub u32);

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// At most so many snapshots that a site itself started may be unfinished; it refuses to start more. At most
/// N times as many are ever under way.
pub const MOST_OPEN: usize = 16;

/// So many finished snapshots are remembered by number; older ones are known to be over.
pub const MOST_REMEMBERED: usize = 64;

/// At most so many messages are recorded on a site's channels for one snapshot; one that needs more is given
/// up.
pub const MOST_RECORDED: usize = 1 << 20;

/// What the layer above asks of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Command<A: Protocol> {
    /// Start this snapshot, or join it if it is under way.
    Take(SnapshotId),
    /// For the application.
    App(A::Command),
}

/// What a site tells the layer above.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Event<A: Protocol> {
    /// The site's state is recorded, as it is before whatever else this step does.
    Recorded(SnapshotId),
    /// All parts are here.
    Complete(Picture<A>),
    /// The snapshot is not taken here.
    Refused {
        /// Which.
        id: SnapshotId,
        /// Why not.
        why: Refusal,
    },
    /// Of the application.
    App(A::Event),
}

/// Why a snapshot is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// It is over, or so old that nobody remembers.
    Over,
    /// The site has [`MOST_OPEN`] of its own under way.
    TooMany,
    /// More than [`MOST_RECORDED`] messages were on their way here: given up.
    TooLarge,
}

/// An algorithm of the problem, around an application.
pub trait Snapshot<A: Protocol>:
    Protocol<Command = Command<A>, Event = Event<A>, Timer = <A as Protocol>::Timer>
{
    /// What it says of itself.
    const CARD: Card;

    /// A site of a group of that size, around the application's site.
    fn new(me: NodeId, nodes: u32, app: A) -> Self;

    /// The application's site.
    fn app(&self) -> &A;

    /// A message's kind, for those who count.
    fn kind(message: &Self::Message) -> &'static str;

    /// What the application said, if the message is one of its own.
    fn carried(message: &Self::Message) -> Option<&A::Message>;
}

/// Something to be done with an algorithm whose name is known only at run time.
pub trait Visit<A: Protocol> {
    /// What comes of it.
    type Out;

    /// Does it.
    fn visit<P: Snapshot<A>>(self) -> Self::Out;
}

/// The cards of all algorithms.
pub const CARDS: &[Card] = &[chandy_lamport::CARD, lai_yang::CARD];

/// Does something with the algorithm of that name; `None` if nobody has it.
pub fn visit<A: Protocol, V: Visit<A>>(name: &str, visitor: V) -> Option<V::Out> {
    match name {
        _ if name == chandy_lamport::CARD.name => Some(visitor.visit::<ChandyLamport<A>>()),
        _ if name == lai_yang::CARD.name => Some(visitor.visit::<LaiYang<A>>()),
        _ => None,
    }
}

/// What a picture of an application says about the whole.
pub trait Application: Protocol {
    /// A sum that no step changes, if there is one.
    fn conserved(picture: &Picture<Self>) -> Option<u64> {
        let _ = picture;
        None
    }

    /// Facts that stay true once they are: what held when a snapshot was started is in it, and what is in it
    /// holds ever after. \[CL85 §4\]
    fn stable_facts(picture: &Picture<Self>) -> BTreeSet<u64> {
        let _ = picture;
        BTreeSet::new()
    }

    /// Such a fact in words.
    fn fact(number: u64) -> String {
        let _ = number;
        String::new()
    }
}
