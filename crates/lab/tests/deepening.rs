//! Explorations of growing size: which wrong algorithms they catch, and what they claim about right ones.

use std::time::Duration;

use conclave_algorithms::mutants::{self, Catch, Mutant};
use conclave_algorithms::{catalog, deadlock, detector, election, mutex, snapshot};
use conclave_kernel::Card;
use conclave_lab::case::{Word, unwatched};
use conclave_lab::deepen::{Deepened, FIRST_STATES, Plan, SIZES, Size, deepen};
use conclave_lab::sampling;

/// Rounds without a limit of time, so that the result is the same on every machine.
fn plan(sizes: &[Size], most_states: u64) -> Plan {
    Plan { sizes: sizes.to_vec(), within: Duration::MAX, most_states, threads: 1 }
}

fn explored(card: &Card, mutant: Option<&str>, plan: &Plan) -> Deepened {
    deepen(card, mutant, plan, &mut unwatched).expect("the algorithm can be explored")
}

fn card(problem: &str, name: &str) -> &'static Card {
    catalog::cards()
        .find(|card| card.problem == problem && card.name == name)
        .expect("it is in the catalogue")
}

/// Enough states for most mutants, and for the smallest sizes of right algorithms.
const FEW_STATES: u64 = 20_000;

/// Mutants that need more states than the first round explores.
const LARGE: [&str; 2] = ["maekawa-failed-by-holder", "maekawa-1985"];

/// Mutants that only a simulated run shows, and why.
const SAMPLED: [(&str, &str); 2] = [
    ("fair-ring-not-wiped", "its endless run is no cycle of states, because the clocks grow"),
    ("cl-no-numbers", "it needs two snapshots at once"),
];

/// A mutant whose algorithm is right, in a world that the card excludes in words only.
const OUTSIDE: &str = "bully-mid-announcement";

/// Returns whether the mutant breaks a property although every assumption of its algorithm holds.
fn breaks_by_itself(mutant: &&Mutant) -> bool {
    let suits = match mutant.catch {
        Catch::Check { world, .. } => world.suits(card(mutant.problem, mutant.algorithm).needs),
        Catch::Sim { .. } => true,
    };
    !mutant.is_harmless() && suits && mutant.name != OUTSIDE
}

#[test]
fn every_mutant_that_breaks_by_itself_is_caught_by_the_first_round() {
    let others = |mutant: &&Mutant| {
        !LARGE.contains(&mutant.name) && SAMPLED.iter().all(|(name, _)| *name != mutant.name)
    };
    let chosen: Vec<_> = mutants::all().filter(breaks_by_itself).filter(others).collect();
    assert!(chosen.len() > 60, "{}", chosen.len());
    for mutant in chosen {
        let card = card(mutant.problem, mutant.algorithm);
        let is_found = |most| explored(card, Some(mutant.name), &plan(&SIZES, most)).found.is_some();
        assert!(
            is_found(FEW_STATES) || is_found(FIRST_STATES),
            "conclave check {} --mutant {}",
            card.path(),
            mutant.name
        );
    }
}

#[test]
#[ignore = "half a minute: CONTRIBUTING lists the command"]
fn every_large_mutant_that_breaks_by_itself_is_caught_by_a_later_round() {
    for name in LARGE {
        let mutant = mutants::all().find(|mutant| mutant.name == name).expect("it has a name");
        let card = card(mutant.problem, mutant.algorithm);
        let found = explored(card, Some(name), &plan(&SIZES, 20 * FIRST_STATES)).found;
        assert!(found.is_some(), "conclave check {} --mutant {name}", card.path());
    }
}

#[test]
fn a_mutant_that_cannot_be_explored_is_sampled() {
    for (name, _) in SAMPLED {
        let mutant = mutants::all().find(|mutant| mutant.name == name).expect("it has a name");
        let card = card(mutant.problem, mutant.algorithm);
        let sample = sampling::sample(card, Some(name), 0..50).expect("it can be sampled");
        assert_eq!(sample.broken.map(|broken| broken.property).as_deref(), mutant.breaks, "{name}");
        let honest = sampling::sample(card, None, 0..10).expect("it can be sampled");
        assert_eq!((honest.seeds, honest.broken), (10, None), "{}", card.path());
    }
}

