//! The places of the nodes of a wait-for graph, and the ways of its arrows, in layers.
//!
//! Each connected part is laid out on its own, as Sugiyama, Tagawa and Toda describe it. Arrows point down
//! from layer to layer; of each cycle, one arrow points up. An arrow over several layers passes through a
//! place of its own in each of them. So no two nodes overlap, and no arrow passes through a node.

use super::Scene;
use super::render::{MARGIN, half_size};

/// The places of all nodes and arrows, and the size of the picture.
pub(super) struct Placed {
    pub(super) at: Vec<(f64, f64)>,
    /// The points through which each arrow passes, without its ends at the two nodes.
    pub(super) ways: Vec<Vec<(f64, f64)>>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// The distance from one layer to the next.
const LAYER: f64 = 70.0;
/// The free space between two nodes of a layer.
const APART: f64 = 26.0;
/// Half of the width that an arrow takes in a layer that it passes.
const PASSAGE: f64 = 8.0;
/// Parts stand side by side up to this width, then in another row.
const MOST_WIDTH: f64 = 1_400.0;
/// The number of passes that order the layers, and of those that move the nodes.
const SWEEPS: usize = 24;

pub(super) fn place(scene: &Scene) -> Placed {
    let mut placed = Placed {
        at: vec![(0.0, 0.0); scene.nodes.len()],
        ways: vec![Vec::new(); scene.edges.len()],
        width: 0.0,
        height: 0.0,
    };
    let (mut x, mut y, mut row_height) = (MARGIN, MARGIN, 0.0_f64);
    for members in parts(scene) {
        let part = Part::new(scene, &members);
        let (width, height) = part.size();
        if x > MARGIN && x + width > MOST_WIDTH {
            (x, y, row_height) = (MARGIN, y + row_height + MARGIN, 0.0);
        }
        part.write((x, y), &mut placed);
        x += width + MARGIN;
        placed.width = placed.width.max(x);
        row_height = row_height.max(height);
    }
    placed.height = y + row_height + MARGIN;
    placed
}

/// The connected parts of the graph, those with an explanation first.
fn parts(scene: &Scene) -> Vec<Vec<usize>> {
    let mut neighbours = vec![Vec::new(); scene.nodes.len()];
    for edge in &scene.edges {
        neighbours[edge.from].push(edge.to);
        neighbours[edge.to].push(edge.from);
    }
    let mut seen = vec![false; scene.nodes.len()];
    let mut parts = Vec::new();
    for start in scene.cores.iter().flatten().copied().chain(0..scene.nodes.len()) {
        if std::mem::replace(&mut seen[start], true) {
            continue;
        }
        let mut members = vec![start];
        let mut next = 0;
        while next < members.len() {
            for &neighbour in &neighbours[members[next]] {
                if !std::mem::replace(&mut seen[neighbour], true) {
                    members.push(neighbour);
                }
            }
            next += 1;
        }
        parts.push(members);
    }
    parts
}

/// One connected part: its nodes, and a passage for each arrow in each layer that it crosses.
struct Part {
    spots: Vec<Spot>,
    layers: Vec<Vec<usize>>,
    /// The passages of each arrow, from top to bottom.
    passages: Vec<(usize, Vec<usize>)>,
    /// The arrows that point up.
    upward: Vec<usize>,
}

/// A node, or the passage of an arrow through a layer.
struct Spot {
    node: Option<usize>,
    half_width: f64,
    layer: usize,
    x: f64,
    above: Vec<usize>,
    below: Vec<usize>,
}

impl Part {
    fn new(scene: &Scene, members: &[usize]) -> Self {
        let arrows = Arrows::new(scene, members);
        let layer_of = arrows.layers();
        let mut part =
            Self { spots: Vec::new(), layers: Vec::new(), passages: Vec::new(), upward: Vec::new() };
        for (spot, node) in members.iter().enumerate() {
            let half_width = half_size(&scene.nodes[*node]).0;
            part.add(Some(*node), half_width, layer_of[spot]);
        }
        for arrow in arrows.arrows {
            if arrow.is_reversed {
                part.upward.push(arrow.edge);
            }
            let mut passages = Vec::new();
            let mut last = arrow.top;
            for layer in layer_of[arrow.top] + 1..layer_of[arrow.bottom] {
                let passage = part.add(None, PASSAGE, layer);
                part.join(last, passage);
                passages.push(passage);
                last = passage;
            }
            part.join(last, arrow.bottom);
            part.passages.push((arrow.edge, passages));
        }
        part.order();
        part.align();
        part
    }

