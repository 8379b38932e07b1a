//! The SVG of a scene.
//!
//! Every element has a class (`dot`, `arrow`, `bar`, `timer`, `violation`, ...) and a title.

use super::frame::{Frame, MARGIN, MOST_STATE_WIDTH, STATE_LINE};
use super::legend;
use super::route::{Dots, Route};
use super::scene::{Arrow, Bar, Head, Scene};
use crate::diagram::label::{Labels, Side};
use crate::diagram::scale::{nice_step, shown, ticks};
use crate::diagram::span::Tone;
use crate::diagram::svg::{
    ALARM, Anchor, BODY, Escaped, GRID, INK, LINE, Num, PAPER, SMALL, SOFT, Svg, TINY, TITLE, Type, fit, hue,
    width_of,
};

/// Draws a scene as an SVG file.
pub fn render(scene: &Scene) -> String {
    let legend = legend::entries(scene);
    let frame = Frame::new(scene, &legend);
    let dots = Dots::new(&scene.dots, &frame, scene.sites.len().max(1));
    let routes = scene.arrows.iter().map(|arrow| Route::of(arrow, &frame, &dots)).collect();
    let out = Svg::new(frame.width, frame.height, &scene.title);
    let mut picture = Picture { scene, frame: &frame, routes, out };
    picture.header();
    picture.legend(&legend);
    picture.bands();
    picture.axis();
    picture.lines();
    picture.bars();
    picture.absences();
    picture.violation();
    picture.arrows();
    picture.braces();
    picture.cuts();
    picture.dots();
    picture.labels();
    picture.states();
    picture.footer();
    picture.out.finish()
}

/// The most arrows with labels. With more arrows there are none, and the kinds differ by their dashes.
const MOST_LABELLED: usize = 72;

/// A picture that is being drawn.
pub(super) struct Picture<'a> {
    pub(super) scene: &'a Scene,
    pub(super) frame: &'a Frame,
    routes: Vec<Route>,
    pub(super) out: Svg,
}

