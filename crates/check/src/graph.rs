//! The whole state graph in memory, for properties of whole executions.
//!
//! A graph has millions of states, so its tables are as narrow as their contents allow. The words of a state
//! are kept only until the state is expanded.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use conclave_kernel::prng::mix;

use crate::column::Column;
use crate::explore::{Meter, Watcher, Waypoint};
use crate::index::Index;
use crate::memo::Memo;
use crate::stepper::{Action, Edge, Kind, Outcome, Stepper};
use crate::system::Post;

/// The states in the order of their discovery, and the edges between them.
#[derive(Default)]
pub(crate) struct Graph {
    fingerprints: Vec<u64>,
    /// The number of initial states. They come first.
    initial: u32,
    /// The open obligations of each state, as an index of `masks`.
    pending: Column,
    /// The distinct sets of open obligations, one bit each.
    masks: Vec<u64>,
    /// The first edge of each state, and the number of edges at the end.
    offsets: Vec<u32>,
    /// The state to which each edge leads.
    ends: Vec<u32>,
    /// The fair action that each edge takes, plus one; 0 if none.
    fair: Column,
    /// Whether an edge leads to the same or to an earlier state. Every cycle has such an edge.
    has_back_edge: bool,
    /// The edges on which a timer is postponed: the edge, and the fair action of the timer, which is then not
    /// always possible.
    pub(crate) put_off: Vec<(u32, u32)>,
    /// The contents of each fair action.
    pub(crate) actions: Vec<(Kind, u32, u32)>,
    /// The messages sent on each edge, as an index of `bills`; empty unless requested.
    pub(crate) charges: Vec<u32>,
    /// Messages by kind.
    pub(crate) bills: Vec<Vec<u32>>,
    pub(crate) kinds: Vec<&'static str>,
}

/// The construction stops after this number of edges, as at a bound of the search. The step that exceeds it adds
/// fewer than as many again, so edges have numbers of 32 bits.
const MOST_EDGES: usize = 1 << 31;

impl Graph {
    /// Explores everything. Returns the graph, or `None` if a bound stopped it, and the peak of its memory in
    /// bytes. The graph leaves out every step that breaks a property. `expected` is the number of states, if it
    /// is known.
    pub(crate) fn build(
        stepper: &mut Stepper<'_>,
        meter: &Meter,
        watcher: Watcher<'_>,
        expected: usize,
        with_bills: bool,
    ) -> (Option<Self>, usize) {
        let mut graph = Self::default();
        graph.fingerprints.reserve_exact(expected);
        graph.offsets.reserve_exact(expected + 1);
        let mut builder = Builder::new(expected, with_bills);
        for state in stepper.initial() {
            let fingerprint = stepper.fingerprint(&state);
            builder.find(&mut graph, fingerprint, &state);
        }
        graph.initial = graph.len() as u32;
        let width = stepper.width();
        let mut state = Vec::with_capacity(width);
        while !builder.open.is_empty() {
            let expanded = graph.offsets.len();
            if expanded % 4096 == 0 {
                meter.states.store(expanded as u64, std::sync::atomic::Ordering::Relaxed);
                meter.report(watcher, 0, (graph.len() - expanded) as u64);
                if graph.ends.len() >= MOST_EDGES {
                    meter.stop_at_edges();
                }
                if !meter.goes_on() || stepper.trouble.is_some() {
                    return (None, graph.bytes() + builder.bytes());
                }
            }
            state.clear();
            state.extend(builder.open.drain(..width));
            let mask = builder.mask(&mut graph, stepper.pending(&state));
            graph.pending.push(mask);
            graph.offsets.push(graph.ends.len() as u32);
            builder.buffer.clear();
            stepper.expand(&state, &mut |edge| builder.buffer.note(&edge, with_bills));
            builder.settle(&mut graph, stepper, expanded as u32);
        }
        graph.offsets.push(graph.ends.len() as u32);
        let bytes = graph.bytes() + builder.bytes();
        graph.kinds = builder.kinds;
        (Some(graph), bytes)
    }

    /// Returns the size of the tables in bytes, without the few bills, actions and masks.
    fn bytes(&self) -> usize {
        size_of_val(&self.fingerprints[..])
            + self.pending.bytes()
            + size_of_val(&self.offsets[..])
            + size_of_val(&self.ends[..])
            + self.fair.bytes()
            + size_of_val(&self.put_off[..])
            + size_of_val(&self.charges[..])
    }

