//! Snapshots on disk: one file, replaced as a whole.
//!
//! **Intuition.** The new file is written beside the old one, synced, and renamed over it; then the folder is
//! synced. Only after that does the log remove the entries that the snapshot covers. So at every moment there
//! is one whole snapshot, or none and a whole log. `docs/log-format.md` specifies the file.
//!
//! **Trap.** While a snapshot is built, the leader may send a newer one. The older must not replace the
//! newer, or the entries between them would be missing after a restart.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::disk::Disk;
use super::log::LogId;
use super::raft_types::{
    Membership, SnapshotMeta, StoredMembership, invalid, log_id, own_membership, raft_id, raft_membership,
};

/// The bytes of a state. Clones share the memory.
pub(super) type SnapshotBytes = Arc<[u8]>;

/// The last entry that a snapshot covers, and the membership at that entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) last: Option<LogId>,
    pub(super) membership_id: Option<LogId>,
    pub(super) membership: Membership,
}

impl Description {
    pub(super) fn of(meta: &SnapshotMeta) -> Self {
        Self {
            last: meta.last_log_id.as_ref().map(log_id),
            membership_id: meta.last_membership.log_id().as_ref().map(log_id),
            membership: own_membership(meta.last_membership.membership()),
        }
    }

    pub(super) fn meta(&self) -> io::Result<SnapshotMeta> {
        let membership = match self.membership_id {
            Some(id) => StoredMembership::new(Some(raft_id(id)), raft_membership(self.membership.clone())?),
            None => StoredMembership::default(),
        };
        Ok(SnapshotMeta { last_log_id: self.last.map(raft_id), last_membership: membership })
    }
}

pub(super) const NAME: &str = "snapshot";
const DRAFT: &str = "snapshot.draft";
const MAGIC: [u8; 8] = *b"CONCSNAP";
const VERSION: u32 = 1;
const HEADER: usize = 24;
/// The time for which no snapshot is tried after the disk was full.
const PAUSE: Duration = Duration::from_secs(30);

/// The snapshot of a data folder.
pub(super) struct Snapshots {
    disk: Arc<dyn Disk>,
    /// The last entry that the file covers. The lock is held while the file is replaced.
    covered: Mutex<Option<LogId>>,
    /// The time at which the disk was last too full for a snapshot.
    full: Mutex<Option<Instant>>,
}

impl Snapshots {
    /// Finds the snapshot of the folder, if there is one. A damaged one is an error.
    pub(super) fn open(disk: Arc<dyn Disk>) -> io::Result<Self> {
        match disk.remove(DRAFT) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let snapshots = Self { disk, covered: Mutex::new(None), full: Mutex::new(None) };
        let covered = snapshots.load()?.and_then(|(description, _)| description.last);
        *snapshots.covered.lock().unwrap_or_else(PoisonError::into_inner) = covered;
        Ok(snapshots)
    }

    /// Returns the last entry that the snapshot on disk covers.
    pub(super) fn covered(&self) -> Option<LogId> {
        *self.covered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the snapshot on disk, durably, unless that one covers as much.
    pub(super) fn save(&self, description: &Description, bytes: &[u8]) -> io::Result<()> {
        let mut covered = self.covered.lock().unwrap_or_else(PoisonError::into_inner);
        if covered.is_some() && *covered >= description.last {
            return Ok(());
        }
        // Remove a partial file, because the log may need the space. The error of the write is returned.
        self.write(description, bytes).inspect_err(|_| drop(self.disk.remove(DRAFT)))?;
        self.disk.rename(DRAFT, NAME)?;
        self.disk.sync_names()?;
        *covered = description.last;
        Ok(())
    }

    /// Saves as [`Snapshots::save`], for a snapshot that is not urgent. Returns `false` if the disk is full.
    /// Without the snapshot the log is only longer. A node that stopped for this would stop again at every
    /// start.
    pub(super) fn try_save(&self, description: &Description, bytes: &[u8]) -> io::Result<bool> {
        match self.save(description, bytes) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
            {
                tracing::warn!(%error, "no space for a snapshot; the log grows until there is some");
                *self.full.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                Ok(false)
            }
            saved => saved.map(|()| true),
        }
    }

    /// Returns whether a snapshot that is not urgent should be tried later, because the disk was full.
    pub(super) fn is_pausing(&self) -> bool {
        let full = *self.full.lock().unwrap_or_else(PoisonError::into_inner);
        full.is_some_and(|at| at.elapsed() < PAUSE)
    }

    fn write(&self, description: &Description, bytes: &[u8]) -> io::Result<()> {
        let file = self.disk.create(DRAFT)?;
        let described = postcard::to_stdvec(description).map_err(invalid)?;
        let mut head = Vec::with_capacity(HEADER + described.len());
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend([0; 4]);
        head.extend((described.len() as u64).to_le_bytes());
        head.extend(described);
        let mut crc = crc32fast::Hasher::new();
        crc.update(&head[16..]);
        crc.update(bytes);
        head[12..16].copy_from_slice(&crc.finalize().to_le_bytes());
        file.write_at(&head, 0)?;
        file.write_at(bytes, head.len() as u64)?;
        file.sync()
    }

