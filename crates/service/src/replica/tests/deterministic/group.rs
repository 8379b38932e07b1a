//! The nodes of a run, and their power.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use super::super::support::{Act, Hooked, Notebook, quick};
use super::judge::{Judge, Sometimes};
use super::links::{Link, Links};
use super::seeded;
use crate::replica::disk::SimDisk;
use crate::replica::log::is_segment;
use crate::replica::{Deliveries, Identity, NodeId, Options, Replica};

/// The longest virtual time in which a node must have started or stopped.
const LIMIT: Duration = Duration::from_secs(60);

/// All nodes of a run, with the judge.
pub(super) struct Group(Mutex<State>);

pub(super) struct State {
    pub(super) judge: Judge,
    pub(super) links: Links,
    pub(super) slots: BTreeMap<NodeId, Slot>,
    /// The event after which the power fails.
    pub(super) armed: Option<CutAfter>,
    /// `true` while a change of the membership or a transfer is in progress.
    pub(super) is_changing: bool,
}

/// An event after which the power fails at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutAfter {
    /// A node has sent its vote. Its power fails.
    Vote,
    /// A node has reported entries as appended. Its power fails.
    Append,
    /// A client has a result. The power of all nodes fails.
    Result,
}

/// The place of one node.
pub(super) struct Slot {
    pub(super) disk: SimDisk,
    /// The number of the present boot, or of the last one.
    pub(super) boot: u64,
    /// `None` while the node is down or starts.
    pub(super) replica: Option<Replica<Notebook>>,
    /// `true` if the disk fails or is full. If the node then stops, its power is cut.
    pub(super) is_broken: bool,
    /// `true` while the disk has no space: no file is created, and only the prepared segments of the log can
    /// be written. A start of the node frees space.
    pub(super) is_full: Arc<AtomicBool>,
    /// `true` if the node was ordered to stop.
    pub(super) is_stopping: bool,
}

impl Group {
    pub(super) fn new(nodes: u64) -> Arc<Self> {
        let slot = |node| Slot {
            disk: SimDisk::new(seeded::below(u64::MAX) ^ node),
            boot: 0,
            replica: None,
            is_broken: false,
            is_full: Arc::default(),
            is_stopping: false,
        };
        Arc::new(Self(Mutex::new(State {
            judge: Judge::default(),
            links: Links::default(),
            slots: (1..=nodes).map(|node| (node, slot(node))).collect(),
            armed: None,
            is_changing: false,
        })))
    }

