//! The comparison of failure detectors: detection time against mistakes, over a range of D.

use conclave_algorithms::detector::spec::COMPLETENESS;
use conclave_lab::problem::nanos;
use conclave_lab::problems::detector::compare::{self, Row};
use conclave_lab::problems::detector::{Sample, Scenario};
use conclave_lab::sweep;

use super::{Args, Compared, Verdict};
use crate::output::{self, Failure, Paint, Table, number};

/// Runs every algorithm with every setting on the same traffic.
pub fn compare(args: &Args) -> Result<Compared, Failure> {
    let cards = args.cards::<Scenario>()?;
    let sizes = args.sizes();
    let [nodes] = sizes[..] else {
        return Err(Failure::usage("detectors are compared at one size: give one number to --nodes"));
    };
    let mut base: Scenario = args.base(Some(nodes))?;
    if args.world.delay.is_none() && args.world.config.is_none() {
        base.setup.delay = compare::DELAY;
    }
    let jobs: Vec<_> = cards
        .iter()
        .flat_map(|card| compare::settings(card, &base).into_iter().map(move |scenario| (*card, scenario)))
        .collect();
    let bar = output::progress(jobs.len() as u64, "comparing");
    let job = |job: u64| compare::row(jobs[job as usize].0, &jobs[job as usize].1);
    let rows = sweep::sweep(0..jobs.len() as u64, job, |_| bar.inc(1));
    bar.finish_and_clear();
    let rows = rows.into_iter().collect::<Result<Vec<_>, String>>()?;
    let text = table(&rows, &base);
    let plot = compare::plot(&rows, &base);
    if args.svg.is_some() && plot.is_none() {
        let delay = &base.setup.delay;
        return Err(Failure::usage(format!(
            "no setting makes a mistake with delays {delay}, so there is no trade-off to plot; \
             vary the delays, for example with --delay exponential:10ms"
        )));
    }
    let verdicts: Vec<_> = rows.iter().map(verdict).collect();
    Compared::new(&rows, text, plot, &verdicts)
}

/// The verdict on a row: whether the watchers noticed the crashes. Mistakes are the subject of the
/// comparison, so they are no violations.
fn verdict(row: &Row) -> Verdict {
    match row.report.facts.has_judged(COMPLETENESS.name) {
        _ if !row.passed() => Verdict::Violated,
        true => Verdict::Holds,
        false => Verdict::NotJudged,
    }
}

fn table(rows: &[Row], base: &Scenario) -> String {
    let paint = Paint::stdout();
    let mut table = Table::new(&[
        "algorithm",
        "setting",
        "detection",
        "longest",
        "mistakes",
        "an hour and pair",
        "they last",
        "unnoticed",
        "msgs/s",
        "complete",
    ]);
    for row in rows {
        let report = &row.report;
        let mean = |sample: Option<Sample>| sample.map_or("-".into(), |sample| nanos(sample.mean_ns));
        table.row(vec![
            row.algorithm.to_owned(),
            row.setting.clone(),
            mean(report.detection_time),
            report.detection_time.map_or("-".into(), |sample| nanos(sample.max_ns as f64)),
            report.mistakes.to_string(),
            number(report.mistake_rate_per_s * 3_600.0),
            mean(report.mistake_duration),
            report.unnoticed_crashes.to_string(),
            number(report.messages_per_s),
            match verdict(row) {
                Verdict::Holds => "yes".into(),
                Verdict::Violated => "no".into(),
                other => other.cell(),
            },
        ]);
    }
    let title = format!(
        "detector, N = {}, T = {}, delays {}",
        base.setup.nodes,
        nanos(base.period.as_nanos() as f64),
        base.setup.delay
    );
    format!(
        "{}\n\n{}\nsite 0 crashes 20 times, every second time for only 1.5 T; unnoticed: crashes that ended before a\n\
         watcher suspected the site\n",
        paint.bold(&title),
        table.render(paint)
    )
}
