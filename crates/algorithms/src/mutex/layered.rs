//! The part of a layered algorithm above its failure detector.
//!
//! A layered algorithm is a *core* over a detector. The core receives the output of the detector as commands. So
//! the checker can run the core over the [`Oracle`](crate::detector::Oracle), which behaves like any detector of
//! a class.

use conclave_kernel::{Card, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Event, Group};
use crate::{detector, mutex};

/// A command to a core, from the layer above or from the detector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A command that every mutual-exclusion algorithm takes.
    Mutex(mutex::Command),
    /// An event of the failure detector.
    Detector(detector::Event),
}

/// A mutual-exclusion algorithm without its failure detector.
pub trait Core: Protocol<Command = Command, Event = Event> {
    /// The card of the algorithm with its detector.
    const CARD: Card;

    /// Whether the core itself needs bounded delays, as an election by timeouts does.
    const NEEDS_SYNCHRONY: bool;

    /// Creates one site of a group. It suspects no site.
    fn new(me: NodeId, group: &Group) -> Self;

    /// Returns the kind of a message as the paper spells it.
    fn kind(message: &Self::Message) -> &'static str;
}

/// Expands to an array of `$entry!(P)`, for each core P, in the order of the layered algorithms.
#[macro_export]
macro_rules! each_mutex_core {
    ($entry:ident) => {
        [
            $entry!($crate::mutex::central::elected::ElectedCore<$crate::election::Bully>),
            $entry!($crate::mutex::central::elected::ElectedCore<$crate::election::ChangRoberts>),
            $entry!($crate::mutex::CrashTolerant),
        ]
    };
}

pub use crate::each_mutex_core as each_core;
