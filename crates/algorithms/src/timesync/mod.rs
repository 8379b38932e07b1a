//! Physical time: what time is it, and how sure are we?
//!
//! Every algorithm corrects a clock that is wrong and drifts, and answers one question, [`Command::Ask`], with a
//! [`Reading`]: what the corrected clock shows, and the interval in which the reference's time lies. The
//! corrected clock is slewed, never set back.
//!
//! | algorithm | idea | reference | bound |
//! |---|---|---|---|
//! | [`cristian`] | ask a server, take the middle of what is possible | site 0 | (RTT - min1 - min2)/2, growing by rho |
//! | [`ntp`] | the same down a tree, through a filter of eight samples | site 0 | the root distance |
//! | [`marzullo`] | ask several servers, believe what all but f agree upon | most servers | the width of the agreement |
//! | [`berkeley`] | an elected master averages the clocks that agree and sends corrections | the master's average | RTT/2 - min, growing by 2 rho |
//! | [`dtp`] | neighbours exchange counters on the wire, the largest wins | the fastest oscillator | 4T a hop |
//!
//! The first three are *external*: the interval holds the true time. The last two are *internal*: the clocks of a
//! group stay together, wherever the group goes; their intervals hold the group's time.
//!
//! What they share: [`interval`] (intervals that grow with drift), [`slew`] (the corrected clock), [`spec`] (what
//! a run is judged by). [`mutants`] holds two that are broken on purpose.

pub mod berkeley;
#[cfg(test)]
pub(crate) mod by_sim;
pub mod cristian;
pub mod dtp;
pub mod interval;
pub mod marzullo;
pub mod mutants;
pub mod ntp;
pub mod slew;
pub mod spec;

use core::time::Duration;

use conclave_kernel::{Card, Needs, NodeId, Protocol, Time};
use serde::{Deserialize, Serialize};

pub use berkeley::{Berkeley, BerkeleyRing};
pub use cristian::{Averaged, Cristian, Intersected, Minimum, Narrowest};
pub use dtp::Dtp;
pub use interval::{Estimate, Interval};
pub use marzullo::Marzullo;
pub use ntp::Ntp;
pub use slew::Slew;

/// What the layer above asks of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// What time is it? Answered at once, by [`Event::Told`].
    Ask,
}

/// What a site tells the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The time, as far as it is known.
    Told(Reading),
    /// The clock was compared with the reference.
    Synced {
        /// By how much the reference is ahead of the local clock.
        offset: i64,
        /// The most by which that is wrong, now.
        bound: u64,
    },
    /// A round ended without a usable answer. The bound goes on growing.
    Missed,
    /// The site now leads the group.
    Leads {
        /// Its term.
        term: u64,
    },
    /// The reference is further away than any clock goes wrong by itself: it was not followed.
    Panicked {
        /// By how much it is ahead of the local clock.
        offset: i64,
    },
}

/// The answer to "what time is it?".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reading {
    /// What the corrected clock shows, in nanoseconds.
    pub clock: i64,
    /// Where the reference's time lies; `None` as long as nothing is known.
    pub interval: Option<Interval>,
    /// Which reference that is.
    pub epoch: Epoch,
}

impl Reading {
    /// The reading of a site that is the reference.
    pub const fn exact(clock: i64) -> Self {
        Self { clock, interval: Some(Interval::point(clock)), epoch: Epoch::START }
    }

    /// The most by which the clock differs from the reference.
    pub fn bound(&self) -> Option<u64> {
        self.interval.map(|interval| interval.farthest(self.clock))
    }
}

/// Which reference an interval speaks of. The true time is one; a group without one agrees anew in every round,
/// and its members learn of that one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// The master's term.
    pub term: u64,
    /// The master.
    pub master: NodeId,
    /// Its round.
    pub round: u64,
}

impl Epoch {
    /// Before any round, and where there is only one reference.
    pub const START: Self = Self { term: 0, master: NodeId(0), round: 0 };
}

/// An algorithm of the problem.
pub trait TimeSync: Protocol<Command = Command, Event = Event> {
    /// What it says of itself.
    const CARD: Card;

    /// A site of a group.
    fn new(me: NodeId, group: &Group) -> Self;

    /// What a message is, for those who count.
    fn kind(message: &Self::Message) -> &'static str;

    /// The answer to [`Command::Ask`] when the local clock shows `now`.
    fn read(&self, now: Time) -> Reading;
}

/// Something to be done with an algorithm whose name is known only at run time.
pub trait Visit {
    /// What comes of it.
    type Out;

    /// Does it.
    fn visit<P: TimeSync>(self) -> Self::Out;
}

/// Lists the algorithms once: their cards, and the way from a name to a type.
macro_rules! algorithms {
    ($($algorithm:ty),+ $(,)?) => {
        /// The cards of all algorithms, in the order in which the problem is told.
        pub const CARDS: &[Card] = &[$(<$algorithm as TimeSync>::CARD),+];

        /// Does something with the algorithm of that name; `None` if nobody has it.
        pub fn visit<V: Visit>(name: &str, visitor: V) -> Option<V::Out> {
            $(if name == <$algorithm as TimeSync>::CARD.name {
                return Some(visitor.visit::<$algorithm>());
            })+
            None
        }
    };
}

