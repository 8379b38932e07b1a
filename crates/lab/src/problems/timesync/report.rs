//! The figures and the verdicts of one run.

use std::collections::BTreeMap;

use conclave_algorithms::timesync::spec;
use conclave_kernel::{Card, Violation};
use conclave_sim::Outcome;
use serde::Serialize;

use super::meter::{Meter, Moment};
use super::scenario::{Scenario, is_external};
use crate::problem::{self, Facts, nanos};

/// The result of one run. The fields are those of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The facts that the runs of all problems have.
    #[serde(flatten)]
    pub facts: Facts,
    /// The reference of errors: `truth`, or `group` if the algorithm only keeps the clocks together.
    pub reference: &'static str,
    /// The number of comparisons of a clock with the reference.
    pub synced: u64,
    /// The number of comparisons without a usable reply.
    pub missed: u64,
    /// The number of replies that were too far away to be used.
    pub panicked: u64,
    /// The number of times that a site became the leader.
    pub leaders: u64,
    /// Messages by kind.
    pub messages_by_kind: BTreeMap<&'static str, u64>,
    /// The number of moments at which all sites stated a bound.
    pub settled: u64,
    /// The number of settled moments at which the error was larger than the bound. A step causes such moments
    /// until the algorithm detects it.
    pub beyond: u64,
    /// The mean error of the worst clock, over the settled moments.
    pub error_mean_ns: Option<f64>,
    /// The largest error of the worst clock.
    pub error_max_ns: Option<u64>,
    /// The error of the worst clock at the end.
    pub error_last_ns: Option<u64>,
    /// The mean of the largest bound.
    pub bound_mean_ns: Option<f64>,
    /// The largest bound.
    pub bound_max_ns: Option<u64>,
    /// The largest bound at the end.
    pub bound_last_ns: Option<u64>,
    /// Error and bound over time.
    pub moments: Vec<Moment>,
}

impl Report {
    pub(super) fn new(
        scenario: &Scenario,
        card: &Card,
        mut meter: Meter,
        judge: &spec::Judge,
        mut violations: Vec<Violation>,
        outcome: &Outcome,
        seconds: f64,
    ) -> Self {
        meter.close();
        // A slewed clock runs fast on purpose, so its rate is no error.
        let concerns = |name: &str| name != spec::PACE.name || card.promises(name);
        violations.retain(|violation| concerns(&violation.property));
        let mut judged = judge.judgements().to_vec();
        judged.retain(|judgement| concerns(judgement.property.name));
        let settled: Vec<(u64, u64)> =
            meter.moments.iter().filter_map(|moment| Some((moment.error_ns, moment.bound_ns?))).collect();
        let mean = |of: fn(&(u64, u64)) -> u64| {
            let sum: f64 = settled.iter().map(|moment| of(moment) as f64).sum();
            (!settled.is_empty()).then(|| sum / settled.len() as f64)
        };
        Self {
            facts: Facts::new(scenario, card, outcome, seconds, &judged, violations),
            reference: if is_external(card) { "truth" } else { "group" },
            synced: meter.synced,
            missed: meter.missed,
            panicked: meter.panicked,
            leaders: meter.leaders,
            messages_by_kind: meter.kinds,
            settled: settled.len() as u64,
            beyond: settled.iter().filter(|(error, bound)| error > bound).count() as u64,
            error_mean_ns: mean(|moment| moment.0),
            error_max_ns: settled.iter().map(|moment| moment.0).max(),
            error_last_ns: settled.last().map(|moment| moment.0),
            bound_mean_ns: mean(|moment| moment.1),
            bound_max_ns: settled.iter().map(|moment| moment.1).max(),
            bound_last_ns: settled.last().map(|moment| moment.1),
            moments: meter.moments,
        }
    }
}

impl problem::Report for Report {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn figures(&self) -> Vec<(&'static str, String)> {
        let kinds: Vec<_> =
            self.messages_by_kind.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let three = |mean: Option<f64>, max: Option<u64>, last: Option<u64>| {
            let shown = |value: Option<f64>| value.map_or("-".into(), nanos);
            let of = |value: Option<u64>| shown(value.map(|value| value as f64));
            format!("{} on average, {} at most, {} at the end", shown(mean), of(max), of(last))
        };
        let error = if self.reference == "truth" { "worst error" } else { "largest difference" };
        let mut figures = vec![
            ("comparisons", format!("{}, and {} without a usable reply", self.synced, self.missed)),
            (error, three(self.error_mean_ns, self.error_max_ns, self.error_last_ns)),
            ("promised bound", three(self.bound_mean_ns, self.bound_max_ns, self.bound_last_ns)),
            ("settled", format!("{} of {} moments", self.settled, self.moments.len())),
            ("messages", format!("{}: {}", self.facts.messages, kinds.join(", "))),
        ];
        let steps = self.facts.ledger.steps;
        if self.beyond > 0 || steps > 0 {
            figures
                .push(("beyond the bound", format!("{} moments; {steps} clocks were stepped", self.beyond)));
        }
        if self.leaders > 0 {
            figures.push(("leaders", self.leaders.to_string()));
        }
        if self.panicked > 0 {
            figures.push(("rejected replies", self.panicked.to_string()));
        }
        figures
    }
}
