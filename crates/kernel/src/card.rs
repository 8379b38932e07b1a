//! The description of an algorithm as data. Lists, documentation and cost tests are generated from it.

use core::fmt;

use serde::Serialize;

/// The description of one algorithm.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Card {
    /// The problem that the algorithm solves: `mutex`, `election`, ...
    pub problem: &'static str,
    /// The algorithm's name on the command line.
    pub name: &'static str,
    /// The algorithm's name in prose.
    pub title: &'static str,
    /// The idea of the algorithm, in one sentence.
    pub summary: &'static str,
    /// The papers that define the algorithm: keys of `docs/papers.md`.
    pub papers: &'static [&'static str],
    /// The assumptions about channels and sites.
    pub needs: Needs,
    /// The names of the properties that the algorithm promises under its assumptions.
    pub promises: &'static [&'static str],
    /// The costs that the algorithm promises.
    pub costs: &'static [Cost],
    /// The faults that the algorithm tolerates beyond its promises, as text for the reader. May be empty.
    pub survives: &'static str,
    /// Whether the algorithm sends messages even without any command.
    pub idle_traffic: bool,
    /// Whether the algorithm reads `cx.now()`. Without a model of clocks, its state space is then infinite.
    pub reads_clock: bool,
}

impl Card {
    /// Returns `problem/name`, the form used on the command line.
    pub fn path(&self) -> impl fmt::Display + use<> {
        let (problem, name) = (self.problem, self.name);
        fmt::from_fn(move |f| write!(f, "{problem}/{name}"))
    }

    /// Returns whether the algorithm promises the property with this name.
    pub fn promises(&self, property: &str) -> bool {
        self.promises.contains(&property)
    }

    /// Returns the cost for this measure and load, if the card states it.
    pub fn cost(&self, measure: Measure, load: Load) -> Option<&'static Cost> {
        self.costs.iter().find(|cost| cost.measure == measure && cost.load == load)
    }
}

/// Assumptions of an algorithm about channels and sites. The assumption matrix runs the algorithm several
/// times, and each time it drops one of the assumptions that are `true`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Needs {
    /// Messages of one link arrive in the order in which they were sent.
    pub fifo: bool,
    /// Every message arrives.
    pub no_loss: bool,
    /// No message arrives more than once.
    pub no_duplication: bool,
    /// No site crashes.
    pub no_crash: bool,
    /// Delays and processing times have a known upper bound.
    pub synchrony: bool,
    /// The failure detector never suspects a site that is up.
    pub perfect_detector: bool,
}

impl Needs {
    /// Reliable channels in any order, and sites that never crash.
    pub const RELIABLE: Self = Self {
        fifo: false,
        no_loss: true,
        no_duplication: true,
        no_crash: true,
        synchrony: false,
        perfect_detector: false,
    };
    /// Reliable FIFO channels and sites that never crash.
    pub const RELIABLE_FIFO: Self = Self { fifo: true, ..Self::RELIABLE };
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.fifo, "FIFO channels"),
            (self.no_loss, "no loss"),
            (self.no_duplication, "no duplication"),
            (self.no_crash, "no crash"),
            (self.synchrony, "bounded delays"),
            (self.perfect_detector, "a perfect detector"),
        ];
        let mut separator = "";
        for (_, name) in all.iter().filter(|(needed, _)| *needed) {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        if separator.is_empty() { f.write_str("nothing") } else { Ok(()) }
    }
}

/// One line of the cost table: a formula in words, and the same formula as a function of the size.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// The quantity that is counted.
    pub measure: Measure,
    /// The load under which it is counted.
    pub load: Load,
    /// The formula for readers. N is the number of sites, K the quorum size, T the one-way delay.
    pub formula: &'static str,
    /// The smallest and the largest allowed value for one entry, election, snapshot or detection.
    #[serde(skip)]
    pub range: fn(Size) -> (f64, f64),
}

/// The quantity that a cost counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Network messages for one entry into the critical section.
    MessagesPerEntry,
    /// Time from a request to the entry when no site is inside or waiting, in units of T.
    ClientDelay,
    /// Time from an exit to the next entry when another site is waiting, in units of T.
    SyncDelay,
    /// Network messages for one complete election, snapshot or detection.
    Messages,
    /// Time from the start of an election, snapshot or detection until the last site has the result, in units
    /// of T.
    Turnaround,
}

/// The amount of work that the workload gives to the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// One request in the system at a time. For an election, snapshot or detection: one site starts.
    Low,
    /// Every site always has one pending request. For an election, snapshot or detection: all sites start at
    /// once.
    High,
}

/// The size of the group and of its quorums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// N, the number of sites.
    pub nodes: u32,
    /// The size of the smallest quorum, with the site itself.
    pub quorum_min: u32,
    /// K, the size of the largest quorum, with the site itself.
    pub quorum_max: u32,
}

impl Size {
    /// Returns N as a floating-point number.
    pub fn n(self) -> f64 {
        f64::from(self.nodes)
    }

    /// Returns the smallest and the largest K as floating-point numbers.
    pub fn k(self) -> (f64, f64) {
        (f64::from(self.quorum_min), f64::from(self.quorum_max))
    }
}
