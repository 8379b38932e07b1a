//! The interface of every problem of the laboratory: an experiment in, a report out.
//!
//! The work of a problem implements [`Problem`], and the results of its runs implement [`Report`]. `conclave
//! sim` and `conclave replay` build on these two: ranges of seeds, swarms, shrinking, traces, diagrams, and
//! the command that repeats a run.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use conclave_kernel::trace::{FORMAT, WorldKind};
use conclave_kernel::{Card, Header, Judgement, Kind, Needs, Recording, Time, Verdict, Violation, time};
use conclave_sim::{Candidate, End, Ledger, Limits, Order, Outcome, Profile, Setup, exact, swarm};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::added;
use crate::experiment::{Run, flags};
use crate::log::{self, Log};
use crate::sites;
use conclave_kernel::suggest;

/// An algorithm of a problem, with the function that is compiled for its type. The work of the problem is of
/// type `W`.
pub struct Entry<W: Problem> {
    /// The card of the algorithm.
    pub card: &'static Card,
    /// Runs an experiment with the algorithm. The recorder receives the trace if it keeps anything.
    pub simulate: fn(&Run<W>, &mut Recorder) -> Result<W::Report, String>,
}

/// A problem, by the work of its runs. The fields of the work are flags of the command line and fields of
/// files.
pub trait Problem:
    clap::Args + Clone + Debug + Default + PartialEq + Send + Sync + Serialize + DeserializeOwned + 'static
{
    /// The problem's name on the command line.
    const NAME: &'static str;

    /// The algorithm of an experiment that names none.
    const ALGORITHM: &'static str;

    /// Whether a run reports its progress. If not, it ends by a flag of its own, and `--budget` is rejected.
    const REPORTS_PROGRESS: bool = true;

    /// The result of a run.
    type Report: Report + 'static;

    /// The world of an experiment that describes none.
    fn setup() -> Setup {
        Setup::default()
    }

    /// The cards of the algorithms of the table that `compare` runs.
    fn cards() -> &'static [Card];

    /// The card of the algorithm of this name.
    fn card(name: &str) -> Option<&'static Card> {
        Self::cards().iter().find(|card| card.name == name)
    }

    /// The entry of the algorithm in the table of the problem; `None` if there is no such algorithm.
    fn entry(run: &Run<Self>) -> Option<&'static Entry<Self>>;

    /// Chooses the algorithm, and with it the defaults that suit it.
    fn choose(run: &mut Run<Self>, algorithm: &str) {
        algorithm.clone_into(&mut run.algorithm);
    }

    /// The amount of work, in the units of the problem. Shrinking reduces it.
    fn amount(&self) -> u64;

    /// Changes the amount of work.
    fn set_amount(&mut self, amount: u64);

    /// The approximate time of a run without faults. A swarm places its faults in this time.
    fn length(run: &Run<Self>) -> Duration;

    /// The time without progress after which a run without faults ends as bounded.
    fn patience(run: &Run<Self>) -> Duration {
        let units = u32::try_from(run.work.amount().max(1)).unwrap_or(u32::MAX);
        patience(Self::length(run) / units)
    }

    /// Checks the work. The error is one line.
    fn validate(run: &Run<Self>) -> Result<(), String> {
        let _ = run;
        Ok(())
    }

    /// The limits of the world that a swarm draws for this algorithm.
    fn profile(run: &Run<Self>) -> Profile {
        Profile::within(run.card().map_or(Needs::default(), |card| card.needs), run.length())
    }
}

impl<W: Problem> Default for Run<W> {
    fn default() -> Self {
        Self { algorithm: W::ALGORITHM.into(), flaw: None, work: W::default(), world: W::setup() }
    }
}

impl<W: Problem> Run<W> {
    /// The default work of an algorithm in its default world.
    pub fn of(algorithm: &str) -> Self {
        Self { algorithm: algorithm.into(), ..Self::default() }
    }

