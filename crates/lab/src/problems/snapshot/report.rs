//! The snapshots, the figures and the verdicts of one run.

use std::collections::BTreeMap;

use conclave_algorithms::snapshot::{Picture, Snapshot, SnapshotId};
use conclave_kernel::{Load, Measure, NodeId, Size, time};
use conclave_sim::Outcome;
use serde::Serialize;

use super::play::Played;
use super::{Equivalent, Problem, Scenario, Timing};
use crate::log::Log;
use crate::problem::{self, Facts, nanos, number, range};

/// The result of one run of the snapshot problem. The fields are those of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The facts that the runs of all problems have.
    #[serde(flatten)]
    pub facts: Facts,
    /// The application.
    pub app: String,
    /// The number of acts that sites were told to do.
    pub acts: u64,
    /// The snapshots.
    pub snapshots: Vec<Shown>,
    /// Messages by kind.
    pub messages_by_kind: BTreeMap<&'static str, u64>,
    /// The mean number of messages per snapshot, without those of the application.
    pub messages_per_snapshot: f64,
    /// The card's formula for that number with its value, if the formula is exact.
    pub formula: Option<String>,
}

/// One snapshot.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// The number of the snapshot, from 1.
    pub id: SnapshotId,
    /// The sites that started it.
    pub started_by: Vec<NodeId>,
    /// The start, in nanoseconds.
    pub started_at_ns: u64,
    /// The time until the last site had completed it; `None` if a site never completed it.
    pub turnaround_ns: Option<u64>,
    /// The sites' states.
    pub states: Vec<serde_json::Value>,
    /// The sites' states in words.
    pub states_in_words: Vec<String>,
    /// The recorded channels that were not empty.
    pub channels: Vec<InTransit>,
    /// The conserved sum according to the snapshot.
    pub sum: Option<u64>,
    /// The correct sum.
    pub expected_sum: Option<u64>,
    /// The stable properties that hold in the snapshot.
    pub stable: Vec<String>,
    /// The run, reordered so that it passes through the snapshot; only for small runs.
    pub equivalent: Option<Equivalent>,
}

/// A recorded channel that was not empty.
#[derive(Clone, Debug, Serialize)]
pub struct InTransit {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// The messages in the channel, in words.
    pub messages: Vec<String>,
}

impl Report {
    pub(super) fn new<A: Played, P: Snapshot<A>>(
        scenario: &Scenario,
        problem: &Problem<A>,
        outcome: &Outcome,
        seconds: f64,
    ) -> Self {
        let violations = problem.violations.clone();
        let facts = Facts::new(scenario, &P::CARD, outcome, seconds, &problem.judge.judgements(), violations);
        let own: u64 = problem.kinds.iter().filter(|(kind, _)| **kind != "APP").map(|(_, count)| count).sum();
        let nodes = scenario.world.nodes;
        let size = Size { nodes, quorum_min: nodes, quorum_max: nodes };
        let formula = P::CARD.cost(Measure::Messages, Load::Low).map(|cost| {
            let (min, max) = (cost.range)(size);
            format!("{} = {}", cost.formula, range(min, max, number))
        });
        let shown = |picture: &Picture<A>| {
            let timing = problem.timings.get(&picture.id).copied();
            Shown::new(picture, scenario, &problem.shots, timing)
        };
        Self {
            facts,
            app: scenario.work.app.to_string(),
            acts: scenario.work.acts,
            snapshots: problem.judge.pictures().map(shown).collect(),
            messages_by_kind: problem.kinds.clone(),
            messages_per_snapshot: own as f64 / (problem.timings.len().max(1) as f64),
            formula,
        }
    }
}

impl Report {
    /// Adds to every snapshot the reordered run that passes through it.
    pub(super) fn explain(&mut self, log: &Log) {
        for shown in &mut self.snapshots {
            shown.equivalent = Equivalent::of(log, shown.id);
        }
    }
}

