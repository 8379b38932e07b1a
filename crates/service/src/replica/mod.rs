//! The replica: the log, the state machine and the snapshots of one node, and consensus between nodes.
//!
//! ```text
//!   propose(command)                              read(|machine| ...)
//!        |                                             | one ReadIndex round for all
//!        v                                             v
//!      openraft ---- store ---> log (one fdatasync a batch)
//!        |   \______ network __ Transport ___ the other replicas' answer(request)
//!        v
//!      machine.apply(entry) ---> effects, in order ---> frontends of this node
//! ```
//!
//! Consensus is openraft's. Its types are not visible outside this folder, so that its version can change.
//! This project implements the log on disk (`log`), the encoding of entries (`raft_types`) and the messages
//! between nodes (`rpc_client`, `rpc_server`). It also implements snapshots (`snapshot`), proposals on their
//! way to the leader (`proposals`), and reads that wait for a round (`read_index`).
//!
//! **Trap.** A node stops for good when its disk fails ([`Replica::failed`]). The process must then exit and
//! be started again.

#[macro_use]
mod planted;

pub mod disk;
mod error;
mod identity;
mod leader_route;
pub mod log;
mod log_store;
mod membership;
mod options;
mod proposals;
mod raft_types;
mod read_index;
mod restore;
mod rpc_client;
mod rpc_server;
mod runtime;
mod snapshot;
mod speculation;
mod state_machine;
mod status;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use openraft::Raft;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::Fatal;
use tokio::sync::mpsc;

pub use conclave_node::cluster::{Member, Membership, NodeId, ProposeError, ReadError, Status};

use disk::Disk;
pub use error::{MembershipError, OpenError};
pub use identity::Identity;
use leader_route::{LeaderRoute, RaftOf};
use log::{Log, LogId};
use log_store::Store;
pub use options::Options;
use raft_types::{Proposal, Types};
use read_index::Reads;
pub(crate) use restore::restore;
use rpc_client::Network;
pub use rpc_client::Transport;
use rpc_server::Incoming;
use runtime::{blocking, watch};
use snapshot::Snapshots;
use speculation::Speculation;
pub use state_machine::{Delivery, Machine};
use state_machine::{Shared, StateMachine};
use status::status_of;

/// The number of commands after which a snapshot is taken. Openraft counts entries, and an entry may have
/// many commands. The next start applies all commands since the snapshot again.
const SNAPSHOT_COMMANDS: u64 = 400_000;
/// The longest wait for a transfer of leadership: about the time of an election. After it, the node stops
/// waiting.
const TRANSFER_LIMIT: Duration = Duration::from_secs(1);

/// One node of the cluster. Clones are handles of the same node.
pub struct Replica<M: Machine> {
    inner: Arc<Inner<M>>,
}

impl<M: Machine> Clone for Replica<M> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct Inner<M: Machine> {
    identity: Identity,
    raft: RaftOf<M>,
    shared: Arc<Shared<M>>,
    speculation: Arc<Speculation>,
    log: Arc<Log>,
    route: LeaderRoute<M>,
    reads: Reads,
    entry_bytes_max: usize,
    log_bytes_max: u64,
    answer_limit: Duration,
    /// The snapshot that a leader is sending.
    incoming: Mutex<Option<Incoming>>,
}

/// The receiver of deliveries, for the frontends. Between two deliveries, the receiver must not wait for a
/// proposal or a read of this node. Both wait for the machine, and the machine waits for the receiver when
/// the queue is full.
pub type Deliveries<M> = mpsc::Receiver<Vec<Delivery<<M as Machine>::Effect>>>;

