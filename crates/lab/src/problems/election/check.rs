//! The election problem in the checker: every execution in which each site may call a number of elections,
//! and some crash.
//!
//! A perfect oracle reports every crash to every site, at any later time. A site that knows no leader then,
//! or only the crashed one, must call an election.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use conclave_algorithms::detector::{self, Class, Mute, Oracle};
use conclave_algorithms::election::mutants::OfElection;
use conclave_algorithms::election::spec::{E1, E2, Judge};
use conclave_algorithms::election::{self, Command, DetectorBased, Election, Event, Group};
use conclave_algorithms::mutants::World;
use conclave_algorithms::mutants::flawed::{Fallible, Flawed};
use conclave_check::{Checker, Findings, Model, Monitor, Offer, Options};
use conclave_kernel::{Card, NodeId, Property};
use serde::{Deserialize, Serialize};

use crate::case::{self, Entry, Explored, Known, bit};
use crate::experiment::{Experiment, Space, TICK, flags};

/// An experiment of the election problem in the checker.
pub type Case = Experiment<Work, Space>;

/// The elections that the sites may call, and the times that they assume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "The work")]
pub struct Work {
    /// The number of elections that each site may call without need
    #[arg(long, value_name = "K")]
    pub entries: u8,
    /// A site that may call; may be repeated [default: every site]
    #[arg(long, value_name = "NODE")]
    pub caller: Vec<u32>,
    /// The longest delay of a message that the timeouts of bully assume [default: --sync, or 1ms]
    #[arg(long, value_name = "D", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::optional_duration")]
    pub transmission: Option<Duration>,
    /// T of a detector underneath: the time from one heartbeat to the next [default: 2ms]
    #[arg(long, value_name = "T", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::optional_duration")]
    pub period: Option<Duration>,
    /// D of a detector underneath; a site is suspected after T + D of silence [default: --sync, or 1ms]
    #[arg(long, value_name = "D", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::optional_duration")]
    pub margin: Option<Duration>,
    /// The number of mistakes of the oracle that reports crashes. It corrects each of them
    #[arg(long, value_name = "N")]
    pub mistakes: u8,
    /// The properties that are judged besides E2 (every site decides): everything (E1: no decision is ever
    /// wrong) or outcome (none)
    #[arg(long, value_name = "PROPERTIES")]
    pub judged: Judged,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            entries: 1,
            caller: Vec::new(),
            transmission: None,
            period: None,
            margin: None,
            mistakes: 0,
            judged: Judged::Everything,
        }
    }
}

/// The properties that are judged besides E2 (every site decides).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judged {
    /// E1: no decision is ever wrong.
    #[default]
    Everything,
    /// None: if crashed sites return, no algorithm can promise E1.
    Outcome,
}

impl FromStr for Judged {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "everything" => Ok(Self::Everything),
            "outcome" => Ok(Self::Outcome),
            _ => Err("expected everything or outcome".into()),
        }
    }
}

impl Case {
    /// Creates the case of an algorithm without faults, in a world that meets its needs.
    pub fn of(card: &Card, nodes: u32, entries: u8) -> Self {
        Self {
            algorithm: card.name.into(),
            flaw: None,
            work: Work { entries, ..Work::default() },
            world: Space::of(card, nodes),
        }
    }

    /// Creates the case of an algorithm in the world of a mutant that breaks that property.
    pub fn in_world(algorithm: &str, world: &World, breaks: Option<&str>) -> Self {
        let bound = TICK * u32::from(world.believed);
        let judged = match world.recovery && breaks != Some(E1.name) {
            true => Judged::Outcome,
            false => Judged::Everything,
        };
        Self {
            algorithm: algorithm.into(),
            flaw: None,
            work: Work {
                entries: world.entries,
                caller: world.who.to_vec(),
                transmission: Some(bound),
                period: Some(2 * bound),
                margin: Some(bound),
                mistakes: world.mistakes,
                judged,
            },
            world: Space::of_world(world),
        }
    }

    /// The knowledge of the sites about each other.
    pub(crate) fn group(&self) -> Group {
        let longest = self.world.longest_delay();
        let period = self.work.period.unwrap_or(2 * TICK);
        let detector = detector::Group::new(self.world.nodes, period, self.work.margin.unwrap_or(longest));
        Group { detector, ..Group::new(self.world.nodes, self.work.transmission.unwrap_or(longest)) }
    }
}

