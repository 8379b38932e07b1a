//! The clocks of a run of timesync: the offset of each clock and the interval that it promises, over the true
//! time.
//!
//! Each clock has a panel. The horizontal line is the true time, the curve is the offset of the clock, and
//! the area is the promised interval for the true time. The area must contain the line; where it does not,
//! the line is red. The area grows with the drift until the next synchronisation, so its edges are sawtooths.
//! In a group without a reference, the line is the mean of the group, which the intervals need not contain.
//!
//! The last panel is the textbook's sawtooth: two clocks with the maximum drift rate MDR differ by 2 MDR t
//! after the time t, so a skew of at most M needs a synchronisation every M / (2 MDR).
//!
//! **Bound**: at most [`MOST_CLOCKS`] clocks and eight periods are drawn, from a few periods after the
//! moment at which every clock promises an interval. The picture names the number of clocks that it leaves
//! out.

use conclave_kernel::{NodeId, time};
use serde::Serialize;
use serde_json::Value;

use super::scale::{group, nice_step, shown, ticks, unit_of};
use super::svg::{
    ALARM, Anchor, BODY, GRID, HUES, INK, LINE, PAPER, SMALL, SOFT, Svg, TINY, TITLE, Type, fit,
};
use crate::log::Log;

/// The most clocks in a picture.
pub const MOST_CLOCKS: usize = 11;

/// The number of periods in a picture.
const PERIODS: f64 = 8.0;

/// The number of periods before the picture begins. In them, the clocks move to the reference.
const SETTLING: f64 = 4.0;

/// The clocks of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Clocks {
    /// The title.
    pub title: String,
    /// The line below it.
    pub subtitle: String,
    /// The command that shows the run.
    pub command: String,
    /// The meaning of the line at zero: the true time, or the mean of the group.
    pub zero: &'static str,
    /// Whether every interval must contain the line at zero.
    pub is_external: bool,
    /// The clocks.
    pub clocks: Vec<Clock>,
    /// The number of clocks that are left out.
    pub left_out: usize,
    /// The maximum drift rate, as a ratio.
    pub drift: f64,
    /// The time from one synchronisation to the next, in nanoseconds.
    pub period: f64,
    /// The window, in nanoseconds of the true time.
    pub window: (f64, f64),
}

/// One clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Clock {
    /// The name of its site.
    pub name: String,
    /// The moments of its synchronisations.
    pub synced: Vec<f64>,
    /// Its readings in order of time.
    pub readings: Vec<Reading>,
}

/// One reading of a clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// The true time.
    pub at: f64,
    /// The clock minus the reference.
    pub offset: f64,
    /// The ends of the promised interval minus the reference.
    pub interval: Option<(f64, f64)>,
}

impl Clocks {
    /// Reads the clocks from a run of timesync. The error explains why the log has none.
    pub fn of(log: &Log, is_external: bool, command: &str) -> Result<Self, String> {
        let mut clocks: Vec<Clock> =
            (0..log.sites()).map(|site| Clock { name: log.name(NodeId(site)), ..Clock::default() }).collect();
        for (index, event) in log.events().iter().enumerate() {
            for emitted in log.emitted(index) {
                let clock = &mut clocks[event.site.index()];
                let at = event.at.0 as f64;
                match log.kind(*emitted) {
                    "synced" => clock.synced.push(at),
                    "told" => clock.readings.extend(reading(at, log.raw(*emitted))),
                    _ => {}
                }
            }
        }
        if !is_external {
            subtract_means(&mut clocks);
        }
        let is_reference = |clock: &Clock| clock.readings.iter().all(|one| one.interval == Some((0.0, 0.0)));
        clocks.retain(|clock| !is_reference(clock));
        if clocks.is_empty() {
            return Err("the run contains no readings of clocks: choose an algorithm of timesync".into());
        }
        let left_out = clocks.len().saturating_sub(MOST_CLOCKS);
        clocks.truncate(MOST_CLOCKS);
        let scenario: Value = serde_json::from_str(&log.about.scenario).unwrap_or_default();
        let drift = scenario["world"]["clocks"]["drift_ppm"].as_f64().unwrap_or_default() / 1e6;
        let period = period_of(&clocks);
        let start = clocks.iter().filter_map(Clock::first_promise).fold(0.0, f64::max);
        // The clocks first move to the reference, which takes a few periods.
        let end = log.end().0 as f64;
        let start = start + (SETTLING * period).min((end - start).max(0.0) / 3.0);
        let mut this = Self {
            title: format!("{}: clocks over the true time", log.about.algorithm),
            subtitle: String::new(),
            command: command.to_owned(),
            zero: if is_external { "the true time" } else { "the mean of the group" },
            is_external,
            clocks,
            left_out,
            drift,
            period,
            window: (start, start + period * PERIODS),
        };
        this.subtitle = this.describe(log);
        let (low, high) = this.window;
        for clock in &mut this.clocks {
            clock.readings.retain(|one| (low..=high).contains(&one.at));
            clock.synced.retain(|at| (low..=high).contains(at));
        }
        Ok(this)
    }

