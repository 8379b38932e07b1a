//! `conclave check`: explores every execution of an algorithm.

mod deepening;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use conclave_check::{
    Bounds, Costs, Counterexample, Cycles, Options, Order, Progress, Report, Search, Verdict, Watcher,
};
use conclave_kernel::{Card, suggest};
use conclave_lab::added;
use conclave_lab::case::{self, Case, PropertyVerdict, Word};
use conclave_lab::deepen::Plan;
use conclave_lab::diagram::spacetime;
use conclave_lab::experiment::Space;
use conclave_lab::experiment::flags::{duration, threads};
use conclave_lab::log::{self, Log};
use conclave_lab::{flaws, matrix, sites};
use indicatif::ProgressBar;
use serde::Serialize;

use super::flags::ProblemFlags;
use super::picture::{Caption, PictureArgs};
use super::replay::show_fields;
use super::{problems, program};
use crate::output::{self, Done, Failure, Paint, VIOLATED, counted, number, plural};

/// Explore every execution of an algorithm: every order of messages, every random choice.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The algorithm, as PROBLEM/ALGORITHM, or with --all the problem; `conclave list` shows both
    #[arg(value_name = "PROBLEM/ALGORITHM")]
    algorithm: String,
    /// Explore every algorithm of the problem (mutex, election, snapshot) at a few sizes, over the links that
    /// it needs, and print a table in Markdown
    #[arg(long, conflicts_with_all = ["cost", "svg", "trace", "mutant", "json"])]
    all: bool,
    /// Explore a wrong variant of the algorithm instead; `conclave mutants` shows the variants
    #[arg(long, value_name = "NAME")]
    pub mutant: Option<String>,
    /// The flags of the problem.
    #[command(flatten)]
    pub work: ProblemFlags,
    /// The world of the exploration.
    #[command(flatten)]
    pub space: Space,
    /// Search depth-first: this takes less memory and finds longer counterexamples
    #[arg(long)]
    depth_first: bool,
    /// The number of threads that explore [default: all cores]
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
    /// The number of states at which the exploration stops, approximately
    #[arg(long, value_name = "N", default_value_t = Bounds::default().states)]
    most_states: u64,
    /// The time after which the exploration stops [default: no limit; 10s for growing sizes]
    #[arg(long, value_name = "D", value_parser = duration)]
    within: Option<Duration>,
    /// Also count messages: the fewest and the most over all executions
    #[arg(long)]
    cost: bool,
    /// Draw the counterexample as a space-time diagram
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
    /// Write the counterexample as JSON lines, for `conclave replay`
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    trace: Option<PathBuf>,
    /// The flags of the picture.
    #[command(flatten)]
    picture: PictureArgs,
    /// Show also the fields of messages and states that the papers do not have
    #[arg(long, help_heading = "Output")]
    verbose: bool,
    /// Print JSON instead of text
    #[arg(long, help_heading = "Output")]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  conclave check mutex/maekawa
  conclave check mutex/ricart-agrawala --nodes 3 --entries 2 --order any
  conclave check mutex/lamport --order any --svg violation.svg
  conclave check mutex/maekawa --quorum all --cost
  conclave check mutex/suzuki-kasami --causal
  conclave check mutex --all --within 10m
  conclave check election/bully --crash 1 --sync 1
  conclave check detector/heartbeat --nodes 2 --crash 1 --sync 1 --period 2ms --margin 1ms
  conclave check snapshot/chandy-lamport --order any
  conclave check deadlock/edge-chasing --nodes 2 --entries 2 --resolves

Without --entries, another flag of the problem, or a flag of links and sites, the sizes grow, from two sites with one entry to three sites with three. Each size is also explored with every fault that the algorithm tolerates. The search ends at the first violation, or after --within, and each property names the largest size that was finished. With --nodes alone, only the entries grow.

