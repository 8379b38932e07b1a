//! The strongly connected components of the state graph, or of a part of it, by Tarjan's algorithm. It has a
//! stack of its own, because a graph can be deeper than the stack of a thread.

use crate::graph::Graph;

/// The components.
pub(crate) struct Components {
    /// The component of each state; [`OUTSIDE`] if the state is not in the part. An edge leads to the same
    /// component or to a smaller number.
    pub(crate) of: Vec<u32>,
    /// The states, component by component, and those of one component in ascending order.
    states: Vec<u32>,
    /// The place after the last state of each component.
    ends: Vec<u32>,
}

impl Components {
    /// Returns the number of components.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the states of a component, in ascending order.
    pub(crate) fn members(&self, component: usize) -> &[u32] {
        let start = component.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.states[start as usize..self.ends[component] as usize]
    }
}

/// A state that does not belong to the part.
pub(crate) const OUTSIDE: u32 = u32::MAX;
const UNSEEN: u32 = u32::MAX;

/// Returns the components of the states that are `inside`, with the edges between them.
pub(crate) fn components(graph: &Graph, inside: impl Fn(u32) -> bool) -> Components {
    let mut search = Tarjan {
        order: vec![UNSEEN; graph.len()],
        low: vec![0; graph.len()],
        next: 0,
        stack: Vec::new(),
        found: Components { of: vec![OUTSIDE; graph.len()], states: Vec::new(), ends: Vec::new() },
    };
    let mut calls = Vec::new();
    for root in (0..graph.len() as u32).filter(|state| inside(*state)) {
        if search.order[root as usize] == UNSEEN {
            search.enter(root);
            calls.push((root, graph.edges(root)));
        }
        while let Some((state, edges)) = calls.last_mut() {
            let state = *state;
            match edges.next().map(|edge| graph.end(edge)) {
                Some(to) if !inside(to) => {}
                Some(to) if search.order[to as usize] == UNSEEN => {
                    search.enter(to);
                    calls.push((to, graph.edges(to)));
                }
                Some(to) if search.found.of[to as usize] == OUTSIDE => {
                    search.lower(state, search.order[to as usize]);
                }
                Some(_) => {}
                None => {
                    calls.pop();
                    search.leave(state);
                    if let Some((caller, _)) = calls.last() {
                        search.lower(*caller, search.low[state as usize]);
                    }
                }
            }
        }
    }
    search.found
}

struct Tarjan {
    order: Vec<u32>,
    low: Vec<u32>,
    next: u32,
    stack: Vec<u32>,
    found: Components,
}

impl Tarjan {
    fn enter(&mut self, state: u32) {
        self.order[state as usize] = self.next;
        self.low[state as usize] = self.next;
        self.next += 1;
        self.stack.push(state);
    }

    fn lower(&mut self, state: u32, to: u32) {
        let low = &mut self.low[state as usize];
        *low = to.min(*low);
    }

    /// Ends a state whose edges are all done. It may be the first state of its component.
    fn leave(&mut self, state: u32) {
        if self.low[state as usize] != self.order[state as usize] {
            return;
        }
        let number = self.found.len() as u32;
        let start = self.stack.iter().rposition(|member| *member == state).expect("it is on the stack");
        let members = &mut self.stack[start..];
        members.sort_unstable();
        for member in &*members {
            self.found.of[*member as usize] = number;
        }
        self.found.states.extend_from_slice(members);
        self.found.ends.push(self.found.states.len() as u32);
        self.stack.truncate(start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computes the states that each state reaches, by trying all paths.
    fn reach(graph: &Graph, inside: &[bool]) -> Vec<Vec<bool>> {
        let nodes = graph.len();
        (0..nodes)
            .map(|from| {
                let mut reached = vec![false; nodes];
                let mut open = if inside[from] { vec![from as u32] } else { Vec::new() };
                while let Some(state) = open.pop() {
                    if !std::mem::replace(&mut reached[state as usize], true) {
                        let ends = graph.edges(state).map(|edge| graph.end(edge));
                        open.extend(ends.filter(|to| inside[*to as usize]));
                    }
                }
                reached
            })
            .collect()
    }

    proptest! {
        #[test]
        fn two_states_share_a_component_if_each_reaches_the_other(
            ends in proptest::collection::vec((0u32..12, 0u32..12), 0..40),
            inside in proptest::collection::vec(proptest::bool::weighted(0.8), 12),
        ) {
            let graph = Graph::of_edges(12, &ends);
            let reach = reach(&graph, &inside);
            let found = components(&graph, |state| inside[state as usize]);
            for (a, b) in (0..144).map(|pair| (pair / 12, pair % 12)) {
                let together = found.of[a] == found.of[b] && found.of[a] != OUTSIDE;
                prop_assert_eq!(together, reach[a][b] && reach[b][a]);
                if reach[a][b] {
                    prop_assert!(found.of[a] >= found.of[b], "edges lead to smaller numbers");
                }
            }
        }
    }
}
