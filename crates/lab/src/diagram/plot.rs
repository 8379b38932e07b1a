//! Curves and measured points on two axes: how cost grows.
//!
//! Measured points are marks, joined by a thin line; what a formula predicts is a dashed line in the same
//! colour. Every series is named at its right end, so that the eye need not travel to a legend; names that
//! would overlap are moved apart. Series differ by mark as well as by colour.
//!
//! **Trap**: a logarithmic axis has no zero. Points that it cannot hold are left out, and the last line of the
//! picture says how many; the low end of a range that reaches zero is drawn to the axis.

use super::scale::{group, nice_step, shown, ticks};
use super::svg::{
    Anchor, BODY, GRID, HUES, INK, LINE, Num, PAPER, SMALL, SOFT, Svg, TITLE, Type, fit, width_of,
};

/// A picture with two axes.
#[derive(Clone, Debug, Default)]
pub struct Plot {
    /// The title.
    pub title: String,
    /// Under which conditions.
    pub subtitle: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// The curves.
    pub series: Vec<Series>,
}

/// An axis.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// The name of the quantity, with the unit.
    pub name: String,
    /// How.
    pub scale: Scale,
}

/// How an axis measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps.
    #[default]
    Linear,
    /// Equal factors.
    Log,
}

/// The measurements of one subject, and the prediction.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// The measured points, in order of x.
    pub points: Vec<Point>,
    /// The prediction.
    pub formula: Option<Formula>,
}

/// A measured point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The place on the horizontal axis.
    pub x: f64,
    /// The mean of the measured values.
    pub y: f64,
    /// The smallest and the largest, if they differ.
    pub range: Option<(f64, f64)>,
}

/// A prediction.
#[derive(Clone, Debug)]
pub struct Formula {
    /// As it is written: `2(N-1)`.
    pub text: String,
    /// Points of its curve, in order of x: enough to look smooth. More than one curve where it is a range.
    pub curves: Vec<Vec<(f64, f64)>>,
}

/// Draws it as an SVG file.
pub fn draw(plot: &Plot) -> String {
    let frame = Frame::new(plot);
    let mut out = Svg::new(frame.width, frame.height, &plot.title);
    out.text(&Type::new(TITLE, INK).weighing(650), MARGIN, 40.0, &plot.title);
    out.text(&Type::new(BODY, SOFT), MARGIN, 61.0, &plot.subtitle);
    axes(&mut out, plot, &frame);
    for (index, series) in plot.series.iter().enumerate() {
        formula(&mut out, series, look(index), &frame);
    }
    for (index, series) in plot.series.iter().enumerate() {
        measured(&mut out, series, look(index), dodge(plot, index), &frame);
    }
    names(&mut out, plot, &frame);
    footer(&mut out, plot, &frame);
    out.finish()
}

const MARGIN: f64 = 28.0;
const PLOT_WIDTH: f64 = 660.0;
const PLOT_HEIGHT: f64 = 430.0;
const NAME_ROW: f64 = 17.0;
/// Names and formulas beyond this are cut.
const MOST_NAME: f64 = 300.0;

struct Frame {
    width: f64,
    height: f64,
    left: f64,
    top: f64,
    plot_height: f64,
    x: Range,
    y: Range,
}

/// The range of an axis.
struct Range {
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<(f64, String)>,
}

impl Frame {
    fn new(plot: &Plot) -> Self {
        let lows = |series: &Series| {
            series.points.iter().map(|point| point.range.map_or(point.y, |(low, _)| low)).collect::<Vec<_>>()
        };
        let highs = |series: &Series| {
            series
                .points
                .iter()
                .map(|point| point.range.map_or(point.y, |(_, high)| high))
                .collect::<Vec<_>>()
        };
        let curves = || {
            plot.series
                .iter()
                .filter_map(|series| series.formula.as_ref())
                .flat_map(|formula| formula.curves.iter().flatten())
        };
        let measured: Vec<f64> =
            plot.series.iter().flat_map(|series| series.points.iter().map(|point| point.x)).collect();
        let xs = measured.iter().copied().chain(curves().map(|(x, _)| *x));
        let ys = plot.series.iter().flat_map(|series| lows(series).into_iter().chain(highs(series)));
        let ys = ys.chain(curves().map(|(_, y)| *y));
        let x = Range::around(plot.x.scale, xs, Some(&measured));
        let y = Range::around(plot.y.scale, ys, None);
        let widest = y.ticks.iter().map(|(_, text)| width_of(text, SMALL)).fold(20.0, f64::max);
        let names = plot.series.iter().map(name_width).fold(40.0, f64::max);
        let left = MARGIN + widest + 14.0;
        let plot_height = PLOT_HEIGHT.max(plot.series.len() as f64 * NAME_ROW + 20.0);
        let top = 106.0;
        let width = left + PLOT_WIDTH + 34.0 + names + MARGIN;
        Self { width, height: top + plot_height + 84.0, left, top, plot_height, x, y }
    }

