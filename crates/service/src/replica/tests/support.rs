//! Helpers for several tests: temporary folders, a simple machine, and nodes in one process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};

use super::super::disk::{Disk, File, SimDisk, SimHandle};
use super::super::log::{self, LogId};
use super::super::{
    Deliveries, Delivery, Identity, Machine, Member, NodeId, Options, ProposeError, Replica, Status,
    Transport,
};
use super::deterministic::seeded;

/// Runs a test with a time limit, so that a hang fails the test. No assertion depends on the time.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    let limited = async { tokio::time::timeout(Duration::from_secs(120), test).await.expect("it hangs") };
    runtime.expect("a runtime").block_on(limited)
}

/// A folder that is removed when the test ends.
pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("conclave-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("the temporary folder can be made");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// The operation that a [`Hooked`] disk is about to perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Create,
    Write,
    Sync,
    Remove,
}

type Hook = Arc<dyn Fn(Act, &str) -> io::Result<()> + Send + Sync>;

/// A disk that calls a hook before it creates a file, writes to it, syncs or removes it. The hook may return
/// an error or wait. After a rename, the hook gets the first name of the file.
pub(crate) struct Hooked {
    disk: SimHandle,
    hook: Hook,
}

impl Hooked {
    pub(crate) fn new(
        disk: SimHandle,
        hook: impl Fn(Act, &str) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self { disk, hook: Arc::new(hook) }
    }

    fn file(&self, name: &str, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(HookedFile { name: name.to_owned(), file, hook: self.hook.clone() })
    }
}

impl Disk for Hooked {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        (self.hook)(Act::Create, name)?;
        Ok(self.file(name, self.disk.create(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.file(name, self.disk.open(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        (self.hook)(Act::Remove, name)?;
        self.disk.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_names()
    }

    fn salt(&self) -> io::Result<u64> {
        self.disk.salt()
    }
}

struct HookedFile {
    name: String,
    file: Arc<dyn File>,
    hook: Hook,
}

impl File for HookedFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        (self.hook)(Act::Write, &self.name)?;
        seeded::note(|| format!("at {offset}: {}", seeded::mark(bytes)));
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        (self.hook)(Act::Sync, &self.name)?;
        self.file.sync()
    }
}

/// A gate: [`Gate::pass`] waits while it is closed.
#[derive(Default)]
pub(crate) struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn close(&self) {
        *self.closed.lock().unwrap() = true;
    }

    pub(crate) fn open(&self) {
        *self.closed.lock().unwrap() = false;
        self.opened.notify_all();
    }

    pub(crate) fn pass(&self) {
        drop(self.opened.wait_while(self.closed.lock().unwrap(), |closed| *closed).unwrap());
    }
}

/// A machine that records numbers in the order in which it first saw them. A number seen again changes
/// nothing. The effect of `EARLY + n` may be sent early once `n` numbers are durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notebook {
    pub(crate) seen: Vec<u64>,
}

pub(crate) const EARLY: u64 = 1 << 32;

/// A snapshot with this number is restored only after [`SlowRestore::finish`].
pub(crate) const SLOW: u64 = u64::MAX;

/// The restore of a snapshot that contains [`SLOW`]. One test uses it.
pub(crate) struct SlowRestore {
    begun: Notify,
    may_finish: Mutex<bool>,
    finished: Condvar,
}

pub(crate) static SLOW_RESTORE: SlowRestore =
    SlowRestore { begun: Notify::const_new(), may_finish: Mutex::new(false), finished: Condvar::new() };

impl SlowRestore {
    pub(crate) async fn begun(&self) {
        self.begun.notified().await;
    }

    pub(crate) fn finish(&self) {
        *self.may_finish.lock().unwrap() = true;
        self.finished.notify_all();
    }

    /// The time limit makes the test fail instead of hang.
    fn wait(&self) -> Result<(), String> {
        self.begun.notify_one();
        let may_finish = self.may_finish.lock().unwrap();
        let waited = self.finished.wait_timeout_while(may_finish, Duration::from_secs(20), |may| !*may);
        match waited.unwrap().1.timed_out() {
            true => Err("the replica did nothing else during the restore".to_owned()),
            false => Ok(()),
        }
    }
}

