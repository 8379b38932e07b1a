//! The client for programs without an async runtime: each call returns when it is done.
//!
//! ```no_run
//! # fn main() -> conclave_client::Result<()> {
//! use conclave_client::blocking::Client;
//!
//! let client = Client::connect("127.0.0.1:7411")?;
//! let guard = client.lock("orders & plan:shared").wait()?;
//! println!("holding {:?} by fence {}", guard.names(), guard.fence());
//! if guard.loss().is_some() {
//!     // Stop: another client may hold the lock now.
//! }
//! guard.release()?;
//! # Ok(())
//! # }
//! ```
//!
//! The types have the names of the types in the crate's root, and their methods return the same errors. A
//! request is a value; `.wait()` takes the place of `.await`. Clients, guards and watches may be used from
//! several threads.
//!
//! One thread of the process, `conclave-client`, does the I/O of all blocking clients. It starts with the
//! first client, and keeps the sessions alive even if all threads of the program are blocked. A call may also
//! be made from async code, where it blocks its thread; use [`crate::Client`] there.

mod admin;
mod election;
mod files;
mod lock;
mod runtime;

use std::time::Duration;

use conclave_core::report::LockReport;
use conclave_core::{Error, Expr, SessionId};

pub use self::admin::Admin;
pub use self::election::{Campaign, Leadership};
pub use self::files::{Files, Watch};
pub use self::lock::{Guard, LockRequest, Owner};
use self::runtime::Runtime;
use crate::{Leader, Result};

/// A client of the service, with at most one session on one connection; [`crate::Client`] describes it. All
/// clones share both.
#[derive(Clone)]
pub struct Client {
    inner: crate::Client,
    runtime: Runtime,
}

/// The options of a client, like [`crate::ClientBuilder`]. [`Client::builder`] creates it.
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    inner: crate::ClientBuilder,
}

impl Client {
    /// Connects to the first of `servers` that replies, like [`crate::Client::connect`].
    ///
    /// # Errors
    /// The same as [`ClientBuilder::connect`].
    pub fn connect(servers: &str) -> Result<Self> {
        Self::builder().connect(servers)
    }

    /// Returns a builder with the default options.
    pub fn builder() -> ClientBuilder {
        ClientBuilder { inner: crate::Client::builder() }
    }

    /// Creates a request for `expr`, like [`crate::Client::lock`]. [`LockRequest::wait`] acquires the lock.
    pub fn lock(&self, expr: impl TryInto<Expr, Error: Into<Error>>) -> LockRequest {
        LockRequest::new(self.inner.lock(expr), &self.runtime)
    }

    /// Creates an owner, whose requests belong together, like [`crate::Client::owner`].
    ///
    /// # Errors
    /// The same as [`crate::Client::owner`].
    pub fn owner(&self, label: &str) -> Result<Owner> {
        Ok(Owner::new(self.inner.owner(label)?, &self.runtime))
    }

    /// Creates a campaign in the election `name`, like [`crate::Client::elect`]. [`Campaign::wait`] returns
    /// when this client is the leader.
    pub fn elect(&self, name: &str, value: impl Into<Vec<u8>>) -> Campaign {
        Campaign::new(self.inner.elect(name, value), &self.runtime)
    }

    /// Returns the leader of the election `name`, if there is one.
    ///
    /// # Errors
    /// The same as [`crate::Client::leader`].
    pub fn leader(&self, name: &str) -> Result<Option<Leader>> {
        self.runtime.wait(self.inner.leader(name))
    }

    /// Creates the semaphore `name`, or changes its limit to `permits`.
    ///
    /// # Errors
    /// The same as [`crate::Client::semaphore`].
    pub fn semaphore(&self, name: &str, permits: u32) -> Result<Semaphore> {
        let inner = self.runtime.wait(self.inner.semaphore(name, permits))?;
        Ok(Semaphore { inner, runtime: self.runtime.clone() })
    }

    /// Returns a handle to the tree of files.
    pub fn files(&self) -> Files {
        Files::new(self.inner.files(), &self.runtime)
    }

    /// Watches one lock, semaphore or election.
    ///
    /// # Errors
    /// The same as [`crate::Client::watch_lock`].
    pub fn watch_lock(&self, name: &str) -> Result<Watch> {
        Ok(Watch::new(self.runtime.wait(self.inner.watch_lock(name))?, &self.runtime))
    }

    /// Returns the report about one name, like [`crate::Client::why`].
    ///
    /// # Errors
    /// The same as [`crate::Client::why`].
    pub fn why(&self, name: &str) -> Result<LockReport> {
        self.runtime.wait(self.inner.why(name))
    }

    /// Returns the operations of an operator.
    pub fn admin(&self) -> Admin {
        Admin::new(self.inner.admin(), &self.runtime)
    }

    /// The number of the session, if one is open.
    pub fn session(&self) -> Option<SessionId> {
        self.inner.session()
    }

    /// Ends the session cleanly, like [`crate::Client::close`].
    ///
    /// # Errors
    /// The same as [`crate::Client::close`].
    pub fn close(&self) -> Result<()> {
        self.runtime.wait(self.inner.close())
    }
}

impl ClientBuilder {
    /// Sets the lease, like [`crate::ClientBuilder::ttl`].
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { inner: self.inner.ttl(ttl) }
    }

    /// Sets the lock-delay, like [`crate::ClientBuilder::lock_delay`].
    #[must_use]
    pub fn lock_delay(self, delay: Duration) -> Self {
        Self { inner: self.inner.lock_delay(delay) }
    }

    /// Sets the label of the session, like [`crate::ClientBuilder::label`].
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { inner: self.inner.label(label) }
    }

    /// Sets how long a request is retried, like [`crate::ClientBuilder::retry_timeout`].
    #[must_use]
    pub fn retry_timeout(self, timeout: Duration) -> Self {
        Self { inner: self.inner.retry_timeout(timeout) }
    }

    /// Connects to the first of `servers` that replies.
    ///
    /// # Errors
    /// The same as [`crate::ClientBuilder::connect`]. [`crate::Code::Internal`] means that the system refuses
    /// a thread.
    pub fn connect(self, servers: &str) -> Result<Client> {
        let runtime = Runtime::of_process()?;
        let inner = runtime.wait(self.inner.connect(servers))?;
        Ok(Client { inner, runtime })
    }
}

/// A semaphore, like [`crate::Semaphore`]. [`Client::semaphore`] creates it.
#[derive(Clone)]
pub struct Semaphore {
    inner: crate::Semaphore,
    runtime: Runtime,
}

impl Semaphore {
    /// Creates a request for `permits`, like [`crate::Semaphore::acquire`].
    pub fn acquire(&self, permits: u32) -> LockRequest {
        LockRequest::new(self.inner.acquire(permits), &self.runtime)
    }

    /// Changes the limit. Clients keep the permits that they hold.
    ///
    /// # Errors
    /// The same as [`crate::Semaphore::set_limit`].
    pub fn set_limit(&self, permits: u32) -> Result<()> {
        self.runtime.wait(self.inner.set_limit(permits))
    }
}
