//! Guards: the names of one grant, and how long they are valid.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conclave_core::{Claim, Fence};
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
#[must_use = "dropped, it is released"]
pub struct Guard {
    handle: Arc<Handle>,
    id: u64,
    names: Vec<HeldName>,
    released: bool,
}

/// One name of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// The names held, in canonical order.
    pub fn locks(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|held| held.name.as_str())
    }

    /// The names held, with their fences and modes.
    pub fn held(&self) -> &[HeldName] {
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

    /// The time until which the guard is valid. Each answered keep-alive moves it. After it the guard is
    /// lost, finally.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// The time until the deadline; zero if the guard is lost.
    pub fn remaining(&self) -> Duration {
        self.handle.shared.with(|core, now| match core.grant_state(now, self.id) {
            (LeaseState::Lost, _) => Duration::ZERO,
            _ => core.deadline().unwrap_or_default().saturating_sub(now),
        })
    }

    /// Returns the reason as soon as the guard is lost. Returns at the deadline at the latest, whatever the
    /// server does.
    pub async fn lost(&self) -> LossReason {
        loop {
            let mut changes = self.handle.shared.with(|core, _| core.changes());
            let (_, loss) = self.handle.shared.with(|core, now| core.grant_state(now, self.id));
            if let Some(loss) = loss {
                return loss;
            }
            let wait = self.remaining();
            tokio::select! {
                // An error means that the client is gone; the deadline still ends the wait.
                Ok(()) = changes.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Returns the new state as soon as it differs from `from`.
    pub async fn changed(&self, from: LeaseState) -> LeaseState {
        loop {
            let mut changes = self.handle.shared.with(|core, _| core.changes());
            let state = self.state();
            if state != from {
                return state;
            }
            let wait = self.handle.shared.with(|core, now| core.changes_in(now));
            tokio::select! {
                // An error means that the client is gone; the clock still ends the wait.
                Ok(()) = changes.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Releases the grant, and returns when other clients can acquire its names.
    ///
    /// # Errors
    /// [`crate::Code::NotHeld`] if the guard was lost before; other clients may have held the names during
    /// the work. After any other error the names may still be held. The client then retries the release for
    /// as long as the session lives.
    pub async fn release(mut self) -> Result<()> {
        self.released = true;
        match answered(self.handle.shared.ask(|core, now| core.release(now, self.id))?).await? {
            v1::answer::Result::Done(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Downgrades the exclusive names of the grant to shared. No exclusive request is granted in between. The
    /// guard reports the names as shared from the first call on, also if the future is dropped or fails.
    ///
    /// # Errors
    /// [`crate::Code::NotHeld`] if the guard is lost.
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

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    pub(crate) fn client(&self) -> Client {
        Client { handle: self.handle.clone() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released {
            self.handle.shared.ask(|core, now| core.abandon(now, self.id));
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

fn held(granted: &v1::Granted) -> Vec<HeldName> {
    let name = |granted: &v1::GrantedName| HeldName {
        name: granted.name.clone(),
        fence: Fence(granted.fence),
        claim: claim_from_wire(granted.claim.as_ref()),
    };
    granted.names.iter().map(name).collect()
}