impl Machine for Notebook {
    type Command = Vec<u64>;
    /// The number, and how many numbers were seen including it.
    type Effect = (u64, usize);

    fn apply(&mut self, _id: LogId, numbers: Vec<u64>) -> Vec<(u64, usize)> {
        let mut effects = Vec::new();
        for number in numbers {
            if !self.seen.contains(&number) {
                self.seen.push(number);
                effects.push((number, self.seen.len()));
            }
        }
        effects
    }

    fn commands(&self) -> u64 {
        self.seen.len() as u64
    }

    fn early(&self, durable: u64, effects: &mut Vec<(u64, usize)>) -> Vec<(u64, usize)> {
        effects.extract_if(.., |(number, _)| (EARLY..=EARLY + durable).contains(number)).collect()
    }

    fn snapshot(&self) -> Vec<u8> {
        self.seen.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn restore(bytes: &[u8]) -> Result<Self, String> {
        let numbers = bytes.chunks(8).map(|chunk| chunk.try_into().map(u64::from_le_bytes));
        let seen: Vec<u64> = numbers.collect::<Result<_, _>>().map_err(|_| "not a notebook".to_owned())?;
        if seen.contains(&SLOW) {
            SLOW_RESTORE.wait()?;
        }
        Ok(Self { seen })
    }
}

/// Nodes in one process, on a simulated network that can be cut.
pub(crate) struct Cluster {
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) wires: Arc<Wires>,
    options: Options,
}

pub(crate) struct Node {
    pub(crate) disk: SimDisk,
    pub(crate) replica: Replica<Notebook>,
    pub(crate) heard: Heard,
}

/// The deliveries to the frontends of a node so far.
pub(crate) type Heard = Arc<Mutex<Vec<Delivery<(u64, usize)>>>>;

/// Options with times so short that an election takes less than a second, and sizes so small that segments
/// change.
pub(crate) fn quick() -> Options {
    Options {
        log: log::Options { segment_bytes: 16 * 1024, batch_bytes: 4096, queue: 64 },
        heartbeat: Duration::from_millis(50),
        election: (Duration::from_millis(250), Duration::from_millis(500)),
        ..Options::default()
    }
}

/// Election times so long that no node starts an election during a test, even on a slow machine.
pub(crate) const NO_ELECTIONS: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(400));

impl Cluster {
    /// Starts `count` nodes, all voters, with a leader.
    pub(crate) async fn of(count: u64, options: Options) -> Self {
        let wires = Arc::new(Wires::default());
        let mut cluster = Self { nodes: BTreeMap::new(), wires, options };
        for node in 1..=count {
            cluster.start(node, SimDisk::new(node)).await;
        }
        let first = cluster.nodes[&1].replica.clone();
        first.bootstrap(BTreeMap::from([(1, member(1))])).await.unwrap();
        first.wait_for(Status::leads).await.unwrap();
        for node in 2..=count {
            first.add_learner(node, member(node)).await.unwrap();
        }
        let voters: BTreeSet<NodeId> = (1..=count).collect();
        first.set_voters(voters.clone()).await.unwrap();
        // A majority has the membership by now. A node without it would never start an election if it were
        // cut off first.
        for node in cluster.nodes.values() {
            node.replica.wait_for(|status| status.membership.voters == [voters.clone()]).await.unwrap();
        }
        cluster
    }

    /// Starts a node with the contents of its disk.
    pub(crate) async fn start(&mut self, node: NodeId, disk: SimDisk) {
        let identity = Identity { cluster: 7, node };
        let wire = Arc::new(Wire { from: node, wires: self.wires.clone() });
        let handle = Arc::new(disk.handle());
        let opened = Replica::open(handle, identity, wire, Notebook::default(), self.options.clone()).await;
        let (replica, deliveries) = opened.unwrap();
        let heard = listen(deliveries);
        self.wires.plug(node, Some(replica.clone()));
        self.nodes.insert(node, Node { disk, replica, heard });
    }

