//! The scenario of the detector problem.

use std::time::Duration;

use conclave_algorithms::detector::spec::{CONSTANT_ACCURACY, WINDOWS};
use conclave_algorithms::detector::{self, Detector, Group};
use conclave_algorithms::mutants::detector::OfDetector;
use conclave_algorithms::mutants::flawed::{Fallible, Flawed};
use conclave_kernel::{Card, Judgement, Ratio};
use conclave_sim::{Delay, Profile, Setup, exact};
use serde::{Deserialize, Serialize};

use super::meter::SHORT;
use super::{Report, run_algorithm};
use crate::problem::{self, Entry, Recorder};

/// Everything that determines a run of the detector problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// The algorithm's name.
    pub algorithm: String,
    /// Network, clocks, faults, seed.
    pub setup: Setup,
    /// T: the time from one heartbeat to the next.
    #[serde(with = "conclave_sim::text::duration")]
    pub period: Duration,
    /// D: the silence after T at which a site is suspected.
    #[serde(with = "conclave_sim::text::duration")]
    pub margin: Duration,
    /// Phi of the accrual detector.
    pub threshold: u32,
    /// The number of latest arrivals that a site remembers.
    pub window: u32,
    /// The length of the run.
    #[serde(with = "conclave_sim::text::duration")]
    pub duration: Duration,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            algorithm: "heartbeat".into(),
            setup: Setup::default(),
            period: Duration::from_millis(100),
            margin: Duration::from_millis(10),
            threshold: 8,
            window: 100,
            duration: Duration::from_secs(60),
        }
    }
}

impl Scenario {
    /// The knowledge of the sites at the start.
    pub fn group(&self) -> Group {
        Group {
            threshold: self.threshold,
            window: self.window,
            ..Group::new(self.setup.nodes, self.period, self.margin)
        }
    }

    /// Returns the evidence that the run lacks to test [`CONSTANT_ACCURACY`]. A message must not take longer
    /// than T: silence counts from the start of a site, before the first heartbeat can arrive.
    pub(super) fn constant_accuracy(&self) -> Judgement {
        let setup = &self.setup;
        let delays = || setup.links.iter().map(|link| link.delay).chain([setup.delay]);
        let is_constant = |delay: Delay| matches!(delay, Delay::Constant(_));
        let is_lossy = [setup.loss, setup.corrupt, setup.duplicate].iter().any(|ratio| *ratio != Ratio::ZERO);
        let windows = self.period.saturating_mul(self.window.saturating_mul(WINDOWS));
        CONSTANT_ACCURACY.judged_unless(&[
            (setup.nodes < 2, "only one site"),
            (!delays().all(is_constant), "the delay is not constant"),
            (delays().any(|delay| delay.mean() > self.period), "a message takes longer than a period"),
            (is_lossy, "messages are lost or duplicated"),
            (setup.clocks.drift_ppm > 0, "the clocks drift"),
            (!setup.faults.is_empty(), "the run has faults"),
            (self.duration < windows, "the run is shorter than three windows"),
            (self.is_short(), SHORT),
        ])
    }

    /// Returns whether the run ends before a detector with a fixed D can suspect a site that sends nothing.
    pub(super) fn is_short(&self) -> bool {
        self.duration <= self.period.saturating_add(self.margin)
    }

    /// Returns the time before the end of the run in which a new crash need not be noticed.
    pub(super) fn grace(&self) -> Duration {
        10 * (self.period + self.margin) + 20 * self.setup.delay.mean()
    }
}

/// The largest window. A larger one would use too much memory, because every pair of sites has a window.
const MOST_REMEMBERED: u32 = 10_000;

impl problem::Scenario for Scenario {
    const PROBLEM: &'static str = "detector";
    const REPORTS_PROGRESS: bool = false;
    type Report = Report;

    fn cards() -> &'static [Card] {
        detector::CARDS
    }

    problem::accessors!();

    /// The amount of work, in periods.
    fn work(&self) -> u64 {
        (self.duration.as_nanos() / self.period.as_nanos().max(1)) as u64
    }

    fn set_work(&mut self, work: u64) {
        self.duration = self.period.saturating_mul(u32::try_from(work.max(1)).unwrap_or(u32::MAX));
    }

    fn length(&self) -> Duration {
        self.duration / 2
    }

    fn validate(&self) -> Result<(), String> {
        self.setup.validate()?;
        problem::refuse_budget(&self.setup, "--duration")?;
        match self {
            _ if self.duration.is_zero() => Err("--duration is 0: give a longer time".into()),
            _ if self.period < Duration::from_micros(1) => {
                Err("--period is too short: give at least 1us".into())
            }
            _ if self.threshold == 0 || self.threshold > 300 => {
                Err("--threshold is out of range: give 1 to 300".into())
            }
            _ if self.window < 2 || self.window > MOST_REMEMBERED => {
                Err(format!("--window is out of range: give 2 to {MOST_REMEMBERED}"))
            }
            _ => Ok(()),
        }
    }

    fn flags(&self) -> Vec<String> {
        let default = Self::default();
        let mut flags = Vec::new();
        let mut differs = |name: &str, value: String, differs: bool| {
            if differs {
                flags.push(format!("--{name} {value}"));
            }
        };
        differs("period", exact(self.period), self.period != default.period);
        differs("margin", exact(self.margin), self.margin != default.margin);
        differs("threshold", self.threshold.to_string(), self.threshold != default.threshold);
        differs("window", self.window.to_string(), self.window != default.window);
        differs("duration", exact(self.duration), self.duration != default.duration);
        flags
    }

    fn entry(&self) -> Option<&'static Entry<Self>> {
        ENTRIES.iter().find(|entry| entry.card.name == self.algorithm)
    }

    fn profile(&self) -> Profile {
        let needs = self.card().map(|card| card.needs).unwrap_or_default();
        Profile { crashes: 1, stay_down: true, ..Profile::within(needs, self.length()) }
    }
}

macro_rules! entry {
    ($algorithm:ty) => {
        Entry { card: &<$algorithm as Detector>::CARD, simulate: simulate::<$algorithm> }
    };
}

static ENTRIES: &[Entry<Scenario>] = &detector::each!(entry);

fn simulate<P: Fallible + Detector>(scenario: &Scenario, recorder: &mut Recorder) -> Result<Report, String> {
    // Samples of flaws use this type too, so each simulation is compiled once.
    let (report, trace) = run_algorithm::<Flawed<P, OfDetector>>(scenario, recorder.wants_trace())?;
    recorder.take(trace.as_ref())?;
    Ok(report)
}
