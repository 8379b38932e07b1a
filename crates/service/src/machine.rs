//! The service as the replica runs it: the pure state, and a wall time beside each command.
//!
//! The state compares no clocks, but people want to see since when a lock is held. So whoever proposes a command writes
//! its wall time into the entry, where it is the same for every node; it is shown, never compared.

use serde::{Deserialize, Serialize};

use crate::replica::Machine;
use crate::replica::log::LogId;
use crate::state::{At, Command, Effect, State};

/// A command on its way into the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamped {
    /// The wall time of the node that proposed it, in milliseconds since 1970.
    pub wall_ms: u64,
    /// What is to be done.
    pub command: Command,
}

/// The replicated state of the lock service.
#[derive(Clone, Debug, Default)]
pub struct Service(State);

impl Service {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The state, to be read.
    pub fn state(&self) -> &State {
        &self.0
    }
}

impl Machine for Service {
    type Command = Stamped;
    type Effect = Effect;

    fn apply(&mut self, id: LogId, stamped: &Stamped) -> Vec<Effect> {
        let at = At { index: id.index, term: id.term, wall_ms: stamped.wall_ms };
        self.0.apply(at, stamped.command.clone())
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.to_snapshot()
    }

    fn restore(bytes: &[u8]) -> Result<Self, String> {
        State::from_snapshot(bytes).map(Self).map_err(|error| error.to_string())
    }
}
