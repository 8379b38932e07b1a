//! The mutex problem in the simulator: a scenario in, a report out.
//!
//! | file | contents |
//! |---|---|
//! | [`check`] | the problem in the checker: cases, judges |
//! | [`compare`] | all algorithms on the same work |
//! | `scenario` | [`Scenario`]: everything that determines a run, and the command line that repeats it |
//! | `work` | the requests: low load, high load, pairs, Poisson, bursts, relays, scripts |
//! | `meter` | messages, delays, bypass, fairness |
//! | `report` | [`Report`]: the figures and the verdicts of one run |

pub mod check;
pub mod compare;
mod meter;
mod report;
mod scenario;
mod work;

use std::time::Instant;

use conclave_algorithms::mutants::flawed::Fallible;
use conclave_algorithms::mutex::spec::{Breach, Judge, Note};
use conclave_algorithms::mutex::{self, Command, Event, Group, Mutex};
use conclave_kernel::{Card, Effect, NodeId, Size, Time, Violation};
use conclave_sim::{Desk, Director, Recording, World};

pub use report::{Delays, Report};
pub(crate) use scenario::uses_quorums;
pub use scenario::{Scenario, Work, Workload};

use crate::added::Algorithm;
use crate::problem;
use meter::Meter;
use work::Worker;

/// Returns the entry of an algorithm of another crate, for [`added::add`](crate::added::add).
pub fn entry<P: Fallible + Mutex>() -> Algorithm {
    Algorithm::new(scenario::entry_of::<P>()).explored(check::entry_of::<P>())
}

/// Runs a scenario of one algorithm. Records a trace if `record` is set.
pub fn run_algorithm<P: Mutex>(
    scenario: &Scenario,
    record: bool,
) -> Result<(Report, Option<Recording>), String> {
    run_made(scenario, P::new, record)
}

/// Runs a scenario of one algorithm whose sites `make` creates.
pub fn run_made<P: Mutex>(
    scenario: &Scenario,
    make: impl Fn(NodeId, &Group) -> P + 'static,
    record: bool,
) -> Result<(Report, Option<Recording>), String> {
    run_with_card(scenario, &P::CARD, make, record)
}

/// Runs a scenario of one algorithm with a card that is not that of its type.
pub(crate) fn run_with_card<P: Mutex>(
    scenario: &Scenario,
    card: &Card,
    make: impl Fn(NodeId, &Group) -> P + 'static,
    record: bool,
) -> Result<(Report, Option<Recording>), String> {
    scenario.validate()?;
    problem::refuse_size(scenario.world.nodes, card, &SMALL)?;
    let group = scenario.group::<P>()?;
    let size = size_of(&group);
    let director = Problem::new(scenario, card);
    let mut world = World::new(scenario.world.clone(), director, move |me| make(me, &group));
    if record {
        world = world.recording(scenario.header());
    }
    let started = Instant::now();
    let outcome = world.run(scenario.limits());
    let seconds = started.elapsed().as_secs_f64();
    let (problem, trace) = world.into_parts();
    Ok((Report::new(scenario, card, size, problem.findings(), &outcome, seconds), trace))
}

/// The algorithms whose sites know only a few other sites.
const SMALL: [&str; 5] = [
    mutex::Central::CARD.name,
    mutex::TokenRing::CARD.name,
    mutex::FairRing::CARD.name,
    mutex::Raymond::CARD.name,
    mutex::NaimiTrehel::CARD.name,
];

/// N and K of a group: the number of sites and the size of the largest quorum.
pub fn size_of(group: &Group) -> Size {
    let sizes = group.quorums.iter().map(|quorum| quorum.len() as u32);
    Size {
        nodes: group.nodes,
        quorum_min: sizes.clone().min().unwrap_or(group.nodes),
        quorum_max: sizes.max().unwrap_or(group.nodes),
    }
}

/// Returns N and K of an algorithm's group with the default quorums; `None` if no algorithm has that name.
pub fn size_at(algorithm: &str, nodes: u32) -> Option<Size> {
    macro_rules! group {
        ($algorithm:ty) => {
            (<$algorithm as Mutex>::CARD.name, Scenario::group::<$algorithm> as GroupOf)
        };
    }
    type GroupOf = fn(&Scenario) -> Result<Group, String>;
    let mut scenario = Scenario::default();
    scenario.world.nodes = nodes;
    let mut groups = mutex::each!(group).into_iter().chain(mutex::each_layered!(group));
    let (_, group) = groups.find(|(name, _)| *name == algorithm)?;
    group(&scenario).ok().map(|group| size_of(&group))
}

/// The director of the mutex problem: it judges and measures a run.
struct Problem {
    judge: Judge,
    meter: Meter,
    worker: Worker,
    violations: Vec<Violation>,
    sites: Vec<Site>,
    /// The site that leaves and requests again in the same step. It requests after the messages of its exit,
    /// so the receivers of these messages do not know the new request. The field holds the site until then.
    asks_again: Option<(NodeId, Time)>,
}

/// The problem's view of a site. A site serves its requests one at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Site {
    busy: bool,
    waiting: u32,
}

