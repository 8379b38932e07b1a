//! The election problem: a scenario in, a report out.
//!
//! | file | contents |
//! |---|---|
//! | `check` | [`Elections`]: the problem in the checker |
//! | [`compare`] | all algorithms on the same work |
//! | `scenario` | [`Scenario`]: everything that determines a run, and the command line that repeats it |
//! | `report` | [`Report`]: the figures and the verdicts of one run |
//! | `spans` | the times of the leaders, as bars of a diagram |

pub mod check;
pub mod compare;
mod report;
mod scenario;
mod spans;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use conclave_algorithms::election::spec::{E1, E2, Judge};
use conclave_algorithms::election::{ChangRoberts, Command, Election, Event, Group, HirschbergSinclair};
use conclave_algorithms::mutants::flawed::Fallible;
use conclave_kernel::{Card, Judgement, NodeId, Prng, Property, Time, Violation, time};
use conclave_sim::{Desk, Director, End, Limits, Outcome, Recording, World};

pub use check::{Case, DECIDED, Elections, HALFWAY, Judged, Watch};
pub use report::Report;
pub use scenario::{Ranks, Scenario, Start, Trigger, Work, longest};
pub(crate) use spans::spans;

use crate::added::Algorithm;
use crate::problem;

/// Returns the entry of an algorithm of another crate, for [`added::add`](crate::added::add).
pub fn entry<P: Fallible + Election>() -> Algorithm {
    Algorithm::new(scenario::entry_of::<P>()).explored(check::entry_of::<P>())
}

/// Runs a scenario of one algorithm. Records a trace if `record` is set.
pub fn run_algorithm<P: Election>(
    scenario: &Scenario,
    record: bool,
) -> Result<(Report, Option<Recording>), String> {
    run_with_card(scenario, &P::CARD, P::new, record)
}

/// Runs a scenario of one algorithm whose sites `make` creates, with a card that may not be that of its type.
pub(crate) fn run_with_card<P: Election>(
    scenario: &Scenario,
    card: &Card,
    make: impl Fn(NodeId, &Group) -> P + 'static,
    record: bool,
) -> Result<(Report, Option<Recording>), String> {
    scenario.validate()?;
    let rings = [ChangRoberts::CARD.name, HirschbergSinclair::CARD.name];
    problem::refuse_size(scenario.world.nodes, card, &rings)?;
    let group = scenario.group();
    let problem = Problem::new(scenario, &group, card.idle_traffic);
    let limits = problem.limits(scenario.limits());
    let mut world = World::new(scenario.world.clone(), problem, move |me| make(me, &group));
    if record {
        world = world.recording(scenario.header());
    }
    let started = Instant::now();
    let outcome = world.run(limits);
    let seconds = started.elapsed().as_secs_f64();
    let (problem, trace) = world.into_parts();
    Ok((Report::new(scenario, card, problem.findings(&outcome), &outcome, seconds), trace))
}

const STREAM: u64 = 0x656c_6563;

/// The director of the election problem: it judges and measures a run.
struct Problem {
    judge: Judge,
    start: Start,
    trigger: Trigger,
    random: Prng,
    /// The number of elections that are still to be started.
    to_call: u64,
    notice: Duration,
    /// Whether the algorithm sends messages all the time. Such a run is never quiet, and the director ends
    /// it.
    idle_traffic: bool,
    /// The least time of a run that is never quiet, so that every fault occurs and the sites notice it.
    at_least: Duration,
    /// The most time of a run that is never quiet.
    at_most: Duration,
    /// The longest time of a detection. While all sites are decided, a run that is never quiet reports
    /// progress once in this time.
    detection: Duration,
    /// The sites that crashed or recovered; the index is the key of the alarm at which the other sites notice
    /// it.
    news: Vec<NodeId>,
    open: Option<Open>,
    held: Vec<Held>,
    /// The number of decisions of single sites, without those of sites that crashed at the same moment.
    decisions: u64,
    /// The time of each site's latest decision since it last crashed.
    decided_at: Vec<Option<Time>>,
    /// Whether a site crashed at the moment at which it decided.
    decided_in_vain: bool,
    /// The fewest undecided sites since the start of the latest election. Only a smaller number is progress,
    /// so sites that decide again and again make none.
    fewest_undecided: usize,
    kinds: BTreeMap<&'static str, u64>,
    messages: u64,
    background: u64,
    violations: Vec<Violation>,
}

/// An election that has not ended.
#[derive(Clone, Copy, Debug)]
struct Open {
    since: Time,
    messages_before: u64,
    /// The time at which the last site decided.
    decided: Option<Time>,
}

/// An election that has ended.
#[derive(Clone, Copy, Debug)]
struct Held {
    messages: u64,
    turnaround_ns: u64,
    leader: NodeId,
    /// The time of the last decision.
    at: Time,
}

/// The findings of a run.
struct Findings {
    held: Vec<Held>,
    kinds: BTreeMap<&'static str, u64>,
    background: u64,
    judgements: [Judgement; 2],
    violations: Vec<Violation>,
}

