//! The client: a handle to a session, cheap to clone.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use conclave_api::proto::v1;
use conclave_api::request::MAX_SESSION_LABEL_BYTES;
use conclave_api::{Code, Error, OwnerLabel, SessionId, parse_servers};
use tokio::sync::oneshot;

use crate::acquire::{Owner, Request};
use crate::core::{AnswerToCome, Core, Opening, Reply, stopped};
use crate::election::{self, Leader, Leadership};
use crate::files::Files;
use crate::guard::Guard;
use crate::link::{self, Connector, Direct, Driver, Shared};
use crate::semaphore::{Semaphore, quoted};
use crate::watch::Watch;
use crate::{Result, Wait};

/// The address of a server that was started without `--listen`.
pub const DEFAULT_SERVER: &str = "127.0.0.1:7411";

/// A client of the service: at most one session, on one connection. Clones share it.
///
/// The session is opened by the first request that needs one, kept alive, resumed on any node after a lost connection, and
/// ended when the last clone, guard and watch is gone. [`Client::close`] ends it and waits until that is known. What needs
/// one afterwards, a watch that goes on for instance, opens another.
#[derive(Clone)]
pub struct Client {
    pub(crate) handle: Arc<Handle>,
}

/// How a client connects.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example() -> conclave_client::Result<()> {
/// let client = conclave_client::Client::options().ttl(Duration::from_secs(5)).label("billing").connect("a:7411,b:7411").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Options {
    opening: Opening,
    patience: Duration,
    connector: Option<Arc<dyn Connector>>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { opening, patience, connector: _ } = self;
        f.debug_struct("Options")
            .field("opening", opening)
            .field("patience", patience)
            .finish_non_exhaustive()
    }
}

