//! The output of `conclave trace`, as text and as JSON.

use std::fmt::Write as _;

use conclave_kernel::NodeId;
use conclave_lab::log::{Log, Relation};
use serde_json::{Value, json};

use super::{Answer, JudgedCut};
use crate::output::Paint;

/// Formats the analysis as text.
pub fn text(log: &Log, answer: &Answer, most: usize) -> String {
    let paint = Paint::stdout();
    let mut text = format!("{}\n\n", paint.bold(&log.about.algorithm));
    let mut line = |name: &str, value: String| _ = writeln!(text, "  {name:<22}{value}");
    let (events, order) = (log.events().len(), &answer.order);
    line("sites", sites(log));
    line("events", events.to_string());
    let inferred = if log.has_inferred_messages() { ", derived from the clocks" } else { "" };
    line("messages", format!("{}{inferred}", log.messages().len()));
    let pairs = order.ordered_pairs + order.concurrent_pairs;
    let share = if pairs == 0 { 0.0 } else { order.concurrent_pairs as f64 * 100.0 / pairs as f64 };
    line("concurrent pairs", format!("{} of {pairs} ({share:.1}%)", order.concurrent_pairs));
    for (one, other) in &order.concurrent_sample {
        line("", format!("{} || {}", name(log, *one), name(log, *other)));
    }
    line("longest causal chain", format!("{} events", order.longest_chain.len()));
    list(&mut text, log, &order.longest_chain, most);
    for (one, other, relation) in &answer.relations {
        _ = writeln!(
            text,
            "\n{}  {}\n",
            paint.bold("relation"),
            in_words(*relation, &name(log, *one), &name(log, *other))
        );
        for event in [one, other] {
            let past = conclave_lab::log::Past::of(log, *event);
            let (lamport, vector) = (past.lamport(log), shortened(&past.vector(log)));
            _ = writeln!(text, "  {}  Lamport {lamport}, vector {vector}", described(log, *event));
        }
    }
    if let Some((event, past)) = &answer.past {
        let events: Vec<_> = past.events().collect();
        let (title, name) = (paint.bold("causal past"), name(log, *event));
        _ = writeln!(
            text,
            "\n{title}  of {name}: {} events, vector {}\n",
            events.len(),
            shortened(&past.vector(log))
        );
        list(&mut text, log, &events, most);
    }
    answer.cuts.iter().for_each(|judged| cut(&mut text, log, judged, most, paint));
    text
}

/// How many sites there are, and the number and name of each if the log has names of its own.
fn sites(log: &Log) -> String {
    let count = log.sites();
    if !log.has_names() {
        return count.to_string();
    }
    let named = (0..count.min(MOST_LISTED)).map(|site| format!("{site} = {}", log.name(NodeId(site))));
    let more = if count > MOST_LISTED { ", ... (--json lists more)" } else { "" };
    format!("{count}: {}{more}", named.collect::<Vec<_>>().join(", "))
}

/// The largest number of sites that the text lists by name.
pub const MOST_LISTED: u32 = 40;

/// The verdict on a cut. A log without messages cannot show that no message is on its way.
fn verdict(log: &Log, judged: &JudgedCut) -> String {
    match (log.has_inferred_messages(), judged.judgement.is_consistent()) {
        (false, _) => judged.judgement.to_string(),
        (true, true) => "consistent".to_owned(),
        (true, false) => "inconsistent".to_owned(),
    }
}

/// Whether no message is on its way across the cut; `None` if the log cannot tell.
fn is_transitless(log: &Log, judged: &JudgedCut) -> Option<bool> {
    let seen = judged.judgement.is_transitless();
    (!seen || !log.has_inferred_messages()).then_some(seen)
}

