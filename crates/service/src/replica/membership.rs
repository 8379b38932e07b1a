//! Changes of the membership: one at a time, each committed as an entry of the log.
//!
//! **Trap.** Openraft returns from a change shortly before its metrics, and so the status, show it. A caller
//! that then picked the next node number from the status would reuse the last one. So a change here returns
//! only when the status shows it.

use std::collections::{BTreeMap, BTreeSet};

use openraft::errors::{ClientWriteError, InitializeError, RaftError};
use openraft::{ChangeMembers, RaftMetrics};

use super::raft_types::{Member, NodeId, Types, log_id};
use super::read_index::read_index_here;
use super::restore::BEGINNING;
use super::{Machine, MembershipError, ReadError, Replica};

impl<M: Machine> Replica<M> {
    /// Creates a cluster of these members, if this node belongs to none yet. Call it on the first node of a
    /// cluster with that node alone, or with the same members on each of several new nodes.
    pub async fn bootstrap(&self, members: BTreeMap<NodeId, Member>) -> Result<(), MembershipError> {
        match self.inner.raft.initialize(members).await {
            Ok(()) => {
                self.until_shown(BEGINNING.index).await;
                Ok(())
            }
            Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(RaftError::APIError(error)) => Err(MembershipError::Refused(error.to_string())),
            Err(RaftError::Fatal(error)) => Err(MembershipError::Unknown(error.to_string())),
        }
    }

    /// Adds a learner, and waits until it has nearly caught up. Works only on the leader.
    pub async fn add_learner(&self, node: NodeId, member: Member) -> Result<(), MembershipError> {
        self.wait_for_own_term().await?;
        let added = self.inner.raft.add_learner(node, member, true).await.map_err(membership_error)?;
        self.until_shown(added.log_id.index).await;
        Ok(())
    }

    /// Adds a learner and removes `instead_of`, nodes that never voted, in one change. Returns when the
    /// change is committed, before the node has received it. Works only on the leader.
    pub async fn admit(
        &self,
        node: NodeId,
        member: Member,
        instead_of: BTreeSet<NodeId>,
    ) -> Result<(), MembershipError> {
        let add = ChangeMembers::AddNodes(BTreeMap::from([(node, member)]));
        let change = match instead_of.is_empty() {
            true => add,
            false => ChangeMembers::Batch(vec![ChangeMembers::RemoveNodes(instead_of), add]),
        };
        self.change(change).await
    }

    /// Makes a learner a voter. Works only on the leader.
    pub async fn promote(&self, node: NodeId) -> Result<(), MembershipError> {
        self.change(ChangeMembers::AddVoterIds(BTreeSet::from([node]))).await
    }

    /// Changes the address of a node. The request must come from that node itself: two nodes with one number
    /// would vote twice. Works only on the leader.
    pub async fn relocate(&self, node: NodeId, member: Member) -> Result<(), MembershipError> {
        self.change(ChangeMembers::SetNodes(BTreeMap::from([(node, member)]))).await
    }

    /// Makes exactly these nodes the voters. A former voter that is not in the set leaves the cluster. Works
    /// only on the leader.
    pub async fn set_voters(&self, voters: BTreeSet<NodeId>) -> Result<(), MembershipError> {
        self.change(ChangeMembers::ReplaceAllVoters(voters)).await
    }

    async fn change(&self, change: ChangeMembers<NodeId, Member>) -> Result<(), MembershipError> {
        self.wait_for_own_term().await?;
        let changed = self.inner.raft.change_membership(change, false).await.map_err(membership_error)?;
        self.until_shown(changed.log_id.index).await;
        Ok(())
    }

    /// Waits until the status shows the membership at this index of the log, or a later one.
    async fn until_shown(&self, index: u64) {
        let metrics = self.inner.raft.wait(None);
        let is_shown = |metrics: &RaftMetrics<Types<M>>| {
            metrics.membership_config.log_id().as_ref().is_some_and(|id| log_id(id).index >= index)
        };
        // A node that stops has no status that could be old.
        drop(metrics.metrics(is_shown, "membership").await);
    }

    /// Waits until this leader has applied an entry of its own term. Before that, it does not know whether an
    /// earlier change is complete, and openraft rejects another.
    async fn wait_for_own_term(&self) -> Result<(), MembershipError> {
        match read_index_here(&self.inner.raft).await {
            Ok(id) => {
                let applied = self.inner.shared.applied_to(id.index);
                // Frontends that do not receive deliveries stop the machine. The caller gets an error and can
                // retry.
                let late = |_| {
                    MembershipError::Refused("the leader is behind with its own log; try again".to_owned())
                };
                tokio::time::timeout(self.inner.answer_limit, applied).await.map_err(late)
            }
            Err(ReadError::Retry) => Err(MembershipError::NotLeader(self.status().leader)),
            Err(ReadError::Stopped) => Err(MembershipError::Unknown("the node has stopped".to_owned())),
        }
    }
}

fn membership_error<M: Machine>(error: RaftError<Types<M>, ClientWriteError<Types<M>>>) -> MembershipError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => {
            MembershipError::NotLeader(forward.leader_id)
        }
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => {
            MembershipError::Refused(error.to_string())
        }
        RaftError::APIError(error) => MembershipError::Unknown(error.to_string()),
        RaftError::Fatal(error) => MembershipError::Unknown(error.to_string()),
    }
}
