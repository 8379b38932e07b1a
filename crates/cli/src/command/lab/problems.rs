//! The problems on the command line: the functions that belong to the name of a problem.

use clap::Command;
use conclave_algorithms::catalog;
use conclave_kernel::{Card, suggest};
use conclave_lab::added;
use conclave_lab::case::{Case, Explored};
use conclave_lab::compare::{Compare, Comparison};
use conclave_lab::experiment::{Experiment, flags};
use conclave_lab::problems::{deadlock, detector, election, mutex, snapshot, timesync};
use conclave_lab::sites;

use super::{check, compare, replay, sim};
use crate::output::{Done, Failure};

/// The operations of the command line on one problem.
pub struct Entry {
    /// The problem's name.
    pub name: &'static str,
    /// Runs `conclave sim` with the algorithm of that name.
    pub sim: fn(&sim::Args, &str) -> Done,
    /// Records a run for `conclave replay`, in the form of a trace file.
    pub record: fn(&replay::Run<'_>) -> Result<Vec<u8>, Failure>,
    /// Adds the flags of the problem's work in the simulator.
    pub simulated: fn(Command) -> Command,
    /// The exploration of the problem; `None` if the checker has no model of it.
    pub explored: Option<Exploration>,
    /// Runs `conclave compare`.
    pub compare: fn(&compare::Args) -> Result<Comparison, Failure>,
}

/// The operations of `conclave check` on one problem.
#[derive(Clone, Copy)]
pub struct Exploration {
    /// Adds the flags of the problem's work in the checker.
    pub flags: fn(Command) -> Command,
    /// Returns the case that the flags describe.
    pub case: fn(&check::Args, &Card) -> FoundCase,
}

/// The problems, in the order of the catalogue.
pub static ENTRIES: [Entry; 6] = [
    entry::<mutex::Work>(Some(explored::<mutex::check::Work>())),
    entry::<election::Work>(Some(explored::<election::check::Work>())),
    entry::<detector::Work>(Some(explored::<detector::check::Work>())),
    entry::<snapshot::Work>(Some(explored::<snapshot::check::Work>())),
    entry::<deadlock::Work>(Some(explored::<deadlock::check::Work>())),
    entry::<timesync::Work>(None),
];

const fn entry<W: Compare>(explored: Option<Exploration>) -> Entry {
    Entry {
        name: W::NAME,
        sim: sim::simulate::<W>,
        record: replay::record::<W>,
        simulated: flags::added::<W>,
        explored,
        compare: compare::compare::<W>,
    }
}

const fn explored<W: Explored>() -> Exploration {
    Exploration { flags: flags::added::<W>, case: case::<W> }
}

/// A case that flags describe.
type FoundCase = Result<Box<dyn Case>, Failure>;

fn case<W: Explored>(args: &check::Args, card: &Card) -> FoundCase {
    let mut work = W::default();
    args.work.update(&mut work)?;
    let (algorithm, flaw, world) = (card.name.to_owned(), args.mutant.clone(), args.space.clone());
    Ok(Box::new(Experiment { algorithm, flaw, work, world }))
}

/// Returns the operations on the problem of that name; `None` if the simulator has no such problem.
pub fn named(problem: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == problem)
}

/// Splits `PROBLEM/ALGORITHM` into the two names. Fails if the catalogue has no such algorithm. Starts the
/// program if the name is the path of one.
pub fn find(path: &str) -> Result<(&str, &str), Failure> {
    let Some((problem, name)) = path.split_once('/') else { return Err(half_a_path(path)) };
    if !catalog::problems().any(|known| known == problem) {
        return Err(suggest::unknown("problem", problem, catalog::problems()).into());
    }
    if sites::named(problem, name)?.is_some() {
        return Ok((problem, name));
    }
    let names = || added::cards().filter(|card| card.problem == problem).map(|card| card.name);
    if name.is_empty() {
        return Err(half_a_path(problem));
    }
    if !names().any(|known| known == name) {
        return Err(suggest::unknown(&format!("algorithm of problem {problem}"), name, names()).into());
    }
    Ok((problem, name))
}

/// The error for a name without `/`: a problem lacks its algorithm, and an algorithm lacks its problem.
fn half_a_path(name: &str) -> Failure {
    let paths = |problem: Option<&str>| {
        let in_problem = added::cards().filter(|card| problem.is_none_or(|problem| card.problem == problem));
        in_problem.map(|card| card.path().to_string()).collect::<Vec<_>>()
    };
    if is_problem(name) {
        let paths = paths(Some(name)).join(", ");
        return Failure::usage(format!(
            "'{name}' is a problem: add one of its algorithms (there are: {paths})"
        ));
    }
    match added::cards().find(|card| card.name == name) {
        Some(card) => Failure::usage(format!("'{name}' needs its problem; did you mean {}?", card.path())),
        None => suggest::unknown("algorithm", name, paths(None).iter().map(String::as_str)).into(),
    }
}

/// Whether the catalogue has a problem of this name.
pub fn is_problem(name: &str) -> bool {
    catalog::problems().any(|known| known == name)
}

/// The error for an argument that must be a problem. `instead` is the advice if the argument is
/// PROBLEM/ALGORITHM.
pub fn not_a_problem(given: &str, instead: impl FnOnce(&str, &str) -> String) -> Failure {
    match find(given) {
        Ok((problem, name)) => {
            Failure::usage(format!("'{given}' is an algorithm: {}", instead(problem, name)))
        }
        Err(_) => suggest::unknown("problem", given, catalog::problems()).into(),
    }
}
