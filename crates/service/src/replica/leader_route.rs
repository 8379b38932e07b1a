//! The route to the leader, wherever it is, and the state of a retry.

use std::io;
use std::time::Duration;

use openraft::Raft;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::Instant;

use super::raft_types::{Member, NodeId, Types};
use super::rpc_client::{Network, Reply, Request};
use super::state_machine::{Machine, StateMachine};

/// The longest wait for a reply of the leader.
const FORWARD_LIMIT: Duration = Duration::from_secs(5);
/// The longest time without a leader that accepts proposals or confirms reads: longer than an election takes.
/// After it, the caller gets `Retry`.
const LEADER_LIMIT: Duration = Duration::from_secs(3);
/// The pause before the same leader is tried again. It grows from the first to the second value.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

pub(super) type RaftOf<M> = Raft<Types<M>, StateMachine<M>>;

/// The route to the leader: openraft on this node, and the network to the others.
pub(super) struct LeaderRoute<M: Machine> {
    pub(super) raft: RaftOf<M>,
    network: Network,
}

impl<M: Machine> Clone for LeaderRoute<M> {
    fn clone(&self) -> Self {
        Self { raft: self.raft.clone(), network: self.network.clone() }
    }
}

impl<M: Machine> LeaderRoute<M> {
    pub(super) fn new(raft: RaftOf<M>, network: Network) -> Self {
        Self { raft, network }
    }

    /// Returns whether openraft has ended on this node. It may then drop proposals without a result.
    pub(super) fn has_ended(&self) -> bool {
        self.raft.metrics().borrow_watched().running_state.is_err()
    }

    /// Returns the leader, as far as this node knows.
    fn leader(&self) -> Option<NodeId> {
        self.raft.metrics().borrow_watched().current_leader
    }

    /// Returns whether this node leads, as far as it knows.
    pub(super) fn leads_here(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.current_leader == Some(metrics.id) && metrics.running_state.is_ok()
    }

    /// Returns the leader, if it is another node.
    pub(super) fn leader_elsewhere(&self) -> Option<(NodeId, Member)> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let leader = metrics.current_leader.filter(|leader| *leader != metrics.id)?;
        metrics.membership_config.get_node(&leader).map(|member| (leader, member.clone()))
    }

    /// Waits until a leader is known, at most [`LEADER_LIMIT`].
    pub(super) async fn until_led(&self) {
        let mut metrics = self.raft.metrics();
        let led = async {
            while metrics.borrow_watched().current_leader.is_none() && metrics.changed().await.is_ok() {}
        };
        drop(tokio::time::timeout(LEADER_LIMIT, led).await);
    }

    /// Calls the leader. If it is deposed meanwhile, the call fails at once, because its reply may never
    /// come.
    pub(super) async fn call_leader(
        &self,
        to: NodeId,
        member: &Member,
        request: Request,
    ) -> io::Result<Reply> {
        let mut metrics = self.raft.metrics();
        let deposed = async {
            while metrics.borrow_watched().current_leader == Some(to) {
                if metrics.changed().await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            biased;
            reply = self.network.call(to, member, &request, FORWARD_LIMIT) => reply,
            () = deposed => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }
}

/// The state of a retry that continues until a leader accepts the request or the time is over.
pub(super) struct RetryState {
    until: Instant,
    pause: Duration,
    leader: Option<NodeId>,
}

impl RetryState {
    pub(super) fn begin<M: Machine>(route: &LeaderRoute<M>) -> Self {
        Self { until: Instant::now() + LEADER_LIMIT, pause: RETRY_PAUSE.0, leader: route.leader() }
    }

    /// Waits until another node leads, or for a pause, because the same leader may be back. Returns `false`
    /// when the time is over.
    pub(super) async fn again<M: Machine>(&mut self, route: &LeaderRoute<M>) -> bool {
        if route.has_ended() || Instant::now() >= self.until {
            return false;
        }
        let mut metrics = route.raft.metrics();
        let another = async {
            while [None, self.leader].contains(&metrics.borrow_watched().current_leader)
                && metrics.changed().await.is_ok()
            {}
        };
        drop(tokio::time::timeout(self.pause, another).await);
        let before = std::mem::replace(&mut self.leader, route.leader());
        // A new leader is ready soon.
        self.pause = if self.leader == before { (self.pause * 2).min(RETRY_PAUSE.1) } else { RETRY_PAUSE.0 };
        true
    }
}
