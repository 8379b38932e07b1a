//! What an algorithm says of itself, as data: lists, docs and cost tests are all made from the card.

use core::fmt;

use serde::Serialize;

/// An algorithm's visiting card.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Card {
    /// The question it answers: `mutex`, `election`, ...
    pub problem: &'static str,
    /// Its name on the command line.
    pub name: &'static str,
    /// Its name in prose.
    pub title: &'static str,
    /// The idea, in a sentence.
    pub summary: &'static str,
    /// Where it comes from: keys of `docs/papers.md`.
    pub papers: &'static [&'static str],
    /// What it assumes of the world.
    pub needs: Needs,
    /// The names of the properties it promises under those assumptions.
    pub promises: &'static [&'static str],
    /// What it costs.
    pub costs: &'static [Cost],
    /// What it survives although it promises nothing, in a sentence.
    pub survives: &'static str,
    /// Whether it sends messages even when nobody asks for anything.
    pub idle_traffic: bool,
    /// Whether it reads `cx.now()`: such an algorithm has no finite state space without a clock model.
    pub reads_clock: bool,
}

impl Card {
    /// `problem/name`, as on the command line.
    pub fn path(&self) -> impl fmt::Display + use<> {
        let (problem, name) = (self.problem, self.name);
        fmt::from_fn(move |f| write!(f, "{problem}/{name}"))
    }

    /// Whether it promises the property of that name.
    pub fn promises(&self, property: &str) -> bool {
        self.promises.contains(&property)
    }

    /// The cost of that kind, if the card states it.
    pub fn cost(&self, measure: Measure, load: Load) -> Option<&'static Cost> {
        self.costs.iter().find(|cost| cost.measure == measure && cost.load == load)
    }
}

/// What an algorithm assumes of channels and sites. Everything true here is dropped, one at a time, by the
/// assumption matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Needs {
    /// Messages of one link arrive in the order sent.
    pub fifo: bool,
    /// Every message arrives.
    pub no_loss: bool,
    /// No message arrives twice.
    pub no_duplication: bool,
    /// Nobody crashes.
    pub no_crash: bool,
    /// Delays and processing times are bounded, and the bound is known.
    pub synchrony: bool,
    /// Suspicions are never wrong.
    pub perfect_detector: bool,
}

impl Needs {
    /// Reliable channels and sites that never crash; order does not matter.
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

/// One line of the cost table: a formula, and what it comes to at a given size.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// What is counted.
    pub measure: Measure,
    /// Under which load.
    pub load: Load,
    /// The formula as people write it; N sites, K quorum size, T one-way delay.
    pub formula: &'static str,
    /// The least and the most it may be, for one entry.
    #[serde(skip)]
    pub range: fn(Size) -> (f64, f64),
}

/// What a cost counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Network messages for one entry into the critical section.
    MessagesPerEntry,
    /// From the request to the entry with nobody inside or waiting, in units of T.
    ClientDelay,
    /// From an exit to the next entry with somebody waiting, in units of T.
    SyncDelay,
    /// Network messages for one whole election, snapshot or detection.
    Messages,
    /// From the start of one to the moment at which the last site knows the outcome, in units of T.
    Turnaround,
}

/// How much is asked of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// One request in the system at a time; one site starts.
    Low,
    /// Every site always has one pending; all sites start at once.
    High,
}

/// How large the group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// N, the number of sites.
    pub nodes: u32,
    /// The smallest quorum, the site itself included.
    pub quorum_min: u32,
    /// K, the largest quorum, the site itself included.
    pub quorum_max: u32,
}

impl Size {
    /// N, as a number to calculate with.
    pub fn n(self) -> f64 {
        f64::from(self.nodes)
    }

    /// The smallest and the largest K, likewise.
    pub fn k(self) -> (f64, f64) {
        (f64::from(self.quorum_min), f64::from(self.quorum_max))
    }
}
