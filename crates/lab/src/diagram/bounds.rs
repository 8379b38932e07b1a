//! Measured errors over time under promised bounds: one panel for each algorithm, side by side.
//!
//! A promise is an area, from nothing up to the bound; what was measured is a line that must stay inside. A broken
//! promise makes the line red, and a missing promise makes it grey. Panels that share a unit of time share their
//! axes, so that they can be compared by eye.
//!
//! **Trap**: errors fall by orders of magnitude while clocks settle, so that the axis is logarithmic, and that has
//! no zero: what is smaller than a nanosecond is drawn at one.

use super::scale::{shown, ticks, unit_of};
use super::svg::{ALARM, Anchor, BODY, GRID, HUES, INK, LINE, Num, SMALL, SOFT, Svg, TINY, TITLE, Type, fit};

/// A picture of several panels.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// The title.
    pub title: String,
    /// Under which conditions.
    pub subtitle: String,
    /// The meaning of the line: `error of the worst clock`.
    pub measured: String,
    /// The panels, in reading order.
    pub panels: Vec<Panel>,
}

/// One panel.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// The name of the algorithm.
    pub name: String,
    /// A remark beside the name.
    pub note: String,
    /// In order of time.
    pub moments: Vec<Moment>,
}

/// The measured error and the promised bound at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// The moment, in nanoseconds.
    pub at_ns: f64,
    /// The measured error, in nanoseconds.
    pub measured_ns: f64,
    /// The promised bound, in nanoseconds; `None` if there was no promise.
    pub bound_ns: Option<f64>,
}

impl Moment {
    fn is_kept(&self) -> Option<bool> {
        self.bound_ns.map(|bound| self.measured_ns <= bound)
    }
}

/// Draws it as an SVG file.
pub fn draw(bounds: &Bounds) -> String {
    let columns = bounds.panels.len().clamp(1, COLUMNS);
    let rows = bounds.panels.len().div_ceil(columns);
    let width = 2.0 * MARGIN + columns as f64 * CELL_WIDTH - GAP;
    let mut out = Svg::new(width, TOP + rows as f64 * CELL_HEIGHT + MARGIN, &bounds.title);
    out.text(&Type::new(TITLE, INK).weighing(650), MARGIN, 40.0, &bounds.title);
    out.text(&Type::new(BODY, SOFT), MARGIN, 61.0, &bounds.subtitle);
    legend(&mut out, bounds);
    for (index, panel) in bounds.panels.iter().enumerate() {
        let corner =
            (MARGIN + (index % columns) as f64 * CELL_WIDTH, TOP + (index / columns) as f64 * CELL_HEIGHT);
        let frame = Frame::new(corner, panel, &bounds.panels);
        // The last hue is a grey, and grey means that nothing is promised.
        draw_panel(&mut out, panel, HUES[index % (HUES.len() - 1)], &frame);
    }
    out.finish()
}

const COLUMNS: usize = 2;
const MARGIN: f64 = 28.0;
const TOP: f64 = 118.0;
const CELL_WIDTH: f64 = 500.0;
const CELL_HEIGHT: f64 = 216.0;
const GAP: f64 = 36.0;
/// Left of a panel, for the axis.
const AXIS: f64 = 52.0;
const PANEL_WIDTH: f64 = CELL_WIDTH - GAP - AXIS;
const PANEL_HEIGHT: f64 = 130.0;

/// The place of a panel, and the ranges of its axes.
struct Frame {
    left: f64,
    top: f64,
    /// The end of the time axis, in nanoseconds.
    end: f64,
    unit: (f64, &'static str),
    /// Powers of ten, in nanoseconds.
    low: i32,
    high: i32,
}

impl Frame {
    fn new((x, y): (f64, f64), panel: &Panel, all: &[Panel]) -> Self {
        let end = |panel: &Panel| panel.moments.last().map_or(1.0, |moment| moment.at_ns.max(1.0));
        let unit = unit_of(end(panel));
        let kin = || all.iter().filter(|other| unit_of(end(other)) == unit);
        let values = || {
            let moments = kin().flat_map(|panel| &panel.moments);
            moments
                .flat_map(|moment| [Some(moment.measured_ns), moment.bound_ns])
                .flatten()
                .map(|ns| ns.max(1.0))
        };
        let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(1.0, f64::max));
        let low = low.min(high).log10().floor() as i32;
        Self {
            left: x + AXIS,
            top: y + 34.0,
            end: kin().map(end).fold(1.0, f64::max),
            unit,
            low,
            high: (high.log10().ceil() as i32).max(low + 1),
        }
    }

