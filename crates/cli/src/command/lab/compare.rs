//! `conclave compare`: runs all algorithms of a problem on the same work.

mod deadlock;
mod detector;
mod election;
mod mutex;
mod snapshot;
mod timesync;

use std::path::PathBuf;
use std::process::ExitCode;

use conclave_algorithms::catalog;
use conclave_kernel::Card;
use conclave_kernel::suggest;
use conclave_lab::experiment::{Run, flags};
use conclave_lab::problem::{Facts, Problem};
use serde::Serialize;

use super::flags::ProblemFlags;
use super::problems;
use super::world::WorldArgs;
use crate::output::{self, BOUNDED, Done, Failure, VIOLATED};

/// Run the algorithms of a problem on the same work.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The problem; `conclave list` shows the problems
    #[arg(value_name = "PROBLEM")]
    problem: String,
    /// Group sizes, separated by commas [default: 5]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = flags::nodes)]
    nodes: Vec<u32>,
    /// The seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Only these algorithms, separated by commas
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// The flags of the problem.
    #[command(flatten)]
    work: ProblemFlags,
    /// The world of the runs.
    #[command(flatten)]
    world: WorldArgs,
    /// Plot the comparison. Mutex: messages per entry against the group size, measured and by formula.
    /// Election: messages to replace a crashed leader. Detector: mistakes against detection time. Timesync:
    /// the error over time, with the promised bound
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
    /// Print JSON instead of tables: an array with an object for each algorithm and size
    #[arg(long, help_heading = "Output")]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  conclave compare mutex
  conclave compare mutex --nodes 3,9,27,81 --svg costs.svg
  conclave compare mutex --only maekawa,raymond --delay exponential:1ms
  conclave compare election --nodes 4,8,16,32
  conclave compare detector --delay lognormal:5ms,1 --svg tradeoff.svg
  conclave compare deadlock --nodes 4,8 --delay exponential:1ms
  conclave compare timesync --delay lognormal:2ms,1.5 --svg clocks.svg

Mutex: every algorithm without a failure detector runs three times at each size: with one request at a time \
(low), with two at a time (pair), and with a request of every site at all times (high). In pair, the critical \
section lasts at least 2NT, so that the second request arrives before the first site leaves. T is the mean \
one-way delay. The heartbeats of the others have no cost per entry: run these with `conclave sim`.
Election: at boot, the highest site, the lowest site or all sites begin. Then the leader crashes, and the \
highest or the lowest of the other sites notices. The leader is the highest site that --crash leaves up. A site \
that --crash names must exist at every size.
Detector: every algorithm runs with several values of D or of the threshold, on the same traffic and crashes.
Deadlock: every detector runs on random requests of its model. Then detection, prevention and avoidance run on \
the same transactions, with one client per site.
Snapshot: every algorithm runs twice at each size: one site starts the snapshot, then all sites start it.
Timesync: every algorithm runs on the same network. The exception is dtp: it always runs on cables of its own.
Exit codes: 0 every promised property that was tested held, 1 a promised property was violated, or a fault did \
not occur, 2 bad usage, 3 a run was bounded (see `conclave sim --help`), or no run tested a promised property.";

/// The result of a comparison.
pub struct Compared {
    json: serde_json::Value,
    text: String,
    svg: Option<String>,
    code: u8,
}

impl Compared {
    /// Takes the rows with their verdicts, the tables, and the plot if the problem has one.
    fn new(
        rows: &impl Serialize,
        mut text: String,
        svg: Option<String>,
        verdicts: &[Verdict],
    ) -> Result<Self, Failure> {
        let json = serde_json::to_value(rows).map_err(|error| Failure::usage(error.to_string()))?;
        if verdicts.contains(&Verdict::NotJudged) {
            text.push_str("-: not judged, because no run of the row tested a promised property\n");
        }
        if verdicts.contains(&Verdict::Bounded) {
            text.push_str("bounded: a run of the row ended without progress; `conclave sim` shows the run\n");
        }
        Ok(Self { json, text, svg, code: code(verdicts) })
    }
}

