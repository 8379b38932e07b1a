//! Names as small numbers. The graph uses arrays inside, and the caller's names outside.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use super::GraphError;

/// A small number that stands for a name.
pub(super) type Slot = u32;

/// The largest number of slots. It leaves one bit free, which distinguishes two kinds of slots.
const LIMIT: Slot = Slot::MAX / 2;

/// A table of values by name and by slot.
#[derive(Clone, Debug)]
pub(super) struct Slots<K, V> {
    by_name: BTreeMap<K, Slot>,
    things: Vec<(K, V)>,
}

impl<K: Ord + Copy, V: Default> Slots<K, V> {
    pub(super) fn new() -> Self {
        Self { by_name: BTreeMap::new(), things: Vec::new() }
    }

    pub(super) fn slot(&self, name: &K) -> Option<Slot> {
        self.by_name.get(name).copied()
    }

    /// Returns the slot of `name`. Allocates one if there is none.
    pub(super) fn intern(&mut self, name: K) -> Result<Slot, GraphError> {
        if let Some(slot) = self.slot(&name) {
            return Ok(slot);
        }
        let slot = Slot::try_from(self.things.len()).ok().filter(|slot| *slot < LIMIT);
        let slot = slot.ok_or(GraphError::Full)?;
        self.things.push((name, V::default()));
        self.by_name.insert(name, slot);
        Ok(slot)
    }

    pub(super) fn name(&self, slot: Slot) -> &K {
        &self.things[slot as usize].0
    }

    /// Iterates over all names and their slots, in order of names.
    pub(super) fn names(&self) -> impl Iterator<Item = (K, Slot)> {
        self.by_name.iter().map(|(name, slot)| (*name, *slot))
    }
}

impl<K, V> Index<Slot> for Slots<K, V> {
    type Output = V;

    fn index(&self, slot: Slot) -> &V {
        &self.things[slot as usize].1
    }
}

impl<K, V> IndexMut<Slot> for Slots<K, V> {
    fn index_mut(&mut self, slot: Slot) -> &mut V {
        &mut self.things[slot as usize].1
    }
}

/// The slots that a search has met, numbered in the order in which it met them. The table is as large as the
/// number of met slots, not as the graph. It uses open addressing and is at most half full. Iteration follows
/// the list, so the order is always the same.
#[derive(Debug)]
pub(super) struct Local {
    met: Vec<Slot>,
    table: Vec<u32>,
}

const EMPTY: u32 = u32::MAX;

impl Local {
    pub(super) fn new() -> Self {
        Self { met: Vec::new(), table: vec![EMPTY; 16] }
    }

    /// Returns the number of `slot`, and whether it is new.
    pub(super) fn meet(&mut self, slot: Slot) -> (usize, bool) {
        let at = self.probe(slot);
        if self.table[at] != EMPTY {
            return (self.table[at] as usize, false);
        }
        let number = self.met.len();
        self.met.push(slot);
        self.table[at] = u32::try_from(number).expect("no more numbers than slots");
        if 2 * self.met.len() > self.table.len() {
            self.grow();
        }
        (number, true)
    }

    pub(super) fn number(&self, slot: Slot) -> Option<usize> {
        let number = self.table[self.probe(slot)];
        (number != EMPTY).then_some(number as usize)
    }

    pub(super) fn slot(&self, number: usize) -> Slot {
        self.met[number]
    }

    pub(super) fn len(&self) -> usize {
        self.met.len()
    }

    /// Returns the index of `slot` in the table, or the index at which it would be inserted.
    fn probe(&self, slot: Slot) -> usize {
        let mask = self.table.len() - 1;
        // Fibonacci hashing: slots are dense, and it spreads neighbours over the table.
        let mut at = (u64::from(slot).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize & mask;
        while self.table[at] != EMPTY && self.met[self.table[at] as usize] != slot {
            at = (at + 1) & mask;
        }
        at
    }

    fn grow(&mut self) {
        self.table = vec![EMPTY; 2 * self.table.len()];
        for number in 0..self.met.len() {
            let at = self.probe(self.met[number]);
            self.table[at] = u32::try_from(number).expect("no more numbers than slots");
        }
    }
}
