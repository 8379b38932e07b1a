//! Global state: a picture of all sites and channels that could have been taken at one instant.
//!
//! An algorithm wraps *any* application. It runs the application's steps unchanged. During a snapshot it
//! records the site's state and the messages in transit to the site. Each site sends its part to all others,
//! so that every site ends up with the same [`Picture`]. The second table also lists uses of a picture.
//!
//! | algorithm | idea | messages | channels |
//! |---|---|---|---|
//! | [`chandy_lamport`] | a marker on every channel separates the messages before from those after | 2N(N-1) | FIFO |
//! | [`lai_yang`] | every message has a colour; counts show when all white ones have arrived | 2N(N-1) | any order |
//!
//! | file | contents |
//! |---|---|
//! | [`picture`] | [`Part`] and [`Picture`]: the recorded data |
//! | `album`, `hosted` | the state that both algorithms share: recordings, parts, finished snapshots; the application inside |
//! | [`spec`] | the properties, and the judge |
//! | [`cut`] | any cut of any recorded run: whether it is consistent and transitless, and why not |
//! | [`restart`] | checkpoint and restart: a system that continues from a picture |
//! | [`bank`] | an application: transfers, and the sum that is conserved |
//! | [`work`] | an application: work that spreads and ends; termination is a stable property |
//! | [`heap`] | an application: objects that refer to each other across sites; being garbage is a stable property |

mod album;
pub mod bank;
pub mod chandy_lamport;
pub mod cut;
pub mod heap;
mod hosted;
pub mod lai_yang;
pub mod mutants;
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

/// The number of a snapshot. Several sites may start the same snapshot. Snapshots with different numbers may
/// be under way at the same time. New snapshots need growing numbers: a number below the last
/// [`MOST_REMEMBERED`] finished ones counts as over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SnapshotId(pub u32);

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The largest number of unfinished snapshots that a site has started itself. The site refuses to start more,
/// so at most N times as many are under way in the group.
pub const MOST_OPEN: usize = 16;

/// The number of finished snapshots that a site remembers. All smaller numbers count as over.
pub const MOST_REMEMBERED: usize = 64;

/// The largest number of messages that a site records for one snapshot. If there are more, the site gives the
/// snapshot up.
pub const MOST_RECORDED: usize = 1 << 20;

/// A command of the layer above to a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Command<A: Protocol> {
    /// Start this snapshot, or join it if it is under way.
    Take(SnapshotId),
    /// A command to the application.
    App(A::Command),
}

/// An event that a site reports to the layer above.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Event<A: Protocol> {
    /// The site's state has been recorded. It is the state before all other effects of this step.
    Recorded(SnapshotId),
    /// All parts have arrived.
    Complete(Picture<A>),
    /// The site does not take the snapshot.
    Refused {
        /// The number of the snapshot.
        id: SnapshotId,
        /// The reason.
        why: Refusal,
    },
    /// An event of the application.
    App(A::Event),
}

/// The reason why a site does not take a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The snapshot is over, or its number is too small to be remembered.
    Over,
    /// The site has [`MOST_OPEN`] snapshots of its own under way.
    TooMany,
    /// More than [`MOST_RECORDED`] messages were in transit to the site, so it has given the snapshot up.
    TooLarge,
}

/// A snapshot algorithm around an application.
pub trait Snapshot<A: Protocol>:
    Protocol<Command = Command<A>, Event = Event<A>, Timer = <A as Protocol>::Timer>
{
    /// The card of the algorithm.
    const CARD: Card;

    /// Creates the site `me` of a group of `nodes` sites, around the site `app` of the application.
    fn new(me: NodeId, nodes: u32, app: A) -> Self;

    /// Returns the application's site.
    fn app(&self) -> &A;

    /// Returns the kind of a message. Meters count messages by kind.
    fn kind(message: &Self::Message) -> &'static str;

    /// Returns the application's message inside a message, if there is one.
    fn carried(message: &Self::Message) -> Option<&A::Message>;
}

/// Expands to an array of `$entry!(P)`, for each algorithm P around the application `$app`.
#[macro_export]
macro_rules! each_snapshot {
    ($entry:ident, $app:ty) => {
        [$entry!($crate::snapshot::ChandyLamport<$app>), $entry!($crate::snapshot::LaiYang<$app>)]
    };
}

pub use crate::each_snapshot as each;

/// The cards of all algorithms.
pub const CARDS: &[Card] = &[chandy_lamport::CARD, lai_yang::CARD];

/// An application with properties that can be read from a picture.
pub trait Application: Protocol {
    /// Returns a sum that no step of the application changes; `None` if there is no such sum.
    fn conserved(picture: &Picture<Self>) -> Option<u64> {
        let _ = picture;
        None
    }

    /// Returns the stable facts of a picture: facts that stay true once they are true. A fact that was true
    /// when the snapshot started is in the picture. A fact in the picture is true from then on. \[CL85 §4\]
    fn stable_facts(picture: &Picture<Self>) -> BTreeSet<u64> {
        let _ = picture;
        BTreeSet::new()
    }

    /// Returns a stable fact in words.
    fn fact(number: u64) -> String {
        let _ = number;
        String::new()
    }
}