    fn bottom(&self) -> f64 {
        self.top + self.plot_height
    }

    fn right(&self) -> f64 {
        self.left + PLOT_WIDTH
    }

    /// Returns the place of a point on the paper; `None` if an axis cannot hold it.
    fn place(&self, x: f64, y: f64) -> Option<(f64, f64)> {
        Some((self.left + self.x.part(x)? * PLOT_WIDTH, self.bottom() - self.y.part(y)? * self.plot_height))
    }
}

impl Range {
    /// The range of those values. With few `measured` ones, these are the ticks: somebody chose them.
    fn around(scale: Scale, values: impl Iterator<Item = f64>, measured: Option<&[f64]>) -> Self {
        let fits = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
        let (mut low, mut high) = values
            .filter(fits)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        match scale {
            Scale::Linear => {
                low = low.min(0.0);
                high = if high > low { high + (high - low) * 0.04 } else { low + 1.0 };
            }
            Scale::Log => {
                let pad = (high / low).powf(0.04).max(1.12);
                (low, high) = (low / pad, high * pad);
            }
        }
        let mut chosen: Vec<f64> = measured.unwrap_or_default().iter().copied().filter(fits).collect();
        chosen.sort_by(f64::total_cmp);
        chosen.dedup();
        let ticks = match scale {
            _ if (1..=9).contains(&chosen.len()) => {
                chosen.into_iter().map(|tick| (tick, group(&tick.to_string()))).collect()
            }
            Scale::Linear => {
                let step = nice_step(high - low, 8);
                ticks(low, high, 8).into_iter().map(|tick| (tick, shown(tick, step))).collect()
            }
            Scale::Log => log_ticks(low, high),
        };
        Self { scale, low, high, ticks }
    }

    /// Returns the place of a value on the axis, from 0 to 1.
    fn part(&self, value: f64) -> Option<f64> {
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value > 0.0 => (value / self.low).ln() / (self.high / self.low).ln(),
            Scale::Log => return None,
        };
        part.is_finite().then_some(part)
    }
}

/// Powers of ten, with 2 and 5 between them where there is room.
fn log_ticks(low: f64, high: f64) -> Vec<(f64, String)> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let factors: &[f64] = if last - first <= 4 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let powers = (first..=last).map(|power| 10_f64.powi(power));
    powers
        .flat_map(|power| factors.iter().map(move |factor| (factor * power, power)))
        .filter(|(tick, _)| (low..=high).contains(tick))
        .map(|(tick, power)| (tick, shown(tick, power)))
        .collect()
}

fn axes(out: &mut Svg, plot: &Plot, frame: &Frame) {
    let (left, right, bottom) = (frame.left, frame.right(), frame.bottom());
    for (tick, text) in &frame.y.ticks {
        let Some(part) = frame.y.part(*tick) else { continue };
        let y = bottom - part * frame.plot_height;
        out.line((left, y), (right, y), &format!("stroke=\"{GRID}\""));
        out.text(&Type::new(SMALL, SOFT).anchored(Anchor::End), left - 8.0, y + 4.0, text);
    }
    for (tick, text) in &frame.x.ticks {
        let Some(part) = frame.x.part(*tick) else { continue };
        let x = left + part * PLOT_WIDTH;
        out.line((x, bottom), (x, bottom + 5.0), &format!("stroke=\"{LINE}\""));
        out.text(&Type::new(SMALL, SOFT).anchored(Anchor::Middle), x, bottom + 20.0, text);
    }
    out.line((left, bottom), (right, bottom), &format!("stroke=\"{LINE}\""));
    let middle = Type::new(SMALL, SOFT).anchored(Anchor::Middle);
    let scaled = |axis: &Axis| match axis.scale {
        Scale::Linear => axis.name.clone(),
        Scale::Log => format!("{} (log scale)", axis.name),
    };
    out.text(&middle, f64::midpoint(left, right), bottom + 42.0, &scaled(&plot.x));
    out.text(&Type::new(SMALL, SOFT), MARGIN, frame.top - 16.0, &scaled(&plot.y));
}

