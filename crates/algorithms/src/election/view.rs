//! Who is up, as far as a site has heard: what makes a ring of those who are left.
//!
//! A ring election assumes that nobody dies while it runs. If somebody does, a message is lost, or the
//! message of a dead maximum goes round for ever. The cure here is the papers' "list of those concerned",
//! turned round: every message carries the list of changes that its sender knows of. A message of an older
//! view is not forwarded, and who takes part in an election when the view changes begins again in the new
//! one. Within one view nobody dies, and the paper's algorithm runs as it is written.
//!
//! **Rules**
//! 1. Each site has a counter, 0 at first: even means up, odd means down. A crash, a return and a resignation
//!    count on. Views are merged by the larger counter; so news travel with the election itself.
//! 2. A site that hears of its own death is up nevertheless, and counts on.
//!
//! **Trap**: "suspected" alone cannot be merged: after a return, nobody could tell old news from new ones.

use alloc::vec::Vec;

use conclave_kernel::{Members, NodeId};
use serde::{Deserialize, Serialize};

/// Which sites went down and came back, and how often. Without changes it is empty and costs nothing; it
/// never has more than one entry a site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct View {
    /// In order of sites; counters of 0 are left out.
    changes: Vec<(NodeId, u32)>,
}

impl View {
    /// Whether the site is up.
    pub fn is_up(&self, site: NodeId) -> bool {
        self.counter(site).is_multiple_of(2)
    }

    /// A detector says that the site is down; whether that is news.
    pub fn suspect(&mut self, site: NodeId) -> bool {
        let counter = self.counter(site);
        self.raise(site, counter + u32::from(counter.is_multiple_of(2)))
    }

    /// A detector says that the site is up; whether that is news.
    pub fn trust(&mut self, site: NodeId) -> bool {
        let counter = self.counter(site);
        self.raise(site, counter + u32::from(!counter.is_multiple_of(2)))
    }

    /// The site is in its nth life; whether that is news.
    pub fn live(&mut self, me: NodeId, incarnation: u32) -> bool {
        self.raise(me, 2 * incarnation)
    }

    /// The site is up, but not what it was.
    pub fn change(&mut self, me: NodeId) {
        let counter = self.counter(me);
        self.raise(me, counter + 2);
    }

    /// Takes over what another knows; whether there was any news.
    pub fn merge(&mut self, other: &Self) -> bool {
        other.changes.iter().fold(false, |news, (site, counter)| self.raise(*site, *counter) | news)
    }

    /// The next site of the ring that is up; the site itself if it is alone.
    pub fn after(&self, members: Members, me: NodeId) -> NodeId {
        let mut next = members.after(me);
        while next != me && !self.is_up(next) {
            next = members.after(next);
        }
        next
    }

    /// The one before it, likewise.
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
