//! Errors, bounds and spread at each moment.

use std::collections::BTreeMap;

use conclave_algorithms::timesync::interval::local;
use conclave_algorithms::timesync::{Event, Reading};
use conclave_kernel::{NodeId, Time};
use serde::Serialize;

/// The clocks of all clients at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// The true time, in nanoseconds.
    pub at_ns: u64,
    /// The error of the worst clock: against the true time, or against another clock if there is no external
    /// reference.
    pub error_ns: u64,
    /// The largest difference between two clocks.
    pub spread_ns: u64,
    /// The largest possible error, according to the sites; `None` if one of them states no bound, if sites
    /// follow different masters, or if there is only one clock.
    pub bound_ns: Option<u64>,
}

/// The measurements of a run.
pub(super) struct Meter {
    servers: u32,
    is_external: bool,
    pub(super) moments: Vec<Moment>,
    /// The current moment: its time, the smallest and the largest clock, and the two largest bounds.
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

    /// Adds a reading. A paused site gives its reading late; the judge checks it, but it belongs to no
    /// moment.
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

    /// Ends the current moment.
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
