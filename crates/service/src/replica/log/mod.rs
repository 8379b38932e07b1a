//! The durable log: append-only segment files, one writer thread, one sync per batch.
//!
//! **Intuition.** Entries, votes, truncations and purges go through one ordered queue. The writer thread
//! takes all queued changes, writes them as one batch, syncs once, and only then reports them durable. So
//! under load, all waiting changes share the cost of one sync, and completions keep the order of the queue.
//!
//! - `record`: encodes one change, and decides which bytes are a valid record.
//! - `segment`: files of zeros, prepared in advance.
//! - `index`: the state that the records on disk add up to.
//! - `writer`: writes batches, syncs, and changes segments.
//! - `blocks`: writes the end of the log in whole blocks, without the page cache.
//! - `recover`: distinguishes a torn tail from corruption.
//!
//! `docs/log-format.md` specifies the format byte by byte. The log does not depend on consensus: an entry is
//! a term, an index and bytes.
//!
//! **Trap.** After a failed write or sync, the content of the disk is unknown. So the log stops for good, and
//! only a restart reads the disk again.
//!
//! **Bounds.** At most [`Options::queue`] changes wait for the writer. A batch has about
//! [`Options::batch_bytes`] bytes.

mod blocks;
mod index;
mod record;
mod recover;
mod segment;
mod writer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use conclave_node::cluster::LogId;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::disk::Disk;
use super::runtime::{blocking, watch};
use crate::driver::spin;
use index::Index;
use recover::Recovered;
use writer::{SegmentPool, Writer};

/// The vote of a node: the term, the candidate, and whether that candidate won the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// The term of the vote.
    pub term: u64,
    /// The node that got the vote.
    pub node: u64,
    /// `true` if a quorum accepted that node as leader.
    pub committed: bool,
}

/// An entry of the log. The log does not interpret its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The index and term of the entry.
    pub id: LogId,
    /// `true` if the entry changes the membership. Later segments repeat memberships at their head.
    pub membership: bool,
    /// The content, opaque to the log.
    pub data: Arc<[u8]>,
}

/// A change to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Saves a vote.
    Vote(Vote),
    /// Appends entries after the last.
    Append(Vec<Entry>),
    /// Removes the entries from this index on.
    Truncate {
        /// The first index to remove.
        from: u64,
    },
    /// Removes the entries up to this one, which may be after the last.
    Purge(LogId),
    /// Saves how far the log is known to be committed. Written with the next batch, never alone.
    Committed(LogId),
}

/// The time for which the writer polls for the next change before it sleeps.
const SPIN: Duration = Duration::from_micros(100);

/// A callback that the writer thread calls once, when a change is durable or the log has stopped.
pub type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Sizes of the log. The defaults suit a node in production.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Length of a segment in bytes, 4 KiB to 1 GiB. The first segment has at most 1 MiB, so that a new node
    /// starts fast.
    pub segment_bytes: u64,
    /// The size in bytes at which a batch is written even if more changes are queued.
    pub batch_bytes: usize,
    /// The most changes that wait for the writer. Further callers wait for a place in the queue.
    pub queue: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: 32 * 1024 * 1024, batch_bytes: 1024 * 1024, queue: 1024 }
    }
}

impl Options {
    /// Returns the most bytes that the `data` of an entry may have.
    pub fn entry_bytes_max(&self) -> usize {
        // A new segment must hold two memberships and one entry besides its header.
        let quarter = usize::try_from(self.segment_bytes / 4).unwrap_or(usize::MAX).saturating_sub(256);
        quarter.min(record::PAYLOAD_MAX - 16)
    }

    fn first_segment_bytes(&self) -> u64 {
        self.segment_bytes.min(1024 * 1024)
    }

    fn batch_bytes_max(&self) -> usize {
        self.batch_bytes.min(usize::try_from(self.segment_bytes / 4).unwrap_or(usize::MAX))
    }

    /// Reads the log from its folder, and cuts off a torn tail.
    fn recover(&self, disk: &dyn Disk) -> Result<Recovered, OpenError> {
        self.check()?;
        recover::recover(disk, self.first_segment_bytes())
    }

