//! The properties by which every election algorithm is judged, and the judge.
//!
//! The textbook states E1 for the end of a run: *elected* is undefined, or it is the highest process that has
//! not crashed by then. But a leader may win correctly and crash a moment later, and no algorithm can prevent
//! that. The judge therefore checks E1 at each moment at which a site decides. A decision is wrong if a
//! higher site than the elected one is up at that moment. For a later crash there is E2: all sites must
//! decide again.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use conclave_kernel::{Kind, NodeId, Property};

use super::{Candidate, Event};

/// Safety: no site is elected while a higher site is up.
pub const E1: Property = Property {
    name: "E1",
    kind: Kind::Always,
    statement: "an elected process is not lower than any process that is up at that moment",
    source: "[CDK §15.3]",
};
/// Liveness: every site that is up decides.
pub const E2: Property = Property {
    name: "E2",
    kind: Kind::Eventually,
    statement: "every process that stays up finally elects the highest process that is up",
    source: "[CDK §15.3]",
};

/// All properties of the problem.
pub const PROPERTIES: [Property; 2] = [E1, E2];

/// The judge of a run. It is small and can be compared, because the checker keeps a copy in every state.
///
/// A decision costs constant time, and so does any other change that leaves the highest site as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judge {
    sites: Vec<Site>,
    /// The highest site that is up. It and the next field follow from `sites`.
    highest: Option<Candidate>,
    /// The number of sites that are up and have not decided on the highest site that is up.
    undecided: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Site {
    rank: u64,
    up: bool,
    elected: Option<NodeId>,
}

impl Hash for Judge {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sites.hash(state);
    }
}

impl Judge {
    /// Creates a judge for these candidates. All are up and have not decided.
    pub fn new(candidates: impl Iterator<Item = Candidate>) -> Self {
        let site = |candidate: Candidate| Site { rank: candidate.rank, up: true, elected: None };
        let mut judge = Self { sites: candidates.map(site).collect(), highest: None, undecided: 0 };
        judge.count_again();
        judge
    }

    /// Records an event of a site. Returns the reason if the site's decision is wrong.
    pub fn tells(&mut self, site: NodeId, event: &Event) -> Option<String> {
        let elected = match *event {
            Event::Elected { leader } => Some(leader),
            Event::Vacant => None,
        };
        self.change(site, |row| row.elected = elected);
        let leader = elected?;
        let highest = self.highest.filter(|highest| *highest > self.candidate(leader))?;
        Some(format!("{site} elected {leader}, although {} is higher and was up", highest.site))
    }

    /// Records that a site has crashed.
    pub fn crashes(&mut self, site: NodeId) {
        self.change(site, |row| (row.up, row.elected) = (false, None));
    }

    /// Records that a site has recovered. It has not decided yet.
    pub fn recovers(&mut self, site: NodeId) {
        self.change(site, |row| (row.up, row.elected) = (true, None));
    }

    /// Records that a site has resigned: its rank is now 0.
    pub fn resigns(&mut self, site: NodeId) {
        self.change(site, |row| row.rank = 0);
    }

    /// Returns whether the site is up.
    pub fn is_up(&self, site: NodeId) -> bool {
        self.sites[site.index()].up
    }

    /// Returns the leader on which a site has decided.
    pub fn elected(&self, site: NodeId) -> Option<NodeId> {
        self.sites[site.index()].elected
    }

    /// Returns the candidate that should lead: the highest site that is up.
    pub fn highest(&self) -> Option<Candidate> {
        self.highest
    }

    /// Returns the sites that are up and have not decided on the highest site that is up.
    pub fn undecided(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.sites().filter(|site| self.is_undecided(*site))
    }

    /// Returns the number of sites that [`Judge::undecided`] returns.
    pub fn undecided_count(&self) -> usize {
        self.undecided
    }

