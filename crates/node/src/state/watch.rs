//! The history of changes, from which a watch continues without a gap after a read.
//!
//! **Intuition.** Every change has the number of its command, and every read has an index. A watch names the
//! index after which it wants changes. If the history reaches back to this index, the watch gets every
//! change, in order. If not, it gets a *resync*, and the client must read again.
//!
//! **Rules** (docs/service.md 7). The history is replicated and part of the snapshot, so a watch can be
//! resumed on any node. The watches themselves are not replicated: the node of the client's connection keeps
//! them ([`crate::node::watches`]). A watch costs no log entry.
//!
//! **Bounds.** The history has [`HISTORY_LENGTH`] changes.

use std::collections::VecDeque;

use conclave_core::report::{self, WatchEvent};
use conclave_core::{Fence, FilePath, LockName};
use serde::{Deserialize, Serialize};

use super::State;
use super::tree::FileChange;

/// The number of changes in the history. Beyond it, the oldest is forgotten, and a watch that needs it gets a
/// resync.
pub const HISTORY_LENGTH: usize = 16_384;

/// A change of a file or a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The number of the command that made the change.
    pub index: u64,
    /// The thing that changed, and the kind of change.
    pub object: ChangedObject,
}

/// The thing that changed, and the kind of change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangedObject {
    /// A file.
    File {
        /// The path of the file.
        path: FilePath,
        /// The kind of change.
        change: FileChange,
    },
    /// A lock, semaphore or election.
    Lock {
        /// The name.
        name: LockName,
        /// The kind of change.
        change: LockChange,
    },
}

/// A change of a lock, semaphore or election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockChange {
    /// The name was granted with this fence. For an election: a leader was elected.
    Taken(Fence),
    /// A hold of the name ended. For an election: the leader resigned or was lost.
    Released,
    /// The leader proclaimed another value.
    Proclaimed,
    /// The limit was changed to this number of permits.
    Limited(u32),
}

/// The target of a watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WatchTarget {
    /// A file: created, written, deleted.
    File(FilePath),
    /// The files of a directory: created, deleted.
    Directory(FilePath),
    /// A lock, semaphore or election.
    Lock(LockName),
}

/// The number of a watch. Its client chooses it.
pub type WatchId = u64;

impl Change {
    /// Returns the change as an event of a watch. The variants of this module are part of the format of
    /// snapshots, so this module has types of its own.
    pub fn to_event(&self) -> WatchEvent {
        let (name, change) = match &self.object {
            ChangedObject::File { path, change } => {
                let change = match change {
                    FileChange::Created => report::Change::Created,
                    FileChange::Written(version) => report::Change::Written(*version),
                    FileChange::Deleted => report::Change::Deleted,
                };
                (path.as_str(), change)
            }
            ChangedObject::Lock { name, change } => {
                let change = match change {
                    LockChange::Taken(fence) => report::Change::Taken(*fence),
                    LockChange::Released => report::Change::Released,
                    LockChange::Proclaimed => report::Change::Proclaimed,
                    LockChange::Limited(permits) => report::Change::Limited(*permits),
                };
                (name.as_str(), change)
            }
        };
        WatchEvent::Changed { index: self.index, name: name.to_owned(), change }
    }
}

/// The latest changes, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct History {
    changes: VecDeque<Change>,
    /// The largest index up to which changes may have been forgotten.
    forgotten: u64,
}

impl History {
    /// Creates an empty history in which all changes up to `index` are forgotten.
    pub(super) fn forgotten(index: u64) -> Self {
        Self { changes: VecDeque::new(), forgotten: index }
    }

    pub(super) fn push(&mut self, change: Change) {
        if self.changes.len() >= HISTORY_LENGTH
            && let Some(oldest) = self.changes.pop_front()
        {
            self.forgotten = oldest.index;
        }
        self.changes.push_back(change);
    }

    /// Returns whether one of the remembered changes concerns this lock.
    pub(super) fn mentions(&self, lock: &LockName) -> bool {
        let is_of_lock =
            |change: &Change| matches!(&change.object, ChangedObject::Lock { name, .. } if name == lock);
        self.changes.iter().rev().any(is_of_lock)
    }

    /// Returns every change after `index`; `None` if some of them are forgotten.
    fn since(&self, index: u64) -> Option<impl Iterator<Item = &Change>> {
        let from = self.changes.partition_point(|change| change.index <= index);
        (index >= self.forgotten).then(|| self.changes.range(from..))
    }
}

impl State {
    /// Returns every change after `index`, in order; `None` if some of them are forgotten.
    pub(crate) fn changes_since(&self, index: u64) -> Option<impl Iterator<Item = &Change>> {
        self.history.since(index)
    }
}

/// Returns whether the target is one of the [`targets`] of the change.
pub(crate) fn is_target(target: &WatchTarget, change: &Change) -> bool {
    match (target, &change.object) {
        (WatchTarget::Lock(target), ChangedObject::Lock { name, .. }) => target == name,
        (WatchTarget::File(target), ChangedObject::File { path, .. }) => target == path,
        (WatchTarget::Directory(_), ChangedObject::File { change: FileChange::Written(_), .. }) => false,
        (WatchTarget::Directory(target), ChangedObject::File { path, .. }) => target.is_parent_of(path),
        _ => false,
    }
}

/// Returns the targets that a change belongs to.
pub(crate) fn targets(change: &Change) -> [Option<WatchTarget>; 2] {
    match &change.object {
        ChangedObject::Lock { name, .. } => [Some(WatchTarget::Lock(name.clone())), None],
        ChangedObject::File { path, change } => {
            let parent = path.split().map(|(parent, _)| WatchTarget::Directory(parent));
            let parent = parent.filter(|_| !matches!(change, FileChange::Written(_)));
            [Some(WatchTarget::File(path.clone())), parent]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_a_change_agree_with_the_lookup() {
        let path = |text: &str| FilePath::new(text).expect("a path");
        let file = |text: &str, change| ChangedObject::File { path: path(text), change };
        let lock = |text: &str| LockName::new(text).expect("a name");
        let changes = [
            file("/", FileChange::Written(conclave_core::Version(2))),
            file("/a", FileChange::Created),
            file("/a", FileChange::Written(conclave_core::Version(2))),
            file("/a/b", FileChange::Deleted),
            ChangedObject::Lock { name: lock("a"), change: LockChange::Released },
        ];
        let paths = || ["/", "/a", "/a/b", "/ab"].map(path).into_iter();
        let watched = paths().map(WatchTarget::File).chain(paths().map(WatchTarget::Directory));
        for target in watched.chain(["a", "b"].map(lock).map(WatchTarget::Lock)) {
            for object in &changes {
                let change = Change { index: 1, object: object.clone() };
                let is_told = targets(&change).contains(&Some(target.clone()));
                assert_eq!(is_target(&target, &change), is_told, "{target:?} {change:?}");
            }
        }
    }
}
