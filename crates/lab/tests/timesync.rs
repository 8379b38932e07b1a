//! The room of physical time: every interval holds the true time, over asymmetric and heavy-tailed delays, loss,
//! duplication, pauses and partitions; who only keeps a group together does so; mistakes are caught.
//!
//! The thousands are a command: `conclave sim timesync/ntp --swarm --seeds 0..10000`.

use std::time::Duration;

use conclave_algorithms::timesync::interval::resync_interval;
use conclave_algorithms::timesync::mutants::{Overestimate, SetToT};
use conclave_algorithms::timesync::{CARDS, TimeSync};
use conclave_kernel::Card;
use conclave_lab::room::{Scenario as _, run};
use conclave_lab::rooms::timesync::{Report, Scenario, run_tenant};
use conclave_lab::sweep::sweep;
use conclave_sim::{Clocks, Fault};

fn of(algorithm: &str) -> Scenario {
    let mut scenario = Scenario::default();
    scenario.set_algorithm(algorithm);
    scenario
}

fn external() -> impl Iterator<Item = &'static Card> {
    CARDS.iter().filter(|card| card.promises("truth"))
}

fn assert_passed(report: &Report) {
    assert!(report.facts.passed(), "{}\n{:?}", report.facts.command, report.facts.violations);
}

const SEEDS: u64 = 40;

#[test]
fn the_true_time_is_inside_over_asymmetric_and_heavy_tailed_delays() {
    // To the server within a few milliseconds; back ten times as long, from a different distribution.
    let ways = [
        ("uniform:1ms..2ms", "uniform:1ms..40ms"),
        ("exponential:2ms", "exponential:20ms"),
        ("lognormal:1ms,1.5", "lognormal:5ms,2"),
        ("constant:1ms", "lognormal:3ms,2.5"),
    ];
    for card in external() {
        for (there, back) in ways {
            let reports = sweep(
                0..SEEDS,
                |seed| {
                    let mut scenario = of(card.name);
                    scenario.setup.seed = seed;
                    scenario.setup.delay = there.parse().unwrap();
                    let to_clients = (1..5).map(|client| format!("0>{client}={back}").parse().unwrap());
                    scenario.setup.links = to_clients.collect();
                    run(&scenario).unwrap()
                },
                |_| {},
            );
            for report in &reports {
                assert_passed(report);
                assert!(report.synced > 0, "vacuous: {}", report.facts.command);
            }
            assert!(
                reports.iter().map(|report| report.settled).sum::<u64>() > 100 * SEEDS,
                "{} {back}",
                card.name
            );
        }
    }
}

#[test]
fn no_promise_breaks_in_worlds_drawn_from_seeds() {
    for card in CARDS {
        let reports = sweep(
            0..3 * SEEDS,
            |seed| {
                let mut scenario = of(card.name);
                scenario.setup.seed = seed;
                scenario.setup.nodes = 4 + (seed % 5) as u32;
                run(&scenario.swarmed()).unwrap()
            },
            |_| {},
        );
        reports.iter().for_each(assert_passed);
        let settled = reports.iter().filter(|report| report.settled > 0).count() as u64;
        assert!(settled > SEEDS, "{}: only {settled} of {} settled", card.name, 3 * SEEDS);
    }
}

#[test]
fn liars_among_the_servers_do_no_harm_as_long_as_they_are_not_more_than_assumed() {
    for seed in 0..SEEDS {
        let mut scenario = Scenario { servers: 4, liars: 1, ..of("marzullo") };
        scenario.setup.nodes = 7;
        scenario.setup.seed = seed;
        let report = run(&scenario).unwrap();
        assert_passed(&report);
        assert!(report.settled > 150, "{}", report.settled);
    }
}

#[test]
fn the_intersection_is_narrower_than_the_narrowest_and_that_than_the_average() {
    let bound = |name: &str| {
        let runs = (0..10).map(|seed| {
            let mut scenario = of(name);
            scenario.setup.seed = seed;
            run(&scenario).unwrap().bound_mean_ns.unwrap()
        });
        runs.sum::<f64>()
    };
    let (average, narrowest, intersection) =
        (bound("cristian-average"), bound("cristian"), bound("cristian-intersection"));
    assert!(intersection < narrowest && narrowest < average, "{intersection} {narrowest} {average}");
}

#[test]
fn a_group_may_leave_the_true_time_together() {
    // Internal synchronisation does not imply external: the clocks agree, and are all wrong.
    let report = run(&of("berkeley")).unwrap();
    assert_passed(&report);
    assert!(report.facts.unpromised.iter().any(|violation| violation.property == "truth"));
    assert!(report.error_last_ns < Some(6_000_000), "{:?} apart", report.error_last_ns);
}

#[test]
fn a_silent_master_is_replaced() {
    let mut scenario = of("berkeley");
    scenario.setup.faults.push(Fault::parse_crash("0@10s..30s").unwrap());
    let report = run(&scenario).unwrap();
    assert_passed(&report);
    assert_eq!(report.leaders, 2, "site 0, and one that took over");
}

#[test]
fn compared_every_m_over_two_mdr_clocks_stay_within_m_of_each_other() {
    // Of a constant, known delay a reading is exact: what is left is drift. M = 1 ms, each clock half of it.
    for seed in 0..10 {
        let mut scenario = of("cristian");
        scenario.every = resync_interval(Duration::from_millis(1), 100).unwrap();
        scenario.setup.seed = seed;
        scenario.setup.delay = "constant:1ms".parse().unwrap();
        scenario.setup.clocks = Clocks { skew: Duration::ZERO, drift_ppm: 100, exact: 0 };
        let report = run(&scenario).unwrap();
        assert_passed(&report);
        assert!(report.error_max_ns <= Some(501_000), "{:?}", report.error_max_ns);
    }
}

#[test]
fn what_a_comparison_costs() {
    let of_kind = |report: &Report, kind: &str| report.messages_by_kind.get(kind).copied().unwrap_or(0);
    let cristian = run(&of("cristian")).unwrap();
    // Four readings a comparison, two messages each; one comparison may be under way at the end.
    assert!(of_kind(&cristian, "ASK").abs_diff(4 * cristian.synced) <= 4 * 4);
    assert!(of_kind(&cristian, "ASK") - of_kind(&cristian, "TELL") <= 4);
    let berkeley = run(&of("berkeley")).unwrap();
    let rounds = of_kind(&berkeley, "ADJUST") / 4;
    assert!(of_kind(&berkeley, "POLL").abs_diff(4 * 4 * rounds) <= 16, "P polls of N-1 sites a round");
}

#[test]
fn the_planted_mistakes_are_caught() {
    fn caught<P: TimeSync>(scenario: &Scenario, property: &str) {
        let (report, _) = run_tenant::<P>(scenario, false).unwrap();
        assert!(
            report.facts.violations.iter().any(|violation| violation.property == property),
            "{:?}",
            report.facts.violations
        );
    }
    caught::<SetToT>(&of("cristian"), "truth");
    caught::<Overestimate>(&of("dtp"), "pace");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for card in CARDS {
        let digest = || run(&of(card.name)).unwrap().facts.digest;
        assert_eq!(digest(), digest(), "{}", card.name);
    }
}
