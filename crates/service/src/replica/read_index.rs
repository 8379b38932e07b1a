//! Reads: the leader confirms that it leads, once for all reads that wait (ReadIndex).
//!
//! **Trap.** A round serves only reads that arrived before it began. Otherwise a leader that was deposed in
//! between could reply with an old state.
//!
//! **Bounds.** At most [`MAX_READS`] reads wait for the next round. A further caller waits for a place in the
//! queue.

use openraft::ReadPolicy;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{LinearizableReadError, RaftError};
use tokio::sync::{mpsc, oneshot};

use super::ReadError;
use super::leader_route::{LeaderRoute, RaftOf, RetryState};
use super::log::LogId;
use super::raft_types::log_id;
use super::rpc_client::{Reply, Request};
use super::state_machine::Machine;

/// The most reads that wait for the next round. A further caller waits for a place in the queue.
const MAX_READS: usize = 16 * 1024;

type Answer = oneshot::Sender<Result<LogId, ReadError>>;

/// The reads that wait for a round.
pub(super) struct Reads(mpsc::Sender<Answer>);

impl Reads {
    /// Starts the task that runs rounds. It ends when the value is dropped.
    pub(super) fn start<M: Machine>(route: LeaderRoute<M>) -> Self {
        let (reads, waiting) = mpsc::channel(MAX_READS);
        tokio::spawn(run_rounds(route, waiting));
        Self(reads)
    }

    /// Waits for a round that begins after this call. Returns the last entry that a read must see, with the
    /// leader's term.
    pub(super) async fn read_index(&self) -> Result<LogId, ReadError> {
        let (answer, answered) = oneshot::channel();
        self.0.send(answer).await.map_err(|_| ReadError::Stopped)?;
        answered.await.unwrap_or(Err(ReadError::Stopped))
    }
}

async fn run_rounds<M: Machine>(route: LeaderRoute<M>, mut reads: mpsc::Receiver<Answer>) {
    let mut waiting = Vec::new();
    while reads.recv_many(&mut waiting, MAX_READS).await > 0 {
        let result = read_index(&route).await;
        for answer in waiting.drain(..) {
            // The caller may have stopped waiting.
            let _ = answer.send(result);
        }
    }
}

/// Makes the leader confirm that it leads, here or on another node.
async fn read_index<M: Machine>(route: &LeaderRoute<M>) -> Result<LogId, ReadError> {
    let mut retry = RetryState::begin(route);
    loop {
        let result = match route.leader_elsewhere() {
            _ if route.has_ended() => Err(ReadError::Stopped),
            None => read_index_here(&route.raft).await,
            Some((leader, member)) => match route.call_leader(leader, &member, Request::ReadIndex).await {
                Ok(Reply::ReadIndex(result)) => result,
                _ => Err(ReadError::Retry),
            },
        };
        if result != Err(ReadError::Retry) || !retry.again(route).await {
            return result;
        }
    }
}

/// Confirms that this node leads by a round of a quorum that begins now, never by a lease.
pub(super) async fn read_index_here<M: Machine>(raft: &RaftOf<M>) -> Result<LogId, ReadError> {
    if has_flaw!(ReadsWithoutRound) {
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        let is_leader = metrics.current_leader == Some(metrics.id);
        return metrics.last_applied.as_ref().map(log_id).filter(|_| is_leader).ok_or(ReadError::Retry);
    }
    match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
        Ok(linearizer) => Ok(log_id(linearizer.read_log_id().log_id())),
        Err(RaftError::APIError(
            LinearizableReadError::ForwardToLeader(_) | LinearizableReadError::QuorumNotEnough(_),
        )) => Err(ReadError::Retry),
        Err(RaftError::Fatal(_)) => Err(ReadError::Stopped),
    }
}
