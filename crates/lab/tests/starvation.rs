//! Who waits for ever: found on cycles, in algorithms without numbers that grow.

use conclave_check::{Cycles, Faults, Options, Order, Report, Timing, Verdict};
use conclave_lab::case::{Case as _, unwatched};
use conclave_lab::log::Log;
use conclave_lab::problems::mutex::check::{Case, FOREVER, Judged};

/// Three sites that ask for ever.
fn for_ever(algorithm: &str, mutant: &str) -> Report {
    let case = Case {
        algorithm: algorithm.into(),
        mutant: Some(mutant.into()),
        nodes: 3,
        entries: FOREVER,
        quorum: None,
        order: Order::Fifo,
        timing: Timing::Async,
        faults: Faults::default(),
        mistakes: 0,
        judged: Judged::Exclusion,
    };
    let options = Options { threads: 1, ..Options::default() };
    case.explore(&options, &mut unwatched).expect("the case is sound")
}

/// Somebody starves, and others go in and out meanwhile.
fn assert_starves(outcome: &Report) {
    assert_eq!((outcome.verdict, outcome.property), (Verdict::Violated, Some("ME2")));
    let why = outcome.why.as_deref().expect("it says who");
    let starving = why.split_once(" waits for ever").expect("it says so").0;
    let found = outcome.counterexample.as_ref().expect("it shows how");
    let log = Log::from_trace(&found.trace).expect("the checker records a sound trace");
    // The starts of the three sites are events of the log, and no steps.
    let cycle = 3 + found.repeats_after.expect("for ever") as usize..log.events().len();
    let enters = |event: &usize| log.describe(*event).to_lowercase().contains("granted");
    let inside: Vec<_> =
        cycle.filter(enters).map(|event| log.name(log.events()[event].site).to_string()).collect();
    assert!(!inside.is_empty(), "nobody goes in");
    assert!(!inside.contains(&starving.to_string()), "{starving} is among {inside:?}");
}

fn assert_serves(outcome: &Report) {
    assert_eq!((outcome.verdict, outcome.cycles), (Verdict::Holds, Cycles::Judged), "{:?}", outcome.why);
}

#[test]
fn a_queue_that_serves_who_asked_last_starves_somebody() {
    assert_starves(&for_ever("suzuki-kasami", "sk-lifo")); // [FACTS 1, Suzuki-Kasami]
}

#[test]
fn a_queue_that_serves_who_asked_first_starves_nobody() {
    assert_serves(&for_ever("suzuki-kasami", "sk-fifo"));
}

#[test]
fn a_ring_with_several_entries_a_visit_starves_the_others() {
    assert_starves(&for_ever("token-ring", "ring-several-entries")); // [FACTS 1, Rings]
}

#[test]
fn a_ring_with_one_entry_a_visit_starves_nobody() {
    assert_serves(&for_ever("token-ring", "ring-one-entry"));
}
