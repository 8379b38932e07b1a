//! Mutants of Chandy-Lamport.

use conclave_kernel::{Cx, Effect, Input, NodeId, Protocol};

use crate::mutants::flawed::{Fallible, Memory, Step, tampered};
use crate::snapshot::bank::{Bank, Money};
use crate::snapshot::chandy_lamport::{ChandyLamport, Message};
use crate::snapshot::{Command, SnapshotId};

type Cl = ChandyLamport<Bank>;

impl Fallible for ChandyLamport<Bank> {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("cl-records-late", records_late),
        ("cl-records-again", records_again),
        ("cl-first-marker-ends-all", first_marker_ends_all),
        ("cl-past-the-marker", past_the_marker),
        ("cl-from-the-start", from_the_start),
        ("cl-marker-not-passed", marker_not_passed),
        ("cl-no-numbers", no_numbers),
        ("cl-markers-twice", markers_twice),
    ];
}

/// Returns the sender and the snapshot of a marker.
fn marker(input: &Input<Cl>) -> Option<(NodeId, SnapshotId)> {
    match input {
        Input::Message { from, message: Message::Marker(id) } => Some((*from, *id)),
        _ => None,
    }
}

/// Records the state again, and leaves the recorded channels unchanged.
fn record_again(site: &mut Cl, id: SnapshotId) {
    if let Some(recording) = site.album.recording(id) {
        recording.state = site.site.app.clone();
    }
}

/// Chandy-Lamport that sends its markers first, and records its state only after its next action.
fn records_late(site: &mut Cl, memory: &mut Memory, input: Input<Cl>, cx: &mut Cx<'_, Cl>) {
    let acts = matches!(input, Input::Command(Command::App(_)));
    let begun = site.album.recorded().next();
    site.step(input, cx);
    // Do this only once: later actions come after the recording in any case.
    if let Some(id) = begun.filter(|_| acts && memory.count == 0) {
        memory.count = 1;
        record_again(site, id);
    }
}

/// Chandy-Lamport that records its state at every marker, so the last one counts.
fn records_again(site: &mut Cl, _: &mut Memory, input: Input<Cl>, cx: &mut Cx<'_, Cl>) {
    if let Some((_, id)) = marker(&input) {
        record_again(site, id);
    }
    site.step(input, cx);
}

/// Chandy-Lamport whose first marker ends all channels. Messages in transit on the other channels are not
/// recorded.
fn first_marker_ends_all(site: &mut Cl, _: &mut Memory, input: Input<Cl>, cx: &mut Cx<'_, Cl>) {
    let id = marker(&input).map(|(_, id)| id);
    site.step(input, cx);
    if let Some(id) = id {
        cx.members().iter().for_each(|from| site.album.close(id, from, cx, Message::Part));
    }
}

/// Chandy-Lamport that records a channel beyond its marker, until the last marker has arrived.
fn past_the_marker(site: &mut Cl, memory: &mut Memory, input: Input<Cl>, cx: &mut Cx<'_, Cl>) {
    let Some((from, id)) = marker(&input) else { return site.step(input, cx) };
    if !site.album.has_recorded(id) {
        site.record(id, false, cx);
    }
    memory.sites.insert(from);
    if memory.sites.len() == cx.peers().len() {
        cx.members().iter().for_each(|from| site.album.close(id, from, cx, Message::Part));
    }
}

/// Chandy-Lamport that records all messages before a channel's marker, also those before its own recording
/// began.
fn from_the_start(site: &mut Cl, memory: &mut Memory, input: Input<Cl>, cx: &mut Cx<'_, Cl>) {
    let recorded = site.album.recorded().next().is_some();
    let (from, id) = match &input {
        Input::Message { message: Message::App(Money(amount)), .. } if !recorded => {
            memory.count += amount;
            return site.step(input, cx);
        }
        Input::Message { from, message: Message::Marker(id) } => (Some(*from), *id),
        Input::Command(Command::Take(id)) => (None, *id),
        _ => return site.step(input, cx),
    };
    if !site.album.has_recorded(id) && memory.count > 0 {
        // In the model, money comes only from the site before this one.
        let before = NodeId((cx.me().0 + cx.members().len() as u32 - 1) % cx.members().len() as u32);
        site.record(id, from.is_none(), cx);
        site.album.keep(id, before, &Money(memory.count), cx);
    }
    site.step(input, cx);
}

/// Chandy-Lamport in which only the initiator sends markers.
fn marker_not_passed(site: &mut Cl, _: &mut Memory, input: Input<Cl>, cx: &mut Cx<'_, Cl>) {
    let came = marker(&input).is_some();
    tampered(site, input, cx, |effect| match effect {
        Effect::Broadcast { message: Message::Marker(_) } if came => None,
        effect => Some(effect),
    });
}

/// Chandy-Lamport whose markers have no number. Each counts as a marker of the first snapshot in progress.
fn no_numbers(site: &mut Cl, _: &mut Memory, mut input: Input<Cl>, cx: &mut Cx<'_, Cl>) {
    if let Input::Message { message: Message::Marker(id), .. } = &mut input {
        *id = site.album.recorded().next().unwrap_or(*id);
    }
    site.step(input, cx);
}

/// Chandy-Lamport that sends every marker twice.
fn markers_twice(site: &mut Cl, _: &mut Memory, input: Input<Cl>, cx: &mut Cx<'_, Cl>) {
    let mut again = None;
    tampered(site, input, cx, |effect| {
        if let Effect::Broadcast { message: Message::Marker(id) } = &effect {
            again = Some(*id);
        }
        Some(effect)
    });
    if let Some(id) = again {
        cx.broadcast(Message::Marker(id));
    }
}
