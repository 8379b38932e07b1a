//! A wait-for graph as a picture: an SVG of our own, and DOT for Graphviz.
//!
//! Processes are round, resources square; an arrow goes from who waits to what it waits for, and from a resource to
//! who holds it, so that a deadlock of locks is a cycle of arrows. What is stuck is red, whom to abort is filled;
//! waits with alternatives are dashed, what is only perhaps held is dotted.
//!
//! **Layout** (`layout`): what explains the deadlock stands on a circle in the middle, everything else on rings around
//! it, by distance. A picture shows at most [`MOST_DRAWN`] nodes, the stuck ones first, and says what it leaves out;
//! DOT has everything.

mod layout;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use conclave_algorithms::deadlock::Demand;

use super::svg::{ALARM, Anchor, BODY, INK, LINE, Num, SMALL, SOFT, Svg, TINY, TITLE, Type, fit, width_of};
use crate::problems::deadlock::standing::{Findings, Process, Resource, Standing, Target, Why, Wish};

/// The most nodes of a picture.
pub const MOST_DRAWN: usize = 300;

/// The graph in Graphviz's language.
pub fn dot(standing: &Standing, findings: &Findings) -> String {
    let graph = Graph::new(standing, findings, usize::MAX);
    let mut out = String::from("digraph waits {\n  rankdir=LR;\n  node [fontname=\"Helvetica\"];\n");
    for (number, node) in graph.nodes.iter().enumerate() {
        let shape = if node.is_process { "ellipse" } else { "box" };
        let style = match node.fate {
            Fate::Runs => String::new(),
            Fate::Stuck => format!(", color=\"{ALARM}\", fontcolor=\"{ALARM}\""),
            Fate::Victim => format!(", style=filled, fillcolor=\"{ALARM}\", fontcolor=white"),
        };
        put(
            &mut out,
            format_args!("  n{number} [label=\"{}\", shape={shape}{style}];\n", Quoted(&node.name)),
        );
    }
    for edge in &graph.edges {
        let colour = if edge.is_stuck { format!(", color=\"{ALARM}\"") } else { String::new() };
        let style = match edge.line {
            Line::Solid => "",
            Line::Dashed => ", style=dashed",
            Line::Dotted => ", style=dotted",
        };
        let label = Quoted(&edge.label);
        put(&mut out, format_args!("  n{} -> n{} [label=\"{label}\"{style}{colour}];\n", edge.from, edge.to));
    }
    out.push_str("}\n");
    out
}

/// The graph as an SVG.
pub fn draw(standing: &Standing, findings: &Findings) -> String {
    let graph = Graph::new(standing, findings, MOST_DRAWN);
    let placed = layout::place(&graph);
    let title = headline(standing, findings);
    let width = placed.width.max(width_of(&title, TITLE) + 2.0 * MARGIN).max(480.0);
    let height = placed.height + HEADER + FOOTER;
    let mut svg = Svg::new(width, height, &title);
    svg.text(&Type::new(TITLE, INK).weighing(600), MARGIN, 34.0, &title);
    let mut subtitle = match findings.victims.as_slice() {
        [] => String::new(),
        victims => {
            let names: Vec<_> = victims.iter().map(|victim| standing.process_name(*victim)).collect();
            format!("abort {}", names.join(", "))
        }
    };
    if graph.left_out > 0 {
        put(&mut subtitle, format_args!("   ({} nodes more, not drawn)", graph.left_out));
    }
    svg.text(&Type::new(BODY, SOFT), MARGIN, 56.0, &fit(&subtitle, BODY, width - 2.0 * MARGIN));
    for edge in &graph.edges {
        draw_edge(&mut svg, &graph, &placed.at, edge);
    }
    for (node, at) in graph.nodes.iter().zip(&placed.at) {
        draw_node(&mut svg, node, (at.0, at.1 + HEADER));
    }
    legend(&mut svg, height - 18.0);
    svg.finish()
}

fn headline(standing: &Standing, findings: &Findings) -> String {
    match findings.stuck.len() {
        0 => format!("No deadlock among {} processes", standing.processes()),
        stuck => format!("Deadlock: {stuck} of {} processes are stuck", standing.processes()),
    }
}

