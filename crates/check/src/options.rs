//! How a model is to be explored.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Everything an exploration is a function of, besides the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// In which order messages arrive.
    pub order: Order,
    /// What is assumed of time.
    pub timing: Timing,
    /// What may go wrong.
    pub faults: Faults,
    /// In which order states are visited.
    pub search: Search,
    /// How many threads explore; at least 1.
    pub threads: usize,
    /// Where to stop.
    pub bounds: Bounds,
    /// Up to how many states cycles are judged: they need the whole graph in memory, about 100 bytes a state.
    /// With 0, only stuck states are looked for.
    pub liveness_states: u64,
    /// Whether states that differ only by one of [`Model::symmetries`](crate::Model::symmetries) count as one.
    /// Eventually-properties are then not judged on cycles.
    pub symmetry: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            order: Order::Fifo,
            timing: Timing::Async,
            faults: Faults::default(),
            search: Search::Breadth,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            bounds: Bounds::default(),
            liveness_states: 5_000_000,
            symmetry: false,
        }
    }
}

/// In which order messages arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Those of one link in the order sent.
    #[default]
    Fifo,
    /// In any.
    Any,
}

/// What is assumed of time. In both modes `cx.now()` is constant: an algorithm that reads it has no finite
/// state space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timing {
    /// Nothing: a message takes any time, a timer may fire at any moment. Only, of two timers pending at one
    /// site, the one armed earlier goes first if its latest moment is not after the other's earliest.
    #[default]
    Async,
    /// Time passes in ticks, each message is delivered within so many, and timers fire within their range.
    Sync {
        /// The most ticks that a message takes.
        delay: u16,
        /// How long a tick is, on the clocks that timers are set by.
        tick: Duration,
    },
}

/// What may go wrong, and how often in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// At most so many messages are lost.
    pub loss: u8,
    /// At most so many arrive a second time.
    pub duplication: u8,
    /// At most so many crashes.
    pub crash: u8,
    /// What crashed sites come back with; never, if not given.
    pub recovery: Option<Recovery>,
}

/// What a site still knows after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// Everything: the state was on stable storage.
    Stable,
    /// Nothing: it starts afresh.
    Amnesia,
}

/// In which order states are visited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Search {
    /// The nearest first: counterexamples are the shortest there are.
    #[default]
    Breadth,
    /// The latest first: half the memory, because nobody needs to remember where a state was reached from.
    Depth,
}

/// Where to stop: the verdict is then [`Verdict::Bounded`](crate::Verdict::Bounded).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// At about so many states: the steps under way are finished.
    pub states: u64,
    /// At so many steps from the beginning.
    pub depth: u32,
    /// After so long.
    pub time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { states: 400_000_000, depth: u32::MAX, time: Duration::MAX }
    }
}

/// How far an exploration is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Unique states so far.
    pub states: u64,
    /// Steps from the beginning.
    pub depth: u32,
    /// States found and not yet expanded.
    pub waiting: u64,
    /// Since the beginning.
    pub elapsed: Duration,
}
