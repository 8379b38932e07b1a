//! The reports of runs as text.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use conclave_kernel::{Verdict, Violation, time};
use conclave_lab::problem::{Facts, Problem, Report as _};

use crate::output::{BOUNDED, Paint, VIOLATED, counted};

/// Describes one run.
pub fn describe<W: Problem>(report: &W::Report, paint: Paint) -> String {
    let facts = report.facts();
    let title = paint.bold(&format!("{}/{}", W::NAME, facts.algorithm));
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
pub fn code(runs: &[&Facts]) -> ExitCode {
    if runs.iter().any(|facts| !facts.passed()) {
        return ExitCode::from(VIOLATED);
    }
    let proved =
        runs.iter().any(|facts| facts.has_judged_any()) && !runs.iter().any(|facts| facts.is_bounded());
    if proved { ExitCode::SUCCESS } else { ExitCode::from(BOUNDED) }
}

/// Describes the runs of many seeds.
pub fn describe_many(runs: &[&Facts], paint: Paint) -> String {
    let failed: Vec<_> = runs.iter().copied().filter(|facts| !facts.passed()).collect();
    let messages: u64 = runs.iter().map(|facts| facts.messages).sum();
    let events: u64 = runs.iter().map(|facts| facts.events).sum();
    let mut text = format!("{} runs, {messages} messages, {events} events: ", runs.len());
    if failed.is_empty() {
        _ = writeln!(text, "{}", summary(runs, paint));
    } else {
        let failures = paint.bad(&format!("{} failed", failed.len()));
        _ = writeln!(text, "{failures} ({})", seeds(&failed));
    }
    evidence(runs, &mut text);
    let bounded: Vec<_> = runs.iter().copied().filter(|facts| facts.is_bounded()).collect();
    if let Some(first) = bounded.first() {
        let count = counted(bounded.len() as u64, "run");
        _ = writeln!(text, "{}: {count} without progress ({})", paint.bad("bounded"), seeds(&bounded));
        _ = writeln!(text, "  repeat the first:     {}", first.command);
    }
    text
}

/// Summarises runs of which none failed.
fn summary(runs: &[&Facts], paint: Paint) -> String {
    let promised: BTreeSet<_> = runs.iter().flat_map(|facts| promised(facts)).collect();
    let is_judged = |property: &&&str| runs.iter().any(|facts| facts.has_judged(property));
    match promised.iter().filter(is_judged).count() {
        0 => paint.bad("no run tested a promised property"),
        judged if judged < promised.len() => paint.good("every promised property that was tested held"),
        _ => paint.good("every promised property held"),
    }
}

/// Adds a line for each promised property: the number of runs that tested it, and of those that violated it. A
/// line for each other property that a run violated follows.
fn evidence(runs: &[&Facts], text: &mut String) {
    let all = counted(runs.len() as u64, "run");
    let broken = |property: &str, of: fn(&Facts) -> &[Violation]| {
        runs.iter().filter(|facts| of(facts).iter().any(|violation| violation.property == property)).count()
    };
    for property in runs.iter().flat_map(|facts| promised(facts)).collect::<BTreeSet<_>>() {
        let judged = runs.iter().filter(|facts| facts.has_judged(property)).count();
        let violated = match broken(property, |facts| &facts.violations) {
            0 => String::new(),
            count => format!(", violated in {count}"),
        };
        _ = writeln!(text, "  {property:<22}judged in {judged} of {all}{violated}");
    }
    let unpromised = runs.iter().flat_map(|facts| &facts.unpromised).map(|violation| &*violation.property);
    for property in unpromised.collect::<BTreeSet<_>>() {
        let count = broken(property, |facts| &facts.unpromised);
        _ = writeln!(text, "  {property:<22}not promised, and violated in {count} of {all}");
    }
}

fn promised(facts: &Facts) -> impl Iterator<Item = &'static str> {
    let promised = facts.properties.iter().filter(|(_, verdict)| **verdict != Verdict::NotPromised);
    promised.map(|(property, _)| *property)
}

/// Lists the seeds of the first ten runs.
fn seeds(runs: &[&Facts]) -> String {
    let seeds: Vec<_> = runs.iter().take(10).map(|facts| facts.seed.to_string()).collect();
    let more = if runs.len() > seeds.len() { ", ..." } else { "" };
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
