//! The events of a log of another program: clocks and texts in one piece each, for a log has millions; and what the
//! clocks say about messages.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use conclave_kernel::{NodeId, StepHead, Time};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Number;

use crate::log::{About, Builder, Cause, Log, Timescale};

/// The most hosts of a foreign log.
const MOST_HOSTS: usize = 1 << 16;

/// An event as it was read. Its clock and its text stand with those of all others.
struct Foreign {
    host: u32,
    clock: Range<usize>,
    text: Range<usize>,
    line: u64,
}

/// All events of a log.
#[derive(Default)]
pub(super) struct Events {
    hosts: Hosts,
    all: Vec<Foreign>,
    /// Sparse: (host, count), each clock in order of hosts.
    clocks: Vec<(u32, u32)>,
    texts: String,
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
    /// Which host was asked for last: the next is often the one after it.
    last: usize,
}

impl Hosts {
    fn number(&mut self, name: &str) -> Result<u32, String> {
        let next = self.last + 1;
        if self.names.get(next).is_some_and(|known| known == name) {
            self.last = next;
            return Ok(next as u32);
        }
        if let Some(number) = self.numbers.get(name) {
            self.last = *number as usize;
            return Ok(*number);
        }
        if self.names.len() == MOST_HOSTS {
            return Err(format!("more than {MOST_HOSTS} hosts"));
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        self.last = number as usize;
        Ok(number)
    }
}

/// The entries of a clock that is written as plainly as most are: no blanks, no escapes, whole counts. `None` if it is
/// not, and whoever reads all of JSON should look.
fn plain_entries(clock: &str) -> Option<impl Iterator<Item = (&str, u32)>> {
    let inside = clock.trim_end().strip_prefix('{')?.strip_suffix('}')?;
    let entries = || inside.split(',');
    entries().all(|text| plain_entry(text).is_some()).then(|| entries().filter_map(plain_entry))
}

/// `"name":3`.
fn plain_entry(entry: &str) -> Option<(&str, u32)> {
    // Names with commas and colons are cut apart, and then do not look plain.
    let (name, count) = entry.strip_prefix('"')?.split_once("\":")?;
    let is_plain = !name.bytes().any(|byte| matches!(byte, b'"' | b'\\') || byte.is_ascii_control());
    let digits = count.bytes().all(|byte| byte.is_ascii_digit()) && (count == "0" || !count.starts_with('0'));
    Some((name, count.parse().ok().filter(|_| is_plain && digits)?))
}

impl Events {
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
        let start = self.clocks.len();
        let own = match plain_entries(clock) {
            Some(entries) => {
                let own = self.hosts.number(host)?;
                for (name, count) in entries.filter(|(_, count)| *count > 0) {
                    self.clocks.push((self.hosts.number(name)?, count));
                }
                own
            }
            None => self.any_entries(host, clock, column)?,
        };
        let counts = &mut self.clocks[start..];
        counts.sort_unstable();
        if counts.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err("the clock names a host twice".to_owned());
        }
        let text_start = self.texts.len();
        self.texts.push_str(text);
        let (clock, text) = (start..self.clocks.len(), text_start..self.texts.len());
        let event = Foreign { host: own, clock, text, line: number };
        if self.knows(&event, own) == 0 {
            return Err(format!("the clock has no entry for {host}, whose event it is"));
        }
        self.all.push(event);
        Ok(())
    }

    /// Takes the entries of a clock in whatever JSON; the answer is the number of the event's host.
    fn any_entries(&mut self, host: &str, clock: &str, column: usize) -> Result<u32, String> {
        let clock: Clock<'_> = serde_json::from_str(clock)
            .map_err(|error| format!("column {}: {EXPECTED}", column + error.column().saturating_sub(1)))?;
        let own = self.hosts.number(host)?;
        for (name, count) in &clock.0 {
            let count = count.as_u64().and_then(|count| u32::try_from(count).ok());
            let count = count.ok_or_else(|| format!("the clock's entry for {name} is no count"))?;
            if count > 0 {
                self.clocks.push((self.hosts.number(name)?, count));
            }
        }
        Ok(own)
    }

    fn clock(&self, event: &Foreign) -> &[(u32, u32)] {
        &self.clocks[event.clock.clone()]
    }

    fn knows(&self, event: &Foreign, host: u32) -> u32 {
        let clock = self.clock(event);
        clock.binary_search_by_key(&host, |(known, _)| *known).map_or(0, |index| clock[index].1)
    }

    fn name(&self, host: u32) -> &str {
        &self.hosts.names[host as usize]
    }
}

