//! `conclave serve`: one node of the service, with nothing to configure; `--join` makes it one of several.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
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

/// Run a node of the lock service.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where the log is kept [default: $XDG_STATE_HOME/conclave or ~/.local/state/conclave]
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// Where clients and peers are listened to; port 0 takes a free one [default: 127.0.0.1:7411]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Where others reach this node, if that is another address
    #[arg(long, value_name = "ADDR")]
    pub advertise: Option<String>,
    /// Join the cluster of which a member is there; any will do. A node that belongs to one stays in it, and then this is
    /// only a hint where others may be
    #[arg(long, value_name = "ADDR[,ADDR]", value_delimiter = ',')]
    pub join: Vec<String>,
    /// Found a new cluster, in an empty data folder, from a backup. All sessions of the lost cluster have ended, but its
    /// clients may believe in their locks until their deadlines: stop them first, or wait for their longest TTL. Stores that
    /// check fences are safe at once
    #[arg(long, value_name = "FILE", conflicts_with = "join")]
    pub restore: Option<PathBuf>,
    /// Read these settings from a TOML file; flags win
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen beyond this machine, although nothing is encrypted and nobody is asked who they are
    #[arg(long)]
    pub insecure: bool,
    /// Say where it serves as JSON
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  conclave serve
  conclave serve --data /var/lib/conclave --listen 127.0.0.1:7500
  conclave serve --config /etc/conclave.toml

Three nodes on one machine, each with a folder of its own; on several machines, each with an address that the others reach:
  conclave serve --data n1
  conclave serve --data n2 --listen 127.0.0.1:7412 --join 127.0.0.1:7411
  conclave serve --data n3 --listen 127.0.0.1:7413 --join 127.0.0.1:7411
  conclave cluster status

A node that joins learns first and votes when it has caught up. Started again with its folder it needs no --join.

From a backup (see: conclave cluster backup --help), once; later starts are without --restore, and other nodes join as usual:
  conclave serve --data new --restore monday.backup

A configuration file has the names of the flags: data = \"/var/lib/conclave\", listen = \"127.0.0.1:7411\",
advertise = \"HOST:PORT\", join = [\"HOST:PORT\"], insecure = false.
Exit codes: 0 stopped by a signal, 1 the disk failed, the folder is in use, the backup cannot be restored, or no cluster takes
the node, 2 bad usage.";

/// What a restore cannot know.
const ADVICE: &str = "all sessions have ended, but clients of the lost cluster may believe in their locks until their deadlines: stop \
                      them, or wait for their longest TTL. Stores that check fences are safe at once";

/// Serves until a signal says stop.
pub fn run(args: &Args) -> Done {
    let config = config(args)?;
    report_to_stderr();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::usage(format!("no runtime: {error}")))?;
    runtime.block_on(async {
        let mut signals = Signals::new(STOP)?;
        let (data, advertised) = (config.data.clone(), config.advertise.clone());
        // To join takes as long as nobody answers.
        let server = tokio::select! {
            started = Server::start(config) => started.map_err(|error| refusal(&error))?,
            _ = signals.next() => return Ok(ExitCode::SUCCESS),
        };
        // It serves, heard or not.
        _ = output::try_print(greeting(args, &server, advertised, &data).as_bytes());
        tokio::select! {
            _ = signals.next() => {
                server.shutdown().await;
                Ok(ExitCode::SUCCESS)
            }
            why = server.failed() => Err(Failure::new(1, "failed", why)),
        }
    })
}

/// What an operator should know goes to stderr, line by line: a torn log that was cut, a segment that stays, a disk that is full.
fn report_to_stderr() {
    let lines =
        tracing_subscriber::fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_target(false);
    let ours = Targets::new().with_default(Level::ERROR).with_target("conclave_service", Level::INFO);
    let reports = tracing_subscriber::registry().with(lines.with_writer(std::io::stderr)).with(ours);
    // Whoever has set up others before this keeps them.
    drop(reports.try_init());
}

/// What a file may say.
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
    let settings = match &args.config {
        None => Settings::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
            let refused = |error: toml::de::Error| format!("{}: {}", path.display(), error.message());
            toml::from_str(&text).map_err(refused)?
        }
    };
    let default = Config::default();
    let config = Config {
        data: args.data.clone().or(settings.data).unwrap_or(default.data),
        listen: args.listen.or(settings.listen).unwrap_or(default.listen),
        advertise: args.advertise.clone().or(settings.advertise),
        join: members(if args.join.is_empty() { &settings.join } else { &args.join })?,
        restore: args.restore.clone(),
        insecure: args.insecure || settings.insecure,
        ..default
    };
    let flags = |message: String| {
        message.replace("say `insecure`", "say --insecure").replace("say `advertise`", "say --advertise")
    };
    config.check().map_err(flags)?;
    Ok(config)
}

/// The addresses of members, each with a port.
fn members(given: &[String]) -> Result<Vec<String>, Failure> {
    if given.is_empty() {
        return Ok(Vec::new());
    }
    let members =
        conclave_api::parse_servers(&given.join(",")).map_err(|error| format!("--join: {error}"))?;
    // Other nodes are only reached by TCP.
    Ok(members.into_iter().map(|member| member.trim_start_matches("tcp:").to_owned()).collect())
}

fn refusal(error: &StartError) -> Failure {
    let code = if matches!(error, StartError::Config(_)) { output::USAGE } else { 1 };
    Failure::new(code, "cannot-serve", error.to_string())
}

fn greeting(args: &Args, server: &Server, advertised: Option<String>, data: &std::path::Path) -> String {
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

/// Which node it is, where there are others.
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
