//! What is recorded: a part a site, and the parts together.

use alloc::vec::Vec;
use core::time::Duration;

use conclave_kernel::{NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::SnapshotId;

/// One site's part of a snapshot: its state, and what was on its way to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Part<A: Protocol> {
    /// Which snapshot.
    pub id: SnapshotId,
    /// Whose part.
    pub site: NodeId,
    /// The application's state at that site.
    pub state: A,
    /// What the application waits to be reminded of.
    pub reminders: Vec<Reminder<A>>,
    /// The incoming channels that are not empty, in order of senders.
    pub channels: Vec<Channel<A>>,
}

/// Something that a site waits to be reminded of, as it was asked for: how much of the time has passed is not
/// known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Reminder<A: Protocol> {
    /// Of what.
    pub timer: A::Timer,
    /// At the earliest after so long.
    pub min: Duration,
    /// At the latest after so long.
    pub max: Duration,
}

/// What was on its way from one site to another.
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
    /// Which snapshot.
    pub id: SnapshotId,
    /// In order of sites, one each.
    pub parts: Vec<Part<A>>,
}

impl<A: Protocol> Picture<A> {
    /// The sites' states, in order.
    pub fn states(&self) -> impl Iterator<Item = &A> {
        self.parts.iter().map(|part| &part.state)
    }

    /// Every message in transit, with its sender and receiver.
    pub fn in_transit(&self) -> impl Iterator<Item = (NodeId, NodeId, &A::Message)> {
        self.parts.iter().flat_map(|part| {
            part.channels.iter().flat_map(move |channel| {
                channel.messages.iter().map(move |message| (channel.from, part.site, message))
            })
        })
    }
}
