//! The comparison of the snapshot problem: one site or all sites start it, with the measured costs beside the
//! formulas.

use std::time::Duration;

use conclave_kernel::{Load, Measure, time};
use conclave_lab::problems::snapshot::compare::{self, Row};
use conclave_lab::problems::snapshot::{Report, Scenario, Work};

use super::{Args, Compared, Verdict, cell};
use crate::output::{Failure, Paint, Table, number};

/// Runs every algorithm twice at each size.
pub fn compare(args: &Args) -> Result<Compared, Failure> {
    let cards = args.cards::<Work>()?;
    let sizes = args.sizes();
    let base: Scenario = args.base(sizes.iter().copied().max())?;
    let mut rows = Vec::new();
    for nodes in sizes {
        for card in &cards {
            rows.push(compare::row(card, &base, nodes)?);
        }
    }
    let text = table(&rows, base.world.delay.mean()).render(Paint::stdout());
    let legend = "messages: of one snapshot, without those of the application; one, all: the sites that start it; on the way:\n\
         recorded messages in channels; T: the mean delay\n";
    let verdicts: Vec<_> = rows.iter().map(|row| Verdict::of(&row.facts())).collect();
    Compared::new(&rows, format!("{text}\n{legend}"), None, &verdicts)
}

fn table(rows: &[Row], delay: Duration) -> Table {
    let headings = [
        "algorithm",
        "N",
        "messages",
        "formula",
        "turnaround, one",
        "formula",
        "all",
        "formula",
        "on the way",
        "verdict",
    ];
    let mut table = Table::new(&headings);
    for row in rows {
        let formula =
            |measure, load| row.formula(measure, load).map_or("-", |(formula, ..)| formula).to_owned();
        let has_picture = !row.one.snapshots.is_empty();
        let on_the_way = |report: &Report| -> usize {
            report
                .snapshots
                .iter()
                .flat_map(|shown| &shown.channels)
                .map(|channel| channel.messages.len())
                .sum()
        };
        table.row(vec![
            row.algorithm.to_owned(),
            row.nodes.to_string(),
            cell(has_picture, &number(row.one.messages_per_snapshot)),
            formula(Measure::Messages, Load::Low),
            turnaround(&row.one, delay),
            formula(Measure::Turnaround, Load::Low),
            turnaround(&row.all, delay),
            formula(Measure::Turnaround, Load::High),
            cell(has_picture, &on_the_way(&row.one)),
            Verdict::of(&row.facts()).cell(),
        ]);
    }
    table
}

fn turnaround(report: &Report, delay: Duration) -> String {
    let Some(ns) = report.snapshots.first().and_then(|shown| shown.turnaround_ns) else { return "-".into() };
    if delay.is_zero() {
        return time::show(Duration::from_nanos(ns));
    }
    format!("{}T", number(ns as f64 / time::nanos(delay) as f64))
}
