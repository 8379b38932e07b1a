//! Strongly connected components [Tar72], in Gabow's path-based form. The call stack is stored as data, so a
//! path of a million nodes needs no deep recursion.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// Returns the component that is completed first in a search from `start`, sorted. No other component can be
/// reached from it.
///
/// `counts` states for each node whether it belongs to the graph. `edges(node)` is the range of its edges,
/// and `target(edge)` is the node to which an edge leads. The search ends with the first completed component,
/// so every seen node is still on the stack. So one number per node is enough. This matters because random
/// memory access determines the time.
pub(super) fn first_component(
    start: u32,
    counts: impl Iterator<Item = bool>,
    edges: impl Fn(u32) -> Range<u32>,
    target: impl Fn(u32) -> u32,
) -> Vec<u32> {
    let mut order: Vec<u32> = counts.map(|counts| if counts { UNSEEN } else { OUTSIDE }).collect();
    // For each node on the path: its number, and the edges that it has not followed.
    let mut path: Vec<(u32, Range<u32>)> = Vec::new();
    // The numbers at which the components on the path begin, as far as is known. Later edges may merge some
    // of them.
    let mut begins: Vec<u32> = Vec::new();
    let mut seen = 0;
    let mut enter = Some(start);
    loop {
        if let Some(node) = enter.take() {
            order[node as usize] = seen;
            begins.push(seen);
            path.push((seen, edges(node)));
            seen += 1;
        }
        let Some((own, ahead)) = path.last_mut() else { return Vec::new() };
        if let Some(place) = ahead.next() {
            let next = target(place);
            match order[next as usize] {
                OUTSIDE => {}
                UNSEEN => enter = Some(next),
                before => {
                    while begins.last().is_some_and(|begin| *begin > before) {
                        begins.pop();
                    }
                }
            }
            continue;
        }
        let begin = *own;
        path.pop();
        if begins.last() == Some(&begin) {
            let is_in = |(_, order): &(u32, &u32)| (begin..seen).contains(*order);
            return (0..).zip(&order).filter(is_in).map(|(node, _)| node).collect();
        }
    }
}

/// Returns the number of the component of each of `nodes` nodes. `edges` and `target` are as above.
pub(super) fn components(
    nodes: usize,
    edges: impl Fn(u32) -> Range<u32>,
    target: impl Fn(u32) -> u32,
) -> Vec<u32> {
    let mut component = vec![UNSEEN; nodes];
    // The index on the stack of each node that is on it.
    let mut order = vec![UNSEEN; nodes];
    let mut stack: Vec<u32> = Vec::new();
    let mut path: Vec<(u32, Range<u32>)> = Vec::new();
    let mut begins: Vec<u32> = Vec::new();
    let mut completed = 0;
    for start in 0..nodes as u32 {
        let mut enter = Some(start).filter(|start| order[*start as usize] == UNSEEN);
        loop {
            if let Some(node) = enter.take() {
                let place = stack.len() as u32;
                order[node as usize] = place;
                begins.push(place);
                stack.push(node);
                path.push((node, edges(node)));
            }
            let Some((node, ahead)) = path.last_mut() else { break };
            if let Some(place) = ahead.next() {
                let next = target(place);
                match order[next as usize] {
                    UNSEEN => enter = Some(next),
                    _ if component[next as usize] != UNSEEN => {}
                    before => {
                        while begins.last().is_some_and(|begin| *begin > before) {
                            begins.pop();
                        }
                    }
                }
                continue;
            }
            let begin = order[*node as usize];
            path.pop();
            if begins.pop_if(|last| *last == begin).is_some() {
                stack.drain(begin as usize..).for_each(|member| component[member as usize] = completed);
                completed += 1;
            }
        }
    }
    component
}

const OUTSIDE: u32 = u32::MAX - 1;
const UNSEEN: u32 = u32::MAX;

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
        fn nodes_are_in_one_component_if_each_reaches_the_other(
            edges in prop::collection::vec(prop::collection::vec(0..12u32, 0..3), 12),
        ) {
            let at = |node: u32| 3 * node..3 * node + edges[node as usize].len() as u32;
            let target = |place: u32| edges[(place / 3) as usize][(place % 3) as usize];
            let component = components(12, at, target);
            for a in 0..12 {
                for b in 0..12 {
                    let both = reach(&edges, a)[b as usize] && reach(&edges, b)[a as usize];
                    prop_assert_eq!(component[a as usize] == component[b as usize], both);
                }
            }
        }

        #[test]
        fn the_component_is_reachable_and_whoever_is_in_it_reaches_exactly_it(
            edges in prop::collection::vec(prop::collection::vec(0..12u32, 0..3), 12),
            outside in 1..12u32,
        ) {
            let mut inside = edges.clone();
            inside.iter_mut().for_each(|to| to.retain(|to| *to != outside));
            let at = |node: u32| 3 * node..3 * node + edges[node as usize].len() as u32;
            let target = |place: u32| edges[(place / 3) as usize][(place % 3) as usize];
            let component = first_component(0, (0..12).map(|node| node != outside), at, target);
            prop_assert!(component.is_sorted());
            prop_assert!(reach(&inside, 0)[component[0] as usize]);
            for member in &component {
                let reached = reach(&inside, *member);
                prop_assert!((0..12).all(|node| reached[node as usize] == component.contains(&node)));
            }
        }
    }
}
