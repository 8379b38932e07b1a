//! Operations on other clients' locks and sessions.

use conclave_core::SessionId;
use conclave_core::report::{ClusterStatus, LockInfo, SessionInfo};

use super::runtime::Runtime;
use crate::Result;

/// The operations of an operator, like [`crate::Admin`]. [`super::Client::admin`] creates it.
#[derive(Clone)]
pub struct Admin {
    inner: crate::Admin,
    runtime: Runtime,
}

impl Admin {
    pub(super) fn new(inner: crate::Admin, runtime: &Runtime) -> Self {
        Self { inner, runtime: runtime.clone() }
    }

    /// Creates a semaphore or changes its limit, like [`crate::Admin::limit`]. Returns the previous limit.
    ///
    /// # Errors
    /// The same as [`crate::Admin::limit`].
    pub fn limit(&self, name: &str, permits: u32) -> Result<Option<u32>> {
        self.runtime.wait(self.inner.limit(name, permits))
    }

    /// Takes a name away from all its holders, like [`crate::Admin::break_lock`].
    ///
    /// # Errors
    /// The same as [`crate::Admin::break_lock`].
    pub fn break_lock(&self, name: &str, reason: &str) -> Result<()> {
        self.runtime.wait(self.inner.break_lock(name, reason))
    }

    /// Ends another session as if its lease had expired.
    ///
    /// # Errors
    /// The same as [`crate::Admin::end_session`].
    pub fn end_session(&self, session: SessionId) -> Result<()> {
        self.runtime.wait(self.inner.end_session(session))
    }

    /// Returns the names in use that begin with `prefix`.
    ///
    /// # Errors
    /// The same as [`crate::Admin::locks`].
    pub fn locks(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.runtime.wait(self.inner.locks(prefix))
    }

    /// Returns all sessions.
    ///
    /// # Errors
    /// The same as [`crate::Admin::sessions`].
    pub fn sessions(&self) -> Result<Vec<SessionInfo>> {
        self.runtime.wait(self.inner.sessions())
    }

    /// Returns the nodes, as the connected node sees them.
    ///
    /// # Errors
    /// The same as [`crate::Admin::cluster`].
    pub fn cluster(&self) -> Result<ClusterStatus> {
        self.runtime.wait(self.inner.cluster())
    }
}