/// Dropped with the last clone: then the task ends.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Client {
    /// Connects to the first of `servers` that answers: `HOST` or `HOST:PORT`, several with commas between.
    /// The port is 7411 if it is absent.
    ///
    /// A server of the same user on the same machine is reached by its Unix socket if its address is a
    /// loopback address (`127.0.0.1:7411`). The prefix `tcp:` before the address forces TCP.
    ///
    /// # Errors
    /// As [`Options::connect`].
    pub async fn connect(servers: &str) -> Result<Self> {
        Self::options().connect(servers).await
    }

    /// To connect with other than the usual options.
    pub fn options() -> Options {
        let (opening, patience) = (Opening::default(), Duration::from_secs(10));
        Options { opening, patience, connector: None }
    }

    /// Waits until `expr` is granted: `db`, `src & dst`, `gpu0 | gpu1`, `2 of (a, b, c)`, `plan:shared`, `pool*3`.
    ///
    /// Two locks of one client exclude each other; see [`Client::owner`] for those that belong together. Dropping the
    /// future gives the wait up.
    ///
    /// # Errors
    /// A refusal: the expression is none, it can never be had, or waiting for it closes a deadlock.
    pub async fn lock(&self, expr: &str) -> Result<Guard> {
        self.request(expr).start()?.granted().await
    }

    /// Takes `expr` if it is free now.
    ///
    /// # Errors
    /// As [`Client::lock`].
    pub async fn try_lock(&self, expr: &str) -> Result<Option<Guard>> {
        self.request(expr).wait(Wait::Try).start()?.granted_in_time().await
    }

    /// Waits at most `limit`, counted by the server.
    ///
    /// # Errors
    /// As [`Client::lock`].
    pub async fn lock_within(&self, expr: &str, limit: Duration) -> Result<Option<Guard>> {
        self.request(expr).within(limit).start()?.granted_in_time().await
    }

    /// Whether the server is, or was last, reached by its Unix socket.
    pub fn is_local(&self) -> bool {
        self.handle.shared.is_local()
    }

    /// A request with options.
    pub fn request(&self, expr: &str) -> Request {
        Request::new(self, expr)
    }

    /// An owner: its requests belong together. They are re-entrant, one of them waits at a time, and deadlocks are found
    /// among owners.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if the label is empty, longer than 128 bytes or has control characters.
    pub fn owner(&self, label: &str) -> Result<Owner> {
        let label = OwnerLabel::new(label);
        let label = label.map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))?;
        Ok(Owner::new(self, label))
    }

    /// Campaigns in the election `name` and returns when it is won, proclaiming `value`.
    ///
    /// # Errors
    /// As [`Client::lock`].
    pub async fn elect(&self, name: &str, value: impl Into<Vec<u8>>) -> Result<Leadership> {
        let guard = self.request(&quoted(name)).value(value.into()).start()?.granted().await?;
        Ok(Leadership::new(guard))
    }

    /// Who leads in the election `name`.
    ///
    /// # Errors
    /// The name is none, or no majority answers.
    pub async fn leader(&self, name: &str) -> Result<Option<Leader>> {
        Ok(election::leader(self.why(name).await?))
    }

    /// A semaphore, made or changed to have `permits`.
    ///
    /// # Errors
    /// As [`Client::limit`].
    pub async fn semaphore(&self, name: &str, permits: u32) -> Result<Semaphore> {
        self.limit(name, permits).await?;
        Ok(Semaphore::new(self, name))
    }

    /// Makes or changes a semaphore; 0 makes an unused one a plain name again. Returns the permits before, or
    /// `None` if the name was not a semaphore.
    ///
    /// # Errors
    /// [`Code::WrongKind`] if somebody holds the name, or waits for it, as a lock.
    pub async fn limit(&self, name: &str, permits: u32) -> Result<Option<u32>> {
        match self.change(v1::request::Op::Limit(v1::Limit { name: name.into(), permits })).await? {
            v1::answer::Result::Limited(v1::Limited { before }) => Ok(before),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes a name away from everybody who holds it; they are told `reason`.
    ///
    /// # Errors
    /// [`Code::NotHeld`] if nobody does.
    pub async fn break_lock(&self, name: &str, reason: &str) -> Result<()> {
        let broken = v1::Break { name: name.into(), reason: reason.into() };
        self.done(v1::request::Op::Break(broken)).await
    }

    /// Ends another session as if its lease had run out.
    ///
    /// # Errors
    /// [`Code::SessionEnded`] if there is none.
    pub async fn end_session(&self, session: SessionId) -> Result<()> {
        self.done(v1::request::Op::EndSession(v1::EndSession { session: session.0 })).await
    }

    /// The files.
    pub fn files(&self) -> Files {
        Files::new(self)
    }

    /// Watches one lock, semaphore or election.
    ///
    /// # Errors
    /// The name is none, or there are too many watches.
    pub async fn watch_lock(&self, name: &str) -> Result<Watch> {
        Watch::begin(self, v1::watch::Target::Lock(name.into()), None).await
    }

    /// Everything about one name: holders, queue, deadlocks, breakings.
    ///
    /// # Errors
    /// The name is none, or no majority answers.
    pub async fn why(&self, name: &str) -> Result<v1::Report> {
        match self.ask(v1::query::What::Why(v1::Why { name: name.into() })).await? {
            v1::answer::Result::Report(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    /// The names in use that begin with `prefix`.
    ///
    /// # Errors
    /// No majority answers.
    pub async fn locks(&self, prefix: &str) -> Result<Vec<v1::LockSummary>> {
        let mut all: Vec<v1::LockSummary> = Vec::new();
        loop {
            let after = all.last().map(|lock| lock.name.clone()).unwrap_or_default();
            let what = v1::query::What::Locks(v1::ReadLocks { prefix: prefix.into(), after });
            match self.ask(what).await? {
                v1::answer::Result::Locks(page) => {
                    let more = page.more && !page.locks.is_empty();
                    all.extend(page.locks);
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// The sessions.
    ///
    /// # Errors
    /// No majority answers.
    pub async fn sessions(&self) -> Result<Vec<v1::SessionSummary>> {
        let mut all: Vec<v1::SessionSummary> = Vec::new();
        loop {
            let after = all.last().map_or(0, |session| session.session);
            match self.ask(v1::query::What::Sessions(v1::ReadSessions { after })).await? {
                v1::answer::Result::Sessions(page) => {
                    let more = page.more && !page.sessions.is_empty();
                    all.extend(page.sessions);
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// The nodes, as the one that this client is connected to sees them; answered without a majority too.
    ///
    /// # Errors
    /// The connection is lost, and no node is found.
    pub async fn cluster(&self) -> Result<v1::Cluster> {
        match self.ask(v1::query::What::Cluster(v1::ReadCluster {})).await? {
            v1::answer::Result::Cluster(cluster) => Ok(cluster),
            other => Err(unexpected(&other)),
        }
    }

    /// The session, if one is open.
    pub fn session(&self) -> Option<SessionId> {
        self.handle.shared.with(|core, _| core.session()).map(SessionId)
    }

    /// Ends the session cleanly: what it holds is free, without a lock-delay, when this returns. Guards are lost.
    ///
    /// # Errors
    /// Nobody answered: the session ends by itself when its lease has run out.
    pub async fn close(&self) -> Result<()> {
        if !self.handle.shared.with(|core, _| core.has_session()) {
            return Ok(());
        }
        match self.change(v1::request::Op::Close(v1::Close {})).await {
            Err(error) if error.code != Code::SessionEnded => Err(error),
            _ => Ok(()),
        }
    }

    /// A change that is answered by "done".
    pub(crate) async fn done(&self, op: v1::request::Op) -> Result<()> {
        match self.change(op).await? {
            v1::answer::Result::Done(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn change(&self, op: v1::request::Op) -> Result<v1::answer::Result> {
        answered(self.start(op)?).await
    }

    /// Asks for a change, and does not wait.
    pub(crate) fn start(&self, op: v1::request::Op) -> Result<AnswerToCome> {
        let (sender, answer) = oneshot::channel();
        self.handle.shared.ask(|core, now| core.request(now, op, Reply::Once(sender)))?;
        Ok(answer)
    }

    pub(crate) async fn ask(&self, what: v1::query::What) -> Result<v1::answer::Result> {
        let (sender, answer) = oneshot::channel();
        self.handle.shared.ask(|core, now| core.query(now, what, Reply::Once(sender)))?;
        answered(answer).await
    }
}

impl Options {
    /// The lease: how long the session outlives its client, and how soon a client that is cut off must stop believing.
    /// The server's default is 10 seconds.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.opening.ttl_ms = millis(ttl).max(1);
        self
    }

    /// How long names stay untaken after an unclean end of the session. The server's default is one second.
    #[must_use]
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.opening.lock_delay_ms = Some(millis(delay));
        self
    }

    /// What people see in lists: a host and a program, for instance. At most 256 bytes.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.opening.label = label.into();
        self
    }

    /// How long a request is offered to servers that cannot take it, or that cannot be reached. 10 seconds, unless said
    /// otherwise. A release is offered for as long as the session lives, and so is a lock that is waited for.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Replaces the way to connect, for the first connection and for all later ones. The connector may, for
    /// example, start a server on demand. It gives meaning to the names in the list of servers.
    #[must_use]
    pub fn connector(mut self, connector: Arc<dyn Connector>) -> Self {
        self.connector = Some(connector);
        self
    }

    /// Connects to the first of `servers` that answers; see [`Client::connect`] for their form.
    ///
    /// # Errors
    /// [`Code::Unreachable`] if no server answers; [`Code::InvalidArgument`] if an address is wrong or the
    /// label is too long.
    pub async fn connect(self, servers: &str) -> Result<Client> {
        if self.opening.label.len() > MAX_SESSION_LABEL_BYTES {
            let text = format!("the label of a session has at most {MAX_SESSION_LABEL_BYTES} bytes");
            return Err(Error::new(Code::InvalidArgument, text));
        }
        let seeds = match &self.connector {
            // The names have a meaning for the connector alone.
            Some(_) => servers.split(',').map(|name| name.trim().to_owned()).collect(),
            None => parse_servers(servers).map_err(|message| Error::new(Code::InvalidArgument, message))?,
        };
        let connector = self.connector.unwrap_or_else(|| Arc::new(Direct));
        let connected = link::connect(&seeds, &*connector).await?;
        let shared = Arc::new(Shared::new(Core::new(self.opening, self.patience)));
        let driver = Driver { shared: shared.clone(), seeds, connector };
        tokio::spawn(driver.run(connected));
        Ok(Client { handle: Arc::new(Handle { shared }) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Best effort, in the order things were asked: releases of guards first, then the end.
        self.shared.ask(Core::close);
    }
}

/// Waits for an answer.
pub(crate) async fn answered(answer: AnswerToCome) -> Result<v1::answer::Result> {
    answer.await.unwrap_or_else(|_| Err(stopped()))
}

/// A server that answers something else than was asked.
pub(crate) fn unexpected(answer: &v1::answer::Result) -> Error {
    let text = format!("the server sent a reply to another request: {answer:?}");
    Error::new(Code::Internal, text.chars().take(200).collect::<String>())
}

pub(crate) fn millis(duration: Duration) -> u64 {
    // A millisecond that has begun counts: nobody who says 100 us means "try".
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
