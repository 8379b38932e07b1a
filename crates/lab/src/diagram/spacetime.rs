//! The space-time diagram: one line a site, time to the right, arrows for messages.
//!
//! Bars on a line show what the problem cares about (waiting, the critical section); crosses and gaps show
//! crashes, shaded bands partitions; a message that was lost ends in a cross, the second copy of one that was
//! duplicated is dashed. Everything says more when the pointer rests on it.
//!
//! **Bound**: a picture with thousands of arrows shows nothing. Only a window is drawn (by default the first
//! messages, as many as stay readable at that number of sites), and the picture says so in its last line.
//! Labels are drawn only while there are few arrows.
//!
//! **Trap**: a run in which no time passes (a counterexample of the checker) would be a single vertical line;
//! there the axis counts steps instead.

mod legend;
mod scene;
#[cfg(test)]
mod tests;

use conclave_kernel::{NodeId, Time};

use self::legend::Entry;
use self::scene::{Arrow, Band, Bar, Head, Interval, Scene};
use super::label::{Labels, Side};
use super::scale::{group, nice_step, shown, ticks};
use super::span::{Span, SpanKind, Tone};
use super::svg::{
    ALARM, Anchor, BODY, Escaped, GRID, HUES, INK, LINE, Num, PAPER, SMALL, SOFT, Svg, TINY, TITLE, Type,
    fit, unit, width_of,
};
use crate::log::{Fate, Log, Message, Timescale};

/// What to draw of a log.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The title; the algorithm's name if empty.
    pub title: String,
    /// The line below it; sites, seed and scenario if empty.
    pub subtitle: String,
    /// From when.
    pub from: Time,
    /// Until when; as far as it stays readable if not given.
    pub until: Option<Time>,
    /// At most so many messages; as many as stay readable if not given.
    pub most_messages: Option<usize>,
    /// The bars: see [`span`](super::span).
    pub spans: Vec<Span>,
}

/// Draws a log as an SVG file.
pub fn draw(log: &Log, options: &Options) -> String {
    let scene = Scene::new(log, options);
    let legend = legend::entries(log, &scene);
    let frame = Frame::new(log, &scene, &legend);
    let title = if options.title.is_empty() { &log.about.algorithm } else { &options.title };
    let out = Svg::new(frame.width, frame.height, title);
    let mut picture = Picture { log, scene: &scene, options, out };
    picture.header(title);
    picture.legend(&legend, &frame);
    picture.bands(&frame);
    picture.axis(&frame);
    picture.lines(&frame);
    picture.bars(&frame);
    picture.absences(&frame);
    picture.arrows(&frame);
    picture.dots(&frame);
    picture.labels(&frame);
    picture.footer(&frame);
    picture.out.finish()
}

/// More arrows than this are not labelled.
const MOST_LABELLED: usize = 72;
const MARGIN: f64 = 28.0;

/// Where things are on the paper.
struct Frame {
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    /// The first site's line.
    top: f64,
    gap: f64,
    rows: u32,
    low: f64,
    high: f64,
    /// The window's end, without the margin.
    last: f64,
    band_labels: f64,
}

impl Frame {
    fn new(log: &Log, scene: &Scene, legend: &[Entry]) -> Self {
        let rows = scene.sites.max(1);
        let names = (0..rows).map(|site| width_of(&log.name(NodeId(site)), BODY));
        let left = MARGIN + names.fold(16.0, f64::max).min(130.0) + 16.0;
        let gap = (540.0 / f64::from(rows.max(2) - 1)).clamp(38.0, 116.0);
        // Wide enough for what happens in it, and not narrower than it is high.
        let least = (gap * f64::from(rows) * 1.4).clamp(860.0, 1560.0);
        let right = left + (scene.instants as f64 * 46.0).clamp(least, 1560.0);
        let lanes = scene.bands.iter().map(|band| band.lane + 1).max().unwrap_or(0);
        let band_labels = legend::TOP + legend::ROW * legend::rows(legend, right) as f64 + 14.0;
        let top = band_labels + lanes as f64 * 20.0 + gap.min(60.0) / 2.0;
        let height = top + gap * f64::from(rows - 1) + gap.min(60.0) / 2.0 + 84.0;
        let pad = (scene.high - scene.low) * 0.012;
        Self {
            width: right + MARGIN,
            height,
            left,
            right,
            top,
            gap,
            rows,
            low: scene.low - pad,
            high: scene.high + pad,
            last: scene.high,
            band_labels,
        }
    }

