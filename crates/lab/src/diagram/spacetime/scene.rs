//! The scene of a space-time diagram: everything in the picture, as data.
//!
//! A scene has no pixels: places are a time on the axis and a site. It serialises, so that any program can
//! draw it; [`super::draw`] draws it as SVG. All texts are complete, so a renderer needs no log.

use conclave_kernel::NodeId;
use serde::Serialize;

use crate::diagram::scale::shown;
use crate::diagram::span::{BracketKind, Tone};

/// Everything in a space-time diagram.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Scene {
    /// The title: the algorithm, unless the caller gives another one.
    pub title: String,
    /// The line below the title.
    pub subtitle: String,
    /// The command that shows this run; empty if it is not known.
    pub command: String,
    /// The verdict on the run, in one line; empty if there is none.
    pub verdict: String,
    /// The horizontal axis.
    pub axis: Axis,
    /// The names of the sites that are drawn, from the top.
    pub sites: Vec<String>,
    /// The kinds of messages in the picture.
    pub kinds: Vec<Kind>,
    /// The steps.
    pub dots: Vec<Dot>,
    /// The messages.
    pub arrows: Vec<Arrow>,
    /// The bars on the lines.
    pub bars: Vec<Bar>,
    /// The durations below the lines.
    pub brackets: Vec<Brace>,
    /// The times in which a site is down.
    pub crashes: Vec<Interval>,
    /// The times in which a site handles no input.
    pub pauses: Vec<Interval>,
    /// The partitions.
    pub bands: Vec<Band>,
    /// The cuts of snapshots.
    pub cuts: Vec<CutLine>,
    /// The violation of a property.
    pub violation: Option<Alarm>,
    /// A description of everything that the picture leaves out.
    pub limited: Option<String>,
    /// The number of different moments in the window. The width of a picture follows it.
    pub instants: usize,
}

/// The horizontal axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Axis {
    /// The left end, in nanoseconds, stamps or steps.
    pub low: f64,
    /// The right end.
    pub high: f64,
    /// The length of one unit of the name.
    pub unit: f64,
    /// The name: `time (ms)`, `Lamport time` or `step`.
    pub name: &'static str,
}

/// A moment at a site.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Place {
    /// The moment, on the axis.
    pub at: f64,
    /// The site.
    pub site: u32,
}

/// A kind of message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kind {
    /// Its name.
    pub name: String,
    /// The number of its colour.
    pub hue: usize,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dot {
    /// The moment and the site.
    #[serde(flatten)]
    pub place: Place,
    /// The fields of the site's state that the step changed, with their new values. Empty if states are not
    /// shown.
    pub changes: Vec<String>,
    /// The step in words.
    pub tooltip: String,
}

/// A message, from a moment at one site to a moment at another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Arrow {
    /// The index of its kind in [`Scene::kinds`].
    pub kind: usize,
    /// The step that sent it.
    pub from: Place,
    /// The step that received it, or the place where it would have been received.
    pub to: Place,
    /// The part of the way that is drawn, from 0 to 1.
    pub part: f64,
    /// The end of the arrow.
    pub head: Head,
    /// Whether it is the second copy of a duplicated message.
    pub copy: bool,
    /// The number of arrows with the same ends, and the place of this one among them. They are drawn side by
    /// side.
    pub beside: (usize, usize),
    /// A few words for a label.
    pub label: String,
    /// The message with its times.
    pub tooltip: String,
}

/// The end of an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Head {
    /// The message was received.
    Arrow,
    /// The message was lost.
    Cross,
    /// The message was received after the end of the window.
    Leaves,
    /// The message was never received.
    Fade,
}

/// A stretch of a site's line with a meaning.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// The site.
    pub site: u32,
    /// The beginning.
    pub from: f64,
    /// The end; `None` if it was not over at the end of the log.
    pub to: Option<f64>,
    /// Its name in the legend.
    pub name: &'static str,
    /// Its look.
    pub tone: Tone,
    /// The number of its colour; `None` for the colour of its look.
    pub hue: Option<usize>,
    /// The text on the bar.
    pub note: String,
    /// The stretch in words.
    pub tooltip: String,
}

/// A duration below the line of a site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Brace {
    /// The site.
    pub site: u32,
    /// The beginning.
    pub from: f64,
    /// The end; `None` if it was not over at the end of the log.
    pub to: Option<f64>,
    /// The name of the duration.
    pub label: String,
    /// The meaning.
    pub kind: BracketKind,
    /// The row below the line. Brackets that overlap have different rows.
    pub lane: usize,
    /// The duration in words.
    pub tooltip: String,
}

/// A stretch of a site's line in which the site is not running.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The site.
    pub site: u32,
    /// The beginning.
    pub from: f64,
    /// The end; `None` if it was not over at the end of the log.
    pub to: Option<f64>,
    /// The stretch in words.
    pub tooltip: String,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Band {
    /// The sites that are cut off.
    pub group: Vec<u32>,
    /// The beginning.
    pub from: f64,
    /// The end; `None` if it was not over at the end of the log.
    pub to: Option<f64>,
    /// The group in words.
    pub label: String,
    /// The row of the label. Partitions that overlap have different rows.
    pub lane: usize,
    /// The partition in words.
    pub tooltip: String,
}

/// The cut of a snapshot: a line through the points at which the sites recorded their states.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CutLine {
    /// The name of the snapshot.
    pub name: String,
    /// The recording points in order of sites, each with the recorded state in words.
    pub points: Vec<(Place, String)>,
    /// The indices in [`Scene::arrows`] of the messages that cross the cut: the contents of the channels.
    pub in_transit: Vec<usize>,
    /// The recorded global state in lines of text.
    pub summary: Vec<String>,
}

/// The violation of a property.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alarm {
    /// The beginning: the decisive step.
    pub from: f64,
    /// The end; `None` if it was not over at the end of the log.
    pub to: Option<f64>,
    /// The sites that take part; all if the list is empty.
    pub sites: Vec<u32>,
    /// The violation in one sentence.
    pub sentence: String,
}

impl Axis {
    /// Returns a place on the axis in words.
    pub(super) fn show(&self, at: f64) -> String {
        match self.name {
            "step" => format!("step {}", shown(at, 1.0)),
            "Lamport time" => shown(at, 1.0),
            _ => conclave_kernel::time::show(std::time::Duration::from_nanos(at.max(0.0) as u64)),
        }
    }
}

impl Axis {
    /// Returns a length on the axis in words.
    pub(super) fn length(&self, length: f64) -> String {
        match self.name {
            "step" => format!("{} steps", shown(length, 1.0)),
            _ => self.show(length),
        }
    }
}

impl Arrow {
    /// The number of places above the middle of the arrows with the same ends.
    pub(super) fn offset(&self) -> f64 {
        let (all, nth) = self.beside;
        (all - 1) as f64 / 2.0 - nth as f64
    }

    /// Whether a site sent the message to itself.
    pub(super) fn is_loop(&self) -> bool {
        self.from.site == self.to.site
    }
}

impl Place {
    pub(super) fn new(at: f64, site: NodeId) -> Self {
        Self { at, site: site.0 }
    }
}
