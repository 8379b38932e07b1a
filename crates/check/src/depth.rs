//! Depth-first search, by several threads.
//!
//! Each thread has a stack instead of a level, and the visited set has no parents. The path to a state is the
//! path that the thread has taken. A thread without work receives the oldest states of another stack, with
//! the path to them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::explore::{Explored, Failure, Meter, Watcher, Waypoint, judge_state};
use crate::report::Verdict;
use crate::stepper::Stepper;
use crate::visited::Visited;

/// The number of states that a thread expands between two checks of the bounds.
const STRETCH: u32 = 512;

pub(crate) fn search<'r>(
    mut steppers: Vec<Stepper<'r>>,
    meter: &Meter,
    watcher: Watcher<'_>,
) -> (Explored, Vec<Stepper<'r>>) {
    let visited = Visited::new(false);
    let mut stack = Stack::new(steppers[0].width());
    for state in steppers[0].initial() {
        let fingerprint = steppers[0].fingerprint(&state);
        if visited.insert(fingerprint, 0) {
            meter.states.fetch_add(1, Ordering::Relaxed);
            stack.push(0, &state);
        }
    }
    let pool = Pool::new(steppers.len(), Task { path: Vec::new(), stack });
    let mut workers: Vec<_> =
        steppers.into_iter().map(|stepper| Worker::new(stepper, &pool, &visited)).collect();
    if let Some((first, others)) = workers.split_first_mut() {
        std::thread::scope(|scope| {
            for worker in others {
                scope.spawn(|| worker.run(meter, &mut |_, _| {}));
            }
            first.run(meter, &mut |meter, depth| meter.report(watcher, depth, 0));
        });
    }
    let shortest = workers.iter_mut().filter_map(|worker| worker.failure.take());
    let explored = Explored {
        failure: shortest.min_by_key(|failure| failure.path.len()),
        states: visited.len(),
        edges: workers.iter().map(|worker| worker.edges).sum(),
        depth: workers.iter().map(|worker| worker.deepest).max().unwrap_or(0),
        bytes: visited.bytes() + workers.iter().map(|worker| worker.stack_bytes).sum::<usize>(),
        bound: meter.bound(),
    };
    (explored, workers.into_iter().map(|worker| worker.stepper).collect())
}

/// States to be expanded, each with its depth. The latest state is last.
struct Stack {
    /// The depth and then the words of each state.
    entries: Vec<u32>,
    stride: usize,
}

impl Stack {
    fn new(width: usize) -> Self {
        Self { entries: Vec::new(), stride: width + 1 }
    }

    fn push(&mut self, depth: u32, state: &[u32]) {
        self.entries.push(depth);
        self.entries.extend_from_slice(state);
    }

    /// Moves the latest state into `state`, and returns its depth.
    fn pop(&mut self, state: &mut Vec<u32>) -> Option<u32> {
        let start = self.entries.len().checked_sub(self.stride)?;
        state.clear();
        state.extend_from_slice(&self.entries[start + 1..]);
        let depth = self.entries[start];
        self.entries.truncate(start);
        Some(depth)
    }

    /// Splits off the older half, with states of one depth; `None` if there is too little to share.
    fn split(&mut self) -> Option<(u32, Self)> {
        let depth = *self.entries.first()?;
        let of_depth = self.entries.chunks_exact(self.stride).take_while(|entry| entry[0] == depth).count();
        let total = self.entries.len() / self.stride;
        let given = if of_depth == total { total / 2 } else { of_depth.div_ceil(2) };
        let entries: Vec<_> = self.entries.drain(..given * self.stride).collect();
        (given > 0).then_some((depth, Self { entries, stride: self.stride }))
    }
}

/// A part of the exploration: states, and the path of fingerprints that leads to them.
struct Task {
    path: Vec<u64>,
    stack: Stack,
}

/// The tasks that busy threads give to idle threads.
struct Pool {
    desk: Mutex<Desk>,
    change: Condvar,
    hungry: AtomicUsize,
}

struct Desk {
    tasks: Vec<Task>,
    idle: usize,
    threads: usize,
}

