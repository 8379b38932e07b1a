//! The figures and the verdicts of one run.

use std::collections::BTreeMap;

use conclave_algorithms::deadlock::site::Part;
use conclave_algorithms::deadlock::spec;
use conclave_algorithms::deadlock::{Detection, Model};
use conclave_sim::Outcome;
use serde::Serialize;

use super::Scenario;
use super::work::Room;
use crate::room::{self, Facts, nanos, number};

/// What one run of the deadlock room showed. The names are those of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the runs of all rooms have in common.
    #[serde(flatten)]
    pub facts: Facts,
    /// What processes asked for.
    pub model: Model,
    /// Whether deadlocks were only found.
    pub detect_only: bool,
    /// How often a process blocked.
    pub requests: u64,
    /// How many waits ended with enough grants.
    pub proceeded: u64,
    /// How many with an abort.
    pub aborted: u64,
    /// How many waits closed a deadlock.
    pub deadlocks: u64,
    /// How often a process was declared deadlocked.
    pub declared: u64,
    /// How many of these came when an abort had ended the deadlock.
    pub declared_late: u64,
    /// How many were phantoms: the process could proceed, and no abort had to do with it.
    pub phantoms: u64,
    /// How many processes were aborted for nothing.
    pub needless_aborts: u64,
    /// From the closing of a deadlock until it is declared: the mean.
    pub found_after_ns: Option<f64>,
    /// How long a process waited: the mean.
    pub wait_ns: Option<f64>,
    /// Messages by part.
    pub messages_by_part: BTreeMap<Part, u64>,
    /// The detector's messages for one request: the mean.
    pub detection_per_request: f64,
    /// Messages by kind.
    pub messages_by_kind: BTreeMap<&'static str, u64>,
}

impl Report {
    pub(super) fn new<D: Detection>(
        scenario: &Scenario,
        model: Model,
        room: Room,
        outcome: &Outcome,
        seconds: f64,
    ) -> Self {
        let (counts, judge) = (room.counts, room.judge);
        let mean = |sum: f64, count: usize| (count > 0).then(|| sum / count as f64);
        let found: f64 = counts.found_after.iter().map(|found| found.as_nanos() as f64).sum();
        let ended = (counts.proceeded + counts.aborted) as usize;
        let detection = counts.messages.get(&Part::Detection).copied().unwrap_or(0);
        Self {
            facts: Facts::new(scenario, &D::CARD, outcome, seconds, &spec::PROPERTIES, room.violations),
            model,
            detect_only: scenario.detect_only,
            requests: counts.requests,
            proceeded: counts.proceeded,
            aborted: counts.aborted,
            deadlocks: counts.deadlocks,
            declared: counts.declared,
            declared_late: judge.late(),
            phantoms: judge.phantoms(),
            needless_aborts: judge.needless_aborts(),
            found_after_ns: mean(found, counts.found_after.len()),
            wait_ns: mean(counts.waited.as_nanos() as f64, ended),
            messages_by_part: counts.messages,
            detection_per_request: mean(detection as f64, counts.requests as usize).unwrap_or(0.0),
            messages_by_kind: counts.kinds,
        }
    }
}

impl room::Report for Report {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn subject(&self) -> String {
        let mode = if self.detect_only { "found only" } else { "resolved" };
        format!("requests {}, deadlocks {mode}", self.model)
    }

    fn figures(&self) -> Vec<(&'static str, String)> {
        let kinds: Vec<_> =
            self.messages_by_kind.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let part = |part| self.messages_by_part.get(&part).copied().unwrap_or(0).to_string();
        vec![
            ("requests", self.requests.to_string()),
            ("  proceeded, aborted", format!("{}, {}", self.proceeded, self.aborted)),
            ("deadlocks closed", self.deadlocks.to_string()),
            ("declared", format!("{} ({} after an abort had ended it)", self.declared, self.declared_late)),
            ("  phantoms", self.phantoms.to_string()),
            ("aborted for nothing", self.needless_aborts.to_string()),
            ("found after", self.found_after_ns.map_or("-".into(), nanos)),
            ("mean wait", self.wait_ns.map_or("-".into(), nanos)),
            ("messages to detect", format!("{} a request", number(self.detection_per_request))),
            ("  to resolve", part(Part::Resolution)),
            ("  of the processes", part(Part::Process)),
            ("  by kind", kinds.join(", ")),
        ]
    }
}
