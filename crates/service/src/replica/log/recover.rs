//! Recovery: decides which records are valid after a crash, and when the node must not start.
//!
//! **Intuition.** Batch `n+1` is written only after batch `n` is synced. So a crash can tear only the last
//! batch. No reply was sent for that batch, and recovery cuts it off whole. But a bad record with anything of
//! a later batch behind it was durable once: that is corruption. A node that lost a durable vote or entry
//! must not start.
//!
//! **Rules**, in the order in which they are tried at the first invalid record:
//! 1. Only zeros follow to the end of the segment, and no batch has begun: the segment ends here.
//! 2. The oldest segment is not number 1 and has no whole batch: corruption. Older segments are removed only
//!    after a batch of a later one was synced.
//! 3. A valid record of a later batch follows, or a later segment is not empty: corruption.
//! 4. Otherwise it is a torn tail, zeroed from the end of the last whole batch on.
//!
//! **Trap.** After a *process* is killed, its unsynced writes are still in the page cache. Recovery would
//! accept them, and a power failure could then remove them. So recovery ends with a sync. If a sync had
//! failed before, the page cache may treat the batch as written, and a second sync would write nothing. So
//! recovery first writes the last batch again, the only one that can be affected.

use std::io;
use std::ops::Range;

use super::index::{Index, Place};
use super::record::{self, ALIGN, Read};
use super::segment::{self, Segment};
use super::{LogId, OpenError, Torn};
use crate::replica::disk::Disk;

/// The recovered log, ready for the next batch.
pub(super) struct Recovered {
    pub(super) index: Index,
    pub(super) current: Segment,
    /// The offset at which the next batch is written.
    pub(super) offset: u64,
    /// The number of the next batch.
    pub(super) batch: u64,
    /// Segments that were already prepared, in order.
    pub(super) spares: Vec<Segment>,
    pub(super) torn: Option<Torn>,
}

/// Reads all segments, cuts off a torn tail, and rejects a corrupt log.
pub(super) fn recover(disk: &dyn Disk, first_segment_bytes: u64) -> Result<Recovered, OpenError> {
    segment::remove_draft(disk)?;
    let mut numbers: Vec<u64> = disk.list()?.iter().filter_map(|name| segment::number(name)).collect();
    numbers.sort_unstable();
    if numbers.is_empty() {
        segment::prepare(disk, 1, first_segment_bytes)?;
        numbers.push(1);
    }
    if let Some(gap) = numbers.windows(2).find(|pair| pair[0] + 1 != pair[1]) {
        return Err(corrupt(gap[0] + 1, 0, "the segment is missing, but a later one is there"));
    }
    let all = numbers[0] == 1;
    let mut reader = Reader {
        all,
        index: Index::new(all.then_some(0)),
        expected: all.then_some(1),
        last: None,
        torn: None,
    };
    let mut segments = Vec::new();
    for &number in &numbers {
        segments.push(reader.read_segment(disk, number)?);
    }
    reader.finish(&segments)
}

struct Reader {
    /// `true` if no segment was ever removed.
    all: bool,
    index: Index,
    /// The number of the next batch; unknown until the first record of the oldest segment is read.
    expected: Option<u64>,
    /// The segment of the last whole batch, and its offsets there.
    last: Option<(u64, Range<usize>)>,
    torn: Option<Tail>,
}

/// The position, length and number of a torn batch.
struct Tail {
    segment: u64,
    offset: usize,
    bytes: usize,
    batch: Option<u64>,
}

