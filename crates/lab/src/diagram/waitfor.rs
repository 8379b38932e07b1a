//! A wait-for graph as a picture: an SVG, and DOT for Graphviz.
//!
//! Processes are round and resources square. An arrow goes from a waiting process to the process or resource
//! that it waits for, and from a resource to its holder, so a deadlock of locks is a cycle of arrows. A
//! request with several members has a diamond: `and`, `or`, or the number that it needs, `2 of 3`. Stuck
//! processes are red, the victims are filled, and the explanation of the deadlock lies on a broad red band.
//! Holders that are not certain are dotted.
//!
//! [`Scene`] is the picture as data that serialises; [`draw`] draws it. `layout` finds the places.
//!
//! **Bound**: a picture shows at most [`MOST_DRAWN`] processes and resources, the stuck ones first, and says
//! what it leaves out. DOT has all of them.

mod layout;
mod render;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use conclave_algorithms::deadlock::Demand;
use serde::Serialize;

use super::svg::ALARM;
use crate::problems::deadlock::standing::{Findings, Process, Resource, Standing, Target, Why, Wish};

pub use render::render;

/// The most processes and resources of a picture.
pub const MOST_DRAWN: usize = 300;

/// Returns the graph in Graphviz's language.
pub fn dot(standing: &Standing, findings: &Findings) -> String {
    let scene = Scene::new(standing, findings, usize::MAX);
    let mut out = String::from("digraph waits {\n  rankdir=TB;\n  node [fontname=\"Helvetica\"];\n");
    for (number, node) in scene.nodes.iter().enumerate() {
        let shape = match node.kind {
            NodeKind::Process => "ellipse",
            NodeKind::Resource => "box",
            NodeKind::Gate => "diamond",
        };
        let style = match node.fate {
            Fate::Runs => String::new(),
            Fate::Stuck => format!(", color=\"{ALARM}\", fontcolor=\"{ALARM}\""),
            Fate::Victim => format!(", style=filled, fillcolor=\"{ALARM}\", fontcolor=white"),
        };
        let name = Quoted(&node.name);
        put(&mut out, format_args!("  n{number} [label=\"{name}\", shape={shape}{style}];\n"));
    }
    for edge in &scene.edges {
        let colour = if edge.is_stuck { format!(", color=\"{ALARM}\"") } else { String::new() };
        let style = if edge.is_certain { "" } else { ", style=dotted" };
        let label = Quoted(&edge.label);
        put(&mut out, format_args!("  n{} -> n{} [label=\"{label}\"{style}{colour}];\n", edge.from, edge.to));
    }
    out.push_str("}\n");
    out
}

/// Draws the graph as an SVG file.
pub fn draw(standing: &Standing, findings: &Findings) -> String {
    render(&Scene::new(standing, findings, MOST_DRAWN))
}

/// Everything in the picture of a wait-for graph.
#[derive(Clone, Debug, Serialize)]
pub struct Scene {
    /// The verdict.
    pub title: String,
    /// The victims, and the number of nodes that are left out.
    pub subtitle: String,
    /// The processes, the resources and the gates of requests.
    pub nodes: Vec<Node>,
    /// The arrows.
    pub edges: Vec<Edge>,
    /// The nodes that explain each deadlock, in the order of the explanation.
    pub cores: Vec<Vec<usize>>,
}

/// A node of the picture.
#[derive(Clone, Debug, Serialize)]
pub struct Node {
    /// Its name; for a gate the number of members that it needs.
    pub name: String,
    /// Its kind.
    pub kind: NodeKind,
    /// Its future.
    pub fate: Fate,
    /// Whether it belongs to an explanation of a deadlock.
    pub in_core: bool,
    /// The node in words.
    pub tooltip: String,
}

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// A process.
    Process,
    /// A lock or a semaphore.
    Resource,
    /// A part of a request that needs some of its members.
    Gate,
}

/// The future of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It can proceed.
    Runs,
    /// It waits for ever.
    Stuck,
    /// It waits for ever, and is aborted to end the deadlock.
    Victim,
}

