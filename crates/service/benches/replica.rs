//! One node on the real disk: entries per second and latency, compared with a bare fdatasync in the same run.
//! It runs with 1, 64 and 256 proposers, each with one command in flight.
//!
//! `cargo bench -p conclave-service --bench replica`

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use conclave_service::replica::disk::{Disk, RealDisk};
use conclave_service::replica::log::LogId;
use conclave_service::replica::{Identity, Machine, Member, NodeId, Options, Replica, Status, Transport};
use futures_util::future::BoxFuture;

const COMMAND_BYTES: usize = 100;
const TIME: Duration = Duration::from_secs(3);

fn main() {
    // `cargo test --benches` only checks that the program starts.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let folder = Folder::new();
    println!("{:>12} {:>12} {:>9} {:>9} {:>9}", "proposers", "entries/s", "p50 us", "p99 us", "p999 us");
    print("fdatasync", bare_syncs(&folder.0));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(folder.0.join("node")).expect("the folder opens"));
        let identity = Identity::new_cluster(&*disk).expect("an identity");
        let opened = Replica::open(disk, identity, Arc::new(Nobody), Counter(0), Options::default()).await;
        let (replica, mut deliveries) = opened.expect("the replica opens");
        tokio::spawn(async move { while deliveries.recv().await.is_some() {} });
        let member = Member { address: "here".to_owned() };
        replica.bootstrap(BTreeMap::from([(identity.node, member)])).await.expect("a cluster of one");
        replica.wait_for(Status::leads).await.expect("it leads");
        for proposers in [1, 64, 256] {
            print(&proposers.to_string(), propose(&replica, proposers).await);
        }
        replica.shutdown().await;
    });
    print("fdatasync", bare_syncs(&folder.0));
}

/// Returns the time that each of the proposers waited for each of its commands.
async fn propose(replica: &Replica<Counter>, proposers: usize) -> Vec<Duration> {
    let end = Instant::now() + TIME;
    let tasks: Vec<_> = (0..proposers)
        .map(|_| {
            let replica = replica.clone();
            tokio::spawn(async move {
                let mut times = Vec::new();
                while Instant::now() < end {
                    let start = Instant::now();
                    replica.propose(vec![7; COMMAND_BYTES]).await.expect("applied");
                    times.push(start.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.expect("the task ends"));
    }
    times
}

/// Returns the times of small durable writes to a file of zeros, without a replica.
fn bare_syncs(folder: &Path) -> Vec<Duration> {
    let disk = RealDisk::open(folder.join("bare")).expect("the folder opens");
    let file = disk.create("zeros").expect("a file can be made");
    file.write_at(&vec![0; 8 * 1024 * 1024], 0).expect("zeros are written");
    file.sync().expect("zeros are synced");
    let end = Instant::now() + TIME / 3;
    let mut times = Vec::new();
    let mut at = 0;
    while Instant::now() < end {
        let start = Instant::now();
        file.write_at(&[7; COMMAND_BYTES + 32], at).expect("written");
        file.sync().expect("synced");
        times.push(start.elapsed());
        at = (at + 136) % (8 * 1024 * 1024 - 200);
    }
    times
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_micros();
    let seconds = if what == "fdatasync" { TIME / 3 } else { TIME }.as_secs_f64();
    let rate = times.len() as f64 / seconds;
    println!("{what:>12} {rate:>12.0} {:>9} {:>9} {:>9}", at(0.5), at(0.99), at(0.999));
}

struct Counter(u64);

impl Machine for Counter {
    type Command = Vec<u8>;
    type Effect = u64;

    fn apply(&mut self, _: LogId, _: Vec<u8>) -> Vec<u64> {
        self.0 += 1;
        vec![self.0]
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    fn restore(bytes: &[u8]) -> Result<Self, String> {
        bytes.try_into().map(|bytes| Self(u64::from_le_bytes(bytes))).map_err(|_| "not a count".to_owned())
    }
}

struct Nobody;

impl Transport for Nobody {
    fn call(&self, _: NodeId, _: &Member, _: Vec<u8>) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
    }
}

/// A folder in the target folder, which is on a real disk. The temporary folder may be in memory.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("replica-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the folder can be made");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
