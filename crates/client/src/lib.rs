//! Locks, elections, semaphores, files and watches of a Conclave service, for programs in Rust.
//!
//! ```no_run
//! # async fn example() -> Result<(), conclave_client::Error> {
//! use conclave_client::Client;
//!
//! let client = Client::connect("127.0.0.1:7411").await?;
//! let guard = client.lock("orders & (eu | us):shared").await?;
//! println!("holding {:?} by fence {}", guard.locks().collect::<Vec<_>>(), guard.fence());
//! // Send `guard.fence_of("orders")` with each request to the store that the lock `orders` protects.
//! // The store then rejects a client whose lock has expired.
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Client`]: a session on one connection. The client keeps it alive, and resumes it on any node after a
//!   lost connection.
//! - [`Guard`]: the names of one grant. [`Guard::lost`] returns when they are no longer held, with the
//!   reason.
//! - [`Request`] and [`PendingLock`]: a lock with a priority, an owner or a wait limit. The wait can be
//!   inspected and cancelled.
//! - [`Leadership`], [`Semaphore`], [`Files`], [`Watch`]: the other operations.
//! - [`lease`]: the deadline of a session, as a state machine without a clock.
//!
//! Each client has a tokio task that owns its socket. Create a client inside a tokio runtime with its I/O and
//! time drivers enabled.

mod admin;
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
pub use conclave_core::{
    Code, Error, Expr, Fence, LockName, Priority, SessionId, Version, VictimPolicy, Wait,
};
pub use conclave_wire::socket::Socket;
pub use conclave_wire::v1 as wire;
pub use connection::Connector;
pub use election::{Campaign, Leader, Leadership};
pub use files::{Children, Create, File, FileOp, Files};
pub use guard::{Guard, HeldName, LossReason, Lost};
pub use lease::LeaseState;
pub use lock_request::{LockRequest, Owner, PendingLock};
pub use semaphore::Semaphore;
pub use watch::{Watch, WatchEvent};

/// A [`std::result::Result`] with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
