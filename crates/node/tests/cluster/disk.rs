//! The disk of a single node: the log, the effects that wait for a sync, and the batches without a result.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use conclave_kernel::Cx;
use conclave_node::cluster::LogId;
use conclave_node::entry::Batch;
use conclave_node::node::{BatchId, Input};
use conclave_node::state::Effect;
use conclave_node::testing::{Entry, SimLog};

use crate::outbox::Replies;
use crate::site::{Site, Timer};

/// The disk of a single node. The log survives its server; everything else is memory.
pub struct Disk {
    log: Arc<Mutex<SimLog>>,
    longest_sync_us: u32,
    /// The effects of applied entries that are not synced.
    held: VecDeque<(LogId, Vec<Effect>)>,
    /// The batches without a result, each with its entries.
    batches: VecDeque<(BatchId, Vec<LogId>)>,
    /// The entries of the batch that is being written.
    written: Vec<LogId>,
    /// The number of entries that the sync in progress covers.
    syncing: Option<usize>,
}

/// The result of a sync.
pub struct Synced {
    pub entries: Vec<Entry>,
    pub inputs: Vec<Input<Arc<Replies>>>,
}

impl Disk {
    pub fn new(log: Arc<Mutex<SimLog>>, longest_sync_us: u32) -> Self {
        let (held, batches) = (VecDeque::new(), VecDeque::new());
        Self { log, longest_sync_us, held, batches, written: Vec::new(), syncing: None }
    }

    /// Cuts the power. Returns the number of entries that were lost, and of those that survived without a
    /// sync.
    pub fn recover(&mut self, cx: &mut Cx<'_, Site>) -> Option<(usize, usize)> {
        let unsynced = self.log().unsynced();
        let most = u32::try_from(unsynced).expect("few entries");
        // Often everything is lost: then many early grants are.
        let kept = if cx.choose(2) == 0 { 0 } else { cx.choose(most + 1) as usize };
        self.log().cut_power(kept);
        (unsynced > 0).then_some((unsynced - kept, kept))
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.log().entries().to_vec()
    }

    pub fn elect(&mut self) -> Entry {
        self.log().elect()
    }

    pub fn last(&self) -> LogId {
        self.log().last()
    }

    pub fn durable_commands(&self) -> u64 {
        self.log().durable_commands()
    }

    pub fn append(&mut self, batch: Batch) -> Entry {
        let entry = self.log().append(batch);
        self.written.push(entry.id);
        entry
    }

    /// Syncs everything at once, as the start of a node does.
    pub fn sync_all(&mut self) -> Vec<Entry> {
        self.written.clear();
        self.log().sync(usize::MAX)
    }

    /// Holds the effects of an entry back until it is synced.
    pub fn hold(&mut self, id: LogId, effects: Vec<Effect>) {
        self.held.push_back((id, effects));
    }

    /// The entries since the last call are one batch. Starts a sync if none is in progress.
    pub fn write(&mut self, batch: BatchId, cx: &mut Cx<'_, Site>) {
        let entries = std::mem::take(&mut self.written);
        self.batches.push_back((batch, entries));
        self.start_sync(cx);
    }

    /// The sync has ended.
    pub fn on_synced(&mut self, cx: &mut Cx<'_, Site>) -> Synced {
        let count = self.syncing.take().unwrap_or_default();
        let entries = self.log().sync(count);
        let mut inputs = Vec::new();
        if let Some(last) = entries.last().map(|entry| entry.id) {
            while let Some((id, effects)) = self.held.pop_front_if(|(id, _)| *id <= last) {
                inputs.push(Input::Applied { id, effects });
            }
            let is_synced = |(_, entries): &mut (BatchId, Vec<LogId>)| entries.iter().all(|id| *id <= last);
            while let Some((batch, entries)) = self.batches.pop_front_if(is_synced) {
                inputs.push(Input::Proposed { batch, results: entries.into_iter().map(Ok).collect() });
            }
        }
        self.start_sync(cx);
        Synced { entries, inputs }
    }

    fn start_sync(&mut self, cx: &mut Cx<'_, Site>) {
        let count = self.log().entries().len();
        if self.syncing.is_none() && self.log().unsynced() > 0 {
            self.syncing = Some(count);
            let sync = Duration::from_micros(100 + u64::from(cx.choose(self.longest_sync_us)));
            cx.arm(Timer::Sync, sync..=sync);
        }
    }

    fn log(&self) -> MutexGuard<'_, SimLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
