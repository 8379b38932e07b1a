//! Logs as ShiViz reads them: every event with its host, its vector clock and a line of text.
//!
//! ```text
//! (?<host>\S*) (?<clock>{.*})\n(?<event>.*)
//!
//! n0 {"n0":1}
//! is asked to acquire; sends request time 1, site 0 to n1, n2
//! n1 {"n1":1,"n0":1}
//! receives request time 1, site 0 from n0; sends reply to n0
//! ```
//!
//! The first line is the expression that parses the rest, the second (blank) the one that separates
//! executions. A host's own entries are 1, 2, 3, ...; entries that are 0 are left out.
//!
//! [`read`] takes such logs of *other* programs: with or without the two lines, text before or after the
//! clock, hosts interleaved in any order. Messages are not in such a log: they follow from the clocks. What
//! an event knows and the event before it on the same host did not, it learnt by a message; from the latest
//! event that explains it. **Trap**: two events learnt of at once may be one message, if one knows of the
//! other.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io::{BufRead, Read as _};

use conclave_kernel::{NodeId, StepHead, Time};
use regex::RegexBuilder;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Number, Value};

use crate::log::{About, Builder, Causality, Cause, Error, Lines, Log, Timescale};

const HEADER: &str = r"(?<host>\S*) (?<clock>{.*})\n(?<event>.*)";

/// Writes a log with its vector clocks. Refused if these would not fit in memory.
pub fn write(log: &Log) -> Result<String, String> {
    let causality = Causality::of(log)?;
    // Names in quotes, made once: every clock repeats them.
    let mut quoted: HashMap<usize, String> = HashMap::new();
    let mut out = format!("{HEADER}\n\n");
    for (index, event) in log.events().iter().enumerate() {
        let own = event.site.index();
        let vector = causality.vector(index);
        put(&mut out, format_args!("{} ", host(&log.name(event.site))));
        // The host's own entry first: easier on the reader's eye.
        let others = (0..vector.len()).filter(|site| *site != own && vector[*site] > 0);
        for (nth, site) in [own].into_iter().chain(others).enumerate() {
            let name = || Value::String(host(&log.name(NodeId(site as u32)))).to_string();
            let name = quoted.entry(site).or_insert_with(name);
            put(&mut out, format_args!("{}{name}:{}", if nth == 0 { '{' } else { ',' }, vector[site]));
        }
        out.push_str("}\n");
        out.extend(log.describe(index).chars().map(|c| if c.is_control() { ' ' } else { c }));
        out.push('\n');
    }
    Ok(out)
}

/// Reads the log of another program. `name` is what errors call the file.
pub fn read(name: &str, reader: impl BufRead) -> Result<Log, Error> {
    let mut lines = Lines::new(name, reader);
    let mut events = Vec::new();
    let mut hosts = Hosts::default();
    let mut order = None;
    let mut first = true;
    let mut held: Option<String> = None;
    while let Some(line) = lines.next_or_blank()? {
        let line = line.trim().to_owned();
        if std::mem::take(&mut first) && line.starts_with("(?<") {
            order = Some(order_of_header(&line).map_err(|what| lines.error(what))?);
            if lines.next_or_blank()?.is_some_and(|line| !line.trim().is_empty()) {
                return Err(lines
                    .error("a log of several executions: expected a blank second line, and one execution"));
            }
            continue;
        }
        if line.is_empty() && held.is_none() {
            continue;
        }
        let order = *order.get_or_insert(if is_clock(&line) { Order::ClockFirst } else { Order::TextFirst });
        let Some(other) = held.take() else {
            held = Some(line);
            continue;
        };
        let first = order == Order::ClockFirst;
        let (clock, text) = if first { (other, line) } else { (line, other) };
        let number = lines.number() - u64::from(first);
        let event = hosts.line(&clock, text, number);
        let event = event.map_err(|what| Error { file: name.to_owned(), line: number, what })?;
        if events.len() == MOST_EVENTS {
            return Err(lines.error(format!("more than {MOST_EVENTS} events")));
        }
        events.push(event);
    }
    if held.is_some() {
        return Err(
            lines.error("the last event is cut off: expected a line with the clock and a line of text")
        );
    }
    if events.is_empty() {
        return Err(lines.error("no events: not a ShiViz log"));
    }
    assemble(name, hosts, events).map_err(|(line, what)| Error { file: name.to_owned(), line, what })
}