/// How a series looks: its hue and its mark.
#[derive(Clone, Copy)]
struct Look {
    hue: &'static str,
    mark: usize,
}

/// Five marks and eight hues: forty series differ.
const MARKS: usize = 5;

fn look(index: usize) -> Look {
    Look { hue: HUES[index % HUES.len()], mark: index % MARKS }
}

fn formula(out: &mut Svg, series: &Series, look: Look, frame: &Frame) {
    let Some(formula) = &series.formula else { return };
    out.open("");
    out.tooltip(&format!("{}: {} predicted", series.name, formula.text));
    for curve in &formula.curves {
        let places: Vec<_> = curve.iter().filter_map(|(x, y)| frame.place(*x, *y)).collect();
        let look = format!(
            "stroke=\"{}\" stroke-width=\"1.4\" stroke-dasharray=\"5 4\" stroke-opacity=\"0.75\"",
            look.hue
        );
        polyline(out, &places, &look);
    }
    out.close();
}

/// How far a series stands aside, so that ranges measured at the same x do not cover each other. What has no
/// range stays where it is.
fn dodge(plot: &Plot, index: usize) -> f64 {
    let ranged = |series: &&Series| series.points.iter().any(|point| point.range.is_some());
    if !ranged(&&plot.series[index]) {
        return 0.0;
    }
    let count = plot.series.iter().filter(ranged).count() as f64;
    let nth = plot.series[..index].iter().filter(ranged).count() as f64;
    (nth - (count - 1.0) / 2.0) * (30.0 / count).min(5.0)
}

fn measured(out: &mut Svg, series: &Series, look: Look, dodge: f64, frame: &Frame) {
    let hue = look.hue;
    let places: Vec<_> =
        series.points.iter().filter_map(|point| Some((point, frame.place(point.x, point.y)?))).collect();
    if series.formula.is_none() {
        let line: Vec<_> = places.iter().map(|(_, place)| *place).collect();
        polyline(out, &line, &format!("stroke=\"{hue}\" stroke-width=\"1.6\""));
    }
    for (point, (x, y)) in places {
        let x = x + dodge;
        out.open("");
        let range = point.range.map(|(low, high)| format!(" ({low} to {high})")).unwrap_or_default();
        out.tooltip(&format!("{}: {} at {}{range}", series.name, rounded(point.y), point.x));
        if let Some((low, high)) = point.range {
            let top = frame.place(point.x, high).map_or(y, |(_, top)| top);
            let end = frame.place(point.x, low).map_or(frame.bottom(), |(_, end)| end);
            let bar = format!("stroke=\"{hue}\" stroke-width=\"1.2\" stroke-opacity=\"0.6\"");
            out.line((x, top), (x, end), &bar);
            out.line((x - 3.0, top), (x + 3.0, top), &bar);
            out.line((x - 3.0, end), (x + 3.0, end), &bar);
        }
        mark(out, look, x, y);
        out.close();
    }
}

