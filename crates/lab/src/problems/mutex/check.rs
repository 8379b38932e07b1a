//! The mutex problem in the checker: every execution in which each site enters so many times.
//!
//! A [`Case`] is an experiment in the checker. The command line, the mutants and the matrix create cases, and
//! a counterexample has its case in its header. [`Entries`] is the model that a case describes. A [`Judge`]
//! judges the properties besides exclusion and progress. [`Talking`] adds application messages.

mod judge;
mod layered;
mod talking;

use std::str::FromStr;
use std::sync::Arc;

use conclave_algorithms::mutants::flawed::{Fallible, Flawed};
use conclave_algorithms::mutants::{self, World};
use conclave_algorithms::mutex::mutants::OfMutex;
use conclave_algorithms::mutex::mutants::cyclic::CyclicSuzukiKasami;
use conclave_algorithms::mutex::spec::{FENCES, ME1, ME1_CAUSAL, ME2, ME3};
use conclave_algorithms::mutex::{self, Command, Event, Group, Mutex};
use conclave_algorithms::quorum::Quorum;
use conclave_check::{Checker, Findings, Model, Monitor, Offer, Options};
use conclave_kernel::{Card, NodeId, Property};
use serde::{Deserialize, Serialize};

pub use judge::Judge;
pub use layered::AFTER_A_CRASH;
pub use talking::{APPLICATION, Application, Inform, Instruction, Message, Talking};

use super::Scenario;
use crate::added;
use crate::case::{self, Entry, Explored, Known};
use crate::experiment::{Experiment, Space};

/// An experiment of the mutex problem in the checker.
pub type Case = Experiment<Work, Space>;

/// The requests of each site, and the properties that are judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "The work")]
pub struct Work {
    /// The number of requests of each site; `sim` counts those of all sites together. 255 is no limit
    #[arg(long, value_name = "K")]
    pub entries: u8,
    /// The quorums of Maekawa: plane, grid, majority or all [default: plane if one exists, else grid]
    #[arg(long, value_name = "QUORUM")]
    pub quorum: Option<Quorum>,
    /// The properties that are judged besides ME1 and ME2: exclusion (none), fences, causality (ME1-causal)
    /// or order (ME1-causal and ME3: in each execution the applications may send one message) [default:
    /// fences if the algorithm promises them, else exclusion]
    #[arg(long, value_name = "PROPERTIES")]
    pub judged: Option<Judged>,
    /// The same as --judged order. Fences are then not judged
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set, hide_possible_values = true)]
    pub causal: bool,
    /// The number of mistakes of the oracle that replaces the detector of a layered algorithm. It corrects
    /// each of them
    #[arg(long, value_name = "N")]
    pub mistakes: u8,
}

impl Default for Work {
    fn default() -> Self {
        Self { entries: 1, quorum: None, judged: None, causal: false, mistakes: 0 }
    }
}

/// No limit on requests. A site then requests again only when all its messages have arrived: otherwise the
/// number of messages in flight, and so the graph, would have no bound.
pub const FOREVER: u8 = mutants::FOREVER;

/// The properties that are judged besides exclusion (ME1) and progress (ME2). More properties make more
/// states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judged {
    /// None.
    Exclusion,
    /// Fences grow.
    #[default]
    Fences,
    /// ME1-causal: every exit happened before the next entry.
    Causality,
    /// ME1-causal, and ME3: grants follow the causal order of requests. In each execution the applications
    /// may send one message to each other.
    Order,
}

impl FromStr for Judged {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "exclusion" => Ok(Self::Exclusion),
            "fences" => Ok(Self::Fences),
            "causality" => Ok(Self::Causality),
            "order" => Ok(Self::Order),
            _ => Err("expected exclusion, fences, causality or order".into()),
        }
    }
}

impl Judged {
    /// Returns the smallest set of properties that contains this one.
    pub fn for_property(name: &str) -> Self {
        match name {
            "fences" => Self::Fences,
            "ME1-causal" => Self::Causality,
            "ME3" => Self::Order,
            _ => Self::Exclusion,
        }
    }
}

