//! Numbers for distinct items.
//!
//! A global state of the checked system is a few numbers instead of a tree of structures. Each state of a
//! site, each inbox and each message is stored once, in an interner, and its index stands for it. Comparisons
//! are exact, because the interner compares the items. A copy of a state takes forty bytes. A local step is
//! computed once for all global states in which it occurs.

use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use conclave_kernel::Digest;

/// The items seen so far, shared by all threads. A thread looks an item up only when it meets a combination
/// for the first time, so one lock is enough.
pub(crate) struct Interner<T> {
    table: Mutex<Table<T>>,
}

struct Table<T> {
    items: Vec<T>,
    /// The index of an item plus one, with open addressing; 0 is free. The length is a power of two.
    slots: Vec<u32>,
}

impl<T: Clone + Eq + Hash> Interner<T> {
    pub(crate) fn new() -> Self {
        Self { table: Mutex::new(Table { items: Vec::new(), slots: vec![0; 16] }) }
    }

    /// Returns the number of an item. An unknown item gets a new number.
    pub(crate) fn intern(&self, thing: T) -> u32 {
        self.lock().intern(thing)
    }

    /// Returns a copy of the item with that number.
    pub(crate) fn get(&self, number: u32) -> T {
        self.lock().items[number as usize].clone()
    }

    /// Returns the number of items.
    pub(crate) fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Returns the approximate size in bytes, without the heap memory of the items.
    pub(crate) fn bytes(&self) -> usize {
        let table = self.lock();
        table.items.capacity() * size_of::<T>() + table.slots.capacity() * size_of::<u32>()
    }

    fn lock(&self) -> MutexGuard<'_, Table<T>> {
        // After a panic of another thread the table is consistent: items are pushed before they get their
        // number.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Eq + Hash> Table<T> {
    fn intern(&mut self, thing: T) -> u32 {
        let mut slot = self.slot(&thing);
        while self.slots[slot] != 0 {
            let number = self.slots[slot] - 1;
            if self.items[number as usize] == thing {
                return number;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        let number =
            u32::try_from(self.items.len()).expect("the memory is full long before four billion items");
        self.items.push(thing);
        self.slots[slot] = number + 1;
        if self.items.len() * 4 > self.slots.len() * 3 {
            self.grow();
        }
        number
    }

    fn slot(&self, thing: &T) -> usize {
        let mut digest = Digest::new();
        digest.absorb(thing);
        digest.value() as usize & (self.slots.len() - 1)
    }

    #[cold]
    fn grow(&mut self) {
        self.slots = vec![0; self.slots.len() * 2];
        for index in 0..self.items.len() {
            let mut slot = self.slot(&self.items[index]);
            while self.slots[slot] != 0 {
                slot = (slot + 1) & (self.slots.len() - 1);
            }
            self.slots[slot] = index as u32 + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_things_have_one_number_and_are_found_again_after_growth() {
        let interner = Interner::new();
        let numbers: Vec<u32> = (0..1000).map(|n| interner.intern(format!("thing {}", n % 400))).collect();
        assert_eq!(interner.len(), 400);
        for (n, number) in numbers.iter().enumerate() {
            assert_eq!(interner.get(*number), format!("thing {}", n % 400));
            assert_eq!(*number as usize, n % 400);
        }
    }
}