    fn check(&self) -> Result<(), OpenError> {
        if !(4096..=1 << 30).contains(&self.segment_bytes) || self.queue == 0 || self.batch_bytes == 0 {
            let what = format!("these sizes of the log contradict each other: {self:?}");
            return Err(OpenError::Io(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        Ok(())
    }
}

/// The state of the log when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The last vote.
    pub vote: Option<Vote>,
    /// The last entry purged.
    pub purged: Option<LogId>,
    /// The last entry, or the last purged if none is left.
    pub last: Option<LogId>,
    /// The last entry known to be committed.
    pub committed: Option<LogId>,
    /// The last membership in the log, committed or not, even if its entry is purged.
    pub membership: Option<(LogId, Arc<[u8]>)>,
    /// The incomplete batch that recovery cut off.
    pub torn: Option<Torn>,
}

/// A batch that a crash tore and recovery cut off. No part of it was ever reported durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The segment's file.
    pub file: String,
    /// The offset of the batch in bytes.
    pub offset: u64,
    /// The number of bytes cut off.
    pub bytes: u64,
    /// The number of the batch.
    pub batch: u64,
}

impl fmt::Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from offset {}: {} bytes of batch {}", self.file, self.offset, self.bytes, self.batch)
    }
}

/// The reason why a log cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The disk failed.
    Io(io::Error),
    /// Durable data is damaged or missing. A start could break promises made to other nodes.
    Corrupt {
        /// The segment's file.
        file: String,
        /// The offset of the damage in bytes.
        offset: u64,
        /// A description of the damage.
        what: String,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "cannot open the log: {error}"),
            Self::Corrupt { file, offset, what } => {
                write!(f, "the log is corrupt in {file} at offset {offset}: {what}")
            }
        }
    }
}

impl std::error::Error for OpenError {}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// An open log. Dropping it lets the writer finish the queued changes; [`Log::close`] also waits for that.
pub struct Log {
    queue: mpsc::Sender<Message>,
    index: Arc<Mutex<Index>>,
    failure: watch::Receiver<Option<Arc<str>>>,
    entry_bytes_max: usize,
    /// The last entry known to be committed, until a change takes it along into a batch.
    committed: Mutex<Option<LogId>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Log {
    /// Wakes the writer thread before a change is ready. Waking a thread can take as long as preparing the
    /// change, so both happen in parallel.
    pub fn wake_writer(&self) {
        // If the queue is full, the writer is awake. If it is closed, there is no writer.
        drop(self.queue.try_send(Message::Rouse));
    }

    /// Reads the log from its folder, cuts off a torn tail, and starts the writer.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<(Self, State), OpenError> {
        let recovered = options.recover(&*disk)?;
        let (pool, pool_thread) = SegmentPool::spawn(disk, options.segment_bytes)?;
        let (log, state, work) = Self::new(recovered, options, pool);
        let writer_thread = thread::Builder::new().name("log-writer".to_owned()).spawn(move || work.run())?;
        *log.lock_threads() = vec![writer_thread, pool_thread];
        Ok((log, state))
    }