    fn add(&mut self, node: Option<usize>, half_width: f64, layer: usize) -> usize {
        let spot = self.spots.len();
        if self.layers.len() <= layer {
            self.layers.resize(layer + 1, Vec::new());
        }
        self.layers[layer].push(spot);
        self.spots.push(Spot { node, half_width, layer, x: 0.0, above: Vec::new(), below: Vec::new() });
        spot
    }

    fn join(&mut self, above: usize, below: usize) {
        self.spots[above].below.push(below);
        self.spots[below].above.push(above);
    }

    /// Orders each layer by the mean place of the neighbours, and keeps the order with the fewest crossings.
    fn order(&mut self) {
        let mut best = (self.crossings(), self.layers.clone());
        for sweep in 0..SWEEPS {
            let downwards = sweep % 2 == 0;
            let mut place = vec![0.0; self.spots.len()];
            let count = self.layers.len();
            for step in 0..count {
                let layer = if downwards { step } else { count - 1 - step };
                for (rank, spot) in self.layers[layer].iter().enumerate() {
                    place[*spot] = rank as f64;
                }
                let mean = |spot: &usize| {
                    let found = &self.spots[*spot];
                    let near = if downwards { &found.above } else { &found.below };
                    match near.len() {
                        0 => place[*spot],
                        many => near.iter().map(|near| place[*near]).sum::<f64>() / many as f64,
                    }
                };
                let mut ranked: Vec<(f64, usize)> =
                    self.layers[layer].iter().map(|spot| (mean(spot), *spot)).collect();
                ranked.sort_by(|one, other| one.0.total_cmp(&other.0));
                for (rank, (_, spot)) in ranked.iter().enumerate() {
                    place[*spot] = rank as f64;
                }
                self.layers[layer] = ranked.into_iter().map(|(_, spot)| spot).collect();
            }
            let crossings = self.crossings();
            if crossings < best.0 {
                best = (crossings, self.layers.clone());
            }
        }
        self.layers = best.1;
    }

    /// The number of pairs of arrows that cross between two layers.
    fn crossings(&self) -> usize {
        let mut rank = vec![0; self.spots.len()];
        for layer in &self.layers {
            layer.iter().enumerate().for_each(|(place, spot)| rank[*spot] = place);
        }
        let mut crossings = 0;
        for layer in &self.layers {
            let ends = layer.iter().flat_map(|top| {
                let rank = &rank;
                self.spots[*top].below.iter().map(move |bottom| (rank[*top], rank[*bottom]))
            });
            let ends: Vec<_> = ends.collect();
            for (index, one) in ends.iter().enumerate() {
                let crosses = |other: &&(usize, usize)| {
                    (one.0 < other.0 && one.1 > other.1) || (one.0 > other.0 && one.1 < other.1)
                };
                crossings += ends[index + 1..].iter().filter(crosses).count();
            }
        }
        crossings
    }

    /// Moves every spot towards its neighbours, as far as the order and the widths allow it.
    fn align(&mut self) {
        for layer in 0..self.layers.len() {
            let wanted = vec![0.0; self.layers[layer].len()];
            self.spread(layer, &wanted);
        }
        for sweep in 0..SWEEPS {
            let count = self.layers.len();
            for step in 0..count {
                let layer = if sweep % 2 == 0 { step } else { count - 1 - step };
                let wanted: Vec<f64> = self.layers[layer].iter().map(|spot| self.wanted(*spot)).collect();
                self.spread(layer, &wanted);
            }
        }
    }

    /// The place between the neighbours of a spot. An arrow over several layers should be straight, so the
    /// neighbours of a passage that are passages weigh more.
    fn wanted(&self, spot: usize) -> f64 {
        const STRAIGHT: f64 = 8.0;
        let found = &self.spots[spot];
        let (mut sum, mut weights) = (0.0, 0.0);
        for near in found.above.iter().chain(&found.below).map(|near| &self.spots[*near]) {
            let weight = if found.node.is_none() && near.node.is_none() { STRAIGHT } else { 1.0 };
            (sum, weights) = (sum + weight * near.x, weights + weight);
        }
        if weights > 0.0 { sum / weights } else { found.x }
    }

    /// Puts the spots of a layer near the wanted places without overlaps: the mean of the solution that moves
    /// them only to the right and of the one that moves them only to the left.
    fn spread(&mut self, layer: usize, wanted: &[f64]) {
        let spots = &self.layers[layer];
        let apart = |one: usize, other: usize| {
            let gap = match (self.spots[one].node, self.spots[other].node) {
                (None, None) => APART / 2.0,
                _ => APART,
            };
            self.spots[one].half_width + self.spots[other].half_width + gap
        };
        let (mut right, mut left) = (wanted.to_vec(), wanted.to_vec());
        for index in 1..spots.len() {
            right[index] = right[index].max(right[index - 1] + apart(spots[index - 1], spots[index]));
        }
        for index in (1..spots.len()).rev() {
            left[index - 1] = left[index - 1].min(left[index] - apart(spots[index - 1], spots[index]));
        }
        let places: Vec<f64> =
            right.iter().zip(&left).map(|(right, left)| f64::midpoint(*right, *left)).collect();
        for (spot, x) in spots.clone().into_iter().zip(places) {
            self.spots[spot].x = x;
        }
    }

