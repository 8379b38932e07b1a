//! All algorithms of the detector problem on the same traffic, over a range of D.
//!
//! Small D finds crashes soon and errs often; large D errs seldom, finds crashes late, and misses those that
//! are repaired soon. The accrual detector has its threshold in place of D, the adaptive one finds its D
//! itself and is one point.

use std::time::Duration;

use conclave_kernel::{Card, NodeId, Prng, time};
use conclave_sim::{Delay, Fault, FaultKind, Recovery, Setup};
use serde::Serialize;

use super::{Report, Scenario};
use crate::diagram::plot::{self, Axis, Plot, Point, Scale, Series};
use crate::problem::run;

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
pub const DELAY: Delay = Delay::Exponential(Duration::from_millis(10));

/// The settings that an algorithm is compared with.
pub fn settings(card: &Card, base: &Scenario) -> Vec<Scenario> {
    let mut scenario = base.clone();
    card.name.clone_into(&mut scenario.algorithm);
    add_crashes(&mut scenario);
    match card.name {
        "phi-accrual" => {
            [1, 2, 3, 5, 8, 12, 18].map(|threshold| Scenario { threshold, ..scenario.clone() }).to_vec()
        }
        "adaptive" => vec![scenario],
        _ => {
            // From half a mean delay, doubling.
            let least = (base.setup.delay.mean() / 2).max(Duration::from_nanos(1));
            (0..8).map(|double| Scenario { margin: least * (1 << double), ..scenario.clone() }).collect()
        }
    }
}

/// Runs one algorithm with one setting.
pub fn row(card: &'static Card, scenario: &Scenario) -> Result<Row, String> {
    let setting = match card.name {
        "phi-accrual" => format!("Phi = {}", scenario.threshold),
        "adaptive" => "D adapts".into(),
        _ => format!("D = {}", time::show(scenario.margin)),
    };
    Ok(Row { algorithm: card.name, setting, report: run(scenario)? })
}

/// Crashes of site 0 at moments of no particular phase: long ones, that everybody should notice, and short
/// ones, of a period and a half, that a large D misses.
fn add_crashes(scenario: &mut Scenario) {
    const STREAM: u64 = 0x6372_7368;
    const CRASHES: u32 = 20;
    let mut dice = Prng::stream(scenario.setup.seed, STREAM, 0);
    let share = scenario.duration / (CRASHES + 1);
    for number in 0..CRASHES {
        let phase = Duration::from_nanos(dice.below(time::nanos(share / 4).max(1)));
        let at = share * number + share / 4 + phase;
        let lasts = if number % 2 == 0 { share / 2 } else { (scenario.period * 3 / 2).min(share / 2) };
        let kind = FaultKind::Crash { node: NodeId(0), recovery: Recovery::Stable };
        scenario.setup.faults.push(Fault { kind, at, until: Some(at + lasts), demanded: true });
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
    let Setup { nodes, delay, .. } = &base.setup;
    let period = time::show(base.period);
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
