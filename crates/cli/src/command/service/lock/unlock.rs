//! `conclave unlock`: releases a lock of `conclave lock`.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use conclave_client::Expr;
use rustix::process::Pid;
use serde_json::json;

use super::folder::{self, Key, Request, Status, Unlocked, call};
use super::shell::{self, Shell};
use crate::command::service::{LOST, REFUSED, ServerArgs};
use crate::output::{self, Done, Failure};

/// Release a lock of `conclave lock`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct UnlockArgs {
    /// The lock, as given to `conclave lock`
    #[arg(value_name = "EXPR")]
    pub expr: String,
    /// The process that the lock is bound to [default: the parent of this command]
    #[arg(long, value_name = "PID", value_parser = shell::pid, allow_negative_numbers = true)]
    pub pid: Option<Pid>,
    /// The fence that `conclave lock` has printed, if there are several such locks
    #[arg(long, value_name = "N")]
    pub fence: Option<u64>,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// The addresses of the servers.
    #[command(flatten)]
    pub server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  conclave lock db && ./migrate; conclave unlock db
  conclave unlock --pid $$ db                # in a subshell, for a lock of the main shell

`unlock` releases the lock of the calling shell, or else a lock of `conclave lock --for` by the same user. It \
returns when the server has confirmed the release. EXPR and the server are those of `conclave lock`. If a shell \
holds the same semaphore several times, `unlock` releases the latest permit.
Exit codes: 0 released; 1 no such lock; 2 bad usage, 69 the server has not confirmed it (the lock ends with its \
lease), 76 the lock ended before, or was lost.";

/// Releases the lock.
pub fn unlock(args: &UnlockArgs) -> Done {
    let expr = args.expr.parse::<Expr>().map_err(|error| Failure::usage(error.to_string()))?.to_string();
    let server = args.server.addresses()?;
    // Without a shell, the lock may be a detached one.
    let shell = args.pid.map_or_else(Shell::parent, Shell::of).ok();
    let wanted = Wanted { expr: &expr, server: &server, fence: args.fence };
    let found = match shell.map(|shell| wanted.find(Some(shell))).transpose()?.unwrap_or_default() {
        Found { live: None, trace: None } if args.pid.is_none() => wanted.find(None)?,
        found => found,
    };
    match found {
        Found { live: Some(socket), .. } => {
            release(&socket)?;
            if args.json {
                output::print_json(&json!({ "unlocked": expr }))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Found { trace: Some(trace), .. } => {
            let reason = folder::reason(&trace);
            let reason = reason.as_deref().unwrap_or("the process that held it has ended");
            let message =
                format!("{expr} was not held any more: {reason}; what was done since then may have collided");
            folder::remove(&trace);
            Err(Failure::new(LOST, "lost", message))
        }
        Found { .. } => Err(not_found(shell, &wanted)),
    }
}

/// The lock to release.
struct Wanted<'a> {
    expr: &'a str,
    server: &'a str,
    fence: Option<u64>,
}

/// The sockets found for a lock.
#[derive(Default)]
struct Found {
    /// The socket of the holder to unlock.
    live: Option<PathBuf>,
    /// The socket of a holder that has ended.
    trace: Option<PathBuf>,
}

impl Wanted<'_> {
    /// Finds the lock among those of a shell, or among the detached ones. Of several locks of a shell it
    /// takes the latest. It rejects several detached locks, because they may belong to different scripts.
    fn find(&self, shell: Option<Shell>) -> Result<Found, Failure> {
        let key = Key { shell, server: self.server, expr: self.expr };
        let mut found = Found::default();
        let mut fences = Vec::new();
        for socket in key.sockets() {
            match folder::status(&socket).map_err(|error| no_reply(&error))? {
                Some(status) if self.is(&status) => fences.push((status.fence, socket)),
                Some(_) => {}
                None => found.trace = Some(socket),
            }
        }
        if shell.is_none() && fences.len() > 1 {
            let fences: Vec<String> = fences.iter().map(|(fence, _)| fence.to_string()).collect();
            return Err(Failure::new(
                REFUSED,
                "ambiguous",
                format!(
                    "there are several locks {} of --for: add --fence, one of {}",
                    self.expr,
                    fences.join(", ")
                ),
            ));
        }
        found.live = fences.into_iter().max().map(|(_, socket)| socket);
        Ok(found)
    }

    fn is(&self, status: &Status) -> bool {
        let is_fence = self.fence.is_none_or(|fence| fence == status.fence);
        status.expr == self.expr && status.server == self.server && is_fence
    }
}

/// Requests the release from the holder and waits for the result. If no server replies, this takes until the
/// lease expires.
fn release(socket: &std::path::Path) -> Result<(), Failure> {
    let Unlocked { exit, message } =
        call(socket, &Request::Unlock, None).map_err(|error| no_reply(&error))?;
    match exit {
        0 => Ok(()),
        LOST => Err(Failure::new(LOST, "lost", format!("the lock was lost before: {message}"))),
        code => Err(Failure::new(code, "not-confirmed", message)),
    }
}

fn no_reply(error: &io::Error) -> Failure {
    let message = format!(
        "the process that holds the lock does not answer: {error}; the lock may be lost, so check the work"
    );
    Failure::new(LOST, "lost", message)
}

fn not_found(shell: Option<Shell>, wanted: &Wanted<'_>) -> Failure {
    let Wanted { expr, server, .. } = wanted;
    let of = shell.map_or("no shell".to_owned(), |shell| format!("process {}", shell.number()));
    let held = folder::sockets(shell).into_iter().filter_map(|socket| folder::status(&socket).ok().flatten());
    let held: Vec<String> = held.map(|status| format!("{} of {}", status.expr, status.server)).collect();
    let held = if held.is_empty() { "none".to_owned() } else { held.join(", ") };
    let message = format!(
        "no lock {expr} of {server} is bound to this shell ({of}), which holds: {held}; use the same shell, --pid, or --server \
         as for `conclave lock`"
    );
    Failure::new(REFUSED, "not-locked", message)
}