    /// Gives access to the state. Must not be called within itself.
    pub(super) fn with<R>(&self, use_state: impl FnOnce(&mut State) -> R) -> R {
        use_state(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a node that is up, with the number of its boot.
    pub(super) fn up(&self, node: NodeId) -> Option<(Replica<Notebook>, u64)> {
        self.with(|state| {
            let slot = &state.slots[&node];
            slot.replica.clone().map(|replica| (replica, slot.boot))
        })
    }

    pub(super) fn is_boot(&self, node: NodeId, boot: u64) -> bool {
        self.with(|state| state.slots[&node].boot == boot)
    }

    pub(super) fn nodes(&self) -> BTreeSet<NodeId> {
        self.with(|state| state.slots.keys().copied().collect())
    }

    pub(super) fn is_wrong(&self) -> bool {
        self.with(|state| state.judge.wrong.is_some())
    }

    pub(super) fn fail(&self, why: impl FnOnce() -> String) {
        self.with(|state| state.judge.fail(why));
    }

    /// Returns the node that leads in the latest term.
    pub(super) fn leader(&self) -> Option<Replica<Notebook>> {
        let up: Vec<Replica<Notebook>> =
            self.with(|state| state.slots.values().filter_map(|slot| slot.replica.clone()).collect());
        let leaders = up.into_iter().filter(|replica| replica.status().leads());
        leaders.max_by_key(|replica| replica.status().term)
    }

    /// Starts a node that is down, with the contents of its disk.
    pub(super) async fn start(self: &Arc<Self>, node: NodeId) {
        let (disk, boot, is_full) = self.with(|state| {
            let slot = state.slot(node);
            slot.boot += 1;
            (slot.is_broken, slot.is_stopping) = (false, false);
            slot.is_full.store(false, Ordering::Relaxed);
            (slot.disk.handle(), slot.boot, slot.is_full.clone())
        });
        seeded::note(|| format!("node {node} starts"));
        let disk = Hooked::new(disk, move |act: Act, name: &str| {
            seeded::note(|| format!("node {node}: {act:?} {name}"));
            let needs_space = act == Act::Create || act == Act::Write && !is_segment(name);
            match needs_space && is_full.load(Ordering::Relaxed) {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        });
        let link = Arc::new(Link { from: node, boot, group: Arc::downgrade(self) });
        let identity = Identity { cluster: 7, node };
        let opened = Replica::open(Arc::new(disk), identity, link, Notebook::default(), options());
        let (replica, deliveries) = match tokio::time::timeout(LIMIT, opened).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return self.fail(|| format!("node {node} does not start: {error}")),
            Err(_) => return self.fail(|| format!("node {node} hangs at its start")),
        };
        let (term, seen) = (replica.status().term, replica.peek(Notebook::clone));
        self.with(|state| {
            state.judge.on_start(node, term, &seen);
            state.slot(node).replica = Some(replica.clone());
        });
        tokio::spawn(judge_deliveries(self.clone(), node, boot, deliveries));
        tokio::spawn(notice_end(self.clone(), node, boot, replica));
    }

    /// Cuts the power of a node. Does nothing if the node is down.
    pub(super) fn cut_power(self: &Arc<Self>, node: NodeId) {
        let replica = self.with(|state| {
            let slot = state.slot(node);
            let replica = slot.replica.take()?;
            seeded::note(|| format!("node {node}: power cut"));
            slot.boot += 1;
            slot.disk.crash();
            let is_ahead = replica.may_be_unsynced();
            replica.peek(|seen| state.judge.on_power_cut(is_ahead, seen));
            Some(replica)
        });
        // The tasks of the dead node must end, although they cannot reach a disk or another node.
        if let Some(replica) = replica {
            tokio::spawn(self.clone().end(node, replica));
        }
    }

    /// Stops a node in good order. Its disk keeps everything.
    pub(super) async fn stop(self: &Arc<Self>, node: NodeId) {
        let Some((replica, boot)) = self.up(node) else { return };
        self.with(|state| state.slot(node).is_stopping = true);
        replica.transfer_leadership().await;
        self.clone().end(node, replica).await;
        self.with(|state| {
            let slot = state.slot(node);
            if slot.boot == boot {
                seeded::note(|| format!("node {node} has stopped"));
                slot.replica = None;
                slot.boot += 1;
            }
        });
    }

    /// Cuts the power of all nodes at once.
    pub(super) fn cut_power_of_all(self: &Arc<Self>) {
        count(self, |sometimes| &mut sometimes.power_cuts_of_all);
        for node in self.nodes() {
            self.cut_power(node);
        }
    }

    /// Breaks the disk of a node that is up. Returns `false` if it is down.
    pub(super) fn break_disk(&self, node: NodeId, how: impl FnOnce(&SimDisk)) -> bool {
        self.with(|state| {
            let slot = state.slot(node);
            if slot.replica.is_some() {
                slot.is_broken = true;
                how(&slot.disk);
            }
            slot.replica.is_some()
        })
    }

    /// Returns whether the power must fail after this event. It does once.
    pub(super) fn disarm(&self, event: CutAfter) -> bool {
        self.with(|state| {
            let is_armed = state.armed == Some(event);
            if is_armed {
                state.armed = None;
                let sometimes = &mut state.judge.sometimes;
                *match event {
                    CutAfter::Vote => &mut sometimes.cuts_after_vote,
                    CutAfter::Append => &mut sometimes.cuts_after_append,
                    CutAfter::Result => &mut sometimes.cuts_after_result,
                } += 1;
            }
            is_armed
        })
    }

    async fn end(self: Arc<Self>, node: NodeId, replica: Replica<Notebook>) {
        if tokio::time::timeout(LIMIT, replica.shutdown()).await.is_err() {
            self.fail(|| format!("node {node} does not stop"));
        }
    }
}

impl State {
    pub(super) fn slot(&mut self, node: NodeId) -> &mut Slot {
        self.slots.get_mut(&node).expect("a node of the group")
    }
}

/// Counts a situation.
pub(super) fn count(group: &Group, field: impl FnOnce(&mut Sometimes) -> &mut u64) {
    group.with(|state| *field(&mut state.judge.sometimes) += 1);
}

/// Passes the deliveries of a boot to the judge. Some receivers are slow: their replica must wait for them.
async fn judge_deliveries(group: Arc<Group>, node: NodeId, boot: u64, mut deliveries: Deliveries<Notebook>) {
    let is_slow = seeded::one_in(4);
    if is_slow {
        count(&group, |sometimes| &mut sometimes.slow_receivers);
    }
    while let Some(batch) = deliveries.recv().await {
        if is_slow {
            sleep(Duration::from_millis(seeded::below(40))).await;
        }
        if !group.is_boot(node, boot) {
            continue;
        }
        for delivery in batch {
            seeded::note(|| format!("node {node}: {delivery:?}"));
            group.with(|state| state.judge.on_delivery(node, delivery));
        }
    }
}

/// Waits until a node stops by itself. Without a reason, that is a failure.
async fn notice_end(group: Arc<Group>, node: NodeId, boot: u64, replica: Replica<Notebook>) {
    let why = replica.failed().await;
    if !group.is_boot(node, boot) {
        return;
    }
    seeded::note(|| format!("node {node} stops: {why}"));
    let (is_broken, is_stopping) = group.with(|state| {
        let slot = state.slot(node);
        (slot.is_broken, slot.is_stopping)
    });
    match is_broken {
        true => {
            count(&group, |sometimes| &mut sometimes.ends_by_disk);
            group.cut_power(node);
        }
        false if is_stopping => {}
        false => group.fail(|| format!("node {node} stopped by itself: {why}")),
    }
}

/// Options with short times and sizes, so that a short run has elections, segments and snapshots.
fn options() -> Options {
    Options { snapshot_every: 40, keep: 10, answer_limit: Duration::from_secs(3), ..quick() }
}
