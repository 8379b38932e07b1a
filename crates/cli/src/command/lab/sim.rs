//! `conclave sim`: one run, or the runs of many seeds.

use std::ops::{ControlFlow, Range};
use std::path::PathBuf;

use conclave_lab::diagram::{clocks, shiviz, spacetime};
use conclave_lab::experiment::{Run, flags};
use conclave_lab::log::Log;
use conclave_lab::problem::{self, Facts, Problem, Recorder, Report as _};
use conclave_lab::problems::timesync;
use conclave_lab::sweep::{self, Summary};

use super::flags::ProblemFlags;
use super::picture::{Caption, PictureArgs};
use super::world::WorldArgs;
use super::{problems, program, report};
use crate::output::{self, Done, Failure, Paint};

/// Run one algorithm in the simulator, measure it and judge it.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The algorithm, as PROBLEM/ALGORITHM; `conclave list` shows all algorithms
    #[arg(value_name = "PROBLEM/ALGORITHM")]
    pub algorithm: String,
    /// The number of sites [default: 5]
    #[arg(long, value_name = "N", value_parser = flags::nodes)]
    pub nodes: Option<u32>,
    /// The seed of all random choices [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    pub seed: Option<u64>,
    /// Run every seed of a half-open range, on all cores
    #[arg(long, value_name = "A..B", value_parser = flags::seeds)]
    pub seeds: Option<Range<u64>>,
    /// Choose delays, pauses and partitions at random from each seed. The delays have 1 to 8 times the mean of
    /// --delay
    #[arg(long)]
    pub swarm: bool,
    /// The flags of the problem.
    #[command(flatten)]
    pub work: ProblemFlags,
    /// The world of the run.
    #[command(flatten)]
    pub world: WorldArgs,
    /// Write the run as JSON lines
    #[arg(long, value_name = "FILE", help_heading = "Output", conflicts_with = "seeds")]
    pub trace: Option<PathBuf>,
    /// Draw the run as a space-time diagram
    #[arg(long, value_name = "FILE", help_heading = "Output", conflicts_with = "seeds")]
    pub svg: Option<PathBuf>,
    /// The flags of the picture.
    #[command(flatten)]
    pub picture: PictureArgs,
    /// Timesync: draw the offset and the promised interval of each clock
    #[arg(long, value_name = "FILE", help_heading = "Output", conflicts_with = "seeds")]
    pub clocks: Option<PathBuf>,
    /// Write the run as a ShiViz log
    #[arg(long, value_name = "FILE", help_heading = "Output", conflicts_with = "seeds")]
    pub shiviz: Option<PathBuf>,
    /// Print JSON instead of text: an object for one run, an array for several
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  conclave sim mutex/ricart-agrawala --nodes 7
  conclave sim mutex/maekawa --nodes 13 --load high --svg run.svg
  conclave sim mutex/lamport --order any --delay uniform:1us..5ms --load high --seeds 0..1000
  conclave sim mutex/central --nodes 5 --partition 0+1@10ms..50ms --load high
  conclave sim mutex/central-bully --load high --crash 0@50ms
  conclave sim election/bully --crash 4@50ms --svg run.svg
  conclave sim election/chang-roberts --nodes 7 --start all --ranks random --seeds 0..1000
  conclave sim detector/phi-accrual --delay lognormal:5ms,1 --crash 2@30s
  conclave sim timesync/ntp --nodes 7 --fanout 1 --delay lognormal:2ms,1.5 --drift 200
  conclave sim timesync/cristian --nodes 4 --clocks clocks.svg
  conclave sim mutex/suzuki-kasami --nodes 3 --states --svg run.svg
  conclave sim mutex/./ra.py --load high --seeds 0..1000

A name with a second / is the path of a program in any language, which runs the sites: see docs/sites.md.

Each problem has flags of its own, which describe the work: `conclave sim mutex --help` lists those of mutex. The \
problems are mutex, election, detector, snapshot, deadlock and timesync. A duration has a unit: 250us, 1.5ms, 2s.
A property is 'not judged' if the run cannot violate it. For example, one entry cannot violate exclusion.
A run ends as 'bounded' after --budget events without progress. It also ends so after an hour of simulated time \
without progress, or later if one step of the work takes longer. Progress is a request or an entry (mutex), \
fewer undecided sites (election), the end of a wait or a detection (deadlock), an act or a complete snapshot \
(snapshot).
Exit codes: 0 every promised property that was tested held, 1 a promised property was violated, or a fault of \
the command line did not occur, 2 bad usage, 3 a run was bounded, or no run tested a promised property.";

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let (problem, name) = problems::find(&args.algorithm)?;
    let entry = problems::named(problem);
    let entry = entry.ok_or_else(|| {
        Failure::usage(format!("problem {problem} has no simulation: choose another problem"))
    })?;
    let done = (entry.sim)(args, name);
    program::show_output(problem, name);
    done
}