impl Explored for Work {
    const PROBLEM: &'static str = "election";

    fn checker(case: &Case, options: &Options, judges: bool) -> Result<Checker, String> {
        (entry(case.flaw.as_deref(), &case.algorithm)?.checker)(case, options, judges)
    }

    fn properties(case: &Case) -> Vec<Known> {
        let judges_e1 = case.work.judged == Judged::Everything;
        let e1 = Known::tested_if(judges_e1, E1.name, "it is not judged where crashed sites come back");
        let decided = |known: Known| known.if_seen(&[HALFWAY, DECIDED], "there is no election");
        vec![decided(e1), decided(Known::tested(E2.name))]
    }
}

macro_rules! explored {
    ($algorithm:ty) => {
        Entry {
            card: &<$algorithm as Election>::CARD,
            has_flaw: case::has_flaw::<$algorithm>,
            checker: checker::<$algorithm>,
        }
    };
}

/// Returns the entry of an algorithm of another crate.
pub(super) fn entry_of<P: Fallible + Election>() -> Entry<Case> {
    explored!(P)
}

static ENTRIES: &[Entry<Case>] = &election::each!(explored);
/// The election over the oracle of the model. Only mutants lead here: the election over heartbeats comes
/// first.
static OVER_ORACLE: Entry<Case> = explored!(DetectorBased<Mute>);

/// Returns the entry of the mutant, or of the algorithm if there is none.
pub(crate) fn entry(mutant: Option<&str>, algorithm: &str) -> Result<&'static Entry<Case>, String> {
    case::find(ENTRIES.iter().chain([&OVER_ORACLE]), mutant, algorithm)
}

fn checker<P: Fallible + Election>(case: &Case, options: &Options, _: bool) -> Result<Checker, String> {
    let make = |me, group: &Group, flaw: &str| Flawed::<P, OfElection>::new(P::new(me, group), flaw);
    checker_with(case, options, P::CARD.path().to_string(), make)
}

/// Prepares the exploration of a case whose sites `make` creates. `name` goes into the header of traces.
pub(crate) fn checker_with<P: Election>(
    case: &Case,
    options: &Options,
    name: String,
    make: impl Fn(NodeId, &Group, &str) -> P + Send + Sync + 'static,
) -> Result<Checker, String> {
    let class = match case.work.mistakes {
        0 => Class::Perfect,
        mistakes => Class::EventuallyPerfect { mistakes },
    };
    let model = Elections {
        group: case.group(),
        calls: case.work.entries,
        who: case.work.caller.clone(),
        class,
        judged: case.work.judged,
        name,
        about: case::about(case),
        make: Arc::new(make),
        flaw: case.flaw.clone().unwrap_or_default(),
    };
    Checker::new(model, &case.world.options(options)).map_err(|error| error.to_string())
}

/// A group in which every site may call a number of elections, at any time.
#[derive(Clone)]
pub struct Elections<P> {
    group: Group,
    calls: u8,
    who: Vec<u32>,
    class: Class,
    judged: Judged,
    name: String,
    about: String,
    make: Make<P>,
    flaw: String,
}

/// A function that creates a site of a group, with a flaw if the name of one is given.
type Make<P> = Arc<dyn Fn(NodeId, &Group, &str) -> P + Send + Sync>;

impl<P: Election> Elections<P> {
    /// Creates the model in which each site may call that many elections without need.
    pub fn new(group: Group, calls: u8) -> Self {
        Self {
            group,
            calls,
            who: Vec::new(),
            class: Class::Perfect,
            judged: Judged::Everything,
            name: P::CARD.path().to_string(),
            about: String::new(),
            make: Arc::new(|me, group, _| P::new(me, group)),
            flaw: String::new(),
        }
    }

    /// The same model with a detector of another class.
    #[must_use]
    pub fn told_by(self, class: Class) -> Self {
        Self { class, ..self }
    }
}

impl<P: Election> Model for Elections<P> {
    type Protocol = P;
    type Monitor = Watch;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn scenario(&self) -> String {
        self.about.clone()
    }

