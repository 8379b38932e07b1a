//! The exhaustive checker: every interleaving of any [`Protocol`](conclave_kernel::Protocol), every fall of its
//! dice, every fault within a budget.
//!
//! The checker knows no algorithm and no problem. It is given a [`Model`] (the sites, the work offered to them, a
//! judge) and [`Options`] (order of messages, time, faults, bounds), and [`check`]s all that can happen. What it
//! finds is a [`Report`]; how a property comes to be broken is a [`Trace`](conclave_kernel::Trace), like that of
//! a simulated run. [`costs`] compares all complete executions by the messages that they send.
//!
//! | file | what it holds |
//! |---|---|
//! | `model` | [`Model`] and [`Monitor`]: what a problem brings |
//! | `options`, `report` | what is asked, what is answered |
//! | `intern`, `registry` | everything that occurs in states, kept once and named by a number |
//! | `system` | the model, asked by numbers: what is compiled for each algorithm |
//! | `local`, `inbox` | a site with its timers; what is on its way to it |
//! | `stepper` | where a state can go; every local step is computed once |
//! | `visited` | the states seen so far, as fingerprints |
//! | `breadth`, `depth` | the two searches, over both cores |
//! | `graph`, `components`, `fairness`, `cost` | the whole graph: who waits for ever, and what executions cost |
//! | `counterexample`, `retrace` | from fingerprints back to what happened; and the same taken again |
//!
//! # What is sound
//!
//! Nothing is left out by default. The one reduction, [`Options::symmetry`], is used only where a model declares
//! its symmetries. States are told apart by 64-bit fingerprints; the chance of a collision is in the report.

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

/// Explores everything that can happen.
pub fn check<M: Model>(model: &M, options: &Options) -> Result<Report<M::Protocol>, CheckError> {
    check_watched(model, options, &mut |_| ControlFlow::Continue(()))
}

/// Explores everything that can happen, reports the progress to `watcher`, and stops if `watcher` breaks.
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

/// The least and the most messages over all complete executions. Of the bounds, that on states counts.
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
        (Some(_), _) => return Err("another violation was found first".into()),
        (None, Some(_)) => return Err("the exploration is incomplete".into()),
        (None, None) if options.symmetry => return Err("symmetric states were counted as one".into()),
        (None, None) => {}
    }
    let (states, most) = (explored.states, options.liveness_states);
    if states > most {
        return Err(format!("{states} states; cycles are judged up to {most}"));
    }
    let meter = Meter::new(Bounds { states: u64::MAX, ..options.bounds }, began);
    let (graph, bytes) = Graph::build(stepper, &meter, watcher, false);
    explored.bytes = explored.bytes.max(bytes);
    let bound = || format!("stopped at the bound on {}", meter.bound().unwrap_or("choices of one step"));
    let graph = graph.ok_or_else(bound)?;
    if let Some(lasso) = fairness::starvation(&graph) {
        let why = format!("n{} waits for ever, although every site does what it must", lasso.bit);
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
