//! `conclave elect`: leads while a command runs, or until a signal.

use std::ffi::OsString;
use std::process::ExitCode;

use conclave_client::{Expr, Guard, LockName, LockRequest};
use serde_json::json;

use super::hold::{HoldArgs, RequestedLock, hold};
use super::lock::Shell;
use super::run::run_under;
use super::signals::Signals;
use super::supervise::OnLost;
use super::{LOST, label};
use crate::output::{self, Done, Failure};

/// Win an election, and lead while a command runs, or until stopped.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The election
    #[arg(value_name = "NAME", value_parser = super::name)]
    pub name: LockName,
    /// The text that the leader proclaims [default: host and process]
    #[arg(long, value_name = "TEXT")]
    pub value: Option<String>,
    /// Print JSON when the election is won (without a command)
    #[arg(long, conflicts_with = "command")]
    pub json: bool,
    /// The options for waiting, and for the loss of the leadership.
    #[command(flatten)]
    pub hold: HoldArgs,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  conclave elect scheduler -- ./scheduler
  conclave elect scheduler --value 10.0.0.7:9000
  conclave why scheduler                          the leader, and its text

Exit codes with a command: as for `conclave run`. Without a command: 0 stopped by a signal while it led, 128 + \
the signal if it waited; 2 bad usage, 69 no server or no majority, 75 not elected, 76 leadership lost, 77 \
rejected to end a deadlock.";

/// Takes part in the election, then leads.
pub fn run(args: &Args) -> Done {
    let name = args.name.clone();
    let value = args.value.clone().unwrap_or_else(|| label("elect"));
    let campaign = |request: LockRequest| request.value(value.clone());
    let text = name.to_string();
    let quiet = args.hold.quiet || args.json;
    let requested = RequestedLock {
        expr: &Expr::name(name.clone()),
        text: &text,
        shared: false,
        quiet,
        shell: Shell::parent().ok(),
    };
    if !args.command.is_empty() {
        return run_under(&args.hold, &requested, &args.command, campaign);
    }
    if args.hold.on_lost != OnLost::Term {
        return Err(Failure::usage("--on-lost needs a command: put one after --, or leave --on-lost out"));
    }
    hold(&args.hold, &requested, "elect", campaign, async |grant, signals| {
        lead(args, &name, &value, grant.guard, signals).await
    })
}

/// Leads until a signal arrives or the leadership is lost. Returns at once if standard output cannot be
/// written.
async fn lead(args: &Args, name: &LockName, value: &str, guard: &Guard, signals: &mut Signals) -> Done {
    let fence = guard.fence().0;
    let greeting = if args.json {
        let won = json!({ "name": name.as_str(), "fence": fence, "value": value });
        format!("{won:#}\n")
    } else {
        format!("leading {name} by fence {fence}, proclaiming {}\n", output::shown(value))
    };
    if let Err(error) = output::try_print(greeting.as_bytes()) {
        return output::unwritten(&error).map_or(Ok(ExitCode::SUCCESS), Err);
    }
    tokio::select! {
        loss = guard.lost() => Err(Failure::new(LOST, "lost", format!("leadership is lost: {loss}"))),
        _ = signals.next() => Ok(ExitCode::SUCCESS),
    }
}
