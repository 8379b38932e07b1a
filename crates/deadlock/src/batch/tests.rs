use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{Turn, WaitGraph};

const GOLDEN: [(u32, &[u32]); 6] =
    [(11, &[21, 32]), (32, &[33]), (21, &[24]), (24, &[54]), (54, &[11]), (44, &[24])];

fn golden(wait: fn(&mut Snapshot, u32, &[u32]) -> Result<(), SnapshotError>) -> Snapshot {
    let mut snapshot = Snapshot::new(55);
    for (process, targets) in GOLDEN {
        wait(&mut snapshot, process, targets).unwrap();
    }
    snapshot
}

fn stuck(snapshot: &Snapshot) -> Vec<u32> {
    snapshot.analyse().stuck().collect()
}

#[test]
fn golden_and() {
    let snapshot = golden(Snapshot::wait_for_all);
    let analysis = snapshot.analyse();
    assert_eq!(stuck(&snapshot), [11, 21, 24, 44, 54]);
    assert_eq!(analysis.why(11), Some(Reason::Cycle(vec![11, 21, 24, 54])));
    assert_eq!(
        analysis.why(44),
        Some(Reason::Cycle(vec![24, 54, 11, 21])),
        "outside the cycle, and waits for it"
    );
    assert_eq!(analysis.why(32), None);
    assert_eq!(analysis.representatives().len(), 1);
    assert_eq!(analysis.victims(|process| process).len(), 1);
}

#[test]
fn golden_or() {
    let mut snapshot = golden(Snapshot::wait_for_any);
    assert_eq!(stuck(&snapshot), [0; 0]);
    snapshot.wait_for_any(33, &[24]).unwrap();
    assert_eq!(stuck(&snapshot), [11, 21, 24, 32, 33, 44, 54]);
    assert_eq!(snapshot.analyse().why(44), Some(Reason::Knot(vec![11, 21, 24, 32, 33, 54])));
}

#[test]
fn a_semaphore_counts_the_permits_of_those_who_can_finish() {
    let mut snapshot = Snapshot::new(4);
    // Process 0 lacks three permits. Processes 1, 2 and 3 hold two, one and one. Process 1 runs, and 2 waits
    // for 0.
    let semaphore = snapshot.semaphore(3, &[(1, 2), (2, 1), (3, 1)]).unwrap();
    snapshot.wait_for_all(0, &[semaphore]).unwrap();
    snapshot.wait_for_all(2, &[0]).unwrap();
    assert_eq!(stuck(&snapshot), [0; 0]);
    snapshot.wait_for_all(3, &[0]).unwrap();
    let analysis = snapshot.analyse();
    assert_eq!(analysis.stuck().collect::<Vec<_>>(), [0, 2, 3]);
    assert_eq!(analysis.why(0), Some(Reason::Unsatisfiable { missing: 1, stuck: vec![semaphore] }));
    assert_eq!(analysis.victims(|process| u32::MAX - process), [2]);
}

#[test]
fn what_is_no_wait_is_refused_and_leaves_nothing() {
    let mut snapshot = Snapshot::new(2);
    let before = snapshot.clone();
    assert_eq!(snapshot.wait_for(0, 1, &[2]), Err(SnapshotError::Unknown(2)));
    assert_eq!(snapshot.wait_for(2, 1, &[0]), Err(SnapshotError::Unknown(2)));
    assert_eq!(snapshot.wait_for(0, 2, &[1]), Err(SnapshotError::Threshold));
    assert_eq!(snapshot.wait_for(0, 0, &[1]), Err(SnapshotError::Threshold));
    assert_eq!(snapshot, before);
    snapshot.wait_for(0, 1, &[1]).unwrap();
    assert_eq!(snapshot.wait_for(0, 1, &[1]), Err(SnapshotError::AlreadyWaiting(0)));
}

#[test]
fn a_chain_of_a_million_overflows_no_stack() {
    const LENGTH: u32 = 1_000_000;
    let mut snapshot = Snapshot::new(LENGTH);
    for process in 1..LENGTH {
        snapshot.wait_for_any(process, &[process - 1]).unwrap();
    }
    assert_eq!(stuck(&snapshot), [0; 0]);
    snapshot.wait_for_any(0, &[LENGTH - 1, LENGTH - 2]).unwrap();
    let analysis = snapshot.analyse();
    assert_eq!(analysis.stuck().count(), LENGTH as usize);
    let Some(Reason::Knot(knot)) = analysis.why(77) else { panic!("a knot, because 0 has two alternatives") };
    assert_eq!(knot.len(), LENGTH as usize);
    assert_eq!(analysis.victims(|process| process), [0]);
}

