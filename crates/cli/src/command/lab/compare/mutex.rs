//! The comparison of the mutex problem: three loads, with the measured costs beside the formulas.

use std::time::Duration;

use conclave_kernel::{Load, Measure, time};
use conclave_lab::problems::mutex::compare::{self, Row};
use conclave_lab::problems::mutex::{Report, Scenario, Work};
use conclave_lab::sweep;

use super::{Args, Compared, Verdict, cell};
use crate::output::{self, Failure, Paint, Table, number};

/// Runs every algorithm three times at each size.
pub fn compare(args: &Args) -> Result<Compared, Failure> {
    let cards = args.cards::<Work>()?;
    let sizes = args.sizes();
    let base: Scenario = args.base(sizes.iter().copied().max())?;

    let jobs: Vec<_> = sizes.iter().flat_map(|nodes| cards.iter().map(move |card| (*card, *nodes))).collect();
    let bar = output::progress(jobs.len() as u64, "comparing");
    let rows = sweep::sweep(
        0..jobs.len() as u64,
        |job| {
            let (card, nodes) = jobs[job as usize];
            compare::row(card, &with_entries(&base, nodes, args), nodes)
        },
        |_| bar.inc(1),
    );
    bar.finish_and_clear();
    let rows = rows.into_iter().collect::<Result<Vec<_>, String>>()?;
    let verdicts: Vec<_> = rows.iter().map(|row| Verdict::of(&row.facts())).collect();
    Compared::new(&rows, tables(&rows, base.world.delay.mean()), Some(compare::plot(&rows)), &verdicts)
}

/// The scenario of a size. If the user gave no number of requests, every site has two turns.
fn with_entries(base: &Scenario, nodes: u32, args: &Args) -> Scenario {
    let is_given = args.work.has("entries") || base.work.entries != Work::default().entries;
    let entries = if is_given { base.work.entries } else { compare::two_turns(nodes) };
    base.clone().with(|work| work.entries = entries)
}

fn tables(rows: &[Row], delay: Duration) -> String {
    let paint = Paint::stdout();
    let mut text = String::new();
    if rows.first().map(|row| row.nodes) != rows.last().map(|row| row.nodes) {
        text.push_str(&paint.bold("messages per entry by group size, one request at a time"));
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
    text.push_str(
        "msgs: messages per entry, the measured mean beside the formula; low: one request at a time; high: every\n\
         site always has a request\n\
         client: from a request to its entry, without other requests; sync: from an exit to the next entry, with one\n\
         site waiting; bypass: the most entries of other sites between a request and its entry; Jain: fairness, 1 is\n\
         best (both at high load)\n",
    );
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
        cells.extend(same.map(|row| per_entry(&row.low)));
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
        let entered = row.high.entries > 0;
        let delays = |ns: Option<f64>| ns.map_or("-".into(), |ns| in_delays(ns, delay));
        table.row(vec![
            row.algorithm.to_owned(),
            per_entry(&row.low),
            formula(Measure::MessagesPerEntry, Load::Low),
            per_entry(&row.high),
            formula(Measure::MessagesPerEntry, Load::High),
            delays(row.low.client_delay_ns),
            formula(Measure::ClientDelay, Load::Low),
            delays(row.pair.sync_delay_ns),
            formula(Measure::SyncDelay, Load::High),
            cell(entered, &number(row.high.throughput_per_s.round())),
            cell(entered, &row.high.max_bypass),
            cell(entered, &number(row.high.fairness)),
            row.high.order_inversions.map_or("-".into(), |inversions| cell(entered, &inversions)),
            Verdict::of(&row.facts()).cell(),
        ]);
    }
    table
}

fn per_entry(report: &Report) -> String {
    cell(report.entries > 0, &number(report.messages_per_entry))
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
