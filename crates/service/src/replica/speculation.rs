//! Speculation: a single node applies entries while the disk still writes them, and sends nothing before they
//! are durable.
//!
//! **Intuition.** On the only node of a cluster, an entry needs nothing but the sync to be committed. So the
//! node applies the entry during the sync, and holds back its effects, results and reads until the sync
//! returns. If the power fails meanwhile, the entry is lost, but no client got a reply for it.
//!
//! **Rules.**
//! - Openraft treats entries as durable as soon as they are queued for the log, and applies them at once.
//! - Effects and results wait for the sync ([`Speculation::when_durable`]), and so do reads and snapshots
//!   ([`Speculation::durable`]).
//! - Only a single node speculates, and only while its membership does not change. A change of membership is
//!   appended after all entries before it are durable, and takes effect when it is durable itself. So no
//!   second node, not even a learner, learns of a committed entry that the first node could still lose.
//! - A node that was not single does not speculate again before the next start. A caller of
//!   [`Speculation::may_be`] that got `false` can rely on a durable state from then on.
//!
//! **Trap.** The state can be ahead of the disk. A caller that reads it must wait for the sync before it
//! sends the result.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::raft_types::NodeId;

/// The entries that are applied before they are durable, and the actions that wait for their sync.
pub(super) struct Speculation(Mutex<Inner>);

struct Inner {
    size: ClusterSize,
    /// The indices of the last membership appended and of the last one applied.
    appended: Option<u64>,
    applied: Option<u64>,
    /// The index after the last entry that openraft took for durable before it was.
    promised: u64,
    /// The index after the last of these entries that is durable.
    durable: u64,
    /// Actions that wait until all entries before an index are durable. The indices never decrease.
    held_back: VecDeque<(u64, Then)>,
    /// `true` if the log has failed. Then entries that are not durable never will be.
    failed: bool,
}

type Then = Box<dyn FnOnce() + Send>;

/// The size of the cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClusterSize {
    /// No membership was applied yet.
    Unknown,
    /// This node is the only one.
    One,
    /// There is another node, or there was one since the start.
    Several,
}

impl Speculation {
    /// `membership` is the index of the last membership in the log.
    pub(super) fn new(membership: Option<u64>) -> Self {
        Self(Mutex::new(Inner {
            size: ClusterSize::Unknown,
            appended: membership,
            applied: None,
            promised: 0,
            durable: 0,
            held_back: VecDeque::new(),
            failed: false,
        }))
    }

    /// Returns whether the state may hold entries that are not durable. On a live replica, `false` stays
    /// `false` until the next start.
    pub(super) fn may_speculate(&self) -> bool {
        self.inner().size != ClusterSize::Several
    }

    /// Returns whether there are promised entries that are not durable yet. They are applied or about to be.
    pub(super) fn is_unsynced(&self) -> bool {
        let inner = self.inner();
        inner.durable < inner.promised
    }

    /// Records a membership that was applied or came with a snapshot. `listens` is whether the replica is
    /// live; before that, no caller relies on an earlier result.
    pub(super) fn on_membership(
        &self,
        index: u64,
        me: NodeId,
        nodes: impl Iterator<Item = NodeId>,
        listens: bool,
    ) {
        let is_single = nodes.eq([me]);
        let mut inner = self.inner();
        inner.applied = inner.applied.max(Some(index));
        inner.size = match inner.size {
            ClusterSize::Several if listens => ClusterSize::Several,
            _ if is_single => ClusterSize::One,
            _ => ClusterSize::Several,
        };
    }

    /// Stops speculation until the membership about to be appended at `index` is applied. Returns when
    /// everything promised before it is durable.
    pub(super) async fn change_membership(&self, index: u64) -> io::Result<()> {
        let promised = {
            let mut inner = self.inner();
            inner.appended = inner.appended.max(Some(index));
            inner.promised
        };
        self.durable(promised).await
    }

    /// Returns whether openraft may treat the entries before `end`, about to be queued for the log, as
    /// durable at once. If so, records them as promised.
    pub(super) fn allow(&self, end: u64) -> bool {
        let mut inner = self.inner();
        let is_allowed = inner.size == ClusterSize::One && inner.applied >= inner.appended && !inner.failed;
        if is_allowed {
            inner.promised = inner.promised.max(end);
        }
        is_allowed
    }

    /// Records that the promised entries before `end` are durable, or that the log failed.
    pub(super) fn on_written(&self, end: u64, result: &io::Result<()>) {
        let mut inner = self.inner();
        if result.is_err() {
            inner.failed = true;
            // Dropping the actions closes the channels of the callers that wait in `durable`, so they get an
            // error.
            return drop(std::mem::take(&mut inner.held_back));
        }
        inner.durable = inner.durable.max(end);
        while let Some((_, then)) = inner.held_back.pop_front_if(|(at, _)| *at <= end) {
            // The lock is held, so a concurrent call cannot run its action before this one.
            then();
        }
    }

    /// Runs `then` when all entries before `end` are durable: now if they are, else on the log's writer
    /// thread, so it must not block. If the log fails, `then` never runs. Actions run in the order of the
    /// calls, whose `end` must not decrease.
    pub(super) fn when_durable(&self, end: u64, then: impl FnOnce() + Send + 'static) {
        let mut inner = self.inner();
        if inner.is_durable(end) || has_flaw!(RepliesBeforeSync) {
            then();
        } else if !inner.failed {
            inner.held_back.push_back((end, Box::new(then)));
        }
    }

    /// Waits until all entries before `end` are durable. An error means that the log has failed.
    pub(super) async fn durable(&self, end: u64) -> io::Result<()> {
        let waits = {
            let mut inner = self.inner();
            if inner.is_durable(end) {
                return Ok(());
            }
            let (done, waits) = oneshot::channel();
            if !inner.failed {
                let place = inner.held_back.partition_point(|(at, _)| *at <= end);
                let deliver = move || {
                    // The caller may have stopped waiting.
                    let _ = done.send(());
                };
                inner.held_back.insert(place, (end, Box::new(deliver)));
            }
            waits
        };
        waits.await.map_err(|_| io::Error::other("the log has stopped"))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Returns whether the entries before `end` are durable. An entry that was not promised was durable
    /// before it was committed.
    fn is_durable(&self, end: u64) -> bool {
        end.min(self.promised) <= self.durable
    }
}
