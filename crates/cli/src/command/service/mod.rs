//! The commands of the lock service, the addresses of its servers, and the exit codes of its errors.

mod backup;
mod bench;
mod cluster;
mod elect;
mod files;
mod hold;
mod job;
mod local;
mod lock;
mod locks;
mod nested;
mod run;
mod serve;
mod sessions;
pub mod signals;
mod supervise;
mod terminal;
mod waiting;
mod watch;
mod why;

use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use conclave_client::{Client, ClientBuilder, Code, DEFAULT_SERVER, Error, Expr, LockName};
use conclave_core::Claim;
use conclave_core::expr::Leaf;

use crate::command::duration;
use crate::output::{self, Done, Failure};

/// The commands of the lock service. Each has the text of its `Args`, because clap reads those only when they
/// are needed.
#[derive(clap::Subcommand)]
#[command(defer = true)]
pub enum Command {
    /// Run a node of the lock service
    Serve(serve::Args),
    /// Run a command while holding a lock
    Run(run::Args),
    /// Acquire a lock for the calling shell, and keep it until `unlock` or the end of the shell
    Lock(lock::Args),
    /// Release a lock of `conclave lock`
    Unlock(lock::UnlockArgs),
    /// Show who holds a name, who waits for it, and why
    Why(why::Args),
    /// List the names in use
    Locks(locks::ListArgs),
    /// List the sessions, or end one
    Sessions(sessions::Args),
    /// Win an election, and lead while a command runs, or until stopped
    Elect(elect::Args),
    /// Print the content of a file
    Get(files::GetArgs),
    /// Write a file, and create it if it does not exist
    Put(files::PutArgs),
    /// List the children of a file
    Ls(files::ListArgs),
    /// Remove a file
    Rm(files::RemoveArgs),
    /// Print the changes of a file or a lock, one per line
    Watch(watch::Args),
    /// Make a semaphore, or change its number of permits
    Limit(locks::LimitArgs),
    /// Take a name away from all its holders
    Break(locks::BreakArgs),
    /// Show the nodes of the cluster, or save a backup
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Measure the throughput and latency of a server, and check mutual exclusion
    Bench(bench::Args),
}

/// Runs the local node if this process is the one that `--local` starts. Help and completions do not show it.
pub fn run_if_local_node() -> Option<Done> {
    local::run_if_node()
}

/// Runs a command.
pub fn run(command: &Command) -> Done {
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Run(args) => run::run(args),
        Command::Lock(args) => lock::lock(args),
        Command::Unlock(args) => lock::unlock(args),
        Command::Why(args) => why::run(args),
        Command::Locks(args) => locks::list(args),
        Command::Sessions(args) => sessions::run(args),
        Command::Elect(args) => elect::run(args),
        Command::Get(args) => files::get(args),
        Command::Put(args) => files::put(args),
        Command::Ls(args) => files::list(args),
        Command::Rm(args) => files::remove(args),
        Command::Watch(args) => watch::run(args),
        Command::Limit(args) => locks::limit(args),
        Command::Break(args) => locks::break_lock(args),
        Command::Cluster(command) => cluster::run(command),
        Command::Bench(args) => bench::run(args),
    }
}

/// The request was rejected, for example because a file does not exist.
const REFUSED: u8 = 1;
/// No server replies (`EX_UNAVAILABLE`).
const NO_SERVER: u8 = 69;
/// The lock was not acquired (`EX_TEMPFAIL`).
const NOT_ACQUIRED: u8 = 75;
/// The lock was lost while the command ran.
const LOST: u8 = 76;
/// The request was rejected to end a deadlock.
const DEADLOCK: u8 = 77;

/// The advice in the error of a command that cannot reach a server.
const START_ONE: &str =
    "check the address; start a server (conclave serve), or add --local to use a node that starts by itself";

/// The longest wait for the end of the session. After it, the session ends with its lease.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The time for which a command polls for a reply before it sleeps.
const SPIN: Duration = Duration::from_millis(2);

/// The flag that suppresses the line about the result of a command.
#[derive(clap::Args)]
pub struct Quiet {
    /// Do not print what was done
    #[arg(long, short)]
    quiet: bool,
}

impl Quiet {
    /// Prints the line, unless the flag is set.
    fn print(&self, line: &str) {
        if !self.quiet {
            output::print(&format!("{line}\n"));
        }
    }
}

/// The addresses of the servers.
#[derive(clap::Args)]
pub struct ServerArgs {
    /// The servers, as HOST or HOST:PORT with commas between; the first that answers is used. The port is 7411 if
    /// absent. A server on this machine is reached by its Unix socket, or by TCP with `tcp:` before its
    /// address [env: CONCLAVE_SERVER] [default: 127.0.0.1:7411]
    #[arg(long, value_name = "ADDR[,ADDR]", value_parser = servers)]
    pub server: Option<String>,
    /// Use the local node of this user on this machine, which starts by itself; short for `--server local`
    #[arg(long, conflicts_with = "server")]
    pub local: bool,
}

impl ServerArgs {
    /// Returns the servers of the flag, else of `CONCLAVE_SERVER` unless it is empty, else the default. Each
    /// has a port.
    fn addresses(&self) -> Result<String, Failure> {
        if self.local {
            return Ok(local::NAME.to_owned());
        }
        if let Some(given) = &self.server {
            return Ok(given.clone());
        }
        let given = std::env::var("CONCLAVE_SERVER").ok().filter(|servers| !servers.trim().is_empty());
        let given = given.map_or_else(|| Ok(DEFAULT_SERVER.to_owned()), |given| servers(&given));
        given.map_err(|error| Failure::usage(format!("CONCLAVE_SERVER: {error}")))
    }