Each problem has flags of its own, which describe the work of each site: `conclave check mutex --help` lists those of \
mutex. The problems are mutex, election, detector, snapshot and deadlock. By default, a message takes any time, and a timer may fire at any time.
Each property has its own verdict. A property that nothing in the exploration can break is not judged: ME3 of a \
mutex needs messages of applications, which --causal adds. The line 'cycles' says whether executions that never end were judged.
Exit codes: 0 holds, 1 violated or stuck, 2 bad usage, 3 stopped at a bound, or no promised property was judged.";

/// The exploration stopped at a bound, or put no promised property to the test.
const UNKNOWN: u8 = 3;

/// Explores one algorithm, or all algorithms of a problem.
pub fn run(args: &Args) -> Done {
    if args.all {
        return table(args);
    }
    let (problem, name) = problems::find(&args.algorithm)?;
    let Some((card, case)) = case(args, problem, name)? else {
        return Err(Failure::usage(format!(
            "{problem}/{name} has no model for the checker: run it with `conclave sim {problem}/{name}`"
        )));
    };
    if sites::is_program(name) {
        let done = explore_program(args, card, case.as_ref());
        program::show_output(problem, name);
        return done;
    }
    refuse_clocks(card)?;
    if let Some(mutant) = &args.mutant {
        refuse_unknown(args, card, mutant)?;
    }
    if deepening::is_open(args) { deepening::run(args, card) } else { explore(args, card, case.as_ref()) }
}

/// Explores a program at one size.
fn explore_program(args: &Args, card: &Card, case: &dyn Case) -> Done {
    match args.mutant {
        Some(_) => Err(Failure::usage("--mutant has no effect on a program: leave it out")),
        None => explore(args, card, case),
    }
}

/// Rejects a name that neither a mutant of the algorithm nor a flaw without code has.
fn refuse_unknown(args: &Args, card: &Card, mutant: &str) -> Result<(), Failure> {
    if flaws::own(card).any(|known| known.name == mutant) {
        return Ok(());
    }
    // The kinds of messages, and so the names of flaws without code, show in small explorations.
    let plan = Plan { within: Duration::MAX, most_states: 10_000, threads: 1, ..Plan::default() };
    let known = flaws::of(card, &Plan { sizes: plan.sizes[..2].to_vec(), ..plan })?;
    if known.iter().any(|flaw| flaw.name == mutant) {
        return Ok(());
    }
    let what = format!("mutant of {}", args.algorithm);
    Err(suggest::unknown(&what, mutant, known.iter().map(|flaw| flaw.name.as_str())).into())
}

fn explore(args: &Args, card: &Card, case: &dyn Case) -> Done {
    let options = options(args);
    let outcome = watched(card.name, |watcher| case.explore(&options, watcher))?;
    let verdicts = case.judge(card, &outcome);
    finish(args, &outcome, &verdicts, || case.costs(&options))
}

/// The error for an algorithm that has no finite state space.
fn refuse_clocks(card: &Card) -> Result<(), Failure> {
    match card.reads_clock {
        true => Err(Failure::usage(format!(
            "{} reads its clock, so it has infinitely many states: run it with `conclave sim {}`",
            card.path(),
            card.path()
        ))),
        false => Ok(()),
    }
}

/// Writes the counterexample and prints the report, with the costs if --cost was given.
fn finish(
    args: &Args,
    outcome: &Report,
    verdicts: &[PropertyVerdict],
    costs: impl FnOnce() -> Result<Costs, String>,
) -> Done {
    let costs = match outcome.verdict {
        Verdict::Holds if args.cost => Some(costs()?),
        _ => None,
    };
    if let Some(found) = &outcome.counterexample {
        let why = outcome.why.as_deref().unwrap_or_default();
        write_counterexample(args, outcome.property.unwrap_or("progress"), why, found)?;
    }
    show(args, outcome, verdicts, costs.as_ref())?;
    let is_unknown = outcome.verdict == Verdict::Bounded || !case::any_promise_judged(verdicts);
    Ok(exit(outcome.is_broken(), is_unknown))
}

