//! The detector problem in the checker: every execution in which some crash.

use std::marker::PhantomData;

use conclave_algorithms::detector::spec::{ACCURACY, COMPLETENESS};
use conclave_algorithms::detector::{Detector, Event, Group};
use conclave_check::{Findings, Model, Monitor, Offer};
use conclave_kernel::{Never, NodeId, Property};

use crate::case::bit;

/// A group that watches itself. Obligations are a bit a pair: at most 8 sites.
pub struct Watching<P> {
    group: Group,
    algorithm: PhantomData<fn() -> P>,
}

/// The largest group whose pairs fit into the checker's obligations.
pub const MOST_NODES: u32 = 8;

impl<P: Detector> Watching<P> {
    /// The group as it is; an error if it is too large.
    pub fn new(group: Group) -> Result<Self, String> {
        match group.nodes {
            1..=MOST_NODES => Ok(Self { group, algorithm: PhantomData }),
            nodes => Err(format!("{nodes} nodes cannot be checked: there must be 1 to {MOST_NODES}")),
        }
    }
}

impl<P: Detector> Model for Watching<P> {
    type Protocol = P;
    type Monitor = Watch;

    fn name(&self) -> String {
        P::CARD.path().to_string()
    }

    fn nodes(&self) -> u32 {
        self.group.nodes
    }

    fn site(&self, me: NodeId) -> P {
        P::new(me, &self.group)
    }

    fn monitor(&self) -> Watch {
        Watch { nodes: self.group.nodes, down: 0, was_down: 0, suspected: 0 }
    }

    fn liveness(&self) -> Property {
        COMPLETENESS
    }

    fn kind(&self, message: &P::Message) -> &'static str {
        P::kind(message)
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &["a site is suspected"]
    }
}

/// Who is down, and who suspects whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    nodes: u32,
    /// A bit a site.
    down: u64,
    /// The same, of those that have ever been: about them there are no mistakes.
    was_down: u64,
    /// A bit a pair.
    suspected: u64,
}

impl Watch {
    fn pair(&self, watcher: NodeId, about: NodeId) -> u64 {
        1 << (watcher.0 * self.nodes + about.0)
    }

    fn sites(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes).map(NodeId)
    }

    fn is_down(&self, site: NodeId) -> bool {
        self.down & bit(site) != 0
    }
}

impl<P: Detector> Monitor<P> for Watch {
    type Note = ();

    fn offers(&self, _offer: &mut dyn FnMut(Offer<Never>)) {}

    fn pending(&self) -> u64 {
        let mut open = 0;
        for watcher in self.sites().filter(|site| !self.is_down(*site)) {
            for about in self.sites().filter(|site| *site != watcher && self.is_down(*site)) {
                open |= self.pair(watcher, about) & !self.suspected;
            }
        }
        open
    }

    fn shows(&self) -> u64 {
        u64::from(self.suspected != 0)
    }

    fn on_event(&mut self, node: NodeId, event: &Event, findings: &mut Findings) {
        match *event {
            Event::Suspected(about) => {
                self.suspected |= self.pair(node, about);
                if self.was_down & bit(about) == 0 {
                    findings.breach(&ACCURACY, format!("{node} suspected {about}, who is up"));
                }
            }
            Event::Trusted(about) => self.suspected &= !self.pair(node, about),
        }
    }

    fn on_crash(&mut self, node: NodeId, _findings: &mut Findings) {
        self.down |= bit(node);
        self.was_down |= bit(node);
        for about in self.sites() {
            self.suspected &= !self.pair(node, about);
        }
    }

    fn on_recover(&mut self, node: NodeId, _findings: &mut Findings) {
        self.down &= !bit(node);
    }
}
