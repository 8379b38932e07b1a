//! Breadth-first search, level by level, by several threads.
//!
//! Each thread takes chunks of the level. It collects the states that it reaches by shard of the visited set,
//! and looks up a whole batch under one lock. The cache misses of a batch overlap.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::explore::{Explored, Failure, Meter, Watcher, Waypoint, judge_state};
use crate::model::Breach;
use crate::report::Verdict;
use crate::stepper::Stepper;
use crate::visited::{SHARDS, Visited, shard_of};

/// The number of states that a thread takes at a time.
const CHUNK: usize = 512;
/// The number of states that are looked up at a time.
const BATCH: usize = 64;

pub(crate) fn search<'r>(
    steppers: Vec<Stepper<'r>>,
    meter: &Meter,
    watcher: Watcher<'_>,
) -> (Explored, Vec<Stepper<'r>>) {
    let visited = Visited::new(true);
    let mut workers: Vec<_> = steppers.into_iter().map(Worker::new).collect();
    let mut level = first_level(&mut workers[0], &visited, meter);
    let mut explored = Explored::default();
    let mut frontier_bytes = 0;
    loop {
        let waiting: usize = level.iter().map(Vec::len).sum();
        if waiting == 0 || !meter.is_within(explored.depth) || !meter.goes_on() {
            break;
        }
        expand(&level, &mut workers, &visited, meter, explored.depth, watcher);
        let next: Vec<Vec<u32>> =
            workers.iter_mut().flat_map(|worker| std::mem::take(&mut worker.next)).collect();
        frontier_bytes = frontier_bytes.max(4 * (capacity(&level) + capacity(&next)));
        level = next;
        explored.failure = nearest(&mut workers, &visited, explored.depth);
        if explored.failure.is_some() || meter.is_stopped() {
            break;
        }
        explored.depth += u32::from(!level.is_empty());
    }
    explored.states = visited.len();
    explored.edges = workers.iter().map(|worker| worker.edges).sum();
    explored.bound = meter.bound();
    explored.bytes = visited.bytes() + frontier_bytes + workers.iter().map(Worker::bytes).sum::<usize>();
    (explored, workers.into_iter().map(|worker| worker.stepper).collect())
}

fn capacity(level: &[Vec<u32>]) -> usize {
    level.iter().map(Vec::capacity).sum()
}

fn first_level(worker: &mut Worker<'_>, visited: &Visited, meter: &Meter) -> Vec<Vec<u32>> {
    for state in worker.stepper.initial() {
        let fingerprint = worker.stepper.fingerprint(&state);
        worker.batches[shard_of(fingerprint)].push(fingerprint, fingerprint, &state);
    }
    worker.flush_all(visited, meter);
    std::mem::take(&mut worker.next)
}

