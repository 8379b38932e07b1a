//! Errors, bounds and spread, moment by moment.

use std::collections::BTreeMap;

use conclave_algorithms::timesync::interval::local;
use conclave_algorithms::timesync::{Event, Reading};
use conclave_kernel::{NodeId, Time};
use serde::Serialize;

/// What all clients together said at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// The true time, in nanoseconds.
    pub at_ns: u64,
    /// How far the worst clock is off: from the true time, or, where there is no reference outside, from another
    /// clock.
    pub error_ns: u64,
    /// How far the clocks are from each other.
    pub spread_ns: u64,
    /// How far it may be, by what the sites state; `None` as long as one of them states nothing, if sites follow different
    /// masters, or if there is no other clock to differ from.
    pub bound_ns: Option<u64>,
}

/// Measures while the run goes on.
pub(super) struct Meter {
    servers: u32,
    is_external: bool,
    pub(super) moments: Vec<Moment>,
    /// Of the moment under way: when, the smallest and the largest clock, and the two largest bounds.
    now: Time,
    clocks: Option<(i64, i64)>,
    bounds: Option<(u64, u64)>,
    /// The term and the master of the moment's first reading.
    master: Option<(u64, NodeId)>,
    /// The number of readings of the moment.
    readings: u32,
    pub(super) synced: u64,
    pub(super) missed: u64,
    pub(super) panicked: u64,
    pub(super) leaders: u64,
    pub(super) kinds: BTreeMap<&'static str, u64>,
}

impl Meter {
    pub(super) fn new(servers: u32, is_external: bool) -> Self {
        Self {
            servers,
            is_external,
            moments: Vec::new(),
            now: Time::ZERO,
            clocks: None,
            bounds: Some((0, 0)),
            master: None,
            readings: 0,
            synced: 0,
            missed: 0,
            panicked: 0,
            leaders: 0,
            kinds: BTreeMap::new(),
        }
    }

    pub(super) fn begin(&mut self, now: Time) {
        self.close();
        self.now = now;
    }

    pub(super) fn event(&mut self, event: &Event) {
        match event {
            Event::Told(_) => {}
            Event::Synced { .. } => self.synced += 1,
            Event::Missed => self.missed += 1,
            Event::Panicked { .. } => self.panicked += 1,
            Event::Leads { .. } => self.leaders += 1,
        }
    }

    /// A reading of a site that was paused comes late and belongs to no moment: it is judged, not measured.
    pub(super) fn told(&mut self, site: NodeId, now: Time, reading: &Reading) {
        if now != self.now || site.0 < self.servers {
            return;
        }
        let (low, high) = self.clocks.unwrap_or((reading.clock, reading.clock));
        self.clocks = Some((low.min(reading.clock), high.max(reading.clock)));
        self.readings += 1;
        // Bounds against the clocks of different masters say nothing about the difference of two clocks.
        let master = (reading.epoch.term, reading.epoch.master);
        let is_same = *self.master.get_or_insert(master) == master;
        self.bounds = self.bounds.filter(|_| is_same).zip(reading.bound()).map(|((first, second), bound)| {
            if bound > first { (bound, first) } else { (first, second.max(bound)) }
        });
    }

    pub(super) fn message(&mut self, kind: &'static str) {
        *self.kinds.entry(kind).or_default() += 1;
    }

    /// The moment under way is over.
    pub(super) fn close(&mut self) {
        let bounds = self.bounds.replace((0, 0));
        self.master = None;
        let is_alone = std::mem::take(&mut self.readings) < 2;
        let Some((low, high)) = self.clocks.take() else { return };
        let truth = local(self.now);
        // One clock alone differs from no other.
        let pair = bounds.filter(|_| !is_alone);
        let (error_ns, bound_ns) = if self.is_external {
            (low.abs_diff(truth).max(high.abs_diff(truth)), bounds.map(|(first, _)| first))
        } else {
            (high.abs_diff(low), pair.map(|(first, second)| first.saturating_add(second)))
        };
        let spread_ns = high.abs_diff(low);
        self.moments.push(Moment { at_ns: self.now.0, error_ns, spread_ns, bound_ns });
    }
}
