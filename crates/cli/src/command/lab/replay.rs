//! `conclave replay`: shows the steps of a recorded run, or of the run of a seed.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, IsTerminal, Write as _};
use std::path::Path;
use std::process::ExitCode;

use conclave_check::Retraced;
use conclave_kernel::trace::{Mark, WorldKind};
use conclave_lab::case::{self, Case};
use conclave_lab::experiment::{self, file, flags};
use conclave_lab::log::{self, Log};
use conclave_lab::problem::{Problem, Recorder};

use super::flags::ProblemFlags;
use super::world::WorldArgs;
use super::{problems, program};
use crate::output::{self, Done, Failure, Paint, VIOLATED, counted};

/// Step through a recorded run, or through the run of a seed.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A trace file, or PROBLEM/ALGORITHM, or a seed and PROBLEM/ALGORITHM
    #[arg(value_name = "FILE|SEED PROBLEM/ALGORITHM", required = true, num_args = 1..=2)]
    what: Vec<String>,
    /// The number of sites [default: 5]
    #[arg(long, value_name = "N", value_parser = flags::nodes)]
    nodes: Option<u32>,
    /// The seed of all random choices [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The flags of the problem.
    #[command(flatten)]
    work: ProblemFlags,
    /// The world of the run.
    #[command(flatten)]
    world: WorldArgs,
    /// The first step to show
    #[arg(long, help_heading = "Output", value_name = "STEP", default_value_t = 0)]
    from: usize,
    /// Run the scenario of the trace again and compare the result line by line. A counterexample of `check`
    /// is repeated step by step
    #[arg(long, help_heading = "Output")]
    verify: bool,
    /// Show what each step changed in the state of its site
    #[arg(long, help_heading = "Output")]
    states: bool,
    /// Show the states of all sites after one step
    #[arg(long, help_heading = "Output", value_name = "STEP", conflicts_with_all = ["verify", "json"])]
    at: Option<usize>,
    /// Show also the fields of messages and states that the papers do not have
    #[arg(long, help_heading = "Output")]
    verbose: bool,
    /// Print the trace as JSON lines instead of text
    #[arg(long, help_heading = "Output")]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  conclave sim mutex/maekawa --nodes 3 --load high --trace run.jsonl
  conclave replay run.jsonl
  conclave replay run.jsonl --verify
  conclave replay 7 mutex/maekawa --nodes 3 --load high
  conclave replay run.jsonl --states
  conclave replay run.jsonl --at 12

On a terminal: Enter shows the next step, a number jumps to that step, a shows all other steps, q quits.
Exit codes: 0 done, 1 --verify found a difference, 2 bad usage.";

/// Shows or verifies a run.
pub fn run(args: &Args) -> Done {
    match target(args)? {
        Target::File(_) if args.has_scenario() => Err(Failure::usage(
            "a trace contains its scenario: leave out --nodes, --seed and the flags of the work and the world",
        )),
        Target::File(path) if args.verify => verify(&path),
        Target::File(path) => {
            if args.json {
                let text =
                    std::fs::read_to_string(&path).map_err(|error| Failure::file(path.as_ref(), &error))?;
                output::print(&text);
                return Ok(ExitCode::SUCCESS);
            }
            let log =
                log::read_log(&path, open(&path)?).map_err(|error| Failure::usage(error.to_string()))?;
            let log = if args.wants_states() { with_states(&path, log)? } else { log };
            args.show(log)
        }
        Target::Run { path, seed } => {
            let lines = in_problem(path, &Run::Flags { args, path, seed });
            if let Some((problem, name)) = path.split_once('/') {
                program::show_output(problem, name);
            }
            let lines = lines?;
            if args.json {
                output::print(&String::from_utf8_lossy(&lines));
                return Ok(ExitCode::SUCCESS);
            }
            let log = log::read_log("the run", lines.as_slice())
                .map_err(|error| Failure::usage(error.to_string()))?;
            args.show(log)
        }
    }
}

