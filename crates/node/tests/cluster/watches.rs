//! The judge of watches: every change arrives, in order, or a resync stands for it.

use std::collections::BTreeMap;

use conclave_client::WatchEvent;
use conclave_kernel::NodeId;
use conclave_node::state::watch::{Change, WatchTarget};

use crate::reference::Reference;

/// The watches of all clients, across their connections.
#[derive(Default)]
pub struct Watches(BTreeMap<(NodeId, u64), Progress>);

struct Progress {
    target: WatchTarget,
    /// The index of the last change, and the number of events with this index.
    index: u64,
    seen: usize,
}

impl Watches {
    pub fn on_begun(&mut self, client: NodeId, watch: u64, target: WatchTarget, index: u64) {
        self.0.insert((client, watch), Progress { target, index, seen: usize::MAX });
    }

    pub fn on_ended(&mut self, client: NodeId, watch: u64) {
        self.0.remove(&(client, watch));
    }

    /// The client library has delivered an event.
    ///
    /// # Errors
    /// It is not the next change.
    pub fn on_event(
        &mut self,
        client: NodeId,
        watch: u64,
        event: &WatchEvent,
        log: &Reference,
    ) -> Result<(), String> {
        let Some(progress) = self.0.get_mut(&(client, watch)) else { return Ok(()) };
        if let WatchEvent::Resync { index } = event {
            (progress.index, progress.seen) = (*index, usize::MAX);
            return Ok(());
        }
        let next = progress.next(log);
        if !next.is_some_and(|next| next.to_event() == *event) {
            return Err(format!("watch {watch} of {client} got {event:?}, and {next:?} is next"));
        }
        let is_same = progress.index == event.index() && progress.seen != usize::MAX;
        (progress.index, progress.seen) = (event.index(), if is_same { progress.seen + 1 } else { 1 });
        Ok(())
    }

    /// Checks at the end of a run that every watch has got everything.
    pub fn missing(&self, log: &Reference) -> Option<String> {
        self.0.iter().find_map(|((client, watch), progress)| {
            let next = progress.next(log)?;
            Some(format!("watch {watch} of {client} has not got {next:?}"))
        })
    }
}

impl Progress {
    /// Returns the next change of the target. `usize::MAX` events of an index are all of them.
    fn next<'a>(&self, log: &'a Reference) -> Option<&'a Change> {
        if self.seen == usize::MAX {
            return log.changes_of(&self.target, self.index).next();
        }
        log.changes_of(&self.target, self.index - 1).nth(self.seen)
    }
}
