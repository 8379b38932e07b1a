//! The properties of mutual exclusion, one constant each, and the judge that checks them.
//!
//! The judge observes a run from outside: it sees every request, entry and exit. It attaches a small note to
//! every message. From the notes it decides causality exactly.
//!
//! - *Exits known*: entries are numbered. A note carries the largest entry number whose exit lies in the
//!   sender's past. Entry k is causal iff its site knows exit k-1. If it does not, some reordering of the
//!   same run overlaps the two entries, even if this run did not. A crash can destroy all knowledge of an
//!   exit: no message can then tell of it, and the judge does not require the next entry to know it.
//! - *Requests known*: a note carries the set of pending requests in the sender's past, one bit per site. A
//!   grant is an inversion (ME3) if an older request is still pending and the site knew of it when it made
//!   its own. A bit could be stale and mean an earlier request of its site. Therefore a note also carries the
//!   step at which it was sent. On receipt the judge drops the bits of the sites that made a new request
//!   since then.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{Judgement, Kind, NodeId, Property};

use super::Fence;

/// Exclusion: at most one site is in the critical section.
pub const ME1: Property = Property {
    name: "ME1",
    kind: Kind::Always,
    statement: "at most one site is in the critical section",
    source: "[RA81 §1]",
};
/// Causal exclusion: every exit happened before the next entry.
pub const ME1_CAUSAL: Property = Property {
    name: "ME1-causal",
    kind: Kind::Always,
    statement: "every exit happened before the next entry, so no reordering of the run can overlap two entries",
    source: "[L78 §3]",
};
/// Progress: every request is granted.
pub const ME2: Property = Property {
    name: "ME2",
    kind: Kind::Eventually,
    statement: "every request is granted, if every holder leaves",
    source: "[RA81 §1]",
};
/// Order: grants follow the causal order of requests.
pub const ME3: Property = Property {
    name: "ME3",
    kind: Kind::Always,
    statement: "if one request happened before another, it is granted first",
    source: "[L78 §3]",
};
/// Fences: every grant has a larger fence than the grant before it.
pub const FENCES: Property = Property {
    name: "fences",
    kind: Kind::Always,
    statement: "every grant has a larger fence than the grant before it",
    source: "[B06 §2.4]",
};

/// All properties of mutual exclusion.
pub const PROPERTIES: [Property; 5] = [ME1, ME1_CAUSAL, ME2, ME3, FENCES];

/// The largest group for which ME3 is judged, because a note has one bit per site. In a larger group
/// [`Judge::inversions`] returns `None`.
pub const MOST_JUDGED: u32 = u128::BITS;

/// The judge's note on a message: the part of the sender's past that matters for causality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Note {
    exit_known: u64,
    requests_known: u128,
    sent_at: u64,
}

/// A violation of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The violated property.
    pub property: Property,
    /// A description of the event that violated it.
    pub why: String,
}

/// Observes a run and reports violations.
///
/// A send costs constant time. A receive costs one step for each site that made a request while the message
/// was in flight. A request, an entry or a crash costs at most one pass over the sites.
#[derive(Clone, Debug)]
pub struct Judge {
    sites: Vec<Site>,
    /// The past of each site. It is stored apart from `sites`, because every message needs it.
    known: Vec<Known>,
    /// The sites in the critical section; more than one only after a violation.
    inside: Vec<NodeId>,
    requests: u64,
    entries: u64,
    last_fence: Option<Fence>,
    inversions: u64,
    /// The number of grants that decided the order of two causally ordered requests.
    ordered: u64,
    /// A counter of sends and requests, which orders a note and a later request.
    clock: u64,
    /// The sites with a pending request, one bit each.
    pending: u128,
    /// The sites in the order of their latest request, latest last.
    asked_in_order: Vec<NodeId>,
    judges_order: bool,
    /// The number of an entry whose exit is known to no site that is up; 0 if there is none.
    lost_exit: u64,
}

#[derive(Clone, Debug, Default)]
struct Site {
    asking: bool,
    down: bool,
    /// The number of the entry that the site is in or was last in.
    entry: u64,
    /// The still pending requests that were in the causal past of this site's own request.
    older: u128,
    asked_at: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    exit: u64,
    requests: u128,
}

