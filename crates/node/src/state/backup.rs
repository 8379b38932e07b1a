//! Backups: the part of the state that outlives its cluster.
//!
//! **Intuition.** A lease is a promise between a client and a cluster. If the cluster is lost, the promise is
//! lost too, so a copy of it would be false. A copy would also contain the secret of the session, and any
//! reader could use the session. So a backup contains only data that belong to no session: files with their
//! versions, and limits of semaphores. It also contains the numbers that must keep growing.
//!
//! **Rules** (docs/service.md 6). In a backup all sessions have ended, with their locks, waits, lock-delays
//! and ephemeral files. Its bytes are a [snapshot](super::snapshot) of such a state. A restore raises the
//! count of commands above all numbers that the lost cluster may have used after the backup. It adds
//! [`LEAP`], and raises the count at least to a value that follows from the time of the restore. So the same
//! backup can be restored several times. All growing numbers come from this count: fences, numbers of
//! sessions, and indices of watches. A watch with an old index gets a `resync`.
//!
//! **Trap.** A backup is restored twice. With the same count, both clusters would grant the same fences. So
//! the count depends on the time of the restore, which the caller passes, because the state reads no clock.

use super::State;
use super::lock::Locks;
use super::snapshot::SnapshotError;
use super::watch::History;

/// The number that a restore adds to the count of commands. The lost cluster must not have applied more than
/// this after the backup.
pub const LEAP: u64 = 1 << 32;
/// The smallest count after a restore, for each millisecond since 1970. It is larger than the number of
/// commands that can be applied in a millisecond, even with a leap at each restart
/// ([`super::early_grant::FENCE_GAP`]).
const COMMANDS_A_MS: u64 = 1 << 11;
/// The bound of all counts. A restore that would reach it is rejected, because readers of JSON cannot
/// distinguish larger numbers.
const LARGEST: u64 = 1 << 53;

/// A summary of the contents of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// The number of files. The root always exists and is not counted.
    pub files: u64,
    /// The bytes of data in all files.
    pub file_bytes: u64,
    /// The number of semaphores.
    pub semaphores: u64,
    /// The number of commands applied before the backup was taken. The backup contains the effects of all of
    /// them.
    pub applied: u64,
}

impl State {
    /// Returns the state as a backup.
    pub fn to_backup(&self) -> Vec<u8> {
        self.without_sessions().to_snapshot()
    }

    /// Returns the first state of a cluster that is restored from a backup at the time `now_ms`, in
    /// milliseconds since 1970.
    ///
    /// # Errors
    /// [`SnapshotError`] if the bytes are no backup, or if its numbers, or the time, are too large.
    pub fn from_backup(bytes: &[u8], now_ms: u64) -> Result<(Self, Contents), SnapshotError> {
        let mut state = Self::from_snapshot(bytes)?.without_sessions();
        let contents = state.contents();
        let count = state.applied.saturating_add(LEAP).max(now_ms.saturating_mul(COMMANDS_A_MS));
        if state.locks.fence_base.saturating_add(count) >= LARGEST {
            return Err(SnapshotError::Inconsistent(
                "its count of commands, or this machine's clock, is too far in the future: check the clock",
            ));
        }
        state.applied = count;
        state.history = History::forgotten(count);
        Ok((state, contents))
    }

    fn without_sessions(&self) -> Self {
        let mut tree = self.tree.clone();
        let ephemerals = self.sessions.values().flat_map(|session| session.ephemerals.iter().cloned());
        // The changes are dropped: no session is left that could receive them.
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
    /// Reads the summary of a backup.
    ///
    /// # Errors
    /// [`SnapshotError`] if the bytes are no backup.
    pub fn of(bytes: &[u8]) -> Result<Self, SnapshotError> {
        Ok(State::from_snapshot(bytes)?.without_sessions().contents())
    }
}

impl Locks {
    /// Returns the semaphores with all permits free, and the fence base.
    fn limits(&self) -> Self {
        let mut limits = Self::default();
        limits.fence_base = self.fence_base;
        for (_, lock) in self.all().filter(|(_, lock)| lock.limit.is_some()) {
            // This cannot fail: the original table has more names and is within the limit.
            if let Some(id) = limits.intern(&lock.name) {
                limits.lock_mut(id).limit = lock.limit;
            }
        }
        limits
    }
}
