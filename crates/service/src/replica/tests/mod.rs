//! Replicas on simulated disks: one node, clusters, the messages between nodes, and seeded runs.

mod cluster;
pub(super) mod deterministic;
mod rpc;
mod single_node;
pub(crate) mod support;

use super::*;

#[test]
fn entries_in_a_snapshot_cause_no_other_snapshot() {
    assert!(!needs_snapshot(SNAPSHOT_COMMANDS, SNAPSHOT_COMMANDS), "no command was applied since");
    assert!(!needs_snapshot(2 * SNAPSHOT_COMMANDS - 1, SNAPSHOT_COMMANDS));
    assert!(needs_snapshot(2 * SNAPSHOT_COMMANDS, SNAPSHOT_COMMANDS));
}
