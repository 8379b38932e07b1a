//! The SVG of a wait-for graph.

use std::collections::BTreeMap;

use super::{Edge, Fate, Node, NodeKind, Scene, layout, put};
use crate::diagram::svg::{
    ALARM, Anchor, BODY, INK, LINE, Num, PAPER, SMALL, SOFT, Svg, TINY, TITLE, Type, fit, width_of,
};

pub(super) const MARGIN: f64 = 24.0;
const HEADER: f64 = 70.0;
const FOOTER: f64 = 68.0;
const NODE_HEIGHT: f64 = 26.0;
const MOST_NAME_WIDTH: f64 = 170.0;

/// Draws a scene as an SVG file.
pub fn render(scene: &Scene) -> String {
    let placed = layout::place(scene);
    let width = placed.width.max(width_of(&scene.title, TITLE) + 2.0 * MARGIN).max(640.0);
    let height = placed.height + HEADER + FOOTER;
    let mut svg = Svg::new(width, height, &scene.title);
    svg.text(&Type::new(TITLE, INK).weighing(600), MARGIN, 34.0, &scene.title);
    svg.text(&Type::new(BODY, SOFT), MARGIN, 56.0, &fit(&scene.subtitle, BODY, width - 2.0 * MARGIN));
    let at: Vec<_> = placed.at.iter().map(|(x, y)| (*x, y + HEADER)).collect();
    let ports = Ports::new(scene, &at, &placed.ways);
    let ways: Vec<_> = (0..scene.edges.len()).map(|edge| ports.way(edge, &placed.ways[edge])).collect();
    for (edge, way) in scene.edges.iter().zip(&ways) {
        if edge.from != edge.to && is_core(scene, edge) {
            svg.raw(format_args!("<path class=\"core\" d=\"{}\" {BAND}/>", path(way)));
        }
    }
    for (edge, way) in scene.edges.iter().zip(&ways) {
        draw_edge(&mut svg, scene, &at, edge, way);
    }
    for (node, at) in scene.nodes.iter().zip(&at) {
        draw_node(&mut svg, node, *at);
    }
    legend(&mut svg, height - 18.0);
    svg.finish()
}

/// The look of the band below the explanation of a deadlock.
const BAND: &str = "fill=\"none\" stroke=\"#f6c9c5\" stroke-width=\"13\" stroke-linecap=\"round\"";

/// Whether an arrow belongs to an explanation of a deadlock.
fn is_core(scene: &Scene, edge: &Edge) -> bool {
    edge.is_stuck && scene.nodes[edge.from].in_core && scene.nodes[edge.to].in_core
}

/// One end of an arrow at a node.
struct End {
    /// The horizontal place to which the arrow leads from here.
    towards: f64,
    edge: usize,
    is_start: bool,
}

/// The places on the boxes of nodes where arrows begin and end, side by side.
struct Ports {
    starts: Vec<(f64, f64)>,
    ends: Vec<(f64, f64)>,
}

impl Ports {
    fn new(scene: &Scene, at: &[(f64, f64)], ways: &[Vec<(f64, f64)>]) -> Self {
        let mut ports = Self { starts: at_edges(scene, at, true), ends: at_edges(scene, at, false) };
        // For each side of each node: the ends of its arrows.
        let mut sides: BTreeMap<(usize, bool), Vec<End>> = BTreeMap::new();
        for (number, edge) in scene.edges.iter().enumerate().filter(|(_, edge)| edge.from != edge.to) {
            let (from, to) = (at[edge.from], at[edge.to]);
            let next = ways[number].first().map_or(to, |(x, y)| (*x, y + HEADER));
            let last = ways[number].last().map_or(from, |(x, y)| (*x, y + HEADER));
            sides.entry((edge.from, next.1 > from.1)).or_default().push(End {
                towards: next.0,
                edge: number,
                is_start: true,
            });
            sides.entry((edge.to, last.1 > to.1)).or_default().push(End {
                towards: last.0,
                edge: number,
                is_start: false,
            });
        }
        for ((node, is_below), mut arrows) in sides {
            arrows.sort_by(|one, other| one.towards.total_cmp(&other.towards));
            let (half_width, half_height) = half_size(&scene.nodes[node]);
            let y = at[node].1 + if is_below { half_height } else { -half_height };
            let room = match scene.nodes[node].kind {
                NodeKind::Gate => 4.0,
                _ => half_width * 0.6,
            };
            let step = (2.0 * room / arrows.len() as f64).min(16.0);
            let first = at[node].0 - step * (arrows.len() - 1) as f64 / 2.0;
            for (place, End { edge, is_start, .. }) in arrows.into_iter().enumerate() {
                let ends = if is_start { &mut ports.starts } else { &mut ports.ends };
                ends[edge] = (first + step * place as f64, y);
            }
        }
        ports
    }

    /// The points of an arrow from its start to its end.
    fn way(&self, edge: usize, through: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let through = through.iter().map(|(x, y)| (*x, y + HEADER));
        [self.starts[edge]].into_iter().chain(through).chain([self.ends[edge]]).collect()
    }
}

/// The middles of the nodes at which the arrows begin, or end.
fn at_edges(scene: &Scene, at: &[(f64, f64)], is_start: bool) -> Vec<(f64, f64)> {
    scene.edges.iter().map(|edge| at[if is_start { edge.from } else { edge.to }]).collect()
}