    fn x(&self, at: f64) -> f64 {
        let part = (at - self.low) / (self.high - self.low).max(f64::MIN_POSITIVE);
        self.left + part.clamp(0.0, 1.0) * (self.right - self.left)
    }

    /// Where a stretch ends that may go on beyond the window.
    fn end(&self, at: f64) -> f64 {
        if at <= self.last { self.x(at) } else { self.right }
    }

    fn y(&self, site: u32) -> f64 {
        self.top + self.gap * f64::from(site)
    }

    fn bottom(&self) -> f64 {
        self.y(self.rows - 1) + self.gap.min(60.0) / 2.0
    }

    fn point(&self, (at, site): (f64, u32)) -> (f64, f64) {
        (self.x(at), self.y(site))
    }

    /// An arrow's ends on the paper: cut at the window's edges, short of the line that it points at.
    fn segment(&self, arrow: &Arrow) -> ((f64, f64), (f64, f64)) {
        let place = |at: f64| self.left + (at - self.low) / (self.high - self.low) * (self.right - self.left);
        let (mut from, mut to) =
            ((place(arrow.from.0), self.y(arrow.from.1)), (place(arrow.to.0), self.y(arrow.to.1)));
        let slope = (to.1 - from.1) / (to.0 - from.0).max(1e-9);
        let reach = from.0 + (to.0 - from.0) * arrow.part;
        to = (reach, from.1 + (to.1 - from.1) * arrow.part);
        if from.0 < self.left {
            from = (self.left, from.1 + slope * (self.left - from.0));
        }
        if to.0 > self.right {
            to = (self.right, from.1 + slope * (self.right - from.0));
        }
        let (along, shift) = (unit(from, to), 3.2 * arrow.offset());
        let shifted = |(x, y): (f64, f64)| (x + along.1 * shift, y - along.0 * shift);
        (shifted(from), shifted(to))
    }
}

impl Arrow {
    /// How many places above the middle of those that leave and arrive with it.
    fn offset(&self) -> f64 {
        let (all, nth) = self.beside;
        (all - 1) as f64 / 2.0 - nth as f64
    }
}

struct Picture<'a> {
    log: &'a Log,
    scene: &'a Scene,
    options: &'a Options,
    out: Svg,
}

