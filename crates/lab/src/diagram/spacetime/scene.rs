//! What of a log is in the picture: the window, and everything in it, in coordinates of the axis.

use std::ops::Range;

use conclave_kernel::trace::What;
use conclave_kernel::{NodeId, Time, time};

use super::Options;
use crate::diagram::scale::{group, shown, unit_of};
use crate::diagram::span::{Edge, Span};
use crate::log::{Fate, Log, Message, Timescale};

/// More sites than this are not drawn.
const MOST_SITES: u32 = 40;

/// What is drawn.
pub(super) struct Scene {
    /// How many sites are drawn.
    pub(super) sites: u32,
    /// The window, on the axis.
    pub(super) low: f64,
    pub(super) high: f64,
    /// How many different moments the window has: what its width follows.
    pub(super) instants: usize,
    pub(super) arrows: Vec<Arrow>,
    pub(super) bars: Vec<Bar>,
    pub(super) crashes: Vec<Interval>,
    pub(super) pauses: Vec<Interval>,
    pub(super) bands: Vec<Band>,
    /// What was left out, in words.
    pub(super) limited: Option<String>,
    axis: Axis,
    steps: Vec<(usize, f64)>,
}

/// What the axis counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Axis {
    Time,
    Stamps,
    /// No time passed: steps, from that event on.
    Steps(usize),
}

/// A message, drawn from a moment at one site to a moment at another.
pub(super) struct Arrow {
    pub(super) message: usize,
    pub(super) kind: usize,
    pub(super) from: (f64, u32),
    pub(super) to: (f64, u32),
    /// How much of the way it goes.
    pub(super) part: f64,
    pub(super) head: Head,
    /// Whether it is a second copy.
    pub(super) copy: bool,
    /// How many leave and arrive together, this one among them, and its place: they are drawn side by side.
    pub(super) beside: (usize, usize),
}

/// How an arrow ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// Received.
    Arrow,
    /// Lost.
    Cross,
    /// Received after the window's end.
    Leaves,
    /// Never received.
    Fade,
}

/// A span of which at least a part is in the window.
pub(super) struct Bar {
    pub(super) span: Span,
    pub(super) from: f64,
    /// Infinite if it was not over when the log ended.
    pub(super) to: f64,
}

/// A stretch of a site's line.
pub(super) struct Interval {
    pub(super) site: NodeId,
    pub(super) from: f64,
    /// Infinite if it was not over when the log ended.
    pub(super) to: f64,
}

/// A partition.
pub(super) struct Band {
    pub(super) group: Vec<NodeId>,
    pub(super) interval: Interval,
    /// The row of its name: partitions that overlap have different ones.
    pub(super) lane: usize,
}

impl Scene {
    pub(super) fn new(log: &Log, options: &Options) -> Self {
        let sites = log.sites().min(MOST_SITES);
        let events = window(log, options, sites);
        let axis = Axis::of(log, options.from, &events);
        let next = log.events().get(events.end).map(|event| axis.event(events.end, event.at));
        let last = match axis {
            Axis::Steps(first) => events.end.saturating_sub(first + 1) as f64,
            _ => options.until.map_or(log.end(), |until| until.min(log.end())).0 as f64,
        };
        let low = match axis {
            // Stamps begin with 1: nothing can happen before the first.
            Axis::Stamps => {
                options.from.0.max(log.events().get(events.start).map_or(0, |event| event.at.0)) as f64
            }
            _ => axis.time(log, options.from),
        };
        let high = next.unwrap_or(last).min(last).max(low + 1.0);
        let steps: Vec<_> = events
            .clone()
            .filter(|event| log.events()[*event].site.0 < sites)
            .map(|event| (event, axis.event(event, log.events()[event].at)))
            .collect();
        let mut instants: Vec<f64> = steps.iter().map(|(_, at)| *at).collect();
        instants.dedup();
        let mut scene = Self {
            sites,
            low,
            high,
            instants: instants.len(),
            arrows: Vec::new(),
            bars: Vec::new(),
            crashes: Vec::new(),
            pauses: Vec::new(),
            bands: Vec::new(),
            limited: None,
            axis,
            steps,
        };
        scene.add_arrows(log, &events);
        scene.add_bars(log, options);
        scene.add_marks(log);
        scene.limited = scene.what_is_left_out(log, &events);
        scene
    }

    /// The steps in the window, each with its place on the axis.
    pub(super) fn steps(&self) -> impl Iterator<Item = (usize, f64)> {
        self.steps.iter().copied()
    }

