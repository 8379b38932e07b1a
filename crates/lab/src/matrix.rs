//! The assumption matrix: what happens to each algorithm if one thing that it may rely on is taken away.
//!
//! A row is an algorithm, a column an assumption. The algorithm is put into a world in which all its other
//! needs are met and this one is not, and the checker says whether it is still correct or how it breaks, in
//! as few steps as possible. No cell is empty: where the card says that an assumption is *not* needed, the
//! cell shows it. An algorithm that the checker cannot explore is run with many seeds, and its cell shows
//! their number.

use std::time::Instant;

use conclave_algorithms::{election, mutex, snapshot};
use conclave_check::{Options, Order, Verdict};
use conclave_kernel::{Card, Needs};
use serde::Serialize;

use crate::added;
use crate::case;
use crate::experiment::Space;
use crate::log::Log;
use crate::sampling;

/// Something that an algorithm may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Assumption {
    /// Links keep the order of messages.
    Fifo,
    /// Every message arrives.
    NoLoss,
    /// No message arrives twice.
    NoDuplication,
    /// Nobody crashes.
    NoCrash,
    /// Delays are bounded, and the bound is known.
    Synchrony,
    /// Whoever tells of crashes is never wrong.
    PerfectDetector,
}

impl Assumption {
    /// All, in the order of the columns.
    pub const ALL: [Self; 6] = [
        Self::Fifo,
        Self::NoLoss,
        Self::NoDuplication,
        Self::NoCrash,
        Self::Synchrony,
        Self::PerfectDetector,
    ];

    /// The heading of its column.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Fifo => "FIFO",
            Self::NoLoss => "no loss",
            Self::NoDuplication => "no duplication",
            Self::NoCrash => "no crash",
            Self::Synchrony => "synchrony",
            Self::PerfectDetector => "perfect detector",
        }
    }

    /// Whether an algorithm with such needs relies on it.
    pub const fn is_needed(self, needs: Needs) -> bool {
        match self {
            Self::Fifo => needs.fifo,
            Self::NoLoss => needs.no_loss,
            Self::NoDuplication => needs.no_duplication,
            Self::NoCrash => needs.no_crash,
            Self::Synchrony => needs.synchrony,
            Self::PerfectDetector => needs.perfect_detector,
        }
    }

    /// Removes the assumption from a space, as far as links and sites give it. The problem itself weakens a
    /// detector.
    pub(crate) fn drop_from(self, space: &mut Space) {
        match self {
            Self::Fifo => space.order = Order::Any,
            Self::NoLoss => space.loss = 1,
            Self::NoDuplication => space.duplicate = 1,
            Self::NoCrash => space.crash = 1,
            Self::Synchrony => space.sync = None,
            Self::PerfectDetector => {}
        }
    }
}

/// One cell. The names are those of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// `problem/algorithm`.
    pub algorithm: String,
    /// N: what was asked for, or more if it takes more to show.
    pub nodes: u32,
    /// What was taken away.
    pub without: Assumption,
    /// Whether the algorithm says that it needs it.
    pub needed: bool,
    /// What came of it.
    pub verdict: Verdict,
    /// Whether that is what the card says.
    pub agrees: Agreement,
    /// What broke.
    pub property: Option<&'static str>,
    /// How.
    pub why: Option<String>,
    /// States explored.
    pub states: u64,
    /// The steps of the counterexample: as few as possible.
    pub steps: Option<u32>,
    /// The number of seeds that were run, if the checker cannot explore the algorithm.
    pub seeds: Option<u64>,
    /// The first seed that breaks a property.
    pub seed: Option<u64>,
    /// Time on the wall.
    pub seconds: f64,
    /// The counterexample.
    #[serde(skip)]
    pub counterexample: Option<Log>,
}

/// Whether what was found is what the card says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Agreement {
    /// It is: broken if and only if the assumption is needed.
    Yes,
    /// It is not.
    No,
    /// The exploration stopped at a bound before it found anything: nobody knows.
    Unknown,
}

impl Agreement {
    const fn of(verdict: Verdict, needed: bool) -> Self {
        match (verdict, needed) {
            (Verdict::Holds, false) | (Verdict::Violated | Verdict::Stuck, true) => Self::Yes,
            (Verdict::Holds, true) | (Verdict::Violated | Verdict::Stuck, false) => Self::No,
            (Verdict::Bounded, _) => Self::Unknown,
        }
    }

    /// The same for a sample, which proves nothing if no seed breaks a property.
    const fn of_sample(is_broken: bool, needed: bool) -> Self {
        match (is_broken, needed) {
            (true, true) => Self::Yes,
            (true, false) => Self::No,
            (false, _) => Self::Unknown,
        }
    }
}

/// The problems whose algorithms the checker explores in every cell.
pub const PROBLEMS: [&str; 3] = ["mutex", "election", "snapshot"];