/// An arrow of the picture.
#[derive(Clone, Debug, Serialize)]
pub struct Edge {
    /// The index of the node that waits, or of the resource that is held.
    pub from: usize,
    /// The index of the node that it waits for, or of the holder.
    pub to: usize,
    /// The mode of the request or of the hold.
    pub label: String,
    /// Whether the wait or the hold is certain.
    pub is_certain: bool,
    /// Whether both ends wait for ever.
    pub is_stuck: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Process(Process),
    Resource(Resource),
}

impl Scene {
    /// Builds the scene with at most this number of processes and resources.
    pub fn new(standing: &Standing, findings: &Findings, most: usize) -> Self {
        let cores: Vec<Vec<Place>> = findings.why.iter().map(core).collect();
        let order = order(standing, findings, &cores, most);
        let numbers = order.iter().enumerate().map(|(number, place)| (*place, number)).collect();
        let left_out = standing.processes() as usize + standing.resources() as usize - order.len();
        let victims = findings.victims.iter().copied().collect();
        let scene = Self::empty(standing, findings, left_out);
        let mut collect = Collect { standing, findings, victims, numbers, scene };
        order.iter().for_each(|place| collect.add_node(*place));
        let known = |core: &Vec<Place>| {
            core.iter().filter_map(|place| collect.numbers.get(place).copied()).collect::<Vec<_>>()
        };
        let cores: Vec<_> = cores.iter().map(known).collect();
        for node in cores.iter().flatten() {
            collect.scene.nodes[*node].in_core = true;
        }
        collect.scene.cores = cores;
        for (number, place) in order.iter().enumerate() {
            match *place {
                Place::Process(process) => collect.add_request(number, process),
                Place::Resource(resource) => collect.add_holders(number, resource),
            }
        }
        collect.scene
    }

    fn empty(standing: &Standing, findings: &Findings, left_out: usize) -> Self {
        let title = match findings.stuck.len() {
            0 => format!("No deadlock among {} processes", standing.processes()),
            stuck => format!("Deadlock: {stuck} of {} processes are stuck", standing.processes()),
        };
        let mut parts = Vec::new();
        if !findings.victims.is_empty() {
            let names: Vec<_> =
                findings.victims.iter().map(|victim| standing.process_name(*victim)).collect();
            parts.push(format!("abort {}", names.join(", ")));
        }
        if left_out > 0 {
            parts.push(format!("{left_out} nodes more, not drawn"));
        }
        Self { title, subtitle: parts.join(" · "), nodes: Vec::new(), edges: Vec::new(), cores: Vec::new() }
    }
}

/// The processes and resources that are drawn: first the explanations, then the stuck processes, then the
/// others.
fn order(standing: &Standing, findings: &Findings, cores: &[Vec<Place>], most: usize) -> Vec<Place> {
    let mut seen = BTreeSet::new();
    let mut order = Vec::new();
    let mut take = |place: Place| {
        if order.len() < most && seen.insert(place) {
            order.push(place);
        }
    };
    cores.iter().flatten().copied().for_each(&mut take);
    findings.stuck.iter().copied().map(Place::Process).for_each(&mut take);
    for process in findings.stuck.iter().copied().chain(0..standing.processes()) {
        take(Place::Process(process));
        for claim in standing.wish(process).map(Wish::claims).unwrap_or_default() {
            take(place_of(claim.resource));
        }
    }
    (0..standing.resources()).map(Place::Resource).for_each(&mut take);
    order
}

struct Collect<'a> {
    standing: &'a Standing,
    findings: &'a Findings,
    victims: BTreeSet<Process>,
    numbers: BTreeMap<Place, usize>,
    scene: Scene,
}

