//! The end of the log, in whole blocks.
//!
//! **Intuition.** A disk writes blocks. Smaller writes go through the page cache, which costs a copy and a
//! second lookup at the sync. That is wasted if each write is synced. So the last block of the log is kept
//! here, and a batch is written in whole blocks: the bytes before it, the batch, then zeros.
//!
//! **Trap.** The first block contains bytes that are durable already, and writes them again. They are the
//! same bytes, so a write torn between sectors cannot change them. Nothing of the log lies after its end, so
//! the zeros overwrite nothing.
//!
//! **Bounds.** A batch that needs more than [`ROOM`] is written without this buffer.

use std::io;

use super::segment::Segment;
use crate::replica::disk::BLOCK;

/// The bytes of memory for the blocks of one batch. A longer batch is written without this buffer.
const ROOM: usize = 64 * BLOCK;

/// A buffer that turns successive batches into whole blocks.
pub(super) struct Blocks {
    /// One block more than [`ROOM`], because the memory may not be aligned to a block.
    memory: Vec<u8>,
    /// The segment and the offset of the block whose beginning is in memory.
    kept: Option<(u64, u64)>,
}

impl Blocks {
    pub(super) fn new() -> Self {
        Self { memory: vec![0; ROOM + BLOCK], kept: None }
    }

    /// Writes a batch at `offset` of the segment, the end of the log.
    pub(super) fn write(&mut self, segment: &Segment, batch: &[u8], offset: u64) -> io::Result<()> {
        let before = usize::try_from(offset % BLOCK as u64).expect("less than a block");
        let start = offset - before as u64;
        let end = before + batch.len();
        let whole = end.next_multiple_of(BLOCK);
        if whole > ROOM || start + whole as u64 > segment.size {
            self.kept = None;
            return segment.file.write_at(batch, offset);
        }
        let aligned = self.memory.as_ptr().align_offset(BLOCK);
        let room = &mut self.memory[aligned..aligned + ROOM];
        if self.kept != Some((segment.number, start)) {
            segment.file.read_at(&mut room[..before], start)?;
        }
        room[before..end].copy_from_slice(batch);
        room[end..whole].fill(0);
        segment.file.write_at(&room[..whole], start)?;
        let last = end - end % BLOCK;
        room.copy_within(last..end, 0);
        self.kept = Some((segment.number, start + last as u64));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::replica::disk::{Disk, File, RealDisk, SimDisk};
    use crate::replica::tests::support::TempFolder;

    const SIZE: u64 = 3 * ROOM as u64 + 100;

    /// Writes batches of many sizes, some larger than [`ROOM`], and sometimes with a new writer.
    fn writes_what_it_is_given(disk: &dyn Disk, seed: u64) {
        let file = disk.create("segment").unwrap();
        file.write_at(&vec![0; usize::try_from(SIZE).unwrap()], 0).unwrap();
        file.write_at(&[7; 64], 0).unwrap();
        let mut segment = Segment { number: 1, size: SIZE, seed: 0, file };
        let mut expected = vec![0; usize::try_from(SIZE).unwrap()];
        expected[..64].fill(7);
        let (mut blocks, mut at, mut dice) = (Blocks::new(), 64, seed);
        let mut draw = |below: u64| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from((dice >> 33) % below).unwrap()
        };
        loop {
            let longest = [10, 200, 5000, 5000, ROOM as u64 + 5000][draw(5)];
            let length = if draw(8) == 0 { BLOCK - at % BLOCK } else { 1 + draw(longest) };
            let length = length.min(expected.len() - at);
            if length == 0 {
                break;
            }
            let batch: Vec<u8> = (0..length).map(|_| u8::try_from(1 + draw(255)).unwrap()).collect();
            match draw(20) {
                0 => blocks = Blocks::new(),
                // The block in memory belongs to another segment.
                1 => segment.number += 1,
                _ => {}
            }
            blocks.write(&segment, &batch, at as u64).unwrap();
            expected[at..at + length].copy_from_slice(&batch);
            at += length;
            let mut bytes = vec![0; expected.len()];
            segment.file.read_at(&mut bytes, 0).unwrap();
            assert!(bytes == expected, "seed {seed}: a batch of {length} bytes that ends at {at}");
        }
        assert_eq!(segment.file.size().unwrap(), SIZE, "seed {seed}: a segment never grows");
    }

    #[test]
    fn a_file_has_the_batches_and_nothing_else_on_a_simulated_disk() {
        (0..50).for_each(|seed| writes_what_it_is_given(&SimDisk::new(seed).handle(), seed));
    }

    #[test]
    fn a_file_has_the_batches_and_nothing_else_on_a_real_disk() {
        let folder = TempFolder::new();
        let disk = RealDisk::open(folder.path()).unwrap();
        (0..10).for_each(|seed| writes_what_it_is_given(&disk, seed));
    }

    #[test]
    fn a_batch_goes_out_in_whole_blocks_and_the_last_one_is_not_read_again() {
        let disk = SimDisk::new(0);
        let file = Arc::new(Seen { file: disk.handle().create("segment").unwrap(), calls: Mutex::default() });
        let segment = Segment { number: 1, size: 8 * BLOCK as u64, seed: 0, file: file.clone() };
        file.file.write_at(&vec![0; 8 * BLOCK], 0).unwrap();
        let mut blocks = Blocks::new();
        let mut write = |length: usize, offset: usize| {
            blocks.write(&segment, &vec![1; length], offset as u64).unwrap();
            std::mem::take(&mut *file.calls.lock().unwrap())
        };
        assert_eq!(write(100, 64), [("read", 0, 64), ("write", 0, BLOCK)]);
        assert_eq!(write(BLOCK, 164), [("write", 0, 2 * BLOCK)]);
        assert_eq!(write(BLOCK - 164, BLOCK + 164), [("write", BLOCK, BLOCK)]);
        assert_eq!(write(8, 2 * BLOCK), [("write", 2 * BLOCK, BLOCK)]);
    }

    /// A file that records its reads and writes.
    struct Seen {
        file: Arc<dyn File>,
        calls: Mutex<Vec<(&'static str, usize, usize)>>,
    }

    impl Seen {
        fn note(&self, what: &'static str, offset: u64, length: usize) {
            self.calls.lock().unwrap().push((what, usize::try_from(offset).unwrap(), length));
        }
    }

    impl File for Seen {
        fn size(&self) -> io::Result<u64> {
            self.file.size()
        }

        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
            self.note("read", offset, buffer.len());
            self.file.read_at(buffer, offset)
        }

        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            assert_eq!(bytes.as_ptr().align_offset(BLOCK), 0, "aligned");
            self.note("write", offset, bytes.len());
            self.file.write_at(bytes, offset)
        }

        fn sync(&self) -> io::Result<()> {
            self.file.sync()
        }
    }
}