const MARGIN: f64 = 24.0;
const HEADER: f64 = 70.0;
const FOOTER: f64 = 52.0;
const NODE_HEIGHT: f64 = 26.0;
const MOST_NAME_WIDTH: f64 = 110.0;

struct Graph {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    /// The nodes that explain the deadlock, each explanation in its order.
    cores: Vec<Vec<usize>>,
    left_out: usize,
}

struct Node {
    name: String,
    is_process: bool,
    fate: Fate,
    tooltip: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Runs,
    Stuck,
    Victim,
}

struct Edge {
    from: usize,
    to: usize,
    label: String,
    line: Line,
    is_stuck: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Solid,
    Dashed,
    Dotted,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Process(Process),
    Resource(Resource),
}

impl Graph {
    fn new(standing: &Standing, findings: &Findings, most: usize) -> Self {
        let mut numbers: BTreeMap<Place, usize> = BTreeMap::new();
        let mut order: Vec<Place> = Vec::new();
        let mut take = |place: Place| {
            if order.len() < most && !numbers.contains_key(&place) {
                numbers.insert(place, order.len());
                order.push(place);
            }
        };
        // What explains comes first, then who is stuck, then the rest: a bound cuts off what matters least.
        let cores: Vec<Vec<Place>> = findings.why.iter().map(core).collect();
        cores.iter().flatten().copied().for_each(&mut take);
        findings.stuck.iter().copied().map(Place::Process).for_each(&mut take);
        for process in findings.stuck.iter().copied().chain(0..standing.processes()) {
            take(Place::Process(process));
            for claim in standing.wish(process).map(Wish::claims).unwrap_or_default() {
                take(place_of(claim.resource));
            }
        }
        (0..standing.resources()).map(Place::Resource).for_each(&mut take);
        let all = standing.processes() as usize + standing.resources() as usize;
        let is_stuck = |process: Process| findings.stuck.binary_search(&process).is_ok();
        let mut victims = findings.victims.clone();
        victims.sort_unstable();
        let node = |place: &Place| match *place {
            Place::Process(process) => Node {
                name: standing.process_name(process).to_owned(),
                is_process: true,
                fate: match () {
                    () if victims.binary_search(&process).is_ok() => Fate::Victim,
                    () if is_stuck(process) => Fate::Stuck,
                    () => Fate::Runs,
                },
                tooltip: match standing.wish(process) {
                    Some(wish) => {
                        format!("{} waits for {}", standing.process_name(process), standing.describe(wish))
                    }
                    None => format!("{} runs", standing.process_name(process)),
                },
            },
            Place::Resource(resource) => Node {
                name: standing.resource_name(resource).to_owned(),
                is_process: false,
                fate: Fate::Runs,
                tooltip: match standing.limit(resource) {
                    Some(permits) => format!("{}: {permits} permits", standing.resource_name(resource)),
                    None => format!("{}: a lock", standing.resource_name(resource)),
                },
            },
        };
        let mut graph = Self {
            nodes: order.iter().map(node).collect(),
            edges: Vec::new(),
            cores: cores
                .iter()
                .map(|core| core.iter().filter_map(|place| numbers.get(place).copied()).collect())
                .collect(),
            left_out: all - order.len(),
        };
        for (number, place) in order.iter().enumerate() {
            match *place {
                Place::Process(process) => graph.waits(standing, &numbers, number, process, &is_stuck),
                Place::Resource(resource) => {
                    for (holder, demand, perhaps) in standing.holders(resource) {
                        let Some(to) = numbers.get(&Place::Process(holder)) else { continue };
                        graph.edges.push(Edge {
                            from: number,
                            to: *to,
                            label: label(demand),
                            line: if perhaps { Line::Dotted } else { Line::Solid },
                            is_stuck: is_stuck(holder) && !perhaps,
                        });
                    }
                }
            }
        }
        graph
    }

    fn waits(
        &mut self,
        standing: &Standing,
        numbers: &BTreeMap<Place, usize>,
        from: usize,
        process: Process,
        is_stuck: &dyn Fn(Process) -> bool,
    ) {
        let Some(wish) = standing.wish(process) else { return };
        let line = if wish.is_conjunctive() { Line::Solid } else { Line::Dashed };
        for claim in wish.claims() {
            let Some(to) = numbers.get(&place_of(claim.resource)) else { continue };
            let (label, leads_nowhere) = match claim.resource {
                Target::Process(target) => (String::new(), is_stuck(target)),
                Target::Resource(resource) => {
                    let mut holders = standing.holders(resource);
                    (label(claim.demand), holders.any(|(holder, _, perhaps)| !perhaps && is_stuck(holder)))
                }
            };
            self.edges.push(Edge {
                from,
                to: *to,
                label,
                line,
                is_stuck: is_stuck(process) && leads_nowhere,
            });
        }
    }
}