impl Judge {
    /// Creates a judge for a group of that size.
    pub fn new(nodes: u32) -> Self {
        Self {
            sites: vec![Site::default(); nodes as usize],
            known: vec![Known::default(); nodes as usize],
            inside: Vec::new(),
            requests: 0,
            entries: 0,
            last_fence: None,
            inversions: 0,
            ordered: 0,
            clock: 0,
            pending: 0,
            asked_in_order: Vec::new(),
            judges_order: nodes <= MOST_JUDGED,
            lost_exit: 0,
        }
    }

    /// Returns each property with the evidence that the run lacks.
    ///
    /// Two entries put ME1, ME1-causal and the fences to the test, also two entries of one site. But in a group
    /// of one site only the fences can break. ME2 needs a request that was granted. ME3 needs two requests that were pending together, of which the later was
    /// made in knowledge of the earlier, and a grant of one of them.
    pub fn judgements(&self) -> [Judgement; 5] {
        let two_entries = [(self.entries == 0, "no entry"), (self.entries == 1, "only one entry")];
        let exclusion = [(self.sites.len() < 2, "only one site"), two_entries[0], two_entries[1]];
        let served = [
            (self.requests == 0, "no request"),
            (self.entries == 0, "every site crashed before it could enter"),
        ];
        let ordered = [
            (!self.judges_order, "more than 128 sites"),
            (self.ordered == 0, "no site requested when it knew of a waiting request"),
        ];
        [
            ME1.judged_unless(&exclusion),
            ME1_CAUSAL.judged_unless(&exclusion),
            ME2.judged_unless(&served),
            ME3.judged_unless(&ordered),
            FENCES.judged_unless(&two_entries),
        ]
    }

    /// Returns the number of entries.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Returns the number of pairs of requests that were granted against their causal order. `None` if the
    /// group is larger than [`MOST_JUDGED`].
    pub fn inversions(&self) -> Option<u64> {
        self.judges_order.then_some(self.inversions)
    }

    /// Records that a site requests the critical section.
    pub fn asks(&mut self, site: NodeId) {
        let row = &mut self.sites[site.index()];
        row.asking = true;
        self.requests += 1;
        if !self.judges_order {
            return;
        }
        self.clock += 1;
        row.asked_at = self.clock;
        // A late note may name a request that was granted since: only pending requests count.
        row.older = self.known[site.index()].requests & self.pending;
        self.pending |= bit(site);
        self.forget(site);
        self.known[site.index()].requests |= bit(site);
        self.asked_in_order.retain(|other| *other != site);
        self.asked_in_order.push(site);
    }

    /// Records that a site enters, and passes each violation to `breach`.
    pub fn enters(&mut self, site: NodeId, fence: Fence, mut breach: impl FnMut(Breach)) {
        if let Some(other) = self.inside.first() {
            breach(Breach { property: ME1, why: format!("{site} entered while {other} was inside") });
        }
        let row = &mut self.sites[site.index()];
        if self.known[site.index()].exit < self.entries && self.lost_exit != self.entries {
            let why = format!("{site} entered, but did not know that entry {} had ended", self.entries);
            breach(Breach { property: ME1_CAUSAL, why });
        }
        if let Some(last) = self.last_fence.filter(|last| fence <= *last) {
            let why = format!("{site} was granted fence {fence} after fence {last}");
            breach(Breach { property: FENCES, why });
        }
        if row.older != 0 {
            self.ordered += 1;
            let first = row.older.trailing_zeros();
            self.inversions += u64::from(row.older.count_ones());
            let why = format!(
                "{site} entered before n{first}, although it knew of the request of n{first} when it made its own"
            );
            breach(Breach { property: ME3, why });
        }
        self.last_fence = self.last_fence.max(Some(fence));
        self.entries += 1;
        row.entry = self.entries;
        row.asking = false;
        self.inside.push(site);
        let older_than_another = self.is_done(site);
        self.ordered += u64::from(older_than_another);
    }

    /// Records that a site leaves.
    pub fn leaves(&mut self, site: NodeId) {
        self.inside.retain(|other| *other != site);
        let known = &mut self.known[site.index()];
        known.exit = known.exit.max(self.sites[site.index()].entry);
    }

