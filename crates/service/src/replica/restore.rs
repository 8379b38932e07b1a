//! A folder made from a state: the founder of a new cluster that does not begin with nothing.
//!
//! **Intuition.** The first entry of a cluster, at [`BEGINNING`], says who founds it. A snapshot that covers just this entry
//! says the same, and brings a state along: to consensus, and to nodes that join later, it is one like any other.
//!
//! **Rules.** What is written comes in an order in which every step is durable before the next begins: `fresh`, the
//! snapshot, the identity. Only with the identity does the folder belong to a node, so a restore that is cut short has
//! never been: the folder is refused by whoever does not restore ([`Identity::load`]), and restored into again.
//! Once the identity is there, the log begins behind the snapshot, at this start or at any later one.
//!
//! **The trap.** A snapshot without votes is otherwise that of a node which has forgotten how it voted, and must not start.
//! This one has not voted yet: it covers nothing but the beginning, and the folder is still `fresh`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use super::disk::Disk;
use super::log::{self, LogId};
use super::raft_types::{Member, Membership, invalid};
use super::snapshot::{self, Description, Snapshots};
use super::{Identity, OpenError};

/// Where consensus puts the entry by which a cluster is founded.
pub(super) const BEGINNING: LogId = LogId { term: 0, index: 0 };

const IN_USE: &str = "the data folder belongs to a node already: a backup is restored into an empty folder. If one was \
                      restored here before, start without --restore";

/// Makes a new folder that of a cluster's first node, who is found at this address. Before the first command the state is as
/// these bytes say; they must be a snapshot that the machine understands.
pub(crate) fn restore(disk: &Arc<dyn Disk>, address: &str, state: &[u8]) -> Result<Identity, OpenError> {
    check_unused(&**disk)?;
    Identity::mark_fresh(&**disk)?;
    let identity = Identity::found(&**disk)?;
    let membership = Membership {
        voters: vec![BTreeSet::from([identity.node])],
        nodes: BTreeMap::from([(identity.node, Member { address: address.to_owned() })]),
    };
    // One of a restore that was cut short may be of another backup: it must not pass for this.
    remove(&**disk, snapshot::NAME)?;
    let covers = Description { last: Some(BEGINNING), membership_id: Some(BEGINNING), membership };
    Snapshots::open(disk.clone())?.save(&covers, state)?;
    identity.claim_anew(&**disk)?;
    Ok(identity)
}

/// Whether nobody has voted here yet, although there is a snapshot.
pub(super) fn is_unbegun(disk: &dyn Disk, covered: Option<LogId>) -> io::Result<bool> {
    Ok(covered == Some(BEGINNING) && Identity::is_fresh(disk)?)
}

fn check_unused(disk: &dyn Disk) -> io::Result<()> {
    let names = disk.list()?;
    let is_there = |name: &str| names.iter().any(|found| found == name);
    let is_begun = names.iter().any(|name| log::is_segment(name));
    // A snapshot in a fresh folder is of a restore that was cut short: no node has one before it has a log.
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