impl<M: Machine> Replica<M> {
    /// Opens the data folder, which must be new or that of the same node, and starts the node. `machine` is
    /// the state before any command. The caller must receive the deliveries or drop the receiver.
    pub async fn open(
        disk: Arc<dyn Disk>,
        identity: Identity,
        transport: Arc<dyn Transport>,
        machine: M,
        options: Options,
    ) -> Result<(Self, Deliveries<M>), OpenError> {
        let config = Arc::new(options.config()?);
        let sizes = options.log;
        let opened = blocking(move || open_folder(disk, identity, sizes)).await??;
        let (log, mut state, snapshots) = opened;
        if !has_flaw!(LeadsAfterRestart) {
            step_down(&mut state, identity.node);
        }
        // A snapshot may cover more than the log holds: the node stopped while it was catching up, or it
        // never had a log.
        let last = state.last.max(snapshots.covered()).map(|id| id.index);
        let term = state.vote.map_or(0, |vote| vote.term);
        let (log, snapshots) = (Arc::new(log), Arc::new(snapshots));
        let (deliveries, delivered) = mpsc::channel(options.deliveries.max(1));
        let speculation = Arc::new(Speculation::new(state.membership.as_ref().map(|(id, _)| id.index)));
        let shared = Arc::new(Shared::new(machine, speculation.clone()));
        let live = Arc::new(AtomicBool::new(false));
        let (node, in_use) = (identity.node, shared.clone());
        let state_machine = StateMachine { node, shared: in_use, snapshots, deliveries, live: live.clone() };
        let network = Network::new(identity.cluster, transport);
        let store = Store::new(log.clone(), &state, speculation.clone());
        let raft = Raft::build(identity.node, config, network.clone(), store, state_machine).await;
        let raft = raft.map_err(|error| OpenError::Invalid(error.to_string()))?;
        live.store(true, Ordering::Release);
        raft.run();
        tokio::spawn(network.clone().keep_addresses(raft.server_metrics()));
        let route = LeaderRoute::new(raft.clone(), network.clone());
        let reads = Reads::start(route.clone());
        let inner = Inner {
            identity,
            raft,
            shared,
            speculation,
            log,
            route,
            reads,
            entry_bytes_max: sizes.entry_bytes_max(),
            log_bytes_max: options.log_bytes_max,
            answer_limit: options.answer_limit,
            incoming: Mutex::new(None),
        };
        let failure = inner.log.failure();
        let replica = Self { inner: Arc::new(inner) };
        tokio::spawn(stop_on_log_failure(Arc::downgrade(&replica.inner), failure));
        tokio::spawn(keep_log_bounded(Arc::downgrade(&replica.inner), options.heartbeat));
        tokio::spawn(pause_ticks_when_single(Arc::downgrade(&replica.inner)));
        // Wait until openraft has read the log. Before that, the status would be that of an empty node.
        replica.wait_for(|status| status.last >= last && status.term >= term).await;
        Ok((replica, delivered))
    }

    /// Proposes a command, here or through the leader. Returns after the leader has applied it and delivered
    /// its effects there.
    pub async fn propose(&self, command: M::Command) -> Result<LogId, ProposeError> {
        let results = self.propose_all(vec![command]).await;
        results.into_iter().next().unwrap_or(Err(ProposeError::Unknown))
    }

    /// Wakes the log's writer thread, because a proposal is about to come.
    pub fn wake_writer(&self) {
        self.inner.log.wake_writer();
    }

    /// Proposes commands in this order. The future returns one result per command: `TooLarge` for a command
    /// that is too large.
    ///
    /// On the leader, openraft has the commands when the call returns, so a later call comes later in the
    /// log. On another node, the caller must wait for the results before it calls again. Otherwise a later
    /// call could overtake.
    ///
    /// The caller bounds the commands in flight.
    pub fn propose_all(
        &self,
        commands: Vec<M::Command>,
    ) -> impl Future<Output = Vec<Result<LogId, ProposeError>>> + Send + use<M> {
        let fits = |proposal: &Proposal<M>| proposal.data().len() <= self.inner.entry_bytes_max;
        let mut proposals = Vec::with_capacity(commands.len());
        let mut fitting = Vec::with_capacity(commands.len());
        for command in commands {
            let proposal = Proposal::new(command).ok().filter(fits);
            fitting.push(proposal.is_some());
            proposals.extend(proposal);
        }
        let handed_in = (!proposals.is_empty()).then(|| self.inner.route.propose_all(proposals));
        async move {
            let mut results = match handed_in {
                Some(handed_in) => handed_in.await.into_iter(),
                None => Vec::new().into_iter(),
            };
            let result = |fits| match fits {
                true => results.next().unwrap_or(Err(ProposeError::Unknown)),
                false => Err(ProposeError::TooLarge),
            };
            fitting.into_iter().map(result).collect()
        }
    }