impl Case {
    /// Creates the case of an algorithm without faults, over the links that it needs.
    pub fn of(card: &Card, nodes: u32, entries: u8) -> Self {
        Self {
            algorithm: card.name.into(),
            flaw: None,
            work: Work { entries, ..Work::default() },
            world: Space { sync: None, ..Space::of(card, nodes) },
        }
    }

    /// Creates the case of an algorithm in the world of a mutant.
    pub fn in_world(algorithm: &str, world: &World, judged: Judged) -> Self {
        Self {
            algorithm: algorithm.into(),
            flaw: None,
            work: Work {
                entries: world.entries,
                quorum: world.quorum,
                judged: Some(judged),
                mistakes: world.mistakes,
                ..Work::default()
            },
            world: Space::of_world(world),
        }
    }

    /// The properties that are judged besides exclusion and progress.
    fn judged(&self) -> Judged {
        let card =
            added::cards().find(|card| (card.problem, card.name) == ("mutex", self.algorithm.as_str()));
        match self.work.judged {
            _ if self.work.causal => Judged::Order,
            Some(judged) => judged,
            None if card.is_some_and(|card| card.promises(FENCES.name)) => Judged::Fences,
            None => Judged::Exclusion,
        }
    }
}

impl Explored for Work {
    const PROBLEM: &'static str = "mutex";

    fn checker(case: &Case, options: &Options, judges: bool) -> Result<Checker, String> {
        (entry(case.flaw.as_deref(), &case.algorithm)?.checker)(case, options, judges)
    }

    /// ME3 compares requests of which one happened before the other. The message of an application makes such
    /// a pair in an algorithm whose own messages never do.
    fn properties(case: &Case) -> Vec<Known> {
        let judged = case.judged();
        let is_causal = matches!(judged, Judged::Causality | Judged::Order) && case.work.entries != FOREVER;
        let judges_order = judged == Judged::Order && case.work.entries != FOREVER;
        let entries = u64::from(case.world.nodes) * u64::from(case.work.entries);
        let of_two = |judged: bool, property: &'static str, why_not: &'static str| match judged {
            true => Known::tested_if(entries > 1, property, "there is at most one entry"),
            false => Known::untestable(property, why_not),
        };
        vec![
            Known::tested(ME1.name)
                .if_seen(&[CONTENTION, DEFERRAL], "no two sites requested at the same time"),
            of_two(is_causal, ME1_CAUSAL.name, "only `check --causal` judges it"),
            Known::tested_if(entries > 0, ME2.name, "there is no request"),
            of_two(judges_order, ME3.name, "only `check --causal` judges it")
                .if_seen(&[CAUSED], "no site requested after it had learned of a waiting request"),
            of_two(judged == Judged::Fences, FENCES.name, "`check --causal` does not judge it"),
        ]
    }
}

macro_rules! explored {
    ($algorithm:ty) => {
        Entry {
            card: &<$algorithm as Mutex>::CARD,
            has_flaw: case::has_flaw::<$algorithm>,
            checker: checker::<$algorithm>,
        }
    };
}

static ENTRIES: &[Entry<Case>] = &mutex::each!(explored);
/// Suzuki and Kasami's algorithm with numbers that do not grow. Only its mutants lead here: the unmodified
/// algorithm comes first.
static CYCLIC: Entry<Case> = explored!(CyclicSuzukiKasami);

/// Returns the entry of an algorithm of another crate.
pub(super) fn entry_of<P: Fallible + Mutex>() -> Entry<Case> {
    explored!(P)
}

/// Returns the entry of the mutant, or of the algorithm if there is none.
pub(crate) fn entry(mutant: Option<&str>, algorithm: &str) -> Result<&'static Entry<Case>, String> {
    case::find(ENTRIES.iter().chain([&CYCLIC]).chain(layered::ENTRIES), mutant, algorithm)
}

fn checker<P: Fallible + Mutex>(case: &Case, options: &Options, judges: bool) -> Result<Checker, String> {
    if case.work.mistakes > 0 {
        return Err(format!(
            "--mistakes has no effect: {} has no failure detector; leave it out",
            P::CARD.path()
        ));
    }
    let name = P::CARD.path().to_string();
    let make = |me, group: &Group, flaw: &str| Flawed::<P, OfMutex>::new(P::new(me, group), flaw);
    checker_with(case, options, judges, name, make)
}

