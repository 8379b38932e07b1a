//! What the clocks of a foreign log say: an order that causality allows, and the messages between its events.
//!
//! The clocks are dropped as soon as the messages are known: they are the larger part of what was read.

use std::ops::Range;

use conclave_kernel::{NodeId, StepHead, Time};

use super::events::{Clocks, Events, Foreign, knows};
use crate::log::{Cause, Log};

/// Puts the events in an order that causality allows, and finds the messages between them. An error comes with its
/// line.
pub(super) fn assemble(events: Events) -> Result<Log, (u64, String)> {
    let Events { all, hosts, clocks, mut build, .. } = events;
    let known = Known::new(&all, &hosts, &clocks)?;
    let learnt = Learnt::of(&known)?;
    let order = known.order;
    drop(clocks);
    let at = |position: usize| &all[order[position] as usize];
    let mut stamps = vec![0_u64; all.len()];
    let mut last = vec![0_u64; hosts.len()];
    for position in 0..all.len() {
        let host = at(position).host as usize;
        let heard = learnt.senders(position).iter().map(|sender| stamps[*sender as usize]).max().unwrap_or(0);
        stamps[position] = heard.max(last[host]) + 1;
        last[host] = stamps[position];
    }
    let (starts, slots) = learnt.by_sender();
    // The messages by which each event learns, as its senders stand in `learnt`; known once these are sent.
    let mut arriving = vec![0_u32; learnt.senders.len()];
    build.name_sites(hosts);
    build.reserve(all.len(), learnt.senders.len());
    let nothing = build.text("");
    let mut sent = 0_u32;
    let mut numbers = Vec::with_capacity(all.len());
    for position in in_order_of(&stamps) {
        let position = position as usize;
        let event = at(position);
        numbers.push(order[position]);
        let (time, node) = (Time(stamps[position]), NodeId(event.host));
        let first_sent = u64::from(sent);
        let head = StepHead { at: time, node, clock: time, stamp: time.0, received: None, first_sent };
        let refuse = |what| (event.line, what);
        build.step(head, Cause::Foreign(event.text), None).map_err(refuse)?;
        // Senders come first, by their stamps.
        arriving[learnt.range(position)].iter().for_each(|message| build.also_receives(*message));
        for (receiver, slot) in &slots[starts[position]..starts[position + 1]] {
            build.send([NodeId(at(*receiver as usize).host)], nothing).map_err(refuse)?;
            arriving[*slot as usize] = sent;
            sent += 1;
        }
    }
    build.number_events(numbers);
    build.finish().map_err(|what| (1, what))
}

/// The indices of keys in the order of these; of equal ones, the first comes first.
fn in_order_of(keys: &[u64]) -> Vec<u32> {
    let most = keys.iter().copied().max().unwrap_or(0);
    // No event of a sound log has more events in its past than there are, so that keys can be counted.
    let Some(most) = usize::try_from(most).ok().filter(|most| *most <= keys.len()) else {
        let mut order: Vec<u32> = (0..keys.len() as u32).collect();
        order.sort_by_key(|index| keys[*index as usize]);
        return order;
    };
    let mut next = vec![0_u32; most + 2];
    keys.iter().for_each(|key| next[*key as usize + 1] += 1);
    for key in 0..=most {
        next[key + 1] += next[key];
    }
    let mut order = vec![0; keys.len()];
    for (index, key) in keys.iter().enumerate() {
        let place = &mut next[*key as usize];
        order[*place as usize] = index as u32;
        *place += 1;
    }
    order
}

/// All events in an order that causality allows. What stands at a place of it is named by its position.
struct Known<'a> {
    all: &'a [Foreign],
    hosts: &'a [String],
    clocks: &'a Clocks,
    order: Vec<u32>,
    /// For every host, the positions of its events.
    of_host: Vec<Vec<u32>>,
}

