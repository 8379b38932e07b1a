//! Requests with options, their owners, and requests that wait.

use std::sync::Arc;
use std::time::Duration;

use conclave_core::{Code, Error, OwnerLabel, RequestId, VictimPolicy, Wait};
use conclave_wire::v1;
use tokio::sync::oneshot;

use crate::client::{Client, Handle, answered, millis};
use crate::core::{Reply, stopped};
use crate::guard::Guard;
use crate::{Result, Semaphore};

/// A request for a lock. Nothing is sent before [`Request::start`].
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example(client: conclave_client::Client) -> conclave_client::Result<()> {
/// let guard = client.request("src & dst").priority(3).within(Duration::from_secs(1)).start()?.granted().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing is sent before it is started"]
pub struct Request {
    client: Client,
    acquire: v1::Acquire,
}

impl Request {
    pub(crate) fn new(client: &Client, expr: &str) -> Self {
        Self { client: client.clone(), acquire: v1::Acquire::of(expr) }
    }

    /// Makes every name of the expression shared.
    pub fn shared(mut self) -> Self {
        self.acquire.expr = format!("({}):shared", self.acquire.expr);
        self
    }

    /// Sets how long the request waits.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.acquire.set_wait(wait);
        self
    }

    /// Sets the wait limit, measured by the server. Zero means [`Wait::Try`].
    pub fn within(self, limit: Duration) -> Self {
        let wait = if limit.is_zero() { Wait::Try } else { Wait::AtMost(millis(limit)) };
        self.wait(wait)
    }

    /// Sets the priority; the default is 0. Larger priorities are granted first. Frequent requests of a high
    /// priority starve lower ones.
    pub fn priority(mut self, priority: i32) -> Self {
        self.acquire.priority = priority;
        self
    }

    /// Sets which waiting request is rejected if this one completes a deadlock.
    pub fn on_deadlock(mut self, policy: VictimPolicy) -> Self {
        self.acquire.policy = v1::VictimPolicy::from(policy).into();
        self
    }

    /// Makes the request a campaign; the winner proclaims `value`.
    pub fn value(mut self, value: impl Into<Vec<u8>>) -> Self {
        self.acquire.value = Some(value.into());
        self
    }

    /// Sets the owner of the lock.
    pub(crate) fn owned_by(mut self, owner: conclave_core::Owner) -> Self {
        self.acquire.set_owner(owner);
        self
    }

    /// Sends the request. Requests of one moment share one write.
    ///
    /// # Errors
    /// [`Code::TooManyUnanswered`] if too many requests have no reply; [`Code::TooLarge`] if the expression
    /// is too long.
    pub fn start(self) -> Result<PendingLock> {
        let Self { client, acquire } = self;
        let (done, granted) = oneshot::channel();
        let (told, queued) = oneshot::channel();
        let reply = Reply::Acquire { done, queued: Some(told) };
        let op = v1::request::Op::Acquire(acquire);
        let id = client.handle.shared.ask(|core, now| core.request(now, op, reply))?;
        Ok(PendingLock { handle: client.handle, id, granted: Some(granted), queued: Some(queued) })
    }
}

/// A request for a lock that was sent. Dropping it cancels the request in the background.
#[must_use = "dropped, the request is given up"]
pub struct PendingLock {
    handle: Arc<Handle>,
    id: u64,
    /// `None` after the final reply.
    granted: Option<oneshot::Receiver<Result<v1::Granted>>>,
    queued: Option<oneshot::Receiver<v1::Queued>>,
}

impl PendingLock {
    /// Returns the place in the queue and the holders of the names, once. Returns `None` if the request has
    /// its final reply, or if an earlier call has returned the place.
    pub async fn queued(&mut self) -> Option<v1::Queued> {
        let told = self.queued.as_mut()?.await.ok();
        self.queued = None;
        told
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

    /// Waits for the grant, and returns `None` if the wait limit ends first.
    ///
    /// # Errors
    /// Any other rejection of the request.
    pub async fn granted_in_time(&mut self) -> Result<Option<Guard>> {
        match self.granted().await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if matches!(error.code, Code::WouldWait | Code::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Cancels the request. When this returns, the request holds nothing, even if it was granted in the
    /// meantime.
    ///
    /// # Errors
    /// No server replied: the names may be held until the session ends.
    pub async fn cancel(mut self) -> Result<()> {
        if self.granted.take().is_none() {
            return Ok(());
        }
        match self.handle.shared.ask(|core, now| core.cancel(now, self.id))? {
            Some(answer) => answered(answer).await.map(drop),
            None => Ok(()),
        }
    }
}

impl Drop for PendingLock {
    fn drop(&mut self) {
        if self.granted.take().is_some() {
            self.handle.shared.ask(|core, now| core.abandon(now, self.id));
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

    /// Creates a request of this owner; otherwise the same as [`Client::request`].
    pub fn request(&self, expr: &str) -> Request {
        self.client.request(expr).owned_by(conclave_core::Owner::Label(self.label.clone()))
    }

    /// Waits until `expr` is granted, like [`Client::lock`]. The owner does not wait for names that it
    /// already holds.
    ///
    /// # Errors
    /// The same as [`Client::lock`], and [`Code::OwnerBusy`] if another request of this owner waits.
    pub async fn lock(&self, expr: &str) -> Result<Guard> {
        self.request(expr).start()?.granted().await
    }

    /// Acquires `expr` if it is free now, like [`Client::try_lock`].
    ///
    /// # Errors
    /// The same as [`Owner::lock`].
    pub async fn try_lock(&self, expr: &str) -> Result<Option<Guard>> {
        self.request(expr).wait(Wait::Try).start()?.granted_in_time().await
    }

    /// Waits for `expr` for at most `limit`, like [`Client::lock_within`].
    ///
    /// # Errors
    /// The same as [`Owner::lock`].
    pub async fn lock_within(&self, expr: &str, limit: Duration) -> Result<Option<Guard>> {
        self.request(expr).within(limit).start()?.granted_in_time().await
    }
}

impl Guard {
    /// Creates a request of the same owner as this guard. An exclusive request for a name that is held shared
    /// is an upgrade.
    pub fn request(&self, expr: &str) -> Request {
        let client = Client { handle: self.handle().clone() };
        client.request(expr).owned_by(conclave_core::Owner::OfGrant(RequestId(self.id())))
    }
}

impl Semaphore {
    /// Creates a request for `permits` of this semaphore, with options.
    pub fn request(&self, permits: u32) -> Request {
        self.client().request(&self.expr(permits))
    }
}
