//! The input of the checker as data: a problem's *case* determines an exploration, except its bounds.
//!
//! The command line, the mutants and the matrix create cases. A counterexample has its case in its header, so
//! that it can be repeated. Each problem has a type of cases, which implements [`Case`].

mod properties;

use std::fmt::Debug;
use std::time::Duration;

use conclave_algorithms::mutants::flawed::Fallible;
use conclave_algorithms::mutants::generic::Generic;
use conclave_algorithms::mutants::{self, Mutant, World};
use conclave_check::{Checker, Costs, Faults, Options, Order, Recovery, Report, Retraced, Timing, Watcher};
use conclave_kernel::{Card, NodeId};
use serde::de::DeserializeOwned;

pub use conclave_check::unwatched;
pub use properties::{Known, PropertyVerdict, Word, any_promise_judged, reasons, words};

use crate::log;
use crate::matrix::Assumption;
use crate::problems::{deadlock, detector, election, mutex, snapshot};

/// The data that determines an exploration of one problem, except its bounds.
pub trait Case: Debug {
    /// Prepares the exploration. The case replaces the order, the timing and the faults of the options. If
    /// `judges` is not set, the model may leave out the judges, because only messages are counted.
    fn checker(&self, options: &Options, judges: bool) -> Result<Checker, String>;

    /// The properties of the problem, with the evidence that each needs in this case.
    fn properties(&self) -> Vec<Known>;

    /// Explores every execution of the case.
    fn explore(&self, options: &Options, watcher: Watcher<'_>) -> Result<Report, String> {
        self.checker(options, true)?.check(watcher).map_err(|error| error.to_string())
    }

    /// Returns the fewest and the most messages over all executions of the case.
    fn costs(&self, options: &Options) -> Result<Costs, String> {
        self.checker(options, false)?.costs().map_err(|error| error.to_string())
    }

    /// The verdict on each property of the problem, from the report of an exploration.
    fn judge(&self, card: &Card, report: &Report) -> Vec<PropertyVerdict> {
        properties::judge(&self.properties(), card, report)
    }

    /// Repeats a counterexample from the lines of a trace file. `name` is the name of the file in errors.
    fn retrace(&self, name: &str, lines: &[u8]) -> Result<Retraced, String> {
        let trace = log::read_trace(name, lines).map_err(|error| error.to_string())?;
        self.checker(&Options::default(), true)?.retrace(&trace)
    }
}

/// The case of a mutant in the world in which it is looked at; or of the algorithm itself, in the same world.
pub fn of_mutant(mutant: &Mutant, world: &World, flawed: bool) -> Result<Box<dyn Case>, String> {
    let name = flawed.then(|| mutant.name.to_owned());
    Ok(match mutant.problem {
        "mutex" => {
            let judged =
                mutant.breaks.map_or(mutex::check::Judged::Exclusion, mutex::check::Judged::for_property);
            Box::new(mutex::check::Case {
                mutant: name,
                ..mutex::check::Case::in_world(mutant.algorithm, world, judged)
            })
        }
        "election" => {
            // The algorithm itself is not blamed for what nobody can promise.
            let breaks = mutant.breaks.filter(|_| flawed);
            let case = election::Case::in_world(mutant.algorithm, world, breaks);
            Box::new(election::Case { mutant: name, ..case })
        }
        "snapshot" => {
            Box::new(snapshot::Case { mutant: name, ..snapshot::Case::in_world(mutant.algorithm, world) })
        }
        problem => return Err(format!("{}: the checker has no model of problem {problem}", mutant.name)),
    })
}

/// The case of an algorithm whose needs are met, except for one; and how many sites it has: sometimes it takes more
/// than were asked for to show why the assumption is needed.
pub fn without(
    card: &Card,
    assumption: Assumption,
    nodes: u32,
    entries: u8,
) -> Result<(u32, Box<dyn Case>), String> {
    if (card.problem, card.name, assumption) == ("election", "hirschberg-sinclair", Assumption::Fifo)
        && nodes < 4
    {
        // Among three, one of the two neighbours of whoever begins anew behind ELECTED has decided already, and begins
        // as well. Among four both may be lower, and one of them swallows.
        let case =
            election::Case { order: Order::Any, who: vec![1, 3], ..election::Case::of(card, 4, entries) };
        return Ok((4, Box::new(case)));
    }
    let case = made(card, nodes, entries, |order, timing, faults, mistakes| {
        assumption.drop_from(order, timing, faults);
        *mistakes = u8::from(assumption == Assumption::PerfectDetector);
    })?;
    Ok((nodes, case))
}

/// Returns the case of an algorithm whose needs are all met.
pub fn of(card: &Card, nodes: u32, entries: u8) -> Result<Box<dyn Case>, String> {
    made(card, nodes, entries, |_, _, _, _| {})
}

