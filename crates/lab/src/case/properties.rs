//! The verdict of an exploration on each property.
//!
//! An exploration has one [`Verdict`] as a whole. This file splits it into one verdict per property, because
//! some properties of a problem cannot break in the checker's model. Such a property is not judged, and the
//! reason is stated.

use std::collections::BTreeMap;

use conclave_check::{Report, Verdict};
use conclave_kernel::Card;
use serde::Serialize;

/// The verdict on one property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyVerdict {
    /// The name of the property.
    pub property: &'static str,
    /// Whether the algorithm's card promises the property.
    pub promised: bool,
    /// The verdict.
    pub word: Word,
    /// The reason why the property was not judged; `None` for every other word.
    pub why_not: Option<String>,
}

/// The verdict on one property, in a word. JSON has the same words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// The property holds in every execution.
    Holds,
    /// An execution breaks the property.
    Violated,
    /// The exploration stopped at a bound before it found a violation.
    Bounded,
    /// Nothing in the exploration puts the property to the test.
    NotJudged,
}

/// A property that a case knows.
#[derive(Clone, Debug)]
pub struct Known {
    /// The name of the property.
    pub(crate) property: &'static str,
    /// The reason why no exploration of the case can refute the property.
    pub(crate) untestable: Option<&'static str>,
    /// The observation that puts the property to the test, and the reason to state if it was never seen.
    pub(crate) evidence: Option<(&'static [&'static str], &'static str)>,
}

impl Known {
    /// A property that every exploration of the case puts to the test.
    pub(crate) const fn tested(property: &'static str) -> Self {
        Self { property, untestable: None, evidence: None }
    }

    /// A property that is put to the test only if `possible`; `why_not` is the reason otherwise.
    pub(crate) fn tested_if(possible: bool, property: &'static str, why_not: &'static str) -> Self {
        Self { untestable: (!possible).then_some(why_not), ..Self::tested(property) }
    }

    /// A property that no exploration of the case can refute.
    pub(crate) const fn untestable(property: &'static str, why_not: &'static str) -> Self {
        Self { property, untestable: Some(why_not), evidence: None }
    }

    /// The same, put to the test only by executions that show one of the `sometimes` of the model.
    pub(crate) const fn if_seen(self, sometimes: &'static [&'static str], why_not: &'static str) -> Self {
        Self { evidence: Some((sometimes, why_not)), ..self }
    }

    fn judge(&self, card: &Card, report: &Report) -> PropertyVerdict {
        let unseen = || {
            let (sometimes, why_not) = self.evidence?;
            let seen = report.sometimes.iter().any(|it| it.seen && sometimes.contains(&it.name));
            (!seen).then_some(why_not)
        };
        let not_judged = |why: &str| (Word::NotJudged, Some(why.to_owned()));
        let (word, why_not) = match (report.property, self.untestable, report.verdict) {
            (Some(broken), ..) if broken == self.property => (Word::Violated, None),
            (_, Some(why), _) => not_judged(why),
            (Some(broken), ..) => not_judged(&format!("the exploration stopped when {broken} broke")),
            (.., Verdict::Bounded) => (Word::Bounded, None),
            _ => unseen().map_or((Word::Holds, None), not_judged),
        };
        PropertyVerdict { property: self.property, promised: card.promises(self.property), word, why_not }
    }
}

/// The verdicts on the properties that the case knows, then on all others that the card promises.
pub(crate) fn judge(known: &[Known], card: &Card, report: &Report) -> Vec<PropertyVerdict> {
    let is_known = |property: &str| known.iter().any(|known| known.property == property);
    let others = card.promises.iter().filter(|promise| !is_known(promise));
    let others = others.map(|promise| Known::untestable(promise, "the checker does not judge it; see `sim`"));
    let known = known.iter().map(|known| known.judge(card, report)).collect::<Vec<_>>();
    known.into_iter().chain(others.map(|other| other.judge(card, report))).collect()
}

/// Whether at least one promised property was put to the test.
pub fn any_promise_judged(verdicts: &[PropertyVerdict]) -> bool {
    verdicts.iter().any(|verdict| verdict.promised && verdict.word != Word::NotJudged)
}

/// The words by property, as JSON has them.
pub fn words(verdicts: &[PropertyVerdict]) -> BTreeMap<&'static str, Word> {
    verdicts.iter().map(|verdict| (verdict.property, verdict.word)).collect()
}

/// The reasons by property, of the properties that were not judged.
pub fn reasons(verdicts: &[PropertyVerdict]) -> BTreeMap<&'static str, &str> {
    verdicts.iter().filter_map(|it| Some((it.property, it.why_not.as_deref()?))).collect()
}
