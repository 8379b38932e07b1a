//! The detector problem: quality of service, and where the promises hold.

use std::time::Duration;

use conclave_algorithms::detector::{CARDS, Group, Heartbeat};
use conclave_check::{Cycles, Faults, Options, Timing, Verdict, check};
use conclave_lab::problem;
use conclave_lab::problems::detector::{Report, Scenario, Watching, compare};
use conclave_sim::{Delay, Fault};

const MS: Duration = Duration::from_millis(1);

fn scenario(algorithm: &str, delay: &str) -> Scenario {
    let mut scenario = Scenario::of(algorithm);
    scenario.world.nodes = 4;
    scenario.world.delay = delay.parse::<Delay>().expect("it is well formed");
    scenario.work.duration = Duration::from_secs(20);
    scenario
}

fn with_crash(mut scenario: Scenario, crash: &str) -> Scenario {
    scenario.world.faults.push(Fault::parse_crash(crash).expect("it is well formed"));
    scenario
}

fn run(scenario: &Scenario) -> Report {
    problem::run(scenario).expect("the scenario is valid")
}

fn broke(report: &Report, property: &str) -> bool {
    let facts = &report.facts;
    facts.violations.iter().chain(&facts.unpromised).any(|violation| violation.property == property)
}

/// Bounded delays from 0 to 10 ms, and D = 10 ms: no mistake, whatever the seed.
#[test]
fn with_d_at_least_the_largest_delay_there_is_no_mistake() {
    for seed in 0..20 {
        let mut scenario = with_crash(scenario("heartbeat", "uniform:0..10ms"), "1@7.003s");
        scenario.world.seed = seed;
        let report = run(&scenario);
        assert!(report.facts.passed(), "{:?}\n{}", report.facts.violations, report.facts.command);
        let detection = report.detection_time.expect("there was a crash");
        assert_eq!((report.mistakes, detection.count), (0, 3));
        assert!(detection.max_ns <= 120_000_001, "T + D, and a delay: {detection:?}");
    }
}

#[test]
fn with_a_smaller_d_or_without_a_bound_there_are_mistakes() {
    let short = scenario("heartbeat", "uniform:0..10ms").with(|work| work.margin = 5 * MS);
    for scenario in [short, scenario("heartbeat", "exponential:5ms")] {
        let report = run(&scenario);
        assert!(report.mistakes > 0 && broke(&report, "accuracy"));
        assert!(!report.facts.passed(), "it was promised");
        assert!(report.mistake_duration.expect("there were mistakes").mean_ns < 50e6);
        assert!(report.query_accuracy > 0.9 && report.query_accuracy < 1.0);
    }
}

/// N(N-1) heartbeats every T, for all of them.
#[test]
fn every_detector_sends_the_same_heartbeats_and_notices_the_crash() {
    for card in CARDS {
        let report = run(&with_crash(scenario(card.name, "lognormal:2ms,0.5"), "2@5s"));
        assert!(!broke(&report, "completeness"), "{}: {:?}", card.name, report.facts);
        assert_eq!(report.detection_time.expect("there was a crash").count, 3, "{}", card.name);
        let (before, after) = (4.0 * 3.0 * 10.0 * 5.0, 3.0 * 3.0 * 10.0 * 15.0);
        let expected = (before + after) / 20.0;
        assert!((report.messages_per_s / expected - 1.0).abs() < 0.02, "{}", report.messages_per_s);
    }
}

/// Large D finds fewer crashes that are repaired soon.
#[test]
fn a_crash_that_is_repaired_within_d_is_never_noticed() {
    let report = |margin| {
        run(&with_crash(
            scenario("heartbeat", "constant:1ms").with(|work| work.margin = margin),
            "1@5.05s..5.3s",
        ))
    };
    let (small, large) = (report(10 * MS), report(500 * MS));
    assert_eq!((small.unnoticed_crashes, small.detection_time.map(|sample| sample.count)), (0, Some(3)));
    assert_eq!((large.unnoticed_crashes, large.detection_time), (3, None));
    assert_eq!((small.mistakes, large.mistakes), (0, 0));
}