    /// The algorithm's card; `None` if there is no such algorithm, or a program is not open.
    pub fn card(&self) -> Option<&'static Card> {
        let mut added = added::simulated::<W>().map(|entry| entry.card);
        W::card(&self.algorithm).or_else(|| added.find(|card| card.name == self.algorithm))
    }

    /// The approximate time of the run without faults.
    pub fn length(&self) -> Duration {
        W::length(self)
    }

    /// Returns the limits of a run that reports its progress. Time counts from the end of the last fault.
    pub fn limits(&self) -> Limits {
        let ends = self.world.faults.iter().map(|fault| fault.until.unwrap_or(fault.at));
        let patience = W::patience(self).saturating_add(ends.max().unwrap_or_default());
        Limits { events: self.world.budget, patience, ..Limits::default() }
    }

    /// Checks the experiment. The error is one line.
    pub fn validate(&self) -> Result<(), String> {
        if let Some(flaw) = &self.flaw {
            let path = format!("{}/{}", W::NAME, self.algorithm);
            return Err(format!(
                "the simulator runs no mutants: use `conclave check {path} --mutant {flaw}`"
            ));
        }
        self.world.validate()?;
        W::validate(self)
    }

    /// Runs the experiment. A recorder that keeps anything receives the trace.
    pub fn run(&self, recorder: &mut Recorder) -> Result<W::Report, String> {
        sites::named(W::NAME, &self.algorithm)?;
        let mut added = added::simulated().filter(|entry| entry.card.name == self.algorithm);
        let entry = W::entry(self).or_else(|| added.next()).ok_or_else(|| {
            let names = compared::<W>().map(|card| card.name);
            suggest::unknown(&format!("algorithm of problem {}", W::NAME), &self.algorithm, names)
        })?;
        (entry.simulate)(self, recorder)
    }

    /// Returns the same work in a world drawn from the seed, within the needs of the algorithm.
    #[must_use]
    pub fn swarmed(&self) -> Self {
        Self { world: swarm(self.world.seed, &self.world, &W::profile(self)), ..self.clone() }
    }

    /// The header of a trace of this experiment.
    pub fn header(&self) -> Header {
        Header {
            format: FORMAT,
            code: env!("CARGO_PKG_VERSION").into(),
            algorithm: format!("{}/{}", W::NAME, self.algorithm),
            nodes: self.world.nodes,
            seed: self.world.seed,
            world: WorldKind::Sim,
            scenario: flags::json(self).to_string(),
        }
    }

    /// Returns the experiment without the faults after `end`, which give the same run. Faults that the user
    /// demanded stay.
    #[must_use]
    pub fn until(&self, end: Time) -> Self {
        let mut run = self.clone();
        run.world.faults.retain(|fault| fault.demanded || time::nanos(fault.at) <= end.0);
        run
    }

    /// The command that repeats the run.
    pub fn command_line(&self) -> String {
        let Self { algorithm, work, world, .. } = self;
        let mut line =
            format!("conclave sim {}/{algorithm} --nodes {} --seed {}", W::NAME, world.nodes, world.seed);
        for flag in flags::written(work, &W::default()).into_iter().chain(world_flags(world, &W::setup())) {
            line.push(' ');
            line.push_str(&flag);
        }
        line
    }
}

/// Returns the time without progress after which a run ends as bounded: an hour, or more if one unit of work
/// takes more than 36 seconds.
pub(crate) fn patience(a_unit: Duration) -> Duration {
    const HOUR: Duration = Duration::from_secs(3_600);
    HOUR.max(a_unit.saturating_mul(100))
}

/// Rejects `--budget` for a problem whose runs end by another flag, because it would have no effect.
pub(crate) fn refuse_budget(setup: &Setup, flag: &str) -> Result<(), String> {
    match setup.budget == Setup::default().budget {
        true => Ok(()),
        false => Err(format!("--budget has no effect here: the run ends by {flag}; leave --budget out")),
    }
}

/// Rejects a group that is too large for an algorithm with state for every pair of sites. At 2000 sites, this
/// state takes up to a gigabyte. `small` names the algorithms whose sites do not know all others.
pub(crate) fn refuse_size(nodes: u32, card: &Card, small: &[&str]) -> Result<(), String> {
    const MOST_NODES: u32 = 2_000;
    if nodes <= MOST_NODES || small.contains(&card.name) {
        return Ok(());
    }
    let instead =
        if small.is_empty() { String::new() } else { format!(", or choose one of {}", small.join(", ")) };
    Err(format!("{} has state for every pair of sites: give at most {MOST_NODES} nodes{instead}", card.name))
}

/// The flags of the world that differ from the problem's default.
fn world_flags(setup: &Setup, default: &Setup) -> Vec<String> {
    let mut flags = Vec::new();
    if setup.delay != default.delay {
        flags.push(format!("--delay {}", setup.delay));
    }
    flags.extend(setup.links.iter().map(|link| format!("--link '{link}'")));
    if setup.order != Order::Fifo {
        flags.push(format!("--order {}", setup.order));
    }
    for (name, ratio) in [("loss", setup.loss), ("duplicate", setup.duplicate), ("corrupt", setup.corrupt)] {
        if ratio.0 > 0 {
            flags.push(format!("--{name} {}", ratio.as_f64()));
        }
    }
    if setup.clocks.skew != default.clocks.skew {
        flags.push(format!("--skew {}", exact(setup.clocks.skew)));
    }
    if setup.clocks.drift_ppm != default.clocks.drift_ppm {
        flags.push(format!("--drift {}", setup.clocks.drift_ppm));
    }
    flags.extend(setup.faults.iter().map(ToString::to_string));
    if setup.budget != default.budget {
        flags.push(format!("--budget {}", setup.budget));
    }
    flags
}

