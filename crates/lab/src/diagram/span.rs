//! The parts of a space-time diagram that depend on the problem: bars on the lines of the sites, and brackets
//! for durations.
//!
//! All are computed from the names of commands, events and timers, so they work for a trace file as well.

use std::collections::BTreeMap;
use std::ops::Range;

use conclave_kernel::trace::What;
use conclave_kernel::{NodeId, Time};
use serde::Serialize;

use crate::log::{Cause, Log, Text};

/// A stretch of a site's life, drawn as a bar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The site.
    pub site: NodeId,
    /// The beginning.
    pub from: Edge,
    /// The end.
    pub to: Edge,
    /// The meaning.
    pub kind: SpanKind,
    /// The text on the bar, drawn if there is room: the number of an entry, the name of a leader.
    pub note: String,
    /// More text for the tooltip.
    pub detail: String,
    /// The site whose colour the bar has; `None` for the colour of its kind.
    pub colour_of: Option<NodeId>,
}

/// One end of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// At an event, by its index.
    Event(usize),
    /// At a time without an event: a crash.
    At(Time),
    /// After the end of the log.
    Open,
}

/// The meaning of a span: its name in the legend, and its look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanKind {
    /// Its name.
    pub name: &'static str,
    /// Its look.
    pub tone: Tone,
}

/// The look of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// Thin and light: the site waits.
    Wants,
    /// Thick and dark: the site has the resource, or leads.
    Has,
    /// Thin, in the colour of another site: the site follows that one.
    Follows,
}

impl SpanKind {
    /// A site waits for the critical section.
    pub const WAITING: Self = Self { name: "waiting", tone: Tone::Wants };
    /// A site is in the critical section.
    pub const INSIDE: Self = Self { name: "critical section", tone: Tone::Has };
}

/// A duration, drawn as a bracket below the line of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bracket {
    /// The site.
    pub site: NodeId,
    /// The beginning.
    pub from: Edge,
    /// The end.
    pub to: Edge,
    /// The name of the duration.
    pub label: String,
    /// The meaning.
    pub kind: BracketKind,
}

/// The meaning of a bracket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BracketKind {
    /// A timer that fired.
    Fired,
    /// A timer that was cancelled, or set again, before it fired.
    Stopped,
    /// A measured duration.
    Measure,
}

/// The waits and critical sections of a mutex run. A wait lasts from the command to acquire until the grant,
/// and a critical section from the grant until the release. A request that was made before the site had left
/// waits from the exit on. The note of a critical section is the number of its entry, counted over all sites.
pub fn mutex(log: &Log) -> Vec<Span> {
    let mut sites: BTreeMap<NodeId, Site> = BTreeMap::new();
    let mut spans = Vec::new();
    let mut entries = 0_u64;
    let mut marks = log.marks().iter().peekable();
    for (index, event) in log.events().iter().enumerate() {
        while let Some(mark) = marks.next_if(|mark| mark.at <= event.at) {
            if let What::Crash(node) = mark.what {
                sites.entry(node).or_default().crashed = Some(mark.at);
            }
        }
        let site = sites.entry(event.site).or_default();
        match event.cause {
            // A site that starts again has lost the requests that it had before the crash.
            Cause::Start => {
                let crashed = site.crashed.map_or(Edge::Event(index), Edge::At);
                spans.extend(site.open.take().map(|open| open.close(event.site, crashed)));
                *site = Site::default();
            }
            Cause::Command(text) if log.kind(text) == "acquire" => site.wants(index),
            _ => {}
        }
        for text in log.emitted(index) {
            let closed = match log.kind(*text) {
                "granted" => {
                    entries += 1;
                    site.turn(index, SpanKind::INSIDE, entries.to_string(), fence(log.raw(*text)))
                }
                "released" => site.leave(index),
                "refused" if log.raw(*text).contains("too_many_waiting") => {
                    site.waiting = site.waiting.saturating_sub(1);
                    None
                }
                _ => None,
            };
            spans.extend(closed.map(|open| open.close(event.site, Edge::Event(index))));
        }
    }
    for (site, state) in sites {
        spans.extend(state.open.map(|open| open.close(site, Edge::Open)));
    }
    spans
}

#[derive(Clone, Default)]
struct Site {
    open: Option<Open>,
    /// The requests behind the current one.
    waiting: u32,
    crashed: Option<Time>,
}

#[derive(Clone)]
struct Open {
    from: usize,
    kind: SpanKind,
    note: String,
    detail: String,
}

impl Site {
    fn wants(&mut self, index: usize) {
        if self.open.is_some() {
            self.waiting += 1;
        } else {
            self.turn(index, SpanKind::WAITING, String::new(), String::new());
        }
    }

    fn turn(&mut self, from: usize, kind: SpanKind, note: String, detail: String) -> Option<Open> {
        self.open.replace(Open { from, kind, note, detail })
    }

    fn leave(&mut self, index: usize) -> Option<Open> {
        let closed = self.open.take();
        if self.waiting > 0 {
            self.waiting -= 1;
            self.turn(index, SpanKind::WAITING, String::new(), String::new());
        }
        closed
    }
}

