//! How a run ended, and the ledger of what went wrong in it.

use conclave_kernel::Time;
use serde::Serialize;

use crate::fault::Fault;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Why it ended.
    pub end: End,
    /// When, in the world's time.
    pub at: Time,
    /// Inputs handled: messages, timers, commands.
    pub events: u64,
    /// Messages sent from one site to another.
    pub messages: u64,
    /// The fingerprint of everything that happened.
    pub digest: u64,
    /// What the network and the fault plan did.
    pub ledger: Ledger,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The director had seen enough.
    Stopped,
    /// Nothing was left to happen.
    Quiet,
    /// The limit on events was reached.
    OutOfEvents,
    /// The limit on the world's time was reached.
    OutOfTime,
}

/// What went wrong, counted. A fault that was demanded and never struck is a mistake of the scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ledger {
    /// Messages that the network lost.
    pub lost: u64,
    /// Messages that arrived twice.
    pub duplicated: u64,
    /// Messages that the link's checksum refused.
    pub corrupted: u64,
    /// Messages that a dropping partition swallowed.
    pub cut: u64,
    /// Messages that wait for a heal that never comes.
    pub held_for_ever: u64,
    /// Messages and commands that found their site down.
    pub missed: u64,
    /// Sites that died.
    pub crashes: u64,
    /// Sites that came back.
    pub recoveries: u64,
    /// Sites that paused.
    pub pauses: u64,
    /// Partitions that began.
    pub partitions: u64,
    /// Clocks that jumped.
    pub steps: u64,
    /// Faults that were demanded and never struck, as the command line takes them.
    pub unfired: Vec<String>,
}

impl Ledger {
    pub(crate) fn never_struck(&mut self, fault: &Fault) {
        if fault.demanded {
            self.unfired.push(fault.to_string());
        }
    }
}
