//! The whole state graph in memory, for properties of whole executions.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::explore::{Meter, Watcher, Waypoint};
use crate::stepper::{Action, Edge, Kind, Outcome, Stepper};
use crate::system::Post;

/// The states in the order of their discovery, and the edges between them.
#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) fingerprints: Vec<u64>,
    /// The open obligations of each state, one bit each.
    pub(crate) pending: Vec<u64>,
    /// The state from which each state was first reached. An initial state is its own parent.
    parents: Vec<u32>,
    /// The first edge of each state, and the number of edges at the end.
    offsets: Vec<usize>,
    pub(crate) arcs: Vec<Arc>,
    /// The edges on which a timer is postponed: the edge, and the fair action of the timer, which is then not
    /// always possible.
    pub(crate) put_off: Vec<(usize, u32)>,
    /// The contents of each fair action.
    pub(crate) actions: Vec<(Kind, u32, u32)>,
    /// The messages sent on each edge, as an index of `bills`; empty unless requested.
    pub(crate) charges: Vec<u32>,
    /// Messages by kind.
    pub(crate) bills: Vec<Vec<u32>>,
    pub(crate) kinds: Vec<&'static str>,
}

/// An edge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arc {
    pub(crate) to: u32,
    /// The fair action that it takes, plus one; 0 if none.
    fair: u32,
}

impl Arc {
    pub(crate) fn fair(self) -> Option<u32> {
        self.fair.checked_sub(1)
    }
}

impl Graph {
    /// Explores everything. Returns the graph, or `None` if a bound stopped it, and the peak of its memory in
    /// bytes. The graph leaves out every step that breaks a property.
    pub(crate) fn build(
        stepper: &mut Stepper<'_>,
        meter: &Meter,
        watcher: Watcher<'_>,
        with_bills: bool,
    ) -> (Option<Self>, usize) {
        let mut graph = Self::default();
        let mut builder = Builder {
            ends: Vec::new(),
            index: Index::default(),
            actions: HashMap::new(),
            bills: HashMap::new(),
            kinds: Vec::new(),
        };
        let mut states = Vec::new();
        for state in stepper.initial() {
            let fingerprint = stepper.fingerprint(&state);
            builder.find(&mut graph, fingerprint, 0, &state, &mut states);
        }
        let width = stepper.width();
        let mut expanded = 0;
        while expanded < graph.fingerprints.len() {
            if expanded % 4096 == 0 {
                meter.states.store(expanded as u64, std::sync::atomic::Ordering::Relaxed);
                meter.report(watcher, 0, (graph.fingerprints.len() - expanded) as u64);
                if !meter.goes_on() || stepper.trouble.is_some() {
                    let bytes = graph.bytes() + builder.index_bytes() + size_of_val(&states[..]);
                    return (None, bytes);
                }
            }
            let state = states[expanded * width..][..width].to_vec();
            graph.pending.push(stepper.pending(&state));
            graph.offsets.push(graph.arcs.len());
            builder.ends.clear();
            stepper.expand(&state, &mut |edge| builder.note(&edge));
            builder.settle(&mut graph, stepper, expanded as u32, with_bills, &mut states);
            expanded += 1;
        }
        graph.offsets.push(graph.arcs.len());
        let bytes = graph.bytes() + builder.index_bytes() + size_of_val(&states[..]);
        graph.kinds = builder.kinds;
        (Some(graph), bytes)
    }

    /// Returns the size of the tables in bytes, without the few bills.
    fn bytes(&self) -> usize {
        size_of_val(&self.fingerprints[..])
            + size_of_val(&self.pending[..])
            + size_of_val(&self.parents[..])
            + size_of_val(&self.offsets[..])
            + size_of_val(&self.arcs[..])
            + size_of_val(&self.put_off[..])
            + size_of_val(&self.charges[..])
    }

    /// Creates a graph from its shape, for tests.
    #[cfg(test)]
    pub(crate) fn of_edges(states: usize, ends: &[(u32, u32)]) -> Self {
        let mut graph = Self { fingerprints: vec![0; states], parents: vec![0; states], ..Self::default() };
        for state in 0..states as u32 {
            graph.offsets.push(graph.arcs.len());
            let out = ends.iter().filter(|(from, _)| *from == state);
            graph.arcs.extend(out.map(|(_, to)| Arc { to: *to, fair: 0 }));
        }
        graph.offsets.push(graph.arcs.len());
        graph
    }

