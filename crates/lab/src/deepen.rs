//! Explorations of growing size, until a limit of time is over.
//!
//! A wrong algorithm may pass at one size and fail at the next: a deadlock may need two entries a site, or a
//! third site. [`deepen`] explores the sizes of [`SIZES`] in order. At each size it explores the algorithm over
//! the links that it needs, and once more for each property that needs a larger state and for each fault that
//! the algorithm tolerates (`variants`).
//!
//! **Rules.**
//! 1. The first round explores [`FIRST_STATES`] states of every variant of every size, on one thread. So the
//!    same algorithm has the same counterexample on every machine that finishes this round.
//! 2. Each further round explores ten times as many states of the variants that are not finished. So a large
//!    variant of a small size does not hide a violation of a larger size.
//! 3. It stops at the first violation of a promised property.
//! 4. A property holds at a size only if every variant that judges the property was finished at that size and
//!    at all smaller ones. A variant is finished if all its executions were explored, also the endless ones.
//!
//! **Trap**: requests without end make a finite graph only if the algorithm has no numbers that grow. The
//! variants with endless requests therefore run in the first two rounds only, and no verdict names their size.

use std::time::{Duration, Instant};

use conclave_algorithms::mutants::{self, Catch};
use conclave_algorithms::quorum::Quorum;
use conclave_check::{Bounds, Counterexample, Cycles, Options, Recovery, Report, Verdict, Watcher};
use conclave_kernel::Card;
use serde::Serialize;

use crate::case::{Case, Explored, PropertyVerdict, Word};
use crate::experiment::{Experiment, Space};
use crate::problems::{deadlock, detector, election, mutex, snapshot};

/// The size of an exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// N.
    pub nodes: u32,
    /// The number of entries, calls or transfers of each site.
    pub entries: u8,
}

impl Size {
    const fn of(nodes: u32, entries: u8) -> Self {
        Self { nodes, entries }
    }
}

/// The sizes in the order in which they are explored.
pub const SIZES: [Size; 6] =
    [Size::of(2, 1), Size::of(2, 2), Size::of(3, 1), Size::of(3, 2), Size::of(4, 1), Size::of(3, 3)];

/// The number of states of each variant that the first round explores.
pub const FIRST_STATES: u64 = 100_000;

/// The limits of a deepening.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The sizes in order.
    pub sizes: Vec<Size>,
    /// The time after which no exploration continues.
    pub within: Duration,
    /// The number of states at which the exploration of a variant stops.
    pub most_states: u64,
    /// The number of threads of all rounds after the first.
    pub threads: usize,
}

impl Default for Plan {
    fn default() -> Self {
        let Options { threads, bounds, .. } = Options::default();
        Self { sizes: SIZES.to_vec(), within: Duration::from_secs(10), most_states: bounds.states, threads }
    }
}

impl Plan {
    /// Keeps only the sizes with this number of sites. If there are none, explores one to three entries.
    #[must_use]
    pub fn with_nodes(self, nodes: u32) -> Self {
        let mut sizes: Vec<_> = self.sizes.iter().copied().filter(|size| size.nodes == nodes).collect();
        if sizes.is_empty() {
            sizes = (1..=3).map(|entries| Size { nodes, entries }).collect();
        }
        Self { sizes, ..self }
    }
}

/// The result of a deepening.
#[derive(Debug)]
pub struct Deepened {
    /// The verdict on each property of the problem, with its size.
    pub properties: Vec<Depth>,
    /// The first violation of a promised property.
    pub found: Option<Found>,
    /// The violations of properties that the algorithm does not promise.
    pub unpromised: Vec<Found>,
    /// All explorations, in order.
    pub explorations: Vec<Exploration>,
    /// The kinds of messages that were sent, in order of their first appearance.
    pub kinds: Vec<&'static str>,
}

/// A verdict on a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Depth {
    /// The verdict over all sizes.
    pub verdict: PropertyVerdict,
    /// The largest size up to which the property holds in every execution.
    pub finished: Option<Size>,
}

/// A violation.
#[derive(Debug)]
pub struct Found {
    /// The size.
    pub size: Size,
    /// The variant, as in [`Exploration::variant`].
    pub variant: String,
    /// The property.
    pub property: &'static str,
    /// The violation in a sentence.
    pub why: String,
    /// The counterexample.
    pub counterexample: Counterexample,
}