/// A smooth way through points, which leaves and reaches each of them vertically.
fn path(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        match index.checked_sub(1).map(|before| points[before]) {
            None => put(&mut path, format_args!("M{} {}", Num(*x), Num(*y))),
            Some((from, above)) => {
                let middle = Num(f64::midpoint(above, *y));
                put(
                    &mut path,
                    format_args!("C{} {middle} {} {middle} {} {}", Num(from), Num(*x), Num(*x), Num(*y)),
                );
            }
        }
    }
    path
}

fn draw_node(svg: &mut Svg, node: &Node, at: (f64, f64)) {
    let name = fit(&node.name, BODY, MOST_NAME_WIDTH);
    let (half_width, half_height) = half_size(node);
    let (fill, stroke, ink) = match (node.fate, node.kind) {
        (Fate::Victim, _) => (ALARM, ALARM, PAPER),
        (Fate::Stuck, _) => ("#fdecea", ALARM, ALARM),
        (Fate::Runs, NodeKind::Process) => ("#eef4fa", "#0072b2", INK),
        (Fate::Runs, _) => ("#f4f5f7", LINE, INK),
    };
    let class = match node.kind {
        NodeKind::Process => "process",
        NodeKind::Resource => "resource",
        NodeKind::Gate => "gate",
    };
    svg.open(&format!("class=\"node {class}\""));
    svg.tooltip(&node.tooltip);
    let look = format!("fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"1.5\"");
    let (x, y) = at;
    let size = match node.kind {
        NodeKind::Gate => {
            let corners =
                [(x, y - half_height), (x + half_width, y), (x, y + half_height), (x - half_width, y)];
            svg.polyline(&[corners[0], corners[1], corners[2], corners[3], corners[0]], &look);
            TINY
        }
        kind => {
            let radius = if kind == NodeKind::Process { half_height } else { 2.0 };
            let look = format!("rx=\"{}\" {look}", Num(radius));
            svg.rect(x - half_width, y - half_height, 2.0 * half_width, 2.0 * half_height, &look);
            BODY
        }
    };
    let type_ = Type { fill: ink, ..Type::new(size, INK).anchored(Anchor::Middle) };
    svg.text(&type_, x, y + size * 0.36, &name);
    svg.close();
}

fn draw_edge(svg: &mut Svg, scene: &Scene, at: &[(f64, f64)], edge: &Edge, way: &[(f64, f64)]) {
    let colour = if edge.is_stuck { ALARM } else { SOFT };
    let dashes = match edge.is_certain {
        true => "",
        false => " stroke-dasharray=\"1.5 4\" stroke-linecap=\"round\"",
    };
    let width = if is_core(scene, edge) { 2.2 } else { 1.4 };
    let stroke = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{dashes}");
    let filled = format!("fill=\"{colour}\"");
    svg.open("class=\"edge\"");
    if edge.from == edge.to {
        let (half_width, half_height) = half_size(&scene.nodes[edge.from]);
        let (x, y) = at[edge.from];
        let (x, y) = (x + half_width * 0.4, y - half_height);
        svg.curve((x - 14.0, y), [(x - 20.0, y - 34.0), (x + 26.0, y - 34.0)], (x + 10.0, y - 3.0), &stroke);
        svg.head((x + 18.0, y - 22.0), (x + 9.0, y), 8.0, &filled);
    } else if let [.., before, end] = way {
        let side = if end.1 > before.1 { -1.0 } else { 1.0 };
        let mut shaft = way.to_vec();
        *shaft.last_mut().expect("a way has two ends") = (end.0, end.1 + 7.0 * side);
        svg.raw(format_args!("<path d=\"{}\" {stroke}/>", path(&shaft)));
        svg.head((end.0, end.1 + 20.0 * side), *end, 9.0, &filled);
        if !edge.label.is_empty() {
            let (x, y) = way[0];
            let place = (x + (way[1].0 - x) * 0.3, y + (way[1].1 - y) * 0.42);
            let words = Type::new(TINY, SOFT);
            let back = width_of(&edge.label, TINY) + 4.0;
            svg.rect(
                place.0 + 3.0,
                place.1 - 5.0,
                back,
                12.0,
                &format!("fill=\"{PAPER}\" fill-opacity=\"0.8\""),
            );
            svg.text(&words, place.0 + 5.0, place.1 + 4.0, &edge.label);
        }
    }
    svg.close();
}

pub(super) fn half_size(node: &Node) -> (f64, f64) {
    if node.kind == NodeKind::Gate {
        return (width_of(&node.name, TINY) / 2.0 + 17.0, 17.0);
    }
    let width = width_of(&fit(&node.name, BODY, MOST_NAME_WIDTH), BODY) + 22.0;
    (width.max(34.0) / 2.0, NODE_HEIGHT / 2.0)
}

fn legend(svg: &mut Svg, y: f64) {
    let lines = [
        "round: process; square: resource; diamond: a request for all (and), one (or), or some of its members",
        "an arrow leads from a waiting process to a process or resource, and from a resource to its holder",
        "red: waits for ever; red band: the explanation of the deadlock; filled: to abort; dotted: perhaps held",
    ];
    for (line, y) in lines.into_iter().zip([y - 32.0, y - 16.0, y]) {
        svg.text(&Type::new(SMALL, SOFT), MARGIN, y, line);
    }
}