    /// How much of the axis one unit is, and the axis's name.
    pub(super) fn unit(&self) -> (f64, &'static str) {
        match self.axis {
            Axis::Steps(_) => (1.0, "step"),
            Axis::Stamps => (1.0, "Lamport time"),
            Axis::Time => match unit_of(self.high - self.low) {
                (unit, "ns") => (unit, "time (ns)"),
                (unit, "µs") => (unit, "time (µs)"),
                (unit, "ms") => (unit, "time (ms)"),
                (unit, "s") => (unit, "time (s)"),
                (unit, _) => (unit, "time (min)"),
            },
        }
    }

    /// A place on the axis in words.
    pub(super) fn show(&self, at: f64) -> String {
        match self.axis {
            Axis::Time => time::show(std::time::Duration::from_nanos(at.max(0.0) as u64)),
            Axis::Stamps => shown(at, 1.0),
            Axis::Steps(_) => format!("step {}", shown(at, 1.0)),
        }
    }

    fn add_arrows(&mut self, log: &Log, events: &Range<usize>) {
        if events.is_empty() {
            return;
        }
        let place = |event: usize| self.axis.event(event, log.events()[event].at);
        let sent = log.sent(events.start).start..log.sent(events.end - 1).end;
        let delay = self.usual_delay(log, sent.clone());
        let mut arrows = Vec::new();
        let mut add = |index: usize, message: &Message, to: f64, part: f64, head: Head, copy: bool| {
            if message.from != message.to && message.from.0 < self.sites && message.to.0 < self.sites {
                let from = (place(message.sent_by as usize), message.from.0);
                let to = (to.max(from.0), message.to.0);
                arrows.push(Arrow {
                    message: index,
                    kind: message.kind.into(),
                    from,
                    to,
                    part,
                    head,
                    copy,
                    beside: (1, 0),
                });
            }
        };
        for event in events.clone() {
            for index in log.received(event).iter().map(|index| *index as usize) {
                let message = &log.messages()[index];
                let first = message.fate == Fate::Received(event as u32);
                if !first || !sent.contains(&index) {
                    add(index, message, place(event), 1.0, Head::Arrow, !first);
                }
            }
        }
        for index in sent {
            let message = &log.messages()[index];
            let sent_at = place(message.sent_by as usize);
            match message.fate {
                Fate::Received(event) => {
                    let to = place(event as usize);
                    let head = if to > self.high { Head::Leaves } else { Head::Arrow };
                    add(index, message, to, 1.0, head, false);
                }
                Fate::Lost(at) if self.axis.time(log, at) > sent_at => {
                    add(index, message, self.axis.time(log, at), 1.0, Head::Cross, false);
                }
                Fate::Lost(_) => add(index, message, sent_at + delay, 0.6, Head::Cross, false),
                Fate::InFlight => add(index, message, sent_at + delay, 0.6, Head::Fade, false),
            }
        }
        set_side_by_side(&mut arrows);
        self.arrows = arrows;
    }

    /// The median time that a message took: how steep an arrow is that nobody received.
    fn usual_delay(&self, log: &Log, sent: Range<usize>) -> f64 {
        let mut delays: Vec<f64> = log.messages()[sent]
            .iter()
            .filter_map(|message| match message.fate {
                Fate::Received(event) => Some((message, event as usize)),
                _ => None,
            })
            .map(|(message, event)| {
                let place = |event: usize| self.axis.event(event, log.events()[event].at);
                place(event) - place(message.sent_by as usize)
            })
            .collect();
        delays.sort_by(f64::total_cmp);
        delays.get(delays.len() / 2).copied().unwrap_or((self.high - self.low) / 12.0)
    }

    fn add_bars(&mut self, log: &Log, options: &Options) {
        for span in options.spans.iter().filter(|span| span.site.0 < self.sites) {
            let place = |edge: Edge| match edge {
                Edge::Event(event) => log.events().get(event).map(|found| self.axis.event(event, found.at)),
                Edge::At(at) => Some(self.axis.time(log, at)),
                Edge::Open => None,
            };
            let (from, to) = (place(span.from).unwrap_or(self.low), place(span.to));
            let to = to.unwrap_or(f64::INFINITY);
            if from <= self.high && to >= self.low {
                self.bars.push(Bar { span: span.clone(), from, to });
            }
        }
    }

