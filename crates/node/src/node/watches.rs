//! The watches of the clients of this node.
//!
//! **Intuition.** The state keeps a history of changes, which every node has. The watches are kept here, by
//! the node to which the client is connected. A watch costs no log entry, and a client can continue it on any
//! node.
//!
//! **Rules** (docs/service.md 7). A watch gets every change after the index that it names, in order. If the
//! history does not reach back to that index, the watch gets a *resync*: the client must read again. An event
//! is sent before the answer of a query that shows its change, on the same connection.
//!
//! **Trap.** The state may contain entries whose effects the node has not handled yet. A query then shows a
//! change before its event. So the node takes the missing events from the history before it sends the answer
//! ([`Watches::catch_up`]).
//!
//! **Bounds.** [`MAX_WATCHES`] watches for each connection; one more is rejected.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeBounds;

use conclave_core::report::WatchEvent;
use conclave_core::{Code, Error};

use super::ConnectionId;
use crate::state::State;
use crate::state::watch::{Change, WatchId, WatchTarget, is_target, targets};

/// The most watches of one connection.
pub const MAX_WATCHES: usize = 4096;

/// The connection that has the watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatcherId(pub ConnectionId);

/// An event for one watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatcherEvent {
    /// The holder of the watch.
    pub watcher: WatcherId,
    /// The number of the watch.
    pub watch: WatchId,
    /// The event.
    pub event: WatchEvent,
}

/// The watches of the clients of this node.
#[derive(Debug, Default)]
pub struct Watches {
    watches: BTreeMap<(WatcherId, WatchId), Watch>,
    by_target: BTreeMap<WatchTarget, BTreeSet<(WatcherId, WatchId)>>,
    /// The index of the last change that was passed on.
    passed_on: u64,
}

#[derive(Debug)]
struct Watch {
    target: WatchTarget,
    /// The index up to which the watch needs no events: they were sent when it began.
    seen: u64,
}

impl Watches {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a watch of everything after `from`, and returns the events since then. Without `from` the watch
    /// starts now. A number in use moves that watch to the new target.
    ///
    /// # Errors
    /// [`Code::LimitReached`] beyond [`MAX_WATCHES`].
    pub fn watch(
        &mut self,
        state: &State,
        watcher: WatcherId,
        watch: WatchId,
        target: WatchTarget,
        from: Option<u64>,
    ) -> Result<Vec<WatcherEvent>, Error> {
        self.unwatch(watcher, watch);
        if self.watches.range((watcher, 0)..=(watcher, u64::MAX)).take(MAX_WATCHES).count() >= MAX_WATCHES {
            let text = format!("a connection has at most {MAX_WATCHES} watches: end some of them");
            return Err(Error::new(Code::LimitReached, text));
        }
        let from = from.unwrap_or(state.applied());
        let missed = missed(state, watcher, watch, &target, from);
        self.by_target.entry(target.clone()).or_default().insert((watcher, watch));
        // This node may be behind the node that the client has read from.
        self.watches.insert((watcher, watch), Watch { target, seen: from.max(state.applied()) });
        Ok(missed)
    }

    /// Ends a watch.
    pub fn unwatch(&mut self, watcher: WatcherId, watch: WatchId) {
        let Some(Watch { target, .. }) = self.watches.remove(&(watcher, watch)) else { return };
        if let Some(watching) = self.by_target.get_mut(&target) {
            watching.remove(&(watcher, watch));
            if watching.is_empty() {
                self.by_target.remove(&target);
            }
        }
    }

    /// Ends all watches of a connection that has ended.
    pub fn end(&mut self, watcher: WatcherId) {
        let all = self.watches.range((watcher, 0)..=(watcher, u64::MAX));
        let ids: Vec<WatchId> = all.map(|((_, watch), _)| *watch).collect();
        ids.into_iter().for_each(|watch| self.unwatch(watcher, watch));
    }

    /// Returns the events that follow from a change. Called with every
    /// [`Effect::Changed`](crate::state::Effect), in order.
    pub fn on_change(&mut self, change: &Change) -> Vec<WatcherEvent> {
        self.passed_on = change.index;
        if self.watches.is_empty() {
            return Vec::new();
        }
        let watching = targets(change).into_iter().flatten().filter_map(|target| self.by_target.get(&target));
        let unseen = watching.flatten().filter(|key| self.watches[key].seen < change.index);
        unseen.map(|&(watcher, watch)| WatcherEvent { watcher, watch, event: change.to_event() }).collect()
    }

    /// Returns the events that all watches missed when a snapshot replaced the state of this node.
    pub fn on_snapshot(&mut self, state: &State) -> Vec<WatcherEvent> {
        let events = self.advance(.., state);
        self.passed_on = state.applied();
        events
    }

    /// Returns the events of one connection that the state already contains, and that
    /// [`Watches::on_change`] has not returned yet. It does not return them again.
    pub fn catch_up(&mut self, state: &State, watcher: WatcherId) -> Vec<WatcherEvent> {
        if state.changes_since(self.passed_on).is_some_and(|mut changes| changes.next().is_none()) {
            return Vec::new();
        }
        self.advance((watcher, 0)..=(watcher, u64::MAX), state)
    }

    fn advance(
        &mut self,
        watches: impl RangeBounds<(WatcherId, WatchId)>,
        state: &State,
    ) -> Vec<WatcherEvent> {
        let mut events = Vec::new();
        for ((watcher, id), watch) in self.watches.range_mut(watches) {
            events.extend(missed(state, *watcher, *id, &watch.target, watch.seen.max(self.passed_on)));
            watch.seen = watch.seen.max(state.applied());
        }
        events
    }
}

fn missed(
    state: &State,
    watcher: WatcherId,
    watch: WatchId,
    target: &WatchTarget,
    from: u64,
) -> Vec<WatcherEvent> {
    let to_watcher = |event| WatcherEvent { watcher, watch, event };
    match state.changes_since(from) {
        None => vec![to_watcher(WatchEvent::Resync { index: state.applied() })],
        Some(changes) => {
            // Only the changes of this target are copied; the history may be long.
            let is_mine = |change: &&Change| is_target(target, change);
            changes.filter(is_mine).map(|change| to_watcher(change.to_event())).collect()
        }
    }
}
