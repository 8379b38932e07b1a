//! What one client does, over and over, and what is counted: the twin of `conclave bench`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::Result;

/// One connection, and one name that is acquired and released through it.
pub trait Client: Sized + Send + 'static {
    /// Connects and prepares, so that neither is measured.
    fn connect(server: &str, number: u32, workload: Workload) -> impl Future<Output = Result<Self>> + Send;

    /// Puts the request for the name into what is sent next. Nothing to do where the protocol keeps no order of requests:
    /// these are made when their answer is waited for.
    fn ask_acquire(&mut self) {}

    /// Returns when the name is held.
    fn acquired(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// The same for the release.
    fn ask_release(&mut self) {}

    /// Returns when the release is durable.
    fn released(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Asks for the name, and returns when it is held.
    fn acquire(&mut self) -> impl Future<Output = Result<()>> + Send {
        self.ask_acquire();
        self.acquired()
    }

    /// Releases the name, and returns when that is durable.
    fn release(&mut self) -> impl Future<Output = Result<()>> + Send {
        self.ask_release();
        self.released()
    }

    /// Both, for names that others wait for; in one write where the protocol lets.
    fn release_and_acquire(&mut self) -> impl Future<Output = Result<()>> + Send {
        async {
            self.ask_release();
            self.ask_acquire();
            self.released().await?;
            self.acquired().await
        }
    }

    /// Leaves nothing behind.
    fn close(self) -> impl Future<Output = Result<()>> + Send;
}

/// How much of what, and for how long.
#[derive(clap::Args)]
pub struct Load {
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub clients: u32,
    #[arg(long, default_value = "own")]
    pub workload: Workload,
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
}

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Each its own name: nobody waits
    Own,
    /// All of them one name
    Contended,
    /// Each its own name, with as little as can be called a lock. Only ZooKeeper has less than for `own`
    Bare,
}

impl Workload {
    /// The name that client `number` asks for.
    pub fn name(self, number: u32) -> String {
        match self {
            Self::Own => format!("bench-own-{number}"),
            Self::Bare => format!("bench-bare-{number}"),
            Self::Contended => "bench-contended".to_owned(),
        }
    }
}

/// What was measured; the names are those of `conclave bench --json`.
#[derive(Serialize)]
pub struct Figures {
    workload: Workload,
    clients: u32,
    seconds: f64,
    pairs: u64,
    pairs_per_s: f64,
    acquire_p50_us: f64,
    acquire_p99_us: f64,
    acquire_p999_us: f64,
    /// How often a name was granted that was held.
    pub violations: u64,
    /// The most pairs of a client over the fewest; absent if one made none.
    fairness: Option<f64>,
}

/// Connects all clients, lets them run, and counts.
pub async fn measure<C: Client>(servers: &[String], load: &Load) -> Result<Figures> {
    let mut clients = Vec::new();
    for number in 0..load.clients {
        let server = &servers[number as usize % servers.len()];
        clients.push((C::connect(server, number, load.workload).await?, load.workload.name(number)));
    }
    let seen = Arc::new(Mutex::new(Seen { held: HashSet::new(), violations: 0, latencies: histogram() }));
    let until = Instant::now() + Duration::try_from_secs_f64(load.seconds)?;
    let workers: Vec<_> = clients
        .into_iter()
        .map(|(client, name)| {
            let worker = Worker { client, name, workload: load.workload, seen: seen.clone(), until };
            tokio::spawn(worker.run())
        })
        .collect();
    let mut pairs = Vec::new();
    for worker in workers {
        let (client, made) = worker.await??;
        pairs.push(made);
        // Measured is measured: what is not closed ends by itself, and ZooKeeper may hang up before it has answered.
        drop(client.close().await);
    }
    let total: u64 = pairs.iter().sum();
    let (most, fewest) = (pairs.iter().max().copied().unwrap_or(0), pairs.iter().min().copied().unwrap_or(0));
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let quantile = |q: f64| seen.latencies.value_at_quantile(q) as f64 / 1_000.0;
    Ok(Figures {
        workload: load.workload,
        clients: load.clients,
        seconds: load.seconds,
        pairs: total,
        pairs_per_s: (total as f64 / load.seconds).round(),
        acquire_p50_us: quantile(0.5),
        acquire_p99_us: quantile(0.99),
        acquire_p999_us: quantile(0.999),
        violations: seen.violations,
        fairness: (fewest > 0).then(|| most as f64 / fewest as f64),
    })
}

/// Nanoseconds, up to a minute, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order and the digits few")
}

/// What all clients write into.
struct Seen {
    held: HashSet<String>,
    violations: u64,
    latencies: Histogram<u64>,
}

struct Worker<C> {
    client: C,
    name: String,
    workload: Workload,
    seen: Arc<Mutex<Seen>>,
    until: Instant,
}

impl<C: Client> Worker<C> {
    /// Acquires and releases until the time is over; returns how many pairs it made.
    async fn run(mut self) -> Result<(C, u64)> {
        let mut pairs = 0;
        let mut asked = Instant::now();
        self.client.acquire().await?;
        loop {
            self.enter(asked);
            self.leave();
            pairs += 1;
            asked = Instant::now();
            if asked >= self.until {
                self.client.release().await?;
                return Ok((self.client, pairs));
            }
            if self.workload == Workload::Contended {
                self.client.release_and_acquire().await?;
            } else {
                self.client.release().await?;
                asked = Instant::now();
                self.client.acquire().await?;
            }
        }
    }

    /// A grant has arrived.
    fn enter(&self, asked: Instant) {
        let waited = u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.latencies.saturating_record(waited);
        if !seen.held.insert(self.name.clone()) {
            seen.violations += 1;
        }
    }

    /// A release is about to be sent.
    fn leave(&self) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).held.remove(&self.name);
    }
}
