//! `conclave lock` and `conclave unlock`: a lock for a script that cannot be wrapped by `conclave run`.
//!
//! **Intuition.** A lock needs a process that keeps its session alive. `conclave lock` starts this process,
//! the *holder*, in the background, and returns when the holder has the lock. `conclave unlock` finds the
//! holder by a socket in a private folder.
//!
//! **Rules.** The holder watches the process that the lock is bound to, by a pidfd, and releases the lock
//! when that process ends. While it waits for the grant, the holder also watches the foreground process
//! (`conclave lock`), and cancels the request when that process ends. The holder keeps the lock only if the
//! foreground process has printed the fence and confirmed it.
//!
//! **Trap.** If the holder is killed (kill -9), no process stops the script, and the lock ends with its
//! lease. `unlock` then reports the loss. Only a store that compares fences rejects the script's writes in
//! between.

mod folder;
mod holder;
mod shell;
mod unlock;

pub use folder::{sockets, status};
pub use shell::Shell;
pub use unlock::{UnlockArgs, unlock};

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use conclave_client::Expr;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use self::holder::Bound;
use super::hold::{HoldArgs, RequestedLock};
use super::signals::{STOP, Signals, killed_by};
use super::supervise::OnLost;
use super::{NOT_ACQUIRED, REFUSED, block_on};
use crate::output::{self, Done, Failure};

/// Acquire a lock for the calling shell.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The lock to hold: 'db', 'src & dst', 'gpu0 | gpu1', '2 of (a, b, c)', 'plan:shared', 'pool*3'
    #[arg(value_name = "EXPR")]
    pub expr: String,
    /// Hold every name shared
    #[arg(long)]
    pub shared: bool,
    /// Do not watch the shell: hold the lock until `unlock`, but at most this long
    #[arg(long = "for", value_name = "D", value_parser = super::duration, allow_hyphen_values = true)]
    pub hold_for: Option<Duration>,
    /// The process whose end releases the lock [default: the parent of this command]
    #[arg(long, value_name = "PID", value_parser = shell::pid, conflicts_with = "hold_for", allow_negative_numbers = true)]
    pub pid: Option<Pid>,
    /// Print JSON instead of the fence, and nothing while waiting
    #[arg(long)]
    pub json: bool,
    /// The process that the background process of this lock is bound to. Only `lock` itself uses this flag.
    #[arg(long, hide = true)]
    holder: Option<Bound>,
    /// The options for waiting, and for the loss of the lock.
    #[command(flatten)]
    pub hold: HoldArgs,
}

const EXAMPLES: &str = "\
Examples:
  conclave lock db && ./migrate; conclave unlock db
  FENCE=$(conclave lock --try db) || exit    # for a store that rejects smaller fences
  conclave lock --timeout 30s --on-lost 'touch stop' 'src & dst' > /dev/null
  conclave lock --for 1h nightly             # outlives this shell; this user can unlock it
  conclave lock --pid $$ db                  # in a subshell: bound to the main shell

`lock` prints the fence and returns when the lock is held. A process in the background keeps the lock until \
`unlock`, or until the calling shell ends, also by kill -9.
The shell is the parent of this command. In `( ... )`, in a function of a pipeline, and in $(...) with more than \
one command, the parent is a subshell, which may end at once. `bash -c 'conclave lock db'` leaves no shell, \
because bash replaces itself by its last command. In these cases, name the main shell with --pid $$.
If the lock is in danger, the shell gets TERM (not KILL), 3 s before the lock would be lost. An interactive \
shell ignores TERM, and programs that the shell has started get no signal; use `conclave run` for them. \
--on-lost kill sends KILL. --on-lost COMMAND runs COMMAND with CONCLAVE_LOCKS, CONCLAVE_FENCE and CONCLAVE_SHELL \
(the number of the shell).
With --for there is no shell to stop: only warn or COMMAND has an effect. If such a lock is lost, its process in \
the background ends, and `unlock` reports the loss.
With --json, the object has names, fences, fence and holder (the process in the background).
Exit codes: 0 held; 1 the shell cannot be watched; 2 bad usage, 69 no server or no majority, 75 not acquired, 77 \
rejected to end a deadlock, or because this shell holds the name already; 128 + the signal that ended the wait.";

