//! Restore: makes the data folder of a new cluster's first node from a saved state.
//!
//! **Intuition.** The first entry of a cluster, at [`BEGINNING`], names its first member. A snapshot that
//! covers just this entry has the same content, and a state. Consensus and nodes that join later treat it as
//! any other snapshot.
//!
//! **Rules.** Each step is durable before the next begins: the mark `fresh`, the snapshot, the identity. Only
//! the identity makes the folder belong to a node. So an interrupted restore has no effect: a normal start
//! rejects the folder ([`Identity::load`]), and a second restore accepts it. Once the identity is there, the
//! log begins after the snapshot, at this start or a later one.
//!
//! **Trap.** A snapshot without a vote normally belongs to a node that lost its votes, and such a node must
//! not start. A restored node has not voted yet: its snapshot covers only [`BEGINNING`], and the folder is
//! still `fresh`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use super::disk::Disk;
use super::log::{self, LogId};
use super::raft_types::{Member, Membership, invalid};
use super::snapshot::{self, Description, Snapshots};
use super::{Identity, OpenError};

/// The position of the entry that founds a cluster, as openraft sets it.
pub(super) const BEGINNING: LogId = LogId { term: 0, index: 0 };

const IN_USE: &str = "the data folder belongs to a node already: a backup is restored into an empty folder. If one was \
                      restored here before, start without --restore";

/// Makes a new folder the data folder of a cluster's first node, reachable at `address`. `state` is the state
/// before the first command, and must be a snapshot that the machine can read.
pub(crate) fn restore(disk: &Arc<dyn Disk>, address: &str, state: &[u8]) -> Result<Identity, OpenError> {
    check_unused(&**disk)?;
    Identity::mark_fresh(&**disk)?;
    let identity = Identity::new_cluster(&**disk)?;
    let membership = Membership {
        voters: vec![BTreeSet::from([identity.node])],
        nodes: BTreeMap::from([(identity.node, Member { address: address.to_owned() })]),
    };
    // A snapshot left by an interrupted restore may come from another backup. Remove it, or `save` would keep
    // it.
    remove(&**disk, snapshot::NAME)?;
    let covers = Description { last: Some(BEGINNING), membership_id: Some(BEGINNING), membership };
    Snapshots::open(disk.clone())?.save(&covers, state)?;
    identity.write(&**disk)?;
    Ok(identity)
}

/// Returns whether the folder was restored and its node has not started yet. Such a folder has a snapshot and
/// no vote.
pub(super) fn is_unbegun(disk: &dyn Disk, covered: Option<LogId>) -> io::Result<bool> {
    Ok(covered == Some(BEGINNING) && Identity::is_fresh(disk)?)
}

fn check_unused(disk: &dyn Disk) -> io::Result<()> {
    let names = disk.list()?;
    let is_there = |name: &str| names.iter().any(|found| found == name);
    let is_begun = names.iter().any(|name| log::is_segment(name));
    // A snapshot in a fresh folder comes from an interrupted restore: a node has no snapshot before it has a
    // log.
    let is_lost = is_there(snapshot::NAME) && !Identity::is_fresh(disk)?;
    if is_there(super::identity::NAME) || is_begun || is_lost { Err(invalid(IN_USE)) } else { Ok(()) }
}

fn remove(disk: &dyn Disk, name: &str) -> io::Result<()> {
    match disk.remove(name) {
        Ok(()) => disk.sync_names(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
