//! The state that both algorithms share: recordings under way, parts received, and finished snapshots.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{Cx, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::hosted::Hosted;
use super::{
    Channel, Event, MOST_OPEN, MOST_RECORDED, MOST_REMEMBERED, Part, Picture, Refusal, Reminder, SnapshotId,
};

/// The snapshots of one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Album<A: Protocol> {
    open: BTreeMap<SnapshotId, Shot<A>>,
    /// The finished snapshots in ascending order; at most [`MOST_REMEMBERED`].
    over: Vec<SnapshotId>,
}

/// A snapshot under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
struct Shot<A: Protocol> {
    /// Whether a command at this site started it.
    started_here: bool,
    /// This site's own part, until all its channels are closed.
    recording: Option<Recording<A>>,
    /// The finished parts.
    parts: BTreeMap<NodeId, Part<A>>,
}

/// The part of this site while it is being recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Recording<A: Protocol> {
    pub(crate) state: A,
    reminders: Vec<Reminder<A>>,
    /// The incoming channels on which messages of the snapshot may still arrive.
    open: NodeSet,
    /// The recorded messages, by sender.
    channels: Vec<Vec<A::Message>>,
    messages: usize,
}

impl<A: Protocol> Album<A> {
    pub(crate) fn new() -> Self {
        Self { open: BTreeMap::new(), over: Vec::new() }
    }

    /// Returns whether this site has recorded its state for the snapshot, or the snapshot is over.
    pub(crate) fn has_recorded(&self, id: SnapshotId) -> bool {
        self.open.get(&id).is_some_and(|shot| shot.recording.is_some() || !shot.parts.is_empty())
            || self.is_over(id)
    }

    /// Returns whether a command may start the snapshot.
    pub(crate) fn may_start(&self, id: SnapshotId) -> Result<(), Refusal> {
        if self.is_over(id) {
            return Err(Refusal::Over);
        }
        let own = self.open.values().filter(|shot| shot.started_here).count();
        if own < MOST_OPEN || self.open.contains_key(&id) { Ok(()) } else { Err(Refusal::TooMany) }
    }

    /// Returns the snapshots for which this site has recorded its state and which are not complete.
    pub(crate) fn recorded(&self) -> impl Iterator<Item = SnapshotId> + '_ {
        self.open.keys().copied()
    }

    /// Returns the snapshots that still record the channel from this site.
    pub(crate) fn listening(&self, from: NodeId) -> impl Iterator<Item = SnapshotId> + '_ {
        let listens = move |shot: &Shot<A>| {
            shot.recording.as_ref().is_some_and(|recording| recording.open.contains(from))
        };
        self.open.iter().filter(move |(_, shot)| listens(shot)).map(|(id, _)| *id)
    }

    /// Records the site's state. Messages of the snapshot may still arrive on the channels in `open`.
    pub(crate) fn record<P: Protocol<Event = Event<A>>>(
        &mut self,
        id: SnapshotId,
        site: &Hosted<A>,
        open: NodeSet,
        started_here: bool,
        cx: &mut Cx<'_, P>,
    ) {
        debug_assert!(!self.has_recorded(id), "each site records once");
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

    /// Records a message that was in transit. If there are too many, the site gives the snapshot up.
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

    /// Closes a channel: no message of the snapshot can arrive on it any more. After the last channel, the
    /// part is finished and goes to all sites.
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

    /// Adds a part of a site. The last part completes the picture.
    pub(crate) fn add<P: Protocol<Event = Event<A>>>(&mut self, part: Part<A>, cx: &mut Cx<'_, P>) {
        let id = part.id;
        // No site can finish its part before this site has recorded. A part of an unknown snapshot is
        // therefore a late copy.
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
