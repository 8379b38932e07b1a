//! `conclave run`: a command under a lock.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use conclave_client::{Expr, Guard, LockRequest};
use serde::Serialize;

use super::hold::{HoldArgs, RequestedLock, hold};
use super::lock::Shell;
use super::poll_before_sleeping;
use super::supervise::{Ended, Margins, Outcome, supervise};
use crate::output::{self, Done, Failure};

/// Run a command while holding a lock.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The lock to hold: 'db', 'src & dst', 'gpu0 | gpu1', '2 of (a, b, c)', 'plan:shared', 'pool*3'
    #[arg(value_name = "EXPR")]
    pub expr: String,
    /// Hold every name shared
    #[arg(long)]
    pub shared: bool,
    /// Print one JSON object on standard error at the end, and nothing while waiting
    #[arg(long)]
    pub json: bool,
    /// The options for waiting, and for the loss of the lock.
    #[command(flatten)]
    pub hold: HoldArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  conclave run --local db -- ./migrate
  conclave run db -- ./migrate
  conclave run 'src & dst' -- ./copy
  conclave run 'gpu0 | gpu1' -- sh -c 'echo got $CONCLAVE_LOCKS'
  conclave run --try nightly -- ./backup || echo 'it runs elsewhere'
  conclave run --timeout 30s db -- ./migrate
  conclave run --json db -- ./migrate 2> result.json

The command gets two variables. CONCLAVE_LOCKS contains the held names, with spaces between them. CONCLAVE_FENCE \
is a number that grows with every grant: your store should reject a number smaller than the largest that it has \
seen.
The command runs in its own process group. The group gets TERM 3 s, and KILL 1 s, before the lock would be lost. \
With --on-lost COMMAND, a shell runs COMMAND instead of sending TERM; CONCLAVE_GROUP is the number of the group.
If `conclave run` is killed (kill -9), the kernel kills the command, but not the processes that the command has \
started.
The lock is released when the command has ended. Background processes that it left continue without the lock.
While it waits, `run` prints the holders after 1 s, 1 min, 5 min and 15 min, and then every 15 min; --quiet \
stops this.
Deadlocks are detected among the requests of one session, and a `conclave run` inside another one has its own \
session. The inner one detects one case: it refuses to wait for a name that the outer one holds.
With --json, the last line of standard error is one object: names, fences, waited_ms, exit, ended (exited, \
signal or lost) and lost (the reason, or null). If the command did not run, the object is {\"error\": {\"code\", \
\"message\", \"definite\", \"advice\", \"exit\"}}.
Exit codes: the command's, or 128 + its signal; 2 bad usage, 69 no server or no majority, 75 not acquired, 76 \
lost, 77 rejected to end a deadlock, 126 the command cannot be run, 127 there is no such command.";

/// Acquires the lock, runs the command, and releases the lock.
pub fn run(args: &Args) -> Done {
    // Parse here, so that an error shows its position without a server.
    let expr = args.expr.parse::<Expr>().map_err(|error| Failure::usage(error.to_string()))?;
    let quiet = args.hold.quiet || args.json;
    let requested = RequestedLock {
        expr: &expr,
        text: &args.expr,
        shared: args.shared,
        quiet,
        shell: Shell::parent().ok(),
    };
    if !args.json {
        return run_under(&args.hold, &requested, &args.command, |request| request);
    }
    let result =
        supervised(&args.hold, &requested, &args.command, |request| request).map_err(with_message)?;
    let text = serde_json::to_string(&result).map_err(|error| Failure::usage(error.to_string()))?;
    // The runtime has ended, so nothing is printed after this.
    output::note(&text);
    Ok(ExitCode::from(result.exit))
}

/// Runs the command under the lock.
pub fn run_under(
    args: &HoldArgs,
    requested: &RequestedLock<'_>,
    command: &[OsString],
    adjust: impl FnOnce(LockRequest) -> LockRequest,
) -> Done {
    supervised(args, requested, command, adjust).map(|result| ExitCode::from(result.exit))
}

fn supervised(
    args: &HoldArgs,
    requested: &RequestedLock<'_>,
    command: &[OsString],
    adjust: impl FnOnce(LockRequest) -> LockRequest,
) -> Result<Summary, Failure> {
    let program = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    hold(args, requested, &program, adjust, async |grant, signals| {
        let margins = Margins::of(args.ttl);
        let outcome =
            poll_before_sleeping(supervise(grant.guard, command, &args.on_lost, margins, signals)).await?;
        Ok(Summary::new(grant.guard, grant.waited, &outcome))
    })
}

/// The result of a run, as `--json` prints it. Scripts use the names of the fields.
#[derive(Serialize)]
struct Summary {
    names: Vec<String>,
    /// The fence of each name.
    fences: BTreeMap<String, u64>,
    waited_ms: u64,
    /// The exit code of `run`.
    exit: u8,
    ended: Ended,
    /// The reason of the loss; `None` if the lock was held until the command had ended.
    lost: Option<String>,
}

impl Summary {
    fn new(guard: &Guard, waited: Duration, outcome: &Outcome) -> Self {
        Self {
            names: guard.names().iter().map(|held| held.name.clone()).collect(),
            fences: guard.names().iter().map(|held| (held.name.clone(), held.fence.0)).collect(),
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
            exit: outcome.exit,
            ended: outcome.ended,
            lost: guard.loss().map(|loss| loss.to_string()).or_else(|| {
                let unconfirmed = "no server confirmed the lease in time".to_owned();
                (outcome.ended == Ended::Lost).then_some(unconfirmed)
            }),
        }
    }
}

/// Gives the failure a message. A signal during the wait has none for people, but scripts expect an error
/// object.
fn with_message(failure: Failure) -> Failure {
    if !failure.message.is_empty() {
        return failure;
    }
    let message = "a signal ended the wait; the lock was not acquired".to_owned();
    Failure { message, ..failure }
}
