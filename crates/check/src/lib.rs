//! The exhaustive checker: explores every interleaving of a [`Protocol`](conclave_kernel::Protocol), every
//! random choice, and every fault within a budget.
//!
//! The checker knows no algorithm and no problem. [`check`] takes a [`Model`] (the sites, their work, a
//! judge) and [`Options`] (order of messages, time, faults, bounds). It returns a [`Report`]. A
//! counterexample is a [`Trace`](conclave_kernel::Trace), like that of a simulated run. [`costs`] compares
//! the complete executions by the number of their messages.
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
mod components;
mod cost;
mod counterexample;
mod depth;
mod explore;
mod fairness;
mod graph;
mod inbox;
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

use crate::explore::{Explored, Failure, Meter, Watcher};
use crate::graph::Graph;
use crate::registry::Registry;
use crate::stepper::Stepper;
use crate::system::System as _;

pub use model::{Breach, Findings, MOST_NODES, Model, Monitor, Offer, Renamed};
pub use options::{Bounds, Faults, Options, Order, Progress, Recovery, Search, Timing};
pub use report::{CROSSING, CheckError, Costs, Counterexample, Cycles, Extent, Report, Sometimes, Verdict};
pub use retrace::{Retraced, retrace};

/// Explores every execution of a model.
pub fn check<M: Model>(model: &M, options: &Options) -> Result<Report<M::Protocol>, CheckError> {
    check_watched(model, options, &mut |_| ControlFlow::Continue(()))
}

/// Explores every execution of a model, reports the progress to `watcher`, and stops if `watcher` breaks.
pub fn check_watched<M: Model>(
    model: &M,
    options: &Options,
    watcher: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Report<M::Protocol>, CheckError> {
    let began = Instant::now();
    let registry = registry(model, options)?;
    let steppers = (0..options.threads.max(1)).map(|_| Stepper::new(&registry)).collect();
    let meter = Meter::new(options.bounds, began);
    let (mut explored, mut steppers) = match options.search {
        Search::Breadth => breadth::search(steppers, &meter, watcher),
        Search::Depth => depth::search(steppers, &meter, watcher),
    };
    if let Some(node) = steppers.iter().find_map(|stepper| stepper.trouble) {
        return Err(CheckError::TooManyChoices(node));
    }
    let cycles = judge_cycles(&mut explored, &mut steppers[0], options, began, watcher);
    explored.bytes += registry.bytes() + steppers.iter().map(Stepper::bytes).sum::<usize>();
    let seconds = began.elapsed().as_secs_f64();
    Ok(report(&registry, &explored, &mut steppers, cycles, seconds))
}

/// Returns the fewest and the most messages over all complete executions. Of the bounds, only that on states
/// applies.
pub fn costs<M: Model>(model: &M, options: &Options) -> Result<Costs, CheckError> {
    let registry = registry(model, options)?;
    let mut stepper = Stepper::new(&registry);
    let meter = Meter::new(options.bounds, Instant::now());
    let (graph, _) = Graph::build(&mut stepper, &meter, &mut |_| ControlFlow::Continue(()), true);
    if let Some(node) = stepper.trouble {
        return Err(CheckError::TooManyChoices(node));
    }
    cost::costs(&graph.ok_or(CheckError::TooManyStates(options.bounds.states))?)
}

fn registry<'m, M: Model>(model: &'m M, options: &Options) -> Result<Registry<'m, M>, CheckError> {
    match model.nodes() {
        nodes @ 1..=MOST_NODES => {
            debug_assert_eq!(nodes, model.nodes());
            Ok(Registry::new(model, options))
        }
        nodes => Err(CheckError::Nodes(nodes)),
    }
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
    let (graph, bytes) = Graph::build(stepper, &meter, watcher, false);
    explored.bytes = explored.bytes.max(bytes);
    let bound = || format!("stopped at the bound on {}", meter.bound().unwrap_or("choices of one step"));
    let graph = graph.ok_or_else(bound)?;
    if let Some(lasso) = fairness::starvation(&graph) {
        let why = format!("n{} waits for ever, although every site takes its steps", lasso.bit);
        let breach = Breach { property: stepper.system.liveness(), why };
        let repeats_after = Some(lasso.repeats_after);
        explored.failure =
            Some(Failure { verdict: Verdict::Violated, breach, path: lasso.path, repeats_after });
    }
    Ok(())
}

fn report<M: Model>(
    registry: &Registry<'_, M>,
    explored: &Explored,
    steppers: &mut [Stepper<'_>],
    cycles: Result<(), String>,
    seconds: f64,
) -> Report<M::Protocol> {
    let seen = steppers.iter().fold(0, |all, stepper| all | stepper.seen);
    let crossing = steppers.iter().any(|stepper| stepper.crossing);
    let named = registry.model.sometimes().iter().enumerate();
    let sometimes = named.map(|(bit, name)| Sometimes { name, seen: seen >> bit & 1 == 1 });
    let mut kinds = Vec::new();
    for kind in (0..registry.inputs.len() as u32).filter_map(|input| registry.kind(input)) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let verdict = match (&explored.failure, explored.bound) {
        (Some(failure), _) => failure.verdict,
        (None, Some(_)) => Verdict::Bounded,
        (None, None) => Verdict::Holds,
    };
    let bound = explored.bound.map(|bound| format!("stopped at the bound on {bound}"));
    Report {
        verdict,
        property: explored.failure.as_ref().map(|failure| failure.breach.property),
        why: explored.failure.as_ref().map(|failure| failure.breach.why.clone()).or(bound),
        counterexample: explored
            .failure
            .as_ref()
            .map(|failure| counterexample::narrate(registry, &mut steppers[0], failure)),
        states: explored.states,
        edges: explored.edges,
        depth: explored.depth,
        seconds,
        collision_probability: visited::collision_probability(explored.states),
        bytes: explored.bytes as u64,
        cycles: if cycles.is_ok() { Cycles::Judged } else { Cycles::NotJudged },
        cycles_why: cycles.err(),
        sometimes: sometimes.chain([Sometimes { name: CROSSING, seen: crossing }]).collect(),
        kinds,
    }
}
