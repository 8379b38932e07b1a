//! The identity of a data folder: its cluster and its node.
//!
//! **Intuition.** A node that starts with another node's folder would vote twice. A node with a folder of
//! another cluster would bring foreign entries. So the folder holds both numbers, and only that node may open
//! it.
//!
//! **Trap.** A folder with an identity and without a log has two possible causes. Either its first start was
//! interrupted and the log is still to begin, or the log was lost. In the second case a new log would forget
//! votes and found the cluster a second time. The file `fresh` distinguishes the two: it is written before
//! the identity and removed when the log has begun. A log without an identity is never a new folder: in
//! another cluster, its entries would be taken for that cluster's.
//!
//! ```text
//! 0          8         12       16                32        40
//! | CONCNODE | version | crc32  | cluster         | node    |
//! ```

use std::io;

use super::disk::Disk;
use super::raft_types::invalid;
use super::{OpenError, log, snapshot};

pub(super) const NAME: &str = "identity";
const DRAFT: &str = "identity.draft";
/// The file that exists from before the identity is written until the log has begun.
const FRESH: &str = "fresh";
const MAGIC: [u8; 8] = *b"CONCNODE";
const VERSION: u32 = 1;
const SIZE: usize = 40;
const NAMELESS: &str = "the data folder has a log but does not say whose: its file `identity` is missing. Bring that back, or \
                        begin with an empty folder; if a restore was cut short here, restore again";

/// A node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's number, drawn at random when the cluster was founded.
    pub cluster: u128,
    /// The node's number in the cluster.
    pub node: u64,
}

impl Identity {
    /// Creates the identity of the first node of a new cluster.
    pub fn new_cluster(disk: &dyn Disk) -> io::Result<Self> {
        let cluster = u128::from(disk.salt()?) << 64 | u128::from(disk.salt()?);
        Ok(Self { cluster, node: 1 })
    }

    /// Returns the identity of the folder, or `None` if the folder is new.
    pub fn load(disk: &dyn Disk) -> io::Result<Option<Self>> {
        let file = match disk.open(NAME) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return if has_history(disk)? { Err(invalid(NAMELESS)) } else { Ok(None) };
            }
            Err(error) => return Err(error),
        };
        let mut bytes = [0; SIZE];
        file.read_at(&mut bytes, 0)?;
        let cluster = u128::from_le_bytes(bytes[16..32].try_into().map_err(io::Error::other)?);
        let node = u64::from_le_bytes(bytes[32..].try_into().map_err(io::Error::other)?);
        let identity = Self { cluster, node };
        if bytes != identity.bytes() {
            return Err(invalid(
                "the file `identity` is damaged; restore it, or join with an empty data folder",
            ));
        }
        Ok(Some(identity))
    }

    /// Marks the folder as new, before it is claimed for the first time.
    pub(crate) fn mark_fresh(disk: &dyn Disk) -> io::Result<()> {
        disk.create(FRESH)?.sync()?;
        disk.sync_names()
    }

    /// Returns whether the folder is marked as new, so that its log may not have begun.
    pub(crate) fn is_fresh(disk: &dyn Disk) -> io::Result<bool> {
        Ok(disk.list()?.iter().any(|name| name == FRESH))
    }

    /// Removes the mark after the node has a vote and its address is recorded.
    pub(crate) fn unmark_fresh(disk: &dyn Disk) -> io::Result<()> {
        disk.remove(FRESH)?;
        disk.sync_names()
    }

    /// Writes the identity into a new folder, or checks that the folder has this identity.
    pub(super) fn check_or_write(self, disk: &dyn Disk) -> Result<(), OpenError> {
        match Self::load(disk)? {
            Some(owner) if owner == self => Ok(()),
            Some(owner) if owner.cluster != self.cluster => Err(OpenError::Invalid(
                "the data folder belongs to a node of another cluster; use another folder".to_owned(),
            )),
            Some(owner) => Err(OpenError::Invalid(format!(
                "the data folder belongs to node {}, not to node {}",
                owner.node, self.node
            ))),
            None => Ok(self.write(disk)?),
        }
    }

    /// Writes the identity into a folder that has none.
    pub(super) fn write(self, disk: &dyn Disk) -> io::Result<()> {
        let file = disk.create(DRAFT)?;
        file.write_at(&self.bytes(), 0)?;
        file.sync()?;
        disk.rename(DRAFT, NAME)?;
        disk.sync_names()
    }

    fn bytes(self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.cluster.to_le_bytes());
        bytes[32..].copy_from_slice(&self.node.to_le_bytes());
        let crc = crc32fast::hash(&bytes[16..]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// Returns whether the folder has a log or a snapshot. The identity is written before both.
fn has_history(disk: &dyn Disk) -> io::Result<bool> {
    Ok(disk.list()?.iter().any(|name| log::is_segment(name) || name == snapshot::NAME))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::disk::SimDisk;

    #[test]
    fn a_folder_with_a_log_and_no_identity_is_rejected() {
        for name in ["00000000000000000007.log", "snapshot"] {
            let disk = SimDisk::new(1);
            Identity::mark_fresh(&disk.handle()).unwrap();
            assert_eq!(Identity::load(&disk.handle()).unwrap(), None);
            disk.handle().create(name).unwrap();
            let refused = Identity::load(&disk.handle()).unwrap_err();
            assert!(refused.to_string().contains("`identity` is missing"), "{refused}");
        }
    }

    #[test]
    fn a_folder_is_claimed_once_and_refuses_others() {
        let disk = SimDisk::new(1);
        let me = Identity::new_cluster(&disk.handle()).unwrap();
        assert_eq!(Identity::load(&disk.handle()).unwrap(), None);
        me.check_or_write(&disk.handle()).unwrap();
        disk.crash();
        assert_eq!(Identity::load(&disk.handle()).unwrap(), Some(me));
        me.check_or_write(&disk.handle()).unwrap();
        let other_node = Identity { node: 2, ..me }.check_or_write(&disk.handle()).unwrap_err();
        assert!(other_node.to_string().contains("belongs to node 1"), "{other_node}");
        let other_cluster = Identity { cluster: 5, ..me }.check_or_write(&disk.handle()).unwrap_err();
        assert!(other_cluster.to_string().contains("another cluster"), "{other_cluster}");
        disk.flip(NAME, 35, 0);
        assert!(Identity::load(&disk.handle()).is_err());
    }
}
