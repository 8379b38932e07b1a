//! A store that checks fences.
//!
//! A lock is advice: a client that was stopped for long, or that never asked, writes all the same. What is guarded must look
//! for itself. Every grant comes with a fence, and of two grants that exclude each other the later has the larger one. So
//! it is enough to remember the largest that was seen, and to refuse whoever comes with less:
//!
//! - an **exclusive** holder excludes everybody, and is refused if any larger fence was seen;
//! - a **shared** holder excludes exclusive ones only, and is refused if a larger *exclusive* fence was seen. Two shared
//!   holders may come in any order, with any fences;
//! - permits of one **semaphore** do not exclude each other: their fences say nothing about their order, and a store
//!   that is guarded by one has nothing to compare.

use std::collections::BTreeMap;
use std::fmt;

use conclave_client::Fence;

/// How the lock is held that guards an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// By `guard.fence_of(name)`, alone.
    Exclusive(Fence),
    /// By `guard.fence_of(name)`, with others.
    Shared(Fence),
}

/// Somebody else held the lock since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The fence that was shown.
    pub shown: Fence,
    /// The fence that was seen before.
    pub seen: Fence,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: fence {} is out of date, {} was here", self.shown, self.seen)
    }
}

impl std::error::Error for Stale {}

/// Lines of text under names, each name guarded by the lock of the same name.
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
    /// [`Stale`] if the lock was held by another since; then nothing is changed.
    pub fn append(&mut self, name: &str, held: Held, line: &str) -> Result<(), Stale> {
        let item = self.items.entry(name.to_owned()).or_default();
        item.check(held)?;
        item.lines.push(line.to_owned());
        Ok(())
    }

    /// What was written.
    pub fn lines(&self, name: &str) -> &[String] {
        self.items.get(name).map_or(&[], |item| &item.lines)
    }
}

impl Item {
    /// In a real store this and the write are one transaction, and the fences are as durable as the data.
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
