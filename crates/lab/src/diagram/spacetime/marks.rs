//! The SVG of the parts that explain a scene: brackets, states, cuts and the violation.

use super::frame::{BELOW, LANE, MARGIN, MOST_STATE_WIDTH, STATE_LINE};
use super::render::Picture;
use super::scene::{Brace, CutLine};
use crate::diagram::span::BracketKind;
use crate::diagram::svg::{ALARM, Anchor, INK, PAPER, SMALL, SOFT, TINY, Type, fit, hatching, width_of};

/// The colour of cuts.
const CUT: &str = "#332288";
/// The colour of brackets.
const BRACE: &str = "#4b5866";

impl Picture<'_> {
    /// Durations: a bracket below the line with its name. A timer that fired ends in an arrow.
    pub(super) fn braces(&mut self) {
        for brace in &self.scene.brackets {
            let class = if brace.kind == BracketKind::Measure { "measure" } else { "timer" };
            self.out.open(&format!("class=\"{class}\""));
            self.out.tooltip(&brace.tooltip);
            self.brace(brace);
            self.out.close();
        }
    }

    fn brace(&mut self, brace: &Brace) {
        let frame = self.frame;
        let (x, end) = (frame.x(brace.from), frame.end(brace.to));
        let y = frame.y(brace.site) + BELOW + brace.lane as f64 * LANE + 4.0;
        let dash = if brace.kind == BracketKind::Stopped { " stroke-dasharray=\"3 2\"" } else { "" };
        let look = format!("fill=\"none\" stroke=\"{BRACE}\" stroke-width=\"1.1\"{dash}");
        let tick = |out: &mut crate::diagram::svg::Svg, x: f64| {
            out.line((x, y - 4.0), (x, y + 4.0), &format!("stroke=\"{BRACE}\" stroke-width=\"1.1\""));
        };
        self.out.line((x, y), (end, y), &look);
        tick(&mut self.out, x);
        match brace.kind {
            BracketKind::Fired => {
                tick(&mut self.out, end);
                self.out.head((x, y), (end, y), 7.0, &format!("fill=\"{BRACE}\""));
            }
            BracketKind::Measure if brace.to.is_some() => tick(&mut self.out, end),
            _ => {}
        }
        let (text, width) = (&brace.label, width_of(&brace.label, TINY) + 8.0);
        let words = Type { fill: BRACE, ..Type::new(TINY, INK).weighing(600) };
        if end - x >= width + 8.0 {
            let middle = f64::midpoint(x, end);
            self.out.rect(middle - width / 2.0, y - 6.0, width, 12.0, &format!("fill=\"{PAPER}\""));
            self.out.text(&words.anchored(Anchor::Middle), middle, y + 3.7, text);
        } else if brace.kind == BracketKind::Measure {
            // The next duration begins at its end, so its name stands before it.
            self.out.rect(x - width - 2.0, y - 6.0, width, 12.0, &format!("fill=\"{PAPER}\""));
            self.out.text(&words.anchored(Anchor::End), x - 6.0, y + 3.7, text);
        } else if end - x >= 6.0 {
            let text = fit(text, TINY, f64::max(end - x, 70.0));
            self.out.text(&words, end + 4.0, y + 3.7, &text);
        }
    }

    /// The changes of the states below the dots.
    pub(super) fn states(&mut self) {
        for state in &self.frame.states {
            let dot = &self.scene.dots[state.dot];
            let (x, y) = self.frame.point(dot.place);
            let top = y + state.below;
            self.out.open("class=\"state\"");
            self.out.line((x, y + 4.0), (x, top - 2.0), "stroke=\"#c3cad2\" stroke-width=\"0.8\"");
            for (line, change) in (1..).zip(&dot.changes) {
                let text = fit(change, TINY, MOST_STATE_WIDTH);
                let y = top + f64::from(line) * STATE_LINE - 3.0;
                let paper = format!("fill=\"{PAPER}\" fill-opacity=\"0.85\"");
                self.out.rect(state.x - 1.0, y - 9.0, width_of(&text, TINY) + 2.0, STATE_LINE, &paper);
                self.out.text(&Type::new(TINY, INK), state.x, y, &text);
            }
            self.out.close();
        }
    }

    /// The cuts: a line through the recording points, with the recorded states beside it. The messages that
    /// cross the line are the contents of the channels.
    pub(super) fn cuts(&mut self) {
        for cut in &self.scene.cuts {
            self.out.open("class=\"cut\"");
            self.out.tooltip(&cut.summary.join("\n"));
            self.cut(cut);
            self.out.close();
        }
    }

    fn cut(&mut self, cut: &CutLine) {
        let frame = self.frame;
        let places: Vec<_> = cut.points.iter().map(|(place, _)| frame.point(*place)).collect();
        let (Some(first), Some(last)) = (places.first(), places.last()) else { return };
        let top = (first.0, frame.top - 4.0);
        let bottom = (last.0, frame.bottom);
        let look = format!(
            "fill=\"none\" stroke=\"{CUT}\" stroke-width=\"2.2\" stroke-dasharray=\"9 4\" stroke-opacity=\"0.85\""
        );
        let way: Vec<_> = [top].into_iter().chain(places.iter().copied()).chain([bottom]).collect();
        for ends in way.windows(2) {
            let ((x, y), (to_x, to_y)) = (ends[0], ends[1]);
            // Bent a little, so that it does not cover the marker that lets the next site record.
            let (width, third) = ((to_x - x) * 0.2, (to_y - y) / 3.0);
            let controls = [(x + width, y + third), (to_x - width, to_y - third)];
            self.out.curve((x, y), controls, (to_x, to_y), &look);
        }
        let words = Type { fill: CUT, ..Type::new(TINY, INK).weighing(600) };
        self.out.text(&words.anchored(Anchor::Middle), top.0, top.1 - 4.0, &cut.name);
        for (place, state) in &cut.points {
            let (x, y) = frame.point(*place);
            let text = fit(state, TINY, 120.0);
            let width = width_of(&text, TINY) + 10.0;
            let look = format!("rx=\"3\" fill=\"{PAPER}\" stroke=\"{CUT}\" stroke-width=\"1\"");
            self.out.rect(x - width - 7.0, y - 21.0, width, 15.0, &look);
            self.out.text(&words.anchored(Anchor::Middle), x - width / 2.0 - 7.0, y - 10.0, &text);
            let ring = format!("fill=\"{PAPER}\" stroke=\"{CUT}\" stroke-width=\"2\"");
            self.out.circle((x, y), 6.0, &ring, &format!("{} records {state}", self.site(place.site)));
        }
        for arrow in &cut.in_transit {
            let middle = self.middle_of(*arrow);
            let look = format!("fill=\"{CUT}\" fill-opacity=\"0.2\" stroke=\"{CUT}\" stroke-width=\"1.2\"");
            let tooltip = format!("in transit: {}", self.scene.arrows[*arrow].tooltip);
            self.out.circle(middle, 7.0, &look, &tooltip);
        }
    }

    fn site(&self, site: u32) -> &str {
        self.scene.sites.get(site as usize).map_or("", String::as_str)
    }

    /// The violation: a hatched area from the decisive step on, and one sentence above it.
    pub(super) fn violation(&mut self) {
        let Some(alarm) = &self.scene.violation else { return };
        let frame = self.frame;
        let (x, end) = (frame.x(alarm.from), frame.end(alarm.to));
        let (x, end) = if end - x < 16.0 { (x - 8.0, x + 8.0) } else { (x, end) };
        self.out.open("class=\"violation\"");
        self.out.tooltip(&alarm.sentence);
        let (mut top, mut bottom) = (frame.top, frame.bottom);
        if let (Some(first), Some(last)) = (alarm.sites.iter().min(), alarm.sites.iter().max()) {
            (top, bottom) = (frame.y(*first) - frame.half, frame.y(*last) + frame.half);
        }
        let edge = format!("stroke=\"{ALARM}\" stroke-width=\"1.2\" stroke-dasharray=\"5 3\"");
        let name = hatching(&mut self.out);
        self.out.rect(x, top, end - x, bottom - top, &format!("fill=\"url(#{name})\" {edge}"));
        let sentence = fit(&alarm.sentence, SMALL + 1.0, frame.width - 2.0 * MARGIN);
        let words = Type { fill: ALARM, ..Type::new(SMALL + 1.0, SOFT).weighing(650) };
        let y = frame.band_labels - 10.0;
        self.out.text(&words, MARGIN, y, &sentence);
        self.out.close();
    }
}
