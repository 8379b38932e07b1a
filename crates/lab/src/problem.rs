//! The interface of every problem of the laboratory: a scenario in, a report out.
//!
//! A problem implements [`Scenario`], which determines its runs, and [`Report`], which holds their results.
//! `conclave sim` and `conclave replay` build on these two: ranges of seeds, swarms, shrinking, traces,
//! diagrams, and the command that repeats a run.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use conclave_kernel::trace::FORMAT;
use conclave_kernel::{Card, Header, Judgement, Kind, Needs, Recording, Time, Verdict, Violation, time};
use conclave_sim::{Candidate, End, Ledger, Limits, Order, Outcome, Profile, Setup, exact, swarm};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::diagram::span::Span;
use crate::log::{self, Log};
use conclave_kernel::suggest;

/// The accessors of a [`Scenario`] with the fields `algorithm` and `setup`.
macro_rules! accessors {
    () => {
        fn algorithm(&self) -> &str {
            &self.algorithm
        }

        fn set_algorithm(&mut self, name: &str) {
            name.clone_into(&mut self.algorithm);
        }

        fn setup(&self) -> &Setup {
            &self.setup
        }

        fn setup_mut(&mut self) -> &mut Setup {
            &mut self.setup
        }
    };
}
pub(crate) use accessors;

/// An algorithm of a problem, with the function that is compiled for its type.
pub struct Entry<S: Scenario> {
    /// The card of the algorithm.
    pub card: &'static Card,
    /// Runs a scenario of the algorithm. The recorder receives the trace if it keeps anything.
    pub simulate: fn(&S, &mut Recorder) -> Result<S::Report, String>,
}

