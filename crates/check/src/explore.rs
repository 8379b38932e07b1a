//! The common parts of breadth-first and depth-first search: bounds, findings and paths.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::model::Breach;
use crate::options::{Bounds, Progress};
use crate::report::Verdict;
use crate::stepper::{Kind, Outlook, Stepper};

/// A callback that receives the progress, and may stop the exploration.
pub type Watcher<'w> = &'w mut dyn FnMut(&Progress) -> ControlFlow<()>;

/// The result of a search.
#[derive(Debug, Default)]
pub(crate) struct Explored {
    pub(crate) states: u64,
    pub(crate) edges: u64,
    pub(crate) depth: u32,
    pub(crate) bytes: usize,
    pub(crate) failure: Option<Failure>,
    /// The bound that stopped the search, if any.
    pub(crate) bound: Option<&'static str>,
}

/// A violation, and the path to it.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) verdict: Verdict,
    pub(crate) breach: Breach,
    pub(crate) path: Vec<Waypoint>,
    /// The number of waypoints, without the first, after which the rest repeats.
    pub(crate) repeats_after: Option<usize>,
}

/// A state on a path, and the step that leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waypoint {
    pub(crate) fingerprint: u64,
    /// The fair action of the step; any action if `None`.
    pub(crate) fair: Option<(Kind, u32, u32)>,
    /// Whether the step breaks a property.
    pub(crate) breaks: bool,
}

impl Waypoint {
    pub(crate) fn plain(fingerprint: u64) -> Self {
        Self { fingerprint, fair: None, breaks: false }
    }

    pub(crate) fn breaking(fingerprint: u64) -> Self {
        Self { fingerprint, fair: None, breaks: true }
    }
}

/// The number of states and the request to stop, which the threads of a search share.
pub(crate) struct Meter {
    bounds: Bounds,
    began: Instant,
    pub(crate) states: AtomicU64,
    stop: AtomicBool,
    /// The bound that was met, counted from 1; 0 if none.
    bound: AtomicU64,
}

const BOUNDS: [&str; 5] = ["states", "time", "depth", "stopped", "edges"];

impl Meter {
    pub(crate) fn new(bounds: Bounds, began: Instant) -> Self {
        let (states, bound) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { bounds, began, states, stop: AtomicBool::new(false), bound }
    }

    /// Whether the search goes on. The threads call this every few thousand states.
    pub(crate) fn goes_on(&self) -> bool {
        if self.states.load(Ordering::Relaxed) >= self.bounds.states {
            self.stop_at(0);
        } else if self.bounds.time < self.began.elapsed() {
            self.stop_at(1);
        }
        !self.is_stopped()
    }

    /// Whether states at this depth are still expanded.
    pub(crate) fn is_within(&self, depth: u32) -> bool {
        if depth >= self.bounds.depth {
            self.bound.store(3, Ordering::Relaxed);
        }
        depth < self.bounds.depth
    }

    /// Calls the watcher, which may stop the search.
    pub(crate) fn report(&self, watcher: Watcher<'_>, depth: u32, waiting: u64) {
        let states = self.states.load(Ordering::Relaxed);
        let progress = Progress { states, depth, waiting, elapsed: self.began.elapsed() };
        if watcher(&progress).is_break() {
            self.stop_at(3);
        }
    }

    pub(crate) fn stop_at_edges(&self) {
        self.stop_at(4);
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn bound(&self) -> Option<&'static str> {
        let bound = self.bound.load(Ordering::Relaxed) as usize;
        BOUNDS.get(bound.checked_sub(1)?).copied()
    }

    fn stop_at(&self, bound: u64) {
        self.bound.store(bound + 1, Ordering::Relaxed);
        self.stop();
    }
}

/// Returns the violation in a state whose edges are all known.
pub(crate) fn judge_state(
    stepper: &mut Stepper<'_>,
    state: &[u32],
    outlook: Outlook,
) -> Option<(Verdict, Breach)> {
    if !outlook.moves
        && let Some(breach) = stepper.at_rest(state)
    {
        return Some((Verdict::Violated, breach));
    }
    let pending = stepper.pending(state);
    if outlook.required || pending == 0 {
        return None;
    }
    let waiting: Vec<_> =
        (0..u64::BITS).filter(|bit| pending >> bit & 1 == 1).map(|bit| format!("n{bit}")).collect();
    let verb = if waiting.len() == 1 { "waits" } else { "wait" };
    let why = format!("{} {verb}, and no step is left that must happen", waiting.join(", "));
    Some((Verdict::Stuck, Breach { property: stepper.system.liveness(), why }))
}
