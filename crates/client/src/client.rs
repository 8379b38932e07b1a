//! The client: a handle to a session; cheap to clone.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use conclave_core::report::LockReport;
use conclave_core::request::MAX_SESSION_LABEL_BYTES;
use conclave_core::{Code, Error, Expr, LockName, OwnerLabel, SessionId, parse_servers};
use conclave_wire::v1;
use tokio::sync::oneshot;

use crate::connection::{self, Connector, Direct, Driver, Shared};
use crate::core::{Core, Opening, PendingAnswer, Reply, stopped};
use crate::election::{self, Campaign, Leader};
use crate::files::Files;
use crate::lock_request::{LockRequest, Owner};
use crate::semaphore::Semaphore;
use crate::watch::Watch;
use crate::{Admin, Result};

/// The address of a server that was started without `--listen`.
pub const DEFAULT_SERVER: &str = "127.0.0.1:7411";

/// A client of the service, with at most one session on one connection. All clones share both.
///
/// The first request that needs a session opens it. The client keeps it alive and, after a lost connection,
/// resumes it on any node. The session ends when the last clone, guard and watch is dropped.
/// [`Client::close`] ends it earlier and waits for the reply. After that, a later request or a running watch
/// opens a new session.
#[derive(Clone)]
pub struct Client {
    pub(crate) handle: Arc<Handle>,
}

/// The options of a client. [`Client::builder`] creates it.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example() -> conclave_client::Result<()> {
/// use conclave_client::Client;
///
/// let builder = Client::builder().ttl(Duration::from_secs(5)).label("billing");
/// let client = builder.connect("a:7411,b:7411").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ClientBuilder {
    opening: Opening,
    retry_timeout: Duration,
    connector: Option<Arc<dyn Connector>>,
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { opening, retry_timeout, connector: _ } = self;
        f.debug_struct("ClientBuilder")
            .field("opening", opening)
            .field("retry_timeout", retry_timeout)
            .finish_non_exhaustive()
    }
}

