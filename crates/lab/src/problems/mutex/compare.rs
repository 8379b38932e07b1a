//! The comparison of the mutex problem: three loads, with the measured costs beside the formulas.

use std::time::Duration;

use conclave_algorithms::mutex;
use conclave_kernel::{Card, Load, Measure, time};
use serde::Serialize;

use super::scenario::uses_quorums;
use super::{Report, Scenario, Work, Workload, size_at};
use crate::compare::{self, Column, Compare, Table, Verdict, cell};
use crate::diagram::plot::{self, Axis, Formula, Plot, Point, Scale, Series};
use crate::problem::{Facts, number, run};

/// One algorithm at one size: its runs under the three loads that the formulas speak of.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// N.
    pub nodes: u32,
    /// One request at a time.
    pub low: Report,
    /// Two at a time, with a stay inside that is long enough for the second to be known everywhere.
    pub pair: Report,
    /// Every site always has one pending.
    pub high: Report,
    /// Its card.
    #[serde(skip)]
    pub card: &'static Card,
}

impl Row {
    /// Returns the facts of all three runs.
    pub fn facts(&self) -> [&Facts; 3] {
        [&self.low, &self.pair, &self.high].map(|report| &report.facts)
    }

    /// Returns whether every promised property held in all three runs.
    pub fn passed(&self) -> bool {
        self.facts().iter().all(|facts| facts.passed())
    }

    /// The formula of the card, and the range that it gives, if the card states one.
    pub fn formula(&self, measure: Measure, load: Load) -> Option<(&'static str, f64, f64)> {
        let report = if load == Load::Low { &self.low } else { &self.high };
        let formula = report.formulas.iter().find(|formula| formula.measure == measure)?;
        Some((formula.formula, formula.min, formula.max))
    }
}

impl Compare for Work {
    type Row = Row;

    const LEGEND: &'static str = "\
msgs: messages per entry, the measured mean beside the formula; low: one request at a time; high: every
site always has a request
client: from a request to its entry, without other requests; sync: from an exit to the next entry, with one
site waiting; bypass: the most entries of other sites between a request and its entry; Jain: fairness, 1 is
best (both at high load)
";

    /// If the user gave no number of requests, every site has two turns.
    fn settings(
        card: &'static Card,
        base: &Scenario,
        nodes: u32,
        is_given: &dyn Fn(&str) -> bool,
    ) -> Vec<Scenario> {
        let mut run = Scenario { algorithm: card.name.into(), ..base.clone() };
        run.world.nodes = nodes;
        if !is_given("entries") && base.work.entries == Self::default().entries {
            run.work.entries = two_turns(nodes);
        }
        vec![run]
    }

    fn row(card: &'static Card, run: &Scenario) -> Result<Row, String> {
        row(card, run, run.world.nodes)
    }

    fn verdict(row: &Row) -> Verdict {
        Verdict::of(&row.facts())
    }

    fn tables(rows: &[Row], base: &Scenario) -> Vec<Table> {
        let delay = base.world.delay.mean();
        let first = |measure, load| {
            move |row: &Row| row.formula(measure, load).map_or("-".into(), |(formula, ..)| brief(formula))
        };
        let delays = |ns: Option<f64>| ns.map_or("-".into(), |ns| in_delays(ns, delay));
        let high = |row: &Row, figure: &dyn ToString| cell(row.high.entries > 0, &figure.to_string());
        let columns: [Column<'_, Row>; 14] = [
            ("algorithm", &|row| row.algorithm.to_owned()),
            ("msgs low", &|row| per_entry(&row.low)),
            ("formula", &first(Measure::MessagesPerEntry, Load::Low)),
            ("msgs high", &|row| per_entry(&row.high)),
            ("formula", &first(Measure::MessagesPerEntry, Load::High)),
            ("client", &|row| delays(row.low.client_delay_ns)),
            ("formula", &first(Measure::ClientDelay, Load::Low)),
            ("sync", &|row| delays(row.pair.sync_delay_ns)),
            ("formula", &first(Measure::SyncDelay, Load::High)),
            ("entries/s", &|row| high(row, &number(row.high.throughput_per_s.round()))),
            ("bypass", &|row| high(row, &row.high.max_bypass)),
            ("Jain", &|row| high(row, &number(row.high.fairness))),
            ("ME3 inv.", &|row| row.high.order_inversions.map_or("-".into(), |count| high(row, &count))),
            ("verdict", &|row| Self::verdict(row).cell()),
        ];
        let title = |nodes| format!("mutex, N = {nodes}, T = {}", time::show(delay));
        let tables = compare::by_size(rows, |row| row.nodes, title, &columns);
        growth(rows).into_iter().chain(tables).collect()
    }

    fn plot(rows: &[Row], _: &Scenario) -> Result<String, String> {
        Ok(plot(rows))
    }
}