impl Args {
    fn wants_states(&self) -> bool {
        self.states || self.at.is_some()
    }

    /// Prints the steps of a run, or the states after one of them.
    fn show(&self, mut log: Log) -> Done {
        log.set_verbose(self.verbose);
        if self.wants_states() && !log.has_states() {
            let most = conclave_kernel::trace::MOST_STATE_BYTES >> 20;
            return Err(Failure::usage(format!(
                "the states of this run take more than {most} MiB: choose fewer sites or less work"
            )));
        }
        match self.at {
            Some(step) => show_states(&log, step),
            None => show(&log, self.from, self.states),
        }
    }

    /// Returns whether a flag describes a run.
    fn has_scenario(&self) -> bool {
        let Self { nodes, seed, work, world, .. } = self;
        nodes.is_some() || seed.is_some() || work.has_any() || *world != WorldArgs::default()
    }
}

enum Target<'a> {
    File(String),
    Run { path: &'a str, seed: Option<u64> },
}

fn target(args: &Args) -> Result<Target<'_>, Failure> {
    let (mut file, mut algorithm, mut seed) = (None, None, args.seed);
    for word in &args.what {
        let (problem, name) =
            word.split_once('/').map_or((word.as_str(), None), |(one, two)| (one, Some(two)));
        let is_file = name.is_none() && Path::new(word).exists();
        if problems::is_problem(problem) && !is_file {
            problems::find(word)?;
            algorithm = Some(word.as_str());
        } else if let Ok(number) = word.parse() {
            seed = Some(number);
        } else {
            file = Some(word.clone());
        }
    }
    match (file, algorithm) {
        (Some(file), None) => Ok(Target::File(file)),
        (None, Some(path)) => Ok(Target::Run { path, seed }),
        (None, None) => {
            Err(Failure::usage("a seed needs its algorithm: type conclave replay SEED PROBLEM/ALGORITHM"))
        }
        (Some(file), Some(_)) => {
            Err(Failure::usage(format!("'{file}' is not a seed: give a file, or a seed and an algorithm")))
        }
    }
}

fn open(path: &str) -> Result<BufReader<std::fs::File>, Failure> {
    let file = std::fs::File::open(path).map_err(|error| Failure::file(path.as_ref(), &error))?;
    Ok(BufReader::new(file))
}

/// A run to record.
pub(super) enum Run<'a> {
    /// The run that the flags describe.
    Flags { args: &'a Args, path: &'a str, seed: Option<u64> },
    /// The run that the header of a trace describes, with the states of its sites or without them.
    Header { scenario: &'a str, states: bool },
}

fn in_problem(path: &str, run: &Run<'_>) -> Result<Vec<u8>, Failure> {
    let problem = path.split_once('/').map_or(path, |(problem, _)| problem);
    let entry = problems::named(problem).ok_or_else(|| {
        Failure::usage(format!(
            "problem {problem} does not run in the simulator: give a trace of another problem"
        ))
    })?;
    (entry.record)(run)
}

/// Records a run of a problem, in the form of a trace file.
pub(super) fn record<W: Problem>(run: &Run<'_>) -> Result<Vec<u8>, Failure> {
    let scenario: experiment::Run<W> = match *run {
        Run::Flags { args, path, seed } => {
            let (_, name) = problems::find(path)?;
            let mut scenario: experiment::Run<W> = args.world.experiment(name, args.nodes, &args.work)?;
            scenario.world.seed = seed.unwrap_or(scenario.world.seed);
            scenario.world.keeps_states = args.wants_states();
            scenario
        }
        Run::Header { scenario: text, states } => {
            let unread = |mistake: String| {
                Failure::usage(format!("the scenario in its header cannot be read: {mistake}"))
            };
            let value = serde_json::from_str(text).map_err(|error| unread(error.to_string()))?;
            let default = experiment::Run::default();
            let mut scenario: experiment::Run<W> =
                file::read(value, &default).map_err(|field| unread(field.to_string()))?;
            scenario.world.keeps_states = states;
            scenario
        }
    };
    let mut recorder = Recorder::new(true, false);
    scenario.run(&mut recorder)?;
    Ok(recorder.lines)
}