    /// Confirms the leader by a round of a quorum that begins after this call. Returns the last entry that a
    /// linearizable read must see, with the leader's term.
    pub async fn read_index(&self) -> Result<LogId, ReadError> {
        self.inner.reads.read_index().await
    }

    /// Makes a linearizable read, on any node: it sees every command that was acknowledged before the call.
    pub async fn read<R>(&self, read: impl FnOnce(&M) -> R) -> Result<R, ReadError> {
        self.confirm().await?;
        self.read_stale(read).await
    }

    /// Reads as [`Replica::read`], on a blocking thread, for reads that take long. Openraft applies no entry
    /// meanwhile. So no writer waits for the state's lock, and other readers are not blocked.
    pub async fn read_on_blocking_thread<R: Send + 'static>(
        &self,
        read: impl FnOnce(&M) -> R + Send + 'static,
    ) -> Result<R, ReadError> {
        self.confirm().await?;
        let read = self.inner.raft.with_state_machine(move |machine| {
            let shared = machine.shared.clone();
            Box::pin(async move {
                let view = shared.clone();
                let (seen, end) = blocking(move || view.view(read)).await?;
                shared.durable(end).await.map(|()| seen)
            })
        });
        read.await.ok().and_then(Result::ok).ok_or(ReadError::Stopped)
    }

    /// Confirms as [`Replica::read_index`], and waits until this node has applied everything acknowledged
    /// before the call.
    pub async fn confirm(&self) -> Result<LogId, ReadError> {
        let id = self.read_index().await?;
        let end = match self.inner.speculation.is_unsynced() {
            // No reply was sent for entries that are not durable. A reader that does not need them must not
            // wait for the disk.
            true => self.inner.log.durable_end().min(id.index + 1),
            false => id.index + 1,
        };
        if let Some(index) = end.checked_sub(1) {
            self.applied_or_stopped(index).await?;
        }
        Ok(id)
    }

    /// Waits until this node has applied the entry of this index. Fails if the node stops before that.
    async fn applied_or_stopped(&self, index: u64) -> Result<(), ReadError> {
        tokio::select! {
            biased;
            () = self.inner.shared.applied_to(index) => Ok(()),
            () = self.consensus_ended() => Err(ReadError::Stopped),
        }
    }

    /// Reads the state that this node has applied, which may be old.
    pub async fn read_stale<R>(&self, read: impl FnOnce(&M) -> R) -> Result<R, ReadError> {
        self.inner.shared.read(read).await.map_err(|_| ReadError::Stopped)
    }

    /// Reads the current state. It may be ahead of the disk ([`Replica::may_be_unsynced`]); then the caller
    /// must not send the result to any client.
    pub fn peek<R>(&self, read: impl FnOnce(&M) -> R) -> R {
        self.inner.shared.peek(read)
    }

    /// Returns whether this node may apply proposals before they are durable, as a single node does. Such an
    /// entry can be in the state from its proposal until its result. Once `false`, it stays `false` until the
    /// next start.
    pub fn may_be_unsynced(&self) -> bool {
        self.inner.speculation.may_speculate()
    }

    /// Waits until this node has applied the entry of this index.
    pub async fn applied(&self, index: u64) {
        self.inner.shared.applied_to(index).await;
    }

    /// Transfers the leadership to the voter with the longest log, if this node leads and there is another
    /// voter. Returns when this node no longer leads, or after about the time of an election. A node that
    /// stops calls this first, so that the cluster needs no election timeout.
    pub async fn transfer_leadership(&self) {
        let status = self.status();
        let voters = status.matched.iter().filter(|(node, _)| **node != status.node && status.votes(**node));
        let Some((next, Some(_))) = voters.max_by_key(|(_, matched)| **matched) else { return };
        if status.leads() && self.inner.raft.trigger().transfer_leader(*next).await.is_ok() {
            let handed_over = self.wait_for(|status| !status.leads());
            drop(tokio::time::timeout(TRANSFER_LIMIT, handed_over).await);
        }
    }

    /// Returns the identity of this node: its cluster and its number.
    pub fn identity(&self) -> Identity {
        self.inner.identity
    }

    /// Starts a snapshot in the background.
    pub async fn snapshot(&self) -> Result<(), ReadError> {
        self.inner.raft.trigger().snapshot().await.map_err(|_| ReadError::Stopped)
    }

    /// Returns the status of this node.
    pub fn status(&self) -> Status {
        status_of(&self.inner.raft.metrics().borrow_watched())
    }

    /// Waits until the status satisfies `wanted`. Returns `None` if the node stops before that.
    pub async fn wait_for(&self, mut wanted: impl FnMut(&Status) -> bool) -> Option<Status> {
        let mut metrics = self.inner.raft.metrics();
        loop {
            let status = status_of(&metrics.borrow_watched());
            if wanted(&status) {
                return Some(status);
            }
            if !status.running || metrics.changed().await.is_err() {
                return None;
            }
        }
    }

    /// Waits until the node has stopped by itself, and returns the cause: most likely its disk failed.
    pub async fn failed(&self) -> String {
        let mut failure = self.inner.log.failure();
        let by_log = async {
            let why = failure.wait_for(Option::is_some).await;
            match why.map(|why| why.as_deref().unwrap_or_default().to_owned()) {
                Ok(why) => why,
                // Openraft has stopped the writer, so openraft has the cause.
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            why = by_log => why,
            () = self.consensus_ended() => self.cause(),
        }
    }

    /// Waits until openraft has stopped.
    async fn consensus_ended(&self) {
        // These metrics do not change with every entry. Their channel closes when openraft stops.
        let mut metrics = self.inner.raft.server_metrics();
        while metrics.changed().await.is_ok() {}
    }

    /// Returns why openraft has stopped. The log's own failure comes first, because openraft knows only that
    /// the log failed.
    fn cause(&self) -> String {
        if let Some(why) = self.inner.log.failure().borrow().as_deref() {
            return why.to_owned();
        }
        match &self.inner.raft.metrics().borrow_watched().running_state {
            Err(cause) => format!("consensus has stopped: {cause}"),
            Ok(()) => "consensus has stopped".to_owned(),
        }
    }

    /// Stops the node: it proposes and replies no more, and the queued changes are written. Then the data
    /// folder is free.
    pub async fn shutdown(&self) {
        // The only error is a panic of openraft's core, which has been reported already.
        drop(self.inner.raft.shutdown().await);
        self.inner.log.clone().close_in_runtime().await;
    }
}

