//! The log of a single node, on a disk that loses entries that are not synced.

use super::{Consensus, Entry};
use crate::cluster::LogId;

/// The log of a single node. A power cut loses entries that are not synced.
///
/// The caller applies each entry as soon as it is appended, and delivers its effects when [`SimLog::sync`]
/// returns the entry. After a power cut it applies the remaining [`SimLog::entries`] to an empty replica, and
/// begins a new term.
#[derive(Clone, Debug, Default)]
pub struct SimLog {
    consensus: Consensus,
    entries: Vec<Entry>,
    /// The number of entries that no power cut can remove.
    durable: usize,
    /// The number of commands in these entries.
    durable_commands: u64,
}

impl SimLog {
    /// Begins a new term and appends its first entry.
    pub fn elect(&mut self) -> Entry {
        let entry = self.consensus.elect();
        self.entries.push(entry.clone());
        entry
    }

    /// Appends a batch in the present term.
    pub fn append(&mut self, batch: crate::entry::Batch) -> Entry {
        let entry = self.consensus.append(batch);
        self.entries.push(entry.clone());
        entry
    }

    /// Returns the identity of the last entry.
    pub fn last(&self) -> LogId {
        self.consensus.last()
    }

    /// Returns all entries, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the number of commands that no power cut can remove.
    pub fn durable_commands(&self) -> u64 {
        self.durable_commands
    }

    /// Makes the first `count` entries durable. Returns those that were not durable before.
    pub fn sync(&mut self, count: usize) -> Vec<Entry> {
        let count = count.clamp(self.durable, self.entries.len());
        let synced = self.entries[self.durable..count].to_vec();
        self.durable = count;
        let commands = |entry: &Entry| entry.batch.as_ref().map_or(0, |batch| batch.commands.len() as u64);
        self.durable_commands += synced.iter().map(commands).sum::<u64>();
        synced
    }

    /// Returns the number of entries that a power cut can remove.
    pub fn unsynced(&self) -> usize {
        self.entries.len() - self.durable
    }

    /// Cuts the power: of the entries that are not synced, only the first `kept` remain. The term stays,
    /// because a vote is synced before it counts.
    pub fn cut_power(&mut self, kept: usize) {
        self.entries.truncate(self.durable + kept);
        self.consensus.truncate(self.entries.last().map_or(0, |entry| entry.id.index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Batch;

    fn batch() -> Batch {
        let commands = vec![crate::state::Command::SingleNodeRestarted { fences: 1 }];
        Batch { wall_ms: 0, commands }
    }

    #[test]
    fn a_power_cut_removes_only_entries_that_are_not_synced() {
        let mut log = SimLog::default();
        log.elect();
        log.append(batch());
        assert_eq!(log.sync(2).len(), 2);
        (0..3).for_each(|_| _ = log.append(batch()));
        assert_eq!((log.unsynced(), log.durable_commands()), (3, 1));
        log.cut_power(1);
        assert_eq!(log.entries().len(), 3);
        assert_eq!(log.elect().id, LogId { term: 2, index: 4 });
        assert_eq!(log.sync(usize::MAX).len(), 2, "the entry that remained, and the new one");
        assert_eq!((log.unsynced(), log.durable_commands()), (0, 2));
    }
}
