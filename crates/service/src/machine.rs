//! The implementation of the replica's [`Machine`] by the service.

use conclave_node::entry::{Batch, Service};
use conclave_node::state::Effect;

use crate::replica::Machine;
use crate::replica::log::LogId;

impl Machine for Service {
    type Command = Batch;
    type Effect = Effect;

    fn apply(&mut self, id: LogId, entry: Batch) -> Vec<Effect> {
        Service::apply(self, id, entry)
    }

    fn commands(&self) -> u64 {
        self.state().applied()
    }

    fn restored(&self) -> u64 {
        Service::restored(self)
    }

    fn early(&self, durable: u64, effects: &mut Vec<Effect>) -> Vec<Effect> {
        self.early(durable, effects)
    }

    fn snapshot(&self) -> Vec<u8> {
        self.to_snapshot()
    }

    fn restore(bytes: &[u8]) -> Result<Self, String> {
        Self::from_snapshot(bytes)
    }
}
