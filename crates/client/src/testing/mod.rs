//! A server in memory, for the tests of programs that use this crate.
//!
//! ```toml
//! [dev-dependencies]
//! conclave-client = { version = "0.1", features = ["testing"] }
//! tokio = { version = "1", features = ["macros", "rt", "test-util"] }
//! ```
//!
//! [`Server`] runs the real node of the service in the process of the test, over a model of consensus.
//! [`Server::client`] returns a real [`crate::Client`]. There is no socket and no disk. The methods of
//! [`Server`] cause faults: a lost session, a new leader, late replies, broken connections, a power cut.
//!
//! **Time.** With `#[tokio::test(start_paused = true)]`, the clock jumps to the next timer as soon as no task
//! can go on. The leases of the server and of the clients count the same clock. So a test that waits for the
//! end of a lease takes milliseconds. Without `start_paused`, the same test takes real time.
//! [`crate::Guard::deadline`] is a time of this clock: compare it with `tokio::time::Instant::now()`. The
//! clock of the standard library is not paused.
//!
//! Put a limit on a test with a paused clock, such as `tokio::time::timeout` of one hour. The server always
//! has a next timer, so a test that waits for an event that never happens would run for ever.
//!
//! **Repeatable runs.** All random choices of the server follow from the seed of [`Server::start`]. On a
//! runtime with one thread and a paused clock, the same seed gives the same run. A program with random
//! choices of its own needs a seed for them too; that includes `tokio::select!` without `biased`. Tasks that
//! wait for the same loss are woken in the order in which they began to wait.
//!
//! **Limits.** The model loses no entry of the log, and its three nodes get each entry at once. Tests of the
//! service itself cover slow disks and partitions between nodes.
//!
//! # Example
//!
//! A worker writes to a store while it holds a lock. Its first version goes on after it has lost the lock.
//! The test cuts the first worker off during its work. It then finds lines of the first worker after lines of
//! the second one.
//!
//! ```
//! use std::cell::RefCell;
//! use std::time::Duration;
//!
//! use conclave_client::testing::Server;
//! use conclave_client::{Client, Result};
//! use tokio::time::sleep;
//!
//! type Store = RefCell<Vec<&'static str>>;
//!
//! async fn write_lines(store: &Store, name: &'static str) {
//!     for _ in 0..60 {
//!         store.borrow_mut().push(name);
//!         sleep(Duration::from_secs(1)).await;
//!     }
//! }
//!
//! /// Wrong: the guard may be lost during the work.
//! async fn first_version(client: &Client, store: &Store, name: &'static str) -> Result<()> {
//!     let _guard = client.lock("ledger").await?;
//!     write_lines(store, name).await;
//!     Ok(())
//! }
//!
//! /// Right: the work stops when the guard is lost.
//! async fn second_version(client: &Client, store: &Store, name: &'static str) -> Result<()> {
//!     let guard = client.lock("ledger").await?;
//!     tokio::select! {
//!         biased;
//!         _ = guard.lost() => {}
//!         () = write_lines(store, name) => {}
//!     }
//!     Ok(())
//! }
//!
//! /// Returns whether the two workers wrote at the same time.
//! async fn has_bug(worker: impl AsyncFn(&Client, &Store, &'static str) -> Result<()>) -> Result<bool> {
//!     let (server, store) = (Server::start(1), Store::default());
//!     let (first, second) = (server.client().await?, server.client().await?);
//!     let takeover = async {
//!         sleep(Duration::from_secs(5)).await;
//!         server.cut_off(&first);
//!         worker(&second, &store, "second").await
//!     };
//!     let (one, two) = tokio::join!(worker(&first, &store, "first"), takeover);
//!     one.and(two)?;
//!     let lines = store.into_inner();
//!     Ok(lines.iter().skip_while(|name| **name == "first").any(|name| *name == "first"))
//! }
//!
//! // A test would be: #[tokio::test(start_paused = true)] async fn no_worker_writes_without_its_lock() { ... }
//! # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?.block_on(async {
//! assert!(has_bug(first_version).await?);
//! assert!(!has_bug(second_version).await?);
//! # Ok::<(), conclave_client::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program that is suspended between its last check and its write is still too late. Only a store that
//! compares fences stops it: see [`crate::Guard::fence_of`]. [`Server::cut_off`] followed by
//! [`Server::lose_session`] gives this situation to a test.

mod cluster;
mod conversation;
mod outbox;
mod prng;
mod server;
mod world;

// For the simulator in the tests of this project. These items may change in every release.
#[doc(hidden)]
pub use conversation::{Conversation, Flaw, Pending, Watching};
pub(crate) use server::Link;
pub use server::Server;
