//! Requests, their owners, and guards.

use std::fmt;
use std::time::{Duration, Instant};

use conclave_core::{Error, Expr, Fence, VictimPolicy};

use super::runtime::Runtime;
use crate::{HeldName, LeaseState, LossReason, Result};

/// A request for a lock, with its options, like [`crate::LockRequest`]. Nothing is sent before
/// [`LockRequest::wait`] or [`LockRequest::try_now`].
#[derive(Clone)]
#[must_use = "nothing is sent before `wait` or `try_now`"]
pub struct LockRequest {
    inner: crate::LockRequest,
    runtime: Runtime,
}

impl LockRequest {
    pub(super) fn new(inner: crate::LockRequest, runtime: &Runtime) -> Self {
        Self { inner, runtime: runtime.clone() }
    }

    /// Makes every name of the expression shared.
    pub fn shared(self) -> Self {
        Self { inner: self.inner.shared(), ..self }
    }

    /// Sets the priority, like [`crate::LockRequest::priority`].
    pub fn priority(self, priority: i32) -> Self {
        Self { inner: self.inner.priority(priority), ..self }
    }

    /// Sets the time limit of the wait, like [`crate::LockRequest::timeout`].
    pub fn timeout(self, limit: Duration) -> Self {
        Self { inner: self.inner.timeout(limit), ..self }
    }

    /// Sets which waiting request is rejected if this one completes a deadlock.
    pub fn on_deadlock(self, policy: VictimPolicy) -> Self {
        Self { inner: self.inner.on_deadlock(policy), ..self }
    }

    /// Sends the request, and returns when it is granted.
    ///
    /// # Errors
    /// The same as [`crate::LockRequest`].
    pub fn wait(self) -> Result<Guard> {
        let guard = self.runtime.wait(self.inner.into_future())?;
        Ok(Guard { inner: guard, runtime: self.runtime })
    }

    /// Acquires the lock if it is free now. Returns `None` if it is not.
    ///
    /// # Errors
    /// The same as [`crate::LockRequest::try_now`].
    pub fn try_now(self) -> Result<Option<Guard>> {
        let guard = self.runtime.wait(self.inner.try_now())?;
        Ok(guard.map(|inner| Guard { inner, runtime: self.runtime }))
    }
}

/// An owner, whose locks belong together, like [`crate::Owner`]. [`super::Client::owner`] creates it.
#[derive(Clone)]
pub struct Owner {
    inner: crate::Owner,
    runtime: Runtime,
}

impl Owner {
    pub(super) fn new(inner: crate::Owner, runtime: &Runtime) -> Self {
        Self { inner, runtime: runtime.clone() }
    }

    /// Creates a request of this owner, like [`crate::Owner::lock`].
    pub fn lock(&self, expr: impl TryInto<Expr, Error: Into<Error>>) -> LockRequest {
        LockRequest::new(self.inner.lock(expr), &self.runtime)
    }
}

/// All names of one grant, like [`crate::Guard`]. Dropping the guard releases them in the background;
/// [`Guard::release`] also waits for the reply.
///
/// Check [`Guard::loss`] between the steps of the work, and send the fence to the store that the lock
/// protects.
#[must_use = "dropping it releases the lock"]
pub struct Guard {
    inner: crate::Guard,
    runtime: Runtime,
}

impl Guard {
    /// The largest fence of the grant, for a store that all its names protect together.
    pub fn fence(&self) -> Fence {
        self.inner.fence()
    }

    /// The fence of one name, for the store that this name protects.
    pub fn fence_of(&self, name: &str) -> Option<Fence> {
        self.inner.fence_of(name)
    }

    /// The names held, in canonical order, with their fences and modes.
    pub fn names(&self) -> &[HeldName] {
        self.inner.names()
    }

    /// The state of the guard now.
    pub fn state(&self) -> LeaseState {
        self.inner.state()
    }

    /// The reason for the loss; `None` while the guard is not lost.
    pub fn loss(&self) -> Option<LossReason> {
        self.inner.loss()
    }

    /// The time until which the guard is valid. Each answered keep-alive moves it.
    pub fn deadline(&self) -> Instant {
        self.inner.deadline()
    }

    /// Waits until the guard is lost, for at most `limit`. Returns the reason, or `None` if it is still held.
    pub fn wait_lost(&self, limit: Duration) -> Option<LossReason> {
        self.runtime.wait(async { tokio::time::timeout(limit, self.inner.lost()).await.ok() })
    }

    /// Creates a request of the same owner as this guard, like [`crate::Guard::lock`].
    pub fn lock(&self, expr: impl TryInto<Expr, Error: Into<Error>>) -> LockRequest {
        LockRequest::new(self.inner.lock(expr), &self.runtime)
    }

    /// Releases the grant, like [`crate::Guard::release`].
    ///
    /// # Errors
    /// The same as [`crate::Guard::release`].
    pub fn release(self) -> Result<()> {
        self.runtime.wait(self.inner.release())
    }

    /// Downgrades the exclusive names of the grant to shared, like [`crate::Guard::downgrade`].
    ///
    /// # Errors
    /// The same as [`crate::Guard::downgrade`].
    pub fn downgrade(&mut self) -> Result<()> {
        self.runtime.wait(self.inner.downgrade())
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