fn mark(out: &mut Svg, Look { hue, mark }: Look, x: f64, y: f64) {
    let fill = format!("fill=\"{hue}\" stroke=\"{PAPER}\" stroke-width=\"1\"");
    let corners: &[(f64, f64)] = match mark {
        0 => {
            let (x, y) = (Num(x), Num(y));
            return out.raw(format_args!("<circle cx=\"{x}\" cy=\"{y}\" r=\"4.4\" {fill}/>"));
        }
        1 => &[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)],
        2 => &[(0.0, -5.2), (4.9, 3.6), (-4.9, 3.6)],
        3 => &[(0.0, -5.6), (5.6, 0.0), (0.0, 5.6), (-5.6, 0.0)],
        _ => &[(0.0, 5.2), (4.9, -3.6), (-4.9, -3.6)],
    };
    let path: Vec<_> = corners.iter().map(|(dx, dy)| format!("{} {}", Num(x + dx), Num(y + dy))).collect();
    out.raw(format_args!("<path d=\"M{}Z\" {fill}/>", path.join("L")));
}

/// Names at the right end, moved apart where they would overlap.
fn names(out: &mut Svg, plot: &Plot, frame: &Frame) {
    let mut rows: Vec<(usize, f64, f64)> = Vec::new();
    for (index, series) in plot.series.iter().enumerate() {
        let measured = series.points.iter().rev().find_map(|point| frame.place(point.x, point.y));
        let predicted = series.formula.iter().flat_map(|formula| formula.curves.iter().flatten());
        let end = measured.or_else(|| predicted.rev().find_map(|(x, y)| frame.place(*x, *y)));
        rows.extend(end.map(|(x, y)| (index, x, y)));
    }
    rows.sort_by(|a, b| a.2.total_cmp(&b.2));
    let spread = spread(&rows.iter().map(|row| row.2).collect::<Vec<_>>(), frame.top, frame.bottom());
    let x = frame.right() + 34.0;
    for ((index, end, y), at) in rows.into_iter().zip(spread) {
        let (series, look) = (&plot.series[index], look(index));
        let leader = format!("stroke=\"{}\" stroke-width=\"0.9\" stroke-opacity=\"0.55\"", look.hue);
        let bend = [(end + dodge(plot, index) + 8.0, y), (frame.right() + 10.0, y), (x - 8.0, at)];
        polyline(out, &bend, &leader);
        let name = fit(&series.name, BODY, MOST_NAME);
        let bold = Type { fill: look.hue, ..Type::new(BODY, INK).weighing(600) };
        match &series.formula {
            None => out.text(&bold, x, at + 4.5, &name),
            Some(formula) => {
                let text = fit(&formula.text, SMALL, MOST_NAME);
                out.two_texts((x, at + 4.5), (&bold, &name), (&Type::new(SMALL, SOFT), &text));
            }
        }
    }
}

/// Moves positions (in order) apart, so that each has a row, as near to where it was as the others allow.
fn spread(wanted: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    // Clusters of rows that touch: where the first one is, and how many follow.
    let mut clusters: Vec<(f64, Vec<f64>)> = Vec::new();
    let first = |members: &[f64]| {
        let mean = members.iter().enumerate().map(|(n, y)| y - n as f64 * NAME_ROW).sum::<f64>()
            / members.len() as f64;
        mean.min(bottom - (members.len() - 1) as f64 * NAME_ROW).max(top)
    };
    for y in wanted {
        let mut members = vec![*y];
        let mut at = first(&members);
        while let Some((before, mut above)) = clusters.pop() {
            if before + above.len() as f64 * NAME_ROW <= at {
                clusters.push((before, above));
                break;
            }
            above.append(&mut members);
            members = above;
            at = first(&members);
        }
        clusters.push((at, members));
    }
    clusters
        .into_iter()
        .flat_map(|(at, members)| (0..members.len()).map(move |n| at + n as f64 * NAME_ROW))
        .collect()
}

fn footer(out: &mut Svg, plot: &Plot, frame: &Frame) {
    let all = plot.series.iter().flat_map(|series| &series.points);
    let missing = all.filter(|point| frame.place(point.x, point.y).is_none()).count();
    let mut parts = Vec::new();
    if plot.series.iter().any(|series| series.formula.is_some()) {
        parts.push("Marks are measured, dashed lines are the formulas.".to_owned());
    }
    if plot.series.iter().any(|series| series.points.iter().any(|point| point.range.is_some())) {
        parts.push("Bars reach from the smallest to the largest.".to_owned());
    }
    if missing > 0 {
        parts.push(format!("{missing} points do not fit on the axes and are left out."));
    }
    out.text(&Type::new(SMALL, SOFT), MARGIN, frame.height - 18.0, &parts.join(" "));
}

