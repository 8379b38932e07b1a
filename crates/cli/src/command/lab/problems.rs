//! The problems on the command line: the flags of each problem, and the functions that belong to its name.

use std::time::Duration;

use conclave_algorithms::catalog;
use conclave_algorithms::deadlock::Model;
use conclave_algorithms::quorum::Quorum;
use conclave_kernel::suggest;
use conclave_lab::diagram::span::Span;
use conclave_lab::log::Log;
use conclave_lab::problem;
use conclave_lab::problems::election::{Ranks, Start, Trigger};
use conclave_lab::problems::mutex::Work;
use conclave_lab::problems::snapshot::{App, Shot};
use conclave_lab::problems::{deadlock, detector, election, mutex, snapshot, timesync};
use conclave_lab::sites;

use super::world::{duration, replace};
use super::{replay, sim};
use crate::output::{Done, Failure};

/// A problem of the laboratory that `sim` and `replay` can run.
pub trait Problem: problem::Scenario {
    /// The flags of [`ProblemArgs`] that have an effect on the problem.
    const FLAGS: &'static [&'static str];

    /// Sets the scenario from the flags of the problem.
    fn read(&mut self, flags: &ProblemArgs) -> Result<(), Failure>;
}

/// The operations of the command line on one problem.
pub struct Entry {
    name: &'static str,
    /// Runs `conclave sim` with the algorithm of that name.
    pub sim: fn(&sim::Args, &str) -> Done,
    /// Records a run for `conclave replay`, in the form of a trace file.
    pub record: fn(&replay::Run<'_>) -> Result<Vec<u8>, Failure>,
    spans: fn(&Log) -> Vec<Span>,
}

static ENTRIES: [Entry; 6] = [
    entry::<mutex::Scenario>(),
    entry::<snapshot::Scenario>(),
    entry::<election::Scenario>(),
    entry::<detector::Scenario>(),
    entry::<deadlock::Scenario>(),
    entry::<timesync::Scenario>(),
];

const fn entry<S: Problem>() -> Entry {
    Entry { name: S::PROBLEM, sim: sim::simulate::<S>, record: replay::record::<S>, spans: S::spans }
}

/// Returns the operations on the problem of that name; `None` if the simulator has no such problem.
pub fn named(problem: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == problem)
}

/// Returns the bars of the space-time diagram of a run.
pub fn spans(problem: &str, log: &Log) -> Vec<Span> {
    named(problem).map_or(Vec::new(), |entry| (entry.spans)(log))
}

/// Splits `PROBLEM/ALGORITHM` into the two names. Fails if the catalogue has no such algorithm.
pub fn find(path: &str) -> Result<(&str, &str), Failure> {
    let Some((problem, name)) = path.split_once('/') else { return Err(half_a_path(path)) };
    if !catalog::problems().any(|known| known == problem) {
        return Err(suggest::unknown("problem", problem, catalog::problems()).into());
    }
    if sites::is_program(name) {
        super::program::open(problem, name)?;
        return Ok((problem, name));
    }
    let names = || catalog::cards().filter(|card| card.problem == problem).map(|card| card.name);
    if name.is_empty() {
        return Err(half_a_path(problem));
    }
    if !names().any(|known| known == name) {
        return Err(suggest::unknown(&format!("algorithm of problem {problem}"), name, names()).into());
    }
    Ok((problem, name))
}

/// The error for a name without `/`: a problem lacks its algorithm, and an algorithm lacks its problem.
fn half_a_path(name: &str) -> Failure {
    let paths = |problem: Option<&str>| {
        let in_problem =
            catalog::cards().filter(|card| problem.is_none_or(|problem| card.problem == problem));
        in_problem.map(|card| card.path().to_string()).collect::<Vec<_>>()
    };
    if is_problem(name) {
        let paths = paths(Some(name)).join(", ");
        return Failure::usage(format!(
            "'{name}' is a problem: add one of its algorithms (there are: {paths})"
        ));
    }
    match catalog::cards().find(|card| card.name == name) {
        Some(card) => Failure::usage(format!("'{name}' needs its problem; did you mean {}?", card.path())),
        None => suggest::unknown("algorithm", name, paths(None).iter().map(String::as_str)).into(),
    }
}

/// Whether the catalogue has a problem of this name.
pub fn is_problem(name: &str) -> bool {
    catalog::problems().any(|known| known == name)
}

/// The error for an argument that must be a problem. `instead` is the advice if the argument is
/// PROBLEM/ALGORITHM.
pub fn not_a_problem(given: &str, instead: impl FnOnce(&str, &str) -> String) -> Failure {
    match find(given) {
        Ok((problem, name)) => {
            Failure::usage(format!("'{given}' is an algorithm: {}", instead(problem, name)))
        }
        Err(_) => suggest::unknown("problem", given, catalog::problems()).into(),
    }
}