/// The cards of all problems that have a row, also of those that are sampled.
pub fn all_rows(problem: Option<&str>) -> impl Iterator<Item = &'static Card> {
    let is_layered = |card: &Card| mutex::LAYERED.iter().any(|layered| layered.name == card.name);
    let of_problem = move |card: &&Card| problem.is_none_or(|problem| card.problem == problem);
    added::cards().filter(move |card| !is_layered(card)).filter(of_problem)
}

/// The cards that have a row. Layered mutexes, whose heartbeats never end, have none.
pub fn rows(problem: Option<&str>) -> impl Iterator<Item = &'static Card> {
    let cards = mutex::CARDS.iter().chain(election::CARDS).chain(snapshot::CARDS);
    cards.filter(move |card| problem.is_none_or(|problem| card.problem == problem))
}

/// Explores a row of `nodes` sites. Each site does `entries` units of work: entries, elections or snapshots.
/// `begins` is called with each assumption before the exploration without it.
///
/// Some algorithms do not need an assumption, such as FIFO links. Without it, their exploration is the same,
/// so these cells show one result.
pub fn row(
    card: &'static Card,
    nodes: u32,
    entries: u8,
    options: &Options,
    mut begins: impl FnMut(Assumption),
) -> Result<Vec<Cell>, String> {
    let mut cells: Vec<Cell> = Vec::new();
    let mut explored: Vec<String> = Vec::new();
    for without in Assumption::ALL {
        begins(without);
        let needed = without.is_needed(card.needs);
        let (nodes, case) = match case::without(card, without, nodes, entries) {
            Ok((nodes, case)) => match case.checker(options, true) {
                Ok(_) => (nodes, case),
                Err(why) => {
                    cells.push(sample(card, without, why)?);
                    continue;
                }
            },
            Err(why) => {
                cells.push(sample(card, without, why)?);
                continue;
            }
        };
        let key = format!("{case:?}");
        let cell = match explored.iter().position(|known| *known == key) {
            Some(same) => cells[same].clone(),
            None => explore_twice(card, without, (nodes, entries), case.as_ref(), options)?,
        };
        explored.push(key);
        cells.push(Cell { without, needed, agrees: Agreement::of(cell.verdict, needed), ..cell });
    }
    Ok(cells)
}

/// Explores a cell. If everything holds with one entry a site, it also explores two sites with two entries
/// each, because some flaws need a second entry.
fn explore_twice(
    card: &Card,
    without: Assumption,
    (nodes, entries): (u32, u8),
    case: &dyn case::Case,
    options: &Options,
) -> Result<Cell, String> {
    let cell = explore(card, without, nodes, case, options)?;
    if entries >= 2 || cell.verdict != Verdict::Holds {
        return Ok(cell);
    }
    let (nodes, second) = case::without(card, without, 2, 2)?;
    let second = explore(card, without, nodes, second.as_ref(), options)?;
    Ok(if second.verdict == Verdict::Holds { cell } else { second })
}

/// The number of seeds of a cell that is sampled.
pub const SEEDS: u64 = 20;

/// Runs an algorithm without the assumption, because the checker cannot explore it. `why_not` is the reason.
fn sample(card: &Card, without: Assumption, why_not: String) -> Result<Cell, String> {
    let began = Instant::now();
    let sample = sampling::sample_without(card, without, 0..SEEDS)?;
    let needed = without.is_needed(card.needs);
    let broken = sample.broken.as_ref();
    Ok(Cell {
        algorithm: card.path().to_string(),
        nodes: sample.nodes,
        without,
        needed,
        verdict: if broken.is_some() { Verdict::Violated } else { Verdict::Bounded },
        agrees: Agreement::of_sample(broken.is_some(), needed),
        property: broken
            .and_then(|broken| card.promises.iter().copied().find(|name| *name == broken.property)),
        why: Some(broken.map_or(why_not, |broken| broken.why.clone())),
        states: 0,
        steps: None,
        seeds: Some(sample.seeds),
        seed: broken.map(|broken| broken.seed),
        seconds: began.elapsed().as_secs_f64(),
        counterexample: None,
    })
}

fn explore(
    card: &Card,
    without: Assumption,
    nodes: u32,
    case: &dyn case::Case,
    options: &Options,
) -> Result<Cell, String> {
    let outcome = case.explore(options, &mut case::unwatched)?;
    let found = outcome.counterexample.as_ref();
    let needed = without.is_needed(card.needs);
    Ok(Cell {
        algorithm: card.path().to_string(),
        nodes,
        without,
        needed,
        verdict: outcome.verdict,
        agrees: Agreement::of(outcome.verdict, needed),
        property: outcome.property,
        why: outcome.why.clone(),
        states: outcome.states,
        steps: found.map(|found| found.steps),
        seeds: None,
        seed: None,
        seconds: outcome.seconds,
        counterexample: found.map(|found| Log::from_trace(&found.trace)).transpose()?,
    })
}