/// Reads the log of another program by an expression with the groups `host`, `clock` and `event`, as one
/// gives it to ShiViz. A clock is JSON, such as `{"a":1}`. Text that no match covers is passed over.
pub fn read_by(name: &str, expression: &str, reader: impl BufRead) -> Result<Log, Error> {
    read_from(name, expression, reader, 0)
}

/// Reads a log by the expression on its own first line, which the second (blank) one ends.
pub fn read_by_header(name: &str, expression: &str, reader: impl BufRead) -> Result<Log, Error> {
    read_from(name, expression, reader, 2)
}

fn read_from(name: &str, expression: &str, mut reader: impl BufRead, skipped: usize) -> Result<Log, Error> {
    let refuse = |line, what| Error { file: name.to_owned(), line, what };
    let regex =
        RegexBuilder::new(&braces_escaped(expression)).multi_line(true).size_limit(MOST_EXPRESSION).build();
    let regex = regex.map_err(|error| refuse(1, format!("the expression cannot be read: {error}")))?;
    if let Some(missing) = ["host", "clock", "event"]
        .iter()
        .find(|group| !regex.capture_names().flatten().any(|it| it == **group))
    {
        return Err(refuse(1, format!("the expression has no group (?<{missing}>...)")));
    }
    let mut text = String::new();
    let read = (&mut reader).take(MOST_TEXT + 1).read_to_string(&mut text);
    read.map_err(|error| refuse(1, error.to_string()))?;
    if text.len() as u64 > MOST_TEXT {
        return Err(refuse(1, format!("longer than {MOST_TEXT} bytes")));
    }
    let (mut hosts, mut events) = (Hosts::default(), Vec::new());
    let start: usize = text.split_inclusive('\n').take(skipped).map(str::len).sum();
    let text = &text[start..];
    let (mut line, mut counted) = (1 + skipped as u64, 0_usize);
    for found in regex.captures_iter(text) {
        let group = |group: &str| found.name(group).map_or(("", 0), |it| (it.as_str(), it.start()));
        let ((host, _), (clock, start), (event, _)) = (group("host"), group("clock"), group("event"));
        line += text[counted..start.max(counted)].matches('\n').count() as u64;
        counted = start.max(counted);
        let column = start - text[..start].rfind('\n').map_or(0, |end| end + 1) + 1;
        if events.len() == MOST_EVENTS {
            return Err(refuse(line, format!("more than {MOST_EVENTS} events")));
        }
        events.push(
            hosts.event(host, clock, column, event.to_owned(), line).map_err(|what| refuse(line, what))?,
        );
    }
    if events.is_empty() {
        return Err(refuse(1, "the expression matches nothing".to_owned()));
    }
    assemble(name, hosts, events).map_err(|(line, what)| refuse(line, what))
}

/// The most bytes of a log that is read by an expression, and of the expression when compiled.
const MOST_TEXT: u64 = 1 << 31;
const MOST_EXPRESSION: usize = 1 << 20;

/// The same expression with braces that begin no repetition escaped: in JavaScript, and so in ShiViz, `{.*}`
/// means itself.
fn braces_escaped(expression: &str) -> String {
    let mut escaped = String::with_capacity(expression.len());
    let mut rest = expression;
    while let Some(at) = rest.find(['\\', '{', '}']) {
        escaped.push_str(&rest[..at]);
        let tail = &rest[at..];
        let repetition = tail.find('}').filter(|end| {
            tail.starts_with('{') && is_count(&tail[1..*end]) && !escaped.ends_with(['(', '|', '>'])
        });
        let taken = match (tail.as_bytes()[0], repetition) {
            (b'\\', _) => tail.chars().take(2).map(char::len_utf8).sum(),
            (_, Some(end)) => end + 1,
            _ => {
                escaped.push('\\');
                1
            }
        };
        escaped.push_str(&tail[..taken]);
        rest = &tail[taken..];
    }
    escaped + rest
}

