//! The load: clients that use locks, registers and numbered files until the run ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use conclave_client::{Client, Code, Create, Error, LeaseState};
use conclave_kernel::Prng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cluster::Cluster;
use crate::history::{Event, History, Outcome};

const CLIENTS: usize = 4;
/// The number of lock names and of registers. It is small, so that clients conflict.
pub const FEW: usize = 2;
/// The lease of every client except the first.
const TTL: Duration = Duration::from_secs(2);
/// The lease of the first client. It is shorter than many faults, so it expires. [`LONG_HOLD`] is the range
/// of its long holds, in milliseconds.
const SHORT_TTL: Duration = Duration::from_millis(600);
const LONG_HOLD: (u64, u64) = (300, 1_500);
/// The interval at which a holder checks its guard.
const LOOK: Duration = Duration::from_millis(5);
/// The longest time without progress after all faults are repaired. The test then fails.
const PROGRESS_LIMIT: Duration = Duration::from_secs(60);

pub struct Load {
    stop: Arc<AtomicBool>,
    /// The number of rounds without a failure, for each client.
    done: watch::Receiver<[u64; CLIENTS]>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Creates the files and starts the clients.
    pub async fn start(seed: u64, cluster: &Cluster, history: Arc<History>) -> Self {
        let servers = cluster.addresses().join(",");
        let client = connect(&servers).await;
        for file in 0..FEW {
            client.files().create(&register(file), "new", Create::default()).await.unwrap();
        }
        client.files().create("/once", "", Create::default()).await.unwrap();
        client.close().await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, done) = watch::channel([0; CLIENTS]);
        let sender = Arc::new(sender);
        let clients = (0..CLIENTS).map(|number| {
            let worker = Worker {
                number,
                dice: Prng::stream(seed, 0x10ad, number as u64),
                client: None,
                servers: servers.clone(),
                history: history.clone(),
                next: 0,
            };
            tokio::spawn(worker.run(stop.clone(), sender.clone()))
        });
        Self { stop: stop.clone(), done, clients: clients.collect() }
    }

    /// Waits until every client has completed a whole round that began after this call.
    pub async fn progress(&self) -> Result<(), String> {
        let mut done = self.done.clone();
        let before = *done.borrow();
        let all = |done: &[u64; CLIENTS]| done.iter().zip(before).all(|(now, before)| *now >= before + 2);
        let progress = tokio::time::timeout(PROGRESS_LIMIT, done.wait_for(all)).await;
        match progress {
            Ok(Ok(_)) => Ok(()),
            _ => Err(format!(
                "no progress although everything was healed: {before:?}, then {:?}",
                self.done.borrow()
            )),
        }
    }

    /// Stops the clients. With `gently`, each finishes its round; otherwise they are aborted.
    pub async fn stop(&mut self, gently: bool) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            if gently {
                client.await.unwrap();
            } else {
                client.abort();
            }
        }
    }
}

struct Worker {
    number: usize,
    dice: Prng,
    client: Option<Client>,
    servers: String,
    history: Arc<History>,
    next: u64,
}

impl Worker {
    async fn run(mut self, stop: Arc<AtomicBool>, done: Arc<watch::Sender<[u64; CLIENTS]>>) {
        while !stop.load(Ordering::Relaxed) {
            if self.round().await.is_ok() {
                done.send_modify(|done| done[self.number] += 1);
            } else {
                // The history has the failed operation. Connect again, because the session may have ended.
                self.client = None;
            }
        }
    }

