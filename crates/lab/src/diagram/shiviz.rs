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

mod assemble;
mod events;

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io::{BufRead, Read as _};

use conclave_kernel::NodeId;
use regex::RegexBuilder;
use serde_json::Value;

use crate::log::{Causality, Error, Lines, Log};
use assemble::assemble;
use events::Events;

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
    let mut events = Events::new(name);
    let mut order = None;
    let mut first = true;
    // Two lines make an event. Both are used again and again: a log has millions.
    let (mut line, mut other, mut is_held) = (String::new(), String::new(), false);
    while let Some(read) = lines.next_or_blank()? {
        line.clear();
        line.push_str(read.trim());
        if std::mem::take(&mut first) && line.starts_with("(?<") {
            order = Some(order_of_header(&line).map_err(|what| lines.error(what))?);
            if lines.next_or_blank()?.is_some_and(|line| !line.trim().is_empty()) {
                return Err(lines
                    .error("a log of several executions: expected a blank second line, and one execution"));
            }
            continue;
        }
        if line.is_empty() && !is_held {
            continue;
        }
        let order =
            *order.get_or_insert_with(|| if is_clock(&line) { Order::ClockFirst } else { Order::TextFirst });
        is_held = !is_held;
        if is_held {
            std::mem::swap(&mut line, &mut other);
            continue;
        }
        let first = order == Order::ClockFirst;
        let (clock, text) = if first { (&other, &line) } else { (&line, &other) };
        let number = lines.number() - u64::from(first);
        if events.len() == MOST_EVENTS {
            return Err(lines.error(format!("more than {MOST_EVENTS} events")));
        }
        let event = events.line(clock, text, number);
        event.map_err(|what| Error { file: name.to_owned(), line: number, what })?;
    }
    if is_held {
        return Err(
            lines.error("the last event is cut off: expected a line with the clock and a line of text")
        );
    }
    if events.len() == 0 {
        return Err(lines.error("no events: not a ShiViz log"));
    }
    assemble(events).map_err(|(line, what)| Error { file: name.to_owned(), line, what })
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
    let mut events = Events::new(name);
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
        events.event(host, clock, column, event, line).map_err(|what| refuse(line, what))?;
    }
    if events.len() == 0 {
        return Err(refuse(1, "the expression matches nothing".to_owned()));
    }
    assemble(events).map_err(|(line, what)| refuse(line, what))
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

/// The most events of a foreign log.
const MOST_EVENTS: usize = 1 << 24;

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
        _ => Err("the expression on the first line is unknown: give the expression with --format"),
    }
}

fn is_clock(line: &str) -> bool {
    line.split_once(' ').is_some_and(|(_, clock)| {
        let clock = clock.trim();
        clock.starts_with('{') && clock.ends_with('}')
    })
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
        assert_eq!(
            refused("a {\"a\":2}\nA\n"),
            "x.log:1: the clock of a counts 2, but this is its event number 1"
        );
        assert_eq!(refused("a {\"b\":1}\nA\n"), "x.log:1: the clock has no entry for a, whose event it is");
        assert_eq!(refused("a {\"a\":-1}\nA\n"), "x.log:1: the clock's entry for a is no count");
        assert_eq!(
            refused("a {\"a\":1,\"b\":4}\nA\nb {\"b\":1}\nB\n"),
            "x.log:1: the clock names event 4 of b, which is not in the log"
        );
        assert_eq!(
            refused("a {\"a\":1}\nA\nb {\"b\":1,\"a\":1}\nB\nb {\"b\":2}\nB2\n"),
            "x.log:5: the clock has 0 for a, but the events before it give 1"
        );
        assert_eq!(refused("a {\"a\":1,\"a\":1}\nA\n"), "x.log:1: the clock names a host twice");
        assert!(refused("a {\"a\":1}\nA\na {\"a\":2}\n").contains("the last event is cut off"));
        assert!(refused("(?<date>.*)\n\n").contains("the expression on the first line is unknown"));
        assert!(refused(&format!("{HEADER}\n=== (?<trace>.*)\n")).contains("several executions"));
        assert_eq!(
            refused("a {\"a\":1,\"b\":1}\nA\nb {\"b\":1,\"a\":1}\nB\n"),
            "x.log:1: this event and an event of b name each other, so neither can be first"
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
    fn the_usual_expression_says_the_same_compiled_and_known() {
        let text = write(&testing::ricart_agrawala(4, 20)).unwrap();
        let known = read("run", text.as_bytes()).unwrap();
        assert_eq!(read_by_header("run", HEADER, text.as_bytes()).unwrap(), known);
        // Hosts one after the other, as they come out of one file a host.
        let events: Vec<_> = text.lines().skip(2).collect();
        let mut by_host: Vec<_> = events.chunks_exact(2).map(|event| event.join("\n")).collect();
        by_host.sort_by_key(|event| event[..2].to_owned());
        let by_host = by_host.join("\n");
        let known = read("run", by_host.as_bytes()).unwrap();
        assert_eq!(read_by("run", HEADER, by_host.as_bytes()).unwrap(), known);
        assert_eq!(known.events().len(), events.len() / 2);
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
