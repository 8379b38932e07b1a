//! Requests with options, their owners, and the wait for them.

use std::sync::Arc;
use std::time::Duration;

use conclave_api::proto::v1;
use conclave_api::{Code, Error, OwnerLabel, RequestId, VictimPolicy, Wait};
use tokio::sync::oneshot;

use crate::client::{Client, Handle, answered, millis};
use crate::core::{Reply, stopped};
use crate::guard::Guard;
use crate::{Result, Semaphore};

/// A lock to be asked for. Nothing is sent before [`Request::start`].
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

    /// Every name shared.
    pub fn shared(mut self) -> Self {
        self.acquire.expr = format!("({}):shared", self.acquire.expr);
        self
    }

    /// How long to wait.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.acquire.set_wait(wait);
        self
    }

    /// Waits at most this long, counted by the server; nothing is [`Wait::Try`].
    pub fn within(self, limit: Duration) -> Self {
        let wait = if limit.is_zero() { Wait::Try } else { Wait::AtMost(millis(limit)) };
        self.wait(wait)
    }

    /// The larger goes first; 0 unless said otherwise. A busy high priority starves the lower ones.
    pub fn priority(mut self, priority: i32) -> Self {
        self.acquire.priority = priority;
        self
    }

    /// Whose waiting request is refused if this one closes a deadlock.
    pub fn on_deadlock(mut self, policy: VictimPolicy) -> Self {
        self.acquire.policy = v1::VictimPolicy::from(policy).into();
        self
    }

    /// Makes it a campaign: what the winner proclaims.
    pub fn value(mut self, value: impl Into<Vec<u8>>) -> Self {
        self.acquire.value = Some(value.into());
        self
    }

    /// Whose it will be.
    pub(crate) fn owned_by(mut self, owner: conclave_api::Owner) -> Self {
        self.acquire.set_owner(owner);
        self
    }

    /// Sends it, with everything else that was asked since the last write.
    ///
    /// # Errors
    /// Too many requests are without an answer, or the expression is too long.
    pub fn start(self) -> Result<Acquiring> {
        let Self { client, acquire } = self;
        let (done, granted) = oneshot::channel();
        let (told, queued) = oneshot::channel();
        let reply = Reply::Acquire { done, queued: Some(told) };
        let op = v1::request::Op::Acquire(acquire);
        let id = client.handle.shared.ask(|core, now| core.request(now, op, reply))?;
        Ok(Acquiring { handle: client.handle, id, granted: Some(granted), queued: Some(queued) })
    }
}

/// A lock that was asked for. Dropped, the request is given up, as soon as the server hears of it.
#[must_use = "dropped, the request is given up"]
pub struct Acquiring {
    handle: Arc<Handle>,
    id: u64,
    /// `None` when it has ended.
    granted: Option<oneshot::Receiver<Result<v1::Granted>>>,
    queued: Option<oneshot::Receiver<v1::Queued>>,
}

impl Acquiring {
    /// The place in the queue and who holds what is wanted, once; `None` if it is granted or refused first, or was told.
    pub async fn queued(&mut self) -> Option<v1::Queued> {
        let told = self.queued.as_mut()?.await.ok();
        self.queued = None;
        told
    }

    /// Waits for the grant. May be dropped and called again.
    ///
    /// # Errors
    /// The refusal.
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

    /// As [`Acquiring::granted`]; that it was not granted in the time it was willing to wait is no error.
    ///
    /// # Errors
    /// Any other refusal.
    pub async fn granted_in_time(&mut self) -> Result<Option<Guard>> {
        match self.granted().await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if matches!(error.code, Code::WouldWait | Code::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives up. When this returns, nothing is held by the request, also if it was granted meanwhile.
    ///
    /// # Errors
    /// Nobody answered: what was asked for may be held until the session ends.
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

impl Drop for Acquiring {
    fn drop(&mut self) {
        if self.granted.take().is_some() {
            self.handle.shared.ask(|core, now| core.abandon(now, self.id));
        }
    }
}

/// An owner: what its requests hold belongs together. See [`Client::owner`].
#[derive(Clone)]
pub struct Owner {
    client: Client,
    label: OwnerLabel,
}

impl Owner {
    pub(crate) fn new(client: &Client, label: OwnerLabel) -> Self {
        Self { client: client.clone(), label }
    }

    /// Its label.
    pub fn label(&self) -> &str {
        self.label.as_str()
    }

    /// As [`Client::request`].
    pub fn request(&self, expr: &str) -> Request {
        self.client.request(expr).owned_by(conclave_api::Owner::Label(self.label.clone()))
    }

    /// As [`Client::lock`]. What this owner holds already is not waited for.
    ///
    /// # Errors
    /// As [`Client::lock`]; [`Code::OwnerBusy`] if another request of this owner waits.
    pub async fn lock(&self, expr: &str) -> Result<Guard> {
        self.request(expr).start()?.granted().await
    }

    /// As [`Client::try_lock`].
    ///
    /// # Errors
    /// As [`Owner::lock`].
    pub async fn try_lock(&self, expr: &str) -> Result<Option<Guard>> {
        self.request(expr).wait(Wait::Try).start()?.granted_in_time().await
    }

    /// As [`Client::lock_within`].
    ///
    /// # Errors
    /// As [`Owner::lock`].
    pub async fn lock_within(&self, expr: &str, limit: Duration) -> Result<Option<Guard>> {
        self.request(expr).within(limit).start()?.granted_in_time().await
    }
}

impl Guard {
    /// A request of the owner of this guard: asking for a name exclusively that is held shared is an upgrade.
    pub fn request(&self, expr: &str) -> Request {
        let client = Client { handle: self.handle().clone() };
        client.request(expr).owned_by(conclave_api::Owner::OfGrant(RequestId(self.id())))
    }
}

impl Semaphore {
    /// A request for permits, with options.
    pub fn request(&self, permits: u32) -> Request {
        self.client().request(&self.expr(permits))
    }
}