    /// Creates a graph from its shape, for tests.
    #[cfg(test)]
    pub(crate) fn of_edges(states: usize, ends: &[(u32, u32)]) -> Self {
        let mut graph = Self { fingerprints: vec![0; states], initial: 1, ..Self::default() };
        for state in 0..states as u32 {
            graph.offsets.push(graph.ends.len() as u32);
            let out = ends.iter().filter(|(from, _)| *from == state);
            out.for_each(|(from, to)| graph.add_edge(*from, *to, None));
        }
        graph.offsets.push(graph.ends.len() as u32);
        graph
    }

    pub(crate) fn len(&self) -> usize {
        self.fingerprints.len()
    }

    /// Returns the initial states.
    pub(crate) fn initial(&self) -> Range<u32> {
        0..self.initial
    }

    pub(crate) fn fingerprint(&self, state: u32) -> u64 {
        self.fingerprints[state as usize]
    }

    /// Returns the open obligations of a state, one bit each.
    #[inline]
    pub(crate) fn pending(&self, state: u32) -> u64 {
        self.masks[self.pending.get(state as usize) as usize]
    }

    /// Returns the obligations that are open in some state.
    pub(crate) fn ever_pending(&self) -> u64 {
        self.masks.iter().fold(0, |all, mask| all | mask)
    }

    /// Returns the edges out of a state.
    #[inline]
    pub(crate) fn edges(&self, state: u32) -> Range<u32> {
        self.offsets[state as usize]..self.offsets[state as usize + 1]
    }

    /// Returns the state to which an edge leads.
    #[inline]
    pub(crate) fn end(&self, edge: u32) -> u32 {
        self.ends[edge as usize]
    }

    /// Returns the fair action that an edge takes.
    pub(crate) fn fair(&self, edge: u32) -> Option<u32> {
        self.fair.get(edge as usize).checked_sub(1)
    }

    /// Whether the graph has no cycle for certain. A graph without cycles may also return false.
    pub(crate) fn is_surely_acyclic(&self) -> bool {
        !self.has_back_edge
    }

    /// Returns the shortest path to a state.
    pub(crate) fn path(&self, mut state: u32) -> Vec<Waypoint> {
        let parents = self.parents();
        let mut path = Vec::new();
        loop {
            path.push(Waypoint::plain(self.fingerprint(state)));
            if state < self.initial {
                path.reverse();
                return path;
            }
            state = parents[state as usize];
        }
    }

    /// Returns the state from which each state was first reached: its first edge in the order of exploration
    /// leads to it.
    fn parents(&self) -> Vec<u32> {
        const UNKNOWN: u32 = u32::MAX;
        let mut parents = vec![UNKNOWN; self.len()];
        for from in 0..self.len() as u32 {
            for edge in self.edges(from) {
                let parent = &mut parents[self.end(edge) as usize];
                *parent = if *parent == UNKNOWN { from } else { *parent };
            }
        }
        parents
    }

    fn add_edge(&mut self, from: u32, to: u32, action: Option<u32>) {
        self.has_back_edge |= to <= from;
        self.ends.push(to);
        self.fair.push(action.map_or(0, |action| action + 1));
    }
}

/// The data that is needed only during the construction of the graph.
struct Builder {
    /// The words of the states that are not expanded yet, one state after the other.
    open: VecDeque<u32>,
    most_open: usize,
    buffer: Buffer,
    index: Index,
    masks: HashMap<u64, u32, BuildHasherDefault<Mixer>>,
    /// The fair actions by kind and site, and by packet or input.
    actions: Memo,
    with_bills: bool,
    bills: HashMap<Vec<u32>, u32>,
    kinds: Vec<&'static str>,
}

/// The edges of the state that is being expanded.
#[derive(Default)]
struct Buffer {
    ends: Vec<End>,
    /// The words of the states at the ends.
    words: Vec<u32>,
    /// The messages sent on the edges, if they are needed.
    posts: Vec<Post>,
}

struct End {
    fingerprint: u64,
    action: Action,
    outcome: Option<Outcome>,
    posts: Range<usize>,
}

/// A hasher for one number.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys are numbers")
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = mix(number);
    }
}

impl Buffer {
    fn clear(&mut self) {
        self.ends.clear();
        self.words.clear();
        self.posts.clear();
    }

