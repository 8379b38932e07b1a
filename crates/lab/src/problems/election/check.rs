//! The election problem in the checker: every execution in which each site may call a number of elections, and
//! some crash.
//!
//! A perfect oracle reports every crash to every site, at any later time. A site that knows no leader then,
//! or only the crashed one, must call an election.

use std::time::Duration;

use conclave_algorithms::detector::{self, Class, Mute, Oracle};
use conclave_algorithms::election::spec::{E1, E2, Judge};
use conclave_algorithms::election::{self, Command, DetectorBased, Election, Event, Group};
use conclave_algorithms::mutants::World;
use conclave_algorithms::mutants::election::OfElection;
use conclave_algorithms::mutants::flawed::{Fallible, Flawed};
use conclave_check::{Checker, Faults, Findings, Model, Monitor, Offer, Options, Order, Timing};
use conclave_kernel::{Card, NodeId, Property};
use serde::{Deserialize, Serialize};

use crate::case::{self, Entry, Known, TICK, bit};

/// The data that determines an exploration, except its bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// The algorithm's name.
    pub algorithm: String,
    /// The mutant of the algorithm; `None` for the algorithm itself.
    pub mutant: Option<String>,
    /// N.
    pub nodes: u32,
    /// The number of elections that each site may call without need.
    pub entries: u8,
    /// The sites that may call; every site if empty.
    #[serde(default)]
    pub who: Vec<u32>,
    /// The order in which messages arrive.
    pub order: Order,
    /// The assumption about time.
    pub timing: Timing,
    /// The faults that may happen.
    pub faults: Faults,
    /// The longest delay of a message that timeouts assume.
    pub transmission: Duration,
    /// T of a detector underneath: the time from one heartbeat to the next.
    pub period: Duration,
    /// D of a detector underneath: a site is suspected after T + D of silence.
    pub margin: Duration,
    /// The number of mistakes of the oracle that reports crashes. It corrects each of them.
    pub mistakes: u8,
    /// The properties that are judged.
    pub judged: Judged,
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

impl Case {
    /// Creates the case of an algorithm without faults, in a world that meets its needs.
    pub fn of(card: &Card, nodes: u32, entries: u8) -> Self {
        Self {
            algorithm: card.name.into(),
            mutant: None,
            nodes,
            entries,
            who: Vec::new(),
            order: if card.needs.fifo { Order::Fifo } else { Order::Any },
            timing: if card.needs.synchrony { Timing::Sync { delay: 1, tick: TICK } } else { Timing::Async },
            faults: Faults::default(),
            transmission: TICK,
            period: 2 * TICK,
            margin: TICK,
            mistakes: 0,
            judged: Judged::Everything,
        }
    }

    /// Creates the case of an algorithm in the world of a mutant that breaks that property.
    pub fn in_world(algorithm: &str, world: &World, breaks: Option<&str>) -> Self {
        let (order, timing, faults) = case::surroundings(world);
        let bound = TICK * u32::from(world.believed);
        let judged = match world.recovery && breaks != Some(E1.name) {
            true => Judged::Outcome,
            false => Judged::Everything,
        };
        Self {
            algorithm: algorithm.into(),
            mutant: None,
            nodes: world.nodes,
            entries: world.entries,
            who: world.who.to_vec(),
            order,
            timing,
            faults,
            transmission: bound,
            period: 2 * bound,
            margin: bound,
            mistakes: world.mistakes,
            judged,
        }
    }

    fn group(&self) -> Group {
        let detector = detector::Group::new(self.nodes, self.period, self.margin);
        Group { detector, ..Group::new(self.nodes, self.transmission) }
    }
}

impl case::Case for Case {
    fn checker(&self, options: &Options, judges: bool) -> Result<Checker, String> {
        let options =
            Options { order: self.order, timing: self.timing, faults: self.faults, ..options.clone() };
        (entry(self.mutant.as_deref(), &self.algorithm)?.checker)(self, &options, judges)
    }

    fn properties(&self) -> Vec<Known> {
        let judges_e1 = self.judged == Judged::Everything;
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

static ENTRIES: &[Entry<Case>] = &election::each!(explored);
/// The election over the oracle of the model. Only mutants lead here: the election over heartbeats comes
/// first.
static OVER_ORACLE: Entry<Case> = explored!(DetectorBased<Mute>);

/// Returns the entry of the mutant, or of the algorithm if there is none.
pub(crate) fn entry(mutant: Option<&str>, algorithm: &str) -> Result<&'static Entry<Case>, String> {
    case::find(ENTRIES.iter().chain([&OVER_ORACLE]), mutant, algorithm)
}

fn checker<P: Fallible + Election>(case: &Case, options: &Options, _: bool) -> Result<Checker, String> {
    let class = match case.mistakes {
        0 => Class::Perfect,
        mistakes => Class::EventuallyPerfect { mistakes },
    };
    let model = Elections::<Flawed<P, OfElection>> {
        group: case.group(),
        calls: case.entries,
        who: case.who.clone(),
        class,
        judged: case.judged,
        about: serde_json::to_string(case).map_err(|error| error.to_string())?,
        make: |me, group, flaw| Flawed::new(P::new(me, group), flaw),
        flaw: case.mutant.clone().unwrap_or_default(),
    };
    Checker::new(model, options).map_err(|error| error.to_string())
}

/// A group in which every site may call a number of elections, at any time.
#[derive(Clone)]
pub struct Elections<P> {
    group: Group,
    calls: u8,
    who: Vec<u32>,
    class: Class,
    judged: Judged,
    about: String,
    make: Make<P>,
    flaw: String,
}

/// A function that creates a site of a group, with a flaw if the name of one is given.
type Make<P> = fn(NodeId, &Group, &str) -> P;

impl<P: Election> Elections<P> {
    /// Creates the model in which each site may call that many elections without need.
    pub fn new(group: Group, calls: u8) -> Self {
        Self {
            group,
            calls,
            who: Vec::new(),
            class: Class::Perfect,
            judged: Judged::Everything,
            about: String::new(),
            make: |me, group, _| P::new(me, group),
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
        P::CARD.path().to_string()
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
