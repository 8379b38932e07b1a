//! The writer: turns queued changes into one batch, one write and one sync, and only then reports success.
//!
//! **Rules.**
//! - Records are written in the order in which their changes were queued, whatever their kind.
//! - A batch lies in one segment. If it does not fit, the next segment begins with the current state (vote,
//!   purge point, memberships), followed by the batch.
//! - A batch enters the index, and its changes complete, only after its sync returned.
//! - After any failure the writer writes nothing more, because the content of the disk is unknown.
//!
//! **Trap.** An entry that does not follow the last one would make the *next start* fail. It is rejected
//! before anything is written.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use super::blocks::Blocks;
use super::index::{Index, Place};
use super::record::{self, Record};
use super::recover::Recovered;
use super::segment::{self, Segment};
use super::{Change, LogId, Options, lock};
use crate::replica::disk::Disk;

/// The owner of the end of the log. Runs on a thread of its own, outside the async runtime.
pub(super) struct Writer {
    index: Arc<Mutex<Index>>,
    current: Segment,
    offset: u64,
    batch: Batch,
    batch_bytes: usize,
    blocks: Blocks,
    committed: Option<LogId>,
    pool: SegmentPool,
}

impl Writer {
    pub(super) fn new(
        recovered: Recovered,
        options: &Options,
        mut pool: SegmentPool,
    ) -> (Self, Arc<Mutex<Index>>) {
        let ahead = recovered.current.number + 1;
        pool.spares = recovered.spares.into();
        if pool.spares.is_empty() {
            pool.want(ahead);
        }
        let index = Arc::new(Mutex::new(recovered.index));
        let writer = Self {
            index: index.clone(),
            current: recovered.current,
            offset: recovered.offset,
            batch: Batch { number: recovered.batch, bytes: Vec::new(), starts: Vec::new() },
            batch_bytes: options.batch_bytes_max(),
            blocks: Blocks::new(),
            committed: None,
            pool,
        };
        (writer, index)
    }