/// Stops openraft when the log fails. Openraft gets no error for entries that it already took for durable.
async fn stop_on_log_failure<M: Machine>(
    replica: Weak<Inner<M>>,
    mut failure: watch::Receiver<Option<Arc<str>>>,
) {
    if failure.wait_for(Option::is_some).await.is_ok()
        && let Some(replica) = replica.upgrade()
    {
        // The only error is a panic of openraft's core, which has been reported already.
        drop(replica.raft.shutdown().await);
    }
}

/// Stops openraft's clock while this node is the only one and leads. No node waits for its heartbeats, and no
/// other node could start an election. The ticks would be most of the work of an idle node.
async fn pause_ticks_when_single<M: Machine>(replica: Weak<Inner<M>>) {
    let Some(mut metrics) = replica.upgrade().map(|replica| replica.raft.server_metrics()) else { return };
    while let Some(replica) = replica.upgrade() {
        let is_single = {
            let metrics = metrics.borrow_watched();
            let nodes = metrics.membership_config.nodes().map(|(node, _)| *node);
            metrics.current_leader == Some(metrics.id) && nodes.eq([metrics.id])
        };
        replica.raft.runtime_config().tick(!is_single);
        drop(replica);
        if metrics.changed().await.is_err() {
            return;
        }
    }
}

