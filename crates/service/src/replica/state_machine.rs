//! The state machine behind the log: applies committed entries, delivers their effects, and handles
//! snapshots.
//!
//! **Intuition.** A [`Machine`] is pure: the same commands at the same indices of the log give the same state
//! and the same effects on every node. This file applies committed entries to it and sends the effects to the
//! frontends of this node, in the order of the log. It also takes and restores snapshots.
//!
//! **Rules.**
//! - The effects of a command are delivered before its proposer gets the result.
//! - If the frontends are slow, the machine waits for them. The queue of deliveries is bounded and nothing is
//!   dropped, so in the end the proposers wait.
//! - Entries replayed at the start are not delivered, because no client is connected yet. Entries applied
//!   after the start may have been delivered already before a restart.
//! - A single node applies entries that are not durable yet (`speculation`). It delivers them, serves reads
//!   of them and writes them into snapshots only after the sync. The one exception is an early effect, whose
//!   outcome no crash can change.
//!
//! **Trap.** A snapshot from the leader skips entries. Their effects never happen on this node, so the
//! frontends must read the state anew ([`Delivery::Restored`]).

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::log::LogId;
use super::raft_types::{NodeId, SnapshotMeta, StoredMembership, Types, log_id, raft_id};
use super::runtime::{blocking, watch};
use super::snapshot::{Description, SnapshotBytes, Snapshots};
use super::speculation::Speculation;

/// A deterministic state, replicated by applying the same commands in the same order everywhere.
pub trait Machine: Send + Sync + Sized + 'static {
    /// The command that is proposed, logged and applied.
    type Command: Serialize + DeserializeOwned + fmt::Debug + Send + Sync + 'static;
    /// The effect of a command, for the frontends.
    type Effect: Send + 'static;

    /// Applies one committed command. `id` is its index in the log and the term of the leader that appended
    /// it.
    fn apply(&mut self, id: LogId, command: Self::Command) -> Vec<Self::Effect>;

    /// Returns the number of commands applied so far. An entry may have many commands.
    fn commands(&self) -> u64 {
        0
    }

    /// Returns the number of commands in the snapshot that the state began with.
    fn restored(&self) -> u64 {
        0
    }

    /// Removes from the `effects` of the entry just applied those that may be sent before it is durable, and
    /// returns them. `durable` is the number of commands that are durable.
    fn early(&self, _durable: u64, _effects: &mut Vec<Self::Effect>) -> Vec<Self::Effect> {
        Vec::new()
    }

    /// Returns the whole state, in a versioned format of its own.
    fn snapshot(&self) -> Vec<u8>;

    /// Returns the state that a snapshot holds, or an error that says why the bytes are not a snapshot.
    fn restore(bytes: &[u8]) -> Result<Self, String>;
}

/// An event for the frontends of a node. Deliveries arrive in the order of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery<E> {
    /// An entry was applied. Entries without a command (a leader's first, a change of membership) have no
    /// effects.
    Applied {
        /// The index and term of the entry.
        id: LogId,
        /// The effects of the entry.
        effects: Vec<E>,
    },
    /// An entry was applied that is not durable yet, and some of its effects may be sent at once. Its other
    /// effects follow in `Applied` after the sync.
    Early {
        /// The effects that may be sent before the sync.
        effects: Vec<E>,
    },
    /// A snapshot replaced the state. The frontends must read from the state whatever happened up to this
    /// entry.
    Restored {
        /// The last entry that the snapshot covers.
        id: LogId,
    },
}

/// The most entries in one batch of deliveries. More entries become several batches.
const APPLY_BATCH: usize = 256;

/// The state, as readers see it.
pub(super) struct Shared<M> {
    state: RwLock<Applied<M>>,
    /// The index of the last entry that is applied and durable.
    applied: watch::Sender<Option<u64>>,
    /// The number of commands that are applied, durable and delivered.
    commands: AtomicU64,
    speculation: Arc<Speculation>,
}

struct Applied<M> {
    machine: M,
    last: Option<LogId>,
    membership: StoredMembership,
}

impl<M: Machine> Shared<M> {
    pub(super) fn new(machine: M, speculation: Arc<Speculation>) -> Self {
        let state = Applied { machine, last: None, membership: StoredMembership::default() };
        Self {
            state: RwLock::new(state),
            applied: watch::Sender::new(None),
            commands: AtomicU64::new(0),
            speculation,
        }
    }

    /// Reads the current state. Part of it may not be durable yet.
    pub(super) fn peek<R>(&self, read: impl FnOnce(&M) -> R) -> R {
        read(&self.state().machine)
    }

