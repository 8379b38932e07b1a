//! Watches: what changed, in order, with nothing lost between a read and its watch.
//!
//! **Intuition.** Every change has the number of its command. A read is done at some index; a watch says
//! from which index on it wants the changes. As long as the history reaches back to it, it gets all of
//! them, in order; if not, it is told so (*resync*: read again), never left in the dark.
//!
//! **Rules** (docs/service.md 7). The history is replicated and part of the snapshot, so a watch can be resumed on
//! any node. The watches themselves are not: the node that a client is connected to keeps them
//! ([`crate::node::watches`]). A watch costs no log entry.
//!
//! **Bounds.** [`HISTORY_LENGTH`] changes are remembered.

use std::collections::VecDeque;

use conclave_api::{Fence, LockName};
use serde::{Deserialize, Serialize};

use super::State;
use super::path::FilePath;
use super::tree::FileChange;

/// How many changes are remembered.
pub const HISTORY_LENGTH: usize = 16_384;

/// Something changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The command that changed it.
    pub index: u64,
    /// What it was.
    pub what: What,
}

/// What changed, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A file.
    File {
        /// Which.
        path: FilePath,
        /// How.
        change: FileChange,
    },
    /// A lock, semaphore or election.
    Lock {
        /// Which.
        name: LockName,
        /// How.
        change: LockChange,
    },
}

/// What happened to a lock, semaphore or election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockChange {
    /// Somebody came to hold it, by this fence; a leader was elected.
    Taken(Fence),
    /// Somebody gave it back; a leader resigned or was lost.
    Released,
    /// The leader proclaims another value.
    Proclaimed,
    /// The limit was changed.
    Limited(u32),
}

/// What a watch looks at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WatchTarget {
    /// A file: made, written, deleted.
    File(FilePath),
    /// The files that lie in a directory: made, deleted.
    Directory(FilePath),
    /// A lock, semaphore or election.
    Lock(LockName),
}

/// A watch of a session, numbered by its client.
pub type WatchId = u64;

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// It changed.
    Changed(Change),
    /// Changes may be missing: read again. What follows is later than `index`.
    Resync {
        /// The entry up to which the reader must look.
        index: u64,
    },
}

/// The latest changes, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct History {
    changes: VecDeque<Change>,
    /// Changes up to this index may be forgotten.
    forgotten: u64,
}

impl History {
    /// Nothing is known of what was up to this index.
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

    /// Whether one of the latest changes is of this lock.
    pub(super) fn mentions(&self, lock: &LockName) -> bool {
        let is_of_lock = |change: &Change| matches!(&change.what, What::Lock { name, .. } if name == lock);
        self.changes.iter().rev().any(is_of_lock)
    }

    /// Everything after `index`; `None` if some of it is forgotten.
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
    match (target, &change.what) {
        (WatchTarget::Lock(target), What::Lock { name, .. }) => target == name,
        (WatchTarget::File(target), What::File { path, .. }) => target == path,
        (WatchTarget::Directory(_), What::File { change: FileChange::Written(_), .. }) => false,
        (WatchTarget::Directory(target), What::File { path, .. }) => target.is_parent_of(path),
        _ => false,
    }
}

/// Returns the targets that a change belongs to.
pub(crate) fn targets(change: &Change) -> [Option<WatchTarget>; 2] {
    match &change.what {
        What::Lock { name, .. } => [Some(WatchTarget::Lock(name.clone())), None],
        What::File { path, change } => {
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
    fn a_change_is_looked_up_as_it_is_told() {
        let path = |text: &str| FilePath::new(text).expect("a path");
        let file = |text: &str, change| What::File { path: path(text), change };
        let lock = |text: &str| LockName::new(text).expect("a name");
        let changes = [
            file("/", FileChange::Written(conclave_api::Version(2))),
            file("/a", FileChange::Created),
            file("/a", FileChange::Written(conclave_api::Version(2))),
            file("/a/b", FileChange::Deleted),
            What::Lock { name: lock("a"), change: LockChange::Released },
        ];
        let paths = || ["/", "/a", "/a/b", "/ab"].map(path).into_iter();
        let watched = paths().map(WatchTarget::File).chain(paths().map(WatchTarget::Directory));
        for target in watched.chain(["a", "b"].map(lock).map(WatchTarget::Lock)) {
            for what in &changes {
                let change = Change { index: 1, what: what.clone() };
                let is_told = targets(&change).contains(&Some(target.clone()));
                assert_eq!(is_target(&target, &change), is_told, "{target:?} {change:?}");
            }
        }
    }
}