    pub(crate) fn len(&self) -> usize {
        self.fingerprints.len()
    }

    /// Returns the initial states, which are their own parents.
    pub(crate) fn initial(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len() as u32).filter(|state| self.parents[*state as usize] == *state)
    }

    pub(crate) fn edges(&self, state: u32) -> std::ops::Range<usize> {
        self.offsets[state as usize]..self.offsets[state as usize + 1]
    }

    /// Returns the shortest path to a state.
    pub(crate) fn path(&self, mut state: u32) -> Vec<Waypoint> {
        let mut path = Vec::new();
        loop {
            path.push(Waypoint::plain(self.fingerprints[state as usize]));
            let parent = self.parents[state as usize];
            if parent == state {
                path.reverse();
                return path;
            }
            state = parent;
        }
    }
}

/// The data that is needed only during the construction of the graph.
struct Builder {
    /// The edges of the current state.
    ends: Vec<End>,
    index: Index,
    actions: HashMap<(Kind, u32, u32), u32>,
    bills: HashMap<Vec<u32>, u32>,
    kinds: Vec<&'static str>,
}

struct End {
    fingerprint: u64,
    words: Vec<u32>,
    action: Action,
    outcome: Option<Outcome>,
    posts: Vec<Post>,
}

/// A hasher for fingerprints, which are random already.
type Index = HashMap<u64, u32, BuildHasherDefault<AsIs>>;

#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed")
    }
    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}

impl Builder {
    /// Returns the size of the index in bytes. Each place of the map has one more byte.
    fn index_bytes(&self) -> usize {
        self.index.capacity() * (size_of::<(u64, u32)>() + 1)
    }

    fn note(&mut self, edge: &Edge<'_>) {
        if edge.breach == 0 {
            self.ends.push(End {
                fingerprint: edge.fingerprint,
                words: edge.words.to_vec(),
                action: edge.action,
                outcome: edge.outcome,
                posts: edge.posts.to_vec(),
            });
        }
    }

    fn settle(
        &mut self,
        graph: &mut Graph,
        stepper: &mut Stepper<'_>,
        from: u32,
        with_bills: bool,
        states: &mut Vec<u32>,
    ) {
        for end in std::mem::take(&mut self.ends) {
            let to = self.find(graph, end.fingerprint, from, &end.words, states);
            let fair = stepper.fair_key(end.action).map_or(0, |key| self.action(graph, key) + 1);
            if let Some(outcome) = end.outcome {
                for timer in stepper.rearmed(outcome).to_vec() {
                    let action = self.action(graph, (Kind::Timer, end.action.node, timer));
                    graph.put_off.push((graph.arcs.len(), action));
                }
            }
            graph.arcs.push(Arc { to, fair });
            if with_bills {
                let bill = self.bill(stepper, &end.posts);
                let next = self.bills.len() as u32;
                let number = *self.bills.entry(bill).or_insert_with_key(|bill| {
                    graph.bills.push(bill.clone());
                    next
                });
                graph.charges.push(number);
            }
        }
    }

    /// Returns the number of a state. Keeps the words of a new state until it is expanded.
    fn find(
        &mut self,
        graph: &mut Graph,
        fingerprint: u64,
        from: u32,
        words: &[u32],
        states: &mut Vec<u32>,
    ) -> u32 {
        let next = graph.fingerprints.len() as u32;
        let number = *self.index.entry(fingerprint).or_insert(next);
        if number == next {
            graph.fingerprints.push(fingerprint);
            let initial = graph.offsets.is_empty();
            graph.parents.push(if initial { next } else { from });
            states.extend_from_slice(words);
        }
        number
    }

    fn action(&mut self, graph: &mut Graph, key: (Kind, u32, u32)) -> u32 {
        let next = graph.actions.len() as u32;
        *self.actions.entry(key).or_insert_with(|| {
            graph.actions.push(key);
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
