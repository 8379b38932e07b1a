//! Runs of many seeds on all cores.

use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Runs `job` for every seed on all cores, and returns the results in the order of seeds. Calls `done` after
/// each job, from any thread, with the number of finished jobs.
pub fn sweep<T: Send>(seeds: Range<u64>, job: impl Fn(u64) -> T + Sync, done: impl Fn(u64) + Sync) -> Vec<T> {
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicU64::new(seeds.start);
    let finished = AtomicU64::new(0);
    let answers = Mutex::new(Vec::with_capacity(usize::try_from(seeds.end - seeds.start).unwrap_or(0)));
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let answer = job(seed);
                    answers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((seed, answer));
                    done(finished.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    let mut answers = answers.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    answers.sort_by_key(|(seed, _)| *seed);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_the_order_of_seeds() {
        let last = AtomicU64::new(0);
        let answers = sweep(5..205, |seed| seed * 2, |done| _ = last.fetch_max(done, Ordering::Relaxed));
        assert_eq!(answers, (5..205).map(|seed| seed * 2).collect::<Vec<_>>());
        assert_eq!(last.into_inner(), 200);
    }
}
