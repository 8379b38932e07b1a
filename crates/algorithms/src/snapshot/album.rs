//! What both algorithms keep: the recordings under way, the parts that came in, and what is over.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{Cx, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::hosted::Hosted;
use super::{
    Channel, Event, MOST_OPEN, MOST_RECORDED, MOST_REMEMBERED, Part, Picture, Refusal, Reminder, SnapshotId,
};

/// A site's snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Album<A: Protocol> {
    open: BTreeMap<SnapshotId, Shot<A>>,
    /// In order.
    over: Vec<SnapshotId>,
}

/// One snapshot under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
struct Shot<A: Protocol> {
    /// Whether it was started here, by a command.
    started_here: bool,
    /// This site's own part, until all its channels are closed.
    recording: Option<Recording<A>>,
    /// The parts that are finished.
    parts: BTreeMap<NodeId, Part<A>>,
}

/// A part in the making.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Recording<A: Protocol> {
    pub(crate) state: A,
    reminders: Vec<Reminder<A>>,
    /// The incoming channels on which something recorded may still arrive.
    open: NodeSet,
    /// By sender.
    channels: Vec<Vec<A::Message>>,
    messages: usize,
}

impl<A: Protocol> Album<A> {
    pub(crate) fn new() -> Self {
        Self { open: BTreeMap::new(), over: Vec::new() }
    }

    /// Whether this site's state is recorded for that snapshot already, or the snapshot is over.
    pub(crate) fn has_recorded(&self, id: SnapshotId) -> bool {
        self.open.get(&id).is_some_and(|shot| shot.recording.is_some() || !shot.parts.is_empty())
            || self.is_over(id)
    }

    /// Whether a command may start it.
    pub(crate) fn may_start(&self, id: SnapshotId) -> Result<(), Refusal> {
        if self.is_over(id) {
            return Err(Refusal::Over);
        }
        let own = self.open.values().filter(|shot| shot.started_here).count();
        if own < MOST_OPEN || self.open.contains_key(&id) { Ok(()) } else { Err(Refusal::TooMany) }
    }

    /// The snapshots that are recorded here and not yet complete.
    pub(crate) fn recorded(&self) -> impl Iterator<Item = SnapshotId> + '_ {
        self.open.keys().copied()
    }

    /// The snapshots whose channel from that site is still recorded.
    pub(crate) fn listening(&self, from: NodeId) -> impl Iterator<Item = SnapshotId> + '_ {
        let listens = move |shot: &Shot<A>| {
            shot.recording.as_ref().is_some_and(|recording| recording.open.contains(from))
        };
        self.open.iter().filter(move |(_, shot)| listens(shot)).map(|(id, _)| *id)
    }

    /// Records the site's state, with the channels on which something may still come.
    pub(crate) fn record<P: Protocol<Event = Event<A>>>(
        &mut self,
        id: SnapshotId,
        site: &Hosted<A>,
        open: NodeSet,
        started_here: bool,
        cx: &mut Cx<'_, P>,
    ) {
        debug_assert!(!self.has_recorded(id), "a site records once");
        let channels = vec![Vec::new(); cx.members().len()];
        let recording = Some(Recording {
            state: site.app.clone(),
            reminders: site.reminders(),
            open,
            channels,
            messages: 0,
        });
        self.open.insert(id, Shot { started_here, recording, parts: BTreeMap::new() });
        cx.emit(Event::Recorded(id));
    }

    /// A message was on its way when the picture was taken. If there are too many, the picture is given up.
    pub(crate) fn keep<P: Protocol<Event = Event<A>>>(
        &mut self,
        id: SnapshotId,
        from: NodeId,
        message: &A::Message,
        cx: &mut Cx<'_, P>,
    ) {
        let Some(recording) = self.recording(id) else { return };
        if recording.messages < MOST_RECORDED {
            recording.messages += 1;
            recording.channels[from.index()].push(message.clone());
        } else {
            self.forget(id);
            cx.emit(Event::Refused { id, why: Refusal::TooLarge });
        }
    }

    /// Nothing recorded comes on that channel any more. If it was the last, the part is finished, and
    /// everybody gets it.
    pub(crate) fn close<P: Protocol<Event = Event<A>>>(
        &mut self,
        id: SnapshotId,
        from: NodeId,
        cx: &mut Cx<'_, P>,
        wrap: fn(Part<A>) -> P::Message,
    ) {
        if let Some(recording) = self.recording(id) {
            recording.open.remove(from);
            self.finish_part(id, cx, wrap);
        }
    }

    /// Finishes this site's part if all its channels are closed.
    pub(crate) fn finish_part<P: Protocol<Event = Event<A>>>(
        &mut self,
        id: SnapshotId,
        cx: &mut Cx<'_, P>,
        wrap: fn(Part<A>) -> P::Message,
    ) {
        let Some(shot) = self.open.get_mut(&id) else { return };
        let Some(recording) = shot.recording.take_if(|recording| recording.open.is_empty()) else { return };
        let channels = recording.channels.into_iter().enumerate();
        let channels = channels.filter(|(_, messages)| !messages.is_empty());
        let channels =
            channels.map(|(from, messages)| Channel { from: NodeId(from as u32), messages }).collect();
        let part =
            Part { id, site: cx.me(), state: recording.state, reminders: recording.reminders, channels };
        if !cx.peers().is_empty() {
            cx.broadcast(wrap(part.clone()));
        }
        self.add(part, cx);
    }

    /// A part came in; if it is the last one, the picture is complete.
    pub(crate) fn add<P: Protocol<Event = Event<A>>>(&mut self, part: Part<A>, cx: &mut Cx<'_, P>) {
        let id = part.id;
        // Everybody's part needs this site's marker first, so that a part of an unknown snapshot is a late
        // copy.
        let Some(shot) = self.open.get_mut(&id) else { return };
        shot.parts.insert(part.site, part);
        if shot.parts.len() == cx.members().len() {
            let parts = core::mem::take(&mut shot.parts).into_values().collect();
            self.forget(id);
            cx.emit(Event::Complete(Picture { id, parts }));
        }
    }

    pub(crate) fn recording(&mut self, id: SnapshotId) -> Option<&mut Recording<A>> {
        self.open.get_mut(&id)?.recording.as_mut()
    }

    fn forget(&mut self, id: SnapshotId) {
        self.open.remove(&id);
        if let Err(place) = self.over.binary_search(&id) {
            self.over.insert(place, id);
        }
        if self.over.len() > MOST_REMEMBERED {
            self.over.remove(0);
        }
    }

    fn is_over(&self, id: SnapshotId) -> bool {
        let forgotten = self.over.len() == MOST_REMEMBERED && id < self.over[0];
        forgotten || self.over.binary_search(&id).is_ok()
    }
}