impl Shown {
    fn new<A: Played>(
        picture: &Picture<A>,
        scenario: &Scenario,
        shots: &[super::Shot],
        timing: Option<Timing>,
    ) -> Self {
        let mut channels: Vec<InTransit> = Vec::new();
        for (from, to, message) in picture.in_transit() {
            let words = A::message_in_words(message);
            match channels.last_mut() {
                Some(last) if (last.from, last.to) == (from, to) => last.messages.push(words),
                _ => channels.push(InTransit { from, to, messages: vec![words] }),
            }
        }
        let shot = shots.get((picture.id.0 as usize).wrapping_sub(1));
        let complete = timing.filter(|timing| timing.sites == scenario.world.nodes);
        let state = |state: &A| serde_json::to_value(state).unwrap_or(serde_json::Value::Null);
        Self {
            id: picture.id,
            started_by: shot.map_or(Vec::new(), |shot| shot.nodes.clone()),
            started_at_ns: timing.map_or(0, |timing| timing.began.0),
            turnaround_ns: complete.map(|timing| time::nanos(timing.complete.since(timing.began))),
            states: picture.states().map(state).collect(),
            states_in_words: picture.states().map(A::state_in_words).collect(),
            channels,
            sum: A::conserved(picture),
            expected_sum: A::total(scenario),
            stable: A::stable_facts(picture).into_iter().map(A::fact).collect(),
            equivalent: None,
        }
    }

    /// The global state of a bank with two accounts, as textbooks write it: both balances, and the money in
    /// both channels.
    fn bank_of_two(&self) -> Option<String> {
        let [a, b] = &self.states_in_words[..] else { return None };
        self.sum?;
        let content = |from: u32| {
            let channel = self.channels.iter().find(|channel| channel.from == NodeId(from));
            let amounts = channel.into_iter().flat_map(|channel| &channel.messages);
            amounts.filter_map(|amount| amount.parse::<u64>().ok()).sum::<u64>()
        };
        Some(format!("({a}, {b}, {}, {})", content(0), content(1)))
    }

    fn figures(&self, figures: &mut Vec<(&'static str, String)>) {
        let names: Vec<_> = self.started_by.iter().map(ToString::to_string).collect();
        let turnaround = self.turnaround_ns.map_or("never complete at all sites".into(), |turnaround| {
            format!("complete at all sites after {}", nanos(turnaround as f64))
        });
        let started = nanos(self.started_at_ns as f64);
        figures.push((
            "snapshot",
            format!("{}, started by {} at {started}, {turnaround}", self.id, names.join(" and ")),
        ));
        let states = self.states_in_words.iter().enumerate();
        let states = states.map(|(site, state)| format!("{} {state}", NodeId(site as u32)));
        figures.push(("  states", shortened(states.collect())));
        let channel = |channel: &InTransit| {
            format!("{}->{}: {}", channel.from, channel.to, shortened(channel.messages.clone()))
        };
        let channels: Vec<_> = self.channels.iter().map(channel).collect();
        let empty = channels.is_empty();
        let channels = if empty { "all empty".into() } else { shortened(channels) };
        figures.push(("  channels", channels));
        figures.extend(self.bank_of_two().map(|state| ("  (A, B, C12, C21)", state)));
        if let (Some(sum), Some(expected)) = (self.sum, self.expected_sum) {
            let verdict = if sum == expected { "as expected".into() } else { format!("expected {expected}") };
            figures.push(("  sum", format!("{sum}, {verdict}")));
        }
        if !self.stable.is_empty() {
            figures.push(("  stable properties", shortened(self.stable.clone())));
        }
        if let Some(equivalent) = &self.equivalent {
            equivalent.figures(figures);
        }
    }
}

/// Joins the first items of a list, and adds the number of the others.
fn shortened(mut words: Vec<String>) -> String {
    const MOST: usize = 12;
    let more = words.len().saturating_sub(MOST);
    words.truncate(MOST);
    if more > 0 {
        words.push(format!("and {more} more"));
    }
    words.join(", ")
}

impl problem::Report for Report {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn subject(&self) -> String {
        format!("{}, {} acts", self.app, self.acts)
    }

    fn figures(&self) -> Vec<(&'static str, String)> {
        let mut figures = Vec::new();
        self.snapshots.iter().take(8).for_each(|shown| shown.figures(&mut figures));
        if self.snapshots.len() > 8 {
            figures.push(("", format!("and {} more", self.snapshots.len() - 8)));
        }
        let kinds: Vec<_> =
            self.messages_by_kind.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let formula = self.formula.as_ref().map_or(String::new(), |formula| format!("   {formula}"));
        figures.push(("messages per snapshot", format!("{}{formula}", number(self.messages_per_snapshot))));
        figures.push(("messages by kind", kinds.join(", ")));
        figures
    }
}
