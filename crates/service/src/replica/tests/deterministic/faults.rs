//! The faults of a run, drawn from its seed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::super::support::{Notebook, member};
use super::group::{CutAfter, Group, count};
use super::seeded;
use crate::replica::{MembershipError, NodeId, Replica};

/// The longest virtual time for a change of the membership or a transfer of the leadership.
const CHANGE_LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Partition,
    IsolateLeader,
    CutPower,
    CutPowerOfAll,
    CutAfter(CutAfter),
    TearWrite,
    FailSyncs,
    SlowDisk,
    FillDisk,
    Restart,
    Transfer,
    ChangeMembership,
    Snapshot,
}

const ALL: [Fault; 15] = [
    Fault::Partition,
    Fault::IsolateLeader,
    Fault::CutPower,
    Fault::CutPowerOfAll,
    Fault::CutAfter(CutAfter::Vote),
    Fault::CutAfter(CutAfter::Append),
    Fault::CutAfter(CutAfter::Result),
    Fault::TearWrite,
    Fault::FailSyncs,
    Fault::SlowDisk,
    Fault::FillDisk,
    Fault::Restart,
    Fault::Transfer,
    Fault::ChangeMembership,
    Fault::Snapshot,
];

/// Injects faults for this time. Each seed has about half of the kinds, so that they do not hide each other.
pub(super) async fn inject(group: &Arc<Group>, length: Duration) {
    let kinds: Vec<Fault> = ALL.into_iter().filter(|_| seeded::one_in(2)).collect();
    let lossy = seeded::one_in(3);
    let delay_ms_max = seeded::pick(&[2, 10, 40]).unwrap_or_default();
    group.with(|state| {
        state.links.one_lost_in = if lossy { 30 } else { 0 };
        state.links.delay_ms_max = delay_ms_max;
    });
    let end = Instant::now() + length;
    while Instant::now() < end && !group.is_wrong() {
        sleep(Duration::from_millis(seeded::between(20, 600))).await;
        if start_one(group).await {
            continue;
        }
        let Some(kind) = seeded::pick(&kinds) else { continue };
        seeded::note(|| format!("fault {kind:?}"));
        inject_one(group, kind).await;
    }
}

/// Starts one of the nodes that are down, in two of three cases. Returns whether it started one.
async fn start_one(group: &Arc<Group>) -> bool {
    let down = nodes_down(group);
    match seeded::pick(&down) {
        Some(node) if !seeded::one_in(3) => {
            group.start(node).await;
            true
        }
        _ => false,
    }
}

fn nodes_down(group: &Group) -> Vec<NodeId> {
    group.with(|state| {
        let down = state.slots.iter().filter(|(_, slot)| slot.replica.is_none());
        down.map(|(node, _)| *node).collect()
    })
}

async fn inject_one(group: &Arc<Group>, fault: Fault) {
    let nodes: Vec<NodeId> = group.nodes().into_iter().collect();
    let node = seeded::pick(&nodes).expect("there are nodes");
    match fault {
        Fault::Partition => {
            let side = nodes.iter().copied().filter(|_| seeded::one_in(2)).collect();
            cut(group, &side, seeded::one_in(4));
            count(group, |sometimes| &mut sometimes.partitions);
        }
        Fault::IsolateLeader => {
            let Some(leader) = group.leader() else { return };
            cut(group, &BTreeSet::from([leader.status().node]), false);
            count(group, |sometimes| &mut sometimes.leaders_isolated);
        }
        Fault::CutPower => group.cut_power(node),
        Fault::CutPowerOfAll => group.cut_power_of_all(),
        Fault::CutAfter(event) => group.with(|state| state.armed = Some(event)),
        Fault::TearWrite => {
            let operations = seeded::below(4);
            if group.break_disk(node, |disk| disk.lose_power_after(operations)) {
                count(group, |sometimes| &mut sometimes.torn_writes);
            }
        }
        Fault::FailSyncs => {
            if group.break_disk(node, |disk| disk.fail_syncs_after(0)) {
                count(group, |sometimes| &mut sometimes.failed_syncs);
            }
        }
        Fault::SlowDisk => {
            seeded::slow_down(node, true);
            count(group, |sometimes| &mut sometimes.slow_disks);
            let ms = seeded::between(200, 2_000);
            tokio::spawn(async move {
                sleep(Duration::from_millis(ms)).await;
                seeded::slow_down(node, false);
            });
        }
        Fault::FillDisk => {
            let is_full = group.with(|state| state.slot(node).is_full.clone());
            // The node lives on while it needs no new segment. It cannot write a snapshot.
            if group.break_disk(node, |_| is_full.store(true, Ordering::Relaxed)) {
                count(group, |sometimes| &mut sometimes.full_disks);
            }
        }
        Fault::Restart => {
            group.stop(node).await;
            count(group, |sometimes| &mut sometimes.restarts);
        }
        Fault::Transfer => change(group, transfer(group.clone())),
        Fault::ChangeMembership => change(group, change_membership(group.clone(), node)),
        Fault::Snapshot => {
            let Some((replica, _)) = group.up(node) else { return };
            // The node may be about to stop.
            if replica.snapshot().await.is_ok() {
                count(group, |sometimes| &mut sometimes.snapshots_taken);
            }
        }
    }
}