    fn describe(&self, log: &Log) -> String {
        let left_out = match self.left_out {
            0 => String::new(),
            count => format!("; {} clocks more, not drawn", group(&count.to_string())),
        };
        let period = time::show(std::time::Duration::from_nanos(self.period as u64));
        let drift = self.drift * 1e6;
        let sites = log.sites();
        format!(
            "{sites} sites, MDR = {drift} ppm, synchronised about every {period}; zero is {}{left_out}",
            self.zero
        )
    }

    /// The skew that two clocks can build up between two synchronisations: M = 2 MDR T.
    pub fn skew(&self) -> f64 {
        2.0 * self.drift * self.period
    }
}

/// Reads `{"told":{"clock":5,"interval":{"lo":4,"hi":6},...}}`.
fn reading(at: f64, json: &str) -> Option<Reading> {
    let value: Value = serde_json::from_str(json).ok()?;
    let told = &value["told"];
    let end = |name: &str| told["interval"][name].as_f64().map(|end| end - at);
    let offset = told["clock"].as_f64()? - at;
    Some(Reading { at, offset, interval: end("lo").zip(end("hi")) })
}

/// Makes offsets relative to the mean of all clocks that were read at the same moment.
fn subtract_means(clocks: &mut [Clock]) {
    let mut sums: std::collections::BTreeMap<u64, (f64, f64)> = std::collections::BTreeMap::new();
    for one in clocks.iter().flat_map(|clock| &clock.readings) {
        let (sum, count) = sums.entry(one.at as u64).or_default();
        (*sum, *count) = (*sum + one.offset, *count + 1.0);
    }
    for one in clocks.iter_mut().flat_map(|clock| &mut clock.readings) {
        let (sum, count) = sums[&(one.at as u64)];
        let mean = sum / count;
        one.offset -= mean;
        one.interval = one.interval.map(|(low, high)| (low - mean, high - mean));
    }
}

/// The median time between two synchronisations of a clock; at least a nanosecond.
fn period_of(clocks: &[Clock]) -> f64 {
    let gaps = clocks.iter().flat_map(|clock| clock.synced.windows(2).map(|pair| pair[1] - pair[0]));
    let mut gaps: Vec<f64> = gaps.filter(|gap| *gap > 0.0).collect();
    gaps.sort_by(f64::total_cmp);
    gaps.get(gaps.len() / 2).copied().unwrap_or(1e9).max(1.0)
}

impl Clock {
    fn first_promise(&self) -> Option<f64> {
        self.readings.iter().find(|one| one.interval.is_some()).map(|one| one.at)
    }

    /// The promised interval over time. Between two readings it grows with the drift, and a synchronisation
    /// makes it smaller at once.
    fn promises(&self, drift: f64) -> Vec<(f64, (f64, f64))> {
        let mut promises = Vec::new();
        let widened = |(low, high): (f64, f64), by: f64| (low - by, high + by);
        for (one, next) in self.readings.iter().zip(self.readings.iter().skip(1)) {
            let (Some(before), Some(after)) = (one.interval, next.interval) else { continue };
            promises.push((one.at, before));
            if let Some(at) = self.synced.iter().find(|at| one.at < **at && **at <= next.at) {
                promises.push((*at, widened(before, drift * (at - one.at))));
                let (low, high) = widened(after, -drift * (next.at - at));
                promises.push((*at, if low <= high { (low, high) } else { after }));
            }
        }
        promises.extend(self.readings.last().and_then(|last| Some((last.at, last.interval?))));
        promises
    }
}

const COLUMNS: usize = 2;
const MARGIN: f64 = 28.0;
const TOP: f64 = 112.0;
const CELL: (f64, f64) = (560.0, 190.0);
const PANEL: (f64, f64) = (460.0, 126.0);
/// The space left of a panel, for the axis.
const AXIS: f64 = 66.0;

