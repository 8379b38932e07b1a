//! The legend: what is in the picture, and nothing else.

use super::scene::{Head, Scene};
use super::{
    ALARM, CRASHED, CUT_OFF, Frame, INK, MARGIN, PAUSED, Picture, SMALL, SOFT, SpanKind, Tone, Type,
};
use super::{bar_look, fit, hue, width_of};
use crate::log::Log;

/// Where it begins.
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
}

const SAMPLE: f64 = 30.0;

fn entry_width(entry: &Entry) -> f64 {
    SAMPLE + 8.0 + width_of(&entry.name, SMALL) + 20.0
}

/// What the legend explains.
pub(super) fn entries(log: &Log, scene: &Scene) -> Vec<Entry> {
    let arrows = &scene.arrows;
    let mut entries = Vec::new();
    let mut add = |sample, name: &str| entries.push(Entry { sample, name: name.to_owned() });
    for (index, kind) in log.kinds().iter().enumerate() {
        if arrows.iter().any(|arrow| arrow.kind == index) {
            add(Sample::Kind(index), &fit(&kind.replace('_', " "), SMALL, 180.0));
        }
    }
    if arrows.iter().any(|arrow| arrow.head == Head::Cross) {
        add(Sample::Lost, "lost");
    }
    if arrows.iter().any(|arrow| arrow.copy) {
        add(Sample::Copy, "second copy");
    }
    let mut kinds: Vec<SpanKind> = Vec::new();
    for bar in &scene.bars {
        if !kinds.contains(&bar.span.kind) {
            kinds.push(bar.span.kind);
        }
    }
    kinds.iter().for_each(|kind| add(Sample::Bar(kind.tone), kind.name));
    let marks = [
        (!scene.crashes.is_empty(), Sample::Crash, "crashed"),
        (!scene.pauses.is_empty(), Sample::Pause, "paused"),
        (!scene.bands.is_empty(), Sample::Partition, "cut off"),
    ];
    marks.into_iter().filter(|(there, ..)| *there).for_each(|(_, sample, name)| add(sample, name));
    entries
}

/// How many rows the legend takes.
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
    pub(super) fn legend(&mut self, entries: &[Entry], frame: &Frame) {
        let (mut x, mut y) = (MARGIN, TOP + 4.0);
        for entry in entries {
            if x + entry_width(entry) > frame.right && x > MARGIN {
                (x, y) = (MARGIN, y + ROW);
            }
            self.sample(entry.sample, x, y);
            self.out.text(&Type::new(SMALL, INK), x + SAMPLE + 8.0, y + 4.0, &entry.name);
            x += entry_width(entry);
        }
    }

    fn sample(&mut self, sample: Sample, x: f64, y: f64) {
        let end = (x + SAMPLE, y);
        match sample {
            Sample::Kind(kind) => {
                let hue = hue(kind);
                self.out.line((x, y), (end.0 - 4.0, y), &format!("stroke=\"{hue}\" stroke-width=\"1.8\""));
                self.out.head((x, y), end, 9.0, &format!("fill=\"{hue}\""));
            }
            Sample::Bar(tone) => {
                let (height, look) = bar_look(tone);
                self.out.rect(x, y - height / 2.0, SAMPLE, height, look);
            }
            Sample::Lost => {
                self.out.line((x, y), (end.0 - 8.0, y), &format!("stroke=\"{SOFT}\" stroke-width=\"1.5\""));
                self.out.cross(end.0 - 5.0, y, 4.0, &format!("stroke=\"{ALARM}\" stroke-width=\"2\""));
            }
            Sample::Copy => {
                let dashed = format!("stroke=\"{SOFT}\" stroke-width=\"1.5\" stroke-dasharray=\"5 3\"");
                self.out.line((x, y), (end.0 - 4.0, y), &dashed);
                self.out.head((x, y), end, 9.0, &format!("fill=\"{SOFT}\""));
            }
            Sample::Crash => {
                self.out.line((x + 8.0, y), end, CRASHED);
                self.out.cross(x + 6.0, y, 4.5, &format!("stroke=\"{ALARM}\" stroke-width=\"2.4\""));
            }
            Sample::Pause => self.out.rect(x, y - 4.0, SAMPLE, 8.0, PAUSED),
            Sample::Partition => self.out.rect(x, y - 7.0, SAMPLE, 14.0, CUT_OFF),
        }
    }
}
