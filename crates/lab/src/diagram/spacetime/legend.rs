//! The legend: an entry for every look in the picture, and no other.

use super::frame::MARGIN;
use super::render::{CRASHED, CUT_OFF, PAUSED, Picture, bar_look, dash_of};
use super::scene::{Head, Scene};
use crate::diagram::span::{BracketKind, Tone};
use crate::diagram::svg::{ALARM, INK, PAPER, SMALL, SOFT, Type, fit, hue, width_of};

/// The top of the legend.
pub(super) const TOP: f64 = 84.0;
/// The height of one of its rows.
pub(super) const ROW: f64 = 22.0;

/// One entry of the legend.
pub(super) struct Entry {
    sample: Sample,
    name: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Sample {
    Kind(usize),
    Bar(Tone),
    Lost,
    Copy,
    Crash,
    Pause,
    Partition,
    Timer,
    Cut,
    InTransit,
}

const SAMPLE: f64 = 30.0;

fn entry_width(entry: &Entry) -> f64 {
    SAMPLE + 8.0 + width_of(&entry.name, SMALL) + 20.0
}

/// Returns the entries for everything in the picture.
pub(super) fn entries(scene: &Scene) -> Vec<Entry> {
    let arrows = &scene.arrows;
    let mut entries = Vec::new();
    let mut add = |sample, name: &str| entries.push(Entry { sample, name: name.to_owned() });
    for kind in &scene.kinds {
        add(Sample::Kind(kind.hue), &fit(&kind.name, SMALL, 180.0));
    }
    if arrows.iter().any(|arrow| arrow.head == Head::Cross) {
        add(Sample::Lost, "lost");
    }
    if arrows.iter().any(|arrow| arrow.copy) {
        add(Sample::Copy, "second copy");
    }
    let mut bars: Vec<(Tone, &str)> = Vec::new();
    for bar in &scene.bars {
        if !bars.contains(&(bar.tone, bar.name)) {
            bars.push((bar.tone, bar.name));
        }
    }
    bars.iter().for_each(|(tone, name)| add(Sample::Bar(*tone), name));
    let has_timers = scene.brackets.iter().any(|brace| brace.kind != BracketKind::Measure);
    let marks = [
        (has_timers, Sample::Timer, "timer (dashed: stopped)"),
        (!scene.cuts.is_empty(), Sample::Cut, "cut, with the recorded states"),
        (
            scene.cuts.iter().any(|cut| !cut.in_transit.is_empty()),
            Sample::InTransit,
            "in a channel of the cut",
        ),
        (!scene.crashes.is_empty(), Sample::Crash, "crashed"),
        (!scene.pauses.is_empty(), Sample::Pause, "paused"),
        (!scene.bands.is_empty(), Sample::Partition, "cut off"),
    ];
    marks.into_iter().filter(|(there, ..)| *there).for_each(|(_, sample, name)| add(sample, name));
    entries
}

/// Returns the number of rows of the legend.
pub(super) fn rows(legend: &[Entry], right: f64) -> usize {
    let (mut rows, mut x) = (1, MARGIN);
    for entry in legend {
        if x + entry_width(entry) > right && x > MARGIN {
            (rows, x) = (rows + 1, MARGIN);
        }
        x += entry_width(entry);
    }
    rows
}

impl Picture<'_> {
    pub(super) fn legend(&mut self, entries: &[Entry]) {
        let (mut x, mut y) = (MARGIN, TOP + 4.0);
        self.out.open("class=\"legend\"");
        for entry in entries {
            if x + entry_width(entry) > self.frame.right && x > MARGIN {
                (x, y) = (MARGIN, y + ROW);
            }
            self.sample(entry.sample, x, y);
            self.out.text(&Type::new(SMALL, INK), x + SAMPLE + 8.0, y + 4.0, &entry.name);
            x += entry_width(entry);
        }
        self.out.close();
    }

    fn sample(&mut self, sample: Sample, x: f64, y: f64) {
        let end = (x + SAMPLE, y);
        match sample {
            Sample::Kind(kind) => {
                let dash = if self.has_labels() { String::new() } else { dash_of(kind) };
                let look = format!("stroke=\"{}\" stroke-width=\"1.8\"{dash}", hue(kind));
                self.out.line((x, y), (end.0 - 4.0, y), &look);
                self.out.head((x, y), end, 9.0, &format!("fill=\"{}\"", hue(kind)));
            }
            Sample::Bar(tone) => {
                let (height, look) = bar_look(tone, None);
                self.out.rect(x, y - height / 2.0, SAMPLE, height, &look);
            }
            Sample::Lost => {
                self.out.line((x, y), (end.0 - 8.0, y), &format!("stroke=\"{SOFT}\" stroke-width=\"1.5\""));
                self.out.cross(end.0 - 5.0, y, 4.0, &format!("stroke=\"{ALARM}\" stroke-width=\"2\""));
            }
            Sample::Copy => {
                self.out.line((x, y), (end.0 - 4.0, y), &format!("stroke=\"{SOFT}\" stroke-width=\"1.5\""));
                let hollow = format!("fill=\"{PAPER}\" stroke=\"{SOFT}\"");
                self.out.head((x, y), end, 9.0, &hollow);
            }
            Sample::Crash => {
                self.out.line((x + 8.0, y), end, CRASHED);
                self.out.cross(x + 6.0, y, 4.5, &format!("stroke=\"{ALARM}\" stroke-width=\"2.4\""));
            }
            Sample::Pause => self.out.rect(x, y - 4.0, SAMPLE, 8.0, PAUSED),
            Sample::Partition => self.out.rect(x, y - 7.0, SAMPLE, 14.0, CUT_OFF),
            Sample::Timer => {
                let look = format!("stroke=\"{SOFT}\" stroke-width=\"1.1\"");
                self.out.line((x, y), end, &look);
                self.out.line((x, y - 4.0), (x, y + 4.0), &look);
                self.out.head((x, y), end, 7.0, &format!("fill=\"{SOFT}\""));
            }
            Sample::InTransit => {
                let look = "fill=\"#332288\" fill-opacity=\"0.2\" stroke=\"#332288\" stroke-width=\"1.2\"";
                self.out.circle((x + SAMPLE / 2.0, y), 7.0, look, "");
            }
            Sample::Cut => {
                let look = "stroke=\"#332288\" stroke-width=\"2.2\" stroke-dasharray=\"9 4\"";
                self.out.line((x, y), end, look);
            }
        }
    }
}
