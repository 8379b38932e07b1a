//! The durable log: append-only segments of our own, one writer thread, one sync a batch.
//!
//! Everything that must survive goes through one ordered queue: entries, votes, truncations, purges. The
//! writer thread drains what has gathered, writes it as one batch, syncs once, and only then acknowledges. So
//! under load the cost of a sync is shared by all who wait, and nothing is ever acknowledged out of order.
//!
//! - `record`: one change as bytes, and when bytes are believed.
//! - `segment`: files of zeros, made ahead of need.
//! - `index`: what the records on disk amount to.
//! - `writer`: batches, syncs, the change of segments.
//! - `blocks`: the end of the log in whole blocks, past the page cache.
//! - `recover`: torn tail or corruption.
//!
//! The format is drawn byte by byte in `docs/log-format.md`. The log knows nothing of consensus: an entry is a
//! term, an index and bytes. A failed write or sync stops it for good: what is on the disk is then unknown,
//! and only a restart, which reads it, can tell.

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
use tokio::sync::{mpsc, watch};

use super::disk::Disk;
use crate::driver::spin;
use index::Index;
use writer::{SegmentPool, Writer};

/// What a node has promised: for whom it voted in which term, and whether that node won.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// The term voted in.
    pub term: u64,
    /// The node voted for.
    pub node: u64,
    /// Whether a quorum accepted that node as leader.
    pub committed: bool,
}

/// An entry of the log: what it says is for others to know, except whether it changes the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which entry.
    pub id: LogId,
    /// Memberships are repeated at the head of later segments.
    pub membership: bool,
    /// What it says.
    pub data: Arc<[u8]>,
}

/// A change to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Remember a vote.
    Vote(Vote),
    /// Add entries behind the last.
    Append(Vec<Entry>),
    /// Drop the entries from this index on.
    Truncate {
        /// The first index to drop.
        from: u64,
    },
    /// Drop the entries up to this one, which may lie beyond the last.
    Purge(LogId),
    /// Remember how far the log is known to be committed. Written with the next batch, never on its own.
    Committed(LogId),
}

/// How long the writer looks for more before it sleeps.
const AWAKE: Duration = Duration::from_micros(100);

/// Called once, on the writer thread: a change is durable, or the log has stopped.
pub type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Sizes. The defaults suit a node in production.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Length of a segment, 4 KiB to 1 GiB. The first is at most 1 MiB, so that a fresh node starts at once.
    pub segment_bytes: u64,
    /// A batch is written when it has this size, at the latest.
    pub batch_bytes: usize,
    /// Changes that may wait for the writer; who comes then waits for room.
    pub queue: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: 32 * 1024 * 1024, batch_bytes: 1024 * 1024, queue: 1024 }
    }
}

impl Options {
    /// The longest `data` an entry may have.
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

    fn check(&self) -> Result<(), OpenError> {
        if !(4096..=1 << 30).contains(&self.segment_bytes) || self.queue == 0 || self.batch_bytes == 0 {
            let what = format!("these sizes of the log contradict each other: {self:?}");
            return Err(OpenError::Io(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        Ok(())
    }
}

/// What the log held when it was opened.
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
    /// The last membership that stands in the log, committed or not, wherever its entry is now.
    pub membership: Option<(LogId, Arc<[u8]>)>,
    /// What was cut off.
    pub torn: Option<Torn>,
}

/// A batch that a crash tore, and that was cut off. Nothing in it was ever acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The segment's file.
    pub file: String,
    /// Where the batch began.
    pub offset: u64,
    /// How much was cut.
    pub bytes: u64,
    /// The batch's number.
    pub batch: u64,
}

impl fmt::Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from offset {}: {} bytes of batch {}", self.file, self.offset, self.bytes, self.batch)
    }
}