    /// Opens the log as [`Log::open`], with a writer that is a task of the async runtime. Each batch waits
    /// for the future that `pause` returns before it is written, and for another one before it is reported
    /// durable.
    #[cfg(test)]
    pub(crate) fn open_in_runtime<P: Future<Output = ()> + Send + 'static>(
        disk: Arc<dyn Disk>,
        options: Options,
        pause: impl Fn() -> P + Send + 'static,
    ) -> Result<(Self, State), OpenError> {
        let recovered = options.recover(&*disk)?;
        let pool = SegmentPool::inline(disk, options.segment_bytes);
        let (log, state, work) = Self::new(recovered, options, pool);
        tokio::spawn(work.run_in_runtime(pause));
        Ok((log, state))
    }

    /// Returns the log with the work of its writer.
    fn new(recovered: Recovered, options: Options, pool: SegmentPool) -> (Self, State, WriterLoop) {
        let state = state_of(&recovered.index, recovered.torn.clone());
        let (writer, index) = Writer::new(recovered, &options, pool);
        let (queue, inbox) = mpsc::channel(options.queue);
        let failed = watch::Sender::new(None);
        let failure = failed.subscribe();
        let entry_bytes_max = options.entry_bytes_max();
        let (committed, threads) = (Mutex::new(None), Mutex::new(Vec::new()));
        let log = Self { queue, index, failure, entry_bytes_max, committed, threads };
        let drain_bytes = options.batch_bytes_max();
        let work = WriterLoop { writer, inbox, failed, drain_bytes, orders: Vec::new(), open: true };
        (log, state, work)
    }

    /// Queues a change, after waiting for a place in the queue. `done` is called when the change is durable.
    /// On an error the change was not queued, and `done` has got the error.
    ///
    /// [`Change::Committed`] completes at once: it is kept for the next change and does not wake the writer.
    pub async fn submit(&self, change: Change, done: Done) -> io::Result<()> {
        if let Err(error) = self.check_size(&change) {
            done(Err(io::Error::new(error.kind(), error.to_string())));
            return Err(error);
        }
        if let Change::Committed(id) = change {
            let mut hint = self.committed();
            *hint = (*hint).max(Some(id));
            drop(hint);
            done(Ok(()));
            return Ok(());
        }
        let hint = self.committed().take().map(Change::Committed);
        match self.queue.send(Message::Do(Order { hint, change, done: Some(done) })).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendError(refused)) => {
                if let Message::Do(order) = refused {
                    order.finish(Err(self.stopped()));
                }
                Err(self.stopped())
            }
        }
    }

    /// Queues a change and waits until it is durable.
    pub async fn write(&self, change: Change) -> io::Result<()> {
        let (done, durable) = tokio::sync::oneshot::channel();
        self.submit(change, Box::new(move |result| drop(done.send(result)))).await?;
        durable.await.unwrap_or_else(|_| Err(self.stopped()))
    }

    /// Reads the durable entries of `range`, up to about `bytes` bytes of them, but at least one. Blocks on
    /// file reads, so do not call it on a thread of the async runtime.
    pub fn read(&self, range: Range<u64>, bytes: usize) -> io::Result<Vec<Entry>> {
        let plan = lock(&self.index).plan(range.start, range.end, bytes);
        index::fetch(&plan)
    }

    /// Returns the index after the last durable entry. [`Log::read`] finds the entries before it.
    pub fn durable_end(&self) -> u64 {
        lock(&self.index).next.unwrap_or(0)
    }

    /// Returns the bytes of all segments on disk.
    pub fn bytes(&self) -> u64 {
        lock(&self.index).bytes()
    }

    /// Returns the last entry to purge so that at most about `bytes` bytes of the log remain.
    pub fn purge_point(&self, bytes: u64) -> Option<u64> {
        lock(&self.index).purge_point(bytes)
    }

    /// Returns the reason why the log stopped, once it has. The node must then stop too.
    pub(super) fn failure(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.failure.clone()
    }

    /// Writes the queued changes and ends the threads. Later changes are rejected. Blocks, so do not call it
    /// on a thread of the async runtime.
    pub fn close(&self) {
        // An error means that the writer has ended already.
        drop(self.queue.blocking_send(Message::Stop));
        self.join_threads();
    }

    /// Closes the log as [`Log::close`], for a caller in the async runtime.
    pub(super) async fn close_in_runtime(self: Arc<Self>) {
        // An error means that the writer has ended already.
        drop(self.queue.send(Message::Stop).await);
        self.queue.closed().await;
        drop(blocking(move || self.join_threads()).await);
    }

    fn join_threads(&self) {
        for thread in std::mem::take(&mut *self.lock_threads()) {
            // If the writer panicked, its orders were dropped, which sent an error to their callers.
            drop(thread.join());
        }
    }

    fn lock_threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn committed(&self) -> MutexGuard<'_, Option<LogId>> {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_size(&self, change: &Change) -> io::Result<()> {
        let Change::Append(entries) = change else { return Ok(()) };
        match entries.iter().find(|entry| entry.data.len() > self.entry_bytes_max) {
            Some(entry) => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "an entry has {} bytes; at most {} are allowed",
                    entry.data.len(),
                    self.entry_bytes_max
                ),
            )),
            None => Ok(()),
        }
    }

    fn stopped(&self) -> io::Error {
        let why = self.failure.borrow().clone();
        io::Error::other(why.unwrap_or_else(|| "the log is closed".into()).to_string())
    }
}

enum Message {
    Do(Order),
    /// Wakes the writer: a change is about to come.
    Rouse,
    Stop,
}

struct Order {
    /// An earlier [`Change::Committed`], written before the change.
    hint: Option<Change>,
    change: Change,
    done: Option<Done>,
}

impl Order {
    fn finish(mut self, result: io::Result<()>) {
        if let Some(done) = self.done.take() {
            done(result);
        }
    }

