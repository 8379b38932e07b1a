//! The state machine behind the log: what is applied, in which order, and who hears of it.
//!
//! A [`Machine`] is pure: the same commands at the same places in the log give the same state and the same
//! effects on every node. This file applies committed entries to it, hands the effects to the frontends of this
//! node in order, and takes and restores snapshots.
//!
//! The rules:
//! - effects are handed over before the proposer hears that its command was applied;
//! - if the frontends are slow the machine waits for them: the queue of deliveries is bounded, nothing is
//!   dropped, and in the end proposers wait;
//! - what is replayed at start is not delivered: nobody is connected yet. What is applied afterwards may have been
//!   delivered before a restart already.
//!
//! The trap: a snapshot from the leader jumps over entries. Their effects never happen on this node, so the
//! frontends are told to look at the state anew ([`Delivery::Restored`]).

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};

use super::log::LogId;
use super::snapshot::{Description, SnapshotBytes, Snapshots};
use super::types::{SnapshotMeta, StoredMembership, Types, log_id, raft_id};

/// A deterministic state, replicated by applying the same commands in the same order everywhere.
pub trait Machine: Send + Sync + Sized + 'static {
    /// What is proposed, logged and applied.
    type Command: Serialize + DeserializeOwned + fmt::Debug + Send + Sync + 'static;
    /// What follows from applying it, for the frontends.
    type Effect: Send + 'static;

    /// Applies one committed command. `id` tells its place in the log and the term of the leader that put it there.
    fn apply(&mut self, id: LogId, command: Self::Command) -> Vec<Self::Effect>;

    /// The whole state, in a versioned format of its own.
    fn snapshot(&self) -> Vec<u8>;

    /// The state that a snapshot holds; an error says why these bytes are none.
    fn restore(bytes: &[u8]) -> Result<Self, String>;
}

/// What the frontends of a node hear, in the order of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery<E> {
    /// An entry was applied; entries without a command (a leader's first, a change of membership) have no effects.
    Applied {
        /// Which entry.
        id: LogId,
        /// What follows from it.
        effects: Vec<E>,
    },
    /// The state was replaced by a snapshot: whatever happened up to this entry must be read from the state.
    Restored {
        /// The last entry that the snapshot covers.
        id: LogId,
    },
}

/// Deliveries come in handfuls of at most this many entries.
const HANDFUL: usize = 256;

/// The state, as readers see it.
pub(super) struct Shared<M> {
    state: RwLock<Applied<M>>,
    applied: watch::Sender<Option<u64>>,
}

struct Applied<M> {
    machine: M,
    last: Option<LogId>,
    membership: StoredMembership,
}

impl<M: Machine> Shared<M> {
    pub(super) fn new(machine: M) -> Self {
        let state = Applied { machine, last: None, membership: StoredMembership::default() };
        Self { state: RwLock::new(state), applied: watch::Sender::new(None) }
    }

    /// Reads the state as it is here and now.
    pub(super) fn read<R>(&self, read: impl FnOnce(&M) -> R) -> R {
        read(&self.state.read().unwrap_or_else(PoisonError::into_inner).machine)
    }

    /// Waits until the entry of this index is applied.
    pub(super) async fn applied_to(&self, index: u64) {
        // The sender is in `self`, so the channel cannot close.
        drop(self.applied.subscribe().wait_for(|applied| *applied >= Some(index)).await);
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Applied<M>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What openraft drives.
pub(super) struct StateMachine<M: Machine> {
    pub(super) shared: Arc<Shared<M>>,
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) deliveries: mpsc::Sender<Vec<Delivery<M::Effect>>>,
    /// Whether somebody listens already.
    pub(super) live: Arc<AtomicBool>,
}

impl<M: Machine> StateMachine<M> {
    async fn deliver(&self, handful: Vec<Delivery<M::Effect>>) {
        if self.live.load(Ordering::Acquire) && !handful.is_empty() {
            // If nobody listens any more, the node is going down.
            drop(self.deliveries.send(handful).await);
        }
    }

