//! The clients: they propose and read on any node.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::super::support::Notebook;
use super::group::{CutAfter, Group};
use super::seeded;
use crate::replica::{NodeId, ProposeError, Replica};

/// The longest virtual time that an operation may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Proposes and reads until `is_over` or until an invariant is violated.
pub(super) async fn run_client(group: Arc<Group>, is_over: impl Fn() -> bool) {
    let nodes: Vec<NodeId> = group.nodes().into_iter().collect();
    while !is_over() && !group.is_wrong() {
        sleep(Duration::from_millis(seeded::below(60))).await;
        let node = seeded::pick(&nodes).expect("there are nodes");
        let Some((replica, boot)) = group.up(node) else { continue };
        let (what, ended) = match seeded::below(10) {
            0..7 => ("proposal", timeout(LIMIT, propose(&group, node, boot, &replica)).await),
            _ => ("read", timeout(LIMIT, read(&group, node, boot, &replica)).await),
        };
        if ended.is_err() {
            group.fail(|| format!("a {what} on node {node} hangs"));
        }
    }
}

async fn propose(group: &Arc<Group>, node: NodeId, boot: u64, replica: &Replica<Notebook>) {
    let numbers = group.with(|state| state.judge.propose(1 + seeded::below(3)));
    let results = replica.propose_all(numbers.iter().map(|number| vec![*number]).collect()).await;
    seeded::note(|| format!("client of node {node}: {numbers:?} {results:?}"));
    // No reply comes from a machine without power.
    let is_up = group.is_boot(node, boot);
    group.with(|state| {
        for (number, result) in numbers.iter().zip(&results) {
            state.judge.on_result(*number, if is_up { *result } else { Err(ProposeError::Unknown) });
        }
    });
    if is_up && results.iter().any(Result::is_ok) && group.disarm(CutAfter::Result) {
        group.cut_power_of_all();
    }
}

async fn read(group: &Group, node: NodeId, boot: u64, replica: &Replica<Notebook>) {
    let begin = group.with(|state| state.judge.begin_read());
    let result = match seeded::one_in(4) {
        true => replica.read_on_blocking_thread(Notebook::clone).await,
        false => replica.read(Notebook::clone).await,
    };
    if !group.is_boot(node, boot) {
        return;
    }
    seeded::note(|| {
        format!("client of node {node}: reads {:?}", result.as_ref().map(|state| state.seen.len()))
    });
    group.with(|state| match result {
        Ok(seen) => state.judge.on_read(node, begin, &seen),
        Err(_) => state.judge.sometimes.reads_refused += 1,
    });
}
