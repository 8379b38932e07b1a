//! Builds a scene from a log: everything in the window, in coordinates of the axis.

use std::ops::Range;

use conclave_kernel::NodeId;
use conclave_kernel::trace::What;

use super::Options;
use super::scene::{Alarm, Arrow, Axis, Band, Bar, Brace, CutLine, Dot, Head, Interval, Kind, Place, Scene};
use super::window::{Scale, decisive, window};
use crate::diagram::scale::group;
use crate::diagram::span::{self, Bracket, Edge, Tone};
use crate::log::{Fate, Log, Message, Timescale};

/// The most sites in a picture. The picture names the number of all sites if there are more.
pub(super) const MOST_SITES: u32 = 40;

/// The most timers in a picture. With more of them, none is drawn, and the picture says so.
const MOST_TIMERS: usize = 40;

/// The most lines of state below a dot. The last one says that there are more.
const MOST_CHANGES: usize = 6;

/// The free part of the axis after the last step, so that the bars that begin with it are visible.
const AFTERMATH: f64 = 0.1;

impl Scene {
    /// Builds the scene of a log.
    pub fn new(log: &Log, options: &Options) -> Self {
        let sites = log.sites().min(MOST_SITES);
        let events = window(log, options, sites);
        let scale = Scale::of(log, options.from, events.start);
        let mut collect = Collect { log, options, sites, events, scale, scene: Self::default() };
        collect.add_frame();
        collect.add_dots();
        collect.add_arrows();
        collect.add_bars();
        collect.add_marks();
        let timers = collect.add_brackets();
        collect.add_cuts();
        collect.add_violation();
        collect.scene.limited = collect.describe_limits(timers);
        collect.scene
    }
}

struct Collect<'a> {
    log: &'a Log,
    options: &'a Options,
    sites: u32,
    events: Range<usize>,
    scale: Scale,
    scene: Scene,
}

