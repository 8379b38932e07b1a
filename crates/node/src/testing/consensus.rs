//! The log on which a cluster has agreed.

use crate::cluster::LogId;
use crate::entry::Batch;

/// An entry of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The position and the term.
    pub id: LogId,
    /// The commands; `None` in the empty entry with which a leader begins its term.
    pub batch: Option<Batch>,
}

/// The log on which a cluster has agreed.
///
/// Every batch gets the term of the moment at which it is appended. Real consensus does the same with a batch
/// that a deposed leader forwards. The log keeps no entries: the caller passes each of them to the replicas.
#[derive(Clone, Debug, Default)]
pub struct Consensus {
    last: LogId,
}

impl Consensus {
    /// Begins a new term and returns its first entry.
    pub fn elect(&mut self) -> Entry {
        self.last.term += 1;
        self.next(None)
    }

    /// Appends a batch in the present term.
    pub fn append(&mut self, batch: Batch) -> Entry {
        self.next(Some(batch))
    }

    /// Returns the identity of the last entry. A read that a quorum confirms now must see the state behind
    /// it.
    pub fn last(&self) -> LogId {
        self.last
    }

    /// Forgets the entries behind this index, which a power cut has removed. The term stays.
    pub(super) fn truncate(&mut self, index: u64) {
        self.last.index = index;
    }

    fn next(&mut self, batch: Option<Batch>) -> Entry {
        self.last.index += 1;
        Entry { id: self.last, batch }
    }
}
