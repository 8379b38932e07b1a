//! Strongly connected components [Tar72], with the call stack as data: a chain of a million is no deeper than one.

use alloc::vec::Vec;
use core::ops::Range;

/// The component that is completed first in a search from `start`: one from which no other can be reached.
///
/// `nodes` gives the places of each node's edges, or `None` for a node that does not count; `target(place)` is where an
/// edge leads. Since the search ends with the first completed component, whatever was seen is still on Tarjan's
/// stack, and no mark for that is needed.
pub(super) fn first_component(
    start: u32,
    nodes: impl Iterator<Item = Option<Range<u32>>>,
    target: impl Fn(u32) -> u32,
) -> Vec<u32> {
    let mut marks: Vec<Mark> = nodes.map(Mark::new).collect();
    let mut stack: Vec<u32> = Vec::new();
    let mut path: Vec<u32> = Vec::new();
    let mut enter = Some(start);
    loop {
        if let Some(node) = enter.take() {
            let order = u32::try_from(stack.len()).expect("no more than there are nodes");
            (marks[node as usize].order, marks[node as usize].low) = (order, order);
            stack.push(node);
            path.push(node);
        }
        let Some(&node) = path.last() else { return Vec::new() };
        let mark = &mut marks[node as usize];
        if mark.ahead < mark.end {
            let next = target(mark.ahead);
            mark.ahead += 1;
            match marks[next as usize].order {
                OUTSIDE => {}
                UNSEEN => enter = Some(next),
                seen => marks[node as usize].low = marks[node as usize].low.min(seen),
            }
            continue;
        }
        let (order, low) = (mark.order, mark.low);
        path.pop();
        if low == order {
            return stack.split_off(order as usize);
        }
        if let Some(&parent) = path.last() {
            marks[parent as usize].low = marks[parent as usize].low.min(low);
        }
    }
}

const OUTSIDE: u32 = u32::MAX - 1;
const UNSEEN: u32 = u32::MAX;

/// All that the search needs of a node side by side, since memory is what it waits for.
struct Mark {
    order: u32,
    low: u32,
    /// The edges not yet followed.
    ahead: u32,
    end: u32,
}

impl Mark {
    fn new(edges: Option<Range<u32>>) -> Self {
        let order = if edges.is_some() { UNSEEN } else { OUTSIDE };
        let Range { start, end } = edges.unwrap_or(0..0);
        Self { order, low: UNSEEN, ahead: start, end }
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn reach(edges: &[Vec<u32>], from: u32) -> Vec<bool> {
        let mut seen = vec![false; edges.len()];
        let mut next = vec![from];
        while let Some(node) = next.pop() {
            if !core::mem::replace(&mut seen[node as usize], true) {
                next.extend(&edges[node as usize]);
            }
        }
        seen
    }

    proptest! {
        #[test]
        fn the_component_is_reachable_and_whoever_is_in_it_reaches_exactly_it(
            edges in prop::collection::vec(prop::collection::vec(0..12u32, 0..3), 12),
            outside in 1..12u32,
        ) {
            let mut inside = edges.clone();
            inside.iter_mut().for_each(|to| to.retain(|to| *to != outside));
            let at = |node: u32| 3 * node..3 * node + edges[node as usize].len() as u32;
            let target = |place: u32| edges[(place / 3) as usize][(place % 3) as usize];
            let nodes = (0..12).map(|node| (node != outside).then(|| at(node)));
            let component = first_component(0, nodes, target);
            prop_assert!(reach(&inside, 0)[component[0] as usize]);
            for member in &component {
                let reached = reach(&inside, *member);
                prop_assert!((0..12).all(|node| reached[node as usize] == component.contains(&node)));
            }
        }
    }
}
