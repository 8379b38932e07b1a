//! The deadlock problem in the checker: every execution in which each process makes so many requests, of any
//! processes that its detector can judge, and running processes grant at any moment.
//!
//! A process that is stuck and was not declared is an open obligation. So a detector that misses a deadlock
//! leaves an obligation open for ever.

use conclave_algorithms::deadlock::mutants::OfDeadlock;
use conclave_algorithms::deadlock::spec::{Judge, NO_MISS, NO_PHANTOM, ONE_VICTIM, PURGED, dead_edge};
use conclave_algorithms::deadlock::underlying::Traffic;
use conclave_algorithms::deadlock::{self, Command, Detection, Event, Group, Model as Requests, Site, site};
use conclave_algorithms::mutants::flawed::Flawed;
use conclave_check::{Checker, Findings, Model, Monitor, Offer, Options};
use conclave_kernel::{Card, NodeId, NodeSet, Property};
use serde::{Deserialize, Serialize};

use crate::added;
use crate::case::{self, Entry, Explored, Known};
use crate::experiment::{Experiment, Space};

/// An experiment of the deadlock problem in the checker.
pub type Case = Experiment<Work, Space>;

/// The requests of the processes, and the properties that are judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "The work")]
pub struct Work {
    /// The number of requests of each process
    #[arg(long, value_name = "K")]
    pub entries: u8,
    /// Resolve deadlocks too: a victim of each is aborted
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set, hide_possible_values = true)]
    pub resolves: bool,
    /// Judge declarations and aborts without need even if the detector does not promise that there are none.
    /// The exploration stops at the first one
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set, hide_possible_values = true)]
    pub phantoms: bool,
}

impl Default for Work {
    fn default() -> Self {
        Self { entries: 1, resolves: false, phantoms: false }
    }
}

impl Case {
    /// Creates the case of a detector without faults, over the links that it needs. Deadlocks are only
    /// detected.
    pub fn of(card: &Card, nodes: u32, entries: u8) -> Self {
        Self {
            algorithm: card.name.into(),
            flaw: None,
            work: Work { entries, ..Work::default() },
            world: Space { sync: None, ..Space::of(card, nodes) },
        }
    }

    /// Returns whether declarations and aborts without need are violations.
    pub(crate) fn judges_phantoms(&self) -> bool {
        let is_own = |card: &&Card| (card.problem, card.name) == ("deadlock", self.algorithm.as_str());
        let card = added::cards().find(is_own);
        self.work.phantoms || card.is_some_and(|card| card.promises(NO_PHANTOM.name))
    }
}

impl Explored for Work {
    const PROBLEM: &'static str = "deadlock";

    fn checker(case: &Case, options: &Options, judges: bool) -> Result<Checker, String> {
        (entry(case.flaw.as_deref(), &case.algorithm)?.checker)(case, options, judges)
    }

    fn properties(case: &Case) -> Vec<Known> {
        let unresolved = "deadlocks are not resolved; see `--resolves`";
        let unjudged = "the detector does not promise it; see `--phantoms`";
        let phantoms = |property| Known::tested_if(case.judges_phantoms(), property, unjudged);
        let resolved = |known: Known| match case.work.resolves {
            true => known,
            false => Known::untestable(known.property, unresolved),
        };
        vec![
            phantoms(NO_PHANTOM.name).if_seen(&[DECLARED], "no process was declared deadlocked"),
            Known::tested(NO_MISS.name).if_seen(&[DEADLOCK], "no deadlock"),
            resolved(phantoms(ONE_VICTIM.name)).if_seen(&[ABORTED], "no process was aborted"),
            Known::tested(PURGED.name).if_seen(&[ENDED], "no wait ended"),
        ]
    }
}

macro_rules! explored {
    ($algorithm:ty) => {
        Entry {
            card: &<$algorithm as Detection>::CARD,
            has_flaw: case::has_flaw::<Site<$algorithm>>,
            checker: checker::<$algorithm>,
        }
    };
}

static ENTRIES: &[Entry<Case>] = &deadlock::each!(explored);

/// Returns the entry of an algorithm. The error is the reason why the checker has no model of it.
pub(crate) fn entry(mutant: Option<&str>, algorithm: &str) -> Result<&'static Entry<Case>, String> {
    if deadlock::locking::CARDS.iter().any(|card| card.name == algorithm) {
        return Err(format!(
            "deadlock/{algorithm} draws its pauses and locks at random: run it with `conclave sim`"
        ));
    }
    case::find(ENTRIES.iter(), mutant, algorithm)
}

fn checker<D: Detection>(case: &Case, options: &Options, _: bool) -> Result<Checker, String> {
    let model = Requesting::<D> {
        group: Group::new(case.world.nodes, case.work.resolves),
        requests: case.work.entries,
        judges_phantoms: case.judges_phantoms(),
        about: case::about(case),
        make: |me, group, flaw| Flawed::new(Site::new(me, group), flaw),
        flaw: case.flaw.clone().unwrap_or_default(),
    };
    Checker::new(model, &case.world.options(options)).map_err(|error| error.to_string())
}

/// A group whose processes may each make a number of requests, at any time.
#[derive(Clone)]
struct Requesting<D: Detection> {
    group: Group,
    requests: u8,
    judges_phantoms: bool,
    about: String,
    make: Make<D>,
    flaw: String,
}

type Detecting<D> = Flawed<Site<D>, OfDeadlock>;

/// A function that creates a site of a group, with a flaw if the name of one is given.
type Make<D> = fn(NodeId, &Group, &str) -> Detecting<D>;

