//! A report as people read it.

use std::fmt::Write as _;
use std::time::Duration;

use conclave_kernel::{Verdict, time};
use conclave_lab::problem::{Facts, Report as _};

use super::problems::Problem;
use crate::output::Paint;

/// One run.
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

/// The runs of many seeds.
pub fn describe_many(runs: &[&Facts], paint: Paint) -> String {
    let failed: Vec<_> = runs.iter().filter(|facts| !facts.passed()).collect();
    let messages: u64 = runs.iter().map(|facts| facts.messages).sum();
    let events: u64 = runs.iter().map(|facts| facts.events).sum();
    let mut text = format!("{} runs, {messages} messages, {events} events: ", runs.len());
    if failed.is_empty() {
        _ = writeln!(text, "{}", paint.good("every promised property held"));
        let broken = runs.iter().filter(|facts| !facts.unpromised.is_empty()).count();
        if broken > 0 {
            _ = writeln!(text, "properties that are not promised broke in {broken} of them");
        }
    } else {
        let seeds: Vec<_> = failed.iter().take(10).map(|facts| facts.seed.to_string()).collect();
        let more = if failed.len() > seeds.len() { ", ..." } else { "" };
        let failures = paint.bad(&format!("{} failed", failed.len()));
        _ = writeln!(text, "{failures} (seeds {}{more})\n", seeds.join(", "));
    }
    text
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
            (Verdict::NotPromised, Some(broken)) => {
                format!("not promised, and broken at {}: {}", broken.at, broken.why)
            }
            (Verdict::NotPromised, None) => paint.dim("not promised"),
        };
        _ = writeln!(text, "  {name:<22}{verdict}");
    }
    for violation in &facts.violations {
        _ = writeln!(text, "  {} at {}: {}", paint.bad(&violation.property), violation.at, violation.why);
    }
    for fault in &facts.ledger.unfired {
        let ended = time::show(Duration::from_nanos(facts.simulated_ns));
        _ = writeln!(text, "  {} {fault} never struck: the run ended at {ended}", paint.bad("fault"));
    }
}