/// Draws the clocks as an SVG file.
pub fn draw(clocks: &Clocks) -> String {
    let panels = clocks.clocks.len() + 1;
    let rows = panels.div_ceil(COLUMNS);
    let width = 2.0 * MARGIN + COLUMNS as f64 * CELL.0;
    let height = TOP + rows as f64 * CELL.1 + 40.0;
    let mut out = Svg::new(width, height, &clocks.title);
    out.text(&Type::new(TITLE, INK).weighing(650), MARGIN, 40.0, &clocks.title);
    out.text(&Type::new(BODY, SOFT), MARGIN, 61.0, &fit(&clocks.subtitle, BODY, width - 2.0 * MARGIN));
    legend(&mut out, clocks);
    let corner = |index: usize| {
        let (column, row) = (index % COLUMNS, index / COLUMNS);
        (MARGIN + column as f64 * CELL.0, TOP + row as f64 * CELL.1)
    };
    let range = range(clocks);
    for (index, clock) in clocks.clocks.iter().enumerate() {
        let frame = Frame::new(corner(index), clocks.window, range);
        // The last hue is a grey, which the axes have.
        panel(&mut out, clocks, clock, HUES[index % (HUES.len() - 1)], &frame);
    }
    sawtooth(&mut out, clocks, corner(panels - 1));
    let command = fit(&clocks.command, SMALL, width - 2.0 * MARGIN);
    out.text(&Type::new(SMALL, SOFT), MARGIN, height - 16.0, &command);
    out.finish()
}

/// The common range of the panels, which contains zero.
fn range(clocks: &Clocks) -> (f64, f64) {
    let readings = || clocks.clocks.iter().flat_map(|clock| &clock.readings);
    let ends = readings().flat_map(|one| {
        let (low, high) = one.interval.unwrap_or((one.offset, one.offset));
        [low, high, one.offset]
    });
    let (low, high) =
        ends.fold((0.0, 0.0), |(low, high), one: f64| (f64::min(low, one), f64::max(high, one)));
    let pad = ((high - low) * 0.06).max(0.5);
    (low - pad, high + pad)
}

/// The place of a panel, and the ranges of its axes.
struct Frame {
    left: f64,
    top: f64,
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    fn new((x, y): (f64, f64), across: (f64, f64), up: (f64, f64)) -> Self {
        Self { left: x + AXIS, top: y + 26.0, x: across, y: up }
    }

    fn x(&self, at: f64) -> f64 {
        self.left + ((at - self.x.0) / (self.x.1 - self.x.0).max(1.0)).clamp(0.0, 1.0) * PANEL.0
    }

    fn y(&self, value: f64) -> f64 {
        let part = (value - self.y.0) / (self.y.1 - self.y.0).max(f64::MIN_POSITIVE);
        self.top + PANEL.1 - part.clamp(0.0, 1.0) * PANEL.1
    }

    fn axes(&self, out: &mut Svg, title: &str, hue: &'static str) {
        out.text(&Type { fill: hue, ..Type::new(BODY, INK).weighing(600) }, self.left, self.top - 9.0, title);
        let (unit, name) = unit_of(self.y.1 - self.y.0);
        let step = nice_step((self.y.1 - self.y.0) / unit, 5);
        for tick in ticks(self.y.0 / unit, self.y.1 / unit, 5) {
            let y = self.y(tick * unit);
            out.line((self.left, y), (self.left + PANEL.0, y), &format!("stroke=\"{GRID}\""));
            let label = format!("{} {name}", shown(tick, step));
            out.text(&Type::new(TINY, SOFT).anchored(Anchor::End), self.left - 7.0, y + 3.5, &label);
        }
        let bottom = self.top + PANEL.1;
        let (unit, name) = unit_of(self.x.1);
        let step = nice_step((self.x.1 - self.x.0) / unit, 6);
        for tick in ticks(self.x.0 / unit, self.x.1 / unit, 6) {
            let x = self.x(tick * unit);
            out.line((x, bottom), (x, bottom + 4.0), &format!("stroke=\"{LINE}\""));
            let label = format!("{} {name}", shown(tick, step));
            out.text(&Type::new(TINY, SOFT).anchored(Anchor::Middle), x, bottom + 16.0, &label);
        }
        out.line((self.left, bottom), (self.left + PANEL.0, bottom), &format!("stroke=\"{LINE}\""));
    }
}