/// Runs one algorithm of a problem, with one seed or with many.
pub(super) fn simulate<W: Problem>(args: &Args, name: &str) -> Done {
    let mut scenario: Run<W> = args.world.experiment(name, args.nodes, &args.work)?;
    if let Some(seeds) = &args.seeds {
        return run_many(args, &scenario, seeds.clone());
    }
    if let Some(seed) = args.seed {
        scenario.world.seed = seed;
    }
    if args.swarm {
        scenario = scenario.swarmed();
    }
    let report = run_one(args, &scenario)?;
    program::verify_repeats(&scenario, &report.facts().digest)?;
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report::describe::<W>(&report, Paint::stdout()));
        if !report.facts().passed() {
            explain(&scenario, &report);
        } else if report.facts().is_bounded() {
            output::print(&format!("\nrepeat it:        {}\n", report.facts().command));
        }
    }
    let mut summary = Summary::default();
    summary.add(report.facts(), &[]);
    Ok(report::code(&summary))
}

fn run_one<W: Problem>(args: &Args, scenario: &Run<W>) -> Result<W::Report, Failure> {
    let wants_log = args.svg.is_some() || args.shiviz.is_some() || args.clocks.is_some();
    let mut scenario = scenario.clone();
    scenario.world.keeps_states = args.picture.states;
    let mut recorder = Recorder::new(args.trace.is_some(), wants_log);
    let report = scenario.run(&mut recorder)?;
    if let Some(path) = &args.trace {
        output::write_file(path, &recorder.lines).map_err(|failure| failure.of_flag("--trace"))?;
    }
    if let Some(log) = &recorder.log {
        draw(args, log, report.facts())?;
    }
    Ok(report)
}

fn draw(args: &Args, log: &Log, facts: &Facts) -> Result<(), Failure> {
    if let Some(path) = &args.svg {
        let options = args.picture.options(log, Caption::of_run(facts));
        let drawn = spacetime::draw(log, &options);
        output::write_file(path, drawn.as_bytes()).map_err(|failure| failure.of_flag("--svg"))?;
    }
    if let Some(path) = &args.clocks {
        let is_external = timesync::is_external(&facts.algorithm);
        let clocks = clocks::Clocks::of(log, is_external, &facts.command)?;
        let drawn = clocks::draw(&clocks);
        output::write_file(path, drawn.as_bytes()).map_err(|failure| failure.of_flag("--clocks"))?;
    }
    if let Some(path) = &args.shiviz {
        let written = shiviz::write(log)?;
        output::write_file(path, written.as_bytes()).map_err(|failure| failure.of_flag("--shiviz"))?;
    }
    Ok(())
}

/// Runs many seeds. Keeps only their summary and the first failure, so the memory does not grow with the number of
/// seeds.
fn run_many<W: Problem>(args: &Args, scenario: &Run<W>, seeds: Range<u64>) -> Done {
    let bar = output::progress(seeds.end - seeds.start, &args.algorithm);
    let (mut summary, mut first, mut failure, mut refused) = (Summary::default(), None, None, None);
    let job = |seed| {
        let mut scenario = scenario.clone();
        scenario.world.seed = seed;
        let scenario = if args.swarm { scenario.swarmed() } else { scenario };
        problem::run(&scenario).map(|report| (scenario, report))
    };
    sweep::fold(seeds, job, |run| {
        bar.inc(1);
        let (scenario, report) = match run {
            Ok(run) => run,
            Err(message) => {
                refused = Some(message);
                return ControlFlow::Break(());
            }
        };
        if args.json {
            bar.suspend(|| output::print(&element(&report, summary.runs == 0)));
        }
        summary.add(report.facts(), &report.measured());
        if first.is_none() {
            first = Some((scenario.clone(), report.facts().digest.clone()));
        }
        if !report.facts().passed() {
            failure.get_or_insert((scenario, report));
        }
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    if let Some(message) = refused {
        return Err(message.into());
    }
    if let Some((scenario, digest)) = &first {
        program::verify_repeats(scenario, digest)?;
    }
    if args.json {
        output::print("\n]\n");
    } else {
        output::print(&report::describe_many(&summary, Paint::stdout()));
        if let Some((scenario, report)) = &failure {
            output::print(&format!("\n{}", report::describe::<W>(report, Paint::stdout())));
            explain(scenario, report);
        }
    }
    Ok(report::code(&summary))
}

/// Returns a report as an element of a JSON array, with the bracket or the comma before it.
fn element(report: &impl serde::Serialize, is_first: bool) -> String {
    let text = serde_json::to_string_pretty(report).expect("a report holds only strings, numbers and lists");
    let before = if is_first { "[" } else { "," };
    format!("{before}\n  {}", text.replace('\n', "\n  "))
}

/// Prints the next steps after a failure: the smallest run that still shows it, and the commands that show
/// that run.
fn explain<W: Problem>(scenario: &Run<W>, report: &W::Report) {
    let facts = report.facts();
    let Some(violation) = facts.violations.first() else { return };
    let smallest = problem::shrink(scenario, &violation.property);
    let command = smallest.command_line();
    output::print(&format!(
        "\nrepeat it:        {}\nsmallest found:   {command}\nlook at it:       {command} --svg run.svg\n\
         step through it:  {}\n",
        facts.command,
        command.replacen("sim", "replay", 1),
    ));
}