    /// Makes the changes durable, in order. Writes several batches if the changes are too long for one.
    pub(super) fn commit<'a>(&mut self, changes: impl Iterator<Item = &'a Change> + Clone) -> io::Result<()> {
        self.check(changes.clone())?;
        for change in changes {
            match change {
                Change::Vote(vote) => self.push(Record::Vote(*vote))?,
                Change::Truncate { from } => self.push(Record::Truncate(*from))?,
                Change::Purge(id) => self.push(Record::Purge(*id))?,
                // The commit index only saves work after a restart. It is written with a batch and never
                // causes a sync.
                Change::Committed(id) => self.committed = self.committed.max(Some(*id)),
                Change::Append(entries) => {
                    for entry in entries {
                        let (id, membership) = (entry.id, entry.membership);
                        self.push(Record::Entry { id, membership, data: &entry.data })?;
                    }
                }
            }
        }
        self.flush()
    }

    /// Rejects entries that leave a hole and truncations of purged entries.
    fn check<'a>(&self, changes: impl Iterator<Item = &'a Change>) -> io::Result<()> {
        let (mut next, mut purged) = {
            let index = lock(&self.index);
            (index.next.unwrap_or(0), index.purged.map_or(0, |id| id.index + 1))
        };
        for change in changes {
            match change {
                Change::Vote(_) | Change::Committed(_) => {}
                Change::Truncate { from } if *from < purged => {
                    return Err(refused(&format!("truncation from {from}, which is purged")));
                }
                Change::Truncate { from } => next = next.min(*from),
                Change::Purge(id) => {
                    next = next.max(id.index + 1);
                    purged = purged.max(id.index + 1);
                }
                Change::Append(entries) => {
                    for entry in entries {
                        if entry.id.index != next {
                            let index = entry.id.index;
                            return Err(refused(&format!("entry {index} where entry {next} must follow")));
                        }
                        next += 1;
                    }
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, record: Record<'_>) -> io::Result<()> {
        if !self.batch.starts.is_empty() && self.batch.bytes.len() + record.size() > self.batch_bytes {
            self.flush()?;
        }
        self.batch.push(&record);
        Ok(())
    }

    /// Writes and syncs the batch once, then adds it to the index.
    fn flush(&mut self) -> io::Result<()> {
        if self.batch.starts.is_empty() {
            return Ok(());
        }
        if let Some(id) = self.committed.take() {
            self.batch.push(&Record::Committed(id));
        }
        if self.offset + self.batch.bytes.len() as u64 > self.current.size {
            self.roll()?;
        }
        self.batch.seal(self.current.seed, self.offset);
        self.blocks.write(&self.current, &self.batch.bytes, self.offset)?;
        self.current.file.sync()?;
        let gone = self.learn()?;
        self.pool.remove(gone);
        self.offset += self.batch.bytes.len() as u64;
        self.batch.restart();
        Ok(())
    }

    /// Changes to the next segment, which begins with the current state.
    fn roll(&mut self) -> io::Result<()> {
        let next = self.pool.take(self.current.number + 1)?;
        self.pool.want(next.number + 1);
        let mut index = lock(&self.index);
        let mut head = Batch { number: self.batch.number, bytes: Vec::new(), starts: Vec::new() };
        for record in index.standing() {
            head.push(&record);
        }
        index.hold(next.clone());
        drop(index);
        head.append(&self.batch);
        self.batch = head;
        self.current = next;
        self.offset = segment::HEADER as u64;
        Ok(())
    }

    /// Adds the batch just synced to the index. Returns the segments that are no longer needed.
    fn learn(&self) -> io::Result<Vec<u64>> {
        let mut index = lock(&self.index);
        for &start in &self.batch.starts {
            let at = self.offset + start as u64;
            let read = record::read_placed(&self.batch.bytes, start, at, self.current.seed);
            let read = read.expect("a record just sealed is valid");
            let place = Place {
                segment: self.current.number,
                offset: u32::try_from(at).expect("segments are shorter than 4 GiB"),
                size: u32::try_from(read.next - start).expect("records are shorter than 4 GiB"),
            };
            index.apply(&read.record, place).map_err(|what| refused(&what))?;
        }
        Ok(index.release(self.current.number))
    }
}

/// The records of one batch, in order.
struct Batch {
    number: u64,
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

impl Batch {
    fn push(&mut self, record: &Record<'_>) {
        self.starts.push(self.bytes.len());
        record.write(self.number, &mut self.bytes);
    }

    fn append(&mut self, other: &Self) {
        let base = self.bytes.len();
        self.starts.extend(other.starts.iter().map(|start| base + start));
        self.bytes.extend(&other.bytes);
    }

    fn seal(&mut self, seed: u32, offset: u64) {
        record::seal(&mut self.bytes, &self.starts, seed, offset);
    }

    fn restart(&mut self) {
        self.number += 1;
        self.bytes.clear();
        self.starts.clear();
    }
}

/// Prepares the next segment in advance and removes old ones, on a thread of its own.
pub(super) struct SegmentPool {
    spares: VecDeque<Segment>,
    help: Help,
}

enum Help {
    Thread {
        tasks: Sender<SegmentTask>,
        ready: Receiver<io::Result<Segment>>,
    },
    /// The same work on the caller's thread, so that a test can crash at every step.
    #[cfg(test)]
    Inline {
        disk: Arc<dyn Disk>,
        segment_bytes: u64,
        to_remove: VecDeque<u64>,
    },
}

enum SegmentTask {
    Prepare(u64),
    Remove(Vec<u64>),
}

impl SegmentPool {
    pub(super) fn spawn(
        disk: Arc<dyn Disk>,
        segment_bytes: u64,
    ) -> io::Result<(Self, thread::JoinHandle<()>)> {
        let (tasks, inbox) = channel();
        let (done, ready) = channel();
        let thread = thread::Builder::new().name("log-segments".to_owned()).spawn(move || {
            let mut to_remove = VecDeque::new();
            // Ends when the writer is dropped. At most one segment and a few removals wait.
            while let Ok(task) = inbox.recv() {
                match task {
                    SegmentTask::Prepare(number) => {
                        let segment = segment::prepare(&*disk, number, segment_bytes);
                        if done.send(segment).is_err() {
                            return;
                        }
                    }
                    SegmentTask::Remove(numbers) => {
                        to_remove.extend(numbers);
                        remove(&*disk, &mut to_remove);
                    }
                }
            }
        })?;
        Ok((Self { spares: VecDeque::new(), help: Help::Thread { tasks, ready } }, thread))
    }

    #[cfg(test)]
    pub(super) fn inline(disk: Arc<dyn Disk>, segment_bytes: u64) -> Self {
        let help = Help::Inline { disk, segment_bytes, to_remove: VecDeque::new() };
        Self { spares: VecDeque::new(), help }
    }

    /// Requests a segment to be prepared, unless there is one.
    fn want(&mut self, number: u64) {
        if !self.spares.is_empty() {
            return;
        }
        match &self.help {
            // If the thread has ended, `take` returns the error.
            Help::Thread { tasks, .. } => drop(tasks.send(SegmentTask::Prepare(number))),
            #[cfg(test)]
            Help::Inline { .. } => {}
        }
    }

    /// Returns the prepared segment. Waits if the disk has not finished it yet.
    fn take(&mut self, number: u64) -> io::Result<Segment> {
        let segment = match self.spares.pop_front() {
            Some(spare) => spare,
            None => match &self.help {
                Help::Thread { tasks, ready } => prepared(tasks, ready, number)?,
                #[cfg(test)]
                Help::Inline { disk, segment_bytes, .. } => {
                    segment::prepare(&**disk, number, *segment_bytes)?
                }
            },
        };
        if segment.number != number {
            return Err(refused(&format!("segment {} where {number} must follow", segment.number)));
        }
        Ok(segment)
    }

    fn remove(&mut self, numbers: Vec<u64>) {
        if numbers.is_empty() {
            return;
        }
        match &mut self.help {
            Help::Thread { tasks, .. } => drop(tasks.send(SegmentTask::Remove(numbers))),
            #[cfg(test)]
            Help::Inline { disk, to_remove, .. } => {
                to_remove.extend(numbers);
                remove(&**disk, to_remove);
            }
        }
    }
}

/// Returns the segment requested in advance. If preparing it failed, tries once more, because the disk may
/// have space now.
fn prepared(
    tasks: &Sender<SegmentTask>,
    ready: &Receiver<io::Result<Segment>>,
    number: u64,
) -> io::Result<Segment> {
    let gone = || io::Error::other("the thread that prepares segments is gone");
    ready.recv().map_err(|_| gone())?.or_else(|error| {
        tracing::warn!(segment = number, %error, "cannot prepare the next segment of the log; trying again");
        tasks.send(SegmentTask::Prepare(number)).map_err(|_| gone())?;
        ready.recv().map_err(|_| gone())?
    })
}

/// Removes segments, oldest first, each durably before the next. A hole between segments would look like
/// corruption. A segment that cannot be removed stays first in the queue and is tried again with the next
/// removal.
fn remove(disk: &dyn Disk, to_remove: &mut VecDeque<u64>) {
    while let Some(number) = to_remove.front() {
        match disk.remove(&segment::name(*number)).and_then(|()| disk.sync_names()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(segment = number, %error, "cannot remove an old segment of the log; trying again later");
                return;
            }
            _ => drop(to_remove.pop_front()),
        }
    }
}

fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("the log refuses: {what}"))
}
