//! `conclave compare`: all algorithms of a room on the same work.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use conclave_algorithms::catalog;
use conclave_kernel::{Load, Measure, time};
use conclave_lab::compare::{self, Row};
use conclave_lab::{suggest, sweep};

use super::world::{self, WorldArgs};
use crate::output::{self, Done, Failure, Paint, Table, VIOLATED, number};

/// Run all algorithms of a room on the same work.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The room; `conclave list` shows them
    #[arg(value_name = "ROOM")]
    room: String,
    /// Group sizes, separated by commas [default: 5]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = world::nodes)]
    nodes: Vec<u32>,
    /// The seed of all dice
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Only these algorithms, separated by commas
    #[arg(long, value_name = "NAME,NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// The world of the runs.
    #[command(flatten)]
    world: WorldArgs,
    /// Plot messages per entry against the group size, measured beside formula
    #[arg(long, value_name = "FILE", help_heading = "What to write")]
    svg: Option<PathBuf>,
    /// Print JSON instead of tables: an array with an object for each algorithm and size
    #[arg(long, help_heading = "What to write")]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  conclave compare mutex
  conclave compare mutex --nodes 3,9,27,81 --svg costs.svg
  conclave compare mutex --only maekawa,raymond --delay exponential:1ms

Every algorithm runs three times at each size: one request at a time (low), two at a time (pair: the critical
section lasts at least 2NT, so that the second request has arrived when the first leaves), every site always asking
(high). T is the mean one-way delay. Exit codes: 0 every promised property held, 1 one was violated, 2 bad usage.";

/// Runs what was asked for.
pub fn run(args: &Args) -> Done {
    let (rows, delay) = measure(args)?;
    let passed = rows.iter().all(Row::passed);
    if let Some(path) = &args.svg {
        output::write_file(path, compare::plot(&rows).as_bytes())?;
    }
    if args.json {
        output::print_json(&rows)?;
    } else {
        output::print(&tables(&rows, delay));
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(VIOLATED) })
}

/// Runs everything; the rows, and T.
fn measure(args: &Args) -> Result<(Vec<Row>, Duration), Failure> {
    if !catalog::rooms().any(|room| room == args.room) {
        return Err(suggest::unknown("room", &args.room, catalog::rooms()).into());
    }
    let names = || compare::cards().iter().map(|card| card.name);
    if let Some(stranger) = args.only.iter().find(|name| !names().any(|known| known == name.as_str())) {
        return Err(suggest::unknown("algorithm of room mutex", stranger, names()).into());
    }
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let cards: Vec<_> = compare::cards().iter().filter(|card| wanted(card.name)).collect();
    let sizes = if args.nodes.is_empty() { vec![5] } else { args.nodes.clone() };
    let largest = sizes.iter().copied().max();
    let mut base = args.world.scenario("", largest, None)?;
    base.setup.seed = args.seed;

    let jobs: Vec<_> = sizes.iter().flat_map(|nodes| cards.iter().map(move |card| (*card, *nodes))).collect();
    let bar = output::progress(jobs.len() as u64, "comparing");
    let rows = sweep::sweep(
        0..jobs.len() as u64,
        |job| {
            let (card, nodes) = jobs[job as usize];
            compare::row(card, &base, nodes)
        },
        |_| bar.inc(1),
    );
    bar.finish_and_clear();
    Ok((rows.into_iter().collect::<Result<Vec<_>, String>>()?, base.setup.delay.mean()))
}

fn tables(rows: &[Row], delay: Duration) -> String {
    let paint = Paint::stdout();
    let mut text = String::new();
    if rows.first().map(|row| row.nodes) != rows.last().map(|row| row.nodes) {
        text.push_str(&paint.bold("messages per entry, one request at a time, as the group grows"));
        text.push_str("\n\n");
        text.push_str(&growth(rows).render(paint));
        text.push('\n');
    }
    let mut rest = rows;
    while let Some(first) = rest.first() {
        let (size, others) = rest.split_at(rest.iter().take_while(|row| row.nodes == first.nodes).count());
        text.push_str(&paint.bold(&format!("mutex, N = {}, T = {}", first.nodes, time::show(delay))));
        text.push_str("\n\n");
        text.push_str(&table(size, delay).render(paint));
        text.push('\n');
        rest = others;
    }
    text.push_str("messages per entry: measured mean, then the card's formula; low = one request at a time, high = all always asking\n");
    text.push_str("client: request to entry, alone; sync: exit to next entry with one waiting; bypass, Jain: at high load\n");
    text
}

fn growth(rows: &[Row]) -> Table {
    let mut sizes: Vec<u32> = rows.iter().map(|row| row.nodes).collect();
    sizes.dedup();
    let mut headings = vec!["algorithm".to_owned()];
    headings.extend(sizes.iter().map(|nodes| format!("N = {nodes}")));
    headings.push("formula".into());
    let mut table = Table::new(&headings.iter().map(String::as_str).collect::<Vec<_>>());
    for first in rows.iter().filter(|row| row.nodes == sizes[0]) {
        let mut cells = vec![first.algorithm.to_owned()];
        let same = rows.iter().filter(|row| row.algorithm == first.algorithm);
        cells.extend(same.map(|row| number(row.low.messages_per_entry)));
        let formula = first.formula(Measure::MessagesPerEntry, Load::Low);
        cells.push(formula.map_or("-".into(), |(formula, ..)| brief(formula)));
        table.row(cells);
    }
    table
}

fn table(rows: &[Row], delay: Duration) -> Table {
    let mut table = Table::new(&[
        "algorithm",
        "msgs low",
        "formula",
        "msgs high",
        "formula",
        "client",
        "formula",
        "sync",
        "formula",
        "entries/s",
        "bypass",
        "Jain",
        "ME3 inv.",
        "verdict",
    ]);
    for row in rows {
        let formula =
            |measure, load| row.formula(measure, load).map_or("-".into(), |(formula, ..)| brief(formula));
        let delays = |ns: Option<f64>| ns.map_or("-".into(), |ns| in_delays(ns, delay));
        table.row(vec![
            row.algorithm.to_owned(),
            number(row.low.messages_per_entry),
            formula(Measure::MessagesPerEntry, Load::Low),
            number(row.high.messages_per_entry),
            formula(Measure::MessagesPerEntry, Load::High),
            delays(row.low.client_delay_ns),
            formula(Measure::ClientDelay, Load::Low),
            delays(row.pair.sync_delay_ns),
            formula(Measure::SyncDelay, Load::High),
            number(row.high.throughput_per_s.round()),
            row.high.max_bypass.to_string(),
            number(row.high.fairness),
            row.high.order_inversions.map_or("-".into(), |inversions| inversions.to_string()),
            if row.passed() { "holds".into() } else { "violated".into() },
        ]);
    }
    table
}

/// A formula without the remarks that follow it.
fn brief(formula: &str) -> String {
    let remarks = [", ", " ("].iter().filter_map(|mark| formula.find(mark)).min();
    formula[..remarks.unwrap_or(formula.len())].to_owned()
}

fn in_delays(ns: f64, delay: Duration) -> String {
    if delay.is_zero() {
        return time::show(Duration::from_nanos(ns as u64));
    }
    format!("{}T", number(ns / time::nanos(delay) as f64))
}
