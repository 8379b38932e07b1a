//! `conclave why`: the holders, the waiting requests and the incidents of each name of an expression.

use std::fmt::Write as _;
use std::process::ExitCode;

use conclave_client::{Claim, Holder, LockReport, Priority, Waiter};
use conclave_core::expr::names_in;

use super::{ServerArgs, ago, failure, text};
use crate::output::{self, Done, Paint, shown};

/// Show who holds a name, who waits for it, and why
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The lock, semaphore or election; or a lock expression, of which each name is shown
    #[arg(value_name = "NAME|EXPR")]
    pub name: String,
    /// Print JSON instead of text: an object, or an array for several names
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  conclave why db
  conclave why 'src & dst'
  conclave why db --json | jq .holders[0].fence

`free` means that the service has a record of the name, and nobody uses it. `never seen` means that it has none: \
look for a mistake in the name. The service forgets an unused name after 16,384 later changes, so an old name \
can be `never seen` as well. In JSON, `known` tells the two apart.
Exit codes: 0 done, also for a free or unknown name, 2 bad usage, 69 no server or no majority.";

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let names = names_in(&args.name).map_err(failure)?;
    let reports = args.server.with(async |client| {
        let mut reports = Vec::new();
        for name in &names {
            reports.push(client.why(name.as_str()).await?);
        }
        Ok(reports)
    })?;
    match &reports[..] {
        [report] if args.json => output::print_json(report)?,
        _ if args.json => output::print_json(&reports)?,
        _ => {
            let paint = Paint::stdout();
            output::print(&reports.iter().map(|report| describe(report, paint)).collect::<String>());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(report: &LockReport, paint: Paint) -> String {
    let mut out = String::new();
    let is_unused = report.holders_total == 0 && report.waiters_total == 0;
    let kind = match report.limit {
        Some(limit) => format!("a semaphore, {} of {limit} permits held", report.permits_held),
        None if report.value.is_some() => "an election".to_owned(),
        None if !report.known => "never seen, or forgotten since; nobody holds it or waits for it".to_owned(),
        None if is_unused => "free; nobody holds it or waits for it".to_owned(),
        None => "a lock".to_owned(),
    };
    // Writing to a string cannot fail.
    _ = writeln!(out, "{}: {kind}", paint.bold(report.name.as_str()));
    if let Some(value) = &report.value {
        _ = writeln!(out, "  proclaimed: {}", shown(&text(value)));
    }
    if report.holders.is_empty() && (report.limit.is_some() || !is_unused) {
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
        let end = match &deadlock.victim {
            Some(victim) => format!("ended by a rejection of {victim}"),
            None => paint.bad("not ended"),
        };
        _ = writeln!(out, "  deadlock, {end}: {deadlock}");
    }
    for broken in &report.breakings {
        _ = writeln!(out, "  broken {} ago: {}", ago(broken.at_ms), shown(&broken.reason));
    }
    out
}

fn describe_holder(holder: &Holder) -> String {
    let how = match holder.claim {
        Claim::Exclusive => String::new(),
        Claim::Shared => ", shared".to_owned(),
        Claim::Permits(permits) => format!(", {permits} permits"),
    };
    format!("{} since {}, fence {}{how}", holder.owner, ago(holder.since_ms), holder.fence)
}

fn describe_waiter(waiter: &Waiter, paint: Paint) -> String {
    let priority = if waiter.priority == Priority(0) {
        String::new()
    } else {
        format!(", priority {}", waiter.priority)
    };
    let blocked = match waiter.waits_for.as_slice() {
        [] => String::new(),
        owners => format!(", behind {}", owners.join(", ")),
    };
    let stuck = if waiter.stuck { paint.bad(", stuck in a deadlock") } else { String::new() };
    let wants = waiter.names.join(", ");
    format!("{} wants {wants} since {}{priority}{blocked}{stuck}", waiter.owner, ago(waiter.since_ms))
}