/// Prepares the exploration of a case whose sites `make` creates. `name` goes into the header of traces.
pub(crate) fn checker_with<P: Mutex>(
    case: &Case,
    options: &Options,
    judges: bool,
    name: String,
    make: impl Fn(NodeId, &Group, &str) -> P + Send + Sync + 'static,
) -> Result<Checker, String> {
    let mut scenario = Scenario::default().with(|work| work.quorum = case.work.quorum);
    scenario.world.nodes = case.world.nodes;
    let model = Entries {
        group: scenario.group::<P>()?,
        entries: case.work.entries,
        name,
        about: case::about(case),
        make: Arc::new(make),
        flaw: case.flaw.clone().unwrap_or_default(),
        judge: match (judges, case.work.entries) {
            (false, _) => Judge::Nothing,
            (true, FOREVER) => Judge::quiet(case.world.nodes),
            (true, _) => Judge::new(case.judged(), case.world.nodes),
        },
    };
    Checker::new(model, &case.world.options(options)).map_err(|error| error.to_string())
}

/// A group in which every site may request a number of times, at any time.
#[derive(Clone)]
pub struct Entries<P> {
    group: Group,
    entries: u8,
    name: String,
    about: String,
    make: Make<P>,
    flaw: String,
    judge: Judge,
}

/// A function that creates a site of a group, with a flaw if the name of one is given.
type Make<P> = Arc<dyn Fn(NodeId, &Group, &str) -> P + Send + Sync>;

impl<P: Mutex> Entries<P> {
    /// Creates the model with that many sites and that many requests of each. It judges exclusion and
    /// progress.
    pub fn new(nodes: u32, entries: u8) -> Self {
        Self::of(Group::new(nodes), entries)
    }

    /// Creates the model of a group that knows its quorums.
    pub fn of(group: Group, entries: u8) -> Self {
        Self {
            group,
            entries,
            name: P::CARD.path().to_string(),
            about: String::new(),
            make: Arc::new(|me, group, _| P::new(me, group)),
            flaw: String::new(),
            judge: Judge::Nothing,
        }
    }

    /// Returns the same model, in which these properties are judged too.
    #[must_use]
    pub fn judging(self, judged: Judged) -> Self {
        Self { judge: Judge::new(judged, self.group.nodes), ..self }
    }
}

impl<P: Mutex> Model for Entries<P> {
    type Protocol = Talking<P>;
    type Monitor = Desk;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn scenario(&self) -> String {
        self.about.clone()
    }

    fn nodes(&self) -> u32 {
        self.group.nodes
    }

    fn site(&self, me: NodeId) -> Talking<P> {
        Talking::new((self.make)(me, &self.group, &self.flaw))
    }

    fn monitor(&self) -> Desk {
        let site = Site { place: Place::Outside, left: self.entries };
        let messages_left = if self.judge.judges_order() { MOST_APPLICATION_MESSAGES } else { 0 };
        Desk { sites: vec![site; self.group.nodes as usize], messages_left, judge: self.judge.clone() }
    }

    fn liveness(&self) -> Property {
        ME2
    }

    fn kind(&self, message: &Message<P::Message>) -> &'static str {
        match message {
            // The kind of a message does not depend on its sender and receiver.
            Message::Algorithm(message) => P::bill(message, NodeId(0), NodeId(0)).kind,
            Message::Application(_) => APPLICATION,
        }
    }

    fn sometimes(&self) -> &'static [&'static str] {
        if self.judge.judges_order() { &[CONTENTION, DEFERRAL, CAUSED] } else { &[CONTENTION, DEFERRAL] }
    }
}

/// The most messages between applications in one execution. One is enough to order two requests; each more
/// multiplies the number of states.
const MOST_APPLICATION_MESSAGES: u8 = 1;

/// An observation that an exploration should make: two sites request at the same time.
pub const CONTENTION: &str = "two sites request at once";
/// An observation that an exploration should make: a site waits until another site leaves.
pub const DEFERRAL: &str = "one site requests while another is inside";
/// An observation that an exploration should make if ME3 is judged: the pair of requests that ME3 orders.
pub const CAUSED: &str = "a site requests after it has learned of a waiting request";