    /// Records that a site crashes. If it was in the critical section, the crash is its exit. If no other site
    /// that is up knows of the latest exit, the next entry need not know of it either.
    pub fn crashes(&mut self, site: NodeId) {
        self.leaves(site);
        let row = &mut self.sites[site.index()];
        (row.asking, row.down) = (false, true);
        self.is_done(site);
        let mut up = self.sites.iter().zip(&self.known).filter(|(row, _)| !row.down);
        if self.inside.is_empty() && !up.any(|(_, known)| known.exit == self.entries) {
            self.lost_exit = self.entries;
        }
    }

    /// Records that a crashed site is up again.
    pub fn recovers(&mut self, site: NodeId) {
        self.sites[site.index()].down = false;
    }

    /// Returns the sites that have requested and are not granted yet.
    pub fn waiting(&self) -> impl Iterator<Item = NodeId> + '_ {
        let asking = self.sites.iter().enumerate().filter(|(_, site)| site.asking);
        asking.map(|(index, _)| NodeId(index as u32))
    }

    /// Records that a site sends a message, and returns the note to attach.
    #[inline(always)]
    pub fn sends(&mut self, from: NodeId) -> Note {
        let known = self.known[from.index()];
        self.clock += 1;
        Note { exit_known: known.exit, requests_known: known.requests, sent_at: self.clock }
    }

    /// Records that a site receives a message with its note.
    #[inline]
    pub fn receives(&mut self, to: NodeId, note: &Note) {
        let mut requests = note.requests_known;
        if requests != 0 {
            let since = self.asked_in_order.iter().rev();
            for asked in since.take_while(|site| self.sites[site.index()].asked_at > note.sent_at) {
                requests &= !bit(*asked);
            }
        }
        let known = &mut self.known[to.index()];
        known.exit = known.exit.max(note.exit_known);
        known.requests |= requests;
    }

    /// Ends the request of a site. Returns whether a pending request was made in knowledge of it.
    fn is_done(&mut self, site: NodeId) -> bool {
        if !self.judges_order {
            return false;
        }
        self.pending &= !bit(site);
        self.forget(site)
    }

    /// Removes the site's request from the past of all sites: it has ended, or a new request replaces it.
    /// Returns whether a pending request was made in knowledge of it.
    fn forget(&mut self, site: NodeId) -> bool {
        let mut is_older = false;
        for (known, row) in self.known.iter_mut().zip(&mut self.sites) {
            is_older |= row.asking && row.older & bit(site) != 0;
            known.requests &= !bit(site);
            row.older &= !bit(site);
        }
        is_older
    }
}

