//! The place of a waiter in line.
//!
//! **Rules** (docs/service.md 3). The higher priority goes first, then the earlier command. When a single server is started
//! again, all who wait then go before all who come later, whatever their priority ([`super::handover`] says why): their
//! *class* is moved on, by as many as there are priorities.

use conclave_api::Priority;
use serde::{Deserialize, Serialize};

/// An acquire, from its command to its release: the number of that command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// The place of a waiter in the one total order: the higher priority first, then the earlier command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Rank {
    class: i64,
    pub(super) ticket: Ticket,
}

/// As many as there are priorities: that far the class is moved on when the server is restarted.
const PRIORITIES: i64 = 1 << 32;

impl Rank {
    pub(super) fn new(priority: Priority, ticket: Ticket) -> Self {
        Self { class: -i64::from(priority.0), ticket }
    }

    pub(super) fn priority(self) -> Priority {
        // What is cut off says how often it was moved on.
        Priority(self.class.wrapping_neg() as i32)
    }

    /// Whether it was there when the server was restarted.
    pub(super) fn is_moved_on(self) -> bool {
        self.class < -i64::from(i32::MAX)
    }

    /// The place before everybody who comes from now on, whatever its priority. All who wait are moved together, so
    /// that their order stays.
    pub(super) fn moved_on(self) -> Self {
        Self { class: self.class.saturating_sub(PRIORITIES), ..self }
    }

    /// The priority turned round: the smaller goes first.
    pub(super) fn class(self) -> i64 {
        self.class
    }
}
