//! The deadlock problem: detection of deadlocks among waiting processes, and its cost.
//!
//! | file | contents |
//! |---|---|
//! | `check` | [`Case`]: the detectors in the checker |
//! | [`standing`] | [`Standing`]: a wait-for graph at one moment: stuck processes, reasons, victims |
//! | `scenario` | [`Scenario`]: everything that determines a run |
//! | `work` | processes that think, grant and request, and their judge |
//! | `bank` | transactions that lock, under detection, prevention and avoidance |
//! | `report` | [`Report`]: the figures and the verdicts of one run |

mod bank;
pub mod check;
mod compare;
mod report;
mod scenario;
pub mod standing;
#[cfg(test)]
mod tests;
mod work;

use std::time::Instant;

use conclave_algorithms::deadlock::locking::{Estate, Locking};
use conclave_algorithms::deadlock::site::Group;
use conclave_algorithms::deadlock::spec;
use conclave_algorithms::deadlock::{Detection, Site};
use conclave_kernel::NodeId;
use conclave_sim::{End, Recording, World};

pub use check::{ABORTED, Case, DEADLOCK, DECLARED, ENDED};
pub use report::{Detected, Locked, Report};
pub use scenario::{Scenario, Work};
pub use standing::{Policy, Standing};

use crate::problem;
use bank::Bank;
use work::Problem;

/// Runs a scenario of one detector. Records a trace if `record` is set.
pub fn run_algorithm<D: Detection>(
    scenario: &Scenario,
    record: bool,
) -> Result<(Detected, Option<Recording>), String> {
    scenario.validate()?;
    problem::refuse_size(scenario.world.nodes, &D::CARD, &[])?;
    let model = scenario.work.model.unwrap_or(D::MODEL);
    if !D::MODEL.includes(model) {
        return Err(format!(
            "{} supports requests of model {}, but not {model}: give another --model",
            D::CARD.name,
            D::MODEL
        ));
    }
    let group = Group::new(scenario.world.nodes, !scenario.work.detect_only);
    let director = Problem::new(scenario, model);
    let mut world = World::new(scenario.world.clone(), director, move |me| Site::<D>::new(me, &group));
    if record {
        world = world.recording(scenario.header());
    }
    let started = Instant::now();
    let outcome = world.run(scenario.limits());
    let seconds = started.elapsed().as_secs_f64();
    let processes: Vec<_> = world.nodes().iter().map(Site::process).collect();
    let dead_edge = spec::dead_edge(&processes);
    let (mut problem, trace) = world.into_parts();
    if outcome.end == End::Quiet {
        let missed = problem.judge.rests();
        problem.breach(missed, outcome.at);
        problem.breach(dead_edge, outcome.at);
    }
    Ok((Detected::new::<D>(scenario, model, problem, &outcome, seconds), trace))
}

/// Runs a scenario of one way to lock. Records a trace if `record` is set.
pub fn run_way<L: Locking>(scenario: &Scenario, record: bool) -> Result<(Locked, Option<Recording>), String> {
    run_way_made(scenario, L::new, record)
}

/// Runs a scenario of one way to lock whose sites `make` creates.
pub(crate) fn run_way_made<L: Locking>(
    scenario: &Scenario,
    make: impl Fn(NodeId, &Estate) -> L + 'static,
    record: bool,
) -> Result<(Locked, Option<Recording>), String> {
    scenario.validate()?;
    problem::refuse_size(scenario.world.nodes, &L::CARD, &[])?;
    if scenario.work.model.is_some() || scenario.work.detect_only {
        return Err(format!(
            "--model and --detect-only have no effect on {}, whose transactions take one lock at a time: leave them out",
            L::CARD.name
        ));
    }
    let estate = Estate { nodes: scenario.world.nodes, locks: bank::locks(scenario.world.nodes) };
    let mut world = World::new(scenario.world.clone(), Bank::new(scenario), move |me| make(me, &estate));
    if record {
        world = world.recording(scenario.header());
    }
    let started = Instant::now();
    let outcome = world.run(scenario.limits());
    let seconds = started.elapsed().as_secs_f64();
    let (mut bank, trace) = world.into_parts();
    if outcome.end == End::Quiet {
        bank.rests(outcome.at);
    }
    Ok((Locked::new::<L>(scenario, bank, &outcome, seconds), trace))
}
