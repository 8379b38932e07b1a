//! The comparison of the snapshot problem: one site or all sites start it, with the measured costs beside the
//! formulas.

use std::time::Duration;

use conclave_algorithms::snapshot;
use conclave_kernel::{Card, Load, Measure, NodeId, Size, time};
use serde::Serialize;

use super::{Report, Scenario, Shot, Work};
use crate::compare::{Column, Compare, Table, Verdict, cell};
use crate::problem::{Facts, number, run};

/// One algorithm at one size: one site starts, and all start at once.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// N.
    pub nodes: u32,
    /// One site starts.
    pub one: Report,
    /// All sites start at the same moment.
    pub all: Report,
    /// Its card.
    #[serde(skip)]
    pub card: &'static Card,
}

impl Row {
    /// Returns the facts of both runs.
    pub fn facts(&self) -> [&Facts; 2] {
        [&self.one.facts, &self.all.facts]
    }

    /// Returns whether every promised property held in both runs.
    pub fn passed(&self) -> bool {
        self.facts().iter().all(|facts| facts.passed())
    }

    /// The formula of the card, and the range that it gives.
    pub fn formula(&self, measure: Measure, load: Load) -> Option<(&'static str, f64, f64)> {
        let size = Size { nodes: self.nodes, quorum_min: self.nodes, quorum_max: self.nodes };
        let cost = self.card.cost(measure, load)?;
        let (min, max) = (cost.range)(size);
        Some((cost.formula, min, max))
    }
}

impl Compare for Work {
    type Row = Row;

    const LEGEND: &'static str = "\
messages: of one snapshot, without those of the application; one, all: the sites that start it; on the way:
recorded messages in channels; T: the mean delay
";

    fn row(card: &'static Card, run: &Scenario) -> Result<Row, String> {
        row(card, run, run.world.nodes)
    }

    fn verdict(row: &Row) -> Verdict {
        Verdict::of(&row.facts())
    }

    fn tables(rows: &[Row], base: &Scenario) -> Vec<Table> {
        let delay = base.world.delay.mean();
        let formula = |measure, load| {
            move |row: &Row| row.formula(measure, load).map_or("-", |(formula, ..)| formula).to_owned()
        };
        let has_picture = |row: &Row| !row.one.snapshots.is_empty();
        let on_the_way = |report: &Report| -> usize {
            let channels = report.snapshots.iter().flat_map(|shown| &shown.channels);
            channels.map(|channel| channel.messages.len()).sum()
        };
        let columns: [Column<'_, Row>; 10] = [
            ("algorithm", &|row| row.algorithm.to_owned()),
            ("N", &|row| row.nodes.to_string()),
            ("messages", &|row| cell(has_picture(row), &number(row.one.messages_per_snapshot))),
            ("formula", &formula(Measure::Messages, Load::Low)),
            ("turnaround, one", &|row| turnaround(&row.one, delay)),
            ("formula", &formula(Measure::Turnaround, Load::Low)),
            ("all", &|row| turnaround(&row.all, delay)),
            ("formula", &formula(Measure::Turnaround, Load::High)),
            ("on the way", &|row| cell(has_picture(row), &on_the_way(&row.one))),
            ("verdict", &|row| Self::verdict(row).cell()),
        ];
        vec![Table::of("", &columns, rows)]
    }
}

fn turnaround(report: &Report, delay: Duration) -> String {
    let Some(ns) = report.snapshots.first().and_then(|shown| shown.turnaround_ns) else { return "-".into() };
    if delay.is_zero() {
        return time::show(Duration::from_nanos(ns));
    }
    format!("{}T", number(ns as f64 / time::nanos(delay) as f64))
}

/// Runs one algorithm at one size.
pub fn row(card: &'static Card, base: &Scenario, nodes: u32) -> Result<Row, String> {
    let with = |starters: u32| {
        let mut scenario = base.clone();
        card.name.clone_into(&mut scenario.algorithm);
        scenario.world.nodes = nodes;
        let at = scenario.shots().first().map_or_else(Default::default, |shot| shot.at);
        scenario.work.snapshots = vec![Shot { at, nodes: (0..starters).map(NodeId).collect() }];
        run(&scenario)
    };
    Ok(Row { algorithm: card.name, nodes, one: with(1)?, all: with(nodes)?, card })
}

/// The algorithms' cards.
pub fn cards() -> &'static [Card] {
    snapshot::CARDS
}
