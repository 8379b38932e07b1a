//! The whole state as bytes: versioned, with a checksum, and the same on every node.
//!
//! ```text
//! 0   4  "CNCS"
//! 4   2  format version, little endian: 3
//! 6   4  CRC-32 of the rest, little endian
//! 10  -  the state, in postcard
//! ```
//!
//! **Rules.** Equal states have equal bytes, because only ordered maps are written. A reader checks the bytes
//! before use: first the checksum, then every index against the data that it indexes. So a damaged or foreign
//! snapshot causes an error, never a later panic.

use conclave_deadlock::Demand;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::State;
use super::lock::{Hold, LockId, Locks, OwnerId};

const MAGIC: &[u8; 4] = b"CNCS";
/// The format version that is written. A snapshot with another version is rejected.
pub const VERSION: u16 = 3;
const HEADER: usize = 10;

/// The reason why bytes are not a valid snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotError {
    /// The bytes do not start with the header of a snapshot.
    NotASnapshot,
    /// The snapshot has another format version.
    UnknownVersion(u16),
    /// Bytes were changed or lost.
    Damaged,
    /// The checksum is right, but the contents contradict each other.
    Inconsistent(&'static str),
}

impl State {
    /// Returns the state as bytes.
    pub fn to_snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + 1024);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 4]);
        let mut bytes =
            postcard::to_extend(self, bytes).expect("a vector takes all bytes, and every length is known");
        let checksum = crc32fast::hash(&bytes[HEADER..]);
        bytes[6..HEADER].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a state from bytes.
    ///
    /// # Errors
    /// [`SnapshotError`] if the bytes are not the output of [`State::to_snapshot`].
    pub fn from_snapshot(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let Some((header, body)) = bytes.split_at_checked(HEADER) else {
            return Err(SnapshotError::NotASnapshot);
        };
        let [magic @ .., v0, v1, c0, c1, c2, c3] = header else { return Err(SnapshotError::NotASnapshot) };
        if magic != MAGIC {
            return Err(SnapshotError::NotASnapshot);
        }
        let version = u16::from_le_bytes([*v0, *v1]);
        if version != VERSION {
            return Err(SnapshotError::UnknownVersion(version));
        }
        if crc32fast::hash(body) != u32::from_le_bytes([*c0, *c1, *c2, *c3]) {
            return Err(SnapshotError::Damaged);
        }
        let state: Self = postcard::from_bytes(body).map_err(|_| SnapshotError::Damaged)?;
        state.audit().map_err(SnapshotError::Inconsistent)?;
        Ok(state)
    }

    /// Checks that all redundant data agree.
    ///
    /// # Errors
    /// The contradiction.
    pub fn audit(&self) -> Result<(), &'static str> {
        self.locks.audit()?;
        self.tree.audit(|session, path| {
            self.sessions.get(&session).is_some_and(|session| session.ephemerals.contains(path))
        })?;
        let mut live = 0;
        for (id, session) in &self.sessions {
            session.audit()?;
            for (request, ticket) in &session.live {
                let waiter = self.locks.waiters.get(ticket).map(|waiter| (waiter.session, waiter.request));
                let grant = self.locks.grants.get(ticket).map(|grant| (grant.session, grant.request));
                ensure(
                    waiter.or(grant) == Some((*id, *request)),
                    "a live request that neither holds nor waits",
                )?;
                live += 1;
            }
            let is_waiting = |(request, ticket)| {
                session.live.get(request) == Some(ticket) && self.locks.waiters.contains_key(ticket)
            };
            ensure(session.waiting.iter().all(is_waiting), "a request waits for an answer, but for no lock")?;
        }
        for delay in self.delays.values() {
            ensure(
                delay.grants.iter().all(|t| self.locks.grants.contains_key(t)),
                "a lock-delay of nothing",
            )?;
            live += delay.grants.len();
        }
        ensure(
            live == self.locks.waiters.len() + self.locks.grants.len(),
            "somebody holds or waits for nobody",
        )?;
        let is_waiting = |ticket| self.locks.waiters.contains_key(ticket);
        ensure(self.waits.keys().all(is_waiting), "a limit of a wait that is over")
    }
}

