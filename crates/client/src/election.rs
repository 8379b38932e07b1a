//! Elections: a lock with a value.

use std::pin::Pin;
use std::time::Duration;

use conclave_core::report::LockReport;
use conclave_core::{Fence, SessionId};
use conclave_wire::v1;

use crate::guard::{Guard, LossReason, Lost};
use crate::{LockRequest, Result};

/// A campaign in an election. Awaiting it sends it, and returns the [`Leadership`] when the election is won.
///
/// ```no_run
/// # async fn example(client: conclave_client::Client) -> conclave_client::Result<()> {
/// let leadership = client.elect("scheduler", "10.0.0.7:9000").await?;
/// println!("leading in term {}", leadership.term());
/// leadership.resign().await?;
/// # Ok(())
/// # }
/// ```
///
/// Dropping the future ends the campaign. The errors are those of a [`LockRequest`].
#[derive(Clone)]
#[must_use = "nothing is sent before the campaign is awaited"]
pub struct Campaign {
    request: LockRequest,
}

impl Campaign {
    pub(crate) fn new(request: LockRequest, value: Vec<u8>) -> Self {
        Self { request: request.value(value) }
    }

    /// Sets the priority, like [`LockRequest::priority`].
    pub fn priority(self, priority: i32) -> Self {
        Self { request: self.request.priority(priority) }
    }

    /// Sets the time limit of the wait, like [`LockRequest::timeout`].
    pub fn timeout(self, limit: Duration) -> Self {
        Self { request: self.request.timeout(limit) }
    }

    /// Wins the election if it has no leader now. Returns `None` if it has one.
    ///
    /// # Errors
    /// The same as [`LockRequest::try_now`].
    pub async fn try_now(self) -> Result<Option<Leadership>> {
        Ok(self.request.try_now().await?.map(Leadership::new))
    }
}

impl IntoFuture for Campaign {
    type Output = Result<Leadership>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Leadership>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { Ok(Leadership::new(self.request.await?)) })
    }
}

/// The leadership of an election, until this client resigns or loses it. Dropping it resigns.
pub struct Leadership {
    guard: Guard,
}

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The value that the leader proclaims.
    pub value: Vec<u8>,
    /// The term of this leadership. A later leader has a larger one.
    pub term: Fence,
    /// The session of the leader.
    pub session: SessionId,
    /// A text that describes the leader, for display.
    pub owner: String,
}

impl Leadership {
    fn new(guard: Guard) -> Self {
        Self { guard }
    }

    /// The term of this leadership: the fence of the lock behind it. A later leader has a larger term, so a
    /// store that remembers the largest term can reject an earlier leader.
    pub fn term(&self) -> Fence {
        self.guard.fence()
    }

    /// Changes the value that this leader proclaims.
    ///
    /// # Errors
    /// [`crate::Code::NotHeld`] if the leadership is lost.
    pub async fn proclaim(&self, value: impl Into<Vec<u8>>) -> Result<()> {
        let proclaim = v1::Proclaim { grant: self.guard.id(), value: value.into() };
        self.guard.client().done(v1::request::Op::Proclaim(proclaim)).await
    }

    /// Returns the reason as soon as the leadership is lost.
    pub async fn lost(&self) -> LossReason {
        self.guard.lost().await
    }

    /// Runs `work` as the leader, like [`Guard::run`].
    ///
    /// # Errors
    /// [`Lost`] if the leadership ends before the work.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost<T>> {
        self.guard.run(work).await
    }

    /// Resigns, and returns when other clients can lead.
    ///
    /// # Errors
    /// [`crate::Code::NotHeld`] if the leadership was lost before.
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }

    /// The guard of the lock behind this leadership.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }
}

pub(crate) fn leader(report: LockReport) -> Option<Leader> {
    let value = report.value?;
    let holder = report.holders.into_iter().next()?;
    Some(Leader { value, term: holder.fence, session: holder.session, owner: holder.owner })
}
