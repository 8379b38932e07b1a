//! The equivalent execution: the same events in an order that passes through a picture.
//!
//! What a picture shows may never have been the case at one instant. But the run can be reordered so that it is: first
//! all that happened before the recordings, then the rest. No site can tell the difference. \[CL85 §3.3\]

use conclave_algorithms::snapshot::{SnapshotId, cut};
use serde::Serialize;

use crate::log::Log;

/// Runs with at most so many acts, at so many sites, are recorded for its sake.
pub(super) const MOST_ACTS: u64 = 1_000;
pub(super) const MOST_NODES: u32 = 32;

/// A run, reordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Equivalent {
    /// The events of the run, by their numbers in the trace, in the new order.
    pub events: Vec<usize>,
    /// After so many of them the system is in the state that was recorded.
    pub recorded_after: usize,
    /// How many stand in another place than they did.
    pub moved: usize,
    /// The last ones before, and the first ones after, in words.
    #[serde(skip)]
    pub around: [Vec<String>; 2],
}

impl Equivalent {
    /// That of a snapshot; `None` if not everybody recorded, or the cut is not consistent.
    pub fn of(log: &Log, id: SnapshotId) -> Option<Self> {
        const MOST_SHOWN: usize = 6;
        let cut = log.snapshot(id.0)?;
        if !cut::judge(&log.run(), &cut).ok()?.is_consistent() {
            return None;
        }
        let (events, recorded_after) = log.through(&cut);
        let moved = events.iter().enumerate().filter(|(place, event)| place != *event).count();
        let words = |event: &usize| {
            format!("#{event} {}  {}", log.name(log.events()[*event].site), log.describe(*event))
        };
        let (before, after) = events.split_at(recorded_after);
        let before = before[before.len().saturating_sub(MOST_SHOWN)..].iter().map(words).collect();
        let after = after.iter().take(MOST_SHOWN).map(words).collect();
        Some(Self { events, recorded_after, moved, around: [before, after] })
    }

    /// As people read it, in a few lines.
    pub(super) fn figures(&self, figures: &mut Vec<(&'static str, String)>) {
        let Self { events, recorded_after, moved, around: [before, after] } = self;
        let all = events.len();
        figures.push((
            "  equivalent run",
            format!("{moved} of {all} events moved; in the recorded state after {recorded_after}:"),
        ));
        let skipped = recorded_after - before.len();
        if skipped > 0 {
            figures.push(("", format!("... {skipped} events ...")));
        }
        before.iter().for_each(|words| figures.push(("", words.clone())));
        figures.push(("", "---- the recorded state ----".into()));
        after.iter().for_each(|words| figures.push(("", words.clone())));
        let skipped = all - recorded_after - after.len();
        if skipped > 0 {
            figures.push(("", format!("... {skipped} events ...")));
        }
    }
}
