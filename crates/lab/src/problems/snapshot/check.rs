//! The snapshot problem in the checker: every execution of a bank in which each site makes so many transfers,
//! and any site may start the snapshot at any moment.

use conclave_algorithms::mutants::World;
use conclave_algorithms::mutants::flawed::{Fallible, Flawed};
use conclave_algorithms::snapshot::bank::{Bank, Transfer};
use conclave_algorithms::snapshot::mutants::OfSnapshot;
use conclave_algorithms::snapshot::spec::{COMPLETE, CONSERVED, SAME};
use conclave_algorithms::snapshot::{self, Application, Command, Event, Snapshot, SnapshotId};
use conclave_check::{Checker, Findings, Model, Monitor, Offer, Options};
use conclave_kernel::{Card, Digest, NodeId, Property};
use serde::{Deserialize, Serialize};

use crate::case::{self, Entry, Explored, Known, bit};
use crate::experiment::{Experiment, Space};

/// An experiment of the snapshot problem in the checker.
pub type Case = Experiment<Work, Space>;

/// The transfers of the bank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "The work")]
pub struct Work {
    /// The number of transfers of each site
    #[arg(long, value_name = "K")]
    pub entries: u8,
}

impl Default for Work {
    fn default() -> Self {
        Self { entries: 1 }
    }
}

impl Case {
    /// Creates the case of an algorithm without faults, over the links that it needs.
    pub fn of(card: &Card, nodes: u32, entries: u8) -> Self {
        Self {
            algorithm: card.name.into(),
            flaw: None,
            work: Work { entries },
            world: Space { sync: None, ..Space::of(card, nodes) },
        }
    }

    /// Creates the case of an algorithm in the world of a mutant.
    pub fn in_world(algorithm: &str, world: &World) -> Self {
        Self {
            algorithm: algorithm.into(),
            flaw: None,
            work: Work { entries: world.entries },
            world: Space::of_world(world),
        }
    }
}

impl Explored for Work {
    const PROBLEM: &'static str = "snapshot";

    fn checker(case: &Case, options: &Options, judges: bool) -> Result<Checker, String> {
        (entry(case.flaw.as_deref(), &case.algorithm)?.checker)(case, options, judges)
    }

    fn properties(case: &Case) -> Vec<Known> {
        vec![
            Known::tested_if(case.work.entries > 0, CONSERVED.name, "there is no transfer"),
            Known::tested_if(case.world.nodes > 1, SAME.name, "only one site has a picture"),
            Known::tested(COMPLETE.name),
        ]
    }
}

macro_rules! explored {
    ($algorithm:ty) => {
        Entry {
            card: &<$algorithm as Snapshot<Bank>>::CARD,
            has_flaw: case::has_flaw::<$algorithm>,
            checker: checker::<$algorithm>,
        }
    };
}

static ENTRIES: &[Entry<Case>] = &snapshot::each!(explored, Bank);

/// Returns the entry of the mutant, or of the algorithm if there is none.
pub(crate) fn entry(mutant: Option<&str>, algorithm: &str) -> Result<&'static Entry<Case>, String> {
    case::find(ENTRIES.iter(), mutant, algorithm)
}

fn checker<P: Fallible + Snapshot<Bank>>(case: &Case, options: &Options, _: bool) -> Result<Checker, String> {
    let model = Transfers::<Flawed<P, OfSnapshot>> {
        nodes: case.world.nodes,
        transfers: case.work.entries,
        about: case::about(case),
        make: |me, nodes, app, flaw| Flawed::new(P::new(me, nodes, app), flaw),
        flaw: case.flaw.clone().unwrap_or_default(),
    };
    Checker::new(model, &case.world.options(options)).map_err(|error| error.to_string())
}

/// A bank whose sites may each make a number of transfers, to the next site, at any moment; and of which any
/// sites may start one snapshot.
///
/// The amounts are powers of two, so that no two of them make up for each other when they are counted twice
/// or lost.
#[derive(Clone)]
pub struct Transfers<P> {
    nodes: u32,
    transfers: u8,
    about: String,
    make: Make<P>,
    flaw: String,
}

/// A function that creates a site of a group of the given size, with a flaw if the name of one is given.
type Make<P> = fn(NodeId, u32, Bank, &str) -> P;

/// The initial balance of each account.
const BALANCE: u64 = 1_000;

const ID: SnapshotId = SnapshotId(1);

