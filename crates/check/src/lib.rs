//! The exhaustive checker: explores every interleaving of a [`Protocol`](conclave_kernel::Protocol), every
//! random choice, and every fault within a budget.
//!
//! The checker knows no algorithm and no problem. A [`Checker`] takes a [`Model`] (the sites, their work, a
//! judge) and [`Options`] (order of messages, time, faults, bounds). [`Checker::check`] returns a
//! [`Report`]. A counterexample is a [`Recording`], like that of a simulated run. [`Checker::costs`]
//! compares the complete executions by the number of their messages.
//!
//! | file | contents |
//! |---|---|
//! | `model` | [`Model`] and [`Monitor`], which a problem implements |
//! | `options`, `report` | the input and the result of an exploration |
//! | `intern`, `registry` | the contents of states, each stored once under a number |
//! | `system` | the model with numbers in place of contents; compiled for each algorithm |
//! | `local`, `inbox` | a site with its timers; the messages on their way to it |
//! | `stepper` | the successors of a state; every local step is computed once |
//! | `visited` | the states seen so far, as fingerprints |
//! | `breadth`, `depth` | the two searches, over all cores |
//! | `graph`, `components`, `fairness`, `cost` | the whole graph: endless waits, and costs of executions |
//! | `counterexample`, `retrace` | a trace from fingerprints; the same trace repeated |
//!
//! # What is sound
//!
//! By default, the exploration leaves out nothing. The one reduction, [`Options::symmetry`], needs a model
//! that declares its symmetries. States are compared by 64-bit fingerprints; the report has the probability
//! of a collision.

mod breadth;
mod column;
mod components;
mod cost;
mod counterexample;
mod depth;
mod explore;
mod fairness;
mod graph;
mod inbox;
mod index;
mod intern;
mod local;
mod memo;
mod model;
mod options;
mod registry;
mod report;
mod retrace;
mod stepper;
mod system;
mod visited;

use std::ops::ControlFlow;
use std::time::Instant;

use conclave_kernel::Recording;

use crate::explore::{Explored, Failure, Meter};
use crate::fairness::Lasso;
use crate::graph::Graph;
use crate::registry::Registry;
use crate::stepper::Stepper;
use crate::system::System;

pub use explore::Watcher;
pub use model::{Breach, Findings, MOST_NODES, Model, Monitor, Offer, Renamed};
pub use options::{Bounds, Faults, Options, Order, Progress, Recovery, Search, Timing};
pub use report::{CROSSING, CheckError, Costs, Counterexample, Cycles, Extent, Report, Sometimes, Verdict};
pub use retrace::Retraced;

/// A model that is ready to be explored. It has no type parameter: its methods are compiled once for all
/// models.
pub struct Checker {
    system: Box<dyn System>,
    options: Options,
}

impl Checker {
    /// Prepares the exploration of a model. Fails if the group is empty or has more than [`MOST_NODES`]
    /// sites.
    pub fn new<M: Model>(model: M, options: &Options) -> Result<Self, CheckError> {
        match model.nodes() {
            1..=MOST_NODES => {
                Ok(Self { system: Box::new(Registry::new(model, options)), options: options.clone() })
            }
            nodes => Err(CheckError::Nodes(nodes)),
        }
    }

    /// Explores every execution, reports the progress to `watcher`, and stops if `watcher` breaks.
    pub fn check(&self, watcher: Watcher<'_>) -> Result<Report, CheckError> {
        let (system, options, began) = (&*self.system, &self.options, Instant::now());
        let steppers = (0..options.threads.max(1)).map(|_| Stepper::new(system)).collect();
        let meter = Meter::new(options.bounds, began);
        let (mut explored, mut steppers) = match options.search {
            Search::Breadth => breadth::search(steppers, &meter, watcher),
            Search::Depth => depth::search(steppers, &meter, watcher),
        };
        if let Some(node) = steppers.iter().find_map(|stepper| stepper.trouble) {
            return Err(CheckError::TooManyChoices(node));
        }
        let cycles = judge_cycles(&mut explored, &mut steppers[0], options, began, watcher);
        explored.bytes += system.bytes() + steppers.iter().map(Stepper::bytes).sum::<usize>();
        let seconds = began.elapsed().as_secs_f64();
        Ok(report(&explored, &mut steppers, cycles, seconds))
    }

    /// Returns the fewest and the most messages over all complete executions. Of the bounds, only that on
    /// states applies.
    pub fn costs(&self) -> Result<Costs, CheckError> {
        let mut stepper = Stepper::new(&*self.system);
        let bounds = self.options.bounds;
        let meter = Meter::new(bounds, Instant::now());
        let (graph, _) = Graph::build(&mut stepper, &meter, &mut unwatched, 0, true);
        if let Some(node) = stepper.trouble {
            return Err(CheckError::TooManyChoices(node));
        }
        cost::costs(&graph.ok_or(CheckError::TooManyStates(bounds.states))?)
    }

