//! The log as openraft needs it: entries are readable at once and durable a little later.
//!
//! **Intuition.** The [`Log`] holds only entries that are synced. Openraft reads an entry as soon as it is
//! appended, and again soon after, to apply it and to send it to followers. So the newest entries are kept
//! here, decoded; older ones are read from the segments.
//!
//! **Rules.**
//! - An entry leaves the memory only when it is durable. So at every moment each entry is in memory or in the
//!   segments.
//! - On a single node, openraft treats entries as durable as soon as they are queued. `speculation` then
//!   holds back their effects until the sync.
//!
//! **Bounds.** Beyond [`KEPT_ENTRIES`] or [`KEPT_BYTES`], durable entries leave the memory, oldest first.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{EntryPayload, LogState, OptionalSend, RaftLogReader};

use super::log::{self, Change, Log};
use super::raft_types::{
    RaftEntry, RaftLogId, RaftVote, Types, decode, encode, log_id, log_vote, raft_id, raft_vote,
};
use super::runtime::blocking;
use super::speculation::Speculation;
use super::state_machine::Machine;

/// The most entries kept in memory. Beyond it, the oldest durable entries are read from the segments.
const KEPT_ENTRIES: usize = 8 * 1024;
/// The most bytes of entries kept in memory. Beyond it, the oldest durable entries are read from the
/// segments.
const KEPT_BYTES: usize = 1024 * 1024;
/// The most bytes read from the segments at once, or one entry. The next read returns the rest.
const READ_BYTES: usize = 1024 * 1024;

/// Storage for the log and a reader of it. Openraft makes copies; all share the same state.
pub(super) struct Store<M: Machine> {
    log: Arc<Log>,
    speculation: Arc<Speculation>,
    recent: Arc<Mutex<Recent<M>>>,
}

/// The state of the log as submitted, durable or not.
struct Recent<M: Machine> {
    vote: Option<log::Vote>,
    purged: Option<log::LogId>,
    committed: Option<log::LogId>,
    /// The last entry submitted, or the last purged if there is none.
    last: Option<log::LogId>,
    /// The newest entries, up to `last`.
    entries: VecDeque<RaftEntry<M>>,
    bytes: usize,
}

impl<M: Machine> Clone for Store<M> {
    fn clone(&self) -> Self {
        Self { log: self.log.clone(), speculation: self.speculation.clone(), recent: self.recent.clone() }
    }
}

impl<M: Machine> Store<M> {
    pub(super) fn new(log: Arc<Log>, state: &log::State, speculation: Arc<Speculation>) -> Self {
        let recent = Recent {
            vote: state.vote,
            purged: state.purged,
            committed: state.committed,
            last: state.last,
            entries: VecDeque::new(),
            bytes: 0,
        };
        Self { log, speculation, recent: Arc::new(Mutex::new(recent)) }
    }

    fn recent(&self) -> MutexGuard<'_, Recent<M>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the entries of `from..to` that the log holds: about `bytes` bytes of them, but at least one if
    /// there is any.
    async fn read(&self, from: u64, to: u64, bytes: usize) -> io::Result<Vec<RaftEntry<M>>> {
        loop {
            let (from, to) = {
                let recent = self.recent();
                let from = from.max(recent.purged.map_or(0, |id| id.index + 1));
                let to = to.min(recent.next());
                if from >= to {
                    return Ok(Vec::new());
                }
                let first = recent.first();
                if from >= first {
                    return Ok(recent.copy(from - first, to - first, bytes));
                }
                (from, to.min(first))
            };
            let log = self.log.clone();
            let read = blocking(move || {
                log.read(from..to, bytes)?.iter().map(decode).collect::<io::Result<Vec<_>>>()
            });
            let entries: Vec<RaftEntry<M>> = read.await??;
            // The entries may have been purged or truncated between the check of the bounds and the read.
            // Then the bounds have changed.
            if entries.first().is_some_and(|entry| entry.log_id.index() == from) {
                return Ok(entries);
            }
            let recent = self.recent();
            if recent.purged.is_none_or(|id| id.index < from) && recent.next() > from {
                return Err(io::Error::other(format!("entry {from} is neither in memory nor on disk")));
            }
        }
    }

