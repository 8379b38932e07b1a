//! `conclave check` without a size: explorations of growing size, until a limit of time is over.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use conclave_kernel::Card;
use conclave_lab::case::{self, PropertyVerdict, Word};
use conclave_lab::deepen::{Deepened, Found, Plan, Size, deepen};
use conclave_lab::log::Log;
use serde::Serialize;

use super::{Args, counted, exit, in_words, task, watched, write_counterexample};
use crate::output::{self, Done, Failure, Paint};

/// The time after which a deepening ends if `--within` is not given.
const DEFAULT_TIME: Duration = Duration::from_secs(10);

/// The flags that describe one exploration, besides those of the work.
const OF_ONE: [&str; 8] = ["order", "loss", "duplicate", "crash", "recovery", "sync", "depth_first", "cost"];

/// Returns whether the flags leave the size of the exploration open.
pub(super) fn is_open(args: &Args) -> bool {
    !args.work.has_any_explored() && OF_ONE.iter().all(|flag| !args.work.has(flag))
}

/// Explores an algorithm at growing sizes.
pub(super) fn run(args: &Args, card: &Card) -> Done {
    let default = Plan::default();
    let plan = Plan {
        within: args.within.unwrap_or(DEFAULT_TIME),
        most_states: args.most_states,
        threads: args.threads.unwrap_or(default.threads),
        ..default
    };
    let plan = if args.work.has("nodes") { plan.with_nodes(args.space.nodes) } else { plan };
    let began = Instant::now();
    let deepened = watched(card.name, |watcher| deepen(card, args.mutant.as_deref(), &plan, watcher))?;
    if let Some(Found { property, why, counterexample, .. }) = &deepened.found {
        write_counterexample(args, property, why, counterexample)?;
    }
    let outcome = Outcome::of(&deepened, began.elapsed());
    outcome.show(args, &deepened)?;
    Ok(exit(outcome.word == Word::Violated, outcome.word != Word::Holds))
}

/// The verdict over all promised properties.
struct Outcome {
    word: Word,
    /// The size of the violation; without one, the largest size of which every execution was explored.
    size: Option<Size>,
    verdicts: Vec<PropertyVerdict>,
    time: Duration,
}

impl Outcome {
    fn of(deepened: &Deepened, time: Duration) -> Self {
        let verdicts: Vec<_> = deepened.properties.iter().map(|depth| depth.verdict.clone()).collect();
        let is_bounded = verdicts.iter().any(|verdict| verdict.promised && verdict.word == Word::Bounded);
        let (word, size) = match &deepened.found {
            Some(found) => (Word::Violated, Some(found.size)),
            None if is_bounded || deepened.finished().is_none() => (Word::Bounded, deepened.finished()),
            None if !case::any_promise_judged(&verdicts) => (Word::NotJudged, deepened.finished()),
            None => (Word::Holds, deepened.finished()),
        };
        Self { word, size, verdicts, time }
    }

    fn show(&self, args: &Args, deepened: &Deepened) -> Result<(), Failure> {
        let steps = |found: &Found| -> Result<Vec<String>, Failure> {
            let mut log = Log::from_trace(&found.counterexample.trace)?;
            log.set_verbose(args.verbose);
            Ok(in_words(&log, args.picture.states && !args.json))
        };
        let steps = deepened.found.as_ref().map(steps).transpose()?;
        if args.json {
            return output::print_json(&self.json(args, deepened, steps));
        }
        output::print(&self.describe(args, deepened, &steps.unwrap_or_default()));
        Ok(())
    }

