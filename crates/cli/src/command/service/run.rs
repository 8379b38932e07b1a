//! `conclave run`: a command under a lock.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use conclave_client::wire::Queued;
use conclave_client::{Acquiring, Client, Expr, Guard, Request, VictimPolicy, Wait};
use rustix::process::Signal;

use super::signals::Signals;
use super::supervise::{self, Margins, OnLost, supervise};
use super::{ServerArgs, ago, block_on, failure, label};
use crate::output::{Done, Failure};

/// Run a command while holding a lock.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to hold: 'db', 'src & dst', 'gpu0 | gpu1', '2 of (a, b, c)', 'plan:shared', 'pool*3'
    #[arg(value_name = "EXPR")]
    pub expr: String,
    /// Every name shared
    #[arg(long)]
    pub shared: bool,
    /// How to wait, and what to do when the lock is lost.
    #[command(flatten)]
    pub hold: HoldArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// How to wait for a lock, and how to keep it.
#[derive(clap::Args)]
pub struct HoldArgs {
    /// Do not wait
    #[arg(long = "try", conflicts_with = "wait")]
    pub try_once: bool,
    /// Wait at most this long: 500ms, 30s, 5m
    #[arg(long, value_name = "D", value_parser = super::duration)]
    pub wait: Option<Duration>,
    /// The larger goes first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i32,
    /// The lease: how long the lock outlives a client that is cut off [default: 10s]
    #[arg(long, value_name = "D", value_parser = super::duration)]
    pub ttl: Option<Duration>,
    /// How long the names stay untaken if the client dies [default: 1s]
    #[arg(long, value_name = "D", value_parser = super::duration)]
    pub lock_delay: Option<Duration>,
    /// When the lock is in danger: term (then kill), kill, warn, or a shell command in place of TERM
    #[arg(long, value_name = "term|kill|warn|COMMAND", default_value = "term", value_parser = supervise::on_lost)]
    pub on_lost: OnLost,
    /// Whose request is refused if this one closes a deadlock
    #[arg(long, value_name = "POLICY", default_value = "requester")]
    pub on_deadlock: Policy,
    /// Where the servers are.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Whose waiting request is refused.
#[derive(Clone, Copy, ValueEnum)]
pub enum Policy {
    /// The one that closes the deadlock
    Requester,
    /// That of the owner who came last
    Youngest,
    /// That with the lowest priority
    LowestPriority,
    /// That of the owner who holds the fewest names
    FewestLocks,
    /// Nobody's: it stands, and `why` shows it
    None,
}

const EXAMPLES: &str = "\
Examples:
  conclave run db -- ./migrate
  conclave run 'src & dst' -- ./copy
  conclave run 'gpu0 | gpu1' -- sh -c 'echo got $CONCLAVE_LOCKS'
  conclave run --try nightly -- ./backup || echo 'somebody else does it'

The command sees CONCLAVE_LOCKS (the names held, with spaces between) and CONCLAVE_FENCE (a number that grows with every
grant: let your store refuse a smaller one than it has seen). It runs in a process group of its own, which gets TERM 3 s and
KILL 1 s before the lock would be lost. A shell command of --on-lost sees that group as CONCLAVE_GROUP.
Exit codes: the command's, or 128+signal; 2 bad usage, 69 no server, 75 not acquired, 76 lost, 77 refused to end a
deadlock, 126 the command cannot be run, 127 there is no such command.";

/// How long the server has to say that the lock is free again; after that the lease sees to it.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Runs the command.
pub fn run(args: &Args) -> Done {
    // Pointing at the mistake is better done here than by the server.
    args.expr.parse::<Expr>().map_err(|error| Failure::usage(error.to_string()))?;
    let ask = |request: Request| if args.shared { request.shared() } else { request };
    hold(&args.hold, &args.expr, &args.command, ask)
}

/// Acquires, runs the command, and gives everything back.
pub fn hold(args: &HoldArgs, expr: &str, command: &[OsString], ask: impl FnOnce(Request) -> Request) -> Done {
    block_on(async {
        let mut signals = Signals::new().map_err(|error| Failure::usage(error.to_string()))?;
        let program = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
        let label = label(&program);
        let client = connect(args, &label).await?;
        let request = ask(client.owner(&label).map_err(failure)?.request(expr));
        let done = under_lock(args, request, expr, command, &mut signals).await;
        // Whatever came of the command is what matters now.
        drop(tokio::time::timeout(LAST_WORD, client.close()).await);
        done.map(ExitCode::from)
    })
}

async fn under_lock(
    args: &HoldArgs,
    request: Request,
    expr: &str,
    command: &[OsString],
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let request = request.wait(wait(args)).priority(args.priority).on_deadlock(args.on_deadlock.into());
    match acquire(request.start().map_err(failure)?, expr, signals).await? {
        Ok(guard) => {
            let margins = Margins::of(args.ttl.unwrap_or(Duration::from_secs(10)));
            supervise(&guard, command, &args.on_lost, margins, signals).await
        }
        Err(signal) => Ok(killed_by(signal)),
    }
}

/// As the shell says it.
pub fn killed_by(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}

/// Waits for the grant, saying for whom on a terminal; or for a signal, which gives the wait up.
pub async fn acquire(
    mut acquiring: Acquiring,
    expr: &str,
    signals: &mut Signals,
) -> Result<Result<Guard, Signal>, Failure> {
    let signal = tokio::select! {
        biased;
        granted = granted(&mut acquiring, expr) => return granted.map(Ok).map_err(failure),
        signal = signals.next() => signal,
    };
    // Only its answer says that nothing is held; who is in a hurry sends the signal again.
    tokio::select! {
        _ = acquiring.cancel() => {}
        _ = signals.next() => {}
    }
    Ok(Err(signal))
}

async fn granted(acquiring: &mut Acquiring, expr: &str) -> conclave_client::Result<Guard> {
    if io::stderr().is_terminal()
        && let Some(place) = acquiring.queued().await
    {
        eprintln!("conclave: waiting for {expr}: {}", describe(&place));
    }
    acquiring.granted().await
}

pub async fn connect(args: &HoldArgs, label: &str) -> Result<Client, Failure> {
    let mut options = Client::options();
    if let Some(ttl) = args.ttl {
        options = options.ttl(ttl);
    }
    if let Some(delay) = args.lock_delay {
        options = options.lock_delay(delay);
    }
    options.label(label).connect(&args.server.server).await.map_err(failure)
}

pub fn wait(args: &HoldArgs) -> Wait {
    match args.wait {
        _ if args.try_once => Wait::Try,
        Some(limit) if limit.is_zero() => Wait::Try,
        Some(limit) => Wait::AtMost(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1)),
        None => Wait::Forever,
    }
}

fn describe(place: &Queued) -> String {
    let held = place
        .holders
        .iter()
        .map(|holder| format!("{} is held by {} since {}", holder.name, holder.owner, ago(holder.since_ms)));
    let ahead = (place.ahead > 0).then(|| format!("{} ahead", place.ahead));
    let parts: Vec<String> = held.chain(ahead).collect();
    if parts.is_empty() { "its turn comes".to_owned() } else { parts.join(", ") }
}

impl From<Policy> for VictimPolicy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Requester => Self::Requester,
            Policy::Youngest => Self::Youngest,
            Policy::LowestPriority => Self::LowestPriority,
            Policy::FewestLocks => Self::FewestLocks,
            Policy::None => Self::None,
        }
    }
}