impl Picture<'_> {
    fn header(&mut self) {
        self.out.text(&Type::new(TITLE, INK).weighing(650), MARGIN, 40.0, &self.scene.title);
        self.out.text(&Type::new(BODY, SOFT), MARGIN, 61.0, &self.scene.subtitle);
    }

    /// Partitions: the group's rows are shaded between the cut and the heal, and the group is named above.
    fn bands(&mut self) {
        let frame = self.frame;
        for band in &self.scene.bands {
            let (x, end) = (frame.x(band.from), frame.end(band.to));
            self.out.open("class=\"partition\"");
            self.out.tooltip(&band.tooltip);
            for site in band.group.iter().filter(|site| (**site as usize) < self.scene.sites.len()) {
                self.out.rect(x, frame.y(*site) - frame.half, end - x, 2.0 * frame.half, CUT_OFF);
            }
            let y = frame.band_labels + 6.0 + band.lane as f64 * 20.0;
            let edges = format!("stroke=\"{PURPLE}\" stroke-width=\"1\" stroke-dasharray=\"2 3\"");
            self.out.line((x, y), (x, frame.bottom), &edges);
            self.out.line((end, y), (end, frame.bottom), &edges);
            self.out.line((x, y), (end, y), &format!("stroke=\"{PURPLE}\" stroke-width=\"2\""));
            let words = fit(&band.label, TINY, (frame.right - x).max(60.0));
            let look = Type { fill: PURPLE, ..Type::new(TINY, INK).weighing(600) };
            self.out.text(&look, x + 3.0, y + 12.0, &words);
            self.out.close();
        }
    }

    fn axis(&mut self) {
        let (frame, axis) = (self.frame, &self.scene.axis);
        let y = frame.bottom + 6.0;
        let most = ((frame.right - frame.left) / 80.0) as usize;
        let (low, high) = (axis.low / axis.unit, axis.high / axis.unit);
        let step = match axis.name {
            "step" | "Lamport time" => nice_step(high - low, most).max(1.0),
            _ => nice_step(high - low, most),
        };
        let is_tick = |tick: &f64| step < 1.0 || axis.name.starts_with("time") || tick.fract() == 0.0;
        for tick in ticks(low, high, most).into_iter().filter(is_tick) {
            let x = frame.x(tick * axis.unit);
            self.out.line((x, frame.top), (x, y), &format!("stroke=\"{GRID}\""));
            let look = Type::new(SMALL, SOFT).anchored(Anchor::Middle);
            self.out.text(&look, x, y + 17.0, &shown(tick, step));
        }
        self.out.line((frame.left, y), (frame.right, y), &format!("stroke=\"{LINE}\""));
        self.out.text(&Type::new(SMALL, SOFT).anchored(Anchor::End), frame.right, y + 37.0, axis.name);
    }

    fn lines(&mut self) {
        let frame = self.frame;
        for (site, name) in (0..).zip(&self.scene.sites) {
            let y = frame.y(site);
            let text = fit(name, BODY, 130.0);
            let look = Type::new(BODY, INK).weighing(600).anchored(Anchor::End);
            self.out.text(&look, frame.left - 12.0, y + 4.5, &text);
            let line = format!("class=\"site\" stroke=\"{LINE}\" stroke-width=\"1.3\"");
            self.out.line((frame.left, y), (frame.right, y), &line);
        }
    }

    fn bars(&mut self) {
        let frame = self.frame;
        for bar in &self.scene.bars {
            let (x, end, y) = (frame.x(bar.from), frame.end(bar.to), frame.y(bar.site));
            let (height, look) = bar_look(bar.tone, bar.hue);
            self.out.open(&format!("class=\"bar {}\"", tone_class(bar.tone)));
            self.out.tooltip(&bar.tooltip);
            self.out.rect(x, y - height / 2.0, (end - x).max(2.0), height, &look);
            self.out.close();
        }
    }

    /// Pauses and crashes. They cover the bars, because a site that is down does nothing.
    fn absences(&mut self) {
        let frame = self.frame;
        for pause in &self.scene.pauses {
            let (x, end, y) = (frame.x(pause.from), frame.end(pause.to), frame.y(pause.site));
            self.out.open("class=\"pause\"");
            self.out.tooltip(&pause.tooltip);
            self.out.rect(x, y - 5.0, end - x, 10.0, PAUSED);
            self.out.close();
        }
        for crash in &self.scene.crashes {
            let (x, end, y) = (frame.x(crash.from), frame.end(crash.to), frame.y(crash.site));
            self.out.open("class=\"crash\"");
            self.out.tooltip(&crash.tooltip);
            self.out.line((x, y), (end, y), &format!("stroke=\"{PAPER}\" stroke-width=\"19\""));
            self.out.line((x, y), (end, y), CRASHED);
            if let Some(back) = crash.to.filter(|to| *to <= self.scene.axis.high) {
                let look = format!("fill=\"{PAPER}\" stroke=\"{INK}\" stroke-width=\"1.6\"");
                let name = &self.scene.sites[crash.site as usize];
                let tooltip = format!("{name} is back at {}", self.scene.axis.show(back));
                self.out.circle((end, y), 4.0, &look, &tooltip);
            }
            self.out.close();
        }
    }

    pub(super) fn has_labels(&self) -> bool {
        self.scene.arrows.len() <= MOST_LABELLED
    }

    fn arrows(&mut self) {
        let (stroke, head) = if self.has_labels() { (1.5, 9.0) } else { (1.1, 7.0) };
        for (index, arrow) in self.scene.arrows.iter().enumerate() {
            let kind = &self.scene.kinds[arrow.kind];
            let loops = if arrow.is_loop() { " loop" } else { "" };
            self.out.open(&format!("class=\"arrow {}{loops}\"", class_of(&kind.name)));
            self.out.tooltip(&arrow.tooltip);
            if arrow.is_loop() {
                self.draw_loop(arrow, stroke, head);
            } else {
                self.draw_arrow(arrow, self.routes[index], stroke, head);
            }
            self.out.close();
        }
    }

    fn draw_arrow(&mut self, arrow: &Arrow, route: Route, stroke: f64, head: f64) {
        let kind = self.scene.kinds[arrow.kind].hue;
        let hue = hue(kind);
        let dash = match arrow.head {
            Head::Fade => " stroke-dasharray=\"1.5 3\"".to_owned(),
            _ if self.has_labels() => String::new(),
            _ => dash_of(kind),
        };
        self.out.line(route.from, route.to, "stroke=\"#000\" stroke-opacity=\"0\" stroke-width=\"9\"");
        let shaft = if arrow.head == Head::Arrow { route.shortened(head * 0.8) } else { route };
        let shade = if arrow.head == Head::Leaves { " stroke-opacity=\"0.4\"" } else { "" };
        let look = format!("fill=\"none\" stroke=\"{hue}\" stroke-width=\"{stroke}\"{dash}{shade}");
        if route.is_straight() {
            self.out.line(shaft.from, shaft.to, &look);
        } else {
            self.out.curve(shaft.from, route.controls(), shaft.to, &look);
        }
        match arrow.head {
            Head::Arrow => {
                let fill = if arrow.copy { PAPER } else { hue };
                let edge = if arrow.copy { hue } else { PAPER };
                let outline = format!("fill=\"{fill}\" stroke=\"{edge}\" stroke-width=\"0.9\"");
                let near = if route.is_straight() { route.from } else { route.point(0.94) };
                self.out.head(near, shaft_end(route, 1.0), head, &outline);
            }
            Head::Cross => {
                let look = format!("stroke=\"{ALARM}\" stroke-width=\"2\"");
                self.out.cross(route.to.0, route.to.1, 4.0, &look);
            }
            Head::Leaves | Head::Fade => {}
        }
    }

    /// A message of a site to itself: a loop above the line.
    fn draw_loop(&mut self, arrow: &Arrow, stroke: f64, head: f64) {
        let hue = hue(self.scene.kinds[arrow.kind].hue);
        let (x, y) = self.frame.point(arrow.from);
        let end = self.frame.x(arrow.to.at);
        let aside = 14.0 + 7.0 * arrow.beside.1 as f64;
        let (left, right) = if end - x < 12.0 { (x - aside, x + aside) } else { (x, end) };
        let height = 28.0 + 9.0 * arrow.beside.1 as f64;
        let look = format!("fill=\"none\" stroke=\"{hue}\" stroke-width=\"{stroke}\"");
        let controls = [(left, y - height), (right, y - height)];
        self.out.curve((x, y - 3.0), controls, (end, y - 3.0 - head * 0.7), &look);
        let outline = format!("fill=\"{hue}\" stroke=\"{PAPER}\" stroke-width=\"0.9\"");
        self.out.head((right, y - height), (end, y - 3.0), head, &outline);
    }

    /// The steps, and the crosses of crashes above everything.
    fn dots(&mut self) {
        let radius = if self.has_labels() { 2.6 } else { 1.9 };
        let look = format!("class=\"dot\" fill=\"{INK}\" stroke=\"{PAPER}\" stroke-width=\"0.8\"");
        for dot in &self.scene.dots {
            self.out.circle(self.frame.point(dot.place), radius, &look, &dot.tooltip);
        }
        for crash in self.scene.crashes.iter().filter(|crash| crash.from >= self.scene.axis.low) {
            let (x, y) = (self.frame.x(crash.from), self.frame.y(crash.site));
            self.out.cross(x, y, 5.5, &format!("stroke=\"{ALARM}\" stroke-width=\"2.6\""));
        }
    }

    fn labels(&mut self) {
        let mut labels = Labels::default();
        self.out.open(&format!(
            "class=\"labels\" font-size=\"{TINY}\" text-anchor=\"middle\" pointer-events=\"none\""
        ));
        let frame = self.frame;
        for bar in &self.scene.bars {
            let (x, end, y) = (frame.x(bar.from), frame.end(bar.to), frame.y(bar.site));
            let (height, _) = bar_look(bar.tone, bar.hue);
            labels.avoid(x, y - height / 2.0, end - x, height);
            if let Some(x) = self.place_of_note(bar) {
                self.draw_note(bar, x, y);
            }
        }
        for dot in &self.scene.dots {
            let (x, y) = frame.point(dot.place);
            labels.avoid(x - 3.0, y - 3.0, 6.0, 6.0);
        }
        for state in &frame.states {
            let (lines, y) = (&self.scene.dots[state.dot], state.below);
            let width = lines.changes.iter().map(|line| width_of(line, TINY)).fold(0.0, f64::max);
            let height = lines.changes.len() as f64 * STATE_LINE;
            labels.avoid(state.x, frame.y(lines.place.site) + y - 2.0, width.min(MOST_STATE_WIDTH), height);
        }
        if self.has_labels() {
            self.arrow_labels(&mut labels);
        }
        self.out.close();
    }

    fn draw_note(&mut self, bar: &Bar, x: f64, y: f64) {
        let (fill, y) = match bar.tone {
            Tone::Has => (PAPER, y + 3.7),
            _ => (INK, y - 6.5),
        };
        self.out.raw(format_args!(
            "<text class=\"note\" x=\"{}\" y=\"{}\" fill=\"{fill}\" font-weight=\"600\">{}</text>",
            Num(x),
            Num(y),
            Escaped(&bar.note)
        ));
    }

    fn arrow_labels(&mut self, labels: &mut Labels) {
        for (arrow, route) in self.scene.arrows.iter().zip(&self.routes) {
            let side = if arrow.offset() < 0.0 { Side::Below } else { Side::Above };
            if arrow.label.is_empty() {
                continue;
            }
            let placed = match arrow.is_loop() {
                true => labels.above(&arrow.label, *route),
                false => labels.place(&arrow.label, *route, side, &self.routes),
            };
            let Some(placed) = placed else { continue };
            let (x, y) = (Num(placed.x), Num(placed.y));
            let width = width_of(&arrow.label, TINY);
            self.out.open(&format!("class=\"label\" transform=\"rotate({} {x} {y})\"", Num(placed.angle)));
            let paper = format!("fill=\"{PAPER}\" fill-opacity=\"0.8\"");
            self.out.rect(placed.x - width / 2.0, placed.y - TINY / 2.0, width, TINY, &paper);
            self.out.raw(format_args!(
                "<text x=\"{x}\" y=\"{}\" fill=\"{}\">{}</text>",
                Num(placed.y + TINY * 0.34),
                hue(self.scene.kinds[arrow.kind].hue),
                Escaped(&arrow.label)
            ));
            self.out.close();
        }
    }

    /// The place on a bar where its note is clear of steps.
    fn place_of_note(&self, bar: &Bar) -> Option<f64> {
        let frame = self.frame;
        let (x, end) = (frame.x(bar.from), frame.end(bar.to));
        let half = width_of(&bar.note, TINY) / 2.0 + 5.0;
        if bar.note.is_empty() || bar.tone == Tone::Wants {
            return None;
        }
        let dots = || self.scene.dots.iter().filter(|dot| dot.place.site == bar.site);
        let places = [0.5, 0.35, 0.65, 0.2, 0.8].map(|part| x + (end - x) * part);
        places.into_iter().find(|place| {
            let inside = *place - half + 2.0 >= x && *place + half - 2.0 <= end;
            inside && dots().all(|dot| (frame.x(dot.place.at) - place).abs() >= half)
        })
    }

    fn footer(&mut self) {
        let mut y = self.frame.footer;
        let mut lines = Vec::new();
        for cut in &self.scene.cuts {
            lines.extend(cut.summary.iter().map(|line| (INK, line.as_str())));
        }
        let verdict = if self.scene.violation.is_some() { ALARM } else { INK };
        lines.push((verdict, self.scene.verdict.as_str()));
        lines.push((SOFT, self.scene.command.as_str()));
        lines.push((SOFT, self.scene.limited.as_deref().unwrap_or_default()));
        for (colour, line) in lines.into_iter().filter(|(_, line)| !line.is_empty()) {
            let line = fit(line, SMALL, self.frame.width - 2.0 * MARGIN);
            self.out.text(&Type { fill: colour, ..Type::new(SMALL, INK) }, MARGIN, y, &line);
            y += 18.0;
        }
    }
}