impl<D: Detection> Model for Requesting<D> {
    type Protocol = Detecting<D>;
    type Monitor = Watch;

    fn name(&self) -> String {
        D::CARD.path().to_string()
    }

    fn scenario(&self) -> String {
        self.about.clone()
    }

    fn nodes(&self) -> u32 {
        self.group.nodes
    }

    fn site(&self, me: NodeId) -> Detecting<D> {
        (self.make)(me, &self.group, &self.flaw)
    }

    fn monitor(&self) -> Watch {
        let nodes = self.group.nodes as usize;
        Watch {
            judge: Judge::new(self.group.nodes),
            requests: D::MODEL,
            left: vec![self.requests; nodes],
            asked: vec![NodeSet::new(); nodes],
            judges_phantoms: self.judges_phantoms,
            seen: 0,
        }
    }

    fn liveness(&self) -> Property {
        NO_MISS
    }

    fn kind(&self, message: &site::Message<D>) -> &'static str {
        Site::<D>::kind(message).0
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &[DECLARED, DEADLOCK, ABORTED, ENDED]
    }

    fn at_rest(&self, sites: &[Detecting<D>], _: &Watch, findings: &mut Findings) {
        let processes: Vec<_> = sites.iter().map(|site| site.site().process()).collect();
        if let Some(breach) = dead_edge(&processes) {
            findings.breach(&breach.property, breach.why);
        }
    }
}

/// An observation that an exploration should make: a detector declares a process.
pub const DECLARED: &str = "a process is declared deadlocked";
/// An observation that an exploration should make: a process is stuck.
pub const DEADLOCK: &str = "processes are deadlocked";
/// An observation of explorations that resolve deadlocks: there is a victim.
pub const ABORTED: &str = "a process is aborted";
/// An observation that an exploration should make: a process that waited runs again.
pub const ENDED: &str = "a process that waited runs again";

/// The requests that processes may still make and grant, and the judge.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    judge: Judge,
    requests: Requests,
    left: Vec<u8>,
    /// The processes whose requests have arrived at each process and are not granted.
    asked: Vec<NodeSet>,
    judges_phantoms: bool,
    /// The observations so far, without [`DEADLOCK`]: one bit each.
    seen: u64,
}

impl Watch {
    /// Returns every request that a process can make.
    fn requests_of(&self, process: NodeId) -> impl Iterator<Item = Command> + '_ {
        let nodes = self.left.len() as u32;
        let others: Vec<_> = (0..nodes).map(NodeId).filter(|other| *other != process).collect();
        (1..1_u32 << others.len()).flat_map(move |chosen| {
            let of: NodeSet = others
                .iter()
                .enumerate()
                .filter(|(at, _)| chosen >> at & 1 == 1)
                .map(|(_, site)| *site)
                .collect();
            let size = of.len() as u32;
            let needs = (1..=size).filter(move |need| self.requests.allows(*need, size));
            needs.map(move |need| Command::Ask { need, of: of.clone() })
        })
    }
}

impl<D: Detection> Monitor<Detecting<D>> for Watch {
    type Note = ();

    /// The judge needs the number of every grant, which is in the message.
    fn has_notes(&self) -> bool {
        true
    }

    fn offers(&self, offer: &mut dyn FnMut(Offer<Command>)) {
        let waiting = self.judge.waiting();
        for node in (0..self.left.len() as u32).map(NodeId).filter(|node| !waiting.contains(*node)) {
            for to in self.asked[node.index()].iter() {
                offer(Offer { node, command: Command::Grant(to), required: true });
            }
            if self.left[node.index()] > 0 {
                self.requests_of(node).for_each(|command| offer(Offer { node, command, required: false }));
            }
        }
    }

    fn pending(&self) -> u64 {
        self.judge.missed().iter().fold(0, |bits, site| bits | case::bit(site))
    }

    fn shows(&self) -> u64 {
        self.seen | u64::from(!self.judge.stuck().is_empty()) << 1
    }

    fn on_command(&mut self, node: NodeId, command: &Command, _: &mut Findings) {
        match command {
            Command::Ask { need, of } => {
                self.left[node.index()] -= 1;
                self.judge.asks(node, *need, of.clone());
            }
            Command::Grant(to) => _ = self.asked[node.index()].remove(*to),
            Command::Lend(_) | Command::Withdraw => {}
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event, findings: &mut Findings) {
        let breach = match event {
            Event::Asked(from) => {
                self.asked[node.index()].insert(*from);
                None
            }
            Event::Proceeds { .. } => {
                self.seen |= 1 << 3;
                self.judge.runs(node);
                None
            }
            Event::Aborted { .. } => {
                self.seen |= 1 << 2 | 1 << 3;
                self.judge.aborts(node)
            }
            Event::Declared { process, number } => {
                self.seen |= 1;
                self.judge.declares(*process, *number)
            }
            Event::Refused => None,
        };
        if let Some(breach) = breach.filter(|_| self.judges_phantoms) {
            findings.breach(&breach.property, breach.why);
        }
    }

    fn on_send(&mut self, from: NodeId, to: NodeId, message: &site::Message<D>) {
        if let site::Message::Process(Traffic::Grant(number)) = message {
            self.judge.grants(from, to, *number);
        }
    }

    fn on_crash(&mut self, node: NodeId, _: &mut Findings) {
        // A crashed process neither requests nor grants.
        self.left[node.index()] = 0;
        self.asked[node.index()] = NodeSet::new();
    }
}
