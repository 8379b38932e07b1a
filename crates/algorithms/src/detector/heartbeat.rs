//! The heartbeat detector with a fixed D: silence of more than T + D counts as a crash.
//!
//! On a synchronous network, with D at least the largest delay, the detector makes no mistake. Two
//! consecutive heartbeats are sent T apart, so they arrive at most T + D apart. The detector suspects every
//! crashed site within T + D plus one delay: it is a *perfect* detector.
//!
//! On a network without a bound on delays, no D is long enough. A long D has a price, too: crashes are
//! detected late, or not at all if the site recovers soon.
//!
//! **Trap**: using D alone as the timeout. The timeout is T + D. D must cover the difference between two
//! delays: if one heartbeat takes the smallest delay and the next one the largest, their arrivals are T plus
//! the difference apart.

use core::time::Duration;

use conclave_kernel::{Card, Needs, Time};
use serde::{Deserialize, Serialize};

use super::Group;
use super::pulse::{Estimate, Pulse};

/// The detector with a fixed D.
pub type Heartbeat = Pulse<Fixed>;

/// An estimate that always allows T + D of silence.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fixed {
    patience: Duration,
}

impl Estimate for Fixed {
    const CARD: Card = Card {
        problem: "detector",
        name: "heartbeat",
        title: "Heartbeat with a fixed D",
        summary: "each site sends a heartbeat every T; silence for more than T + D counts as a crash",
        papers: &["CT96"],
        needs: Needs {
            fifo: false,
            no_loss: true,
            no_duplication: false,
            no_crash: false,
            synchrony: true,
            perfect_detector: false,
        },
        promises: &["completeness", "accuracy", "constant-accuracy"],
        costs: &[],
        survives: "any number of crashes; without bounded delays it stays complete, but makes mistakes for ever",
        idle_traffic: true,
        reads_clock: false,
    };
    const NUMBERED: bool = false;

    fn new(group: &Group) -> Self {
        Self { patience: group.period + group.margin }
    }

    fn arrived(&mut self, _number: u64, _now: Time) -> bool {
        true
    }

    fn patience(&self, _now: Time) -> Duration {
        self.patience
    }
}
