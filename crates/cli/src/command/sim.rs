//! `conclave sim`: one run, or the runs of many seeds.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use conclave_algorithms::catalog;
use conclave_algorithms::mutex::{self, Mutex};
use conclave_kernel::Trace;
use conclave_lab::diagram::{mermaid, shiviz, spacetime, span};
use conclave_lab::log::{self, Log};
use conclave_lab::rooms::mutex::{self as room, Report, Scenario, Work};
use conclave_lab::{suggest, sweep};

use super::report;
use super::world::{self, WorldArgs};
use crate::output::{self, Done, Failure, Paint, VIOLATED};

/// Run one algorithm in the simulator, measure it and judge it.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which algorithm, as ROOM/ALGORITHM; `conclave list` shows them
    #[arg(value_name = "ROOM/ALGORITHM")]
    pub algorithm: String,
    /// How many sites [default: 5]
    #[arg(long, value_name = "N", value_parser = world::nodes)]
    pub nodes: Option<u32>,
    /// Who asks when: low, high, pair, relay, poisson:MEAN, burst:SIZE,EVERY or script:NODE@TIME,...
    /// [default: low]
    #[arg(long, value_name = "LOAD")]
    pub load: Option<Work>,
    /// The seed of all dice [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    pub seed: Option<u64>,
    /// Run every seed of a half-open range, on all cores
    #[arg(long, value_name = "A..B", value_parser = world::seeds)]
    pub seeds: Option<Range<u64>>,
    /// Draw delays, pauses and holding partitions from each seed
    #[arg(long)]
    pub swarm: bool,
    /// The world of the run.
    #[command(flatten)]
    pub world: WorldArgs,
    /// Write the run as JSON lines
    #[arg(long, value_name = "FILE", help_heading = "What to write", conflicts_with = "seeds")]
    pub trace: Option<PathBuf>,
    /// Draw the run as a space-time diagram
    #[arg(long, value_name = "FILE", help_heading = "What to write", conflicts_with = "seeds")]
    pub svg: Option<PathBuf>,
    /// Write the run as a ShiViz log
    #[arg(long, value_name = "FILE", help_heading = "What to write", conflicts_with = "seeds")]
    pub shiviz: Option<PathBuf>,
    /// Write the run as a Mermaid sequence diagram
    #[arg(long, value_name = "FILE", help_heading = "What to write", conflicts_with = "seeds")]
    pub mermaid: Option<PathBuf>,
    /// Print JSON instead of text: an object for one run, an array for several
    #[arg(long, help_heading = "What to write")]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  conclave sim mutex/ricart-agrawala --nodes 7
  conclave sim mutex/maekawa --nodes 13 --load high --svg run.svg
  conclave sim mutex/lamport --order any --delay uniform:1us..5ms --load high --seeds 0..1000
  conclave sim mutex/central --nodes 5 --partition 0+1@10ms..50ms --load high

--entries counts the requests of all sites together. Durations carry a unit: 250us, 1.5ms, 2s.
Exit codes: 0 every promised property held, 1 one was violated (or a fault that was asked for never struck), 2 bad usage.";

/// Runs what was asked for.
pub fn run(args: &Args) -> Done {
    let name = tenant(&args.algorithm)?;
    let mut scenario = args.world.scenario(name, args.nodes, args.load.as_ref())?;
    if let Some(seeds) = &args.seeds {
        return run_many(args, &scenario, seeds.clone());
    }
    if let Some(seed) = args.seed {
        scenario.setup.seed = seed;
    }
    if args.swarm {
        scenario = scenario.swarmed();
    }
    let report = run_one(args, &scenario)?;
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report::describe(&report, Paint::stdout()));
        if !report.passed() {
            explain(&scenario, &report);
        }
    }
    Ok(code(report.passed()))
}

