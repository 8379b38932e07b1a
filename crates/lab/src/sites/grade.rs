//! A rubric: tests of a program, each with points.
//!
//! Each test runs seeds in the simulator, or explores every execution. A test gives all of its points or
//! none. A crash, an endless loop or nonsense of the program fails that test only.
//!
//! **Bounds.** The time of the whole rubric is divided over its tests: each gets an equal share of the time
//! that the tests before it left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use conclave_algorithms::mutex::spec::PROPERTIES;
use conclave_check::{Bounds, Options, Order, Verdict, unwatched};
use conclave_kernel::{Card, Verdict as PropertyVerdict, suggest};
use conclave_sim::Fault;
use serde::{Deserialize, Deserializer, Serialize};

use super::mutex::{checker_with, run_as};
use super::program::Program;
use super::repeat_with;
use crate::case::Case as _;
use crate::experiment::{Space, file};
use crate::problem::{Facts, Recorder};
use crate::problems::mutex::Scenario;
use crate::problems::mutex::check::{Case, Judged, Work};
use crate::sweep::sweep;

/// The tests of a rubric, as a TOML file has them. `docs/sites.md` describes the fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rubric {
    /// The title of the report.
    #[serde(default)]
    pub title: String,
    /// The time of all tests together, in seconds.
    #[serde(default = "default_seconds")]
    pub seconds: u64,
    /// The tests.
    pub test: Vec<Test>,
}

/// One test.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Test {
    /// The name in the report.
    pub name: String,
    /// The points of the test.
    pub points: u32,
    /// The properties that every run must keep, and some run must test. May be empty if there is another
    /// demand.
    #[serde(default)]
    pub properties: Vec<String>,
    /// The number of runs, each with its own seed.
    #[serde(default = "default_seeds")]
    pub seeds: u64,
    /// Whether each seed draws delays, pauses and partitions within the needs of the program.
    #[serde(default)]
    pub swarm: bool,
    /// The scenario, with the fields of `conclave sim --config`.
    #[serde(default, deserialize_with = "scenario")]
    pub scenario: Scenario,
    /// Crashes, in the notation of `conclave sim --crash`.
    #[serde(default)]
    pub crash: Vec<String>,
    /// Pauses, in the notation of `conclave sim --pause`.
    #[serde(default)]
    pub pause: Vec<String>,
    /// Partitions, in the notation of `conclave sim --partition`.
    #[serde(default)]
    pub partition: Vec<String>,
    /// The largest mean number of messages per entry over all runs.
    #[serde(default)]
    pub messages_per_entry: Option<f64>,
    /// Explores every execution instead of runs with seeds.
    #[serde(default)]
    pub explore: Option<Explore>,
}

/// The size of an exploration.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explore {
    /// The number of sites.
    pub nodes: u32,
    /// The number of requests of each site.
    pub entries: u8,
}

/// Reads a scenario that names only the fields that differ from the default.
fn scenario<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Scenario, D::Error> {
    let given = serde_json::Value::deserialize(deserializer)?;
    file::read(given, &Scenario::default()).map_err(serde::de::Error::custom)
}

const fn default_seconds() -> u64 {
    60
}

const fn default_seeds() -> u64 {
    100
}

/// The result of a rubric. The fields are those of the JSON object.
#[derive(Debug, Serialize)]
pub struct Grade {
    /// The path of the program.
    pub program: String,
    /// The title of the rubric.
    pub title: String,
    /// The points that the program got.
    pub points: u32,
    /// The points of all tests.
    pub of: u32,
    /// The result of each test.
    pub tests: Vec<Line>,
}

/// The result of one test.
#[derive(Debug, Serialize)]
pub struct Line {
    /// The name of the test.
    pub name: String,
    /// The points that the program got: all or 0.
    pub points: u32,
    /// The points of the test.
    pub of: u32,
    /// The evidence, or the reason for the failure.
    pub why: String,
    /// The command that repeats the first run that failed; `None` if no run failed.
    pub command: Option<String>,
}

impl Rubric {
    /// Checks the rubric. The error names the test.
    pub fn validate(&self) -> Result<(), String> {
        if self.test.is_empty() {
            return Err("the rubric has no test: add a [[test]]".into());
        }
        self.test
            .iter()
            .try_for_each(|test| test.validate().map_err(|why| format!("test \"{}\": {why}", test.name)))
    }