fn cut(text: &mut String, log: &Log, judged: &JudgedCut, most: usize, paint: Paint) {
    let verdict = verdict(log, judged);
    let verdict = if judged.judgement.is_consistent() { paint.good(&verdict) } else { paint.bad(&verdict) };
    let title = judged.snapshot.as_ref().map_or("cut".to_owned(), |(id, ..)| format!("snapshot {id}, cut"));
    _ = writeln!(text, "\n{} {}  {verdict}\n", paint.bold(&title), judged.cut);
    let limit = if most == 0 { usize::MAX } else { most };
    for (messages, what) in
        [(&judged.judgement.orphans, "received but not sent"), (&judged.judgement.in_transit, "on its way")]
    {
        for index in messages.iter().take(limit) {
            _ = writeln!(text, "  {what:<22}  {}", message(log, judged.messages[*index]));
        }
        if messages.len() > limit {
            _ = writeln!(text, "  and {} more", messages.len() - limit);
        }
    }
    if log.has_inferred_messages() {
        let more = if judged.judgement.is_transitless() { "" } else { "more " };
        _ = writeln!(
            text,
            "  not known: whether {more}messages are in transit. This log has clocks and no messages: those derived from\n  \
             the clocks lack every message that no site received, and every one without a new clock value.",
        );
    }
    if let Some(inside) = &judged.inside {
        _ = writeln!(text, "  the largest consistent cut inside it is {inside}");
    }
    if let Some((_, order, length)) = judged.snapshot.as_ref().filter(|_| judged.judgement.is_consistent()) {
        let moved = order.iter().enumerate().filter(|(place, event)| *place != **event).count();
        _ = writeln!(
            text,
            "\n  the equivalent execution that passes through it ({moved} of {} events moved):\n",
            order.len()
        );
        list(text, log, &order[..*length], most);
        _ = writeln!(text, "  {}", paint.bold("---- the recorded state ----"));
        list(text, log, &order[*length..], most);
    }
}

fn message(log: &Log, index: usize) -> String {
    let message = &log.messages()[index];
    let words = log.short(message.text);
    let sent = format!("sent by {}", name(log, message.sent_by as usize));
    let received = match message.fate {
        conclave_lab::log::Fate::Received(event) => format!("received by {}", name(log, event as usize)),
        _ => "never received".to_owned(),
    };
    format!("{words} {}->{}: {sent}, {received}", log.name(message.from), log.name(message.to))
}

fn list(text: &mut String, log: &Log, events: &[usize], most: usize) {
    // Of a long list the beginning and the end say most.
    let limit = if most == 0 { usize::MAX } else { most };
    let head = if events.len() > limit { limit / 2 } else { events.len() };
    let tail = events.len().min(limit) - head;
    events[..head].iter().for_each(|event| _ = writeln!(text, "    {}", described(log, *event)));
    if head + tail < events.len() {
        _ = writeln!(text, "    ... {} more ...", events.len() - head - tail);
    }
    events[events.len() - tail..]
        .iter()
        .for_each(|event| _ = writeln!(text, "    {}", described(log, *event)));
}

/// `#12 n0 is asked to acquire`.
fn described(log: &Log, event: usize) -> String {
    const MOST: usize = 120;
    let mut words = log.describe(event);
    if let Some((cut, _)) = words.char_indices().nth(MOST) {
        words.truncate(cut);
        words.push('…');
    }
    format!("#{:<6} {}  {words}", log.number(event), log.name(log.events()[event].site))
}

/// `#12 (n0)`, or the text of a foreign event, if it is short.
fn name(log: &Log, event: usize) -> String {
    const MOST: usize = 24;
    let site = log.name(log.events()[event].site);
    let words = log.describe(event);
    let foreign = matches!(log.events()[event].cause, conclave_lab::log::Cause::Foreign(_));
    if foreign && words.chars().count() <= MOST {
        format!("#{} ({site} {words})", log.number(event))
    } else {
        format!("#{} ({site})", log.number(event))
    }
}

fn in_words(relation: Relation, one: &str, other: &str) -> String {
    match relation {
        Relation::Equal => format!("{one} is {other}"),
        Relation::Before => format!("{one} happened before {other}"),
        Relation::After => format!("{other} happened before {one}"),
        Relation::Concurrent => format!("{one} and {other} are concurrent"),
    }
}

