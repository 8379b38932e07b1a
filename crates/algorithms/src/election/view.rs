//! The sites that are up, as far as one site knows: they form the ring.
//!
//! A ring election assumes that no site crashes while it runs. If one does, a message may be lost, or the
//! message of a crashed maximum may circulate for ever. The papers propose a "list of those concerned" as a
//! remedy. Here the list holds the changes instead: every message carries all changes that its sender knows
//! of. No site forwards a message of an older view. A site that takes part in an election begins again when
//! its view changes. Within one view no site crashes, and the paper's algorithm runs unchanged.
//!
//! **Rules**
//! 1. Each site has a counter, initially 0. An even value means up, an odd value means down. A crash, a
//!    recovery and a resignation increase the counter. The merge of two views takes the larger counters, so
//!    changes spread with the messages of the election.
//! 2. A site that receives a view in which it is down increases its own counter, because it is up.
//!
//! **Trap**: plain sets of suspected sites cannot be merged. Site 1 crashes and recovers. Site 0 has removed
//! it from its set, but the set of site 2 still contains it. No site can find out which of the two sets is
//! newer.

use alloc::vec::Vec;

use conclave_kernel::{Members, NodeId};
use serde::{Deserialize, Serialize};

/// The changes that a site knows of: which sites crashed, recovered or resigned, and how often. A view
/// without changes is empty; a view never has more than one entry per site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct View {
    /// The counters in order of ids; counters of 0 are left out.
    changes: Vec<(NodeId, u32)>,
}

impl View {
    /// Returns whether the site is up.
    pub fn is_up(&self, site: NodeId) -> bool {
        self.counter(site).is_multiple_of(2)
    }

    /// Records a crash that a detector reports. Returns whether it is new to this view.
    pub fn suspect(&mut self, site: NodeId) -> bool {
        let counter = self.counter(site);
        self.raise(site, counter + u32::from(counter.is_multiple_of(2)))
    }

    /// Records a recovery that a detector reports. Returns whether it is new to this view.
    pub fn trust(&mut self, site: NodeId) -> bool {
        let counter = self.counter(site);
        self.raise(site, counter + u32::from(!counter.is_multiple_of(2)))
    }

    /// Records that the site is up in this incarnation. Returns whether it is new to this view.
    pub fn live(&mut self, me: NodeId, incarnation: u32) -> bool {
        self.raise(me, 2 * incarnation)
    }

    /// Records that the site is up but has changed its rank.
    pub fn change(&mut self, me: NodeId) {
        let counter = self.counter(me);
        self.raise(me, counter + 2);
    }

    /// Adds the changes that another site knows of. Returns whether any of them is new to this view.
    pub fn merge(&mut self, other: &Self) -> bool {
        other.changes.iter().fold(false, |news, (site, counter)| self.raise(*site, *counter) | news)
    }

    /// Returns the next site of the ring that is up, or `me` if there is no other.
    pub fn after(&self, members: Members, me: NodeId) -> NodeId {
        let mut next = members.after(me);
        while next != me && !self.is_up(next) {
            next = members.after(next);
        }
        next
    }

    /// Returns the previous site of the ring that is up, or `me` if there is no other.
    pub fn before(&self, members: Members, me: NodeId) -> NodeId {
        let step = |site: NodeId| NodeId(site.0.checked_sub(1).unwrap_or(members.len() as u32 - 1));
        let mut previous = step(me);
        while previous != me && !self.is_up(previous) {
            previous = step(previous);
        }
        previous
    }

    fn counter(&self, site: NodeId) -> u32 {
        self.changes.binary_search_by_key(&site, |change| change.0).map_or(0, |at| self.changes[at].1)
    }

    fn raise(&mut self, site: NodeId, to: u32) -> bool {
        match self.changes.binary_search_by_key(&site, |change| change.0) {
            Ok(at) if self.changes[at].1 < to => self.changes[at].1 = to,
            Err(at) if to > 0 => self.changes.insert(at, (site, to)),
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    #[test]
    fn the_ring_closes_over_those_who_are_down() {
        let mut view = View::default();
        let members = Members::all(4);
        view.suspect(NodeId(1));
        view.suspect(NodeId(3));
        assert_eq!((view.after(members, A), view.before(members, A)), (NodeId(2), NodeId(2)));
        view.suspect(NodeId(2));
        assert_eq!((view.after(members, A), view.before(members, A)), (A, A));
    }

    #[test]
    fn old_news_of_a_death_do_not_undo_a_return() {
        let mut mine = View::default();
        mine.suspect(B);
        let old = mine.clone();
        assert!(mine.trust(B));
        assert!(!mine.merge(&old));
        assert!(mine.is_up(B));
        let mut other = old;
        assert!(other.merge(&mine));
        assert_eq!(other, mine);
    }

    #[test]
    fn what_is_known_already_is_no_news() {
        let mut view = View::default();
        assert!(view.suspect(B) && !view.suspect(B));
        assert!(view.trust(B) && !view.trust(B));
        assert!(!view.trust(A));
        assert!(view.live(B, 5) && !view.live(B, 1));
    }
}
