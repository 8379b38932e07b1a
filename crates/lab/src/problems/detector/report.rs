//! The figures and the verdicts of one run.

use conclave_kernel::{Card, time};
use conclave_sim::Outcome;
use serde::Serialize;

use super::{Problem, Scenario};
use crate::problem::{self, Facts, nanos, number};

/// The result of one run of the detector problem. The fields are those of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The facts that the runs of all problems have.
    #[serde(flatten)]
    pub facts: Facts,
    /// T, in nanoseconds.
    pub period_ns: u64,
    /// D, in nanoseconds.
    pub margin_ns: u64,
    /// The time from a crash to the suspicion that lasts, over all crashes and all watchers.
    pub detection_time: Option<Sample>,
    /// The number of suspicions of sites that were up.
    pub mistakes: u64,
    /// The number of mistakes per second and per ordered pair of sites.
    pub mistake_rate_per_s: f64,
    /// The time from a mistake until the watcher withdrew the suspicion, one of the two crashed, or the run ended.
    pub mistake_duration: Option<Sample>,
    /// The share of time in which a watcher trusts a site that is up.
    pub query_accuracy: f64,
    /// The number of crashes that ended before a watcher suspected the site, over all watchers.
    pub unnoticed_crashes: u64,
    /// The number of heartbeats per second, over all sites.
    pub messages_per_s: f64,
}

/// A sample of durations, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// The number of durations.
    pub count: u64,
    /// The mean.
    pub mean_ns: f64,
    /// The shortest duration.
    pub min_ns: u64,
    /// The longest duration.
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
        let Problem { meter, mut violations, undescribed, .. } = problem;
        if let Some(last) = violations.last_mut().filter(|_| undescribed > 0) {
            last.why += &format!("; {undescribed} more violations follow");
        }
        let [completeness, accuracy] = meter.judgements(scenario.is_short());
        let judgements = [completeness, accuracy, scenario.constant_accuracy()];
        let watched_ns = meter.watched_ns as f64;
        let mistaken: u128 = meter.mistakes_ns.iter().map(|ns| u128::from(*ns)).sum();
        Self {
            facts: Facts::new(scenario, card, outcome, seconds, &judgements, violations),
            period_ns: time::nanos(scenario.work.period),
            margin_ns: time::nanos(scenario.work.margin),
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
            messages_per_s: outcome.messages as f64 / scenario.work.duration.as_secs_f64().max(1e-9),
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
        let mistakes = match self.mistakes {
            0 => "0".to_owned(),
            count => format!("{count} ({:.2e} per second and pair)", self.mistake_rate_per_s),
        };
        vec![
            ("detection time", sample(self.detection_time)),
            ("mistakes", mistakes),
            ("mistake duration", sample(self.mistake_duration)),
            ("query accuracy", format!("{:.6}", self.query_accuracy)),
            ("unnoticed crashes", self.unnoticed_crashes.to_string()),
            ("messages", format!("{} per second", number(self.messages_per_s))),
        ]
    }
}
