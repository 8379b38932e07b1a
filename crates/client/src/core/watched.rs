//! The state of one watch: the last event that it delivered, and the events to skip after a new connection.

use std::sync::Arc;

use conclave_core::Error;
use conclave_core::report::WatchEvent;
use conclave_wire::v1;
use tokio::sync::oneshot;

use crate::lease::Now;
use crate::watch::Queue;

/// A watch of this client.
pub(super) struct Watched {
    pub(super) target: v1::watch::Target,
    pub(super) after: Option<u64>,
    /// The index of the latest event, and the number of events delivered with that index. One log entry may
    /// change many things.
    pub(super) last: Option<(u64, usize)>,
    /// The number of events of that index that the server sends again, and the client skips.
    pub(super) to_skip: usize,
    pub(super) begun: Option<oneshot::Sender<Result<u64, Error>>>,
    pub(super) queue: Arc<Queue>,
    /// The time of the first rejection in a row; `None` if a server serves the watch.
    pub(super) refused_since: Option<Now>,
    pub(super) retry: bool,
}

impl Watched {
    /// The message that starts the watch where it stopped. It requests all events of the last index again,
    /// because some may be missing.
    pub(super) fn resume_message(&mut self, id: u64) -> v1::Watch {
        let (after, seen) = match self.last {
            Some((index, seen)) => (Some(index.saturating_sub(1)), seen),
            None => (self.after, 0),
        };
        self.to_skip = seen;
        v1::Watch { id, after, target: Some(self.target.clone()) }
    }

    pub(super) fn on_event(&mut self, event: v1::Event) {
        match &mut self.last {
            Some((index, _)) if *index == event.index && self.to_skip > 0 => {
                self.to_skip -= 1;
                return;
            }
            Some((index, seen)) if *index == event.index => *seen += 1,
            last => *last = Some((event.index, 1)),
        }
        self.queue.push(event.into());
    }

    pub(super) fn on_resync(&mut self, index: u64) {
        self.after = Some(index);
        self.last = None;
        self.to_skip = 0;
        self.queue.push(WatchEvent::Resync { index });
    }

    pub(super) fn fail(self, error: Error) {
        match self.begun {
            // The caller may have stopped waiting.
            Some(begun) => drop(begun.send(Err(error))),
            None => self.queue.end(error),
        }
    }
}
