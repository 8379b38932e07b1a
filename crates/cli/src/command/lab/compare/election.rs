//! The comparison of the election problem: at boot, and after the crash of the leader.

use std::time::Duration;

use conclave_kernel::time;
use conclave_lab::problems::election::compare::{self, Row};
use conclave_lab::problems::election::{Report, Scenario, Work};
use conclave_lab::sweep;

use super::{Args, Compared, Verdict, cell};
use crate::output::{Failure, Paint, Table, number};

/// Runs every algorithm five times at each size.
pub fn compare(args: &Args) -> Result<Compared, Failure> {
    let cards = args.cards::<Work>()?;
    let sizes = args.sizes();
    let base: Scenario = args.base(sizes.iter().copied().max())?;
    let jobs: Vec<_> = sizes.iter().flat_map(|nodes| cards.iter().map(move |card| (*card, *nodes))).collect();
    let job = |job: u64| {
        let (card, nodes) = jobs[job as usize];
        compare::row(card, &base, nodes)
    };
    let rows = sweep::sweep(0..jobs.len() as u64, job, |_| {});
    let rows = rows.into_iter().collect::<Result<Vec<_>, String>>()?;
    let verdicts: Vec<_> = rows.iter().map(|row| Verdict::of(&row.facts())).collect();
    Compared::new(&rows, tables(&rows), Some(compare::plot(&rows)), &verdicts)
}

fn tables(rows: &[Row]) -> String {
    let paint = Paint::stdout();
    let mut text = String::new();
    let mut rest = rows;
    while let Some(first) = rest.first() {
        let (size, others) = rest.split_at(rest.iter().take_while(|row| row.nodes == first.nodes).count());
        text.push_str(&paint.bold(&format!("election, N = {}", first.nodes)));
        text.push_str("\n\n");
        text.push_str(&table(size).render(paint));
        text.push('\n');
        rest = others;
    }
    text.push_str("boot: messages of the first election, by the site that begins\n");
    text.push_str(
        "crash: the leader crashes (the highest site that --crash leaves up); messages to replace it, by the site\n\
         that notices the crash; time: from the crash until the last site has decided\n",
    );
    text.push_str("background: messages per second that do not depend on an election, such as heartbeats\n");
    text
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "algorithm",
        "boot highest",
        "boot lowest",
        "boot all",
        "crash highest",
        "time",
        "crash lowest",
        "time",
        "background/s",
        "verdict",
    ]);
    for row in rows {
        let messages = |report: &Report| cell(report.elections > 0, &report.messages_of_last);
        let took = |report: &Report| {
            report.turnaround_of_last_ns.map_or("-".into(), |ns| time::show(Duration::from_nanos(ns)))
        };
        table.row(vec![
            row.algorithm.to_owned(),
            messages(&row.boot_highest),
            messages(&row.boot_lowest),
            messages(&row.boot_all),
            messages(&row.crash_highest),
            took(&row.crash_highest),
            messages(&row.crash_lowest),
            took(&row.crash_lowest),
            number(row.crash_lowest.background_messages_per_s),
            Verdict::of(&row.facts()).cell(),
        ]);
    }
    table
}
