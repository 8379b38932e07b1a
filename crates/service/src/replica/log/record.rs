//! Records: the encoding of one change to the log, and the check whether bytes are a valid record.
//!
//! ```text
//! 0        4        7   8                16              16+length      padded to 8
//! | crc32  | length |tag| batch number   | payload ...   | zeros |
//! ```
//!
//! The checksum covers everything after itself. It starts from a number made of the segment's salt, the
//! segment's number and the record's offset. So a record is valid in one place only. Bytes left over from
//! elsewhere are never valid, nor are bytes that a client stored to look like a record.
//!
//! The tag's highest bit marks the last record of a batch. Without it, a bad record between batch 7 and a
//! valid record of batch 8 could belong to either. Recovery could then not distinguish a torn tail from corruption.

use super::{LogId, Vote};

/// Bytes before the payload.
pub(super) const HEADER: usize = 16;
/// The alignment of records. Recovery uses it to search for records after a bad one.
pub(super) const ALIGN: usize = 8;
/// The most bytes of a payload: the length field has 24 bits.
pub(super) const PAYLOAD_MAX: usize = (1 << 24) - 1;

const LAST: u8 = 0x80;

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record<'a> {
    /// The vote from this record on.
    Vote(Vote),
    /// An entry of the log.
    Entry { id: LogId, membership: bool, data: &'a [u8] },
    /// The entries from this index on are removed.
    Truncate(u64),
    /// The entries up to this one are removed.
    Purge(LogId),
    /// The entries up to this one are known to be committed.
    Committed(LogId),
    /// A membership that was in force when this segment began. Its entry may lie in a removed segment.
    Standing { id: LogId, data: &'a [u8] },
}

/// A valid record, and the offset of the next one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read<'a> {
    pub(super) record: Record<'a>,
    pub(super) batch: u64,
    pub(super) last: bool,
    pub(super) next: usize,
}

impl<'a> Record<'a> {
    /// Returns the bytes of the record on disk.
    pub(super) fn size(&self) -> usize {
        (HEADER + self.payload_size()).next_multiple_of(ALIGN)
    }

    /// Appends the record to `buffer` without a checksum. [`seal`] adds the checksum when the offset is
    /// known.
    pub(super) fn write(&self, batch: u64, buffer: &mut Vec<u8>) {
        let start = buffer.len();
        let length = u32::try_from(self.payload_size()).expect("payloads are bounded by PAYLOAD_MAX");
        debug_assert!(length as usize <= PAYLOAD_MAX);
        buffer.extend([0; 4]);
        buffer.extend((length | u32::from(self.tag()) << 24).to_le_bytes());
        buffer.extend(batch.to_le_bytes());
        match self {
            Self::Vote(vote) => {
                buffer.extend(vote.term.to_le_bytes());
                buffer.extend(vote.node.to_le_bytes());
                buffer.extend(u64::from(vote.committed).to_le_bytes());
            }
            Self::Truncate(from) => buffer.extend(from.to_le_bytes()),
            Self::Purge(id) | Self::Committed(id) => write_id(*id, buffer),
            Self::Entry { id, data, .. } | Self::Standing { id, data } => {
                write_id(*id, buffer);
                buffer.extend(*data);
            }
        }
        buffer.resize(start + self.size(), 0);
    }

    fn payload_size(&self) -> usize {
        match self {
            Self::Vote(_) => 24,
            Self::Truncate(_) => 8,
            Self::Purge(_) | Self::Committed(_) => 16,
            Self::Entry { data, .. } | Self::Standing { data, .. } => 16 + data.len(),
        }
    }

    fn tag(&self) -> u8 {
        match self {
            Self::Vote(_) => 1,
            Self::Entry { membership: false, .. } => 2,
            Self::Entry { membership: true, .. } => 3,
            Self::Truncate(_) => 4,
            Self::Purge(_) => 5,
            Self::Committed(_) => 6,
            Self::Standing { .. } => 7,
        }
    }

    fn parse(tag: u8, payload: &'a [u8]) -> Option<Self> {
        Some(match tag {
            1 if payload.len() == 24 => Self::Vote(Vote {
                term: number(payload, 0)?,
                node: number(payload, 8)?,
                committed: number(payload, 16)? != 0,
            }),
            2 | 3 => Self::Entry { id: read_id(payload)?, membership: tag == 3, data: payload.get(16..)? },
            4 if payload.len() == 8 => Self::Truncate(number(payload, 0)?),
            5 if payload.len() == 16 => Self::Purge(read_id(payload)?),
            6 if payload.len() == 16 => Self::Committed(read_id(payload)?),
            7 => Self::Standing { id: read_id(payload)?, data: payload.get(16..)? },
            _ => return None,
        })
    }
}