/// Puts the events in an order that causality allows, and finds the messages between them.
pub(super) fn assemble(name: &str, mut events: Events) -> Result<Log, (u64, String)> {
    // What happened before has less knowledge, so the sum of its clock is smaller.
    let mut all = std::mem::take(&mut events.all);
    all.sort_by_cached_key(|event| {
        events.clock(event).iter().map(|(_, count)| u64::from(*count)).sum::<u64>()
    });
    events.all = all;
    let place = index_by_host(&events)?;
    let learnt = Learnt::of(&events, &place)?;
    let about = About { algorithm: name.to_owned(), timescale: Timescale::Logical, ..About::default() };
    let mut build = Builder::named(about, std::mem::take(&mut events.hosts.names));
    let nothing = build.text("");
    let mut stamps = vec![0_u64; events.all.len()];
    let mut last = vec![0_u64; place.len()];
    for (index, event) in events.all.iter().enumerate() {
        let host = event.host as usize;
        let heard = learnt.senders(index).iter().map(|sender| stamps[*sender as usize]).max().unwrap_or(0);
        stamps[index] = heard.max(last[host]) + 1;
        last[host] = stamps[index];
    }
    let mut order: Vec<usize> = (0..events.all.len()).collect();
    order.sort_by_key(|index| stamps[*index]);
    let (starts, slots) = learnt.by_sender();
    // The messages by which each event learns, as its senders stand in `learnt`; known once these are sent.
    let mut arriving = vec![0_u32; learnt.senders.len()];
    let mut sent = 0_u32;
    for index in order {
        let event = &events.all[index];
        let cause = Cause::Foreign(build.text(&events.texts[event.text.clone()]));
        let (at, node) = (Time(stamps[index]), NodeId(event.host));
        let head = StepHead { at, node, clock: at, stamp: at.0, received: None, first_sent: u64::from(sent) };
        let refuse = |what| (event.line, what);
        build.step(head, cause, None).map_err(refuse)?;
        // Senders come first, by their stamps.
        arriving[learnt.range(index)].iter().for_each(|message| build.also_receives(*message));
        for (receiver, slot) in &slots[starts[index]..starts[index + 1]] {
            build.send([NodeId(events.all[*receiver as usize].host)], nothing).map_err(refuse)?;
            arriving[*slot as usize] = sent;
            sent += 1;
        }
    }
    build.finish().map_err(|what| (1, what))
}

/// For every host, its events by their own count; these must be 1, 2, 3, ...
fn index_by_host(events: &Events) -> Result<Vec<Vec<u32>>, (u64, String)> {
    let mut place: Vec<Vec<u32>> = vec![Vec::new(); events.hosts.names.len()];
    for (index, event) in events.all.iter().enumerate() {
        let row = &mut place[event.host as usize];
        row.push(index as u32);
        let (own, expected) = (events.knows(event, event.host), row.len());
        if own as usize != expected {
            let host = events.name(event.host);
            let what = format!("{host} counts {own} where its event number {expected} should stand");
            return Err((event.line, what));
        }
    }
    Ok(place)
}

/// For every event, those of other hosts that it heard from.
struct Learnt {
    /// Where each event's senders begin, and where the last one's end.
    starts: Vec<usize>,
    senders: Vec<u32>,
}