/// The work of a run. Each problem has its own flags.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "The work")]
pub struct ProblemArgs {
    /// Mutex: the times and sites of the requests: low, high, pair, relay, poisson:MEAN, burst:SIZE,EVERY or
    /// script:NODE@TIME,... [default: low]
    #[arg(long, value_name = "LOAD")]
    pub load: Option<Work>,
    /// Mutex: the number of requests, over all sites [default: 100]
    #[arg(long, value_name = "N")]
    pub entries: Option<u64>,
    /// Mutex: the time that a site stays in the critical section [default: 1ms]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub cs: Option<Duration>,
    /// Maekawa: the quorums: plane, grid, majority or all [default: plane if one exists, else grid]
    #[arg(long, value_name = "QUORUM")]
    pub quorum: Option<Quorum>,
    /// Snapshot: the application whose state is recorded: bank, work or heap [default: bank]
    #[arg(long, value_name = "APP")]
    pub app: Option<App>,
    /// Snapshot: the initial balance of each account [default: 200]
    #[arg(long, value_name = "N")]
    pub balance: Option<u64>,
    /// Snapshot: the number of acts (transfers in the bank), over all sites [default: 100]
    #[arg(long, value_name = "N")]
    pub acts: Option<u64>,
    /// Snapshot: the mean time from one act to the next [default: 200us]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub gap: Option<Duration>,
    /// Snapshot: the site that starts a snapshot, and the time: NODE@TIME, or NODE+NODE@TIME for several
    /// sites at once; may be repeated [default: 0, halfway]
    #[arg(long = "snapshot", value_name = "SNAPSHOT")]
    pub snapshots: Vec<Shot>,
    /// Election: the site that begins, at boot and after a crash: all, lowest, highest, random or a node
    /// [default: lowest]
    #[arg(long, value_name = "WHO")]
    pub start: Option<Start>,
    /// Election: the number of elections, besides those that crashes make necessary [default: 1]
    #[arg(long, value_name = "N")]
    pub elections: Option<u64>,
    /// Election: the cause of the elections after the first: elect (a command) or resign (of the leader)
    /// [default: elect]
    #[arg(long, value_name = "WHAT")]
    pub trigger: Option<Trigger>,
    /// Election: the ranks, which count before the ids: ids (all equal), random or RANK,RANK,... [default:
    /// ids]
    #[arg(long, value_name = "RANKS")]
    pub ranks: Option<Ranks>,
    /// Election: the time after which the other sites notice a crash or a return [default: 5ms]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub notice: Option<Duration>,
    /// Election: the longest delay of a message, for the timeouts [default: that of the network]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub transmission: Option<Duration>,
    /// Election: the longest time that a site takes to answer, for the timeouts [default: 0]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub processing: Option<Duration>,
    /// Detector, election: T, the time from one heartbeat to the next [default: 100ms; election: 10
    /// transmissions]
    #[arg(long, value_name = "T", value_parser = duration)]
    pub period: Option<Duration>,
    /// Detector: D; a site is suspected after T + D of silence [default: 10ms]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub margin: Option<Duration>,
    /// Detector: Phi; a site is suspected when the chance of a mistake falls to 10^-Phi [default: 8]
    #[arg(long, value_name = "PHI")]
    pub threshold: Option<u32>,
    /// Detector: the number of latest arrivals that a site remembers [default: 100]
    #[arg(long, value_name = "N")]
    pub window: Option<u32>,
    /// Detector: the length of the run [default: 60s]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Deadlock: the number of requests over all processes, or of transactions if the algorithm handles locks
    /// [default: 100]
    #[arg(long, value_name = "N")]
    pub requests: Option<u64>,
    /// Deadlock: the kind of requests: single, and, or, p-out-of-q [default: the most general kind that the
    /// algorithm supports]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<Model>,
    /// Deadlock: the mean time until a process grants or requests [default: 1ms]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub think: Option<Duration>,
    /// Deadlock: detect deadlocks, but do not resolve them
    #[arg(long)]
    pub detect_only: bool,
    /// Timesync: the time from one comparison of clocks to the next [default: 1s, dtp 1280ns]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub every: Option<Duration>,
    /// Timesync: the number of measurements of each site's clock, about three per comparison [default: 200]
    #[arg(long, value_name = "N")]
    pub samples: Option<u64>,
    /// Timesync: the number of clock readings in one comparison [default: 4]
    #[arg(long, value_name = "N")]
    pub probes: Option<u32>,
    /// Timesync: the number of time servers of Marzullo, which are the first sites [default: 3]
    #[arg(long, value_name = "N")]
    pub servers: Option<u32>,
    /// Timesync: the number of time servers with a wrong clock [default: 0]
    #[arg(long, value_name = "N")]
    pub liars: Option<u32>,
    /// Timesync: the number of children of each site in the tree of ntp and dtp; 1 is a chain [default: 2,
    /// dtp 1]
    #[arg(long, value_name = "N")]
    pub fanout: Option<u32>,
    /// Timesync: the largest error of a reading that cristian accepts. It repeats a worse reading, at most
    /// --probes times [default: any error]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub wanted: Option<Duration>,
}