/// One exploration.
#[derive(Clone, Debug)]
pub struct Exploration {
    /// The size.
    pub size: Size,
    /// The difference from the plain exploration; empty if there is none.
    pub variant: String,
    /// The number of states.
    pub states: u64,
    /// Whether every execution was explored, also the endless ones.
    pub is_finished: bool,
    /// Whether it stopped at the violation of a property that the algorithm does not promise.
    pub is_refutation: bool,
    verdicts: Vec<PropertyVerdict>,
}

impl Deepened {
    /// Returns the largest size up to which every variant was finished; `None` if no size was.
    pub fn finished(&self) -> Option<Size> {
        largest_finished(self.explorations.iter())
    }

    /// Returns the number of states of all explorations.
    pub fn states(&self) -> u64 {
        self.explorations.iter().map(|exploration| exploration.states).sum()
    }
}

/// Explores an algorithm, or one of its mutants, at growing sizes. The error is the reason why the algorithm
/// cannot be explored at all.
pub fn deepen(
    card: &Card,
    mutant: Option<&str>,
    plan: &Plan,
    watcher: Watcher<'_>,
) -> Result<Deepened, String> {
    let card = match card.problem {
        // A mutant may be a version of the algorithm that promises less.
        "mutex" => mutex::check::entry(mutant, card.name)?.card,
        _ => card,
    };
    let mut search = Deepening {
        card,
        mutant,
        plan,
        began: Instant::now(),
        explored: Vec::new(),
        found: Vec::new(),
        kinds: Vec::new(),
    };
    let mut states = FIRST_STATES.min(plan.most_states);
    loop {
        search.round(states, watcher)?;
        if states == plan.most_states || !search.goes_on() || search.is_finished() {
            break;
        }
        states = states.saturating_mul(10).min(plan.most_states);
    }
    Ok(search.finish())
}

/// The state of a deepening.
struct Deepening<'a> {
    card: &'a Card,
    mutant: Option<&'a str>,
    plan: &'a Plan,
    began: Instant,
    explored: Vec<Exploration>,
    found: Vec<Found>,
    kinds: Vec<&'static str>,
}

impl Deepening<'_> {
    /// Explores so many states of every variant that is not finished.
    fn round(&mut self, states: u64, watcher: Watcher<'_>) -> Result<(), String> {
        let threads = if states > FIRST_STATES { self.plan.threads } else { 1 };
        for size in &self.plan.sizes {
            for variant in variants(self.card, self.mutant, *size)? {
                let is_endless = variant.is_endless && states > ENDLESS_STATES;
                if is_endless || self.is_known(*size, &variant) || !self.goes_on() {
                    continue;
                }
                let time = self.plan.within.saturating_sub(self.began.elapsed());
                let bounds = Bounds { states, time, ..Bounds::default() };
                let options = Options { threads, bounds, ..Options::default() };
                self.explore(*size, variant, &options, watcher)?;
            }
        }
        Ok(())
    }

    /// Returns whether nothing more can be learned from the variant: it is finished at this size, or it only
    /// repeats that a property does not hold which nobody promised.
    fn is_known(&self, size: Size, variant: &Variant) -> bool {
        let is_finished = |it: &Exploration| it.size == size && it.variant == variant.name && it.is_finished;
        self.explored.iter().any(is_finished) || self.found.iter().any(|found| found.variant == variant.name)
    }

    /// Returns whether everything that a further round would explore is finished.
    fn is_finished(&self) -> bool {
        let is_known = |it: &Exploration| it.is_finished || it.is_refutation || it.variant.ends_with(ENDLESS);
        self.explored.iter().all(is_known)
    }

    fn goes_on(&self) -> bool {
        let is_broken = self.found.iter().any(|found| self.card.promises(found.property));
        !is_broken && self.began.elapsed() < self.plan.within
    }

    fn explore(
        &mut self,
        size: Size,
        variant: Variant,
        options: &Options,
        watcher: Watcher<'_>,
    ) -> Result<(), String> {
        let report = variant.case.explore(options, watcher)?;
        let verdicts = variant.case.judge(self.card, &report);
        let is_new = |kind: &&str| !self.kinds.contains(kind);
        let new: Vec<_> = report.kinds.iter().copied().filter(is_new).collect();
        self.kinds.extend(new);
        let exploration = Exploration {
            size,
            variant: variant.name.clone(),
            states: report.states,
            is_finished: report.verdict == Verdict::Holds && report.cycles == Cycles::Judged,
            is_refutation: report.property.is_some_and(|property| !self.card.promises(property)),
            verdicts,
        };
        match self.explored.iter_mut().find(|known| (known.size, &known.variant) == (size, &variant.name)) {
            Some(known) => *known = exploration,
            None => self.explored.push(exploration),
        }
        let Report { property, why, counterexample, .. } = report;
        if let (Some(property), Some(counterexample)) = (property, counterexample) {
            let (variant, why) = (variant.name, why.unwrap_or_default());
            self.found.push(Found { size, variant, property, why, counterexample });
        }
        Ok(())
    }

    fn finish(self) -> Deepened {
        let mut properties: Vec<Depth> = Vec::new();
        for verdict in self.explored.iter().flat_map(|exploration| &exploration.verdicts) {
            if properties.iter().all(|depth| depth.verdict.property != verdict.property) {
                properties.push(summary(verdict.property, &self.explored));
            }
        }
        let is_promised = |found: &Found| self.card.promises(found.property);
        let (promised, unpromised): (Vec<_>, Vec<_>) = self.found.into_iter().partition(is_promised);
        let found = promised.into_iter().next();
        Deepened { properties, found, unpromised, explorations: self.explored, kinds: self.kinds }
    }
}

