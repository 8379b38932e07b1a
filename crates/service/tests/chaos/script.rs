//! The faults of a run, chosen by the seed.

use std::time::Duration;

use conclave_kernel::Prng;

use crate::cluster::Cluster;
use crate::load::Load;
use crate::wires::{Cut, Slot};

/// Injects faults, then repairs all of them and waits for progress. Runs twice, because the first time may
/// leave a damaged state behind.
pub async fn play(dice: &mut Prng, cluster: &mut Cluster, load: &Load) -> Result<(), String> {
    for _ in 0..2 {
        for _ in 0..dice.between(1, 3) {
            match cluster.slots().len() {
                1 => power_cut(dice, cluster).await,
                _ => inject_fault(dice, cluster).await,
            }
        }
        cluster.wires.mend();
        for slot in cluster.slots() {
            // The node may have stopped because its disk lost power at a later operation.
            if cluster.server(slot).is_none_or(|server| !server.status().running) {
                cluster.cut_power(slot).await;
                cluster.start(slot).await;
            }
        }
        load.progress().await?;
    }
    Ok(())
}

/// Cuts the power of a single node: at once, or at a later disk operation.
async fn power_cut(dice: &mut Prng, cluster: &mut Cluster) {
    if dice.below(2) == 0 {
        cluster.disk(0).lose_power_after(dice.between(1, 60));
    }
    pass(dice, 50, 500).await;
    cluster.cut_power(0).await;
    pass(dice, 0, 800).await;
    cluster.start(0).await;
    pass(dice, 0, 400).await;
}

async fn inject_fault(dice: &mut Prng, cluster: &mut Cluster) {
    let any = slot(dice, cluster);
    // Prefer the leader, because its faults have the largest effect.
    let victim = if dice.below(3) < 2 { cluster.leader().unwrap_or(any) } else { any };
    let how = if dice.below(2) == 0 { Cut::Severed } else { Cut::Silent };
    match dice.below(8) {
        0..2 => {
            isolate(cluster, victim, how);
            pass(dice, 300, 1_200).await;
        }
        2 => {
            // Cut one direction only: the node receives but cannot send, or the reverse.
            for other in cluster.slots().filter(|other| *other != victim) {
                let (from, to) = if dice.below(2) == 0 { (victim, other) } else { (other, victim) };
                cluster.wires.cut(from, to, how);
            }
            pass(dice, 300, 1_200).await;
        }
        3 => {
            cluster.kill(victim).await;
            pass(dice, 0, 800).await;
            cluster.start(victim).await;
        }
        4 => {
            cluster.cut_power(victim).await;
            pass(dice, 0, 800).await;
            cluster.start(victim).await;
        }
        5 => {
            // The disk loses power at a random later operation.
            cluster.disk(victim).lose_power_after(dice.between(1, 60));
            pass(dice, 100, 500).await;
            cluster.cut_power(victim).await;
            cluster.start(victim).await;
        }
        6 => {
            for slot in cluster.slots() {
                cluster.cut_power(slot).await;
            }
            for slot in cluster.slots() {
                cluster.start(slot).await;
            }
        }
        _ => {
            isolate(cluster, victim, how);
            pass(dice, 100, 700).await;
            let other = slot(dice, cluster);
            cluster.cut_power(other).await;
            pass(dice, 0, 300).await;
            cluster.start(other).await;
        }
    }
    if dice.below(2) == 0 {
        cluster.wires.mend();
    }
    pass(dice, 0, 400).await;
}

/// Cuts a node off from all others, in both directions.
pub fn isolate(cluster: &Cluster, victim: Slot, how: Cut) {
    for other in cluster.slots().filter(|other| *other != victim) {
        cluster.wires.cut(victim, other, how);
        cluster.wires.cut(other, victim, how);
    }
}

fn slot(dice: &mut Prng, cluster: &Cluster) -> Slot {
    usize::try_from(dice.below(cluster.slots().len() as u64)).unwrap()
}

/// Lets a fault last: election timeouts are real milliseconds.
async fn pass(dice: &mut Prng, least: u64, most: u64) {
    tokio::time::sleep(Duration::from_millis(dice.between(least, most))).await;
}
