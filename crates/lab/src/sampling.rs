//! Runs of many seeds, with and without a flaw. They are the only evidence about algorithms that the checker
//! cannot explore completely.
//!
//! The checker has no model of clocks. The locks of a transaction are drawn at random. The clocks of the fair
//! ring grow for ever. And two snapshots at once exceed the model of the checker. A sample is no proof: it
//! names the number of its seeds. Only such algorithms have samples, because the simulation of each algorithm
//! with a flaw is compiled separately.

use std::ops::Range;
use std::time::Duration;

use conclave_algorithms::deadlock::locking::{self, Locking};
use conclave_algorithms::deadlock::mutants::OfLocking;
use conclave_algorithms::detector::Detector;
use conclave_algorithms::detector::mutants::OfDetector;
use conclave_algorithms::mutants::flawed::{Fallible, Flawed, View};
use conclave_algorithms::mutex::Mutex;
use conclave_algorithms::mutex::mutants::OfMutex;
use conclave_algorithms::snapshot::Snapshot;
use conclave_algorithms::snapshot::bank::Bank;
use conclave_algorithms::snapshot::mutants::OfSnapshot;
use conclave_algorithms::timesync::TimeSync;
use conclave_algorithms::timesync::mutants::OfTimeSync;
use conclave_kernel::trace::{RawEffect, RawRecord};
use conclave_kernel::{Card, Kind, NodeId, Property, Protocol, Ratio, Recording};
use conclave_sim::{Delay, Fault, Setup};

use crate::matrix::Assumption;
use crate::problem::Facts;
use crate::problems::mutex::Workload;
use crate::problems::{deadlock, detector, mutex, snapshot, timesync};

/// The result of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// N.
    pub nodes: u32,
    /// The number of seeds that were run.
    pub seeds: u64,
    /// The first seed that broke a promised property, with the property and the reason.
    pub broken: Option<Broken>,
}

/// A violation in a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The seed of the run.
    pub seed: u64,
    /// The property.
    pub property: String,
    /// The violation in a sentence.
    pub why: String,
}

/// Runs an algorithm with seeds until a promised property breaks. `flaw` is the name of a flaw; the algorithm is
/// unmodified if it has no such flaw.
pub fn sample(card: &Card, flaw: Option<&str>, seeds: Range<u64>) -> Result<Sample, String> {
    sample_runs(card, seeds, |seed| Order { flaw: flaw.unwrap_or_default(), seed, ..Order::default() })
}

/// Runs an algorithm without one assumption about its world.
pub fn sample_without(card: &Card, without: Assumption, seeds: Range<u64>) -> Result<Sample, String> {
    sample_runs(card, seeds, |seed| Order { without: Some(without), seed, ..Order::default() })
}

/// Returns the kinds of the messages that an algorithm sends in a sampled run.
pub fn kinds(card: &Card) -> Result<Vec<&'static str>, String> {
    Ok(entry(card)?(&Order { wants_kinds: true, ..Order::default() })?.1)
}

fn sample_runs<'f>(
    card: &Card,
    seeds: Range<u64>,
    order: impl Fn(u64) -> Order<'f>,
) -> Result<Sample, String> {
    let run = entry(card)?;
    let mut sample = Sample { nodes: 0, seeds: 0, broken: None };
    for seed in seeds {
        let (facts, _) = run(&order(seed))?;
        (sample.nodes, sample.seeds) = (facts.nodes, sample.seeds + 1);
        sample.broken = broken(card, &facts, seed);
        if sample.broken.is_some() {
            break;
        }
    }
    Ok(sample)
}

/// One run of a sample.
#[derive(Clone, Copy, Default)]
struct Order<'f> {
    flaw: &'f str,
    seed: u64,
    /// The assumption that the world does not keep.
    without: Option<Assumption>,
    wants_kinds: bool,
}