impl Collect<'_> {
    fn is_stuck(&self, process: Process) -> bool {
        self.findings.stuck.binary_search(&process).is_ok()
    }

    fn add_node(&mut self, place: Place) {
        let standing = self.standing;
        let node = match place {
            Place::Process(process) => {
                let name = standing.process_name(process);
                let tooltip = match standing.wish(process) {
                    Some(wish) => format!("{name} waits for {}", standing.describe(wish)),
                    None => format!("{name} runs"),
                };
                let fate = match () {
                    () if self.victims.contains(&process) => Fate::Victim,
                    () if self.is_stuck(process) => Fate::Stuck,
                    () => Fate::Runs,
                };
                Node { name: name.to_owned(), kind: NodeKind::Process, fate, in_core: false, tooltip }
            }
            Place::Resource(resource) => {
                let name = standing.resource_name(resource);
                let tooltip = match standing.limit(resource) {
                    Some(permits) => format!("{name}: {permits} permits"),
                    None => format!("{name}: a lock"),
                };
                let name = name.to_owned();
                Node { name, kind: NodeKind::Resource, fate: Fate::Runs, in_core: false, tooltip }
            }
        };
        self.scene.nodes.push(node);
    }

    fn add_holders(&mut self, from: usize, resource: Resource) {
        for (holder, demand, perhaps) in self.standing.holders(resource) {
            let Some(to) = self.numbers.get(&Place::Process(holder)) else { continue };
            let is_stuck = self.is_stuck(holder) && !perhaps;
            let edge = Edge { from, to: *to, label: label(demand), is_certain: !perhaps, is_stuck };
            self.scene.edges.push(edge);
        }
    }

    fn add_request(&mut self, from: usize, process: Process) {
        if let Some(wish) = self.standing.wish(process) {
            self.add_wish(from, wish, self.is_stuck(process));
        }
    }

    /// Adds the arrows of a request. A gate with several members becomes a diamond.
    fn add_wish(&mut self, from: usize, wish: &Wish, waits_for_ever: bool) {
        match wish {
            Wish::Claim(claim) => {
                let Some(to) = self.numbers.get(&place_of(claim.resource)).copied() else { return };
                let (label, leads_nowhere) = match claim.resource {
                    Target::Process(target) => (String::new(), self.is_stuck(target)),
                    Target::Resource(resource) => {
                        let mut holders = self.standing.holders(resource);
                        let is_stuck = holders.any(|(holder, _, perhaps)| !perhaps && self.is_stuck(holder));
                        (label(claim.demand), is_stuck)
                    }
                };
                let is_stuck = waits_for_ever && leads_nowhere;
                self.scene.edges.push(Edge { from, to, label, is_certain: true, is_stuck });
            }
            Wish::Gate { members, .. } if members.len() == 1 => {
                self.add_wish(from, &members[0], waits_for_ever);
            }
            Wish::Gate { need, members } => {
                let gate = self.scene.nodes.len();
                let name = match *need as usize {
                    need if need == members.len() => "and".to_owned(),
                    1 => "or".to_owned(),
                    need => format!("{need} of {}", members.len()),
                };
                let fate = if waits_for_ever { Fate::Stuck } else { Fate::Runs };
                let tooltip = self.standing.describe(wish);
                let node = Node { name, kind: NodeKind::Gate, fate, in_core: false, tooltip };
                self.scene.nodes.push(node);
                let edge =
                    Edge { from, to: gate, label: String::new(), is_certain: true, is_stuck: waits_for_ever };
                self.scene.edges.push(edge);
                let first = self.scene.edges.len();
                members.iter().for_each(|member| self.add_wish(gate, member, waits_for_ever));
                let leads_on =
                    |edge: &Edge| edge.from == gate && edge.is_stuck && self.scene.nodes[edge.to].in_core;
                let in_core =
                    self.scene.nodes[from].in_core && self.scene.edges[first..].iter().any(leads_on);
                self.scene.nodes[gate].in_core = in_core;
            }
        }
    }
}

