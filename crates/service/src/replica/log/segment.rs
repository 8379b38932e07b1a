//! Segments: files of zeros, prepared in advance, filled from the front, removed oldest first.
//!
//! **Rules.** A segment gets its name only when it is complete: zeros to its end and the fixed header, all
//! synced. So a bad header is always corruption, never the result of a crash. Writes into a segment never
//! change its length, so a sync writes no metadata and is fast.
//!
//! ```text
//! 0          8         12        16        24        32                    64
//! | CONCLAVE | version | crc32   | number  | salt    | zeros               | records ...
//! ```

use std::io;
use std::sync::Arc;

use super::record;
use crate::replica::disk::{Disk, File};

/// Bytes before the first record.
pub(super) const HEADER: usize = 64;
/// The bytes of zeros written before each sync, so that a sync of a batch waits for one step at most. Smaller
/// steps would not help: the cost to the batches is the number of syncs.
pub(super) const STEP: usize = 1024 * 1024;

const MAGIC: [u8; 8] = *b"CONCLAVE";
const VERSION: u32 = 1;
const SUFFIX: &str = ".log";
const DRAFT: &str = "segment.draft";

/// An open segment.
#[derive(Clone)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) size: u64,
    /// The start value of its checksums.
    pub(super) seed: u32,
    pub(super) file: Arc<dyn File>,
}

/// Returns the name of the file that holds segment `number`.
pub(super) fn name(number: u64) -> String {
    format!("{number:020}{SUFFIX}")
}

/// Returns the number of the segment that a file of this name holds, if it holds one.
pub(super) fn number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    (digits.len() == 20).then(|| digits.parse().ok()).flatten()
}

/// Creates an empty segment, durably: zeros in small steps, then the header, then the name.
pub(super) fn prepare(disk: &dyn Disk, number: u64, size: u64) -> io::Result<Segment> {
    // Remove a partial file, because other files may need the space. The error of `fill` is returned.
    fill(disk, number, size).inspect_err(|_| drop(remove_draft(disk)))
}

fn fill(disk: &dyn Disk, number: u64, size: u64) -> io::Result<Segment> {
    let file = disk.create(DRAFT)?;
    let zeros = vec![0; STEP];
    let mut at = 0;
    while at < size {
        let step = (size - at).min(STEP as u64);
        file.write_at(&zeros[..usize::try_from(step).expect("at most STEP")], at)?;
        file.sync()?;
        at += step;
    }
    let salt = disk.salt()?;
    file.write_at(&header(number, salt), 0)?;
    file.sync()?;
    disk.rename(DRAFT, &name(number))?;
    disk.sync_names()?;
    Ok(Segment { number, size, seed: record::seed(salt, number), file })
}

/// Removes the file that an interrupted [`prepare`] left.
pub(super) fn remove_draft(disk: &dyn Disk) -> io::Result<()> {
    match disk.remove(DRAFT) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens segment `number` and reads all of it. The error says what is wrong with its header.
pub(super) fn open(disk: &dyn Disk, number: u64) -> io::Result<(Segment, Vec<u8>)> {
    let file = disk.open(&name(number))?;
    let size = file.size()?;
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    if size < HEADER as u64 || size > u64::from(u32::MAX) {
        return Err(bad("its length is not that of a segment"));
    }
    let mut bytes = vec![0; usize::try_from(size).map_err(io::Error::other)?];
    file.read_at(&mut bytes, 0)?;
    if bytes[..8] != MAGIC {
        return Err(bad("it does not begin like a segment"));
    }
    let version = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
    if version != VERSION {
        return Err(bad(&format!("it has format version {version}; this program reads {VERSION}")));
    }
    let salt = u64::from_le_bytes(bytes[24..32].try_into().expect("eight bytes"));
    if bytes[..HEADER] != header(number, salt) {
        return Err(bad("its header is damaged or belongs to another segment"));
    }
    Ok((Segment { number, size, seed: record::seed(salt, number), file }, bytes))
}

fn header(number: u64, salt: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..24].copy_from_slice(&number.to_le_bytes());
    header[24..32].copy_from_slice(&salt.to_le_bytes());
    let crc = crc32fast::hash(&header[16..]);
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::disk::SimDisk;

    #[test]
    fn a_prepared_segment_survives_any_crash_and_is_all_zeros() {
        let disk = SimDisk::new(7);
        let size = STEP as u64 + 100;
        let made = prepare(&disk.handle(), 3, size).unwrap();
        disk.crash();
        let (opened, bytes) = open(&disk.handle(), 3).unwrap();
        assert_eq!((opened.size, opened.seed), (size, made.seed));
        assert!(bytes[HEADER..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_crash_while_preparing_leaves_no_half_segment() {
        for seed in 0..50 {
            for operations in 0..8 {
                let disk = SimDisk::new(seed);
                disk.lose_power_after(operations);
                let made = prepare(&disk.handle(), 1, 1000);
                disk.crash();
                let names = disk.handle().list().unwrap();
                if names.iter().any(|name| number(name) == Some(1)) {
                    open(&disk.handle(), 1).unwrap();
                } else {
                    assert!(made.is_err(), "seed {seed}: the segment made was lost");
                }
                remove_draft(&disk.handle()).unwrap();
            }
        }
    }

    #[test]
    fn any_flipped_bit_of_the_header_is_noticed() {
        let disk = SimDisk::new(1);
        prepare(&disk.handle(), 1, 1000).unwrap();
        for byte in 0..HEADER {
            disk.flip(&name(1), byte, 3);
            assert!(open(&disk.handle(), 1).is_err(), "byte {byte}");
            disk.flip(&name(1), byte, 3);
        }
        open(&disk.handle(), 1).unwrap();
    }

    #[test]
    fn only_names_of_segments_have_numbers() {
        assert_eq!(number(&name(42)), Some(42));
        for other in ["lock", "42.log", "0000000000000000004x.log", DRAFT] {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
