//! The assumption matrix: what happens to each algorithm if one thing that it may rely on is taken away.
//!
//! A row is an algorithm, a column an assumption. The algorithm is put into a world in which all its other needs are
//! met and this one is not, and the checker says whether it is still correct or how it breaks, in as few steps as
//! possible. No cell is empty: where the card says that an assumption is *not* needed, the cell shows it.

use std::ops::ControlFlow;

use conclave_algorithms::mutex;
use conclave_check::{Faults, Options, Order, Verdict};
use conclave_kernel::{Card, Needs};
use serde::Serialize;

use crate::log::Log;
use crate::rooms::mutex::check::Case;

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
}

impl Assumption {
    /// All, in the order of the columns.
    pub const ALL: [Self; 4] = [Self::Fifo, Self::NoLoss, Self::NoDuplication, Self::NoCrash];

    /// The heading of its column.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Fifo => "FIFO",
            Self::NoLoss => "no loss",
            Self::NoDuplication => "no duplication",
            Self::NoCrash => "no crash",
        }
    }

    /// Whether an algorithm with such needs relies on it.
    pub const fn is_needed(self, needs: Needs) -> bool {
        match self {
            Self::Fifo => needs.fifo,
            Self::NoLoss => needs.no_loss,
            Self::NoDuplication => needs.no_duplication,
            Self::NoCrash => needs.no_crash,
        }
    }

    fn drop_from(self, case: &mut Case) {
        match self {
            Self::Fifo => case.order = Order::Any,
            Self::NoLoss => case.faults = Faults { loss: 1, ..case.faults },
            Self::NoDuplication => case.faults = Faults { duplication: 1, ..case.faults },
            Self::NoCrash => case.faults = Faults { crash: 1, ..case.faults },
        }
    }
}

/// One cell. The names are those of the JSON object.
#[derive(Debug, Serialize)]
pub struct Cell {
    /// `room/algorithm`.
    pub algorithm: String,
    /// What was taken away.
    pub without: Assumption,
    /// Whether the algorithm says that it needs it.
    pub needed: bool,
    /// What came of it.
    pub verdict: Verdict,
    /// What broke.
    pub property: Option<&'static str>,
    /// How.
    pub why: Option<String>,
    /// States explored.
    pub states: u64,
    /// The steps of the counterexample: as few as possible.
    pub steps: Option<u32>,
    /// Time on the wall.
    pub seconds: f64,
    /// The counterexample.
    #[serde(skip)]
    pub counterexample: Option<Log>,
}

impl Cell {
    /// Whether it is as the card says: broken if and only if the assumption is needed. An exploration that stopped
    /// at a bound contradicts nobody.
    pub fn agrees(&self) -> bool {
        match self.verdict {
            Verdict::Holds => !self.needed,
            Verdict::Violated | Verdict::Stuck => self.needed,
            Verdict::Bounded => true,
        }
    }
}

/// The cards that have a row: those of the mutex room, whose tenants send nothing while nobody asks. Layered ones,
/// whose heartbeats never end, have none.
pub fn rows(room: Option<&str>) -> impl Iterator<Item = &'static Card> {
    mutex::CARDS.iter().filter(move |card| room.is_none_or(|room| card.room == room))
}

/// Explores one cell. `nodes` sites do `entries` times each what the room is about.
pub fn cell(
    card: &'static Card,
    without: Assumption,
    nodes: u32,
    entries: u8,
    options: &Options,
) -> Result<Cell, String> {
    if card.room != "mutex" {
        return Err(format!("nobody explores {}", card.path()));
    }
    let mut case = Case::of(card, nodes, entries);
    without.drop_from(&mut case);
    let outcome = case.explore(options, &mut |_| ControlFlow::Continue(()))?;
    Ok(Cell {
        algorithm: card.path().to_string(),
        without,
        needed: without.is_needed(card.needs),
        verdict: outcome.verdict,
        property: outcome.property,
        why: outcome.why,
        states: outcome.states,
        steps: outcome.found.as_ref().map(|found| found.steps),
        seconds: outcome.seconds,
        counterexample: outcome.found.map(|found| found.log),
    })
}
