//! The snapshot problem in the simulator: an application, snapshots of it, and the judge.
//!
//! | file | contents |
//! |---|---|
//! | `check` | [`Transfers`]: the problem in the checker |
//! | [`compare`] | both algorithms on the same work |
//! | `equivalent` | [`Equivalent`]: the run, reordered so that it passes through a snapshot |
//! | `scenario` | [`Scenario`]: everything that determines a run, and the command line that repeats it |
//! | `play` | the acts of the applications, and their states in words |
//! | `spans` | the cuts of the space-time diagram, and its window |
//! | `report` | [`Report`]: the snapshots, the figures and the verdicts of one run |

pub mod check;
pub mod compare;
mod equivalent;
mod play;
mod report;
mod scenario;
mod spans;

use std::collections::BTreeMap;
use std::time::Instant;

use conclave_algorithms::snapshot::spec::{Breach, Judge, Note};
use conclave_algorithms::snapshot::{Command, Event, Snapshot, SnapshotId};
use conclave_kernel::{NodeId, Prng, Time, Violation};
use conclave_sim::{Desk, Director, End, Recording, World};

pub use check::{Case, HALFWAY, ON_ITS_WAY, Transfers};
pub use equivalent::Equivalent;
pub use report::{InTransit, Report, Shown};
pub use scenario::{App, Scenario, Shot, Work};
pub(crate) use spans::options;

use crate::log::Log;
use crate::problem;
use play::Played;

/// Runs a scenario of one algorithm whose sites `make` creates.
pub(crate) fn run_made<A: Played, P: Snapshot<A>>(
    scenario: &Scenario,
    make_site: impl Fn(NodeId, u32, A) -> P + 'static,
    record: bool,
) -> Result<(Report, Option<Recording>), String> {
    scenario.validate()?;
    problem::refuse_size(scenario.world.nodes, &P::CARD, &[])?;
    let nodes = scenario.world.nodes;
    let make = scenario.clone();
    let mut world = World::new(scenario.world.clone(), Problem::<A>::new(scenario), move |me| {
        make_site(me, nodes, A::make(&make))
    });
    let explains = scenario.work.acts <= equivalent::MOST_ACTS && nodes <= equivalent::MOST_NODES;
    if record || explains {
        world = world.recording(scenario.header());
    }
    let started = Instant::now();
    let outcome = world.run(scenario.limits());
    let seconds = started.elapsed().as_secs_f64();
    let states: Vec<A> = world.nodes().iter().map(|node| node.app().clone()).collect();
    let (mut problem, trace) = world.into_parts();
    problem.close(&states, A::total(scenario), outcome.end, outcome.at);
    let mut report = Report::new::<A, P>(scenario, &problem, &outcome, seconds);
    if let Some(trace) = trace.as_ref().filter(|_| explains) {
        report.explain(&Log::from_trace(trace)?);
    }
    Ok((report, trace.filter(|_| record)))
}

/// The director of the snapshot problem: it judges and measures a run.
struct Problem<A: Played> {
    judge: Judge<A>,
    shots: Vec<Shot>,
    timings: BTreeMap<SnapshotId, Timing>,
    kinds: BTreeMap<&'static str, u64>,
    acts_left: u64,
    gap_ns: u64,
    nodes: u32,
    random: Prng,
    violations: Vec<Violation>,
    now: Time,
}

/// The start of a snapshot, and the time at which the last site completed it.
#[derive(Clone, Copy, Debug)]
struct Timing {
    began: Time,
    complete: Time,
    sites: u32,
}

/// The key of the alarm for the next act of the application. Every other key is the index of a snapshot.
const ACT: u64 = u64::MAX;

const STREAM: u64 = 0x736e_6170;

/// The most violations that are described. The verdicts count all.
const MOST_DESCRIBED: usize = 16;

impl<A: Played> Problem<A> {
    fn new(scenario: &Scenario) -> Self {
        Self {
            judge: Judge::new(scenario.world.nodes),
            shots: scenario.shots(),
            timings: BTreeMap::new(),
            kinds: BTreeMap::new(),
            acts_left: scenario.work.acts,
            gap_ns: conclave_kernel::time::nanos(scenario.work.gap),
            nodes: scenario.world.nodes,
            random: Prng::stream(scenario.world.seed, STREAM, 0),
            violations: Vec::new(),
            now: Time::ZERO,
        }
    }

