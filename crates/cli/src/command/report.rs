//! A report as people read it.

use std::fmt::Write as _;
use std::time::Duration;

use conclave_kernel::{Measure, Verdict, time};
use conclave_lab::rooms::mutex::Report;

use crate::output::{Paint, number};

/// One run.
pub fn describe(report: &Report, paint: Paint) -> String {
    let title = format!("mutex/{}", report.algorithm);
    let quorum = report.quorum_size.map_or(String::new(), |size| format!(", K = {size}"));
    let mut text = format!(
        "{}  N = {}{quorum}, load {}, seed {}\n\n",
        paint.bold(&title),
        report.nodes,
        report.load,
        report.seed
    );
    let mut line = |name: &str, value: String| _ = writeln!(text, "  {name:<22}{value}");
    line("entries", report.entries.to_string());
    line("messages per entry", messages(report));
    line(
        "  to enter, to exit",
        format!("{}, {}", number(report.messages_to_enter), number(report.messages_to_exit)),
    );
    line("  multicasts as one", number(report.multicasts_per_entry));
    let kinds: Vec<_> =
        report.messages_by_kind.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    line("  by kind", kinds.join(", "));
    line("client delay", delay(report, Measure::ClientDelay, report.client_delay_ns));
    line("sync delay", delay(report, Measure::SyncDelay, report.sync_delay_ns));
    line("response time", report.response_time_ns.map_or("-".into(), show));
    line("throughput", format!("{} entries/s", number(report.throughput_per_s)));
    line("max bypass", report.max_bypass.to_string());
    line(
        "order inversions",
        report.order_inversions.map_or("not judged above 128 sites".into(), |n| n.to_string()),
    );
    let (most, fewest) = report.entries_per_site;
    line("fairness", format!("{} (entries a site: {fewest} to {most})", number(report.fairness)));
    line("events", format!("{} ({} a second)", report.events, count(report.events_per_s)));
    line("digest", report.digest.clone());
    text.push('\n');
    verdicts(report, paint, &mut text);
    text
}

/// The runs of many seeds.
pub fn describe_many(reports: &[&Report], paint: Paint) -> String {
    let failed: Vec<_> = reports.iter().filter(|report| !report.passed()).collect();
    let entries: u64 = reports.iter().map(|report| report.entries).sum();
    let events: u64 = reports.iter().map(|report| report.events).sum();
    let mut text = format!("{} runs, {entries} entries, {events} events: ", reports.len());
    if failed.is_empty() {
        _ = writeln!(text, "{}", paint.good("every promised property held"));
        let broken = reports.iter().filter(|report| !report.unpromised.is_empty()).count();
        if broken > 0 {
            _ = writeln!(text, "properties that are not promised broke in {broken} of them");
        }
    } else {
        let seeds: Vec<_> = failed.iter().take(10).map(|report| report.seed.to_string()).collect();
        let more = if failed.len() > seeds.len() { ", ..." } else { "" };
        let failures = paint.bad(&format!("{} failed", failed.len()));
        _ = writeln!(text, "{failures} (seeds {}{more})\n", seeds.join(", "));
    }
    text
}

fn messages(report: &Report) -> String {
    let range = format!("(min {}, max {})", report.messages_per_entry_min, report.messages_per_entry_max);
    let formula = report.formulas.iter().find(|formula| formula.measure == Measure::MessagesPerEntry);
    let formula = formula.map_or(String::new(), |formula| {
        format!("   {} = {}", formula.formula, span(formula.min, formula.max, number))
    });
    format!("{} {range}{formula}", number(report.messages_per_entry))
}

fn delay(report: &Report, measure: Measure, measured: Option<f64>) -> String {
    let formula = report.formulas.iter().find(|formula| formula.measure == measure);
    let formula = formula.map_or(String::new(), |formula| {
        format!("   {} = {}", formula.formula, span(formula.min, formula.max, show))
    });
    format!("{}{formula}", measured.map_or("-".into(), show))
}

fn span(min: f64, max: f64, show: impl Fn(f64) -> String) -> String {
    match (min, max) {
        (min, max) if min == max => show(min),
        (min, max) if max.is_finite() => format!("{}..{}", show(min), show(max)),
        (min, _) => format!("at least {}", show(min)),
    }
}

fn show(ns: f64) -> String {
    time::show(Duration::from_nanos(ns.round() as u64))
}

fn count(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1} million", v / 1e6),
        v if v >= 1e3 => format!("{:.0} thousand", v / 1e3),
        v => format!("{v:.0}"),
    }
}

fn verdicts(report: &Report, paint: Paint, text: &mut String) {
    for (name, verdict) in &report.properties {
        let broken = report.unpromised.iter().find(|violation| violation.property == *name);
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
    for violation in &report.violations {
        _ = writeln!(text, "  {} at {}: {}", paint.bad(&violation.property), violation.at, violation.why);
    }
    for fault in &report.ledger.unfired {
        let ended = time::show(Duration::from_nanos(report.simulated_ns));
        _ = writeln!(text, "  {} {fault} never struck: the run ended at {ended}", paint.bad("fault"));
    }
}