/// The shared part of all clones, guards and watches. Its drop ends the session and the task.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Client {
    /// Connects to the first of `servers` that replies. The list has items `HOST` or `HOST:PORT`, with commas
    /// between. The port is 7411 if it is absent.
    ///
    /// If the address is a loopback address (`127.0.0.1:7411`), a server of the same user is reached by its
    /// Unix socket. The prefix `tcp:` before the address forces TCP.
    ///
    /// # Errors
    /// The same as [`ClientBuilder::connect`].
    pub async fn connect(servers: &str) -> Result<Self> {
        Self::builder().connect(servers).await
    }

    /// Returns a builder with the default options.
    pub fn builder() -> ClientBuilder {
        let (opening, retry_timeout) = (Opening::default(), Duration::from_secs(10));
        ClientBuilder { opening, retry_timeout, connector: None }
    }

    /// Creates a request for `expr`; awaiting it acquires the lock. Examples: `db`, `src & dst`,
    /// `gpu0 | gpu1`, `2 of (a, b, c)`, `plan:shared`, `pool*3`.
    ///
    /// Two locks of one client exclude each other; [`Client::owner`] creates an owner for locks that belong
    /// together. This call parses a text. If the text is not an expression, the request fails with that
    /// error.
    pub fn lock(&self, expr: impl TryInto<Expr, Error: Into<Error>>) -> LockRequest {
        LockRequest::new(self, expr.try_into().map_err(Into::into))
    }

    /// Returns whether the present connection, or the last one, uses a Unix socket.
    pub fn is_local(&self) -> bool {
        self.handle.shared.is_local()
    }

    /// Creates an owner, whose requests belong together. Its locks are re-entrant, and at most one of its
    /// requests waits at a time. Deadlocks are detected between owners.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if the label is empty, longer than 128 bytes, or contains control
    /// characters.
    pub fn owner(&self, label: &str) -> Result<Owner> {
        let label = OwnerLabel::new(label);
        let label = label.map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))?;
        Ok(Owner::new(self, label))
    }

    /// Creates a campaign in the election `name`; awaiting it returns when this client is the leader. `value`
    /// is the text or data that it then proclaims.
    pub fn elect(&self, name: &str, value: impl Into<Vec<u8>>) -> Campaign {
        let name = LockName::new(name).map_err(Error::from).map(Expr::name);
        Campaign::new(LockRequest::new(self, name), value.into())
    }

    /// Returns the leader of the election `name`, if there is one.
    ///
    /// # Errors
    /// The name is invalid, or no majority of the servers replies.
    pub async fn leader(&self, name: &str) -> Result<Option<Leader>> {
        Ok(election::leader(self.why(name).await?))
    }

    /// Creates the semaphore `name`, or changes its limit to `permits`.
    ///
    /// # Errors
    /// The same as [`Admin::limit`].
    pub async fn semaphore(&self, name: &str, permits: u32) -> Result<Semaphore> {
        let name = LockName::new(name)?;
        self.admin().limit(name.as_str(), permits).await?;
        Ok(Semaphore::new(self, name))
    }

    /// Returns a handle to the tree of files.
    pub fn files(&self) -> Files {
        Files::new(self)
    }

    /// Returns the operations on other clients' locks and sessions, and on semaphores.
    pub fn admin(&self) -> Admin {
        Admin::new(self)
    }

    /// Watches one lock, semaphore or election.
    ///
    /// # Errors
    /// The name is invalid, or the connection has too many watches.
    pub async fn watch_lock(&self, name: &str) -> Result<Watch> {
        Watch::begin(self, v1::watch::Target::Lock(name.into()), None).await
    }

    /// Returns the report about one name: its holders, its queue, its deadlocks, and the cases in which
    /// operators took it away.
    ///
    /// # Errors
    /// The name is invalid, or no majority of the servers replies.
    pub async fn why(&self, name: &str) -> Result<LockReport> {
        match self.query(v1::query::Kind::Why(v1::Why { name: name.into() })).await? {
            v1::answer::Result::Report(report) => report.try_into(),
            other => Err(unexpected(&other)),
        }
    }

    /// The number of the session, if one is open.
    pub fn session(&self) -> Option<SessionId> {
        self.handle.shared.with(|core, _| core.session()).map(SessionId)
    }

    /// Ends the session cleanly. All its names are free, without a lock-delay, when this returns. All its
    /// guards are lost.
    ///
    /// # Errors
    /// No server replies. The session then ends when its lease expires.
    pub async fn close(&self) -> Result<()> {
        if !self.handle.shared.with(|core, _| core.has_session()) {
            return Ok(());
        }
        match self.change(v1::request::Op::Close(v1::Close {})).await {
            Err(error) if error.code != Code::SessionEnded => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends a change whose reply is `Done`.
    pub(crate) async fn done(&self, op: v1::request::Op) -> Result<()> {
        match self.change(op).await? {
            v1::answer::Result::Done(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn change(&self, op: v1::request::Op) -> Result<v1::answer::Result> {
        answered(self.start(op)?).await
    }

    /// Sends a change without waiting for the reply.
    pub(crate) fn start(&self, op: v1::request::Op) -> Result<PendingAnswer> {
        let (sender, answer) = oneshot::channel();
        self.handle.shared.submit(|core, now| core.request(now, op, Reply::Once(sender)))?;
        Ok(answer)
    }

    pub(crate) async fn query(&self, query: v1::query::Kind) -> Result<v1::answer::Result> {
        let (sender, answer) = oneshot::channel();
        self.handle.shared.submit(|core, now| core.query(now, query, Reply::Once(sender)))?;
        answered(answer).await
    }
}

impl ClientBuilder {
    /// Sets the lease, TTL: how long the session lives without its client. A disconnected client loses its
    /// locks after this time. The server's default is 10 seconds.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.opening.ttl_ms = millis(ttl).max(1);
        self
    }

    /// Sets the lock-delay: how long names stay unavailable after an unclean end of the session. The server's
    /// default is one second.
    #[must_use]
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.opening.lock_delay_ms = Some(millis(delay));
        self
    }

    /// Sets the label that lists show, for example a host and a program. At most 256 bytes.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.opening.label = label.into();
        self
    }

    /// Sets how long a request is retried while servers reject it or cannot be reached. The default is 10
    /// seconds. A release, and an acquire that is queued, are retried for as long as the session lives.
    #[must_use]
    pub fn retry_timeout(mut self, retry_timeout: Duration) -> Self {
        self.retry_timeout = retry_timeout;
        self
    }

    /// Replaces the way to connect, for the first connection and for all later ones. A connector can, for
    /// example, start a server on demand. It defines the meaning of the names in the list of servers.
    #[must_use]
    pub fn connector(mut self, connector: Arc<dyn Connector>) -> Self {
        self.connector = Some(connector);
        self
    }

    /// Connects to the first of `servers` that replies; [`Client::connect`] describes the form of the list.
    ///
    /// # Errors
    /// [`Code::Unreachable`] if no server replies; [`Code::InvalidArgument`] if an address is wrong or the
    /// label is too long.
    pub async fn connect(self, servers: &str) -> Result<Client> {
        if self.opening.label.len() > MAX_SESSION_LABEL_BYTES {
            let text = format!("the label of a session has at most {MAX_SESSION_LABEL_BYTES} bytes");
            return Err(Error::new(Code::InvalidArgument, text));
        }
        let seeds = match &self.connector {
            // Only the connector knows the meaning of the names.
            Some(_) => servers.split(',').map(|name| name.trim().to_owned()).collect(),
            None => parse_servers(servers).map_err(|message| Error::new(Code::InvalidArgument, message))?,
        };
        let connector = self.connector.unwrap_or_else(|| Arc::new(Direct));
        let connected = connection::connect(&seeds, &*connector).await?;
        let shared = Shared::new(Core::new(self.opening, self.retry_timeout)).with_clock(connector.clock());
        let shared = Arc::new(shared);
        let driver = Driver { shared: shared.clone(), seeds, connector };
        tokio::spawn(driver.run(connected));
        Ok(Client { handle: Arc::new(Handle { shared }) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Best effort. Requests keep their order: the releases of dropped guards go first, then the end of
        // the session.
        self.shared.submit(Core::close);
    }
}

/// Waits for the final reply to a request.
pub(crate) async fn answered(answer: PendingAnswer) -> Result<v1::answer::Result> {
    answer.await.unwrap_or_else(|_| Err(stopped()))
}

/// The error for a reply whose kind does not fit the request.
pub(crate) fn unexpected(answer: &v1::answer::Result) -> Error {
    let text = format!("the server sent a reply to another request: {answer:?}");
    Error::new(Code::Internal, text.chars().take(200).collect::<String>())
}

pub(crate) fn millis(duration: Duration) -> u64 {
    // Round up: 100 us must not become 0, which means "try".
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