/// Where a fixed D is far too long, those that learn are sooner; where it is too short, they err less.
#[test]
fn detectors_that_learn_adapt_to_the_network() {
    let crash = |scenario| with_crash(scenario, "1@15.04s");
    let fixed = scenario("heartbeat", "uniform:1ms..3ms").with(|work| work.margin = 500 * MS);
    let detection = |report: &Report| report.detection_time.expect("there was a crash").mean_ns;
    let slow = detection(&run(&crash(fixed.clone())));
    for name in ["adaptive", "phi-accrual"] {
        let learned = run(&crash(Scenario { algorithm: name.into(), ..fixed.clone() }));
        assert!(detection(&learned) < slow / 3.0, "{name}: {learned:?}");
    }
    let short = scenario("heartbeat", "exponential:20ms").with(|work| work.margin = 2 * MS);
    let wrong = run(&short).mistakes;
    for name in ["adaptive", "phi-accrual"] {
        let learned = run(&Scenario { algorithm: name.into(), ..short.clone() }).mistakes;
        assert!(learned * 3 < wrong, "{name}: {learned} mistakes, the fixed one {wrong}");
    }
}

/// A higher threshold errs less and takes longer.
#[test]
fn the_threshold_of_phi_trades_mistakes_for_time() {
    let report = |threshold| {
        let base = scenario("phi-accrual", "exponential:10ms");
        run(&with_crash(base.with(|work| work.threshold = threshold), "1@15.04s"))
    };
    let (low, high) = (report(1), report(12));
    assert!(low.mistakes > 10 * high.mistakes.max(1), "{} and {}", low.mistakes, high.mistakes);
    let detection = |report: &Report| report.detection_time.expect("there was a crash").mean_ns;
    assert!(detection(&low) < detection(&high));
}

#[test]
fn the_comparison_covers_the_trade_off_on_the_same_crashes() {
    let base = scenario("heartbeat", "lognormal:5ms,1").with(|work| work.duration = Duration::from_secs(60));
    let rows: Vec<_> = CARDS
        .iter()
        .flat_map(|card| compare::settings(card, &base).into_iter().map(move |setting| (card, setting)))
        .map(|(card, setting)| compare::row(card, &setting).expect("it is valid"))
        .collect();
    assert!(rows.iter().all(compare::Row::passed));
    let fixed: Vec<_> = rows.iter().filter(|row| row.algorithm == "heartbeat").collect();
    let rates: Vec<_> = fixed.iter().map(|row| row.report.mistakes).collect();
    assert!(rates.is_sorted_by(|one, next| one >= next), "{rates:?}");
    assert!(rates[0] > 100 && rates[rates.len() - 1] < 10, "{rates:?}");
    let svg = compare::plot(&rows, &base).expect("there are mistakes");
    assert!(svg.contains("delays lognormal:5ms,1"));
    assert!(svg.contains("heartbeat") && svg.contains("phi-accrual") && svg.contains("adaptive"));
}

fn explore(margin: Duration, timing: Timing, crash: u8) -> conclave_check::Report {
    let model = Watching::<Heartbeat>::new(Group::new(2, 2 * MS, margin)).expect("two fit");
    let faults = Faults { crash, ..Faults::default() };
    check(&model, &Options { timing, faults, ..Options::default() }).expect("the model is small")
}

/// Proven for two sites: perfect where delays are at most D, refuted where they may be longer.
#[test]
fn the_checker_proves_the_heartbeat_perfect_with_bounded_delays_only() {
    let sync = Timing::Sync { delay: 1, tick: MS };
    let report = explore(MS, sync, 1);
    assert_eq!((report.verdict, report.cycles), (Verdict::Holds, Cycles::Judged), "{:?}", report.why);
    assert!(report.sometimes[0].seen);
    for (margin, timing) in [(Duration::ZERO, sync), (MS, Timing::Async)] {
        let report = explore(margin, timing, 0);
        assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("accuracy")));
    }
}
