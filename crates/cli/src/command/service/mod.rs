//! The commands of the lock service: where its server is, and what its errors mean to a shell.

mod backup;
mod bench;
mod cluster;
mod completions;
mod elect;
mod files;
mod job;
mod locks;
mod nested;
mod run;
mod serve;
mod sessions;
pub mod signals;
mod supervise;
mod terminal;
mod watch;
mod why;

use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use conclave_client::{Client, Code, DEFAULT_SERVER, Error, Options};

use crate::command::duration;
use crate::output::{Done, Failure, USAGE};

/// The commands.
#[derive(clap::Subcommand)]
#[command(defer = true)]
pub enum Command {
    /// Run a node of the lock service
    Serve(serve::Args),
    /// Run a command while holding a lock
    Run(run::Args),
    /// Who holds a name, who waits for it, and why
    Why(why::Args),
    /// The names in use
    Locks(locks::ListArgs),
    /// The sessions, or the end of one
    Sessions(sessions::Args),
    /// Win an election, and lead while a command runs, or until stopped
    Elect(elect::Args),
    /// What a file contains
    Get(files::GetArgs),
    /// Write a file; it is made if it is not there
    Put(files::PutArgs),
    /// The children of a file
    Ls(files::ListArgs),
    /// Remove a file
    Rm(files::RemoveArgs),
    /// Print what happens to a file or a lock, one line a change
    Watch(watch::Args),
    /// Make a semaphore, or change how many permits it has
    Limit(locks::LimitArgs),
    /// Take a name away from everybody who holds it
    Break(locks::BreakArgs),
    /// The nodes of the service
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Measure a server: pairs of acquire and release, and the time to acquire
    Bench(bench::Args),
    /// Print completions for a shell
    Completions(completions::Args),
}

/// Does what was asked.
pub fn run(command: &Command) -> Done {
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Run(args) => run::run(args),
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
        Command::Completions(args) => completions::run(args),
    }
}

/// Something was asked for that is not there, or not so.
const REFUSED: u8 = 1;
/// No server answers (EX_UNAVAILABLE).
const NO_SERVER: u8 = 69;
/// The lock was not acquired (EX_TEMPFAIL).
const NOT_ACQUIRED: u8 = 75;
/// The lock was lost while the command ran.
const LOST: u8 = 76;
/// The request was refused to end a deadlock.
const DEADLOCK: u8 = 77;

/// How long the server has to say that everything is given back; after that the lease sees to it.
const LAST_WORD: Duration = Duration::from_secs(1);

/// How long something is waited for without sleeping.
const AWAKE: Duration = Duration::from_millis(2);

/// Where the servers are.
#[derive(clap::Args)]
pub struct ServerArgs {
    /// The servers, with commas between: any of them will do. One on this machine is reached by its Unix socket, by TCP
    /// with `tcp:` before its address [env: CONCLAVE_SERVER] [default: 127.0.0.1:7411]
    #[arg(long, value_name = "ADDR[,ADDR]", value_parser = servers)]
    pub server: Option<String>,
}

impl ServerArgs {
    /// As told by the flag, by the environment, or by nobody. A variable that is empty says nothing.
    fn addresses(&self) -> Result<String, Failure> {
        if let Some(told) = &self.server {
            return Ok(told.clone());
        }
        let told = std::env::var("CONCLAVE_SERVER").ok().filter(|servers| !servers.trim().is_empty());
        let told = told.map_or_else(|| Ok(DEFAULT_SERVER.to_owned()), |told| servers(&told));
        told.map_err(|error| Failure::usage(format!("CONCLAVE_SERVER: {error}")))
    }

    /// Connects.
    async fn connect(&self) -> Result<Client, Failure> {
        self.connect_with(Client::options()).await
    }

    async fn connect_with(&self, options: Options) -> Result<Client, Failure> {
        options.label(label("conclave")).connect(&self.addresses()?).await.map_err(failure)
    }

    /// Connects, calls `act` with the client, and ends the session.
    pub fn with<T>(&self, act: impl AsyncFnOnce(Client) -> conclave_client::Result<T>) -> Result<T, Failure> {
        block_on(async {
            let client = self.connect().await?;
            let done = awake(act(client.clone())).await;
            close(&client).await;
            done.map_err(|error| {
                let failure = failure(error);
                // Only who holds something can lose it.
                Failure { code: if failure.code == LOST { REFUSED } else { failure.code }, ..failure }
            })
        })
    }
}

/// Ends the session, whatever came of it: what is not closed stays until its lease is over.
async fn close(client: &Client) {
    drop(tokio::time::timeout(LAST_WORD, awake(client.close())).await);
}

/// Waits for an answer, or the end of a command, at first without sleeping: on a virtual machine a processor that has nothing to do
/// is given to others, and comes back later than most answers.
async fn awake<T>(answer: impl Future<Output = T>) -> T {
    let mut answer = pin!(answer);
    let until = Instant::now() + AWAKE;
    while Instant::now() < until {
        tokio::select! {
            biased;
            answer = answer.as_mut() => return answer,
            // Whoever has something to do on this processor goes first: the server, perhaps.
            () = tokio::task::yield_now() => thread::yield_now(),
        }
    }
    answer.await
}

/// Runs to the end on this thread: starting others would take longer than most commands.
fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::usage(format!("no runtime: {error}")))?;
    let done = runtime.block_on(future);
    // What is still being said is not waited for longer: perhaps nobody listens.
    runtime.shutdown_timeout(LAST_WORD);
    done
}

/// What an error of the service means to a shell: one line, and the code.
fn failure(error: Error) -> Failure {
    let Error { code: kind, message, .. } = error;
    let code = match kind {
        Code::WouldWait | Code::TimedOut | Code::Cancelled => NOT_ACQUIRED,
        Code::Deadlock => DEADLOCK,
        Code::SessionEnded | Code::NotHeld => LOST,
        Code::InvalidExpression | Code::InvalidName | Code::InvalidArgument | Code::Impossible => USAGE,
        Code::NotASemaphore | Code::WrongKind | Code::TooLarge | Code::Unsupported => USAGE,
        code if code.fault() != conclave_api::Fault::Caller => NO_SERVER,
        _ => REFUSED,
    };
    Failure::new(code, kind.name(), format!("{message}; {}", kind.advice()))
}

fn servers(text: &str) -> Result<String, String> {
    if text.split(',').all(|server| server.trim().is_empty()) {
        return Err("expected HOST:PORT, several with commas between".into());
    }
    Ok(text.to_owned())
}

/// Who this is, for people: the host, the process and what it does. Within the bounds of an owner's label.
fn label(what: &str) -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let text = format!("{host}:{} {what}", std::process::id());
    let clean = text.chars().filter(|c| !c.is_control());
    let mut bytes = 0;
    clean
        .take_while(|c| {
            bytes += c.len_utf8();
            bytes <= conclave_api::OwnerLabel::MAX_BYTES
        })
        .collect()
}

/// How long ago a wall time was, as people say it.
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

/// Bytes as text where they are text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
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
    fn a_label_fits_whatever_it_is_made_of() {
        let long = label(&"ü\n".repeat(200));
        assert!(conclave_api::OwnerLabel::new(long).is_ok());
    }

    #[test]
    fn times_are_said_in_the_unit_that_fits() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
        assert_eq!(ago(now + 5_000), "0 s", "a clock ahead of ours");
        assert_eq!(ago(now - 300_000), "5 min");
    }
}