    fn left(&self) -> f64 {
        self.spots.iter().map(|spot| spot.x - spot.half_width).fold(f64::INFINITY, f64::min)
    }

    fn size(&self) -> (f64, f64) {
        let right = self.spots.iter().map(|spot| spot.x + spot.half_width).fold(f64::NEG_INFINITY, f64::max);
        (right - self.left() + 24.0, (self.layers.len() - 1) as f64 * LAYER + 64.0)
    }

    /// Writes the places of the part, whose upper left corner is given.
    fn write(&self, (x, y): (f64, f64), placed: &mut Placed) {
        let left = self.left();
        let at = |spot: &Spot| (x + 12.0 + spot.x - left, y + 32.0 + spot.layer as f64 * LAYER);
        for spot in &self.spots {
            if let Some(node) = spot.node {
                placed.at[node] = at(spot);
            }
        }
        for (edge, passages) in &self.passages {
            let mut way: Vec<_> = passages.iter().map(|spot| at(&self.spots[*spot])).collect();
            if self.upward.contains(edge) {
                way.reverse();
            }
            placed.ways[*edge] = way;
        }
    }
}

/// The arrows of a part without loops, so directed that they have no cycle.
struct Arrows {
    arrows: Vec<Arrow>,
    spots: usize,
}

/// An arrow between two spots, which are numbered by their place in the list of members.
struct Arrow {
    edge: usize,
    top: usize,
    bottom: usize,
    is_reversed: bool,
}

impl Arrows {
    /// Reverses the arrows that lead back to a node of the path on which they were found.
    fn new(scene: &Scene, members: &[usize]) -> Self {
        let mut number = vec![usize::MAX; scene.nodes.len()];
        for (spot, node) in members.iter().enumerate() {
            number[*node] = spot;
        }
        let mut out: Vec<Vec<(usize, usize)>> = vec![Vec::new(); members.len()];
        for (edge, found) in scene.edges.iter().enumerate() {
            if found.from != found.to && number[found.from] != usize::MAX {
                out[number[found.from]].push((edge, number[found.to]));
            }
        }
        // 0: not seen, 1: on the path, 2: done.
        let mut state = vec![0_u8; members.len()];
        let mut arrows = Vec::new();
        for start in 0..members.len() {
            if state[start] != 0 {
                continue;
            }
            state[start] = 1;
            let mut path = vec![(start, 0)];
            while let Some((spot, next)) = path.last_mut() {
                let Some((edge, to)) = out[*spot].get(*next).copied() else {
                    state[*spot] = 2;
                    path.pop();
                    continue;
                };
                *next += 1;
                let is_reversed = state[to] == 1;
                let (top, bottom) = if is_reversed { (to, *spot) } else { (*spot, to) };
                arrows.push(Arrow { edge, top, bottom, is_reversed });
                if state[to] == 0 {
                    state[to] = 1;
                    path.push((to, 0));
                }
            }
        }
        Self { arrows, spots: members.len() }
    }

    /// The layer of each spot: below all spots above it, and no farther up than necessary.
    fn layers(&self) -> Vec<usize> {
        let mut below: Vec<Vec<usize>> = vec![Vec::new(); self.spots];
        let mut missing = vec![0_usize; self.spots];
        for arrow in &self.arrows {
            below[arrow.top].push(arrow.bottom);
            missing[arrow.bottom] += 1;
        }
        let is_source: Vec<bool> = missing.iter().map(|missing| *missing == 0).collect();
        let mut layer = vec![0_usize; self.spots];
        let mut ready: Vec<usize> = (0..self.spots).filter(|spot| is_source[*spot]).collect();
        while let Some(spot) = ready.pop() {
            for &next in &below[spot] {
                layer[next] = layer[next].max(layer[spot] + 1);
                missing[next] -= 1;
                if missing[next] == 0 {
                    ready.push(next);
                }
            }
        }
        for spot in (0..self.spots).filter(|spot| is_source[*spot]) {
            if let Some(nearest) = below[spot].iter().map(|next| layer[*next]).min() {
                layer[spot] = nearest - 1;
            }
        }
        layer
    }
}
