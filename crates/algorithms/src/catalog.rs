//! Every algorithm's card, by room and name.

use conclave_kernel::Card;

use crate::{deadlock, detector, election, mutex, snapshot, timesync};

/// All cards, room by room.
pub fn cards() -> impl Iterator<Item = &'static Card> + Clone {
    let rooms = [
        mutex::CARDS,
        mutex::LAYERED,
        election::CARDS,
        detector::CARDS,
        snapshot::CARDS,
        deadlock::CARDS,
        timesync::CARDS,
    ];
    rooms.into_iter().flatten()
}

/// The rooms that have tenants.
pub fn rooms() -> impl Iterator<Item = &'static str> {
    let mut last = None;
    cards().filter_map(move |card| (last.replace(card.room) != Some(card.room)).then_some(card.room))
}
