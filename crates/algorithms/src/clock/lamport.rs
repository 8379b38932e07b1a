//! Lamport's clock: a counter that never contradicts causality.
//!
//! Every site counts. A message carries the sender's count, and the receiver jumps ahead of it. Then, if one
//! event could have caused another, its count is smaller; the converse does not hold.
//!
//! **Rules** \[L78\]: tick before every event; on receipt, take the larger of the two counts, *then* tick.
//! Counts of different sites may tie; [`Stamp`] breaks ties by the site's id, which makes a total order.
//!
//! **Trap**: the order is (time, site), never the time alone; and the larger is taken on *every* message.

use conclave_kernel::NodeId;
use serde::{Deserialize, Serialize};

/// A site's counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LamportClock(u64);

impl LamportClock {
    /// A clock that has seen nothing.
    pub const fn new() -> Self {
        Self(0)
    }

    /// What it shows.
    pub const fn time(self) -> u64 {
        self.0
    }

    /// A local event, or the sending of a message. \[L78 IR1\]
    pub const fn tick(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    /// The receipt of a message stamped `theirs`. \[L78 IR2\]
    pub fn receive(&mut self, theirs: u64) -> u64 {
        self.merge(theirs);
        self.tick()
    }

    /// Learns of a count without an event of its own: the "highest sequence number seen" of \[RA81\].
    pub fn merge(&mut self, theirs: u64) {
        self.0 = self.0.max(theirs);
    }
}

/// A count and the site that made it: the total order of requests, and their name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// The count; compared first.
    pub time: u64,
    /// The site; breaks ties.
    pub site: NodeId,
}

impl Stamp {
    /// The stamp of an event at that site.
    pub const fn new(time: u64, site: NodeId) -> Self {
        Self { time, site }
    }

    /// The same order as one number, for a group of that size.
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