    /// Tests a program. Seeds begin at `seed_base`. `program` is called once, and its error fails all tests.
    pub fn grade(
        &self,
        path: &str,
        seed_base: u64,
        program: impl FnOnce() -> Result<Arc<Program>, String>,
    ) -> Grade {
        let end = Instant::now() + Duration::from_secs(self.seconds);
        let program = program();
        let mut tests = Vec::new();
        for (index, test) in self.test.iter().enumerate() {
            let left = (self.test.len() - index) as u32;
            let share = end.saturating_duration_since(Instant::now()) / left;
            let outcome = match &program {
                Ok(program) => test.run(program, path, seed_base, share),
                Err(why) => Err(Failed::because(why.clone())),
            };
            let (points, why, command) = match outcome {
                Ok(evidence) => (test.points, evidence, None),
                Err(Failed { why, command }) => (0, why, command),
            };
            tests.push(Line { name: test.name.clone(), points, of: test.points, why, command });
        }
        Grade {
            program: path.to_owned(),
            title: self.title.clone(),
            points: tests.iter().map(|line| line.points).sum(),
            of: tests.iter().map(|line| line.of).sum(),
            tests,
        }
    }
}

/// The reason for which a test failed.
struct Failed {
    why: String,
    command: Option<String>,
}

impl Failed {
    fn because(why: impl Into<String>) -> Self {
        Self { why: why.into(), command: None }
    }
}

/// The facts of one run that a test needs.
struct Run {
    facts: Facts,
    entries: u64,
}

impl Test {
    fn validate(&self) -> Result<(), String> {
        for property in &self.properties {
            let known = || PROPERTIES.iter().map(|property| property.name);
            if !known().any(|known| known == property) {
                return Err(suggest::unknown("property", property, known()));
            }
        }
        if self.properties.is_empty() && self.messages_per_entry.is_none() && self.explore.is_none() {
            return Err("it demands nothing: add properties, messages_per_entry or explore".into());
        }
        if self.seeds == 0 {
            return Err("it has no run: give at least one seed".into());
        }
        self.scenario_of("./program").map(|_| ())
    }

    /// Returns the scenario of the test for a program.
    fn scenario_of(&self, path: &str) -> Result<Scenario, String> {
        let mut scenario = self.scenario.clone();
        path.clone_into(&mut scenario.algorithm);
        let faults = &mut scenario.world.faults;
        for (texts, parse) in [
            (&self.crash, Fault::parse_crash as fn(&str) -> Result<Fault, String>),
            (&self.pause, Fault::parse_pause),
            (&self.partition, Fault::parse_partition),
        ] {
            for text in texts {
                faults.push(parse(text).map_err(|why| format!("{text}: {why}"))?);
            }
        }
        scenario.validate()?;
        Ok(scenario)
    }

    fn run(
        &self,
        program: &Arc<Program>,
        path: &str,
        seed_base: u64,
        share: Duration,
    ) -> Result<String, Failed> {
        let end = Instant::now() + share;
        program.set_deadline(Some(end));
        let scenario = self.scenario_of(path).map_err(Failed::because)?;
        let outcome = match self.explore {
            Some(size) => self.explore(program, &scenario, size, end),
            None => self.simulate(program, &scenario, seed_base, end),
        };
        program.set_deadline(None);
        outcome
    }

    fn simulate(
        &self,
        program: &Arc<Program>,
        scenario: &Scenario,
        seed_base: u64,
        end: Instant,
    ) -> Result<String, Failed> {
        let card = judging_all(program.card());
        let has_failed = AtomicBool::new(false);
        let with_seed = |seed| {
            let mut scenario = scenario.clone();
            scenario.world.seed = seed;
            if self.swarm { scenario.swarmed() } else { scenario }
        };
        let job = |seed| {
            if Instant::now() >= end || has_failed.load(Ordering::Relaxed) {
                return None;
            }
            let scenario = with_seed(seed);
            let run = run_as(program, &card, &scenario, &mut Recorder::default());
            let run = run.map(|report| Run { entries: report.entries, facts: report.facts });
            let command = || Some(scenario.command_line());
            let checked = run.map_err(|why| Failed { why, command: command() }).and_then(|run| {
                self.judge(&run.facts).map_err(|why| Failed { why, command: command() })?;
                Ok(run)
            });
            has_failed.fetch_or(checked.is_err(), Ordering::Relaxed);
            Some(checked)
        };
        let results = sweep(seed_base..seed_base.saturating_add(self.seeds), job, |_| {});
        let done = results.iter().flatten().count();
        let is_late = Instant::now() >= end;
        let mut runs = Vec::new();
        for result in results.into_iter().flatten() {
            runs.push(result.map_err(|failed| match is_late {
                true => Failed::because(format!("out of time after {} of {} runs", done - 1, self.seeds)),
                false => failed,
            })?);
        }
        if (runs.len() as u64) < self.seeds {
            let why = format!("out of time after {} of {} runs", runs.len(), self.seeds);
            return Err(Failed::because(why));
        }
        let first = with_seed(seed_base);
        let run_again = |recorder: &mut Recorder| run_as(program, &card, &first, recorder);
        repeat_with(&first, &runs[0].facts.digest, run_again).map_err(Failed::because)?;
        self.evidence(&runs)
    }

