//! Tokio's watch channel, with receivers that wake in the order in which they began to wait.
//!
//! **Intuition.** Tokio spreads the receivers that wait over eight lists, and draws the list from random
//! numbers that no seed controls. So two runs of one program wake the receivers in two orders. Here, tokio's
//! channel keeps the value, and one list keeps the receivers.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

use tokio::sync::watch::{self, Ref, error};
use tokio::task::unconstrained;

/// The tasks that wait, in the order in which they began to.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<Vec<Waker>>>);

impl Waiting {
    fn add(&self, cx: &Context<'_>) {
        let mut wakers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
    }

    fn wake_all(&self) {
        let wakers = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Wakes the tasks that wait when a sender is dropped, because it may have been the last.
#[derive(Clone)]
struct WakeOnDrop(Waiting);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake_all();
    }
}

pub(crate) struct Sender<T> {
    // Dropped first, so that the tasks that wake find the channel closed.
    inner: watch::Sender<T>,
    waiting: WakeOnDrop,
}

// Not derived: a derive would require `T: Clone`.
impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), waiting: self.waiting.clone() }
    }
}

impl<T> Sender<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: watch::Sender::new(value), waiting: WakeOnDrop(Waiting::default()) }
    }

    pub(crate) fn subscribe(&self) -> Receiver<T> {
        Receiver { inner: self.inner.subscribe(), waiting: self.waiting.0.clone() }
    }

    pub(crate) fn borrow(&self) -> Ref<'_, T> {
        self.inner.borrow()
    }

    pub(crate) fn send(&self, value: T) -> Result<(), error::SendError<T>> {
        self.inner.send(value)?;
        self.waiting.0.wake_all();
        Ok(())
    }

    pub(crate) fn send_replace(&self, value: T) -> T {
        let old = self.inner.send_replace(value);
        self.waiting.0.wake_all();
        old
    }

    pub(crate) fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let is_modified = self.inner.send_if_modified(modify);
        if is_modified {
            self.waiting.0.wake_all();
        }
        is_modified
    }
}

pub(crate) struct Receiver<T> {
    inner: watch::Receiver<T>,
    waiting: Waiting,
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), waiting: self.waiting.clone() }
    }
}

impl<T> Receiver<T> {
    pub(crate) fn borrow(&self) -> Ref<'_, T> {
        self.inner.borrow()
    }

    pub(crate) fn borrow_and_update(&mut self) -> Ref<'_, T> {
        self.inner.borrow_and_update()
    }

    pub(crate) async fn changed(&mut self) -> Result<(), error::RecvError> {
        let Self { inner, waiting } = self;
        poll_fn(|cx| {
            // Join the list before the check, or a change between the two would be lost.
            waiting.add(cx);
            // Tokio's own list must not wake this task. The budget of the task would use the same waker.
            pin!(unconstrained(inner.changed())).poll(&mut Context::from_waker(Waker::noop()))
        })
        .await
    }

    pub(crate) async fn wait_for(
        &mut self,
        mut is_wanted: impl FnMut(&T) -> bool,
    ) -> Result<Ref<'_, T>, error::RecvError> {
        while !is_wanted(&self.borrow_and_update()) {
            self.changed().await?;
        }
        Ok(self.borrow())
    }
}
