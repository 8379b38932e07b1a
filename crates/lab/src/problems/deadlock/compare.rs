//! The comparison of the deadlock problem: all detectors on random requests, and all ways to handle deadlocks
//! on the same transactions.

use conclave_algorithms::deadlock::locking;
use conclave_algorithms::deadlock::site::Part;
use conclave_kernel::Card;
use serde::Serialize;

use super::{Detected, Locked, Report, Scenario, Work};
use crate::compare::{Column, Compare, Table, Verdict, cell};
use crate::problem::{nanos, number, run};

/// One row of the comparison.
#[derive(Serialize)]
#[serde(tag = "compares", rename_all = "snake_case")]
pub enum Row {
    /// A row for a detector.
    Detector(Box<Detected>),
    /// A row for a way to lock: detection, prevention or avoidance.
    Strategy(Box<Locked>),
}

impl Row {
    fn nodes(&self) -> u32 {
        match self {
            Self::Detector(report) => report.facts.nodes,
            Self::Strategy(report) => report.facts.nodes,
        }
    }
}

impl Compare for Work {
    type Row = Row;

    const LEGEND: &'static str = "\
msgs/request: messages of the detector; late: declared after an abort had ended the deadlock;
phantoms: declared, although the process could proceed; for nothing: aborted, although the process could
proceed; found after: the time from the request that completed the deadlock
wait: the time for which a transaction waits for locks; wasted: the share of the work that aborts discard;
msgs: messages per transaction; detect, resolve: the part of them that detects and resolves deadlocks (DIE,
WOUND)
";

    fn settings(card: &'static Card, base: &Scenario, nodes: u32, _: &dyn Fn(&str) -> bool) -> Vec<Scenario> {
        let mut run = Scenario { algorithm: card.name.into(), ..base.clone() };
        run.world.nodes = nodes;
        if locking::CARDS.iter().any(|way| way.name == card.name) {
            // These two flags concern detectors only.
            (run.work.model, run.work.detect_only) = (None, false);
        }
        vec![run]
    }

    fn row(_: &'static Card, scenario: &Scenario) -> Result<Row, String> {
        Ok(match run(scenario)? {
            Report::Detected(report) => Row::Detector(report),
            Report::Locked(report) => Row::Strategy(report),
        })
    }

    fn verdict(row: &Row) -> Verdict {
        match row {
            Row::Detector(report) => Verdict::of(&[&report.facts]),
            Row::Strategy(report) => Verdict::of(&[&report.facts]),
        }
    }

    fn tables(rows: &[Row], _: &Scenario) -> Vec<Table> {
        let sizes = rows.chunk_by(|one, next| one.nodes() == next.nodes());
        let tables = sizes.flat_map(|rows| [detectors(rows), ways(rows)]);
        tables.filter(|table| !table.rows.is_empty()).collect()
    }
}

fn detectors(rows: &[Row]) -> Table {
    let columns: [Column<'_, Detected>; 10] = [
        ("detector", &|report| report.facts.algorithm.clone()),
        ("requests", &|report| report.model.to_string()),
        ("deadlocks", &|report| report.deadlocks.to_string()),
        ("aborted", &|report| report.aborted.to_string()),
        ("late", &|report| report.declared_late.to_string()),
        ("msgs/request", &|report| cell(report.requests > 0, &number(report.detection_per_request))),
        ("found after", &|report| report.found_after_ns.map_or("-".into(), nanos)),
        ("phantoms", &|report| cell(report.declared > 0, &report.phantoms)),
        ("for nothing", &|report| cell(report.aborted > 0, &report.needless_aborts)),
        ("verdict", &|report| Verdict::of(&[&report.facts]).cell()),
    ];
    let nodes = rows.first().map_or(0, Row::nodes);
    let reports = rows.iter().filter_map(|row| match row {
        Row::Detector(report) => Some(&**report),
        Row::Strategy(_) => None,
    });
    Table::of(format!("deadlock detection, N = {nodes}"), &columns, reports)
}

fn ways(rows: &[Row]) -> Table {
    let part = |report: &Locked, part| cell(report.commits > 0, &number(report.part_per_commit(part)));
    let columns: [Column<'_, Locked>; 9] = [
        ("way", &|report| report.facts.algorithm.clone()),
        ("commits/s", &|report| cell(report.commits > 0, &number(report.throughput_per_s))),
        ("aborts", &|report| report.aborts.to_string()),
        ("wait", &|report| report.wait_ns.map_or("-".into(), nanos)),
        ("wasted", &|report| cell(report.commits > 0, &format!("{}%", number(100.0 * report.wasted)))),
        ("msgs", &|report| report.messages_per_commit.map_or("-".into(), number)),
        ("detect", &|report| part(report, Part::Detection)),
        ("resolve", &|report| part(report, Part::Resolution)),
        ("verdict", &|report| Verdict::of(&[&report.facts]).cell()),
    ];
    let nodes = rows.first().map_or(0, Row::nodes);
    let reports = rows.iter().filter_map(|row| match row {
        Row::Detector(_) => None,
        Row::Strategy(report) => Some(&**report),
    });
    Table::of(format!("ways to handle deadlocks, {nodes} clients"), &columns, reports)
}
