//! What must hold of a run: always, eventually; and what must sometimes happen, or the check was vacuous.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// A claim about every run of an algorithm, stated once, with its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Property {
    /// Its short name: `ME1`.
    pub name: &'static str,
    /// When it must hold.
    pub kind: Kind,
    /// The claim in words.
    pub statement: &'static str,
    /// Where it is stated: a key of `docs/papers.md`, with the section.
    pub source: &'static str,
}

/// When a property must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// At every step of every run: one bad step refutes it.
    Always,
    /// Somewhere in the runs explored: if never, the exploration showed nothing.
    Sometimes,
    /// In every run that goes on long enough, under weak fairness.
    Eventually,
}

/// What a run says about a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It held throughout.
    Holds,
    /// It was promised, and broken.
    Violated,
    /// The algorithm does not promise it (the run may or may not have kept it).
    NotPromised,
}

/// Where and how a property broke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The property's name.
    pub property: String,
    /// When, in the world's own time.
    pub at: Time,
    /// What happened, in a sentence with the sites' names.
    pub why: String,
}
