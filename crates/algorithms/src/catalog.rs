//! The cards of all algorithms, grouped by problem.

use conclave_kernel::Card;

use crate::{deadlock, detector, election, mutex, snapshot, timesync};

/// Returns the cards of all algorithms, grouped by problem.
pub fn cards() -> impl Iterator<Item = &'static Card> + Clone {
    let problems = [
        mutex::CARDS,
        mutex::LAYERED,
        election::CARDS,
        detector::CARDS,
        snapshot::CARDS,
        deadlock::CARDS,
        timesync::CARDS,
    ];
    problems.into_iter().flatten()
}

/// Returns the names of the problems that have algorithms, each once.
pub fn problems() -> impl Iterator<Item = &'static str> {
    let mut last = None;
    cards().filter_map(move |card| (last.replace(card.problem) != Some(card.problem)).then_some(card.problem))
}