    /// Judges one run.
    fn judge(&self, facts: &Facts) -> Result<(), String> {
        let broken = facts.violations.iter().find(|violation| self.properties.contains(&violation.property));
        if let Some(violation) = broken {
            let seed = facts.seed;
            return Err(format!("{} broke with seed {seed}: {}", violation.property, violation.why));
        }
        if let Some(bounded) = &facts.bounded {
            return Err(format!("seed {}: {bounded}", facts.seed));
        }
        match facts.ledger.unfired.first() {
            Some(fault) => Err(format!("seed {}: the run ended before {fault}", facts.seed)),
            None => Ok(()),
        }
    }

    /// Judges all runs together: each property was tested, and the cost is within its limit.
    fn evidence(&self, runs: &[Run]) -> Result<String, Failed> {
        let count = runs.len();
        let mut parts = Vec::new();
        for property in &self.properties {
            let is_tested = |run: &&Run| {
                let verdict = run.facts.properties.get(property.as_str());
                verdict == Some(&PropertyVerdict::Holds)
            };
            let tested = runs.iter().filter(is_tested).count();
            if tested == 0 {
                let why = runs[0].facts.not_judged.get(property.as_str()).copied().unwrap_or("no evidence");
                return Err(Failed::because(format!("no run tested {property}: {why}")));
            }
            parts.push(format!("{property} held in {tested} of {count} runs that tested it"));
        }
        if let Some(most) = self.messages_per_entry {
            let entries: u64 = runs.iter().map(|run| run.entries).sum();
            let messages: u64 = runs.iter().map(|run| run.facts.messages).sum();
            if entries == 0 {
                return Err(Failed::because("no site entered"));
            }
            let mean = messages as f64 / entries as f64;
            let text = format!("{mean:.2} messages per entry, at most {most} allowed");
            if mean > most {
                return Err(Failed::because(text));
            }
            parts.push(text);
        }
        Ok(parts.join("; "))
    }

    fn explore(
        &self,
        program: &Arc<Program>,
        scenario: &Scenario,
        size: Explore,
        end: Instant,
    ) -> Result<String, Failed> {
        let judged = self.properties.iter().map(|property| Judged::for_property(property));
        let order = match scenario.world.order {
            conclave_sim::Order::Any => Order::Any,
            _ => Order::Fifo,
        };
        let judged = judged.max_by_key(|judged| *judged as u8).unwrap_or(Judged::Exclusion);
        let case = Case {
            algorithm: scenario.algorithm.clone(),
            flaw: None,
            work: Work { entries: size.entries, judged: Some(judged), ..Work::default() },
            world: Space { nodes: size.nodes, order, ..Space::default() },
        };
        let time = end.saturating_duration_since(Instant::now());
        let options = Options { bounds: Bounds { time, ..Bounds::default() }, ..Options::default() };
        let checker = checker_with(program, &case, &options, true).map_err(Failed::because)?;
        let report = program.explore(&checker, &mut unwatched).map_err(Failed::because)?;
        match (report.verdict, report.property) {
            (Verdict::Holds, _) => Ok(format!("every execution holds: {} states", report.states)),
            (Verdict::Bounded, _) => {
                Err(Failed::because(format!("out of time after {} states", report.states)))
            }
            (_, property) => {
                let (property, why) = (property.unwrap_or("a property"), report.why.unwrap_or_default());
                Err(Failed { why: format!("{property} broke: {why}"), command: Some(case.command_line()) })
            }
        }
    }
}

/// Returns a copy of a card that promises every property: the rubric decides which of them count.
fn judging_all(card: &Card) -> Card {
    const ALL: [&str; PROPERTIES.len()] = {
        let mut names = [""; PROPERTIES.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = PROPERTIES[index].name;
            index += 1;
        }
        names
    };
    Card { promises: &ALL, ..*card }
}