/// The cards of the algorithms of a problem that `compare` runs, those of other crates last.
pub fn compared<W: Problem>() -> impl Iterator<Item = &'static Card> {
    W::cards().iter().chain(added::simulated::<W>().map(|entry| entry.card))
}

/// Runs an experiment without recording it.
pub fn run<W: Problem>(run: &Run<W>) -> Result<W::Report, String> {
    run.run(&mut Recorder::default())
}

/// Returns the smallest experiment found that still violates a property.
pub fn shrink<W: Problem>(failed: &Run<W>, property: &str) -> Run<W> {
    const MOST_TRIALS: u64 = 2_000;
    /// The budget is enough for a small run, and a trial without progress ends soon.
    const TRIAL_BUDGET: u64 = 1_000_000;
    let with = |candidate: &Candidate| {
        let mut smaller = Run { world: candidate.setup.clone(), ..failed.clone() };
        smaller.work.set_amount(candidate.work);
        smaller
    };
    let start = Candidate { setup: failed.world.clone(), work: failed.work.amount() };
    let shrunk = conclave_sim::shrink(start, MOST_TRIALS, &mut |candidate| {
        let mut trial = with(candidate);
        if W::REPORTS_PROGRESS {
            trial.world.budget = TRIAL_BUDGET.min(failed.world.budget);
        }
        run(&trial).is_ok_and(|report| {
            report.facts().violations.iter().any(|violation| violation.property == property)
        })
    });
    shrunk.map_or_else(|| failed.clone(), |shrunk| with(&shrunk.candidate))
}

/// The result of a run.
pub trait Report: Serialize + Send {
    /// The facts that the runs of all problems have.
    fn facts(&self) -> &Facts;

    /// The parameters in the headline of the report, besides size and seed: `load high`.
    fn subject(&self) -> String {
        String::new()
    }

    /// The figures in order, as text: a name and a value.
    fn figures(&self) -> Vec<(&'static str, String)>;

    /// The figures of which a sweep over many seeds gives the distribution. A larger value is worse.
    fn measured(&self) -> Vec<Measured> {
        let facts = self.facts();
        vec![
            Measured::number("messages", Some(facts.messages as f64)),
            Measured::time("simulated time", Some(facts.simulated_ns as f64)),
        ]
    }
}

/// A figure of one run, as a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The name of the figure. Runs of one scenario have the same names in the same order.
    pub name: &'static str,
    /// The unit of the value.
    pub unit: Unit,
    /// The value; `None` if the run has none.
    pub value: Option<f64>,
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number.
    Number,
    /// Nanoseconds.
    Time,
}

impl Measured {
    /// Creates a figure without a unit.
    pub fn number(name: &'static str, value: Option<f64>) -> Self {
        Self { name, unit: Unit::Number, value }
    }

    /// Creates a figure in nanoseconds.
    pub fn time(name: &'static str, value: Option<f64>) -> Self {
        Self { name, unit: Unit::Time, value }
    }
}

/// The facts that the runs of all problems have. The fields are those of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// The algorithm's name.
    pub algorithm: String,
    /// The number of sites.
    pub nodes: u32,
    /// The seed.
    pub seed: u64,
    /// Messages from one site to another.
    pub messages: u64,
    /// The number of inputs handled.
    pub events: u64,
    /// Inputs handled per second of wall time.
    pub events_per_s: f64,
    /// The length of the run in simulated time.
    pub simulated_ns: u64,
    /// The digest of the whole run.
    pub digest: String,
    /// The reason for the end of the run.
    pub end: End,
    /// The reason why a run without progress was ended; `None` if it ended by itself.
    pub bounded: Option<String>,
    /// The verdict on each property.
    pub properties: BTreeMap<&'static str, Verdict>,
    /// The evidence that is missing, for each promised property that was not judged.
    pub not_judged: BTreeMap<&'static str, &'static str>,
    /// Violations of promised properties.
    pub violations: Vec<Violation>,
    /// Violations of properties that are not promised.
    pub unpromised: Vec<Violation>,
    /// The actions of the network and of the fault plan.
    pub ledger: Ledger,
    /// The command that repeats the run.
    pub command: String,
}

