//! `conclave locks`, `limit` and `break`: the names in use, and what an operator does to them.

use std::process::ExitCode;

use conclave_api::json::Lock;
use serde_json::json;

use super::ServerArgs;
use crate::output::{self, Done, Paint, Table};

/// The names in use.
#[derive(clap::Args)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListArgs {
    /// Only names that begin so
    #[arg(value_name = "PREFIX", default_value = "")]
    pub prefix: String,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// Where the servers are.
    #[command(flatten)]
    pub server: ServerArgs,
}

const LIST_EXAMPLES: &str = "\
Examples:
  conclave locks
  conclave locks team/ --json";

/// Make a semaphore, or change how many permits it has.
#[derive(clap::Args)]
#[command(after_help = LIMIT_EXAMPLES)]
pub struct LimitArgs {
    /// The semaphore
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Its permits; 0 makes an unused one a plain name again
    #[arg(value_name = "N", allow_negative_numbers = true)]
    pub permits: u32,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// Where the servers are.
    #[command(flatten)]
    pub server: ServerArgs,
}

const LIMIT_EXAMPLES: &str = "\
Examples:
  conclave limit licences 5
  conclave run 'licences*2' -- ./simulate";

/// Take a name away from everybody who holds it.
#[derive(clap::Args)]
#[command(after_help = BREAK_EXAMPLES)]
pub struct BreakArgs {
    /// The name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Why: the holders are told, and `why` shows it
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// Where the servers are.
    #[command(flatten)]
    pub server: ServerArgs,
}

const BREAK_EXAMPLES: &str = "\
Examples:
  conclave why nightly
  conclave break nightly --reason 'its machine is gone'";

/// Lists.
pub fn list(args: &ListArgs) -> Done {
    // As in an expression, where a leading / is dropped.
    let prefix = args.prefix.strip_prefix('/').unwrap_or(&args.prefix);
    let locks = args.server.with(async |client| client.locks(prefix).await)?;
    if args.json {
        output::print_json(&locks.iter().map(Lock::from).collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["name", "permits", "held", "waiting", "fence", "holder"]);
    for lock in &locks {
        let first = lock.first.first();
        table.row(vec![
            lock.name.clone(),
            lock.limit.map(|limit| limit.to_string()).unwrap_or_default(),
            lock.holders.to_string(),
            lock.waiters.to_string(),
            first.map(|holder| holder.fence.to_string()).unwrap_or_default(),
            first.map(|holder| holder.owner.clone()).unwrap_or_default(),
        ]);
    }
    output::print(&table.render(Paint::stdout()));
    Ok(ExitCode::SUCCESS)
}

/// Sets a limit.
pub fn limit(args: &LimitArgs) -> Done {
    args.server.with(async |client| client.limit(&args.name, args.permits).await)?;
    if args.json {
        output::print_json(&json!({ "name": args.name, "permits": args.permits }))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Breaks a lock.
pub fn break_lock(args: &BreakArgs) -> Done {
    args.server.with(async |client| client.break_lock(&args.name, &args.reason).await)?;
    if args.json {
        output::print_json(&json!({ "name": args.name, "reason": args.reason }))?;
    }
    Ok(ExitCode::SUCCESS)
}
