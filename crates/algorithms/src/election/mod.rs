//! Election: one of the sites that are up becomes the leader, and all of them know which one.
//!
//! Every algorithm takes the same [`Command`]s and emits the same [`Event`]s. The highest [`Candidate`] wins.
//! Candidates are compared by rank and then by id. The rank may be any ordered value, for example free memory
//! or the inverse of the load.
//!
//! | algorithm | idea | messages | turnaround |
//! |---|---|---|---|
//! | [`chang_roberts`] | the highest candidate travels round the ring | 2N..3N-1 with one starter, 3N-1..N(N+1)/2+N with all | up to 3N-1 hops |
//! | [`hirschberg_sinclair`] | candidates probe ever larger neighbourhoods, in both directions | O(N log N) | O(N) hops |
//! | [`bully`] | a site sends ELECTION to all higher sites; their silence means that they have crashed | N-1..N^2-N-1 | T..2T and a timeout |
//! | [`detector_based`] | the highest site that is not suspected leads | 0, and heartbeats all the time | that of the detector |
//!
//! The first three algorithms do not detect the crash of a leader themselves: they start on
//! [`Command::Elect`]. The rings must also learn which sites to skip ([`Command::Suspect`]). Bully finds this
//! out itself. A site that recovers from a crash begins an election without a command.

pub mod bully;
#[cfg(test)]
pub(crate) mod by_hand;
pub mod chang_roberts;
pub mod detector_based;
pub mod hirschberg_sinclair;
pub mod mutants;
pub mod seat;
pub mod spec;
pub mod view;

use alloc::vec::Vec;
use core::time::Duration;

use conclave_kernel::{Card, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use crate::detector;

pub use bully::Bully;
pub use chang_roberts::ChangRoberts;
pub use detector_based::DetectorBased;
pub use hirschberg_sinclair::HirschbergSinclair;
pub use seat::Seat;
pub use view::View;

/// A command of the layer above to a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Hold an election: the system boots, or the leader seems to have crashed.
    Elect,
    /// Stop leading. The site's rank falls to 0, below all sites that have not resigned, and an election
    /// begins.
    Resign,
    /// A detector reports that this site has crashed.
    Suspect(NodeId),
    /// A detector reports that this site is up again.
    Trust(NodeId),
}

/// An event that a site reports to the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The site has decided which site leads.
    Elected {
        /// The leader.
        leader: NodeId,
    },
    /// The leader is no longer known: an election has begun.
    Vacant,
}

/// A candidate for leadership. The highest candidate wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Candidate {
    /// The rank, which is compared first. A site that has resigned has rank 0.
    pub rank: u64,
    /// The id, which decides between equal ranks.
    pub site: NodeId,
}

/// An election algorithm.
pub trait Election: Protocol<Command = Command, Event = Event> {
    /// The card of the algorithm.
    const CARD: Card;

    /// Creates the site `me` of a group.
    fn new(me: NodeId, group: &Group) -> Self;

    /// Returns the kind of a message, spelled as in the paper. Meters count messages by kind.
    fn kind(message: &Self::Message) -> &'static str;

    /// Returns whether such messages are sent all the time, also without an election.
    fn is_background(message: &Self::Message) -> bool {
        let _ = message;
        false
    }
}

/// Expands to an array of `$entry!(P)`, for each algorithm P, in the order of the module's table.
#[macro_export]
macro_rules! each_election {
    ($entry:ident) => {
        [
            $entry!($crate::election::ChangRoberts),
            $entry!($crate::election::HirschbergSinclair),
            $entry!($crate::election::Bully),
            $entry!($crate::election::DetectorBased<$crate::detector::Heartbeat>),
        ]
    };
}

pub use crate::each_election as each;

macro_rules! card {
    ($algorithm:ty) => {
        <$algorithm as Election>::CARD
    };
}

/// The cards of all algorithms, in the order of the module's table.
pub const CARDS: &[Card] = &each_election!(card);

/// The parameters of a group. All sites know them from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// N, the number of sites.
    pub nodes: u32,
    /// The rank of each site. If the list is empty, all ranks are 1 and the largest id wins.
    pub ranks: Vec<u64>,
    /// The longest time that a message takes. Bully computes its timeouts from it.
    pub transmission: Duration,
    /// The longest time that a site takes to reply.
    pub processing: Duration,
    /// The parameters of the detector below, for an algorithm that has one.
    pub detector: detector::Group,
}

impl Group {
    /// Creates a group in which the largest id wins. Messages take at most `transmission`, sites reply at
    /// once, and the time between heartbeats is ten times `transmission`.
    pub const fn new(nodes: u32, transmission: Duration) -> Self {
        let period = transmission.saturating_mul(10);
        Self {
            nodes,
            ranks: Vec::new(),
            transmission,
            processing: Duration::ZERO,
            detector: detector::Group::new(nodes, period, transmission),
        }
    }

    /// Returns the site as a candidate, with its initial rank.
    pub fn candidate(&self, site: NodeId) -> Candidate {
        Candidate { rank: self.ranks.get(site.index()).copied().unwrap_or(1), site }
    }

    /// Returns all sites as candidates.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate> + '_ {
        (0..self.nodes).map(|site| self.candidate(NodeId(site)))
    }
}
