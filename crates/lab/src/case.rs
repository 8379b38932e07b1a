//! Explorations without the type of their problem.
//!
//! The command line, the mutants and the matrix create cases: experiments in the checker. A counterexample
//! has its case in its header, so that it can be repeated. The work of a problem implements [`Explored`];
//! with it, its experiments are a [`Case`].

mod properties;

use std::fmt::Debug;

use conclave_algorithms::mutants::flawed::Fallible;
use conclave_algorithms::mutants::generic::Generic;
use conclave_algorithms::mutants::{self, Mutant, World};
use conclave_check::{Checker, Costs, Options, Order, Report, Retraced, Watcher};
use conclave_kernel::{Card, NodeId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use conclave_check::unwatched;
pub use properties::{Known, PropertyVerdict, Word, any_promise_judged, reasons, words};

use crate::added;
use crate::experiment::{Experiment, Space, file, flags};
use crate::log;
use crate::matrix::Assumption;
use crate::problems::{deadlock, detector, election, mutex, snapshot};
use crate::sites;

/// The work of a problem in the checker. Its fields are flags of `conclave check` and fields of headers.
pub trait Explored:
    clap::Args + Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned + 'static
{
    /// The problem's name on the command line.
    const PROBLEM: &'static str;

    /// Prepares the exploration; see [`Case::checker`].
    fn checker(case: &Experiment<Self, Space>, options: &Options, judges: bool) -> Result<Checker, String>;

    /// The properties of the problem, with the evidence that each needs in this case.
    fn properties(case: &Experiment<Self, Space>) -> Vec<Known>;
}

/// The data that determines an exploration of one problem, except its bounds.
pub trait Case: Debug {
    /// Prepares the exploration. The case replaces the order, the timing and the faults of the options. If
    /// `judges` is not set, the model may leave out the judges, because only messages are counted.
    fn checker(&self, options: &Options, judges: bool) -> Result<Checker, String>;

    /// The properties of the problem, with the evidence that each needs in this case.
    fn properties(&self) -> Vec<Known>;

    /// The command that repeats the exploration.
    fn command_line(&self) -> String;

    /// Explores every execution of the case.
    fn explore(&self, options: &Options, watcher: Watcher<'_>) -> Result<Report, String>;

    /// Returns the fewest and the most messages over all executions of the case.
    fn costs(&self, options: &Options) -> Result<Costs, String>;

    /// The verdict on each property of the problem, from the report of an exploration.
    fn judge(&self, card: &Card, report: &Report) -> Vec<PropertyVerdict> {
        properties::judge(&self.properties(), card, report)
    }

    /// Repeats a counterexample from the lines of a trace file. `name` is the name of the file in errors.
    fn retrace(&self, name: &str, lines: &[u8]) -> Result<Retraced, String>;
}

impl<W: Explored> Case for Experiment<W, Space> {
    fn checker(&self, options: &Options, judges: bool) -> Result<Checker, String> {
        sites::named(W::PROBLEM, &self.algorithm)?;
        W::checker(self, options, judges)
    }

    fn explore(&self, options: &Options, watcher: Watcher<'_>) -> Result<Report, String> {
        let checker = self.checker(options, true)?;
        match sites::named(W::PROBLEM, &self.algorithm)? {
            Some(program) => program.explore(&checker, watcher),
            None => checker.check(watcher).map_err(|error| error.to_string()),
        }
    }

    fn costs(&self, options: &Options) -> Result<Costs, String> {
        let costs = self.checker(options, false)?.costs().map_err(|error| error.to_string());
        sites::checked(W::PROBLEM, &self.algorithm, costs)
    }

    fn retrace(&self, name: &str, lines: &[u8]) -> Result<Retraced, String> {
        let trace = log::read_trace(name, lines).map_err(|error| error.to_string())?;
        let retraced = self.checker(&Options::default(), true)?.retrace(&trace);
        sites::checked(W::PROBLEM, &self.algorithm, retraced)
    }

    fn properties(&self) -> Vec<Known> {
        W::properties(self)
    }

    fn command_line(&self) -> String {
        let Self { algorithm, flaw, work, world } = self;
        let mut line = format!("conclave check {}/{algorithm} --nodes {}", W::PROBLEM, world.nodes);
        let flaw = flaw.iter().map(|flaw| format!("--mutant {flaw}"));
        let written = flags::written(work, &W::default());
        // Without a number of entries, the command would explore growing sizes.
        let entries = flags::json(work).get("entries").map(|entries| format!("--entries {entries}"));
        let entries = entries.filter(|entries| !written.contains(entries));
        for flag in flaw.chain(entries).chain(written).chain(world.flags()) {
            line.push(' ');
            line.push_str(&flag);
        }
        line
    }
}

/// The case as text, for the header of a trace.
pub(crate) fn about<W: Explored>(case: &Experiment<W, Space>) -> String {
    flags::json(case).to_string()
}

/// The case of a mutant in the world in which it is looked at; or of the algorithm itself, in the same world.
pub fn of_mutant(mutant: &Mutant, world: &World, flawed: bool) -> Result<Box<dyn Case>, String> {
    let name = flawed.then(|| mutant.name.to_owned());
    Ok(match mutant.problem {
        "mutex" => {
            let judged =
                mutant.breaks.map_or(mutex::check::Judged::Exclusion, mutex::check::Judged::for_property);
            Box::new(mutex::check::Case {
                flaw: name,
                ..mutex::check::Case::in_world(mutant.algorithm, world, judged)
            })
        }
        "election" => {
            // The algorithm itself is not blamed for what nobody can promise.
            let breaks = mutant.breaks.filter(|_| flawed);
            let case = election::Case::in_world(mutant.algorithm, world, breaks);
            Box::new(election::Case { flaw: name, ..case })
        }
        "snapshot" => {
            Box::new(snapshot::Case { flaw: name, ..snapshot::Case::in_world(mutant.algorithm, world) })
        }
        problem => return Err(format!("{}: the checker has no model of problem {problem}", mutant.name)),
    })
}

/// The case of an algorithm whose needs are met, except for one; and how many sites it has: sometimes it
/// takes more than were asked for to show why the assumption is needed.
pub fn without(
    card: &Card,
    assumption: Assumption,
    nodes: u32,
    entries: u8,
) -> Result<(u32, Box<dyn Case>), String> {
    if (card.problem, card.name, assumption) == ("election", "hirschberg-sinclair", Assumption::Fifo)
        && nodes < 4
    {
        // A site that begins a new election after ELECTED has two neighbours. With three sites, one of them has
        // decided already and begins as well. With four sites, both may be lower, and one swallows its message.
        let mut case = election::Case::of(card, 4, entries).with(|work| work.caller = vec![1, 3]);
        case.world.order = Order::Any;
        return Ok((4, Box::new(case)));
    }
    let case = made(card, nodes, entries, |space, mistakes| {
        assumption.drop_from(space);
        *mistakes = u8::from(assumption == Assumption::PerfectDetector);
    })?;
    Ok((nodes, case))
}

/// Returns the case of an algorithm whose needs are all met.
pub fn of(card: &Card, nodes: u32, entries: u8) -> Result<Box<dyn Case>, String> {
    made(card, nodes, entries, |_, _| {})
}

/// The same in a world that somebody has changed. Mistakes are those of the detector that tells of crashes.
fn made(
    card: &Card,
    nodes: u32,
    entries: u8,
    change: impl FnOnce(&mut Space, &mut u8),
) -> Result<Box<dyn Case>, String> {
    Ok(match card.problem {
        "mutex" => {
            let mut case = mutex::check::Case::of(card, nodes, entries);
            change(&mut case.world, &mut 0);
            Box::new(case)
        }
        "election" => {
            let mut case = election::Case::of(card, nodes, entries);
            change(&mut case.world, &mut case.work.mistakes);
            Box::new(case)
        }
        "snapshot" => {
            let mut case = snapshot::Case::of(card, nodes, entries);
            change(&mut case.world, &mut 0);
            Box::new(case)
        }
        "detector" => {
            let mut case = detector::Case::of(card, nodes);
            change(&mut case.world, &mut 0);
            Box::new(case)
        }
        "deadlock" => {
            let mut case = deadlock::Case::of(card, nodes, entries).with(|work| work.resolves = true);
            change(&mut case.world, &mut 0);
            Box::new(case)
        }
        problem => return Err(format!("the checker has no model of problem {problem}")),
    })
}

/// Reads the case in the header of a counterexample.
pub fn read(problem: &str, scenario: &str) -> Result<Box<dyn Case>, String> {
    fn boxed<W: Explored>(scenario: Value) -> Result<Box<dyn Case>, String> {
        let (flaw, work, world) = (None, W::default(), Space::default());
        let default = Experiment { algorithm: String::new(), flaw, work, world };
        let case = file::read(scenario, &default).map_err(|field| field.to_string())?;
        Ok(Box::new(case))
    }
    let scenario = serde_json::from_str(scenario).map_err(|error| error.to_string())?;
    match problem {
        "mutex" => boxed::<mutex::check::Work>(scenario),
        "election" => boxed::<election::check::Work>(scenario),
        "snapshot" => boxed::<snapshot::check::Work>(scenario),
        "detector" => boxed::<detector::check::Work>(scenario),
        "deadlock" => boxed::<deadlock::check::Work>(scenario),
        problem => Err(format!("the checker has no model of problem {problem}")),
    }
}

/// An algorithm that the checker explores, with the functions that are compiled for its type. The cases of
/// a problem are of type `C`.
pub struct Entry<C> {
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
pub(crate) fn find<C: 'static>(
    entries: impl Iterator<Item = &'static Entry<C>> + Clone,
    mutant: Option<&str>,
    algorithm: &str,
) -> Result<&'static Entry<C>, String> {
    let entries = entries.chain(added::explored());
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
    use conclave_algorithms::{election, mutex, snapshot};

    use crate::problems;

    macro_rules! every_name_leads_to_its_algorithm {
        ($problem:ident, $entry:path) => {
            for card in $problem::CARDS {
                assert_eq!($entry(None, card.name).unwrap().card.name, card.name);
            }
            for mutant in $problem::mutants::MUTANTS {
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