/// Acquires a lock and leaves a background process that holds it.
pub fn lock(args: &Args) -> Done {
    let expr = args.expr.parse::<Expr>().map_err(|error| Failure::usage(error.to_string()))?;
    if args.hold_for.is_some_and(|limit| limit.is_zero()) {
        return Err(Failure::usage("--for 0 holds nothing: use a longer time, like 10m"));
    }
    if args.hold_for.is_some() && args.hold.on_lost == OnLost::Kill {
        return Err(Failure::usage("--for has no shell to kill: use --on-lost warn or --on-lost COMMAND"));
    }
    if let Some(bound) = args.holder {
        return holder::run(args, &expr, bound);
    }
    let bound = match (args.hold_for, args.pid) {
        (Some(_), _) => Bound::Detached,
        (None, Some(pid)) => Bound::Shell(Shell::of(pid)?),
        (None, None) => Bound::Shell(Shell::parent()?),
    };
    block_on(start(bound))
}

impl Args {
    fn requested<'a>(&'a self, expr: &'a Expr, bound: Bound) -> RequestedLock<'a> {
        let quiet = self.hold.quiet || self.json;
        RequestedLock { expr, text: &self.expr, shared: self.shared, quiet, shell: bound.shell() }
    }
}

/// Starts the holder, and waits until it has the lock.
async fn start(bound: Bound) -> Done {
    let mut signals = Signals::new(STOP)?;
    let (ours, theirs) = StdStream::pair().map_err(|error| cannot_start(&error))?;
    ours.set_nonblocking(true).map_err(|error| cannot_start(&error))?;
    let mut stream = BufReader::new(UnixStream::from_std(ours).map_err(|error| cannot_start(&error))?);
    let mut holder = spawn(theirs, bound).map_err(|error| cannot_start(&error))?;
    let mut granted = String::new();
    tokio::select! {
        biased;
        // An error means that the holder has ended.
        _ = stream.read_line(&mut granted) => {}
        signal = signals.next() => {
            stop(&mut holder, &mut signals).await;
            return Err(killed_by(signal));
        }
    }
    if !granted.ends_with('\n') {
        // The holder has printed its error already.
        return not_held(&mut holder).await;
    }
    let confirmed = match output::try_print(granted.as_bytes()) {
        Ok(()) => stream.write_all(b"\n").await,
        Err(error) => {
            // Close without a confirmation, so that the holder releases the lock.
            drop(stream);
            drop(holder.wait().await);
            return Err(output::unwritten(&error).unwrap_or_else(|| {
                Failure::new(
                    output::NOT_WRITTEN,
                    "not-written",
                    "standard output was closed; the lock was released",
                )
            }));
        }
    };
    match confirmed {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(_) => not_held(&mut holder).await,
    }
}

/// Stops a holder that still waits for the grant, and waits until it has cancelled its request. A second
/// signal ends this wait.
async fn stop(holder: &mut Child, signals: &mut Signals) {
    // The holder is not reaped yet, so no other process has its number.
    if let Some(pid) = holder.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        // A holder that has ended needs no signal.
        _ = kill_process(pid, Signal::TERM);
    }
    tokio::select! {
        _ = holder.wait() => {}
        _ = signals.next() => {}
    }
}

/// Starts this program again as the holder, with the same arguments. Its standard input is the connection to
/// this process.
fn spawn(stream: StdStream, bound: Bound) -> io::Result<Child> {
    let program = if cfg!(target_os = "linux") {
        // The file of this program may have been replaced meanwhile.
        PathBuf::from("/proc/self/exe")
    } else {
        std::env::current_exe()?
    };
    let mut command = Command::new(program);
    command.arg0("conclave").arg("lock").arg(format!("--holder={bound}")).args(std::env::args_os().skip(2));
    command.stdin(Stdio::from(std::os::fd::OwnedFd::from(stream))).stdout(Stdio::null()).spawn()
}

fn cannot_start(error: &io::Error) -> Failure {
    Failure::new(
        REFUSED,
        "cannot-start",
        format!("the process that holds the lock cannot be started: {error}; try again"),
    )
}

/// Returns the result of a holder that ended without the lock. It has printed its error, unless it was
/// killed.
async fn not_held(holder: &mut Child) -> Done {
    let status = holder.wait().await.map_err(|error| cannot_start(&error))?;
    match status.code().filter(|code| *code != 0).and_then(|code| u8::try_from(code).ok()) {
        Some(code) => Ok(ExitCode::from(code)),
        None => {
            let message = format!("the process that holds the lock has ended ({status}); try again");
            Err(Failure::new(NOT_ACQUIRED, "not-acquired", message))
        }
    }
}