/// The tenant's name in `ROOM/ALGORITHM`.
pub fn tenant(path: &str) -> Result<&str, Failure> {
    let Some((room, name)) = path.split_once('/') else {
        let paths: Vec<_> = catalog::cards().map(|card| card.path().to_string()).collect();
        let named = catalog::cards().find(|card| card.name == path);
        return Err(Failure::usage(match named {
            Some(card) => format!("'{path}' needs its room; did you mean {}?", card.path()),
            None => suggest::unknown("algorithm", path, paths.iter().map(String::as_str)),
        }));
    };
    if !catalog::rooms().any(|known| known == room) {
        return Err(suggest::unknown("room", room, catalog::rooms()).into());
    }
    let names = || catalog::cards().filter(|card| card.room == room).map(|card| card.name);
    if !names().any(|known| known == name) {
        return Err(suggest::unknown(&format!("algorithm of room {room}"), name, names()).into());
    }
    Ok(name)
}

fn code(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::from(VIOLATED) }
}

fn run_one(args: &Args, scenario: &Scenario) -> Result<Report, Failure> {
    let wants_trace = [&args.trace, &args.svg, &args.shiviz, &args.mermaid].iter().any(|file| file.is_some());
    if !wants_trace {
        return Ok(room::run(scenario)?);
    }
    let recorded = mutex::visit(&scenario.algorithm, Recorded { args, scenario });
    recorded.ok_or_else(|| Failure::usage(scenario.unknown_algorithm()))?
}

/// A run whose trace is written to files.
struct Recorded<'a> {
    args: &'a Args,
    scenario: &'a Scenario,
}

impl mutex::Visit for Recorded<'_> {
    type Out = Result<Report, Failure>;

    fn visit<P: Mutex>(self) -> Self::Out {
        let (report, trace) = room::run_tenant::<P>(self.scenario, true)?;
        let trace = trace.ok_or_else(|| Failure::usage("the run was not recorded"))?;
        write_trace(self.args, &trace)?;
        Ok(report)
    }
}

fn write_trace<P: Mutex>(args: &Args, trace: &Trace<P>) -> Result<(), Failure> {
    if let Some(path) = &args.trace {
        let mut lines = Vec::new();
        log::write_trace(trace, &mut lines).map_err(|error| Failure::file(path, &error))?;
        output::write_file(path, &lines)?;
    }
    if [&args.svg, &args.shiviz, &args.mermaid].iter().all(|file| file.is_none()) {
        return Ok(());
    }
    let log = Log::from_trace(trace)?;
    if let Some(path) = &args.svg {
        let options = spacetime::Options { spans: span::mutex(&log), ..Default::default() };
        output::write_file(path, spacetime::draw(&log, &options).as_bytes())?;
    }
    if let Some(path) = &args.shiviz {
        output::write_file(path, shiviz::write(&log)?.as_bytes())?;
    }
    if let Some(path) = &args.mermaid {
        output::write_file(path, mermaid::draw(&log).as_bytes())?;
    }
    Ok(())
}

fn run_many(args: &Args, scenario: &Scenario, seeds: Range<u64>) -> Done {
    let bar = output::progress(seeds.end - seeds.start, &args.algorithm);
    let reports = sweep::sweep(
        seeds,
        |seed| {
            let mut scenario = scenario.clone();
            scenario.setup.seed = seed;
            let scenario = if args.swarm { scenario.swarmed() } else { scenario };
            room::run(&scenario).map(|report| (scenario, report))
        },
        |_| bar.inc(1),
    );
    bar.finish_and_clear();
    let runs = reports.into_iter().collect::<Result<Vec<_>, String>>()?;
    let failed = runs.iter().find(|(_, report)| !report.passed());
    if args.json {
        output::print_json(&runs.iter().map(|(_, report)| report).collect::<Vec<_>>())?;
    } else {
        let reports: Vec<_> = runs.iter().map(|(_, report)| report).collect();
        output::print(&report::describe_many(&reports, Paint::stdout()));
        if let Some((scenario, report)) = failed {
            output::print(&report::describe(report, Paint::stdout()));
            explain(scenario, report);
        }
    }
    Ok(code(failed.is_none()))
}

/// What to do about a failure: the smallest run that still shows it, and how to look at it.
fn explain(scenario: &Scenario, report: &Report) {
    let Some(violation) = report.violations.first() else { return };
    let property = violation.property.clone();
    let smallest = room::shrink(scenario, &property);
    let command = smallest.command_line();
    output::print(&format!(
        "\nrepeat it:        {}\nsmallest found:   {command}\nlook at it:       {command} --svg run.svg\n\
         step through it:  {}\n",
        report.command,
        command.replacen("sim", "replay", 1),
    ));
}