    async fn read_all(&self, from: u64, to: u64) -> io::Result<Vec<RaftEntry<M>>> {
        let mut all = Vec::new();
        let mut next = from;
        loop {
            let entries = self.read(next, to, usize::MAX).await?;
            let Some(last) = entries.last() else { return Ok(all) };
            next = last.log_id.index() + 1;
            all.extend(entries);
        }
    }
}

impl<M: Machine> Recent<M> {
    fn next(&self) -> u64 {
        self.last.map_or(0, |id| id.index + 1)
    }

    fn first(&self) -> u64 {
        self.next() - self.entries.len() as u64
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Vec<RaftEntry<M>> {
        let range = usize::try_from(from).unwrap_or(usize::MAX)..usize::try_from(to).unwrap_or(usize::MAX);
        let mut total = 0;
        let fits = |entry: &&RaftEntry<M>| {
            let fits = total == 0 || total + weight(entry) <= bytes;
            total += weight(entry);
            fits
        };
        self.entries.range(range).take_while(fits).cloned().collect()
    }

    fn push(&mut self, entry: RaftEntry<M>) -> io::Result<()> {
        let id = log_id(&entry.log_id);
        if id.index != self.next() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("entry {} where entry {} must follow", id.index, self.next()),
            ));
        }
        self.last = Some(id);
        self.bytes += weight(&entry);
        self.entries.push_back(entry);
        Ok(())
    }

    /// Removes the oldest entries beyond the bounds, but none at or after `durable_end`.
    fn trim(&mut self, durable_end: u64) {
        while (self.entries.len() > KEPT_ENTRIES || self.bytes > KEPT_BYTES) && self.first() < durable_end {
            if let Some(entry) = self.entries.pop_front() {
                self.bytes -= weight(&entry);
            }
        }
    }
}

fn weight<M: Machine>(entry: &RaftEntry<M>) -> usize {
    // The numbers are estimates of the memory that an entry takes besides its data.
    match &entry.payload {
        EntryPayload::Normal(proposal) => 128 + 2 * proposal.data().len(),
        EntryPayload::Blank => 64,
        EntryPayload::Membership(membership) => 64 + 128 * membership.nodes().count(),
    }
}

impl<M: Machine> RaftLogReader<Types<M>> for Store<M> {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<RaftEntry<M>>, io::Error> {
        let (from, to) = bounds(&range);
        self.read_all(from, to).await
    }

    async fn entries_stream<R>(
        &mut self,
        range: R,
    ) -> impl Stream<Item = Result<RaftEntry<M>, io::Error>> + OptionalSend
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        // The entries to apply are usually few and in memory.
        let store = self.clone();
        let chunks = stream::try_unfold(from, move |next| {
            let store = store.clone();
            async move {
                let entries = store.read(next, to, READ_BYTES).await?;
                let after = entries.last().map(|entry| entry.log_id.index() + 1);
                io::Result::Ok(after.map(|after| (stream::iter(entries).map(Ok), after)))
            }
        });
        Box::pin(chunks.try_flatten())
    }

    async fn read_vote(&mut self) -> Result<Option<RaftVote>, io::Error> {
        Ok(self.recent().vote.map(raft_vote))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<RaftEntry<M>>, io::Error> {
        self.read(start, end, READ_BYTES).await
    }
}