/// The findings of a run.
struct Findings {
    judge: Judge,
    meter: Meter,
    violations: Vec<Violation>,
    unserved: Vec<NodeId>,
}

/// The most violations that are described. The verdicts count all.
const MOST_DESCRIBED: usize = 16;

impl Problem {
    fn new(scenario: &Scenario, card: &Card) -> Self {
        let nodes = scenario.world.nodes;
        Self {
            judge: Judge::new(nodes),
            meter: Meter::new(nodes),
            worker: Worker::new(scenario, card.idle_traffic),
            violations: Vec::new(),
            sites: vec![Site::default(); nodes as usize],
            asks_again: None,
        }
    }

    fn findings(mut self) -> Findings {
        self.settle();
        let unserved = self.judge.waiting().collect();
        Findings { judge: self.judge, meter: self.meter, violations: self.violations, unserved }
    }

    fn asks(&mut self, node: NodeId, now: Time) {
        self.sites[node.index()].busy = true;
        self.judge.asks(node);
        self.meter.asks(node, now);
    }

    /// Records a grant. Returns whether it is the first grant of its request. Such a grant is progress.
    fn granted(&mut self, node: NodeId, fence: mutex::Fence, now: Time) -> bool {
        let violations = &mut self.violations;
        self.judge.enters(node, fence, |Breach { property, why }| {
            let known = violations.iter().any(|violation| violation.property == property.name);
            if !known || violations.len() < MOST_DESCRIBED {
                violations.push(Violation { property: property.name.into(), at: now, why });
            }
        });
        self.meter.enters(node, now)
    }

    fn released(&mut self, node: NodeId, now: Time) {
        self.judge.leaves(node);
        self.meter.leaves(node, now);
        let site = &mut self.sites[node.index()];
        site.busy = false;
        if site.waiting > 0 {
            site.waiting -= 1;
            site.busy = true;
            self.asks_again = Some((node, now));
        }
    }

    /// Records the new request of a site that left, if one is noted: its step is over, or it sends for the
    /// new request.
    #[inline]
    fn settle(&mut self) {
        if self.asks_again.is_some() {
            self.ask_again();
        }
    }

    #[cold]
    fn ask_again(&mut self) {
        if let Some((node, now)) = self.asks_again.take() {
            self.asks(node, now);
        }
    }
}

impl<P: Mutex> Director<P> for Problem {
    type Note = Note;

    fn on_begin(&mut self, desk: &mut Desk<'_, P, Note>) {
        self.worker.begin(desk);
    }

    #[inline]
    fn on_command(&mut self, node: NodeId, command: &Command, now: Time) {
        self.settle();
        match command {
            Command::Acquire => {
                self.worker.asked(node);
                if self.sites[node.index()].busy {
                    self.sites[node.index()].waiting += 1;
                } else {
                    self.asks(node, now);
                }
            }
            Command::Witness(_) => {
                if let Some(note) = self.worker.handled_note(node) {
                    self.judge.receives(node, &note);
                }
            }
            Command::Release => {}
        }
    }

    #[inline]
    fn on_event(&mut self, node: NodeId, event: &Event, desk: &mut Desk<'_, P, Note>) {
        self.settle();
        match event {
            Event::Granted { fence } => {
                if self.granted(node, *fence, desk.now()) {
                    desk.progress();
                }
                self.worker.granted(node, desk);
            }
            Event::Released => {
                self.released(node, desk.now());
                self.worker.released(node, desk);
            }
            Event::Refused(_) => {}
        }
    }

    #[inline]
    fn on_effect(&mut self, node: NodeId, effect: &Effect<P>) {
        match effect {
            Effect::Send { to, .. } if *to == node => {} // a message of a site to itself is not counted
            Effect::Send { .. } | Effect::SendTo { .. } | Effect::Broadcast { .. } => self.meter.multicast(),
            _ => {}
        }
    }

    #[inline(always)]
    fn on_send(&mut self, from: NodeId, to: NodeId, message: &P::Message) -> Note {
        if from != to {
            let bill = P::bill(message, from, to);
            if self.asks_again.is_some() && bill.is_own_wish(from) {
                self.settle();
            }
            self.meter.message(bill);
        }
        self.judge.sends(from)
    }

    #[inline(always)]
    fn on_deliver(&mut self, _from: NodeId, to: NodeId, note: &Note) {
        self.settle();
        self.judge.receives(to, note);
    }

    fn on_wake(&mut self, key: u64, desk: &mut Desk<'_, P, Note>) {
        self.settle();
        self.worker.wake(key, &mut self.judge, desk);
    }

    fn on_quiet(&mut self, desk: &mut Desk<'_, P, Note>) {
        self.settle();
        self.worker.quiet(desk);
    }

    fn on_crash(&mut self, node: NodeId, _desk: &mut Desk<'_, P, Note>) {
        self.settle();
        self.judge.crashes(node);
        self.meter.crashes(node);
        self.sites[node.index()] = Site::default();
        self.worker.crashed(node);
    }

    fn on_recover(&mut self, node: NodeId, desk: &mut Desk<'_, P, Note>) {
        self.judge.recovers(node);
        self.worker.recovered(node, desk);
    }
}
