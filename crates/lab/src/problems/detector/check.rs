//! The detector problem in the checker: every execution in which some crash.

use std::time::Duration;

use conclave_algorithms::detector::mutants::OfDetector;
use conclave_algorithms::detector::spec::{ACCURACY, COMPLETENESS};
use conclave_algorithms::detector::{self, Detector, Event, Group};
use conclave_algorithms::mutants::flawed::{Fallible, Flawed};
use conclave_check::{Checker, Findings, Model, Monitor, Offer, Options};
use conclave_kernel::{Card, Never, NodeId, Property};
use serde::{Deserialize, Serialize};

use crate::case::{self, Entry, Explored, Known, bit};
use crate::experiment::{Experiment, Space, TICK, flags};

/// An experiment of the detector problem in the checker.
pub type Case = Experiment<Work, Space>;

/// The settings of the detectors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "The work")]
pub struct Work {
    /// T, the time from one heartbeat to the next [default: 2ms]
    #[arg(long, value_name = "T", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::optional_duration")]
    pub period: Option<Duration>,
    /// D; a site is suspected after T + D of silence [default: --sync, or 1ms]
    #[arg(long, value_name = "D", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::optional_duration")]
    pub margin: Option<Duration>,
}

impl Case {
    /// Creates the case of an algorithm without faults, in a world that meets its needs. The period is two
    /// ticks, and a message takes at most one.
    pub fn of(card: &Card, nodes: u32) -> Self {
        Self {
            algorithm: card.name.into(),
            flaw: None,
            work: Work::default(),
            world: Space { sync: Some(1), ..Space::of(card, nodes) },
        }
    }
}

impl Explored for Work {
    const PROBLEM: &'static str = "detector";

    fn checker(case: &Case, options: &Options, judges: bool) -> Result<Checker, String> {
        (entry(case.flaw.as_deref(), &case.algorithm)?.checker)(case, options, judges)
    }

    fn properties(case: &Case) -> Vec<Known> {
        let crashes = case.world.nodes > 1 && case.world.crash > 0;
        vec![
            Known::tested_if(crashes, COMPLETENESS.name, "no site may crash; see `--crash`"),
            Known::tested_if(case.world.nodes > 1, ACCURACY.name, "there is no other site to watch"),
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

/// Returns the entry of an algorithm of another crate.
pub(super) fn entry_of<P: Fallible + Detector>() -> Entry<Case> {
    explored!(P)
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
    let about = case::about(case);
    let period = case.work.period.unwrap_or(2 * TICK);
    let margin = case.work.margin.unwrap_or(case.world.longest_delay());
    let group = Group::new(case.world.nodes, period, margin);
    let flaw = case.flaw.clone().unwrap_or_default();
    let make: Make<_> = |me, group, flaw| Flawed::new(P::new(me, group), flaw);
    let model = Watching::<Flawed<P, OfDetector>> { about, flaw, make, ..Watching::new(group)? };
    Checker::new(model, &case.world.options(options)).map_err(|error| error.to_string())
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
