//! `conclave elect`: lead, alone or for the life of a command.

use std::ffi::OsString;
use std::process::ExitCode;

use conclave_client::{LockName, Request};
use serde_json::json;

use super::run::{self, HoldArgs};
use super::signals::Signals;
use super::{LOST, block_on, failure, label};
use crate::output::{self, Done, Failure};

/// Win an election, and lead while a command runs, or until stopped.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The election
    #[arg(value_name = "NAME")]
    pub name: String,
    /// What the leader proclaims [default: host and process]
    #[arg(long, value_name = "TEXT")]
    pub value: Option<String>,
    /// Say when the election is won as JSON (without a command)
    #[arg(long)]
    pub json: bool,
    /// How to wait, and what to do when the leadership is lost.
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
  conclave why scheduler                          who leads, and what is proclaimed

Exit codes: as of `conclave run`.";

/// Campaigns, and leads.
pub fn run(args: &Args) -> Done {
    let name = LockName::new(&args.name).map_err(|error| Failure::usage(error.to_string()))?;
    let value = args.value.clone().unwrap_or_else(|| label("elect"));
    if args.command.is_empty() {
        return lead(args, &name, &value);
    }
    let campaign = |request: Request| request.value(value.clone());
    run::hold(&args.hold, &name.to_string(), &args.command, campaign)
}

/// Leads until a signal resigns, or the leadership is lost.
fn lead(args: &Args, name: &LockName, value: &str) -> Done {
    block_on(async {
        let mut signals = Signals::new().map_err(|error| Failure::usage(error.to_string()))?;
        let client = run::connect(&args.hold, &label("elect")).await?;
        let request = client.request(&name.to_string()).value(value).wait(run::wait(&args.hold));
        let request = request.priority(args.hold.priority).on_deadlock(args.hold.on_deadlock.into());
        let acquiring = request.start().map_err(failure)?;
        let guard = match run::acquire(acquiring, &args.name, &mut signals).await? {
            Ok(guard) => guard,
            Err(signal) => return Ok(ExitCode::from(run::killed_by(signal))),
        };
        let fence = guard.fence().0;
        if args.json {
            output::print_json(&json!({ "name": name.as_str(), "fence": fence, "value": value }))?;
        } else {
            output::print(&format!("leading {name} by fence {fence}, proclaiming {value}\n"));
        }
        tokio::select! {
            loss = guard.lost() => Err(Failure { message: format!("leadership is lost: {loss}"), code: LOST }),
            _ = signals.next() => {
                guard.release().await.map_err(failure)?;
                drop(client.close().await);
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}
