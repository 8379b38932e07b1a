//! Work that blocks.

use std::io;

/// Runs `work`, which reads or writes files or takes long, on a blocking thread. Fails if `work` panics.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}
