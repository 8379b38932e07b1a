//! Strategies against deadlocks: transactions over locks, with six ways to get the locks, all over the same
//! network.
//!
//! Every site has a client, which runs one transaction at a time, and keeps some of the locks. A transaction
//! announces its locks when it begins. It takes them one by one as its work needs them. Then it commits and
//! releases all of them.
//!
//! | algorithm | rule | price |
//! |---|---|---|
//! | `detect` | wait; a detector finds the deadlocks ([`Detecting`]) | probes, and aborts |
//! | `all-at-once` | take all locks together, or none | locks are held longer than needed; one keeper |
//! | `ordered` | take the locks in one global order | locks are taken before they are used |
//! | `wait-die` | the older may wait; the younger restarts, with its old age \[RSL78\] | many aborts |
//! | `wound-wait` | the older takes the lock, its holder restarts; a younger waits \[RSL78\] | fewer aborts |
//! | `safe-state` | grant a free lock only if all could still finish \[D65\] | waiting; one keeper |
//!
//! All but the first are one protocol, [`Locker`], with different [`Rule`]s. The locks are spread over the
//! sites. If a rule needs a view of all locks, site 0 keeps all of them. A message of a site to itself does
//! not count.

mod detecting;
mod locker;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use conclave_kernel::{Card, Cost, Kind, NodeId, Property, Protocol};
use serde::{Deserialize, Serialize};

pub use detecting::Detecting;
pub use locker::{AllAtOnce, Locker, Ordered, Rule, SafeState, WaitDie, Way, WoundWait};

use super::site::Part;

/// The number of a lock.
pub type Lock = u32;

/// A command of the layer above to a site's client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Begin a transaction.
    Begin {
        /// All locks that it will ever need.
        needs: Vec<Lock>,
        /// Whether it repeats the aborted transaction. Then it keeps its age.
        again: bool,
    },
    /// Take this lock now.
    Lock(Lock),
    /// Commit, and release all locks.
    Commit,
}

/// An event of a site's client for the layer above.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The transaction has the lock.
    Locked(Lock),
    /// The transaction has lost all its locks, and must begin again.
    Aborted,
    /// The transaction has committed.
    Committed,
    /// The command made no sense: no transaction runs, or one runs already, or the lock was not announced.
    Refused,
}

/// The initial configuration, which all sites share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estate {
    /// N, the number of sites.
    pub nodes: u32,
    /// The number of locks.
    pub locks: u32,
}

/// An algorithm: a way to get locks.
pub trait Locking: Protocol<Command = Command, Event = Event> {
    /// The card of the algorithm.
    const CARD: Card;

    /// Creates a site.
    fn new(me: NodeId, estate: &Estate) -> Self;

    /// Returns the type of a message and its purpose, for counts.
    fn kind(message: &Self::Message) -> (&'static str, Part);
}

/// No two transactions have a lock at the same time.
pub const EXCLUSIVE: Property = Property {
    name: "exclusive",
    kind: Kind::Always,
    statement: "no two transactions hold the same lock at the same time",
    source: "[RSL78 §2]",
};
/// No transaction waits for ever or restarts for ever.
pub const COMMITS: Property = Property {
    name: "commits",
    kind: Kind::Eventually,
    statement: "every transaction commits",
    source: "[RSL78 §3]",
};
/// No transaction is aborted: prevention and avoidance in the narrow sense.
pub const NO_ABORT: Property = Property {
    name: "no-abort",
    kind: Kind::Always,
    statement: "no transaction is aborted",
    source: "[D65 §6]",
};

/// All properties of these algorithms.
pub const PROPERTIES: [Property; 3] = [EXCLUSIVE, COMMITS, NO_ABORT];

const WITH_ABORTS: &[&str] = &[EXCLUSIVE.name, COMMITS.name];
const WITHOUT_ABORTS: &[&str] = &[EXCLUSIVE.name, COMMITS.name, NO_ABORT.name];

/// The number of locks of a transaction in cost comparisons.
pub const PER_TRANSACTION: u32 = 4;

/// Builds the cost of one transaction with [`PER_TRANSACTION`] locks and without conflicts: the formula, and
/// the largest number of messages. It needs fewer if its own site keeps some of the locks.
macro_rules! cost {
    ($formula:literal, $most:expr) => {
        &[conclave_kernel::Cost {
            measure: conclave_kernel::Measure::Messages,
            load: conclave_kernel::Load::Low,
            formula: $formula,
            range: |_| (0.0, f64::from($most)),
        }]
    };
}
use cost;

/// Expands to an array of `$entry!(L)`, for each of these algorithms L, in the order in which they are
/// explained.
#[macro_export]
macro_rules! each_locking {
    ($entry:ident) => {
        [
            $entry!($crate::deadlock::locking::Detecting<$crate::deadlock::EdgeChasing>),
            $entry!($crate::deadlock::locking::Locker<$crate::deadlock::locking::AllAtOnce>),
            $entry!($crate::deadlock::locking::Locker<$crate::deadlock::locking::Ordered>),
            $entry!($crate::deadlock::locking::Locker<$crate::deadlock::locking::WaitDie>),
            $entry!($crate::deadlock::locking::Locker<$crate::deadlock::locking::WoundWait>),
            $entry!($crate::deadlock::locking::Locker<$crate::deadlock::locking::SafeState>),
        ]
    };
}

pub use crate::each_locking as each;

macro_rules! card_of {
    ($algorithm:ty) => {
        <$algorithm as Locking>::CARD
    };
}

/// The cards of all these algorithms, in the order in which they are explained.
pub const CARDS: [Card; 6] = each_locking!(card_of);

const fn card(
    name: &'static str,
    title: &'static str,
    summary: &'static str,
    papers: &'static [&'static str],
    promises: &'static [&'static str],
    costs: &'static [Cost],
) -> Card {
    let mut card = super::card(name, title, summary, papers, promises, costs);
    card.survives = "no other fault: if a message about a lock is lost, the lock may be held for ever";
    card
}