/// `3`, `3,` or `3,5`.
fn is_count(text: &str) -> bool {
    let (from, to) = text.split_once(',').unwrap_or((text, ""));
    !from.is_empty() && from.bytes().chain(to.bytes()).all(|byte| byte.is_ascii_digit())
}

/// The most events and hosts of a foreign log.
const MOST_EVENTS: usize = 1 << 24;
const MOST_HOSTS: usize = 1 << 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    ClockFirst,
    TextFirst,
}

/// Whether an expression is one that [`read`] knows without compiling it: host, clock and event on two lines.
pub fn is_usual(expression: &str) -> bool {
    order_of_header(expression).is_ok()
}

fn order_of_header(header: &str) -> Result<Order, &'static str> {
    let place = |name: &str| header.find(name);
    match (place("(?<host>"), place("(?<clock>"), place("(?<event>")) {
        (Some(host), Some(clock), Some(event)) if host < clock && header.contains("\\n") => {
            Ok(if event < host { Order::TextFirst } else { Order::ClockFirst })
        }
        _ => Err("this parser expression is not known: expected host, clock and event on two lines"),
    }
}

fn is_clock(line: &str) -> bool {
    line.split_once(' ').is_some_and(|(_, clock)| {
        let clock = clock.trim();
        clock.starts_with('{') && clock.ends_with('}')
    })
}

/// An event as it was read: its clock sparse, as (host, count) in order of hosts.
struct Foreign {
    host: u32,
    clock: Vec<(u32, u32)>,
    text: String,
    line: u64,
}

impl Foreign {
    fn knows(&self, host: u32) -> u32 {
        let found = self.clock.binary_search_by_key(&host, |(known, _)| *known);
        found.map_or(0, |index| self.clock[index].1)
    }
}

/// A vector clock as it is written: names borrowed from the line, for a log has millions of them.
struct Clock<'a>(Vec<(Cow<'a, str>, Number)>);