    fn json<'a>(&'a self, args: &'a Args, deepened: &'a Deepened, steps: Option<Vec<String>>) -> Json<'a> {
        let finished = |depth: &conclave_lab::deepen::Depth| Some((depth.verdict.property, depth.finished?));
        let unpromised = |found: &'a Found| Unpromised {
            property: found.property,
            why: &found.why,
            size: found.size,
            variant: &found.variant,
            steps: found.counterexample.steps,
        };
        Json {
            algorithm: &args.algorithm,
            nodes: self.size.map(|size| size.nodes),
            entries: self.size.map(|size| size.entries),
            states: deepened.states(),
            seconds: self.time.as_secs_f64(),
            verdict: self.word,
            property: deepened.found.as_ref().map(|found| found.property),
            variant: deepened.found.as_ref().map(|found| found.variant.as_str()),
            why: deepened.found.as_ref().map(|found| found.why.as_str()),
            counterexample: steps,
            properties: case::words(&self.verdicts),
            finished: deepened.properties.iter().filter_map(finished).collect(),
            not_judged: case::reasons(&self.verdicts),
            unpromised: deepened.unpromised.iter().map(unpromised).collect(),
        }
    }

    fn describe(&self, args: &Args, deepened: &Deepened, steps: &[String]) -> String {
        let paint = Paint::stdout();
        let word = match self.word {
            Word::Holds => paint.good("holds"),
            Word::Violated => paint.bad("violated"),
            Word::Bounded => paint.bold("bounded"),
            Word::NotJudged => paint.bold("not judged"),
        };
        let title = paint.bold(args.mutant.as_ref().unwrap_or(&args.algorithm));
        let size = self.size.map_or("no size finished".into(), |size| words(args, size));
        let mut text = format!("{title}  {size}: {word}\n\n");
        let mut line = |name: &str, value: String| _ = writeln!(text, "  {name:<22}{value}");
        line("states", deepened.states().to_string());
        line("seconds", format!("{:.2}", self.time.as_secs_f64()));
        let variant = deepened.found.as_ref().map(|found| found.variant.as_str());
        if let Some(variant) = variant.filter(|variant| !variant.is_empty()) {
            line("with", variant.into());
        }
        text.push('\n');
        for depth in &deepened.properties {
            let PropertyVerdict { property, promised, word, why_not } = &depth.verdict;
            let word = match word {
                Word::Holds => {
                    let size = depth.finished.map_or_else(String::new, |size| words(args, size));
                    format!("{} up to {size}", paint.good("holds"))
                }
                Word::Violated => format!("{}: {}", paint.bad("violated"), why(deepened, property)),
                Word::Bounded => paint.bold("bounded"),
                Word::NotJudged => {
                    paint.dim(&format!("not judged: {}", why_not.as_deref().unwrap_or_default()))
                }
            };
            let promised = if *promised { "" } else { " (not promised)" };
            _ = writeln!(text, "  {property:<22}{word}{promised}");
        }
        for (number, step) in steps.iter().enumerate() {
            _ = writeln!(text, "  {number:>4}  {step}");
        }
        text
    }
}

/// Returns a size in words.
fn words(args: &Args, Size { nodes, entries }: Size) -> String {
    match args.algorithm.starts_with("detector/") {
        true => format!("N = {nodes}"),
        false => format!("N = {nodes}, {} a site", counted(entries, task(&args.algorithm))),
    }
}

/// Returns the violation of a property in a sentence.
fn why<'d>(deepened: &'d Deepened, property: &str) -> &'d str {
    let mut found = deepened.found.iter().chain(&deepened.unpromised);
    found.find(|found| found.property == property).map_or("", |found| &found.why)
}

/// The JSON object.
#[derive(Serialize)]
struct Json<'a> {
    algorithm: &'a str,
    /// The size of the violation; without one, the largest size of which every execution was explored; null
    /// if there is none.
    nodes: Option<u32>,
    entries: Option<u8>,
    states: u64,
    seconds: f64,
    verdict: Word,
    property: Option<&'static str>,
    /// The difference of the exploration from the plain one; empty if there is none.
    variant: Option<&'a str>,
    why: Option<&'a str>,
    /// The steps, in words; null if there is none.
    counterexample: Option<Vec<String>>,
    /// The verdict on each property: holds, violated, bounded or not_judged.
    properties: BTreeMap<&'static str, Word>,
    /// The largest size up to which each property holds.
    finished: BTreeMap<&'static str, Size>,
    /// The reason for each property that was not judged.
    not_judged: BTreeMap<&'static str, &'a str>,
    /// The violations of properties that the algorithm does not promise.
    unpromised: Vec<Unpromised<'a>>,
}

/// A violation of a property that the algorithm does not promise.
#[derive(Serialize)]
struct Unpromised<'a> {
    property: &'static str,
    why: &'a str,
    size: Size,
    variant: &'a str,
    steps: u32,
}
