//! Lamport's clock: a counter that never contradicts causality.
//!
//! Every site counts its events. A message carries the sender's count, and the receiver raises its own count
//! above it. If one event could have caused another, its count is then smaller. The converse does not hold.
//!
//! **Rules** \[L78\]: tick before every event. On receipt, take the larger of the two counts, *then* tick.
//! Counts of different sites may be equal. [`Stamp`] breaks such ties by the site's id, which makes a total
//! order.
//!
//! **Trap**: the order is (time, site), never the time alone. The receiver takes the larger count on *every*
//! message.

use conclave_kernel::NodeId;
use serde::{Deserialize, Serialize};

/// The counter of one site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LamportClock(u64);

impl LamportClock {
    /// Creates a clock at 0.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Returns the current count.
    pub const fn time(self) -> u64 {
        self.0
    }

    /// Counts a local event or the sending of a message, and returns the new count. \[L78 IR1\]
    pub const fn tick(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    /// Counts the receipt of a message stamped `theirs`, and returns the new count. \[L78 IR2\]
    pub fn receive(&mut self, theirs: u64) -> u64 {
        self.merge(theirs);
        self.tick()
    }

    /// Raises the count to `theirs` without counting an event: the "highest sequence number seen" of
    /// \[RA81\].
    pub fn merge(&mut self, theirs: u64) {
        self.0 = self.0.max(theirs);
    }
}

/// A count and the site that made it. Stamps order requests totally and identify them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// The count; compared first.
    pub time: u64,
    /// The site; breaks ties.
    pub site: NodeId,
}

impl Stamp {
    /// Creates the stamp of an event at that site.
    pub const fn new(time: u64, site: NodeId) -> Self {
        Self { time, site }
    }

    /// Returns one number with the same order, for a group of that size.
    pub const fn rank(self, nodes: u32) -> u64 {
        self.time * nodes as u64 + self.site.0 as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_is_later_than_the_sending() {
        let (mut sender, mut receiver) = (LamportClock(7), LamportClock(3));
        let sent = sender.tick();
        assert!(receiver.receive(sent) > sent);
        assert_eq!(receiver.time(), 9);
    }

    #[test]
    fn ties_go_to_the_smaller_id_and_the_rank_agrees() {
        let stamps = [(1, 0), (1, 2), (2, 0), (2, 1)].map(|(time, site)| Stamp::new(time, NodeId(site)));
        assert!(stamps.is_sorted());
        assert!(stamps.map(|stamp| stamp.rank(3)).is_sorted_by(|a, b| a < b));
    }
}
