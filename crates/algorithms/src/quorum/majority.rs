//! Majorities: any two sets of more than half have somebody in common.
//!
//! Large, but any majority will do, which is why replicated services use them: as long as more than half of
//! the sites live, there is a quorum. Here every site gets a fixed one, itself and those that follow it in
//! the ring, so that all work alike.

use alloc::vec::Vec;

use conclave_kernel::{NodeId, NodeSet};

/// How many are more than half.
pub const fn size(nodes: u32) -> u32 {
    nodes / 2 + 1
}

/// The majority that begins with every site.
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