impl Pool {
    fn new(threads: usize, first: Task) -> Self {
        let desk = Mutex::new(Desk { tasks: vec![first], idle: 0, threads });
        Self { desk, change: Condvar::new(), hungry: AtomicUsize::new(0) }
    }

    /// Waits for a task; `None` if all threads wait.
    fn take(&self) -> Option<Task> {
        let mut desk = self.lock();
        desk.idle += 1;
        loop {
            if let Some(task) = desk.tasks.pop() {
                desk.idle -= 1;
                return Some(task);
            }
            if desk.idle == desk.threads {
                self.change.notify_all();
                return None;
            }
            self.hungry.store(desk.idle, Ordering::Relaxed);
            desk = self.change.wait(desk).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give(&self, task: Task) {
        self.hungry.store(0, Ordering::Relaxed);
        self.lock().tasks.push(task);
        self.change.notify_one();
    }

    fn is_hungry(&self) -> bool {
        self.hungry.load(Ordering::Relaxed) > 0
    }

    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Worker<'s, 'r> {
    stepper: Stepper<'r>,
    pool: &'s Pool,
    visited: &'s Visited,
    path: Vec<u64>,
    edges: u64,
    deepest: u32,
    stack_bytes: usize,
    failure: Option<Failure>,
}

impl<'s, 'r> Worker<'s, 'r> {
    fn new(stepper: Stepper<'r>, pool: &'s Pool, visited: &'s Visited) -> Self {
        Self { stepper, pool, visited, path: Vec::new(), edges: 0, deepest: 0, stack_bytes: 0, failure: None }
    }

    fn run(&mut self, meter: &Meter, tell: &mut dyn FnMut(&Meter, u32)) {
        let mut state = Vec::new();
        while let Some(Task { path, mut stack }) = self.pool.take() {
            self.path = path;
            let mut stretch = 0;
            while !meter.is_stopped()
                && let Some(depth) = stack.pop(&mut state)
            {
                if meter.is_within(depth) {
                    self.expand(&state, depth, &mut stack, meter);
                }
                if self.pool.is_hungry()
                    && let Some((depth, given)) = stack.split()
                {
                    let path = self.path[..depth as usize].to_vec();
                    self.pool.give(Task { path, stack: given });
                }
                stretch += 1;
                if stretch == STRETCH {
                    stretch = 0;
                    tell(meter, depth);
                    meter.goes_on();
                }
            }
            self.stack_bytes = self.stack_bytes.max(4 * stack.entries.capacity());
        }
    }

    fn expand(&mut self, state: &[u32], depth: u32, stack: &mut Stack, meter: &Meter) {
        let fingerprint = self.stepper.fingerprint(state);
        self.path.truncate(depth as usize);
        self.path.push(fingerprint);
        self.deepest = self.deepest.max(depth);
        let (edges, visited) = (&mut self.edges, self.visited);
        let (mut broken, mut new) = (None, 0);
        let outlook = self.stepper.expand(state, &mut |edge| {
            *edges += 1;
            if edge.breach != 0 {
                broken.get_or_insert((edge.breach, edge.fingerprint));
            } else if visited.insert(edge.fingerprint, 0) {
                new += 1;
                stack.push(depth + 1, edge.words);
            }
        });
        meter.states.fetch_add(new, Ordering::Relaxed);
        let path = self.path.iter().copied().map(Waypoint::plain);
        if let Some((number, last)) = broken {
            let breach = self.stepper.breach(number).cloned().expect("the edge's own stepper numbered it");
            let path = path.chain([Waypoint::breaking(last)]).collect();
            self.failure = Some(Failure { verdict: Verdict::Violated, breach, path, repeats_after: None });
        } else if let Some((verdict, breach)) = judge_state(&mut self.stepper, state, outlook) {
            self.failure = Some(Failure { verdict, breach, path: path.collect(), repeats_after: None });
        }
        if self.failure.is_some() || self.stepper.trouble.is_some() {
            meter.stop();
        }
    }
}
