//! The events of a log of another program as they are read: clocks and texts in one piece each, for a log has
//! millions.
//!
//! Most clocks are written plainly, `{"a":1,"b":2}`, and are taken in one pass without a copy. A clock that is not
//! goes to a parser of all of JSON, which also says what is wrong with it: the two never disagree on what both read.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Number;

use crate::log::{About, Builder, Text, Timescale};

/// The most hosts of a foreign log.
const MOST_HOSTS: usize = 1 << 16;

/// An event as it was read. Its clock and its text stand with those of all others.
pub(super) struct Foreign {
    pub(super) host: u32,
    entries: u32,
    clock: usize,
    pub(super) text: Text,
    pub(super) line: u64,
}

/// All events of a log.
pub(super) struct Events {
    pub(super) all: Vec<Foreign>,
    pub(super) hosts: Vec<String>,
    pub(super) clocks: Clocks,
    /// Has the texts already.
    pub(super) build: Builder,
    numbers: Numbers,
}

/// The clocks of all events in one piece. Sparse: (host, count), each in order of hosts, no count 0.
#[derive(Default)]
pub(super) struct Clocks(Vec<(u32, u32)>);

impl Clocks {
    /// The clock of an event.
    pub(super) fn of(&self, event: &Foreign) -> &[(u32, u32)] {
        &self.0[event.clock..event.clock + event.entries as usize]
    }

    /// What an event knows of a host.
    pub(super) fn knows(&self, event: &Foreign, host: u32) -> u32 {
        knows(self.of(event), host)
    }
}

/// What a clock says of a host.
pub(super) fn knows(clock: &[(u32, u32)], host: u32) -> u32 {
    // An entry stands at most as far on as its host's number, and just there if the clock knows all hosts before it.
    match clock.get(host as usize) {
        Some((known, count)) if *known == host => *count,
        _ => clock.binary_search_by_key(&host, |(known, _)| *known).map_or(0, |index| clock[index].1),
    }
}

