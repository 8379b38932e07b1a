//! Symmetric states, which differ only by the names of the sites and count as one.
//!
//! The fingerprint of a state is then the smallest fingerprint of its images. The images of local states,
//! inboxes and monitors are remembered, like steps.

use super::{Stepper, contribution, nonzero, plain_fingerprint};
use crate::inbox::Slot;
use crate::memo::Memo;

/// The images under each renaming.
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

impl Stepper<'_> {
    /// Returns the smallest fingerprint of all images of a state.
    pub(super) fn canonical_fingerprint(&mut self, words: &[u32]) -> u64 {
        let images = (0..self.ground.symmetries.len()).map(|which| self.image_fingerprint(words, which));
        nonzero(images.fold(plain_fingerprint(words), u64::min))
    }

    fn image_fingerprint(&mut self, words: &[u32], which: usize) -> u64 {
        let nodes = self.ground.nodes as usize;
        let (monitor, budget) = (self.monitor_slot(), self.budget_slot());
        let mut sum = contribution(budget, words[budget]);
        for node in 0..nodes {
            let to = self.ground.symmetries[which][node].index();
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
        let image = self.system.renamed_local(number, which);
        self.renamed.each[which].locals.insert(number, 0, image);
        image
    }

    fn renamed_inbox(&mut self, number: u32, which: usize) -> u32 {
        if let Some(image) = self.renamed.each[which].inboxes.get(number, 0) {
            return image;
        }
        let inbox = self.ground.inboxes.get(number);
        let image = inbox.renamed(self.ground.order, |slot| self.renamed_slot(slot, which));
        let image = self.ground.inboxes.intern(image);
        self.renamed.each[which].inboxes.insert(number, 0, image);
        image
    }

    fn renamed_slot(&self, slot: Slot, which: usize) -> Slot {
        let packet = self.system.renamed_packet(self.ground.packets.get(slot.packet), which);
        Slot { from: packet.from, packet: self.ground.packets.intern(packet), ..slot }
    }

    fn renamed_monitor(&mut self, number: u32, which: usize) -> u32 {
        if let Some(image) = self.renamed.each[which].monitors.get(number, 0) {
            return image;
        }
        let image = self.system.renamed_monitor(number, which);
        self.renamed.each[which].monitors.insert(number, 0, image);
        image
    }
}