/// The fair ring has no end: its token goes round even if no site requests, and each hop advances the clocks.
const ENDLESS: &str = "fair-ring";

/// Properties that algorithms do not promise, and that their explorations refute.
const REFUTED: [&str; 3] = ["ME3", "no-phantom", "one-victim"];

#[test]
fn a_right_algorithm_keeps_its_promises_and_loses_what_it_does_not_promise() {
    let detectors = detector::CARDS.iter().filter(|card| !card.reads_clock);
    let cards = mutex::CARDS.iter().chain(mutex::LAYERED).chain(election::CARDS).chain(snapshot::CARDS);
    for card in cards.chain(detectors).chain(deadlock::DETECTORS) {
        let deepened = explored(card, None, &plan(&SIZES[..3], FEW_STATES));
        let found =
            deepened.found.as_ref().map(|found| (found.property, found.size, &found.variant, &found.why));
        assert_eq!(found, None, "{}", card.path());
        assert_eq!(deepened.finished().is_none(), card.name == ENDLESS, "{}", card.path());
        // One message between applications refutes ME3 wherever it is not promised.
        if let Some(me3) = deepened.properties.iter().find(|depth| depth.verdict.property == "ME3")
            && me3.verdict.word != Word::NotJudged
            && card.name != ENDLESS
        {
            assert_eq!(me3.verdict.word == Word::Holds, card.promises("ME3"), "{} {me3:?}", card.path());
        }
        for unpromised in &deepened.unpromised {
            assert!(REFUTED.contains(&unpromised.property), "{} {:?}", card.path(), unpromised.property);
        }
        for depth in &deepened.properties {
            let is_holding = depth.verdict.word == Word::Holds;
            assert_eq!(depth.finished.is_some(), is_holding, "{} {depth:?}", card.path());
        }
    }
}

#[test]
fn a_deepening_that_is_cut_claims_only_the_sizes_that_it_finished() {
    let nothing = Plan { within: Duration::ZERO, ..Plan::default() };
    let cut = explored(card("mutex", "central"), None, &nothing);
    assert_eq!((cut.finished(), cut.properties.len(), cut.explorations.len()), (None, 0, 0));
    let lamport = explored(card("mutex", "lamport"), None, &plan(&SIZES, FEW_STATES));
    assert_eq!(lamport.finished(), Some(Size { nodes: 2, entries: 2 }), "three sites take 599,157 states");
    assert!(lamport.properties.iter().all(|depth| depth.finished == lamport.finished()));
    let ring = explored(card("mutex", ENDLESS), None, &plan(&SIZES[..1], FEW_STATES));
    assert!(ring.properties.iter().all(|depth| depth.verdict.word == Word::Bounded), "{:?}", ring.properties);
}

#[test]
fn a_deepening_finds_the_same_counterexample_with_any_limit_of_time_and_any_number_of_threads() {
    let card = card("mutex", "roucairol-carvalho");
    let with = |threads, within| {
        let plan = Plan { threads, within, ..Plan::default() };
        let found = explored(card, Some("rc-does-not-ask-again"), &plan).found.expect("it is caught");
        (found.size, found.counterexample.steps, found.why)
    };
    assert_eq!(with(1, Duration::MAX), with(2, Duration::from_secs(3_600)));
}

#[test]
fn a_number_of_sites_without_sizes_of_its_own_gets_one_to_three_entries() {
    let sizes =
        |nodes| Plan::default().with_nodes(nodes).sizes.iter().map(|size| size.entries).collect::<Vec<_>>();
    assert_eq!((sizes(3), sizes(5)), (vec![1, 2, 3], vec![1, 2, 3]));
}