    /// Runs each kind of operation once, in an order that the seed decides.
    async fn round(&mut self) -> Result<(), Error> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let ttl = if self.number == 0 { SHORT_TTL } else { TTL };
                options().ttl(ttl).connect(&self.servers).await?
            }
        };
        self.client = Some(client.clone());
        let first = self.dice.below(4);
        for step in 0..4 {
            // Limit the load, because several clusters share the processors.
            tokio::time::sleep(Duration::from_millis(self.dice.between(1, 15))).await;
            match (first + step) % 4 {
                0 => self.lock(&client).await?,
                1 => self.write(&client).await?,
                2 => self.read(&client).await?,
                _ => self.create(&client).await?,
            }
        }
        Ok(())
    }

    async fn lock(&mut self, client: &Client) -> Result<(), Error> {
        let name = self.few();
        let (expr, limit) = (format!("lock-{name}"), Duration::from_secs(2));
        let granted = match self.dice.below(2) {
            0 => match client.lock(&expr).timeout(limit).await {
                Err(error) if error.code == Code::TimedOut => None,
                granted => Some(granted?),
            },
            // Here the request itself has no limit, so the server may send it an early grant.
            _ => tokio::time::timeout(limit, client.lock(&expr).into_future()).await.ok().transpose()?,
        };
        let Some(guard) = granted else { return Ok(()) };
        let (began, fence) = (Instant::now(), guard.fence().0);
        let is_long = self.number == 0 && self.dice.below(2) == 0;
        let (least, most) = if is_long { LONG_HOLD } else { (0, 10) };
        let until = began + Duration::from_millis(self.dice.between(least, most));
        let (mut believed, mut lost) = (began, false);
        while !lost && believed < until {
            tokio::time::sleep(LOOK.min(until - believed)).await;
            let now = Instant::now();
            lost = guard.state() == LeaseState::Lost;
            // `now` was taken before the check, so the guard was still valid at `now`.
            believed = if lost { believed } else { now };
        }
        self.history.push_until(self.number, began, believed, Event::Held { name, fence, lost });
        guard.release().await
    }

    async fn write(&mut self, client: &Client) -> Result<(), Error> {
        let (file, value, began) = (self.few(), self.value(), Instant::now());
        let written =
            client.files().write(&register(file), value.clone(), None).await.map(|version| version.0);
        let (outcome, result) = split(written);
        self.history.push(self.number, began, Event::Write { file, value, outcome });
        result
    }

    async fn read(&mut self, client: &Client) -> Result<(), Error> {
        let (file, began) = (self.few(), Instant::now());
        let read = client.files().read(&register(file)).await;
        let (outcome, result) = split(read.map(|file| (file.stat.version.0, text(&file.data))));
        self.history.push(self.number, began, Event::Read { file, outcome });
        result
    }

    async fn create(&mut self, client: &Client) -> Result<(), Error> {
        let (value, began) = (self.value(), Instant::now());
        let how = Create { sequential: true, ..Create::default() };
        let (outcome, result) = split(client.files().create("/once/n", value.clone(), how).await);
        self.history.push(self.number, began, Event::Create { value, outcome });
        result
    }

    fn few(&mut self) -> usize {
        usize::try_from(self.dice.below(FEW as u64)).unwrap()
    }

    /// Returns a value that no other operation writes.
    fn value(&mut self) -> String {
        self.next += 1;
        format!("{}-{}", self.number, self.next)
    }
}

/// The final content of the files on one node.
pub struct Finals {
    /// Version and value of each register.
    pub registers: Vec<(u64, String)>,
    /// Path and value of each numbered file.
    pub numbered: Vec<(String, String)>,
}

/// Returns the final content of each node, read from that node.
pub async fn finals(cluster: &Cluster) -> Result<Vec<Finals>, String> {
    let mut all = Vec::new();
    for address in cluster.addresses() {
        let files = connect(&address).await.files();
        let failed = |error: Error| format!("{address}, read at the end: {}", error.message);
        let mut finals = Finals { registers: Vec::new(), numbered: Vec::new() };
        for file in 0..FEW {
            let file = files.read(&register(file)).await.map_err(failed)?;
            finals.registers.push((file.stat.version.0, text(&file.data)));
        }
        for name in files.list("/once").await.map_err(failed)?.names {
            let path = format!("/once/{name}");
            let value = text(&files.read(&path).await.map_err(failed)?.data);
            finals.numbered.push((path, value));
        }
        all.push(finals);
    }
    Ok(all)
}

/// Returns the number of early grants that the nodes report in their metrics.
pub async fn early_grants(cluster: &Cluster) -> io::Result<u64> {
    let mut all = 0;
    for address in cluster.addresses() {
        let mut stream = TcpStream::connect(&address).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: chaos\r\nConnection: close\r\n\r\n").await?;
        let mut metrics = String::new();
        stream.read_to_string(&mut metrics).await?;
        let counted = metrics.lines().find_map(|line| line.strip_prefix("conclave_early_grants_total "));
        all +=
            counted.and_then(|count| count.trim().parse::<u64>().ok()).ok_or(io::ErrorKind::InvalidData)?;
    }
    Ok(all)
}

fn options() -> conclave_client::ClientBuilder {
    Client::builder().ttl(TTL).lock_delay(Duration::ZERO).retry_timeout(Duration::from_secs(5))
}

pub async fn connect(servers: &str) -> Client {
    options().connect(servers).await.unwrap()
}

fn register(file: usize) -> String {
    format!("/register-{file}")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn split<T>(result: Result<T, Error>) -> (Outcome<T>, Result<(), Error>) {
    match result {
        Ok(value) => (Outcome::Done(value), Ok(())),
        Err(error) if error.code.is_definite() => (Outcome::Refused(error.message.clone()), Err(error)),
        Err(error) => (Outcome::Unknown(error.message.clone()), Err(error)),
    }
}