impl Order<'_> {
    /// Returns the world of the run, which takes away the assumption. `crash` is the time of the crash.
    fn world(&self, setup: Setup, crash: &str) -> Result<Setup, String> {
        let mut setup = Setup { seed: self.seed, ..setup };
        match self.without {
            Some(Assumption::Fifo) => setup.order = conclave_sim::Order::Any,
            Some(Assumption::NoLoss) => setup.loss = Ratio::percent(10),
            Some(Assumption::NoDuplication) => setup.duplicate = Ratio::percent(10),
            Some(Assumption::NoCrash) => {
                setup.faults.push(Fault::parse_crash(&format!("{}@{crash}", setup.nodes - 1))?);
            }
            Some(Assumption::Synchrony) => setup.delay = Delay::Exponential(10 * setup.delay.mean()),
            Some(Assumption::PerfectDetector) | None => {}
        }
        Ok(setup)
    }
}

/// Returns the property that a run broke. A livelock breaks the property that must hold eventually: in these
/// small worlds a correct algorithm always makes progress.
fn broken(card: &Card, facts: &Facts, seed: u64) -> Option<Broken> {
    if let Some(violation) = facts.violations.first() {
        return Some(Broken { seed, property: violation.property.clone(), why: violation.why.clone() });
    }
    let why = facts.bounded.clone()?;
    let eventually = EVENTUALLY.iter().flat_map(|properties| properties.iter());
    let mut eventually = eventually.filter(|property| property.kind == Kind::Eventually);
    let property = eventually.find(|property| card.promises(property.name))?;
    Some(Broken { seed, property: property.name.to_owned(), why })
}

/// The properties of the problems whose runs may end without progress.
const EVENTUALLY: [&[Property]; 3] = [
    &conclave_algorithms::mutex::spec::PROPERTIES,
    &conclave_algorithms::snapshot::spec::PROPERTIES,
    &locking::PROPERTIES,
];

