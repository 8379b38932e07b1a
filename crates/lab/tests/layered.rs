//! Mutual exclusion through crashes: the coordinator that is elected again, and Ricart-Agrawala over a detector.

use std::time::Duration;

use conclave_algorithms::detector;
use conclave_algorithms::mutex::LAYERED;
use conclave_algorithms::mutex::layered::Command;
use conclave_algorithms::mutex::spec::ME1_CAUSAL;
use conclave_check::{Options, Order, Report, Verdict};
use conclave_kernel::NodeId;
use conclave_kernel::trace::{Json, RawInput};
use conclave_lab::case::{Case as _, unwatched};
use conclave_lab::problem;
use conclave_lab::problems::mutex::check::{AFTER_A_CRASH, Case, DEFERRAL};
use conclave_lab::problems::mutex::{self, Scenario, Workload};
use conclave_lab::sweep::sweep;
use conclave_sim::Fault;

const MS: Duration = Duration::from_millis(1);

fn scenario(algorithm: &str, crashes: &[&str]) -> Scenario {
    let mut scenario = Scenario::of(algorithm).with(|work| work.load = Workload::High);
    let crashes = crashes.iter().map(|crash| Fault::parse_crash(crash).expect("it is well formed"));
    scenario.world.faults.extend(crashes);
    scenario.work.entries = 400;
    scenario
}

fn run(scenario: &Scenario) -> mutex::Report {
    problem::run(scenario).expect("the scenario is valid")
}

#[track_caller]
fn assert_kept(report: &mutex::Report) {
    assert!(report.facts.passed(), "{:?}\n{}", report.facts.violations, report.facts.command);
}

/// Site 0 is the first master; it dies, and its successor, and whoever is inside.
#[test]
fn crashes_of_masters_and_holders_stop_nobody() {
    for card in LAYERED {
        for crashes in [&["0@50ms"][..], &["0@50ms", "4@300ms"], &["0@50ms", "1@51ms", "4@600ms"]] {
            let report = run(&scenario(card.name, crashes));
            assert_kept(&report);
            assert!(report.entries > 300, "{} {crashes:?}: {}", card.name, report.entries);
        }
    }
}

/// The plain ones stand still: that is what is won.
#[test]
fn without_a_detector_the_same_crash_stops_everybody() {
    for name in ["central", "ricart-agrawala"] {
        let report = run(&scenario(name, &["0@50ms"]));
        assert!(report.facts.violations.iter().any(|violation| violation.property == "ME2"), "{name}");
    }
}

/// Each is a term of its own: an election was held, by the algorithm that the name says.
#[test]
fn the_master_is_elected_by_bully_and_round_the_ring() {
    for (name, kind) in [("central-bully", "COORDINATOR"), ("central-ring", "ELECTED")] {
        let calm = run(&scenario(name, &[]));
        assert_eq!(calm.messages_by_kind.get(kind), None);
        let report = run(&scenario(name, &["0@50ms"]));
        assert_kept(&report);
        assert!(report.messages_by_kind[kind] >= 3, "{:?}", report.messages_by_kind);
        assert!(report.messages_by_kind["POLL"] >= 3, "{:?}", report.messages_by_kind);
        // Those who waited were heard: everybody who is left goes on entering.
        assert!(report.entries_per_site.0 > 50, "{:?}", report.entries_per_site);
    }
}

#[test]
fn a_master_that_comes_back_is_a_client_until_it_is_elected() {
    for name in ["central-bully", "central-ring"] {
        for recovery in ["", ",amnesia"] {
            let report = run(&scenario(name, &[&format!("0@50ms..400ms{recovery}")]));
            assert_kept(&report);
            assert!(report.entries > 300, "{name}{recovery}: {}", report.entries);
        }
    }
}

