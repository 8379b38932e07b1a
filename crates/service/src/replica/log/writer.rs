//! The writer: turns drained changes into one batch, one write and one sync, and only then says so.
//!
//! The rules:
//! - records are written in the order in which the changes were queued, whatever they are;
//! - a batch lies in one segment; if it does not fit, the next segment begins with what stands now (vote,
//!   purge point, memberships) and then the batch;
//! - a batch is in the index, and its changes are acknowledged, only after its sync returned;
//! - after any failure the writer writes nothing more: what is on the disk is then unknown.
//!
//! The trap: an entry that does not follow the last one would make the *next start* fail. It is refused before
//! anything is written.

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

/// Owns the end of the log. Runs on one thread, which is not one of the async runtime.
pub(super) struct Writer {
    index: Arc<Mutex<Index>>,
    current: Segment,
    offset: u64,
    batch: Batch,
    batch_bytes: usize,
    blocks: Blocks,
    committed: Option<LogId>,
    keeper: SegmentPool,
}

impl Writer {
    pub(super) fn new(
        recovered: Recovered,
        options: &Options,
        mut keeper: SegmentPool,
    ) -> (Self, Arc<Mutex<Index>>) {
        let ahead = recovered.current.number + 1;
        keeper.spares = recovered.spares.into();
        if keeper.spares.is_empty() {
            keeper.want(ahead);
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
            keeper,
        };
        (writer, index)
    }

    /// Makes the changes durable, in order; several batches if they are many.
    pub(super) fn commit<'a>(&mut self, changes: impl Iterator<Item = &'a Change> + Clone) -> io::Result<()> {
        self.check(changes.clone())?;
        for change in changes {
            match change {
                Change::Vote(vote) => self.push(Record::Vote(*vote))?,
                Change::Truncate { from } => self.push(Record::Truncate(*from))?,
                Change::Purge(id) => self.push(Record::Purge(*id))?,
                // Only a hint that saves work after a restart: it rides along and is never worth a sync.
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

    /// Refuses entries that leave a hole and truncations of what is purged.
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

    /// One write, one sync; then the index learns of it.
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
        self.keeper.remove(gone);
        self.offset += self.batch.bytes.len() as u64;
        self.batch.restart();
        Ok(())
    }

    /// Goes on in the next segment, with what stands at its head.
    fn roll(&mut self) -> io::Result<()> {
        let next = self.keeper.take(self.current.number + 1)?;
        self.keeper.want(next.number + 1);
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

    /// Puts the batch just synced into the index; returns the segments that nobody needs any more.
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

/// The records of one batch, side by side.
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

/// Prepares the next segment ahead of need and removes the old, off the writer's path.
pub(super) struct SegmentPool {
    spares: VecDeque<Segment>,
    help: Help,
}

enum Help {
    Thread {
        errands: Sender<SegmentTask>,
        ready: Receiver<io::Result<Segment>>,
    },
    /// The same work in the caller's own time, so that a test meets every crash at a chosen step.
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
        let (errands, inbox) = channel();
        let (done, ready) = channel();
        let thread = thread::Builder::new().name("log-keeper".to_owned()).spawn(move || {
            let mut to_remove = VecDeque::new();
            // Ends when the writer is gone. At most one segment and a few removals are ever waiting.
            while let Ok(errand) = inbox.recv() {
                match errand {
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
        Ok((Self { spares: VecDeque::new(), help: Help::Thread { errands, ready } }, thread))
    }

    #[cfg(test)]
    pub(super) fn inline(disk: Arc<dyn Disk>, segment_bytes: u64) -> Self {
        let help = Help::Inline { disk, segment_bytes, to_remove: VecDeque::new() };
        Self { spares: VecDeque::new(), help }
    }

    /// Asks for a segment to be prepared, unless one is.
    fn want(&mut self, number: u64) {
        if !self.spares.is_empty() {
            return;
        }
        match &self.help {
            // If the thread is gone, `take` says so.
            Help::Thread { errands, .. } => drop(errands.send(SegmentTask::Prepare(number))),
            #[cfg(test)]
            Help::Inline { .. } => {}
        }
    }

    /// The prepared segment; waits for it if the writer was faster than the disk can make zeros.
    fn take(&mut self, number: u64) -> io::Result<Segment> {
        let segment = match self.spares.pop_front() {
            Some(spare) => spare,
            None => match &self.help {
                Help::Thread { errands, ready } => prepared(errands, ready, number)?,
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
            Help::Thread { errands, .. } => drop(errands.send(SegmentTask::Remove(numbers))),
            #[cfg(test)]
            Help::Inline { disk, to_remove, .. } => {
                to_remove.extend(numbers);
                remove(&**disk, to_remove);
            }
        }
    }
}

/// The segment that was asked for ahead of need. Had the disk no room for it then, it may have some now.
fn prepared(
    errands: &Sender<SegmentTask>,
    ready: &Receiver<io::Result<Segment>>,
    number: u64,
) -> io::Result<Segment> {
    let gone = || io::Error::other("the thread that prepares segments is gone");
    ready.recv().map_err(|_| gone())?.or_else(|error| {
        tracing::warn!(segment = number, %error, "cannot prepare the next segment of the log; trying again");
        errands.send(SegmentTask::Prepare(number)).map_err(|_| gone())?;
        ready.recv().map_err(|_| gone())?
    })
}

/// Oldest first, each made durable before the next: a hole between segments would look like corruption. One that cannot be
/// removed is tried again with the next, and nothing behind it is removed before.
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
