//! The input of the checker as data: a problem's *case* determines an exploration, except its bounds.
//!
//! The command line, the mutants and the matrix create cases. A counterexample has its case in its header, so
//! that it can be repeated. Each problem has a `Case` of its own. Code that does not know the problem uses an
//! [`AnyCase`].

mod properties;

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::time::Duration;

use conclave_algorithms::mutants::{Mutant, World};
use conclave_check::{
    Costs, Counterexample, Cycles, Faults, Model, Options, Order, Progress, Recovery, Report, Retraced,
    Sometimes, Timing, Verdict,
};
use conclave_kernel::{Card, NodeId, Protocol};
use serde::de::DeserializeOwned;

pub(crate) use properties::Known;
pub use properties::{PropertyVerdict, Word, any_promise_judged, reasons, words};

use crate::log::{self, Log};
use crate::matrix::Assumption;
use crate::problems::{detector, election, mutex, snapshot};

/// A case whose problem is known by its type.
pub(crate) trait Case {
    /// Runs the work on the model of the case. The case replaces the order, the timing and the faults of the
    /// options.
    fn work<W: Work>(&self, options: &Options, work: W) -> Result<W::Out, String>;

    /// The properties of the problem, with what it takes to put each to the test in this case.
    fn properties(&self) -> Vec<Known>;
}

/// A case of any problem.
pub trait AnyCase: Debug {
    /// Explores every execution of the case.
    fn explore(&self, options: &Options, watcher: Watcher<'_>) -> Result<Outcome, String>;

    /// Returns the fewest and the most messages over all executions of the case.
    fn costs(&self, options: &Options) -> Result<Costs, String>;

    /// The verdict on each property of the problem, from the outcome of an exploration.
    fn judge(&self, card: &Card, outcome: &Outcome) -> Vec<PropertyVerdict>;

    /// Repeats a counterexample from the lines of a trace file. `name` is the name of the file in errors.
    fn retrace(&self, name: &str, lines: &[u8]) -> Result<Retraced, String>;
}

/// A callback that receives the progress of an exploration, and may stop it.
pub type Watcher<'w> = &'w mut dyn FnMut(&Progress) -> ControlFlow<()>;

/// A progress callback that never stops the exploration.
pub fn unwatched(_: &Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Implements [`AnyCase`] for the case of each problem. These methods are not generic, so the checker is compiled in this
/// crate only. An `impl<C: Case> AnyCase for C` would be compiled again in every crate that boxes a case.
macro_rules! any_case {
    ($($case:ty),+ $(,)?) => {
        $(impl AnyCase for $case {
            fn explore(&self, options: &Options, watcher: Watcher<'_>) -> Result<Outcome, String> {
                self.work(options, Explore(watcher))
            }

            fn costs(&self, options: &Options) -> Result<Costs, String> {
                self.work(options, Count)
            }

            fn judge(&self, card: &Card, outcome: &Outcome) -> Vec<PropertyVerdict> {
                properties::judge(&self.properties(), card, outcome)
            }

            fn retrace(&self, name: &str, lines: &[u8]) -> Result<Retraced, String> {
                self.work(&Options::default(), Retrace { name, lines })
            }
        })+
    };
}
any_case!(mutex::check::Case, election::Case, snapshot::Case, detector::Case);

/// The case of a mutant in the world in which it is looked at; or of the algorithm itself, in the same world.
pub fn of_mutant(mutant: &Mutant, world: &World, flawed: bool) -> Result<Box<dyn AnyCase>, String> {
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
) -> Result<(u32, Box<dyn AnyCase>), String> {
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
pub fn of(card: &Card, nodes: u32, entries: u8) -> Result<Box<dyn AnyCase>, String> {
    made(card, nodes, entries, |_, _, _, _| {})
}

/// The same in a world that somebody has changed. Mistakes are those of the detector that tells of crashes.
fn made(
    card: &Card,
    nodes: u32,
    entries: u8,
    change: impl FnOnce(&mut Order, &mut Timing, &mut Faults, &mut u8),
) -> Result<Box<dyn AnyCase>, String> {
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
        problem => return Err(format!("the checker has no model of problem {problem}")),
    })
}

/// The case in the header of a trace, if the checker wrote it.
pub fn read(problem: &str, scenario: &str) -> Option<Box<dyn AnyCase>> {
    fn boxed<C: AnyCase + DeserializeOwned + 'static>(scenario: &str) -> Option<Box<dyn AnyCase>> {
        serde_json::from_str::<C>(scenario).ok().map(|case| Box::new(case) as Box<dyn AnyCase>)
    }
    match problem {
        "mutex" => boxed::<mutex::check::Case>(scenario),
        "election" => boxed::<election::Case>(scenario),
        "snapshot" => boxed::<snapshot::Case>(scenario),
        "detector" => boxed::<detector::Case>(scenario),
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

/// Work on a case, on its way to the type of the algorithm or mutant that the case names.
pub(crate) struct Job<'a, C, W> {
    pub(crate) case: &'a C,
    pub(crate) options: Options,
    pub(crate) work: W,
}

/// Takes a visitor to the mutant, or to the algorithm where there is none, by these two ways of a problem. All go through the
/// wrapper of the mutants, whether or not something is wrong with them: every type is explored by code of its own, which
/// takes long to build.
pub(crate) fn visit<V, T>(
    mutant: Option<&str>,
    algorithm: &str,
    visitor: V,
    flawed: fn(&str, V) -> Option<T>,
    honest: fn(&str, V) -> Option<T>,
) -> Result<T, String> {
    match mutant {
        Some(mutant) => flawed(mutant, visitor)
            .ok_or_else(|| format!("there is no mutant called {mutant}: see `conclave mutants`")),
        None => honest(algorithm, visitor)
            .ok_or_else(|| format!("there is no algorithm called {algorithm}: see `conclave list`")),
    }
}

/// A site's bit in sets of sites, which are part of the checker's states.
pub(crate) const fn bit(site: NodeId) -> u64 {
    1 << site.0
}

/// An operation on a model.
pub(crate) trait Work {
    /// The result of the operation.
    type Out;

