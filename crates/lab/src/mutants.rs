//! The examination of the mutants: each runs in the world in which it should be caught.
//!
//! A mutant that is caught by nothing says that the check is too weak, and a correct algorithm that is
//! "caught" says that it is wrong: both happen here, and [`honest`] runs every algorithm through the worlds
//! of its own mutants. This module knows no problem: the mutants come from [`mutants::all`], and their
//! problem determines how they are run.

use std::ops::Range;
use std::time::Duration;

use conclave_algorithms::mutants::flawed::Flawed;
use conclave_algorithms::mutants::{self, Catch, FOREVER, Mutant};
use conclave_algorithms::mutex::mutants::OfMutex;
use conclave_algorithms::mutex::{self, FairRing, Group, Mutex as _};
use conclave_algorithms::snapshot::bank::Bank;
use conclave_algorithms::snapshot::mutants::OfSnapshot;
use conclave_algorithms::snapshot::{self as snapshots, ChandyLamport, Snapshot as _};
use conclave_check::{Bounds, Costs, Options, Sometimes, Verdict};
use conclave_kernel::{Card, Property};
use conclave_sim::Delay;
use serde::Serialize;

use crate::case;
use crate::problem::Facts;
use crate::problems::mutex::check::Judged;
use crate::problems::mutex::{Scenario, Workload, run_made};
use crate::problems::snapshot;

/// What came of looking at a mutant. The names are those of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The mutant's name.
    pub name: &'static str,
    /// `problem/algorithm`.
    pub algorithm: String,
    /// What is wrong with it.
    pub flaw: &'static str,
    /// Who got it wrong like this, or says so.
    pub source: &'static str,
    /// Whether it is listed as harmless.
    pub harmless: bool,
    /// Whether it broke a property within its budget.
    pub caught: bool,
    /// Which.
    pub by: Option<String>,
    /// Who looked: `check` or `sim`.
    pub world: &'static str,
    /// After how many states, or seeds.
    pub after: u64,
    /// The budget.
    pub within: u64,
    /// How many steps the counterexample has.
    pub steps: Option<u32>,
    /// How many steps one has that was published or found elsewhere.
    pub published_steps: Option<u32>,
    /// If it is harmless: the messages of all executions, the correct algorithm's first.
    pub messages: Option<[Messages; 2]>,
    /// The command that explores the mutant in its world; `None` if the simulator ran it.
    pub command: Option<String>,
}

/// The fewest and the most messages of all executions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Messages {
    /// The fewest.
    pub min: u32,
    /// The most; `None` if there is no bound.
    pub max: Option<u32>,
}

impl From<Costs> for Messages {
    fn from(costs: Costs) -> Self {
        Self { min: costs.total.min, max: costs.total.max }
    }
}

impl Finding {
    /// Whether it is as the table says: the harmful are caught, the harmless are not.
    pub fn is_expected(&self) -> bool {
        self.caught != self.harmless
    }
}

/// Looks at a mutant, with so many threads.
pub fn examine(mutant: &'static Mutant, threads: usize) -> Result<Finding, String> {
    let mut finding = Finding {
        name: mutant.name,
        algorithm: mutant.path().to_string(),
        flaw: mutant.flaw,
        source: mutant.source,
        harmless: mutant.is_harmless(),
        caught: false,
        by: None,
        world: "check",
        after: 0,
        within: 0,
        steps: None,
        published_steps: mutant.published_steps,
        messages: None,
        command: None,
    };
    match mutant.catch {
        Catch::Check { world, states } => {
            let honest = case::of_mutant(mutant, &world, false)?;
            let flawed = case::of_mutant(mutant, &world, true)?;
            let options = options(states, threads);
            let outcome = flawed.explore(&options, &mut case::unwatched)?;
            finding.command = Some(flawed.command_line());
            finding.caught = outcome.is_broken();
            finding.by = outcome.property.map(Into::into);
            (finding.after, finding.within) = (outcome.states, states);
            finding.steps = outcome.counterexample.map(|found| found.steps);
            if mutant.is_harmless() {
                if outcome.verdict == Verdict::Bounded {
                    return Err(format!("{}: {}", mutant.name, outcome.why.unwrap_or_default()));
                }
                if world.entries != FOREVER {
                    finding.messages = Some([honest.costs(&options)?.into(), flawed.costs(&options)?.into()]);
                }
            }
        }
        Catch::Sim { nodes, relay, seeds } => {
            let caught = simulate(mutant, true, nodes, relay, 0..seeds)?;
            finding.world = "sim";
            finding.within = seeds;
            finding.after = caught.as_ref().map_or(seeds, |(tried, _)| *tried);
            finding.caught = caught.is_some();
            finding.by = caught.map(|(_, property)| property);
        }
    }
    Ok(finding)
}

/// Runs seeds of a mutant, or of the algorithm without the flaw, until a promised property breaks: how many
/// that took, and which property.
fn simulate(
    mutant: &Mutant,
    flawed: bool,
    nodes: u32,
    relay: bool,
    seeds: Range<u64>,
) -> Result<Option<(u64, String)>, String> {
    for (tried, seed) in (1..).zip(seeds) {
        // Every type is run by code of its own: those that need it have it.
        let broken = match mutant.algorithm {
            "fair-ring" => fair_ring(if flawed { mutant.name } else { "" }, nodes, relay, seed)?,
            "chandy-lamport" => chandy_lamport(if flawed { mutant.name } else { "" }, nodes, seed)?,
            _ => {
                return Err(format!(
                    "{}: the simulator runs no mutants of {}",
                    mutant.name, mutant.algorithm
                ));
            }
        };
        if let Some(property) = broken {
            return Ok(Some((tried, property)));
        }
    }
    Ok(None)
}