/// Checks every `pace` whether the log is too long, in bytes or in commands. Ends when the replica is
/// dropped.
async fn keep_log_bounded<M: Machine>(replica: Weak<Inner<M>>, pace: Duration) {
    let mut snapshot_at = 0;
    loop {
        tokio::time::sleep(pace).await;
        let Some(replica) = replica.upgrade() else { return };
        if replica.bound_log().await.is_err() {
            return;
        }
        let (applied, restored) = replica.shared.peek(|machine| (machine.commands(), machine.restored()));
        if needs_snapshot(applied, restored.max(snapshot_at)) {
            snapshot_at = applied;
            if replica.raft.trigger().snapshot().await.is_err() {
                return;
            }
        }
    }
}

/// Returns whether so many commands were applied since the last snapshot that the next start would take long.
fn needs_snapshot(applied: u64, snapshot_at: u64) -> bool {
    applied >= snapshot_at + SNAPSHOT_COMMANDS
}

impl<M: Machine> Inner<M> {
    /// Takes a snapshot if the log has too many bytes, or purges the entries that the last snapshot covers.
    async fn bound_log(&self) -> Result<(), Fatal<Types<M>>> {
        if self.log.bytes() <= self.log_bytes_max {
            return Ok(());
        }
        let Some(point) = self.log.purge_point(self.log_bytes_max / 2) else { return Ok(()) };
        let snapshot = status_of(&self.raft.metrics().borrow_watched()).snapshot;
        match snapshot {
            Some(snapshot) if snapshot.index >= point => self.raft.trigger().purge_log(point).await,
            _ => self.raft.trigger().snapshot().await,
        }
    }
}

/// Opens all parts of the data folder. Blocks.
fn open_folder(
    disk: Arc<dyn Disk>,
    identity: Identity,
    sizes: log::Options,
) -> Result<(Log, log::State, Snapshots), OpenError> {
    identity.check_or_write(&*disk)?;
    let snapshots = Snapshots::open(disk.clone())?;
    let covered = snapshots.covered();
    let is_unbegun = restore::is_unbegun(&*disk, covered)?;
    let (log, state) = open_log(disk, identity.node, sizes)?;
    if covered.is_some() && state.vote.is_none() && !is_unbegun {
        return Err(OpenError::Invalid(
            "the data folder has a snapshot but no log; restore the log, or join with an empty folder"
                .to_owned(),
        ));
    }
    if state.purged.map(|id| id.index) > covered.map(|id| id.index) {
        return Err(OpenError::Invalid(format!(
            "the log begins after entry {}, but no snapshot covers the entries before; restore the snapshot, or join with an empty folder",
            state.purged.unwrap_or_default().index
        )));
    }
    Ok((log, state, snapshots))
}

#[cfg_attr(not(test), expect(unused_variables, reason = "only seeded runs distinguish the disks"))]
fn open_log(
    disk: Arc<dyn Disk>,
    node: NodeId,
    sizes: log::Options,
) -> Result<(Log, log::State), log::OpenError> {
    #[cfg(test)]
    if tests::deterministic::seeded::is_seeded() {
        let pause = move || tests::deterministic::seeded::half_of_sync(node);
        return Log::open_in_runtime(disk, sizes, pause);
    }
    Log::open(disk, sizes)
}

/// Makes a leader that restarts leave its term. Openraft would continue to lead if the vote says that this
/// node won. It would know the commit index only from the last batch that saved it. So a linearizable read
/// could miss commands acknowledged since. In a new term, the leader begins with an entry of its own and
/// knows when that is committed. The vote itself stays: this only takes back that it was won.
fn step_down(state: &mut log::State, node: NodeId) {
    if let Some(vote) = state.vote.as_mut().filter(|vote| vote.node == node) {
        vote.committed = false;
    }
}
