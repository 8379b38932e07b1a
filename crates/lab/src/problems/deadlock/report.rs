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

/// The result of one run of the deadlock problem.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// The result of a detector.
    Detected(Box<Detected>),
    /// The result of a way to lock.
    Locked(Box<Locked>),
}

/// The result of one run of a detector. The fields are those of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Detected {
    /// The facts that the runs of all problems have.
    #[serde(flatten)]
    pub facts: Facts,
    /// The model of the requests.
    pub model: Model,
    /// Whether deadlocks were only detected, and not resolved.
    pub detect_only: bool,
    /// The number of requests. A process waits after each.
    pub requests: u64,
    /// The number of waits that ended with enough grants.
    pub proceeded: u64,
    /// The number of waits that ended with an abort.
    pub aborted: u64,
    /// The number of requests that completed a deadlock.
    pub deadlocks: u64,
    /// The number of declarations that a process is deadlocked.
    pub declared: u64,
    /// The number of declarations after an abort had ended the deadlock.
    pub declared_late: u64,
    /// The number of phantoms: the process could proceed, and no abort was the cause.
    pub phantoms: u64,
    /// The number of aborted processes that could proceed.
    pub needless_aborts: u64,
    /// The mean time from the completion of a deadlock to its declaration.
    pub found_after_ns: Option<f64>,
    /// The mean time for which a process waited.
    pub wait_ns: Option<f64>,
    /// Messages by part.
    pub messages_by_part: BTreeMap<Part, u64>,
    /// The mean number of the detector's messages per request.
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
            detect_only: scenario.work.detect_only,
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

/// The result of one run of a way to lock. The fields are those of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Locked {
    /// The facts that the runs of all problems have.
    #[serde(flatten)]
    pub facts: Facts,
    /// The number of transactions that committed.
    pub commits: u64,
    /// The number of times that a transaction started again.
    pub aborts: u64,
    /// The number of lock requests that had to wait.
    pub waits: u64,
    /// The mean total time for which a transaction waited for locks, with its messages.
    pub wait_ns: Option<f64>,
    /// The share of the work that aborts discarded.
    pub wasted: f64,
    /// Commits per second of simulated time.
    pub throughput_per_s: f64,
    /// The mean number of messages per transaction.
    pub messages_per_commit: Option<f64>,
    /// Messages by part: locks, detection, resolution.
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

    /// Returns the mean number of messages of one part per transaction.
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
                let mode = if report.detect_only { "detected only" } else { "resolved" };
                format!("requests {}, deadlocks {mode}", report.model)
            }
            Self::Locked(report) => {
                format!("{} locks, {PER_TRANSACTION} per transaction", bank::locks(report.facts.nodes))
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
            ("messages to detect", format!("{} per request", number(self.detection_per_request))),
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
            ("  per second", number(self.throughput_per_s)),
            ("  started again", self.aborts.to_string()),
            ("mean wait", self.wait_ns.map_or("-".into(), nanos)),
            ("discarded work", format!("{}%", number(100.0 * self.wasted))),
            ("messages, each", self.messages_per_commit.map_or("-".into(), number)),
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
