//! Guards: the names of one grant, and how long they are valid.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use conclave_core::{Claim, Code, Error, Fence};
use conclave_wire::claim_from_wire;
use conclave_wire::v1;

use crate::Result;
use crate::client::{Client, Handle, answered, unexpected};
use crate::lease::LeaseState;

/// All names of one grant. Dropping the guard releases them in the background; [`Guard::release`] also waits
/// for the reply.
///
/// Locks are advisory. A process that was paused for long may still act on a lock that another client now
/// holds. Send the fence to the store that the lock protects. The store must reject a fence smaller than the
/// largest that it has seen.
#[must_use = "dropping it releases the lock"]
pub struct Guard {
    handle: Arc<Handle>,
    id: u64,
    names: Vec<HeldName>,
    released: bool,
}

/// One name of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldName {
    /// The name.
    pub name: String,
    /// The fencing token for the store that this name protects.
    pub fence: Fence,
    /// The mode of the hold: exclusive, shared, or a number of permits.
    pub claim: Claim,
}

/// The reason for the loss of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease was not confirmed in time.
    Deadline,
    /// The session has ended. The text gives the reason.
    Session(String),
    /// An operator took a name away. The grant's other names are held until the guard is dropped.
    Broken {
        /// The name.
        name: String,
        /// The reason that the operator gave.
        reason: String,
    },
}

/// The grant was lost while work ran under it: the error of [`Guard::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost<T> {
    /// The reason for the loss. It is [`LossReason::Deadline`] too if the work was cancelled one tenth of the
    /// TTL before the deadline.
    pub reason: LossReason,
    /// The output of work that finished after the loss; `None` if the work was cancelled.
    pub output: Option<T>,
}

impl Guard {
    pub(crate) fn new(handle: Arc<Handle>, id: u64, granted: &v1::Granted) -> Self {
        Self { handle, id, names: held(granted), released: false }
    }

    /// The largest fence of the grant, for a store that all its names protect together.
    pub fn fence(&self) -> Fence {
        self.names.iter().map(|held| held.fence).max().unwrap_or_default()
    }

    /// The fence of one name, for the store that this name protects.
    pub fn fence_of(&self, name: &str) -> Option<Fence> {
        let name = name.strip_prefix('/').unwrap_or(name);
        self.names.iter().find(|held| held.name == name).map(|held| held.fence)
    }

    /// The names held, in canonical order, with their fences and modes.
    pub fn names(&self) -> &[HeldName] {
        &self.names
    }

    /// The state of the guard now.
    pub fn state(&self) -> LeaseState {
        self.handle.shared.with(|core, now| core.grant_state(now, self.id).0)
    }

    /// The reason for the loss; `None` while the guard is not lost.
    pub fn loss(&self) -> Option<LossReason> {
        self.handle.shared.with(|core, now| core.grant_state(now, self.id).1)
    }

    /// The time until which the guard is valid. Each answered keep-alive moves it. After this time the guard
    /// is lost, and stays lost.
    ///
    /// With the server in memory of the feature `testing`, the time is on the clock of tokio, which a test may
    /// have paused. So compare it with `tokio::time::Instant::now()`, or wait with
    /// `tokio::time::sleep_until(guard.deadline().into())`. Both are right with a real server too.
    pub fn deadline(&self) -> Instant {
        // If time passes between the two reads, the result is too early, never too late.
        let now = self.handle.shared.clock().instant();
        now + self.remaining()
    }

    /// The time until the deadline; zero if the guard is lost.
    pub fn remaining(&self) -> Duration {
        self.handle.shared.with(|core, now| match core.grant_state(now, self.id) {
            (LeaseState::Lost, _) => Duration::ZERO,
            _ => core.deadline().unwrap_or_default().saturating_sub(now),
        })
    }