fn panel(out: &mut Svg, clocks: &Clocks, clock: &Clock, hue: &'static str, frame: &Frame) {
    out.open("class=\"clock\"");
    out.tooltip(&format!("the clock of {} against {}", clock.name, clocks.zero));
    frame.axes(out, &clock.name, hue);
    let promises = clock.promises(clocks.drift);
    let upper = promises.iter().map(|(at, (_, high))| (frame.x(*at), frame.y(*high)));
    let lower = promises.iter().rev().map(|(at, (low, _))| (frame.x(*at), frame.y(*low)));
    let edge: Vec<_> = upper.chain(lower).collect();
    if edge.len() > 2 {
        let look = format!(
            "class=\"interval\" fill=\"{hue}\" fill-opacity=\"0.14\" stroke=\"{hue}\" stroke-opacity=\"0.6\" \
             stroke-width=\"0.9\""
        );
        out.polyline(&edge, &look);
    }
    let zero = format!("class=\"zero\" stroke=\"{INK}\" stroke-width=\"1.1\"");
    out.line((frame.left, frame.y(0.0)), (frame.left + PANEL.0, frame.y(0.0)), &zero);
    for pair in promises.windows(2).filter(|pair| clocks.is_external && !contains_zero(pair)) {
        let look = format!("class=\"broken\" stroke=\"{ALARM}\" stroke-width=\"3\"");
        out.line((frame.x(pair[0].0), frame.y(0.0)), (frame.x(pair[1].0), frame.y(0.0)), &look);
    }
    let offsets: Vec<_> = clock.readings.iter().map(|one| (frame.x(one.at), frame.y(one.offset))).collect();
    if !offsets.is_empty() {
        out.polyline(
            &offsets,
            &format!("class=\"offset\" fill=\"none\" stroke=\"{hue}\" stroke-width=\"1.7\""),
        );
    }
    for at in &clock.synced {
        let x = frame.x(*at);
        let bottom = frame.top + PANEL.1;
        out.line(
            (x, bottom - 6.0),
            (x, bottom),
            &format!("class=\"synced\" stroke=\"{hue}\" stroke-width=\"1.6\""),
        );
    }
    out.close();
}

fn contains_zero(pair: &[(f64, (f64, f64))]) -> bool {
    pair.iter().all(|(_, (low, high))| *low <= 0.0 && *high >= 0.0)
}

/// The skew that drift alone can cause between two clocks that are synchronised at the same moments.
fn sawtooth(out: &mut Svg, clocks: &Clocks, corner: (f64, f64)) {
    let most = clocks.skew().max(1.0);
    let frame = Frame::new(corner, clocks.window, (0.0, most * 1.25));
    out.open("class=\"sawtooth\"");
    out.tooltip("two clocks with the maximum drift rate, in opposite directions");
    frame.axes(out, "skew of two clocks by drift alone: 2 MDR t", INK);
    let (low, high) = clocks.window;
    let mut teeth = vec![(frame.x(low), frame.y(0.0))];
    let mut at = low;
    while at < high {
        let end = (at + clocks.period).min(high);
        teeth.push((frame.x(end), frame.y(2.0 * clocks.drift * (end - at))));
        teeth.push((frame.x(end), frame.y(0.0)));
        at += clocks.period;
    }
    out.polyline(&teeth, &format!("fill=\"none\" stroke=\"{INK}\" stroke-width=\"1.6\""));
    let y = frame.y(most);
    let dashed = format!("stroke=\"{ALARM}\" stroke-width=\"1.1\" stroke-dasharray=\"6 3\"");
    out.line((frame.left, y), (frame.left + PANEL.0, y), &dashed);
    let words = Type { fill: ALARM, ..Type::new(TINY, INK).weighing(600) };
    let (unit, name) = unit_of(most);
    out.text(&words, frame.left + 4.0, y - 5.0, &format!("M = {:.1} {name}", most / unit));
    let (x, end) = (frame.x(low + clocks.period), frame.x(low + 2.0 * clocks.period));
    let y = frame.top + PANEL.1 - 12.0;
    out.line((x, y), (end, y), &format!("stroke=\"{SOFT}\" stroke-width=\"1.1\""));
    for tick in [x, end] {
        out.line((tick, y - 4.0), (tick, y + 4.0), &format!("stroke=\"{SOFT}\" stroke-width=\"1.1\""));
    }
    let words = Type::new(TINY, INK).weighing(600);
    let paper = format!("fill=\"{PAPER}\" fill-opacity=\"0.9\"");
    out.rect(end + 3.0, y - 7.0, 70.0, 14.0, &paper);
    out.text(&words, end + 6.0, y + 3.5, "M / (2 MDR)");
    out.close();
}