impl<'a> Known<'a> {
    /// A host's own counts must be 1, 2, 3, ...
    fn new(all: &'a [Foreign], hosts: &'a [String], clocks: &'a Clocks) -> Result<Self, (u64, String)> {
        // What happened before has less knowledge, so the sum of its clock is smaller.
        let sum = |event| clocks.of(event).iter().map(|(_, count)| u64::from(*count)).sum();
        let order = in_order_of(&all.iter().map(sum).collect::<Vec<_>>());
        let mut of_host: Vec<Vec<u32>> = vec![Vec::new(); hosts.len()];
        for (position, index) in order.iter().enumerate() {
            let event = &all[*index as usize];
            let row = &mut of_host[event.host as usize];
            row.push(position as u32);
            let (own, expected) = (clocks.knows(event, event.host), row.len());
            if own as usize != expected {
                let host = &hosts[event.host as usize];
                let what =
                    format!("the clock of {host} counts {own}, but this is its event number {expected}");
                return Err((event.line, what));
            }
        }
        Ok(Self { all, hosts, clocks, order, of_host })
    }

    fn at(&self, position: u32) -> &'a Foreign {
        &self.all[self.order[position as usize] as usize]
    }

    fn name(&self, host: u32) -> &str {
        &self.hosts[host as usize]
    }
}

/// For every event, those of other hosts that it heard from.
struct Learnt {
    /// Where each event's senders begin, and where the last one's end.
    starts: Vec<usize>,
    senders: Vec<u32>,
}

impl Learnt {
    fn of(known: &Known<'_>) -> Result<Self, (u64, String)> {
        let mut learnt = Self { starts: Vec::with_capacity(known.all.len() + 1), senders: Vec::new() };
        learnt.starts.push(0);
        let mut scratch = Scratch::default();
        for index in &known.order {
            let event = &known.all[*index as usize];
            learn(event, known, &mut scratch).map_err(|what| (event.line, what))?;
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
fn learn(event: &Foreign, known: &Known<'_>, scratch: &mut Scratch) -> Result<(), String> {
    let Scratch { news, direct, most } = scratch;
    let clocks = known.clocks;
    let clock = clocks.of(event);
    let own = knows(clock, event.host) as usize;
    let at = |position: u32| known.at(position);
    let before = own.checked_sub(2).map(|previous| at(known.of_host[event.host as usize][previous]));
    let knew = before.map_or(&[][..], |before| clocks.of(before));
    news.clear();
    for (host, count) in clock.iter().filter(|(host, _)| *host != event.host) {
        if *count > knows(knew, *host) {
            let sender = known.of_host[*host as usize].get(*count as usize - 1).copied();
            news.push(sender.ok_or_else(|| {
                format!("the clock names event {count} of {}, which is not in the log", known.name(*host))
            })?);
        }
    }
    direct.clear();
    direct.extend(news.iter().copied().filter(|old| {
        let old = at(*old);
        let count = clocks.knows(old, old.host);
        let covers = |new: &Foreign| new.host != old.host && clocks.knows(new, old.host) >= count;
        !news.iter().any(|new| covers(at(*new)))
    }));
    let ahead = |sender: &&Foreign| clocks.knows(sender, event.host) as usize >= own;
    if let Some(sender) = direct.iter().map(|sender| at(*sender)).find(ahead) {
        return Err(format!(
            "this event and an event of {} name each other, so neither can be first",
            known.name(sender.host)
        ));
    }
    // What it says it knows must be what it could have learnt: no more, no less.
    most.clear();
    most.resize(clock.len(), 0);
    let mut unknown = None;
    for teacher in before.into_iter().chain(direct.iter().map(|sender| at(*sender))) {
        let mut mine = 0;
        for (host, count) in clocks.of(teacher) {
            mine += clock[mine..].iter().take_while(|(known, _)| known < host).count();
            match clock.get(mine) {
                Some((known, _)) if known == host => most[mine] = most[mine].max(*count),
                _ => _ = unknown.get_or_insert((*host, *count)),
            }
        }
    }
    for ((host, says), most) in clock.iter().zip(most) {
        if *host != event.host && says != most {
            return Err(format!(
                "the clock has {says} for {}, but the events before it give {most}",
                known.name(*host)
            ));
        }
    }
    match unknown {
        Some((host, most)) => {
            Err(format!("the clock has 0 for {}, but the events before it give {most}", known.name(host)))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counted_keys_are_in_the_order_of_sorted_ones(keys in prop::collection::vec(0_u64..12, 0..40)) {
            let mut sorted: Vec<u32> = (0..keys.len() as u32).collect();
            sorted.sort_by_key(|index| keys[*index as usize]);
            prop_assert_eq!(in_order_of(&keys), sorted);
        }
    }
}
