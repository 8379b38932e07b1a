//! The deadlock room compared: every detector on random requests, then what to do instead of detecting.

use std::time::Duration;

use conclave_lab::room::{self, Report as _, Scenario as _, nanos};
use conclave_lab::rooms::deadlock::strategy::{self, Load, Outcome, Strategy};
use conclave_lab::rooms::deadlock::{Report, Scenario};
use conclave_lab::sweep;
use serde::Serialize;

use super::{Args, Compared};
use crate::output::{self, Failure, Paint, Table, number};

/// One row of the comparison.
#[derive(Serialize)]
#[serde(tag = "compares", rename_all = "snake_case")]
enum Row {
    /// A detector.
    Detector(Box<Report>),
    /// A way to lock, with as many clients as the group has sites.
    Strategy {
        nodes: u32,
        #[serde(flatten)]
        outcome: Outcome,
    },
}

/// Runs every detector at each size, and every strategy.
pub fn compare(args: &Args) -> Result<Compared, Failure> {
    let cards = args.cards::<Scenario>()?;
    let sizes = args.sizes();
    let base: Scenario = args.base(sizes.iter().copied().max())?;
    let jobs: Vec<_> = sizes.iter().flat_map(|nodes| cards.iter().map(move |card| (*card, *nodes))).collect();
    let bar = output::progress(jobs.len() as u64, "comparing");
    let reports = sweep::sweep(
        0..jobs.len() as u64,
        |job| {
            let (card, nodes) = jobs[job as usize];
            let mut scenario = base.clone();
            scenario.set_algorithm(card.name);
            scenario.setup.nodes = nodes;
            room::run(&scenario)
        },
        |_| bar.inc(1),
    );
    bar.finish_and_clear();
    let reports = reports.into_iter().collect::<Result<Vec<_>, String>>()?;
    let strategies: Vec<(u32, Outcome)> = sizes
        .iter()
        .flat_map(|nodes| {
            Strategy::ALL.map(|strategy| (*nodes, strategy::run(strategy, load(args.seed, *nodes))))
        })
        .collect();
    let passed = reports.iter().all(|report| report.facts().passed())
        && strategies.iter().all(|(_, outcome)| outcome.stuck == 0);
    let text = tables(&sizes, &reports, &strategies);
    let detectors = reports.into_iter().map(|report| Row::Detector(Box::new(report)));
    let strategies = strategies.into_iter().map(|(nodes, outcome)| Row::Strategy { nodes, outcome });
    let rows: Vec<Row> = detectors.chain(strategies).collect();
    Compared::new(&rows, text, None, passed)
}

/// Contended, but not hopeless: four locks of one and a half times as many as there are clients.
fn load(seed: u64, clients: u32) -> Load {
    let locks = (clients.saturating_mul(3) / 2).max(4);
    Load { clients, locks, per_transaction: 4, transactions: 100, work: Duration::from_millis(1), seed }
}

fn tables(sizes: &[u32], reports: &[Report], strategies: &[(u32, Outcome)]) -> String {
    let paint = Paint::stdout();
    let mut text = String::new();
    for nodes in sizes {
        text.push_str(&paint.bold(&format!("deadlock detection, N = {nodes}")));
        text.push_str("\n\n");
        text.push_str(&detectors(reports.iter().filter(|report| report.facts.nodes == *nodes)).render(paint));
        text.push('\n');
        text.push_str(&paint.bold(&format!("what to do about deadlocks, {nodes} clients")));
        text.push_str("\n\n");
        let outcomes = strategies.iter().filter(|(clients, _)| clients == nodes);
        text.push_str(&ways(outcomes.map(|(_, outcome)| outcome)).render(paint));
        text.push('\n');
    }
    text.push_str("msgs/request: the detector's own; phantoms: declared although it could proceed; for nothing: aborted although; found after: from the request that closed it\n");
    text.push_str("wait: for locks, a transaction; wasted: work thrown away by aborts\n");
    text
}

fn detectors<'r>(reports: impl Iterator<Item = &'r Report>) -> Table {
    let mut table = Table::new(&[
        "detector",
        "requests",
        "deadlocks",
        "aborted",
        "late",
        "msgs/request",
        "found after",
        "phantoms",
        "for nothing",
        "verdict",
    ]);
    for report in reports {
        let facts = report.facts();
        table.row(vec![
            facts.algorithm.clone(),
            report.model.to_string(),
            report.deadlocks.to_string(),
            report.aborted.to_string(),
            report.declared_late.to_string(),
            number(report.detection_per_request),
            report.found_after_ns.map_or("-".into(), nanos),
            report.phantoms.to_string(),
            report.needless_aborts.to_string(),
            if facts.passed() { "holds".into() } else { "violated".into() },
        ]);
    }
    table
}

fn ways<'o>(outcomes: impl Iterator<Item = &'o Outcome>) -> Table {
    let mut table = Table::new(&["strategy", "commits/s", "aborts", "wait", "wasted", "waits"]);
    for outcome in outcomes {
        table.row(vec![
            outcome.strategy.to_owned(),
            number(outcome.throughput_per_s),
            outcome.aborts.to_string(),
            nanos(outcome.wait_ns),
            format!("{}%", number(100.0 * outcome.wasted)),
            outcome.waits.to_string(),
        ]);
    }
    table
}