    /// Whether the operation needs the judges. If not, the model may leave them out.
    const JUDGES: bool = true;

    /// Runs the operation.
    fn on<M: Model>(self, model: &M, options: &Options) -> Result<Self::Out, String>;
}

/// Explores a model.
struct Explore<'w>(Watcher<'w>);

impl Work for Explore<'_> {
    type Out = Outcome;

    fn on<M: Model>(self, model: &M, options: &Options) -> Result<Outcome, String> {
        let report = conclave_check::check_watched(model, options, self.0);
        Outcome::of(report.map_err(|error| error.to_string())?)
    }
}

/// Counts the messages of a model.
struct Count;

impl Work for Count {
    type Out = Costs;
    const JUDGES: bool = false;

    fn on<M: Model>(self, model: &M, options: &Options) -> Result<Costs, String> {
        conclave_check::costs(model, options).map_err(|error| error.to_string())
    }
}

/// Repeats a counterexample.
struct Retrace<'a> {
    name: &'a str,
    lines: &'a [u8],
}

impl Work for Retrace<'_> {
    type Out = Retraced;

    fn on<M: Model>(self, model: &M, options: &Options) -> Result<Retraced, String> {
        let trace = log::read_trace(self.name, self.lines).map_err(|error| error.to_string())?;
        conclave_check::retrace(model, options, &trace)
    }
}

/// The result of an exploration: a [`Report`] without the type of the protocol.
#[derive(Debug)]
pub struct Outcome {
    /// The outcome.
    pub verdict: Verdict,
    /// The violated property.
    pub property: Option<&'static str>,
    /// The violation in a sentence, or the bound at which the exploration stopped.
    pub why: Option<String>,
    /// The counterexample.
    pub found: Option<Found>,
    /// Unique states.
    pub states: u64,
    /// Steps between them.
    pub edges: u64,
    /// The largest distance from the beginning, in steps.
    pub depth: u32,
    /// Wall time in seconds: of the search, and of the judgement of cycles.
    pub seconds: f64,
    /// The memory for states at its peak, in bytes.
    pub bytes: u64,
    /// The chance that two states were taken for one.
    pub collision_probability: f64,
    /// Whether runs that never end were judged.
    pub cycles: Cycles,
    /// The reason why cycles were not judged; `None` if they were.
    pub cycles_why: Option<String>,
    /// The observations that an exploration should make.
    pub sometimes: Vec<Sometimes>,
    /// The kinds of messages that were sent.
    pub kinds: Vec<&'static str>,
}

/// A counterexample.
#[derive(Debug)]
pub struct Found {
    /// How many steps it has.
    pub steps: u32,
    /// If it goes on for ever: the number of steps after which the rest repeats.
    pub repeats_after: Option<u32>,
    /// What happens, to be drawn and told.
    pub log: Log,
    /// The same as a trace file holds it.
    pub lines: Vec<u8>,
}

impl Outcome {
    /// Converts a report.
    pub fn of<P: Protocol>(report: Report<P>) -> Result<Self, String> {
        let found = match &report.counterexample {
            Some(Counterexample { trace, steps, repeats_after }) => {
                let mut lines = Vec::new();
                log::write_trace(trace, &mut lines).map_err(|error| error.to_string())?;
                let log = Log::from_trace(trace)?;
                Some(Found { steps: *steps, repeats_after: *repeats_after, log, lines })
            }
            None => None,
        };
        Ok(Self {
            verdict: report.verdict,
            property: report.property,
            why: report.why,
            found,
            states: report.states,
            edges: report.edges,
            depth: report.depth,
            seconds: report.seconds,
            bytes: report.bytes,
            collision_probability: report.collision_probability,
            cycles: report.cycles,
            cycles_why: report.cycles_why,
            sometimes: report.sometimes,
            kinds: report.kinds,
        })
    }

    /// Whether a property was violated.
    pub fn is_broken(&self) -> bool {
        matches!(self.verdict, Verdict::Violated | Verdict::Stuck)
    }
}