impl Facts {
    /// Sorts the violations of a run into promised and unpromised properties, and gives each property its
    /// verdict. A bounded run is no evidence for a property that must hold eventually, because the run ended
    /// first.
    pub fn new<W: Problem>(
        run: &Run<W>,
        card: &Card,
        outcome: &Outcome,
        seconds: f64,
        judged: &[Judgement],
        broken: Vec<Violation>,
    ) -> Self {
        let (violations, unpromised): (Vec<_>, Vec<_>) =
            broken.into_iter().partition(|violation| card.promises(&violation.property));
        let missing = |Judgement { property, missing }: &Judgement| match property.kind {
            Kind::Eventually if outcome.end.is_bounded() => Some("the run is bounded"),
            _ => *missing,
        };
        let verdict = |judged: &Judgement| match judged.property.name {
            name if !card.promises(name) => Verdict::NotPromised,
            name if violations.iter().any(|violation| violation.property == name) => Verdict::Violated,
            _ if missing(judged).is_some() => Verdict::NotJudged,
            _ => Verdict::Holds,
        };
        let unjudged = judged.iter().filter(|judged| verdict(judged) == Verdict::NotJudged);
        let not_judged = unjudged.filter_map(|judged| Some((judged.property.name, missing(judged)?)));
        let properties = judged.iter().map(|judged| (judged.property.name, verdict(judged)));
        Self {
            algorithm: run.algorithm.clone(),
            nodes: run.world.nodes,
            seed: run.world.seed,
            messages: outcome.messages,
            events: outcome.events,
            events_per_s: if seconds > 0.0 { outcome.events as f64 / seconds } else { 0.0 },
            simulated_ns: outcome.at.0,
            digest: format!("{:016x}", outcome.digest),
            end: outcome.end,
            bounded: outcome.end.is_bounded().then(|| bounded(outcome, run.world.budget)),
            properties: properties.collect(),
            not_judged: not_judged.collect(),
            violations,
            unpromised,
            ledger: outcome.ledger.clone(),
            command: run.until(outcome.at).command_line(),
        }
    }

    /// Whether every promised property held, and every fault that the user demanded occurred.
    pub fn passed(&self) -> bool {
        self.violations.is_empty() && self.ledger.unfired.is_empty()
    }

    /// Returns whether the run ended because it made no progress.
    pub fn is_bounded(&self) -> bool {
        self.end.is_bounded()
    }

    /// Returns whether the run tested this promised property.
    pub fn has_judged(&self, property: &str) -> bool {
        matches!(self.properties.get(property), Some(Verdict::Holds | Verdict::Violated))
    }

    /// Returns whether the run tested any promised property.
    pub fn has_judged_any(&self) -> bool {
        self.properties.keys().any(|property| self.has_judged(property))
    }
}

/// Describes why a run without progress was ended.
fn bounded(outcome: &Outcome, budget: u64) -> String {
    if outcome.end == End::Overflow {
        return "the next event is more than 584 years after the start; give shorter delays".into();
    }
    if outcome.idle_events >= budget {
        return format!("no progress in {budget} events; use --budget to allow more");
    }
    format!("no progress in {} of simulated time", time::show(outcome.idle_time))
}

/// The requested forms of a run's trace, and the recorded trace.
#[derive(Debug, Default)]
pub struct Recorder {
    wants_lines: bool,
    wants_log: bool,
    /// The trace as JSON lines.
    pub lines: Vec<u8>,
    /// The trace as a log, for diagrams.
    pub log: Option<Log>,
}

impl Recorder {
    /// Creates a recorder that keeps the trace as JSON lines, as a log, as both, or not at all.
    pub fn new(wants_lines: bool, wants_log: bool) -> Self {
        Self { wants_lines, wants_log, ..Self::default() }
    }

    /// Whether the run must be recorded.
    pub fn wants_trace(&self) -> bool {
        self.wants_lines || self.wants_log
    }

    /// Receives the recorded run, if there is one.
    pub fn take(&mut self, trace: Option<&Recording>) -> Result<(), String> {
        let Some(trace) = trace else { return Ok(()) };
        if self.wants_lines {
            log::write_trace(trace, &mut self.lines).map_err(|error| error.to_string())?;
        }
        if self.wants_log {
            self.log = Some(Log::from_trace(trace)?);
        }
        Ok(())
    }
}

/// A number as text: whole if it is whole, else with at most two decimals.
pub fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.strip_suffix(".00").map_or(text.clone(), ToOwned::to_owned)
}

/// Nanoseconds as text.
pub fn nanos(ns: f64) -> String {
    time::show(Duration::from_nanos(ns.round() as u64))
}

/// The range of a formula as text.
pub fn range(min: f64, max: f64, show: impl Fn(f64) -> String) -> String {
    match (min, max) {
        (min, max) if min == max => show(min),
        (min, max) if max.is_finite() => format!("{}..{}", show(min), show(max)),
        (min, _) => format!("at least {}", show(min)),
    }
}
