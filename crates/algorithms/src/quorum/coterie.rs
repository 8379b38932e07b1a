//! The conditions on quorums, checked on any sets. A failed check names the sets or sites that violate the
//! condition.
//!
//! A *coterie* is a set of sets with two properties. Any two of them intersect (**intersection**), which
//! excludes other sites. None contains another one (**minimality**), because the larger one would only cost
//! more messages. Maekawa requires more, so that all sites have the same cost and the same load \[M85 §3\]:
//!
//! - **M1** any two quorums intersect;
//! - **M2** every site is in its own quorum;
//! - **M3** all quorums have the same size K;
//! - **M4** every site is in the same number of quorums.

use alloc::vec;
use core::fmt;

use conclave_kernel::{NodeId, NodeSet};

/// Checks both conditions of a coterie. Equal sets count once, because several sites may share a quorum.
pub fn check(sets: &[NodeSet]) -> Result<(), Flaw> {
    intersection(sets)?;
    minimality(sets)
}

/// Checks that any two sets intersect. In particular, no set may be empty.
pub fn intersection(sets: &[NodeSet]) -> Result<(), Flaw> {
    for (index, set) in sets.iter().enumerate() {
        for (other_index, other) in sets.iter().enumerate().skip(index) {
            if !set.intersects(other) {
                return Err(Flaw::Disjoint([(index, set.clone()), (other_index, other.clone())]));
            }
        }
    }
    Ok(())
}

/// Checks that no set contains a different one.
pub fn minimality(sets: &[NodeSet]) -> Result<(), Flaw> {
    for (index, set) in sets.iter().enumerate() {
        for (other_index, other) in sets.iter().enumerate() {
            if other != set && other.is_subset(set) {
                return Err(Flaw::Contained([(other_index, other.clone()), (index, set.clone())]));
            }
        }
    }
    Ok(())
}

/// One of Maekawa's conditions on the quorums of a group. The quorums are in the order of the sites, that of
/// site 0 first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Condition {
    /// Any two quorums intersect.
    M1,
    /// Every site is in its own quorum.
    M2,
    /// All quorums have the same size.
    M3,
    /// Every site is in the same number of quorums.
    M4,
}

impl Condition {
    /// All four conditions.
    pub const EVERY: [Self; 4] = [Self::M1, Self::M2, Self::M3, Self::M4];

    /// Checks the condition.
    pub fn check(self, quorums: &[NodeSet]) -> Result<(), Flaw> {
        match self {
            Self::M1 => intersection(quorums),
            Self::M2 => own_site(quorums),
            Self::M3 => same_size(quorums),
            Self::M4 => same_duty(quorums),
        }
    }
}

fn own_site(quorums: &[NodeSet]) -> Result<(), Flaw> {
    let stranger = quorums.iter().enumerate().find(|(site, set)| !set.contains(NodeId(*site as u32)));
    stranger.map_or(Ok(()), |(site, set)| Err(Flaw::Stranger(site, set.clone())))
}

fn same_size(quorums: &[NodeSet]) -> Result<(), Flaw> {
    let Some(first) = quorums.first() else { return Ok(()) };
    let odd = quorums.iter().enumerate().find(|(_, set)| set.len() != first.len());
    odd.map_or(Ok(()), |(index, set)| Err(Flaw::Sizes([(0, first.clone()), (index, set.clone())])))
}

fn same_duty(quorums: &[NodeSet]) -> Result<(), Flaw> {
    let mut duties = vec![0_usize; quorums.len()];
    for member in quorums.iter().flat_map(NodeSet::iter) {
        if member.index() >= duties.len() {
            duties.resize(member.index() + 1, 0);
        }
        duties[member.index()] += 1;
    }
    let odd = duties.iter().enumerate().find(|(_, duty)| **duty != duties[0]);
    odd.map_or(Ok(()), |(site, duty)| Err(Flaw::Duties([(0, duties[0]), (site, *duty)])))
}