/// The facts of a run and, on demand, the kinds of its messages.
type Ran = Result<(Facts, Vec<&'static str>), String>;

/// Runs an algorithm once.
type Run = fn(&Order<'_>) -> Ran;

fn entry(card: &Card) -> Result<Run, String> {
    macro_rules! of_mutex {
        ($algorithm:ty) => {
            (&<$algorithm as Mutex>::CARD, of_mutex::<$algorithm> as Run)
        };
    }
    macro_rules! of_snapshot {
        ($algorithm:ty) => {
            (&<$algorithm as Snapshot<Bank>>::CARD, of_snapshot::<$algorithm> as Run)
        };
    }
    macro_rules! of_detector {
        ($algorithm:ty) => {
            (&<$algorithm as Detector>::CARD, of_detector::<$algorithm> as Run)
        };
    }
    macro_rules! of_locking {
        ($algorithm:ty) => {
            (&<$algorithm as Locking>::CARD, of_locking::<$algorithm> as Run)
        };
    }
    macro_rules! of_timesync {
        ($algorithm:ty) => {
            (&<$algorithm as TimeSync>::CARD, of_timesync::<$algorithm> as Run)
        };
    }
    let mutexes = [of_mutex!(conclave_algorithms::mutex::FairRing)];
    let snapshots = [of_snapshot!(conclave_algorithms::snapshot::ChandyLamport<Bank>)];
    let detectors = conclave_algorithms::detector::each!(of_detector);
    let lockings = locking::each!(of_locking);
    let timesyncs = conclave_algorithms::timesync::each!(of_timesync);
    let all = mutexes.into_iter().chain(snapshots).chain(detectors).chain(lockings).chain(timesyncs);
    let found = all.into_iter().find(|(known, _)| (known.problem, known.name) == (card.problem, card.name));
    found
        .map(|(_, run)| run)
        .ok_or_else(|| format!("{} has no samples: the checker explores it", card.path()))
}

/// The number of events without progress that are enough in the small worlds of a sample.
const BUDGET: u64 = 100_000;

/// A network of five sites with random delays.
fn random(setup: Setup) -> Setup {
    Setup { nodes: 5, delay: Delay::Exponential(Duration::from_millis(1)), budget: BUDGET, ..setup }
}

/// A lock under high load, or requests that follow each other.
fn of_mutex<P: Fallible + Mutex>(order: &Order<'_>) -> Ran {
    let load = if order.seed.is_multiple_of(2) { Workload::High } else { Workload::Relay };
    let mut scenario = mutex::Scenario::of(P::CARD.name).with(|work| {
        work.load = load;
        work.entries = 20;
    });
    scenario.world = order.world(random(scenario.world), "10ms")?;
    let flaw = order.flaw.to_owned();
    let make = move |me, group: &conclave_algorithms::mutex::Group| {
        Flawed::<P, OfMutex>::new(P::new(me, group), &flaw)
    };
    let (report, trace) = mutex::run_made(&scenario, make, order.wants_kinds)?;
    Ok((report.facts, kinds_of::<P, OfMutex>(trace.as_ref())))
}

/// A bank with two snapshots at once.
fn of_snapshot<P: Fallible + Snapshot<Bank>>(order: &Order<'_>) -> Ran {
    let shot =
        |node: u32, at_ms| snapshot::Shot { at: Duration::from_millis(at_ms), nodes: vec![NodeId(node)] };
    let mut scenario =
        snapshot::Scenario::of(P::CARD.name).with(|work| work.snapshots = vec![shot(0, 10), shot(3, 11)]);
    scenario.world = order.world(Setup { nodes: 4, ..random(scenario.world) }, "10ms")?;
    let flaw = order.flaw.to_owned();
    let make = move |me, nodes, app| Flawed::<P, OfSnapshot>::new(P::new(me, nodes, app), &flaw);
    let (report, trace) = snapshot::run_made(&scenario, make, order.wants_kinds)?;
    Ok((report.facts, kinds_of::<P, OfSnapshot>(trace.as_ref())))
}

/// A network whose delays vary little, and one crash.
fn of_detector<P: Fallible + Detector>(order: &Order<'_>) -> Ran {
    let duration = Duration::from_secs(20);
    let mut scenario = detector::Scenario::of(P::CARD.name).with(|work| work.duration = duration);
    let setup = Setup { nodes: 3, ..scenario.world };
    // Without a crash, nothing puts completeness to the test.
    scenario.world = order.world(setup, "8s")?;
    if order.without.is_none() {
        scenario.world.faults.push(Fault::parse_crash("2@8s")?);
    }
    let flaw = order.flaw.to_owned();
    let make = move |me, group: &conclave_algorithms::detector::Group| {
        Flawed::<P, OfDetector>::new(P::new(me, group), &flaw)
    };
    let (report, trace) = detector::run_made(&scenario, make, order.wants_kinds)?;
    Ok((report.facts, kinds_of::<P, OfDetector>(trace.as_ref())))
}

/// Transactions over locks.
fn of_locking<P: Fallible + Locking>(order: &Order<'_>) -> Ran {
    let mut scenario = deadlock::Scenario::of(P::CARD.name);
    scenario.world = order.world(random(scenario.world), "10ms")?;
    let flaw = order.flaw.to_owned();
    let make = move |me, estate: &locking::Estate| Flawed::<P, OfLocking>::new(P::new(me, estate), &flaw);
    let (report, trace) = deadlock::run_way_made(&scenario, make, order.wants_kinds)?;
    Ok((report.facts, kinds_of::<P, OfLocking>(trace.as_ref())))
}

/// Clocks that are wrong and drift, on a network with random delays.
fn of_timesync<P: Fallible + TimeSync>(order: &Order<'_>) -> Ran {
    let mut scenario = timesync::Scenario::of(P::CARD.name);
    scenario.world = order.world(scenario.world, "10s")?;
    let flaw = order.flaw.to_owned();
    let make = move |me, group: &conclave_algorithms::timesync::Group| {
        Flawed::<P, OfTimeSync>::new(P::new(me, group), &flaw)
    };
    let (report, trace) = timesync::run_made(&scenario, make, order.wants_kinds)?;
    Ok((report.facts, kinds_of::<P, OfTimeSync>(trace.as_ref())))
}

/// Returns the kinds of the messages of a recorded run, in order of their first appearance.
fn kinds_of<P: Protocol, V: View<P>>(trace: Option<&Recording>) -> Vec<&'static str> {
    let mut kinds = Vec::new();
    for record in trace.into_iter().flat_map(Recording::records) {
        let RawRecord::Step(step) = record else { continue };
        for effect in step.effects {
            let (RawEffect::Send { message, .. }
            | RawEffect::SendTo { message, .. }
            | RawEffect::Broadcast { message }) = effect
            else {
                continue;
            };
            let kind = serde_json::from_str(message.text()).map(|message| V::kind(&message));
            if let Ok(kind) = kind
                && !kinds.contains(&kind)
            {
                kinds.push(kind);
            }
        }
    }
    kinds
}
