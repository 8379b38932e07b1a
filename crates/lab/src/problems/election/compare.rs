//! The comparison of the election problem: at boot, and after the crash of the leader.

use std::time::Duration;

use conclave_algorithms::election;
use conclave_kernel::{Card, NodeId, time};
use conclave_sim::{Fault, FaultKind, Recovery};
use serde::Serialize;

use super::{Report, Scenario, Start, Work};
use crate::compare::{self, Column, Compare, Table, Verdict, cell};
use crate::diagram::plot::{self, Axis, Plot, Point, Scale, Series};
use crate::problem::{Facts, number, run};

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

impl Compare for Work {
    type Row = Row;

    const LEGEND: &'static str = "\
boot: messages of the first election, by the site that begins
crash: the leader crashes (the highest site that --crash leaves up); messages to replace it, by the site
that notices the crash; time: from the crash until the last site has decided
background: messages per second that do not depend on an election, such as heartbeats
";

    fn row(card: &'static Card, run: &Scenario) -> Result<Row, String> {
        row(card, run, run.world.nodes)
    }

    fn verdict(row: &Row) -> Verdict {
        Verdict::of(&row.facts())
    }

    fn tables(rows: &[Row], _: &Scenario) -> Vec<Table> {
        let messages = |report: &Report| cell(report.elections > 0, &report.messages_of_last);
        let took = |report: &Report| {
            report.turnaround_of_last_ns.map_or("-".into(), |ns| time::show(Duration::from_nanos(ns)))
        };
        let columns: [Column<'_, Row>; 10] = [
            ("algorithm", &|row| row.algorithm.to_owned()),
            ("boot highest", &|row| messages(&row.boot_highest)),
            ("boot lowest", &|row| messages(&row.boot_lowest)),
            ("boot all", &|row| messages(&row.boot_all)),
            ("crash highest", &|row| messages(&row.crash_highest)),
            ("time", &|row| took(&row.crash_highest)),
            ("crash lowest", &|row| messages(&row.crash_lowest)),
            ("time", &|row| took(&row.crash_lowest)),
            ("background/s", &|row| number(row.crash_lowest.background_messages_per_s)),
            ("verdict", &|row| Self::verdict(row).cell()),
        ];
        compare::by_size(rows, |row| row.nodes, |nodes| format!("election, N = {nodes}"), &columns)
    }

    fn plot(rows: &[Row], _: &Scenario) -> Result<String, String> {
        Ok(plot(rows))
    }
}

/// Runs one algorithm at one size. The error names the size, because a fault of `base` may fit other sizes
/// only.
pub fn row(card: &'static Card, base: &Scenario, nodes: u32) -> Result<Row, String> {
    try_row(card, base, nodes).map_err(|error| format!("election with {nodes} nodes: {error}"))
}

fn try_row(card: &'static Card, base: &Scenario, nodes: u32) -> Result<Row, String> {
    let named = base.world.faults.iter().flat_map(|fault| fault.nodes().iter().collect::<Vec<_>>());
    if let Some(stranger) = named.max().filter(|node| node.0 >= nodes) {
        let (stranger, last) = (stranger.0, nodes - 1);
        return Err(format!(
            "there is no node {stranger}: the nodes are 0 to {last}; name a node of every size, or leave this size out"
        ));
    }
    let with = |start: Start, crash: bool| {
        let mut scenario = base.clone();
        card.name.clone_into(&mut scenario.algorithm);
        scenario.world.nodes = nodes;
        scenario.work.start = start;
        if crash {
            let crash = leader_dies(&scenario)?;
            scenario.world.faults.push(crash);
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

/// The crash of the leader, long after every site has elected it. The leader is the highest site that the
/// faults of the scenario leave up at that time.
fn leader_dies(scenario: &Scenario) -> Result<Fault, String> {
    let group = scenario.group();
    let at = group.transmission.saturating_mul(10 * group.nodes) + Duration::from_secs(1);
    let crashes_of = |site: NodeId| {
        let of_site =
            move |fault: &&Fault| matches!(fault.kind, FaultKind::Crash { node, .. } if node == site);
        scenario.world.faults.iter().filter(of_site)
    };
    let is_down = |crash: &Fault| crash.at <= at && crash.until.is_none_or(|until| until > at);
    let mut up = group.candidates().filter(|candidate| !crashes_of(candidate.site).any(is_down));
    let leader = up.by_ref().max().map(|candidate| candidate.site);
    let leader =
        leader.ok_or("every site crashes before the leader is to crash: leave at least 2 sites up")?;
    let at_text = time::show(at);
    if let Some(later) = crashes_of(leader).find(|crash| crash.at > at) {
        return Err(format!(
            "the comparison crashes the leader {leader} at {at_text}, before {later}: give an earlier time, or another site"
        ));
    }
    let kind = FaultKind::Crash { node: leader, recovery: Recovery::Stable };
    Ok(Fault { kind, at, until: None, demanded: true })
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