/// Cuts the links between one side and the other nodes for a while, or those in one direction.
fn cut(group: &Arc<Group>, side: &BTreeSet<NodeId>, is_one_way: bool) {
    let others: BTreeSet<NodeId> = group.nodes().difference(side).copied().collect();
    let out = side.iter().flat_map(|from| others.iter().map(move |to| (*from, *to)));
    let back = out.clone().filter(|_| !is_one_way).map(|(from, to)| (to, from));
    let links: Vec<(NodeId, NodeId)> = out.chain(back).collect();
    group.with(|state| state.links.cut.extend(links.iter().copied()));
    let (group, ms) = (group.clone(), seeded::between(100, 3_000));
    tokio::spawn(async move {
        sleep(Duration::from_millis(ms)).await;
        group.with(|state| state.links.cut.retain(|link| !links.contains(link)));
    });
}

/// Runs a change of the membership or a transfer, unless another one is in progress.
fn change(group: &Arc<Group>, change: impl Future<Output = ()> + Send + 'static) {
    if group.with(|state| std::mem::replace(&mut state.is_changing, true)) {
        return;
    }
    let group = group.clone();
    tokio::spawn(async move {
        // A change without a majority does not end.
        let _ = timeout(CHANGE_LIMIT, change).await;
        group.with(|state| state.is_changing = false);
    });
}

async fn transfer(group: Arc<Group>) {
    let Some(leader) = group.leader() else { return };
    leader.transfer_leadership().await;
    if !leader.status().leads() {
        count(&group, |sometimes| &mut sometimes.transfers);
    }
}

/// Removes a voter, or adds a node that is no voter.
async fn change_membership(group: Arc<Group>, node: NodeId) {
    let Some(leader) = group.leader() else { return };
    let status = leader.status();
    let mut voters: BTreeSet<NodeId> = status.membership.voters.iter().flatten().copied().collect();
    if !voters.contains(&node) {
        if add(&leader, node).await.is_ok() {
            count(&group, |sometimes| &mut sometimes.voters_added);
        }
    } else if voters.len() > 1 && node != status.node {
        voters.remove(&node);
        if leader.set_voters(voters).await.is_ok() {
            count(&group, |sometimes| &mut sometimes.voters_removed);
        }
    }
}

async fn add(leader: &Replica<Notebook>, node: NodeId) -> Result<(), MembershipError> {
    leader.add_learner(node, member(node)).await?;
    leader.promote(node).await
}

/// Ends all faults, and starts all nodes.
pub(super) async fn heal(group: &Arc<Group>) {
    seeded::note(|| "heal".to_owned());
    group.with(|state| {
        state.links.cut.clear();
        (state.links.one_lost_in, state.links.delay_ms_max, state.armed) = (0, 5, None);
    });
    for node in group.nodes() {
        seeded::slow_down(node, false);
        // A disk that fails later than the last fault would stop its node after this.
        if group.with(|state| state.slot(node).is_broken) {
            group.cut_power(node);
        }
    }
    for node in nodes_down(group) {
        group.start(node).await;
    }
    while group.with(|state| state.is_changing) && !group.is_wrong() {
        sleep(Duration::from_millis(50)).await;
    }
}

/// Makes all nodes voters.
pub(super) async fn restore_membership(group: &Arc<Group>) {
    let nodes = group.nodes();
    while !group.is_wrong() {
        if let Some(leader) = group.leader() {
            let status = leader.status();
            match nodes.iter().find(|node| !status.votes(**node)) {
                None => return,
                // After an error, the leader has changed or the last change is not complete. Then this tries
                // again.
                Some(node) => drop(timeout(CHANGE_LIMIT, add(&leader, *node)).await),
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
}
