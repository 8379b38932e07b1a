//! The process of the local node, which `start` runs. It is no subcommand: help and completions do not show
//! it.
//!
//! Its standard input is the locked file `starter`, its standard output is a pipe to the starting command,
//! and its standard error is the log. It sends one line, a [`Report`], and then releases the first two.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use conclave_service::config::Config;
use conclave_service::peers::Tcp;
use conclave_service::replica::disk::RealDisk;
use conclave_service::replica::log::Options;
use conclave_service::server::{Environment, Server};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::about::About;
use super::log::Log;
use super::start;
use crate::command::duration;
use crate::command::service::signals::{STOP, Signals};
use crate::output::{self, Done, Failure};

/// The first argument of the process.
pub const COMMAND: &str = "local-node";
/// The longest wait of the node for the lock of its folder. A node that is ending needs less time.
pub const FOLDER_LIMIT: Duration = Duration::from_secs(5);
/// The unused time after which the node ends.
const IDLE: Duration = Duration::from_secs(60);
/// The variable that replaces [`IDLE`], for tests.
const IDLE_VARIABLE: &str = "CONCLAVE_LOCAL_IDLE";
/// The size of a segment of the log in bytes. It is smaller than that of a server, because the folder is in a
/// home folder.
const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;

/// The line that a node sends to the command that starts it.
#[derive(Debug, PartialEq)]
pub enum Report {
    /// The node listens.
    Ready,
    /// Another process has locked the data folder.
    Busy,
    /// The node cannot start, for this reason.
    Failed(String),
}

impl Report {
    /// Parses a line. Returns `None` if the process ended without one.
    pub fn parse(line: &str) -> Option<Self> {
        match line.strip_suffix('\n')? {
            "ready" => Some(Self::Ready),
            "busy" => Some(Self::Busy),
            line => line.strip_prefix("failed ").map(|why| Self::Failed(why.to_owned())),
        }
    }

    fn send(&self) {
        let line = match self {
            Self::Ready => "ready\n".to_owned(),
            Self::Busy => "busy\n".to_owned(),
            Self::Failed(why) => format!("failed {}\n", output::shown(why)),
        };
        // The starting command may have been killed. Other commands can still use the node.
        _ = output::try_print(line.as_bytes());
    }
}

/// Serves if the arguments of this process are those of a node: [`COMMAND`] and the data folder.
pub fn run_if_node() -> Option<Done> {
    let mut args = std::env::args_os().skip(1);
    let is_node = args.next().is_some_and(|command| command == COMMAND);
    is_node.then(|| match (args.next(), args.next()) {
        (Some(folder), None) => run(Path::new(&folder)),
        _ => Err(Failure::usage("a local node has one argument, its folder; use --local to start one")),
    })
}

/// Serves until the node is unused.
fn run(folder: &Path) -> Done {
    log_to(folder);
    let idle = idle()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::usage(format!("no runtime: {error}")))?;
    let done = runtime.block_on(async {
        let mut signals = Signals::new(STOP)?;
        let server = tokio::select! {
            server = begin(folder) => server?,
            _ = signals.next() => return Ok(ExitCode::SUCCESS),
        };
        tracing::info!(target: "conclave_service", "serving as process {}", std::process::id());
        let why = tokio::select! {
            _ = signals.next() => "a signal",
            () = server.unused(idle) => "not in use",
            why = server.failed() => return Err(Failure::new(1, "failed", why)),
        };
        tracing::info!(target: "conclave_service", "ending: {why}");
        server.shutdown().await;
        Ok(ExitCode::SUCCESS)
    });
    // Do not wait for threads: one may still wait for the lock of the folder.
    runtime.shutdown_background();
    done
}

/// Starts the server and reports the result to the starting command.
async fn begin(folder: &Path) -> Result<Server, Failure> {
    let (report, begun) = match start(folder).await {
        Ok(server) => (Report::Ready, Ok(server)),
        Err(report) => {
            let why = match &report {
                Report::Failed(why) => why,
                Report::Ready | Report::Busy => "another process uses the data folder",
            };
            let message = format!("not started: {why}");
            (report, Err(Failure::new(1, "cannot-serve", message)))
        }
    };
    report.send();
    start::release().map_err(|error| Failure::new(1, "cannot-serve", error.to_string()))?;
    begun
}

async fn start(folder: &Path) -> Result<Server, Report> {
    let failed = |error: &dyn std::fmt::Display| Report::Failed(error.to_string());
    let path = folder.to_owned();
    let opening = tokio::task::spawn_blocking(move || RealDisk::open_when_free(path));
    let opened = tokio::time::timeout(FOLDER_LIMIT, opening).await.map_err(|_| Report::Busy)?;
    let disk = opened.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
    About::ours().write(folder).map_err(|error| failed(&error))?;
    let log = Options { segment_bytes: SEGMENT_BYTES, ..Options::default() };
    let config = Config { data: folder.to_owned(), local: true, log, ..Config::default() };
    let environment = Environment { disk: Arc::new(disk), dial: Arc::new(Tcp) };
    Server::start_in(config, environment).await.map_err(|error| failed(&error))
}

fn idle() -> Result<Duration, Failure> {
    match std::env::var(IDLE_VARIABLE) {
        Ok(text) => duration(&text).map_err(|error| Failure::usage(format!("{IDLE_VARIABLE}: {error}"))),
        Err(_) => Ok(IDLE),
    }
}

/// Sends the messages of the service to the log.
fn log_to(folder: &Path) {
    let folder = folder.to_owned();
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_target(false);
    let lines = lines.with_writer(move || Log::new(&folder));
    let ours = Targets::new().with_default(Level::ERROR).with_target("conclave_service", Level::INFO);
    // This fails only if there is a subscriber already; that one stays.
    drop(tracing_subscriber::registry().with(lines).with(ours).try_init());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_whole_line() {
        assert_eq!(Report::parse("ready\n"), Some(Report::Ready));
        assert_eq!(Report::parse("busy\n"), Some(Report::Busy));
        assert_eq!(Report::parse("failed the disk\n"), Some(Report::Failed("the disk".to_owned())));
        for cut in ["", "rea", "ready", "else\n"] {
            assert_eq!(Report::parse(cut), None, "{cut:?}");
        }
    }
}
