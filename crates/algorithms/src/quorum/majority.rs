//! Majorities: any two sets of more than half of the sites intersect.
//!
//! Majorities are large, but any majority is a quorum. Replicated services use them for that reason: a quorum
//! exists as long as more than half of the sites are alive. Here every site gets one fixed majority, itself
//! and the sites after it in the ring, so that all sites have the same load.

use alloc::vec::Vec;

use conclave_kernel::{NodeId, NodeSet};

/// Returns the smallest number of sites that is more than half.
pub const fn size(nodes: u32) -> u32 {
    nodes / 2 + 1
}

/// Returns the quorum of every site: the majority that starts with it.
pub fn quorums(nodes: u32) -> Vec<NodeSet> {
    let majority = |site: u32| (site..site + size(nodes)).map(|member| NodeId(member % nodes)).collect();
    (0..nodes).map(majority).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_three_and_three_of_four_and_five() {
        assert_eq!([1, 2, 3, 4, 5].map(size), [1, 2, 2, 3, 3]);
        assert_eq!(quorums(5)[4], [4, 0, 1].map(NodeId).into_iter().collect());
    }
}