impl<M: Machine> RaftLogStorage<Types<M>> for Store<M> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types<M>>, io::Error> {
        let recent = self.recent();
        Ok(LogState { last_purged_log_id: recent.purged.map(raft_id), last_log_id: recent.last.map(raft_id) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &RaftVote) -> Result<(), io::Error> {
        let vote = log_vote(vote);
        if has_flaw!(VotesBeforeSync) {
            self.log.submit(Change::Vote(vote), Box::new(drop)).await?;
        } else {
            self.log.write(Change::Vote(vote)).await?;
        }
        self.recent().vote = Some(vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<RaftLogId>) -> Result<(), io::Error> {
        let Some(id) = committed.as_ref().map(log_id) else { return Ok(()) };
        self.recent().committed = Some(id);
        self.log.submit(Change::Committed(id), Box::new(drop)).await
    }

    async fn read_committed(&mut self) -> Result<Option<RaftLogId>, io::Error> {
        Ok(self.recent().committed.map(raft_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types<M>>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = RaftEntry<M>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut encoded = Vec::new();
        {
            let durable_end = self.log.durable_end();
            let mut recent = self.recent();
            for entry in entries {
                encoded.push(encode(&entry)?);
                recent.push(entry)?;
            }
            recent.trim(durable_end);
        }
        if let Some(membership) = encoded.iter().rfind(|entry| entry.membership) {
            self.speculation.change_membership(membership.id.index).await?;
        }
        let end = encoded.last().map_or(0, |entry| entry.id.index + 1);
        if has_flaw!(AppendsBeforeSync) {
            let queued = self.log.submit(Change::Append(encoded), Box::new(drop)).await;
            callback.io_completed(Ok(()));
            return queued;
        }
        if !self.speculation.allow(end) {
            let done = Box::new(|result| callback.io_completed(result));
            return self.log.submit(Change::Append(encoded), done).await;
        }
        let speculation = self.speculation.clone();
        let done = Box::new(move |result| speculation.on_written(end, &result));
        let queued = self.log.submit(Change::Append(encoded), done).await;
        callback.io_completed(match &queued {
            Ok(()) => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        });
        queued
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> Result<(), io::Error> {
        let last = last.as_ref().map(log_id);
        let from = last.map_or(0, |id| id.index + 1);
        {
            let mut recent = self.recent();
            if from < recent.next() {
                let kept = usize::try_from(from.saturating_sub(recent.first())).unwrap_or(usize::MAX);
                recent.entries.truncate(kept);
                recent.bytes = recent.entries.iter().map(weight).sum();
                recent.last = last;
            }
        }
        // Wait for the sync. Until then the log still counts and returns the truncated entries. Entries
        // appended at the same indices would be taken for durable and dropped from memory.
        self.log.write(Change::Truncate { from }).await
    }

    async fn purge(&mut self, id: RaftLogId) -> Result<(), io::Error> {
        let id = log_id(&id);
        {
            let mut recent = self.recent();
            recent.purged = recent.purged.max(Some(id));
            if recent.last.is_none_or(|last| last.index <= id.index) {
                recent.entries.clear();
                recent.bytes = 0;
                recent.last = Some(id);
            }
            while !recent.entries.is_empty() && recent.first() <= id.index {
                if let Some(entry) = recent.entries.pop_front() {
                    recent.bytes -= weight(&entry);
                }
            }
        }
        self.log.submit(Change::Purge(id), Box::new(drop)).await
    }
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(from) => *from,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(to) => *to,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::replica::disk::SimDisk;
    use crate::replica::raft_types::Proposal;
    use crate::replica::tests::support::{Act, Gate, Hooked, Notebook};

    fn entry(term: u64, index: u64, numbers: usize) -> RaftEntry<Notebook> {
        let proposal = Proposal::new(vec![u64::MAX - index; numbers]).unwrap();
        openraft::Entry {
            log_id: raft_id(log::LogId { term, index }),
            payload: EntryPayload::Normal(proposal),
        }
    }

    fn ids(entries: &[RaftEntry<Notebook>]) -> Vec<(u64, u64)> {
        entries.iter().map(|entry| log_id(&entry.log_id)).map(|id| (id.term, id.index)).collect()
    }

    async fn durable(store: &mut Store<Notebook>) {
        store.save_vote(&RaftVote::new(1, 1)).await.unwrap();
    }

    #[tokio::test]
    async fn entries_that_left_the_memory_are_read_from_disk_as_if_they_had_not() {
        let disk = SimDisk::new(1);
        let (log, state) = Log::open(Arc::new(disk.handle()), log::Options::default()).unwrap();
        let mut store: Store<Notebook> = Store::new(Arc::new(log), &state, Arc::new(Speculation::new(None)));
        for index in 0..300 {
            store.append([entry(1, index, 10_000)], IOFlushed::noop()).await.unwrap();
            if index % 20 == 0 {
                durable(&mut store).await;
            }
        }
        let kept = store.recent().entries.len();
        assert!(kept < 250 && store.recent().bytes <= KEPT_BYTES + 40 * 200_000, "{kept} entries stayed");
        let expected: Vec<(u64, u64)> = (0..300).map(|index| (1, index)).collect();
        assert_eq!(ids(&store.try_get_log_entries(..).await.unwrap()), expected);
        assert_eq!(ids(&store.try_get_log_entries(5..=290).await.unwrap()), expected[5..=290]);
        let streamed: Vec<_> = store.entries_stream(0..300).await.try_collect().await.unwrap();
        assert_eq!(ids(&streamed), expected);
        let limited = store.limited_get_log_entries(0, 300).await.unwrap();
        assert!(!limited.is_empty() && limited.len() < 30, "{} entries at once", limited.len());

        // Truncate far below the entries in memory, then append. The new entries are readable before they are
        // durable.
        store.truncate_after(Some(raft_id(log::LogId { term: 1, index: 9 }))).await.unwrap();
        store.append([entry(2, 10, 1), entry(2, 11, 1)], IOFlushed::noop()).await.unwrap();
        let expected: Vec<(u64, u64)> = (0..10).map(|index| (1, index)).chain([(2, 10), (2, 11)]).collect();
        assert_eq!(ids(&store.try_get_log_entries(..).await.unwrap()), expected);
        store.purge(raft_id(log::LogId { term: 1, index: 7 })).await.unwrap();
        assert_eq!(ids(&store.try_get_log_entries(..).await.unwrap()), expected[8..]);
        durable(&mut store).await;
        assert_eq!(ids(&store.try_get_log_entries(..).await.unwrap()), expected[8..]);
    }

    /// A new leader replaces entries of an old leader. The new entries may be applied, and thus read here,
    /// before they are durable.
    #[tokio::test]
    async fn entries_that_replace_truncated_ones_are_read_from_the_disk() {
        let gate = Arc::new(Gate::default());
        let disk = Hooked::new(SimDisk::new(1).handle(), {
            let gate = gate.clone();
            move |act, _| {
                if act == Act::Sync {
                    gate.pass();
                }
                Ok(())
            }
        });
        let (log, state) = Log::open(Arc::new(disk), log::Options::default()).unwrap();
        let mut store: Store<Notebook> = Store::new(Arc::new(log), &state, Arc::new(Speculation::new(None)));
        store.append((0..6).map(|index| entry(1, index, 1)), IOFlushed::noop()).await.unwrap();
        durable(&mut store).await;
        gate.close();
        let mut truncating = store.clone();
        let truncation = truncating.truncate_after(Some(raft_id(log::LogId { term: 1, index: 0 })));
        let mut truncation = std::pin::pin!(truncation);
        if truncation.as_mut().now_or_never().is_none() {
            gate.open();
            truncation.await.unwrap();
        }
        let replaced: Vec<RaftEntry<Notebook>> = (1..300).map(|index| entry(2, index, 400)).collect();
        store.append(replaced.clone(), IOFlushed::noop()).await.unwrap();
        assert_eq!(ids(&store.try_get_log_entries(1..300).await.unwrap()), ids(&replaced));
        gate.open();
    }

    #[tokio::test]
    async fn a_purge_beyond_the_end_empties_the_log_and_it_goes_on_behind() {
        let disk = SimDisk::new(1);
        let (log, state) = Log::open(Arc::new(disk.handle()), log::Options::default()).unwrap();
        let mut store: Store<Notebook> = Store::new(Arc::new(log), &state, Arc::new(Speculation::new(None)));
        store.append([entry(1, 0, 1)], IOFlushed::noop()).await.unwrap();
        store.purge(raft_id(log::LogId { term: 3, index: 50 })).await.unwrap();
        let held = store.get_log_state().await.unwrap();
        assert_eq!(held.last_log_id, held.last_purged_log_id);
        assert!(store.append([entry(3, 1, 1)], IOFlushed::noop()).await.is_err(), "a hole");
        store.append([entry(3, 51, 1)], IOFlushed::noop()).await.unwrap();
        assert_eq!(ids(&store.try_get_log_entries(..).await.unwrap()), vec![(3, 51)]);
    }
}