/// Everything that determines a run of a problem.
pub trait Scenario: Clone + Debug + Default + Send + Sync + Serialize + DeserializeOwned + 'static {
    /// The problem's name on the command line.
    const PROBLEM: &'static str;

    /// Whether a run reports its progress. If not, it ends by a flag of its own, and `--budget` is rejected.
    const REPORTS_PROGRESS: bool = true;

    /// The result of a run.
    type Report: Report;

    /// The cards of the algorithms.
    fn cards() -> &'static [Card];

    /// The algorithm's name.
    fn algorithm(&self) -> &str;

    /// Replaces the algorithm.
    fn set_algorithm(&mut self, name: &str);

    /// Network, clocks, faults and seed.
    fn setup(&self) -> &Setup;

    /// Network, clocks, faults and seed, for changes.
    fn setup_mut(&mut self) -> &mut Setup;

    /// The amount of work, in the units of the problem. Shrinking reduces it.
    fn work(&self) -> u64;

    /// Changes the amount of work.
    fn set_work(&mut self, work: u64);

    /// The approximate time of a run without faults. A swarm places its faults in this time.
    fn length(&self) -> Duration;

    /// Returns the time without progress after which a run without faults ends as bounded.
    fn patience(&self) -> Duration {
        let units = u32::try_from(self.work().max(1)).unwrap_or(u32::MAX);
        patience(self.length() / units)
    }

    /// Returns the limits of a run that reports its progress. Time counts from the end of the last fault.
    fn limits(&self) -> Limits {
        let ends = self.setup().faults.iter().map(|fault| fault.until.unwrap_or(fault.at));
        let patience = self.patience().saturating_add(ends.max().unwrap_or_default());
        Limits { events: self.setup().budget, patience, ..Limits::default() }
    }

    /// Checks the scenario. The error is one line.
    fn validate(&self) -> Result<(), String> {
        self.setup().validate()
    }

    /// The flags of the problem that differ from the default, such as `--load high`.
    fn flags(&self) -> Vec<String>;

    /// The entry of the algorithm in the table of the problem; `None` if there is no such algorithm.
    fn entry(&self) -> Option<&'static Entry<Self>>;

    /// Runs the scenario. A recorder that keeps anything receives the trace.
    fn run(&self, recorder: &mut Recorder) -> Result<Self::Report, String> {
        let entry = self.entry().ok_or_else(|| self.unknown_algorithm())?;
        (entry.simulate)(self, recorder)
    }

    /// The bars of the space-time diagram.
    fn spans(log: &Log) -> Vec<Span> {
        let _ = log;
        Vec::new()
    }

    /// The limits of the world that a swarm draws for this algorithm.
    fn profile(&self) -> Profile {
        Profile::within(self.card().map_or(Needs::default(), |card| card.needs), self.length())
    }

    /// The algorithm's card.
    fn card(&self) -> Option<&'static Card> {
        Self::cards().iter().find(|card| card.name == self.algorithm())
    }

    /// Returns the same work in a world drawn from the seed, within the needs of the algorithm.
    #[must_use]
    fn swarmed(&self) -> Self {
        let mut scenario = self.clone();
        *scenario.setup_mut() = swarm(self.setup().seed, self.setup(), &self.profile());
        scenario
    }

    /// The error for an unknown algorithm.
    fn unknown_algorithm(&self) -> String {
        let names = Self::cards().iter().map(|card| card.name);
        suggest::unknown(&format!("algorithm of problem {}", Self::PROBLEM), self.algorithm(), names)
    }

    /// The scenario as JSON, as in the header of a trace.
    fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a scenario holds only strings, numbers and lists")
    }

    /// The header of a trace of this scenario.
    fn header(&self) -> Header {
        Header {
            format: FORMAT,
            code: env!("CARGO_PKG_VERSION").into(),
            algorithm: format!("{}/{}", Self::PROBLEM, self.algorithm()),
            nodes: self.setup().nodes,
            seed: self.setup().seed,
            scenario: self.to_json(),
        }
    }

    /// Returns the scenario without the faults after `end`, which give the same run. Faults that the user
    /// demanded stay.
    #[must_use]
    fn until(&self, end: Time) -> Self {
        let mut scenario = self.clone();
        scenario.setup_mut().faults.retain(|fault| fault.demanded || time::nanos(fault.at) <= end.0);
        scenario
    }

    /// The command that repeats the run.
    fn command_line(&self) -> String {
        let setup = self.setup();
        let mut line = format!(
            "conclave sim {}/{} --nodes {} --seed {}",
            Self::PROBLEM,
            self.algorithm(),
            setup.nodes,
            setup.seed
        );
        for flag in self.flags().into_iter().chain(world_flags(setup, Self::default().setup())) {
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

/// Runs a scenario without recording it.
pub fn run<S: Scenario>(scenario: &S) -> Result<S::Report, String> {
    scenario.run(&mut Recorder::default())
}

/// Returns the smallest scenario found that still violates a property.
pub fn shrink<S: Scenario>(scenario: &S, property: &str) -> S {
    const MOST_TRIALS: u64 = 2_000;
    /// The budget is enough for a small run, and a trial without progress ends soon.
    const TRIAL_BUDGET: u64 = 1_000_000;
    let with = |candidate: &Candidate| {
        let mut smaller = scenario.clone();
        *smaller.setup_mut() = candidate.setup.clone();
        smaller.set_work(candidate.work);
        smaller
    };
    let start = Candidate { setup: scenario.setup().clone(), work: scenario.work() };
    let shrunk = conclave_sim::shrink(start, MOST_TRIALS, &mut |candidate| {
        let mut trial = with(candidate);
        if S::REPORTS_PROGRESS {
            trial.setup_mut().budget = TRIAL_BUDGET.min(scenario.setup().budget);
        }
        run(&trial).is_ok_and(|report| {
            report.facts().violations.iter().any(|violation| violation.property == property)
        })
    });
    shrunk.map_or_else(|| scenario.clone(), |shrunk| with(&shrunk.candidate))
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
    pub fn new<S: Scenario>(
        scenario: &S,
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
            algorithm: scenario.algorithm().to_owned(),
            nodes: scenario.setup().nodes,
            seed: scenario.setup().seed,
            messages: outcome.messages,
            events: outcome.events,
            events_per_s: if seconds > 0.0 { outcome.events as f64 / seconds } else { 0.0 },
            simulated_ns: outcome.at.0,
            digest: format!("{:016x}", outcome.digest),
            end: outcome.end,
            bounded: outcome.end.is_bounded().then(|| bounded(outcome, scenario.setup().budget)),
            properties: properties.collect(),
            not_judged: not_judged.collect(),
            violations,
            unpromised,
            ledger: outcome.ledger.clone(),
            command: scenario.until(outcome.at).command_line(),
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
