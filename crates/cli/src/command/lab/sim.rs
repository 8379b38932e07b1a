//! `conclave sim`: one run, or the runs of many seeds.

use std::ops::Range;
use std::path::PathBuf;

use conclave_lab::diagram::{shiviz, spacetime};
use conclave_lab::log::Log;
use conclave_lab::problem::{self, Recorder, Report as _};
use conclave_lab::sweep;

use super::problems::{self, Problem, ProblemArgs};
use super::world::{self, WorldArgs};
use super::{program, report};
use crate::output::{self, Done, Failure, Paint};

/// Run one algorithm in the simulator, measure it and judge it.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The algorithm, as PROBLEM/ALGORITHM; `conclave list` shows all algorithms
    #[arg(value_name = "PROBLEM/ALGORITHM")]
    pub algorithm: String,
    /// The number of sites [default: 5]
    #[arg(long, value_name = "N", value_parser = world::nodes)]
    pub nodes: Option<u32>,
    /// The seed of all random choices [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    pub seed: Option<u64>,
    /// Run every seed of a half-open range, on all cores
    #[arg(long, value_name = "A..B", value_parser = world::seeds)]
    pub seeds: Option<Range<u64>>,
    /// Choose delays, pauses and partitions at random from each seed. The delays have 1 to 8 times the mean of
    /// --delay
    #[arg(long)]
    pub swarm: bool,
    /// The work of the run.
    #[command(flatten)]
    pub work: ProblemArgs,
    /// The world of the run.
    #[command(flatten)]
    pub world: WorldArgs,
    /// Write the run as JSON lines
    #[arg(long, value_name = "FILE", help_heading = "Output", conflicts_with = "seeds")]
    pub trace: Option<PathBuf>,
    /// Draw the run as a space-time diagram
    #[arg(long, value_name = "FILE", help_heading = "Output", conflicts_with = "seeds")]
    pub svg: Option<PathBuf>,
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
  conclave sim mutex/./ra.py --load high --seeds 0..1000

A name with a second / is the path of a program in any language, which runs the sites: see docs/sites.md.

--entries is the number of requests over all sites. A duration has a unit: 250us, 1.5ms, 2s.
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
pub(super) fn simulate<S: Problem>(args: &Args, name: &str) -> Done {
    let mut scenario: S = args.world.scenario(name, args.nodes, &args.work)?;
    if let Some(seeds) = &args.seeds {
        return run_many(args, &scenario, seeds.clone());
    }
    if let Some(seed) = args.seed {
        scenario.setup_mut().seed = seed;
    }
    if args.swarm {
        scenario = scenario.swarmed();
    }
    let report = run_one(args, &scenario)?;
    program::verify_repeats(&scenario, report.facts())?;
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report::describe::<S>(&report, Paint::stdout()));
        if !report.facts().passed() {
            explain(&scenario, &report);
        } else if report.facts().is_bounded() {
            output::print(&format!("\nrepeat it:        {}\n", report.facts().command));
        }
    }
    Ok(report::code(&[report.facts()]))
}

fn run_one<S: Problem>(args: &Args, scenario: &S) -> Result<S::Report, Failure> {
    let wants_log = args.svg.is_some() || args.shiviz.is_some();
    let mut recorder = Recorder::new(args.trace.is_some(), wants_log);
    let report = scenario.run(&mut recorder)?;
    if let Some(path) = &args.trace {
        output::write_file(path, &recorder.lines)?;
    }
    if let Some(log) = &recorder.log {
        draw::<S>(args, log)?;
    }
    Ok(report)
}

fn draw<S: Problem>(args: &Args, log: &Log) -> Result<(), Failure> {
    if let Some(path) = &args.svg {
        let options = spacetime::Options { spans: S::spans(log), ..Default::default() };
        output::write_file(path, spacetime::draw(log, &options).as_bytes())?;
    }
    if let Some(path) = &args.shiviz {
        output::write_file(path, shiviz::write(log)?.as_bytes())?;
    }
    Ok(())
}

fn run_many<S: Problem>(args: &Args, scenario: &S, seeds: Range<u64>) -> Done {
    let bar = output::progress(seeds.end - seeds.start, &args.algorithm);
    let runs = sweep::sweep(
        seeds,
        |seed| {
            let mut scenario = scenario.clone();
            scenario.setup_mut().seed = seed;
            let scenario = if args.swarm { scenario.swarmed() } else { scenario };
            problem::run(&scenario).map(|report| (scenario, report))
        },
        |_| bar.inc(1),
    );
    bar.finish_and_clear();
    let runs = runs.into_iter().collect::<Result<Vec<_>, String>>()?;
    let facts: Vec<_> = runs.iter().map(|(_, report)| report.facts()).collect();
    if let Some((scenario, report)) = runs.first() {
        program::verify_repeats(scenario, report.facts())?;
    }
    if args.json {
        output::print_json(&runs.iter().map(|(_, report)| report).collect::<Vec<_>>())?;
    } else {
        output::print(&report::describe_many(&facts, Paint::stdout()));
        if let Some((scenario, report)) = runs.iter().find(|(_, report)| !report.facts().passed()) {
            output::print(&format!("\n{}", report::describe::<S>(report, Paint::stdout())));
            explain(scenario, report);
        }
    }
    Ok(report::code(&facts))
}

/// Prints the next steps after a failure: the smallest run that still shows it, and the commands that show
/// that run.
fn explain<S: Problem>(scenario: &S, report: &S::Report) {
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
