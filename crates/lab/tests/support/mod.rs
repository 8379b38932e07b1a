//! Helpers that the tests of the mutex problem share.
#![allow(dead_code, reason = "each test binary uses its own part of it")]

use std::time::Duration;

use conclave_algorithms::mutex::CARDS;
use conclave_kernel::Card;
use conclave_lab::problem::Facts;
use conclave_lab::problems::mutex::{Report, Scenario, Workload};
use conclave_lab::sweep::sweep;
use conclave_sim::{Delay, Setup};

/// One millisecond: T, and E unless a test says otherwise.
pub const MS: Duration = Duration::from_millis(1);

/// T in nanoseconds, as reports give delays.
pub const T: f64 = 1e6;

/// The sizes at which the formulas are demanded.
pub const SIZES: [u32; 7] = [3, 7, 9, 13, 21, 31, 57];

/// A scenario with constant delay T, and at least four rounds of work.
pub fn scenario(algorithm: &str, nodes: u32, load: Workload) -> Scenario {
    let setup = Setup { nodes, delay: Delay::Constant(MS), ..Setup::default() };
    let entries = 4 * u64::from(nodes);
    Scenario { algorithm: algorithm.into(), world: setup, ..Scenario::default() }.with(|work| {
        work.load = load;
        work.entries = entries;
    })
}

/// Runs it.
pub fn run(scenario: &Scenario) -> Report {
    conclave_lab::problem::run(scenario).expect("the scenario is valid")
}

/// The card of that name.
pub fn card(name: &str) -> &'static Card {
    CARDS.iter().find(|card| card.name == name).expect("the algorithm exists")
}

/// The names of all algorithms.
pub fn names() -> impl Iterator<Item = &'static str> {
    CARDS.iter().map(|card| card.name)
}

/// The names of the algorithms that do or do not promise that.
pub fn who_promises(property: &'static str, promised: bool) -> impl Iterator<Item = &'static str> {
    CARDS.iter().filter(move |card| card.promises(property) == promised).map(|card| card.name)
}

/// Runs every seed of a scenario, each changed as `change` says.
pub fn reports(
    seeds: std::ops::Range<u64>,
    scenario: &Scenario,
    change: impl Fn(Scenario) -> Scenario + Sync,
) -> Vec<Report> {
    let job = |seed| {
        let mut scenario = scenario.clone();
        scenario.world.seed = seed;
        run(&change(scenario))
    };
    sweep(seeds, job, |_| {})
}

/// Fails with the seed and the command to paste unless the run kept every promise and did all its work.
#[track_caller]
pub fn assert_served(report: &Report, ordered: u64) {
    let Facts { algorithm, seed, command, .. } = &report.facts;
    assert!(
        report.facts.passed(),
        "{algorithm}, seed {seed}: {:?}\nrepeat it: {command}",
        report.facts.violations
    );
    assert_eq!(report.entries, ordered, "{algorithm}, seed {seed}: entries\nrepeat it: {command}");
}

/// Whether the run broke that property, promised or not.
pub fn broke(report: &Report, property: &str) -> bool {
    report
        .facts
        .violations
        .iter()
        .chain(&report.facts.unpromised)
        .any(|violation| violation.property == property)
}
