//! The comparison of the deadlock problem: all detectors on random requests, then all ways to handle
//! deadlocks on the same transactions.

use conclave_algorithms::deadlock::locking;
use conclave_algorithms::deadlock::site::Part;
use conclave_lab::problem::{self, Report as _, nanos};
use conclave_lab::problems::deadlock::{Detected, Locked, Report, Scenario, Work};
use conclave_lab::sweep;
use serde::Serialize;

use super::{Args, Compared, Verdict, cell};
use crate::output::{self, Failure, Paint, Table, number};

/// One row of the comparison.
#[derive(Serialize)]
#[serde(tag = "compares", rename_all = "snake_case")]
enum Row<'r> {
    /// A row for a detector.
    Detector(&'r Detected),
    /// A row for a way to lock: detection, prevention or avoidance.
    Strategy(&'r Locked),
}

impl<'r> From<&'r Report> for Row<'r> {
    fn from(report: &'r Report) -> Self {
        match report {
            Report::Detected(report) => Self::Detector(report),
            Report::Locked(report) => Self::Strategy(report),
        }
    }
}

/// Runs every detector and every way to lock, at each size.
pub fn compare(args: &Args) -> Result<Compared, Failure> {
    let cards = args.cards::<Work>()?;
    let sizes = args.sizes();
    let base: Scenario = args.base(sizes.iter().copied().max())?;
    let jobs: Vec<_> = sizes.iter().flat_map(|nodes| cards.iter().map(move |card| (*card, *nodes))).collect();
    let bar = output::progress(jobs.len() as u64, "comparing");
    let reports = sweep::sweep(
        0..jobs.len() as u64,
        |job| {
            let (card, nodes) = jobs[job as usize];
            let mut scenario = base.clone();
            card.name.clone_into(&mut scenario.algorithm);
            scenario.world.nodes = nodes;
            if locking::CARDS.iter().any(|way| way.name == card.name) {
                // These two flags concern detectors only.
                (scenario.work.model, scenario.work.detect_only) = (None, false);
            }
            problem::run(&scenario)
        },
        |_| bar.inc(1),
    );
    bar.finish_and_clear();
    let reports = reports.into_iter().collect::<Result<Vec<_>, String>>()?;
    let verdicts: Vec<_> = reports.iter().map(|report| Verdict::of(&[report.facts()])).collect();
    let text = tables(&sizes, &reports);
    let rows: Vec<Row<'_>> = reports.iter().map(Row::from).collect();
    Compared::new(&rows, text, None, &verdicts)
}

fn tables(sizes: &[u32], reports: &[Report]) -> String {
    let paint = Paint::stdout();
    let mut text = String::new();
    for nodes in sizes {
        let here = || reports.iter().filter(|report| report.facts().nodes == *nodes);
        let detected = here().filter_map(|report| match report {
            Report::Detected(report) => Some(&**report),
            Report::Locked(_) => None,
        });
        let locked = here().filter_map(|report| match report {
            Report::Detected(_) => None,
            Report::Locked(report) => Some(&**report),
        });
        let parts = [
            (format!("deadlock detection, N = {nodes}"), detectors(detected)),
            (format!("ways to handle deadlocks, {nodes} clients"), ways(locked)),
        ];
        for (title, table) in parts.into_iter().filter_map(|(title, table)| Some((title, table?))) {
            text.push_str(&paint.bold(&title));
            text.push_str("\n\n");
            text.push_str(&table.render(paint));
            text.push('\n');
        }
    }
    text.push_str(
        "msgs/request: messages of the detector; late: declared after an abort had ended the deadlock;\n\
         phantoms: declared, although the process could proceed; for nothing: aborted, although the process could\n\
         proceed; found after: the time from the request that completed the deadlock\n",
    );
    text.push_str(
        "wait: the time for which a transaction waits for locks; wasted: the share of the work that aborts discard;\n\
         msgs: messages per transaction; detect, resolve: the part of them that detects and resolves deadlocks (DIE,\n\
         WOUND)\n",
    );
    text
}

fn detectors<'r>(reports: impl Iterator<Item = &'r Detected>) -> Option<Table> {
    let mut reports = reports.peekable();
    reports.peek()?;
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
        let facts = &report.facts;
        table.row(vec![
            facts.algorithm.clone(),
            report.model.to_string(),
            report.deadlocks.to_string(),
            report.aborted.to_string(),
            report.declared_late.to_string(),
            cell(report.requests > 0, &number(report.detection_per_request)),
            report.found_after_ns.map_or("-".into(), nanos),
            cell(report.declared > 0, &report.phantoms),
            cell(report.aborted > 0, &report.needless_aborts),
            Verdict::of(&[facts]).cell(),
        ]);
    }
    Some(table)
}

fn ways<'r>(reports: impl Iterator<Item = &'r Locked>) -> Option<Table> {
    let mut reports = reports.peekable();
    reports.peek()?;
    let mut table =
        Table::new(&["way", "commits/s", "aborts", "wait", "wasted", "msgs", "detect", "resolve", "verdict"]);
    for report in reports {
        let committed = report.commits > 0;
        table.row(vec![
            report.facts.algorithm.clone(),
            cell(committed, &number(report.throughput_per_s)),
            report.aborts.to_string(),
            report.wait_ns.map_or("-".into(), nanos),
            cell(committed, &format!("{}%", number(100.0 * report.wasted))),
            report.messages_per_commit.map_or("-".into(), number),
            cell(committed, &number(report.part_per_commit(Part::Detection))),
            cell(committed, &number(report.part_per_commit(Part::Resolution))),
            Verdict::of(&[&report.facts]).cell(),
        ]);
    }
    Some(table)
}
