//! Tests with the server in memory, on a clock that does not wait.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod faults;
mod mistakes;
mod repeatable;

use std::time::Duration;

use tokio::time::timeout;

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Waits for at most an hour of the paused clock. Without a limit, a test that waits for something that never
/// happens would run for ever: the server always has a next timer.
async fn soon<F: IntoFuture>(future: F) -> F::Output {
    timeout(secs(3_600), future).await.expect("it happens")
}