impl Collect<'_> {
    fn add_frame(&mut self) {
        let (log, options) = (self.log, self.options);
        let (low, high) = self.limits();
        let (unit, name) = self.scale.unit(high - low);
        self.scene.axis = Axis { low, high, unit, name };
        let or = |text: &str, other: String| if text.is_empty() { other } else { text.to_owned() };
        let seed = log.about.seed.filter(|_| self.scale == Scale::Time);
        let seed = seed.map(|seed| format!(" · seed {seed}")).unwrap_or_default();
        self.scene.title = or(&options.title, log.about.algorithm.clone());
        self.scene.subtitle =
            or(&options.subtitle, format!("{} sites{seed}", group(&log.sites().to_string())));
        self.scene.command.clone_from(&options.command);
        self.scene.verdict.clone_from(&options.verdict);
        self.scene.sites = (0..self.sites).map(|site| log.name(NodeId(site))).collect();
        let words = |name: &str| match name {
            "app" => "message of the application".to_owned(),
            name => name.replace('_', " "),
        };
        let kind = |(hue, name): (usize, &String)| Kind { name: words(name), hue };
        self.scene.kinds = log.kinds().iter().enumerate().map(kind).collect();
    }

    /// The ends of the axis.
    fn limits(&self) -> (f64, f64) {
        let (log, events) = (self.log, &self.events);
        let next = log.events().get(events.end).map(|event| self.scale.event(events.end, event.at));
        let last = match self.scale {
            Scale::Steps(first) => events.end.saturating_sub(first + 1) as f64,
            _ => {
                let until = self.options.until.map_or(log.end(), |until| until.min(log.end()));
                self.scale.time(log, until)
            }
        };
        let start =
            log.events().get(events.start).map_or(0.0, |event| self.scale.event(events.start, event.at));
        let from = self.scale.time(log, self.options.from);
        // Lamport times begin with 1. A window that the violation determines begins with its first event.
        let is_moved = events.start > 0 && self.options.from == conclave_kernel::Time::ZERO;
        let low = match self.scale {
            Scale::Steps(_) => from,
            Scale::Stamps => start.max(from),
            _ if is_moved => start,
            _ => from,
        };
        let high = next.unwrap_or(last).min(last).max(low + 1.0);
        let is_whole = next.is_none() && self.options.until.is_none();
        (low, if is_whole { high + ((high - low) * AFTERMATH).max(0.5) } else { high })
    }

    fn place(&self, event: usize) -> Place {
        let event_ = &self.log.events()[event];
        Place::new(self.scale.event(event, event_.at), event_.site)
    }

    fn add_dots(&mut self) {
        let mut instants = Vec::new();
        for event in self.events.clone() {
            let place = self.place(event);
            if place.site >= self.sites {
                continue;
            }
            instants.push(place.at.to_bits());
            let changes = if self.options.states { self.changes(event) } else { Vec::new() };
            let name = &self.scene.sites[place.site as usize];
            let at = self.scene.axis.show(place.at);
            let tooltip = format!("{name} at {at}: {}", self.log.describe(event));
            self.scene.dots.push(Dot { place, changes, tooltip });
        }
        instants.dedup();
        self.scene.instants = instants.len();
    }

    fn changes(&self, event: usize) -> Vec<String> {
        let changes = self.log.changes(event).into_iter();
        let mut lines: Vec<_> = changes.map(|(name, value)| format!("{name} {value}")).collect();
        if lines.len() > MOST_CHANGES {
            let more = lines.len() - (MOST_CHANGES - 1);
            lines.truncate(MOST_CHANGES - 1);
            lines.push(format!("and {more} more"));
        }
        lines
    }

    fn add_arrows(&mut self) {
        if self.events.is_empty() {
            return;
        }
        let log = self.log;
        let sent = log.sent(self.events.start).start..log.sent(self.events.end - 1).end;
        let delay = self.usual_delay(sent.clone());
        for event in self.events.clone() {
            for index in log.received(event).iter().map(|index| *index as usize) {
                let message = &log.messages()[index];
                let first = message.fate == Fate::Received(event as u32);
                if !first || !sent.contains(&index) {
                    self.add_arrow(message, self.place(event).at, 1.0, Head::Arrow, !first);
                }
            }
        }
        for index in sent {
            let message = &log.messages()[index];
            let sent_at = self.place(message.sent_by as usize).at;
            match message.fate {
                Fate::Received(event) => {
                    let to = self.place(event as usize).at;
                    let head = if to > self.scene.axis.high { Head::Leaves } else { Head::Arrow };
                    self.add_arrow(message, to, 1.0, head, false);
                }
                Fate::Lost(at) if self.scale.time(log, at) > sent_at => {
                    self.add_arrow(message, self.scale.time(log, at), 1.0, Head::Cross, false);
                }
                Fate::Lost(_) => self.add_arrow(message, sent_at + delay, 0.6, Head::Cross, false),
                Fate::InFlight => self.add_arrow(message, sent_at + delay, 0.6, Head::Fade, false),
            }
        }
        set_side_by_side(&mut self.scene.arrows);
        self.keep_used_kinds();
    }

    fn add_arrow(&mut self, message: &Message, to: f64, part: f64, head: Head, copy: bool) {
        if message.from.0 >= self.sites || message.to.0 >= self.sites {
            return;
        }
        let from = self.place(message.sent_by as usize);
        self.scene.arrows.push(Arrow {
            kind: message.kind.into(),
            from,
            to: Place::new(to.max(from.at), message.to),
            part,
            head,
            copy,
            beside: (1, 0),
            label: self.log.short(message.text),
            tooltip: self.message_in_words(message, copy),
        });
    }

    /// Removes the kinds of which the picture has no message.
    fn keep_used_kinds(&mut self) {
        let Scene { kinds, arrows, .. } = &mut self.scene;
        let mut numbers = vec![None; kinds.len()];
        let mut used = Vec::new();
        for (index, kind) in kinds.iter().enumerate() {
            if arrows.iter().any(|arrow| arrow.kind == index) {
                numbers[index] = Some(used.len());
                used.push(kind.clone());
            }
        }
        for arrow in arrows {
            arrow.kind = numbers[arrow.kind].unwrap_or_default();
        }
        *kinds = used;
    }

    /// The median time that a message took. Messages that were not received are drawn with this slope.
    fn usual_delay(&self, sent: Range<usize>) -> f64 {
        let delay = |message: &Message| match message.fate {
            Fate::Received(event) if message.from != message.to => {
                Some(self.place(event as usize).at - self.place(message.sent_by as usize).at)
            }
            _ => None,
        };
        let mut delays: Vec<f64> = self.log.messages()[sent].iter().filter_map(delay).collect();
        delays.sort_by(f64::total_cmp);
        let Axis { low, high, .. } = self.scene.axis;
        delays.get(delays.len() / 2).copied().unwrap_or((high - low) / 12.0)
    }

    fn message_in_words(&self, message: &Message, copy: bool) -> String {
        let log = self.log;
        let moment = |at: conclave_kernel::Time| match (log.about.timescale, self.scale) {
            (Timescale::Logical, _) => format!("at {}", at.0),
            (_, Scale::Moments(_)) => format!("at {}", self.scene.axis.show(self.scale.time(log, at))),
            _ => format!("at {at}"),
        };
        let fate = match message.fate {
            _ if copy => "received once more".to_owned(),
            Fate::Received(event) => format!("received {}", moment(log.events()[event as usize].at)),
            Fate::Lost(at) => format!("lost {}", moment(at)),
            Fate::InFlight => "never received".to_owned(),
        };
        let (from, to) = (log.name(message.from), log.name(message.to));
        let words = match log.words_in_full(message.text) {
            words if words.is_empty() => words,
            words => format!(": {words}"),
        };
        format!("{from} → {to}{words}\nsent {}, {fate}", moment(log.sent_at(message)))
    }

    /// The ends of a stretch on the axis, if it is in the window. The second is `None` if it was not over.
    fn stretch(&self, from: Edge, to: Edge) -> Option<(f64, Option<f64>)> {
        let place = |edge: Edge| match edge {
            Edge::Event(event) => self.log.events().get(event).map(|_| self.place(event).at),
            Edge::At(at) => Some(self.scale.time(self.log, at)),
            Edge::Open => None,
        };
        let Axis { low, high, .. } = self.scene.axis;
        let (from, to) = (place(from).unwrap_or(low), place(to));
        (from <= high && to.is_none_or(|to| to >= low)).then_some((from, to))
    }

    fn lasting(&self, subject: &str, from: f64, to: Option<f64>) -> String {
        let axis = &self.scene.axis;
        let until = to.map_or("on".to_owned(), |to| format!("to {}", axis.show(to)));
        format!("{subject} from {} {until}", axis.show(from))
    }

    fn add_bars(&mut self) {
        for span in self.options.spans.iter().filter(|span| span.site.0 < self.sites) {
            let Some((from, to)) = self.stretch(span.from, span.to) else { continue };
            let note = if span.note.is_empty() { String::new() } else { format!(" {}", span.note) };
            let detail = if span.detail.is_empty() { String::new() } else { format!(" ({})", span.detail) };
            let subject = format!("{}: {}{note}{detail}", self.log.name(span.site), span.kind.name);
            self.scene.bars.push(Bar {
                site: span.site.0,
                from,
                to,
                name: span.kind.name,
                tone: span.kind.tone,
                hue: span.colour_of.map(NodeId::index),
                note: span.note.clone(),
                tooltip: self.lasting(&subject, from, to),
            });
        }
    }

    /// Adds the timers, and the durations if they are wanted. Returns the number of timers that were left
    /// out.
    fn add_brackets(&mut self) -> usize {
        let timers = span::timers(self.log, &self.events);
        let is_visible = |bracket: &Bracket| {
            bracket.site.0 < self.sites && self.stretch(bracket.from, bracket.to).is_some()
        };
        let mut shown: Vec<Bracket> = timers.into_iter().filter(is_visible).collect();
        let left_out = if shown.len() > MOST_TIMERS { std::mem::take(&mut shown).len() } else { 0 };
        if self.options.brackets {
            let measured = span::durations(&self.options.spans).into_iter();
            shown.extend(measured.filter(|bracket| bracket.site.0 < self.sites));
        }
        for bracket in shown {
            let Some((from, to)) = self.stretch(bracket.from, bracket.to) else { continue };
            let length = to.map(|to| format!(", {}", self.scene.axis.length(to - from)));
            let subject = format!("{}: {}", self.log.name(bracket.site), bracket.label);
            let tooltip = self.lasting(&subject, from, to) + &length.unwrap_or_default();
            let Bracket { site, label, kind, .. } = bracket;
            self.scene.brackets.push(Brace { site: site.0, from, to, label, kind, lane: 0, tooltip });
        }
        self.scene.brackets.sort_by(|a, b| a.site.cmp(&b.site).then(a.from.total_cmp(&b.from)));
        let mut ends: Vec<f64> = Vec::new();
        let mut site = None;
        for brace in &mut self.scene.brackets {
            if site.replace(brace.site) != Some(brace.site) {
                ends.clear();
            }
            brace.lane = lane(&mut ends, brace.from, brace.to);
        }
        left_out
    }

    fn add_marks(&mut self) {
        let (mut crashes, mut pauses, mut cuts) = (Vec::new(), Vec::new(), Vec::new());
        let end = |open: &mut Vec<Interval>, node: NodeId, at: f64| {
            let last =
                open.iter_mut().rev().find(|interval| interval.site == node.0 && interval.to.is_none());
            if let Some(last) = last {
                last.to = Some(at);
            }
        };
        for mark in self.log.marks() {
            let at = self.scale.time(self.log, mark.at);
            let begin = |site: NodeId| Interval { site: site.0, from: at, to: None, tooltip: String::new() };
            match &mark.what {
                What::Crash(node) => crashes.push(begin(*node)),
                What::Recover(node) => end(&mut crashes, *node, at),
                What::Pause(node) => pauses.push(begin(*node)),
                What::Resume(node) => end(&mut pauses, *node, at),
                What::Cut(group) => cuts.push(self.band(group, at)),
                What::Heal(group) => {
                    let is_same = |cut: &&mut Band| {
                        cut.to.is_none() && cut.group.iter().copied().eq(group.iter().map(|site| site.0))
                    };
                    if let Some(cut) = cuts.iter_mut().rev().find(is_same) {
                        cut.to = Some(at);
                    }
                }
                What::Lose(_) | What::Duplicate(_) => {}
            }
        }
        let Axis { low, high, .. } = self.scene.axis;
        let is_seen = |from: f64, to: Option<f64>| from <= high && to.is_none_or(|to| to >= low);
        for (intervals, words) in [(&mut crashes, "is down"), (&mut pauses, "is paused")] {
            intervals.retain(|one| is_seen(one.from, one.to) && one.site < self.sites);
            for one in intervals {
                let subject = format!("{} {words}", self.log.name(NodeId(one.site)));
                one.tooltip = self.lasting(&subject, one.from, one.to);
            }
        }
        cuts.retain(|cut| is_seen(cut.from, cut.to));
        let mut ends = Vec::new();
        for cut in &mut cuts {
            cut.lane = lane(&mut ends, cut.from, cut.to);
            cut.tooltip = self.lasting(&cut.label, cut.from, cut.to);
        }
        (self.scene.crashes, self.scene.pauses, self.scene.bands) = (crashes, pauses, cuts);
    }

    fn band(&self, group: &[NodeId], at: f64) -> Band {
        let names: Vec<_> = group.iter().map(|site| self.log.name(*site)).collect();
        let group = group.iter().map(|site| site.0).collect();
        let label = format!("{} cut off", names.join(", "));
        Band { group, from: at, to: None, label, lane: 0, tooltip: String::new() }
    }

    fn add_cuts(&mut self) {
        let last = self.events.end;
        for cut in &self.options.cuts {
            let is_drawn = |(event, _): &&(usize, String)| {
                self.events.contains(event) && self.log.events()[*event].site.0 < self.sites
            };
            let points = cut.points.iter().filter(is_drawn);
            let points: Vec<_> = points.map(|(event, state)| (self.place(*event), state.clone())).collect();
            if points.is_empty() {
                continue;
            }
            let recorded = |site: u32| {
                let of_site = |(event, _): &&(usize, String)| self.log.events()[*event].site.0 == site;
                cut.points.iter().find(of_site).map_or(last, |(event, _)| *event)
            };
            let crosses = |arrow: &Arrow| {
                let point = |site: u32| self.place(recorded(site).min(last.saturating_sub(1))).at;
                let is_before = arrow.from.at < point(arrow.from.site);
                is_before && (arrow.to.at >= point(arrow.to.site) || arrow.head == Head::Fade)
            };
            let arrows = self.scene.arrows.iter().enumerate();
            let in_transit = arrows.filter(|(_, arrow)| crosses(arrow)).map(|(index, _)| index).collect();
            let (name, summary) = (cut.name.clone(), cut.summary.clone());
            self.scene.cuts.push(CutLine { name, points, in_transit, summary });
        }
    }

    /// Adds the violation. If several sites are in the critical section then, or lead, it covers their common
    /// time.
    fn add_violation(&mut self) {
        let Some(broken) = &self.options.violation else { return };
        if self.log.events().is_empty() {
            return;
        }
        let event = decisive(self.log, broken);
        let at = self.place(event).at;
        let is_inside =
            |bar: &&Bar| bar.tone == Tone::Has && bar.from <= at && bar.to.is_none_or(|to| to > at);
        let inside: Vec<&Bar> = self.scene.bars.iter().filter(is_inside).collect();
        let (to, sites) = match inside.len() {
            0 | 1 => (Some(at), Vec::new()),
            _ => {
                let end = inside.iter().filter_map(|bar| bar.to).reduce(f64::min);
                (end, inside.iter().map(|bar| bar.site).collect())
            }
        };
        let sentence = broken.sentence.clone();
        self.scene.violation = Some(Alarm { from: at, to, sites, sentence });
    }

    fn describe_limits(&self, timers: usize) -> Option<String> {
        let log = self.log;
        let count = |n: usize| group(&n.to_string());
        let mut parts = Vec::new();
        if self.events.len() < log.events().len() {
            let axis = &self.scene.axis;
            let whole = match self.scale {
                Scale::Time => log.end().to_string(),
                Scale::Stamps => log.end().0.to_string(),
                Scale::Steps(_) | Scale::Moments(_) => format!("{} steps", count(log.events().len())),
            };
            parts.push(format!("{} to {} of {whole}", axis.show(axis.low), axis.show(axis.high)));
            let sent = match self.events.is_empty() {
                true => 0,
                false => log.sent(self.events.end - 1).end - log.sent(self.events.start).start,
            };
            parts.push(format!("{} of {} messages", count(sent), count(log.messages().len())));
        }
        if self.sites < log.sites() {
            parts.push(format!("the first {} of {} sites", self.sites, count(log.sites() as usize)));
        }
        if timers > 0 {
            parts.push(format!("none of {} timers", count(timers)));
        }
        (!parts.is_empty()).then(|| format!("Only a part is drawn: {}.", parts.join(", ")))
    }
}

/// Returns the first free row for a stretch. `ends` holds the end of each row.
fn lane(ends: &mut Vec<f64>, from: f64, to: Option<f64>) -> usize {
    let free = ends.iter().position(|end| *end <= from);
    let lane = free.unwrap_or(ends.len());
    if free.is_none() {
        ends.push(0.0);
    }
    ends[lane] = to.unwrap_or(f64::INFINITY);
    lane
}

/// Finds the arrows that would cover each other.
fn set_side_by_side(arrows: &mut [Arrow]) {
    let ends =
        |arrow: &Arrow| (arrow.from.at.to_bits(), arrow.from.site, arrow.to.at.to_bits(), arrow.to.site);
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