    /// Reads the snapshot, if there is one.
    pub(super) fn load(&self) -> io::Result<Option<(Description, SnapshotBytes)>> {
        let file = match self.disk.open(NAME) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = vec![0; usize::try_from(file.size()?).map_err(io::Error::other)?];
        file.read_at(&mut bytes, 0)?;
        let damaged = || invalid("the snapshot is damaged: its checksum does not match");
        let head = bytes.get(..HEADER).ok_or_else(damaged)?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if head[..8] != MAGIC {
            return Err(invalid("the snapshot does not begin like one"));
        }
        if number(8) != VERSION {
            return Err(invalid(format!(
                "the snapshot has format version {}; this reads {VERSION}",
                number(8)
            )));
        }
        if crc32fast::hash(&bytes[16..]) != number(12) {
            return Err(damaged());
        }
        let length = usize::try_from(number(16)).map_err(io::Error::other)?;
        let body = HEADER.checked_add(length).filter(|body| *body <= bytes.len()).ok_or_else(damaged)?;
        let description = postcard::from_bytes(&bytes[HEADER..body]).map_err(invalid)?;
        Ok(Some((description, bytes[body..].into())))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::replica::disk::SimDisk;
    use crate::replica::raft_types::Member;
    use crate::replica::tests::support::{Act, Hooked};

    fn description(index: u64) -> Description {
        Description {
            last: Some(LogId { term: 2, index }),
            membership_id: Some(LogId { term: 1, index: 0 }),
            membership: Membership {
                voters: vec![BTreeSet::from([1])],
                nodes: BTreeMap::from([(1, Member { address: "here".to_owned() })]),
            },
        }
    }

    fn open(disk: &SimDisk) -> Snapshots {
        Snapshots::open(Arc::new(disk.handle())).unwrap()
    }

    #[test]
    fn a_snapshot_is_found_again_and_an_older_one_does_not_replace_it() {
        let disk = SimDisk::new(1);
        let snapshots = open(&disk);
        assert!(snapshots.load().unwrap().is_none());
        snapshots.save(&description(10), b"ten").unwrap();
        snapshots.save(&description(7), b"seven").unwrap();
        disk.crash();
        let snapshots = open(&disk);
        assert_eq!(snapshots.covered(), Some(LogId { term: 2, index: 10 }));
        let (found, bytes) = snapshots.load().unwrap().unwrap();
        assert_eq!((found.clone(), &*bytes), (description(10), &b"ten"[..]));
        assert_eq!(Description::of(&found.meta().unwrap()), found);
    }

    #[test]
    fn a_crash_while_saving_leaves_the_old_snapshot_or_the_new() {
        let (mut old, mut new) = (0, 0);
        for seed in 0..100 {
            for operations in 0..7 {
                let disk = SimDisk::new(seed);
                open(&disk).save(&description(1), &[1; 2000]).unwrap();
                let snapshots = open(&disk);
                disk.lose_power_after(operations);
                let saved = snapshots.save(&description(2), &[2; 2000]);
                disk.crash();
                let (found, bytes) = open(&disk).load().unwrap().expect("one of the two is there");
                let index = found.last.unwrap().index;
                assert!(bytes.iter().all(|byte| u64::from(*byte) == index) && bytes.len() == 2000);
                assert!(saved.is_err() || index == 2, "seed {seed}: an acknowledged snapshot was lost");
                (old, new) = if index == 1 { (old + 1, new) } else { (old, new + 1) };
            }
        }
        assert!(old > 0 && new > 0);
    }

    #[test]
    fn a_full_disk_keeps_the_old_snapshot_and_is_retried_later() {
        let (sim, is_full) = (SimDisk::new(1), Arc::new(AtomicBool::new(false)));
        let disk = Hooked::new(sim.handle(), {
            let is_full = is_full.clone();
            move |act, _| match act {
                Act::Write if is_full.load(Ordering::SeqCst) => Err(io::ErrorKind::StorageFull.into()),
                _ => Ok(()),
            }
        });
        let snapshots = Snapshots::open(Arc::new(disk)).unwrap();
        assert!(snapshots.try_save(&description(1), b"one").unwrap() && !snapshots.is_pausing());
        is_full.store(true, Ordering::SeqCst);
        assert!(!snapshots.try_save(&description(2), b"two").unwrap() && snapshots.is_pausing());
        assert_eq!(snapshots.covered(), description(1).last);
        assert_eq!(sim.handle().list().unwrap(), [NAME]);
        assert!(snapshots.save(&description(2), b"two").is_err(), "what a leader sends is urgent");
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let disk = SimDisk::new(1);
        open(&disk).save(&description(1), b"state").unwrap();
        for byte in 0..disk.content(NAME).unwrap().len() {
            disk.flip(NAME, byte, 2);
            assert!(Snapshots::open(Arc::new(disk.handle())).is_err(), "byte {byte}");
            disk.flip(NAME, byte, 2);
        }
        assert!(open(&disk).load().unwrap().is_some());
    }
}