#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Clock<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Clock<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vector clock")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Clock<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some((Name(name), count)) = map.next_entry()? {
                    entries.push((name, count));
                }
                Ok(Clock(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

const EXPECTED: &str = "expected a host and its vector clock, such as n0 {\"n0\":1}";

#[derive(Default)]
struct Hosts {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Hosts {
    fn number(&mut self, name: &str) -> Result<u32, String> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        if self.names.len() == MOST_HOSTS {
            return Err(format!("more than {MOST_HOSTS} hosts"));
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    /// An event whose host and clock share a line.
    fn line(&mut self, line: &str, text: String, number: u64) -> Result<Foreign, String> {
        let (host, clock) = line.split_once(' ').ok_or_else(|| format!("column 1: {EXPECTED}"))?;
        self.event(host, clock, host.len() + 2, text, number)
    }

    /// An event; its clock begins at that column of that line.
    fn event(
        &mut self,
        host: &str,
        clock: &str,
        column: usize,
        text: String,
        number: u64,
    ) -> Result<Foreign, String> {
        let clock: Clock<'_> = serde_json::from_str(clock)
            .map_err(|error| format!("column {}: {EXPECTED}", column + error.column().saturating_sub(1)))?;
        let own = self.number(host)?;
        let mut counts = Vec::with_capacity(clock.0.len());
        for (name, count) in &clock.0 {
            let count = count.as_u64().and_then(|count| u32::try_from(count).ok());
            let count = count.ok_or_else(|| format!("the clock's entry for {name} is no count"))?;
            if count > 0 {
                counts.push((self.number(name)?, count));
            }
        }
        counts.sort_unstable();
        if counts.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err("the clock names a host twice".to_owned());
        }
        let event = Foreign { host: own, clock: counts, text, line: number };
        if event.knows(own) == 0 {
            return Err(format!("the clock has no entry for {host}, whose event it is"));
        }
        Ok(event)
    }
}

/// Puts the events in an order that causality allows, and finds the messages between them.
fn assemble(name: &str, hosts: Hosts, mut events: Vec<Foreign>) -> Result<Log, (u64, String)> {
    // What happened before has less knowledge, so the sum of its clock is smaller.
    events.sort_by_cached_key(|event| event.clock.iter().map(|(_, count)| u64::from(*count)).sum::<u64>());
    let place = index_by_host(&hosts, &events)?;
    let learnt = events
        .iter()
        .map(|event| learnt_from(event, &place, &events, &hosts))
        .collect::<Result<Vec<_>, _>>()?;
    // Who sends to whom, from the receivers' side to the senders'.
    let mut receivers: Vec<Vec<u32>> = vec![Vec::new(); events.len()];
    for (receiver, senders) in learnt.iter().enumerate() {
        senders.iter().for_each(|sender| receivers[*sender].push(receiver as u32));
    }
    let about = About { algorithm: name.to_owned(), timescale: Timescale::Logical, ..About::default() };
    let mut build = Builder::named(about, hosts.names);
    let nothing = build.text("");
    let mut stamps = vec![0_u64; events.len()];
    let mut last = vec![0_u64; place.len()];
    // The messages that each event receives, in the order of its senders; known once these are sent.
    let mut arriving: Vec<Vec<u32>> = learnt.iter().map(|senders| vec![0; senders.len()]).collect();
    let mut sent = 0_u32;
    let mut order: Vec<usize> = (0..events.len()).collect();
    for (index, event) in events.iter().enumerate() {
        let host = event.host as usize;
        let heard = learnt[index].iter().map(|sender| stamps[*sender]).max().unwrap_or(0);
        stamps[index] = heard.max(last[host]) + 1;
        last[host] = stamps[index];
    }
    order.sort_by_key(|index| stamps[*index]);
    for index in order {
        let event = &events[index];
        let cause = Cause::Foreign(build.text(&event.text));
        let (at, node) = (Time(stamps[index]), NodeId(event.host));
        let head = StepHead { at, node, clock: at, stamp: at.0, received: None, first_sent: u64::from(sent) };
        let refuse = |what| (event.line, what);
        build.step(head, cause, None).map_err(refuse)?;
        // Senders come first, by their stamps.
        std::mem::take(&mut arriving[index]).into_iter().for_each(|message| build.also_receives(message));
        for receiver in &receivers[index] {
            let receiver = *receiver as usize;
            build.send([NodeId(events[receiver].host)], nothing).map_err(refuse)?;
            let place = learnt[receiver].iter().position(|sender| *sender == index);
            arriving[receiver][place.expect("the receiver learnt from it")] = sent;
            sent += 1;
        }
    }
    build.finish().map_err(|what| (1, what))
}

/// For every host, its events by their own count; these must be 1, 2, 3, ...
fn index_by_host(hosts: &Hosts, events: &[Foreign]) -> Result<Vec<Vec<usize>>, (u64, String)> {
    let mut place: Vec<Vec<usize>> = vec![Vec::new(); hosts.names.len()];
    for (index, event) in events.iter().enumerate() {
        let row = &mut place[event.host as usize];
        row.push(index);
        let (own, expected) = (event.knows(event.host), row.len());
        if own as usize != expected {
            let host = &hosts.names[event.host as usize];
            let what = format!("{host} counts {own} where its event number {expected} should stand");
            return Err((event.line, what));
        }
    }
    Ok(place)
}

/// The events of other hosts that an event heard from: the latest of each host that it newly knows of,
/// without those that another of them already knew.
fn learnt_from(
    event: &Foreign,
    place: &[Vec<usize>],
    events: &[Foreign],
    hosts: &Hosts,
) -> Result<Vec<usize>, (u64, String)> {
    let own = event.knows(event.host) as usize;
    let before = own.checked_sub(2).map(|previous| &events[place[event.host as usize][previous]]);
    let refuse = |what: String| (event.line, what);
    let name = |host: u32| &hosts.names[host as usize];
    let mut news = Vec::new();
    for (host, count) in event.clock.iter().filter(|(host, _)| *host != event.host) {
        if *count > before.map_or(0, |before| before.knows(*host)) {
            let sender = place[*host as usize].get(*count as usize - 1).copied();
            let sender = sender.ok_or_else(|| {
                refuse(format!("knows of event {count} of {}, which is not in the log", name(*host)))
            })?;
            news.push(sender);
        }
    }
    let direct: Vec<usize> = news
        .iter()
        .copied()
        .filter(|old| {
            let old = &events[*old];
            let known = |new: &Foreign| new.host != old.host && new.knows(old.host) >= old.knows(old.host);
            !news.iter().any(|new| known(&events[*new]))
        })
        .collect();
    if let Some(sender) =
        direct.iter().map(|sender| &events[*sender]).find(|sender| sender.knows(event.host) as usize >= own)
    {
        return Err(refuse(format!(
            "knows an event of {} that knows it: neither came first",
            name(sender.host)
        )));
    }
    // What it says it knows must be what it could have learnt: no more, no less.
    let teachers = || before.into_iter().chain(direct.iter().map(|sender| &events[*sender]));
    for host in event
        .clock
        .iter()
        .map(|(host, _)| *host)
        .chain(teachers().flat_map(|teacher| teacher.clock.iter().map(|(host, _)| *host)))
    {
        let most = teachers().map(|teacher| teacher.knows(host)).max().unwrap_or(0);
        if host != event.host && event.knows(host) != most {
            let (says, name) = (event.knows(host), name(host));
            return Err(refuse(format!("says {says} for {name}, but its past says {most}")));
        }
    }
    Ok(direct)
}

fn put(out: &mut String, text: fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a string does not fail");
}

/// A name that ShiViz takes: no blanks, not empty.
fn host(name: &str) -> String {
    let name: String =
        name.chars().map(|c| if c.is_whitespace() || c.is_control() { '_' } else { c }).collect();
    if name.is_empty() { "_".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagram::testing;
    use crate::log::Relation;

    fn refused(text: &str) -> String {
        read("x.log", text.as_bytes()).expect_err("must be refused").to_string()
    }

    #[test]
    fn what_is_written_is_read_back_with_the_same_clocks() {
        for log in [testing::ricart_agrawala(4, 20), testing::small_log()] {
            let text = write(&log).unwrap();
            let back = read("run", text.as_bytes()).unwrap();
            assert_eq!(back.events().len(), log.events().len());
            let (before, after) = (Causality::of(&log).unwrap(), Causality::of(&back).unwrap());
            let by_text = |log: &Log, causality: &Causality| {
                let host = |name: &str| name[1..].parse::<usize>().unwrap();
                let place: Vec<_> = (0..log.sites()).map(|site| host(&log.name(NodeId(site)))).collect();
                let mut events: Vec<_> = (0..log.events().len())
                    .map(|event| {
                        let mut vector = vec![0; 8];
                        place
                            .iter()
                            .zip(causality.vector(event))
                            .for_each(|(to, count)| vector[*to] = *count);
                        (place[log.events()[event].site.index()], vector, log.describe(event))
                    })
                    .collect();
                events.sort();
                events
            };
            assert_eq!(by_text(&log, &before), by_text(&back, &after));
        }
    }

    #[test]
    fn own_entries_count_from_one_and_zeros_are_left_out() {
        let text = write(&testing::small_log()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..2], [HEADER, ""]);
        assert_eq!(lines[8], "n0 {\"n0\":2}");
        assert_eq!(lines[9], "is asked to acquire; sends request time 1, site 0 to n1, n2");
        assert_eq!(lines[10], "n1 {\"n1\":2,\"n0\":2}");
    }

    #[test]
    fn the_log_of_another_program_is_read_without_a_header_and_in_any_order() {
        let text = "works\nbob {\"bob\":1}\nhears\nbob {\"bob\":2, \"alice\":1}\nsays\nalice {\"alice\":1}\n";
        let log = read("x.log", text.as_bytes()).unwrap();
        let causality = Causality::of(&log).unwrap();
        let find = |text: &str| (0..3).find(|event| log.describe(*event) == text).unwrap();
        assert_eq!(causality.relation(find("says"), find("hears")), Relation::Before);
        assert_eq!(causality.relation(find("says"), find("works")), Relation::Concurrent);
        assert_eq!(log.messages().len(), 1);
        assert_eq!(log.name(log.messages()[0].from), "alice");
    }

    #[test]
    fn knowledge_that_came_with_other_knowledge_is_no_message_of_its_own() {
        let text = "a {\"a\":1}\nA\nb {\"b\":1,\"a\":1}\nB\nc {\"c\":1,\"b\":1,\"a\":1}\nC\n";
        let log = read("x.log", text.as_bytes()).unwrap();
        let pairs: Vec<_> = log.messages().iter().map(|m| (log.name(m.from), log.name(m.to))).collect();
        assert_eq!(pairs, [("a".to_owned(), "b".to_owned()), ("b".to_owned(), "c".to_owned())]);
    }

    #[test]
    fn a_bad_log_is_refused_with_its_line() {
        assert_eq!(refused(""), "x.log:1: no events: not a ShiViz log");
        assert!(
            refused("a {\"a\":1}\nA\nb b\nB\n")
                .starts_with("x.log:3: column 3: expected a host and its vector clock")
        );
        assert_eq!(refused("a {\"a\":2}\nA\n"), "x.log:1: a counts 2 where its event number 1 should stand");
        assert_eq!(refused("a {\"b\":1}\nA\n"), "x.log:1: the clock has no entry for a, whose event it is");
        assert_eq!(refused("a {\"a\":-1}\nA\n"), "x.log:1: the clock's entry for a is no count");
        assert_eq!(
            refused("a {\"a\":1,\"b\":4}\nA\nb {\"b\":1}\nB\n"),
            "x.log:1: knows of event 4 of b, which is not in the log"
        );
        assert_eq!(
            refused("a {\"a\":1}\nA\nb {\"b\":1,\"a\":1}\nB\nb {\"b\":2}\nB2\n"),
            "x.log:5: says 0 for a, but its past says 1"
        );
        assert_eq!(refused("a {\"a\":1,\"a\":1}\nA\n"), "x.log:1: the clock names a host twice");
        assert!(refused("a {\"a\":1}\nA\na {\"a\":2}\n").contains("the last event is cut off"));
        assert!(refused("(?<date>.*)\n\n").contains("parser expression is not known"));
        assert!(refused(&format!("{HEADER}\n=== (?<trace>.*)\n")).contains("several executions"));
        assert_eq!(
            refused("a {\"a\":1,\"b\":1}\nA\nb {\"b\":1,\"a\":1}\nB\n"),
            "x.log:1: knows an event of b that knows it: neither came first"
        );
    }

    #[test]
    fn a_log_is_read_by_an_expression_as_shiviz_takes_it() {
        let text = "noise\n[10:01] a says A {\"a\":1}\n[10:02] b says B {\"b\":1, \"a\":1}\n";
        let expression = r"\[.{2,5}\] (?<host>\S+) says (?<event>.*) (?<clock>{.*})";
        let log = read_by("x.log", expression, text.as_bytes()).unwrap();
        assert_eq!((log.events().len(), log.messages().len(), log.describe(1)), (2, 1, "B".to_owned()));
        let refused = |expression: &str, text: &str| {
            read_by("x.log", expression, text.as_bytes()).unwrap_err().to_string()
        };
        assert_eq!(
            refused(r"(?<host>\S+) (?<clock>{.*})", text),
            "x.log:1: the expression has no group (?<event>...)"
        );
        assert!(refused("(?<host", text).starts_with("x.log:1: the expression cannot be read"));
        assert_eq!(refused(expression, "nothing"), "x.log:1: the expression matches nothing");
        let broken = text.replace("\"b\":1,", "\"b\":,");
        assert!(
            refused(expression, &broken).starts_with("x.log:3: column 23: expected"),
            "{}",
            refused(expression, &broken)
        );
        let by_header = format!("(?<host>\\S+) says (?<event>.*) (?<clock>{{.*}})\n\n{}", &text[6..]);
        assert_eq!(
            read_by_header("x.log", by_header.lines().next().unwrap(), by_header.as_bytes())
                .unwrap()
                .events()
                .len(),
            2
        );
    }

    #[test]
    fn braces_that_repeat_nothing_mean_themselves() {
        for (expression, escaped) in [
            ("(?<clock>{.*})", "(?<clock>\\{.*\\})"),
            ("a{2,3}b{4}", "a{2,3}b{4}"),
            ("\\{x\\}", "\\{x\\}"),
            ("{", "\\{"),
            ("{2}", "{2}"),
        ] {
            assert_eq!(braces_escaped(expression), escaped);
        }
    }
}