impl Picture<'_> {
    fn header(&mut self, title: &str) {
        self.out.text(&Type::new(TITLE, INK).weighing(650), MARGIN, 40.0, title);
        let subtitle = if self.options.subtitle.is_empty() {
            let seed = self.log.about.seed.map(|seed| format!(" · seed {seed}")).unwrap_or_default();
            format!("{} sites{seed}", group(&self.log.sites().to_string()))
        } else {
            self.options.subtitle.clone()
        };
        self.out.text(&Type::new(BODY, SOFT), MARGIN, 61.0, &subtitle);
    }

    /// Partitions: the group's rows shaded between the cut and the heal, the group named above.
    fn bands(&mut self, frame: &Frame) {
        for Band { group, interval, lane } in &self.scene.bands {
            let (x, end) = (frame.x(interval.from), frame.end(interval.to));
            let names: Vec<_> = group.iter().map(|site| self.log.name(*site)).collect();
            let label = format!("{} cut off", names.join(", "));
            self.out.open("");
            self.out.tooltip(&self.lasting(&label, interval.from, interval.to));
            let half = frame.gap.min(60.0) / 2.0;
            for site in group.iter().filter(|site| site.0 < frame.rows) {
                self.out.rect(x, frame.y(site.0) - half, end - x, 2.0 * half, CUT_OFF);
            }
            let y = frame.band_labels + 6.0 + *lane as f64 * 20.0;
            let edges = format!("stroke=\"{PURPLE}\" stroke-width=\"1\" stroke-dasharray=\"2 3\"");
            self.out.line((x, y), (x, frame.bottom()), &edges);
            self.out.line((end, y), (end, frame.bottom()), &edges);
            self.out.line((x, y), (end, y), &format!("stroke=\"{PURPLE}\" stroke-width=\"2\""));
            let words = fit(&label, TINY, (frame.right - x).max(60.0));
            self.out.text(
                &Type { fill: PURPLE, ..Type::new(TINY, INK).weighing(600) },
                x + 3.0,
                y + 12.0,
                &words,
            );
            self.out.close();
        }
    }

    fn axis(&mut self, frame: &Frame) {
        let (unit, name) = self.scene.unit();
        let y = frame.bottom() + 6.0;
        let most = ((frame.right - frame.left) / 80.0) as usize;
        let (low, high) = (self.scene.low / unit, self.scene.high / unit);
        let step = nice_step(high - low, most);
        for tick in ticks(low, high, most) {
            let x = frame.x(tick * unit);
            self.out.line((x, frame.top - frame.gap.min(60.0) / 2.0), (x, y), &format!("stroke=\"{GRID}\""));
            self.out.text(&Type::new(SMALL, SOFT).anchored(Anchor::Middle), x, y + 17.0, &shown(tick, step));
        }
        self.out.line((frame.left, y), (frame.right, y), &format!("stroke=\"{LINE}\""));
        self.out.text(&Type::new(SMALL, SOFT).anchored(Anchor::End), frame.right, y + 37.0, name);
    }

    fn lines(&mut self, frame: &Frame) {
        for site in (0..frame.rows).map(NodeId) {
            let y = frame.y(site.0);
            let name = self.log.name(site);
            let text = fit(&name, BODY, 130.0);
            self.out.text(
                &Type::new(BODY, INK).weighing(600).anchored(Anchor::End),
                frame.left - 12.0,
                y + 4.5,
                &text,
            );
            self.out.line(
                (frame.left, y),
                (frame.right, y),
                &format!("stroke=\"{LINE}\" stroke-width=\"1.3\""),
            );
        }
    }

    /// Pauses and crashes: above the bars, for a site that is down does nothing.
    fn absences(&mut self, frame: &Frame) {
        for Interval { site, from, to } in &self.scene.pauses {
            let (x, end, y) = (frame.x(*from), frame.end(*to), frame.y(site.0));
            self.out.open("");
            self.out.tooltip(&self.lasting(&format!("{} is paused", self.log.name(*site)), *from, *to));
            self.out.rect(x, y - 5.0, end - x, 10.0, PAUSED);
            self.out.close();
        }
        for Interval { site, from, to } in &self.scene.crashes {
            let (x, end, y) = (frame.x(*from), frame.end(*to), frame.y(site.0));
            self.out.open("");
            self.out.tooltip(&self.lasting(&format!("{} is down", self.log.name(*site)), *from, *to));
            self.out.line((x, y), (end, y), &format!("stroke=\"{PAPER}\" stroke-width=\"19\""));
            self.out.line((x, y), (end, y), CRASHED);
            if *to <= frame.last {
                let back = format!("fill=\"{PAPER}\" stroke=\"{INK}\" stroke-width=\"1.6\"");
                let said = format!("{} is back at {}", self.log.name(*site), self.time(*to));
                self.out.circle((end, y), 4.0, &back, &said);
            }
            self.out.close();
        }
    }

    fn bars(&mut self, frame: &Frame) {
        for bar in &self.scene.bars {
            let (x, end, y) = (frame.x(bar.from), frame.end(bar.to), frame.y(bar.span.site.0));
            let (height, look) = bar_look(bar.span.kind.tone);
            let width = (end - x).max(2.0);
            self.out.open("");
            let note = if bar.span.note.is_empty() { String::new() } else { format!(" ({})", bar.span.note) };
            let what = format!("{}: {}{note}", self.log.name(bar.span.site), bar.span.kind.name);
            self.out.tooltip(&self.lasting(&what, bar.from, bar.to));
            self.out.rect(x, y - height / 2.0, width, height, look);
            self.out.close();
        }
    }

    fn arrows(&mut self, frame: &Frame) {
        let few = self.scene.arrows.len() <= MOST_LABELLED;
        let (stroke, head) = if few { (1.5, 9.0) } else { (1.1, 7.0) };
        for arrow in &self.scene.arrows {
            let (from, to) = frame.segment(arrow);
            let hue = hue(arrow.kind);
            let along = unit(from, to);
            let back = |by: f64| (to.0 - along.0 * by, to.1 - along.1 * by);
            let dash = match (arrow.copy, arrow.head) {
                (true, _) => " stroke-dasharray=\"5 3\"",
                (_, Head::Fade) => " stroke-dasharray=\"1.5 3\"",
                _ => "",
            };
            self.out.open("");
            self.out.tooltip(&self.said(&self.log.messages()[arrow.message], arrow.copy));
            self.out.line(from, to, "stroke=\"#000\" stroke-opacity=\"0\" stroke-width=\"9\"");
            let shaft = if arrow.head == Head::Arrow { back(head * 0.8) } else { to };
            let shade = if arrow.head == Head::Leaves { " stroke-opacity=\"0.4\"" } else { "" };
            self.out.line(from, shaft, &format!("stroke=\"{hue}\" stroke-width=\"{stroke}\"{dash}{shade}"));
            match arrow.head {
                Head::Arrow => {
                    let outline = format!("fill=\"{hue}\" stroke=\"{PAPER}\" stroke-width=\"0.7\"");
                    self.out.head(from, back(1.0), head, &outline);
                }
                Head::Cross => {
                    self.out.cross(to.0, to.1, 4.0, &format!("stroke=\"{ALARM}\" stroke-width=\"2\""));
                }
                Head::Leaves | Head::Fade => {}
            }
            self.out.close();
        }
    }

    /// Steps, and the crosses of crashes above everything.
    fn dots(&mut self, frame: &Frame) {
        let radius = if self.scene.arrows.len() <= MOST_LABELLED { 2.6 } else { 1.9 };
        let look = format!("fill=\"{INK}\" stroke=\"{PAPER}\" stroke-width=\"0.8\"");
        for (event, at) in self.scene.steps() {
            let site = self.log.events()[event].site;
            let (x, y) = frame.point((at, site.0));
            let said = format!("{} at {}: {}", self.log.name(site), self.time(at), self.log.describe(event));
            self.out.circle((x, y), radius, &look, &said);
        }
        for Interval { site, from, .. } in &self.scene.crashes {
            if *from >= self.scene.low {
                let (x, y) = frame.point((*from, site.0));
                self.out.cross(
                    x,
                    y,
                    6.0,
                    &format!("stroke=\"{ALARM}\" stroke-width=\"2.6\" stroke-linecap=\"round\""),
                );
            }
        }
    }

    fn labels(&mut self, frame: &Frame) {
        let mut labels = Labels::default();
        self.out.open(&format!(
            "font-size=\"{TINY}\" text-anchor=\"middle\" pointer-events=\"none\" paint-order=\"stroke\" \
             stroke-width=\"3\" stroke-linejoin=\"round\""
        ));
        for bar in &self.scene.bars {
            let (x, end, y) = (frame.x(bar.from), frame.end(bar.to), frame.y(bar.span.site.0));
            let (height, _) = bar_look(bar.span.kind.tone);
            labels.avoid(x, y - height / 2.0, end - x, height);
            if let Some(x) = self.place_of_note(frame, bar) {
                self.out.raw(format_args!(
                    "<text x=\"{}\" y=\"{}\" fill=\"{PAPER}\" stroke=\"none\" font-weight=\"600\">{}</text>",
                    Num(x),
                    Num(y + 3.7),
                    Escaped(&bar.span.note)
                ));
            }
        }
        if self.scene.arrows.len() <= MOST_LABELLED {
            self.arrow_labels(frame, &mut labels);
        }
        self.out.close();
    }

    fn arrow_labels(&mut self, frame: &Frame, labels: &mut Labels) {
        let segments: Vec<_> = self.scene.arrows.iter().map(|arrow| frame.segment(arrow)).collect();
        for (arrow, segment) in self.scene.arrows.iter().zip(&segments) {
            let text = self.log.short(self.log.messages()[arrow.message].text);
            let side = if arrow.offset() < 0.0 { Side::Below } else { Side::Above };
            if text.is_empty() {
                continue;
            }
            let Some(placed) = labels.place(&text, *segment, side, &segments) else { continue };
            let (x, y) = (Num(placed.x), Num(placed.y));
            self.out.raw(format_args!(
                "<text x=\"{x}\" y=\"{y}\" dy=\"0.34em\" fill=\"{}\" stroke=\"{PAPER}\" \
                 transform=\"rotate({} {x} {y})\">{}</text>",
                hue(arrow.kind),
                Num(placed.angle),
                Escaped(&text)
            ));
        }
    }

    /// Where on its bar a note can stand clear of steps.
    fn place_of_note(&self, frame: &Frame, bar: &Bar) -> Option<f64> {
        let (x, end) = (frame.x(bar.from), frame.end(bar.to));
        let half = width_of(&bar.span.note, TINY) / 2.0 + 5.0;
        if bar.span.note.is_empty() || bar.span.kind.tone != Tone::Has {
            return None;
        }
        let steps =
            || self.scene.steps().filter(|(event, _)| self.log.events()[*event].site == bar.span.site);
        let places = [0.5, 0.35, 0.65, 0.2, 0.8].map(|part| x + (end - x) * part);
        places.into_iter().find(|place| {
            let inside = *place - half + 2.0 >= x && *place + half - 2.0 <= end;
            inside && steps().all(|(_, at)| (frame.x(at) - place).abs() >= half)
        })
    }

    fn footer(&mut self, frame: &Frame) {
        if let Some(shown) = &self.scene.limited {
            self.out.text(&Type::new(SMALL, SOFT), MARGIN, frame.height - 18.0, shown);
        }
    }

    fn said(&self, message: &Message, copy: bool) -> String {
        let sent = self.moment(self.log.sent_at(message));
        let fate = match message.fate {
            _ if copy => "received once more".to_owned(),
            Fate::Received(event) => {
                format!("received {}", self.moment(self.log.events()[event as usize].at))
            }
            Fate::Lost(at) => format!("lost {}", self.moment(at)),
            Fate::InFlight => "never received".to_owned(),
        };
        let (from, to) = (self.log.name(message.from), self.log.name(message.to));
        let words = match self.log.words(message.text) {
            words if words.is_empty() => words,
            words => format!(": {words}"),
        };
        format!("{from} → {to}{words}\nsent {sent}, {fate}")
    }

    fn lasting(&self, what: &str, from: f64, to: f64) -> String {
        let until = if to.is_finite() { format!("to {}", self.time(to)) } else { "on".to_owned() };
        format!("{what} from {} {until}", self.time(from))
    }

    fn moment(&self, at: Time) -> String {
        match self.log.about.timescale {
            Timescale::World => format!("at {at}"),
            Timescale::Logical => format!("at {}", at.0),
        }
    }

    /// A coordinate as time.
    fn time(&self, at: f64) -> String {
        self.scene.show(at)
    }
}

const PURPLE: &str = "#6b4c9a";
const CUT_OFF: &str = "fill=\"#6b4c9a\" fill-opacity=\"0.11\"";
const CRASHED: &str = "stroke=\"#c3cad2\" stroke-width=\"1.6\" stroke-dasharray=\"2 4\"";
const PAUSED: &str = "rx=\"2\" fill=\"#e4e8ed\" fill-opacity=\"0.9\" stroke=\"#8d98a5\" stroke-width=\"0.8\" \
                      stroke-dasharray=\"3 2\"";

/// A bar's height and attributes.
fn bar_look(tone: Tone) -> (f64, &'static str) {
    match tone {
        Tone::Wants => (9.0, "rx=\"2\" fill=\"#f6dfa4\" stroke=\"#d9b650\" stroke-width=\"0.8\""),
        Tone::Has => (17.0, "rx=\"2.5\" fill=\"#2b3a4a\""),
    }
}

fn hue(kind: usize) -> &'static str {
    HUES[kind % HUES.len()]
}
