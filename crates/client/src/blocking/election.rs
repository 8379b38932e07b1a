//! Elections.

use std::time::Duration;

use conclave_core::Fence;

use super::runtime::Runtime;
use crate::{LossReason, Result};

/// A campaign in an election, like [`crate::Campaign`]. [`super::Client::elect`] creates it.
#[derive(Clone)]
#[must_use = "nothing is sent before `wait` or `try_now`"]
pub struct Campaign {
    inner: crate::Campaign,
    runtime: Runtime,
}

impl Campaign {
    pub(super) fn new(inner: crate::Campaign, runtime: &Runtime) -> Self {
        Self { inner, runtime: runtime.clone() }
    }

    /// Sets the priority, like [`crate::LockRequest::priority`].
    pub fn priority(self, priority: i32) -> Self {
        Self { inner: self.inner.priority(priority), ..self }
    }

    /// Sets the time limit of the wait, like [`crate::LockRequest::timeout`].
    pub fn timeout(self, limit: Duration) -> Self {
        Self { inner: self.inner.timeout(limit), ..self }
    }

    /// Returns when this client is the leader.
    ///
    /// # Errors
    /// The same as [`crate::LockRequest`].
    pub fn wait(self) -> Result<Leadership> {
        let inner = self.runtime.wait(self.inner.into_future())?;
        Ok(Leadership { inner, runtime: self.runtime })
    }

    /// Wins the election if it has no leader now. Returns `None` if it has one.
    ///
    /// # Errors
    /// The same as [`crate::LockRequest::try_now`].
    pub fn try_now(self) -> Result<Option<Leadership>> {
        let inner = self.runtime.wait(self.inner.try_now())?;
        Ok(inner.map(|inner| Leadership { inner, runtime: self.runtime }))
    }
}

/// The leadership of an election, like [`crate::Leadership`]. Dropping it resigns.
#[must_use = "dropping it resigns"]
pub struct Leadership {
    inner: crate::Leadership,
    runtime: Runtime,
}

impl Leadership {
    /// The term of this leadership. A later leader has a larger one.
    pub fn term(&self) -> Fence {
        self.inner.term()
    }

    /// The reason for the loss; `None` while this client is the leader.
    pub fn loss(&self) -> Option<LossReason> {
        self.inner.guard().loss()
    }

    /// Changes the value that this leader proclaims.
    ///
    /// # Errors
    /// The same as [`crate::Leadership::proclaim`].
    pub fn proclaim(&self, value: impl Into<Vec<u8>>) -> Result<()> {
        self.runtime.wait(self.inner.proclaim(value))
    }

    /// Resigns, and returns when other clients can lead.
    ///
    /// # Errors
    /// The same as [`crate::Leadership::resign`].
    pub fn resign(self) -> Result<()> {
        self.runtime.wait(self.inner.resign())
    }
}