    fn add_marks(&mut self, log: &Log) {
        let (mut crashes, mut pauses, mut cuts) = (Vec::new(), Vec::new(), Vec::new());
        let end = |open: &mut Vec<Interval>, node: NodeId, at: f64| {
            if let Some(last) =
                open.iter_mut().rev().find(|interval| interval.site == node && interval.to.is_infinite())
            {
                last.to = at;
            }
        };
        for mark in log.marks() {
            let at = self.axis.time(log, mark.at);
            let begin = |site: NodeId| Interval { site, from: at, to: f64::INFINITY };
            match &mark.what {
                What::Crash(node) => crashes.push(begin(*node)),
                What::Recover(node) => end(&mut crashes, *node, at),
                What::Pause(node) => pauses.push(begin(*node)),
                What::Resume(node) => end(&mut pauses, *node, at),
                What::Cut(group) => {
                    let interval = begin(group.first().copied().unwrap_or_default());
                    cuts.push(Band { group: group.clone(), interval, lane: 0 });
                }
                What::Heal(group) => {
                    let open = cuts
                        .iter_mut()
                        .rev()
                        .find(|cut| cut.group == *group && cut.interval.to.is_infinite());
                    if let Some(cut) = open {
                        cut.interval.to = at;
                    }
                }
                What::Lose(_) | What::Duplicate(_) => {}
            }
        }
        let seen = |interval: &Interval| interval.from <= self.high && interval.to >= self.low;
        crashes.retain(|interval| seen(interval) && interval.site.0 < self.sites);
        pauses.retain(|interval| seen(interval) && interval.site.0 < self.sites);
        cuts.retain(|cut| seen(&cut.interval));
        stack(&mut cuts);
        (self.crashes, self.pauses, self.bands) = (crashes, pauses, cuts);
    }

    fn what_is_left_out(&self, log: &Log, events: &Range<usize>) -> Option<String> {
        let count = |n: usize| group(&n.to_string());
        let mut parts = Vec::new();
        if events.len() < log.events().len() {
            let whole = match self.axis {
                Axis::Time => log.end().to_string(),
                Axis::Stamps => log.end().0.to_string(),
                Axis::Steps(_) => format!("{} steps", count(log.events().len())),
            };
            parts.push(format!("{} to {} of {whole}", self.show(self.low), self.show(self.high)));
            let sent = if events.is_empty() {
                0
            } else {
                log.sent(events.end - 1).end - log.sent(events.start).start
            };
            parts.push(format!("{} of {} messages", count(sent), count(log.messages().len())));
        }
        if self.sites < log.sites() {
            parts.push(format!("the first {} of {} sites", self.sites, count(log.sites() as usize)));
        }
        (!parts.is_empty()).then(|| format!("Only a part is drawn: {}.", parts.join(", ")))
    }
}

impl Axis {
    fn of(log: &Log, from: Time, events: &Range<usize>) -> Self {
        if log.about.timescale == Timescale::Logical {
            return Self::Stamps;
        }
        let still = log.end() == log.events().first().map_or(Time::ZERO, |event| event.at);
        if still && from <= log.end() { Self::Steps(events.start) } else { Self::Time }
    }

    fn event(self, event: usize, at: Time) -> f64 {
        match self {
            Self::Time | Self::Stamps => at.0 as f64,
            Self::Steps(first) => event as f64 - first as f64,
        }
    }

    fn time(self, log: &Log, at: Time) -> f64 {
        match self {
            Self::Time | Self::Stamps => at.0 as f64,
            Self::Steps(first) => {
                let event = log.events().partition_point(|event| event.at < at);
                event as f64 - first as f64
            }
        }
    }
}

/// The events that are drawn.
fn window(log: &Log, options: &Options, sites: u32) -> Range<usize> {
    let first = log.events().partition_point(|event| event.at < options.from);
    let last = options
        .until
        .map_or(log.events().len(), |until| log.events().partition_point(|event| event.at <= until));
    let last = last.max(first);
    let most = options.most_messages.unwrap_or((20 + 12 * sites as usize).clamp(56, 320)).max(1);
    // Steps that send nothing fill a picture as well.
    let most_steps = most * 6;
    let sent = log.messages().partition_point(|message| (message.sent_by as usize) < first);
    let full = log.messages().get(sent + most).map_or(last, |message| message.sent_by as usize);
    first..full.max(first + 1).min(first + most_steps).min(last)
}

/// Finds the arrows that would cover each other.
fn set_side_by_side(arrows: &mut [Arrow]) {
    let ends = |arrow: &Arrow| (arrow.from.0.to_bits(), arrow.from.1, arrow.to.0.to_bits(), arrow.to.1);
    let mut order: Vec<usize> = (0..arrows.len()).collect();
    order.sort_by_key(|index| ends(&arrows[*index]));
    let mut start = 0;
    while start < order.len() {
        let same = order[start..]
            .iter()
            .take_while(|index| ends(&arrows[**index]) == ends(&arrows[order[start]]))
            .count();
        for (nth, index) in order[start..start + same].iter().enumerate() {
            arrows[*index].beside = (same, nth);
        }
        start += same;
    }
}

/// Gives partitions that overlap different rows for their names.
fn stack(bands: &mut [Band]) {
    let mut ends: Vec<f64> = Vec::new();
    for band in bands {
        let free = ends.iter().position(|end| *end <= band.interval.from);
        band.lane = free.unwrap_or(ends.len());
        if free.is_none() {
            ends.push(0.0);
        }
        ends[band.lane] = band.interval.to;
    }
}
