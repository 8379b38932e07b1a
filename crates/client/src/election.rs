//! Elections: a lock with a value.

use conclave_core::{Fence, SessionId};
use conclave_wire::v1;

use crate::Result;
use crate::guard::{Guard, LossReason};

/// The leadership of an election, until this client resigns or loses it. Dropping it resigns.
pub struct Leadership {
    guard: Guard,
}

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The value that the leader proclaims.
    pub value: Vec<u8>,
    /// The fence of this leadership. A later leader has a larger one.
    pub fence: Fence,
    /// The session of the leader.
    pub session: SessionId,
    /// A text that describes the leader, for display.
    pub owner: String,
}

impl Leadership {
    pub(crate) fn new(guard: Guard) -> Self {
        Self { guard }
    }

    /// The fence of this leadership.
    pub fn fence(&self) -> Fence {
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

pub(crate) fn leader(report: v1::Report) -> Option<Leader> {
    let value = report.value?;
    let holder = report.holders.into_iter().next()?;
    Some(Leader {
        value,
        fence: Fence(holder.fence),
        session: SessionId(holder.session),
        owner: holder.owner,
    })
}
