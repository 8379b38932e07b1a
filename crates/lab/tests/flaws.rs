//! The flaws of all problems: each algorithm is refuted with some of them, and what was found is said.

use std::time::Duration;

use conclave_algorithms::{catalog, deadlock, mutex};
use conclave_kernel::Card;
use conclave_lab::deepen::{Plan, Size};
use conclave_lab::flaws::{self, Evidence, Flaw};
use conclave_lab::{log, sampling};

fn small() -> Plan {
    let sizes = vec![Size { nodes: 2, entries: 1 }, Size { nodes: 2, entries: 2 }];
    Plan { sizes, within: Duration::MAX, most_states: 5_000, threads: 1 }
}

fn judge(card: &Card, flaw: &Flaw) -> Evidence {
    flaws::judge(card, Some(&flaw.name), &small(), 2).expect("there is evidence")
}

/// Returns the generic flaws of an algorithm with one rule.
fn generic(card: &Card, rule: &str) -> Vec<Flaw> {
    let all = flaws::of(card, &small()).expect("the algorithm can be explored or sampled");
    all.into_iter().filter(|flaw| flaw.is_generic && flaw.name.starts_with(rule)).collect()
}

#[test]
fn every_explored_algorithm_is_refuted_if_it_never_sends_some_kind_of_message() {
    let is_strategy =
        |card: &Card| deadlock::locking::CARDS.iter().any(|strategy| strategy.name == card.name);
    let explored = catalog::cards().filter(|card| !card.reads_clock && card.problem != "timesync");
    for card in explored.filter(|card| !is_strategy(card)) {
        let silent = generic(card, "never-sends");
        let refuted: Vec<_> = silent.iter().filter(|flaw| judge(card, flaw).broken().is_some()).collect();
        assert!(!refuted.is_empty(), "{}: {silent:?}", card.path());
    }
}

/// The messages of the processes do not count here: each detector loses deadlocks without its own messages.
#[test]
fn every_detector_of_deadlocks_misses_one_without_its_own_messages() {
    for card in deadlock::DETECTORS {
        let of_processes = ["REQUEST", "GRANT", "CANCEL"];
        let own = generic(card, "never-sends");
        let mut own = own.iter().filter(|flaw| !of_processes.iter().any(|kind| flaw.name.ends_with(kind)));
        let missed = own.any(|flaw| judge(card, flaw).broken() == Some("no-miss"));
        assert!(missed, "{}", card.path());
    }
}

/// A process that ignores its grants waits by a request that is granted, and its detector believes it.
#[test]
fn a_phantom_of_a_wrong_detector_is_found() {
    for name in ["diffusion", "stable"] {
        let card = deadlock::DETECTORS.iter().find(|card| card.name == name).expect("a detector");
        let flaw = generic(card, "ignores-asking:GRANT").pop().expect("GRANT is sent");
        assert_eq!(judge(card, &flaw).broken(), Some("no-phantom"), "{name}");
    }
}

#[test]
fn a_layered_mutex_is_refuted_over_the_oracle_if_it_ignores_messages() {
    for card in mutex::LAYERED {
        let names = flaws::of(card, &small()).expect("its core can be explored");
        let broken = names.iter().filter(|flaw| judge(card, flaw).broken().is_some()).count();
        assert!(broken >= 2, "{}: {broken} of {names:?}", card.path());
    }
}

#[test]
fn a_flaw_of_an_algorithm_that_reads_its_clock_is_sampled() {
    for (problem, name) in [("detector", "adaptive"), ("timesync", "cristian"), ("deadlock", "ordered")] {
        let card =
            catalog::cards().find(|card| (card.problem, card.name) == (problem, name)).expect("a card");
        let silent = generic(card, "never-sends");
        assert!(!silent.is_empty(), "{}", card.path());
        for flaw in &silent {
            let evidence = judge(card, flaw);
            let Evidence::Sampled { seeds, why, .. } = &evidence else { panic!("{evidence:?}") };
            assert!((1..=2).contains(seeds) && !why.is_empty(), "{} {}", card.path(), flaw.name);
        }
    }
}

#[test]
fn a_sample_of_a_right_algorithm_keeps_its_promises_and_of_a_silent_one_does_not() {
    let card = catalog::cards().find(|card| card.path().to_string() == "deadlock/ordered").expect("a card");
    let right = sampling::sample(card, None, 0..5).expect("it can be sampled");
    assert_eq!((right.seeds, right.broken), (5, None));
    let silent = generic(card, "never-sends");
    assert!(silent.iter().any(|flaw| judge(card, flaw).broken() == Some("commits")), "{silent:?}");
}

#[test]
fn a_generic_flaw_has_a_counterexample_that_can_be_repeated() {
    let card = catalog::cards().find(|card| card.path().to_string() == "mutex/central").expect("a card");
    let flaw = generic(card, "never-sends:RELEASE").pop().expect("RELEASE is sent");
    let Evidence::Counterexample { property, counterexample, .. } = judge(card, &flaw) else {
        panic!("it breaks")
    };
    assert_eq!(property, "ME2");
    let mut lines = Vec::new();
    log::write_trace(&counterexample.trace, &mut lines).expect("it can be written");
    let scenario = &counterexample.trace.header.scenario;
    let case = conclave_lab::case::read("mutex", scenario).expect("the header holds the case");
    let repeated = case.retrace("trace", &lines).expect("it repeats");
    assert!(!repeated.waiting.is_empty(), "{repeated:?}");
}

#[test]
fn algorithms_without_flaws_of_their_own_are_named() {
    let names: Vec<_> = flaws::without_own().map(|card| card.path().to_string()).collect();
    assert!(names.iter().any(|name| name == "deadlock/central"), "{names:?}");
    assert!(!names.iter().any(|name| name == "mutex/central"), "{names:?}");
}
