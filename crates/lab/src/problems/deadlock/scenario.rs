//! The work of the deadlock problem, and its experiments in the simulator.

use std::time::Duration;

use conclave_algorithms::deadlock::locking::{self, Locking};
use conclave_algorithms::deadlock::mutants::OfLocking;
use conclave_algorithms::deadlock::{self, Detection, Model};
use conclave_algorithms::mutants::flawed::{Fallible, Flawed};
use conclave_kernel::Card;
use serde::{Deserialize, Serialize};

use super::{Report, run_algorithm, run_way};
use crate::experiment::{Run, flags};
use crate::problem::{self, Entry, Problem, Recorder};

/// An experiment of the deadlock problem in the simulator.
pub type Scenario = Run<Work>;

/// The requests of the processes, or the transactions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "The work")]
pub struct Work {
    /// The number of requests over all processes, or of transactions if the algorithm handles locks
    #[arg(long, value_name = "N")]
    pub requests: u64,
    /// The kind of requests: single, and, or, p-out-of-q [default: the most general kind that the algorithm
    /// supports]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<Model>,
    /// The mean time until a running process grants or requests, or a transaction takes its next lock
    #[arg(long, value_name = "D", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::duration")]
    pub think: Duration,
    /// Detect deadlocks, but do not resolve them; =false revokes it in a file
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set, hide_possible_values = true)]
    pub detect_only: bool,
}

impl Default for Work {
    fn default() -> Self {
        Self { requests: 100, model: None, think: Duration::from_millis(1), detect_only: false }
    }
}

impl Problem for Work {
    const NAME: &'static str = "deadlock";
    const ALGORITHM: &'static str = "edge-chasing";
    type Report = Report;

    fn cards() -> &'static [Card] {
        deadlock::CARDS
    }

    fn entry(run: &Scenario) -> Option<&'static Entry<Self>> {
        DETECTORS.iter().chain(WAYS).find(|entry| entry.card.name == run.algorithm)
    }

    fn amount(&self) -> u64 {
        self.requests
    }

    fn set_amount(&mut self, amount: u64) {
        self.requests = amount;
    }

    fn length(run: &Scenario) -> Duration {
        let a_request = run.work.think + run.world.delay.mean().saturating_mul(2);
        a_request.saturating_mul(u32::try_from(run.work.requests).unwrap_or(u32::MAX))
    }

    /// Allows for a transaction that was aborted often: its pause is then 64 times as long as its work.
    fn patience(run: &Scenario) -> Duration {
        problem::patience(run.work.think.saturating_mul(64) + run.world.delay.mean().saturating_mul(2))
    }
}

macro_rules! detector {
    ($algorithm:ty) => {
        Entry { card: &<$algorithm as Detection>::CARD, simulate: detect::<$algorithm> }
    };
}

static DETECTORS: &[Entry<Work>] = &deadlock::each!(detector);

macro_rules! way {
    ($algorithm:ty) => {
        Entry { card: &<$algorithm as Locking>::CARD, simulate: lock::<$algorithm> }
    };
}

static WAYS: &[Entry<Work>] = &locking::each!(way);

fn detect<D: Detection>(scenario: &Scenario, recorder: &mut Recorder) -> Result<Report, String> {
    let (report, trace) = run_algorithm::<D>(scenario, recorder.wants_trace())?;
    recorder.take(trace.as_ref())?;
    Ok(Report::Detected(Box::new(report)))
}

fn lock<L: Fallible + Locking>(scenario: &Scenario, recorder: &mut Recorder) -> Result<Report, String> {
    // Samples of flaws use this type too, so each simulation is compiled once.
    let (report, trace) = run_way::<Flawed<L, OfLocking>>(scenario, recorder.wants_trace())?;
    recorder.take(trace.as_ref())?;
    Ok(Report::Locked(Box::new(report)))
}