    /// Applies a handful of entries under one lock.
    fn apply_handful(&self, entries: &mut Vec<EntryResponder<Types<M>>>) -> io::Result<Handful<M>> {
        let mut handful = Handful { deliveries: Vec::with_capacity(entries.len()), responders: Vec::new() };
        let mut state = self.shared.write();
        for (entry, responder) in entries.drain(..) {
            let id = log_id(&entry.log_id);
            let effects = match entry.payload {
                EntryPayload::Blank => Vec::new(),
                EntryPayload::Normal(proposal) => state.machine.apply(id, proposal.take()?),
                EntryPayload::Membership(membership) => {
                    state.membership = StoredMembership::new(Some(entry.log_id), membership);
                    Vec::new()
                }
            };
            state.last = Some(id);
            handful.deliveries.push(Delivery::Applied { id, effects });
            handful.responders.extend(responder);
        }
        let last = state.last.map(|id| id.index);
        drop(state);
        self.shared.applied.send_replace(last);
        Ok(handful)
    }
}

struct Handful<M: Machine> {
    deliveries: Vec<Delivery<M::Effect>>,
    responders: Vec<openraft::storage::ApplyResponder<Types<M>>>,
}

impl<M: Machine> RaftStateMachine<Types<M>> for StateMachine<M> {
    type SnapshotData = SnapshotBytes;
    type SnapshotBuilder = Builder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<super::types::RaftLogId>, StoredMembership), io::Error> {
        let state = self.shared.state.read().unwrap_or_else(PoisonError::into_inner);
        Ok((state.last.map(raft_id), state.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types<M>>, io::Error>> + Unpin + OptionalSend,
    {
        let mut waiting = Vec::with_capacity(HANDFUL);
        let mut more = true;
        while more {
            match entries.next().await {
                Some(entry) => waiting.push(entry?),
                None => more = false,
            }
            if waiting.len() == HANDFUL || !more {
                let handful = self.apply_handful(&mut waiting)?;
                self.deliver(handful.deliveries).await;
                for responder in handful.responders {
                    responder.send(());
                }
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
        // Nothing is applied while this runs, so the bytes are those of one moment; they are made on a thread
        // that may take its time.
        let shared = self.shared.clone();
        let view = tokio::task::spawn_blocking(move || {
            let state = shared.state.read().unwrap_or_else(PoisonError::into_inner);
            let meta = SnapshotMeta {
                last_log_id: state.last.map(raft_id),
                last_membership: state.membership.clone(),
            };
            (meta, SnapshotBytes::from(state.machine.snapshot()))
        });
        Builder { snapshots: self.snapshots.clone(), view: view.await.map_err(io::Error::other) }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, bytes: SnapshotBytes) -> Result<(), io::Error> {
        let description = Description::of(meta);
        let snapshots = self.snapshots.clone();
        let restored = tokio::task::spawn_blocking(move || {
            let machine = M::restore(&bytes).map_err(super::types::invalid)?;
            snapshots.save(&description, &bytes)?;
            io::Result::Ok(machine)
        });
        let machine = restored.await.map_err(io::Error::other)??;
        let last = meta.last_log_id.as_ref().map(log_id);
        *self.shared.write() = Applied { machine, last, membership: meta.last_membership.clone() };
        self.shared.applied.send_replace(last.map(|id| id.index));
        self.deliver(last.map(|id| Delivery::Restored { id }).into_iter().collect()).await;
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<openraft::alias::SnapshotOf<Types<M>, SnapshotBytes>>, io::Error> {
        let snapshots = self.snapshots.clone();
        let loaded =
            tokio::task::spawn_blocking(move || snapshots.load()).await.map_err(io::Error::other)??;
        loaded
            .map(|(description, bytes)| Ok(openraft::Snapshot { meta: description.meta()?, snapshot: bytes }))
            .transpose()
    }
}

/// A view of the state at one moment, to be written to disk while the machine goes on.
pub(super) struct Builder {
    snapshots: Arc<Snapshots>,
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
        let (snapshots, description, data) = (self.snapshots.clone(), Description::of(&meta), bytes.clone());
        let saved = tokio::task::spawn_blocking(move || snapshots.try_save(&description, &data));
        let meta = match saved.await.map_err(io::Error::other)?? {
            true => meta,
            // One that covers nothing replaces none: the log keeps what it has.
            false => SnapshotMeta::default(),
        };
        Ok(openraft::Snapshot { meta, snapshot: bytes })
    }
}
