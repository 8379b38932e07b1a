//! Operations on other clients' locks and sessions, and the reports about all of them.

use conclave_core::SessionId;
use conclave_core::report::{ClusterStatus, LockInfo, SessionInfo};
use conclave_wire::v1;

use crate::client::unexpected;
use crate::{Client, Result};

/// The operations of an operator. [`Client::admin`] creates it.
///
/// ```no_run
/// # async fn example(client: conclave_client::Client) -> conclave_client::Result<()> {
/// let admin = client.admin();
/// admin.limit("pool", 3).await?;
/// admin.break_lock("nightly", "its machine is gone").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Admin {
    client: Client,
}

impl Admin {
    pub(crate) fn new(client: &Client) -> Self {
        Self { client: client.clone() }
    }

    /// Creates a semaphore or changes its limit. The limit 0 makes an unused semaphore a plain name again.
    /// Returns the previous limit, or `None` if the name was not a semaphore.
    ///
    /// # Errors
    /// [`crate::Code::WrongKind`] if the name is in use as a lock: it has a holder or a waiter.
    pub async fn limit(&self, name: &str, permits: u32) -> Result<Option<u32>> {
        match self.client.change(v1::request::Op::Limit(v1::Limit { name: name.into(), permits })).await? {
            v1::answer::Result::Limited(v1::Limited { before }) => Ok(before),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes a name away from all its holders. The server sends them `reason`.
    ///
    /// # Errors
    /// [`crate::Code::NotHeld`] if the name has no holder.
    pub async fn break_lock(&self, name: &str, reason: &str) -> Result<()> {
        let broken = v1::Break { name: name.into(), reason: reason.into() };
        self.client.done(v1::request::Op::Break(broken)).await
    }

    /// Ends another session as if its lease had expired.
    ///
    /// # Errors
    /// [`crate::Code::SessionEnded`] if the session does not exist.
    pub async fn end_session(&self, session: SessionId) -> Result<()> {
        self.client.done(v1::request::Op::EndSession(v1::EndSession { session: session.0 })).await
    }

    /// Returns the names in use that begin with `prefix`.
    ///
    /// # Errors
    /// No majority of the servers replies.
    pub async fn locks(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let mut all: Vec<LockInfo> = Vec::new();
        loop {
            let after = all.last().map(|lock| lock.name.as_str().to_owned()).unwrap_or_default();
            let query = v1::query::Kind::Locks(v1::ReadLocks { prefix: prefix.into(), after });
            match self.client.query(query).await? {
                v1::answer::Result::Locks(page) => {
                    let more = page.more && !page.locks.is_empty();
                    for lock in page.locks {
                        all.push(lock.try_into()?);
                    }
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Returns all sessions.
    ///
    /// # Errors
    /// No majority of the servers replies.
    pub async fn sessions(&self) -> Result<Vec<SessionInfo>> {
        let mut all: Vec<SessionInfo> = Vec::new();
        loop {
            let after = all.last().map_or(0, |session| session.session.0);
            match self.client.query(v1::query::Kind::Sessions(v1::ReadSessions { after })).await? {
                v1::answer::Result::Sessions(page) => {
                    let more = page.more && !page.sessions.is_empty();
                    all.extend(page.sessions.into_iter().map(SessionInfo::from));
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Returns the nodes, as the connected node sees them. This works without a majority.
    ///
    /// # Errors
    /// The connection is lost, and no other node can be reached.
    pub async fn cluster(&self) -> Result<ClusterStatus> {
        match self.client.query(v1::query::Kind::Cluster(v1::ReadCluster {})).await? {
            v1::answer::Result::Cluster(cluster) => Ok(cluster.into()),
            other => Err(unexpected(&other)),
        }
    }
}
