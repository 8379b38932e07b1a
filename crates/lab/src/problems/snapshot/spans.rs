//! The cuts of a snapshot's space-time diagram, and the window that contains the whole snapshot.

use std::collections::BTreeMap;

use conclave_kernel::Time;
use serde_json::Value;

use crate::diagram::spacetime::{Cut, Options};
use crate::log::Log;

/// The most messages in the window of a snapshot.
const MOST_MESSAGES: usize = 400;

/// The options for a run of the snapshot problem: the cut of its first snapshot, and a window from shortly
/// before the first recording until the last site has its whole snapshot.
pub(crate) fn options(log: &Log) -> Options {
    let Some((number, taken)) = snapshots(log).into_iter().next() else { return Options::default() };
    let times: Vec<Time> =
        taken.recorded.iter().chain(&taken.done).map(|event| log.events()[*event].at).collect();
    let (first, last) = (times.iter().min().copied().unwrap_or_default(), times.iter().max().copied());
    let last = last.unwrap_or_default();
    let margin = (last.0 - first.0) / 8;
    let from = Time(first.0.saturating_sub(margin));
    Options {
        from,
        until: Some(Time(last.0.saturating_add(margin))),
        most_messages: Some(MOST_MESSAGES),
        cuts: vec![taken.cut(log, number)],
        ..Options::default()
    }
}

/// The steps of a run that belong to one snapshot.
#[derive(Default)]
struct Taken {
    /// The steps in which sites recorded their states.
    recorded: Vec<usize>,
    /// The steps in which sites completed the snapshot.
    done: Vec<usize>,
    /// The complete snapshot as JSON.
    picture: Value,
}

/// The snapshots of a run by their numbers, from the names of its events.
fn snapshots(log: &Log) -> BTreeMap<u64, Taken> {
    let mut snapshots: BTreeMap<u64, Taken> = BTreeMap::new();
    for event in 0..log.events().len() {
        for emitted in log.emitted(event) {
            let kind = log.kind(*emitted);
            if kind != "recorded" && kind != "complete" {
                continue;
            }
            let Ok(mut value) = serde_json::from_str::<Value>(log.raw(*emitted)) else { continue };
            let content = value[kind].take();
            let number = content.as_u64().or_else(|| content["id"].as_u64()).unwrap_or_default();
            let taken = snapshots.entry(number).or_default();
            if kind == "recorded" {
                taken.recorded.push(event);
            } else {
                taken.done.push(event);
                taken.picture = content;
            }
        }
    }
    snapshots
}

impl Taken {
    fn cut(&self, log: &Log, number: u64) -> Cut {
        let empty = Vec::new();
        let parts = self.picture["parts"].as_array().unwrap_or(&empty);
        let state_of = |event: usize| {
            let site = log.events()[event].site;
            parts.get(site.index()).map_or("?".to_owned(), |part| state(&part["state"]))
        };
        let mut points: Vec<_> = self.recorded.iter().map(|event| (*event, state_of(*event))).collect();
        points.sort_by_key(|(event, _)| log.events()[*event].site);
        let name = format!("snapshot {number}");
        let summary = match parts.is_empty() {
            true => vec![format!("{name} is not complete")],
            false => summary(log, &name, parts),
        };
        Cut { name, points, summary }
    }
}

/// The recorded state of an application in a few words.
fn state(state: &Value) -> String {
    match state {
        Value::Object(fields) if fields.len() == 1 => fields.values().map(Value::to_string).collect(),
        Value::Object(fields) => {
            let size = |value: &Value| match value {
                Value::Array(items) => items.len().to_string(),
                other => other.to_string(),
            };
            fields
                .iter()
                .map(|(name, value)| format!("{name} {}", size(value)))
                .collect::<Vec<_>>()
                .join(", ")
        }
        other => other.to_string(),
    }
}

