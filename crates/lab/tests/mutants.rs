//! The zoo is closed: every harmful mutant is caught, by the property that it breaks and within its budget; every
//! harmless one is not; and every correct algorithm passes where its mutants fail.

use conclave_algorithms::catalog;
use conclave_algorithms::{mutants, mutex};
use conclave_check::CROSSING;
use conclave_lab::rooms::mutex::check::{CONTENTION, DEFERRAL};
use conclave_lab::zoo::{self, Finding, Honest};

/// Half of the zoo each, so that both cores have something to do.
fn look_at(half: usize) -> Vec<Finding> {
    let chosen = mutants::all().enumerate().filter(|(index, _)| index % 2 == half);
    chosen.map(|(_, mutant)| zoo::look(mutant, 1).expect("it can be looked at")).collect()
}

/// What is not as the table says.
fn surprises(findings: &[Finding]) -> Vec<String> {
    let mut surprises = Vec::new();
    for finding in findings {
        let mutant = mutants::all().find(|mutant| mutant.name == finding.name).expect("it has a name");
        let longer = finding.steps.zip(finding.published_steps).is_some_and(|(ours, theirs)| ours > theirs);
        let cheaper = finding.messages.is_some_and(|[honest, flawed]| flawed.max < honest.max);
        let expected = finding.is_expected() && finding.by.as_deref() == mutant.breaks;
        if longer || cheaper || !expected {
            surprises.push(format!("{finding:?}"));
        }
    }
    surprises
}

#[test]
fn every_harmful_mutant_is_caught_and_no_harmless_one() {
    assert_eq!(surprises(&look_at(0)), [""; 0]);
}

#[test]
fn every_other_harmful_mutant_is_caught_and_no_other_harmless_one() {
    assert_eq!(surprises(&look_at(1)), [""; 0]);
}

#[test]
fn names_are_unique_and_every_algorithm_of_the_room_has_mutants() {
    let mut names: Vec<_> = mutants::all().map(|mutant| mutant.name).collect();
    names.sort_unstable();
    assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
    let algorithms = mutex::CARDS.iter().filter(|card| card.name != "lamport-omission");
    for card in algorithms {
        assert!(mutants::all().any(|mutant| mutant.algorithm == card.name), "{} has none", card.name);
    }
    for mutant in mutants::all() {
        let card = catalog::cards().find(|card| card.room == mutant.room && card.name == mutant.algorithm);
        let card = card.unwrap_or_else(|| panic!("{}: no such algorithm", mutant.name));
        assert!(mutant.breaks.is_none_or(|property| card.promises(property)), "{}", mutant.name);
    }
    let harmful = mutants::all().filter(|mutant| !mutant.is_harmless()).count();
    assert!(harmful >= 40, "{harmful}");
}

#[test]
fn every_correct_algorithm_passes_where_its_mutants_fail() {
    for card in catalog::cards() {
        let worlds = zoo::honest(card, 30_000, 1).expect("it can be run");
        for honest in &worlds {
            assert_eq!(honest.broke, None, "{} beside {}", honest.algorithm, honest.beside);
            // Nothing is shown by a world in which nobody ever met anybody.
            for name in [CONTENTION, DEFERRAL] {
                let seen = honest.sometimes.iter().all(|it| it.name != name || it.seen);
                assert!(seen, "{} beside {}: {name}", honest.algorithm, honest.beside);
            }
        }
        // Where everybody may ask everybody at any time, questions pass each other on the way.
        if ["lamport", "ricart-agrawala", "maekawa", "suzuki-kasami"].contains(&card.name) {
            let crossed = |honest: &Honest| honest.sometimes.iter().any(|it| it.name == CROSSING && it.seen);
            assert!(worlds.iter().any(crossed), "{}: no messages ever crossed", card.name);
        }
        if card.name == "maekawa" {
            for kind in ["INQUIRE", "FAILED", "YIELD"] {
                assert!(worlds.iter().any(|honest| honest.kinds.contains(&kind)), "no {kind} in any world");
            }
        }
    }
}