/// Runs the scenario of a trace again and compares line by line.
fn verify(path: &str) -> Done {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file(Path::new(path), &error))?;
    let log = log::read_log(path, text.as_bytes()).map_err(|error| Failure::usage(error.to_string()))?;
    let problem = log.about.algorithm.split_once('/').map_or("", |(problem, _)| problem);
    if log.about.world == WorldKind::Check {
        let case = case::read(problem, &log.about.scenario);
        let case = case.map_err(|mistake| {
            Failure::usage(format!("{path}: the scenario in its header cannot be read: {mistake}"))
        })?;
        return retrace(path, &text, case.as_ref());
    }
    let again = record_again(path, &log, log.has_states())?;
    let again = String::from_utf8_lossy(&again);
    // The header of another format has another form; the records have not.
    let header = |text: &str| text.lines().next().and_then(|line| Some(line.split_once(',')?.0.to_owned()));
    let records = usize::from(header(&text) != header(&again));
    let lines = text.lines().zip(again.lines()).enumerate().skip(records);
    let differs = lines.into_iter().find(|(_, (then, now))| then != now).map(|(line, _)| line);
    let (then, now) = (text.lines().count(), again.lines().count());
    match differs {
        None if then == now => {
            output::print(&format!("the run repeats exactly: {then} lines\n"));
            Ok(ExitCode::SUCCESS)
        }
        at => {
            let line = at.unwrap_or(then.min(now));
            let shown = |text: &str| text.lines().nth(line).unwrap_or("(nothing)").to_owned();
            output::print(&format!(
                "line {} differs\n  then: {}\n  now:  {}\n",
                line + 1,
                shown(&text),
                shown(&again)
            ));
            Ok(ExitCode::from(VIOLATED))
        }
    }
}

/// Records the run that the header of a trace describes.
fn record_again(path: &str, log: &Log, states: bool) -> Result<Vec<u8>, Failure> {
    let run = Run::Header { scenario: &log.about.scenario, states };
    in_problem(&log.about.algorithm, &run)
        .map_err(|failure| Failure { message: format!("{path}: {}", failure.message), ..failure })
}

/// Returns the log with the states of the sites. A trace without states is recorded again, and must repeat.
fn with_states(path: &str, log: Log) -> Result<Log, Failure> {
    if log.has_states() {
        return Ok(log);
    }
    if log.about.world == WorldKind::Check {
        return Err(Failure::usage(format!(
            "{path} is a counterexample without states: record it again with conclave check --trace"
        )));
    }
    let lines = record_again(path, &log, true)?;
    let again = log::read_log(path, lines.as_slice()).map_err(|error| Failure::usage(error.to_string()))?;
    let steps = |log: &Log| {
        let heads = log.events().iter().map(|event| (event.at, event.site, event.stamp));
        heads.collect::<Vec<_>>()
    };
    if steps(&again) != steps(&log) {
        return Err(Failure::usage(format!(
            "{path} does not repeat, so its states are unknown: see conclave replay {path} --verify"
        )));
    }
    Ok(again)
}

/// Repeats the steps of a counterexample, with new sites and a new judge.
fn retrace(path: &str, text: &str, case: &dyn Case) -> Done {
    match case.retrace(path, text.as_bytes()) {
        Ok(Retraced { steps, breach, waiting }) => {
            let mut line = format!("the counterexample repeats exactly: {}", counted(steps as u64, "step"));
            if let Some((step, breach)) = breach {
                _ = write!(line, "; {} breaks at step {step}: {}", breach.property, breach.why);
            }
            if !waiting.is_empty() {
                let who: Vec<_> = waiting.iter().map(ToString::to_string).collect();
                _ = write!(line, "; {} still waiting at its end", who.join(", "));
            }
            output::print(&format!("{line}\n"));
            Ok(ExitCode::SUCCESS)
        }
        Err(difference) => {
            output::print(&format!("{path}: {difference}\n"));
            Ok(ExitCode::from(VIOLATED))
        }
    }
}

