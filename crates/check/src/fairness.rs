//! Sites that wait for ever in a fair execution.
//!
//! An infinite execution is *weakly fair* if a step that stays possible from some moment on is taken again
//! and again. A request starves if it waits for ever in a fair execution. The number of states is finite, so
//! there is such an execution exactly if there is a fair cycle on which the request waits throughout.
//!
//! **Rules**: take the states in which an obligation is open, and *only* the edges between them. Find the
//! strongly connected components. A component is fair if each fair action is impossible in one of its states,
//! or taken on one of its edges. For weak fairness the largest components are enough: an action that is
//! always possible and never taken in the whole has the same property in each part.
//!
//! **Traps** of other checkers. They report a cycle that is not fair. They test the fairness of the component
//! of the whole graph, which leaves the waiting and comes back. They count a step without change as progress;
//! here such a step is no edge. They print a cycle that is no path.
//!
//! An obligation that is met may also open again for ever, like the seat of a leader that gives it up after
//! every election. Such a cycle lies in a fair component of the whole graph, in which the obligation is open in
//! some states and met in others. An execution that goes round the whole component is fair.
//!
//! A timer that is armed again before it fires is postponed, not neglected. Such an edge counts as taking the
//! timer.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::components::{Components, components};
use crate::explore::Waypoint;
use crate::graph::Graph;

/// A fair cycle on which a site waits for ever.
pub(crate) struct Lasso {
    /// The bit of the obligation.
    pub(crate) bit: u32,
    /// The path from the start into the cycle and once round it.
    pub(crate) path: Vec<Waypoint>,
    /// The number of steps before the cycle.
    pub(crate) repeats_after: usize,
}

/// Returns a fair cycle on which an obligation stays open, if there is one.
pub(crate) fn starvation(graph: &Graph) -> Option<Lasso> {
    if graph.is_surely_acyclic() {
        return None;
    }
    let put_off = postponed(graph);
    let open = graph.ever_pending();
    (0..u64::BITS).filter(|bit| open >> bit & 1 == 1).find_map(|bit| {
        let found = components(graph, |state| graph.pending(state) >> bit & 1 == 1);
        cyclic(&found).into_iter().find_map(|states| {
            let part = Part { graph, component: &found.of, states, put_off: &put_off };
            part.is_fair().then(|| part.lasso(bit, &[]))
        })
    })
}

/// Returns a fair cycle on which an obligation is met and opens again, if there is one.
pub(crate) fn instability(graph: &Graph) -> Option<Lasso> {
    if graph.is_surely_acyclic() {
        return None;
    }
    let put_off = postponed(graph);
    let found = components(graph, |_| true);
    cyclic(&found).into_iter().find_map(|states| {
        let both = |(all, some), state: &u32| (all & graph.pending(*state), some | graph.pending(*state));
        let (all, some) = states.iter().fold((!0, 0), both);
        // The obligations that are open in some states of the component and met in others.
        let changing: u64 = some & !all;
        let bit = (changing != 0).then(|| changing.trailing_zeros())?;
        let part = Part { graph, component: &found.of, states, put_off: &put_off };
        let is_open = |state: &&u32| graph.pending(**state) >> bit & 1 == 1;
        let stops = [states.iter().find(is_open), states.iter().find(|state| !is_open(state))];
        part.is_fair().then(|| part.lasso(bit, &stops.into_iter().flatten().copied().collect::<Vec<_>>()))
    })
}

/// Returns the components with a cycle, in the order of their first states.
fn cyclic(found: &Components) -> Vec<&[u32]> {
    // Steps without change are no edges, so a component of one state has no cycle.
    let members = (0..found.len()).map(|component| found.members(component));
    let mut cyclic: Vec<_> = members.filter(|states| states.len() > 1).collect();
    cyclic.sort_unstable_by_key(|states| states[0]);
    cyclic
}

/// Returns the timers that each edge postpones.
fn postponed(graph: &Graph) -> HashMap<u32, Vec<u32>> {
    let mut put_off: HashMap<u32, Vec<u32>> = HashMap::new();
    for (edge, action) in &graph.put_off {
        put_off.entry(*edge).or_default().push(*action);
    }
    put_off
}

