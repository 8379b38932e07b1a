//! The load that `scripts/bench-others.sh` puts on Redis, ZooKeeper and etcd, in the shape of `conclave bench`: one thread, a client is a
//! connection of its own with one request in flight, one shared histogram, exclusion checked while it is measured. So what a
//! client costs on the cores that it shares with the servers is comparable.
//!
//! A pair of acquire and release is two durable writes in each system. What each does is written at the head of its file.

mod etcd;
mod floor;
mod redis;
mod table;
mod wire;
mod work;
mod zookeeper;

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};
use serde::Serialize;

use self::work::Load;

/// Whatever went wrong ends the measurement.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Parser)]
#[command(about = "The load that scripts/bench-others.sh puts on Redis, ZooKeeper and etcd")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print as many free ports of the loopback address
    Ports { count: usize },
    /// Wait until all these servers are of use, and print which of them leads
    Leader {
        system: System,
        #[arg(value_delimiter = ',', required = true)]
        servers: Vec<String>,
    },
    /// Measure pairs of acquire and release; prints JSON with the names of `conclave bench --json`
    Bench {
        system: System,
        /// Client N goes to server N modulo their number
        #[arg(value_delimiter = ',', required = true)]
        servers: Vec<String>,
        #[command(flatten)]
        load: Load,
    },
    /// Measure what nothing durable can beat: an fdatasync in this folder plus a round trip over loopback
    Floor {
        folder: PathBuf,
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
    },
    /// Turn `{"row", "system"}` followed by figures, over and over, into a table
    Table {
        /// Said above the figures: the machine, the versions
        #[arg(long, default_value = "")]
        about: String,
        #[arg(long)]
        json: bool,
    },
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum System {
    Redis,
    Zookeeper,
    Etcd,
}

/// How long servers may take until they are of use, and to end what was begun: a Java machine on a busy one takes its time.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Ports { count } => ports(count),
        Command::Leader { system, servers } => {
            println!("{}", block_on(leader(system, &servers))?);
            Ok(())
        }
        Command::Bench { system, servers, load } => {
            let limit = Duration::try_from_secs_f64(load.seconds)? + PATIENCE;
            let figures = block_on(async {
                let measured = async {
                    match system {
                        System::Redis => work::measure::<redis::Redis>(&servers, &load).await,
                        System::Zookeeper => work::measure::<zookeeper::Zookeeper>(&servers, &load).await,
                        System::Etcd => work::measure::<etcd::Etcd>(&servers, &load).await,
                    }
                };
                tokio::time::timeout(limit, measured).await.map_err(|_| "it does not come to an end")?
            })?;
            println!("{}", serde_json::to_string(&figures)?);
            if figures.violations > 0 {
                return Err(format!("{} violations of exclusion", figures.violations).into());
            }
            Ok(())
        }
        Command::Floor { folder, seconds } => {
            println!(
                "{}",
                serde_json::to_string(&floor::measure(&folder, Duration::from_secs_f64(seconds))?)?
            );
            Ok(())
        }
        Command::Table { about, json } => table::print(std::io::stdin().lock(), &about, json),
    }
}

fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

/// All are bound before any is let go, so no two are the same. Somebody else may take one before it is used; then a server says so.
fn ports(count: usize) -> Result<()> {
    let bound: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<std::io::Result<_>>()?;
    for listener in &bound {
        println!("{}", listener.local_addr()?.port());
    }
    Ok(())
}

/// Asks until every server answers and one of them leads.
async fn leader(system: System, servers: &[String]) -> Result<String> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let mut leader = Err("none of them leads".into());
        for server in servers {
            let leads = match system {
                System::Redis => redis::leads(server).await,
                System::Zookeeper => zookeeper::leads(server).await,
                System::Etcd => etcd::leads(server).await,
            };
            match leads {
                Ok(true) => leader = leader.or(Ok(server.clone())),
                Ok(false) => {}
                Err(error) => {
                    leader = Err(error);
                    break;
                }
            }
        }
        if leader.is_ok() || Instant::now() > give_up {
            return leader;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
