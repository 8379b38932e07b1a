//! The commands for the next batch, and the batches in flight with the receiver of each result.

use std::collections::BTreeMap;

use conclave_core::{Error, RequestId, SessionId};

use super::budget::{Budget, Class, command_size};
use super::flush::FlushPolicy;
use crate::entry::Batch;
use crate::state::{Command, TimerId};

/// The number of a batch on this node.
pub type BatchId = u64;

/// The receiver of a command's result.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    /// A request of a session.
    Request { session: SessionId, id: RequestId },
    /// The opening of a session.
    Open { secret: u128 },
    /// The end of a timer, with the term in which the time was counted.
    Timer { timer: TimerId, term: u64 },
}

/// A batch whose result has not arrived.
struct InFlight {
    /// The receivers, entry by entry.
    origins: Vec<Vec<Origin>>,
    /// The size of its commands.
    bytes: usize,
}

/// The commands on their way into the log, and the rules for them.
#[derive(Default)]
pub(super) struct Batches {
    pub(super) budget: Budget,
    pub(super) policy: FlushPolicy,
    /// The commands for the next batch.
    commands: Vec<(Origin, Command)>,
    /// The size of these commands.
    bytes: usize,
    in_flight: BTreeMap<BatchId, InFlight>,
    next: BatchId,
}

impl Batches {
    /// Adds a command to the next batch, or returns the error for the client.
    pub(super) fn add(&mut self, origin: Origin, command: Command, class: Class) -> Result<(), Error> {
        let bytes = command_size(&command);
        self.budget.admit_command(bytes, class)?;
        self.bytes += bytes;
        self.commands.push((origin, command));
        Ok(())
    }

    /// Returns the number of commands for the next batch.
    pub(super) fn queued(&self) -> usize {
        self.commands.len()
    }

    /// Returns the number of batches in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Takes the commands for the next batch, as entries.
    pub(super) fn take(&mut self) -> (BatchId, Vec<Vec<Command>>) {
        self.next += 1;
        let (origins, entries) = Batch::pack(self.commands.drain(..));
        let bytes = std::mem::take(&mut self.bytes);
        self.in_flight.insert(self.next, InFlight { origins, bytes });
        (self.next, entries)
    }

    /// Removes a batch that has its results, and returns the receivers, entry by entry.
    pub(super) fn on_results(&mut self, batch: BatchId) -> Vec<Vec<Origin>> {
        let Some(InFlight { origins, bytes }) = self.in_flight.remove(&batch) else { return Vec::new() };
        self.budget.give_back(origins.iter().map(Vec::len).sum(), bytes);
        origins
    }
}