/// One component, and its part of the graph.
struct Part<'g> {
    graph: &'g Graph,
    component: &'g [u32],
    states: &'g [u32],
    put_off: &'g HashMap<u32, Vec<u32>>,
}

impl Part<'_> {
    fn is_fair(&self) -> bool {
        let mut possible: HashMap<u32, usize> = HashMap::new();
        for state in self.states {
            for action in self.possible(*state) {
                *possible.entry(action).or_default() += 1;
            }
        }
        let taken: BTreeSet<u32> = self.inner_edges().flat_map(|edge| self.taken(edge)).collect();
        possible.into_iter().all(|(action, times)| times < self.states.len() || taken.contains(&action))
    }

    /// Returns the fair actions that are possible in a state, in the whole graph.
    fn possible(&self, state: u32) -> BTreeSet<u32> {
        self.graph.edges(state).filter_map(|edge| self.graph.fair(edge)).collect()
    }

    /// Returns the fair actions that an edge takes or postpones.
    fn taken(&self, edge: u32) -> impl Iterator<Item = u32> + '_ {
        let put_off = self.put_off.get(&edge).into_iter().flatten().copied();
        self.graph.fair(edge).into_iter().chain(put_off)
    }

    fn inner_edges(&self) -> impl Iterator<Item = u32> + '_ {
        self.states.iter().flat_map(|state| self.edges_within(*state))
    }

    fn edges_within(&self, state: u32) -> impl Iterator<Item = u32> + '_ {
        let component = self.component[state as usize];
        self.graph
            .edges(state)
            .filter(move |edge| self.component[self.graph.end(*edge) as usize] == component)
    }

    /// Returns the path into the component and a fair cycle in it that passes all `stops`.
    fn lasso(&self, bit: u32, stops: &[u32]) -> Lasso {
        // The numbers of states grow with their distance from the start.
        let entry = self.states[0];
        let mut cycle: Vec<(u32, u32)> = Vec::new();
        let mut here = entry;
        let actions: BTreeSet<u32> = self.states.iter().flat_map(|state| self.possible(*state)).collect();
        for action in actions {
            let owed = self.possible(here).contains(&action)
                && cycle.iter().all(|(from, edge)| {
                    self.possible(*from).contains(&action) && self.taken(*edge).all(|taken| taken != action)
                });
            if owed {
                here = self.go(here, &mut cycle, |edge, to| {
                    self.taken(edge).any(|taken| taken == action) || !self.possible(to).contains(&action)
                });
            }
        }
        for stop in stops {
            if here != *stop && cycle.iter().all(|(from, _)| from != stop) {
                here = self.go(here, &mut cycle, |_, to| to == *stop);
            }
        }
        if here != entry || cycle.is_empty() {
            self.go(here, &mut cycle, |_, to| to == entry);
        }
        let mut path = self.graph.path(entry);
        let repeats_after = path.len() - 1;
        path.extend(cycle.iter().map(|(_, edge)| {
            let fair = self.graph.fair(*edge).map(|action| self.graph.actions[action as usize]);
            Waypoint { fair, ..Waypoint::plain(self.graph.fingerprint(self.graph.end(*edge))) }
        }));
        Lasso { bit, path, repeats_after }
    }

    /// Walks within the component to the nearest edge that fits, and returns the state at its end.
    fn go(&self, from: u32, walked: &mut Vec<(u32, u32)>, wanted: impl Fn(u32, u32) -> bool) -> u32 {
        let mut reached: HashMap<u32, (u32, u32)> = HashMap::new();
        let mut queue = VecDeque::from([from]);
        while let Some(state) = queue.pop_front() {
            for edge in self.edges_within(state) {
                let to = self.graph.end(edge);
                if wanted(edge, to) {
                    let mut way = vec![(state, edge)];
                    let mut back = state;
                    while back != from {
                        way.push(reached[&back]);
                        back = reached[&back].0;
                    }
                    walked.extend(way.into_iter().rev());
                    return to;
                }
                if to != from && !reached.contains_key(&to) {
                    reached.insert(to, (state, edge));
                    queue.push_back(to);
                }
            }
        }
        unreachable!("a component is strongly connected and has such an edge")
    }
}
