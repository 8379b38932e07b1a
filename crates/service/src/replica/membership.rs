//! Who belongs to the cluster, and how that changes: one change at a time, agreed upon like any entry.
//!
//! **The trap.** Openraft answers whoever made a change a moment before its metrics, and so the status, tell of it. Whoever
//! takes the next node's number from there would give it the number of the last. So a change has been made when it shows.

use std::collections::{BTreeMap, BTreeSet};

use openraft::errors::{ClientWriteError, InitializeError, RaftError};
use openraft::{ChangeMembers, RaftMetrics};

use super::raft_types::{Member, NodeId, Types, log_id};
use super::read_index::read_index_here;
use super::restore::BEGINNING;
use super::{Machine, MembershipError, ReadError, Replica};

impl<M: Machine> Replica<M> {
    /// Makes a cluster of these members, if this node belongs to none yet; with the first node of a cluster alone, or
    /// with the same members on each of several new nodes.
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

    /// Adds a node that follows but does not vote yet, and waits until it has nearly caught up. Only on the leader.
    pub async fn add_learner(&self, node: NodeId, member: Member) -> Result<(), MembershipError> {
        self.settled().await?;
        let added = self.inner.raft.add_learner(node, member, true).await.map_err(membership_error)?;
        self.until_shown(added.log_id.index).await;
        Ok(())
    }

    /// Adds a node that follows but does not vote yet, instead of others that never voted; returns when that is agreed upon,
    /// before the node has heard of it. Only on the leader.
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

    /// Makes a node that follows a voter. Only on the leader.
    pub async fn promote(&self, node: NodeId) -> Result<(), MembershipError> {
        self.change(ChangeMembers::AddVoterIds(BTreeSet::from([node]))).await
    }

    /// A node of the cluster is somewhere else now. It must be the node itself that says so: a number with two nodes behind
    /// it would vote twice. Only on the leader.
    pub async fn relocate(&self, node: NodeId, member: Member) -> Result<(), MembershipError> {
        self.change(ChangeMembers::SetNodes(BTreeMap::from([(node, member)]))).await
    }

    /// Makes exactly these nodes the voters; who was one and is not named leaves the cluster. Only on the leader.
    pub async fn set_voters(&self, voters: BTreeSet<NodeId>) -> Result<(), MembershipError> {
        self.change(ChangeMembers::ReplaceAllVoters(voters)).await
    }

    async fn change(&self, change: ChangeMembers<NodeId, Member>) -> Result<(), MembershipError> {
        self.settled().await?;
        let changed = self.inner.raft.change_membership(change, false).await.map_err(membership_error)?;
        self.until_shown(changed.log_id.index).await;
        Ok(())
    }

    /// Waits until the status has the membership that stands here in the log, or a later one.
    async fn until_shown(&self, index: u64) {
        let metrics = self.inner.raft.wait(None);
        let is_shown = |metrics: &RaftMetrics<Types<M>>| {
            metrics.membership_config.log_id().as_ref().is_some_and(|id| log_id(id).index >= index)
        };
        // A node that stops has no status to be wrong about.
        drop(metrics.metrics(is_shown, "membership").await);
    }

    /// Waits until this leader has applied an entry of its own term: before, it does not know whether an earlier change of
    /// the membership is complete, and openraft refuses another.
    async fn settled(&self) -> Result<(), MembershipError> {
        match read_index_here(&self.inner.raft).await {
            Ok(id) => {
                let applied = self.inner.shared.applied_to(id.index);
                // Frontends that do not listen hold the machine up; whoever wants the change asks again.
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
