//! The table of mutants is correct: every harmful mutant is caught, by the property that it breaks and within its budget; every
//! harmless one is not; and every correct algorithm passes where its mutants fail.

use conclave_algorithms::{catalog, election, mutants, mutex, snapshot};
use conclave_check::{Bounds, CROSSING, Options, Verdict};
use conclave_kernel::Card;
use conclave_lab::case;
use conclave_lab::mutants::{Finding, Messages, examine, honest};
use conclave_lab::problems::mutex::check::{CONTENTION, DEFERRAL};

/// One half of the mutants, so that each of two cores examines one half.
fn findings_of(half: usize) -> Vec<Finding> {
    let chosen = mutants::all().enumerate().filter(|(index, _)| index % 2 == half);
    chosen.map(|(_, mutant)| examine(mutant, 1).expect("it can be examined")).collect()
}

/// What is not as the table says.
fn surprises(findings: &[Finding]) -> Vec<String> {
    let mut surprises = Vec::new();
    for finding in findings {
        let mutant = mutants::all().find(|mutant| mutant.name == finding.name).expect("it has a name");
        let longer = finding.steps.zip(finding.published_steps).is_some_and(|(ours, theirs)| ours > theirs);
        // Without bound is the most.
        let most = |messages: Messages| messages.max.unwrap_or(u32::MAX);
        let cheaper = finding.messages.is_some_and(|[honest, flawed]| most(flawed) < most(honest));
        let expected = finding.is_expected() && finding.by.as_deref() == mutant.breaks;
        if longer || cheaper || !expected {
            surprises.push(format!("{finding:?}"));
        }
    }
    surprises
}

#[test]
fn every_harmful_mutant_is_caught_and_no_harmless_one() {
    assert_eq!(surprises(&findings_of(0)), [""; 0]);
}

#[test]
fn every_other_harmful_mutant_is_caught_and_no_other_harmless_one() {
    assert_eq!(surprises(&findings_of(1)), [""; 0]);
}

#[test]
fn names_are_unique_and_an_algorithm_with_mutants_has_a_harmful_one() {
    let mut names: Vec<_> = mutants::all().map(|mutant| mutant.name).collect();
    names.sort_unstable();
    assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
    let cards = mutex::CARDS.iter().chain(election::CARDS).chain(snapshot::CARDS);
    for card in cards {
        let of_card =
            |mutant: &&mutants::Mutant| mutant.problem == card.problem && mutant.algorithm == card.name;
        // Otherwise nothing distinguishes the algorithm from its wrong variants.
        let mut own = mutants::all().filter(of_card).peekable();
        assert!(own.peek().is_none() || own.any(|mutant| !mutant.is_harmless()), "{}", card.name);
    }
    for mutant in mutants::all() {
        let card =
            catalog::cards().find(|card| card.problem == mutant.problem && card.name == mutant.algorithm);
        let card = card.unwrap_or_else(|| panic!("{}: no such algorithm", mutant.name));
        assert!(mutant.breaks.is_none_or(|property| card.promises(property)), "{}", mutant.name);
        assert!(mutants::PROBLEMS.contains(&mutant.problem), "{}", mutant.name);
    }
    let harmful = mutants::all().filter(|mutant| !mutant.is_harmless()).count();
    assert!(harmful >= 40, "{harmful}");
}

#[test]
fn every_source_is_a_known_paper() {
    let papers = include_str!("../../../docs/papers.md");
    for mutant in mutants::all() {
        let key = mutant.source.split(' ').next().unwrap_or_default();
        assert!(papers.contains(&format!("\n| {key} |")), "{}: {}", mutant.name, mutant.source);
    }
}

/// Algorithms in which no two sites ever have a message for each other under way at once while nothing goes wrong, and
/// why. (A copy of a message may cross the answer to it, and a ring that has closed over the dead may be a pair.)
const NEVER_CROSS: [(&str, &str); 6] = [
    ("central", "a client is silent until it is answered, and the coordinator until it is asked"),
    ("token-ring", "there is one message, the token"),
    ("fair-ring", "there is one message, the token"),
    (
        "roucairol-carvalho",
        "whoever holds a pair's permission is silent until it is asked, and the other asks once",
    ),
    (
        "raymond",
        "whoever is nearer to the token is silent on that edge until it is asked, and the other asks once",
    ),
    ("chang-roberts", "everything goes one way round"),
];

/// Demands that messages cross in an algorithm, or that they really cannot.
fn assert_crossing(card: &'static Card) {
    let entries = if card.problem == "mutex" { 2 } else { 1 };
    let case = case::of(card, 3, entries).expect("it can be explored");
    let bounds = Bounds { states: HONEST_STATES, ..Bounds::default() };
    let options = Options { threads: 1, bounds, liveness_states: 0, ..Options::default() };
    let outcome = case.explore(&options, &mut case::unwatched).expect("it can be explored");
    let crossed = outcome.sometimes.iter().any(|it| it.name == CROSSING && it.seen);
    let reason = NEVER_CROSS.iter().find(|(name, _)| *name == card.name).map(|(_, reason)| *reason);
    assert!(!crossed || reason.is_none(), "{}: messages cross", card.name);
    // The token of a fair ring never stops.
    let looked_everywhere = outcome.verdict == Verdict::Holds || card.idle_traffic;
    assert!(crossed || looked_everywhere, "{}: {}", card.name, outcome.verdict);
}

/// A correct algorithm in the worlds of its mutants.
fn walk(card: &'static Card) {
    let worlds = honest(card, HONEST_STATES, 1).expect("it can be run");
    for honest in &worlds {
        assert_eq!(honest.broke, None, "{} beside {}", honest.algorithm, honest.beside);
        // Nothing is shown by a world in which nobody ever met anybody.
        for it in honest.sometimes.iter().filter(|it| [CONTENTION, DEFERRAL].contains(&it.name)) {
            assert!(it.seen, "{} beside {}: {}", honest.algorithm, honest.beside, it.name);
        }
        // Nor by one that was explored to its end, and in which what the problem is about never happened.
        for it in honest.sometimes.iter().filter(|it| honest.complete && it.name != CROSSING) {
            assert!(it.seen, "{} beside {}: {}", honest.algorithm, honest.beside, it.name);
        }
    }
    assert_crossing(card);
    if card.name == "maekawa" {
        for kind in ["INQUIRE", "FAILED", "YIELD"] {
            assert!(worlds.iter().any(|honest| honest.kinds.contains(&kind)), "no {kind} in any world");
        }
    }
}

/// Each world of a correct algorithm is explored so far.
const HONEST_STATES: u64 = 200_000;

#[test]
fn every_correct_mutex_passes_where_its_mutants_fail() {
    mutex::CARDS.iter().filter(|card| card.name != "maekawa").for_each(walk);
}

#[test]
fn maekawa_passes_where_its_mutants_fail() {
    mutex::CARDS.iter().filter(|card| card.name == "maekawa").for_each(walk);
}

#[test]
fn every_correct_election_and_snapshot_passes_where_its_mutants_fail() {
    election::CARDS.iter().chain(snapshot::CARDS).for_each(walk);
}
