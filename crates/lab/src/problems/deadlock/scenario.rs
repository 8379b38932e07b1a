//! The scenario of the deadlock problem.

use std::time::Duration;

use conclave_algorithms::deadlock::locking::{self, Locking};
use conclave_algorithms::deadlock::{self, Detection, Model};
use conclave_algorithms::mutants::deadlock::OfLocking;
use conclave_algorithms::mutants::flawed::{Fallible, Flawed};
use conclave_kernel::Card;
use conclave_sim::{Setup, exact};
use serde::{Deserialize, Serialize};

use super::{Report, run_algorithm, run_way};
use crate::problem::{self, Entry, Recorder};

/// Everything that determines a run of the deadlock problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// The algorithm's name.
    pub algorithm: String,
    /// Network, clocks, faults, seed.
    pub setup: Setup,
    /// The number of requests over all sites; for a way to lock, the number of transactions.
    pub requests: u64,
    /// The model of the requests. `None`: the most general model that the algorithm supports. A way to lock
    /// ignores it.
    pub model: Option<Model>,
    /// The mean time until a running process grants or requests, or a transaction takes its next lock.
    #[serde(with = "conclave_sim::text::duration")]
    pub think: Duration,
    /// Whether deadlocks are only detected, and not resolved.
    pub detect_only: bool,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            algorithm: "edge-chasing".into(),
            setup: Setup::default(),
            requests: 100,
            model: None,
            think: Duration::from_millis(1),
            detect_only: false,
        }
    }
}

impl problem::Scenario for Scenario {
    const PROBLEM: &'static str = "deadlock";
    type Report = Report;

    fn cards() -> &'static [Card] {
        deadlock::CARDS
    }

    problem::accessors!();

    fn work(&self) -> u64 {
        self.requests
    }

    fn set_work(&mut self, work: u64) {
        self.requests = work;
    }

    fn length(&self) -> Duration {
        let a_request = self.think + self.setup.delay.mean().saturating_mul(2);
        a_request.saturating_mul(u32::try_from(self.requests).unwrap_or(u32::MAX))
    }

    /// Allows for a transaction that was aborted often: its pause is then 64 times as long as its work.
    fn patience(&self) -> Duration {
        problem::patience(self.think.saturating_mul(64) + self.setup.delay.mean().saturating_mul(2))
    }

    fn flags(&self) -> Vec<String> {
        let default = Self::default();
        let mut flags = Vec::new();
        if self.requests != default.requests {
            flags.push(format!("--requests {}", self.requests));
        }
        flags.extend(self.model.map(|model| format!("--model {model}")));
        if self.think != default.think {
            flags.push(format!("--think {}", exact(self.think)));
        }
        if self.detect_only {
            flags.push("--detect-only".into());
        }
        flags
    }

    fn entry(&self) -> Option<&'static Entry<Self>> {
        DETECTORS.iter().chain(WAYS).find(|entry| entry.card.name == self.algorithm)
    }
}

macro_rules! detector {
    ($algorithm:ty) => {
        Entry { card: &<$algorithm as Detection>::CARD, simulate: detect::<$algorithm> }
    };
}

static DETECTORS: &[Entry<Scenario>] = &deadlock::each!(detector);

macro_rules! way {
    ($algorithm:ty) => {
        Entry { card: &<$algorithm as Locking>::CARD, simulate: lock::<$algorithm> }
    };
}

static WAYS: &[Entry<Scenario>] = &locking::each!(way);

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
