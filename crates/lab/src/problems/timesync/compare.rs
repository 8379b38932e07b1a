//! The comparison of the timesync problem: the errors of the clocks over time, with the promised bounds.

use std::time::Duration;

use conclave_kernel::{Card, time};
use serde::Serialize;

use super::{Report, Scenario, Work};
use crate::compare::{self, Column, Compare, Table, Verdict};
use crate::diagram::bounds::{self, Bounds, Moment, Panel};
use crate::problem::{Problem as _, nanos, run};

/// One algorithm at one size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// N.
    pub nodes: u32,
    /// From one comparison of clocks to the next, in nanoseconds: DTP's is its own.
    pub every_ns: u64,
    /// Its run.
    pub report: Report,
}

impl Compare for Work {
    type Row = Row;

    const LEGEND: &'static str = "\
error: of the worst clock, against the true time (truth) or another clock (group); mean and largest over time
bound: the bound that the sites promise, at the same moments; settled: the moments at which every site promises
a bound
";

    fn settings(_: &'static Card, base: &Scenario, nodes: u32, _: &dyn Fn(&str) -> bool) -> Vec<Scenario> {
        let mut run = base.clone();
        run.world.nodes = nodes;
        vec![run]
    }

    fn row(card: &'static Card, run: &Scenario) -> Result<Row, String> {
        row(card, run, run.world.nodes)
    }

    fn verdict(row: &Row) -> Verdict {
        Verdict::of(&[&row.report.facts])
    }

    fn tables(rows: &[Row], _: &Scenario) -> Vec<Table> {
        let mean = |ns: Option<f64>| ns.map_or("-".into(), nanos);
        let most = |ns: Option<u64>| mean(ns.map(|ns| ns as f64));
        let columns: [Column<'_, Row>; 11] = [
            ("algorithm", &|row| row.algorithm.to_owned()),
            ("against", &|row| row.report.reference.to_owned()),
            ("every", &|row| time::show(Duration::from_nanos(row.every_ns))),
            ("error", &|row| mean(row.report.error_mean_ns)),
            ("largest", &|row| most(row.report.error_max_ns)),
            ("bound", &|row| mean(row.report.bound_mean_ns)),
            ("largest", &|row| most(row.report.bound_max_ns)),
            ("settled", &|row| format!("{}/{}", row.report.settled, row.report.moments.len())),
            ("missed", &|row| row.report.missed.to_string()),
            ("messages", &|row| row.report.facts.messages.to_string()),
            ("verdict", &|row| Self::verdict(row).cell()),
        ];
        compare::by_size(rows, |row| row.nodes, |nodes| format!("timesync, N = {nodes}"), &columns)
    }

    /// The plot shows the largest size.
    fn plot(rows: &[Row], _: &Scenario) -> Result<String, String> {
        let largest = rows.iter().map(|row| row.nodes).max().unwrap_or(0);
        let shown: Vec<Row> = rows.iter().filter(|row| row.nodes == largest).cloned().collect();
        Ok(plot(&shown))
    }
}

/// Runs one algorithm at one size.
pub fn row(card: &'static Card, base: &Scenario, nodes: u32) -> Result<Row, String> {
    let mut scenario = base.clone();
    Work::choose(&mut scenario, card.name);
    scenario.world.nodes = nodes;
    scenario.work.servers = scenario.work.servers.min(nodes.saturating_sub(1)).max(1);
    let every_ns = time::nanos(scenario.work.every);
    Ok(Row { algorithm: card.name, nodes, every_ns, report: run(&scenario)? })
}

/// The error of the worst clock over time, under the promised bound: a panel for each algorithm.
pub fn plot(rows: &[Row]) -> String {
    let nodes = rows.first().map_or(0, |row| row.nodes);
    bounds::draw(&Bounds {
        title: "How wrong the worst clock is, and how wrong it may be".into(),
        subtitle: format!("{nodes} sites, log scale; panels with the same unit of time have the same axes"),
        measured: "error of the worst clock, or the largest difference in the group".into(),
        panels: rows.iter().map(panel).collect(),
    })
}

fn panel(row: &Row) -> Panel {
    let against = if row.report.reference == "truth" { "against the true time" } else { "within the group" };
    let every = time::show(Duration::from_nanos(row.every_ns));
    let moment = |moment: &super::Moment| Moment {
        at_ns: moment.at_ns as f64,
        measured_ns: moment.error_ns as f64,
        bound_ns: moment.bound_ns.map(|ns| ns as f64),
    };
    Panel {
        name: row.algorithm.into(),
        note: format!("{against}, compared every {every}"),
        moments: row.report.moments.iter().map(moment).collect(),
    }
}
