//! The index: the vote, the bounds and the position of every entry, computed from the records on disk.
//!
//! **Rules.** Recovery applies the valid records it reads, and the writer applies the records it has synced.
//! So the index holds only what is durable, and a restart computes the same index.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use super::record::{self, Record};
use super::segment::Segment;
use super::{Entry, LogId, Vote};

/// The position of an entry on disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) segment: u64,
    /// The offset of the record's header.
    pub(super) offset: u32,
    pub(super) size: u32,
}

/// A segment and the largest index of an entry in it. The segment can be removed when that entry is purged.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) segment: Segment,
    newest: Option<u64>,
}

#[derive(Default)]
pub(super) struct Index {
    pub(super) vote: Option<Vote>,
    pub(super) purged: Option<LogId>,
    pub(super) committed: Option<LogId>,
    /// The last two memberships. The older is committed, and the newer may still be truncated.
    pub(super) memberships: Vec<(LogId, Arc<[u8]>)>,
    /// The last entry, or the purge point if there is none.
    pub(super) last: Option<LogId>,
    /// The index that the next entry must have; unknown only while the oldest segment is read.
    pub(super) next: Option<u64>,
    places: VecDeque<(u64, Place)>,
    pub(super) segments: BTreeMap<u64, Held>,
}

impl Index {
    /// Creates the index of a log that begins with entry `next`, if that is known.
    pub(super) fn new(next: Option<u64>) -> Self {
        Self { next, ..Self::default() }
    }

    /// Applies one record. The error says why it cannot follow the earlier records.
    pub(super) fn apply(&mut self, record: &Record<'_>, place: Place) -> Result<(), String> {
        match *record {
            Record::Vote(vote) => self.vote = Some(vote),
            Record::Committed(id) => self.committed = self.committed.max(Some(id)),
            Record::Standing { id, data } => self.remember(id, data),
            Record::Purge(id) => self.purge(id),
            Record::Truncate(from) => {
                if self.purged.is_some_and(|purged| from <= purged.index) {
                    return Err(format!("truncates from {from}, which is purged"));
                }
                self.truncate(from);
            }
            Record::Entry { id, membership, data } => {
                if self.next.is_some_and(|next| next != id.index) {
                    let next = self.next.unwrap_or_default();
                    return Err(format!("holds entry {} where entry {next} must follow", id.index));
                }
                self.places.push_back((id.term, place));
                self.next = Some(id.index + 1);
                self.last = Some(id);
                let held = self.segments.get_mut(&place.segment);
                let held = held.ok_or_else(|| format!("names segment {}, which is gone", place.segment))?;
                held.newest = held.newest.max(Some(id.index));
                if membership {
                    self.remember(id, data);
                }
            }
        }
        Ok(())
    }

