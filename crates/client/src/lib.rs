//! Locks, elections, semaphores, files and watches of a Conclave service, for programs in Rust.
//!
//! ```no_run
//! # async fn example() -> Result<(), conclave_client::Error> {
//! use conclave_client::Client;
//!
//! let client = Client::connect("127.0.0.1:7411").await?;
//! let guard = client.lock("orders & (eu | us):shared").await?;
//! println!("holding {:?} by fence {}", guard.locks().collect::<Vec<_>>(), guard.fence());
//! // Send `guard.fence_of("orders")` along to the store that guards the orders: it refuses whoever is late.
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Client`]: a session on one connection, kept alive, resumed after a lost connection, on any node.
//! - [`Guard`]: what is held; [`Guard::lost`] says when to stop believing it, and why.
//! - [`Request`] and [`Acquiring`]: a lock with a priority, an owner, a limit of patience; a wait that can be looked at and
//!   cancelled.
//! - [`Leadership`], [`Semaphore`], [`Files`], [`Watch`]: the rest.
//! - [`lease`]: until when to believe, as a machine without a clock.
//!
//! A client has a task that owns its socket: make one inside a tokio runtime. Nothing else is asked of the runtime.

mod acquire;
mod client;
mod clock;
mod core;
mod election;
mod files;
mod guard;
pub mod lease;
mod link;
mod semaphore;
#[cfg(feature = "testing")]
pub mod testing;
mod watch;

pub use acquire::{Acquiring, Owner, Request};
pub use client::{Client, DEFAULT_SERVER, Options};
pub use conclave_api::proto::v1 as wire;
pub use conclave_api::socket::Socket;
pub use conclave_api::{
    Code, Error, Expr, Fence, LockName, Priority, SessionId, Version, VictimPolicy, Wait,
};
pub use election::{Leader, Leadership};
pub use files::{Children, Create, File, FileOp, Files};
pub use guard::{Guard, HeldName, Loss};
pub use lease::Standing;
pub use link::Connector;
pub use semaphore::Semaphore;
pub use watch::{Notice, Watch};

/// What anything that can fail comes to.
pub type Result<T, E = Error> = std::result::Result<T, E>;
