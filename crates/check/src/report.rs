//! What an exploration found.

use std::fmt;

use conclave_kernel::{NodeId, Protocol, Trace};
use serde::Serialize;

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Report<P: Protocol> {
    /// The outcome.
    pub verdict: Verdict,
    /// The property that was broken.
    pub property: Option<&'static str>,
    /// How, in a sentence; or at which bound the exploration stopped.
    pub why: Option<String>,
    /// How that comes about.
    pub counterexample: Option<Counterexample<P>>,
    /// Unique states.
    pub states: u64,
    /// Steps between them, those that change nothing left out.
    pub edges: u64,
    /// The largest distance from the beginning, in steps; searching depth-first, the longest path tried.
    pub depth: u32,
    /// Wall time in seconds: of the search, and of the judgement of cycles.
    pub seconds: f64,
    /// The chance that two states were taken for one.
    pub collision_probability: f64,
    /// The memory for states at its peak, in bytes. It counts the contents of states, and the larger of two: the table with the
    /// queue of the search, or the graph in which cycles are judged.
    pub bytes: u64,
    /// Whether runs that never end were judged.
    pub cycles: Cycles,
    /// The reason why cycles were not judged; `None` if they were.
    pub cycles_why: Option<String>,
    /// What should have been seen somewhere.
    pub sometimes: Vec<Sometimes>,
    /// The kinds of messages that were sent, in order of their first appearance.
    pub kinds: Vec<&'static str>,
}

/// The outcome of an exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Everything was explored and nothing was broken.
    Holds,
    /// A property is broken: at a step, at rest, or by a fair cycle in which somebody waits for ever.
    Violated,
    /// Somebody waits, and nothing has to happen any more: that is how deadlock shows.
    Stuck,
    /// The exploration stopped at a bound, without having found anything.
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
    /// They were: in no fair run that goes on for ever does somebody wait for ever.
    Judged,
    /// They were not: there were more states than [`Options::liveness_states`](crate::Options), symmetric
    /// states were counted as one, or something else was found first. Stuck states were looked for in any case.
    NotJudged,
}

/// Something that should be seen in an exploration, or it showed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sometimes {
    /// What.
    pub name: &'static str,
    /// Whether it was.
    pub seen: bool,
}

/// The name of the one [`Sometimes`] that every report has: two messages were under way between two sites at
/// once, one in each direction.
pub const CROSSING: &str = "messages cross";

/// How a property comes to be broken.
#[derive(Clone, Debug)]
pub struct Counterexample<P: Protocol> {
    /// What happens, from the start of all sites on.
    pub trace: Trace<P>,
    /// How many steps that are, without the starts.
    pub steps: u32,
    /// If it goes on for ever: the number of steps after which the rest repeats.
    pub repeats_after: Option<u32>,
}

/// The exhaustive minimum and maximum of messages over all complete executions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// Unique states.
    pub states: u64,
    /// All messages, except those that a site sends itself.
    pub total: Extent,
    /// Those of each kind, in order of kinds.
    pub kinds: Vec<(&'static str, Extent)>,
}

/// The least and the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Extent {
    /// The least.
    pub min: u32,
    /// The most; `None` if there is no bound, because something can repeat for ever.
    pub max: Option<u32>,
}

/// Why a model could not be explored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckError {
    /// The group is empty or larger than [`MOST_NODES`](crate::MOST_NODES).
    Nodes(u32),
    /// The dice of one handler can fall in more than 4096 ways.
    TooManyChoices(NodeId),
    /// Costs need the whole graph, and it has more states than the bound allows.
    TooManyStates(u64),
    /// No execution ever comes to an end, so that none has a cost.
    NeverEnds,
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes(nodes) => {
                write!(f, "{nodes} nodes cannot be checked: there must be 1 to {}", crate::MOST_NODES)
            }
            Self::TooManyChoices(node) => {
                write!(f, "the dice of one step of {node} can fall in more than 4096 ways")
            }
            Self::TooManyStates(states) => write!(f, "more than {states} states: costs cannot be compared"),
            Self::NeverEnds => f.write_str("no execution comes to an end, so none has a cost"),
        }
    }
}

impl std::error::Error for CheckError {}