/// What an explanation is about, in its order: for a cycle of locks, the locks between the processes too.
fn core(why: &Why) -> Vec<Place> {
    match why {
        Why::Cycle(links) => {
            let place = |link: &crate::problems::deadlock::standing::Link| {
                let resource = link.resource.map(Place::Resource);
                [Some(Place::Process(link.waiter)), resource].into_iter().flatten().collect::<Vec<_>>()
            };
            links.iter().flat_map(place).collect()
        }
        Why::Knot(members) => members.iter().copied().map(Place::Process).collect(),
        Why::Unsatisfiable { process, holders, .. } => {
            let others = holders.iter().filter(|holder| *holder != process);
            std::iter::once(process).chain(others).copied().map(Place::Process).collect()
        }
    }
}

fn place_of(target: Target) -> Place {
    match target {
        Target::Process(process) => Place::Process(process),
        Target::Resource(resource) => Place::Resource(resource),
    }
}

fn label(demand: Demand) -> String {
    match demand {
        Demand::Exclusive => String::new(),
        Demand::Shared => "shared".into(),
        Demand::Permits(count) => format!("*{count}"),
    }
}

fn draw_node(svg: &mut Svg, node: &Node, at: (f64, f64)) {
    let name = fit(&node.name, BODY, MOST_NAME_WIDTH);
    let (half_width, half_height) = half_size(node);
    let (fill, stroke, ink) = match (node.fate, node.is_process) {
        (Fate::Victim, _) => (ALARM, ALARM, "#ffffff"),
        (Fate::Stuck, _) => ("#fdecea", ALARM, ALARM),
        (Fate::Runs, true) => ("#eef4fa", "#0072b2", INK),
        (Fate::Runs, false) => ("#f4f5f7", LINE, INK),
    };
    let radius = if node.is_process { half_height } else { 2.0 };
    svg.open("");
    svg.tooltip(&node.tooltip);
    let attributes =
        format!("rx=\"{}\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"1.5\"", Num(radius));
    svg.rect(at.0 - half_width, at.1 - half_height, 2.0 * half_width, 2.0 * half_height, &attributes);
    let type_ = Type { fill: ink, ..Type::new(BODY, INK).anchored(Anchor::Middle) };
    svg.text(&type_, at.0, at.1 + BODY * 0.36, &name);
    svg.close();
}

fn draw_edge(svg: &mut Svg, graph: &Graph, at: &[(f64, f64)], edge: &Edge) {
    let colour = if edge.is_stuck { ALARM } else { SOFT };
    let dashes = match edge.line {
        Line::Solid => "",
        Line::Dashed => " stroke-dasharray=\"6 4\"",
        Line::Dotted => " stroke-dasharray=\"1.5 4\" stroke-linecap=\"round\"",
    };
    let stroke = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.4\"{dashes}");
    let filled = format!("fill=\"{colour}\"");
    let shift = |(x, y): (f64, f64)| (x, y + HEADER);
    let (from, to) = (shift(at[edge.from]), shift(at[edge.to]));
    if edge.from == edge.to {
        let (half_width, half_height) = half_size(&graph.nodes[edge.from]);
        let (x, y) = (from.0 + half_width * 0.4, from.1 - half_height);
        svg.raw(format_args!(
            "<path d=\"M{} {}C{} {} {} {} {} {}\" {stroke}/>",
            Num(x - 14.0),
            Num(y),
            Num(x - 20.0),
            Num(y - 34.0),
            Num(x + 26.0),
            Num(y - 34.0),
            Num(x + 10.0),
            Num(y - 3.0)
        ));
        svg.head((x + 18.0, y - 22.0), (x + 9.0, y), 8.0, &filled);
        return;
    }
    // Two that wait for each other: each arrow keeps to its own side.
    let (dx, dy) = super::svg::unit(from, to);
    let is_mutual = graph.edges.iter().any(|other| (other.from, other.to) == (edge.to, edge.from));
    let aside = if is_mutual { 5.0 } else { 0.0 };
    let (from, to) = ((from.0 - dy * aside, from.1 + dx * aside), (to.0 - dy * aside, to.1 + dx * aside));
    let start = leave(from, (dx, dy), half_size(&graph.nodes[edge.from]));
    let tip = leave(to, (-dx, -dy), half_size(&graph.nodes[edge.to]));
    svg.line(start, (tip.0 - dx * 6.0, tip.1 - dy * 6.0), &stroke);
    svg.head(start, tip, 9.0, &filled);
    if !edge.label.is_empty() {
        let middle = (f64::midpoint(start.0, tip.0) - dy * 9.0, f64::midpoint(start.1, tip.1) + dx * 9.0);
        let words = Type::new(TINY, SOFT).anchored(Anchor::Middle);
        svg.text(&words, middle.0, middle.1 + 3.0, &edge.label);
    }
}

