//! The comparison of the timesync problem: the error of the clocks, and the bound that the sites promise.

use std::time::Duration;

use conclave_kernel::time;
use conclave_lab::problem::nanos;
use conclave_lab::problems::timesync::compare::{self, Row};
use conclave_lab::problems::timesync::{Scenario, Work};
use conclave_lab::sweep;

use super::{Args, Compared, Verdict};
use crate::output::{self, Failure, Paint, Table};

/// Runs every algorithm at each size. The plot shows the largest size.
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
            compare::row(card, &base, nodes)
        },
        |_| bar.inc(1),
    );
    bar.finish_and_clear();
    let rows = rows.into_iter().collect::<Result<Vec<_>, String>>()?;
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let plotted: Vec<Row> = rows.iter().filter(|row| row.nodes == largest).cloned().collect();
    let verdicts: Vec<_> = rows.iter().map(|row| Verdict::of(&[&row.report.facts])).collect();
    Compared::new(&rows, tables(&rows), Some(compare::plot(&plotted)), &verdicts)
}

fn tables(rows: &[Row]) -> String {
    let paint = Paint::stdout();
    let mut text = String::new();
    let mut rest = rows;
    while let Some(first) = rest.first() {
        let (size, others) = rest.split_at(rest.iter().take_while(|row| row.nodes == first.nodes).count());
        text.push_str(&paint.bold(&format!("timesync, N = {}", first.nodes)));
        text.push_str("\n\n");
        text.push_str(&table(size).render(paint));
        text.push('\n');
        rest = others;
    }
    text.push_str(
        "error: of the worst clock, against the true time (truth) or another clock (group); mean and largest over time\n\
         bound: the bound that the sites promise, at the same moments; settled: the moments at which every site promises\n\
         a bound\n",
    );
    text
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "algorithm",
        "against",
        "every",
        "error",
        "largest",
        "bound",
        "largest",
        "settled",
        "missed",
        "messages",
        "verdict",
    ]);
    for Row { algorithm, every_ns, report, .. } in rows {
        let mean = |ns: Option<f64>| ns.map_or("-".into(), nanos);
        let most = |ns: Option<u64>| mean(ns.map(|ns| ns as f64));
        table.row(vec![
            (*algorithm).to_owned(),
            report.reference.to_owned(),
            time::show(Duration::from_nanos(*every_ns)),
            mean(report.error_mean_ns),
            most(report.error_max_ns),
            mean(report.bound_mean_ns),
            most(report.bound_max_ns),
            format!("{}/{}", report.settled, report.moments.len()),
            report.missed.to_string(),
            report.facts.messages.to_string(),
            Verdict::of(&[&report.facts]).cell(),
        ]);
    }
    table
}
