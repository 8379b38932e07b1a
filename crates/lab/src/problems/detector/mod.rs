//! The detector problem: a scenario in, a report out.
//!
//! | file | contents |
//! |---|---|
//! | `check` | [`Case`] and [`Watching`]: the problem in the checker |
//! | [`compare`] | all algorithms on the same traffic, over a range of D |
//! | `meter` | quality of service: detection times, mistakes and their durations |
//! | `scenario` | [`Scenario`]: everything that determines a run, and the command line that repeats it |
//! | `report` | [`Report`]: the figures and the verdicts of one run |

pub mod check;
pub mod compare;
mod meter;
mod report;
mod scenario;

use std::time::Instant;

use conclave_algorithms::detector::spec::{ACCURACY, COMPLETENESS, CONSTANT_ACCURACY};
use conclave_algorithms::detector::{Detector, Event, Group};
use conclave_algorithms::mutants::flawed::Fallible;
use conclave_kernel::{NodeId, Property, Time, Violation};
use conclave_sim::{Desk, Director, Limits, Recording, World};

pub use check::{Case, Watch, Watching};
pub use report::{Report, Sample};
pub use scenario::{Scenario, Work};

use crate::added::Algorithm;
use crate::problem;
use meter::Meter;

/// Returns the entry of an algorithm of another crate, for [`added::add`](crate::added::add).
pub fn entry<P: Fallible + Detector>() -> Algorithm {
    Algorithm::new(scenario::entry_of::<P>()).explored(check::entry_of::<P>())
}

/// Runs a scenario of one algorithm. Records a trace if `record` is set.
pub fn run_algorithm<P: Detector>(
    scenario: &Scenario,
    record: bool,
) -> Result<(Report, Option<Recording>), String> {
    run_made(scenario, P::new, record)
}

/// Runs a scenario of one algorithm whose sites `make` creates.
pub(crate) fn run_made<P: Detector>(
    scenario: &Scenario,
    make: impl Fn(NodeId, &Group) -> P + 'static,
    record: bool,
) -> Result<(Report, Option<Recording>), String> {
    scenario.validate()?;
    problem::refuse_size(scenario.world.nodes, &P::CARD, &[])?;
    let group = scenario.group();
    let is_constant = scenario.constant_accuracy().missing.is_none();
    let problem =
        Problem { meter: Meter::new(group.nodes), is_constant, violations: Vec::new(), undescribed: 0 };
    let mut world = World::new(scenario.world.clone(), problem, move |me| make(me, &group));
    if record {
        world = world.recording(scenario.header());
    }
    let started = Instant::now();
    let outcome = world.run(Limits { time: scenario.work.duration, ..Limits::default() });
    let seconds = started.elapsed().as_secs_f64();
    let (mut problem, trace) = world.into_parts();
    let end = Time::ZERO + scenario.work.duration;
    for why in problem.meter.close(end, end - scenario.grace()) {
        problem.broken(&COMPLETENESS, end, why);
    }
    Ok((Report::new(scenario, &P::CARD, problem, &outcome, seconds), trace))
}

/// The director of the detector problem: it judges and measures a run.
struct Problem {
    meter: Meter,
    /// Whether no detector may suspect a site in this run.
    is_constant: bool,
    violations: Vec<Violation>,
    /// The number of violations beyond [`MOST_DESCRIBED`].
    undescribed: u64,
}

/// The most violations that are described. The meter counts all.
const MOST_DESCRIBED: usize = 16;

impl Problem {
    fn broken(&mut self, property: &Property, at: Time, why: String) {
        let known = self.violations.iter().any(|violation| violation.property == property.name);
        if !known || self.violations.len() < MOST_DESCRIBED {
            self.violations.push(Violation { property: property.name.into(), at, why });
        } else {
            self.undescribed += 1;
        }
    }
}

impl<P: Detector> Director<P> for Problem {
    type Note = ();

    fn on_begin(&mut self, _desk: &mut Desk<'_, P, ()>) {}

    fn on_event(&mut self, node: NodeId, event: &Event, desk: &mut Desk<'_, P, ()>) {
        if let Event::Suspected(about) = *event
            && self.is_constant
        {
            let why = format!("{node} suspected {about}, although the delay is constant and no site failed");
            self.broken(&CONSTANT_ACCURACY, desk.now(), why);
        }
        match *event {
            Event::Suspected(about) if self.meter.suspects(node, about, desk.now()) => {
                let why = format!("{node} suspected {about}, which had been up since its last message");
                self.broken(&ACCURACY, desk.now(), why);
            }
            Event::Suspected(_) => {}
            Event::Trusted(about) => self.meter.trusts(node, about, desk.now()),
        }
    }

    fn on_send(&mut self, _from: NodeId, _to: NodeId, _message: &P::Message) {}

    fn on_deliver(&mut self, from: NodeId, to: NodeId, (): &()) {
        self.meter.hears(to, from);
    }

    fn on_crash(&mut self, node: NodeId, desk: &mut Desk<'_, P, ()>) {
        self.meter.crashes(node, desk.now());
    }

    fn on_recover(&mut self, node: NodeId, desk: &mut Desk<'_, P, ()>) {
        self.meter.recovers(node, desk.now());
    }
}
