//! Mutants of Lai-Yang.

use conclave_kernel::{Cx, Effect, Input, Protocol};

use crate::mutants::flawed::{Fallible, Memory, Step, tampered};
use crate::snapshot::bank::Bank;
use crate::snapshot::lai_yang::{Colour, LaiYang, Message};

type Ly = LaiYang<Bank>;

impl Fallible for LaiYang<Bank> {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("ly-delivers-first", delivers_first),
        ("ly-no-colour", no_colour),
        ("ly-red-is-white", red_is_white),
        ("ly-ends-at-the-count", ends_at_the_count),
        ("ly-no-counts", no_counts),
        ("ly-no-wave", no_wave),
        ("ly-counts-twice", counts_twice),
    ];
}

/// Lai-Yang that delivers the first red message before it records.
fn delivers_first(site: &mut Ly, _: &mut Memory, input: Input<Ly>, cx: &mut Cx<'_, Ly>) {
    match input {
        Input::Message { from, message: Message::App { red, message } } => {
            site.drive(Input::Message { from, message }, cx);
            red.iter().for_each(|id| site.turn_red(*id, cx));
            site.receive(from, &red, &message, cx);
        }
        input => site.step(input, cx),
    }
}

/// Lai-Yang whose messages have no colour. Only the counts make a site record.
fn no_colour(site: &mut Ly, _: &mut Memory, mut input: Input<Ly>, cx: &mut Cx<'_, Ly>) {
    if let Input::Message { message: Message::App { red, .. }, .. } = &mut input {
        *red = Colour::new();
    }
    site.step(input, cx);
}

/// Lai-Yang that records at the first red message, but then treats it as a white one.
fn red_is_white(site: &mut Ly, _: &mut Memory, mut input: Input<Ly>, cx: &mut Cx<'_, Ly>) {
    if let Input::Message { message: Message::App { red, .. }, .. } = &mut input {
        core::mem::take(red).iter().for_each(|id| site.turn_red(*id, cx));
    }
    site.step(input, cx);
}

/// Lai-Yang that ends a channel when the count arrives, although white messages are still in transit.
fn ends_at_the_count(site: &mut Ly, _: &mut Memory, mut input: Input<Ly>, cx: &mut Cx<'_, Ly>) {
    if let Input::Message { from, message: Message::Count { id, sent } } = &mut input {
        site.turn_red(*id, cx);
        if let Some(tallies) = site.tallies.get(id) {
            *sent = tallies[from.index()].received;
        }
    }
    site.step(input, cx);
}

/// Lai-Yang with colours but without counts. A site cannot detect that the last white message has arrived.
fn no_counts(site: &mut Ly, _: &mut Memory, input: Input<Ly>, cx: &mut Cx<'_, Ly>) {
    tampered(site, input, cx, |effect| match effect {
        Effect::Send { message: Message::Count { .. }, .. } => None,
        effect => Some(effect),
    });
}

/// Lai-Yang that sends its count only to the sites to which it has sent messages. The others never receive
/// one.
fn no_wave(site: &mut Ly, _: &mut Memory, input: Input<Ly>, cx: &mut Cx<'_, Ly>) {
    tampered(site, input, cx, |effect| match effect {
        Effect::Send { message: Message::Count { sent: 0, .. }, .. } => None,
        effect => Some(effect),
    });
}

/// Lai-Yang that sends every count twice.
fn counts_twice(site: &mut Ly, _: &mut Memory, input: Input<Ly>, cx: &mut Cx<'_, Ly>) {
    let mut again = alloc::vec::Vec::new();
    tampered(site, input, cx, |effect| {
        if let Effect::Send { to, message: message @ Message::Count { .. } } = &effect {
            again.push((*to, message.clone()));
        }
        Some(effect)
    });
    again.into_iter().for_each(|(to, count)| cx.send(to, count));
}