/// The violation of a condition: the sets with their indices, or the sites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Two sets that do not intersect; the same set twice if it is empty.
    Disjoint([(usize, NodeSet); 2]),
    /// A set, and another one that contains it.
    Contained([(usize, NodeSet); 2]),
    /// A site that is not in its own quorum, and that quorum.
    Stranger(usize, NodeSet),
    /// Two quorums of different sizes.
    Sizes([(usize, NodeSet); 2]),
    /// Two sites, each with the number of quorums that contain it.
    Duties([(usize, usize); 2]),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disjoint([(a, set), (b, _)]) if a == b => write!(f, "set {a} {} is empty", Show(set)),
            Self::Disjoint([(a, set), (b, other)]) => {
                write!(f, "set {a} {} and set {b} {} have no member in common", Show(set), Show(other))
            }
            Self::Contained([(a, set), (b, other)]) => {
                write!(f, "set {a} {} is contained in set {b} {}", Show(set), Show(other))
            }
            Self::Stranger(site, set) => write!(f, "site {site} is not in its own quorum {}", Show(set)),
            Self::Sizes([(a, set), (b, other)]) => {
                write!(f, "quorum {a} has {} members and quorum {b} has {}", set.len(), other.len())
            }
            Self::Duties([(a, duty), (b, other)]) => {
                write!(f, "site {a} is in {duty} quorums and site {b} in {other}")
            }
        }
    }
}

impl core::error::Error for Flaw {}

/// A set in mathematical notation: `{1, 2, 3}`.
struct Show<'a>(&'a NodeSet);

impl fmt::Display for Show<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|node| node.0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec::Vec;
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn sets(lists: &[&[u32]]) -> Vec<NodeSet> {
        lists.iter().map(|list| list.iter().copied().map(NodeId).collect()).collect()
    }

    fn why(law: Result<(), Flaw>) -> alloc::string::String {
        law.unwrap_err().to_string()
    }

    #[test]
    fn two_sets_that_do_not_meet_are_no_coterie() {
        let lecture = sets(&[&[1, 2, 3], &[2, 5, 7], &[5, 7, 9]]);
        assert_eq!(why(check(&lecture)), "set 0 {1, 2, 3} and set 2 {5, 7, 9} have no member in common");
    }

    #[test]
    fn a_set_inside_another_violates_minimality() {
        let lecture = sets(&[&[1, 2, 3], &[1, 3]]);
        assert_eq!(intersection(&lecture), Ok(()));
        assert_eq!(why(check(&lecture)), "set 1 {1, 3} is contained in set 0 {1, 2, 3}");
    }

    #[test]
    fn an_empty_set_meets_nobody_not_even_itself() {
        assert_eq!(why(check(&sets(&[&[1], &[]]))), "set 0 {1} and set 1 {} have no member in common");
        assert_eq!(why(check(&sets(&[&[]]))), "set 0 {} is empty");
        assert_eq!(check(&[]), Ok(()));
    }

    #[test]
    fn each_of_maekawas_conditions_names_who_breaks_it() {
        let flaw = |law: Condition, lists: &[&[u32]]| why(law.check(&sets(lists)));
        assert_eq!(flaw(Condition::M1, &[&[0], &[1]]), "set 0 {0} and set 1 {1} have no member in common");
        assert_eq!(flaw(Condition::M2, &[&[0, 1], &[0]]), "site 1 is not in its own quorum {0}");
        assert_eq!(flaw(Condition::M3, &[&[0, 1], &[1]]), "quorum 0 has 2 members and quorum 1 has 1");
        assert_eq!(flaw(Condition::M4, &[&[0, 1], &[1]]), "site 0 is in 1 quorums and site 1 in 2");
    }

    proptest! {
        #[test]
        fn the_laws_agree_with_their_definition(lists in vec(btree_set(0_u32..200, 0..6), 0..6)) {
            let found: Vec<NodeSet> =
                lists.iter().map(|list| list.iter().copied().map(NodeId).collect()).collect();
            let meet = |a: &BTreeSet<u32>, b: &BTreeSet<u32>| a.intersection(b).next().is_some();
            let all_meet = lists.iter().all(|a| lists.iter().all(|b| meet(a, b)));
            let inside = |a: &BTreeSet<u32>, b: &BTreeSet<u32>| a != b && a.is_subset(b);
            let minimal = !lists.iter().any(|a| lists.iter().any(|b| inside(a, b)));
            prop_assert_eq!(intersection(&found).is_ok(), all_meet);
            prop_assert_eq!(minimality(&found).is_ok(), minimal);
            prop_assert_eq!(check(&found).is_ok(), all_meet && minimal);
        }
    }
}
