//! `conclave compare`: runs all algorithms of a problem on the same work.

use std::path::PathBuf;
use std::process::ExitCode;

use conclave_kernel::Card;
use conclave_kernel::suggest;
use conclave_lab::added;
use conclave_lab::compare::{self, Compare, Comparison, Request, Verdict};
use conclave_lab::experiment::{Run, flags};
use conclave_lab::problem::{self, Problem};

use super::flags::ProblemFlags;
use super::problems;
use super::world::WorldArgs;
use crate::output::{self, BOUNDED, Done, Failure, Paint, Table, VIOLATED};

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

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let Some(entry) = problems::named(&args.problem) else {
        let instead = |problem: &str, name: &str| format!("type conclave compare {problem} --only {name}");
        return Err(problems::not_a_problem(&args.problem, instead));
    };
    let Comparison { json, tables, legend, plot, verdicts } = (entry.compare)(args)?;
    if let Some(path) = &args.svg {
        output::write_file(path, plot?.as_bytes()).map_err(|failure| failure.of_flag("--svg"))?;
    }
    if args.json {
        output::print_json(&json)?;
    } else {
        output::print(&text(tables, &legend));
    }
    Ok(ExitCode::from(code(&verdicts)))
}

/// Compares the algorithms of a problem.
pub(super) fn compare<W: Compare>(args: &Args) -> Result<Comparison, Failure> {
    let sizes = if args.nodes.is_empty() { vec![5] } else { args.nodes.clone() };
    let mut base = args.base(sizes.iter().copied().max())?;
    if args.world.delay.is_none() && args.world.config.is_none() {
        W::set_delays(&mut base.world);
    }
    let is_given = |flag: &str| args.work.has(flag);
    let request = Request::<W> { base, sizes, cards: args.cards::<W>()?, is_given: &is_given };
    let bar = output::progress(0, "comparing");
    let compared = compare::compare(&request, |rows| bar.set_length(rows), || bar.inc(1));
    bar.finish_and_clear();
    Ok(compared?)
}

fn text(tables: Vec<compare::Table>, legend: &str) -> String {
    let paint = Paint::stdout();
    let mut text = String::new();
    for compare::Table { title, headings, rows } in tables {
        if !title.is_empty() {
            text.push_str(&paint.bold(&title));
            text.push_str("\n\n");
        }
        let mut table = Table::new(&headings.iter().map(String::as_str).collect::<Vec<_>>());
        rows.into_iter().for_each(|row| table.row(row));
        text.push_str(&table.render(paint));
        text.push('\n');
    }
    text + legend
}

/// The exit code of a comparison.
fn code(verdicts: &[Verdict]) -> u8 {
    match verdicts {
        _ if verdicts.contains(&Verdict::Violated) => VIOLATED,
        _ if verdicts.contains(&Verdict::Bounded) || !verdicts.contains(&Verdict::Holds) => BOUNDED,
        _ => 0,
    }
}

impl Args {
    /// The cards of the algorithms that `--only` names, or all cards.
    fn cards<W: Problem>(&self) -> Result<Vec<&'static Card>, Failure> {
        let names = || problem::compared::<W>().map(|card| card.name);
        if let Some(stranger) = self.only.iter().find(|name| !names().any(|known| known == name.as_str())) {
            let is_other = |card: &&Card| card.problem == W::NAME && card.name == stranger.as_str();
            if let Some(card) = added::cards().find(is_other) {
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
        Ok(problem::compared::<W>().filter(|card| wanted(card.name)).collect())
    }

    /// The scenario that the flags describe. The caller still has to set the algorithm.
    fn base<W: Problem>(&self, nodes: Option<u32>) -> Result<Run<W>, Failure> {
        let mut base: Run<W> = self.world.experiment("", nodes, &self.work)?;
        base.world.seed = self.seed;
        Ok(base)
    }
}