/// The same in a world that somebody has changed. Mistakes are those of the detector that tells of crashes.
fn made(
    card: &Card,
    nodes: u32,
    entries: u8,
    change: impl FnOnce(&mut Order, &mut Timing, &mut Faults, &mut u8),
) -> Result<Box<dyn Case>, String> {
    Ok(match card.problem {
        "mutex" => {
            let mut case = mutex::check::Case::of(card, nodes, entries);
            change(&mut case.order, &mut case.timing, &mut case.faults, &mut 0);
            Box::new(case)
        }
        "election" => {
            let mut case = election::Case::of(card, nodes, entries);
            change(&mut case.order, &mut case.timing, &mut case.faults, &mut case.mistakes);
            Box::new(case)
        }
        "snapshot" => {
            let mut case = snapshot::Case::of(card, nodes, entries);
            change(&mut case.order, &mut case.timing, &mut case.faults, &mut 0);
            Box::new(case)
        }
        "detector" => {
            let mut case = detector::Case::of(card, nodes);
            change(&mut case.order, &mut case.timing, &mut case.faults, &mut 0);
            Box::new(case)
        }
        "deadlock" => {
            let mut case = deadlock::Case { resolves: true, ..deadlock::Case::of(card, nodes, entries) };
            change(&mut case.order, &mut case.timing, &mut case.faults, &mut 0);
            Box::new(case)
        }
        problem => return Err(format!("the checker has no model of problem {problem}")),
    })
}

/// The case in the header of a trace, if the checker wrote it.
pub fn read(problem: &str, scenario: &str) -> Option<Box<dyn Case>> {
    fn boxed<C: Case + DeserializeOwned + 'static>(scenario: &str) -> Option<Box<dyn Case>> {
        serde_json::from_str::<C>(scenario).ok().map(|case| Box::new(case) as Box<dyn Case>)
    }
    match problem {
        "mutex" => boxed::<mutex::check::Case>(scenario),
        "election" => boxed::<election::Case>(scenario),
        "snapshot" => boxed::<snapshot::Case>(scenario),
        "detector" => boxed::<detector::Case>(scenario),
        "deadlock" => boxed::<deadlock::Case>(scenario),
        _ => None,
    }
}

/// The length of a tick.
pub const TICK: Duration = Duration::from_millis(1);

/// What the world of a mutant means to the checker.
pub(crate) fn surroundings(world: &World) -> (Order, Timing, Faults) {
    let order = if world.fifo { Order::Fifo } else { Order::Any };
    let timing = world.ticks.map_or(Timing::Async, |delay| Timing::Sync { delay, tick: TICK });
    let faults = Faults {
        loss: world.loss,
        duplication: world.duplication,
        crash: world.crash,
        recovery: world.recovery.then_some(Recovery::Stable),
    };
    (order, timing, faults)
}

/// An algorithm that the checker explores, with the functions that are compiled for its type. The cases of
/// a problem are of type `C`.
pub(crate) struct Entry<C> {
    pub(crate) card: &'static Card,
    /// Whether the algorithm has a flaw of this name.
    pub(crate) has_flaw: fn(&str) -> bool,
    /// Prepares the exploration of a case; see [`Case::checker`].
    pub(crate) checker: fn(&C, &Options, bool) -> Result<Checker, String>,
}

/// Returns whether an algorithm has a flaw of this name.
pub(crate) fn has_flaw<P: Fallible>(name: &str) -> bool {
    P::FLAWS.iter().any(|(flaw, _)| *flaw == name)
}

/// Returns the entry of the mutant, or of the algorithm if there is none. A mutant without a flaw is its
/// algorithm in a world that the algorithm does not tolerate.
pub(crate) fn find<C>(
    entries: impl Iterator<Item = &'static Entry<C>> + Clone,
    mutant: Option<&str>,
    algorithm: &str,
) -> Result<&'static Entry<C>, String> {
    let mut algorithm = algorithm;
    if let Some(name) = mutant {
        if let Some(flawed) = entries.clone().find(|entry| (entry.has_flaw)(name)) {
            return Ok(flawed);
        }
        let known = mutants::all().find(|known| known.name == name);
        algorithm = match (known, name.parse::<Generic>()) {
            (Some(known), _) => known.algorithm,
            (None, Ok(_)) => algorithm,
            (None, Err(_)) => {
                return Err(format!("there is no mutant called {name}: see `conclave mutants`"));
            }
        };
    }
    let mut entries = entries;
    entries
        .find(|entry| entry.card.name == algorithm)
        .ok_or_else(|| format!("there is no algorithm called {algorithm}: see `conclave list`"))
}

/// A site's bit in sets of sites, which are part of the checker's states.
pub(crate) const fn bit(site: NodeId) -> u64 {
    1 << site.0
}

#[cfg(test)]
mod tests {
    use conclave_algorithms::{election, mutants, mutex, snapshot};

    use crate::problems;

    macro_rules! every_name_leads_to_its_algorithm {
        ($problem:ident, $entry:path) => {
            for card in $problem::CARDS {
                assert_eq!($entry(None, card.name).unwrap().card.name, card.name);
            }
            for mutant in mutants::$problem::MUTANTS {
                let entry = $entry(Some(mutant.name), "nobody").unwrap();
                assert_eq!(entry.card.name, mutant.algorithm, "{}", mutant.name);
            }
            assert!(
                $entry(None, "nobody").is_err() && $entry(Some("nobody"), $problem::CARDS[0].name).is_err()
            );
        };
    }

    #[test]
    fn every_name_leads_to_its_algorithm() {
        every_name_leads_to_its_algorithm!(mutex, problems::mutex::check::entry);
        every_name_leads_to_its_algorithm!(election, problems::election::check::entry);
        every_name_leads_to_its_algorithm!(snapshot, problems::snapshot::check::entry);
    }
}
