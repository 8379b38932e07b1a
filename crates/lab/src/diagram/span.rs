//! What the bars of a space-time diagram show: stretches of a site's life that a problem cares about.

use std::collections::BTreeMap;

use conclave_kernel::trace::What;
use conclave_kernel::{NodeId, Time};

use crate::log::{Cause, Log};

/// A stretch of a site's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The site.
    pub site: NodeId,
    /// Where it begins.
    pub from: Edge,
    /// Where it ends.
    pub to: Edge,
    /// What it is.
    pub kind: SpanKind,
    /// What is written on it, if there is room: the fence of a critical section.
    pub note: String,
}

/// One end of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// At an event, by its index.
    Event(usize),
    /// At a time, where no event stands: a crash.
    At(Time),
    /// Not over when the log ended.
    Open,
}

/// What a span is: its name in the legend, and how it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanKind {
    /// Its name.
    pub name: &'static str,
    /// How it looks.
    pub tone: Tone,
}

/// How a span looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Thin and light: the site wants something.
    Wants,
    /// Thick and dark: the site has it.
    Has,
}

impl SpanKind {
    /// A site waits for the critical section.
    pub const WAITING: Self = Self { name: "waiting", tone: Tone::Wants };
    /// A site is in the critical section.
    pub const INSIDE: Self = Self { name: "critical section", tone: Tone::Has };
}

/// The waits and critical sections of a mutex run: from the command to acquire until the grant, and from the
/// grant until the release. A request that was made before the site had left is waiting from the exit on.
///
/// Needs no types: it reads the names of commands and events, so that it serves a trace file as well.
pub fn mutex(log: &Log) -> Vec<Span> {
    let mut sites: BTreeMap<NodeId, Site> = BTreeMap::new();
    let mut spans = Vec::new();
    let mut marks = log.marks().iter().peekable();
    for (index, event) in log.events().iter().enumerate() {
        while let Some(mark) = marks.next_if(|mark| mark.at <= event.at) {
            if let What::Crash(node) = mark.what {
                sites.entry(node).or_default().crashed = Some(mark.at);
            }
        }
        let site = sites.entry(event.site).or_default();
        match event.cause {
            // A site that starts again has forgotten what it wanted when it died.
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
                "granted" => site.turn(index, SpanKind::INSIDE, fence(log.raw(*text))),
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
    /// Requests that wait behind the one under way.
    waiting: u32,
    crashed: Option<Time>,
}

#[derive(Clone)]
struct Open {
    from: usize,
    kind: SpanKind,
    note: String,
}

impl Site {
    fn wants(&mut self, index: usize) {
        if self.open.is_some() {
            self.waiting += 1;
        } else {
            self.turn(index, SpanKind::WAITING, String::new());
        }
    }

    fn turn(&mut self, from: usize, kind: SpanKind, note: String) -> Option<Open> {
        self.open.replace(Open { from, kind, note })
    }

    fn leave(&mut self, index: usize) -> Option<Open> {
        let closed = self.open.take();
        if self.waiting > 0 {
            self.waiting -= 1;
            self.turn(index, SpanKind::WAITING, String::new());
        }
        closed
    }
}

impl Open {
    fn close(self, site: NodeId, to: Edge) -> Span {
        Span { site, from: Edge::Event(self.from), to, kind: self.kind, note: self.note }
    }
}

/// The number in `{"granted":{"fence":5}}`.
fn fence(json: &str) -> String {
    json.chars().filter(char::is_ascii_digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagram::testing;
    use crate::log::read_log;

    fn shown(log: &Log) -> Vec<String> {
        let edge = |edge| match edge {
            Edge::Event(event) => log.events()[event].at.to_string(),
            Edge::At(at) => format!("{at}!"),
            Edge::Open => "...".to_owned(),
        };
        let show = |span: Span| {
            format!("{} {} {} {} {}", span.site, span.kind.name, edge(span.from), edge(span.to), span.note)
        };
        mutex(log).into_iter().map(show).collect()
    }

    fn run(steps: &[(u64, &str, &str)], marks: &str) -> Log {
        let mut file =
            r#"{"format":1,"code":"","algorithm":"x","nodes":1,"seed":1,"scenario":""}"#.to_owned();
        file.push('\n');
        file.push_str(marks);
        for (at, input, event) in steps {
            let effects =
                if event.is_empty() { String::new() } else { format!("{{\"emit\":{{\"event\":{event}}}}}") };
            file.push_str(&format!(
                "{{\"step\":{{\"at\":{at},\"node\":0,\"clock\":0,\"stamp\":1,\"first_sent\":0,\
                 \"input\":{input},\"effects\":[{effects}]}}}}\n"
            ));
        }
        read_log("run", file.as_bytes()).unwrap()
    }

    const ACQUIRE: &str = r#"{"command":"acquire"}"#;
    const RELEASE: &str = r#"{"command":"release"}"#;

    #[test]
    fn a_site_waits_until_it_is_granted_and_is_inside_until_it_leaves() {
        assert_eq!(shown(&testing::small_log()), ["n0 waiting 1ms 3ms ", "n0 critical section 3ms 5ms 3"]);
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
}