/// Prints all steps at once, or one by one on a terminal.
fn show(log: &Log, from: usize, states: bool) -> Done {
    let paint = Paint::stdout();
    let interactive = io::stdin().is_terminal() && io::stdout().is_terminal();
    let steps = log.events().len();
    output::print(&format!("{}, {} sites, {steps} steps\n", paint.bold(&log.about.algorithm), log.sites()));
    let mut marks = log.marks().iter().peekable();
    let mut next = from;
    let mut wait = interactive;
    while next < steps {
        let at = log.events()[next].at;
        while let Some(mark) = marks.next_if(|mark| mark.at <= at) {
            output::print(&describe_mark(mark, paint));
        }
        output::print(&describe(log, next, paint));
        let fields = if states { show_fields(&log.changes(next)) } else { String::new() };
        if !fields.is_empty() {
            output::print(&format!("{:>22}{}\n", "", paint.dim(&fields)));
        }
        next += 1;
        if wait && next < steps {
            match ask(next)? {
                Answer::Next => {}
                Answer::Jump(step) => next = step.min(steps.saturating_sub(1)),
                Answer::All => wait = false,
                Answer::Quit => return Ok(ExitCode::SUCCESS),
            }
        }
    }
    marks.for_each(|mark| output::print(&describe_mark(mark, paint)));
    Ok(ExitCode::SUCCESS)
}

/// Prints the states of all sites after a step.
fn show_states(log: &Log, step: usize) -> Done {
    let Some(event) = log.events().get(step) else {
        let last = log.events().len().saturating_sub(1);
        return Err(Failure::usage(format!("there is no step {step}: give a number from 0 to {last}")));
    };
    let paint = Paint::stdout();
    output::print(&format!("after step {step} at {}\n", event.at));
    output::print(&describe(log, step, paint));
    for (site, state) in (0..).zip(log.states_at(step)) {
        let name = paint.bold(&log.name(conclave_kernel::NodeId(site)));
        let text = state.map_or("has not started".to_owned(), |(_, fields)| show_fields(&fields));
        output::print(&format!("  {name}  {text}\n"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Fields of a state in one line.
pub(super) fn show_fields(fields: &[log::Field]) -> String {
    let fields = fields.iter().map(|(name, value)| format!("{name} = {value}"));
    fields.collect::<Vec<_>>().join("; ")
}

enum Answer {
    Next,
    Jump(usize),
    All,
    Quit,
}

fn ask(next: usize) -> Result<Answer, Failure> {
    let mut line = String::new();
    _ = write!(io::stderr(), "[{next}] ").and_then(|()| io::stderr().flush());
    let read = io::stdin().lock().read_line(&mut line).map_err(|error| Failure::usage(error.to_string()))?;
    Ok(match line.trim() {
        "q" => Answer::Quit,
        _ if read == 0 => Answer::Quit,
        "a" => Answer::All,
        number => number.parse().map_or(Answer::Next, Answer::Jump),
    })
}

fn describe(log: &Log, event: usize, paint: Paint) -> String {
    let entry = &log.events()[event];
    let head = format!("{event:>6}  {:>10}  {}", entry.at.to_string(), paint.bold(&log.name(entry.site)));
    let mut text = format!("{head}  {}\n", log.describe(event));
    for message in &log.messages()[log.sent(event)] {
        _ = writeln!(text, "{:>22}-> {}  {}", "", log.name(message.to), log.words(message.text));
    }
    for told in log.emitted(event) {
        _ = writeln!(text, "{:>22}=> {}", "", paint.good(&log.words(*told)));
    }
    text
}

fn describe_mark(mark: &Mark, paint: Paint) -> String {
    format!("{:>18}  {}\n", mark.at.to_string(), paint.bad(&format!("{:?}", mark.what)))
}