/// The recorded global state in text: the states of the sites, the contents of the channels, and the sum.
fn summary(log: &Log, name: &str, parts: &[Value]) -> Vec<String> {
    let channels = channels(parts);
    let balance = |part: &Value| part["state"]["balance"].as_u64();
    let balances: Option<Vec<u64>> = parts.iter().map(balance).collect();
    let site = |site: usize| log.name(conclave_kernel::NodeId(site as u32));
    let Some(balances) = balances else {
        let states = parts.iter().enumerate();
        let states: Vec<_> =
            states.map(|(at, part)| format!("{} {}", site(at), state(&part["state"]))).collect();
        let channels: Vec<_> = channels
            .iter()
            .map(|((from, to), messages)| format!("{} to {}: {}", site(*from), site(*to), messages.len()))
            .collect();
        let in_transit = if channels.is_empty() { "none".to_owned() } else { channels.join(", ") };
        return vec![format!("{name}: {}", states.join("; ")), format!("messages in transit: {in_transit}")];
    };
    let content = |from: usize, to: usize| -> u64 {
        channels.get(&(from, to)).map_or(0, |messages| messages.iter().filter_map(Value::as_u64).sum())
    };
    let in_transit: u64 = channels.keys().map(|(from, to)| content(*from, *to)).sum();
    let sum = balances.iter().sum::<u64>() + in_transit;
    let expected = match expected_sum(log) {
        Some(expected) if expected == sum => ", as expected".to_owned(),
        Some(expected) => format!(", but the sum must be {expected}"),
        None => String::new(),
    };
    if let [a, b] = balances[..] {
        let (c12, c21) = (content(0, 1), content(1, 0));
        return vec![format!("{name}: (A, B, C12, C21) = ({a}, {b}, {c12}, {c21}), sum {sum}{expected}")];
    }
    let states: Vec<_> =
        balances.iter().enumerate().map(|(at, balance)| format!("{} {balance}", site(at))).collect();
    let contents: Vec<_> = channels
        .keys()
        .map(|(from, to)| format!("{} to {}: {}", site(*from), site(*to), content(*from, *to)))
        .collect();
    let contents = if contents.is_empty() { "all empty".to_owned() } else { contents.join(", ") };
    vec![
        format!("{name}: balances {}; sum with the channels {sum}{expected}", states.join(", ")),
        format!("channels: {contents}"),
    ]
}

/// The recorded channels that are not empty, by sender and receiver.
fn channels(parts: &[Value]) -> BTreeMap<(usize, usize), &Vec<Value>> {
    let mut channels = BTreeMap::new();
    for (to, part) in parts.iter().enumerate() {
        for channel in part["channels"].as_array().into_iter().flatten() {
            let from = channel["from"].as_u64().unwrap_or_default() as usize;
            if let Some(messages) = channel["messages"].as_array().filter(|messages| !messages.is_empty()) {
                channels.insert((from, to), messages);
            }
        }
    }
    channels
}

/// The conserved sum of the bank, from the scenario of the run.
fn expected_sum(log: &Log) -> Option<u64> {
    let scenario: Value = serde_json::from_str(&log.about.scenario).ok()?;
    let balance = scenario["work"]["balance"].as_u64()?;
    balance.checked_mul(u64::from(log.sites()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Recorder;
    use crate::problems::snapshot::Scenario;

    fn options_of(nodes: u32, algorithm: &str) -> (Log, Options) {
        let mut scenario = Scenario::of(algorithm);
        scenario.world.nodes = nodes;
        let mut recorder = Recorder::new(false, true);
        scenario.run(&mut recorder).expect("the scenario is valid");
        let log = recorder.log.expect("it was wanted");
        let options = options(&log);
        (log, options)
    }

    #[test]
    fn the_window_contains_every_recording_and_every_completion() {
        for algorithm in ["chandy-lamport", "lai-yang"] {
            let (log, options) = options_of(3, algorithm);
            let taken = &snapshots(&log)[&1];
            assert_eq!((taken.recorded.len(), taken.done.len()), (3, 3));
            let is_inside = |event: &usize| {
                let at = log.events()[*event].at;
                options.from <= at && options.until.is_some_and(|until| at <= until)
            };
            assert!(taken.recorded.iter().chain(&taken.done).all(is_inside));
        }
    }

    #[test]
    fn a_bank_of_two_is_summed_as_balances_and_channels() {
        let (_, options) = options_of(2, "chandy-lamport");
        let [line] = &options.cuts[0].summary[..] else { panic!("{:?}", options.cuts) };
        assert!(line.starts_with("snapshot 1: (A, B, C12, C21) = ("), "{line}");
        assert!(line.ends_with("), sum 400, as expected"), "{line}");
    }

    #[test]
    fn a_bank_of_three_names_its_balances_and_channels() {
        let (_, options) = options_of(3, "chandy-lamport");
        let summary = &options.cuts[0].summary;
        assert!(summary[0].ends_with("sum with the channels 600, as expected"), "{summary:?}");
        assert!(summary[1].starts_with("channels: "), "{summary:?}");
    }
}
