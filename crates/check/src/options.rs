//! The options of an exploration.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Everything besides the model that determines an exploration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The order in which messages arrive.
    pub order: Order,
    /// The assumption about time.
    pub timing: Timing,
    /// The faults that can occur.
    pub faults: Faults,
    /// The order in which states are visited.
    pub search: Search,
    /// The number of threads; at least 1.
    pub threads: usize,
    /// The bounds at which the exploration stops.
    pub bounds: Bounds,
    /// The largest number of states for which cycles are judged. Judging needs the whole graph in memory,
    /// about 100 bytes per state. With 0, only stuck states are found.
    pub liveness_states: u64,
    /// Whether states that differ only by one of [`Model::symmetries`](crate::Model::symmetries) count as
    /// one. Properties that must hold eventually are then not judged on cycles.
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

/// The order in which messages arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The messages of one link arrive in the order sent.
    #[default]
    Fifo,
    /// Messages arrive in any order.
    Any,
}

/// The assumption about time. In both modes `cx.now()` is constant, because an algorithm that reads the time
/// has infinitely many states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timing {
    /// No assumption: a message takes any time, and a timer may fire at any moment. One rule remains for two
    /// timers of a site. The timer armed first fires first if its latest moment is not after the earliest
    /// moment of the other.
    #[default]
    Async,
    /// Time passes in ticks. Each message is delivered within `delay` ticks, and timers fire within their
    /// range.
    Sync {
        /// The largest delay of a message in ticks.
        delay: u16,
        /// The length of a tick on the clocks of the timers.
        tick: Duration,
    },
}

/// The faults that can occur in one execution, with their largest numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// The largest number of lost messages.
    pub loss: u8,
    /// The largest number of duplicated messages.
    pub duplication: u8,
    /// The largest number of crashes.
    pub crash: u8,
    /// The memory of a site that recovers. `None`: crashed sites never recover.
    pub recovery: Option<Recovery>,
}

/// The memory of a site after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// All of it: the state was on stable storage.
    Stable,
    /// None: the site starts from its initial state.
    Amnesia,
}

/// The order in which states are visited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Search {
    /// The nearest state first. Counterexamples are as short as possible.
    #[default]
    Breadth,
    /// The latest state first. It needs half the memory, because no state stores its parent.
    Depth,
}

/// The bounds of an exploration. At a bound, the verdict is [`Verdict::Bounded`](crate::Verdict::Bounded).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The largest number of states. It is approximate, because the steps that have begun are finished.
    pub states: u64,
    /// The largest number of steps from the start.
    pub depth: u32,
    /// The largest time.
    pub time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { states: 400_000_000, depth: u32::MAX, time: Duration::MAX }
    }
}

/// The progress of an exploration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// The number of unique states so far.
    pub states: u64,
    /// The number of steps from the start.
    pub depth: u32,
    /// The number of states that are found and not yet expanded.
    pub waiting: u64,
    /// The time since the start.
    pub elapsed: Duration,
}
