//! Tests of the whole log: crashes, damage, and a comparison with a simple model.

mod changes;
mod damage;
mod threads;
mod twin;

use std::sync::Arc;

use super::recover::recover;
use super::writer::{SegmentPool, Writer};
use super::*;
use crate::replica::disk::SimDisk;

const SMALL: Options = Options { segment_bytes: 4096, batch_bytes: 4096, queue: 16 };

/// The log without its threads, so that the test controls every step.
struct Bare {
    writer: Writer,
    index: Arc<Mutex<Index>>,
    state: State,
}

impl Bare {
    fn open(disk: &SimDisk) -> Result<Self, OpenError> {
        Self::open_with(disk, SMALL)
    }

    fn open_with(disk: &SimDisk, options: Options) -> Result<Self, OpenError> {
        let handle: Arc<dyn Disk> = Arc::new(disk.handle());
        let recovered = recover(&*handle, options.first_segment_bytes())?;
        let state = state_of(&recovered.index, recovered.torn.clone());
        let pool = SegmentPool::inline(handle, options.segment_bytes);
        let (writer, index) = Writer::new(recovered, &options, pool);
        Ok(Self { writer, index, state })
    }

    fn commit(&mut self, changes: &[Change]) -> io::Result<()> {
        self.writer.commit(changes.iter())
    }

    fn entries(&self) -> Vec<Entry> {
        let plan = lock(&self.index).plan(0, u64::MAX, usize::MAX);
        index::fetch(&plan).unwrap()
    }
}

fn id(term: u64, index: u64) -> LogId {
    LogId { term, index }
}

fn entry(term: u64, index: u64, bytes: usize) -> Entry {
    let data = (0..bytes).map(|at| (index as usize * 31 + term as usize * 7 + at) as u8).collect();
    Entry { id: id(term, index), membership: false, data }
}

fn entries(term: u64, range: Range<u64>, bytes: usize) -> Change {
    Change::Append(range.map(|index| entry(term, index, bytes)).collect())
}

fn vote(term: u64, node: u64) -> Change {
    Change::Vote(Vote { term, node, committed: false })
}

fn segments(disk: &SimDisk) -> Vec<String> {
    let mut names = disk.handle().list().unwrap();
    names.retain(|name| segment::number(name).is_some());
    names
}

/// Returns the offset after the last byte written in a segment.
fn written(disk: &SimDisk, name: &str) -> usize {
    disk.content(name).unwrap().iter().rposition(|byte| *byte != 0).unwrap() + 1
}
