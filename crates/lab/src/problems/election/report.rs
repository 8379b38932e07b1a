//! The figures and the verdicts of one run.

use std::collections::BTreeMap;

use conclave_kernel::{Card, Load, Measure, Size, time};
use conclave_sim::Outcome;
use serde::Serialize;

use super::{Findings, Scenario, Start};
use crate::problem::{self, Facts, Measured, nanos, number, range};

/// The result of one run of the election problem. The fields are those of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The facts that the runs of all problems have.
    #[serde(flatten)]
    pub facts: Facts,
    /// The sites that began.
    pub start: String,
    /// The number of elections that ended.
    pub elections: u64,
    /// The leader at the end of the run.
    pub leader: Option<u32>,
    /// The mean number of messages per election, without heartbeats.
    pub messages_per_election: f64,
    /// The fewest messages of an election.
    pub messages_per_election_min: u64,
    /// The most messages of an election.
    pub messages_per_election_max: u64,
    /// The messages of the last election. A crash caused it, if there was a crash.
    pub messages_of_last: u64,
    /// Messages by kind.
    pub messages_by_kind: BTreeMap<&'static str, u64>,
    /// Messages per second that do not depend on an election.
    pub background_messages_per_s: f64,
    /// The mean time from the start of an election, or from the crash that caused it, until the last site
    /// decided.
    pub turnaround_ns: Option<f64>,
    /// The longest turnaround.
    pub turnaround_max_ns: Option<u64>,
    /// The turnaround of the last election.
    pub turnaround_of_last_ns: Option<u64>,
    /// The ranges that the formulas of the card allow.
    pub formulas: Vec<Formula>,
}

/// A formula of the card, with its range.
#[derive(Clone, Debug, Serialize)]
pub struct Formula {
    /// The cost that the formula describes.
    pub measure: Measure,
    /// The formula in its written form.
    pub formula: &'static str,
    /// The least that the formula allows for one election; delays in nanoseconds.
    pub min: f64,
    /// The most that the formula allows.
    pub max: f64,
}

impl Report {
    pub(super) fn new(
        scenario: &Scenario,
        card: &Card,
        findings: Findings,
        outcome: &Outcome,
        seconds: f64,
    ) -> Self {
        let Findings { held, kinds, background, judgements, violations } = findings;
        let mean = |sum: u64| if held.is_empty() { 0.0 } else { sum as f64 / held.len() as f64 };
        let messages = held.iter().map(|election| election.messages);
        let turnarounds = held.iter().map(|election| election.turnaround_ns);
        let simulated_s = outcome.at.0 as f64 / 1e9;
        Self {
            facts: Facts::new(scenario, card, outcome, seconds, &judgements, violations),
            start: scenario.start.to_string(),
            elections: held.len() as u64,
            leader: held.last().map(|election| election.leader.0),
            messages_per_election: mean(messages.clone().sum()),
            messages_per_election_min: messages.clone().min().unwrap_or(0),
            messages_per_election_max: messages.max().unwrap_or(0),
            messages_of_last: held.last().map_or(0, |election| election.messages),
            messages_by_kind: kinds,
            background_messages_per_s: if simulated_s > 0.0 { background as f64 / simulated_s } else { 0.0 },
            turnaround_ns: (!held.is_empty()).then(|| mean(turnarounds.clone().sum())),
            turnaround_max_ns: turnarounds.max(),
            turnaround_of_last_ns: held.last().map(|election| election.turnaround_ns),
            formulas: formulas(scenario, card),
        }
    }

    /// Returns the card's formula and its range, as the text after the measured value.
    fn formula(&self, measure: Measure, show: impl Fn(f64) -> String) -> String {
        let formula = self.formulas.iter().find(|formula| formula.measure == measure);
        formula.map_or(String::new(), |formula| {
            format!("   {} = {}", formula.formula, range(formula.min, formula.max, show))
        })
    }
}

fn formulas(scenario: &Scenario, card: &Card) -> Vec<Formula> {
    let load = if scenario.start == Start::All { Load::High } else { Load::Low };
    let nodes = scenario.setup.nodes;
    let size = Size { nodes, quorum_min: nodes, quorum_max: nodes };
    let delay = time::nanos(scenario.setup.delay.mean()) as f64;
    let formula = |measure: Measure| {
        let cost = card.cost(measure, load)?;
        let (min, max) = (cost.range)(size);
        let unit = if measure == Measure::Turnaround { delay } else { 1.0 };
        Some(Formula { measure, formula: cost.formula, min: min * unit, max: max * unit })
    };
    [Measure::Messages, Measure::Turnaround].into_iter().filter_map(formula).collect()
}

impl problem::Report for Report {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn subject(&self) -> String {
        format!("start {}", self.start)
    }

    fn measured(&self) -> Vec<Measured> {
        let if_elected = |value: f64| Some(value).filter(|_| self.elections > 0);
        vec![
            Measured::number("messages per election", if_elected(self.messages_per_election)),
            Measured::time("turnaround", self.turnaround_ns),
            Measured::time("simulated time", Some(self.facts.simulated_ns as f64)),
        ]
    }

    fn figures(&self) -> Vec<(&'static str, String)> {
        let kinds: Vec<_> =
            self.messages_by_kind.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let messages = format!(
            "{} (min {}, max {}, last {}){}",
            number(self.messages_per_election),
            self.messages_per_election_min,
            self.messages_per_election_max,
            self.messages_of_last,
            self.formula(Measure::Messages, number)
        );
        let turnaround = format!(
            "{} (max {}, last {}){}",
            self.turnaround_ns.map_or("-".into(), nanos),
            self.turnaround_max_ns.map_or("-".into(), |ns| nanos(ns as f64)),
            self.turnaround_of_last_ns.map_or("-".into(), |ns| nanos(ns as f64)),
            self.formula(Measure::Turnaround, nanos)
        );
        vec![
            ("elections", self.elections.to_string()),
            ("leader", self.leader.map_or("nobody".into(), |leader| format!("n{leader}"))),
            ("messages per election", messages),
            ("  by kind", kinds.join(", ")),
            ("  background", format!("{} messages/s", number(self.background_messages_per_s))),
            ("turnaround", turnaround),
        ]
    }
}
