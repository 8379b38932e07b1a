//! The timesync problem in the simulator: a scenario in, a report out.
//!
//! All sites give their time at the same moments, again and again. The judge knows the true time. The checker
//! does not have this problem: every algorithm reads its clock, so the number of states is infinite.
//!
//! | file | contents |
//! |---|---|
//! | [`compare`] | all algorithms on the same network: error and promised bound over time |
//! | `scenario` | [`Scenario`]: everything that determines a run, and the command line that repeats it |
//! | `meter` | errors, bounds and spread at each moment |
//! | `report` | [`Report`]: the figures and the verdicts of one run |

pub mod compare;
mod meter;
mod report;
mod scenario;

use std::time::{Duration, Instant};

use conclave_algorithms::mutants::flawed::Fallible;
use conclave_algorithms::timesync::spec::{Breach, Judge};
use conclave_algorithms::timesync::{self, Command, Event, Group, TimeSync};
use conclave_kernel::{Card, NodeId, Time, Violation};
use conclave_sim::{Desk, Director, Limits, Recording, World};

pub use meter::Moment;
pub use report::Report;
pub use scenario::{Scenario, Work};

use crate::added::Algorithm;
use crate::problem;
use meter::Meter;

/// Returns whether an algorithm follows the true time, and not only the other clocks.
pub fn is_external(algorithm: &str) -> bool {
    timesync::CARDS.iter().any(|card| card.name == algorithm && scenario::is_external(card))
}

/// Returns the entry of an algorithm of another crate, for [`added::add`](crate::added::add).
pub fn entry<P: Fallible + TimeSync>() -> Algorithm {
    Algorithm::new(scenario::entry_of::<P>())
}

/// Runs a scenario of one algorithm. Records a trace if `record` is set. The type alone chooses the
/// algorithm, because a mutant is not in the catalogue.
pub fn run_algorithm<P: TimeSync>(
    scenario: &Scenario,
    record: bool,
) -> Result<(Report, Option<Recording>), String> {
    run_made(scenario, P::new, record)
}

/// Runs a scenario of one algorithm whose sites `make` creates.
pub(crate) fn run_made<P: TimeSync>(
    scenario: &Scenario,
    make: impl Fn(NodeId, &Group) -> P + 'static,
    record: bool,
) -> Result<(Report, Option<Recording>), String> {
    scenario.validate()?;
    // A round of these algorithms needs memory for every pair of sites.
    if [<timesync::Berkeley>::CARD.name, <timesync::BerkeleyRing>::CARD.name].contains(&P::CARD.name) {
        problem::refuse_size(scenario.world.nodes, &P::CARD, &[])?;
    }
    let group = scenario.group(&P::CARD);
    let problem = Problem::new::<P>(scenario, &group);
    let setup = scenario.setup(&P::CARD);
    let mut world = World::new(setup, problem, move |me| make(me, &group));
    if record {
        world = world.recording(scenario.header());
    }
    let started = Instant::now();
    let outcome = world.run(Limits::default());
    let seconds = started.elapsed().as_secs_f64();
    let (problem, trace) = world.into_parts();
    Ok((
        Report::new(scenario, &P::CARD, problem.meter, &problem.judge, problem.violations, &outcome, seconds),
        trace,
    ))
}

/// The director of the timesync problem: it judges and measures a run.
struct Problem {
    judge: Judge,
    meter: Meter,
    violations: Vec<Violation>,
    group: Group,
    reach: Reach,
    every: Duration,
    left: u64,
}

/// The sites that follow a site's clock, besides itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// None: all follow a server.
    Itself,
    /// The sites below it in the tree.
    Below,
    /// The whole group.
    All,
}

impl Reach {
    fn of(card: &Card) -> Self {
        match () {
            () if !scenario::is_external(card) => Self::All,
            () if card.name == timesync::Ntp::CARD.name => Self::Below,
            () => Self::Itself,
        }
    }
}

/// The most violations of a property that are described.
const MOST_DESCRIBED: usize = 4;

impl Problem {
    fn new<P: TimeSync>(scenario: &Scenario, group: &Group) -> Self {
        let servers = scenario.servers_of(&P::CARD);
        let is_external = scenario::is_external(&P::CARD);
        Self {
            // In the first quarter of a run, the clocks may still be apart.
            judge: Judge::new(group.nodes, servers, group.drift_ppm, Time::ZERO + scenario.length() / 4),
            meter: Meter::new(servers, is_external),
            violations: Vec::new(),
            group: group.clone(),
            reach: Reach::of(&P::CARD),
            every: scenario.sample_every(),
            left: scenario.work.samples,
        }
    }

    /// Returns whether one site follows the clock of the other.
    fn goes_by(&self, one: NodeId, other: NodeId) -> bool {
        let above = |site: &NodeId| self.group.parent(*site);
        match self.reach {
            Reach::All => true,
            Reach::Itself => one == other,
            Reach::Below => std::iter::successors(Some(one), above).any(|site| site == other),
        }
    }
}

impl<P: TimeSync> Director<P> for Problem {
    type Note = ();

    fn on_begin(&mut self, desk: &mut Desk<'_, P, ()>) {
        desk.wake_in(self.every, 0);
    }

    fn on_wake(&mut self, _key: u64, desk: &mut Desk<'_, P, ()>) {
        if self.left == 0 {
            return desk.stop();
        }
        self.left -= 1;
        self.meter.begin(desk.now());
        (0..self.group.nodes).map(NodeId).for_each(|site| desk.command(site, Command::Ask));
        desk.wake_in(self.every, 0);
    }

    fn on_event(&mut self, node: NodeId, event: &Event, desk: &mut Desk<'_, P, ()>) {
        let now = desk.now();
        if let Event::Synced { .. } = event {
            let upstream = self.group.parent(node).filter(|_| self.reach == Reach::Below);
            self.judge.compared(node, now, upstream);
        }
        let Event::Told(reading) = event else { return self.meter.event(event) };
        let violations = &mut self.violations;
        self.judge.told(node, now, reading, |Breach { property, why }| {
            let same = |violation: &&Violation| violation.property == property.name;
            if violations.iter().filter(same).count() < MOST_DESCRIBED {
                violations.push(Violation { property: property.name.into(), at: now, why });
            }
        });
        self.meter.told(node, now, reading);
    }

    fn on_send(&mut self, from: NodeId, to: NodeId, message: &P::Message) {
        if from != to {
            self.meter.message(P::kind(message));
        }
    }

    fn on_deliver(&mut self, from: NodeId, to: NodeId, (): &()) {
        if from != to {
            self.judge.receives(to);
        }
    }

    /// Excuses the sites that follow a stepped clock. A clock that is stepped back stands still until the
    /// time has caught up.
    fn on_step(&mut self, node: NodeId, by: i64, desk: &mut Desk<'_, P, ()>) {
        let from = desk.now() + Duration::from_nanos(by.min(0).unsigned_abs());
        let sites = (0..self.group.nodes).map(NodeId);
        let misled: Vec<_> = sites.filter(|site| self.goes_by(*site, node)).collect();
        misled.into_iter().for_each(|site| self.judge.stepped(site, from));
    }

    /// Records a crash. A site that recovers without its memory has a new clock.
    fn on_crash(&mut self, node: NodeId, _desk: &mut Desk<'_, P, ()>) {
        self.judge.forgets(node);
    }
}