/// Which promised property a run of the fair ring with that flaw breaks first.
fn fair_ring(flaw: &'static str, nodes: u32, relay: bool, seed: u64) -> Result<Option<String>, String> {
    let load = if relay { Workload::Relay } else { Workload::High };
    let mut scenario = Scenario::of("fair-ring").with(|work| {
        work.load = load;
        work.entries = 20;
    });
    scenario.world.nodes = nodes;
    scenario.world.seed = seed;
    scenario.world.delay = Delay::Exponential(Duration::from_millis(1));
    let make = move |me, group: &Group| Flawed::<_, OfMutex>::new(FairRing::new(me, group), flaw);
    scenario.world.budget = BUDGET;
    let (report, _) = run_made(&scenario, make, false)?;
    Ok(broken(&report.facts, &mutex::spec::ME2))
}

/// The number of events without progress that are enough in the small worlds of the mutants.
const BUDGET: u64 = 1_000_000;

/// Returns the promised property that a run broke first. A livelock breaks the property that must hold
/// eventually: in these small worlds a correct algorithm always makes progress.
fn broken(facts: &Facts, eventually: &Property) -> Option<String> {
    let livelock = facts.is_bounded().then(|| eventually.name.to_owned());
    facts.violations.first().map(|violation| violation.property.clone()).or(livelock)
}

/// The same of Chandy-Lamport, with two snapshots under way at once.
fn chandy_lamport(flaw: &'static str, nodes: u32, seed: u64) -> Result<Option<String>, String> {
    let shot = |node: u32, at_ms: u64| snapshot::Shot {
        at: Duration::from_millis(at_ms),
        nodes: vec![conclave_kernel::NodeId(node)],
    };
    let mut scenario =
        snapshot::Scenario::default().with(|work| work.snapshots = vec![shot(0, 10), shot(nodes - 1, 11)]);
    scenario.world.nodes = nodes;
    scenario.world.seed = seed;
    scenario.world.delay = Delay::Exponential(Duration::from_millis(1));
    let make = move |me, nodes, app: Bank| {
        Flawed::<_, OfSnapshot>::new(ChandyLamport::<Bank>::new(me, nodes, app), flaw)
    };
    scenario.world.budget = BUDGET;
    let (report, _) = snapshot::run_made(&scenario, make, false)?;
    Ok(broken(&report.facts, &snapshots::spec::COMPLETE))
}

fn options(states: u64, threads: usize) -> Options {
    Options { threads, bounds: Bounds { states, ..Bounds::default() }, ..Options::default() }
}

/// What a correct algorithm did in the world of one of its mutants.
#[derive(Clone, Debug)]
pub struct Honest {
    /// The mutant whose world it was.
    pub beside: &'static str,
    /// The algorithm.
    pub algorithm: &'static str,
    /// Nothing, or which property broke and how.
    pub broke: Option<String>,
    /// Whether everything was explored; the simulator never does.
    pub complete: bool,
    /// What was seen on the way.
    pub sometimes: Vec<Sometimes>,
    /// The kinds of messages that were sent.
    pub kinds: Vec<&'static str>,
}

/// Runs an algorithm through the worlds of its mutants, as far as it stands them: it must keep its promises
/// in all. `states` bounds each exploration.
pub fn honest(card: &'static Card, states: u64, threads: usize) -> Result<Vec<Honest>, String> {
    let mut seen: Vec<(Catch, Option<Judged>)> = Vec::new();
    let mut all = Vec::new();
    for mutant in
        mutants::all().filter(|mutant| mutant.problem == card.problem && mutant.algorithm == card.name)
    {
        // What a problem judges may depend on the property; mutex alone has judges that others do without.
        let judged = mutant.breaks.map(Judged::for_property).filter(|_| card.problem == "mutex");
        let suits = match mutant.catch {
            // Numbers that grow for ever have no finite graph: such worlds are for those without numbers.
            Catch::Check { world, .. } => world.suits(card.needs) && world.entries != FOREVER,
            Catch::Sim { .. } => true,
        };
        let world_of = |catch: Catch| match catch {
            Catch::Check { world, .. } => Catch::Check { world, states: 0 },
            sim @ Catch::Sim { .. } => sim,
        };
        let key = (world_of(mutant.catch), judged);
        if suits && !seen.contains(&key) {
            seen.push(key);
            all.push(walk(mutant, states, threads)?);
        }
    }
    Ok(all)
}

/// The algorithm without the flaw in the world of a mutant.
fn walk(mutant: &'static Mutant, states: u64, threads: usize) -> Result<Honest, String> {
    let (beside, algorithm) = (mutant.name, mutant.algorithm);
    match mutant.catch {
        Catch::Check { world, .. } => {
            let options = options(states, threads);
            let outcome = case::of_mutant(mutant, &world, false)?.explore(&options, &mut case::unwatched)?;
            let why = outcome.why.unwrap_or_default();
            let broke = outcome.property.map(|property| format!("{property}: {why}"));
            let complete = outcome.verdict == Verdict::Holds;
            Ok(Honest {
                beside,
                algorithm,
                broke,
                complete,
                sometimes: outcome.sometimes,
                kinds: outcome.kinds,
            })
        }
        Catch::Sim { nodes, relay, seeds } => {
            let broke = simulate(mutant, false, nodes, relay, 0..seeds)?;
            let broke = broke.map(|(tried, property)| format!("{property} with seed {}", tried - 1));
            let (sometimes, kinds) = (Vec::new(), Vec::new());
            Ok(Honest { beside, algorithm, broke, complete: false, sometimes, kinds })
        }
    }
}