    /// Repeats a counterexample of this model. The error names the step that is impossible or has other
    /// effects.
    pub fn retrace(&self, trace: &Recording) -> Result<Retraced, String> {
        retrace::retrace(&*self.system, trace)
    }
}

/// A progress callback that never stops the exploration.
pub fn unwatched(_: &Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Explores every execution of a model.
pub fn check<M: Model + Clone>(model: &M, options: &Options) -> Result<Report, CheckError> {
    Checker::new(model.clone(), options)?.check(&mut unwatched)
}

/// Returns the fewest and the most messages over all complete executions of a model.
pub fn costs<M: Model + Clone>(model: &M, options: &Options) -> Result<Costs, CheckError> {
    Checker::new(model.clone(), options)?.costs()
}

/// Looks for fair cycles in which a site waits for ever. The error is the reason why they were not judged.
///
/// Raises `explored.bytes` to the memory of the graph, if that is more: the search has freed its own by then.
fn judge_cycles(
    explored: &mut Explored,
    stepper: &mut Stepper<'_>,
    options: &Options,
    began: Instant,
    watcher: Watcher<'_>,
) -> Result<(), String> {
    match (&explored.failure, explored.bound) {
        (Some(_), _) => return Err("the search found another violation first".into()),
        (None, Some(_)) => return Err("the exploration is incomplete".into()),
        (None, None) if options.symmetry => return Err("symmetric states count as one".into()),
        (None, None) => {}
    }
    let (states, most) = (explored.states, options.liveness_states);
    if states > most {
        return Err(format!("{states} states; cycles are judged up to {most} states"));
    }
    let meter = Meter::new(Bounds { states: u64::MAX, ..options.bounds }, began);
    let (graph, bytes) = Graph::build(stepper, &meter, watcher, states as usize, false);
    explored.bytes = explored.bytes.max(bytes);
    let bound = || format!("stopped at the bound on {}", meter.bound().unwrap_or("choices of one step"));
    let graph = graph.ok_or_else(bound)?;
    let found = starvation(&graph, stepper).or_else(|| instability(&graph, stepper));
    explored.failure = found.map(|(breach, lasso)| Failure {
        verdict: Verdict::Violated,
        breach,
        path: lasso.path,
        repeats_after: Some(lasso.repeats_after),
    });
    Ok(())
}

fn starvation(graph: &Graph, stepper: &Stepper<'_>) -> Option<(Breach, Lasso)> {
    let lasso = fairness::starvation(graph)?;
    let why = format!("n{} waits for ever, although every site takes its steps", lasso.bit);
    Some((Breach { property: stepper.system.liveness(), why }, lasso))
}

fn instability(graph: &Graph, stepper: &Stepper<'_>) -> Option<(Breach, Lasso)> {
    let property = stepper.system.stability()?;
    let lasso = fairness::instability(graph)?;
    let why = format!("n{} reaches its goal and loses it again for ever, without a fault", lasso.bit);
    Some((Breach { property, why }, lasso))
}

fn report(
    explored: &Explored,
    steppers: &mut [Stepper<'_>],
    cycles: Result<(), String>,
    seconds: f64,
) -> Report {
    let system = steppers[0].system;
    let seen = steppers.iter().fold(0, |all, stepper| all | stepper.seen);
    let crossing = steppers.iter().any(|stepper| stepper.crossing);
    let named = system.sometimes().iter().enumerate();
    let sometimes = named.map(|(bit, name)| Sometimes { name, seen: seen >> bit & 1 == 1 });
    let verdict = match (&explored.failure, explored.bound) {
        (Some(failure), _) => failure.verdict,
        (None, Some(_)) => Verdict::Bounded,
        (None, None) => Verdict::Holds,
    };
    let bound = explored.bound.map(|bound| format!("stopped at the bound on {bound}"));
    let failure = explored.failure.as_ref();
    Report {
        verdict,
        property: failure.map(|failure| failure.breach.property),
        why: failure.map(|failure| failure.breach.why.clone()).or(bound),
        counterexample: failure.map(|failure| counterexample::build_trace(&mut steppers[0], failure)),
        states: explored.states,
        edges: explored.edges,
        depth: explored.depth,
        seconds,
        collision_probability: visited::collision_probability(explored.states),
        bytes: explored.bytes as u64,
        cycles: if cycles.is_ok() { Cycles::Judged } else { Cycles::NotJudged },
        cycles_why: cycles.err(),
        sometimes: sometimes.chain([Sometimes { name: CROSSING, seen: crossing }]).collect(),
        kinds: system.kinds(),
    }
}
