//! States that differ only by the names of the sites, counted as one.
//!
//! The fingerprint of a state is then the smallest among those of its images. Images of local states, inboxes
//! and monitors are remembered like steps are.

use conclave_kernel::{Input, NodeId};

use super::{Stepper, contribution, nonzero, plain_fingerprint};
use crate::inbox::Slot;
use crate::memo::Memo;
use crate::model::{Model, Renamed};
use crate::registry::{Packet, notes};

/// What things are under each renaming.
pub(super) struct Renamings {
    each: Vec<Tables>,
}

struct Tables {
    locals: Memo,
    inboxes: Memo,
    monitors: Memo,
}

impl Renamings {
    pub(super) fn new(many: usize) -> Self {
        let tables = || Tables { locals: Memo::new(), inboxes: Memo::new(), monitors: Memo::new() };
        Self { each: (0..many).map(|_| tables()).collect() }
    }
}

impl<M: Model> Stepper<'_, '_, M> {
    /// The smallest fingerprint among those of all images of a state.
    pub(super) fn canonical_fingerprint(&mut self, words: &[u32]) -> u64 {
        let images = (0..self.registry.symmetries.len()).map(|which| self.image_fingerprint(words, which));
        nonzero(images.fold(plain_fingerprint(words), u64::min))
    }

    fn image_fingerprint(&mut self, words: &[u32], which: usize) -> u64 {
        let nodes = self.registry.nodes as usize;
        let (monitor, budget) = (self.monitor_slot(), self.budget_slot());
        let mut sum = contribution(budget, words[budget]);
        for node in 0..nodes {
            let to = self.registry.symmetries[which][node].index();
            let local = self.renamed_local(words[node], which);
            let inbox = self.renamed_inbox(words[nodes + node], which);
            sum = sum.wrapping_add(contribution(to, local)).wrapping_add(contribution(nodes + to, inbox));
        }
        sum.wrapping_add(contribution(monitor, self.renamed_monitor(words[monitor], which)))
    }

    fn renamed_local(&mut self, number: u32, which: usize) -> u32 {
        if let Some(image) = self.renamed.each[which].locals.get(number, 0) {
            return image;
        }
        let registry = self.registry;
        let to = &registry.symmetries[which];
        let mut local = registry.locals.get(number);
        local.me = to[local.me.index()];
        registry.model.rename(Renamed::Site(&mut local.site), to);
        let image = registry.locals.intern(local);
        self.renamed.each[which].locals.insert(number, 0, image);
        image
    }

    fn renamed_inbox(&mut self, number: u32, which: usize) -> u32 {
        if let Some(image) = self.renamed.each[which].inboxes.get(number, 0) {
            return image;
        }
        let inbox = self.registry.inboxes.get(number);
        let image = inbox.renamed(self.registry.order, |slot| self.renamed_slot(slot, which));
        let image = self.registry.inboxes.intern(image);
        self.renamed.each[which].inboxes.insert(number, 0, image);
        image
    }

    fn renamed_slot(&self, slot: Slot, which: usize) -> Slot {
        let registry = self.registry;
        let to = &registry.symmetries[which];
        let packet = registry.packets.get(slot.packet);
        let rename = |site: u16| to[usize::from(site)];
        let mut input = registry.inputs.get(packet.input);
        if let Input::Message { from, message } = &mut input {
            *from = rename(from.0 as u16);
            registry.model.rename(Renamed::Message(message), to);
        }
        let mut note = packet.note;
        if notes::<M>() {
            let mut renamed = registry.notes.get(note);
            registry.model.rename(Renamed::Note(&mut renamed), to);
            note = registry.notes.intern(renamed);
        }
        let (NodeId(from), NodeId(end)) = (rename(packet.from), rename(packet.to));
        let input = registry.inputs.intern(input);
        let packet = Packet { from: from as u16, to: end as u16, input, note };
        Slot { from: from as u16, packet: registry.packets.intern(packet), ..slot }
    }

    fn renamed_monitor(&mut self, number: u32, which: usize) -> u32 {
        if let Some(image) = self.renamed.each[which].monitors.get(number, 0) {
            return image;
        }
        let mut monitor = self.registry.monitors.get(number);
        self.registry.model.rename(Renamed::Monitor(&mut monitor), &self.registry.symmetries[which]);
        let image = self.registry.monitors.intern(monitor);
        self.renamed.each[which].monitors.insert(number, 0, image);
        image
    }
}