/// The most violations that are described. The verdicts count all.
const MOST_DESCRIBED: usize = 16;

/// The keys of the other alarms.
const NEXT: u64 = u64::MAX;
const FINISH: u64 = u64::MAX - 1;
const STILL_DECIDED: u64 = u64::MAX - 2;

impl Problem {
    fn new(scenario: &Scenario, group: &Group, idle_traffic: bool) -> Self {
        let faults = &scenario.world.faults;
        let last_fault = faults.iter().map(|fault| fault.until.unwrap_or(fault.at)).max().unwrap_or_default();
        // The slowest detection takes less than this time.
        let detection = 3 * (group.detector.period + group.detector.margin);
        let at_least = last_fault + 10 * detection;
        let a_call = 100 * detection;
        let calls = u32::try_from(scenario.work.elections).unwrap_or(u32::MAX);
        let at_most = at_least.saturating_add(a_call.saturating_mul(calls));
        Self {
            judge: Judge::new(group.candidates()),
            start: scenario.work.start,
            trigger: scenario.work.trigger,
            random: Prng::stream(scenario.world.seed, STREAM, 0),
            to_call: scenario.work.elections,
            notice: scenario.work.notice,
            idle_traffic,
            at_least,
            at_most,
            detection: detection.max(Duration::from_nanos(1)),
            news: Vec::new(),
            open: None,
            held: Vec::new(),
            decisions: 0,
            decided_at: vec![None; scenario.world.nodes as usize],
            decided_in_vain: false,
            fewest_undecided: usize::MAX,
            kinds: BTreeMap::new(),
            messages: 0,
            background: 0,
            violations: Vec::new(),
        }
    }

    /// Returns the limits of the run. Heartbeats continue without a decision, so such a run has its own time
    /// limit.
    fn limits(&self, limits: Limits) -> Limits {
        let patience = Limits::default().patience;
        if self.idle_traffic { Limits { patience, time: self.at_most, ..limits } } else { limits }
    }

    fn findings(mut self, outcome: &Outcome) -> Findings {
        self.close();
        let judgements = [
            E1.judged_unless(&[
                (
                    self.decisions == 0 && self.decided_in_vain,
                    "every site that decided crashed at the same moment",
                ),
                (self.decisions == 0, "no site decided"),
            ]),
            E2.judged_unless(&[(self.judge.highest().is_none(), "no site stayed up")]),
        ];
        let undecided: Vec<_> =
            self.judge.undecided().take(MOST_DESCRIBED).map(|it| it.to_string()).collect();
        // In a bounded run, a site could still have decided later.
        if !undecided.is_empty() && !outcome.end.is_bounded() {
            let why = match outcome.end {
                End::Quiet => "and no event is left",
                _ => "although the run lasted long enough",
            };
            let has = if undecided.len() == 1 { "has" } else { "have" };
            let sites = undecided.join(", ");
            self.broken(
                &E2,
                outcome.at,
                format!("{sites} {has} not elected the highest site that is up, {why}"),
            );
        }
        let Self { held, kinds, background, violations, .. } = self;
        Findings { held, kinds, background, judgements, violations }
    }

    fn broken(&mut self, property: &Property, at: Time, why: String) {
        let known = self.violations.iter().any(|violation| violation.property == property.name);
        if !known || self.violations.len() < MOST_DESCRIBED {
            self.violations.push(Violation { property: property.name.into(), at, why });
        }
    }

    fn begin(&mut self, now: Time) {
        self.open.get_or_insert(Open { since: now, messages_before: self.messages, decided: None });
        self.fewest_undecided = usize::MAX;
    }

    /// Ends the current election if all sites have decided. Returns whether it has ended.
    fn close(&mut self) -> bool {
        let Some(Open { since, messages_before, decided: Some(decided) }) = self.open else { return false };
        let Some(leader) = self.judge.highest() else { return false };
        let messages = self.messages - messages_before;
        let turnaround_ns = time::nanos(decided.since(since));
        self.held.push(Held { messages, turnaround_ns, leader: leader.site, at: decided });
        self.open = None;
        true
    }

    /// Starts the next election, if one is left.
    fn call<P: Election>(&mut self, desk: &mut Desk<'_, P, ()>) {
        if self.to_call == 0 {
            return;
        }
        self.to_call -= 1;
        self.begin(desk.now());
        match (self.trigger, self.judge.highest()) {
            (Trigger::Resign, Some(leader)) if !self.held.is_empty() => {
                desk.command(leader.site, Command::Resign);
            }
            _ => {
                self.start(desk);
                self.look(desk); // the leader may be correct already, without a message
            }
        }
    }

    fn start<P: Election>(&mut self, desk: &mut Desk<'_, P, ()>) {
        let mut up: Vec<_> = self.judge.sites().filter(|site| self.judge.is_up(*site)).collect();
        up.sort_by_key(|site| self.judge.candidate(*site));
        let (Some(lowest), Some(highest)) = (up.first(), up.last()) else { return };
        let starter = match self.start {
            Start::All => return up.iter().for_each(|site| desk.command(*site, Command::Elect)),
            Start::Lowest => *lowest,
            Start::Highest => *highest,
            Start::Random => up[self.random.below(up.len() as u64) as usize],
            Start::Site(site) => {
                if up.contains(&site) {
                    site
                } else {
                    *lowest
                }
            }
        };
        desk.command(starter, Command::Elect);
    }

