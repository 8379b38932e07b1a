//! What to do about deadlocks: transactions over locks, under six ways to get them, all over the same network.
//!
//! Every site has a client, which runs one transaction at a time, and keeps some of the locks. A transaction says at its
//! beginning what it will need, takes its locks one by one as its work gets there, commits, and gives all back.
//!
//! | algorithm | rule | price |
//! |---|---|---|
//! | `detect` | wait; a detector finds the deadlocks ([`Detecting`]) | probes, and aborts |
//! | `all-at-once` | take all locks together, or none | locks are held longer than they are used; one keeper |
//! | `ordered` | take the locks in one global order | locks are taken before they are used |
//! | `wait-die` | the older may wait for the younger; else die and start again, as old as before \[RSL78\] | many aborts |
//! | `wound-wait` | the older takes it from the younger, who starts again; the younger waits \[RSL78\] | fewer aborts |
//! | `safe-state` | a lock that is free is refused if not all could finish then \[D65\] | waiting; one keeper |
//!
//! All but the first are one protocol, [`Locker`], with another [`Rule`]. Locks are spread over the sites; where a rule must see
//! all of them at once site 0 keeps them all. What a site says to itself is no message.

mod detecting;
mod locker;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use conclave_kernel::{Card, Cost, Kind, NodeId, Property, Protocol};
use serde::{Deserialize, Serialize};

pub use detecting::Detecting;
pub use locker::{AllAtOnce, Locker, Ordered, Rule, SafeState, WaitDie, Way, WoundWait};

use super::EdgeChasing;
use super::site::Part;

/// The number of a lock.
pub type Lock = u32;

/// What the layer above asks of a site's client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A transaction begins.
    Begin {
        /// All that it will ever need.
        needs: Vec<Lock>,
        /// Whether it is the one that was aborted: it is as old as it was.
        again: bool,
    },
    /// It needs this one now.
    Lock(Lock),
    /// It is done, and gives everything back.
    Commit,
}

/// What a site's client tells the layer above.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The transaction has that lock.
    Locked(Lock),
    /// The transaction has lost everything, and must begin again.
    Aborted,
    /// It is over.
    Committed,
    /// The command made no sense: no transaction, one already, a lock that it did not say it needs.
    Refused,
}

/// What the sites know from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estate {
    /// N.
    pub nodes: u32,
    /// How many locks there are.
    pub locks: u32,
}

/// An algorithm: a way to get locks.
pub trait Locking: Protocol<Command = Command, Event = Event> {
    /// What it says of itself.
    const CARD: Card;

    /// A site.
    fn new(me: NodeId, estate: &Estate) -> Self;

    /// What a message is, for those who count, and what it is for.
    fn kind(message: &Self::Message) -> (&'static str, Part);
}

/// Nobody shares.
pub const EXCLUSIVE: Property = Property {
    name: "exclusive",
    kind: Kind::Always,
    statement: "no two transactions have one lock at a time",
    source: "[RSL78 §2]",
};
/// Nobody waits for ever, or starts again for ever.
pub const COMMITS: Property = Property {
    name: "commits",
    kind: Kind::Eventually,
    statement: "every transaction commits",
    source: "[RSL78 §3]",
};
/// Prevention and avoidance in the narrow sense.
pub const NO_ABORT: Property = Property {
    name: "no-abort",
    kind: Kind::Always,
    statement: "no transaction is aborted",
    source: "[D65 §6]",
};

/// All of them.
pub const PROPERTIES: [Property; 3] = [EXCLUSIVE, COMMITS, NO_ABORT];

const WITH_ABORTS: &[&str] = &[EXCLUSIVE.name, COMMITS.name];
const WITHOUT_ABORTS: &[&str] = &[EXCLUSIVE.name, COMMITS.name, NO_ABORT.name];

/// How many locks a transaction takes where costs are compared.
pub const PER_TRANSACTION: u32 = 4;

/// So many messages a lock, and so many more, for one transaction of [`PER_TRANSACTION`] locks that meets nobody; fewer if its own
/// site keeps some of them.
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

/// Something to be done with an algorithm whose name is known only at run time.
pub trait Visit {
    /// What comes of it.
    type Out;

    /// Does it.
    fn visit<L: Locking>(self) -> Self::Out;
}

/// Does something with the algorithm of that name; `None` if nobody has it.
pub fn visit<V: Visit>(name: &str, visitor: V) -> Option<V::Out> {
    macro_rules! among {
        ($($algorithm:ty),+) => {
            $(if name == <$algorithm as Locking>::CARD.name {
                return Some(visitor.visit::<$algorithm>());
            })+
        };
    }
    among!(
        Detecting<EdgeChasing>,
        Locker<AllAtOnce>,
        Locker<Ordered>,
        Locker<WaitDie>,
        Locker<WoundWait>,
        Locker<SafeState>
    );
    None
}

/// The cards of all ways, in the order in which they are told.
pub const CARDS: [Card; 6] = [
    <Detecting<EdgeChasing> as Locking>::CARD,
    <Locker<AllAtOnce> as Locking>::CARD,
    <Locker<Ordered> as Locking>::CARD,
    <Locker<WaitDie> as Locking>::CARD,
    <Locker<WoundWait> as Locking>::CARD,
    <Locker<SafeState> as Locking>::CARD,
];

const fn card(
    name: &'static str,
    title: &'static str,
    summary: &'static str,
    papers: &'static [&'static str],
    promises: &'static [&'static str],
    costs: &'static [Cost],
) -> Card {
    let mut card = super::card(name, title, summary, papers, promises, costs);
    card.survives = "nothing else: a lock that was lost is held for ever";
    card
}
