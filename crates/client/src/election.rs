//! Elections: a lock with a value.

use conclave_api::proto::v1;
use conclave_api::{Fence, SessionId};

use crate::Result;
use crate::guard::{Guard, Loss};

/// Leadership of an election, until it is resigned or lost. Dropped, it is resigned.
pub struct Leadership {
    guard: Guard,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// What the leader proclaims.
    pub value: Vec<u8>,
    /// The fence of its leadership: a later leader has a larger one.
    pub fence: Fence,
    /// Its session.
    pub session: SessionId,
    /// The leader, for people.
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

    /// Changes what is proclaimed.
    ///
    /// # Errors
    /// [`crate::Code::NotHeld`] if it is lost.
    pub async fn proclaim(&self, value: impl Into<Vec<u8>>) -> Result<()> {
        let proclaim = v1::Proclaim { grant: self.guard.id(), value: value.into() };
        self.guard.client().done(v1::request::Op::Proclaim(proclaim)).await
    }

    /// Returns when it is lost, and says why.
    pub async fn lost(&self) -> Loss {
        self.guard.lost().await
    }

    /// Resigns, and returns when others can lead.
    ///
    /// # Errors
    /// [`crate::Code::NotHeld`] if it was lost before.
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }

    /// The guard behind it.
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