/// The processes and resources of an explanation, in its order.
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
    use super::super::testing::{count, golden, parsed, titles};
    use super::*;
    use crate::problems::deadlock::Policy;
    use crate::problems::deadlock::standing::testing::{catalogue, locks, process_wish};

    fn findings(standing: &Standing) -> Findings {
        standing.judge(Policy::Youngest, 20).unwrap()
    }

    /// A waits for two of B, C and D; B and C wait for A, and D waits for B or C.
    fn two_of_three() -> Standing {
        let mut standing = Standing::new();
        for (waiter, need, targets) in
            [("A", 2, &["B", "C", "D"][..]), ("B", 1, &["A"]), ("C", 1, &["A"]), ("D", 1, &["B", "C"])]
        {
            let process = standing.process(waiter);
            let wish = process_wish(&mut standing, need, targets);
            standing.wait(process, wish).unwrap();
        }
        standing
    }

    #[test]
    fn a_deadlock_is_drawn_with_its_gates_and_its_cycle() {
        let standing = catalogue(true);
        let findings = findings(&standing);
        let svg = draw(&standing, &findings);
        let tree = parsed("waitfor-and", &svg);
        let counts = ["process", "resource", "gate", "edge"].map(|class| count(&tree, class));
        assert_eq!(counts, [7, 0, 1, 8]);
        assert_eq!(count(&tree, "core"), 5, "four processes and a gate");
        assert!(titles(&tree, "gate").iter().all(|title| title.contains("P21") && title.contains("P32")));
        golden("waitfor.dot", &dot(&standing, &findings));
    }

    #[test]
    fn a_request_for_some_of_its_members_names_their_number() {
        let standing = two_of_three();
        let scene = Scene::new(&standing, &findings(&standing), MOST_DRAWN);
        let gates: Vec<_> = scene.nodes.iter().filter(|node| node.kind == NodeKind::Gate).collect();
        let mut names: Vec<_> = gates.iter().map(|gate| gate.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["2 of 3", "or"]);
        parsed("waitfor-two-of-three", &render(&scene));
        assert!(
            serde_json::to_value(&scene)
                .is_ok_and(|json| json["nodes"].to_string().contains(r#""fate":"stuck""#))
        );
        let or = catalogue(false);
        parsed("waitfor-or", &draw(&or, &findings(&or)));
    }

    #[test]
    fn no_two_nodes_overlap_and_no_arrow_passes_through_a_node() {
        let names: Vec<_> = (0..7).map(|n| format!("process number {n}")).collect();
        for (name, standing) in [
            ("catalogue", catalogue(true)),
            ("or", catalogue(false)),
            ("gates", two_of_three()),
            ("locks", locks(&names)),
        ] {
            let scene = Scene::new(&standing, &findings(&standing), MOST_DRAWN);
            let placed = layout::place(&scene);
            let boxes: Vec<_> = scene.nodes.iter().map(render::half_size).zip(&placed.at).collect();
            for (one, ((width, height), (x, y))) in boxes.iter().enumerate() {
                for ((other_width, other_height), (other_x, other_y)) in &boxes[one + 1..] {
                    let apart = (x - other_x).abs() >= width + other_width
                        || (y - other_y).abs() >= height + other_height;
                    assert!(apart, "{name}: two nodes overlap");
                }
                for (edge, way) in scene.edges.iter().zip(&placed.ways) {
                    let hits = |(px, py): &(f64, f64)| (px - x).abs() < *width && (py - y).abs() < *height;
                    assert!(edge.from == one || edge.to == one || !way.iter().any(hits), "{name}");
                }
            }
        }
        parsed("waitfor-locks", &draw(&locks(&names), &findings(&locks(&names))));
    }

    #[test]
    fn hostile_names_are_quoted_and_a_picture_has_a_bound() {
        let mut names: Vec<String> = (0..2_000).map(|n| format!("p{n}")).collect();
        names.extend(["<\"&\\".to_owned(), "\u{1}]>".to_owned()]);
        let standing = locks(&names);
        let findings = findings(&standing);
        let svg = draw(&standing, &findings);
        let tree = parsed("waitfor-large", &svg);
        assert_eq!(count(&tree, "node"), MOST_DRAWN);
        assert!(
            svg.contains("nodes more, not drawn"),
            "the picture names the number of nodes that are left out"
        );
        let dot = dot(&standing, &findings);
        assert_eq!(dot.lines().filter(|line| line.contains("shape=")).count(), 2 * names.len());
        assert!(dot.contains(r#"label="<\"&\\""#), "{dot}");
    }

    #[test]
    fn nothing_at_all_is_a_picture_too() {
        let standing = Standing::new();
        let findings = findings(&standing);
        parsed("waitfor-empty", &draw(&standing, &findings));
        assert!(dot(&standing, &findings).starts_with("digraph waits {"));
    }
}