impl ProblemArgs {
    /// Fails if a flag of another problem was given.
    pub fn refuse_strangers<S: Problem>(&self) -> Result<(), Failure> {
        match self.given().into_iter().find(|flag| !S::FLAGS.contains(flag)) {
            Some(flag) => {
                let own: Vec<_> = S::FLAGS.iter().map(|flag| format!("--{flag}")).collect();
                Err(Failure::usage(format!(
                    "--{flag} has no effect in problem {}: leave it out, or use its own flags {}",
                    S::PROBLEM,
                    own.join(" ")
                )))
            }
            None => Ok(()),
        }
    }

    /// The names of the flags that were given.
    pub fn given(&self) -> Vec<&'static str> {
        let flags = [
            ("load", self.load.is_some()),
            ("entries", self.entries.is_some()),
            ("cs", self.cs.is_some()),
            ("quorum", self.quorum.is_some()),
            ("app", self.app.is_some()),
            ("balance", self.balance.is_some()),
            ("acts", self.acts.is_some()),
            ("gap", self.gap.is_some()),
            ("snapshot", !self.snapshots.is_empty()),
            ("start", self.start.is_some()),
            ("elections", self.elections.is_some()),
            ("trigger", self.trigger.is_some()),
            ("ranks", self.ranks.is_some()),
            ("notice", self.notice.is_some()),
            ("transmission", self.transmission.is_some()),
            ("processing", self.processing.is_some()),
            ("period", self.period.is_some()),
            ("margin", self.margin.is_some()),
            ("threshold", self.threshold.is_some()),
            ("window", self.window.is_some()),
            ("duration", self.duration.is_some()),
            ("requests", self.requests.is_some()),
            ("model", self.model.is_some()),
            ("think", self.think.is_some()),
            ("detect-only", self.detect_only),
            ("every", self.every.is_some()),
            ("samples", self.samples.is_some()),
            ("probes", self.probes.is_some()),
            ("servers", self.servers.is_some()),
            ("liars", self.liars.is_some()),
            ("fanout", self.fanout.is_some()),
            ("wanted", self.wanted.is_some()),
        ];
        flags.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }
}

impl Problem for mutex::Scenario {
    const FLAGS: &'static [&'static str] = &["load", "entries", "cs", "quorum"];

    fn read(&mut self, flags: &ProblemArgs) -> Result<(), Failure> {
        replace(&mut self.load, flags.load.clone());
        replace(&mut self.entries, flags.entries);
        replace(&mut self.cs, flags.cs);
        self.quorum = flags.quorum.or(self.quorum);
        Ok(())
    }
}

impl Problem for snapshot::Scenario {
    const FLAGS: &'static [&'static str] = &["app", "balance", "acts", "gap", "snapshot"];

    fn read(&mut self, flags: &ProblemArgs) -> Result<(), Failure> {
        replace(&mut self.app, flags.app);
        replace(&mut self.balance, flags.balance);
        replace(&mut self.acts, flags.acts);
        replace(&mut self.gap, flags.gap);
        self.snapshots.extend_from_slice(&flags.snapshots);
        Ok(())
    }
}

impl Problem for election::Scenario {
    const FLAGS: &'static [&'static str] =
        &["start", "elections", "trigger", "ranks", "notice", "transmission", "processing", "period"];

    fn read(&mut self, flags: &ProblemArgs) -> Result<(), Failure> {
        replace(&mut self.start, flags.start);
        replace(&mut self.elections, flags.elections);
        replace(&mut self.trigger, flags.trigger);
        replace(&mut self.ranks, flags.ranks.clone());
        replace(&mut self.notice, flags.notice);
        replace(&mut self.processing, flags.processing);
        self.transmission = flags.transmission.or(self.transmission);
        self.period = flags.period.or(self.period);
        Ok(())
    }
}

impl Problem for detector::Scenario {
    const FLAGS: &'static [&'static str] = &["period", "margin", "threshold", "window", "duration"];

    fn read(&mut self, flags: &ProblemArgs) -> Result<(), Failure> {
        replace(&mut self.period, flags.period);
        replace(&mut self.margin, flags.margin);
        replace(&mut self.threshold, flags.threshold);
        replace(&mut self.window, flags.window);
        replace(&mut self.duration, flags.duration);
        Ok(())
    }
}

impl Problem for deadlock::Scenario {
    const FLAGS: &'static [&'static str] = &["requests", "model", "think", "detect-only"];

    fn read(&mut self, flags: &ProblemArgs) -> Result<(), Failure> {
        replace(&mut self.requests, flags.requests);
        replace(&mut self.think, flags.think);
        self.model = flags.model.or(self.model);
        self.detect_only |= flags.detect_only;
        Ok(())
    }
}

impl Problem for timesync::Scenario {
    const FLAGS: &'static [&'static str] =
        &["every", "samples", "probes", "servers", "liars", "fanout", "wanted"];

    fn read(&mut self, flags: &ProblemArgs) -> Result<(), Failure> {
        replace(&mut self.every, flags.every);
        replace(&mut self.samples, flags.samples);
        replace(&mut self.probes, flags.probes);
        replace(&mut self.servers, flags.servers);
        replace(&mut self.liars, flags.liars);
        replace(&mut self.fanout, flags.fanout);
        self.wanted = flags.wanted.or(self.wanted);
        Ok(())
    }
}
