//! The position of a waiter in a queue.
//!
//! **Rules** (docs/service.md 3). The higher priority goes first, then the earlier command. At the restart
//! of a single node, all waiters are moved before all later requests, whatever their priorities
//! ([`super::early_grant`] has the reason). This subtracts the number of possible priorities from their
//! *class*.

use conclave_core::Priority;
use serde::{Deserialize, Serialize};

/// The identity of an acquire from its command to its release: the number of that command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// The position of a waiter in the total order: the higher priority first, then the earlier command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Rank {
    class: i64,
    pub(super) ticket: Ticket,
}

/// The number of possible priorities. A restart moves the class of each waiter by this number.
const PRIORITIES: i64 = 1 << 32;

impl Rank {
    pub(super) fn new(priority: Priority, ticket: Ticket) -> Self {
        Self { class: -i64::from(priority.0), ticket }
    }

    pub(super) fn priority(self) -> Priority {
        // The cast keeps the low 32 bits, which contain the priority. The high bits count the restarts.
        Priority(self.class.wrapping_neg() as i32)
    }

    /// Returns whether the waiter already waited at a restart of a single node.
    pub(super) fn is_moved_on(self) -> bool {
        self.class < -i64::from(i32::MAX)
    }

    /// Returns the position before all later requests, whatever their priorities. All waiters are moved
    /// together, so their order stays.
    pub(super) fn moved_on(self) -> Self {
        Self { class: self.class.saturating_sub(PRIORITIES), ..self }
    }

    /// Returns the negated priority, lowered by each restart. The smaller class goes first.
    pub(super) fn class(self) -> i64 {
        self.class
    }
}
