//! `conclave why`: everything about one name.

use std::fmt::Write as _;
use std::process::ExitCode;

use conclave_api::{Claim, Deadlock, json};
use conclave_client::wire::{Holder, Report, Waiter};

use super::{ServerArgs, ago, text};
use crate::output::{self, Done, Paint, shown};

/// Who holds a name, who waits for it, and why.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The lock, semaphore or election
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// Where the servers are.
    #[command(flatten)]
    pub server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  conclave why db
  conclave why db --json | jq .holders[0].fence";

/// Asks, and tells.
pub fn run(args: &Args) -> Done {
    let report = args.server.with(async |client| client.why(&args.name).await)?;
    if args.json {
        output::print_json(&json::Report::from(&report))?;
    } else {
        output::print(&describe(&report, Paint::stdout()));
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(report: &Report, paint: Paint) -> String {
    let mut out = String::new();
    let kind = match report.limit {
        Some(limit) => format!("a semaphore, {} of {limit} permits held", report.permits_held),
        None if report.value.is_some() => "an election".to_owned(),
        None => "a lock".to_owned(),
    };
    // Writing to a string cannot fail.
    _ = writeln!(out, "{}: {kind}", paint.bold(&report.name));
    if let Some(value) = &report.value {
        _ = writeln!(out, "  proclaimed: {}", shown(&text(value)));
    }
    if report.holders.is_empty() {
        _ = writeln!(out, "  {}", paint.good("nobody holds it"));
    }
    for holder in &report.holders {
        _ = writeln!(out, "  {}{}", paint.good("held by "), describe_holder(holder));
    }
    let more = report.holders_total.saturating_sub(report.holders.len() as u64);
    if more > 0 {
        _ = writeln!(out, "  and by {more} more");
    }
    for (place, waiter) in report.waiters.iter().enumerate() {
        _ = writeln!(out, "  {:>3}. {}", place + 1, describe_waiter(waiter, paint));
    }
    let more = report.waiters_total.saturating_sub(report.waiters.len() as u64);
    if more > 0 {
        _ = writeln!(out, "  and {more} more wait");
    }
    for deadlock in &report.deadlocks {
        let fate = match &deadlock.victim {
            Some(victim) => format!("ended by refusing {victim}"),
            None => paint.bad("standing"),
        };
        _ = writeln!(out, "  deadlock, {fate}: {}", Deadlock::from(deadlock));
    }
    for broken in &report.breakings {
        _ = writeln!(out, "  broken {} ago: {}", ago(broken.at_ms), shown(&broken.reason));
    }
    out
}

fn describe_holder(holder: &Holder) -> String {
    let how = match Claim::from(holder.claim.as_ref()) {
        Claim::Exclusive => String::new(),
        Claim::Shared => ", shared".to_owned(),
        Claim::Permits(permits) => format!(", {permits} permits"),
    };
    format!("{} since {}, fence {}{how}", holder.owner, ago(holder.since_ms), holder.fence)
}

fn describe_waiter(waiter: &Waiter, paint: Paint) -> String {
    let priority =
        if waiter.priority == 0 { String::new() } else { format!(", priority {}", waiter.priority) };
    let blocked = match waiter.waits_for.as_slice() {
        [] => String::new(),
        owners => format!(", behind {}", owners.join(", ")),
    };
    let stuck = if waiter.stuck { paint.bad(", stuck in a deadlock") } else { String::new() };
    let wants = waiter.names.join(", ");
    format!("{} wants {wants} since {}{priority}{blocked}{stuck}", waiter.owner, ago(waiter.since_ms))
}
