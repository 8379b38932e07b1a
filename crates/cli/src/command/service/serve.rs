//! `conclave serve`: one node of the service; with `--join`, one of several.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use conclave_client::DEFAULT_SERVER;
use conclave_service::config::Config;
use conclave_service::server::{Server, StartError};
use serde::Deserialize;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::signals::{STOP, Signals};
use crate::output::{self, Done, Failure, Paint};

/// Run a node of the lock service
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The data folder [default: $XDG_STATE_HOME/conclave or ~/.local/state/conclave]
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// The address for clients and other nodes; port 0 chooses a free port [default: 127.0.0.1:7411]
    #[arg(long, value_name = "ADDR", value_parser = listen)]
    pub listen: Option<SocketAddr>,
    /// The address that others use for this node, if it is another one
    #[arg(long, value_name = "ADDR")]
    pub advertise: Option<String>,
    /// Join the cluster of one of these members. The node tries for 30 s, and reports why no member admits
    /// it. If the data folder belongs to a member already, the addresses only help to find the other members
    #[arg(long, value_name = "ADDR[,ADDR]", value_delimiter = ',')]
    pub join: Vec<String>,
    /// Create a new cluster from a backup, in an empty data folder. The sessions of the lost cluster have
    /// ended, but its clients may still use their locks: stop these clients first, or wait for their longest
    /// TTL. Stores that check fences are safe at once
    #[arg(long, value_name = "FILE", conflicts_with = "join")]
    pub restore: Option<PathBuf>,
    /// Read settings from a TOML file; flags replace them
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Allow an address that other machines reach, without encryption or passwords
    #[arg(long)]
    pub insecure: bool,
    /// Print the address as JSON
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  conclave serve
  conclave serve --data /var/lib/conclave --listen 127.0.0.1:7500
  conclave serve --config /etc/conclave.toml

Three nodes on one machine, each with its own folder; on several machines, each listens on an \
address that the others reach:
  conclave serve --data n1
  conclave serve --data n2 --listen 127.0.0.1:7412 --join 127.0.0.1:7411
  conclave serve --data n3 --listen 127.0.0.1:7413 --join 127.0.0.1:7411
  conclave cluster status

A node that joins copies the log first, and votes when it has caught up. Later starts with its \
folder need no --join.

From a backup (see conclave cluster backup --help), once; later starts are without --restore, and \
other nodes join as usual:
  conclave serve --data new --restore monday.backup

A configuration file has the names of the flags: data = \"/var/lib/conclave\", \
listen = \"127.0.0.1:7411\", advertise = \"HOST:PORT\", join = [\"HOST:PORT\"], insecure = false.
Exit codes: 0 stopped by a signal, 1 the node cannot start or its disk failed, 2 bad usage. A start \
that fails removes the data folder if it has created it.";

/// The advice after a restore.
const ADVICE: &str = "all sessions have ended, but clients of the lost cluster may still use their locks: stop these clients, \
                      or wait for their longest TTL. Stores that check fences are safe at once";

/// Reads the value of `--listen`.
fn listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected IP:PORT, such as 127.0.0.1:7411".to_owned())
}

/// Serves until a signal stops it, or its disk fails.
pub fn run(args: &Args) -> Done {
    let config = config(args)?;
    report_to_stderr();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::usage(format!("cannot start the runtime: {error}")))?;
    runtime.block_on(async {
        let mut signals = Signals::new(STOP)?;
        let (data, advertised) = (config.data.clone(), config.advertise.clone());
        // A join can take long, so a signal stops it.
        let server = tokio::select! {
            started = Server::start(config) => started.map_err(|error| refusal(&error, args))?,
            _ = signals.next() => return Ok(ExitCode::SUCCESS),
        };
        // The node serves even if its greeting cannot be printed.
        _ = output::try_print(greeting(args, &server, advertised, &data).as_bytes());
        tokio::select! {
            _ = signals.next() => {
                server.shutdown().await;
                Ok(ExitCode::SUCCESS)
            }
            reason = server.failed() => Err(stopped(&reason)),
        }
    })
}

/// Prints reports for operators to standard error, for example of a log that was cut or a disk that is full.
fn report_to_stderr() {
    let lines =
        tracing_subscriber::fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_target(false);
    let ours = Targets::new().with_default(Level::ERROR).with_target("conclave_service", Level::INFO);
    let reports = tracing_subscriber::registry().with(lines.with_writer(std::io::stderr)).with(ours);
    // A subscriber that was installed before stays.
    drop(reports.try_init());
}