fn legend(out: &mut Svg, clocks: &Clocks) {
    let y = 88.0;
    let entries = [
        ("offset of the clock", format!("stroke=\"{INK}\" stroke-width=\"1.7\"")),
        ("promised interval", format!("stroke=\"{SOFT}\" stroke-opacity=\"0.35\" stroke-width=\"9\"")),
        (
            "synchronisation (tick)",
            format!("stroke=\"{INK}\" stroke-width=\"8\" stroke-dasharray=\"0 12 2 12\""),
        ),
        ("the interval is wrong", format!("stroke=\"{ALARM}\" stroke-width=\"3\"")),
    ];
    let shown = if clocks.is_external { 4 } else { 3 };
    let mut x = MARGIN;
    for (text, look) in entries.iter().take(shown) {
        out.line((x, y - 4.0), (x + 26.0, y - 4.0), look);
        out.text(&Type::new(SMALL, SOFT), x + 33.0, y, text);
        x += 33.0 + super::svg::width_of(text, SMALL) + 26.0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{count, parsed, texts};
    use super::*;
    use crate::problem::Recorder;
    use crate::problems::timesync::Scenario;

    fn log_of(algorithm: &str) -> Log {
        let mut scenario = Scenario::of(algorithm).with(|work| work.samples = 60);
        scenario.world.nodes = 4;
        let mut recorder = Recorder::new(false, true);
        scenario.run(&mut recorder).expect("the scenario is valid");
        recorder.log.expect("it was wanted")
    }

    #[test]
    fn every_clock_has_its_offset_and_an_interval_with_the_true_time() {
        for algorithm in ["cristian", "ntp", "marzullo"] {
            let log = log_of(algorithm);
            let clocks = Clocks::of(&log, true, "conclave sim").unwrap();
            let is_kept = |clock: &Clock| {
                let promises = clock.promises(clocks.drift);
                promises.len() > clock.readings.len() && promises.windows(2).all(contains_zero)
            };
            assert!(clocks.clocks.iter().all(is_kept), "{algorithm}");
            let svg = draw(&clocks);
            let tree = parsed(&format!("clocks-{algorithm}"), &svg);
            let drawn = clocks.clocks.len();
            let counts =
                ["clock", "interval", "offset", "sawtooth", "broken"].map(|class| count(&tree, class));
            assert_eq!(counts, [drawn, drawn, drawn, 1, 0], "{algorithm}");
            let texts = texts(&tree);
            assert!(texts.iter().any(|text| text.starts_with("M = ")), "{texts:?}");
            assert!(texts.iter().any(|text| text == "M / (2 MDR)"), "{texts:?}");
        }
    }

    #[test]
    fn the_skew_of_the_textbook_is_twice_the_drift_times_the_period() {
        let clocks = Clocks { drift: 1e-4, period: 1e9, ..Clocks::default() };
        assert!((clocks.skew() - 200_000.0).abs() < 1e-6);
    }

    #[test]
    fn an_interval_without_the_true_time_is_red() {
        let one = |at, low, high| Reading { at, offset: 5.0, interval: Some((low, high)) };
        let clock = Clock {
            name: "<n1>".into(),
            readings: vec![one(0.0, -1.0, 9.0), one(10.0, 2.0, 9.0), one(20.0, 2.0, 9.0)],
            ..Clock::default()
        };
        let clocks = Clocks {
            is_external: true,
            clocks: vec![clock],
            period: 10.0,
            window: (0.0, 20.0),
            ..Clocks::default()
        };
        let svg = draw(&clocks);
        assert_eq!(count(&parsed("clocks-broken", &svg), "broken"), 2);
    }

    #[test]
    fn a_group_without_a_reference_is_drawn_around_its_mean() {
        let log = log_of("berkeley");
        let clocks = Clocks::of(&log, false, "").unwrap();
        assert_eq!((clocks.zero, clocks.clocks.len()), ("the mean of the group", 4));
        parsed("clocks-berkeley", &draw(&clocks));
    }

    #[test]
    fn a_log_without_clocks_is_rejected() {
        let log = crate::diagram::testing::small_log();
        assert!(Clocks::of(&log, true, "").is_err_and(|why| why.contains("timesync")));
    }
}
