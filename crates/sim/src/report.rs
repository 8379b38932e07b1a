//! The end of a run, and the ledger, which counts its faults.

use std::time::Duration;

use conclave_kernel::Time;
use serde::Serialize;

use crate::fault::Fault;

/// The end of a run, with its totals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The reason for the end.
    pub end: End,
    /// The moment of the end, in the world's time.
    pub at: Time,
    /// The number of inputs handled: messages, timers and commands. Starts and recoveries do not count.
    pub events: u64,
    /// The number of messages from one site to another. Copies and messages from a site to itself do not
    /// count.
    pub messages: u64,
    /// The fingerprint of everything that happened.
    pub digest: u64,
    /// The number of faults of each kind.
    pub ledger: Ledger,
    /// The inputs handled since the last progress ([`crate::Desk::progress`]).
    pub idle_events: u64,
    /// The world's time since the last progress. If it ended the run, the limit.
    pub idle_time: Duration,
}

/// The reason for the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The director stopped the run.
    Stopped,
    /// No event was left in the queue.
    Quiet,
    /// The run made no progress for as many events, or for as long, as its limits allow. It may be a
    /// livelock, or the limits may be too tight.
    Bounded,
    /// The limit on the world's time was reached.
    OutOfTime,
    /// The next event is later than the world's time can express: 584 years after the start.
    Overflow,
}

impl End {
    /// Whether a limit ended the run, so that it is no evidence for a property that holds in the end.
    pub fn is_bounded(self) -> bool {
        matches!(self, Self::Bounded | Self::Overflow)
    }
}

/// The number of faults of each kind. A demanded fault that never happened is a mistake of the scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ledger {
    /// Messages that the network lost.
    pub lost: u64,
    /// Messages that the network duplicated.
    pub duplicated: u64,
    /// Messages that the link's checksum rejected.
    pub corrupted: u64,
    /// Messages that a dropping partition destroyed.
    pub cut: u64,
    /// Messages held by a partition that never ends.
    pub held_for_ever: u64,
    /// Messages and commands that arrived while their site was down.
    pub missed: u64,
    /// Crashes of sites.
    pub crashes: u64,
    /// Recoveries of sites.
    pub recoveries: u64,
    /// Pauses of sites.
    pub pauses: u64,
    /// Partitions that began.
    pub partitions: u64,
    /// Steps of clocks.
    pub steps: u64,
    /// Demanded faults that never happened, each in the notation of the command line.
    pub unfired: Vec<String>,
}

impl Ledger {
    pub(crate) fn never_struck(&mut self, fault: &Fault) {
        if fault.demanded {
            self.unfired.push(fault.to_string());
        }
    }
}
