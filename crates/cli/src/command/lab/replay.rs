//! `conclave replay`: shows the steps of a recorded run, or of the run of a seed.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, IsTerminal, Write as _};
use std::path::Path;
use std::process::ExitCode;

use conclave_check::Retraced;
use conclave_kernel::trace::Mark;
use conclave_lab::case::{self, Case};
use conclave_lab::log::{self, Log};
use conclave_lab::problem::Recorder;

use super::problems::{self, Problem, ProblemArgs};
use super::program;
use super::world::{self, WorldArgs};
use crate::output::{self, Done, Failure, Paint, VIOLATED, counted};

/// Step through a recorded run, or through the run of a seed.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A trace file, or PROBLEM/ALGORITHM, or a seed and PROBLEM/ALGORITHM
    #[arg(value_name = "FILE|SEED PROBLEM/ALGORITHM", required = true, num_args = 1..=2)]
    what: Vec<String>,
    /// The number of sites [default: 5]
    #[arg(long, value_name = "N", value_parser = world::nodes)]
    nodes: Option<u32>,
    /// The seed of all random choices [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The work of the run.
    #[command(flatten)]
    work: ProblemArgs,
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
            show(&log, args.from)
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
            show(&log, args.from)
        }
    }
}

impl Args {
    /// Returns whether a flag describes a run.
    fn has_scenario(&self) -> bool {
        let Self { nodes, seed, work, world, .. } = self;
        nodes.is_some() || seed.is_some() || !work.given().is_empty() || *world != WorldArgs::default()
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
    /// The run that the header of a trace describes.
    Header(&'a str),
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
pub(super) fn record<S: Problem>(run: &Run<'_>) -> Result<Vec<u8>, Failure> {
    let scenario: S = match *run {
        Run::Flags { args, path, seed } => {
            let (_, name) = problems::find(path)?;
            let mut scenario: S = args.world.scenario(name, args.nodes, &args.work)?;
            let setup = scenario.setup_mut();
            setup.seed = seed.unwrap_or(setup.seed);
            scenario
        }
        Run::Header(text) => serde_json::from_str(text)
            .map_err(|error| Failure::usage(format!("the scenario in its header cannot be read: {error}")))?,
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
    if let Some(case) = case::read(problem, &log.about.scenario) {
        return retrace(path, &text, case.as_ref());
    }
    let again = in_problem(&log.about.algorithm, &Run::Header(&log.about.scenario))
        .map_err(|failure| Failure { message: format!("{path}: {}", failure.message), ..failure })?;
    let again = String::from_utf8_lossy(&again);
    let differs = text.lines().zip(again.lines()).position(|(then, now)| then != now);
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
fn show(log: &Log, from: usize) -> Done {
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