    fn x(&self, at_ns: f64) -> f64 {
        self.left + at_ns / self.end * PANEL_WIDTH
    }

    fn y(&self, ns: f64) -> f64 {
        let part = (ns.max(1.0).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        self.bottom() - part.clamp(0.0, 1.0) * PANEL_HEIGHT
    }

    fn bottom(&self) -> f64 {
        self.top + PANEL_HEIGHT
    }
}

fn draw_panel(out: &mut Svg, panel: &Panel, hue: &'static str, frame: &Frame) {
    out.open("");
    let name = Type { fill: hue, ..Type::new(BODY, INK).weighing(600) };
    out.two_texts(
        (frame.left, frame.top - 14.0),
        (&name, &fit(&panel.name, BODY, PANEL_WIDTH / 2.0)),
        (&Type::new(SMALL, SOFT), &fit(&panel.note, SMALL, PANEL_WIDTH * 0.66)),
    );
    axes(out, frame);
    for promised in panel.moments.split(|moment| moment.bound_ns.is_none()).filter(|part| part.len() > 1) {
        area(out, promised, hue, frame);
    }
    // Each stretch of one colour goes on to the first moment of the next, so that the line has no gaps.
    let mut start = 0;
    while start < panel.moments.len() {
        let kept = panel.moments[start].is_kept();
        let same = panel.moments[start..].iter().take_while(|moment| moment.is_kept() == kept).count();
        let stretch = &panel.moments[start..(start + same + 1).min(panel.moments.len())];
        let (colour, width) = match kept {
            None => (LINE, 1.2),
            Some(true) => (hue, 1.5),
            Some(false) => (ALARM, 2.0),
        };
        let places = stretch.iter().map(|moment| (frame.x(moment.at_ns), frame.y(moment.measured_ns)));
        out.raw(format_args!(
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"/>",
            path(places)
        ));
        start += same;
    }
    out.close();
}

/// The promise: filled down to the axis, its edge dashed.
fn area(out: &mut Svg, promised: &[Moment], hue: &str, frame: &Frame) {
    let edge: Vec<_> = promised
        .iter()
        .filter_map(|moment| Some((frame.x(moment.at_ns), frame.y(moment.bound_ns?))))
        .collect();
    let [(first, _), .., (last, _)] = edge[..] else { return };
    let bottom = Num(frame.bottom());
    let top = path(edge.iter().copied());
    out.raw(format_args!(
        "<path d=\"M{top}L{} {bottom}L{} {bottom}Z\" fill=\"{hue}\" fill-opacity=\"0.1\"/>",
        Num(last),
        Num(first)
    ));
    out.raw(format_args!(
        "<path d=\"M{top}\" fill=\"none\" stroke=\"{hue}\" stroke-width=\"1.2\" stroke-dasharray=\"5 3\"/>"
    ));
}

fn axes(out: &mut Svg, frame: &Frame) {
    let (left, right, bottom) = (frame.left, frame.left + PANEL_WIDTH, frame.bottom());
    let label = Type::new(TINY, SOFT);
    for power in frame.low..=frame.high {
        let y = frame.y(10_f64.powi(power));
        out.line((left, y), (right, y), &format!("stroke=\"{GRID}\""));
        out.text(&label.anchored(Anchor::End), left - 7.0, y + 3.5, &decade(power));
    }
    let (unit, name) = frame.unit;
    let end = frame.end / unit;
    let steps = ticks(0.0, end, 6);
    let step = steps.get(1).copied().unwrap_or(end);
    for tick in &steps {
        let x = frame.x(tick * unit);
        out.line((x, bottom), (x, bottom + 4.0), &format!("stroke=\"{LINE}\""));
        let text = shown(*tick, step);
        let text = if *tick == 0.0 { text } else { format!("{text} {name}") };
        out.text(&label.anchored(Anchor::Middle), x, bottom + 17.0, &text);
    }
    out.line((left, bottom), (right, bottom), &format!("stroke=\"{LINE}\""));
}

/// A power of ten nanoseconds: `100 µs`.
fn decade(power: i32) -> String {
    let (unit, name) = match power {
        ..3 => (0, "ns"),
        3..6 => (3, "µs"),
        6..9 => (6, "ms"),
        _ => (9, "s"),
    };
    format!("{} {name}", shown(10_f64.powi(power - unit), 1.0))
}

fn legend(out: &mut Svg, bounds: &Bounds) {
    let y = 92.0;
    let moments = || bounds.panels.iter().flat_map(|panel| &panel.moments);
    let entries = [
        (true, bounds.measured.clone(), format!("stroke=\"{INK}\" stroke-width=\"1.5\"")),
        (
            true,
            "promised bound".into(),
            format!("stroke=\"{INK}\" stroke-width=\"1.2\" stroke-dasharray=\"5 3\""),
        ),
        (
            moments().any(|moment| moment.bound_ns.is_none()),
            "nothing promised yet".into(),
            format!("stroke=\"{LINE}\" stroke-width=\"1.2\""),
        ),
        (
            moments().any(|moment| moment.is_kept() == Some(false)),
            "promise broken".into(),
            format!("stroke=\"{ALARM}\" stroke-width=\"2\""),
        ),
    ];
    let mut x = MARGIN;
    for (_, text, look) in entries.iter().filter(|(is_there, ..)| *is_there) {
        out.line((x, y - 4.0), (x + 26.0, y - 4.0), look);
        out.text(&Type::new(SMALL, SOFT), x + 33.0, y, text);
        x += 33.0 + super::svg::width_of(text, SMALL) + 26.0;
    }
}

fn path(places: impl Iterator<Item = (f64, f64)>) -> String {
    let places: Vec<_> = places.map(|(x, y)| format!("{} {}", Num(x), Num(y))).collect();
    places.join("L")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(at_ns: f64, measured_ns: f64, bound_ns: Option<f64>) -> Moment {
        Moment { at_ns, measured_ns, bound_ns }
    }

    fn two() -> Bounds {
        let seconds = |n: u32| f64::from(n) * 1e9;
        let slow = Panel {
            name: "ntp <tree>".into(),
            note: "against the true time".into(),
            moments: vec![
                moment(seconds(1), 5e7, None),
                moment(seconds(2), 2e5, Some(1e6)),
                moment(seconds(3), 0.0, Some(1e6)),
                moment(seconds(4), 3e6, Some(2e6)),
                moment(seconds(10), 1e5, Some(1e6)),
            ],
        };
        let fast =
            Panel { name: "dtp".into(), moments: vec![moment(1e3, 19.0, Some(26.0))], ..Panel::default() };
        Bounds {
            title: "Clocks".into(),
            subtitle: "five sites".into(),
            measured: "error".into(),
            panels: vec![slow, fast],
        }
    }

    #[test]
    fn the_panels_are_drawn_as_they_were() {
        crate::diagram::testing::golden("bounds.svg", &draw(&two()));
    }

    #[test]
    fn a_broken_promise_is_red_and_what_is_not_promised_is_grey() {
        let picture = draw(&two());
        assert!(picture.contains("promise broken") && picture.contains("nothing promised yet"));
        let of = |colour: &str| picture.matches(&format!("stroke=\"{colour}\" stroke-width=\"2\"")).count();
        assert_eq!(of(ALARM), 2, "the stretch and its legend");
        let mut good = two();
        good.panels[0].moments.retain(|moment| moment.is_kept() == Some(true));
        let picture = draw(&good);
        assert!(!picture.contains("promise broken") && !picture.contains("nothing promised yet"));
    }

    #[test]
    fn panels_of_one_unit_share_their_axes_and_others_do_not() {
        let bounds = two();
        let slow = Frame::new((0.0, 0.0), &bounds.panels[0], &bounds.panels);
        let fast = Frame::new((0.0, 0.0), &bounds.panels[1], &bounds.panels);
        assert_eq!((slow.low, slow.high, slow.unit.1), (0, 8, "s"));
        assert_eq!((fast.low, fast.high, fast.unit.1), (1, 2, "ns"));
        let mut twice = bounds.clone();
        twice.panels.push(Panel { moments: vec![moment(12e9, 5.0, Some(3e9))], ..Panel::default() });
        let slow = Frame::new((0.0, 0.0), &twice.panels[0], &twice.panels);
        assert_eq!((slow.low, slow.high, slow.end), (0, 10, 12e9));
    }

    #[test]
    fn a_picture_of_nothing_is_a_picture() {
        assert!(draw(&Bounds::default()).ends_with("</svg>\n"));
        let empty = Bounds { panels: vec![Panel::default()], ..Bounds::default() };
        assert!(!draw(&empty).contains("NaN"));
    }

    #[test]
    fn decades_have_their_units() {
        assert_eq!(
            [0, 2, 3, 5, 6, 9, 10].map(decade),
            ["1 ns", "100 ns", "1 µs", "100 µs", "1 ms", "1 s", "10 s"]
        );
    }
}
