//! The recorded states of the sites: the state before and after a step, and what the step changed.

use conclave_kernel::NodeId;

use super::{Log, words};

/// A field of a site's state with its value, both as text.
pub type Field = (String, String);

impl Log {
    /// Whether the log contains the state of a site after each of its steps.
    pub fn has_states(&self) -> bool {
        !self.states.is_empty() && self.states.len() == self.events().len()
    }

    /// The state of the site after its step, field by field; empty if states were not recorded.
    pub fn state(&self, event: usize) -> Vec<Field> {
        if !self.has_states() {
            return Vec::new();
        }
        words::state(self.raw(self.states[event]), self.detail())
    }

    /// The fields of the site's state that a step changed, with their new values. The first step of a site
    /// changes all of its fields that have a value other than nothing, no, zeros and an empty list.
    pub fn changes(&self, event: usize) -> Vec<Field> {
        let is_zero = |value: &str| value.chars().all(|c| "[]{}(), 0-".contains(c));
        let is_empty = |(_, value): &Field| value == "no" || is_zero(value);
        let mut after = self.state(event);
        match self.previous(event) {
            Some(previous) => {
                let before = self.state(previous);
                after.retain(|field| !before.contains(field));
            }
            None => after.retain(|field| !is_empty(field)),
        }
        after
    }

    /// The state of every site after a step, in order of sites: the event that led to it, and its fields. A
    /// site that has not started yet has none.
    pub fn states_at(&self, event: usize) -> Vec<Option<(usize, Vec<Field>)>> {
        let last = |site: u32| (0..=event).rev().find(|known| self.events()[*known].site == NodeId(site));
        (0..self.sites()).map(|site| last(site).map(|event| (event, self.state(event)))).collect()
    }

    /// The previous event of the same site.
    fn previous(&self, event: usize) -> Option<usize> {
        let site = self.events()[event].site;
        (0..event).rev().find(|known| self.events()[*known].site == site)
    }
}
