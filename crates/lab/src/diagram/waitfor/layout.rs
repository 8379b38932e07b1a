//! Where the nodes of a wait-for graph stand: each connected part is a disc, with what explains the deadlock on a circle
//! in the middle and everything else on rings around it, by distance, each below the node that it hangs on.

use std::collections::VecDeque;
use std::f64::consts::TAU;

use super::{Graph, MARGIN};

/// Where everything stands, and how large the picture is.
pub(super) struct Placed {
    pub(super) at: Vec<(f64, f64)>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// How far rings are apart, and nodes on a ring.
const RING: f64 = 95.0;
const APART: f64 = 100.0;
/// Discs stand side by side up to this width, then in another row.
const MOST_WIDTH: f64 = 1_400.0;

pub(super) fn place(graph: &Graph) -> Placed {
    let neighbours = neighbours(graph);
    let mut at = vec![(0.0, 0.0); graph.nodes.len()];
    let mut part_of: Vec<bool> = vec![false; graph.nodes.len()];
    let (mut x, mut y, mut row_height, mut width) = (MARGIN, MARGIN, 0.0f64, 0.0f64);
    // Parts with an explanation first, as the graph lists them.
    let starts = graph.cores.iter().filter_map(|core| core.first().copied()).chain(0..graph.nodes.len());
    for start in starts {
        if part_of[start] {
            continue;
        }
        let members = reach(start, &neighbours, &mut part_of);
        let core = core(graph, &members, &neighbours);
        let disc = Disc::new(&core, &neighbours);
        if x > MARGIN && x + disc.width > MOST_WIDTH {
            (x, y, row_height) = (MARGIN, y + row_height + MARGIN, 0.0);
        }
        for (node, (dx, dy)) in disc.at {
            at[node] = (x + dx, y + dy);
        }
        x += disc.width + MARGIN;
        width = width.max(x);
        row_height = row_height.max(disc.height);
    }
    Placed { at, width, height: y + row_height + MARGIN }
}

fn neighbours(graph: &Graph) -> Vec<Vec<usize>> {
    let mut neighbours = vec![Vec::new(); graph.nodes.len()];
    for edge in graph.edges.iter().filter(|edge| edge.from != edge.to) {
        neighbours[edge.from].push(edge.to);
        neighbours[edge.to].push(edge.from);
    }
    neighbours
}

fn reach(start: usize, neighbours: &[Vec<usize>], seen: &mut [bool]) -> Vec<usize> {
    let mut members = vec![start];
    seen[start] = true;
    let mut next = 0;
    while next < members.len() {
        for &neighbour in &neighbours[members[next]] {
            if !std::mem::replace(&mut seen[neighbour], true) {
                members.push(neighbour);
            }
        }
        next += 1;
    }
    members
}

/// The first explanation within the part; without one, the node with the most neighbours.
fn core(graph: &Graph, members: &[usize], neighbours: &[Vec<usize>]) -> Vec<usize> {
    let explained = graph.cores.iter().find(|core| core.first().is_some_and(|first| members.contains(first)));
    explained.cloned().unwrap_or_else(|| {
        members
            .iter()
            .copied()
            .max_by_key(|node| (neighbours[*node].len(), usize::MAX - node))
            .into_iter()
            .collect()
    })
}

/// One connected part, its upper left corner at the origin.
struct Disc {
    at: Vec<(usize, (f64, f64))>,
    width: f64,
    height: f64,
}

impl Disc {
    fn new(core: &[usize], neighbours: &[Vec<usize>]) -> Self {
        let (order, parent, depth) = tree(core, neighbours);
        // How many leaves hang below each node: the share of the circle that it gets.
        let mut leaves = vec![0usize; order.len()];
        for index in (0..order.len()).rev() {
            leaves[index] = leaves[index].max(1);
            if let Some(above) = parent[index] {
                leaves[above] += leaves[index];
            }
        }
        let rings = depth.iter().max().map_or(1, |deepest| deepest + 1);
        let total: usize =
            (0..order.len()).filter(|index| parent[*index].is_none()).map(|index| leaves[index]).sum();
        let radii = radii(rings, total, &depth, core.len());
        let mut begins = vec![0.0; order.len()];
        let mut used = vec![0.0; order.len()];
        let mut free = 0.0;
        let mut at = Vec::with_capacity(order.len());
        for (index, &node) in order.iter().enumerate() {
            let share = leaves[index] as f64 / total as f64 * TAU;
            begins[index] = match parent[index] {
                None => {
                    free += share;
                    free - share
                }
                Some(above) => {
                    used[above] += share;
                    begins[above] + used[above] - share
                }
            };
            let (radius, angle) = (radii[depth[index]], begins[index] + share / 2.0 - TAU / 4.0);
            at.push((node, (radius * angle.cos(), radius * angle.sin())));
        }
        Self::cropped(at)
    }
}

impl Disc {
    /// Moved so that nothing but a margin for the nodes' own size is left on any side.
    fn cropped(mut at: Vec<(usize, (f64, f64))>) -> Self {
        const HALF: (f64, f64) = (66.0, 40.0);
        let fold = |pick: fn(&(f64, f64)) -> f64, better: fn(f64, f64) -> f64, start: f64| {
            at.iter().map(|(_, place)| pick(place)).fold(start, better)
        };
        let (left, right) = (fold(|at| at.0, f64::min, 0.0), fold(|at| at.0, f64::max, 0.0));
        let (top, bottom) = (fold(|at| at.1, f64::min, 0.0), fold(|at| at.1, f64::max, 0.0));
        for (_, place) in &mut at {
            *place = (place.0 - left + HALF.0, place.1 - top + HALF.1);
        }
        Self { at, width: right - left + 2.0 * HALF.0, height: bottom - top + 2.0 * HALF.1 }
    }
}

/// The nodes from the middle outwards, each with the index of the one it hangs on, and its ring.
fn tree(core: &[usize], neighbours: &[Vec<usize>]) -> (Vec<usize>, Vec<Option<usize>>, Vec<usize>) {
    let mut seen = vec![false; neighbours.len()];
    let (mut order, mut parent, mut depth) = (Vec::new(), Vec::new(), Vec::new());
    let mut queue = VecDeque::new();
    for &node in core {
        if !std::mem::replace(&mut seen[node], true) {
            queue.push_back(order.len());
            order.push(node);
            parent.push(None);
            depth.push(0);
        }
    }
    while let Some(index) = queue.pop_front() {
        for &neighbour in &neighbours[order[index]] {
            if !std::mem::replace(&mut seen[neighbour], true) {
                queue.push_back(order.len());
                order.push(neighbour);
                parent.push(Some(index));
                depth.push(depth[index] + 1);
            }
        }
    }
    (order, parent, depth)
}

/// How far out each ring lies: far enough for all the leaves to stand side by side.
fn radii(rings: usize, leaves: usize, depth: &[usize], core: usize) -> Vec<f64> {
    let mut radii: Vec<f64> = Vec::with_capacity(rings);
    for ring in 0..rings {
        let on_ring = depth.iter().filter(|depth| **depth == ring).count();
        let least = match ring {
            0 if core <= 1 => 0.0,
            0 => 55.0,
            _ => radii[ring - 1] + RING,
        };
        // Shares follow leaves, so a crowded wedge needs as much room as if all the ring were so crowded.
        let crowd = if ring == 0 { on_ring } else { leaves.min(2 * on_ring) };
        let room = if ring == 0 && core <= 1 { 0.0 } else { crowd as f64 * APART / TAU };
        radii.push(least.max(room));
    }
    radii
}