/// The settings of a configuration file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    data: Option<PathBuf>,
    listen: Option<SocketAddr>,
    advertise: Option<String>,
    #[serde(default)]
    join: Vec<String>,
    #[serde(default)]
    insecure: bool,
}

fn config(args: &Args) -> Result<Config, Failure> {
    let settings = args.config.as_deref().map(settings).transpose()?.unwrap_or_default();
    if let Some(backup) = &args.restore {
        std::fs::File::open(backup).map_err(|error| Failure::file(backup, &error).of_flag("--restore"))?;
    }
    let join = match &args.config {
        Some(file) if args.join.is_empty() => {
            members(&settings.join, &format!("--config {}: join", file.display()))
        }
        _ => members(&args.join, "--join"),
    };
    let default = Config::default();
    let config = Config {
        data: args.data.clone().or(settings.data).unwrap_or(default.data),
        listen: args.listen.or(settings.listen).unwrap_or(default.listen),
        advertise: args.advertise.clone().or(settings.advertise),
        join: join?,
        restore: args.restore.clone(),
        insecure: args.insecure || settings.insecure,
        ..default
    };
    let flags =
        |message: String| message.replace("`insecure`", "--insecure").replace("`advertise`", "--advertise");
    config.check().map_err(flags)?;
    Ok(config)
}

fn settings(path: &Path) -> Result<Settings, Failure> {
    let read = || {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
        toml::from_str(&text).map_err(|error| output::in_toml(path, &text, &error))
    };
    read().map_err(|failure: Failure| failure.of_flag("--config"))
}

/// The addresses of members, each with a port. `source` is the flag or the setting that gave them.
fn members(given: &[String], source: &str) -> Result<Vec<String>, Failure> {
    if given.is_empty() {
        return Ok(Vec::new());
    }
    let members =
        conclave_core::parse_servers(&given.join(",")).map_err(|error| format!("{source}: {error}"))?;
    // Other nodes are only reached by TCP.
    Ok(members.into_iter().map(|member| member.trim_start_matches("tcp:").to_owned()).collect())
}

/// The failure of a node that has stopped by itself.
fn stopped(reason: &str) -> Failure {
    let message = format!("the node has stopped: {reason}");
    Failure::new(1, "failed", message).advise("check its disk, then start it again")
}

fn refusal(error: &StartError, args: &Args) -> Failure {
    let code = if matches!(error, StartError::Config(_)) { output::USAGE } else { 1 };
    let failure = |message| Failure::new(code, "cannot-serve", message);
    match (error, &args.data) {
        (StartError::Backup(..), _) => failure(error.to_string()).of_flag("--restore"),
        (StartError::Data(error), Some(folder)) => {
            failure(format!("{}: {error}", folder.display())).of_flag("--data")
        }
        _ => failure(error.to_string()),
    }
}

fn greeting(args: &Args, server: &Server, advertised: Option<String>, data: &Path) -> String {
    let address = server.address().to_string();
    if args.json {
        let identity = server.identity();
        let value = serde_json::json!({
            "address": address, "data": data, "node": identity.node, "cluster": format!("{:032x}", identity.cluster),
            "restored": args.restore,
        });
        return format!("{value:#}\n");
    }
    let paint = Paint::stdout();
    let reached = advertised.unwrap_or_else(|| address.clone());
    let flag = if reached == DEFAULT_SERVER { String::new() } else { format!(" --server {reached}") };
    format!(
        "serving on {}, data in {}{}\n{}{}\n  conclave run{flag} build -- make\n  conclave why{flag} build\n  \
         conclave put{flag} /greeting hello\n  conclave get{flag} /greeting\n",
        paint.bold(&address),
        data.display(),
        among(server),
        args.restore
            .as_ref()
            .map_or_else(String::new, |file| format!("restored from {}; {ADVICE}\n", file.display())),
        paint.dim("try, in another terminal:"),
    )
}

/// The number of the node, if the cluster has others.
fn among(server: &Server) -> String {
    let node = server.identity().node;
    let status = server.status();
    let others = status.membership.nodes.keys().filter(|other| **other != node).count();
    match (others, node) {
        (0, 1) => String::new(),
        (0, _) => format!(", node {node} (joining)"),
        (others, _) => format!(", node {node} of {}", others + 1),
    }
}
