//! What is held, and how long to believe it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conclave_api::proto::v1;
use conclave_api::{Claim, Fence};

use crate::Result;
use crate::client::{Client, Handle, answered, unexpected};
use crate::lease::Standing;

/// Something held: all names of one grant. Dropped, it is released as soon as the server hears of it;
/// [`Guard::release`] waits until it is.
///
/// The lock is advice. A process that is stopped for long wakes up believing in a lock that somebody else has: send the
/// fence to whatever the lock protects, and let it refuse a smaller one than it has seen.
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
    /// The token to send to the store that guards it.
    pub fence: Fence,
    /// How it is held.
    pub claim: Claim,
}

/// Why something is no longer held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The lease was not confirmed in time.
    Deadline,
    /// The session has ended; why, in words.
    Session(String),
    /// An operator took a name away. The grant's other names are held until the guard is dropped.
    Broken {
        /// Which.
        name: String,
        /// What the operator said.
        reason: String,
    },
}

impl Guard {
    pub(crate) fn new(handle: Arc<Handle>, id: u64, granted: &v1::Granted) -> Self {
        Self { handle, id, names: held(granted), released: false }
    }

    /// The largest fence of the grant: for a store that guards everything it covers.
    pub fn fence(&self) -> Fence {
        self.names.iter().map(|held| held.fence).max().unwrap_or_default()
    }

    /// The fence of one name: for the store that guards that name.
    pub fn fence_of(&self, name: &str) -> Option<Fence> {
        let name = name.strip_prefix('/').unwrap_or(name);
        self.names.iter().find(|held| held.name == name).map(|held| held.fence)
    }

    /// The names held, in canonical order.
    pub fn locks(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|held| held.name.as_str())
    }

    /// The names held, with their fences and how.
    pub fn held(&self) -> &[HeldName] {
        &self.names
    }

    /// How it stands, now.
    pub fn standing(&self) -> Standing {
        self.handle.shared.with(|core, now| core.standing(now, self.id).0)
    }

    /// Why it is lost, if it is.
    pub fn loss(&self) -> Option<Loss> {
        self.handle.shared.with(|core, now| core.standing(now, self.id).1)
    }

    /// It is to be believed until then. Keep-alives move it; past it the guard is lost, finally.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// How long it is to be believed from now on.
    pub fn remaining(&self) -> Duration {
        self.handle.shared.with(|core, now| match core.standing(now, self.id) {
            (Standing::Lost, _) => Duration::ZERO,
            _ => core.deadline().unwrap_or_default().saturating_sub(now),
        })
    }

    /// Returns when it is lost, and says why. At the deadline at the latest, whatever the server does.
    pub async fn lost(&self) -> Loss {
        loop {
            let mut changes = self.handle.shared.with(|core, _| core.changes());
            let (_, loss) = self.handle.shared.with(|core, now| core.standing(now, self.id));
            if let Some(loss) = loss {
                return loss;
            }
            let wait = self.remaining();
            tokio::select! {
                // An error says that the client is gone; the deadline remains.
                Ok(()) = changes.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Returns when it stands differently than `from`, and says how.
    pub async fn changed(&self, from: Standing) -> Standing {
        loop {
            let mut changes = self.handle.shared.with(|core, _| core.changes());
            let standing = self.standing();
            if standing != from {
                return standing;
            }
            let wait = self.handle.shared.with(|core, now| core.changes_in(now));
            tokio::select! {
                // An error says that the client is gone; the clock remains.
                Ok(()) = changes.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Gives it back, and returns when others can have it.
    ///
    /// # Errors
    /// [`crate::Code::NotHeld`] if it was lost before: what was done under it may have collided. Any other error: it is not known to
    /// be free yet, and is still offered to the server for as long as the session lives.
    pub async fn release(mut self) -> Result<()> {
        self.released = true;
        match answered(self.handle.shared.ask(|core, now| core.release(now, self.id))?).await? {
            v1::answer::Result::Done(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Turns what is held exclusively into shared: others who want it shared come in, nobody comes between. From when it is
    /// asked on the guard says shared, also if the future is dropped, or fails.
    ///
    /// # Errors
    /// [`crate::Code::NotHeld`] if it is lost.
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
        f.debug_struct("Guard").field("names", &self.names).field("standing", &self.standing()).finish()
    }
}

impl fmt::Display for Loss {
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
        claim: Claim::from(granted.claim.as_ref()),
    };
    granted.names.iter().map(name).collect()
}