impl Open {
    fn close(self, site: NodeId, to: Edge) -> Span {
        let Self { from, kind, note, detail } = self;
        Span { site, from: Edge::Event(from), to, kind, note, detail, colour_of: None }
    }
}

/// The number in `{"granted":{"fence":5}}`, in words.
fn fence(json: &str) -> String {
    let digits: String = json.chars().filter(char::is_ascii_digit).collect();
    if digits.is_empty() { digits } else { format!("fence {digits}") }
}

/// The timers that are set during some of the events of a run, each from the step that sets it until it fires
/// or is cancelled.
pub fn timers(log: &Log, during: &Range<usize>) -> Vec<Bracket> {
    let mut open: BTreeMap<(NodeId, &str), (usize, Text)> = BTreeMap::new();
    let mut brackets = Vec::new();
    let mut marks = log.marks().iter().peekable();
    // The index of the event at the end decides whether the timer is wanted.
    let bracket = |site, (from, timer), (index, to), kind| {
        let is_wanted = from < during.end && index >= during.start;
        let label = || log.timer_name(timer);
        is_wanted.then(|| Bracket { site, from: Edge::Event(from), to, label: label(), kind })
    };
    for (index, event) in log.events().iter().enumerate() {
        while let Some(mark) = marks.next_if(|mark| mark.at <= event.at) {
            if let What::Crash(node) = mark.what {
                let lost = open.extract_if(.., |(site, _), _| *site == node);
                let end = (index, Edge::At(mark.at));
                brackets.extend(lost.filter_map(|(_, set)| bracket(node, set, end, BracketKind::Stopped)));
            }
        }
        let mut close = |open: &mut BTreeMap<_, _>, timer: Text, kind| {
            let set = open.remove(&(event.site, log.raw(timer)));
            let end = (index, Edge::Event(index));
            brackets.extend(set.and_then(|set| bracket(event.site, set, end, kind)));
        };
        if let Cause::Timer(timer) = event.cause {
            close(&mut open, timer, BracketKind::Fired);
        }
        for change in log.timers(index) {
            close(&mut open, change.timer, BracketKind::Stopped);
            if change.after.is_some() {
                open.insert((event.site, log.raw(change.timer)), (index, change.timer));
            }
        }
    }
    let end = (usize::MAX, Edge::Open);
    brackets.extend(
        open.into_iter().filter_map(|((site, _), set)| bracket(site, set, end, BracketKind::Stopped)),
    );
    brackets
}

