//! Watches: the changes of a file, its children or a lock, in order.
//!
//! **Bounds.** At most [`QUEUE`] events wait for the reader. One more event replaces all of them by one
//! [`WatchEvent::Resync`]. `Resync` contains the index after which no event is missing.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use conclave_core::Error;
use conclave_core::report::WatchEvent;
use conclave_wire::v1;
use futures_core::Stream;

use crate::Result;
use crate::client::{Client, Handle};
use crate::core::stopped;

/// The maximum number of events that wait for the reader. One more event discards them, and the reader gets a
/// `Resync`.
pub(crate) const QUEUE: usize = 1024;

/// A watch. After a lost connection it continues without a gap, or reports the gap as [`WatchEvent::Resync`].
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
            client.handle.shared.submit(|core, now| core.watch(now, target, after, queue.clone()))?;
        // From here on the drop of `watch` ends it, also if this future is dropped.
        let mut watch = Self { handle: client.handle.clone(), id, index: 0, queue };
        watch.index = begun.await.unwrap_or_else(|_| Err(stopped()))?;
        Ok(watch)
    }

    /// The index of the state in which the watch begins. It delivers every change after this index.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Returns the next event. The last item is an error: the watch has ended because no server can be
    /// reached. After it, the result is `None`.
    ///
    /// Dropping the future loses no event. The method replaces `StreamExt::next`, so a program needs no
    /// library of stream adapters.
    pub async fn next(&mut self) -> Option<Result<WatchEvent>> {
        poll_fn(|cx| self.queue.poll_next(cx)).await
    }
}

impl Stream for Watch {
    type Item = Result<WatchEvent>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<WatchEvent>>> {
        self.queue.poll_next(cx)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.shared.submit(|core, _| core.unwatch(self.id));
    }
}

/// The queue of events between the connection and the reader of a watch.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<WatchEvent>,
    end: End,
    /// The reader, if it waits for an event.
    reader: Option<Waker>,
}

/// The end of a watch, which the reader gets once.
#[derive(Default)]
enum End {
    #[default]
    Open,
    Failed(Error),
    Reported,
}

impl Queue {
    pub(crate) fn push(&self, event: WatchEvent) {
        self.change(|waiting| {
            if waiting.events.len() >= QUEUE {
                waiting.events.clear();
                waiting.events.push_back(WatchEvent::Resync { index: event.index() });
            } else {
                waiting.events.push_back(event);
            }
        });
    }

    pub(crate) fn end(&self, error: Error) {
        self.change(|waiting| waiting.end = End::Failed(error));
    }

    /// Takes the next event, if there is one.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn pop(&self) -> Option<Result<WatchEvent>> {
        match self.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(next) => next,
            Poll::Pending => None,
        }
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Result<WatchEvent>>> {
        let mut waiting = self.lock();
        if let Some(event) = waiting.events.pop_front() {
            return Poll::Ready(Some(Ok(event)));
        }
        match std::mem::replace(&mut waiting.end, End::Reported) {
            End::Failed(error) => Poll::Ready(Some(Err(error))),
            End::Reported => Poll::Ready(None),
            End::Open => {
                waiting.end = End::Open;
                waiting.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Changes the queue, then wakes the reader outside the lock.
    fn change(&self, act: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.lock();
        act(&mut waiting);
        let reader = waiting.reader.take();
        drop(waiting);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use conclave_core::Code;
    use conclave_core::report::Change;

    use super::*;

    #[test]
    fn a_slow_reader_gets_a_resync_with_the_index_of_the_last_lost_event() {
        let queue = Queue::default();
        let event = |index| WatchEvent::Changed { index, name: "x".into(), change: Change::Released };
        for index in 1..=QUEUE as u64 + 2 {
            queue.push(event(index));
        }
        let index = QUEUE as u64 + 1;
        assert_eq!(queue.pop(), Some(Ok(WatchEvent::Resync { index })));
        assert_eq!(queue.pop(), Some(Ok(event(index + 1))));
        assert_eq!(queue.pop(), None);
        queue.end(Error::new(Code::Disconnected, "gone"));
        assert!(queue.pop().is_some_and(|end| end.is_err()));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(queue.poll_next(&mut cx), Poll::Ready(None)), "the end is reported once");
    }

    #[test]
    fn a_reader_that_waits_is_woken_by_an_event_and_by_the_end() {
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let (queue, count) = (Queue::default(), Arc::new(Count(AtomicUsize::new(0))));
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(queue.poll_next(&mut cx).is_pending());
        queue.push(WatchEvent::Resync { index: 1 });
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(queue.poll_next(&mut cx).is_ready() && queue.poll_next(&mut cx).is_pending());
        queue.end(Error::new(Code::Disconnected, "gone"));
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
    }
}
