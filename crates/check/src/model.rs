//! What a problem brings to the checker: the sites, the work offered to them, and the judge.

use std::fmt::Debug;
use std::hash::Hash;

use conclave_kernel::{NodeId, Property, Protocol};

/// A closed system to be checked: which sites, which work, which properties.
pub trait Model: Sync {
    /// The algorithm.
    type Protocol: Protocol;
    /// Who offers the work and judges what happens.
    type Monitor: Monitor<Self::Protocol>;

    /// `problem/name` of the algorithm, for the header of traces.
    fn name(&self) -> String;

    /// Everything else that is needed to explore it again, for the header of traces.
    fn scenario(&self) -> String {
        String::new()
    }

    /// How many sites; at most [`MOST_NODES`].
    fn nodes(&self) -> u32;

    /// A site as it is before it starts.
    fn site(&self, me: NodeId) -> Self::Protocol;

    /// The monitor before anything happened.
    fn monitor(&self) -> Self::Monitor;

    /// The property that a request which waits for ever breaks: named when a run is stuck or starves.
    fn liveness(&self) -> Property;

    /// The kind of a message, as the paper spells it, for those who count.
    fn kind(&self, message: &<Self::Protocol as Protocol>::Message) -> &'static str;

    /// The names of what should be seen somewhere in the exploration, or it showed nothing; at most 64.
    fn sometimes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Which of [`sometimes`](Self::sometimes) a site's state shows, a bit each.
    fn shows(&self, site: &Self::Protocol) -> u64 {
        let _ = site;
        0
    }

    /// Judges a state in which nothing more can happen.
    fn at_rest(&self, sites: &[Self::Protocol], monitor: &Self::Monitor, findings: &mut Findings) {
        let _ = (sites, monitor, findings);
    }

    /// Renamings of the sites under which the system looks the same; each maps site `i` to `[i]`. With
    /// [`Options::symmetry`](crate::Options::symmetry), states that differ by such a renaming count as one.
    ///
    /// Sound only if no site compares ids: tie-breaks by id make every renaming wrong. The renamings must
    /// form a group without its identity, and [`rename`](Self::rename) must be given.
    fn symmetries(&self) -> Vec<Vec<NodeId>> {
        Vec::new()
    }

    /// How things look under a renaming of sites.
    fn rename(&self, thing: Renamed<'_, Self>, to: &[NodeId])
    where
        Self: Sized,
    {
        let _ = (thing, to);
    }
}

/// What [`Model::rename`] is to change in place: every site id inside.
pub enum Renamed<'a, M: Model> {
    /// A site's state. The checker itself moves it to its new place.
    Site(&'a mut M::Protocol),
    /// A message. The checker itself renames its sender and its receiver.
    Message(&'a mut <M::Protocol as Protocol>::Message),
    /// The monitor.
    Monitor(&'a mut M::Monitor),
    /// What rides on a message.
    Note(&'a mut <M::Monitor as Monitor<M::Protocol>>::Note),
}

/// The largest group that can be checked: obligations are a bit a site.
pub const MOST_NODES: u32 = u64::BITS;

/// What stands above the algorithm: offers commands, sees commands and events, judges them. Its state is part
/// of the checked state, so it should remember no more than it needs.
pub trait Monitor<P: Protocol>: Clone + Debug + Eq + Hash + Send + 'static {
    /// What rides on every message for the judge's sake. Only if [`NOTES`](Self::NOTES).
    type Note: Clone + Debug + Default + Eq + Hash + Send + 'static;

    /// Whether notes ride on messages. They make more states: leave them out where nothing is judged by them.
    const NOTES: bool = false;

    /// The commands that could be given now.
    fn offers(&self, offer: &mut dyn FnMut(Offer<P::Command>));

    /// Which obligations are open, a bit each: those who ask and have not been granted. An obligation that
    /// stays open for ever is a violation of [`Model::liveness`].
    fn pending(&self) -> u64;

    /// Which of [`Model::sometimes`] this state shows, a bit each.
    fn shows(&self) -> u64 {
        0
    }

    /// A command is given.
    fn on_command(&mut self, node: NodeId, command: &P::Command, findings: &mut Findings) {
        let _ = (node, command, findings);
    }

    /// A site tells the layer above something.
    fn on_event(&mut self, node: NodeId, event: &P::Event, findings: &mut Findings) {
        let _ = (node, event, findings);
    }

    /// A message leaves; the answer rides on it.
    fn on_send(&mut self, from: NodeId, to: NodeId, message: &P::Message) -> Self::Note {
        let _ = (from, to, message);
        Self::Note::default()
    }

    /// A message arrives, with what rode on it.
    fn on_deliver(&mut self, from: NodeId, to: NodeId, note: &Self::Note) {
        let _ = (from, to, note);
    }

    /// A site dies.
    fn on_crash(&mut self, node: NodeId, findings: &mut Findings) {
        let _ = (node, findings);
    }

    /// A site is back.
    fn on_recover(&mut self, node: NodeId, findings: &mut Findings) {
        let _ = (node, findings);
    }
}

/// A command that could be given now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer<C> {
    /// To whom.
    pub node: NodeId,
    /// The command.
    pub command: C,
    /// Whether it must be given in the end if it stays on offer: a holder leaves, but nobody has to ask.
    pub required: bool,
}

/// What a judge has to say about a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    breach: Option<Breach>,
}

/// A property that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Which.
    pub property: &'static str,
    /// What happened, in a sentence with the sites' names.
    pub why: String,
}

impl Findings {
    /// This step broke a property. Of several, the first counts.
    pub fn breach(&mut self, property: &Property, why: impl Into<String>) {
        self.breach.get_or_insert_with(|| Breach { property: property.name, why: why.into() });
    }

    /// What was broken.
    pub fn into_breach(self) -> Option<Breach> {
        self.breach
    }
}