impl Events {
    /// None yet, of a log of that name.
    pub(super) fn new(name: &str) -> Self {
        let about = About { algorithm: name.to_owned(), timescale: Timescale::Logical, ..About::default() };
        Self {
            all: Vec::new(),
            hosts: Vec::new(),
            clocks: Clocks::default(),
            build: Builder::new(about, 0),
            numbers: Numbers { all: HashMap::new(), recent: [0; RECENT] },
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// An event whose host and clock share a line.
    pub(super) fn line(&mut self, line: &str, text: &str, number: u64) -> Result<(), String> {
        let (host, clock) = line.split_once(' ').ok_or_else(|| format!("column 1: {EXPECTED}"))?;
        self.event(host, clock, host.len() + 2, text, number)
    }

    /// An event; its clock begins at that column of that line.
    pub(super) fn event(
        &mut self,
        host: &str,
        clock: &str,
        column: usize,
        text: &str,
        number: u64,
    ) -> Result<(), String> {
        let start = self.clocks.0.len();
        let own = match self.plain_entries(host, clock) {
            Some(own) => own,
            None => {
                self.clocks.0.truncate(start);
                self.any_entries(host, clock, column)?
            }
        };
        self.add(own, start, text, number)
    }

    /// Adds the event of a host whose clock has been taken from `start` on.
    fn add(&mut self, own: u32, start: usize, text: &str, number: u64) -> Result<(), String> {
        let counts = &mut self.clocks.0[start..];
        counts.sort_unstable();
        if counts.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err("the clock names a host twice".to_owned());
        }
        if knows(counts, own) == 0 {
            let host = &self.hosts[own as usize];
            return Err(format!("the clock has no entry for {host}, whose event it is"));
        }
        let entries = u32::try_from(counts.len()).expect("no host stands there twice, and hosts are bounded");
        let text = self.build.text(text);
        self.all.push(Foreign { host: own, entries, clock: start, text, line: number });
        Ok(())
    }

    /// Takes the entries of a clock that is written as plainly as most are: no blanks, no escapes, whole counts. The
    /// answer is the number of the event's host; `None` if the clock is not plain, and whoever reads all of JSON should
    /// look.
    fn plain_entries(&mut self, host: &str, clock: &str) -> Option<u32> {
        let own = self.host(host).ok()?;
        let mut rest = clock.trim_end().strip_prefix('{')?;
        loop {
            let (name, count, tail) = plain_entry(rest)?;
            if count > 0 {
                let host = self.host(name).ok()?;
                self.clocks.0.push((host, count));
            }
            match tail.as_bytes() {
                [b',', ..] => rest = &tail[1..],
                [b'}'] => return Some(own),
                _ => return None,
            }
        }
    }

    /// Takes the entries of a clock in whatever JSON; the answer is the number of the event's host.
    fn any_entries(&mut self, host: &str, clock: &str, column: usize) -> Result<u32, String> {
        let clock: Clock<'_> = serde_json::from_str(clock)
            .map_err(|error| format!("column {}: {EXPECTED}", column + error.column().saturating_sub(1)))?;
        let own = self.host(host)?;
        for (name, count) in &clock.0 {
            let count = count.as_u64().and_then(|count| u32::try_from(count).ok());
            let count = count.ok_or_else(|| format!("the clock's entry for {name} is no count"))?;
            if count > 0 {
                let host = self.host(name)?;
                self.clocks.0.push((host, count));
            }
        }
        Ok(own)
    }

    fn host(&mut self, name: &str) -> Result<u32, String> {
        self.numbers.of(name, &mut self.hosts)
    }
}

const EXPECTED: &str = "expected a host and its vector clock, such as n0 {\"n0\":1}";

/// `"name":3`, and what follows it.
fn plain_entry(text: &str) -> Option<(&str, u32, &str)> {
    let text = text.strip_prefix('"')?;
    let is_end = |byte: &u8| matches!(byte, b'"' | b'\\') || byte.is_ascii_control();
    let end = text.bytes().position(|byte| is_end(&byte))?;
    let (name, rest) = (&text[..end], text[end..].strip_prefix("\":")?);
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (count, rest) = rest.split_at(digits);
    let is_plain = count == "0" || !count.starts_with('0');
    Some((name, count.parse().ok().filter(|_| is_plain)?, rest))
}

/// The hosts' numbers, in order of appearance.
struct Numbers {
    all: HashMap<String, u32>,
    /// Numbers given last, each at the place of a cheap hash of its name: every clock names the same few hosts again.
    recent: [u32; RECENT],
}

const RECENT: usize = 1 << 8;

impl Numbers {
    fn of(&mut self, name: &str, names: &mut Vec<String>) -> Result<u32, String> {
        let hash = name.bytes().fold(0_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let recent = &mut self.recent[hash % RECENT];
        if names.get(*recent as usize).is_some_and(|known| known == name) {
            return Ok(*recent);
        }
        *recent = match self.all.get(name) {
            Some(number) => *number,
            None if names.len() == MOST_HOSTS => return Err(format!("more than {MOST_HOSTS} hosts")),
            None => {
                let number = names.len() as u32;
                names.push(name.to_owned());
                self.all.insert(name.to_owned(), number);
                number
            }
        };
        Ok(*recent)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::assemble::assemble;
    use super::*;

    /// Clocks as programs write them, and as they should not.
    fn any_clock() -> impl Strategy<Value = String> {
        let name = prop::sample::select(vec![
            "\"a\"",
            "\"b\"",
            "\"c\"",
            "\"a\"",
            "\"b\"",
            "\"n10\"",
            "\"\"",
            "\"\u{e9}\"",
            "\"x,y\"",
            "\"x:y\"",
            "\"\\u0061\"",
            "\"\\\"\"",
            "\"\t\"",
            "\"\u{7f}\"",
            "a",
            " \"a\"",
            "\"a\" ",
        ]);
        let count = prop::sample::select(vec![
            "1",
            "2",
            "3",
            "1",
            "2",
            "0",
            "00",
            "01",
            "-1",
            "+1",
            "1.0",
            "1e2",
            "",
            " 2",
            "4294967295",
            "4294967296",
            "99999999999999999999",
            "\"1\"",
            "null",
        ]);
        let between = prop::sample::select(vec![",", ",", ",", ",", ", ", ",,", "", ";"]);
        let begin = prop::sample::select(vec!["{", "{", "{", "{", "{ ", " {", "[", ""]);
        let end = prop::sample::select(vec!["}", "}", "}", "}", "} ", "}}", "}x", ",}", ""]);
        let entries = prop::collection::vec((name, count, between), 0..4);
        (begin, entries, end).prop_map(|(begin, entries, end)| {
            let mut clock = begin.to_owned();
            for (nth, (name, count, between)) in entries.iter().enumerate() {
                let between = if nth == 0 { "" } else { between };
                clock += &format!("{between}{name}:{count}");
            }
            clock + end
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// The reader of plain clocks against the one of all JSON alone.
        #[test]
        fn a_plain_clock_is_read_as_json_reads_it(
            log in prop::collection::vec((prop::sample::select(vec!["a", "b", "\u{e9}"]), any_clock()), 1..6),
        ) {
            let (mut plainly, mut as_json) = (Events::new("t"), Events::new("t"));
            for (number, (host, clock)) in (1..).zip(&log) {
                let plain = plainly.event(host, clock, 3, "text", number);
                let start = as_json.clocks.0.len();
                let json = as_json.any_entries(host, clock, 3);
                let json = json.and_then(|own| as_json.add(own, start, "text", number));
                prop_assert_eq!(&plain, &json, "{}", clock);
                if plain.is_err() {
                    return Ok(());
                }
                prop_assert_eq!(&plainly.hosts, &as_json.hosts, "{}", clock);
                prop_assert_eq!(&plainly.clocks.0, &as_json.clocks.0, "{}", clock);
            }
            prop_assert_eq!(assemble(plainly), assemble(as_json));
        }
    }

    #[test]
    fn clocks_that_are_plain_need_no_parser_of_json() {
        let mut events = Events::new("t");
        for clock in ["{\"a\":1}", "{\"b\":4294967295,\"a\":0}", "{\"x,y\":10} "] {
            assert_eq!(events.plain_entries("a", clock), Some(0), "{clock}");
        }
        assert_eq!(events.clocks.0, [(0, 1), (1, u32::MAX), (2, 10)]);
        for clock in ["{}", "{\"a\":01}", "{\"a\":4294967296}", "{\"\\u0061\":1}", "{\"a\": 1}", "{\"a\":1"] {
            assert_eq!(events.plain_entries("a", clock), None, "{clock}");
        }
    }
}
