//! `conclave bench`: measures throughput, latency and fairness, and checks mutual exclusion.
//!
//! **Rules.** A client is a session on its own connection with at most `--in-flight` outstanding requests.
//! With `--connections`, clients share connections and this limit, but each has at least one outstanding
//! request. In the contended workload a client sends its release and its next acquire in one write.
//!
//! **Exclusion is checked during the measurement.** Every grant enters a table of this process first, and
//! leaves it before its release is sent. A violation is a second grant that conflicts with one in the table,
//! or a fence that is not larger than that of an earlier conflicting grant. Conflicts between several bench
//! processes are not detected.

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

/// Measure the throughput and latency of a server, and check mutual exclusion
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The number of clients
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub clients: u32,
    /// The most requests in flight on a connection; each client has at least one
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub in_flight: u32,
    /// The number of connections that the clients share [default: one per client]
    #[arg(long, value_name = "C", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connections: Option<u32>,
    /// The requests that the clients send
    #[arg(long, value_name = "WORKLOAD", default_value = "own")]
    pub workload: Workload,
    /// The time of the measurement
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// The addresses of the servers.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// The requests that the clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Each client requests its own names, so none waits
    Own,
    /// All clients request one name
    Contended,
    /// All clients request one name; 15 of 16 requests are shared
    Shared,
    /// Each request is `a & (b | c)` over eight names
    Expression,
}

/// The most requests in flight of a session; the bound of the service is a little larger, for releases.
const MAX_OUTSTANDING: u32 = 1_000;

const EXAMPLES: &str = "\
Examples:
  conclave bench --clients 64
  conclave bench --clients 16 --workload contended --seconds 10 --json
  conclave bench --clients 64 --connections 1 --in-flight 64

A server on this machine is reached by its Unix socket, or by TCP with --server tcp:127.0.0.1:7411. A pair is an \
acquire and its release. Fairness is the most pairs of a client, divided by the fewest; 1 is best.
Exit codes: 0 exclusion held, 1 it was violated, 2 bad usage, 69 no server.";

/// The result of a measurement.
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
    /// Absent if a client completed no pair.
    fairness: Option<f64>,
}

/// The pairs that one client has completed.
#[derive(Clone, Default)]
struct Made {
    pairs: u64,
    workers: u32,
}

impl Made {
    /// The pairs per worker: clients that share connections may have different numbers of workers.
    fn pairs_each(&self) -> f64 {
        self.pairs as f64 / f64::from(self.workers)
    }
}

/// Measures and prints the result.
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
            "{clients} clients on {connections} connections are more than {MAX_OUTSTANDING} on each; raise --connections"
        )));
    }
    for _ in 0..connections {
        let client = args.server.connect_with(Client::builder()).await?;
        clients.push(client.clone());
        // The first request opens the session, which is not measured.
        let opening = client.lock("bench/opening").shared().await.map_err(failure)?;
        opening.release().await.map_err(failure)?;
    }
    let judge = Arc::new(Judge::default());
    let latencies = Arc::new(Mutex::new(histogram()));
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(args.seconds);
    // The workers end with this set. A worker that continued would open another session.
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

/// Closes all clients at the same time, because there may be thousands.
async fn close_all(clients: Vec<Client>) {
    let closing: Vec<_> =
        clients.into_iter().map(|client| tokio::spawn(async move { close(&client).await })).collect();
    for closed in closing {
        // The result is complete; a session that is not closed ends with its lease.
        drop(closed.await);
    }
}

/// A histogram of nanoseconds, up to a minute, with three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order and the digits few")
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds")?;
    if seconds > 0.0 && seconds <= 86_400.0 {
        Ok(seconds)
    } else {
        Err("expected more than 0 and at most 86400 seconds".into())
    }
}

fn describe(figures: &Figures, paint: Paint) -> String {
    let violations = match figures.violations {
        0 => paint.good("exclusion held"),
        count => paint.bad(&format!("{count} violations of exclusion")),
    };
    let fairness =
        figures.fairness.map_or("a client completed no pair".to_owned(), |fairness| format!("{fairness:.3}"));
    let way = if figures.by == "unix" {
        " (by the Unix socket of the server; use --server tcp:ADDR for TCP)"
    } else {
        ""
    };
    format!(
        "{} pairs/s{way}\nacquire: p50 {} us, p99 {} us, p99.9 {} us\nfairness: {fairness}\n{violations}\n",
        paint.bold(&output::number(figures.pairs_per_s)),
        output::number(figures.acquire_p50_us),
        output::number(figures.acquire_p99_us),
        output::number(figures.acquire_p999_us),
    )
}