algorithms![
    Cristian<Narrowest>,
    Cristian<Averaged>,
    Cristian<Intersected>,
    Ntp,
    Marzullo,
    Berkeley,
    BerkeleyRing,
    Dtp,
];

/// What the sites of a group know of each other, and of their clocks, from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// N.
    pub nodes: u32,
    /// So many sites, the first, are time servers, where the algorithm asks several.
    pub servers: u32,
    /// At most so many of the servers lie.
    pub faulty: u32,
    /// The tree of NTP and of DTP: site i hangs on site (i-1)/fanout. 1 is a chain.
    pub fanout: u32,
    /// How long from one comparison to the next.
    pub period: Duration,
    /// How often a server is asked in one comparison.
    pub probes: u32,
    /// rho: the most by which a clock is too fast or too slow, in parts per million.
    pub drift_ppm: u32,
    /// The shortest a message can take.
    pub minimum: Minimum,
    /// A reading with a larger bound is not taken.
    pub wanted: Option<Duration>,
    /// Berkeley's gamma: clocks that agree differ by at most this.
    pub agreement: Duration,
    /// How fast a clock is corrected, in parts per million. NTP allows 500, chrony 83,333.
    pub slew_ppm: u32,
}

impl Group {
    /// A group of that size, with one server that is asked four times a second, and clocks of 100 ppm.
    pub const fn new(nodes: u32) -> Self {
        Self {
            nodes,
            servers: 1,
            faulty: 0,
            fanout: 2,
            period: Duration::from_secs(1),
            probes: 4,
            drift_ppm: 100,
            minimum: Minimum::NONE,
            wanted: None,
            agreement: Duration::from_millis(100),
            slew_ppm: 83_333,
        }
    }

    /// On whom a site hangs in the tree.
    pub fn parent(&self, site: NodeId) -> Option<NodeId> {
        Some(NodeId(site.0.checked_sub(1)? / self.fanout.max(1)))
    }

    /// How far down the tree a site is.
    pub fn depth(&self, site: NodeId) -> u32 {
        core::iter::successors(self.parent(site), |site| self.parent(*site)).count() as u32
    }

    /// The number of hops between two sites of the tree.
    pub fn hops(&self, one: NodeId, other: NodeId) -> u32 {
        let (mut one, mut other, mut hops) = (one, other, 0);
        while one != other {
            // A parent's id is smaller, so the larger of the two climbs.
            let climber = if one > other { &mut one } else { &mut other };
            let Some(parent) = self.parent(*climber) else { break };
            *climber = parent;
            hops += 1;
        }
        hops
    }

    /// D: the most hops between two sites of the tree.
    pub fn diameter(&self) -> u32 {
        let sites = || (0..self.nodes).map(NodeId);
        // The site that is farthest from any one site is an end of a longest path.
        let farthest = |from| sites().max_by_key(|to| self.hops(from, *to)).unwrap_or_default();
        let end = farthest(NodeId(0));
        self.hops(end, farthest(end))
    }
}

/// The needs of an algorithm that only listens to what arrives, and asks again if nothing does.
const ANY_NETWORK: Needs = Needs {
    fifo: false,
    no_loss: false,
    no_duplication: false,
    no_crash: false,
    synchrony: false,
    perfect_detector: false,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_and_its_diameter() {
        let group = |nodes, fanout| Group { fanout, ..Group::new(nodes) };
        assert_eq!(group(7, 1).diameter(), 6);
        assert_eq!(group(7, 2).diameter(), 4);
        assert_eq!(group(7, 6).diameter(), 2);
        assert_eq!(group(1, 2).diameter(), 0);
        assert_eq!(group(7, 2).hops(NodeId(3), NodeId(4)), 2);
        assert_eq!(group(7, 1).depth(NodeId(6)), 6);
        assert_eq!(group(7, 2).parent(NodeId(0)), None);
    }

    #[test]
    fn the_last_seat_of_a_flight_is_sold_before_it_is_full() {
        use crate::clock::lamport::LamportClock;

        // The lectures' example: X sells the last seat and tells Y, which logs that the flight is full. By their
        // clocks it was full first; by Lamport's it was not.
        let of_day = |hours: u64, minutes: u64, hundredths: u64| (hours * 60 + minutes) * 6_000 + hundredths;
        let (sold_at, full_at) = (of_day(6, 25, 4_255), of_day(6, 20, 2_021));
        assert!(full_at < sold_at, "what the clocks say");
        let (mut x, mut y) = (LamportClock::new(), LamportClock::new());
        let sold = x.tick();
        let full = y.receive(sold);
        assert!(sold < full, "what happened");
    }

    #[test]
    fn every_card_has_its_own_name_and_promises_known_properties() {
        for (index, card) in CARDS.iter().enumerate() {
            assert!(CARDS[..index].iter().all(|other| other.name != card.name));
            for promise in card.promises {
                assert!(spec::PROPERTIES.iter().any(|property| property.name == *promise), "{promise}");
            }
        }
    }
}