impl Picture<'_> {
    /// A place near the middle of an arrow, which is seldom on the line of a site.
    pub(super) fn middle_of(&self, arrow: usize) -> (f64, f64) {
        const NEAR_MIDDLE: f64 = 0.38;
        self.routes[arrow].point(NEAR_MIDDLE)
    }
}

/// The end of a way, short of it by a length.
fn shaft_end(route: Route, by: f64) -> (f64, f64) {
    route.shortened(by).to
}

const PURPLE: &str = "#6b4c9a";
pub(super) const CUT_OFF: &str = "fill=\"#6b4c9a\" fill-opacity=\"0.11\"";
pub(super) const CRASHED: &str = "stroke=\"#c3cad2\" stroke-width=\"1.6\" stroke-dasharray=\"2 4\"";
pub(super) const PAUSED: &str = "rx=\"2\" fill=\"#e4e8ed\" fill-opacity=\"0.9\" stroke=\"#8d98a5\" \
                                 stroke-width=\"0.8\" stroke-dasharray=\"3 2\"";

/// The height of a bar, and its attributes.
pub(super) fn bar_look(tone: Tone, colour: Option<usize>) -> (f64, String) {
    let colour = colour.map(hue);
    match tone {
        Tone::Wants => (9.0, "rx=\"2\" fill=\"#f6dfa4\" stroke=\"#d9b650\" stroke-width=\"0.8\"".into()),
        Tone::Has => (17.0, format!("rx=\"2.5\" fill=\"{}\"", colour.unwrap_or("#2b3a4a"))),
        Tone::Follows => {
            let colour = colour.unwrap_or(SOFT);
            (
                7.0,
                format!(
                    "rx=\"2\" fill=\"{colour}\" fill-opacity=\"0.3\" stroke=\"{colour}\" stroke-width=\"0.7\""
                ),
            )
        }
    }
}

fn tone_class(tone: Tone) -> &'static str {
    match tone {
        Tone::Wants => "waits",
        Tone::Has => "has",
        Tone::Follows => "follows",
    }
}

/// The dashes of a kind of message in a picture without labels.
pub(super) fn dash_of(kind: usize) -> String {
    const DASHES: [&str; 6] = ["", "7 3", "3 2", "9 2 2 2", "1.5 2", "5 2 1.5 2 1.5 2"];
    match DASHES[kind % DASHES.len()] {
        "" => String::new(),
        dash => format!(" stroke-dasharray=\"{dash}\""),
    }
}

/// The class of a kind of message.
fn class_of(kind: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("kind-{}", kind.chars().take(40).map(safe).collect::<String>())
}
