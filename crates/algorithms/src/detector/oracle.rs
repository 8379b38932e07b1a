//! The oracle: all detectors of a class at once, for the checker.
//!
//! A check of a mutex over *one* detector proves little about the next detector. The checker therefore runs
//! the layer above over an oracle. The oracle knows which sites have crashed. At every moment it offers each
//! report that some detector of the class could make. A property that holds over the oracle holds over every
//! detector of its class.
//!
//! | class | sites that may be suspected wrongly | mistakes that must be taken back |
//! |---|---|---|
//! | [`Class::Perfect`] | none | |
//! | [`Class::Strong`] | all but one, a limited number of times | none |
//! | [`Class::EventuallyPerfect`] | all, a limited number of times | all |
//! | [`Class::EventuallyStrong`] | all, a limited number of times | those about one site |
//!
//! All classes are complete: every site that is up suspects every crashed site in the end \[CT96 §2.4\].
//!
//! **Trap**: "eventually" has no bound, but a finite state space needs one. The oracle therefore allows at
//! most k mistakes in the whole group. A violation found with k mistakes is a real violation. A proof with k
//! covers only runs with at most k mistakes.

use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{Card, Cx, Needs, Never, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::{Detector, Event, Group};

/// The class of detectors that an oracle represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// P: a site is suspected only after it has crashed.
    Perfect,
    /// S: one site that does not crash is never suspected. Wrong suspicions of other sites may last for ever.
    Strong {
        /// The site that is never suspected while it is up.
        spared: NodeId,
        /// The largest number of wrong suspicions in the whole group.
        mistakes: u8,
    },
    /// Diamond P: wrong suspicions are possible, and all of them are taken back.
    EventuallyPerfect {
        /// The largest number of wrong suspicions in the whole group.
        mistakes: u8,
    },
    /// Diamond S: wrong suspicions are possible, and those about one site are taken back.
    EventuallyStrong {
        /// The site about which wrong suspicions are taken back.
        spared: NodeId,
        /// The largest number of wrong suspicions in the whole group.
        mistakes: u8,
    },
}

/// A model of all detectors of a class: what they have reported, and what they could report next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Oracle {
    class: Class,
    mistakes_left: u8,
    /// The crashed sites, one bit per site.
    crashed: u64,
    /// The sites that each site suspects, one bit per site.
    suspects: Vec<u64>,
}

/// A report that a detector could make now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saying {
    /// The site that receives the report.
    pub site: NodeId,
    /// The report.
    pub event: Event,
    /// Whether the detector must make this report in the end, unless the situation changes first.
    pub required: bool,
}

impl Oracle {
    /// Creates an oracle for a group of at most 64 sites, of which none has crashed.
    pub fn new(nodes: u32, class: Class) -> Self {
        debug_assert!(nodes <= u64::BITS, "one bit per site");
        let mistakes_left = match class {
            Class::Perfect => 0,
            Class::Strong { mistakes, .. }
            | Class::EventuallyPerfect { mistakes }
            | Class::EventuallyStrong { mistakes, .. } => mistakes,
        };
        Self { class, mistakes_left, crashed: 0, suspects: vec![0; nodes as usize] }
    }

