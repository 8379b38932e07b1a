//! Properties of runs. Some must hold always or eventually. Others must hold in at least one run: otherwise
//! the check has tested nothing.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// A claim about every run of an algorithm. Each claim is stated once, with its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Property {
    /// The short name, such as `ME1`.
    pub name: &'static str,
    /// The part of a run in which the claim must hold.
    pub kind: Kind,
    /// The claim in words.
    pub statement: &'static str,
    /// The source of the claim: a key of `docs/papers.md`, with the section.
    pub source: &'static str,
}

/// The part of a run in which a property must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// At every step of every run. One bad step refutes it.
    Always,
    /// At some step of some explored run. If this never happens, the exploration proved nothing.
    Sometimes,
    /// At some step of every run that is long enough, under weak fairness.
    Eventually,
}

/// The judgement of a property on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The algorithm promises the property, and the run put it to the test and kept it.
    Holds,
    /// The algorithm promises the property, and the run broke it.
    Violated,
    /// The algorithm promises the property, but the run never put it to the test.
    NotJudged,
    /// The algorithm does not promise the property. The run may have kept it or broken it.
    NotPromised,
}

impl Property {
    /// Returns the property with the first reason whose condition is true. Such a reason says that the run
    /// never put the property to the test. Without one, the run is evidence.
    pub fn judged_unless(self, reasons: &[(bool, &'static str)]) -> Judgement {
        let missing = reasons.iter().find(|(applies, _)| *applies).map(|(_, reason)| *reason);
        Judgement { property: self, missing }
    }
}

/// A property, and whether a run is evidence about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The property.
    pub property: Property,
    /// The evidence that is missing, in a few words, such as `no entry`; `None` if the run put the property to
    /// the test.
    pub missing: Option<&'static str>,
}

/// The moment at which a property broke, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The name of the property.
    pub property: String,
    /// The moment, in the world's own time.
    pub at: Time,
    /// The reason, in a sentence that names the sites.
    pub why: String,
}
