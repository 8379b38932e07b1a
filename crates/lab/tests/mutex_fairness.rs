//! ME3 where it is promised, and the run that breaks it where it is not; how often a request is bypassed; and
//! that the rare parts of each algorithm were really exercised.
//!
//! The relay is what ME3 is about: a site that has asked tells the next one outside of the algorithm, with its
//! logical clock, and that one then asks too.

use crate::support::{MS, T, assert_served, broke, card, reports, run, scenario, who_promises};
use conclave_lab::problems::mutex::{Report, Scenario, Workload};
use conclave_sim::{Delay, Order};

fn relay(algorithm: &str, nodes: u32, order: Order) -> Scenario {
    let mut relay = scenario(algorithm, nodes, Workload::Relay).with(|work| work.entries = 60);
    relay.world.delay = Delay::Exponential(2 * MS);
    relay.world.order = order;
    relay
}

#[test]
fn the_card_promises_me3_exactly_where_the_facts_do() {
    let fair: Vec<_> = who_promises("ME3", true).collect();
    assert_eq!(fair, ["fair-ring", "lamport", "lamport-omission", "ricart-agrawala"]);
}

#[test]
fn grants_follow_causality_where_that_is_promised() {
    for algorithm in who_promises("ME3", true) {
        let order = if card(algorithm).needs.fifo { Order::Fifo } else { Order::Any };
        for nodes in [3, 5, 9] {
            for report in reports(0..100, &relay(algorithm, nodes, order), |scenario| scenario) {
                assert_served(&report, 60);
                assert_eq!(report.order_inversions, Some(0), "{}", report.facts.command);
                assert!(
                    report.contended_requests > 30,
                    "the relay hardly overlapped: {}",
                    report.facts.command
                );
            }
        }
    }
}

/// FACTS C7: central, ring, Suzuki-Kasami, Maekawa and Roucairol-Carvalho; the trees likewise.
#[test]
fn a_younger_request_overtakes_an_older_that_it_knew_of_where_nothing_else_is_promised() {
    for algorithm in who_promises("ME3", false) {
        let runs = reports(0..100, &relay(algorithm, 5, Order::Any), |scenario| scenario);
        for report in &runs {
            assert_served(report, 60);
        }
        let shown = runs.iter().find(|report| broke(report, "ME3"));
        let shown = shown.unwrap_or_else(|| panic!("{algorithm}: no inversion in 100 runs"));
        assert!(shown.order_inversions > Some(0));
        assert_eq!(shown.facts.properties["ME3"], conclave_kernel::Verdict::NotPromised);
        assert!(shown.facts.violations.is_empty());
    }
}

/// The clock must travel with application messages: without it, nobody can know.
#[test]
fn the_relay_really_carries_causality() {
    let report = run(&relay("central", 3, Order::Fifo));
    assert!(
        report
            .facts
            .unpromised
            .iter()
            .any(|violation| violation.why.contains("although it knew of the request of"))
    );
}

fn high(algorithm: &str, nodes: u32) -> Scenario {
    let mut high =
        scenario(algorithm, nodes, Workload::High).with(|work| work.entries = 20 * u64::from(nodes));
    high.world.delay = Delay::Exponential(MS);
    high
}

/// Between a request and its grant everybody else enters at most once where grants follow a queue or the ring:
/// one entry a visit. \[CDK\]
#[test]
fn nobody_is_bypassed_more_than_once_by_each_where_the_token_goes_round() {
    for nodes in [2, 3, 7, 13] {
        for report in reports(0..30, &high("token-ring", nodes), |scenario| scenario) {
            assert_served(&report, 20 * u64::from(nodes));
            assert_eq!(report.max_bypass, u64::from(nodes - 1), "{}", report.facts.command);
        }
    }
}

/// Stamps bound it too: a request can be bypassed only by those older, and by those who ask again before they
/// hear of it, once each.
#[test]
fn stamps_bound_how_often_a_request_is_bypassed() {
    for algorithm in ["lamport", "lamport-omission", "ricart-agrawala", "fair-ring"] {
        for nodes in [3, 7, 13] {
            for report in reports(0..30, &high(algorithm, nodes), |scenario| scenario) {
                assert_served(&report, 20 * u64::from(nodes));
                assert!(report.max_bypass <= 2 * u64::from(nodes - 1), "{}", report.facts.command);
            }
        }
    }
}

#[test]
fn everybody_gets_the_same_share_at_high_load_and_constant_delay() {
    for algorithm in crate::support::names() {
        let report = run(&scenario(algorithm, 7, Workload::High).with(|work| work.entries = 210));
        assert_served(&report, 210);
        let (most, fewest) = report.entries_per_site;
        assert!(most - fewest <= 2, "{algorithm}: {fewest} to {most} entries a site");
        assert!(report.fairness > 0.99, "{algorithm}: {}", report.fairness);
    }
}

fn kinds(report: &Report, wanted: &[&str]) -> bool {
    wanted.iter().all(|kind| report.messages_by_kind.contains_key(kind))
}

/// The check was not vacuous: contention, deferral, and every message that deadlock handling has.
#[test]
fn the_rare_parts_of_each_algorithm_are_exercised() {
    for nodes in [7, 13] {
        let runs = reports(0..20, &high("maekawa", nodes), |scenario| scenario);
        let handled = ["REQUEST", "GRANT", "RELEASE", "FAILED", "INQUIRE", "YIELD"];
        assert!(runs.iter().any(|report| kinds(report, &handled)), "N = {nodes}: {handled:?} in no run");
    }
    for algorithm in crate::support::names() {
        for report in reports(0..5, &high(algorithm, 7), |scenario| scenario) {
            assert!(report.contended_requests * 2 > report.entries, "{algorithm}: hardly anybody contended");
        }
    }
    // A deferred reply: a site waits far longer than the way there and back.
    let deferred = run(&scenario("ricart-agrawala", 7, Workload::High)).response_time.expect("entries");
    assert!(deferred.max_ns as f64 > 10.0 * T);
    // Permissions kept, tokens already there, replies omitted: entries cheaper than the formula's most.
    let cheap = |algorithm: &str| run(&high(algorithm, 7)).messages_per_entry_min;
    assert_eq!(cheap("suzuki-kasami"), 0);
    assert!(cheap("roucairol-carvalho") < 12);
    assert!(cheap("lamport-omission") < 18);
}