/// Marks the last record of a batch and writes the checksums of all its records. The records begin in
/// `buffer` at `starts`; the buffer is then written at `offset`.
pub(super) fn seal(buffer: &mut [u8], starts: &[usize], seed: u32, offset: u64) {
    let Some((&last, _)) = starts.split_last() else { return };
    buffer[last + 7] |= LAST;
    for (at, &start) in starts.iter().enumerate() {
        let end = starts.get(at + 1).copied().unwrap_or(buffer.len());
        let length = length(&buffer[start..]);
        debug_assert!(start + HEADER + length <= end);
        let crc = checksum(seed, offset + start as u64, &buffer[start + 4..start + HEADER + length]);
        buffer[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Returns the record at `offset` of a segment, if it is valid.
pub(super) fn read(segment: &[u8], offset: usize, seed: u32) -> Option<Read<'_>> {
    read_placed(segment, offset, offset as u64, seed)
}

/// Returns the record at `at` of `bytes`, if it is valid. `offset` is the record's own offset in the segment.
pub(super) fn read_placed(bytes: &[u8], at: usize, offset: u64, seed: u32) -> Option<Read<'_>> {
    let header = bytes.get(at..at + HEADER)?;
    let tag = header[7];
    // Cheap checks first: after a bad record, recovery calls this at every aligned offset.
    if tag & !LAST == 0 || tag & !LAST > 7 {
        return None;
    }
    let length = length(header);
    let body = bytes.get(at + 4..at + HEADER + length)?;
    let crc = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
    if checksum(seed, offset, body) != crc {
        return None;
    }
    let record = Record::parse(tag & !LAST, &body[HEADER - 4..])?;
    let next = at + record.size();
    Some(Read { record, batch: number(header, 8)?, last: tag & LAST != 0, next })
}

/// Returns the number from which all checksums of a segment start.
pub(super) fn seed(salt: u64, segment: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_le_bytes());
    hasher.update(&segment.to_le_bytes());
    hasher.finalize()
}

/// Computes the checksum of bytes at an offset. A CRC is linear, so two offsets below 2^32 never give the
/// same bytes the same checksum.
fn checksum(seed: u32, offset: u64, bytes: &[u8]) -> u32 {
    let offset = u32::try_from(offset).expect("segments are shorter than 4 GiB");
    let mut hasher = crc32fast::Hasher::new_with_initial(seed ^ offset);
    hasher.update(bytes);
    hasher.finalize()
}

/// Returns the batch number that a header names, valid or not.
pub(super) fn claimed_batch(segment: &[u8], offset: usize) -> Option<u64> {
    number(segment, offset + 8)
}

fn length(header: &[u8]) -> usize {
    usize::from(header[4]) | usize::from(header[5]) << 8 | usize::from(header[6]) << 16
}

fn write_id(id: LogId, buffer: &mut Vec<u8>) {
    buffer.extend(id.term.to_le_bytes());
    buffer.extend(id.index.to_le_bytes());
}

fn read_id(payload: &[u8]) -> Option<LogId> {
    Some(LogId { term: number(payload, 0)?, index: number(payload, 8)? })
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u32 = 0x1234_5678;

    fn samples() -> Vec<Record<'static>> {
        let id = LogId { term: 3, index: u64::MAX - 1 };
        vec![
            Record::Vote(Vote { term: 9, node: 2, committed: true }),
            Record::Vote(Vote { term: 9, node: 2, committed: false }),
            Record::Entry { id, membership: false, data: b"" },
            Record::Entry { id, membership: true, data: b"nine byte" },
            Record::Truncate(7),
            Record::Purge(id),
            Record::Committed(id),
            Record::Standing { id, data: &[0xff; 100] },
        ]
    }

    fn batch_of(records: &[Record<'_>], offset: u64) -> Vec<u8> {
        let (mut buffer, mut starts) = (Vec::new(), Vec::new());
        for record in records {
            starts.push(buffer.len());
            record.write(5, &mut buffer);
        }
        seal(&mut buffer, &starts, SEED, offset);
        buffer
    }

    #[test]
    fn every_kind_of_record_is_read_back_in_its_place() {
        let mut segment = vec![0; 64];
        segment.extend(batch_of(&samples(), 64));
        let mut at = 64;
        for (n, expected) in samples().iter().enumerate() {
            let read = read(&segment, at, SEED).unwrap();
            assert_eq!(read.record, *expected);
            assert_eq!(read.batch, 5);
            assert_eq!(read.last, n + 1 == samples().len());
            assert_eq!(read.next - at, expected.size());
            at = read.next;
        }
        assert_eq!(at, segment.len());
    }

    #[test]
    fn a_record_moved_elsewhere_is_not_believed() {
        let bytes = batch_of(&samples()[..1], 64);
        for offset in (0..256).step_by(ALIGN) {
            let mut segment = vec![0; offset];
            segment.extend(&bytes);
            assert_eq!(read(&segment, offset, SEED).is_some(), offset == 64);
        }
        let mut segment = vec![0; 64];
        segment.extend(&bytes);
        assert!(read(&segment, 64, SEED ^ 1).is_none(), "valid under another segment's salt");
    }

    #[test]
    fn any_flipped_bit_is_noticed_except_in_the_padding() {
        for sample in samples() {
            let mut segment = batch_of(&[sample], 0);
            let covered = HEADER + sample.payload_size();
            for bit in 0..covered * 8 {
                segment[bit / 8] ^= 1 << (bit % 8);
                assert!(read(&segment, 0, SEED).is_none(), "{sample:?} bit {bit}");
                segment[bit / 8] ^= 1 << (bit % 8);
            }
            assert!(read(&segment, 0, SEED).is_some());
        }
    }

    #[test]
    fn zeros_and_short_tails_are_no_records() {
        assert!(read(&[0; 64], 0, SEED).is_none());
        let bytes = batch_of(&samples()[7..], 0);
        for length in 0..HEADER + samples()[7].payload_size() {
            assert!(read(&bytes[..length], 0, SEED).is_none(), "{length}");
        }
    }
}
