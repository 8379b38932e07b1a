//! Physical time: what time is it, and how certain is the answer?
//!
//! Every algorithm corrects a clock that is wrong and drifts. It answers [`Command::Ask`] with a [`Reading`]:
//! the value of the corrected clock, and an interval that contains the reference's time. The corrected clock
//! is never set back: it is slewed (it runs slower or faster for a while), or it jumps ahead.
//!
//! | algorithm | idea | reference | bound |
//! |---|---|---|---|
//! | [`cristian`] | ask a server, take the middle of the possible times | site 0 | (RTT - min1 - min2)/2, growing by rho |
//! | [`ntp`] | the same down a tree, through a filter of eight samples | site 0 | the root distance |
//! | [`marzullo`] | ask several servers, take the times on which all but f agree | most servers | the width of the agreement |
//! | [`berkeley`] | an elected master averages the clocks that agree, and sends corrections | the master's average | RTT/2 - min, growing by 2 rho |
//! | [`dtp`] | neighbours exchange counters on the wire, the largest wins | the fastest oscillator | 4T per hop |
//!
//! The first three are *external*: the interval contains the true time. The last two are *internal*: the
//! clocks of a group stay together, but the group may move away from the true time. Their intervals contain
//! the group's time.
//!
//! The algorithms share [`interval`] (intervals that grow with drift) and [`spec`] (the properties and the
//! judge). All except [`dtp`] share [`slew`] (the corrected clock). [`mutants`] contains two algorithms that
//! are wrong on purpose.

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

/// A command of the layer above to a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A request for the time. The site answers in the same step with [`Event::Told`].
    Ask,
}

/// An event that a site reports to the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The answer to [`Command::Ask`].
    Told(Reading),
    /// The site has compared its clock with the reference.
    Synced {
        /// The reference minus the local clock, in nanoseconds.
        offset: i64,
        /// The largest error of `offset` at this moment, in nanoseconds.
        bound: u64,
    },
    /// A round has ended without a usable answer. The bound continues to grow.
    Missed,
    /// The site now leads the group.
    Leads {
        /// The term of the site.
        term: u64,
    },
    /// The reference is farther away than any clock error can explain. The site does not follow it.
    Panicked {
        /// The reference minus the local clock, in nanoseconds.
        offset: i64,
    },
}

/// The time at a site, as far as the site knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reading {
    /// The value of the corrected clock, in nanoseconds.
    pub clock: i64,
    /// An interval that contains the reference's time; `None` while the site knows nothing.
    pub interval: Option<Interval>,
    /// The reference of `interval`.
    pub epoch: Epoch,
}

impl Reading {
    /// Returns the reading of a site that is itself the reference.
    pub const fn exact(clock: i64) -> Self {
        Self { clock, interval: Some(Interval::point(clock)), epoch: Epoch::START }
    }

    /// Returns the largest possible difference between the clock and the reference; `None` while the site
    /// knows nothing.
    pub fn bound(&self) -> Option<u64> {
        self.interval.map(|interval| interval.farthest(self.clock))
    }
}

/// The reference of an interval. The true time is a single reference. A group without the true time agrees on
/// a new reference in every round, and its members receive it one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// The term of the master.
    pub term: u64,
    /// The master.
    pub master: NodeId,
    /// The round of the master in its term.
    pub round: u64,
}

impl Epoch {
    /// The epoch before the first round, and the only one if there is a single reference.
    pub const START: Self = Self { term: 0, master: NodeId(0), round: 0 };
}

/// A clock synchronisation algorithm.
pub trait TimeSync: Protocol<Command = Command, Event = Event> {
    /// The card of the algorithm.
    const CARD: Card;

    /// Creates the site `me` of a group.
    fn new(me: NodeId, group: &Group) -> Self;

    /// Returns the kind of a message. Meters count messages by kind.
    fn kind(message: &Self::Message) -> &'static str;