    /// Simulates a power failure of the node's machine. Returns its disk.
    pub(crate) async fn kill(&mut self, node: NodeId) -> SimDisk {
        let dead = self.nodes.remove(&node).unwrap();
        self.wires.plug(node, None);
        dead.disk.crash();
        dead.replica.shutdown().await;
        dead.disk
    }

    /// Waits until one of these nodes leads, and returns it.
    pub(crate) async fn leader(&self, among: &[NodeId]) -> NodeId {
        let waits = among.iter().map(|node| {
            let replica = self.nodes[node].replica.clone();
            Box::pin(async move { replica.wait_for(Status::leads).await.unwrap().node })
        });
        futures_util::future::select_all(waits).await.0
    }

    /// Waits until all nodes have applied this entry, checks that their states are equal, and returns the
    /// state.
    pub(crate) async fn agreed(&self, index: u64) -> Notebook {
        let mut states = Vec::new();
        for node in self.nodes.values() {
            node.replica.applied(index).await;
            states.push(node.replica.peek(Notebook::clone));
        }
        assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "the nodes disagree: {states:?}");
        states.swap_remove(0)
    }
}

/// Proposes a number until it is known to be applied. It may be proposed twice.
pub(crate) async fn write(replica: &Replica<Notebook>, number: u64) -> LogId {
    loop {
        let before = replica.status();
        match replica.propose(vec![number]).await {
            Ok(id) => return id,
            Err(ProposeError::Retry | ProposeError::Unknown) => {
                replica.wait_for(|status| *status != before).await.expect("the node runs");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

pub(crate) fn member(node: NodeId) -> Member {
    Member { address: format!("node-{node}") }
}

fn listen(mut deliveries: Deliveries<Notebook>) -> Heard {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let to = heard.clone();
    tokio::spawn(async move {
        while let Some(batch) = deliveries.recv().await {
            to.lock().unwrap().extend(batch);
        }
    });
    heard
}

/// All connections between the nodes.
#[derive(Default)]
pub(crate) struct Wires {
    state: Mutex<WireState>,
    /// The number of calls of each node that failed.
    pub(crate) in_vain: watch::Sender<BTreeMap<NodeId, u64>>,
}

#[derive(Default)]
struct WireState {
    replicas: BTreeMap<NodeId, Replica<Notebook>>,
    cut_off: BTreeSet<NodeId>,
}

impl Wires {
    /// Cuts a node off from all others, or connects it again.
    pub(crate) fn cut_off(&self, node: NodeId, cut: bool) {
        let mut state = self.state.lock().unwrap();
        if cut {
            state.cut_off.insert(node)
        } else {
            state.cut_off.remove(&node)
        };
    }

    fn plug(&self, node: NodeId, replica: Option<Replica<Notebook>>) {
        let mut state = self.state.lock().unwrap();
        match replica {
            Some(replica) => state.replicas.insert(node, replica),
            None => state.replicas.remove(&node),
        };
    }

    fn between(&self, from: NodeId, to: NodeId) -> io::Result<Replica<Notebook>> {
        let state = self.state.lock().unwrap();
        let cut = state.cut_off.contains(&from) || state.cut_off.contains(&to);
        let replica = state.replicas.get(&to).filter(|_| !cut).cloned();
        if replica.is_none() {
            self.in_vain.send_modify(|calls| *calls.entry(from).or_default() += 1);
        }
        replica.ok_or_else(|| io::ErrorKind::ConnectionRefused.into())
    }
}

/// The connections of one node.
struct Wire {
    from: NodeId,
    wires: Arc<Wires>,
}

impl Transport for Wire {
    fn call(&self, to: NodeId, member: &Member, request: Vec<u8>) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        assert_eq!(*member, super::support::member(to), "the address of another node");
        let (from, wires) = (self.from, self.wires.clone());
        Box::pin(async move {
            let answer = wires.between(from, to)?.answer(&request).await;
            // The connection may be cut while the reply is on its way.
            wires.between(from, to)?;
            Ok(answer)
        })
    }
}