    fn nodes(&self) -> u32 {
        self.group.nodes
    }

    fn site(&self, me: NodeId) -> P {
        (self.make)(me, &self.group, &self.flaw)
    }

    fn monitor(&self) -> Watch {
        Watch {
            judge: Judge::new(self.group.candidates()),
            oracle: Oracle::new(self.group.nodes, self.class),
            left: (0..self.group.nodes)
                .map(|site| if self.who.is_empty() || self.who.contains(&site) { self.calls } else { 0 })
                .collect(),
            must_call: 0,
            begun: false,
            judged: self.judged,
        }
    }

    fn liveness(&self) -> Property {
        E2
    }

    /// A site that has elected the highest site keeps it. Elections without need and faults are limited, so a
    /// site that decides again for ever does so for no reason.
    fn stability(&self) -> Option<Property> {
        Some(E2)
    }

    fn kind(&self, message: &P::Message) -> &'static str {
        P::kind(message)
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &[HALFWAY, DECIDED]
    }
}

/// An observation that an exploration should make: one site has decided while another has not.
pub const HALFWAY: &str = "one site has decided while another has not";
/// An observation that an exploration should make: every site has decided.
pub const DECIDED: &str = "every site has decided";

/// The elections that sites may still call, those that they must call, and the states of the judge and the
/// oracle.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    judge: Judge,
    oracle: Oracle,
    left: Vec<u8>,
    /// The sites that noticed a crash and know no leader that is up, one bit per site.
    must_call: u64,
    begun: bool,
    judged: Judged,
}

impl<P: Election> Monitor<P> for Watch {
    type Note = ();

    fn offers(&self, offer: &mut dyn FnMut(Offer<Command>)) {
        for saying in self.oracle.sayings() {
            let command = match saying.event {
                detector::Event::Suspected(site) => Command::Suspect(site),
                detector::Event::Trusted(site) => Command::Trust(site),
            };
            offer(Offer { node: saying.site, command, required: saying.required });
        }
        for node in self.judge.sites() {
            let must = self.must_call & bit(node) != 0;
            if must || self.left[node.index()] > 0 {
                offer(Offer { node, command: Command::Elect, required: must });
            }
        }
    }

    fn pending(&self) -> u64 {
        if self.begun { self.judge.undecided().fold(0, |bits, site| bits | bit(site)) } else { 0 }
    }

    fn shows(&self) -> u64 {
        let undecided = self.judge.undecided().count();
        let up = self.judge.sites().filter(|site| self.judge.is_up(*site)).count();
        u64::from(undecided > 0 && undecided < up) | u64::from(up > 0 && undecided == 0) << 1
    }

    fn on_command(&mut self, node: NodeId, command: &Command, _findings: &mut Findings) {
        match *command {
            Command::Elect => {
                self.begun = true;
                if self.must_call & bit(node) != 0 {
                    self.must_call &= !bit(node);
                } else {
                    self.left[node.index()] -= 1;
                }
            }
            Command::Resign => self.judge.resigns(node),
            Command::Suspect(site) => self.oracle.told(node, detector::Event::Suspected(site)),
            Command::Trust(site) => self.oracle.told(node, detector::Event::Trusted(site)),
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event, findings: &mut Findings) {
        let wrong = self.judge.tells(node, event).filter(|_| self.judged == Judged::Everything);
        if let Some(why) = wrong {
            findings.breach(&E1, why);
        }
        match event {
            // The leader was elected rightly, and has crashed since.
            Event::Elected { leader } if !self.judge.is_up(*leader) => self.must_call |= bit(node),
            Event::Elected { .. } => self.must_call &= !bit(node),
            Event::Vacant => {}
        }
    }

    fn on_crash(&mut self, node: NodeId, _findings: &mut Findings) {
        self.judge.crashes(node);
        self.oracle.crashes(node);
        self.left[node.index()] = 0;
        self.must_call &= !bit(node);
        if self.begun {
            for site in self.judge.undecided() {
                self.must_call |= bit(site);
            }
        }
    }

    fn on_recover(&mut self, node: NodeId, _findings: &mut Findings) {
        self.judge.recovers(node);
        self.oracle.recovers(node);
        self.begun = true; // a site that returns begins an election
    }
}