/// Returns the verdict on a property over all explorations.
fn summary(property: &str, explored: &[Exploration]) -> Depth {
    let of_property = |exploration: &Exploration| {
        let mut verdicts = exploration.verdicts.iter();
        verdicts.find(|verdict| verdict.property == property).cloned()
    };
    let judged = explored.iter().filter(|it| of_property(it).is_some_and(|it| it.word != Word::NotJudged));
    let words: Vec<_> = explored.iter().filter_map(of_property).collect();
    let with = |word: Word| words.iter().find(|verdict| verdict.word == word).cloned();
    let finished = largest_finished(judged);
    let holds = with(Word::Holds).filter(|_| finished.is_some());
    let bounded = with(Word::Bounded).or_else(|| {
        let unfinished = with(Word::Holds)?;
        Some(PropertyVerdict { word: Word::Bounded, ..unfinished })
    });
    let verdict = with(Word::Violated).or(holds).or(bounded).or_else(|| with(Word::NotJudged));
    let verdict = verdict.expect("some exploration has a verdict on the property");
    Depth { finished: finished.filter(|_| verdict.word == Word::Holds), verdict }
}

/// Returns the last size before the first one with an unfinished exploration. Endless requests do not count.
fn largest_finished<'e>(explored: impl Iterator<Item = &'e Exploration> + Clone) -> Option<Size> {
    let sized = explored.filter(|exploration| !exploration.variant.ends_with(ENDLESS));
    let is_open =
        |size: Size| sized.clone().any(|it| it.size == size && !it.is_finished && !it.is_refutation);
    let mut sizes: Vec<Size> = Vec::new();
    for exploration in sized.clone() {
        if !sizes.contains(&exploration.size) {
            sizes.push(exploration.size);
        }
    }
    sizes.into_iter().take_while(|size| !is_open(*size)).last()
}

/// A case, and its difference from the plain exploration of the same size.
struct Variant {
    name: String,
    case: Box<dyn Case>,
    /// Whether its graph may have no end although the size is small.
    is_endless: bool,
}

impl Variant {
    fn new(name: &str, case: impl Case + 'static) -> Self {
        Self { name: name.to_owned(), case: Box::new(case), is_endless: name.ends_with(ENDLESS) }
    }
}

const ENDLESS: &str = "endless requests";

/// The most states of a variant with endless requests.
const ENDLESS_STATES: u64 = 10 * FIRST_STATES;

