//! The oracle: every detector of a class at once, for the checker.
//!
//! To check a mutex over *one* detector says little about the next. So the layer above is checked over an
//! oracle, which knows who has crashed and offers, at every moment, every verdict that some detector of the
//! class could give then. What holds over the oracle holds over every detector of its class.
//!
//! | class | who may be suspected wrongly | what must be put right |
//! |---|---|---|
//! | [`Class::Perfect`] | nobody | |
//! | [`Class::Strong`] | everybody but one, for good | |
//! | [`Class::EventuallyPerfect`] | everybody, a number of times | every mistake |
//! | [`Class::EventuallyStrong`] | everybody, a number of times | mistakes about one site |
//!
//! All are complete: who crashed is suspected in the end by all who are up \[CT96 §2.4\].
//!
//! **Trap**: "eventually" has no bound, a state space needs one. Mistakes are therefore counted, over the
//! whole group; a violation found with k is a violation, a proof with k is a proof for at most k mistakes.

use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{Card, Cx, Needs, Never, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::{Detector, Event, Group};

/// Which detectors the oracle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// P: whoever is suspected has crashed.
    Perfect,
    /// S: one site that does not crash is never suspected; wrong suspicions of others may stand for ever.
    Strong {
        /// Who is never suspected.
        spared: NodeId,
        /// How many wrong suspicions there may be.
        mistakes: u8,
    },
    /// Diamond P: there may be wrong suspicions, all of which are taken back.
    EventuallyPerfect {
        /// How many.
        mistakes: u8,
    },
    /// Diamond S: there may be wrong suspicions; those of one site are taken back.
    EventuallyStrong {
        /// About whom mistakes do not last.
        spared: NodeId,
        /// How many wrong suspicions there may be.
        mistakes: u8,
    },
}

/// What all detectors of a class could say next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Oracle {
    class: Class,
    mistakes_left: u8,
    /// A bit a site.
    crashed: u64,
    /// Whom each site suspects, a bit a site.
    suspects: Vec<u64>,
}

/// Something that a detector could say now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saying {
    /// To whom.
    pub site: NodeId,
    /// What.
    pub event: Event,
    /// Whether it must be said in the end if it stays true.
    pub required: bool,
}

impl Oracle {
    /// An oracle for a group of at most 64 in which nobody has crashed.
    pub fn new(nodes: u32, class: Class) -> Self {
        debug_assert!(nodes <= u64::BITS, "a bit a site");
        let mistakes_left = match class {
            Class::Perfect => 0,
            Class::Strong { mistakes, .. }
            | Class::EventuallyPerfect { mistakes }
            | Class::EventuallyStrong { mistakes, .. } => mistakes,
        };
        Self { class, mistakes_left, crashed: 0, suspects: vec![0; nodes as usize] }
    }

    /// Everything that could be said now.
    pub fn sayings(&self) -> impl Iterator<Item = Saying> + '_ {
        let sites = 0..self.suspects.len() as u32;
        let pairs = sites.clone().flat_map(move |site| sites.clone().map(move |about| (site, about)));
        pairs
            .filter(|(site, about)| site != about && !self.has_crashed(NodeId(*site)))
            .filter_map(|(site, about)| self.saying(NodeId(site), NodeId(about)))
    }

    /// A site was told.
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

    /// A site dies.
    pub fn crashes(&mut self, site: NodeId) {
        self.crashed |= bit(site);
        self.suspects[site.index()] = 0;
    }

    /// A site is back, and trusts everybody.
    pub fn recovers(&mut self, site: NodeId) {
        self.crashed &= !bit(site);
        self.suspects[site.index()] = 0;
    }

    /// Whether the site is down.
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

/// A detector that says nothing of its own: where it stands, verdicts come from outside, from an [`Oracle`].
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
        summary: "every verdict that a detector of its class could give, for the checker",
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