/// The durations that the metrics of mutual exclusion are made of, from the spans of [`mutex`]: the time in
/// the critical section (E), the response time, the client delay of a request that no other site competes
/// with, and the synchronisation delay from an exit to the next entry while a site waits.
pub fn durations(spans: &[Span]) -> Vec<Bracket> {
    let index = |edge: Edge| match edge {
        Edge::Event(event) => Some(event),
        _ => None,
    };
    let mut inside: Vec<&Span> = spans.iter().filter(|span| span.kind == SpanKind::INSIDE).collect();
    inside.sort_by_key(|span| index(span.from));
    let is_busy = |site: NodeId, event: usize| {
        spans.iter().any(|span| {
            let ends = index(span.to).unwrap_or(usize::MAX);
            span.site != site && index(span.from).is_some_and(|from| from <= event) && ends > event
        })
    };
    let mut brackets = Vec::new();
    let mut add = |site, from, to, label: &str| {
        brackets.push(Bracket { site, from, to, label: label.to_owned(), kind: BracketKind::Measure });
    };
    for (nth, entry) in inside.iter().enumerate() {
        add(entry.site, entry.from, entry.to, "E");
        let wait = spans
            .iter()
            .find(|span| span.kind == SpanKind::WAITING && span.site == entry.site && span.to == entry.from);
        let Some(wait) = wait else { continue };
        add(entry.site, wait.from, entry.to, "response time");
        let (Some(requested), Some(entered)) = (index(wait.from), index(entry.from)) else { continue };
        let exit = nth.checked_sub(1).and_then(|before| index(inside[before].to));
        match exit {
            Some(exit) if requested < exit && exit < entered => {
                add(entry.site, Edge::Event(exit), entry.from, "synchronisation delay");
            }
            _ if !is_busy(entry.site, requested) => add(entry.site, wait.from, entry.from, "client delay"),
            _ => {}
        }
    }
    brackets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagram::testing;
    use crate::log::read_log;

    fn edge(log: &Log, edge: Edge) -> String {
        match edge {
            Edge::Event(event) => log.events()[event].at.to_string(),
            Edge::At(at) => format!("{at}!"),
            Edge::Open => "...".to_owned(),
        }
    }

    fn shown(log: &Log) -> Vec<String> {
        let show = |span: Span| {
            let (from, to) = (edge(log, span.from), edge(log, span.to));
            format!("{} {} {from} {to} {}", span.site, span.kind.name, span.note)
        };
        mutex(log).into_iter().map(show).collect()
    }

    fn brackets(log: &Log, brackets: Vec<Bracket>) -> Vec<String> {
        let show = |bracket: Bracket| {
            let (from, to) = (edge(log, bracket.from), edge(log, bracket.to));
            format!("{} {} {from} {to} {:?}", bracket.site, bracket.label, bracket.kind)
        };
        brackets.into_iter().map(show).collect()
    }

    /// A log of site 0, from steps of a time, an input and the effects.
    fn log_of(steps: &[(u64, &str, String)], marks: &str) -> Log {
        let mut file =
            r#"{"format":1,"code":"","algorithm":"x","nodes":1,"seed":1,"scenario":""}"#.to_owned();
        file.push('\n');
        file.push_str(marks);
        for (at, input, effects) in steps {
            file.push_str(&format!(
                "{{\"step\":{{\"at\":{at},\"node\":0,\"clock\":0,\"stamp\":1,\"first_sent\":0,\
                 \"input\":{input},\"effects\":[{effects}]}}}}\n"
            ));
        }
        read_log("run", file.as_bytes()).unwrap()
    }

    fn run(steps: &[(u64, &str, &str)], marks: &str) -> Log {
        let emit = |event: &str| match event {
            "" => String::new(),
            event => format!("{{\"emit\":{{\"event\":{event}}}}}"),
        };
        let steps: Vec<_> = steps.iter().map(|(at, input, event)| (*at, *input, emit(event))).collect();
        log_of(&steps, marks)
    }

    const ACQUIRE: &str = r#"{"command":"acquire"}"#;
    const RELEASE: &str = r#"{"command":"release"}"#;

    #[test]
    fn a_site_waits_until_it_is_granted_and_is_inside_until_it_leaves() {
        let log = testing::small_log();
        assert_eq!(shown(&log), ["n0 waiting 1ms 3ms ", "n0 critical section 3ms 5ms 1"]);
        assert_eq!(mutex(&log)[1].detail, "fence 3");
    }

    #[test]
    fn a_request_made_while_inside_waits_from_the_exit_on() {
        let granted = r#"{"granted":{"fence":1}}"#;
        let log = run(&[(1, ACQUIRE, granted), (2, ACQUIRE, ""), (3, RELEASE, r#""released""#)], "");
        assert_eq!(
            shown(&log),
            ["n0 waiting 1ns 1ns ", "n0 critical section 1ns 3ns 1", "n0 waiting 3ns ... "]
        );
    }

    #[test]
    fn a_refused_request_does_not_wait() {
        let refused = r#"{"refused":"too_many_waiting"}"#;
        let granted = r#"{"granted":{"fence":1}}"#;
        let log = run(&[(1, ACQUIRE, granted), (2, ACQUIRE, refused), (3, RELEASE, r#""released""#)], "");
        assert_eq!(shown(&log).len(), 2);
    }

    #[test]
    fn a_site_that_forgot_everything_waits_no_more() {
        let crash = "{\"mark\":{\"at\":2,\"what\":{\"crash\":0}}}\n";
        let log = run(&[(1, ACQUIRE, ""), (5, r#""start""#, "")], crash);
        assert_eq!(shown(&log), ["n0 waiting 1ns 2ns! "]);
    }

    #[test]
    fn a_timer_lasts_until_it_fires_is_set_again_or_its_site_crashes() {
        let zero = r#"{"secs":0,"nanos":5}"#;
        let arm = |timer: &str| format!(r#"{{"arm":{{"timer":"{timer}","min":{zero},"max":{zero}}}}}"#);
        let disarm = r#"{"disarm":{"timer":"Coordinator"}}"#.to_owned();
        let steps = [
            (1, r#""start""#, arm("Answer")),
            (3, r#"{"timer":"Answer"}"#, arm("Coordinator")),
            (4, ACQUIRE, arm("Coordinator")),
            (5, ACQUIRE, disarm),
            (6, ACQUIRE, arm("Answer")),
            (9, r#""start""#, arm("Other")),
        ];
        let log = log_of(&steps, "{\"mark\":{\"at\":7,\"what\":{\"crash\":0}}}\n");
        assert_eq!(
            brackets(&log, timers(&log, &(0..log.events().len()))),
            [
                "n0 T 1ns 3ns Fired",
                "n0 T' 3ns 4ns Stopped",
                "n0 T' 4ns 5ns Stopped",
                "n0 T 6ns 7ns! Stopped",
                "n0 Other 9ns ... Stopped"
            ]
        );
    }

    #[test]
    fn the_delays_of_a_mutex_are_measured_between_their_events() {
        let log = testing::ricart_agrawala(2, 2);
        let found = brackets(&log, durations(&mutex(&log)));
        assert_eq!(
            found,
            [
                "n0 E 2ms 3ms Measure",
                "n0 response time 0 3ms Measure",
                "n0 client delay 0 2ms Measure",
                "n1 E 4ms 5ms Measure",
                "n1 response time 300us 5ms Measure",
                "n1 synchronisation delay 3ms 4ms Measure"
            ]
        );
        let alone = testing::small_log();
        assert!(
            brackets(&alone, durations(&mutex(&alone))).contains(&"n0 client delay 1ms 3ms Measure".into())
        );
    }
}
