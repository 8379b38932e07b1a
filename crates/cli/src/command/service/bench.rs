//! `conclave bench`: how fast, how fair, and whether exclusion held meanwhile.
//!
//! **Rules.** A client is a session on its own connection with at most `--in-flight` requests outstanding; `--connections` lets
//! clients share both, and then each has at least one outstanding. In the contended workload a client sends its release and its
//! next acquire in one write.
//!
//! **Exclusion is checked while it is measured**: every grant is entered in a table of this process before anything else is
//! done with it, and taken out before its release is sent. Two at a time that exclude each other, or a fence that is not larger than
//! that of the grant it conflicts with, is a violation. What several bench processes do to each other is not seen.

mod judge;
mod work;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use conclave_client::Client;
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::task::JoinSet;

use self::judge::Judge;
use self::work::Worker;
use super::signals::{STOP, Signals};
use super::{ServerArgs, block_on, close, failure};
use crate::output::{self, Done, Failure, Paint, VIOLATED};

/// Measure a server: pairs of acquire and release, and the time to acquire.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// How many clients
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub clients: u32,
    /// How many requests are outstanding on a connection, at most; at least one of each client
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub in_flight: u32,
    /// How many connections they share [default: one a client]
    #[arg(long, value_name = "C", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connections: Option<u32>,
    /// What they do
    #[arg(long, value_name = "WORKLOAD", default_value = "own")]
    pub workload: Workload,
    /// How long
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// Where the servers are.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Each its own names: nobody waits
    Own,
    /// All of them one name
    Contended,
    /// All of them one name, fifteen times of sixteen shared
    Shared,
    /// `a & (b | c)` of eight names
    Expression,
}

/// What a session may have outstanding, with some to spare for releases.
const MAX_OUTSTANDING: u32 = 1_000;

const EXAMPLES: &str = "\
Examples:
  conclave bench --clients 64
  conclave bench --clients 16 --workload contended --seconds 10 --json
  conclave bench --clients 64 --connections 1 --in-flight 64

A server on this machine is reached by its Unix socket; with --server tcp:127.0.0.1:7411 by TCP.
Fairness is the most pairs of a client over the fewest: 1 is best.
Exit codes: 0 exclusion held, 1 it was violated, 2 bad usage, 69 no server.";

/// What was measured.
#[derive(Serialize)]
struct Figures {
    workload: Workload,
    clients: u32,
    in_flight: u32,
    connections: u32,
    /// `unix` or `tcp`.
    by: &'static str,
    seconds: f64,
    pairs: u64,
    pairs_per_s: f64,
    acquire_p50_us: f64,
    acquire_p99_us: f64,
    acquire_p999_us: f64,
    violations: u64,
    /// Absent if a client did not get a single pair.
    fairness: Option<f64>,
}

/// What one client has made.
#[derive(Clone, Default)]
struct Made {
    pairs: u64,
    workers: u32,
}

impl Made {
    /// Where clients share connections, one may have a request more outstanding than another.
    fn pairs_each(&self) -> f64 {
        self.pairs as f64 / f64::from(self.workers)
    }
}

/// Measures.
pub fn run(args: &Args) -> Done {
    let figures = block_on(async {
        let mut signals = Signals::new(STOP)?;
        let mut clients = Vec::new();
        let measured = signals.or_stop(measure(args, &mut clients)).await;
        close_all(clients).await;
        measured
    })?;
    if args.json {
        output::print_json(&figures)?;
    } else {
        output::print(&describe(&figures, Paint::stdout()));
    }
    Ok(if figures.violations == 0 { ExitCode::SUCCESS } else { ExitCode::from(VIOLATED) })
}