    /// Returns the reason as soon as the guard is lost. Returns at the deadline at the latest, even if the
    /// server sends nothing.
    pub async fn lost(&self) -> LossReason {
        let changes = self.handle.shared.with(|core, _| core.changes());
        loop {
            let changed = changes.notified();
            let (_, loss) = self.handle.shared.with(|core, now| core.grant_state(now, self.id));
            if let Some(loss) = loss {
                return loss;
            }
            let wait = self.remaining();
            tokio::select! {
                biased;
                () = changed => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Runs `work` for as long as the grant is safe. Returns its output if the grant is still held when the
    /// work is done.
    ///
    /// The work is dropped, and so cancelled, as soon as the grant is lost. If no keep-alive is answered, it
    /// is dropped one tenth of the TTL *before* the deadline: one second with the default TTL. The margin has
    /// two reasons. A runtime that is busy drops the future late, and requests that the work has already sent
    /// need time to arrive. `conclave run` kills its command at the same point if the TTL is at most 10 s.
    ///
    /// No step of the work begins after that moment. A step that has begun cannot be stopped. Work that
    /// blocks its thread beyond the deadline is not cancelled; its output is then in [`Lost::output`]. Stores
    /// that check the fence reject its late requests.
    ///
    /// ```no_run
    /// # async fn example(client: conclave_client::Client) -> conclave_client::Result<()> {
    /// # async fn migrate(fence: conclave_client::Fence) -> u32 { 0 }
    /// let guard = client.lock("db").await?;
    /// match guard.run(migrate(guard.fence())).await {
    ///     Ok(rows) => println!("{rows} rows"),
    ///     Err(lost) => eprintln!("start again: {lost}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Lost`]: with the output if the work finished after the loss, and without it if it was cancelled.
    /// After a cancellation at the margin, the guard may become valid again. Release it like any other guard.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost<T>> {
        let mut work = pin!(work);
        let changes = self.handle.shared.with(|core, _| core.changes());
        loop {
            let changed = changes.notified();
            // Check the clock before each step of the work: a timer of a runtime that was blocked is late.
            let step = poll_fn(|cx| match self.time_for_work() {
                Ok(_) => work.as_mut().poll(cx).map(|output| match self.loss() {
                    None => Ok(output),
                    Some(reason) => Err(Lost { reason, output: Some(output) }),
                }),
                Err(reason) => Poll::Ready(Err(Lost { reason, output: None })),
            });
            let left = self.time_for_work().unwrap_or_default();
            tokio::select! {
                biased;
                done = step => return done,
                () = changed => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// Returns the new state as soon as it differs from `from`.
    pub async fn changed(&self, from: LeaseState) -> LeaseState {
        let changes = self.handle.shared.with(|core, _| core.changes());
        loop {
            let changed = changes.notified();
            let state = self.state();
            if state != from {
                return state;
            }
            let wait = self.handle.shared.with(|core, now| core.changes_in(now));
            tokio::select! {
                biased;
                () = changed => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Releases the grant, and returns when other clients can acquire its names.
    ///
    /// # Errors
    /// [`Code::NotHeld`] if the guard was lost before; other clients may have held the names during
    /// the work. After any other error the names may still be held. The client then retries the release for
    /// as long as the session lives.
    pub async fn release(mut self) -> Result<()> {
        self.released = true;
        match answered(self.handle.shared.submit(|core, now| core.release(now, self.id))?).await? {
            v1::answer::Result::Done(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Downgrades the exclusive names of the grant to shared. No exclusive request is granted in between. The
    /// guard reports the names as shared from the first call on, also if the future is dropped or fails.
    ///
    /// # Errors
    /// [`Code::NotHeld`] if the guard is lost.
    pub async fn downgrade(&mut self) -> Result<()> {
        let op = v1::request::Op::Downgrade(v1::Downgrade { grant: self.id });
        let answer = self.client().start(op)?;
        for held in self.names.iter_mut().filter(|held| held.claim == Claim::Exclusive) {
            held.claim = Claim::Shared;
        }
        match answered(answer).await? {
            v1::answer::Result::Granted(granted) => {
                self.names = held(&granted);
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// The time until work under this guard must be cancelled; the reason if it must be cancelled now.
    fn time_for_work(&self) -> Result<Duration, LossReason> {
        self.handle.shared.with(|core, now| match core.grant_state(now, self.id) {
            (_, Some(reason)) => Err(reason),
            _ => match core.work_until().unwrap_or_default().saturating_sub(now) {
                Duration::ZERO => Err(LossReason::Deadline),
                left => Ok(left),
            },
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn client(&self) -> Client {
        Client { handle: self.handle.clone() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released {
            self.handle.shared.submit(|core, now| core.abandon(now, self.id));
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("names", &self.names).field("state", &self.state()).finish()
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => f.write_str("the lease was not confirmed in time"),
            Self::Session(why) => f.write_str(why),
            Self::Broken { name, reason } => write!(f, "an operator took {name} away: {reason}"),
        }
    }
}

impl<T> fmt::Display for Lost<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = if self.output.is_some() { "finished too late" } else { "was cancelled" };
        write!(f, "the work {work}: {}", self.reason)
    }
}

impl<T: fmt::Debug> std::error::Error for Lost<T> {}

impl<T> From<Lost<T>> for Error {
    fn from(lost: Lost<T>) -> Self {
        Self::new(Code::NotHeld, lost.to_string())
    }
}

fn held(granted: &v1::Granted) -> Vec<HeldName> {
    let name = |granted: &v1::GrantedName| HeldName {
        name: granted.name.clone(),
        fence: Fence(granted.fence),
        claim: claim_from_wire(granted.claim.as_ref()),
    };
    granted.names.iter().map(name).collect()
}
