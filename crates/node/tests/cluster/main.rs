//! The real node and the real client core in the simulator.
//!
//! **Sites.** Site 0 models consensus ([`conclave_node::testing`]). It appends what servers propose, sends
//! every entry to every server in order, and loses or delays some proposals. Servers run the real [`Node`],
//! with the bytes of the real codec. Clients run the real core of the client library
//! ([`conclave_client::testing`]).
//!
//! **Scenarios.** In [`Scenario::Leases`] clients want one lock for as long as their leases. In
//! [`Scenario::Cluster`] they use everything, on three servers. In [`Scenario::Single`] they use everything
//! on one server, which has a disk of its own.
//!
//! **Faults.** Clocks drift by up to the assumed rate. Sites pause, and links hold messages back for seconds.
//! Leaders change, and clients change their server. Servers restart without their memory, and get snapshots
//! in place of entries. Connections break at any byte, and clients read slowly. Proposals and rounds fail.
//! Power cuts remove unsynced entries from the disk of a single node. The state of a node contains entries
//! whose effects the node handles later, after rounds and results that overtake them. All of it is drawn
//! from the seed. A seed gives the same run, bit for bit.
//!
//! **Judgement.** The judge applies the committed log by itself, and compares everything that clients send,
//! read and believe.
//! - A client that believes to hold a name, by its own clock, holds it in the log. No two beliefs contradict
//!   each other.
//! - The fences of a name grow.
//! - Every reply is one of the log, in its order: nothing is sent that a power cut can remove, except an
//!   early grant. The module `early` has the exact rule for these.
//! - A session has one connection.
//! - A request is applied at most once, and one that was rejected as not done is not applied.
//! - A read shows the state of one moment between its sending and its arrival.
//! - A watch gets every change of its target in order, or a resync. An event arrives before a read that shows
//!   its change.
//! - After the faults every client is served, and nothing stays open.
//!
//! ```console
//! $ CONCLAVE_SEEDS=0..100000 cargo test --release -p conclave-node --test cluster -- --ignored --nocapture
//! $ CONCLAVE_SEEDS=4711 cargo test -p conclave-node --test cluster -- --ignored --nocapture      # one seed
//! ```
//!
//! [`Node`]: conclave_node::node::Node

mod bug;
mod client;
mod consensus;
mod coverage;
mod disk;
mod early;
mod judge;
mod outbox;
mod plan;
mod reference;
mod scenario;
mod server;
mod site;
mod watches;
mod wires;
mod workload;

use std::ops::Range;

use bug::Bug;
use coverage::{Coverage, Situation};
use judge::{Verdict, run};
use scenario::Scenario;

/// The seeds of every commit.
const SEEDS: Range<u64> = 0..300;

/// Runs seeds until one fails. Returns the counts of all runs, or the seed that failed and the reason.
fn sweep(scenario: Scenario, seeds: Range<u64>, bug: Option<Bug>) -> Result<Coverage, (u64, String)> {
    let mut coverage = Coverage::default();
    for seed in seeds {
        match run(scenario, seed, bug) {
            Verdict { wrong: Some(wrong), .. } => return Err((seed, wrong)),
            verdict => coverage.add(&verdict.coverage),
        }
    }
    Ok(coverage)
}

fn expect_clean(scenario: Scenario, seeds: Range<u64>) -> Coverage {
    sweep(scenario, seeds, None).unwrap_or_else(|(seed, wrong)| {
        let test = match scenario {
            Scenario::Leases => "a_guard",
            Scenario::Cluster => "a_cluster",
            Scenario::Single => "a_single_node",
        };
        panic!(
            "seed {seed}: {wrong}\nagain: CONCLAVE_SEEDS={seed} cargo test -p conclave-node --test cluster -- \
             --ignored --nocapture {test}"
        )
    })
}

/// Checks that the runs of a scenario are clean, and that they contain the situations that they are for.
fn expect_covered(scenario: Scenario, expected: &[Situation]) {
    let coverage = expect_clean(scenario, SEEDS);
    println!("{coverage:?}");
    assert_eq!(coverage.missing(expected), [], "{coverage:?}");
}

#[test]
fn a_guard_is_lost_before_its_lock_is_granted_again() {
    use Situation::*;
    let expected = [
        Jeopardy,
        Lost,
        RegrantedAfterExpiry,
        LeaderChangedWhileHeld,
        HandedOn,
        Forwarded,
        Held,
        LeaseExtended,
    ];
    expect_covered(Scenario::Leases, &expected);
}

#[test]
fn a_cluster_keeps_its_promises_while_everything_fails() {
    use Situation::*;
    let alone = [EarlyGrant, EarlyGrantLost, EntryLost, EntrySurvived];
    let expected: Vec<Situation> =
        Situation::ALL.iter().copied().filter(|situation| !alone.contains(situation)).collect();
    expect_covered(Scenario::Cluster, &expected);
}

#[test]
fn a_single_node_keeps_its_promises_while_its_power_fails() {
    use Situation::*;
    let of_cluster =
        [Forwarded, ProposalUnknown, ProposalDelayed, RoundFailed, Restored, LeaderChangedWhileHeld];
    let expected: Vec<Situation> =
        Situation::ALL.iter().copied().filter(|situation| !of_cluster.contains(situation)).collect();
    expect_covered(Scenario::Single, &expected);
}

#[test]
#[ignore = "minutes: see the head of the file"]
fn a_guard_is_lost_before_its_lock_is_granted_again_over_many_seeds() {
    expect_clean_over_many_seeds(Scenario::Leases);
}

#[test]
#[ignore = "minutes: see the head of the file"]
fn a_cluster_keeps_its_promises_over_many_seeds() {
    expect_clean_over_many_seeds(Scenario::Cluster);
}

#[test]
#[ignore = "minutes: see the head of the file"]
fn a_single_node_keeps_its_promises_over_many_seeds() {
    expect_clean_over_many_seeds(Scenario::Single);
}

/// `CONCLAVE_SEEDS`: a range or a single seed; 100,000 seeds if it is not set.
fn expect_clean_over_many_seeds(scenario: Scenario) {
    let text = std::env::var("CONCLAVE_SEEDS").unwrap_or_else(|_| "0..100000".to_owned());
    let seeds = parse(&text).expect("CONCLAVE_SEEDS is a seed or a range such as 0..1000");
    println!("{scenario:?}, {} seeds: {:?}", seeds.end - seeds.start, expect_clean(scenario, seeds));
}

fn parse(text: &str) -> Option<Range<u64>> {
    match text.split_once("..") {
        Some((from, to)) => Some(from.parse().ok()?..to.parse().ok()?),
        None => text.parse().ok().map(|seed: u64| seed..seed + 1),
    }
}

#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for (bug, scenario) in Bug::ALL {
        match sweep(scenario, SEEDS, Some(bug)) {
            Ok(_) => missed.push(bug),
            Err((seed, wrong)) => println!("{bug:?}: seed {seed}: {wrong}"),
        }
    }
    assert_eq!(missed, []);
}

#[test]
fn a_seed_means_the_same_run() {
    for scenario in [Scenario::Leases, Scenario::Cluster, Scenario::Single] {
        for seed in 0..30 {
            assert_eq!(run(scenario, seed, None).digest, run(scenario, seed, None).digest);
        }
        assert_ne!(run(scenario, 1, None).digest, run(scenario, 2, None).digest);
    }
}
