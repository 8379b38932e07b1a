//! The work of the detector problem, and its experiments in the simulator.

use std::time::Duration;

use conclave_algorithms::detector::mutants::OfDetector;
use conclave_algorithms::detector::spec::{CONSTANT_ACCURACY, WINDOWS};
use conclave_algorithms::detector::{self, Detector, Group};
use conclave_algorithms::mutants::flawed::{Fallible, Flawed};
use conclave_kernel::{Card, Judgement, Ratio};
use conclave_sim::{Delay, Profile};
use serde::{Deserialize, Serialize};

use super::meter::SHORT;
use super::{Report, run_algorithm};
use crate::experiment::{Run, flags};
use crate::problem::{self, Entry, Problem, Recorder};

/// An experiment of the detector problem in the simulator.
pub type Scenario = Run<Work>;

/// The settings of the detectors, and the length of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "The work")]
pub struct Work {
    /// T, the time from one heartbeat to the next
    #[arg(long, value_name = "T", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::duration")]
    pub period: Duration,
    /// D; a site is suspected after T + D of silence
    #[arg(long, value_name = "D", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::duration")]
    pub margin: Duration,
    /// Phi of the accrual detector; a site is suspected when the chance of a mistake falls to 10^-Phi
    #[arg(long, value_name = "PHI")]
    pub threshold: u32,
    /// The number of latest arrivals that a site remembers
    #[arg(long, value_name = "N")]
    pub window: u32,
    /// The length of the run
    #[arg(long, value_name = "D", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::duration")]
    pub duration: Duration,
}

impl Default for Work {
    fn default() -> Self {
        Self {
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
            threshold: self.work.threshold,
            window: self.work.window,
            ..Group::new(self.world.nodes, self.work.period, self.work.margin)
        }
    }

    /// Returns the evidence that the run lacks to test [`CONSTANT_ACCURACY`]. A message must not take longer
    /// than T: silence counts from the start of a site, before the first heartbeat can arrive.
    pub(super) fn constant_accuracy(&self) -> Judgement {
        let setup = &self.world;
        let delays = || setup.links.iter().map(|link| link.delay).chain([setup.delay]);
        let is_constant = |delay: Delay| matches!(delay, Delay::Constant(_));
        let is_lossy = [setup.loss, setup.corrupt, setup.duplicate].iter().any(|ratio| *ratio != Ratio::ZERO);
        let windows = self.work.period.saturating_mul(self.work.window.saturating_mul(WINDOWS));
        CONSTANT_ACCURACY.judged_unless(&[
            (setup.nodes < 2, "only one site"),
            (!delays().all(is_constant), "the delay is not constant"),
            (delays().any(|delay| delay.mean() > self.work.period), "a message takes longer than a period"),
            (is_lossy, "messages are lost or duplicated"),
            (setup.clocks.drift_ppm > 0, "the clocks drift"),
            (!setup.faults.is_empty(), "the run has faults"),
            (self.work.duration < windows, "the run is shorter than three windows"),
            (self.is_short(), SHORT),
        ])
    }

    /// Returns whether the run ends before a detector with a fixed D can suspect a site that sends nothing.
    pub(super) fn is_short(&self) -> bool {
        self.work.duration <= self.work.period.saturating_add(self.work.margin)
    }

    /// Returns the time before the end of the run in which a new crash need not be noticed.
    pub(super) fn grace(&self) -> Duration {
        10 * (self.work.period + self.work.margin) + 20 * self.world.delay.mean()
    }
}

/// The largest window. A larger one would use too much memory, because every pair of sites has a window.
const MOST_REMEMBERED: u32 = 10_000;

impl Problem for Work {
    const NAME: &'static str = "detector";
    const ALGORITHM: &'static str = "heartbeat";
    const REPORTS_PROGRESS: bool = false;
    type Report = Report;

    fn cards() -> &'static [Card] {
        detector::CARDS
    }

    fn entry(run: &Scenario) -> Option<&'static Entry<Self>> {
        ENTRIES.iter().find(|entry| entry.card.name == run.algorithm)
    }

    /// The amount of work, in periods.
    fn amount(&self) -> u64 {
        (self.duration.as_nanos() / self.period.as_nanos().max(1)) as u64
    }

    fn set_amount(&mut self, amount: u64) {
        self.duration = self.period.saturating_mul(u32::try_from(amount.max(1)).unwrap_or(u32::MAX));
    }

    fn length(run: &Scenario) -> Duration {
        run.work.duration / 2
    }

    fn validate(run: &Scenario) -> Result<(), String> {
        problem::refuse_budget(&run.world, "--duration")?;
        match &run.work {
            work if work.duration.is_zero() => Err("--duration is 0: give a longer time".into()),
            work if work.period < Duration::from_micros(1) => {
                Err("--period is too short: give at least 1us".into())
            }
            work if work.threshold == 0 || work.threshold > 300 => {
                Err("--threshold is out of range: give 1 to 300".into())
            }
            work if work.window < 2 || work.window > MOST_REMEMBERED => {
                Err(format!("--window is out of range: give 2 to {MOST_REMEMBERED}"))
            }
            _ => Ok(()),
        }
    }

    fn profile(run: &Scenario) -> Profile {
        let needs = run.card().map(|card| card.needs).unwrap_or_default();
        Profile { crashes: 1, stay_down: true, ..Profile::within(needs, run.length()) }
    }
}

macro_rules! entry {
    ($algorithm:ty) => {
        Entry { card: &<$algorithm as Detector>::CARD, simulate: simulate::<$algorithm> }
    };
}

/// Returns the entry of an algorithm of another crate.
pub(super) fn entry_of<P: Fallible + Detector>() -> Entry<Work> {
    entry!(P)
}

static ENTRIES: &[Entry<Work>] = &detector::each!(entry);

fn simulate<P: Fallible + Detector>(scenario: &Scenario, recorder: &mut Recorder) -> Result<Report, String> {
    // Samples of flaws use this type too, so each simulation is compiled once.
    let (report, trace) = run_algorithm::<Flawed<P, OfDetector>>(scenario, recorder.wants_trace())?;
    recorder.take(trace.as_ref())?;
    Ok(report)
}