/// Where a ray from the middle of a node leaves its box.
fn leave(middle: (f64, f64), (dx, dy): (f64, f64), (half_width, half_height): (f64, f64)) -> (f64, f64) {
    let by = |half: f64, along: f64| if along.abs() < 1e-9 { f64::INFINITY } else { half / along.abs() };
    let length = by(half_width, dx).min(by(half_height, dy)) + 1.5;
    (middle.0 + dx * length, middle.1 + dy * length)
}

fn half_size(node: &Node) -> (f64, f64) {
    let width = width_of(&fit(&node.name, BODY, MOST_NAME_WIDTH), BODY) + 22.0;
    (width.max(34.0) / 2.0, NODE_HEIGHT / 2.0)
}

fn legend(svg: &mut Svg, y: f64) {
    let lines = [
        "round: process; square: resource; an arrow goes to what is waited for, and from",
        "a resource to who holds it; dashed: alternatives; dotted: perhaps held",
    ];
    for (line, y) in lines.into_iter().zip([y - 16.0, y]) {
        svg.text(&Type::new(SMALL, SOFT), MARGIN, y, line);
    }
}

/// Text between double quotes in DOT.
struct Quoted<'a>(&'a str);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '"' => f.write_str("\\\""),
            '\\' => f.write_str("\\\\"),
            c if c.is_control() => f.write_char(' '),
            c => f.write_char(c),
        })
    }
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use super::super::testing::golden;
    use super::*;
    use crate::problems::deadlock::Policy;
    use crate::problems::deadlock::standing::testing::{catalogue, locks};

    #[test]
    fn the_golden_graph_is_drawn() {
        let standing = catalogue(true);
        let findings = standing.judge(Policy::Youngest, 20).unwrap();
        let svg = draw(&standing, &findings);
        roxmltree::Document::parse(&svg).unwrap();
        golden("waitfor.svg", &svg);
        golden("waitfor.dot", &dot(&standing, &findings));
    }

    #[test]
    fn hostile_names_are_quoted_and_a_picture_has_a_bound() {
        let mut names: Vec<String> = (0..2_000).map(|n| format!("p{n}")).collect();
        names.extend(["<\"&\\".to_owned(), "\u{1}]>".to_owned()]);
        let standing = locks(&names);
        let findings = standing.judge(Policy::Youngest, 20).unwrap();
        let svg = draw(&standing, &findings);
        let document = roxmltree::Document::parse(&svg).unwrap();
        let boxes = document.descendants().filter(|node| node.has_tag_name("rect")).count();
        assert_eq!(boxes, MOST_DRAWN + 1, "the background and the nodes");
        assert!(svg.contains("nodes more, not drawn"), "what is left out is said");
        let dot = dot(&standing, &findings);
        assert_eq!(dot.lines().filter(|line| line.contains("shape=")).count(), 2 * names.len());
        assert!(dot.contains(r#"label="<\"&\\""#), "{dot}");
    }

    #[test]
    fn nothing_at_all_is_a_picture_too() {
        let standing = Standing::new();
        let findings = standing.judge(Policy::Youngest, 20).unwrap();
        roxmltree::Document::parse(&draw(&standing, &findings)).unwrap();
        assert!(dot(&standing, &findings).starts_with("digraph waits {"));
    }
}
