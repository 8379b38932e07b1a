//! A backup: what outlives the cluster that it was taken from.
//!
//! **Intuition.** A lease is a promise between a client and a cluster. When the cluster is lost the promise is too, and a
//! copy of it would only lie: its secret would let whoever reads the copy speak for the session. So a backup holds what
//! belongs to nobody in particular (files with their versions, limits of semaphores) and the numbers that must go on growing.
//!
//! **Rules** (docs/service.md 6). In a backup all sessions are over, with what they hold, wait for and keep back, and with
//! their ephemeral files. Its bytes are a [snapshot](super::snapshot) of such a state. A restore moves the count of
//! commands beyond everything that the lost cluster may have counted after the backup: by [`LEAP`], and to the time of the
//! restore at least, so that the same backup can be restored again and again. All that grows comes from this count: fences,
//! numbers of sessions, what a watch resumes by (it finds its changes forgotten, and is told to `resync`).
//!
//! **The trap.** The state looks at no clock. Who restores does, and says what it saw; from then on it is a number like others.

use super::State;
use super::lock::Locks;
use super::snapshot::SnapshotError;
use super::watch::History;

/// So many commands a cluster may have applied after the backup was taken.
pub const LEAP: u64 = 1 << 32;
/// It is counted from so many times the milliseconds since 1970: more than commands can be applied in one, leaps at restarts
/// ([`super::handover::FENCE_LEAP`]) included.
const COMMANDS_A_MS: u64 = 1 << 11;
/// Beyond it, readers of JSON do not tell two numbers apart.
const LARGEST: u64 = 1 << 53;

/// What is in a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Files; the root is always there, and not counted.
    pub files: u64,
    /// Bytes in them.
    pub file_bytes: u64,
    /// Semaphores.
    pub semaphores: u64,
    /// How many commands had been applied when it was taken: all of them are in it.
    pub applied: u64,
}

impl State {
    /// The state as a backup.
    pub fn to_backup(&self) -> Vec<u8> {
        self.without_sessions().to_snapshot()
    }

    /// The state of a cluster that is founded from a backup at this time, in milliseconds since 1970.
    ///
    /// # Errors
    /// [`SnapshotError`] if the bytes are none, or if its numbers, or the time, are too large to count on.
    pub fn from_backup(bytes: &[u8], now_ms: u64) -> Result<(Self, Contents), SnapshotError> {
        let mut state = Self::from_snapshot(bytes)?.without_sessions();
        let contents = state.contents();
        let count = state.applied.saturating_add(LEAP).max(now_ms.saturating_mul(COMMANDS_A_MS));
        if state.locks.fence_base.saturating_add(count) >= LARGEST {
            return Err(SnapshotError::Inconsistent(
                "it counts further than there is time for, or the clock does",
            ));
        }
        state.applied = count;
        state.history = History::forgotten(count);
        Ok((state, contents))
    }

    fn without_sessions(&self) -> Self {
        let mut tree = self.tree.clone();
        let ephemerals = self.sessions.values().flat_map(|session| session.ephemerals.iter().cloned());
        // Nobody is told: who could be has gone with its session.
        drop(tree.end_session(self.applied, ephemerals));
        let locks = self.locks.limits();
        Self {
            applied: self.applied,
            locks,
            tree,
            history: History::forgotten(self.applied),
            ..Self::default()
        }
    }

    fn contents(&self) -> Contents {
        let totals = self.totals();
        Contents {
            files: totals.files.saturating_sub(1),
            file_bytes: totals.file_bytes,
            semaphores: totals.names,
            applied: self.applied,
        }
    }
}

impl Contents {
    /// Reads what is in a backup.
    ///
    /// # Errors
    /// [`SnapshotError`] if the bytes are none.
    pub fn of(bytes: &[u8]) -> Result<Self, SnapshotError> {
        Ok(State::from_snapshot(bytes)?.without_sessions().contents())
    }
}

impl Locks {
    /// The semaphores, with all permits free, and what fences are counted from.
    fn limits(&self) -> Self {
        let mut limits = Self::default();
        limits.fence_base = self.fence_base;
        for (_, lock) in self.all().filter(|(_, lock)| lock.limit.is_some()) {
            // There is room for it: there was here.
            if let Some(id) = limits.intern(&lock.name) {
                limits.lock_mut(id).limit = lock.limit;
            }
        }
        limits
    }
}