/// An algorithm to explore.
type Chosen = (&'static Card, Box<dyn Case>);

/// Returns the card and the case of an algorithm; `None` if the checker has no model of it.
fn case(args: &Args, problem: &str, name: &str) -> Result<Option<Chosen>, Failure> {
    let card = added::cards().find(|card| card.problem == problem && card.name == name);
    let explored = problems::named(problem).and_then(|entry| entry.explored);
    let Some((card, explored)) = card.zip(explored) else { return Ok(None) };
    Ok(Some((card, (explored.case)(args, card)?)))
}

/// Explores and shows the progress on standard error.
fn watched<R>(what: &str, explore: impl FnOnce(Watcher<'_>) -> Result<R, String>) -> Result<R, Failure> {
    let bar = progress();
    let outcome = explore(&mut |progress: &Progress| {
        bar.set_message(format!(
            "{what}: {} states, depth {}, {} queued",
            progress.states, progress.depth, progress.waiting
        ));
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    Ok(outcome?)
}

/// The sizes in the table of a problem: the number of sites, and of entries per site.
fn sizes(problem: &str) -> &'static [(u32, u8)] {
    match problem {
        "mutex" => &[(3, 2), (4, 1)],
        "election" => &[(3, 1), (3, 2), (4, 1)],
        "snapshot" => &[(2, 3), (3, 1), (3, 2)],
        _ => &[],
    }
}

/// Explores every algorithm of a problem at every size. Prints the table of `docs/exhaustive.md`.
fn table(args: &Args) -> Done {
    let problem = args.algorithm.as_str();
    if !problems::is_problem(problem) {
        let instead = |problem: &str, _: &str| format!("type conclave check {problem} --all");
        return Err(problems::not_a_problem(problem, instead));
    }
    let cards: Vec<_> = matrix::rows(Some(problem)).collect();
    if cards.is_empty() {
        let known = matrix::PROBLEMS.join(", ");
        return Err(Failure::usage(format!("problem {problem} has no table: choose one of {known}")));
    }
    let tasks = plural(task(problem));
    output::print(&format!(
        "| algorithm | sites | {tasks} a site | links | states | depth | seconds | verdict |\n\
         |---|---|---|---|---|---|---|---|\n",
    ));
    let (mut is_broken, mut is_bounded) = (false, false);
    for (nodes, entries) in sizes(problem).iter().copied() {
        for card in &cards {
            let case = case::of(card, nodes, entries)?;
            let options = options(args);
            let outcome = watched(card.name, |watcher| case.explore(&options, watcher))?;
            is_broken |= outcome.is_broken();
            is_bounded |= outcome.verdict == Verdict::Bounded;
            output::print(&row(card, nodes, entries, &outcome));
        }
    }
    Ok(exit(is_broken, is_bounded))
}

/// The exit code of explorations. A violation takes precedence over an unknown result.
pub(super) fn exit(is_broken: bool, is_unknown: bool) -> ExitCode {
    match (is_broken, is_unknown) {
        (true, _) => ExitCode::from(VIOLATED),
        (false, true) => ExitCode::from(UNKNOWN),
        (false, false) => ExitCode::SUCCESS,
    }
}

/// The name of the task that `--entries` counts.
fn task(algorithm: &str) -> &'static str {
    match algorithm.split('/').next() {
        Some("election") => "call",
        Some("snapshot") => "transfer",
        _ => "entry",
    }
}

fn row(card: &Card, nodes: u32, entries: u8, outcome: &Report) -> String {
    let links = if card.needs.fifo { "FIFO" } else { "any order" };
    let verdict = match (outcome.property, &outcome.counterexample) {
        (Some(property), Some(found)) => {
            format!("{property} broken in {}", counted(found.steps, "step"))
        }
        _ if outcome.verdict == Verdict::Holds && outcome.cycles == Cycles::NotJudged => {
            "holds (cycles not judged)".to_owned()
        }
        _ => outcome.verdict.to_string(),
    };
    let paint = Paint::stdout();
    let verdict = if outcome.is_broken() { paint.bad(&verdict) } else { paint.verdict(&verdict) };
    let algorithm = card.name;
    let Report { states, depth, seconds, .. } = outcome;
    format!(
        "| {algorithm} | {nodes} | {entries} | {links} | {states} | {depth} | {seconds:.1} | {verdict} |\n"
    )
}

fn options(args: &Args) -> Options {
    let default = Options::default();
    Options {
        search: if args.depth_first { Search::Depth } else { Search::Breadth },
        threads: args.threads.unwrap_or(default.threads),
        bounds: Bounds {
            states: args.most_states,
            time: args.within.unwrap_or(Duration::MAX),
            ..default.bounds
        },
        ..default
    }
}

fn progress() -> ProgressBar {
    if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() }
}

fn write_counterexample(
    args: &Args,
    property: &str,
    why: &str,
    found: &Counterexample,
) -> Result<(), Failure> {
    if let Some(path) = &args.trace {
        let mut lines = Vec::new();
        log::write_trace(&found.trace, &mut lines).map_err(|error| Failure::file(path, &error))?;
        output::write_file(path, &lines).map_err(|failure| failure.of_flag("--trace"))?;
    }
    if let Some(path) = &args.svg {
        let mut log = Log::from_trace(&found.trace)?;
        log.set_verbose(args.verbose);
        let caption = Caption::of_counterexample(&log, property, why);
        let options = args.picture.options(&log, caption);
        let drawn = spacetime::draw(&log, &options);
        output::write_file(path, drawn.as_bytes()).map_err(|failure| failure.of_flag("--svg"))?;
    }
    Ok(())
}

/// The JSON object.
#[derive(Serialize)]
struct Json<'a> {
    algorithm: &'a str,
    nodes: u32,
    entries: u8,
    order: Order,
    states: u64,
    edges: u64,
    depth: u32,
    seconds: f64,
    bytes: u64,
    collision_probability: f64,
    verdict: Verdict,
    property: Option<&'static str>,
    why: Option<&'a str>,
    /// The steps, in words; null if there is none.
    counterexample: Option<Vec<String>>,
    sometimes: &'a [conclave_check::Sometimes],
    cycles: Cycles,
    /// The reason why cycles were not judged; null if they were.
    cycles_why: Option<&'a str>,
    /// The verdict on each property: holds, violated, bounded or not_judged.
    properties: BTreeMap<&'static str, Word>,
    /// The reason for each property that was not judged.
    not_judged: BTreeMap<&'static str, &'a str>,
    cost: Option<&'a Costs>,
}

