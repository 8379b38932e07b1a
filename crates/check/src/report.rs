//! The result of an exploration.

use std::fmt;

use conclave_kernel::{NodeId, Recording};
use serde::Serialize;

/// The result of an exploration.
#[derive(Debug)]
pub struct Report {
    /// The outcome.
    pub verdict: Verdict,
    /// The violated property.
    pub property: Option<&'static str>,
    /// The violation in a sentence, or the bound at which the exploration stopped.
    pub why: Option<String>,
    /// The counterexample.
    pub counterexample: Option<Counterexample>,
    /// The number of unique states.
    pub states: u64,
    /// The number of steps between them, without steps that change nothing.
    pub edges: u64,
    /// The largest distance from the start, in steps; in a depth-first search, the length of the longest
    /// path.
    pub depth: u32,
    /// Wall time in seconds: of the search, and of the judgement of cycles.
    pub seconds: f64,
    /// The probability that two states had the same fingerprint.
    pub collision_probability: f64,
    /// The memory for states at its peak, in bytes. It counts the contents of states, and the larger of two:
    /// the table with the queue of the search, or the graph in which cycles are judged.
    pub bytes: u64,
    /// Whether runs that never end were judged.
    pub cycles: Cycles,
    /// The reason why cycles were not judged; `None` if they were.
    pub cycles_why: Option<String>,
    /// The observations that an exploration should make.
    pub sometimes: Vec<Sometimes>,
    /// The kinds of messages that were sent, in order of their first appearance.
    pub kinds: Vec<&'static str>,
}

impl Report {
    /// Returns whether a property was violated.
    pub fn is_broken(&self) -> bool {
        matches!(self.verdict, Verdict::Violated | Verdict::Stuck)
    }
}

/// The outcome of an exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The exploration is complete and found no violation.
    Holds,
    /// A property is violated: at a step, in a final state, or in a fair cycle in which a site waits for
    /// ever.
    Violated,
    /// A site waits, and no step is left that must happen: a deadlock.
    Stuck,
    /// The exploration stopped at a bound before it found a violation.
    Bounded,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Holds => "holds",
            Self::Violated => "violated",
            Self::Stuck => "stuck",
            Self::Bounded => "bounded",
        })
    }
}

/// Whether eventually-properties were judged on cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cycles {
    /// Cycles were judged: no site waits for ever in a fair run that never ends.
    Judged,
    /// Cycles were not judged; [`Report::cycles_why`] has the reason. Stuck states are found in any case.
    NotJudged,
}

/// An observation that an exploration should make. Without it, the exploration may have tested nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sometimes {
    /// The observation.
    pub name: &'static str,
    /// Whether an execution showed it.
    pub seen: bool,
}

/// The name of the [`Sometimes`] of every report: two messages were in flight between two sites at once, one
/// in each direction.
pub const CROSSING: &str = "messages cross";

/// An execution that violates a property.
#[derive(Debug)]
pub struct Counterexample {
    /// The steps, from the start of all sites.
    pub trace: Recording,
    /// The number of steps, without the starts.
    pub steps: u32,
    /// For an execution that never ends: the number of steps after which the rest repeats.
    pub repeats_after: Option<u32>,
}

/// The fewest and the most messages over all complete executions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// Unique states.
    pub states: u64,
    /// All messages, except those that a site sends itself.
    pub total: Extent,
    /// The messages of each kind, in the order of kinds.
    pub kinds: Vec<(&'static str, Extent)>,
}

/// A minimum and a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Extent {
    /// The minimum.
    pub min: u32,
    /// The maximum; `None` if there is none, because an execution can repeat steps for ever.
    pub max: Option<u32>,
}

/// The reason why a model could not be explored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckError {
    /// The group is empty or larger than [`MOST_NODES`](crate::MOST_NODES).
    Nodes(u32),
    /// One handler has more than 4096 combinations of random choices.
    TooManyChoices(NodeId),
    /// Costs need the whole graph, and it has more states than the bound allows.
    TooManyStates(u64),
    /// No execution ends, so no execution has a cost.
    NeverEnds,
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes(nodes) => {
                write!(f, "{nodes} nodes cannot be checked: give 1 to {}", crate::MOST_NODES)
            }
            Self::TooManyChoices(node) => {
                write!(
                    f,
                    "one step of {node} has more than 4096 combinations of random choices: give fewer nodes"
                )
            }
            Self::TooManyStates(states) => write!(
                f,
                "more than {states} states: costs need them all; give fewer nodes or entries, or a larger --most-states"
            ),
            Self::NeverEnds => f.write_str("no execution ends, so no execution has a cost: leave out --cost"),
        }
    }
}

impl std::error::Error for CheckError {}
