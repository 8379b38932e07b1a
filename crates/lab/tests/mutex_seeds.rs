//! Hundreds of worlds drawn from seeds: delays of all kinds, slow links, every order that the algorithm can bear,
//! duplicates likewise, pauses, wrong clocks, and partitions that hold their messages until the heal. No promise
//! breaks, and everybody who waits is served. The thousands are a command:
//! `conclave sim mutex/maekawa --swarm --seeds 0..10000 --nodes 7 --load high`.

use crate::support::{MS, assert_served, run, scenario};
use conclave_algorithms::mutex::CARDS;
use conclave_lab::problems::mutex::{Report, Scenario, Workload};
use conclave_lab::sweep::sweep;
use conclave_sim::{CutLoss, FaultKind, Order};

const SEEDS: u64 = 550;

/// Each seed its own size from 3 to 13, and one of the loads under which sites contend.
fn drawn(algorithm: &str, seed: u64) -> Scenario {
    let nodes = 3 + (seed % 11) as u32;
    let load = match seed / 11 % 4 {
        0 => Workload::High,
        1 => Workload::Burst { size: nodes, every: 8 * MS },
        2 => Workload::Poisson { mean: 3 * MS },
        _ => Workload::Relay,
    };
    let mut scenario = scenario(algorithm, nodes, load).with(|work| work.entries = 60);
    scenario.world.seed = seed;
    scenario.swarmed()
}

#[test]
fn no_promise_breaks_and_everybody_is_served_in_hundreds_of_drawn_worlds() {
    for card in CARDS {
        let runs = sweep(0..SEEDS, |seed| drawn(card.name, seed), |_| {});
        let reports = sweep(0..SEEDS, |seed| run(&runs[seed as usize]), |_| {});
        for report in &reports {
            assert_served(report, 60);
        }
        assert_not_vacuous(card.name, &runs, &reports, card.needs.fifo);
    }
}

/// What must sometimes happen, or the worlds showed nothing.
fn assert_not_vacuous(name: &str, runs: &[Scenario], reports: &[Report], fifo: bool) {
    let sum = |count: fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    assert!(sum(|report| report.contended_requests) > 10 * SEEDS, "{name}: sites hardly contended");
    assert!(sum(|report| report.facts.ledger.partitions) > SEEDS / 4, "{name}: hardly a partition struck");
    assert!(sum(|report| report.facts.ledger.pauses) > SEEDS / 4, "{name}: hardly a pause struck");
    assert_eq!(
        sum(|report| report.facts.ledger.lost + report.facts.ledger.cut + report.facts.ledger.crashes),
        0,
        "{name}"
    );
    let holding = runs.iter().flat_map(|run| &run.world.faults).all(|fault| {
        !matches!(fault.kind, FaultKind::Partition { loss: CutLoss::Drop, .. }) && fault.until.is_some()
    });
    assert!(holding, "{name}: a partition that drops, or a fault that never ends");
    let any = runs.iter().filter(|run| run.world.order == Order::Any).count();
    assert_eq!(any == 0, fifo, "{name}: arbitrary order is drawn for those who do not need FIFO");
}

/// The printed command gives the run that failed, not one like it.
#[test]
fn the_command_of_a_drawn_world_names_everything_that_struck() {
    for card in CARDS {
        for seed in 0..10 {
            let world = drawn(card.name, seed);
            let report = run(&world);
            let struck = world
                .world
                .faults
                .iter()
                .filter(|fault| fault.at.as_nanos() <= report.facts.simulated_ns.into());
            for fault in struck {
                assert!(
                    report.facts.command.contains(&fault.to_string()),
                    "{fault} is not in {}",
                    report.facts.command
                );
            }
            for link in &world.world.links {
                assert!(report.facts.command.contains(&format!("--link '{link}'")));
            }
        }
    }
}

/// A failure is shrunk to something smaller that still fails in the same way.
#[test]
fn a_failing_world_is_shrunk_to_a_smaller_one_that_fails_alike() {
    let mut failing = scenario("lamport", 5, Workload::Relay).with(|work| work.entries = 60);
    failing.world.delay = "uniform:1us..20ms".parse().expect("a delay");
    failing.world.order = Order::Any;
    let broken = (0..50).find_map(|seed| {
        failing.world.seed = seed;
        run(&failing).facts.violations.first().map(|violation| violation.property.clone())
    });
    let broken = broken.expect("Lamport needs FIFO");
    let smallest = conclave_lab::problem::shrink(&failing, &broken);
    assert!(smallest.world.nodes < failing.world.nodes && smallest.work.entries < failing.work.entries);
    assert!(run(&smallest).facts.violations.iter().any(|violation| violation.property == broken));
}
