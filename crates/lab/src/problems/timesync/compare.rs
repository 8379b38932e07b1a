//! All algorithms of the problem on the same network: how wrong the clocks are over time, and how wrong they may be.

use std::time::Duration;

use conclave_kernel::{Card, time};
use serde::Serialize;

use super::{Report, Scenario, Work};
use crate::diagram::bounds::{self, Bounds, Moment, Panel};
use crate::problem::{Problem as _, run};

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
