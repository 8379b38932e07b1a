//! `conclave matrix`: runs each algorithm without one of its assumptions.

use std::path::PathBuf;

use conclave_check::{Bounds, Options, Verdict};
use conclave_lab::diagram::spacetime;
use conclave_lab::experiment::flags;
use conclave_lab::matrix::{self, Agreement, Assumption, Cell};

use super::check;
use super::picture::{Caption, PictureArgs};
use super::problems;
use crate::output::{self, Done, Failure, Paint, Table, counted};

/// Remove one assumption at a time: which algorithms stay correct, and how the others break.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only the algorithms of this problem
    #[arg(value_name = "PROBLEM")]
    problem: Option<String>,
    /// The number of sites
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = flags::nodes)]
    nodes: u32,
    /// The number of requests, elections or transfers of each site
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u8).range(..=254))]
    entries: u8,
    /// The number of states at which the exploration of a cell stops, approximately
    #[arg(long, value_name = "N", default_value_t = 20_000_000)]
    most_states: u64,
    /// The number of threads that explore [default: all cores]
    #[arg(long, value_name = "N", value_parser = flags::threads)]
    threads: Option<usize>,
    /// Draw every counterexample into this folder
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    svg: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, help_heading = "Output")]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  conclave matrix
  conclave matrix election --svg counterexamples
  conclave matrix mutex --entries 2 --most-states 20000000

Each column removes one assumption: messages arrive in any order, one message is lost, one message arrives \
twice, one site crashes, delays have no bound, the detector makes one mistake. A cell names the property that \
then breaks and the number of steps, or says that everything holds. Square brackets: the algorithm does not need \
the assumption. (!): the cell contradicts the entry of the algorithm in `conclave list`. 'bounded': the \
exploration stopped at --most-states, and the cell proves nothing. 'sampled': the checker cannot explore the \
algorithm, so this number of seeds was run, and none broke a property.
Exit codes: 0 every cell agrees with `conclave list`, 1 a cell contradicts it, 2 bad usage, 3 no cell \
contradicts it, but some are bounded.";

/// Explores every cell.
pub fn run(args: &Args) -> Done {
    if let Some(given) = args.problem.as_deref().filter(|given| !problems::is_problem(given)) {
        let instead = |problem: &str, _: &str| format!("type conclave matrix {problem}");
        return Err(problems::not_a_problem(given, instead));
    }
    let default = Options::default();
    let options = Options {
        threads: args.threads.unwrap_or(default.threads),
        bounds: Bounds { states: args.most_states, ..default.bounds },
        ..default
    };
    let cards: Vec<_> = matrix::all_rows(args.problem.as_deref()).collect();
    let bar = output::progress((cards.len() * Assumption::ALL.len()) as u64, "cells");
    let mut cells = Vec::new();
    for card in cards {
        let row = matrix::row(card, args.nodes, args.entries, &options, |without| {
            bar.set_message(format!("{} without {}", card.name, without.title()));
            bar.inc(1);
        })?;
        for cell in &row {
            draw(args, cell)?;
        }
        cells.extend(row);
    }
    bar.finish_and_clear();
    if args.json {
        output::print_json(&cells)?;
    } else {
        output::print(&describe(args, &cells, Paint::stdout()));
    }
    let any = |agreement| cells.iter().any(|cell| cell.agrees == agreement);
    Ok(check::exit(any(Agreement::No), any(Agreement::Unknown)))
}

fn draw(args: &Args, cell: &Cell) -> Result<(), Failure> {
    let (Some(folder), Some(log)) = (&args.svg, &cell.counterexample) else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|error| Failure::file(folder, &error))?;
    let name = format!("{} without {}.svg", cell.algorithm, cell.without.title());
    let sentence = format!("{} without {}", cell.property.unwrap_or_default(), cell.without.title());
    let caption = Caption::of_counterexample(log, &sentence, "");
    let options = PictureArgs::default().options(log, caption);
    let path = folder.join(name.replace(['/', ' '], "-"));
    output::write_file(&path, spacetime::draw(log, &options).as_bytes())
}

fn describe(args: &Args, cells: &[Cell], paint: Paint) -> String {
    let titles = Assumption::ALL.map(Assumption::title);
    let mut table = Table::new(&[&["without"][..], &titles].concat());
    for row in cells.chunk_by(|one, next| one.algorithm == next.algorithm) {
        let algorithm = row.first().map(|cell| cell.algorithm.clone()).unwrap_or_default();
        table.row([algorithm].into_iter().chain(row.iter().map(|cell| words(args, cell, paint))).collect());
    }
    table.render(paint)
}

fn words(args: &Args, cell: &Cell, paint: Paint) -> String {
    let text = match (cell.verdict, cell.property, cell.steps, cell.seeds) {
        (_, Some(property), None, Some(_)) => {
            format!("{property} with seed {}", cell.seed.unwrap_or_default())
        }
        (Verdict::Bounded, _, _, Some(seeds)) => format!("sampled: {seeds} seeds"),
        (Verdict::Holds, ..) => format!("holds, {} states", cell.states),
        (Verdict::Bounded, ..) => format!("bounded: {} states, {:.0} s", cell.states, cell.seconds),
        (_, Some(property), Some(steps), _) => format!("{property} in {}", counted(steps, "step")),
        (verdict, ..) => verdict.to_string(),
    };
    let text = if cell.nodes == args.nodes || cell.seeds.is_some() {
        text
    } else {
        format!("{text}, N = {}", cell.nodes)
    };
    let doubt = match cell.agrees {
        Agreement::Yes => "",
        Agreement::No => " (!)",
        Agreement::Unknown => " (?)",
    };
    let text = if cell.needed { format!("{text}{doubt}") } else { format!("[{text}]{doubt}") };
    match cell.agrees {
        Agreement::Yes => paint.good(&text),
        Agreement::No => paint.bad(&text),
        Agreement::Unknown => paint.bold(&text),
    }
}