impl Locks {
    /// Checks the references first. Then recomputes the indexes and compares them.
    fn audit(&self) -> Result<(), &'static str> {
        self.audit_table()?;
        for (ticket, waiter) in &self.waiters {
            let owner = self.owners.get(&waiter.owner).ok_or("a waiter without an owner")?;
            ensure(
                owner.waiting == Some(waiter.rank) && waiter.rank.ticket == *ticket,
                "an owner does not wait",
            )?;
            ensure(waiter.wants.names().all(|id| self.contains(*id)), "a waiter for no name")?;
            ensure(waiter.claims == waiter.wants.envelope(), "claims that were not requested")?;
        }
        let mut waiting = 0;
        for (id, owner) in &self.owners {
            waiting += usize::from(owner.waiting.is_some());
            ensure(owner.waiting.is_some() || !owner.holds.is_empty(), "an idle owner")?;
            if let Some(label) = &owner.label {
                ensure(self.labels.get(&(owner.session, label.clone())) == Some(id), "a label lost")?;
            }
        }
        ensure(waiting == self.waiters.len(), "an owner waits for nothing")?;
        let labelled = self.owners.values().filter(|owner| owner.label.is_some()).count();
        ensure(labelled == self.labels.len(), "a label of nobody")?;
        self.audit_holds()?;
        let mut again = self.clone();
        again.clear_indexes();
        self.waiters.keys().for_each(|ticket| again.index(*ticket));
        again.soft_blocked = self.soft_blocked.clone();
        ensure(again == *self, "an index that does not agree with what it indexes")?;
        let is_rank =
            |rank: &super::rank::Rank| self.waiters.get(&rank.ticket).is_some_and(|w| w.rank == *rank);
        ensure(self.soft_blocked.iter().all(is_rank), "somebody may overtake who does not wait")
    }

    /// Checks that the holds of each lock are the sum of the grants.
    fn audit_holds(&self) -> Result<(), &'static str> {
        let mut holds: BTreeMap<(LockId, OwnerId), Hold> = BTreeMap::new();
        for grant in self.grants.values() {
            ensure(!grant.items.is_empty(), "a grant of nothing")?;
            for item in &grant.items {
                let hold = holds.entry((item.lock, grant.owner)).or_default();
                match item.demand {
                    Demand::Shared => hold.shared += 1,
                    Demand::Exclusive => hold.exclusive += 1,
                    Demand::Permits(count) => hold.permits += u64::from(count),
                }
            }
        }
        for (id, lock) in self.all() {
            let (mut permits, mut exclusive) = (0, 0);
            for (owner, hold) in &lock.holds {
                let sum = holds.remove(&(id, *owner)).ok_or("a hold without a grant")?;
                let Hold { fence, since_ms, .. } = *hold;
                ensure(*hold == Hold { fence, since_ms, ..sum }, "a hold that is not what was granted")?;
                let owner = self.owners.get(owner).ok_or("a hold of nobody")?;
                ensure(owner.holds.contains(&id), "an owner that does not know what it holds")?;
                permits += hold.permits;
                exclusive += u32::from(hold.exclusive > 0);
                ensure((hold.permits > 0) == lock.limit.is_some(), "a hold of the wrong kind")?;
            }
            ensure(permits == lock.permits_held, "permits that do not add up")?;
            ensure(exclusive == 0 || lock.holds.len() == 1, "an exclusive lock with two holders")?;
        }
        ensure(holds.is_empty(), "a grant without a hold")?;
        let known: BTreeSet<(LockId, OwnerId)> =
            self.all().flat_map(|(id, lock)| lock.holds.keys().map(move |owner| (id, *owner))).collect();
        let held = self.owners.iter().flat_map(|(owner, of)| of.holds.iter().map(move |id| (*id, *owner)));
        ensure(held.collect::<BTreeSet<_>>() == known, "an owner that holds what it does not hold")
    }
}

fn ensure(condition: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if condition { Ok(()) } else { Err(otherwise) }
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotASnapshot => f.write_str("the file is not a snapshot"),
            Self::UnknownVersion(version) => {
                write!(f, "snapshot format {version} is unknown; this program reads {VERSION}")
            }
            Self::Damaged => f.write_str("the snapshot is damaged"),
            Self::Inconsistent(what) => write!(f, "the snapshot is inconsistent: {what}"),
        }
    }
}

impl std::error::Error for SnapshotError {}
