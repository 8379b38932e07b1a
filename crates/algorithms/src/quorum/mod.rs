//! Quorums: sets of sites, any two of which intersect.
//!
//! A site that gets permission from a quorum, instead of from all sites, still excludes all others: any other
//! quorum has a member in common with it. Smaller quorums cost fewer messages. [`coterie`] contains the
//! conditions that quorums must satisfy.
//!
//! | construction | for which N | size K |
//! |---|---|---|
//! | [`projective_plane`] | K(K-1)+1 with K-1 a prime power: 7, 13, 21, ... | about the square root of N |
//! | [`grid`] | any | about twice the square root of N |
//! | [`majority`] | any | more than half |
//! | all | any | N |

pub mod coterie;
mod field;
pub mod grid;
pub mod majority;
pub mod projective_plane;

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use conclave_kernel::NodeSet;
use serde::{Deserialize, Serialize};

pub use coterie::{Condition, Flaw};

/// A construction that gives every site of a group its quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quorum {
    /// The lines of a finite projective plane.
    Plane,
    /// A row and a column of a grid.
    Grid,
    /// More than half of the sites.
    Majority,
    /// All sites.
    All,
}

/// The limit of sites for which quorums are built; a larger group is an error. Each quorum is a bitmap, so
/// the quorums of N sites take N²/8 bytes.
pub const MOST_SITES: u32 = 1 << 14;

impl Quorum {
    /// All constructions.
    pub const EVERY: [Self; 4] = [Self::Plane, Self::Grid, Self::Majority, Self::All];

    /// Returns the default construction: a plane where one exists, otherwise a grid.
    pub fn default_for(nodes: u32) -> Self {
        if projective_plane::exists(nodes) { Self::Plane } else { Self::Grid }
    }

    /// Returns the quorum of every site of a group, in order of ids. Each quorum contains its own site. The
    /// error is one line that gives the reason.
    pub fn quorums(self, nodes: u32) -> Result<Vec<NodeSet>, String> {
        if nodes > MOST_SITES {
            return Err(format!("{self} quorums exist for at most {MOST_SITES} nodes, not for {nodes}"));
        }
        Ok(match self {
            Self::Plane => return projective_plane::quorums(nodes),
            Self::Grid => grid::quorums(nodes),
            Self::Majority => majority::quorums(nodes),
            Self::All => vec![NodeSet::full(nodes); nodes as usize],
        })
    }
}

impl fmt::Display for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Plane => "plane",
            Self::Grid => "grid",
            Self::Majority => "majority",
            Self::All => "all",
        })
    }
}

impl FromStr for Quorum {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::EVERY.into_iter().find(|quorum| format!("{quorum}") == text);
        named.ok_or_else(|| "expected plane, grid, majority or all".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn every_construction_obeys_the_laws_at_every_size_up_to_150() {
        for nodes in 1..=150 {
            for quorum in Quorum::EVERY {
                let Ok(quorums) = quorum.quorums(nodes) else {
                    assert!(quorum == Quorum::Plane && !projective_plane::exists(nodes));
                    continue;
                };
                assert_eq!(quorums.len() as u32, nodes);
                assert!(quorums.iter().all(|set| set.is_subset(&NodeSet::full(nodes))));
                assert_eq!(coterie::check(&quorums), Ok(()), "{quorum} of {nodes}");
                let equal = [Condition::M3, Condition::M4].iter().all(|law| law.check(&quorums).is_ok());
                assert_eq!(Condition::M1.check(&quorums), Ok(()), "{quorum} of {nodes}");
                assert_eq!(Condition::M2.check(&quorums), Ok(()), "{quorum} of {nodes}");
                assert!(equal || quorum == Quorum::Grid, "{quorum} of {nodes}");
            }
        }
    }

    #[test]
    fn the_default_is_a_plane_where_there_is_one() {
        let chosen = [1, 2, 3, 4, 7, 8, 13, 21, 43].map(Quorum::default_for);
        use Quorum::{Grid, Plane};
        assert_eq!(chosen, [Plane, Grid, Plane, Grid, Plane, Grid, Plane, Plane, Grid]);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for quorum in Quorum::EVERY {
            assert_eq!(quorum.to_string().parse(), Ok(quorum));
        }
        assert_eq!("planes".parse::<Quorum>().unwrap_err(), "expected plane, grid, majority or all");
    }

    #[test]
    fn a_group_too_large_is_refused() {
        assert!(Quorum::All.quorums(MOST_SITES + 1).unwrap_err().contains("16384"));
    }
}
