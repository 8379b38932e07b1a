//! The detector problem in the checker: every execution in which some crash.

use std::time::Duration;

use conclave_algorithms::detector::spec::{ACCURACY, COMPLETENESS};
use conclave_algorithms::detector::{self, Detector, Event, Group};
use conclave_algorithms::mutants::detector::OfDetector;
use conclave_algorithms::mutants::flawed::{Fallible, Flawed};
use conclave_check::{Checker, Faults, Findings, Model, Monitor, Offer, Options, Order, Timing};
use conclave_kernel::{Card, Never, NodeId, Property};
use serde::{Deserialize, Serialize};

use crate::case::{self, Entry, Known, TICK, bit};

/// The data that determines an exploration, except its bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// The name of the algorithm.
    pub algorithm: String,
    /// The flaw of the algorithm; `None` for the algorithm itself.
    #[serde(default)]
    pub mutant: Option<String>,
    /// N.
    pub nodes: u32,
    /// T, the time from one heartbeat to the next.
    pub period: Duration,
    /// D. A detector with a fixed limit suspects a site after T + D of silence.
    pub margin: Duration,
    /// The order in which messages arrive.
    pub order: Order,
    /// The assumption about time.
    pub timing: Timing,
    /// The faults that may happen.
    pub faults: Faults,
}

impl Case {
    /// Creates the case of an algorithm without faults, in a world that meets its needs. The period is two
    /// ticks, and a message takes at most one.
    pub fn of(card: &Card, nodes: u32) -> Self {
        Self {
            algorithm: card.name.into(),
            mutant: None,
            nodes,
            period: 2 * TICK,
            margin: TICK,
            order: if card.needs.fifo { Order::Fifo } else { Order::Any },
            timing: Timing::Sync { delay: 1, tick: TICK },
            faults: Faults::default(),
        }
    }
}

impl case::Case for Case {
    fn checker(&self, options: &Options, judges: bool) -> Result<Checker, String> {
        let options =
            Options { order: self.order, timing: self.timing, faults: self.faults, ..options.clone() };
        (entry(self.mutant.as_deref(), &self.algorithm)?.checker)(self, &options, judges)
    }

    fn properties(&self) -> Vec<Known> {
        let crashes = self.nodes > 1 && self.faults.crash > 0;
        vec![
            Known::tested_if(crashes, COMPLETENESS.name, "no site may crash; see `--crash`"),
            Known::tested_if(self.nodes > 1, ACCURACY.name, "there is no other site to watch"),
        ]
    }
}

macro_rules! explored {
    ($algorithm:ty) => {
        Entry {
            card: &<$algorithm as Detector>::CARD,
            has_flaw: case::has_flaw::<$algorithm>,
            checker: checker::<$algorithm>,
        }
    };
}

static ENTRIES: &[Entry<Case>] = &detector::each!(explored);

/// Returns the entry of an algorithm.
pub(crate) fn entry(mutant: Option<&str>, algorithm: &str) -> Result<&'static Entry<Case>, String> {
    case::find(ENTRIES.iter(), mutant, algorithm)
}

fn checker<P: Fallible + Detector>(case: &Case, options: &Options, _: bool) -> Result<Checker, String> {
    // The condition is a constant, so that no checker is compiled for these algorithms.
    if const { P::CARD.reads_clock } {
        return Err(format!(
            "{} reads its clock, so it has infinitely many states: use `conclave sim`",
            P::CARD.path()
        ));
    }
    let about = serde_json::to_string(case).map_err(|error| error.to_string())?;
    let group = Group::new(case.nodes, case.period, case.margin);
    let flaw = case.mutant.clone().unwrap_or_default();
    let make: Make<_> = |me, group, flaw| Flawed::new(P::new(me, group), flaw);
    let model = Watching::<Flawed<P, OfDetector>> { about, flaw, make, ..Watching::new(group)? };
    Checker::new(model, options).map_err(|error| error.to_string())
}

/// A group whose sites watch each other. Obligations have one bit per pair, so there are at most 8 sites.
#[derive(Clone)]
pub struct Watching<P> {
    group: Group,
    about: String,
    make: Make<P>,
    flaw: String,
}

/// A function that creates a site of a group, with a flaw if the name of one is given.
type Make<P> = fn(NodeId, &Group, &str) -> P;

/// The largest group whose pairs fit into the checker's obligations.
pub const MOST_NODES: u32 = 8;

impl<P: Detector> Watching<P> {
    /// Creates the model; fails if the group is too large.
    pub fn new(group: Group) -> Result<Self, String> {
        match group.nodes {
            1..=MOST_NODES => Ok(Self {
                group,
                about: String::new(),
                make: |me, group, _| P::new(me, group),
                flaw: String::new(),
            }),
            nodes => Err(format!("{nodes} nodes cannot be checked: give 1 to {MOST_NODES}")),
        }
    }
}

impl<P: Detector> Model for Watching<P> {
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
        Watch { nodes: self.group.nodes, down: 0, was_down: 0, suspected: 0 }
    }

    fn liveness(&self) -> Property {
        COMPLETENESS
    }

    fn kind(&self, message: &P::Message) -> &'static str {
        P::kind(message)
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &["a site is suspected"]
    }
}

/// The sites that are down, and the suspicions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    nodes: u32,
    /// The sites that are down, one bit per site.
    down: u64,
    /// The sites that have ever been down, one bit per site. Suspicions of them are no mistakes.
    was_down: u64,
    /// The suspicions, one bit per pair.
    suspected: u64,
}

impl Watch {
    fn pair(&self, watcher: NodeId, about: NodeId) -> u64 {
        1 << (watcher.0 * self.nodes + about.0)
    }

    fn sites(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes).map(NodeId)
    }

    fn is_down(&self, site: NodeId) -> bool {
        self.down & bit(site) != 0
    }
}

impl<P: Detector> Monitor<P> for Watch {
    type Note = ();

    fn offers(&self, _offer: &mut dyn FnMut(Offer<Never>)) {}

    fn pending(&self) -> u64 {
        let mut open = 0;
        for watcher in self.sites().filter(|site| !self.is_down(*site)) {
            for about in self.sites().filter(|site| *site != watcher && self.is_down(*site)) {
                open |= self.pair(watcher, about) & !self.suspected;
            }
        }
        open
    }

    fn shows(&self) -> u64 {
        u64::from(self.suspected != 0)
    }

    fn on_event(&mut self, node: NodeId, event: &Event, findings: &mut Findings) {
        match *event {
            Event::Suspected(about) => {
                self.suspected |= self.pair(node, about);
                if self.was_down & bit(about) == 0 {
                    findings.breach(&ACCURACY, format!("{node} suspected {about}, which is up"));
                }
            }
            Event::Trusted(about) => self.suspected &= !self.pair(node, about),
        }
    }

    fn on_crash(&mut self, node: NodeId, _findings: &mut Findings) {
        self.down |= bit(node);
        self.was_down |= bit(node);
        for about in self.sites() {
            self.suspected &= !self.pair(node, about);
        }
    }

    fn on_recover(&mut self, node: NodeId, _findings: &mut Findings) {
        self.down &= !bit(node);
    }
}
