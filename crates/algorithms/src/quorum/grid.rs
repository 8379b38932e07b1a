//! Grid quorums: a row and a column.
//!
//! The sites fill a grid row by row, and a site's quorum is its row and its column. The quorums of two sites
//! intersect twice: the row of each site crosses the column of the other. One crossing would be enough, so a
//! grid quorum is about twice as large as a plane's. But a grid exists for every N.
//!
//! **Trap**: the last row may be short, and then a row and a column need not cross. Let site a be in the
//! short row, and let the column of b not reach it. Then b is in a full row, which crosses the column of a.
//! So one of the two crossings always exists. A short last row may also make one quorum a subset of another;
//! the larger one is then replaced by the smaller one.

use alloc::vec::Vec;

use conclave_kernel::{NodeId, NodeSet};

/// Returns the row and the column of every site, in the squarest grid that holds all sites.
pub fn quorums(nodes: u32) -> Vec<NodeSet> {
    let grid = Grid::squarest(nodes);
    (0..nodes).map(|site| grid.quorum(site)).collect()
}

struct Grid {
    nodes: u32,
    width: u32,
    height: u32,
}

impl Grid {
    fn squarest(nodes: u32) -> Self {
        let root = nodes.isqrt();
        let width = (root + u32::from(root * root < nodes)).max(1);
        Self { nodes, width, height: nodes.div_ceil(width) }
    }

    fn quorum(&self, site: u32) -> NodeSet {
        let (row, column) = (site / self.width, site % self.width);
        let short = self.nodes % self.width;
        let columns_of_one = self.height == 2 && short > 0;
        let last_row_of_one = self.height > 1 && short == 1;
        if columns_of_one && row == 0 {
            // The last sites of the first row are alone in their columns, so the row alone is a quorum.
            self.row(row).collect()
        } else if last_row_of_one && column == 0 {
            // The last site is alone in its row, so the first column alone is a quorum.
            self.column(column).collect()
        } else {
            self.row(row).chain(self.column(column)).collect()
        }
    }

    fn row(&self, row: u32) -> impl Iterator<Item = NodeId> + use<> {
        (row * self.width..((row + 1) * self.width).min(self.nodes)).map(NodeId)
    }

    fn column(&self, column: u32) -> impl Iterator<Item = NodeId> + use<> {
        (column..self.nodes).step_by(self.width as usize).map(NodeId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quorum::{Condition, coterie};

    #[test]
    fn a_square_grid_satisfies_all_of_maekawas_conditions() {
        for side in 1..=12 {
            let quorums = quorums(side * side);
            assert!(quorums.iter().all(|set| set.len() as u32 == 2 * side - 1));
            for law in Condition::EVERY {
                assert_eq!(law.check(&quorums), Ok(()), "{law:?} at {side}");
            }
        }
    }

    #[test]
    fn a_grid_of_any_size_is_a_coterie_of_about_twice_the_root() {
        for nodes in 1..=300 {
            let quorums = quorums(nodes);
            assert_eq!(coterie::check(&quorums), Ok(()), "{nodes}");
            assert_eq!(Condition::M2.check(&quorums), Ok(()), "{nodes}");
            let root = nodes.isqrt() + u32::from(nodes.isqrt().pow(2) < nodes);
            assert!(quorums.iter().all(|set| (set.len() as u32) < 2 * root), "{nodes}");
        }
    }

    #[test]
    fn six_sites_stand_in_two_rows_of_three() {
        let sets = [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 5], [0, 3, 4, 5], [1, 3, 4, 5], [2, 3, 4, 5]];
        assert_eq!(quorums(6), sets.map(|set| set.map(NodeId).into_iter().collect()));
    }
}
