//! A store that checks fences.
//!
//! Locks are advisory. A client that was paused for long, or that never requested the lock, can still write.
//! So the store must check each access itself. Every grant has a fence, and of two conflicting grants the
//! later one has the larger fence. The store therefore remembers the largest fence that it has seen, and
//! rejects a smaller one:
//!
//! - An **exclusive** holder excludes all others. The store rejects it if it has seen any larger fence.
//! - A **shared** holder excludes only exclusive ones. The store rejects it if it has seen a larger
//!   *exclusive* fence. Two shared holders may come in any order, with any fences.
//! - Permits of one **semaphore** do not exclude each other. Their fences have no order, so a store that a
//!   semaphore protects has nothing to compare.

use std::collections::BTreeMap;
use std::fmt;

use conclave_client::Fence;

/// The mode in which a client holds the lock, with the fence of its guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// `guard.fence_of(name)` of an exclusive grant.
    Exclusive(Fence),
    /// `guard.fence_of(name)` of a shared grant.
    Shared(Fence),
}

/// The rejection: another client has held the lock since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The fence of the rejected access.
    pub shown: Fence,
    /// The larger fence that the store has seen before.
    pub seen: Fence,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: fence {} is out of date, {} was here", self.shown, self.seen)
    }
}

impl std::error::Error for Stale {}

/// Lines of text under names. The lock of the same name protects each of them.
#[derive(Clone, Debug, Default)]
pub struct Store {
    items: BTreeMap<String, Item>,
}

#[derive(Clone, Debug, Default)]
struct Item {
    lines: Vec<String>,
    exclusive: Fence,
    shared: Fence,
}

impl Store {
    /// Appends a line.
    ///
    /// # Errors
    /// [`Stale`] if another client has held the lock since; then nothing is changed.
    pub fn append(&mut self, name: &str, held: Held, line: &str) -> Result<(), Stale> {
        let item = self.items.entry(name.to_owned()).or_default();
        item.check(held)?;
        item.lines.push(line.to_owned());
        Ok(())
    }

    /// The lines that were written.
    pub fn lines(&self, name: &str) -> &[String] {
        self.items.get(name).map_or(&[], |item| &item.lines)
    }
}

impl Item {
    /// Compares and records a fence. In a real store this and the write are one transaction, and the fences
    /// are as durable as the data.
    fn check(&mut self, held: Held) -> Result<(), Stale> {
        match held {
            Held::Exclusive(shown) => {
                let seen = self.exclusive.max(self.shared);
                if shown < seen {
                    return Err(Stale { shown, seen });
                }
                self.exclusive = shown;
            }
            Held::Shared(shown) => {
                if shown < self.exclusive {
                    return Err(Stale { shown, seen: self.exclusive });
                }
                self.shared = self.shared.max(shown);
            }
        }
        Ok(())
    }
}
