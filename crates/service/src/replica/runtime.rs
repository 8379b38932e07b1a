//! The runtime under the replica, and work that blocks.
//!
//! **Intuition.** Everything runs on tokio. The unit tests replace two parts of tokio that differ between
//! runs: random numbers, and the order in which a watch channel wakes its receivers. Their seeded runs
//! (`tests/deterministic`) also do blocking work on the only thread. Other builds contain none of this.

use std::io;

#[cfg(not(test))]
pub(super) use openraft::TokioRuntime as Runtime;
#[cfg(not(test))]
pub(super) use tokio::sync::watch;

#[cfg(test)]
pub(super) use super::tests::deterministic::{ordered_watch as watch, runtime::Runtime};

/// Runs `work`, which reads or writes files or takes long, on a blocking thread. Fails if `work` panics.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    #[cfg(test)]
    if super::tests::deterministic::seeded::is_seeded() {
        super::tests::deterministic::seeded::pause().await;
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}
