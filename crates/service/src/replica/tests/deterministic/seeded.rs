//! The state of the seeded run on this thread: its random numbers, its planted bug, its slow disks and its
//! digest.
//!
//! **Rules.** A run has one thread, and everything in it draws from one stream. So two runs of a seed are
//! equal if they do everything in the same order. The first difference changes all later random numbers.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use conclave_kernel::Prng;
use tokio::time::Instant;

use super::flaw::Flaw;
use crate::replica::NodeId;

thread_local! {
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

struct Run {
    dice: Prng,
    flaw: Option<Flaw>,
    slow_disks: BTreeSet<NodeId>,
    begin: Option<Instant>,
    digest: DefaultHasher,
    /// The events, if the run records them.
    events: Option<Vec<String>>,
}

/// The digest of a run, and its events if they were recorded.
pub(super) struct Ended {
    pub(super) digest: u64,
    pub(super) events: Vec<String>,
}

/// Begins a run on this thread.
///
/// # Panics
/// Panics if a run is in progress.
pub(super) fn begin(seed: u64, flaw: Option<Flaw>, records: bool) {
    let run = Run {
        dice: Prng::stream(seed, 0x4a17, 0),
        flaw,
        slow_disks: BTreeSet::new(),
        begin: None,
        digest: DefaultHasher::new(),
        events: records.then(Vec::new),
    };
    assert!(RUN.replace(Some(run)).is_none(), "a thread has one run at a time");
}

/// Ends the run of this thread.
pub(super) fn end() -> Ended {
    let run = RUN.take().expect("a run is in progress");
    Ended { digest: run.digest.finish(), events: run.events.unwrap_or_default() }
}

/// Returns whether a run is in progress on this thread.
pub(crate) fn is_seeded() -> bool {
    RUN.with_borrow(Option::is_some)
}

pub(crate) fn has_flaw(flaw: Flaw) -> bool {
    RUN.with_borrow(|run| run.as_ref().is_some_and(|run| run.flaw == Some(flaw)))
}

/// Draws 64 bits, or `None` outside of a run.
pub(super) fn draw() -> Option<u64> {
    RUN.with_borrow_mut(|run| run.as_mut().map(|run| run.dice.next()))
}

pub(super) fn below(n: u64) -> u64 {
    with(|run| run.dice.below(n))
}

pub(super) fn between(low: u64, high: u64) -> u64 {
    with(|run| run.dice.between(low, high))
}

/// Returns `true` in one of `n` cases.
pub(super) fn one_in(n: u64) -> bool {
    below(n) == 0
}

/// Returns one of these values, or `None` if there is none.
pub(super) fn pick<T: Clone>(from: &[T]) -> Option<T> {
    if from.is_empty() { None } else { from.get(below(from.len() as u64) as usize).cloned() }
}

/// Adds an event to the digest. Does nothing outside of a run.
pub(crate) fn note(event: impl FnOnce() -> String) {
    RUN.with_borrow_mut(|run| {
        let Some(run) = run else { return };
        let now = Instant::now();
        let at = now - *run.begin.get_or_insert(now);
        let text = event();
        (at, &text).hash(&mut run.digest);
        if let Some(events) = &mut run.events {
            events.push(format!("{at:?} {text}"));
        }
    });
}

/// Returns the length and the checksum of the bytes as text. Different bytes almost always give different
/// texts.
pub(crate) fn mark(bytes: &[u8]) -> String {
    format!("{} bytes {:08x}", bytes.len(), crc32fast::hash(bytes))
}

/// Makes the disk of a node slow, or fast again.
pub(super) fn slow_down(node: NodeId, is_slow: bool) {
    with(|run| if is_slow { run.slow_disks.insert(node) } else { run.slow_disks.remove(&node) });
}

/// Waits for half of the time that a node's disk takes for a sync. Nothing is written before the first half,
/// and nothing is reported durable before the second.
pub(crate) async fn half_of_sync(node: NodeId) {
    let ms = with(|run| match run.slow_disks.contains(&node) {
        true => run.dice.between(10, 120),
        false => run.dice.below(6),
    });
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Waits for the time of work on a blocking thread.
pub(crate) async fn pause() {
    let ms = below(4);
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

fn with<R>(use_run: impl FnOnce(&mut Run) -> R) -> R {
    RUN.with_borrow_mut(|run| use_run(run.as_mut().expect("a run is in progress")))
}