/// Returns the variants of a size. The error is the reason why there are none.
fn variants(card: &Card, mutant: Option<&str>, size: Size) -> Result<Vec<Variant>, String> {
    let Size { nodes, entries } = size;
    let flaw = mutant.map(str::to_owned);
    Ok(match card.problem {
        "mutex" => {
            mutexes(&mutex::check::Case { flaw, ..mutex::check::Case::of(card, nodes, entries) }, card)
        }
        "election" => {
            let plain = election::Case { flaw, ..election::Case::of(card, nodes, entries) };
            let mut all = faulty(&plain, card);
            // Among three sites, one that recovers during an announcement may leave another with the wrong
            // leader, although no site breaks a rule.
            if !card.needs.no_crash && nodes == 2 {
                let mut recovers = plain.with(|work| work.judged = election::Judged::Outcome);
                (recovers.world.crash, recovers.world.recovery) = (1, Some(Recovery::Stable));
                all.push(Variant::new("a crash and a recovery", recovers));
            }
            all
        }
        "snapshot" => faulty(&snapshot::Case { flaw, ..snapshot::Case::of(card, nodes, entries) }, card),
        "detector" => faulty(&detector::Case { flaw, ..detector::Case::of(card, nodes) }, card),
        "deadlock" => {
            let plain = deadlock::Case { flaw, ..deadlock::Case::of(card, nodes, entries) };
            let resolving = plain.clone().with(|work| work.resolves = true);
            let judges_phantoms = plain.judges_phantoms();
            let mut all =
                vec![Variant::new("", plain), Variant::new("deadlocks are resolved", resolving.clone())];
            if !judges_phantoms {
                all.push(Variant::new("phantoms", resolving.with(|work| work.phantoms = true)));
            }
            all
        }
        problem => return Err(format!("the checker has no model of problem {problem}")),
    })
}

/// Returns a case without faults, and once more with each fault that the algorithm tolerates.
fn faulty<W: Explored>(plain: &Experiment<W, Space>, card: &Card) -> Vec<Variant> {
    let mut all = vec![Variant::new("", plain.clone())];
    all.extend(tolerating(plain, card));
    all
}

/// Whether the algorithm excludes the fault, the name of the fault, and the change of the space.
type Fault = (bool, &'static str, fn(&mut Space));

/// Returns a case with each fault that the algorithm tolerates.
fn tolerating<W: Explored>(
    plain: &Experiment<W, Space>,
    card: &Card,
) -> impl Iterator<Item = Variant> + use<W> {
    let (needs, plain) = (card.needs, plain.clone());
    let all: [Fault; 3] = [
        (needs.no_loss, "a lost message", |space| space.loss = 1),
        (needs.no_duplication, "a duplicated message", |space| space.duplicate = 1),
        (needs.no_crash, "a crash", |space| space.crash = 1),
    ];
    all.into_iter().filter(|(is_needed, ..)| !is_needed).map(move |(_, name, fault)| {
        let mut case = plain.clone();
        fault(&mut case.world);
        Variant::new(name, case)
    })
}

/// The variants of a mutex: other quorums, causality, the faults that it tolerates, and endless requests.
fn mutexes(plain: &mutex::check::Case, card: &Card) -> Vec<Variant> {
    if is_for_endless_requests(plain.flaw.as_deref()) {
        return Vec::from_iter((plain.work.entries == 1).then(|| Variant::new(ENDLESS, endless(plain))));
    }
    let mut all = vec![Variant::new("", plain.clone())];
    if mutex::uses_quorums(card.name) {
        let with_all = plain.clone().with(|work| work.quorum = Some(Quorum::All));
        all.push(Variant::new("quorums of all sites", with_all));
    }
    let is_layered = conclave_algorithms::mutex::LAYERED.iter().any(|known| known.name == card.name);
    if !is_layered {
        let judged = |judged| plain.clone().with(|work| work.judged = Some(judged));
        if !card.promises("ME3") {
            all.push(Variant::new("causality", judged(mutex::check::Judged::Causality)));
        }
        let order = judged(mutex::check::Judged::Order);
        all.push(Variant::new("causality and messages of applications", order));
    }
    all.extend(tolerating(plain, card));
    if plain.work.entries == 1 && !is_layered {
        all.push(Variant::new(ENDLESS, endless(plain)));
    }
    all
}

fn endless(plain: &mutex::check::Case) -> mutex::check::Case {
    plain.clone().with(|work| {
        work.entries = mutex::check::FOREVER;
        work.judged = Some(mutex::check::Judged::Exclusion);
    })
}

/// Returns whether the mutant is a version of its algorithm that is made for endless requests alone.
fn is_for_endless_requests(mutant: Option<&str>) -> bool {
    let known = mutants::all().find(|known| Some(known.name) == mutant);
    known.is_some_and(
        |known| matches!(known.catch, Catch::Check { world, .. } if world.entries == mutants::FOREVER),
    )
}
