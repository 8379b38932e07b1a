//! Quorums from finite projective planes: the smallest quorums of equal size and equal load.
//!
//! In a projective plane, any two lines intersect in exactly one point. With q+1 points on each line there
//! are N = q² + q + 1 points and as many lines. The sites are the points, the quorums are the lines, and K =
//! q + 1. A plane is known for every prime power q, and for no other q.
//!
//! **Construction** \[Singer38\]: the points of the plane over GF(q) are the elements of GF(q³) other than
//! zero, up to a factor from GF(q). If x generates them all, the points are 1, x, x², ..., x^(N-1). The
//! exponents of the points on one line are a *difference set* D: every number but 0 modulo N is the
//! difference of exactly one pair of its members. The lines are D shifted by 0, 1, ..., N-1.
//!
//! **Trap**: every site must lie on its own line. The shifts make that easy: shift D so that it contains 0,
//! and give site i the line D + i. Arithmetic modulo q is not a field unless q is prime: 21 sites need GF(4).
//!
//! Two small cases satisfy the same conditions without being planes: the triangle (N = 3, K = 2) and the lone
//! site.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{NodeId, NodeSet};

use super::field::{Field, prime_power};

/// Whether a plane (or one of the two small cases) with that number of points exists.
pub fn exists(nodes: u32) -> bool {
    order_of(nodes).is_some()
}

/// Returns the line of every site. If no plane of that size exists, the error is one line with the sizes that
/// do.
pub fn quorums(nodes: u32) -> Result<Vec<NodeSet>, String> {
    let differences = order_of(nodes).and_then(difference_set).ok_or_else(|| refusal(nodes))?;
    let line = |site: u32| differences.iter().map(|d| NodeId((site + d) % nodes)).collect();
    Ok((0..nodes).map(line).collect())
}

/// Returns q if N = q² + q + 1 and a plane of order q exists. The lone site is q = 0, the triangle q = 1.
fn order_of(nodes: u32) -> Option<u32> {
    let root = nodes.isqrt();
    let order = (root.saturating_sub(1)..=root).find(|q| q.checked_mul(q + 1) == nodes.checked_sub(1))?;
    (order < 2 || prime_power(order).is_some()).then_some(order)
}

/// Returns the difference set of the plane of order q, in order, starting with 0.
fn difference_set(order: u32) -> Option<Vec<u32>> {
    if order < 2 {
        return Some((0..=order).collect());
    }
    let field = Field::new(order)?;
    let cubes = (0..order).flat_map(|a| (0..order).map(move |b| (a, b)));
    cubes
        .flat_map(|(a, b)| (1..order).map(move |c| [c, b, a]))
        .find_map(|cube| points_on_a_line(&field, cube))
}

/// Computes the powers of x in GF(q)\[x\], where x³ = c + bx + ax². Returns the exponents of the powers on
/// the line through 1 and x. `None` if the powers do not reach every point of the plane: then the structure
/// is not a field, or x does not generate it.
fn points_on_a_line(field: &Field, cube: [u32; 3]) -> Option<Vec<u32>> {
    let points = field.order() * (field.order() + 1) + 1;
    let mut line = vec![0];
    let mut power = [1, 0, 0];
    for exponent in 1..=points {
        let [low, middle, high] = power;
        let fallen = cube.map(|digit| field.multiply(digit, high));
        power = [fallen[0], field.add(low, fallen[1]), field.add(middle, fallen[2])];
        let back = power[1] == 0 && power[2] == 0;
        if back {
            return (exponent == points).then_some(line);
        }
        if power[2] == 0 {
            line.push(exponent);
        }
    }
    None
}

fn refusal(nodes: u32) -> String {
    let below = (1..nodes).rev().find(|n| exists(*n));
    let above = (nodes.saturating_add(1)..nodes.saturating_mul(4).saturating_add(4)).find(|n| exists(*n));
    let nearest = match (below, above) {
        (Some(below), Some(above)) => format!(" (the nearest are {below} and {above})"),
        (None, Some(only)) | (Some(only), None) => format!(" (the nearest is {only})"),
        (None, None) => String::new(),
    };
    format!(
        "there is no projective plane of {nodes} nodes: the number must be K(K-1)+1 with K-1 a prime power, that is \
         3, 7, 13, 21, 31, 57, 73, 91, 133, ...{nearest}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quorum::Condition;

    #[test]
    fn planes_exist_for_prime_powers_and_for_no_other_order() {
        let sizes: Vec<u32> = (0..=400).filter(|n| exists(*n)).collect();
        // The list omits 43 (order 6), 111 (order 10), 157 (12), 211 (14), 241 (15), 343 (18).
        assert_eq!(sizes, [1, 3, 7, 13, 21, 31, 57, 73, 91, 133, 183, 273, 307, 381]);
    }

    #[test]
    fn any_two_lines_meet_in_exactly_one_point_and_any_two_points_lie_on_one_line() {
        for nodes in (2..=400).filter(|n| exists(*n)) {
            let lines = quorums(nodes).unwrap();
            for law in Condition::EVERY {
                assert_eq!(law.check(&lines), Ok(()), "{law:?} at {nodes}");
            }
            let size = lines[0].len() as u32;
            assert_eq!(size * (size - 1) + 1, nodes);
            for (index, line) in lines.iter().enumerate() {
                for other in &lines[index + 1..] {
                    assert_eq!(line.iter().filter(|point| other.contains(*point)).count(), 1, "{nodes}");
                }
            }
            let joining =
                |other| lines.iter().filter(move |line| line.contains(NodeId(0)) && line.contains(other));
            assert!((1..nodes).all(|other| joining(NodeId(other)).count() == 1));
        }
    }

    #[test]
    fn three_sites_make_the_triangle() {
        // [CDK §15.2]: V1 = {1,2}, V2 = {2,3}, V3 = {3,1}, here counted from 0.
        let lines = quorums(3).unwrap();
        assert_eq!(lines, [[0, 1], [1, 2], [2, 0]].map(|line| line.map(NodeId).into_iter().collect()));
    }

    #[test]
    fn the_fano_plane_has_seven_lines_of_three() {
        let lines = quorums(7).unwrap();
        assert_eq!(lines[0], [0, 1, 3].map(NodeId).into_iter().collect());
    }

    #[test]
    fn a_wrong_size_is_refused_with_the_sizes_that_are_right() {
        assert_eq!(
            quorums(10).unwrap_err(),
            "there is no projective plane of 10 nodes: the number must be K(K-1)+1 with K-1 a prime power, that is \
             3, 7, 13, 21, 31, 57, 73, 91, 133, ... (the nearest are 7 and 13)"
        );
        assert!(quorums(0).unwrap_err().ends_with("(the nearest is 1)"));
        assert!(quorums(43).unwrap_err().ends_with("(the nearest are 31 and 57)"));
    }

    #[test]
    fn a_large_prime_power_is_built_too() {
        let lines = quorums(64 * 65 + 1).unwrap(); // GF(64)
        assert!(lines.iter().skip(1).all(|line| line.iter().filter(|p| lines[0].contains(*p)).count() == 1));
    }
}
