//! Election: one of the living leads, and everybody knows who.
//!
//! Every algorithm takes the same [`Command`]s and emits the same [`Event`]s. Who wins is the highest
//! [`Candidate`]: by rank, which may be memory, load turned round, any ordered value; then by id.
//!
//! | algorithm | idea | messages | turnaround |
//! |---|---|---|---|
//! | [`chang_roberts`] | the highest candidate goes round the ring | 2N..3N-1 with one starter, 3N-1..N(N+1)/2+N with all | up to 3N-1 hops |
//! | [`hirschberg_sinclair`] | ask ever wider neighbourhoods, both ways | O(N log N) | O(N) hops |
//! | [`bully`] | ask all that are higher; silence means that they are dead | N-1..N^2-N-1 | T..2T and a timeout |
//! | [`detector_based`] | the highest that nobody suspects | 0, and heartbeats all the time | the detector's |
//!
//! Who notices that the leader is gone? Not these algorithms: somebody commands [`Command::Elect`]. Rings
//! also need to know whom to skip ([`Command::Suspect`]); bully finds out by itself. A site that comes back
//! after a crash begins an election on its own.

pub mod bully;
#[cfg(test)]
pub(crate) mod by_hand;
pub mod chang_roberts;
pub mod detector_based;
pub mod hirschberg_sinclair;
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

/// What the layer above asks of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Hold an election: the system boots, or somebody noticed that the leader is gone.
    Elect,
    /// Do not lead any more: the site's rank falls to 0, below everybody who stands, and an election is held.
    Resign,
    /// That site has crashed, says a detector.
    Suspect(NodeId),
    /// That site is up again, says a detector.
    Trust(NodeId),
}

/// What a site tells the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// That site leads.
    Elected {
        /// Who.
        leader: NodeId,
    },
    /// Who leads is no longer known: an election has begun.
    Vacant,
}

/// Who stands for election: the highest wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Candidate {
    /// What counts first. 0 is the rank of those who have resigned.
    pub rank: u64,
    /// What counts if ranks are equal.
    pub site: NodeId,
}

/// An algorithm of the problem.
pub trait Election: Protocol<Command = Command, Event = Event> {
    /// What it says of itself.
    const CARD: Card;

    /// A site of a group.
    fn new(me: NodeId, group: &Group) -> Self;

    /// The kind of a message, as the paper spells it, for those who count.
    fn kind(message: &Self::Message) -> &'static str;

    /// Whether a message is sent all the time, election or not.
    fn is_background(message: &Self::Message) -> bool {
        let _ = message;
        false
    }
}

/// Something to be done with an algorithm whose name is known only at run time.
pub trait Visit {
    /// What comes of it.
    type Out;

    /// Does it.
    fn visit<P: Election>(self) -> Self::Out;
}

/// Lists the algorithms once: their cards, and the way from a name to a type.
macro_rules! algorithms {
    ($($algorithm:ty),+ $(,)?) => {
        /// The cards of all algorithms, in the order in which the problem is told.
        pub const CARDS: &[Card] = &[$(<$algorithm as Election>::CARD),+];

        /// Does something with the algorithm of that name; `None` if nobody has it.
        pub fn visit<V: Visit>(name: &str, visitor: V) -> Option<V::Out> {
            $(if name == <$algorithm as Election>::CARD.name {
                return Some(visitor.visit::<$algorithm>());
            })+
            None
        }
    };
}

algorithms![ChangRoberts, HirschbergSinclair, Bully, DetectorBased<detector::Heartbeat>];

/// What the sites of a group know of each other from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// N.
    pub nodes: u32,
    /// The rank of each site; empty if all have rank 1, so that the largest id wins.
    pub ranks: Vec<u64>,
    /// The longest that a message takes: what bully's timeouts are made of.
    pub transmission: Duration,
    /// The longest that a site takes to answer.
    pub processing: Duration,
    /// What the detector underneath is given, where there is one.
    pub detector: detector::Group,
}

impl Group {
    /// A group in which the largest id wins, messages take at most `transmission`, answers come at once, and
    /// heartbeats are sent every ten of those.
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

    /// The site as a candidate.
    pub fn candidate(&self, site: NodeId) -> Candidate {
        Candidate { rank: self.ranks.get(site.index()).copied().unwrap_or(1), site }
    }

    /// All sites as candidates.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate> + '_ {
        (0..self.nodes).map(|site| self.candidate(NodeId(site)))
    }
}