/// The messages per entry by group size; `None` if there is one size.
fn growth(rows: &[Row]) -> Option<Table> {
    let mut sizes: Vec<u32> = rows.iter().map(|row| row.nodes).collect();
    sizes.dedup();
    let first = *sizes.first().filter(|_| sizes.len() > 1)?;
    let mut headings = vec!["algorithm".to_owned()];
    headings.extend(sizes.iter().map(|nodes| format!("N = {nodes}")));
    headings.push("formula".into());
    let cells = |first: &Row| {
        let same = rows.iter().filter(|row| row.algorithm == first.algorithm);
        let formula = first.formula(Measure::MessagesPerEntry, Load::Low);
        let formula = formula.map_or("-".into(), |(formula, ..)| brief(formula));
        let measured = same.map(|row| per_entry(&row.low));
        [first.algorithm.to_owned()].into_iter().chain(measured).chain([formula]).collect()
    };
    let title = "messages per entry by group size, one request at a time".into();
    Some(Table { title, headings, rows: rows.iter().filter(|row| row.nodes == first).map(cells).collect() })
}

fn per_entry(report: &Report) -> String {
    cell(report.entries > 0, &number(report.messages_per_entry))
}

/// A formula without the remarks that follow it.
fn brief(formula: &str) -> String {
    let remarks = [", ", " ("].iter().filter_map(|mark| formula.find(mark)).min();
    formula[..remarks.unwrap_or(formula.len())].to_owned()
}

fn in_delays(ns: f64, delay: Duration) -> String {
    if delay.is_zero() {
        return time::show(Duration::from_nanos(ns as u64));
    }
    format!("{}T", number(ns / time::nanos(delay) as f64))
}

/// The number of requests with which every site of a group has two turns, or the default number if
/// that is larger.
pub fn two_turns(nodes: u32) -> u64 {
    Work::default().entries.max(2 * u64::from(nodes))
}

/// Runs one algorithm at one size, with the number of requests of `base`.
pub fn row(card: &'static Card, base: &Scenario, nodes: u32) -> Result<Row, String> {
    let with = |load: Workload| {
        let mut scenario = base.clone();
        card.name.clone_into(&mut scenario.algorithm);
        scenario.world.nodes = nodes;
        if load == Workload::Pair {
            scenario.work.cs = long_section(base, nodes);
        }
        scenario.work.load = load;
        scenario.work.quorum = base.work.quorum.filter(|_| uses_quorums(card.name));
        run(&scenario)
    };
    Ok(Row {
        algorithm: card.name,
        nodes,
        low: with(Workload::Low)?,
        pair: with(Workload::Pair)?,
        high: with(Workload::High)?,
        card,
    })
}

/// A stay inside so long that the request of who waits has got to wherever it goes before the exit: the delay
/// from exit to entry is then the algorithm's, not what was left of the request's way.
fn long_section(base: &Scenario, nodes: u32) -> Duration {
    base.work.cs.max(base.world.delay.mean().saturating_mul(2 * nodes))
}

/// How the cost of an entry grows with the group: measured points, and the card's formula as a dashed line.
pub fn plot(rows: &[Row]) -> String {
    let largest = rows.iter().map(|row| row.nodes).max().unwrap_or(1);
    let series = |card: &&'static Card| {
        let rows = rows.iter().filter(|row| row.card.name == card.name);
        let points: Vec<_> = rows
            .map(|row| Point { x: f64::from(row.nodes), y: row.low.messages_per_entry, range: None })
            .collect();
        let sizes: Vec<u32> = points.iter().map(|point| point.x as u32).collect();
        Series { name: card.name.into(), points, formula: formula(card, &sizes) }
    };
    let cards: Vec<_> =
        mutex::CARDS.iter().filter(|card| rows.iter().any(|row| row.algorithm == card.name)).collect();
    let spread = largest > 10 * rows.iter().map(|row| row.nodes).min().unwrap_or(1);
    let scale = if spread { Scale::Log } else { Scale::Linear };
    plot::draw(&Plot {
        title: "Messages per entry, one request at a time".into(),
        subtitle: "the mean over all entries, and where the cost is exact the formula, dashed".into(),
        x: Axis { name: "sites, N".into(), scale },
        y: Axis { name: "messages per entry".into(), scale },
        series: cards.iter().map(series).collect(),
    })
}

/// The curve of a formula that is exact at the sizes measured.
fn formula(card: &Card, sizes: &[u32]) -> Option<Formula> {
    let cost = card.cost(Measure::MessagesPerEntry, Load::Low)?;
    let at = |nodes: &u32| Some((*nodes, (cost.range)(size_at(card.name, *nodes)?)));
    let ranges: Vec<_> = sizes.iter().filter_map(at).collect();
    let exact = ranges.iter().all(|(_, (min, max))| min == max);
    let curve = ranges.iter().map(|(nodes, range)| (f64::from(*nodes), range.0)).collect();
    exact.then(|| Formula { text: cost.formula.into(), curves: vec![curve] })
}