    /// Returns the answer to [`Command::Ask`] when the local clock shows `now`.
    fn read(&self, now: Time) -> Reading;
}

/// Expands to an array of `$entry!(P)`, for each algorithm P, in the order of the module's table.
#[macro_export]
macro_rules! each_timesync {
    ($entry:ident) => {
        [
            $entry!($crate::timesync::Cristian<$crate::timesync::Narrowest>),
            $entry!($crate::timesync::Cristian<$crate::timesync::Averaged>),
            $entry!($crate::timesync::Cristian<$crate::timesync::Intersected>),
            $entry!($crate::timesync::Ntp),
            $entry!($crate::timesync::Marzullo),
            $entry!($crate::timesync::Berkeley),
            $entry!($crate::timesync::BerkeleyRing),
            $entry!($crate::timesync::Dtp),
        ]
    };
}

pub use crate::each_timesync as each;

macro_rules! card {
    ($algorithm:ty) => {
        <$algorithm as TimeSync>::CARD
    };
}

/// The cards of all algorithms, in the order of the module's table.
pub const CARDS: &[Card] = &each_timesync!(card);

/// The parameters of a group and of its clocks. All sites know them from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// N, the number of sites.
    pub nodes: u32,
    /// The number of time servers, for algorithms that ask several. They are the sites with the smallest ids.
    pub servers: u32,
    /// f, the largest number of servers that give wrong times.
    pub faulty: u32,
    /// The fan-out of the tree of NTP and DTP: the parent of site i is site (i-1)/fanout. With 1 the tree is
    /// a chain.
    pub fanout: u32,
    /// The time from one comparison to the next.
    pub period: Duration,
    /// The number of questions or polls in one comparison.
    pub probes: u32,
    /// rho, the largest rate error of a clock, in parts per million.
    pub drift_ppm: u32,
    /// The shortest time that a message can take.
    pub minimum: Minimum,
    /// The largest bound of a reading that a client accepts; `None` accepts every reading.
    pub wanted: Option<Duration>,
    /// Berkeley's gamma: clocks that agree differ by at most this.
    pub agreement: Duration,
    /// The largest rate at which a clock is corrected, in parts per million. NTP allows 500, chrony 83,333.
    pub slew_ppm: u32,
}

impl Group {
    /// Creates a group with one server, four questions per comparison, a comparison every second, and clocks
    /// of 100 ppm.
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

    /// Returns the parent of a site in the tree; `None` for the root.
    pub fn parent(&self, site: NodeId) -> Option<NodeId> {
        Some(NodeId(site.0.checked_sub(1)? / self.fanout.max(1)))
    }

    /// Returns the number of hops from a site to the root.
    pub fn depth(&self, site: NodeId) -> u32 {
        core::iter::successors(self.parent(site), |site| self.parent(*site)).count() as u32
    }

    /// Returns the number of hops between two sites of the tree.
    pub fn hops(&self, one: NodeId, other: NodeId) -> u32 {
        let (mut one, mut other, mut hops) = (one, other, 0);
        while one != other {
            // A parent has a smaller id, so the larger of the two moves up.
            let climber = if one > other { &mut one } else { &mut other };
            let Some(parent) = self.parent(*climber) else { break };
            *climber = parent;
            hops += 1;
        }
        hops
    }

    /// Returns D, the largest number of hops between two sites of the tree.
    pub fn diameter(&self) -> u32 {
        let sites = || (0..self.nodes).map(NodeId);
        // The site that is farthest from an arbitrary site is one end of a longest path.
        let farthest = |from| sites().max_by_key(|to| self.hops(from, *to)).unwrap_or_default();
        let end = farthest(NodeId(0));
        self.hops(end, farthest(end))
    }
}

/// The needs of an algorithm that works on any network: it uses the messages that arrive, and repeats its
/// questions.
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

        // The example of the lectures: X sells the last seat and sends a message to Y, which logs that the
        // flight is full. By the clocks of the sites the flight was full first; by Lamport's clocks the seat
        // was sold first.
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
