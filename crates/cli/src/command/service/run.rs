//! `conclave run`: a command under a lock.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use conclave_client::wire::Queued;
use conclave_client::{Acquiring, Client, Code, Error, Expr, Guard, Request, VictimPolicy, Wait};
use tokio::time::{sleep, timeout};

use super::signals::{PASSED_ON, Signals, killed_by};
use super::supervise::{self, Margins, OnLost, supervise};
use super::{LAST_WORD, LOST, NO_SERVER, NOT_ACQUIRED, REFUSED, ServerArgs};
use super::{ago, awake, block_on, close, failure, label, nested};
use crate::output::{self, Done, Failure};

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
    #[arg(long, value_name = "D", value_parser = super::duration, allow_hyphen_values = true)]
    pub wait: Option<Duration>,
    /// The larger goes first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i32,
    /// The lease: how long the lock outlives a client that is cut off [default: 10s]
    #[arg(long, value_name = "D", value_parser = super::duration, allow_hyphen_values = true)]
    pub ttl: Option<Duration>,
    /// How long the names stay untaken if the client dies [default: 1s]
    #[arg(long, value_name = "D", value_parser = super::duration, allow_hyphen_values = true)]
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
  conclave run --local db -- ./migrate
  conclave run db -- ./migrate
  conclave run 'src & dst' -- ./copy
  conclave run 'gpu0 | gpu1' -- sh -c 'echo got $CONCLAVE_LOCKS'
  conclave run --try nightly -- ./backup || echo 'somebody else does it'

The command sees CONCLAVE_LOCKS (the names held, with spaces between) and CONCLAVE_FENCE (a number that grows with every
grant: let your store refuse a smaller one than it has seen). It runs in a process group of its own, which gets TERM 3 s and
KILL 1 s before the lock would be lost. A shell command of --on-lost sees the same, and that group as CONCLAVE_GROUP.
If `conclave run` itself is killed (kill -9), the kernel kills the command, but not the processes that the command has started.
Background jobs of a command that ends by itself are not waited for: the lock is given back, and they go on.
Deadlocks are found among the requests of programs that hold one lock and ask for another in the same session. A `conclave run`
inside another is a session of its own: that it asks for a name that the one around it holds is found, a longer circle is not.
Exit codes: the command's, or 128+signal; 2 bad usage, 69 no server, 75 not acquired, 76 lost, 77 refused to end a
deadlock, 126 the command cannot be run, 127 there is no such command.";

/// How long after its time a request may be without an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the command.
pub fn run(args: &Args) -> Done {
    // Pointing at the mistake is better done here than by the server.
    let expr = args.expr.parse::<Expr>().map_err(|error| Failure::usage(error.to_string()))?;
    let ask = |request: Request| if args.shared { request.shared() } else { request };
    let expr = Asked { expr: &expr, text: &args.expr, shared: args.shared };
    run_under(&args.hold, &expr, &args.command, ask)
}

/// What is asked for.
pub struct Asked<'a> {
    pub expr: &'a Expr,
    /// As it was typed.
    pub text: &'a str,
    pub shared: bool,
}

/// Acquires, runs the command, and gives everything back.
pub fn run_under(
    args: &HoldArgs,
    asked: &Asked<'_>,
    command: &[OsString],
    ask: impl FnOnce(Request) -> Request,
) -> Done {
    let program = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    hold(args, asked, &program, ask, async |guard, signals| {
        let margins = Margins::of(args.ttl.unwrap_or(Duration::from_secs(10)));
        awake(supervise(guard, command, &args.on_lost, margins, signals)).await.map(ExitCode::from)
    })
}

