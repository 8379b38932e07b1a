//! Every algorithm's card, by room and name.

use conclave_kernel::Card;

use crate::{mutex, timesync};

/// All cards, room by room.
pub fn cards() -> impl Iterator<Item = &'static Card> + Clone {
    mutex::CARDS.iter().chain(timesync::CARDS)
}

/// The rooms that have tenants.
pub fn rooms() -> impl Iterator<Item = &'static str> {
    let mut last = None;
    cards().filter_map(move |card| (last.replace(card.room) != Some(card.room)).then_some(card.room))
}