    /// Returns the records with the current state, with which a new segment begins.
    pub(super) fn standing(&self) -> Vec<Record<'_>> {
        let memberships = self.memberships.iter();
        let memberships = memberships.map(|(id, data)| Record::Standing { id: *id, data });
        let vote = self.vote.map(Record::Vote);
        let purged = self.purged.map(Record::Purge);
        let committed = self.committed.map(Record::Committed);
        vote.into_iter().chain(purged).chain(committed).chain(memberships).collect()
    }

    /// Returns the index of the first entry held.
    pub(super) fn first(&self) -> Option<u64> {
        self.next.map(|next| next - self.places.len() as u64).filter(|_| !self.places.is_empty())
    }

    /// Adds an empty segment.
    pub(super) fn hold(&mut self, segment: Segment) {
        self.segments.insert(segment.number, Held { segment, newest: None });
    }

    /// Removes the segments before `current` whose entries are all purged, and returns their numbers.
    pub(super) fn release(&mut self, current: u64) -> Vec<u64> {
        let purged = self.purged.map(|id| id.index);
        let mut gone = Vec::new();
        while let Some(oldest) = self.segments.first_entry() {
            if *oldest.key() == current || oldest.get().newest > purged {
                break;
            }
            gone.push(oldest.remove_entry().0);
        }
        gone
    }

    /// Returns the bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.values().map(|held| held.segment.size).sum()
    }

    /// Returns the last entry to purge so that at most `bytes` bytes remain, as far as whole segments allow.
    pub(super) fn purge_point(&self, bytes: u64) -> Option<u64> {
        let mut left = self.bytes();
        let mut point = None;
        for held in self.segments.values() {
            if left <= bytes {
                break;
            }
            left -= held.segment.size;
            point = point.max(held.newest);
        }
        point
    }

    /// Returns the positions of the entries from `from` to before `to`: at most `bytes` bytes of records, but
    /// at least one entry.
    pub(super) fn plan(&self, from: u64, to: u64, bytes: usize) -> Vec<(u64, Place, Segment)> {
        let Some(first) = self.first() else { return Vec::new() };
        let mut total = 0;
        let mut plan = Vec::new();
        for index in from.max(first)..to.min(self.next.unwrap_or(first)) {
            let at = usize::try_from(index - first).expect("fewer entries than addresses");
            let (_, place) = self.places[at];
            total += place.size as usize;
            if total > bytes && !plan.is_empty() {
                break;
            }
            let held = self.segments.get(&place.segment).expect("a segment is held as long as its entries");
            plan.push((index, place, held.segment.clone()));
        }
        plan
    }

    fn purge(&mut self, id: LogId) {
        if self.purged.is_some_and(|purged| purged.index >= id.index) {
            return;
        }
        self.purged = Some(id);
        // While `next` is unknown, it stays unknown. The oldest segment's head names the purge point at the
        // time when the segment began. Entries right after that point may lie in segments removed since.
        if self.next.is_some_and(|next| next <= id.index + 1) {
            self.places.clear();
            self.next = Some(id.index + 1);
        }
        if self.places.is_empty() {
            self.last = Some(id);
        }
        while self.first().is_some_and(|first| first <= id.index) {
            self.places.pop_front();
        }
    }

    fn truncate(&mut self, from: u64) {
        if self.next.is_some_and(|next| next <= from) {
            return;
        }
        let first = self.first().unwrap_or(from);
        self.places.truncate(usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX));
        self.next = Some(from);
        self.memberships.retain(|(id, _)| id.index < from);
        let last = self.places.back().map(|(term, _)| LogId { term: *term, index: from - 1 });
        self.last = last.or(self.purged);
    }

    fn remember(&mut self, id: LogId, data: &[u8]) {
        if self.memberships.iter().any(|(known, _)| *known >= id) {
            return; // repeated at the head of a later segment
        }
        self.memberships.push((id, data.into()));
        let surplus = self.memberships.len().saturating_sub(2);
        self.memberships.drain(..surplus);
    }
}

/// Reads the entries that [`Index::plan`] returned. Entries that follow each other in a segment are read at
/// once.
pub(super) fn fetch(plan: &[(u64, Place, Segment)]) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::with_capacity(plan.len());
    for run in plan.chunk_by(|(_, a, _), (_, b, _)| a.segment == b.segment && a.offset < b.offset) {
        let (Some((_, first, segment)), Some((_, last, _))) = (run.first(), run.last()) else { continue };
        let base = first.offset as usize;
        let mut bytes = vec![0; last.offset as usize + last.size as usize - base];
        segment.file.read_at(&mut bytes, u64::from(first.offset))?;
        for (index, place, _) in run {
            let start = place.offset as usize - base;
            let read = record::read_placed(&bytes, start, u64::from(place.offset), segment.seed);
            match read.map(|read| read.record) {
                Some(Record::Entry { id, membership, data }) if id.index == *index => {
                    entries.push(Entry { id, membership, data: data.into() });
                }
                _ => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!(
                            "entry {index} is damaged: segment {}, offset {}",
                            place.segment, place.offset
                        ),
                    ));
                }
            }
        }
    }
    Ok(entries)
}
