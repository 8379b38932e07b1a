//! The figures and the verdicts of one run.

use conclave_kernel::{Card, time};
use conclave_sim::Outcome;
use serde::Serialize;

use super::{Problem, Scenario};
use crate::problem::{self, Facts, nanos, number};

/// What one run of the detector problem showed. The names are those of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the runs of all problems have in common.
    #[serde(flatten)]
    pub facts: Facts,
    /// T, in nanoseconds.
    pub period_ns: u64,
    /// D, in nanoseconds.
    pub margin_ns: u64,
    /// From a crash to the suspicion that stands, over all crashes and all who watched.
    pub detection_time: Option<Sample>,
    /// Suspicions of sites that were up.
    pub mistakes: u64,
    /// The same, for one site that watches one other, a second.
    pub mistake_rate_per_s: f64,
    /// From such a suspicion until the watcher trusts the site again, one of the two crashes, or the run ends.
    pub mistake_duration: Option<Sample>,
    /// The share of time in which a site that is up is rightly trusted.
    pub query_accuracy: f64,
    /// Crashes repaired before somebody had noticed, counted for each who watched.
    pub unnoticed_crashes: u64,
    /// Heartbeats of all sites together.
    pub messages_per_s: f64,
}

/// A sample of durations, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean_ns: f64,
    /// The shortest.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Sample {
    fn of(durations: &[u64]) -> Option<Self> {
        let (min_ns, max_ns) = (*durations.iter().min()?, *durations.iter().max()?);
        let sum: u128 = durations.iter().map(|ns| u128::from(*ns)).sum();
        let count = durations.len() as u64;
        Some(Self { count, mean_ns: sum as f64 / count as f64, min_ns, max_ns })
    }
}

impl Report {
    pub(super) fn new(
        scenario: &Scenario,
        card: &Card,
        problem: Problem,
        outcome: &Outcome,
        seconds: f64,
    ) -> Self {
        let Problem { meter, violations, .. } = problem;
        let [completeness, accuracy] = meter.judgements(scenario.is_short());
        let judgements = [completeness, accuracy, scenario.constant_accuracy()];
        let watched_ns = meter.watched_ns as f64;
        let mistaken: u128 = meter.mistakes_ns.iter().map(|ns| u128::from(*ns)).sum();
        Self {
            facts: Facts::new(scenario, card, outcome, seconds, &judgements, violations),
            period_ns: time::nanos(scenario.period),
            margin_ns: time::nanos(scenario.margin),
            detection_time: Sample::of(&meter.detections_ns),
            mistakes: meter.mistakes,
            mistake_rate_per_s: if watched_ns > 0.0 {
                meter.mistakes as f64 / (watched_ns / 1e9)
            } else {
                0.0
            },
            mistake_duration: Sample::of(&meter.mistakes_ns),
            query_accuracy: if watched_ns > 0.0 { 1.0 - mistaken as f64 / watched_ns } else { 1.0 },
            unnoticed_crashes: meter.unnoticed,
            messages_per_s: outcome.messages as f64 / scenario.duration.as_secs_f64().max(1e-9),
        }
    }
}

impl problem::Report for Report {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn subject(&self) -> String {
        format!("T = {}, D = {}", nanos(self.period_ns as f64), nanos(self.margin_ns as f64))
    }

    fn figures(&self) -> Vec<(&'static str, String)> {
        let sample = |sample: Option<Sample>| match sample {
            Some(Sample { count, mean_ns, min_ns, max_ns }) => format!(
                "{} ({} to {}, {count} times)",
                nanos(mean_ns),
                nanos(min_ns as f64),
                nanos(max_ns as f64)
            ),
            None => "-".into(),
        };
        vec![
            ("detection time", sample(self.detection_time)),
            ("mistakes", format!("{} ({:.2e} a second and pair)", self.mistakes, self.mistake_rate_per_s)),
            ("mistake duration", sample(self.mistake_duration)),
            ("query accuracy", format!("{:.6}", self.query_accuracy)),
            ("unnoticed crashes", self.unnoticed_crashes.to_string()),
            ("messages", format!("{} a second", number(self.messages_per_s))),
        ]
    }
}