fn shortened(vector: &[u32]) -> String {
    const MOST: usize = 16;
    let entries: Vec<_> = vector.iter().take(MOST).map(ToString::to_string).collect();
    let more = if vector.len() > MOST { ",..." } else { "" };
    format!("({}{more})", entries.join(","))
}

/// Formats the analysis as JSON.
pub fn json(log: &Log, answer: &Answer) -> Value {
    let numbers = |events: &[usize]| events.iter().map(|event| log.number(*event)).collect::<Vec<_>>();
    let pair = |(one, other): &(usize, usize)| [log.number(*one), log.number(*other)];
    let relation = |(one, other, relation): &(usize, usize, Relation)| {
        let clock = |event: usize| {
            let past = conclave_lab::log::Past::of(log, event);
            json!({ "event": log.number(event), "site": log.name(log.events()[event].site), "text": log.describe(event),
                    "lamport": past.lamport(log), "vector": past.vector(log) })
        };
        let relation = match relation {
            Relation::Equal => "equal",
            Relation::Before => "before",
            Relation::After => "after",
            Relation::Concurrent => "concurrent",
        };
        json!({ "a": clock(*one), "b": clock(*other), "relation": relation })
    };
    let past = answer.past.as_ref().map(|(event, past)| {
        json!({ "event": log.number(*event), "vector": past.vector(log), "lamport": past.lamport(log),
                "events": numbers(&past.events().collect::<Vec<_>>()) })
    });
    json!({
        "algorithm": log.about.algorithm,
        "sites": (0..log.sites().min(MOST_NAMED)).map(|site| log.name(NodeId(site))).collect::<Vec<_>>(),
        "nodes": log.sites(),
        "events": log.events().len(),
        "messages": log.messages().len(),
        "messages_inferred": log.has_inferred_messages(),
        "ordered_pairs": number(answer.order.ordered_pairs),
        "concurrent_pairs": number(answer.order.concurrent_pairs),
        "concurrent_sample": answer.order.concurrent_sample.iter().map(pair).collect::<Vec<_>>(),
        "longest_chain": numbers(&answer.order.longest_chain),
        "relations": answer.relations.iter().map(relation).collect::<Vec<_>>(),
        "past": past,
        "cuts": answer.cuts.iter().map(|judged| json_cut(log, judged)).collect::<Vec<_>>(),
    })
}

/// The largest number of sites that JSON lists by name.
const MOST_NAMED: u32 = 100_000;

/// A count; as text if no JSON number holds it.
fn number(count: u128) -> Value {
    u64::try_from(count).map_or_else(|_| Value::String(count.to_string()), Value::from)
}

fn json_cut(log: &Log, judged: &JudgedCut) -> Value {
    let messages = |indices: &[usize]| {
        let message = |index: &usize| {
            let message = &log.messages()[judged.messages[*index]];
            let received = match message.fate {
                conclave_lab::log::Fate::Received(event) => Some(log.number(event as usize)),
                _ => None,
            };
            json!({ "from": log.name(message.from), "to": log.name(message.to), "sent_by": log.number(message.sent_by as usize),
                    "received_by": received, "text": log.raw(message.text) })
        };
        indices.iter().map(message).collect::<Vec<_>>()
    };
    json!({
        "cut": judged.cut.0,
        "consistent": judged.judgement.is_consistent(),
        "transitless": is_transitless(log, judged),
        "strongly_consistent": is_transitless(log, judged).map_or_else(
            || (!judged.judgement.is_consistent()).then_some(false),
            |transitless| Some(transitless && judged.judgement.is_consistent()),
        ),
        "received_but_not_sent": messages(&judged.judgement.orphans),
        "in_transit": messages(&judged.judgement.in_transit),
        "largest_consistent_inside": judged.inside.as_ref().map(|cut| &cut.0),
        "snapshot": judged.snapshot.as_ref().map(|(id, order, length)| {
            let order: Vec<_> = order.iter().map(|event| log.number(*event)).collect();
            json!({ "id": id, "equivalent_execution": order, "recorded_after": length })
        }),
    })
}
