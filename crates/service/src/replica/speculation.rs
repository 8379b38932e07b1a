//! A node that is alone works out what follows from an entry while the disk still writes it, and tells nobody before it is
//! durable.
//!
//! **Intuition.** On the only node of a cluster nothing stands between an entry and its place in the log but the disk. So it is
//! applied while the disk works, and what follows from it (effects, results, reads) is held back until the sync is over. If
//! the power goes meanwhile, all of that goes with it, and nobody has heard of it.
//!
//! **Rules.**
//! - Consensus is told that entries are durable as soon as they are queued for the log, and applies them at once.
//! - Effects and results wait for the sync ([`Speculation::when_durable`]), and so do reads and snapshots ([`Speculation::durable`]).
//! - Only on the one node of a cluster, whose membership does not change. A change of the membership is appended when all
//!   before it is durable, and counts only when it is durable itself: no second node, not even one that does not vote, ever
//!   hears that an entry is committed which the first could still forget.
//! - Who was not alone is not again before the next start: whoever reads the state and was told that it holds only what is
//!   durable ([`Speculation::may_be`]) can rely on it.
//!
//! **The trap.** The state is ahead of the disk. Whoever tells others what it has seen there must wait.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::raft_types::NodeId;

/// See the module.
pub(super) struct Speculation(Mutex<Inner>);

struct Inner {
    company: ClusterSize,
    /// The last membership that was appended, and the last that was applied.
    appended: Option<u64>,
    applied: Option<u64>,
    /// The index behind the last entry that consensus took for durable before it was.
    promised: u64,
    /// The index behind the last of those that is durable.
    durable: u64,
    /// What waits for the entries before an index to be durable; the indices never fall.
    held_back: VecDeque<(u64, Then)>,
    /// The log has failed: what is not durable never will be.
    failed: bool,
}

type Then = Box<dyn FnOnce() + Send>;

/// Who else belongs to the cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClusterSize {
    /// No membership was seen yet.
    Unknown,
    Nobody,
    Others,
}

impl Speculation {
    /// `membership` is where the last one stands in the log.
    pub(super) fn new(membership: Option<u64>) -> Self {
        Self(Mutex::new(Inner {
            company: ClusterSize::Unknown,
            appended: membership,
            applied: None,
            promised: 0,
            durable: 0,
            held_back: VecDeque::new(),
            failed: false,
        }))
    }

    /// Whether the state may hold something that is not durable. Once it may not, it never does.
    pub(super) fn may_be(&self) -> bool {
        self.inner().company != ClusterSize::Others
    }

    /// Whether something was applied, or is about to be, that is not durable.
    pub(super) fn is(&self) -> bool {
        let inner = self.inner();
        inner.durable < inner.promised
    }

    /// A membership was applied, or came with a snapshot. While nobody `listens` yet nobody relies on what was before.
    pub(super) fn on_membership(
        &self,
        index: u64,
        me: NodeId,
        nodes: impl Iterator<Item = NodeId>,
        listens: bool,
    ) {
        let is_alone = nodes.eq([me]);
        let mut inner = self.inner();
        inner.applied = inner.applied.max(Some(index));
        inner.company = match inner.company {
            ClusterSize::Others if listens => ClusterSize::Others,
            _ if is_alone => ClusterSize::Nobody,
            _ => ClusterSize::Others,
        };
    }

    /// A membership is being appended: nothing goes ahead until it is applied. Returns when everything before it is durable.
    pub(super) async fn change_membership(&self, index: u64) -> io::Result<()> {
        let promised = {
            let mut inner = self.inner();
            inner.appended = inner.appended.max(Some(index));
            inner.promised
        };
        self.durable(promised).await
    }

    /// Entries up to this index are about to be queued for the log: whether consensus may take them for durable at once.
    pub(super) fn promise(&self, end: u64) -> bool {
        let mut inner = self.inner();
        let is_allowed =
            inner.company == ClusterSize::Nobody && inner.applied >= inner.appended && !inner.failed;
        if is_allowed {
            inner.promised = inner.promised.max(end);
        }
        is_allowed
    }

    /// What was promised up to this index is kept, or never will be.
    pub(super) fn on_written(&self, end: u64, result: &io::Result<()>) {
        let mut inner = self.inner();
        if result.is_err() {
            inner.failed = true;
            // Whoever waits for one of them hears that it is gone.
            return drop(std::mem::take(&mut inner.held_back));
        }
        inner.durable = inner.durable.max(end);
        while let Some((_, then)) = inner.held_back.pop_front_if(|(at, _)| *at <= end) {
            // Under the lock, so that nobody gets ahead of what was held back.
            then();
        }
    }

    /// Does something when all entries before this index are durable: now if they are, or on the thread that writes the log,
    /// so it must not wait for anything; never if the log fails. In the order of the calls, which have no falling indices.
    pub(super) fn when_durable(&self, end: u64, then: impl FnOnce() + Send + 'static) {
        let mut inner = self.inner();
        if inner.is_durable(end) {
            then();
        } else if !inner.failed {
            inner.held_back.push_back((end, Box::new(then)));
        }
    }

    /// Waits until all entries before this index are durable.
    pub(super) async fn durable(&self, end: u64) -> io::Result<()> {
        let waits = {
            let mut inner = self.inner();
            if inner.is_durable(end) {
                return Ok(());
            }
            let (done, waits) = oneshot::channel();
            if !inner.failed {
                let place = inner.held_back.partition_point(|(at, _)| *at <= end);
                let tell = move || {
                    // Whoever stopped waiting does not want to know.
                    let _ = done.send(());
                };
                inner.held_back.insert(place, (end, Box::new(tell)));
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
    /// Entries that nobody was promised were durable before they were committed.
    fn is_durable(&self, end: u64) -> bool {
        end.min(self.promised) <= self.durable
    }
}
