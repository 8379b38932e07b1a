//! What the bars of an election's space-time diagram show: who leads, by its own lights, and who does not
//! know.

use std::collections::BTreeMap;

use conclave_kernel::trace::What;
use conclave_kernel::{NodeId, Time};

use crate::diagram::span::{Edge, Span, SpanKind, Tone};
use crate::log::Log;

/// A site takes itself for the leader.
const LEADS: SpanKind = SpanKind { name: "leads", tone: Tone::Has };
/// A site knew a leader, and knows none now.
const VACANT: SpanKind = SpanKind { name: "no leader known", tone: Tone::Wants };

/// The bars of a run. Needs no types: it reads the names of events, so that it serves a trace file as well.
pub(super) fn spans(log: &Log) -> Vec<Span> {
    let mut open: BTreeMap<NodeId, Span> = BTreeMap::new();
    let mut spans = Vec::new();
    let mut marks = log.marks().iter().peekable();
    for (index, event) in log.events().iter().enumerate() {
        while let Some(mark) = marks.next_if(|mark| mark.at <= event.at) {
            if let What::Crash(node) = mark.what {
                spans.extend(close(&mut open, node, Edge::At(mark.at)));
            }
        }
        for told in log.emitted(index) {
            let kind = match log.kind(*told) {
                "vacant" => Some(VACANT),
                "elected" if leader(log.raw(*told)) == Some(event.site.0) => Some(LEADS),
                "elected" => None,
                _ => continue,
            };
            spans.extend(close(&mut open, event.site, Edge::Event(index)));
            if let Some(kind) = kind {
                let (from, to) = (Edge::Event(index), Edge::Open);
                open.insert(event.site, Span { site: event.site, from, to, kind, note: String::new() });
            }
        }
    }
    for mark in marks {
        if let What::Crash(node) = mark.what {
            spans.extend(close(&mut open, node, Edge::At(Time(mark.at.0))));
        }
    }
    spans.extend(open.into_values());
    spans
}

fn close(open: &mut BTreeMap<NodeId, Span>, site: NodeId, to: Edge) -> Option<Span> {
    open.remove(&site).map(|span| Span { to, ..span })
}

/// The number in `{"elected":{"leader":3}}`.
fn leader(raw: &str) -> Option<u32> {
    let digits = raw.split("\"leader\":").nth(1)?;
    digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Recorder;
    use crate::problems::election::Scenario;
    use conclave_sim::Fault;

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
    }
}
