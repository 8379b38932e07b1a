//! Requests for locks, their owners, and requests that wait.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use conclave_core::report::QueuePosition;
use conclave_core::{Code, Error, Expr, OwnerLabel, RequestId, VictimPolicy, Wait};
use conclave_wire::v1;
use tokio::sync::oneshot;

use crate::Result;
use crate::client::{Client, Handle, answered, millis};
use crate::core::{Reply, stopped};
use crate::guard::Guard;

/// A request for a lock, with its options. Awaiting it sends it, and returns the [`Guard`] when it is
/// granted.
///
/// Nothing is sent before the request is awaited or started. Dropping the future cancels the request.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example(client: conclave_client::Client) -> conclave_client::Result<()> {
/// let both = client.lock("src & dst").priority(3).timeout(Duration::from_secs(1)).await?;
/// let reader = client.lock("plan").shared().await?;
/// if let Some(guard) = client.lock("nightly").try_now().await? {
///     guard.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The text is not an expression, or can never be granted. The time limit has passed ([`Code::TimedOut`]).
/// The wait would complete a deadlock ([`Code::Deadlock`]).
#[derive(Clone)]
#[must_use = "nothing is sent before the request is awaited or started"]
pub struct LockRequest {
    client: Client,
    /// The error of a text that is not an expression, until the request is started.
    expr: Result<Expr>,
    /// The options. The field `expr` is empty.
    acquire: v1::Acquire,
}

impl LockRequest {
    pub(crate) fn new(client: &Client, expr: Result<Expr>) -> Self {
        Self { client: client.clone(), expr, acquire: v1::Acquire::default() }
    }

    /// Makes every name of the expression shared. A shared holder excludes only exclusive ones.
    pub fn shared(mut self) -> Self {
        self.expr = self.expr.and_then(|expr| Ok(expr.into_shared()?));
        self
    }

    /// Sets the priority; the default is 0. Larger priorities are granted first. Frequent requests of a high
    /// priority starve lower ones.
    pub fn priority(mut self, priority: i32) -> Self {
        self.acquire.priority = priority;
        self
    }

    /// Sets the time limit of the wait, measured by the server. Zero means no wait. Without this call the
    /// request waits until it is granted.
    ///
    /// At the limit the request fails with [`Code::TimedOut`], or without a wait with [`Code::WouldWait`].
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.acquire.set_wait(if limit.is_zero() { Wait::Try } else { Wait::AtMost(millis(limit)) });
        self
    }

    /// Sets which waiting request is rejected if this one completes a deadlock.
    pub fn on_deadlock(mut self, policy: VictimPolicy) -> Self {
        self.acquire.policy = v1::VictimPolicy::from(policy).into();
        self
    }

    /// Makes the request a campaign in an election: the holder proclaims `value`. [`Client::elect`] is the
    /// usual way.
    pub fn value(mut self, value: impl Into<Vec<u8>>) -> Self {
        self.acquire.value = Some(value.into());
        self
    }

    /// Sets the owner of the lock.
    pub(crate) fn owned_by(mut self, owner: conclave_core::Owner) -> Self {
        self.acquire.set_owner(owner);
        self
    }

    /// Acquires the lock if it is free now. Returns `None` if it is not.
    ///
    /// # Errors
    /// Any rejection except [`Code::WouldWait`].
    pub async fn try_now(self) -> Result<Option<Guard>> {
        match self.timeout(Duration::ZERO).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.code == Code::WouldWait => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends the request and returns it as a [`PendingLock`], whose wait can be inspected and cancelled.
    /// Requests that are started together share one write.
    ///
    /// # Errors
    /// [`Code::InvalidExpression`]; [`Code::TooManyUnanswered`] if 1,024 requests have no reply;
    /// [`Code::TooLarge`] if the value is too long.
    pub fn start(self) -> Result<PendingLock> {
        let Self { client, expr, mut acquire } = self;
        acquire.expr = expr?.text().into_owned();
        let (done, granted) = oneshot::channel();
        let (sender, queued) = oneshot::channel();
        let reply = Reply::Acquire { done, queued: Some(sender) };
        let op = v1::request::Op::Acquire(acquire);
        let id = client.handle.shared.submit(|core, now| core.request(now, op, reply))?;
        Ok(PendingLock { handle: client.handle, id, granted: Some(granted), queued: Some(queued) })
    }
}

impl IntoFuture for LockRequest {
    type Output = Result<Guard>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Guard>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { self.start()?.granted().await })
    }
}

/// A request for a lock that was sent. Dropping it cancels the request in the background.
#[must_use = "dropping it cancels the request"]
pub struct PendingLock {
    handle: Arc<Handle>,
    id: u64,
    /// `None` after the final reply.
    granted: Option<oneshot::Receiver<Result<v1::Granted>>>,
    queued: Option<oneshot::Receiver<v1::Queued>>,
}

impl PendingLock {
    /// Returns the place in the queue and the holders of the names, once. Returns `None` if the request got
    /// its final reply without a wait, or if an earlier call has returned the place.
    pub async fn queued(&mut self) -> Option<QueuePosition> {
        let place = self.queued.as_mut()?.await.ok();
        self.queued = None;
        place.map(Into::into)
    }

    /// Waits for the grant. The future can be dropped and the method called again.
    ///
    /// # Errors
    /// The rejection of the request.
    pub async fn granted(&mut self) -> Result<Guard> {
        let Some(granted) = &mut self.granted else {
            return Err(Error::new(Code::InvalidArgument, "this request already has its final answer"));
        };
        let result = granted.await;
        self.granted = None;
        result
            .unwrap_or_else(|_| Err(stopped()))
            .map(|granted| Guard::new(self.handle.clone(), self.id, &granted))
    }

    /// Cancels the request. After the return, the request holds nothing, even if it was granted in the
    /// meantime.
    ///
    /// # Errors
    /// No server replied: the names may be held until the session ends.
    pub async fn cancel(mut self) -> Result<()> {
        if self.granted.take().is_none() {
            return Ok(());
        }
        match self.handle.shared.submit(|core, now| core.cancel(now, self.id))? {
            Some(answer) => answered(answer).await.map(drop),
            None => Ok(()),
        }
    }
}

impl Drop for PendingLock {
    fn drop(&mut self) {
        if self.granted.take().is_some() {
            self.handle.shared.submit(|core, now| core.abandon(now, self.id));
        }
    }
}

/// An owner, whose locks belong together. [`Client::owner`] creates it.
#[derive(Clone)]
pub struct Owner {
    client: Client,
    label: OwnerLabel,
}

impl Owner {
    pub(crate) fn new(client: &Client, label: OwnerLabel) -> Self {
        Self { client: client.clone(), label }
    }

    /// The label of the owner.
    pub fn label(&self) -> &str {
        self.label.as_str()
    }

    /// Creates a request of this owner; otherwise the same as [`Client::lock`]. The owner does not wait for
    /// names that it already holds.
    ///
    /// The request fails with [`Code::OwnerBusy`] if another request of this owner waits.
    pub fn lock(&self, expr: impl TryInto<Expr, Error: Into<Error>>) -> LockRequest {
        self.client.lock(expr).owned_by(conclave_core::Owner::Label(self.label.clone()))
    }
}

impl Guard {
    /// Creates a request of the same owner as this guard. An exclusive request for a name that is held shared
    /// is an upgrade: it goes before all waiters of that name.
    pub fn lock(&self, expr: impl TryInto<Expr, Error: Into<Error>>) -> LockRequest {
        self.client().lock(expr).owned_by(conclave_core::Owner::OfGrant(RequestId(self.id())))
    }
}