#[test]
fn hundreds_of_runs_with_a_crash_at_any_moment_keep_me1() {
    for card in LAYERED {
        let reports = sweep(
            0..80,
            |seed| {
                let crash = format!("{}@{}us", seed % 5, 20_000 + seed * 777);
                let mut scenario = scenario(card.name, &[&crash]);
                (scenario.world.seed, scenario.work.entries) = (seed, 150);
                scenario.world.delay = "uniform:100us..20ms".parse().expect("it is well formed");
                run(&scenario)
            },
            |_| {},
        );
        reports.iter().for_each(assert_kept);
    }
}

/// A detector's messages carry knowledge too, and no site waits for them: only the order of the algorithm's own
/// events and messages makes this hold. Two loads, so that exits with and without a waiting site occur.
#[test]
fn without_faults_every_exit_happened_before_the_next_entry() {
    for card in LAYERED {
        assert!(card.promises(ME1_CAUSAL.name), "{}", card.name);
        let reports = sweep(
            0..1_000,
            |seed| {
                let load = if seed % 2 == 0 { Workload::High } else { Workload::Poisson { mean: 3 * MS } };
                let mut scenario = scenario(card.name, &[]).with(|work| work.load = load);
                (scenario.world.seed, scenario.world.nodes) = (seed, 3 + (seed % 5) as u32);
                scenario.work.entries = 30;
                scenario.world.delay = "uniform:100us..20ms".parse().expect("it is well formed");
                run(&scenario)
            },
            |_| {},
        );
        for report in &reports {
            assert_kept(report);
            assert_eq!(report.entries, 30, "{}", report.facts.command);
        }
    }
}

/// Delays beyond what the detector was told: somebody who is inside is suspected.
#[test]
fn where_delays_are_not_bounded_two_are_inside() {
    let broken = sweep(
        0..20,
        |seed| {
            let mut scenario = scenario("ricart-agrawala-ft", &[]);
            scenario.world.seed = seed;
            scenario.world.delay = "exponential:30ms".parse().expect("it is well formed");
            scenario.work.cs = 50 * MS;
            let violations = run(&scenario).facts.violations;
            violations.iter().any(|violation| violation.property == "ME1")
        },
        |_| {},
    );
    assert!(broken.iter().any(|broken| *broken));
}

/// Explores the core of a layered algorithm over the oracle, with one entry of each site.
fn over_oracle(algorithm: &str, nodes: u32, mistakes: u8, crash: u8, order: Order) -> Report {
    let card = LAYERED.iter().find(|card| card.name == algorithm).expect("it is a layered algorithm");
    let mut case = Case::of(card, nodes, 1).with(|work| work.mistakes = mistakes);
    (case.world.crash, case.world.order) = (crash, order);
    case.explore(&Options::default(), &mut unwatched).expect("the model is small")
}

/// Every moment of a crash, inside or not, and every moment at which the others learn of it.
#[test]
fn ricart_agrawala_over_every_perfect_detector_is_proven() {
    for (nodes, crash, order) in [(2, 1, Order::Any), (3, 1, Order::Fifo), (3, 2, Order::Fifo)] {
        let report = over_oracle("ricart-agrawala-ft", nodes, 0, crash, order);
        assert_eq!(report.verdict, Verdict::Holds, "{:?} {:?}", report.property, report.why);
        for name in [DEFERRAL, AFTER_A_CRASH] {
            assert!(report.sometimes.iter().any(|it| it.name == name && it.seen), "{:?}", report.sometimes);
        }
    }
}

/// One wrong suspicion, withdrawn at once, is enough: one site requests and enters, the other site learns that
/// the first has crashed, requests and enters.
#[test]
fn a_detector_that_errs_once_lets_two_in() {
    let report = over_oracle("ricart-agrawala-ft", 2, 1, 0, Order::Fifo);
    assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("ME1")));
    let counterexample = report.counterexample.expect("it is violated");
    assert!(counterexample.steps <= 5, "{}", counterexample.steps);
    let suspects =
        |site| RawInput::Command(Json::of(&Command::Detector(detector::Event::Suspected(NodeId(site)))));
    let mut steps = counterexample.trace.steps.iter();
    assert!(steps.any(|step| step.input == suspects(0) || step.input == suspects(1)));
}