    /// Returns every report that a detector of the class could make now.
    pub fn sayings(&self) -> impl Iterator<Item = Saying> + '_ {
        let sites = 0..self.suspects.len() as u32;
        let pairs = sites.clone().flat_map(move |site| sites.clone().map(move |about| (site, about)));
        pairs
            .filter(|(site, about)| site != about && !self.has_crashed(NodeId(*site)))
            .filter_map(|(site, about)| self.saying(NodeId(site), NodeId(about)))
    }

    /// Records that a site has received a report. A wrong suspicion uses up one mistake.
    pub fn told(&mut self, site: NodeId, event: Event) {
        match event {
            Event::Suspected(about) => {
                self.suspects[site.index()] |= bit(about);
                if !self.has_crashed(about) {
                    self.mistakes_left = self.mistakes_left.saturating_sub(1);
                }
            }
            Event::Trusted(about) => self.suspects[site.index()] &= !bit(about),
        }
    }

    /// Records that a site has crashed.
    pub fn crashes(&mut self, site: NodeId) {
        self.crashed |= bit(site);
        self.suspects[site.index()] = 0;
    }

    /// Records that a site is up again. It trusts all sites.
    pub fn recovers(&mut self, site: NodeId) {
        self.crashed &= !bit(site);
        self.suspects[site.index()] = 0;
    }

    /// Returns whether the site is down.
    pub fn has_crashed(&self, site: NodeId) -> bool {
        self.crashed & bit(site) != 0
    }

    fn saying(&self, site: NodeId, about: NodeId) -> Option<Saying> {
        let suspected = self.suspects[site.index()] & bit(about) != 0;
        let (event, required) = match (suspected, self.has_crashed(about)) {
            (false, true) => (Event::Suspected(about), true),
            (false, false) => (Event::Suspected(about), self.may_err(about).then_some(false)?),
            (true, false) => (Event::Trusted(about), self.must_revise(about)),
            (true, true) => return None,
        };
        Some(Saying { site, event, required })
    }

    fn may_err(&self, about: NodeId) -> bool {
        let spared = matches!(self.class, Class::Strong { spared, .. } if spared == about);
        self.mistakes_left > 0 && !spared
    }

    fn must_revise(&self, about: NodeId) -> bool {
        match self.class {
            Class::Perfect | Class::EventuallyPerfect { .. } => true,
            Class::EventuallyStrong { spared, .. } => spared == about,
            Class::Strong { .. } => false,
        }
    }
}

const fn bit(site: NodeId) -> u64 {
    1 << site.0
}

/// A detector that reports nothing by itself. An [`Oracle`] outside the protocol supplies the reports in its
/// place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mute {
    nobody: NodeSet,
}

impl Protocol for Mute {
    type Message = Never;
    type Timer = Never;
    type Command = Never;
    type Event = Event;

    fn on_message(&mut self, _from: NodeId, message: Never, _cx: &mut Cx<'_, Self>) {
        match message {}
    }
}

impl Detector for Mute {
    const CARD: Card = Card {
        problem: "detector",
        name: "oracle",
        title: "Oracle",
        summary: "gives every output that a detector of its class could give; made for the checker",
        papers: &["CT96"],
        needs: Needs::RELIABLE,
        promises: &[],
        costs: &[],
        survives: "",
        idle_traffic: false,
        reads_clock: false,
    };

    fn new(_me: NodeId, _group: &Group) -> Self {
        Self::default()
    }

    fn kind(message: &Never) -> &'static str {
        match *message {}
    }

    fn suspects(&self) -> &NodeSet {
        &self.nobody
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn sayings(oracle: &Oracle) -> Vec<(u32, Event, bool)> {
        oracle.sayings().map(|saying| (saying.site.0, saying.event, saying.required)).collect()
    }

    #[test]
    fn a_perfect_detector_suspects_only_who_crashed_and_must() {
        let mut oracle = Oracle::new(2, Class::Perfect);
        assert_eq!(sayings(&oracle), []);
        oracle.crashes(B);
        assert_eq!(sayings(&oracle), [(0, Event::Suspected(B), true)]);
        oracle.told(A, Event::Suspected(B));
        assert_eq!(sayings(&oracle), []);
        oracle.recovers(B);
        assert_eq!(sayings(&oracle), [(0, Event::Trusted(B), true)]);
    }

    #[test]
    fn one_that_errs_once_may_suspect_anybody_and_must_take_it_back() {
        let mut oracle = Oracle::new(2, Class::EventuallyPerfect { mistakes: 1 });
        assert_eq!(sayings(&oracle), [(0, Event::Suspected(B), false), (1, Event::Suspected(A), false)]);
        oracle.told(A, Event::Suspected(B));
        assert_eq!(sayings(&oracle), [(0, Event::Trusted(B), true)]);
    }

    #[test]
    fn a_strong_detector_spares_one_and_need_not_revise() {
        let mut oracle = Oracle::new(2, Class::Strong { spared: A, mistakes: 9 });
        assert_eq!(sayings(&oracle), [(0, Event::Suspected(B), false)]);
        oracle.told(A, Event::Suspected(B));
        assert_eq!(sayings(&oracle), [(0, Event::Trusted(B), false)]);
    }
}
