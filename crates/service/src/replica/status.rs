//! The status of a replica, read from openraft's metrics.

use conclave_node::cluster::Status;
use openraft::RaftMetrics;

use super::Machine;
use super::raft_types::{Types, log_id, own_membership};

/// Converts openraft's metrics.
pub(super) fn status_of<M: Machine>(metrics: &RaftMetrics<Types<M>>) -> Status {
    Status {
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
