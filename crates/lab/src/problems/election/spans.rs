//! The bars of an election's space-time diagram: each site has the colour of the leader that it follows.

use std::collections::BTreeMap;

use conclave_kernel::NodeId;
use conclave_kernel::trace::What;

use crate::diagram::span::{Edge, Span, SpanKind, Tone};
use crate::log::Log;

/// A site is the leader, as far as it knows.
const LEADS: SpanKind = SpanKind { name: "leads", tone: Tone::Has };
/// A site follows another site.
const FOLLOWS: SpanKind = SpanKind { name: "follows (in the colour of its leader)", tone: Tone::Follows };
/// A site knew a leader, and knows none now.
const VACANT: SpanKind = SpanKind { name: "no leader known", tone: Tone::Wants };

/// The bars of a run, from the names of its events.
pub(crate) fn spans(log: &Log) -> Vec<Span> {
    let mut open: BTreeMap<NodeId, Span> = BTreeMap::new();
    let mut spans = Vec::new();
    let mut marks = log.marks().iter().peekable();
    for (index, event) in log.events().iter().enumerate() {
        while let Some(mark) = marks.next_if(|mark| mark.at <= event.at) {
            if let What::Crash(node) = mark.what {
                spans.extend(close(&mut open, node, Edge::At(mark.at)));
            }
        }
        for emitted in log.emitted(index) {
            let (kind, leader) = match log.kind(*emitted) {
                "vacant" => (VACANT, None),
                "elected" => match leader(log.raw(*emitted)) {
                    Some(leader) if leader == event.site => (LEADS, Some(leader)),
                    leader => (FOLLOWS, leader),
                },
                _ => continue,
            };
            // A leader that is announced again stays the leader.
            if open.get(&event.site).is_some_and(|span| (span.kind, span.colour_of) == (kind, leader)) {
                continue;
            }
            spans.extend(close(&mut open, event.site, Edge::Event(index)));
            let span = Span {
                site: event.site,
                from: Edge::Event(index),
                to: Edge::Open,
                kind,
                note: leader.map_or(String::new(), |leader| log.name(leader)),
                detail: String::new(),
                colour_of: leader,
            };
            open.insert(event.site, span);
        }
    }
    for mark in marks {
        if let What::Crash(node) = mark.what {
            spans.extend(close(&mut open, node, Edge::At(mark.at)));
        }
    }
    spans.extend(open.into_values());
    spans
}

fn close(open: &mut BTreeMap<NodeId, Span>, site: NodeId, to: Edge) -> Option<Span> {
    open.remove(&site).map(|span| Span { to, ..span })
}

/// The number in `{"elected":{"leader":3}}`.
fn leader(raw: &str) -> Option<NodeId> {
    let digits = raw.split("\"leader\":").nth(1)?;
    digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok().map(NodeId)
}

#[cfg(test)]
mod tests {
    use conclave_kernel::Time;
    use conclave_sim::Fault;

    use super::*;
    use crate::problem::Recorder;
    use crate::problems::election::Scenario;

    #[test]
    fn the_first_leads_until_it_dies_and_the_next_for_the_rest() {
        let mut scenario = Scenario::default();
        scenario.world.faults.push(Fault::parse_crash("4@50ms").expect("it is well formed"));
        let mut recorder = Recorder::new(false, true);
        scenario.run(&mut recorder).expect("the scenario is valid");
        let spans = spans(&recorder.log.expect("it was wanted"));
        let leads: Vec<_> = spans.iter().filter(|span| span.kind == LEADS).map(|span| span.site.0).collect();
        assert_eq!(leads, [4, 3]);
        assert_eq!(
            spans.iter().find(|span| span.site.0 == 4).map(|span| span.to),
            Some(Edge::At(Time(50_000_000)))
        );
        let followed = spans.iter().filter(|span| span.kind == FOLLOWS && span.site.0 == 0);
        let followed: Vec<_> = followed.map(|span| (span.colour_of, span.note.as_str())).collect();
        assert_eq!(followed, [(Some(NodeId(4)), "n4"), (Some(NodeId(3)), "n3")]);
    }
}
