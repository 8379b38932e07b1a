//! One run: a group, its clients and its faults; then all faults end, and the nodes must agree.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

use super::super::support::{Notebook, member};
use super::faults::{heal, inject, restore_membership};
use super::flaw::Flaw;
use super::group::Group;
use super::judge::Sometimes;
use super::load::run_client;
use super::seeded;
use crate::replica::Status;
use crate::replica::log::LogId;

/// The virtual time in which faults are injected.
const LENGTH: Duration = Duration::from_secs(8);
/// The longest virtual time without faults until all nodes agree.
const RECOVERY_LIMIT: Duration = Duration::from_secs(60);
const CLIENTS: usize = 5;

/// The result of a run.
pub(super) struct Verdict {
    pub(super) wrong: Option<String>,
    pub(super) sometimes: Sometimes,
    pub(super) digest: u64,
    /// The events of the run, if it recorded them.
    pub(super) events: Vec<String>,
}

/// Runs a seed, and records its events if `records`.
pub(super) fn run(seed: u64, flaw: Option<Flaw>, records: bool) -> Verdict {
    seeded::begin(seed, flaw, records);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime can be made");
    let group = runtime.block_on(scenario());
    let ended = seeded::end();
    let (wrong, sometimes) = group.with(|state| (state.judge.wrong.clone(), state.judge.sometimes.clone()));
    Verdict { wrong, sometimes, digest: ended.digest, events: ended.events }
}

async fn scenario() -> Arc<Group> {
    let founders = seeded::pick(&[1, 3, 3, 3, 5]).expect("a size");
    let group = Group::new(founders + seeded::below(2));
    for node in group.nodes() {
        group.start(node).await;
    }
    if !group.is_wrong() {
        create_cluster(&group, founders).await;
        let is_over = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let is_over = is_over.clone();
                tokio::spawn(run_client(group.clone(), move || is_over.load(Ordering::Relaxed)))
            })
            .collect();
        inject(&group, LENGTH).await;
        is_over.store(true, Ordering::Relaxed);
        heal(&group).await;
        let recovery = async {
            // A read on a node that was removed waits for entries that come only after its return.
            restore_membership(&group).await;
            for client in clients {
                if let Err(panic) = client.await {
                    group.fail(|| format!("a client ended: {panic}"));
                }
            }
            agree(&group).await;
        };
        if timeout(RECOVERY_LIMIT, recovery).await.is_err() {
            group.fail(|| "the nodes do not agree after all faults have ended".to_owned());
        }
    }
    group
}

/// Makes the first nodes a cluster.
async fn create_cluster(group: &Group, founders: u64) {
    let Some((first, _)) = group.up(1) else { return };
    let members: BTreeMap<_, _> = (1..=founders).map(|node| (node, member(node))).collect();
    if let Err(error) = first.bootstrap(members).await {
        group.fail(|| format!("there is no cluster: {error}"));
    }
    first.wait_for(|status: &Status| status.leader.is_some()).await;
}

/// Waits until all nodes have applied a last command, and compares their states.
async fn agree(group: &Arc<Group>) {
    let Some(last) = propose_last(group).await else { return };
    let mut agreed: Option<Notebook> = None;
    for node in group.nodes() {
        let Some((replica, _)) = group.up(node) else {
            return group.fail(|| format!("node {node} is down"));
        };
        replica.applied(last.index).await;
        let state = replica.peek(Notebook::clone);
        seeded::note(|| format!("node {node} ends with {:?}", state.seen));
        let expected = agreed.get_or_insert_with(|| state.clone());
        if *expected != state {
            return group.fail(|| format!("the state of node {node} differs from that of another node"));
        }
        group.with(|judged| judged.judge.on_state(node, &state));
    }
    group.with(|state| state.judge.on_end(&agreed.unwrap_or_default()));
}

async fn propose_last(group: &Arc<Group>) -> Option<LogId> {
    while !group.is_wrong() {
        if let Some(leader) = group.leader() {
            let number = group.with(|state| state.judge.propose(1))[0];
            let result = leader.propose(vec![number]).await;
            group.with(|state| state.judge.on_result(number, result));
            if let Ok(id) = result {
                return Some(id);
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
    None
}