    /// Informs all sites of a crash or a recovery. If a site is undecided, starts an election.
    fn tell<P: Election>(&mut self, about: NodeId, desk: &mut Desk<'_, P, ()>) {
        let up = self.judge.is_up(about);
        let command = if up { Command::Trust(about) } else { Command::Suspect(about) };
        for site in self.judge.sites().filter(|site| *site != about && self.judge.is_up(*site)) {
            desk.command(site, command);
        }
        if up {
            // The recovered site has missed the earlier crashes.
            for down in self.judge.sites().filter(|site| !self.judge.is_up(*site)) {
                desk.command(about, Command::Suspect(down));
            }
        }
        if self.judge.undecided_count() > 0 {
            self.start(desk);
        }
    }

    /// Records whether all sites have decided. An algorithm that is never quiet then starts the next
    /// election.
    fn look<P: Election>(&mut self, desk: &mut Desk<'_, P, ()>) {
        let undecided = self.judge.undecided_count();
        let decided = undecided == 0;
        if undecided < self.fewest_undecided {
            self.fewest_undecided = undecided;
            desk.progress();
        }
        if let Some(open) = &mut self.open {
            open.decided = if decided { open.decided.or(Some(desk.now())) } else { None };
        }
        if !self.idle_traffic || !decided {
            return;
        }
        if self.close() && self.to_call > 0 {
            desk.wake_in(self.at_least, NEXT);
        } else if self.to_call == 0 && desk.now().0 >= time::nanos(self.at_least) {
            desk.stop();
        }
    }
}

impl<P: Election> Director<P> for Problem {
    type Note = ();

    fn on_begin(&mut self, desk: &mut Desk<'_, P, ()>) {
        self.call(desk);
        if self.idle_traffic {
            desk.wake_in(self.at_least, FINISH);
            desk.wake_in(self.detection, STILL_DECIDED);
        }
    }

    fn on_command(&mut self, node: NodeId, command: &Command, _now: Time) {
        if *command == Command::Resign {
            self.judge.resigns(node);
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event, desk: &mut Desk<'_, P, ()>) {
        if !self.judge.is_up(node) {
            self.judge.recovers(node); // its event arrives before the report of its recovery
        }
        if let Event::Elected { .. } = event {
            // Several decisions at one moment count once.
            let before = self.decided_at[node.index()].replace(desk.now());
            self.decisions += u64::from(before != Some(desk.now()));
        }
        if let Some(why) = self.judge.tells(node, event) {
            self.broken(&E1, desk.now(), why);
        }
        self.look(desk);
    }

    fn on_send(&mut self, from: NodeId, to: NodeId, message: &P::Message) {
        if from != to {
            *self.kinds.entry(P::kind(message)).or_default() += 1;
            if P::is_background(message) {
                self.background += 1;
            } else {
                self.messages += 1;
            }
        }
    }

    fn on_deliver(&mut self, _from: NodeId, _to: NodeId, (): &()) {}

    fn on_wake(&mut self, key: u64, desk: &mut Desk<'_, P, ()>) {
        match key {
            NEXT => self.call(desk),
            FINISH => self.look(desk),
            STILL_DECIDED => {
                if self.judge.undecided_count() == 0 {
                    desk.progress();
                }
                desk.wake_in(self.detection, STILL_DECIDED);
            }
            news => self.tell(self.news[news as usize], desk),
        }
    }

    fn on_quiet(&mut self, desk: &mut Desk<'_, P, ()>) {
        if !self.idle_traffic && self.open.is_none_or(|open| open.decided.is_some()) {
            self.close();
            self.call(desk);
        }
    }

    fn on_crash(&mut self, node: NodeId, desk: &mut Desk<'_, P, ()>) {
        let now = desk.now();
        if self.decided_at[node.index()].take() == Some(now) {
            self.decisions -= 1;
            self.decided_in_vain = true;
        }
        self.close();
        // The site was elected at the moment of its crash: it never led.
        self.held.pop_if(|held| held.leader == node && held.at == now);
        self.judge.crashes(node);
        self.on_change(node, desk);
    }

    fn on_recover(&mut self, node: NodeId, desk: &mut Desk<'_, P, ()>) {
        if !self.judge.is_up(node) {
            self.judge.recovers(node);
        }
        self.on_change(node, desk);
    }
}

impl Problem {
    fn on_change<P: Election>(&mut self, node: NodeId, desk: &mut Desk<'_, P, ()>) {
        if self.judge.undecided_count() > 0 {
            self.begin(desk.now());
        }
        self.look(desk);
        self.news.push(node);
        desk.wake_in(self.notice, self.news.len() as u64 - 1);
    }
}