const fn bit(site: NodeId) -> u128 {
    1 << (site.0 % MOST_JUDGED)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn breaches(judge: &mut Judge, site: NodeId, fence: u64) -> Vec<&'static str> {
        let mut names = Vec::new();
        judge.enters(site, Fence(fence), |breach| names.push(breach.property.name));
        names
    }

    fn missing(judge: &Judge) -> Vec<Option<&'static str>> {
        judge.judgements().iter().map(|judgement| judgement.missing).collect()
    }

    #[test]
    fn a_run_without_an_entry_puts_no_property_to_the_test() {
        let mut judge = Judge::new(2);
        assert_eq!(
            missing(&judge),
            [
                Some("no entry"),
                Some("no entry"),
                Some("no request"),
                Some("no site requested when it knew of a waiting request"),
                Some("no entry"),
            ]
        );
        judge.asks(A);
        judge.crashes(A);
        assert_eq!(missing(&judge)[2], Some("every site crashed before it could enter"));
    }

    #[test]
    fn two_entries_put_exclusion_and_fences_to_the_test_but_not_the_order() {
        let mut judge = Judge::new(2);
        judge.asks(A);
        breaches(&mut judge, A, 1);
        judge.leaves(A);
        let one = Some("only one entry");
        assert_eq!((missing(&judge)[0], missing(&judge)[2], missing(&judge)[4]), (one, None, one));
        judge.asks(B);
        breaches(&mut judge, B, 2);
        let judged: Vec<_> = missing(&judge).iter().map(Option::is_none).collect();
        assert_eq!(judged, [true, true, true, false, true]);
    }

    #[test]
    fn two_ordered_requests_put_me3_to_the_test_only_if_they_were_pending_together() {
        for together in [true, false] {
            let mut judge = Judge::new(2);
            judge.asks(A);
            let note = judge.sends(A);
            if !together {
                breaches(&mut judge, A, 1);
            }
            judge.receives(B, &note);
            judge.asks(B);
            if together {
                breaches(&mut judge, A, 1);
            }
            assert_eq!(missing(&judge)[3].is_none(), together);
        }
    }

    #[test]
    fn the_order_of_more_than_128_sites_is_not_judged() {
        assert_eq!(missing(&Judge::new(MOST_JUDGED + 1))[3], Some("more than 128 sites"));
    }

    #[test]
    fn two_inside_break_me1() {
        let mut judge = Judge::new(2);
        assert!(breaches(&mut judge, A, 1).is_empty());
        assert_eq!(breaches(&mut judge, B, 2), ["ME1", "ME1-causal"]);
    }

    #[test]
    fn an_entry_that_cannot_know_of_the_last_exit_is_not_causal() {
        let mut judge = Judge::new(2);
        breaches(&mut judge, A, 1);
        judge.leaves(A);
        assert_eq!(breaches(&mut judge, B, 2), ["ME1-causal"]);
        judge.leaves(B);
        let note = judge.sends(B);
        judge.receives(A, &note);
        assert!(breaches(&mut judge, A, 3).is_empty());
    }

    #[test]
    fn an_exit_that_only_a_crashed_site_knew_of_need_not_be_known() {
        let mut judge = Judge::new(3);
        breaches(&mut judge, A, 1);
        judge.leaves(A);
        judge.crashes(A);
        assert!(breaches(&mut judge, B, 2).is_empty());
        judge.leaves(B);
        assert_eq!(breaches(&mut judge, NodeId(2), 3), ["ME1-causal"], "the exit of B is known to B");
    }

    #[test]
    fn an_exit_that_a_living_site_knows_of_must_be_known_also_after_a_crash() {
        let mut judge = Judge::new(3);
        breaches(&mut judge, A, 1);
        judge.leaves(A);
        let note = judge.sends(A);
        judge.receives(B, &note);
        judge.crashes(A);
        assert_eq!(breaches(&mut judge, NodeId(2), 2), ["ME1-causal"]);
    }

    #[test]
    fn a_fence_that_does_not_grow_is_a_breach() {
        let mut judge = Judge::new(1);
        breaches(&mut judge, A, 5);
        judge.leaves(A);
        assert_eq!(breaches(&mut judge, A, 5), ["fences"]);
    }

    #[test]
    fn a_request_granted_before_an_older_one_that_it_knew_of_is_an_inversion() {
        let mut judge = Judge::new(2);
        judge.asks(A);
        let note = judge.sends(A);
        judge.receives(B, &note);
        judge.asks(B);
        assert_eq!(breaches(&mut judge, B, 1), ["ME3"]);
        assert_eq!(judge.inversions(), Some(1));
    }

    #[test]
    fn a_concurrent_request_may_overtake() {
        let mut judge = Judge::new(2);
        judge.asks(A);
        judge.asks(B);
        let note = judge.sends(A);
        judge.receives(B, &note);
        assert!(breaches(&mut judge, B, 1).is_empty());
    }

    #[test]
    fn late_news_of_a_request_that_is_over_is_no_reason_to_wait() {
        let mut judge = Judge::new(2);
        judge.asks(A);
        let late = judge.sends(A);
        breaches(&mut judge, A, 1);
        judge.receives(B, &late);
        judge.asks(B);
        judge.leaves(A);
        let exit = judge.sends(A);
        judge.receives(B, &exit);
        assert!(breaches(&mut judge, B, 2).is_empty());
    }

    #[test]
    fn news_of_a_request_that_was_granted_since_says_nothing_about_the_next() {
        let mut judge = Judge::new(2);
        judge.asks(A);
        let stale = judge.sends(A);
        breaches(&mut judge, A, 1);
        judge.leaves(A);
        judge.asks(A);
        judge.receives(B, &stale);
        judge.asks(B);
        assert_eq!(breaches(&mut judge, B, 2), ["ME1-causal"]);
        assert_eq!(judge.inversions(), Some(0));
    }
}