    async fn connect(&self) -> Result<Client, Failure> {
        self.connect_with(Client::builder()).await
    }

    async fn connect_with(&self, options: ClientBuilder) -> Result<Client, Failure> {
        self.open(options.label(label("conclave"))).await
    }

    /// Connects with these options. Starts the local node if it does not run.
    async fn open(&self, options: ClientBuilder) -> Result<Client, Failure> {
        let servers = self.addresses()?;
        if local::is_named(&servers) {
            return local::open(options).await;
        }
        options.connect(&servers).await.map_err(failure)
    }

    /// Connects, calls `act` with the client, and ends the session.
    pub fn with<T>(&self, act: impl AsyncFnOnce(Client) -> conclave_client::Result<T>) -> Result<T, Failure> {
        block_on(async {
            let client = self.connect().await?;
            let done = poll_before_sleeping(act(client.clone())).await;
            close(&client).await;
            done.map_err(|error| {
                let failure = failure(error);
                // The exit code LOST is for commands that hold something.
                Failure { code: if failure.code == LOST { REFUSED } else { failure.code }, ..failure }
            })
        })
    }
}

/// Ends the session. If no server replies in time, the session ends with its lease.
async fn close(client: &Client) {
    close_within(client, CLOSE_TIMEOUT).await;
}

/// Ends the session like [`close`], and waits for the reply for at most `limit`.
async fn close_within(client: &Client, limit: Duration) {
    drop(tokio::time::timeout(limit, poll_before_sleeping(client.close())).await);
}

/// Waits for a reply, at first by polling. On a virtual machine, an idle processor is given to other machines
/// and comes back later than most replies.
async fn poll_before_sleeping<T>(answer: impl Future<Output = T>) -> T {
    let mut answer = pin!(answer);
    let until = Instant::now() + SPIN;
    while Instant::now() < until {
        tokio::select! {
            biased;
            answer = answer.as_mut() => return answer,
            // Let other threads of this processor run first; one of them may be the server.
            () = tokio::task::yield_now() => thread::yield_now(),
        }
    }
    answer.await
}

/// Runs a future on this thread, because starting other threads takes longer than most commands.
fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::usage(format!("cannot start the runtime: {error}")))?;
    let done = runtime.block_on(future);
    // The time for the last messages is bounded, because the server may not read them.
    runtime.shutdown_timeout(CLOSE_TIMEOUT);
    done
}

/// Converts an error of the client to the failure of the command.
fn failure(error: Error) -> Failure {
    let Error { code, message, .. } = error;
    let advice = if code == Code::Unreachable { START_ONE } else { code.advice() };
    let (exit, kind) = (code.exit(), code.name());
    Failure { message, advice: advice.into(), code: exit, kind, is_definite: code.is_definite() }
}

/// Parses the name of a lock, semaphore or election. A name that looks like an expression needs double quotes.
fn name(text: &str) -> Result<LockName, String> {
    if let Ok(expr) = text.parse::<Expr>()
        && let Some(Leaf { name, claim: Claim::Exclusive, .. }) = expr.as_single()
    {
        return Ok(name.clone());
    }
    let name = LockName::new(text).map_err(|error| error.to_string())?;
    match text.contains(['&', '|', '(', ')', ',', '*', ':', '"']) {
        true => Err(format!(
            "an expression is not a name: give one name, or put the name in double quotes: '{name}'"
        )),
        false => Ok(name),
    }
}

/// Returns the servers in `text`, each with a port.
fn servers(text: &str) -> Result<String, String> {
    if local::is_named(text) {
        return Ok(text.trim().to_owned());
    }
    if text.split(',').any(local::is_named) {
        return Err("the local node is no member of a cluster: name `local` alone, or other servers".into());
    }
    conclave_core::parse_servers(text).map(|servers| servers.join(","))
}

/// Returns the label of this process for lists: host, process and `what`, cut to the longest label of an
/// owner.
fn label(what: &str) -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let text = format!("{host}:{} {what}", std::process::id());
    let clean = text.chars().filter(|c| !c.is_control());
    let mut bytes = 0;
    clean
        .take_while(|c| {
            bytes += c.len_utf8();
            bytes <= conclave_core::OwnerLabel::MAX_BYTES
        })
        .collect()
}

/// Returns the time since a wall time, in words.
fn ago(since_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let then = Duration::from_millis(since_ms);
    match now.saturating_sub(then).as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// Returns bytes as text. Bytes that are not UTF-8 are replaced.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use conclave_client::Code;

    use super::*;

    #[test]
    fn every_code_has_the_exit_code_that_scripts_expect() {
        let code = |code| failure(Error::new(code, "x")).code;
        assert_eq!(code(Code::WouldWait), 75);
        assert_eq!(code(Code::TimedOut), 75);
        assert_eq!(code(Code::Deadlock), 77);
        assert_eq!(code(Code::SessionEnded), 76);
        assert_eq!(code(Code::Unreachable), 69);
        assert_eq!(code(Code::NoQuorum), 69);
        assert_eq!(code(Code::InvalidExpression), 2);
        assert_eq!(code(Code::NoSuchFile), 1);
    }

    #[test]
    fn a_label_of_any_program_fits() {
        let long = label(&"ü\n".repeat(200));
        assert!(conclave_core::OwnerLabel::new(long).is_ok());
    }

    #[test]
    fn times_have_a_fitting_unit() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
        assert_eq!(ago(now + 5_000), "0 s", "a clock ahead of ours");
        assert_eq!(ago(now - 300_000), "5 min");
    }
}
