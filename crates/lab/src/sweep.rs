//! Runs of many seeds on all cores, in memory that does not grow with the number of seeds.

mod distribution;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZero;
use std::ops::{ControlFlow, Range};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use conclave_kernel::Verdict;

use crate::problem::{Facts, Measured, Unit};
pub use distribution::Distribution;

/// Runs `job` for every seed on all cores, and passes the results to `fold` in the order of seeds. Stops early
/// if `fold` breaks. A worker that is [`WINDOW`] seeds ahead of the slowest one waits for it.
pub fn fold<T: Send>(
    seeds: Range<u64>,
    job: impl Fn(u64) -> T + Sync,
    fold: impl FnMut(T) -> ControlFlow<()> + Send,
) {
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    fold_on(workers, seeds, job, fold);
}

/// The largest number of seeds between the first one that is not folded and the last one that has begun.
pub const WINDOW: usize = 1024;

fn fold_on<T: Send>(
    workers: usize,
    seeds: Range<u64>,
    job: impl Fn(u64) -> T + Sync,
    fold: impl FnMut(T) -> ControlFlow<()> + Send,
) {
    let queue = Queue {
        state: Mutex::new(State { next: seeds.start, end: seeds.end, results: VecDeque::new(), fold }),
        has_moved: Condvar::new(),
    };
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let _guard = StopOnPanic(&queue);
                while let Some(seed) = queue.take() {
                    queue.put(seed, job(seed));
                }
            });
        }
    });
}

/// The seeds that have begun and are not folded, with their results.
struct Queue<T, F> {
    state: Mutex<State<T, F>>,
    has_moved: Condvar,
}

struct State<T, F> {
    /// The next seed that begins.
    next: u64,
    end: u64,
    /// The results of the seeds before `next` that are not folded; `None` for a run that goes on.
    results: VecDeque<Option<T>>,
    fold: F,
}

impl<T, F: FnMut(T) -> ControlFlow<()>> Queue<T, F> {
    /// Returns the next seed, as soon as there is room for its result.
    fn take(&self) -> Option<u64> {
        let mut state = self.lock();
        while state.results.len() >= WINDOW && state.next < state.end {
            state = self.has_moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (state.next < state.end).then(|| {
            state.results.push_back(None);
            state.next += 1;
            state.next - 1
        })
    }

    /// Adds the result of a seed, and folds all results that have no gap before them.
    fn put(&self, seed: u64, result: T) {
        let mut state = self.lock();
        let State { next, end, results, fold } = &mut *state;
        let from_back = (*next - seed) as usize;
        // After a break, the other runs that had begun still end here.
        let Some(place) = results.len().checked_sub(from_back) else { return };
        results[place] = Some(result);
        while let Some(Some(_)) = results.front() {
            let Some(result) = results.pop_front().flatten() else { break };
            if fold(result).is_break() {
                *end = *next;
                results.clear();
            }
        }
        drop(state);
        self.has_moved.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T, F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the sweep if the thread panics. Otherwise the other workers would wait for its result for ever.
struct StopOnPanic<'q, T, F: FnMut(T) -> ControlFlow<()>>(&'q Queue<T, F>);

impl<T, F: FnMut(T) -> ControlFlow<()>> Drop for StopOnPanic<'_, T, F> {
    fn drop(&mut self) {
        if thread::panicking() {
            let mut state = self.0.lock();
            state.end = state.next;
            state.results.clear();
            self.0.has_moved.notify_all();
        }
    }
}

/// Runs `job` for every seed on all cores, and returns the results in the order of seeds. Calls `done` after
/// each result with the number of results so far.
pub fn sweep<T: Send>(
    seeds: Range<u64>,
    job: impl Fn(u64) -> T + Sync,
    mut done: impl FnMut(u64) + Send,
) -> Vec<T> {
    let mut results = Vec::new();
    fold(seeds, job, |result| {
        results.push(result);
        done(results.len() as u64);
        ControlFlow::Continue(())
    });
    results
}

/// The results of many runs of one scenario. Its size depends on the properties and figures of a run, not on the
/// number of runs.
#[derive(Debug, Default)]
pub struct Summary {
    /// The number of runs.
    pub runs: u64,
    /// Messages of all runs.
    pub messages: u64,
    /// Events of all runs.
    pub events: u64,
    /// The runs that failed.
    pub failed: Seeds,
    /// The runs without progress.
    pub bounded: Seeds,
    /// The command that repeats the first run without progress.
    pub first_bounded: Option<String>,
    /// Whether any run tested a promised property.
    pub has_judged_any: bool,
    /// The promised properties.
    pub promised: BTreeMap<&'static str, Evidence>,
    /// The properties that are not promised and that a run violated, with the number of such runs.
    pub unpromised: BTreeMap<String, u64>,
    /// The figures of the runs, in the order of the reports.
    pub figures: Vec<Figure>,
}

/// Runs of one kind: their number and the first of their seeds.
#[derive(Debug, Default)]
pub struct Seeds {
    /// The number of runs.
    pub count: u64,
    /// The seeds of the first ten.
    pub first: Vec<u64>,
}

/// The number of runs that put a property to the test.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence {
    /// The runs that tested the property.
    pub judged: u64,
    /// The runs that violated it.
    pub violated: u64,
}

