//! Locks, elections, semaphores, files and watches of a Conclave service, for programs in Rust.
//!
//! ```no_run
//! # async fn example() -> conclave_client::Result<()> {
//! use conclave_client::Client;
//!
//! let client = Client::connect("127.0.0.1:7411").await?;
//! let guard = client.lock("orders & (eu | us)").await?;
//! println!("holding {:?} by fence {}", guard.names(), guard.fence());
//! // Send `guard.fence_of("orders")` with each request to the store that the lock `orders` protects.
//! // The store then rejects a client whose lock has expired.
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Locks
//!
//! A [`LockRequest`] is awaited, tried, or started and inspected while it waits:
//!
//! ```no_run
//! # use std::time::Duration;
//! # async fn example(client: conclave_client::Client) -> conclave_client::Result<()> {
//! let reader = client.lock("plan").shared().await?;
//! let soon = client.lock("2 of (gpu0, gpu1, gpu2)").timeout(Duration::from_secs(5)).await?;
//! let now = client.lock("nightly").try_now().await?;
//! let mut pending = client.lock("orders").priority(1).start()?;
//! if let Some(place) = pending.queued().await {
//!     println!("{} requests are ahead", place.ahead);
//! }
//! let guard = pending.granted().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Work under a lock
//!
//! A lock can be lost: a program that is cut off for longer than its TTL must stop before another client gets
//! the lock. [`Guard::run`] cancels the work in time, and [`Guard::lost`] returns the reason of a loss. A
//! session is kept alive also while the program blocks its runtime.
//!
//! ```no_run
//! # async fn migrate(fence: conclave_client::Fence) -> u32 { 0 }
//! # async fn example(client: conclave_client::Client) -> conclave_client::Result<()> {
//! let guard = client.lock("db").await?;
//! let rows = guard.run(migrate(guard.fence())).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Elections, semaphores, files and watches
//!
//! ```no_run
//! # async fn example(client: conclave_client::Client) -> conclave_client::Result<()> {
//! let leadership = client.elect("scheduler", "10.0.0.7:9000").await?;
//! println!("leading in term {}", leadership.term());
//!
//! let slots = client.semaphore("downloads", 3).await?;
//! let slot = slots.acquire(1).await?;
//!
//! let files = client.files();
//! let version = files.put("/config", "blue").await?;
//! let mut watch = files.watch("/config", None).await?;
//! while let Some(event) = watch.next().await {
//!     println!("{:?}", event?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Main items
//!
//! - [`Client`] and [`ClientBuilder`]: a session on one connection. The client keeps it alive, and resumes it
//!   on any node after a lost connection.
//! - [`Owner`]: requests that belong together, for re-entrant locks and for deadlock detection.
//! - [`Admin`]: locks and sessions of other clients, and limits of semaphores.
//! - `blocking`: the same operations without an async runtime, with the feature `blocking`.
//! - `testing`: a server in memory with faults on demand, for the tests of programs, with the feature
//!   `testing`.
//! - [`lease`]: the deadline of a session, as a state machine without a clock.
//! - The folder `examples` has a program for each of these uses.
//!
//! Each client has a tokio task that owns its connection. So create a client inside a tokio runtime with its
//! I/O and time drivers enabled.

mod admin;
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod clock;
mod connection;
mod core;
mod election;
mod files;
mod guard;
pub mod lease;
mod lock_request;
mod semaphore;
#[cfg(feature = "testing")]
pub mod testing;
mod watch;

pub use admin::Admin;
pub use client::{Client, ClientBuilder, DEFAULT_SERVER};
pub use conclave_core::report::{
    Blocker, Breaking, Change, ClusterStatus, FileResult, FileStat, Holder, LockInfo, LockReport,
    MemberStatus, QueuePosition, SessionInfo, Waiter, WatchEvent,
};
pub use conclave_core::{
    Claim, Code, Deadlock, Error, Expr, Fence, FilePath, LockName, Priority, RequestId, SessionId, Version,
    VictimPolicy, WaitsFor,
};
pub use conclave_wire::socket::Socket;
pub use connection::Connector;
pub use election::{Campaign, Leader, Leadership};
pub use files::{Children, Create, File, FileOp, Files};
pub use guard::{Guard, HeldName, LossReason, Lost};
pub use lease::LeaseState;
pub use lock_request::{LockRequest, Owner, PendingLock};
pub use semaphore::Semaphore;
pub use watch::Watch;

/// A [`std::result::Result`] with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