    /// Reads the current state, and returns the result after everything that the read could see is durable.
    pub(super) async fn read<R>(&self, read: impl FnOnce(&M) -> R) -> io::Result<R> {
        let (seen, end) = self.view(read);
        self.durable(end).await.map(|()| seen)
    }

    /// Reads the current state. Also returns the index before which all entries must be durable before the
    /// result is sent.
    pub(super) fn view<R>(&self, read: impl FnOnce(&M) -> R) -> (R, u64) {
        let state = self.state();
        (read(&state.machine), state.end())
    }

    /// Waits until all entries before `end` are durable.
    pub(super) async fn durable(&self, end: u64) -> io::Result<()> {
        self.speculation.durable(end).await
    }

    /// Waits until the entry of this index is applied and durable.
    pub(super) async fn applied_to(&self, index: u64) {
        // The sender is in `self`, so the channel cannot close.
        drop(self.applied.subscribe().wait_for(|applied| *applied >= Some(index)).await);
    }

    fn state(&self) -> RwLockReadGuard<'_, Applied<M>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Applied<M>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M> Applied<M> {
    /// Returns the index after the last entry applied.
    fn end(&self) -> u64 {
        self.last.map_or(0, |id| id.index + 1)
    }
}

/// The state machine that openraft drives.
pub(super) struct StateMachine<M: Machine> {
    pub(super) node: NodeId,
    pub(super) shared: Arc<Shared<M>>,
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) deliveries: mpsc::Sender<Vec<Delivery<M::Effect>>>,
    /// `true` once the replay at the start is over. Before that, nothing is delivered.
    pub(super) live: Arc<AtomicBool>,
}

impl<M: Machine> StateMachine<M> {
    fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    /// Delivers the early effects now. Delivers the other effects and sends the results when the batch is
    /// durable.
    async fn deliver(&self, batch: AppliedBatch<M>) {
        let AppliedBatch { end, commands, early, deliveries, responders } = batch;
        if !early.is_empty() {
            // An error means that the node is stopping, as below.
            drop(self.deliveries.send(vec![Delivery::Early { effects: early }]).await);
        }
        let place = match self.is_live() && !deliveries.is_empty() {
            // Reserve the place now: the closure below must not wait. If the receiver is gone, the node is
            // stopping.
            true => self.deliveries.clone().reserve_owned().await.ok(),
            false => None,
        };
        let shared = self.shared.clone();
        self.shared.speculation.when_durable(end, move || {
            shared.applied.send_replace(end.checked_sub(1));
            if let Some(place) = place {
                place.send(deliveries);
            }
            // Store the count last. It allows later effects to be early, and these must follow the effects of
            // this batch.
            shared.commands.store(commands, Ordering::Release);
            for responder in responders {
                responder.send(());
            }
        });
    }

    fn on_membership(&self, membership: &StoredMembership) {
        let index = membership.log_id().as_ref().map_or(0, |id| log_id(id).index);
        let nodes = membership.nodes().map(|(node, _)| *node);
        self.shared.speculation.on_membership(index, self.node, nodes, self.is_live());
    }

    /// Applies a batch of entries under one lock.
    fn apply_batch(&self, entries: &mut Vec<EntryResponder<Types<M>>>) -> io::Result<AppliedBatch<M>> {
        let (mut deliveries, mut responders) = (Vec::with_capacity(entries.len()), Vec::new());
        let mut early = Vec::new();
        let is_unsynced = self.is_live() && self.shared.speculation.is_unsynced();
        let durable = self.shared.commands.load(Ordering::Acquire);
        let mut state = self.shared.write();
        for (entry, responder) in entries.drain(..) {
            let id = log_id(&entry.log_id);
            let mut effects = match entry.payload {
                EntryPayload::Blank => Vec::new(),
                EntryPayload::Normal(proposal) => state.machine.apply(id, proposal.take()?),
                EntryPayload::Membership(membership) => {
                    state.membership = StoredMembership::new(Some(entry.log_id), membership);
                    self.on_membership(&state.membership);
                    Vec::new()
                }
            };
            if is_unsynced {
                early.append(&mut state.machine.early(durable, &mut effects));
            }
            state.last = Some(id);
            deliveries.push(Delivery::Applied { id, effects });
            responders.extend(responder);
        }
        Ok(AppliedBatch {
            end: state.end(),
            commands: state.machine.commands(),
            early,
            deliveries,
            responders,
        })
    }
}