async fn measure(args: &Args, clients: &mut Vec<Client>) -> Result<Figures, Failure> {
    let connections = args.connections.unwrap_or(args.clients).min(args.clients);
    let workers = (connections * args.in_flight).max(args.clients);
    if workers.div_ceil(connections) > MAX_OUTSTANDING {
        let clients = args.clients;
        return Err(Failure::usage(format!(
            "{clients} clients on {connections} connections: at most {MAX_OUTSTANDING} on each; say --connections"
        )));
    }
    for _ in 0..connections {
        let client = args.server.connect_with(Client::options()).await?;
        clients.push(client.clone());
        // Opens the session, so that this is not measured.
        let opening = client.lock("bench/opening:shared").await.map_err(failure)?;
        opening.release().await.map_err(failure)?;
    }
    let judge = Arc::new(Judge::default());
    let latencies = Arc::new(Mutex::new(histogram()));
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(args.seconds);
    // Who stops measuring stops them: one that went on would open another session.
    let mut working = JoinSet::new();
    for worker in 0..workers {
        let (number, slot) = (worker % args.clients, worker / args.clients);
        let client = clients[number as usize % clients.len()].clone();
        let (judge, latencies) = (judge.clone(), latencies.clone());
        let work = Worker { client, number, slot, judge, latencies, until }.run(args.workload);
        working.spawn(async move { (number, work.await) });
    }
    let mut made = vec![Made::default(); args.clients as usize];
    while let Some(worked) = working.join_next().await {
        let (number, pairs) = worked.map_err(|error| Failure::usage(error.to_string()))?;
        let made = &mut made[number as usize];
        made.pairs += pairs.map_err(failure)?;
        made.workers += 1;
    }
    let total: u64 = made.iter().map(|made| made.pairs).sum();
    let (fewest, most) = made
        .iter()
        .map(Made::pairs_each)
        .fold((f64::MAX, 0.0), |(fewest, most), each| (each.min(fewest), each.max(most)));
    let latencies = latencies.lock().unwrap_or_else(PoisonError::into_inner);
    let quantile = |q: f64| latencies.value_at_quantile(q) as f64 / 1_000.0;
    Ok(Figures {
        workload: args.workload,
        clients: args.clients,
        in_flight: args.in_flight,
        connections,
        by: if clients.iter().all(Client::is_local) { "unix" } else { "tcp" },
        seconds: args.seconds,
        pairs: total,
        pairs_per_s: (total as f64 / args.seconds).round(),
        acquire_p50_us: quantile(0.5),
        acquire_p99_us: quantile(0.99),
        acquire_p999_us: quantile(0.999),
        violations: judge.violations(),
        fairness: (fewest > 0.0).then(|| most / fewest),
    })
}

/// All at once: there may be thousands.
async fn close_all(clients: Vec<Client>) {
    let closing: Vec<_> =
        clients.into_iter().map(|client| tokio::spawn(async move { close(&client).await })).collect();
    for closed in closing {
        // Measured is measured; a session that is not closed ends by itself.
        drop(closed.await);
    }
}

/// Nanoseconds, up to a minute, to three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order and the digits few")
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds")?;
    if seconds > 0.0 && seconds <= 86_400.0 { Ok(seconds) } else { Err("expected up to a day".into()) }
}

fn describe(figures: &Figures, paint: Paint) -> String {
    let violations = match figures.violations {
        0 => paint.good("exclusion held"),
        count => paint.bad(&format!("{count} violations of exclusion")),
    };
    let fairness =
        figures.fairness.map_or("somebody starved".to_owned(), |fairness| format!("{fairness:.3}"));
    let way =
        if figures.by == "unix" { " (by the server's Unix socket; --server tcp:ADDR by TCP)" } else { "" };
    format!(
        "{} pairs/s{way}\nacquire: p50 {} us, p99 {} us, p99.9 {} us\nfairness: {fairness}\n{violations}\n",
        paint.bold(&output::number(figures.pairs_per_s)),
        output::number(figures.acquire_p50_us),
        output::number(figures.acquire_p99_us),
        output::number(figures.acquire_p999_us),
    )
}