    fn step_over(&mut self) {
        let (violations, now) = (&mut self.violations, self.now);
        self.judge.step_over(|breach| note(violations, now, breach));
    }

    fn close(&mut self, states: &[A], total: Option<u64>, end: End, at: Time) {
        let violations = &mut self.violations;
        self.judge.finish(states.iter(), total, end == End::Quiet, |breach| note(violations, at, breach));
    }

    /// Schedules the next act after a random time with the gap as its mean.
    fn schedule<P: Snapshot<A>>(&mut self, desk: &mut Desk<'_, P, Note<A>>) {
        if self.acts_left > 0 {
            self.acts_left -= 1;
            let after = self.random.below(self.gap_ns.saturating_mul(2).max(1));
            desk.wake_in(std::time::Duration::from_nanos(after), ACT);
        }
    }

    fn act<P: Snapshot<A>>(&mut self, desk: &mut Desk<'_, P, Note<A>>) {
        let site = NodeId(self.random.below(u64::from(self.nodes)) as u32);
        desk.progress();
        let command = desk.node(site).app().act(site, self.nodes, &mut self.random);
        desk.command(site, Command::App(command));
        self.schedule(desk);
    }

    fn shoot<P: Snapshot<A>>(&mut self, index: usize, desk: &mut Desk<'_, P, Note<A>>) {
        let id = SnapshotId(index as u32 + 1);
        self.judge.starts(id, (0..self.nodes).map(|site| desk.node(NodeId(site)).app()));
        let began = desk.now();
        self.timings.insert(id, Timing { began, complete: began, sites: 0 });
        self.shots[index].nodes.iter().for_each(|node| desk.command(*node, Command::Take(id)));
    }
}

fn note(violations: &mut Vec<Violation>, at: Time, Breach { property, why }: Breach) {
    let known = violations.iter().any(|violation| violation.property == property.name);
    if !known || violations.len() < MOST_DESCRIBED {
        violations.push(Violation { property: property.name.into(), at, why });
    }
}

impl<A: Played, P: Snapshot<A>> Director<P> for Problem<A> {
    type Note = Note<A>;

    fn on_begin(&mut self, desk: &mut Desk<'_, P, Note<A>>) {
        self.shots.iter().enumerate().for_each(|(index, shot)| desk.wake_in(shot.at, index as u64));
        self.schedule(desk);
    }

    fn on_command(&mut self, _node: NodeId, command: &Command<A>, now: Time) {
        self.step_over();
        if let Command::Take(id) = command {
            self.judge.takes(*id);
        }
        self.now = now;
    }

    fn on_event(&mut self, node: NodeId, event: &Event<A>, desk: &mut Desk<'_, P, Note<A>>) {
        self.now = desk.now();
        match event {
            Event::Recorded(id) => self.judge.records(node, *id),
            Event::Complete(picture) => {
                let (violations, now) = (&mut self.violations, self.now);
                self.judge.completes(node, picture, |breach| note(violations, now, breach));
                if let Some(timing) = self.timings.get_mut(&picture.id) {
                    timing.sites += 1;
                    timing.complete = now;
                    // A site that completes a snapshot again makes no progress.
                    if timing.sites <= self.nodes {
                        desk.progress();
                    }
                }
            }
            Event::Refused { .. } | Event::App(_) => {}
        }
    }

    fn on_send(&mut self, from: NodeId, to: NodeId, message: &P::Message) -> Note<A> {
        if from != to {
            *self.kinds.entry(P::kind(message)).or_default() += 1;
        }
        self.judge.sends(from, to, P::carried(message))
    }

    fn on_deliver(&mut self, from: NodeId, to: NodeId, note: &Note<A>) {
        self.step_over();
        self.judge.receives(from, to, note);
    }

    fn on_wake(&mut self, key: u64, desk: &mut Desk<'_, P, Note<A>>) {
        self.step_over();
        self.now = desk.now();
        match key {
            ACT => self.act(desk),
            index => self.shoot(index as usize, desk),
        }
    }
}