/// Waits of any model: nested thresholds over processes.
fn any_waits() -> impl Strategy<Value = Vec<Option<Request<u32>>>> {
    const PROCESSES: u32 = 8;
    let leaf = (0..PROCESSES).prop_map(Request::exclusive);
    let request = leaf.prop_recursive(2, 8, 4, |inner| {
        (prop::collection::vec(inner, 1..4), any::<prop::sample::Index>()).prop_map(|(members, need)| {
            Request::at_least(need.index(members.len()) as u32 + 1, members).expect("no permits")
        })
    });
    prop::collection::vec(prop::option::weighted(0.8, request), PROCESSES as usize)
}

fn snapshot_of(waits: &[Option<Request<u32>>]) -> Snapshot {
    let mut snapshot = Snapshot::new(waits.len() as u32);
    for (process, request) in (0..).zip(waits) {
        request.iter().for_each(|request| snapshot.wait_for_request(process, request).unwrap());
    }
    snapshot
}

/// The expected result: repeated reduction of the whole graph.
fn left_over(waits: &[Option<Request<u32>>]) -> BTreeSet<u32> {
    let mut left: BTreeSet<u32> = (0..).zip(waits).filter_map(|(p, wait)| wait.as_ref().map(|_| p)).collect();
    loop {
        let can = |process: &&u32| {
            let request = waits[**process as usize].as_ref().expect("the process waits already");
            request.is_satisfied(|target, _| !left.contains(target))
        };
        let Some(next) = left.iter().find(can).copied() else { return left };
        left.remove(&next);
    }
}

/// The victim of a long cycle is its cheapest process, wherever it is, until too many nodes were walked
/// again.
#[test]
fn the_cheapest_of_a_cycle_is_chosen_and_after_much_walking_the_cheapest_of_its_end() {
    let mut snapshot = Snapshot::new(100);
    for process in 0..100 {
        snapshot.wait_for_all(process, &[(process + 1) % 100]).unwrap();
    }
    let analysis = snapshot.analyse();
    let cost = |process: u32| process.abs_diff(7);
    assert_eq!(analysis.victims(cost), [7]);
    assert_eq!(analysis.victims_within(0, cost), [100 - LAST as u32], "of 92 to 99");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn peeling_agrees_with_repeated_reduction(waits in any_waits()) {
        let snapshot = snapshot_of(&waits);
        let analysis = snapshot.analyse();
        let left = left_over(&waits);
        prop_assert_eq!(analysis.stuck().collect::<BTreeSet<_>>(), left.clone());
        for process in 0..waits.len() as u32 {
            let why = analysis.why(process);
            prop_assert_eq!(why.is_some(), left.contains(&process));
            if let Some(Reason::Cycle(members) | Reason::Knot(members)) = why {
                // The reason is sufficient alone: if all other processes run, its members are still stuck.
                let alone: Vec<_> = (0..).zip(&waits)
                    .map(|(p, wait)| wait.clone().filter(|_| members.contains(&p))).collect();
                prop_assert_eq!(left_over(&alone), members.into_iter().collect());
            }
        }
        prop_assert_eq!(analysis.representatives().is_empty(), left.is_empty());
    }

    #[test]
    fn aborting_the_victims_leaves_nobody_stuck_and_each_was_stuck(waits in any_waits(), walks in 0..3usize) {
        let snapshot = snapshot_of(&waits);
        let analysis = snapshot.analyse();
        let victims = analysis.victims_within(10 * walks, |process| process % 3);
        let mut waits = waits;
        for victim in victims {
            prop_assert!(left_over(&waits).contains(&victim));
            waits[victim as usize] = None;
        }
        prop_assert!(left_over(&waits).is_empty());
    }

    #[test]
    fn the_batch_and_the_live_graph_agree(waits in any_waits()) {
        let mut graph: WaitGraph<u32, u32> = WaitGraph::new();
        for process in 0..waits.len() as u32 {
            graph.hold(process, Claim { resource: process, demand: Demand::Exclusive }).unwrap();
        }
        // Real locks are re-entrant. Only here can a process wait for itself.
        let waits: Vec<_> = (0..).zip(waits)
            .map(|(p, wait)| wait.filter(|request| request.names().all(|name| *name != p))).collect();
        for (process, request) in (0..).zip(&waits) {
            let turn = Turn { class: 0, entry: u64::from(process) };
            request.iter().for_each(|request| graph.enqueue(process, turn, request.clone()).unwrap());
        }
        prop_assert_eq!(graph.stuck(), stuck(&snapshot_of(&waits)));
    }
}