fn expand(
    level: &[Vec<u32>],
    workers: &mut [Worker<'_>],
    visited: &Visited,
    meter: &Meter,
    depth: u32,
    watcher: Watcher<'_>,
) {
    let taken = AtomicUsize::new(0);
    let take = || level.get(taken.fetch_add(1, Ordering::Relaxed));
    let Some((first, others)) = workers.split_first_mut() else { return };
    std::thread::scope(|scope| {
        // A short level is not worth the start of the threads.
        let helpers = if level.len() > 2 { others } else { &mut [] };
        for worker in helpers {
            scope.spawn(move || worker.run(take, visited, meter, &mut |_| {}));
        }
        let width = first.stepper.width();
        let waiting = level.iter().map(|chunk| (chunk.len() / width) as u64).sum();
        first.run(take, visited, meter, &mut |meter| meter.report(watcher, depth, waiting));
    });
}

/// Returns the failure with the shortest path. Among several, the choice is always the same.
fn nearest(workers: &mut [Worker<'_>], visited: &Visited, depth: u32) -> Option<Failure> {
    let found = workers.iter_mut().flat_map(|worker| std::mem::take(&mut worker.found));
    let nearest = found.min_by_key(|found| (found.last.is_some(), found.state, found.last))?;
    let way = way_to(nearest.state, depth, &mut workers[0].stepper, visited);
    let path = way.into_iter().map(Waypoint::plain).chain(nearest.last.map(Waypoint::breaking)).collect();
    Some(Failure { verdict: nearest.verdict, breach: nearest.breach, path, repeats_after: None })
}

/// Returns the path to a state at that depth. It goes back to all possible parents, level by level, and then
/// forward along the edges that exist.
fn way_to(state: u64, depth: u32, stepper: &mut Stepper<'_>, visited: &Visited) -> Vec<u64> {
    let mut layers = vec![vec![state]];
    for _ in 0..depth {
        let last = layers.last().into_iter().flatten();
        let mut parents: Vec<u64> = last.flat_map(|state| visited.parents(*state)).collect();
        parents.sort_unstable();
        parents.dedup();
        layers.push(parents);
    }
    let first = layers.pop().unwrap_or_default();
    // The paths so far, each with the state at its end.
    let mut paths: Vec<(Vec<u64>, Vec<u32>)> = Vec::new();
    for state in stepper.initial() {
        let fingerprint = stepper.fingerprint(&state);
        if first.contains(&fingerprint) {
            paths.push((vec![fingerprint], state));
        }
    }
    for layer in layers.iter().rev() {
        let mut longer: Vec<(Vec<u64>, Vec<u32>)> = Vec::new();
        for (path, state) in &paths {
            stepper.expand(state, &mut |edge| {
                let known = longer.iter().any(|(path, _)| path.last() == Some(&edge.fingerprint));
                if edge.breach == 0 && !known && layer.contains(&edge.fingerprint) {
                    let path = path.iter().copied().chain([edge.fingerprint]).collect();
                    longer.push((path, edge.words.to_vec()));
                }
            });
        }
        paths = longer;
    }
    paths.pop().expect("a state that was found can be reached").0
}

/// A failure in the form that a worker records.
struct Found {
    verdict: Verdict,
    breach: Breach,
    state: u64,
    /// The state after the failed step, if a step failed and not the state.
    last: Option<u64>,
}

struct Worker<'r> {
    stepper: Stepper<'r>,
    batches: Vec<Batch>,
    /// The next level, in chunks.
    next: Vec<Vec<u32>>,
    /// The fingerprints that were met last. Neighbouring states have many edges to the same states, and these
    /// need no second lookup. The length is a power of two.
    recent: Vec<u64>,
    edges: u64,
    found: Vec<Found>,
}

/// The most fingerprints that a thread remembers. They fit into its cache.
const MOST_RECENT: u64 = 1 << 13;

/// States of one shard that wait for their lookup.
#[derive(Default)]
struct Batch {
    /// The fingerprints, each with its parent.
    fingerprints: Vec<(u64, u64)>,
    words: Vec<u32>,
}

impl Batch {
    #[inline]
    fn push(&mut self, fingerprint: u64, parent: u64, words: &[u32]) {
        self.fingerprints.push((fingerprint, parent));
        self.words.extend_from_slice(words);
    }
}

impl<'r> Worker<'r> {
    fn new(stepper: Stepper<'r>) -> Self {
        let batches = (0..SHARDS).map(|_| Batch::default()).collect();
        Self { stepper, batches, next: Vec::new(), recent: vec![0; 64], edges: 0, found: Vec::new() }
    }

    fn run<'l>(
        &mut self,
        take: impl Fn() -> Option<&'l Vec<u32>>,
        visited: &Visited,
        meter: &Meter,
        tell: &mut dyn FnMut(&Meter),
    ) {
        let width = self.stepper.width();
        // The list takes about half a byte per state.
        let wanted = (meter.states.load(Ordering::Relaxed) / 16).clamp(64, MOST_RECENT).next_power_of_two();
        if self.recent.len() < wanted as usize {
            self.recent = vec![0; wanted as usize];
        }
        while let Some(chunk) = take() {
            for state in chunk.chunks_exact(width) {
                self.expand(state, visited, meter);
            }
            tell(meter);
            if self.stepper.trouble.is_some() {
                meter.stop();
            }
            if !meter.goes_on() {
                break;
            }
        }
        self.flush_all(visited, meter);
    }

    fn expand(&mut self, state: &[u32], visited: &Visited, meter: &Meter) {
        let parent = self.stepper.fingerprint(state);
        let (batches, next, edges) = (&mut self.batches, &mut self.next, &mut self.edges);
        let recent = &mut self.recent;
        let mut broken = Vec::new();
        let outlook = self.stepper.expand(state, &mut |edge| {
            *edges += 1;
            if edge.breach != 0 {
                broken.push((edge.breach, edge.fingerprint));
                return;
            }
            let slot = edge.fingerprint as usize & (recent.len() - 1);
            if std::mem::replace(&mut recent[slot], edge.fingerprint) == edge.fingerprint {
                return;
            }
            let shard = shard_of(edge.fingerprint);
            batches[shard].push(edge.fingerprint, parent, edge.words);
            if batches[shard].fingerprints.len() == BATCH {
                flush(&mut batches[shard], shard, next, visited, meter);
            }
        });
        for (number, last) in broken {
            let breach = self.stepper.breach(number).cloned().expect("the edge's own stepper numbered it");
            let (verdict, last) = (Verdict::Violated, Some(last));
            self.found.push(Found { verdict, breach, state: parent, last });
        }
        if let Some((verdict, breach)) = judge_state(&mut self.stepper, state, outlook) {
            self.found.push(Found { verdict, breach, state: parent, last: None });
        }
    }

    fn bytes(&self) -> usize {
        let batch = |batch: &Batch| 16 * batch.fingerprints.capacity() + 4 * batch.words.capacity();
        self.batches.iter().map(batch).sum::<usize>() + 8 * self.recent.len()
    }

    fn flush_all(&mut self, visited: &Visited, meter: &Meter) {
        for (shard, batch) in self.batches.iter_mut().enumerate() {
            flush(batch, shard, &mut self.next, visited, meter);
        }
    }
}

/// Looks a batch up, and adds the new states to the next level.
fn flush(batch: &mut Batch, shard: usize, next: &mut Vec<Vec<u32>>, visited: &Visited, meter: &Meter) {
    if batch.fingerprints.is_empty() {
        return;
    }
    let width = batch.words.len() / batch.fingerprints.len();
    let mut new = 0;
    let mut table = visited.lock(shard);
    // The loads of this loop do not depend on each other. The whole loop costs about one cache miss, not a
    // hundred.
    let touched = batch.fingerprints.iter().fold(0, |all, (fingerprint, _)| all ^ table.touch(*fingerprint));
    std::hint::black_box(touched);
    for ((fingerprint, parent), words) in batch.fingerprints.iter().zip(batch.words.chunks_exact(width)) {
        if table.insert(*fingerprint, *parent) {
            new += 1;
            if next.last().is_none_or(|chunk| chunk.len() == CHUNK * width) {
                next.push(Vec::with_capacity(CHUNK * width));
            }
            if let Some(chunk) = next.last_mut() {
                chunk.extend_from_slice(words);
            }
        }
    }
    drop(table);
    batch.fingerprints.clear();
    batch.words.clear();
    meter.states.fetch_add(new, Ordering::Relaxed);
}
