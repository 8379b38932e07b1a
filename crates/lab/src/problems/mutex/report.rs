//! The figures and the verdicts of one run.

use std::collections::BTreeMap;

use conclave_algorithms::mutex::spec::ME2;
use conclave_kernel::{Card, Load, Measure, Size, Violation, time};
use conclave_sim::{End, Outcome};
use serde::Serialize;

use super::meter::Sample;
use super::scenario::{Scenario, Work};
use super::{Findings, MOST_DESCRIBED};
use crate::problem::{self, Facts, Measured, nanos, number, range};

/// The result of one run of the mutex problem. The fields are those of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The facts that the runs of all problems have.
    #[serde(flatten)]
    pub facts: Facts,
    /// K: the size of the largest quorum, if the algorithm uses quorums.
    pub quorum_size: Option<u32>,
    /// The load, as the flag gives it.
    pub load: String,
    /// The number of entries.
    pub entries: u64,
    /// The mean number of messages per entry.
    pub messages_per_entry: f64,
    /// The fewest messages of an entry.
    pub messages_per_entry_min: u64,
    /// The most messages of an entry.
    pub messages_per_entry_max: u64,
    /// The mean per entry if a multicast counts as one message.
    pub multicasts_per_entry: f64,
    /// The mean number of messages per entry that serve to enter.
    pub messages_to_enter: f64,
    /// The mean number of messages per entry that serve to leave.
    pub messages_to_exit: f64,
    /// Messages by kind.
    pub messages_by_kind: BTreeMap<&'static str, u64>,
    /// The mean time from a request to its entry in nanoseconds, if no other site is inside or waiting.
    pub client_delay_ns: Option<f64>,
    /// The client delay with its extremes.
    pub client_delay: Option<Delays>,
    /// The mean time from an exit to the next entry, if exactly one site waits. If no exit had exactly one
    /// waiting site, the mean over all exits with several.
    pub sync_delay_ns: Option<f64>,
    /// The sync delay with exactly one waiting site.
    pub sync_delay_one_waiting: Option<Delays>,
    /// The sync delay with several waiting sites.
    pub sync_delay_high_load: Option<Delays>,
    /// The mean time from a request until the site leaves.
    pub response_time_ns: Option<f64>,
    /// The response time with its extremes.
    pub response_time: Option<Delays>,
    /// Entries per second of simulated time.
    pub throughput_per_s: f64,
    /// Pairs of requests that were granted against their causal order; `None` above 128 sites.
    pub order_inversions: Option<u64>,
    /// The most entries of other sites between a request and its grant.
    pub max_bypass: u64,
    /// The number of requests made while another site was inside or waiting.
    pub contended_requests: u64,
    /// Jain's index of the entries per site: 1 if all sites have equally many, 1/N if one site has all.
    pub fairness: f64,
    /// The most and the fewest entries of a site.
    pub entries_per_site: (u64, u64),
    /// The ranges that the formulas of the card allow.
    pub formulas: Vec<Formula>,
}

/// A sample of delays, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Delays {
    /// The number of delays.
    pub count: u64,
    /// The mean.
    pub mean_ns: f64,
    /// The shortest delay.
    pub min_ns: u64,
    /// The longest delay.
    pub max_ns: u64,
}

impl Delays {
    fn of(sample: &Sample) -> Option<Self> {
        let mean_ns = sample.mean()?;
        Some(Self { count: sample.count, mean_ns, min_ns: sample.min, max_ns: sample.max })
    }
}

/// A formula of the card, with its range and the measured value.
#[derive(Clone, Debug, Serialize)]
pub struct Formula {
    /// The cost that the formula describes.
    pub measure: Measure,
    /// The formula in its written form.
    pub formula: &'static str,
    /// The least that the formula allows for one entry; delays in nanoseconds.
    pub min: f64,
    /// The most that the formula allows.
    pub max: f64,
    /// The measured mean.
    pub measured: Option<f64>,
}

impl Report {
    pub(super) fn new(
        scenario: &Scenario,
        card: &Card,
        size: Size,
        mut findings: Findings,
        outcome: &Outcome,
        seconds: f64,
    ) -> Self {
        findings.meter.close();
        starvation(&mut findings, outcome);
        let (meter, judge) = (&findings.meter, &findings.judge);
        let entries = judge.entries();
        let per_entry = |count: u64| if entries == 0 { 0.0 } else { count as f64 / entries as f64 };
        let client_delay = Delays::of(&meter.client_delay);
        let (one, high) = (Delays::of(&meter.sync_delay_one), Delays::of(&meter.sync_delay_high));
        let response_time = Delays::of(&meter.response_time);
        let (fairness, entries_per_site) = fairness(meter.entries_per_site());
        let simulated_s = outcome.at.0 as f64 / 1e9;
        let mut report = Self {
            facts: Facts::new(scenario, card, outcome, seconds, &judge.judgements(), findings.violations),
            quorum_size: (size.quorum_max < size.nodes || scenario.quorum.is_some())
                .then_some(size.quorum_max),
            load: scenario.load.to_string(),
            entries,
            messages_per_entry: per_entry(outcome.messages),
            messages_per_entry_min: if meter.per_entry.count == 0 { 0 } else { meter.per_entry.min },
            messages_per_entry_max: meter.per_entry.max,
            multicasts_per_entry: per_entry(meter.multicasts),
            messages_to_enter: per_entry(meter.enter_messages),
            messages_to_exit: per_entry(meter.exit_messages),
            messages_by_kind: meter.kinds.iter().copied().collect(),
            client_delay_ns: client_delay.map(|delay| delay.mean_ns),
            client_delay,
            sync_delay_ns: one.or(high).map(|delay| delay.mean_ns),
            sync_delay_one_waiting: one,
            sync_delay_high_load: high,
            response_time_ns: response_time.map(|delay| delay.mean_ns),
            response_time,
            throughput_per_s: if simulated_s > 0.0 { entries as f64 / simulated_s } else { 0.0 },
            order_inversions: judge.inversions(),
            max_bypass: meter.max_bypass,
            contended_requests: meter.contended,
            fairness,
            entries_per_site,
            formulas: Vec::new(),
        };
        report.formulas = report.formulas(scenario, card, size);
        report
    }

