//! The reports of runs as text.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use conclave_kernel::{Verdict, time};
use conclave_lab::problem::{Facts, Report as _, Unit, nanos, number};
use conclave_lab::sweep::{Evidence, Figure, Seeds, Summary};

use super::problems::Problem;
use crate::output::{BOUNDED, Paint, Table, VIOLATED, counted};

/// Describes one run.
pub fn describe<S: Problem>(report: &S::Report, paint: Paint) -> String {
    let facts = report.facts();
    let title = paint.bold(&format!("{}/{}", S::PROBLEM, facts.algorithm));
    let mut text = format!("{title}  N = {}, ", facts.nodes);
    let subject = report.subject();
    if !subject.is_empty() {
        _ = write!(text, "{subject}, ");
    }
    _ = writeln!(text, "seed {}\n", facts.seed);
    let mut line = |name: &str, value: String| _ = writeln!(text, "  {name:<22}{value}");
    for (name, value) in report.figures() {
        line(name, value);
    }
    line("events", format!("{} ({} a second)", facts.events, count(facts.events_per_s)));
    line("digest", facts.digest.clone());
    text.push('\n');
    verdicts(facts, paint, &mut text);
    text
}

/// Returns the exit code for some runs: the worst of their results.
pub fn code(runs: &Summary) -> ExitCode {
    match (runs.failed.count, runs.bounded.count) {
        (0, 0) if runs.has_judged_any => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(BOUNDED),
        _ => ExitCode::from(VIOLATED),
    }
}

/// Describes the runs of many seeds.
pub fn describe_many(runs: &Summary, paint: Paint) -> String {
    let Summary { messages, events, failed, bounded, .. } = runs;
    let mut text = format!("{} runs, {messages} messages, {events} events: ", runs.runs);
    if failed.count == 0 {
        _ = writeln!(text, "{}", summary(runs, paint));
    } else {
        let failures = paint.bad(&format!("{} failed", failed.count));
        _ = writeln!(text, "{failures} ({})", seeds(failed));
    }
    evidence(runs, &mut text);
    if let Some(command) = &runs.first_bounded {
        let count = counted(bounded.count, "run");
        _ = writeln!(text, "{}: {count} without progress ({})", paint.bad("bounded"), seeds(bounded));
        _ = writeln!(text, "  repeat the first:     {command}");
    }
    _ = write!(text, "\n{}", figures(runs, paint));
    text
}

/// Summarises runs of which none failed.
fn summary(runs: &Summary, paint: Paint) -> String {
    match runs.promised.values().filter(|evidence| evidence.judged > 0).count() {
        0 => paint.bad("no run tested a promised property"),
        judged if judged < runs.promised.len() => paint.good("every promised property that was tested held"),
        _ => paint.good("every promised property held"),
    }
}

/// Adds a line for each promised property: the number of runs that tested it, and of those that violated it. A
/// line for each other property that a run violated follows.
fn evidence(runs: &Summary, text: &mut String) {
    let all = counted(runs.runs, "run");
    for (property, Evidence { judged, violated }) in &runs.promised {
        let violated = match violated {
            0 => String::new(),
            count => format!(", violated in {count}"),
        };
        _ = writeln!(text, "  {property:<22}judged in {judged} of {all}{violated}");
    }
    for (property, count) in &runs.unpromised {
        _ = writeln!(text, "  {property:<22}not promised, and violated in {count} of {all}");
    }
}

/// Returns the table of the figures over all runs. The seed is that of the run with the largest value.
fn figures(runs: &Summary, paint: Paint) -> String {
    let headings = ["over the runs", "mean", "spread", "50 %", "90 %", "99 %", "largest", "--seed"];
    let mut table = Table::new(&headings);
    for Figure { name, unit, values } in &runs.figures {
        let Some((largest, seed)) = values.worst() else { continue };
        let show = |value: Option<f64>| match (value, unit) {
            (None, _) => "-".to_owned(),
            (Some(value), Unit::Number) => number(value),
            (Some(value), Unit::Time) => nanos(value),
        };
        let percentiles = [50, 90, 99].map(|percent| show(values.percentile(percent)));
        let mut row = vec![(*name).to_owned(), show(values.mean()), show(values.deviation())];
        row.extend(percentiles);
        row.extend([show(Some(largest)), seed.to_string()]);
        table.row(row);
    }
    table.render(paint)
}

/// Lists the first seeds.
fn seeds(runs: &Seeds) -> String {
    let seeds: Vec<_> = runs.first.iter().map(ToString::to_string).collect();
    let more = if runs.count > seeds.len() as u64 { ", ..." } else { "" };
    format!("seeds {}{more}", seeds.join(", "))
}

fn count(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1} million", v / 1e6),
        v if v >= 1e3 => format!("{:.0} thousand", v / 1e3),
        v => format!("{v:.0}"),
    }
}

fn verdicts(facts: &Facts, paint: Paint, text: &mut String) {
    for (name, verdict) in &facts.properties {
        let broken = facts.unpromised.iter().find(|violation| violation.property == *name);
        let verdict = match (verdict, broken) {
            (Verdict::Holds, _) => paint.good("holds"),
            (Verdict::Violated, _) => paint.bad("violated"),
            (Verdict::NotJudged, _) => {
                let missing = facts.not_judged.get(name).copied().unwrap_or("no evidence");
                paint.dim(&format!("not judged: {missing}"))
            }
            (Verdict::NotPromised, Some(broken)) => {
                format!("not promised, and violated at {}: {}", broken.at, broken.why)
            }
            (Verdict::NotPromised, None) => paint.dim("not promised"),
        };
        _ = writeln!(text, "  {name:<22}{verdict}");
    }
    if let Some(bounded) = &facts.bounded {
        _ = writeln!(text, "  {:<22}{bounded}", "bounded");
    }
    for violation in &facts.violations {
        _ = writeln!(text, "  {} at {}: {}", paint.bad(&violation.property), violation.at, violation.why);
    }
    for fault in &facts.ledger.unfired {
        let ended = time::show(Duration::from_nanos(facts.simulated_ns));
        _ = writeln!(text, "  {} {fault} did not occur: the run ended at {ended}", paint.bad("fault"));
    }
}
