//! The limits of a run, and its latest progress.
//!
//! A director reports progress with [`crate::Desk::progress`]. A run without progress for as many events, or for
//! as long, as the limits allow ends as [`End::Bounded`]: otherwise a livelock would never end.

use std::time::Duration;

use conclave_kernel::time;

use crate::report::End;

/// The limits of a run. By default there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest number of inputs that are handled without progress. If the director never calls
    /// [`crate::Desk::progress`], it limits the whole run. At the limit the run ends as [`End::Bounded`].
    pub events: u64,
    /// The longest time without progress, in the world's time. An event that comes later is not handled, and
    /// the run ends as [`End::Bounded`].
    pub patience: Duration,
    /// The largest time of an event, in the world's time.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let for_ever = Duration::from_nanos(u64::MAX);
        Self { events: u64::MAX, patience: for_ever, time: for_ever }
    }
}

/// The largest time of an event, 584 years after the start. Sums of times saturate above it, so the time of a
/// later event is not known, and such an event ends the run.
const LAST_TIME: u64 = u64::MAX - 1;

/// The latest progress of a run, and the limits that follow from it.
///
/// The run compares its events with two marks, and computes its limits only at a mark. A mark is never later
/// than its limit, because progress moves the limit but not the mark. So a report of progress costs two stores.
pub(crate) struct Progress {
    limits: Limits,
    /// The time limits in nanoseconds: without progress, and of the whole run. They are converted once.
    patience: u64,
    time: u64,
    /// The number of inputs handled, and the world's time, at the latest progress.
    since: (u64, u64),
    /// The number of inputs at which the run computes its limit of events; 0 if it must do so at once.
    event_mark: u64,
    /// The time after which the run computes its limit of time.
    time_mark: u64,
}

impl Progress {
    pub(crate) fn new(limits: Limits) -> Self {
        let (patience, time) = (time::nanos(limits.patience), time::nanos(limits.time));
        Self { limits, patience, time, since: (0, 0), event_mark: 0, time_mark: 0 }
    }

    #[inline(always)]
    pub(crate) const fn made(&mut self, events: u64, now: u64) {
        self.since = (events, now);
    }

    /// Returns whether a run with so many inputs must compute its limit of events.
    #[inline(always)]
    pub(crate) const fn has_passed_mark(&self, events: u64) -> bool {
        events >= self.event_mark
    }

    /// Makes the run compute its limit of events before its next event.
    pub(crate) const fn drop_mark(&mut self) {
        self.event_mark = 0;
    }

    /// Returns whether a run with so many inputs must end. Moves the mark to the limit.
    #[cold]
    pub(crate) const fn is_spent(&mut self, events: u64) -> bool {
        self.event_mark = self.last_event();
        events >= self.event_mark
    }

    /// Returns whether an event at this time is too late to be handled.
    #[inline(always)]
    pub(crate) fn is_too_late(&mut self, at: u64) -> bool {
        at > self.time_mark && self.is_behind_limit(at)
    }

    /// Returns whether a time is later than the limits of time allow. Moves the mark to the earlier limit.
    #[cold]
    fn is_behind_limit(&mut self, at: u64) -> bool {
        self.time_mark = self.since.1.saturating_add(self.patience).min(self.time).min(LAST_TIME);
        at > self.time_mark
    }

    /// Returns the number of inputs at which the run ends, unless there is progress before.
    const fn last_event(&self) -> u64 {
        self.since.0.saturating_add(self.limits.events)
    }

    /// Returns the number of inputs and the time since the latest progress, for a run that ended so.
    pub(crate) fn idle(&self, end: End, events: u64, now: u64) -> (u64, Duration) {
        let ran_out_of_time = end == End::Bounded && events < self.last_event();
        let time = Duration::from_nanos(now - self.since.1);
        (events - self.since.0, if ran_out_of_time { self.limits.patience } else { time })
    }

    /// Returns the reason for the end if the next event is later than allowed.
    pub(crate) fn end_at(&self, at: u64) -> End {
        match at {
            _ if at > self.time => End::OutOfTime,
            _ if at > LAST_TIME => End::Overflow,
            _ => End::Bounded,
        }
    }
}