fn polyline(out: &mut Svg, places: &[(f64, f64)], look: &str) {
    if places.len() > 1 {
        let path: Vec<_> = places.iter().map(|(x, y)| format!("{} {}", Num(*x), Num(*y))).collect();
        out.raw(format_args!("<path d=\"M{}\" fill=\"none\" {look}/>", path.join("L")));
    }
}

fn name_width(series: &Series) -> f64 {
    let formula =
        series.formula.as_ref().map_or(0.0, |formula| width_of(&formula.text, SMALL).min(MOST_NAME) + 14.0);
    width_of(&series.name, BODY).min(MOST_NAME) * 1.06 + formula
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagram::testing;

    fn cost(scale: Scale) -> Plot {
        let points = |f: fn(f64) -> f64| [3.0, 9.0, 27.0].map(|x| Point { x, y: f(x), range: None }).to_vec();
        let series = |name: &str, f: fn(f64) -> f64, text: &str| Series {
            name: name.into(),
            points: points(f),
            formula: Some(Formula {
                text: text.into(),
                curves: vec![[3.0, 9.0, 27.0].map(|x| (x, f(x))).to_vec()],
            }),
        };
        let mut token = series("token <ring>", |n| n / 2.0, "0 to N");
        token.points.iter_mut().for_each(|point| point.range = Some((0.0, point.x)));
        Plot {
            title: "Messages per entry".into(),
            subtitle: "low load".into(),
            x: Axis { name: "sites".into(), scale },
            y: Axis { name: "messages".into(), scale },
            series: vec![
                series("ricart-agrawala", |n| 2.0 * (n - 1.0), "2(N-1)"),
                series("roucairol-carvalho", |n| 2.0 * (n - 1.0), "0 to 2(N-1)"),
                token,
            ],
        }
    }

    #[test]
    fn the_plot_is_drawn_as_it_was() {
        testing::golden("plot.svg", &draw(&cost(Scale::Log)));
    }

    #[test]
    fn a_point_is_where_its_value_is_and_the_chosen_sizes_are_the_ticks() {
        let frame = Frame::new(&cost(Scale::Linear));
        let (low, high) = (frame.place(3.0, 0.0).unwrap(), frame.place(27.0, 52.0).unwrap());
        let middle = frame.place(15.0, 26.0).unwrap();
        assert!((middle.0 - f64::midpoint(low.0, high.0)).abs() < 1e-6);
        assert!((middle.1 - f64::midpoint(low.1, high.1)).abs() < 1e-6);
        assert!((low.1 - frame.bottom()).abs() < 1e-6);
        assert_eq!(frame.x.ticks.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(), ["3", "9", "27"]);
    }

    #[test]
    fn names_that_would_overlap_are_moved_apart_and_stay_in_order() {
        let placed = spread(&[100.0, 101.0, 102.0, 300.0, 500.0, 500.0], 50.0, 500.0);
        assert!(placed.windows(2).all(|pair| pair[1] - pair[0] >= NAME_ROW - 1e-9), "{placed:?}");
        assert_eq!(placed[3], 300.0);
        assert!(placed[0] >= 50.0 && placed[5] <= 500.0);
        assert!((placed[1] - 101.0).abs() < 1.0, "a cluster stays around where it was");
    }

    #[test]
    fn values_that_an_axis_cannot_hold_are_counted_not_drawn() {
        let mut plot = cost(Scale::Log);
        plot.series[0].points[0].y = 0.0;
        plot.series[0].points[1].y = f64::NAN;
        let svg = draw(&plot);
        assert!(roxmltree::Document::parse(&svg).is_ok());
        assert!(svg.contains("2 points do not fit on the axes and are left out."));
    }

    #[test]
    fn a_plot_of_nothing_is_well_formed() {
        for scale in [Scale::Linear, Scale::Log] {
            let axis = || Axis { name: "x & y".into(), scale };
            let plot = Plot { x: axis(), y: axis(), ..Plot::default() };
            assert!(roxmltree::Document::parse(&draw(&plot)).is_ok());
        }
    }
}