/// The verdict on a row of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Every promised property that a run tested held.
    Holds,
    /// A promised property was violated, or a fault did not occur.
    Violated,
    /// A run ended without progress.
    Bounded,
    /// No run tested a promised property.
    NotJudged,
}

impl Verdict {
    /// The verdict on the runs of a row.
    fn of(runs: &[&Facts]) -> Self {
        match runs {
            _ if runs.iter().any(|facts| !facts.passed()) => Self::Violated,
            _ if runs.iter().any(|facts| facts.is_bounded()) => Self::Bounded,
            _ if runs.iter().any(|facts| facts.has_judged_any()) => Self::Holds,
            _ => Self::NotJudged,
        }
    }

    /// The verdict as a cell of a table.
    fn cell(self) -> String {
        match self {
            Self::Holds => "holds",
            Self::Violated => "violated",
            Self::Bounded => "bounded",
            Self::NotJudged => "-",
        }
        .into()
    }
}

/// The exit code of a comparison.
fn code(verdicts: &[Verdict]) -> u8 {
    match verdicts {
        _ if verdicts.contains(&Verdict::Violated) => VIOLATED,
        _ if verdicts.contains(&Verdict::Bounded) || !verdicts.contains(&Verdict::Holds) => BOUNDED,
        _ => 0,
    }
}

/// A figure as a cell of a table; `-` if the runs gave no figure.
fn cell(has_figure: bool, figure: &impl ToString) -> String {
    if has_figure { figure.to_string() } else { "-".into() }
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    if !problems::is_problem(&args.problem) {
        let instead = |problem: &str, name: &str| format!("type conclave compare {problem} --only {name}");
        return Err(problems::not_a_problem(&args.problem, instead));
    }
    let compared = match args.problem.as_str() {
        "mutex" => mutex::compare(args)?,
        "snapshot" => snapshot::compare(args)?,
        "election" => election::compare(args)?,
        "detector" => detector::compare(args)?,
        "deadlock" => deadlock::compare(args)?,
        "timesync" => timesync::compare(args)?,
        problem => {
            return Err(Failure::usage(format!(
                "problem {problem} has no comparison: choose another problem"
            )));
        }
    };
    if let Some(path) = &args.svg {
        let plot = compared.svg.ok_or_else(|| {
            Failure::usage(format!("problem {} has no plot: leave out --svg", args.problem))
        })?;
        output::write_file(path, plot.as_bytes()).map_err(|failure| failure.of_flag("--svg"))?;
    }
    if args.json {
        output::print_json(&compared.json)?;
    } else {
        output::print(&compared.text);
    }
    Ok(ExitCode::from(compared.code))
}

impl Args {
    /// The cards of the algorithms that `--only` names, or all cards.
    fn cards<W: Problem>(&self) -> Result<Vec<&'static Card>, Failure> {
        let names = || W::cards().iter().map(|card| card.name);
        if let Some(stranger) = self.only.iter().find(|name| !names().any(|known| known == name.as_str())) {
            let is_other = |card: &&Card| card.problem == W::NAME && card.name == stranger.as_str();
            if let Some(card) = catalog::cards().find(is_other) {
                let path = card.path();
                return Err(Failure::usage(format!(
                    "{path} is not compared, because its heartbeats have no cost per entry: run it with `conclave sim {path}`"
                )));
            }
            return Err(
                suggest::unknown(&format!("algorithm of problem {}", W::NAME), stranger, names()).into()
            );
        }
        let wanted = |name: &str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        Ok(W::cards().iter().filter(|card| wanted(card.name)).collect())
    }

    /// The group sizes that `--nodes` gives, or the default.
    fn sizes(&self) -> Vec<u32> {
        if self.nodes.is_empty() { vec![5] } else { self.nodes.clone() }
    }

    /// The scenario that the flags describe. The caller still has to set the algorithm.
    fn base<W: Problem>(&self, nodes: Option<u32>) -> Result<Run<W>, Failure> {
        let mut base: Run<W> = self.world.experiment("", nodes, &self.work)?;
        base.world.seed = self.seed;
        Ok(base)
    }
}