fn show(
    args: &Args,
    report: &Report,
    verdicts: &[PropertyVerdict],
    costs: Option<&Costs>,
) -> Result<(), Failure> {
    let log = report.counterexample.as_ref().map(|found| Log::from_trace(&found.trace)).transpose()?;
    let steps = log.map(|mut log| {
        log.set_verbose(args.verbose);
        in_words(&log, args.picture.states && !args.json)
    });
    if args.json {
        return output::print_json(&Json {
            algorithm: &args.algorithm,
            nodes: args.space.nodes,
            entries: args.work.entries(),
            order: args.space.order,
            states: report.states,
            edges: report.edges,
            depth: report.depth,
            seconds: report.seconds,
            bytes: report.bytes,
            collision_probability: report.collision_probability,
            verdict: report.verdict,
            property: report.property,
            why: report.why.as_deref(),
            counterexample: steps,
            sometimes: &report.sometimes,
            cycles: report.cycles,
            cycles_why: report.cycles_why.as_deref(),
            properties: case::words(verdicts),
            not_judged: case::reasons(verdicts),
            cost: costs,
        });
    }
    output::print(&describe(args, report, verdicts, costs, steps.as_deref()));
    Ok(())
}

fn describe(
    args: &Args,
    report: &Report,
    verdicts: &[PropertyVerdict],
    costs: Option<&Costs>,
    steps: Option<&[String]>,
) -> String {
    let paint = Paint::stdout();
    let verdict = match report.verdict {
        Verdict::Holds if !case::any_promise_judged(verdicts) => paint.bold("not judged"),
        Verdict::Holds => paint.good("holds"),
        Verdict::Bounded => paint.bold("bounded"),
        _ => paint.bad(&report.verdict.to_string()),
    };
    let title = paint.bold(args.mutant.as_ref().unwrap_or(&args.algorithm));
    let work = match args.algorithm.starts_with("detector/") {
        true => String::new(),
        false => format!(", {} a site", counted(args.work.entries(), task(&args.algorithm))),
    };
    let mut text = format!("{title}  N = {}{work}: {verdict}\n\n", args.space.nodes);
    let mut line = |name: &str, value: String| _ = writeln!(text, "  {name:<22}{value}");
    line(
        "states",
        format!("{} ({} a second)", report.states, number((report.states as f64 / report.seconds).round())),
    );
    line("depth", report.depth.to_string());
    line("seconds", format!("{:.2}", report.seconds));
    line("bytes a state", number(report.bytes as f64 / report.states.max(1) as f64));
    line("collision chance", format!("{:.1e}", report.collision_probability));
    for (seen, name) in [(true, "seen"), (false, "never seen")] {
        let names: Vec<_> = report.sometimes.iter().filter(|it| it.seen == seen).map(|it| it.name).collect();
        if !names.is_empty() {
            line(name, names.join("; "));
        }
    }
    if let Some(why) = report.why.as_ref().filter(|_| report.property.is_none()) {
        line("stopped", why.clone());
    }
    if let Some(costs) = costs {
        let extent = |extent: &conclave_check::Extent| match extent.max {
            Some(max) => format!("{} to {max}", extent.min),
            None => format!("{} or more, without bound", extent.min),
        };
        line("messages in all", extent(&costs.total));
        for (kind, of_kind) in &costs.kinds {
            line(&format!("  {kind}"), extent(of_kind));
        }
    }
    text.push('\n');
    verdict_lines(&mut text, report, verdicts, paint);
    for (number, step) in steps.unwrap_or_default().iter().enumerate() {
        _ = writeln!(text, "  {number:>4}  {step}");
    }
    text
}