/// Offers the work, and watches the place of each site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Desk {
    sites: Vec<Site>,
    /// The messages that applications may still send.
    messages_left: u8,
    judge: Judge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Site {
    place: Place,
    left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Outside,
    Asking,
    Inside,
}

impl Desk {
    /// Returns the senders and receivers of the application messages that can matter for ME3. The sender knows
    /// of a waiting request, and the receiver may request later.
    fn messages(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let senders = if self.messages_left > 0 { 0..self.sites.len() } else { 0..0 };
        let informed = senders.filter(move |from| self.judge.knows_of_waiting(*from, self.at(Place::Asking)));
        let may_request =
            move |to: &usize| self.sites[*to].place == Place::Outside && self.sites[*to].left > 0;
        informed.flat_map(move |from| {
            let receivers = (0..self.sites.len()).filter(move |to| *to != from).filter(may_request);
            receivers.map(move |to| (from, to))
        })
    }

    fn at(&self, place: Place) -> impl Iterator<Item = usize> + '_ {
        self.sites.iter().enumerate().filter(move |(_, site)| site.place == place).map(|(index, _)| index)
    }
}

impl<P: Mutex> Monitor<Talking<P>> for Desk {
    type Note = judge::Known;

    fn has_notes(&self) -> bool {
        self.judge.has_notes()
    }

    fn offers(&self, offer: &mut dyn FnMut(Offer<Instruction>)) {
        for (index, site) in self.sites.iter().enumerate() {
            let node = NodeId(index as u32);
            match site.place {
                Place::Outside if site.left > 0 && self.judge.may_request(node) => {
                    let command = Instruction::Mutex(Command::Acquire);
                    offer(Offer { node, command, required: false });
                }
                Place::Inside => {
                    let command = Instruction::Mutex(Command::Release);
                    offer(Offer { node, command, required: true });
                }
                _ => {}
            }
        }
        for (from, to) in self.messages() {
            let inform = Inform { application_message_to: NodeId(to as u32) };
            let node = NodeId(from as u32);
            offer(Offer { node, command: Instruction::Inform(inform), required: false });
        }
    }

    fn pending(&self) -> u64 {
        self.at(Place::Asking).fold(0, |bits, index| bits | 1 << index)
    }

    fn shows(&self) -> u64 {
        let (asking, inside) = (self.at(Place::Asking).count(), self.at(Place::Inside).count());
        let caused =
            self.at(Place::Asking).any(|index| self.judge.knew_of_waiting(index, self.at(Place::Asking)));
        u64::from(asking > 1) | u64::from(asking > 0 && inside > 0) << 1 | u64::from(caused) << 2
    }

    fn on_command(&mut self, node: NodeId, command: &Instruction, _: &mut Findings) {
        let site = &mut self.sites[node.index()];
        match command {
            Instruction::Mutex(Command::Acquire) => {
                site.place = Place::Asking;
                site.left -= u8::from(site.left < FOREVER);
                self.judge.requests(node);
            }
            Instruction::Mutex(_) => {}
            Instruction::Inform(_) => self.messages_left -= 1,
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event, findings: &mut Findings) {
        match event {
            Event::Granted { fence } => {
                if let Some(other) = self.at(Place::Inside).next() {
                    findings.breach(&ME1, format!("{node} entered while n{other} was inside"));
                }
                self.sites[node.index()].place = Place::Inside;
                let asking = self.at(Place::Asking).collect::<Vec<_>>();
                self.judge.enters(node, *fence, &asking, findings);
            }
            Event::Released => {
                self.sites[node.index()].place = Place::Outside;
                self.judge.leaves(node);
            }
            Event::Refused(_) => {}
        }
    }

    fn on_send(&mut self, from: NodeId, to: NodeId, _: &Message<P::Message>) -> judge::Known {
        self.judge.sends(from, to)
    }

    fn on_deliver(&mut self, from: NodeId, to: NodeId, note: &judge::Known) {
        self.judge.receives(from, to, note);
    }

    fn on_crash(&mut self, node: NodeId, _: &mut Findings) {
        // A crashed site neither waits nor is inside, and requests no more.
        let site = std::mem::replace(&mut self.sites[node.index()], Site { place: Place::Outside, left: 0 });
        self.judge.crashes(site.place == Place::Inside);
    }
}
