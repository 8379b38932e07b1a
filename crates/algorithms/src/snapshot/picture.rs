//! The recorded data: one part per site, and all parts together.

use alloc::vec::Vec;
use core::time::Duration;

use conclave_kernel::{NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::SnapshotId;

/// One site's part of a snapshot: its state, and the messages in transit to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Part<A: Protocol> {
    /// The number of the snapshot.
    pub id: SnapshotId,
    /// The site.
    pub site: NodeId,
    /// The application's state at the site.
    pub state: A,
    /// The application's armed timers.
    pub reminders: Vec<Reminder<A>>,
    /// The incoming channels that are not empty, in order of senders.
    pub channels: Vec<Channel<A>>,
}

/// An armed timer of the application. The durations count from when it was armed; the time that has passed
/// since is not recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Reminder<A: Protocol> {
    /// The timer.
    pub timer: A::Timer,
    /// The shortest time until it fires.
    pub min: Duration,
    /// The longest time until it fires.
    pub max: Duration,
}

/// The messages in transit from one site to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Channel<A: Protocol> {
    /// The sender.
    pub from: NodeId,
    /// The messages, in the order in which they were received.
    pub messages: Vec<A::Message>,
}

/// The parts of all sites: a global state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Picture<A: Protocol> {
    /// The number of the snapshot.
    pub id: SnapshotId,
    /// One part per site, in order of sites.
    pub parts: Vec<Part<A>>,
}

impl<A: Protocol> Picture<A> {
    /// Returns the states of the sites, in order.
    pub fn states(&self) -> impl Iterator<Item = &A> {
        self.parts.iter().map(|part| &part.state)
    }

    /// Returns every message in transit, with its sender and receiver.
    pub fn in_transit(&self) -> impl Iterator<Item = (NodeId, NodeId, &A::Message)> {
        self.parts.iter().flat_map(|part| {
            part.channels.iter().flat_map(move |channel| {
                channel.messages.iter().map(move |message| (channel.from, part.site, message))
            })
        })
    }
}
