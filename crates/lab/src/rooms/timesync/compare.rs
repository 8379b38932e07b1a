//! All tenants of the room on the same network: how wrong the clocks are over time, and how wrong they may be.

use conclave_kernel::Card;
use serde::Serialize;

use super::{Moment, Report, Scenario};
use crate::diagram::plot::{self, Axis, Formula, Plot, Point, Scale, Series};
use crate::room::{Scenario as _, run};

/// One tenant at one size.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The tenant's name.
    pub algorithm: &'static str,
    /// N.
    pub nodes: u32,
    /// From one comparison of clocks to the next, in nanoseconds: DTP's is its own.
    pub every_ns: u64,
    /// Its run.
    pub report: Report,
}

/// Runs one tenant at one size.
pub fn row(card: &'static Card, base: &Scenario, nodes: u32) -> Result<Row, String> {
    let mut scenario = base.clone();
    scenario.set_algorithm(card.name);
    scenario.setup.nodes = nodes;
    scenario.servers = scenario.servers.min(nodes.saturating_sub(1)).max(1);
    let every_ns = conclave_kernel::time::nanos(scenario.every);
    Ok(Row { algorithm: card.name, nodes, every_ns, report: run(&scenario)? })
}

/// So many marks a curve: each stands for the worst of its stretch.
const MARKS: usize = 40;

/// The error of the worst clock over time, and the promised bound as a dashed line. Time is counted in
/// comparisons, for DTP's are a hundred thousand times more frequent.
pub fn plot(rows: &[Row]) -> String {
    plot::draw(&Plot {
        title: "The worst clock over time, and the promised bound".into(),
        subtitle: "error against the true time, or difference within the group (berkeley, dtp); dashed: what the sites state".into(),
        x: Axis { name: "comparisons".into(), scale: Scale::Linear },
        y: Axis { name: "microseconds".into(), scale: Scale::Log },
        series: rows.iter().map(series).collect(),
    })
}

fn series(row: &Row) -> Series {
    let settled: Vec<_> = row.report.moments.iter().filter(|moment| moment.bound_ns.is_some()).collect();
    let stretches = || settled.chunks(settled.len().div_ceil(MARKS).max(1));
    let at =
        |stretch: &[&Moment]| stretch.first().map_or(0.0, |moment| moment.at_ns as f64 / row.every_ns as f64);
    // A log axis has no zero: what is exact to the nanosecond is drawn at one.
    let worst = |stretch: &[&Moment], of: fn(&Moment) -> u64| {
        stretch.iter().map(|moment| of(moment)).max().unwrap_or(0).max(1) as f64 / 1e3
    };
    let points = stretches().map(|stretch| Point {
        x: at(stretch),
        y: worst(stretch, |moment| moment.error_ns),
        range: None,
    });
    let bound =
        stretches().map(|stretch| (at(stretch), worst(stretch, |moment| moment.bound_ns.unwrap_or(0))));
    Series {
        name: row.algorithm.into(),
        points: points.collect(),
        formula: Some(Formula { text: "bound".into(), curves: vec![bound.collect()] }),
    }
}
