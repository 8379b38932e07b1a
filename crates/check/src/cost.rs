//! The fewest and the most messages over *all* complete executions: the shortest and the longest paths in the
//! state graph.
//!
//! A complete execution ends in a state without edges. If a kind of message is sent on a cycle, it has no
//! maximum. The minimum is a shortest path in any case.

use crate::components::components;
use crate::graph::Graph;
use crate::report::{CheckError, Costs, Extent};

/// The costs of all executions of a graph.
pub(crate) fn costs(graph: &Graph) -> Result<Costs, CheckError> {
    let mut named: Vec<_> =
        graph.kinds.iter().enumerate().map(|(kind, name)| (*name, extent(graph, Some(kind)))).collect();
    named.sort_unstable_by_key(|(name, _)| *name);
    let kinds: Option<Vec<_>> = named.into_iter().map(|(name, extent)| Some((name, extent?))).collect();
    let total = extent(graph, None).ok_or(CheckError::NeverEnds)?;
    Ok(Costs { states: graph.len() as u64, total, kinds: kinds.unwrap_or_default() })
}

/// Returns the extent of one kind, or of all kinds together; `None` if no execution ends.
fn extent(graph: &Graph, kind: Option<usize>) -> Option<Extent> {
    let charge = |edge: u32| {
        let bill = &graph.bills[graph.charges[edge as usize] as usize];
        kind.map_or_else(|| bill.iter().sum(), |kind| bill.get(kind).copied().unwrap_or(0))
    };
    let ends: Vec<_> = (0..graph.len() as u32).filter(|state| graph.edges(*state).is_empty()).collect();
    let least = least(graph, charge);
    let most = most(graph, charge);
    let min = ends.iter().map(|state| least[*state as usize]).min()?;
    let max = ends.iter().map(|state| most[*state as usize]).max()?;
    Some(Extent { min, max: (max != UNBOUNDED).then_some(max) })
}

const UNBOUNDED: u32 = u32::MAX;
const UNKNOWN: u32 = u32::MAX;

/// Returns the fewest messages on the way to each state, by Dial's algorithm with one bucket per cost.
fn least(graph: &Graph, charge: impl Fn(u32) -> u32) -> Vec<u32> {
    let mut least = vec![UNKNOWN; graph.len()];
    let mut buckets: Vec<Vec<u32>> = vec![graph.initial().collect()];
    for state in &buckets[0] {
        least[*state as usize] = 0;
    }
    let mut cost = 0;
    while cost < buckets.len() {
        while let Some(state) = buckets[cost].pop() {
            if least[state as usize] < cost as u32 {
                continue;
            }
            for edge in graph.edges(state) {
                let (to, sum) = (graph.end(edge), cost + charge(edge) as usize);
                if (sum as u32) < least[to as usize] {
                    least[to as usize] = sum as u32;
                    if buckets.len() <= sum {
                        buckets.resize(sum + 1, Vec::new());
                    }
                    buckets[sum].push(to);
                }
            }
        }
        buckets[cost] = Vec::new();
        cost += 1;
    }
    least
}

/// Returns the most messages on the way to each state, in topological order. A state on or after a cycle with
/// messages has no maximum. A cycle without messages changes nothing, and is passed once.
fn most(graph: &Graph, charge: impl Fn(u32) -> u32) -> Vec<u32> {
    // Edges lead to smaller numbers, so the largest component comes first.
    let found = components(graph, |_| true);
    let (component, parts) = (&found.of, found.len());
    let mut most = vec![0; parts];
    for part in (0..parts).rev() {
        let inside = |edge: u32| component[graph.end(edge) as usize] as usize == part;
        let edges = || found.members(part).iter().flat_map(|state| graph.edges(*state));
        if edges().any(|edge| inside(edge) && charge(edge) > 0) {
            most[part] = UNBOUNDED;
        }
        for edge in edges().filter(|edge| !inside(*edge)) {
            let to = component[graph.end(edge) as usize] as usize;
            most[to] = most[to].max(most[part].saturating_add(charge(edge)));
        }
    }
    component.iter().map(|part| most[*part as usize]).collect()
}