impl Learnt {
    fn of(events: &Events, place: &[Vec<u32>]) -> Result<Self, (u64, String)> {
        let mut learnt = Self { starts: Vec::with_capacity(events.all.len() + 1), senders: Vec::new() };
        learnt.starts.push(0);
        let mut scratch = Scratch::default();
        for event in &events.all {
            learn(event, place, events, &mut scratch).map_err(|what| (event.line, what))?;
            learnt.senders.extend_from_slice(&scratch.direct);
            learnt.starts.push(learnt.senders.len());
        }
        Ok(learnt)
    }

    fn range(&self, event: usize) -> Range<usize> {
        self.starts[event]..self.starts[event + 1]
    }

    fn senders(&self, event: usize) -> &[u32] {
        &self.senders[self.range(event)]
    }

    /// The same from the senders' side: where each event's receivers begin; and those, each with the place at which the
    /// event stands among its senders.
    fn by_sender(&self) -> (Vec<usize>, Vec<(u32, u32)>) {
        let events = self.starts.len() - 1;
        let mut starts = vec![0_usize; events + 1];
        self.senders.iter().for_each(|sender| starts[*sender as usize + 1] += 1);
        for index in 0..events {
            starts[index + 1] += starts[index];
        }
        let mut next = starts.clone();
        let mut slots = vec![(0, 0); self.senders.len()];
        for receiver in 0..events {
            for slot in self.range(receiver) {
                let place = &mut next[self.senders[slot] as usize];
                slots[*place] = (receiver as u32, slot as u32);
                *place += 1;
            }
        }
        (starts, slots)
    }
}

/// What is needed while one event is looked at.
#[derive(Default)]
struct Scratch {
    news: Vec<u32>,
    direct: Vec<u32>,
    /// The most that anybody it heard from knows of each host of its clock.
    most: Vec<u32>,
}

/// The events of other hosts that an event heard from: the latest of each host that it newly knows of,
/// without those that another of them already knew.
fn learn(event: &Foreign, place: &[Vec<u32>], events: &Events, scratch: &mut Scratch) -> Result<(), String> {
    let Scratch { news, direct, most } = scratch;
    let clock = events.clock(event);
    let own = events.knows(event, event.host) as usize;
    let at = |index: u32| &events.all[index as usize];
    let before = own.checked_sub(2).map(|previous| at(place[event.host as usize][previous]));
    news.clear();
    for (host, count) in clock.iter().filter(|(host, _)| *host != event.host) {
        if *count > before.map_or(0, |before| events.knows(before, *host)) {
            let sender = place[*host as usize].get(*count as usize - 1).copied();
            news.push(sender.ok_or_else(|| {
                format!("knows of event {count} of {}, which is not in the log", events.name(*host))
            })?);
        }
    }
    direct.clear();
    direct.extend(news.iter().copied().filter(|old| {
        let old = at(*old);
        let count = events.knows(old, old.host);
        let known = |new: &Foreign| new.host != old.host && events.knows(new, old.host) >= count;
        !news.iter().any(|new| known(at(*new)))
    }));
    let ahead = |sender: &&Foreign| events.knows(sender, event.host) as usize >= own;
    if let Some(sender) = direct.iter().map(|sender| at(*sender)).find(ahead) {
        return Err(format!(
            "knows an event of {} that knows it: neither came first",
            events.name(sender.host)
        ));
    }
    // What it says it knows must be what it could have learnt: no more, no less.
    most.clear();
    most.resize(clock.len(), 0);
    let mut unknown = None;
    for teacher in before.into_iter().chain(direct.iter().map(|sender| at(*sender))) {
        let mut mine = 0;
        for (host, count) in events.clock(teacher) {
            mine += clock[mine..].iter().take_while(|(known, _)| known < host).count();
            match clock.get(mine) {
                Some((known, _)) if known == host => most[mine] = most[mine].max(*count),
                _ => _ = unknown.get_or_insert((*host, *count)),
            }
        }
    }
    for ((host, says), most) in clock.iter().zip(most) {
        if *host != event.host && says != most {
            return Err(format!("says {says} for {}, but its past says {most}", events.name(*host)));
        }
    }
    match unknown {
        Some((host, most)) => Err(format!("says 0 for {}, but its past says {most}", events.name(host))),
        None => Ok(()),
    }
}
