//! The flaws of all algorithms of all problems, and the evidence about each.
//!
//! An algorithm has flaws of its own, which [`mutants`] lists, and generic flaws: one for each rule and each
//! kind of message. [`judge`] says what is known about an algorithm with a flaw, or about the algorithm itself:
//! a counterexample, the number of states that were explored, or the number of seeds that were sampled.

use std::fmt;

use conclave_algorithms::deadlock::mutants::OfDeadlock;
use conclave_algorithms::detector::mutants::OfDetector;
use conclave_algorithms::election::mutants::OfElection;
use conclave_algorithms::mutants;
use conclave_algorithms::mutants::flawed::View;
use conclave_algorithms::mutants::generic::{Generic, Rule};
use conclave_algorithms::mutex::mutants::OfMutex;
use conclave_algorithms::snapshot::bank::Bank;
use conclave_algorithms::snapshot::mutants::OfSnapshot;
use conclave_algorithms::timesync::mutants::OfTimeSync;
use conclave_algorithms::{deadlock, detector, election, mutex, snapshot, timesync};
use conclave_check::Counterexample;
use conclave_kernel::Card;

use crate::added;
use crate::case::unwatched;
use crate::deepen::{Deepened, Plan, Size, deepen};
use crate::sampling::{self, Broken};

/// A flaw of an algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The name, as `--mutant` takes it.
    pub name: String,
    /// The flaw in one sentence.
    pub sentence: String,
    /// Whether the flaw needs no code of the algorithm.
    pub is_generic: bool,
}

/// The evidence about an algorithm, with or without a flaw.
#[derive(Debug)]
pub enum Evidence {
    /// An execution breaks a promised property. The trace can be repeated.
    Counterexample {
        /// The property.
        property: &'static str,
        /// The violation in a sentence.
        why: String,
        /// The size at which it was found.
        size: Size,
        /// The counterexample.
        counterexample: Box<Counterexample>,
    },
    /// The checker found no violation.
    Explored {
        /// The number of states.
        states: u64,
        /// The largest size of which every execution was explored; `None` if no size was finished.
        finished: Option<Size>,
    },
    /// The checker cannot explore the algorithm to an end, so seeds were run.
    Sampled {
        /// The number of seeds.
        seeds: u64,
        /// The first violation.
        broken: Option<Broken>,
        /// The reason why it was not explored.
        why: String,
    },
}

impl Evidence {
    /// Returns the broken property; `None` if no property broke.
    pub fn broken(&self) -> Option<&str> {
        match self {
            Self::Counterexample { property, .. } => Some(property),
            Self::Explored { .. } => None,
            Self::Sampled { broken, .. } => broken.as_ref().map(|broken| broken.property.as_str()),
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counterexample { size, counterexample, .. } => {
                write!(f, "{} steps with {} sites", counterexample.steps, size.nodes)
            }
            Self::Explored { states, finished: Some(_) } => write!(f, "explored: {states} states"),
            Self::Explored { states, finished: None } => write!(f, "bounded: {states} states"),
            Self::Sampled { broken: Some(broken), .. } => write!(f, "seed {}", broken.seed),
            Self::Sampled { seeds, .. } => write!(f, "sampled: {seeds} seeds"),
        }
    }
}

/// Returns the flaws of an algorithm: its own, then the generic ones.
pub fn of(card: &Card, plan: &Plan) -> Result<Vec<Flaw>, String> {
    let generic =
        |flaw: Generic| Flaw { name: flaw.to_string(), sentence: flaw.sentence(), is_generic: true };
    let kinds = kinds(card, plan)?;
    let own = own(card).map(|mutant| Flaw {
        name: mutant.name.into(),
        sentence: mutant.flaw.into(),
        is_generic: false,
    });
    let all = kinds
        .iter()
        .flat_map(|kind| rules(card).iter().map(|rule| Generic { rule: *rule, kind: (*kind).to_owned() }));
    Ok(own.chain(all.map(generic)).collect())
}

/// Returns the flaws of an algorithm that the table of its problem lists.
pub fn own(card: &Card) -> impl Iterator<Item = &'static mutants::Mutant> {
    let (problem, name) = (card.problem, card.name);
    mutants::all().filter(move |mutant| mutant.problem == problem && mutant.algorithm == name)
}

/// Returns the algorithms without flaws of their own. Only generic flaws test their judges.
pub fn without_own() -> impl Iterator<Item = &'static Card> {
    added::cards().filter(|card| own(card).next().is_none())
}

/// Explores an algorithm, with or without a flaw; or samples it, if the checker cannot finish the smallest size.
pub fn judge(card: &Card, flaw: Option<&str>, plan: &Plan, seeds: u64) -> Result<Evidence, String> {
    let why = match deepen(card, flaw, plan, &mut unwatched) {
        Ok(Deepened { found: Some(found), .. }) => {
            let (property, why, size) = (found.property, found.why, found.size);
            let counterexample = Box::new(found.counterexample);
            return Ok(Evidence::Counterexample { property, why, size, counterexample });
        }
        Ok(deepened) => {
            let explored = Evidence::Explored { states: deepened.states(), finished: deepened.finished() };
            if deepened.finished().is_some()
                && !own(card).any(|known| Some(known.name) == flaw && is_sampled(known))
            {
                return Ok(explored);
            }
            match sampling::sample(card, flaw, 0..seeds) {
                Ok(sample) => {
                    let why = format!("{} states explored, and no size finished", deepened.states());
                    return Ok(Evidence::Sampled { seeds: sample.seeds, broken: sample.broken, why });
                }
                Err(_) => return Ok(explored),
            }
        }
        Err(why) => why,
    };
    let sample = sampling::sample(card, flaw, 0..seeds)?;
    Ok(Evidence::Sampled { seeds: sample.seeds, broken: sample.broken, why })
}

/// Returns whether only a simulated run shows the flaw.
fn is_sampled(mutant: &mutants::Mutant) -> bool {
    matches!(mutant.catch, mutants::Catch::Sim { .. })
}

/// Returns the kinds of messages that an algorithm sends at the sizes of the plan.
fn kinds(card: &Card, plan: &Plan) -> Result<Vec<&'static str>, String> {
    match deepen(card, None, plan, &mut unwatched) {
        Ok(deepened) => Ok(deepened.kinds),
        Err(_) => sampling::kinds(card),
    }
}

/// Returns the rules of generic flaws that make sense for the problem.
fn rules(card: &Card) -> &'static [Rule] {
    match card.problem {
        "mutex" => <OfMutex as View<mutex::Central>>::RULES,
        "election" => <OfElection as View<election::Bully>>::RULES,
        "snapshot" => <OfSnapshot as View<snapshot::ChandyLamport<Bank>>>::RULES,
        "detector" => <OfDetector as View<detector::Heartbeat>>::RULES,
        "deadlock" => <OfDeadlock as View<deadlock::Site<deadlock::EdgeChasing>>>::RULES,
        _ => <OfTimeSync as View<timesync::Ntp>>::RULES,
    }
}
