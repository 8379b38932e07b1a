//! The window: the part of a log that a space-time diagram shows, and the meaning of its axis.

use std::ops::Range;

use conclave_kernel::Time;

use super::{Broken, Options};
use crate::diagram::scale::unit_of;
use crate::log::{Log, Timescale};

/// The meaning of the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// Nanoseconds.
    Time,
    /// Lamport times.
    Stamps,
    /// No time passes: the numbers of the steps, from this event on.
    Steps(usize),
    /// A counterexample of the checker, in which every step takes this long.
    Moments(u64),
}

/// The time between two steps of a counterexample.
const MOMENT_NS: u64 = 1_000_000;

impl Scale {
    pub(super) fn of(log: &Log, from: Time, first: usize) -> Self {
        if log.about.timescale == Timescale::Logical {
            return Self::Stamps;
        }
        let still = log.end() == log.events().first().map_or(Time::ZERO, |event| event.at);
        if still && from <= log.end() {
            return Self::Steps(first);
        }
        // The sites of the checker have no clocks, and its steps are whole moments.
        let is_explored = log.events().iter().all(|event| event.clock == Time::ZERO && is_whole(event.at));
        if is_explored && !log.events().is_empty() { Self::Moments(MOMENT_NS) } else { Self::Time }
    }

    /// The place of an event on the axis.
    pub(super) fn event(self, event: usize, at: Time) -> f64 {
        match self {
            Self::Steps(first) => event as f64 - first as f64,
            _ => self.plain(at),
        }
    }

    /// The place of a time on the axis.
    pub(super) fn time(self, log: &Log, at: Time) -> f64 {
        match self {
            Self::Steps(first) => {
                let event = log.events().partition_point(|event| event.at < at);
                event as f64 - first as f64
            }
            _ => self.plain(at),
        }
    }

    fn plain(self, at: Time) -> f64 {
        match self {
            Self::Moments(length) => at.0 as f64 / length as f64,
            _ => at.0 as f64,
        }
    }

    /// The length of one unit of the axis, and the name of the axis.
    pub(super) fn unit(self, length: f64) -> (f64, &'static str) {
        match self {
            Self::Steps(_) | Self::Moments(_) => (1.0, "step"),
            Self::Stamps => (1.0, "Lamport time"),
            Self::Time => match unit_of(length) {
                (unit, "ns") => (unit, "time (ns)"),
                (unit, "µs") => (unit, "time (µs)"),
                (unit, "ms") => (unit, "time (ms)"),
                (unit, "s") => (unit, "time (s)"),
                (unit, _) => (unit, "time (min)"),
            },
        }
    }
}

fn is_whole(at: Time) -> bool {
    at.0.is_multiple_of(MOMENT_NS)
}

/// The events that are drawn. A window without explicit limits contains the decisive step of the violation, a
/// few events after it, and as many events before it as stay readable.
pub(super) fn window(log: &Log, options: &Options, sites: u32) -> Range<usize> {
    let first = log.events().partition_point(|event| event.at < options.from);
    let last = options
        .until
        .map_or(log.events().len(), |until| log.events().partition_point(|event| event.at <= until));
    let last = last.max(first);
    let most = options.most_messages.unwrap_or((20 + 12 * sites as usize).clamp(56, 320)).max(1);
    let full = end_of(log, first, most).min(last);
    match options.violation.as_ref().map(|broken| decisive(log, broken)) {
        Some(decisive) if options.until.is_none() && decisive + AFTER >= full => {
            let first = first.max(start_of(log, decisive, most * 3 / 4));
            first..end_of(log, first, most).max(decisive + 1).min(last)
        }
        _ => first..full,
    }
}

/// The number of events after the decisive step that a window should contain.
const AFTER: usize = 6;

/// The number of steps for each message of a window: steps that send nothing fill a picture as well.
const STEPS_PER_MESSAGE: usize = 6;

/// The event of the decisive step.
pub(super) fn decisive(log: &Log, broken: &Broken) -> usize {
    let last = log.events().len().saturating_sub(1);
    log.events().partition_point(|event| event.at <= broken.at).saturating_sub(1).min(last)
}

/// The end of a window that begins at `first` and contains `most` messages.
fn end_of(log: &Log, first: usize, most: usize) -> usize {
    let sent = log.messages().partition_point(|message| (message.sent_by as usize) < first);
    let events = log.events().len();
    let full = log.messages().get(sent + most).map_or(events, |message| message.sent_by as usize);
    full.max(first + 1).min(first + most * STEPS_PER_MESSAGE).min(events)
}

/// The start of a window that ends at `last` and contains `most` messages.
fn start_of(log: &Log, last: usize, most: usize) -> usize {
    let sent = log.messages().partition_point(|message| (message.sent_by as usize) <= last);
    let start = sent.checked_sub(most).map_or(0, |first| log.messages()[first].sent_by as usize + 1);
    start.max(last.saturating_sub(most * STEPS_PER_MESSAGE)).min(last)
}