/// A figure of the reports, over all runs that have it.
#[derive(Debug)]
pub struct Figure {
    /// The name of the figure.
    pub name: &'static str,
    /// The unit of its values.
    pub unit: Unit,
    /// The values.
    pub values: Distribution,
}

impl Summary {
    /// Adds a run: its facts and its figures.
    pub fn add(&mut self, facts: &Facts, measures: &[Measured]) {
        self.runs += 1;
        self.messages += facts.messages;
        self.events += facts.events;
        self.has_judged_any |= facts.has_judged_any();
        if !facts.passed() {
            self.failed.add(facts.seed);
        }
        if facts.is_bounded() {
            self.bounded.add(facts.seed);
            self.first_bounded.get_or_insert_with(|| facts.command.clone());
        }
        for (property, verdict) in &facts.properties {
            if *verdict != Verdict::NotPromised {
                let evidence = self.promised.entry(property).or_default();
                evidence.judged += u64::from(facts.has_judged(property));
                let is_broken = facts.violations.iter().any(|violation| violation.property == *property);
                evidence.violated += u64::from(is_broken);
            }
        }
        let unpromised: BTreeSet<&str> =
            facts.unpromised.iter().map(|violation| &*violation.property).collect();
        for property in unpromised {
            *self.unpromised.entry(property.to_owned()).or_default() += 1;
        }
        for measure in measures {
            self.measure(facts.seed, measure);
        }
    }

    fn measure(&mut self, seed: u64, measure: &Measured) {
        let Measured { name, unit, value } = *measure;
        let place = self.figures.iter().position(|figure| figure.name == name).unwrap_or_else(|| {
            self.figures.push(Figure { name, unit, values: Distribution::default() });
            self.figures.len() - 1
        });
        if let Some(value) = value {
            self.figures[place].values.add(value, seed);
        }
    }
}

impl Seeds {
    const MOST_LISTED: usize = 10;

    fn add(&mut self, seed: u64) {
        self.count += 1;
        if self.first.len() < Self::MOST_LISTED {
            self.first.push(seed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn answers_come_in_the_order_of_seeds() {
        let last = AtomicU64::new(0);
        let answers = sweep(5..205, |seed| seed * 2, |done| _ = last.fetch_max(done, Ordering::Relaxed));
        assert_eq!(answers, (5..205).map(|seed| seed * 2).collect::<Vec<_>>());
        assert_eq!(last.into_inner(), 200);
    }

    #[test]
    fn workers_wait_for_a_slow_seed_before_they_fill_the_memory() {
        let begun = AtomicU64::new(0);
        let mut folded = Vec::new();
        let seeds = 5 * WINDOW as u64;
        let job = |seed| {
            begun.fetch_add(1, Ordering::Relaxed);
            // The first seed ends only when the other workers can begin no further seed.
            while seed == 0 && begun.load(Ordering::Relaxed) < WINDOW as u64 {
                thread::yield_now();
            }
            (seed, begun.load(Ordering::Relaxed))
        };
        fold_on(4, 0..seeds, job, |(seed, begun)| {
            assert!(begun <= seed + WINDOW as u64, "seed {seed} ended after {begun} seeds had begun");
            folded.push(seed);
            ControlFlow::Continue(())
        });
        assert_eq!(folded, (0..seeds).collect::<Vec<_>>());
    }

    #[test]
    fn a_panic_of_a_run_ends_the_sweep() {
        let job = |seed| assert_ne!(seed, 3, "a run that panics on purpose");
        let sweep = || fold_on(2, 0..u64::MAX, job, |()| ControlFlow::Continue(()));
        assert!(std::panic::catch_unwind(sweep).is_err());
    }

    #[test]
    fn no_seed_begins_after_a_break() {
        for workers in [1, 4] {
            let begun = AtomicU64::new(0);
            let mut folded = 0;
            let job = |seed| {
                begun.fetch_add(1, Ordering::Relaxed);
                seed
            };
            fold_on(workers, 0..u64::MAX, job, |seed| {
                folded += 1;
                if seed == 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert_eq!(folded, 21);
            assert!(begun.into_inner() <= 21 + WINDOW as u64);
        }
    }
}
