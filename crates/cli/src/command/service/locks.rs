//! `conclave locks`, `limit` and `break`: the names in use, and the changes that an operator makes to them.

use std::process::ExitCode;

use conclave_client::{Code, LockName};
use serde_json::json;

use super::{Quiet, ServerArgs};
use crate::output::{self, Done, Paint, Table, counted};

/// List the names in use
#[derive(clap::Args)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListArgs {
    /// List only names that begin with this text
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

const LIST_EXAMPLES: &str = "\
Examples:
  conclave locks
  conclave locks team/ --json

Exit codes: 0 done, 2 bad usage, 69 no server or no majority.";

/// Make a semaphore, or change its number of permits
#[derive(clap::Args)]
#[command(after_help = LIMIT_EXAMPLES)]
pub struct LimitArgs {
    /// The semaphore. Nobody may hold the name, or wait for it, as a lock
    #[arg(value_name = "NAME", value_parser = super::name)]
    pub name: LockName,
    /// The number of permits; 0 makes an unused semaphore a plain name again
    #[arg(value_name = "N", allow_negative_numbers = true)]
    pub permits: u32,
    #[command(flatten)]
    quiet: Quiet,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

const LIMIT_EXAMPLES: &str = "\
Examples:
  conclave limit licences 5
  conclave run 'licences*2' -- ./simulate

A lower limit takes no permit from a holder. It rejects the waiting requests that can no longer be granted.
Exit codes: 0 done, 1 the name is in use as a lock, or there are too many names, 2 bad usage, 69 no server or no \
majority.";

/// Take a name away from all its holders
#[derive(clap::Args)]
#[command(after_help = BREAK_EXAMPLES)]
pub struct BreakArgs {
    /// The lock, semaphore or election
    #[arg(value_name = "NAME", value_parser = super::name)]
    pub name: LockName,
    /// The reason, which the holders receive and `conclave why` shows
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    #[command(flatten)]
    quiet: Quiet,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

const BREAK_EXAMPLES: &str = "\
Examples:
  conclave why nightly
  conclave break nightly --reason 'its machine is gone'

Exit codes: 0 done, 1 nobody holds the name, 2 bad usage, 69 no server or no majority.";

/// Lists the names in use.
pub fn list(args: &ListArgs) -> Done {
    // A leading / is dropped, as in an expression.
    let prefix = args.prefix.strip_prefix('/').unwrap_or(&args.prefix);
    let locks = args.server.with(async |client| client.admin().locks(prefix).await)?;
    if args.json {
        output::print_json(&locks)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["name", "permits", "held", "waiting", "fence", "holder"]);
    for lock in &locks {
        let first = lock.holders.first();
        table.row(vec![
            lock.name.as_str().to_owned(),
            lock.limit.map(|limit| limit.to_string()).unwrap_or_default(),
            lock.holders_total.to_string(),
            lock.waiters_total.to_string(),
            first.map(|holder| holder.fence.to_string()).unwrap_or_default(),
            first.map(|holder| holder.owner.clone()).unwrap_or_default(),
        ]);
    }
    output::print(&table.render(Paint::stdout()));
    Ok(ExitCode::SUCCESS)
}

/// Sets the number of permits of a semaphore.
pub fn limit(args: &LimitArgs) -> Done {
    let LimitArgs { permits, .. } = args;
    let name = args.name.as_str();
    let before = args.server.with(async |client| client.admin().limit(name, *permits).await)?;
    if args.json {
        output::print_json(&json!({ "name": name, "permits": permits, "before": before }))?;
    } else {
        args.quiet.print(&limited(&args.name.to_string(), before, *permits));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the line that reports the change of a limit.
fn limited(name: &str, before: Option<u32>, now: u32) -> String {
    let permits = |count: u32| counted(count, "permit");
    match (before, now) {
        (None, 0) => format!("{name} is not a semaphore; nothing changed"),
        (None, now) => format!("made the semaphore {name} with {}", permits(now)),
        (Some(_), 0) => format!("{name} is no longer a semaphore"),
        (Some(before), now) if before == now => {
            format!("{name} already has {}; nothing changed", permits(now))
        }
        (Some(before), now) => format!("changed the semaphore {name} from {before} to {}", permits(now)),
    }
}

/// Breaks a lock.
pub fn break_lock(args: &BreakArgs) -> Done {
    let name = args.name.as_str();
    let broken = args.server.with(async |client| client.admin().break_lock(name, &args.reason).await);
    broken.map_err(|failure| match failure.kind {
        kind if kind == Code::NotHeld.name() => {
            failure.advise("look for a mistake in the name with `conclave locks`")
        }
        _ => failure,
    })?;
    if args.json {
        output::print_json(&json!({ "name": name, "reason": args.reason }))?;
    } else {
        args.quiet.print(&format!("took {} away from all its holders", args.name));
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_limit_names_the_change() {
        assert_eq!(limited("x", None, 1), "made the semaphore x with 1 permit");
        assert_eq!(limited("x", Some(3), 5), "changed the semaphore x from 3 to 5 permits");
        assert_eq!(limited("x", Some(3), 3), "x already has 3 permits; nothing changed");
        assert_eq!(limited("x", Some(3), 0), "x is no longer a semaphore");
        assert_eq!(limited("x", None, 0), "x is not a semaphore; nothing changed");
    }
}