    #[inline]
    fn note(&mut self, edge: &Edge<'_>, with_posts: bool) {
        if edge.breach != 0 {
            return;
        }
        let first = self.posts.len();
        if with_posts {
            self.posts.extend_from_slice(edge.posts);
        }
        self.words.extend_from_slice(edge.words);
        self.ends.push(End {
            fingerprint: edge.fingerprint,
            action: edge.action,
            outcome: edge.outcome,
            posts: first..self.posts.len(),
        });
    }
}

impl Builder {
    fn new(expected: usize, with_bills: bool) -> Self {
        Self {
            open: VecDeque::new(),
            most_open: 0,
            buffer: Buffer::default(),
            index: Index::for_states(expected),
            masks: HashMap::default(),
            actions: Memo::new(),
            with_bills,
            bills: HashMap::new(),
            kinds: Vec::new(),
        }
    }

    /// Returns the peak of the memory in bytes, without the small tables.
    fn bytes(&self) -> usize {
        self.index.bytes() + self.most_open * size_of::<u32>()
    }

    /// Adds the edges of a state to the graph, and the new states at their ends.
    fn settle(&mut self, graph: &mut Graph, stepper: &mut Stepper<'_>, from: u32) {
        let Buffer { ends, words, posts } = std::mem::take(&mut self.buffer);
        let width = stepper.width();
        // The lookups wait for memory. Loads that do not depend on each other wait together.
        std::hint::black_box(ends.iter().fold(0, |all, end| all | self.index.touch(end.fingerprint)));
        for (end, words) in ends.iter().zip(words.chunks_exact(width)) {
            let to = self.find(graph, end.fingerprint, words);
            let fair = stepper.fair_key(end.action).map(|key| self.action(graph, key));
            if let Some(outcome) = end.outcome {
                for timer in stepper.rearmed(outcome).to_vec() {
                    let action = self.action(graph, (Kind::Timer, end.action.node, timer));
                    graph.put_off.push((graph.ends.len() as u32, action));
                }
            }
            graph.add_edge(from, to, fair);
            if self.with_bills {
                let bill = self.bill(stepper, &posts[end.posts.clone()]);
                let next = self.bills.len() as u32;
                let number = *self.bills.entry(bill).or_insert_with_key(|bill| {
                    graph.bills.push(bill.clone());
                    next
                });
                graph.charges.push(number);
            }
        }
        self.buffer = Buffer { ends, words, posts };
    }

    /// Returns the number of a state. Keeps the words of a new state until it is expanded.
    #[inline]
    fn find(&mut self, graph: &mut Graph, fingerprint: u64, words: &[u32]) -> u32 {
        let number = self.index.find(fingerprint, &graph.fingerprints);
        if number as usize == graph.len() {
            graph.fingerprints.push(fingerprint);
            self.open.extend(words);
            self.most_open = self.most_open.max(self.open.len());
        }
        number
    }

    /// Returns the number of a set of open obligations.
    fn mask(&mut self, graph: &mut Graph, pending: u64) -> u32 {
        *self.masks.entry(pending).or_insert_with(|| {
            graph.masks.push(pending);
            graph.masks.len() as u32 - 1
        })
    }

    /// Returns the number of a fair action.
    fn action(&mut self, graph: &mut Graph, key: (Kind, u32, u32)) -> u32 {
        let (kind, node, what) = key;
        let who = kind.number() << 16 | node;
        self.actions.get(who, what).unwrap_or_else(|| {
            let next = graph.actions.len() as u32;
            graph.actions.push(key);
            self.actions.insert(who, what, next);
            next
        })
    }

    /// Returns the messages by kind, without those of a site to itself.
    fn bill(&mut self, stepper: &mut Stepper<'_>, posts: &[Post]) -> Vec<u32> {
        let mut bill = vec![0; self.kinds.len()];
        for post in posts {
            let packet = stepper.packet(post.packet);
            if packet.from == packet.to {
                continue;
            }
            let Some(kind) = stepper.system.kind(packet.input) else { continue };
            let place = self.kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
                self.kinds.push(kind);
                bill.push(0);
                self.kinds.len() - 1
            });
            bill[place] += 1;
        }
        // Later bills know more kinds. Without zeros at the end, equal bills are equal lists.
        while bill.last() == Some(&0) {
            bill.pop();
        }
        bill
    }
}