/// One line for each property, and one for executions that never end.
fn verdict_lines(text: &mut String, report: &Report, verdicts: &[PropertyVerdict], paint: Paint) {
    let mut line = |name: &str, value: String| _ = writeln!(text, "  {name:<22}{value}");
    for verdict in verdicts {
        let word = match verdict.word {
            Word::Holds => paint.good("holds"),
            Word::Violated => {
                format!("{}: {}", paint.bad("violated"), report.why.as_deref().unwrap_or_default())
            }
            Word::Bounded => paint.bold("bounded"),
            Word::NotJudged => {
                paint.dim(&format!("not judged: {}", verdict.why_not.as_deref().unwrap_or_default()))
            }
        };
        let promised = if verdict.promised { "" } else { " (not promised)" };
        line(verdict.property, format!("{word}{promised}"));
    }
    match &report.cycles_why {
        None => line("cycles", "judged".into()),
        Some(why) => line("cycles", paint.dim(&format!("not judged: {why}"))),
    }
}

/// The steps in words. With states, each has a second line with the fields that it changed.
fn in_words(log: &Log, states: bool) -> Vec<String> {
    let step = |event: usize| {
        let step = format!("{}  {}", log.name(log.events()[event].site), log.describe(event));
        match show_fields(&log.changes(event)) {
            fields if states && !fields.is_empty() => format!("{step}\n{:>10}{fields}", ""),
            _ => step,
        }
    };
    (0..log.events().len()).map(step).collect()
}