impl Reader {
    fn read_segment(&mut self, disk: &dyn Disk, number: u64) -> Result<Segment, OpenError> {
        let opened = segment::open(disk, number);
        let (segment, bytes) = opened.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => corrupt(number, 0, &error.to_string()),
            _ => OpenError::Io(error),
        })?;
        let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        if let Some(tail) = &self.torn {
            if written > segment::HEADER {
                let what = format!("a bad record, but segment {number} was written after it");
                return Err(corrupt(tail.segment, tail.offset, &what));
            }
            return Ok(segment);
        }
        self.index.hold(segment.clone());
        let at = self.read_batches(&segment, &bytes)?;
        if self.last.is_none() && !self.all {
            let what = "no whole batch, but older segments were deleted when there was one";
            return Err(corrupt(number, at, what));
        }
        let whole = match &self.last {
            Some((of, batch)) if *of == number => batch.end,
            _ => segment::HEADER,
        };
        if written > whole {
            self.judge(&segment, &bytes, at, written, whole)?;
        }
        Ok(segment)
    }

    /// Adds all whole batches of a segment to the index. Returns the offset of the first invalid record.
    fn read_batches(&mut self, segment: &Segment, bytes: &[u8]) -> Result<usize, OpenError> {
        let mut at = segment::HEADER;
        let mut begun: Vec<(usize, Read<'_>)> = Vec::new();
        while let Some(read) = record::read(bytes, at, segment.seed) {
            if self.expected.is_some_and(|expected| expected != read.batch) {
                break;
            }
            self.expected = Some(read.batch);
            begun.push((at, read));
            at = read.next;
            if read.last {
                let start = begun[0].0;
                for (offset, read) in begun.drain(..) {
                    let place = Place {
                        segment: segment.number,
                        offset: u32::try_from(offset).expect("segments are shorter than 4 GiB"),
                        size: u32::try_from(read.next - offset).expect("records are shorter than 4 GiB"),
                    };
                    let applied = self.index.apply(&read.record, place);
                    applied.map_err(|what| corrupt(segment.number, offset, &format!("the record {what}")))?;
                }
                self.expected = Some(read.batch + 1);
                self.last = Some((segment.number, start..at));
            }
        }
        Ok(at)
    }

    /// Distinguishes a torn tail from corruption. `at` is the offset of the first invalid record, `whole` the end of
    /// the last whole batch.
    fn judge(
        &mut self,
        segment: &Segment,
        bytes: &[u8],
        at: usize,
        written: usize,
        whole: usize,
    ) -> Result<(), OpenError> {
        let number = segment.number;
        let batch = self.expected;
        let mut offset = at.next_multiple_of(ALIGN);
        while offset < written {
            let plausible = record::claimed_batch(bytes, offset).is_some_and(|claimed| {
                batch.is_none_or(|batch| claimed >= batch && claimed - batch < 1 << 32)
            });
            match plausible.then(|| record::read(bytes, offset, segment.seed)).flatten() {
                Some(read) if batch.is_none_or(|batch| read.batch > batch) => {
                    let what = format!(
                        "a bad record, but batch {} at offset {offset} was written after it was synced",
                        read.batch
                    );
                    return Err(corrupt(number, at, &what));
                }
                Some(read) => offset = read.next,
                None => offset += ALIGN,
            }
        }
        self.torn = Some(Tail { segment: number, offset: whole, bytes: written - whole, batch });
        Ok(())
    }

    fn finish(mut self, segments: &[Segment]) -> Result<Recovered, OpenError> {
        let (number, last) =
            self.last.take().unwrap_or((segments[0].number, segment::HEADER..segment::HEADER));
        let offset = last.end;
        let at = segments.iter().position(|segment| segment.number == number).expect("it was read");
        self.check_bounds(number, offset)?;
        let torn = self.torn.take().map(|tail| cut(segments, &tail)).transpose()?;
        let current = segments[at].clone();
        let mut bytes = vec![0; last.len()];
        current.file.read_at(&mut bytes, last.start as u64)?;
        current.file.write_at(&bytes, last.start as u64)?;
        current.file.sync()?;
        for spare in &segments[at + 1..] {
            self.index.segments.remove(&spare.number);
        }
        let spares = segments[at + 1..].to_vec();
        let batch = self.expected.unwrap_or(1);
        Ok(Recovered { index: self.index, current, offset: offset as u64, batch, spares, torn })
    }

    /// Checks that the first entry follows the purge point. Otherwise a segment with entries is missing.
    fn check_bounds(&mut self, segment: u64, offset: usize) -> Result<(), OpenError> {
        let wanted = self.index.purged.map_or(0, |id: LogId| id.index + 1);
        match self.index.first() {
            Some(first) if first != wanted => {
                let what = format!("the log begins with entry {first}, but {wanted} must be its first");
                Err(corrupt(segment, offset, &what))
            }
            None if self.index.next.is_some_and(|next| next != wanted) => {
                let next = self.index.next.unwrap_or_default();
                let what = format!("the log ends before entry {next}, but holds nothing from {wanted} on");
                Err(corrupt(segment, offset, &what))
            }
            _ => {
                self.index.next = Some(self.index.next.unwrap_or(wanted));
                Ok(())
            }
        }
    }
}

/// Zeroes a torn batch. If it stayed, a later record could end exactly where its remains begin, and recovery
/// would read them.
fn cut(segments: &[Segment], tail: &Tail) -> Result<Torn, OpenError> {
    let segment = segments.iter().find(|segment| segment.number == tail.segment).expect("it was read");
    segment.file.write_at(&vec![0; tail.bytes], tail.offset as u64)?;
    segment.file.sync()?;
    let torn = Torn {
        file: segment::name(tail.segment),
        offset: tail.offset as u64,
        bytes: tail.bytes as u64,
        batch: tail.batch.unwrap_or(1),
    };
    tracing::warn!(%torn, "cut an incomplete end off the log; no reply was sent for it");
    Ok(torn)
}

fn corrupt(segment: u64, offset: usize, what: &str) -> OpenError {
    OpenError::Corrupt { file: segment::name(segment), offset: offset as u64, what: what.to_owned() }
}