/// Why a log cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The disk refuses.
    Io(io::Error),
    /// What was once durable is damaged or missing: starting could break promises made to other nodes.
    Corrupt {
        /// The segment's file.
        file: String,
        /// Where.
        offset: u64,
        /// What is wrong there.
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

/// The log, open. Dropping it lets the writer finish what is queued; [`Log::close`] also waits for that.
pub struct Log {
    queue: mpsc::Sender<Message>,
    index: Arc<Mutex<Index>>,
    failure: watch::Receiver<Option<Arc<str>>>,
    entry_bytes_max: usize,
    /// How far the log is known to be committed, until a change comes that this can ride along with.
    committed: Mutex<Option<LogId>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Log {
    /// Says that a change is about to come. A writer that sleeps takes as long to wake as some take to get ready: it wakes
    /// now, and looks for it.
    pub fn wake_writer(&self) {
        // If the queue is full it is awake, and if it is closed there is nobody to wake.
        drop(self.queue.try_send(Message::Rouse));
    }

    /// Reads the log from its folder, cuts a torn tail, and starts the writer.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<(Self, State), OpenError> {
        options.check()?;
        let recovered = recover::recover(&*disk, options.first_segment_bytes())?;
        let state = state_of(&recovered.index, recovered.torn.clone());
        let (keeper, keeper_thread) = SegmentPool::spawn(disk, options.segment_bytes)?;
        let (writer, index) = Writer::new(recovered, &options, keeper);
        let (queue, inbox) = mpsc::channel(options.queue);
        let (failed, failure) = watch::channel(None);
        let drain_bytes = options.batch_bytes_max();
        let writer_thread = thread::Builder::new()
            .name("log-writer".to_owned())
            .spawn(move || write_until_closed(writer, inbox, &failed, drain_bytes))?;
        let threads = Mutex::new(vec![writer_thread, keeper_thread]);
        let entry_bytes_max = options.entry_bytes_max();
        let committed = Mutex::new(None);
        Ok((Self { queue, index, failure, entry_bytes_max, committed, threads }, state))
    }

    /// Queues a change, waiting for room; `done` is called when it is durable. An error means that it was not
    /// queued, and `done` has been called with it. [`Change::Committed`] is done at once: it is kept for the next change,
    /// and does not wake the writer.
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

    /// Reads durable entries: those of `range` that are held, up to about `bytes` of them, but at least one. Reads
    /// files, so not for a thread of the async runtime.
    pub fn read(&self, range: Range<u64>, bytes: usize) -> io::Result<Vec<Entry>> {
        let plan = lock(&self.index).plan(range.start, range.end, bytes);
        index::fetch(&plan)
    }

    /// The index behind the last durable entry: what is below, [`Log::read`] finds.
    pub fn durable_end(&self) -> u64 {
        lock(&self.index).next.unwrap_or(0)
    }

    /// The bytes that it has on disk.
    pub fn bytes(&self) -> u64 {
        lock(&self.index).bytes()
    }

    /// The entry up to which it must be purged so that it has at most about so many.
    pub fn purge_point(&self, bytes: u64) -> Option<u64> {
        lock(&self.index).purge_point(bytes)
    }

    /// Why the log stopped, once it has: a node must then stop too.
    pub fn failure(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.failure.clone()
    }

    /// Writes what is queued and ends the threads; what comes later is refused. Blocks, so not for a thread of
    /// the async runtime.
    pub fn close(&self) {
        // If the writer has ended already, there is nothing to tell it.
        drop(self.queue.blocking_send(Message::Stop));
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // Whoever waited for a thread that panicked was told so when its orders were dropped.
            drop(thread.join());
        }
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
    /// More is about to come.
    Rouse,
    Stop,
}

struct Order {
    /// What rides along; before the change, as it was said before it.
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

    /// About how many bytes it adds to a batch.
    fn weight(&self) -> usize {
        match &self.change {
            Change::Append(entries) => entries.iter().map(|entry| 40 + entry.data.len()).sum(),
            _ => 40,
        }
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        // Only if the writer died: whoever waits must hear of it.
        if let Some(done) = self.done.take() {
            done(Err(io::Error::other("the log writer has stopped")));
        }
    }
}

/// The writer thread: drain, commit, acknowledge, until the log is dropped or something fails.
fn write_until_closed(
    mut writer: Writer,
    mut inbox: mpsc::Receiver<Message>,
    failed: &watch::Sender<Option<Arc<str>>>,
    drain_bytes: usize,
) {
    let mut orders: Vec<Order> = Vec::new();
    let mut open = true;
    while open && let Some(message) = next_message(&mut inbox) {
        let mut bytes = 0;
        let mut next = Some(message);
        while let Some(message) = next.take() {
            match message {
                Message::Do(order) => {
                    bytes += order.weight();
                    orders.push(order);
                }
                Message::Rouse => {}
                Message::Stop => open = false,
            }
            if open && bytes < drain_bytes {
                next = inbox.try_recv().ok();
            }
        }
        match writer.commit(orders.iter().flat_map(|order| order.hint.iter().chain([&order.change]))) {
            Ok(()) => orders.drain(..).for_each(|order| order.finish(Ok(()))),
            Err(error) => {
                let why: Arc<str> = format!("the log has stopped: {error}").into();
                tracing::error!(%error, "the log has stopped");
                failed.send_replace(Some(why.clone()));
                // Closed before anybody is told, so that whoever comes then hears the same.
                inbox.close();
                let waiting =
                    std::iter::from_fn(|| inbox.try_recv().ok()).filter_map(|message| match message {
                        Message::Do(order) => Some(order),
                        Message::Rouse | Message::Stop => None,
                    });
                for order in orders.drain(..).chain(waiting) {
                    order.finish(Err(io::Error::new(error.kind(), why.to_string())));
                }
                open = false;
            }
        }
    }
    // Orders still waiting are dropped with the inbox, which tells whoever waits for them.
}

/// The next message, if the log is not dropped. Whoever heard that a batch is durable often has the next one ready within
/// microseconds, and a thread that sleeps takes longer to wake than that: so look for a while before sleeping.
fn next_message(inbox: &mut mpsc::Receiver<Message>) -> Option<Message> {
    let until = Instant::now() + AWAKE;
    while spin::is_multi_core() && Instant::now() < until {
        match inbox.try_recv() {
            Ok(message) => return Some(message),
            Err(mpsc::error::TryRecvError::Disconnected) => return None,
            Err(mpsc::error::TryRecvError::Empty) => thread::yield_now(),
        }
    }
    inbox.blocking_recv()
}

/// Whether a file of this name is part of a log.
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

/// Nobody panics while holding the lock on purpose; if somebody did, the index is still whole.
fn lock(index: &Mutex<Index>) -> MutexGuard<'_, Index> {
    index.lock().unwrap_or_else(PoisonError::into_inner)
}