/// Acquires, does something with it, and gives everything back, whatever came of it.
pub fn hold(
    args: &HoldArgs,
    asked: &Asked<'_>,
    what: &str,
    ask: impl FnOnce(Request) -> Request,
    act: impl AsyncFnOnce(&Guard, &mut Signals) -> Done,
) -> Done {
    block_on(async {
        let mut signals = Signals::new(PASSED_ON)?;
        let label = label(what);
        let client = signals.or_stop(connect(args, &label)).await?;
        let request = ask(client.owner(&label).map_err(failure)?.request(asked.text));
        let request = request.wait(wait(args)).priority(args.priority).on_deadlock(args.on_deadlock.into());
        let (guard, done) = match acquire(args, asked, &client, request, &mut signals).await {
            Ok(guard) => {
                let done = act(&guard, &mut signals).await;
                (Some(guard), done)
            }
            Err(failure) => (None, Err(failure)),
        };
        // Gives back what is held: a guard that is dropped before would ask for that by itself.
        close(&client).await;
        drop(guard);
        done
    })
}

/// Waits for the grant, saying for whom on a terminal; or for a signal, which gives the wait up.
async fn acquire(
    args: &HoldArgs,
    asked: &Asked<'_>,
    client: &Client,
    request: Request,
    signals: &mut Signals,
) -> Result<Guard, Failure> {
    if wait(args) == Wait::Forever {
        signals.or_stop(nested::check(client, asked)).await?;
    }
    let mut acquiring = request.start().map_err(not_acquired)?;
    let stopped = tokio::select! {
        biased;
        granted = awake(granted(&mut acquiring, asked.text)) => return granted.map_err(not_acquired),
        signal = signals.next() => killed_by(signal),
        () = sleep(patience(wait(args))) => no_answer(),
    };
    // Only its answer says that nothing is held; who is in a hurry sends the signal again.
    tokio::select! {
        _ = timeout(LAST_WORD, acquiring.cancel()) => {}
        _ = signals.next() => {}
    }
    Err(stopped)
}

/// Who never had the lock has not lost it.
fn not_acquired(error: Error) -> Failure {
    let failure = failure(error);
    let code = if matches!(failure.code, LOST | REFUSED) { NOT_ACQUIRED } else { failure.code };
    Failure { code, ..failure }
}

async fn granted(acquiring: &mut Acquiring, expr: &str) -> conclave_client::Result<Guard> {
    if io::stderr().is_terminal()
        && let Some(place) = acquiring.queued().await
    {
        output::complain(&format!("waiting for {expr}: {}", describe(&place)));
    }
    acquiring.granted().await
}

/// The server counts the time to wait. Who has set a limit is not kept waiting by one that says nothing.
fn patience(wait: Wait) -> Duration {
    match wait {
        Wait::Try => PATIENCE,
        Wait::AtMost(limit_ms) => Duration::from_millis(limit_ms).saturating_add(PATIENCE),
        Wait::Forever => Duration::MAX,
    }
}

fn no_answer() -> Failure {
    let message = format!("the server does not answer, {} s after its time; try later", PATIENCE.as_secs());
    Failure::new(NO_SERVER, Code::NoAnswer.name(), message)
}

async fn connect(args: &HoldArgs, label: &str) -> Result<Client, Failure> {
    let mut options = Client::options();
    if let Some(ttl) = args.ttl {
        options = options.ttl(ttl);
    }
    if let Some(delay) = args.lock_delay {
        options = options.lock_delay(delay);
    }
    args.server.open(options.label(label)).await
}

fn wait(args: &HoldArgs) -> Wait {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_had_the_lock_has_not_lost_it() {
        let code = |code| not_acquired(Error::new(code, "x")).code;
        for refused in [Code::SessionEnded, Code::NotHeld, Code::LimitReached, Code::TimedOut] {
            assert_eq!(code(refused), 75, "{refused:?}");
        }
        assert_eq!(code(Code::Deadlock), 77);
        assert_eq!(code(Code::NoQuorum), 69);
        assert_eq!(code(Code::InvalidExpression), 2);
    }

    #[test]
    fn who_has_set_a_limit_is_not_kept_waiting_by_a_silent_server() {
        assert_eq!(patience(Wait::Try), PATIENCE);
        assert_eq!(patience(Wait::AtMost(5_000)), Duration::from_secs(15));
        assert_eq!(patience(Wait::AtMost(u64::MAX)), Duration::from_millis(u64::MAX) + PATIENCE);
        assert_eq!(patience(Wait::Forever), Duration::MAX);
    }
}
