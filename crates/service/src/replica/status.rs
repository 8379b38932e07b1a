//! How a replica stands, as openraft's metrics tell it.

use std::collections::BTreeMap;

use openraft::RaftMetrics;

use super::Machine;
use super::log::LogId;
use super::types::{Membership, NodeId, Types, log_id, own_membership};

/// How a replica stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// This node.
    pub node: NodeId,
    /// The current term.
    pub term: u64,
    /// Who leads, as far as this node knows.
    pub leader: Option<NodeId>,
    /// The index of the last entry in the log.
    pub last: Option<u64>,
    /// The last entry applied here.
    pub applied: Option<LogId>,
    /// The last entry that a snapshot covers.
    pub snapshot: Option<LogId>,
    /// The last entry purged from the log.
    pub purged: Option<LogId>,
    /// Who belongs to the cluster.
    pub membership: Membership,
    /// How far each node's log is known to agree with this one: only if this node leads.
    pub matched: BTreeMap<NodeId, Option<u64>>,
    /// Whether the replica still works.
    pub running: bool,
}

impl Status {
    /// Whether this node believes that it leads.
    pub fn leads(&self) -> bool {
        self.leader == Some(self.node)
    }

    /// Whether a node votes, and no change of the voters is under way.
    pub fn votes(&self, node: NodeId) -> bool {
        matches!(&self.membership.voters[..], [voters] if voters.contains(&node))
    }

    pub(super) fn of<M: Machine>(metrics: &RaftMetrics<Types<M>>) -> Self {
        Self {
            node: metrics.id,
            term: metrics.current_term,
            leader: metrics.current_leader,
            last: metrics.last_log_index,
            applied: metrics.last_applied.as_ref().map(log_id),
            snapshot: metrics.snapshot.as_ref().map(log_id),
            purged: metrics.purged.as_ref().map(log_id),
            membership: own_membership(metrics.membership_config.membership()),
            matched: metrics
                .replication
                .iter()
                .flatten()
                .map(|(node, id)| (*node, id.as_ref().map(|id| log_id(id).index)))
                .collect(),
            running: metrics.running_state.is_ok(),
        }
    }
}
