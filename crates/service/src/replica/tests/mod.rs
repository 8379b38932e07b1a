//! Replicas on simulated disks: one node, clusters, the messages between nodes, and seeded runs.

mod cluster;
pub(super) mod deterministic;
mod rpc;
mod single_node;
pub(crate) mod support;

use super::*;

#[test]
fn a_snapshot_is_needed_only_after_new_commands() {
    assert!(!needs_snapshot(SNAPSHOT_COMMANDS, SNAPSHOT_COMMANDS), "no command was applied since");
    assert!(!needs_snapshot(2 * SNAPSHOT_COMMANDS - 1, SNAPSHOT_COMMANDS));
    assert!(needs_snapshot(2 * SNAPSHOT_COMMANDS, SNAPSHOT_COMMANDS));
}
