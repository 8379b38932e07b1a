//! `conclave matrix`: what happens if an assumption does not hold.

use std::path::PathBuf;
use std::process::ExitCode;

use conclave_algorithms::catalog;
use conclave_check::{Bounds, Options, Verdict};
use conclave_lab::diagram::{spacetime, span};
use conclave_lab::matrix::{self, Assumption, Cell};
use conclave_lab::suggest;

use super::world;
use crate::output::{self, Done, Failure, Paint, Table, VIOLATED};

/// Take away one assumption at a time: which algorithm stands it, and how the others break.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only the algorithms of this room
    #[arg(value_name = "ROOM")]
    room: Option<String>,
    /// How many sites
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = world::nodes)]
    nodes: u32,
    /// How often each site may ask
    #[arg(long, value_name = "K", default_value_t = 1)]
    entries: u8,
    /// Stop a cell at about so many states
    #[arg(long, value_name = "N", default_value_t = 5_000_000)]
    most_states: u64,
    /// How many threads explore [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Draw every counterexample into this folder
    #[arg(long, value_name = "DIR", help_heading = "What to write")]
    svg: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, help_heading = "What to write")]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  conclave matrix
  conclave matrix mutex --svg counterexamples
  conclave matrix mutex --entries 2 --most-states 20000000

A column is what is taken away: messages arrive in any order, one is lost, one arrives twice, one site crashes. A cell
says what then breaks and in how many steps, or that everything still holds. In brackets: the algorithm does not need it.
Exit codes: 0 every algorithm breaks where it says it needs the assumption, and nowhere else; 1 one does not; 2 bad usage.";

/// Explores every cell.
pub fn run(args: &Args) -> Done {
    if let Some(room) = args.room.as_deref().filter(|room| catalog::rooms().all(|known| known != *room)) {
        return Err(suggest::unknown("room", room, catalog::rooms()).into());
    }
    let default = Options::default();
    let options = Options {
        threads: args.threads.unwrap_or(default.threads),
        bounds: Bounds { states: args.most_states, ..default.bounds },
        ..default
    };
    let cards: Vec<_> = matrix::rows(args.room.as_deref()).collect();
    if cards.is_empty() {
        let room = args.room.as_deref().unwrap_or_default();
        return Err(Failure::usage(format!("room {room} has no matrix; mutex has one")));
    }
    let bar = output::progress((cards.len() * Assumption::ALL.len()) as u64, "cells");
    let mut cells = Vec::new();
    for card in cards {
        for without in Assumption::ALL {
            bar.set_message(format!("{} without {}", card.name, without.title()));
            let cell = matrix::cell(card, without, args.nodes, args.entries, &options)?;
            draw(args, &cell)?;
            cells.push(cell);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if args.json {
        output::print_json(&cells)?;
    } else {
        output::print(&describe(&cells, Paint::stdout()));
    }
    let agree = cells.iter().all(Cell::agrees);
    Ok(if agree { ExitCode::SUCCESS } else { ExitCode::from(VIOLATED) })
}

fn draw(args: &Args, cell: &Cell) -> Result<(), Failure> {
    let (Some(folder), Some(log)) = (&args.svg, &cell.counterexample) else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|error| Failure::file(folder, &error))?;
    let name = format!("{} without {}.svg", cell.algorithm, cell.without.title());
    let options = spacetime::Options { spans: span::mutex(log), ..Default::default() };
    let path = folder.join(name.replace(['/', ' '], "-"));
    output::write_file(&path, spacetime::draw(log, &options).as_bytes())
}

fn describe(cells: &[Cell], paint: Paint) -> String {
    let titles = Assumption::ALL.map(Assumption::title);
    let mut table = Table::new(&[&["without"][..], &titles].concat());
    for row in cells.chunk_by(|one, next| one.algorithm == next.algorithm) {
        let algorithm = row.first().map(|cell| cell.algorithm.clone()).unwrap_or_default();
        table.row([algorithm].into_iter().chain(row.iter().map(words)).collect());
    }
    table.render(paint)
}

fn words(cell: &Cell) -> String {
    let text = match (cell.verdict, cell.property, cell.steps) {
        (Verdict::Holds, ..) => format!("holds, {} states", cell.states),
        (Verdict::Bounded, ..) => format!("not broken in {} states", cell.states),
        (_, Some(property), Some(steps)) => format!("{property} in {steps} steps"),
        (verdict, ..) => verdict.to_string(),
    };
    let doubt = if cell.agrees() { "" } else { " (!)" };
    if cell.needed { format!("{text}{doubt}") } else { format!("[{text}]{doubt}") }
}
