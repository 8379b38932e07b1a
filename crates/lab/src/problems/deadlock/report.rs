//! The figures and the verdicts of one run.

use std::collections::BTreeMap;

use conclave_algorithms::deadlock::locking::{Locking, PER_TRANSACTION};
use conclave_algorithms::deadlock::site::Part;
use conclave_algorithms::deadlock::{Detection, Model};
use conclave_sim::Outcome;
use serde::Serialize;

use super::Scenario;
use super::bank::{self, Bank};
use super::work::Problem;
use crate::problem::{self, Facts, nanos, number};

/// What one run of the deadlock problem showed.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// Of a detector.
    Detected(Box<Detected>),
    /// Of a way to get locks.
    Locked(Box<Locked>),
}

/// What a run of a detector showed. The names are those of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Detected {
    /// What the runs of all problems have in common.
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

impl Detected {
    pub(super) fn new<D: Detection>(
        scenario: &Scenario,
        model: Model,
        problem: Problem,
        outcome: &Outcome,
        seconds: f64,
    ) -> Self {
        let (counts, judge) = (problem.counts, problem.judge);
        let judgements = counts.judgements();
        let mean = |sum: f64, count: usize| (count > 0).then(|| sum / count as f64);
        let found: f64 = counts.found_after.iter().map(|found| found.as_nanos() as f64).sum();
        let ended = (counts.proceeded + counts.aborted) as usize;
        let detection = counts.messages.get(&Part::Detection).copied().unwrap_or(0);
        Self {
            facts: Facts::new(scenario, &D::CARD, outcome, seconds, &judgements, problem.violations),
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

/// What a run of a way to get locks showed. The names are those of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Locked {
    /// What the runs of all problems have in common.
    #[serde(flatten)]
    pub facts: Facts,
    /// Transactions that committed.
    pub commits: u64,
    /// How often a transaction had to start again.
    pub aborts: u64,
    /// How often a lock was not there at once.
    pub waits: u64,
    /// How long a transaction waited for locks in all, messages included: the mean.
    pub wait_ns: Option<f64>,
    /// Work that was done and thrown away, as a share of all work.
    pub wasted: f64,
    /// Commits a second of simulated time.
    pub throughput_per_s: f64,
    /// Messages for one transaction: the mean.
    pub messages_per_commit: Option<f64>,
    /// Messages by part: of the locks, to detect, to resolve.
    pub messages_by_part: BTreeMap<Part, u64>,
    /// Messages by kind.
    pub messages_by_kind: BTreeMap<&'static str, u64>,
}

impl Locked {
    pub(super) fn new<L: Locking>(scenario: &Scenario, bank: Bank, outcome: &Outcome, seconds: f64) -> Self {
        let judgements = bank.judgements();
        let Bank { counts, violations, .. } = bank;
        let a_commit = |sum: u64| (counts.commits > 0).then(|| sum as f64 / counts.commits as f64);
        let share = |part: u64, all: u64| if all == 0 { 0.0 } else { part as f64 / all as f64 };
        Self {
            facts: Facts::new(scenario, &L::CARD, outcome, seconds, &judgements, violations),
            commits: counts.commits,
            aborts: counts.aborts,
            waits: counts.waits,
            wait_ns: a_commit(counts.waited),
            wasted: share(counts.wasted, counts.worked),
            throughput_per_s: share(counts.commits, outcome.at.0) * 1e9,
            messages_per_commit: a_commit(counts.messages.values().sum()),
            messages_by_part: counts.messages,
            messages_by_kind: counts.kinds,
        }
    }

    /// Messages of one part for one transaction: the mean.
    pub fn part_per_commit(&self, part: Part) -> f64 {
        let sum = self.messages_by_part.get(&part).copied().unwrap_or(0);
        if self.commits == 0 { 0.0 } else { sum as f64 / self.commits as f64 }
    }
}

impl problem::Report for Report {
    fn facts(&self) -> &Facts {
        match self {
            Self::Detected(report) => &report.facts,
            Self::Locked(report) => &report.facts,
        }
    }

    fn subject(&self) -> String {
        match self {
            Self::Detected(report) => {
                let mode = if report.detect_only { "found only" } else { "resolved" };
                format!("requests {}, deadlocks {mode}", report.model)
            }
            Self::Locked(report) => {
                format!("{} locks, {PER_TRANSACTION} a transaction", bank::locks(report.facts.nodes))
            }
        }
    }

    fn figures(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Detected(report) => report.figures(),
            Self::Locked(report) => report.figures(),
        }
    }
}

impl Detected {
    fn figures(&self) -> Vec<(&'static str, String)> {
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
            ("  by kind", kinds(&self.messages_by_kind)),
        ]
    }
}

impl Locked {
    fn figures(&self) -> Vec<(&'static str, String)> {
        vec![
            ("transactions", self.commits.to_string()),
            ("  a second", number(self.throughput_per_s)),
            ("  started again", self.aborts.to_string()),
            ("mean wait", self.wait_ns.map_or("-".into(), nanos)),
            ("work thrown away", format!("{}%", number(100.0 * self.wasted))),
            ("messages each", self.messages_per_commit.map_or("-".into(), number)),
            ("  of the locks", number(self.part_per_commit(Part::Process))),
            ("  to detect", number(self.part_per_commit(Part::Detection))),
            ("  to resolve", number(self.part_per_commit(Part::Resolution))),
            ("  by kind", kinds(&self.messages_by_kind)),
        ]
    }
}

fn kinds(messages: &BTreeMap<&'static str, u64>) -> String {
    messages.iter().map(|(kind, count)| format!("{kind} {count}")).collect::<Vec<_>>().join(", ")
}
