//! The heartbeat detector with a fixed D: silence of more than T + D means a crash.
//!
//! On a synchronous network with D at least the largest delay it makes no mistake: of two heartbeats the
//! first was sent T before the second, so that they arrive at most T + D apart. It then notices every crash
//! within T + D plus one delay: it is a *perfect* detector. On any other network it is worth nothing: there
//! is no D that is long enough, and a long D notices crashes late or, if the site is back soon, never.
//!
//! **Trap**: D is added to T, not put in its place; and the largest delay counts from the smallest: what
//! matters is how much later than the one before it a heartbeat may be, and the one before it may have been
//! fast.

use core::time::Duration;

use conclave_kernel::{Card, Needs, Time};
use serde::{Deserialize, Serialize};

use super::Group;
use super::pulse::{Estimate, Pulse};

/// The detector with a fixed D.
pub type Heartbeat = Pulse<Fixed>;

/// Always T + D.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fixed {
    patience: Duration,
}

impl Estimate for Fixed {
    const CARD: Card = Card {
        problem: "detector",
        name: "heartbeat",
        title: "Heartbeat with a fixed D",
        summary: "a heartbeat every T; silence of more than T + D is taken for a crash",
        papers: &["CT96"],
        needs: Needs {
            fifo: false,
            no_loss: true,
            no_duplication: false,
            no_crash: false,
            synchrony: true,
            perfect_detector: false,
        },
        promises: &["completeness", "accuracy"],
        costs: &[],
        survives: "any number of crashes; without bounded delays it is complete, but errs for ever",
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