struct AppliedBatch<M: Machine> {
    /// The index after the last entry applied.
    end: u64,
    /// The number of commands applied so far.
    commands: u64,
    /// Effects that may be sent before the sync.
    early: Vec<M::Effect>,
    deliveries: Vec<Delivery<M::Effect>>,
    responders: Vec<openraft::storage::ApplyResponder<Types<M>>>,
}

impl<M: Machine> RaftStateMachine<Types<M>> for StateMachine<M> {
    type SnapshotData = SnapshotBytes;
    type SnapshotBuilder = Builder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<super::raft_types::RaftLogId>, StoredMembership), io::Error> {
        let state = self.shared.state();
        Ok((state.last.map(raft_id), state.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types<M>>, io::Error>> + Unpin + OptionalSend,
    {
        let mut waiting = Vec::with_capacity(APPLY_BATCH);
        let mut more = true;
        while more {
            match entries.next().await {
                Some(entry) => waiting.push(entry?),
                None => more = false,
            }
            if waiting.len() == APPLY_BATCH || !more {
                let batch = self.apply_batch(&mut waiting)?;
                self.deliver(batch).await;
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Self::SnapshotBuilder> {
        if !force && self.snapshots.is_pausing() {
            return None;
        }
        Some(self.get_snapshot_builder().await)
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        // No entry is applied while this runs, so the bytes and the metadata match. A blocking thread encodes
        // the state because that can take long.
        let shared = self.shared.clone();
        let view = blocking(move || {
            let state = shared.state();
            let meta = SnapshotMeta {
                last_log_id: state.last.map(raft_id),
                last_membership: state.membership.clone(),
            };
            (meta, SnapshotBytes::from(state.machine.snapshot()))
        });
        let (snapshots, speculation) = (self.snapshots.clone(), self.shared.speculation.clone());
        Builder { snapshots, speculation, view: view.await }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, bytes: SnapshotBytes) -> Result<(), io::Error> {
        let description = Description::of(meta);
        let snapshots = self.snapshots.clone();
        let restored = blocking(move || {
            let machine = M::restore(&bytes).map_err(super::raft_types::invalid)?;
            snapshots.save(&description, &bytes)?;
            io::Result::Ok(machine)
        });
        let machine = restored.await??;
        let last = meta.last_log_id.as_ref().map(log_id).filter(|_| !has_flaw!(ForgetsEndOfSnapshot));
        let applied = Applied { machine, last, membership: meta.last_membership.clone() };
        self.on_membership(&applied.membership);
        let (end, commands) = (applied.end(), applied.machine.commands());
        *self.shared.write() = applied;
        let deliveries = last.map(|id| Delivery::Restored { id }).into_iter().collect();
        let batch = AppliedBatch { end, commands, early: Vec::new(), deliveries, responders: Vec::new() };
        self.deliver(batch).await;
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<openraft::alias::SnapshotOf<Types<M>, SnapshotBytes>>, io::Error> {
        let snapshots = self.snapshots.clone();
        let loaded = blocking(move || snapshots.load()).await??;
        loaded
            .map(|(description, bytes)| Ok(openraft::Snapshot { meta: description.meta()?, snapshot: bytes }))
            .transpose()
    }
}

/// A copy of the state at one index. It is written to the disk while the machine applies further entries.
pub(super) struct Builder {
    snapshots: Arc<Snapshots>,
    speculation: Arc<Speculation>,
    view: io::Result<(SnapshotMeta, SnapshotBytes)>,
}

impl<M: Machine> RaftSnapshotBuilder<Types<M>> for Builder {
    type SnapshotData = SnapshotBytes;

    async fn build_snapshot(
        &mut self,
    ) -> Result<openraft::alias::SnapshotOf<Types<M>, SnapshotBytes>, io::Error> {
        let (meta, bytes) = match &self.view {
            Ok((meta, bytes)) => (meta.clone(), bytes.clone()),
            Err(error) => return Err(io::Error::new(error.kind(), error.to_string())),
        };
        // The snapshot must not be on the disk before the entries that it covers. A crash could lose those
        // entries.
        self.speculation.durable(meta.last_log_id.as_ref().map_or(0, |id| log_id(id).index + 1)).await?;
        let (snapshots, description, data) = (self.snapshots.clone(), Description::of(&meta), bytes.clone());
        let saved = blocking(move || snapshots.try_save(&description, &data));
        let meta = match saved.await?? {
            true => meta,
            // The disk is full. A snapshot that covers nothing makes openraft purge nothing, so the log keeps
            // its entries.
            false => SnapshotMeta::default(),
        };
        Ok(openraft::Snapshot { meta, snapshot: bytes })
    }
}
