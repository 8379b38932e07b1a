//! All algorithms of the detector problem on the same traffic, over a range of D.
//!
//! Small D finds crashes soon and errs often; large D errs seldom, finds crashes late, and misses those that
//! are repaired soon. The accrual detector has its threshold in place of D, the adaptive one finds its D
//! itself and is one point.

use std::time::Duration;

use conclave_algorithms::detector::spec::COMPLETENESS;
use conclave_kernel::{Card, NodeId, Prng, time};
use conclave_sim::{Delay, Fault, FaultKind, Recovery, Setup};
use serde::Serialize;

use super::{Report, Sample, Scenario, Work};
use crate::compare::{Column, Compare, Table, Verdict};
use crate::diagram::plot::{self, Axis, Plot, Point, Scale, Series};
use crate::problem::{nanos, number, run};

/// One algorithm with one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// Its setting, as people read it.
    pub setting: String,
    /// What it came to.
    pub report: Report,
}

impl Row {
    /// Whether crashes were noticed. That mistakes occur on a network without bounds is what is being
    /// compared.
    pub fn passed(&self) -> bool {
        self.report.facts.violations.iter().all(|violation| violation.property != "completeness")
            && self.report.facts.ledger.unfired.is_empty()
    }
}

/// The delays of a comparison without `--delay`. With the constant delay of a run, no detector makes a
/// mistake, so there would be no trade-off.
const DELAY: Delay = Delay::Exponential(Duration::from_millis(10));

impl Compare for Work {
    type Row = Row;

    const LEGEND: &'static str = "\
site 0 crashes 20 times, every second time for only 1.5 T; unnoticed: crashes that ended before a
watcher suspected the site
";

    fn validate_sizes(sizes: &[u32]) -> Result<(), String> {
        match sizes {
            [_] => Ok(()),
            _ => Err("detectors are compared at one size: give one number to --nodes".into()),
        }
    }

    fn set_delays(world: &mut Setup) {
        world.delay = DELAY;
    }

    fn settings(card: &'static Card, base: &Scenario, nodes: u32, _: &dyn Fn(&str) -> bool) -> Vec<Scenario> {
        let mut base = base.clone();
        base.world.nodes = nodes;
        settings(card, &base)
    }

    fn row(card: &'static Card, run: &Scenario) -> Result<Row, String> {
        row(card, run)
    }

    /// The verdict on a row: whether the watchers noticed the crashes. Mistakes are the subject of the
    /// comparison, so they are no violations.
    fn verdict(row: &Row) -> Verdict {
        match row.report.facts.has_judged(COMPLETENESS.name) {
            _ if !row.passed() => Verdict::Violated,
            true => Verdict::Holds,
            false => Verdict::NotJudged,
        }
    }

    fn tables(rows: &[Row], base: &Scenario) -> Vec<Table> {
        let mean = |sample: Option<Sample>| sample.map_or("-".into(), |sample| nanos(sample.mean_ns));
        let longest =
            |sample: Option<Sample>| sample.map_or("-".into(), |sample| nanos(sample.max_ns as f64));
        let columns: [Column<'_, Row>; 10] = [
            ("algorithm", &|row| row.algorithm.to_owned()),
            ("setting", &|row| row.setting.clone()),
            ("detection", &|row| mean(row.report.detection_time)),
            ("longest", &|row| longest(row.report.detection_time)),
            ("mistakes", &|row| row.report.mistakes.to_string()),
            ("an hour and pair", &|row| number(row.report.mistake_rate_per_s * 3_600.0)),
            ("they last", &|row| mean(row.report.mistake_duration)),
            ("unnoticed", &|row| row.report.unnoticed_crashes.to_string()),
            ("msgs/s", &|row| number(row.report.messages_per_s)),
            ("complete", &|row| match Self::verdict(row) {
                Verdict::Holds => "yes".into(),
                Verdict::Violated => "no".into(),
                other => other.cell(),
            }),
        ];
        let nodes = rows.first().map_or(base.world.nodes, |row| row.report.facts.nodes);
        let (period, delay) = (nanos(base.work.period.as_nanos() as f64), base.world.delay);
        let title = format!("detector, N = {nodes}, T = {period}, delays {delay}");
        vec![Table::of(title, &columns, rows)]
    }

