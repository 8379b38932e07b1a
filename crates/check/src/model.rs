//! The parts that a problem gives to the checker: the sites, the work and the judge.

use std::fmt::Debug;
use std::hash::Hash;

use conclave_kernel::{NodeId, Property, Protocol};

/// A closed system to be checked: its sites, its work and its properties.
pub trait Model: Sync + 'static {
    /// The algorithm.
    type Protocol: Protocol;
    /// The monitor, which offers the work and judges the steps.
    type Monitor: Monitor<Self::Protocol>;

    /// `problem/name` of the algorithm, for the header of traces.
    fn name(&self) -> String;

    /// The other data that is needed to explore the model again, for the header of traces.
    fn scenario(&self) -> String {
        String::new()
    }

    /// The number of sites; at most [`MOST_NODES`].
    fn nodes(&self) -> u32;

    /// Creates a site in its state before the start.
    fn site(&self, me: NodeId) -> Self::Protocol;

    /// The monitor in its state before the start.
    fn monitor(&self) -> Self::Monitor;

    /// The property that an endless wait violates. Reports of stuck states and of starvation name it.
    fn liveness(&self) -> Property;

    /// The property that is violated if an obligation is met and opens again for ever. `None`: obligations may
    /// open again and again, like those of sites that request again and again.
    fn stability(&self) -> Option<Property> {
        None
    }

    /// The kind of a message in the spelling of the paper.
    fn kind(&self, message: &<Self::Protocol as Protocol>::Message) -> &'static str;

    /// The names of the observations that an exploration should make; without them it has tested too little.
    /// At most 64.
    fn sometimes(&self) -> &'static [&'static str] {
        &[]
    }

    /// The observations of [`sometimes`](Self::sometimes) in a site's state, one bit each.
    fn shows(&self, site: &Self::Protocol) -> u64 {
        let _ = site;
        0
    }

    /// Judges a state without possible steps.
    fn at_rest(&self, sites: &[Self::Protocol], monitor: &Self::Monitor, findings: &mut Findings) {
        let _ = (sites, monitor, findings);
    }

    /// The renamings of the sites that leave the system unchanged; each maps site `i` to `[i]`. With
    /// [`Options::symmetry`](crate::Options::symmetry), states that differ by such a renaming count as one.
    ///
    /// They are sound only if no site compares ids: a tie-break by id makes every renaming wrong. The
    /// renamings must form a group without its identity, and [`rename`](Self::rename) must be implemented.
    fn symmetries(&self) -> Vec<Vec<NodeId>> {
        Vec::new()
    }

    /// Renames the sites inside a part of the state.
    fn rename(&self, thing: Renamed<'_, Self>, to: &[NodeId])
    where
        Self: Sized,
    {
        let _ = (thing, to);
    }
}

/// The part of a state in which [`Model::rename`] changes every site id in place.
pub enum Renamed<'a, M: Model> {
    /// The state of a site. The checker itself moves it to its new place.
    Site(&'a mut M::Protocol),
    /// A message. The checker itself renames its sender and its receiver.
    Message(&'a mut <M::Protocol as Protocol>::Message),
    /// The monitor.
    Monitor(&'a mut M::Monitor),
    /// The note of a message.
    Note(&'a mut <M::Monitor as Monitor<M::Protocol>>::Note),
}

/// The largest group that can be checked. Obligations have one bit per site.
pub const MOST_NODES: u32 = u64::BITS;

/// The layer above the algorithm: it offers commands, sees commands and events, and judges them. Its state is
/// part of the checked state, so it should hold no more than it needs.
pub trait Monitor<P: Protocol>: Clone + Debug + Eq + Hash + Send + 'static {
    /// The data that every message carries for the judge; only if [`has_notes`](Self::has_notes) says so.
    type Note: Clone + Debug + Default + Eq + Hash + Send + 'static;

    /// Whether messages carry notes; the same in all states. Notes increase the number of states, so a
    /// model that does not judge by them should not use them.
    fn has_notes(&self) -> bool {
        false
    }

    /// The commands that are possible now.
    fn offers(&self, offer: &mut dyn FnMut(Offer<P::Command>));

    /// The open obligations, one bit each: the sites that have requested and are not granted. An obligation
    /// that stays open for ever is a violation of [`Model::liveness`].
    fn pending(&self) -> u64;

    /// The observations of [`Model::sometimes`] in this state, one bit each.
    fn shows(&self) -> u64 {
        0
    }

    /// Handles a command.
    fn on_command(&mut self, node: NodeId, command: &P::Command, findings: &mut Findings) {
        let _ = (node, command, findings);
    }

    /// Handles an event of a site.
    fn on_event(&mut self, node: NodeId, event: &P::Event, findings: &mut Findings) {
        let _ = (node, event, findings);
    }

    /// Handles a message that is sent, and returns its note.
    fn on_send(&mut self, from: NodeId, to: NodeId, message: &P::Message) -> Self::Note {
        let _ = (from, to, message);
        Self::Note::default()
    }

    /// Handles a message that arrives, with its note.
    fn on_deliver(&mut self, from: NodeId, to: NodeId, note: &Self::Note) {
        let _ = (from, to, note);
    }

    /// Handles the crash of a site.
    fn on_crash(&mut self, node: NodeId, findings: &mut Findings) {
        let _ = (node, findings);
    }

    /// Handles the recovery of a site.
    fn on_recover(&mut self, node: NodeId, findings: &mut Findings) {
        let _ = (node, findings);
    }
}

/// A command that is possible now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer<C> {
    /// The site that receives the command.
    pub node: NodeId,
    /// The command.
    pub command: C,
    /// Whether the command must be given in the end if it stays possible. A holder must release; a site need
    /// not request.
    pub required: bool,
}

/// The findings of a judge about one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    breach: Option<Breach>,
}

/// A violation of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The property.
    pub property: &'static str,
    /// The violation in one sentence with the names of the sites.
    pub why: String,
}

impl Findings {
    /// Reports that this step violates a property. Of several violations, the first counts.
    pub fn breach(&mut self, property: &Property, why: impl Into<String>) {
        self.breach.get_or_insert_with(|| Breach { property: property.name, why: why.into() });
    }

    /// Returns the violation.
    pub fn into_breach(self) -> Option<Breach> {
        self.breach
    }
}