    /// Returns all sites.
    pub fn sites(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.sites.len() as u32).map(NodeId)
    }

    /// Returns a site with its present rank.
    pub fn candidate(&self, site: NodeId) -> Candidate {
        Candidate { rank: self.sites[site.index()].rank, site }
    }

    /// Changes the data of a site. Looks at all other sites only if the highest site may be another one now.
    fn change(&mut self, site: NodeId, change: impl FnOnce(&mut Site)) {
        let was_undecided = self.is_undecided(site);
        change(&mut self.sites[site.index()]);
        let present = Some(self.candidate(site)).filter(|_| self.is_up(site));
        let was_highest = self.highest.is_some_and(|highest| highest.site == site);
        if (was_highest && present != self.highest) || present > self.highest {
            self.count_again();
        } else {
            self.undecided -= usize::from(was_undecided);
            self.undecided += usize::from(self.is_undecided(site));
        }
    }

    fn count_again(&mut self) {
        let up = self.sites().filter(|site| self.is_up(*site));
        self.highest = up.map(|site| self.candidate(site)).max();
        self.undecided = self.undecided().count();
    }

    fn is_undecided(&self, site: NodeId) -> bool {
        let highest = self.highest.map(|candidate| candidate.site);
        self.is_up(site) && self.elected(site) != highest
    }
}

#[cfg(test)]
mod tests {
    use conclave_kernel::Prng;

    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn judge(ranks: [u64; 2]) -> Judge {
        Judge::new([Candidate { rank: ranks[0], site: A }, Candidate { rank: ranks[1], site: B }].into_iter())
    }

    fn elects(judge: &mut Judge, site: NodeId, leader: NodeId) -> bool {
        judge.tells(site, &Event::Elected { leader }).is_none()
    }

    #[test]
    fn rank_counts_before_id() {
        assert!(elects(&mut judge([1, 1]), A, B) && !elects(&mut judge([1, 1]), A, A));
        assert!(elects(&mut judge([2, 1]), B, A) && !elects(&mut judge([2, 1]), B, B));
    }

    #[test]
    fn who_is_dead_or_has_resigned_need_not_be_elected() {
        let mut one = judge([1, 1]);
        one.crashes(B);
        assert!(elects(&mut one, A, A));
        assert_eq!(one.undecided().count(), 0);
        one.recovers(B);
        assert_eq!(one.undecided().collect::<Vec<_>>(), [A, B]);
        let mut other = judge([1, 1]);
        other.resigns(B);
        assert!(elects(&mut other, B, A));
    }

    #[test]
    fn a_leader_that_died_after_it_had_won_is_no_breach_but_must_be_replaced() {
        let mut judge = judge([1, 1]);
        judge.crashes(B);
        assert!(elects(&mut judge, A, B));
        assert_eq!(judge.undecided().collect::<Vec<_>>(), [A]);
    }

    /// A test against a version that looks at all sites after every change.
    #[test]
    fn the_highest_site_and_the_undecided_ones_are_known_after_every_change() {
        for seed in 0..200 {
            let mut dice = Prng::new(seed);
            let nodes = 1 + dice.below(6);
            let draw = |dice: &mut Prng| NodeId(dice.below(nodes) as u32);
            let candidate = |site, dice: &mut Prng| Candidate { rank: dice.below(3), site };
            let mut judge = Judge::new((0..nodes as u32).map(|site| candidate(NodeId(site), &mut dice)));
            for _ in 0..60 {
                let (site, leader) = (draw(&mut dice), draw(&mut dice));
                match dice.below(7) {
                    0 => judge.crashes(site),
                    1 => judge.recovers(site),
                    2 => judge.resigns(site),
                    3 => drop(judge.tells(site, &Event::Vacant)),
                    _ => drop(judge.tells(site, &Event::Elected { leader })),
                }
                let fresh = Judge { highest: None, undecided: 0, ..judge.clone() };
                let up = fresh.sites().filter(|site| fresh.is_up(*site));
                let highest = up.map(|site| fresh.candidate(site)).max();
                assert_eq!(judge.highest(), highest, "seed {seed}");
                let site = highest.map(|highest| highest.site);
                let undecided =
                    fresh.sites().filter(|other| fresh.is_up(*other) && fresh.elected(*other) != site);
                assert_eq!(
                    judge.undecided().collect::<Vec<_>>(),
                    undecided.collect::<Vec<_>>(),
                    "seed {seed}"
                );
                assert_eq!(judge.undecided_count(), judge.undecided().count(), "seed {seed}");
            }
        }
    }
}