    fn plot(rows: &[Row], base: &Scenario) -> Result<String, String> {
        let delay = &base.world.delay;
        plot(rows, base).ok_or_else(|| {
            format!(
                "no setting makes a mistake with delays {delay}, so there is no trade-off to plot; \
                 vary the delays, for example with --delay exponential:10ms"
            )
        })
    }
}

/// The settings that an algorithm is compared with.
pub fn settings(card: &Card, base: &Scenario) -> Vec<Scenario> {
    let mut scenario = base.clone();
    card.name.clone_into(&mut scenario.algorithm);
    add_crashes(&mut scenario);
    match card.name {
        "phi-accrual" => [1, 2, 3, 5, 8, 12, 18]
            .map(|threshold| scenario.clone().with(|work| work.threshold = threshold))
            .to_vec(),
        "adaptive" => vec![scenario],
        _ => {
            // From half a mean delay, doubling.
            let least = (base.world.delay.mean() / 2).max(Duration::from_nanos(1));
            (0..8).map(|double| scenario.clone().with(|work| work.margin = least * (1 << double))).collect()
        }
    }
}

/// Runs one algorithm with one setting.
pub fn row(card: &'static Card, scenario: &Scenario) -> Result<Row, String> {
    let setting = match card.name {
        "phi-accrual" => format!("Phi = {}", scenario.work.threshold),
        "adaptive" => "D adapts".into(),
        _ => format!("D = {}", time::show(scenario.work.margin)),
    };
    Ok(Row { algorithm: card.name, setting, report: run(scenario)? })
}

/// Crashes of site 0 at moments of no particular phase: long ones, that everybody should notice, and short
/// ones, of a period and a half, that a large D misses.
fn add_crashes(scenario: &mut Scenario) {
    const STREAM: u64 = 0x6372_7368;
    const CRASHES: u32 = 20;
    let mut random = Prng::stream(scenario.world.seed, STREAM, 0);
    let share = scenario.work.duration / (CRASHES + 1);
    for number in 0..CRASHES {
        let phase = Duration::from_nanos(random.below(time::nanos(share / 4).max(1)));
        let at = share * number + share / 4 + phase;
        let lasts = if number % 2 == 0 { share / 2 } else { (scenario.work.period * 3 / 2).min(share / 2) };
        let kind = FaultKind::Crash { node: NodeId(0), recovery: Recovery::Stable };
        scenario.world.faults.push(Fault { kind, at, until: Some(at + lasts), demanded: true });
    }
}

/// Draws the trade-off: mistakes against detection time, one point for each setting. Returns `None` if no
/// setting made a mistake, because then there is no trade-off to draw.
pub fn plot(rows: &[Row], base: &Scenario) -> Option<String> {
    if rows.iter().all(|row| row.report.mistakes == 0) {
        return None;
    }
    let mut names: Vec<_> = rows.iter().map(|row| row.algorithm).collect();
    names.dedup();
    let series = |name: &str| {
        let point = |row: &Row| {
            let x = row.report.detection_time?.mean_ns / 1e6;
            Some(Point { x, y: row.report.mistake_rate_per_s * 3_600.0, range: None })
        };
        let rows = rows.iter().filter(|row| row.algorithm == name);
        Series { name: name.into(), points: rows.filter_map(point).collect(), formula: None }
    };
    let Setup { nodes, delay, .. } = &base.world;
    let period = time::show(base.work.period);
    let world = format!("N = {nodes}, T = {period}, delays {delay}");
    Some(plot::draw(&Plot {
        title: "Soon or right: the trade-off of failure detectors".into(),
        subtitle: format!(
            "{world}; a point for each D or threshold; settings without a mistake are left out"
        ),
        x: Axis { name: "mean detection time, ms".into(), scale: Scale::Linear },
        y: Axis { name: "mistakes an hour, for one watcher of one site".into(), scale: Scale::Log },
        series: names.into_iter().map(series).collect(),
    }))
}
