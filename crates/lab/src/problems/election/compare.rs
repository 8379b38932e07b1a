//! All algorithms of the election problem on the same work.

use std::time::Duration;

use conclave_algorithms::election;
use conclave_kernel::{Card, NodeId};
use conclave_sim::{Fault, FaultKind, Recovery};
use serde::Serialize;

use super::{Report, Scenario, Start};
use crate::diagram::plot::{self, Axis, Plot, Point, Scale, Series};
use crate::problem::{Facts, run};

/// One algorithm at one size: at boot, and after the crash of the leader.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// N.
    pub nodes: u32,
    /// At boot, the highest begins.
    pub boot_highest: Report,
    /// At boot, the lowest begins.
    pub boot_lowest: Report,
    /// At boot, all begin.
    pub boot_all: Report,
    /// The leader dies, and the highest of the rest notices.
    pub crash_highest: Report,
    /// The leader dies, and the lowest notices.
    pub crash_lowest: Report,
}

impl Row {
    /// Returns the facts of all runs.
    pub fn facts(&self) -> [&Facts; 5] {
        let all =
            [&self.boot_highest, &self.boot_lowest, &self.boot_all, &self.crash_highest, &self.crash_lowest];
        all.map(|report| &report.facts)
    }

    /// Returns whether every promised property held in all runs.
    pub fn passed(&self) -> bool {
        self.facts().iter().all(|facts| facts.passed())
    }
}

/// Runs one algorithm at one size.
pub fn row(card: &'static Card, base: &Scenario, nodes: u32) -> Result<Row, String> {
    let with = |start: Start, crash: bool| {
        let mut scenario = base.clone();
        card.name.clone_into(&mut scenario.algorithm);
        scenario.setup.nodes = nodes;
        scenario.start = start;
        if crash {
            scenario.setup.faults.push(leader_dies(&scenario));
        }
        run(&scenario)
    };
    Ok(Row {
        algorithm: card.name,
        nodes,
        boot_highest: with(Start::Highest, false)?,
        boot_lowest: with(Start::Lowest, false)?,
        boot_all: with(Start::All, false)?,
        crash_highest: with(Start::Highest, true)?,
        crash_lowest: with(Start::Lowest, true)?,
    })
}

/// The highest dies, long after everybody has elected it.
fn leader_dies(scenario: &Scenario) -> Fault {
    let group = scenario.group();
    let highest = group.candidates().max().map_or(NodeId(0), |candidate| candidate.site);
    let at = group.transmission.saturating_mul(10 * group.nodes) + Duration::from_secs(1);
    let kind = FaultKind::Crash { node: highest, recovery: Recovery::Stable };
    Fault { kind, at, until: None, demanded: true }
}

/// How the cost of replacing a dead leader grows with the group, if the lowest notices.
pub fn plot(rows: &[Row]) -> String {
    let series = |card: &Card| {
        let rows = rows.iter().filter(|row| row.algorithm == card.name);
        let point = |row: &Row| Point {
            x: f64::from(row.nodes),
            y: row.crash_lowest.messages_of_last as f64,
            range: None,
        };
        Series { name: card.name.into(), points: rows.map(point).collect(), formula: None }
    };
    let cards = election::CARDS.iter().filter(|card| rows.iter().any(|row| row.algorithm == card.name));
    plot::draw(&Plot {
        title: "Messages to replace a leader that died".into(),
        subtitle: "the lowest notices; heartbeats are not counted".into(),
        x: Axis { name: "sites, N".into(), scale: Scale::Log },
        y: Axis { name: "messages".into(), scale: Scale::Log },
        series: cards.map(series).collect(),
    })
}