    /// Returns about how many bytes the order adds to a batch.
    fn weight(&self) -> usize {
        match &self.change {
            Change::Append(entries) => entries.iter().map(|entry| 40 + entry.data.len()).sum(),
            _ => 40,
        }
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        // Reached without a result only if the writer thread ended: the caller must get an error.
        if let Some(done) = self.done.take() {
            done(Err(io::Error::other("the log writer has stopped")));
        }
    }
}

/// The work of the writer: takes queued changes, writes and syncs them, and reports them durable, until the
/// log is dropped or fails. Orders still in the queue are then dropped with it, which sends an error to their
/// callers.
struct WriterLoop {
    writer: Writer,
    inbox: mpsc::Receiver<Message>,
    failed: watch::Sender<Option<Arc<str>>>,
    drain_bytes: usize,
    /// The changes of the batch.
    orders: Vec<Order>,
    /// `false` after the message to stop, or after a failure.
    open: bool,
}

impl WriterLoop {
    /// Runs on a thread of its own.
    fn run(mut self) {
        while self.open
            && let Some(message) = next_message(&mut self.inbox)
        {
            self.take_queued(message);
            let result = self.commit();
            self.report(result);
        }
    }

    #[cfg(test)]
    async fn run_in_runtime<P: Future<Output = ()> + Send>(mut self, pause: impl Fn() -> P) {
        while self.open
            && let Some(message) = self.inbox.recv().await
        {
            self.take_queued(message);
            pause().await;
            let result = self.commit();
            pause().await;
            self.report(result);
        }
    }

    /// Takes this message and those that are queued, up to the bytes of a batch.
    fn take_queued(&mut self, message: Message) {
        let mut bytes = 0;
        let mut next = Some(message);
        while let Some(message) = next.take() {
            match message {
                Message::Do(order) => {
                    bytes += order.weight();
                    self.orders.push(order);
                }
                Message::Rouse => {}
                Message::Stop => self.open = false,
            }
            if self.open && bytes < self.drain_bytes {
                next = self.inbox.try_recv().ok();
            }
        }
    }

    fn commit(&mut self) -> io::Result<()> {
        let changes = self.orders.iter().flat_map(|order| order.hint.iter().chain([&order.change]));
        self.writer.commit(changes)
    }

    fn report(&mut self, result: io::Result<()>) {
        let Err(error) = result else {
            return self.orders.drain(..).for_each(|order| order.finish(Ok(())));
        };
        let why: Arc<str> = format!("the log has stopped: {error}").into();
        tracing::error!(%error, "the log has stopped");
        self.failed.send_replace(Some(why.clone()));
        // Close the queue before the errors are sent, so that later changes get the same error.
        self.inbox.close();
        let waiting = std::iter::from_fn(|| self.inbox.try_recv().ok()).filter_map(|message| match message {
            Message::Do(order) => Some(order),
            Message::Rouse | Message::Stop => None,
        });
        for order in self.orders.drain(..).chain(waiting) {
            order.finish(Err(io::Error::new(error.kind(), why.to_string())));
        }
        self.open = false;
    }
}

/// Returns the next message, or `None` if the log was dropped. After a batch the next change often arrives
/// within microseconds, and waking a sleeping thread takes longer. So it polls for [`SPIN`] before it
/// sleeps.
fn next_message(inbox: &mut mpsc::Receiver<Message>) -> Option<Message> {
    let until = Instant::now() + SPIN;
    while spin::is_multi_core() && Instant::now() < until {
        match inbox.try_recv() {
            Ok(message) => return Some(message),
            Err(mpsc::error::TryRecvError::Disconnected) => return None,
            Err(mpsc::error::TryRecvError::Empty) => thread::yield_now(),
        }
    }
    inbox.blocking_recv()
}

/// Returns whether a file of this name is a segment of a log.
pub(crate) fn is_segment(name: &str) -> bool {
    segment::number(name).is_some()
}

fn state_of(index: &Index, torn: Option<Torn>) -> State {
    State {
        vote: index.vote,
        purged: index.purged,
        last: index.last,
        committed: index.committed,
        membership: index.memberships.last().cloned(),
        torn,
    }
}

/// Locks the index. If a thread panicked while it held the lock, the index is still consistent.
fn lock(index: &Mutex<Index>) -> MutexGuard<'_, Index> {
    index.lock().unwrap_or_else(PoisonError::into_inner)
}
