//! Watches: the changes of a file, its children or a lock, in order.
//!
//! **Bounds.** At most [`QUEUE`] events wait for the reader. One more event replaces all of them by one
//! [`WatchEvent::Resync`]. The reader then knows that events are missing, and the index after which none is.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use conclave_core::Error;
use conclave_wire::v1;
use tokio::sync::Notify;

use crate::Result;
use crate::client::{Client, Handle};
use crate::core::stopped;

/// The maximum number of events that wait for the reader. One more event discards them, and the reader gets a
/// `Resync`.
pub(crate) const QUEUE: usize = 1024;

/// An event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent {
    /// The watched object changed.
    Changed(v1::Event),
    /// Events were lost. Read the object again; the watch delivers every change after `index`.
    Resync {
        /// The index after which no event is missing.
        index: u64,
    },
}

/// A watch. After a lost connection it goes on without a gap, or reports one with [`WatchEvent::Resync`].
/// Dropping it ends the watch.
pub struct Watch {
    handle: Arc<Handle>,
    id: u64,
    index: u64,
    queue: Arc<Queue>,
}

impl Watch {
    pub(crate) async fn begin(
        client: &Client,
        target: v1::watch::Target,
        after: Option<u64>,
    ) -> Result<Self> {
        let queue = Arc::new(Queue::default());
        let (id, begun) =
            client.handle.shared.ask(|core, now| core.watch(now, target, after, queue.clone()))?;
        // From here on the drop of `watch` ends it, also if this future is dropped.
        let mut watch = Self { handle: client.handle.clone(), id, index: 0, queue };
        watch.index = begun.await.unwrap_or_else(|_| Err(stopped()))?;
        Ok(watch)
    }

    /// The index of the state in which the watch begins. It delivers every change after this index.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Returns the next event.
    ///
    /// # Errors
    /// The watch has ended because no server can be reached.
    pub async fn next(&mut self) -> Result<WatchEvent> {
        loop {
            let told = self.queue.told.notified();
            if let Some(next) = self.queue.pop() {
                return next;
            }
            told.await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.shared.ask(|core, _| core.unwatch(self.id));
    }
}

/// The queue of events between the client's task and the reader of a watch.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    told: Notify,
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<WatchEvent>,
    ended: Option<Error>,
}

impl Queue {
    pub(crate) fn push(&self, event: WatchEvent) {
        let mut waiting = self.lock();
        if waiting.events.len() >= QUEUE {
            waiting.events.clear();
            let (WatchEvent::Changed(v1::Event { index, .. }) | WatchEvent::Resync { index }) = event;
            waiting.events.push_back(WatchEvent::Resync { index });
        } else {
            waiting.events.push_back(event);
        }
        drop(waiting);
        self.told.notify_one();
    }

    pub(crate) fn end(&self, error: Error) {
        self.lock().ended = Some(error);
        self.told.notify_one();
    }

    pub(crate) fn pop(&self) -> Option<Result<WatchEvent>> {
        let mut waiting = self.lock();
        let next = waiting.events.pop_front().map(Ok);
        next.or_else(|| waiting.ended.clone().map(Err))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use conclave_core::Code;

    use super::*;

    #[test]
    fn a_reader_that_is_too_slow_is_told_from_where_it_misses_nothing() {
        let queue = Queue::default();
        let event = |index| WatchEvent::Changed(v1::Event { index, ..Default::default() });
        for index in 1..=QUEUE as u64 + 2 {
            queue.push(event(index));
        }
        let index = QUEUE as u64 + 1;
        assert_eq!(queue.pop(), Some(Ok(WatchEvent::Resync { index })));
        assert_eq!(queue.pop(), Some(Ok(event(index + 1))));
        assert_eq!(queue.pop(), None);
        queue.end(Error::new(Code::Disconnected, "gone"));
        assert!(queue.pop().is_some_and(|end| end.is_err()));
    }
}