impl<P: Snapshot<Bank>> Transfers<P> {
    /// Creates the model in which each site makes that many transfers.
    pub fn new(nodes: u32, transfers: u8) -> Self {
        let make: Make<P> = |me, nodes, app, _| P::new(me, nodes, app);
        Self { nodes, transfers, about: String::new(), make, flaw: String::new() }
    }
}

impl<P: Snapshot<Bank>> Model for Transfers<P> {
    type Protocol = P;
    type Monitor = Watch;

    fn name(&self) -> String {
        P::CARD.path().to_string()
    }

    fn scenario(&self) -> String {
        self.about.clone()
    }

    fn nodes(&self) -> u32 {
        self.nodes
    }

    fn site(&self, me: NodeId) -> P {
        (self.make)(me, self.nodes, Bank { balance: BALANCE }, &self.flaw)
    }

    fn monitor(&self) -> Watch {
        Watch {
            left: vec![self.transfers; self.nodes as usize],
            recorded: 0,
            complete: 0,
            dead: 0,
            picture: None,
            carried: false,
        }
    }

    fn liveness(&self) -> Property {
        COMPLETE
    }

    fn kind(&self, message: &P::Message) -> &'static str {
        P::kind(message)
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &[ON_ITS_WAY, HALFWAY]
    }
}

/// An observation that an exploration should make: a picture contains a message in transit.
pub const ON_ITS_WAY: &str = "a picture contains a message in transit";
/// An observation that an exploration should make: two sites have recorded and no picture is complete.
pub const HALFWAY: &str = "two sites have recorded and no picture is complete";

/// The transfers that are left, the sites that have recorded or have the picture, and the fingerprint of the
/// picture.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    left: Vec<u8>,
    recorded: u64,
    complete: u64,
    dead: u64,
    picture: Option<u64>,
    carried: bool,
}

impl<P: Snapshot<Bank>> Monitor<P> for Watch {
    type Note = ();

    fn offers(&self, offer: &mut dyn FnMut(Offer<Command<Bank>>)) {
        let nodes = self.left.len() as u32;
        for (site, left) in (0..nodes).zip(&self.left) {
            let node = NodeId(site);
            if (self.recorded | self.dead) & bit(node) == 0 {
                offer(Offer { node, command: Command::Take(ID), required: false });
            }
            if *left > 0 {
                let to = NodeId((site + 1) % nodes);
                // Up to nine transfers in all the powers differ; of more, two may be alike.
                let amount = 1 << ((u32::from(*left - 1) * nodes + site) % 9);
                offer(Offer { node, command: Command::App(Transfer { to, amount }), required: false });
            }
        }
    }

    fn pending(&self) -> u64 {
        if self.recorded == 0 { 0 } else { all(self.left.len()) & !self.complete & !self.dead }
    }

    fn shows(&self) -> u64 {
        u64::from(self.carried) | u64::from(self.recorded.count_ones() > 1 && self.complete == 0) << 1
    }

    fn on_command(&mut self, node: NodeId, command: &Command<Bank>, _findings: &mut Findings) {
        if let Command::App(_) = command {
            self.left[node.index()] -= 1;
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event<Bank>, findings: &mut Findings) {
        match event {
            Event::Recorded(_) => self.recorded |= bit(node),
            Event::Complete(picture) => {
                self.complete |= bit(node);
                self.carried |= picture.in_transit().next().is_some();
                let (sum, expected) = (Bank::conserved(picture), BALANCE * self.left.len() as u64);
                if sum != Some(expected) {
                    let off = i128::from(sum.unwrap_or(0)) - i128::from(expected);
                    let what = if off > 0 { "too much" } else { "missing" };
                    findings.breach(
                        &CONSERVED,
                        format!("the picture at {node} does not add up: {} {what}", off.abs()),
                    );
                }
                let mut digest = Digest::new();
                digest.absorb(picture);
                if self.picture.replace(digest.value()).is_some_and(|other| other != digest.value()) {
                    findings.breach(&SAME, format!("{node} has another picture than an earlier site"));
                }
            }
            Event::Refused { .. } | Event::App(_) => {}
        }
    }

    fn on_crash(&mut self, node: NodeId, _findings: &mut Findings) {
        // A crashed site waits for nothing and starts nothing.
        self.dead |= bit(node);
        self.left[node.index()] = 0;
    }
}

const fn all(nodes: usize) -> u64 {
    if nodes >= 64 { u64::MAX } else { (1 << nodes) - 1 }
}