    /// Returns the card's formula and its range, as the text after the measured value.
    fn formula(&self, measure: Measure, show: impl Fn(f64) -> String) -> String {
        let formula = self.formulas.iter().find(|formula| formula.measure == measure);
        formula.map_or(String::new(), |formula| {
            format!("   {} = {}", formula.formula, range(formula.min, formula.max, show))
        })
    }

    fn formulas(&self, scenario: &Scenario, card: &Card, size: Size) -> Vec<Formula> {
        let load = if scenario.load == Work::Low { Load::Low } else { Load::High };
        let delay = time::nanos(scenario.setup.delay.mean()) as f64;
        let formula = |measure: Measure| {
            let cost = card.cost(measure, load)?;
            let (min, max) = (cost.range)(size);
            let (unit, measured) = match measure {
                Measure::MessagesPerEntry => (1.0, Some(self.messages_per_entry)),
                Measure::ClientDelay => (delay, self.client_delay_ns),
                Measure::SyncDelay => (delay, self.sync_delay_ns),
                Measure::Messages | Measure::Turnaround => return None,
            };
            Some(Formula { measure, formula: cost.formula, min: min * unit, max: max * unit, measured })
        };
        [Measure::MessagesPerEntry, Measure::ClientDelay, Measure::SyncDelay]
            .into_iter()
            .filter_map(formula)
            .collect()
    }
}

impl problem::Report for Report {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn subject(&self) -> String {
        let quorum = self.quorum_size.map_or(String::new(), |size| format!("K = {size}, "));
        format!("{quorum}load {}", self.load)
    }

    fn measured(&self) -> Vec<Measured> {
        let if_entered = |value: f64| Some(value).filter(|_| self.entries > 0);
        vec![
            Measured::number("messages per entry", if_entered(self.messages_per_entry)),
            Measured::time("client delay", self.client_delay_ns),
            Measured::time("sync delay", self.sync_delay_ns),
            Measured::time("response time", self.response_time_ns),
            Measured::number("max bypass", if_entered(self.max_bypass as f64)),
            Measured::time("simulated time", Some(self.facts.simulated_ns as f64)),
        ]
    }

    fn figures(&self) -> Vec<(&'static str, String)> {
        let kinds: Vec<_> =
            self.messages_by_kind.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        // A run without entries has no figure per entry.
        let if_entered = |text: String| if self.entries == 0 { "-".into() } else { text };
        let per_entry = if_entered(format!(
            "{} (min {}, max {}){}",
            number(self.messages_per_entry),
            self.messages_per_entry_min,
            self.messages_per_entry_max,
            self.formula(Measure::MessagesPerEntry, number)
        ));
        let delay = |measure, measured: Option<f64>| {
            format!("{}{}", measured.map_or("-".into(), nanos), self.formula(measure, nanos))
        };
        let (most, fewest) = self.entries_per_site;
        vec![
            ("entries", self.entries.to_string()),
            ("messages per entry", per_entry),
            (
                "  to enter, to exit",
                if_entered(format!("{}, {}", number(self.messages_to_enter), number(self.messages_to_exit))),
            ),
            ("  multicasts as one", if_entered(number(self.multicasts_per_entry))),
            ("  by kind", kinds.join(", ")),
            ("client delay", delay(Measure::ClientDelay, self.client_delay_ns)),
            ("sync delay", delay(Measure::SyncDelay, self.sync_delay_ns)),
            ("response time", self.response_time_ns.map_or("-".into(), nanos)),
            ("throughput", if_entered(format!("{} entries/s", number(self.throughput_per_s)))),
            ("max bypass", if_entered(self.max_bypass.to_string())),
            (
                "order inversions",
                self.order_inversions.map_or("not judged above 128 sites".into(), |n| n.to_string()),
            ),
            (
                "fairness",
                if_entered(format!("{} (entries per site: {fewest} to {most})", number(self.fairness))),
            ),
        ]
    }
}

/// Adds a violation of ME2 if a site still waits and no event is left. A bounded run proves nothing, because
/// a later event could grant the request.
fn starvation(findings: &mut Findings, outcome: &Outcome) {
    if outcome.end != End::Quiet || findings.unserved.is_empty() {
        return;
    }
    let shown = findings.unserved.iter().take(MOST_DESCRIBED).map(ToString::to_string).collect::<Vec<_>>();
    let wait = if shown.len() == 1 { "waits" } else { "wait" };
    let why = format!("{} still {wait}, and no event is left", shown.join(", "));
    findings.violations.push(Violation { property: ME2.name.into(), at: outcome.at, why });
}

/// Returns Jain's index, and the most and the fewest entries of a site.
fn fairness(entries: impl Iterator<Item = u64>) -> (f64, (u64, u64)) {
    let (mut count, mut sum, mut squares, mut most, mut fewest) = (0.0, 0.0, 0.0, 0, u64::MAX);
    for entries in entries {
        count += 1.0;
        sum += entries as f64;
        squares += entries as f64 * entries as f64;
        most = most.max(entries);
        fewest = fewest.min(entries);
    }
    let index = if squares > 0.0 { sum * sum / (count * squares) } else { 1.0 };
    (index, (most, fewest))
}
