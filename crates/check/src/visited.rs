//! The set of visited states, as 64-bit fingerprints.
//!
//! Two states with the same fingerprint count as one. With n states, the probability of such a pair is about
//! n^2 / 2^65. Every report contains it.
//!
//! Each shard is an open-addressing table in which the home of a fingerprint is proportional to its value. So
//! the table is nearly sorted, and growing is one pass from front to back. The size can be any number, not
//! only a power of two, so the table grows by a third at a time. It takes 10 to 13 bytes per fingerprint, and
//! half as much again with parents.
//!
//! Only the upper half of a parent is stored. It identifies the few possible parents in a sorted table. The
//! walk forward along the path decides between them.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The set, in shards, so that threads seldom wait for each other.
pub(crate) struct Visited {
    shards: Vec<Mutex<Shard>>,
}

/// The number of shards.
pub(crate) const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 5;

/// Returns the shard of a fingerprint.
#[inline]
pub(crate) fn shard_of(fingerprint: u64) -> usize {
    (fingerprint >> (u64::BITS - SHARD_BITS)) as usize
}

impl Visited {
    /// Creates an empty set. With `parents`, each state stores one state from which it was reached.
    pub(crate) fn new(parents: bool) -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::new(Shard::new(parents))).collect() }
    }

    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a state. Returns whether it is new.
    pub(crate) fn insert(&self, fingerprint: u64, parent: u64) -> bool {
        self.lock(shard_of(fingerprint)).insert(fingerprint, parent)
    }

    /// Returns the states from which that one may have been reached: the stored parent, and all states with
    /// the same upper half.
    pub(crate) fn parents(&self, fingerprint: u64) -> Vec<u64> {
        let parent = self.lock(shard_of(fingerprint)).parent(fingerprint);
        let first = parent.map(|parent| u64::from(parent) << 32);
        first.map_or_else(Vec::new, |first| {
            self.lock(shard_of(first)).between(first, first | u64::from(u32::MAX))
        })
    }

    /// Returns the number of states.
    pub(crate) fn len(&self) -> u64 {
        (0..SHARDS).map(|shard| self.lock(shard).len as u64).sum()
    }

    /// Returns the size of the tables in bytes.
    pub(crate) fn bytes(&self) -> usize {
        (0..SHARDS)
            .map(|shard| self.lock(shard))
            .map(|shard| 8 * shard.keys.len() + 4 * shard.parents.len())
            .sum()
    }
}

/// One part of the set.
pub(crate) struct Shard {
    /// The fingerprints; 0 is a free place.
    keys: Vec<u64>,
    /// The upper halves of the parents, in the same places; empty if parents are not stored.
    parents: Vec<u32>,
    len: usize,
}

const FEWEST_SLOTS: usize = 256;

impl Shard {
    fn new(parents: bool) -> Self {
        let parents = if parents { vec![0; FEWEST_SLOTS] } else { Vec::new() };
        Self { keys: vec![0; FEWEST_SLOTS], parents, len: 0 }
    }

    /// Loads the home of a fingerprint into the cache. The caller must use the result, but its value has no
    /// meaning.
    #[inline]
    pub(crate) fn touch(&self, fingerprint: u64) -> u64 {
        self.keys[home(fingerprint, self.keys.len())]
    }

    /// Adds a state. Returns whether it is new.
    #[inline]
    pub(crate) fn insert(&mut self, fingerprint: u64, parent: u64) -> bool {
        debug_assert_ne!(fingerprint, 0);
        let mut slot = home(fingerprint, self.keys.len());
        while self.keys[slot] != 0 {
            if self.keys[slot] == fingerprint {
                return false;
            }
            slot = self.after(slot);
        }
        self.keys[slot] = fingerprint;
        if let Some(place) = self.parents.get_mut(slot) {
            *place = (parent >> 32) as u32;
        }
        self.len += 1;
        if self.len * 5 > self.keys.len() * 4 {
            self.grow();
        }
        true
    }

    fn parent(&self, fingerprint: u64) -> Option<u32> {
        let mut slot = home(fingerprint, self.keys.len());
        while self.keys[slot] != fingerprint {
            if self.keys[slot] == 0 {
                return None;
            }
            slot = self.after(slot);
        }
        self.parents.get(slot).copied()
    }

    /// Returns all fingerprints of the table from `first` to `last`, both included.
    fn between(&self, first: u64, last: u64) -> Vec<u64> {
        let (mut slot, end) = (home(first, self.keys.len()), home(last, self.keys.len()));
        let mut found = Vec::new();
        // A fingerprint never stands after a free place that is after its home.
        for _ in 0..self.keys.len() {
            let key = self.keys[slot];
            if (first..=last).contains(&key) {
                found.push(key);
            }
            if key == 0 && slot >= end {
                break;
            }
            slot = self.after(slot);
        }
        found
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.keys.len() { 0 } else { slot + 1 }
    }

    #[cold]
    fn grow(&mut self) {
        let slots = self.keys.len() + self.keys.len() / 3;
        let keys = std::mem::replace(&mut self.keys, vec![0; slots]);
        let parents = if self.parents.is_empty() { Vec::new() } else { vec![0; slots] };
        let parents = std::mem::replace(&mut self.parents, parents);
        self.len = 0;
        for (slot, key) in keys.into_iter().enumerate().filter(|(_, key)| *key != 0) {
            self.insert(key, parents.get(slot).map_or(0, |parent| u64::from(*parent) << 32));
        }
    }
}

/// Returns the home of a fingerprint within its shard, proportional to its value.
#[inline]
fn home(fingerprint: u64, homes: usize) -> usize {
    ((u128::from(fingerprint << SHARD_BITS) * homes as u128) >> u64::BITS) as usize
}

/// Returns the probability that two of so many random fingerprints are equal.
pub(crate) fn collision_probability(states: u64) -> f64 {
    let pairs = states as f64 * (states as f64 - 1.0).max(0.0) / 2.0;
    -(-pairs / 2f64.powi(64)).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;
    use conclave_kernel::Prng;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_answers_like_a_map(seed: u64, many in 1usize..20_000, distinct in 1u64..30_000) {
            let mut dice = Prng::new(seed);
            let visited = Visited::new(true);
            let mut twin = BTreeMap::new();
            for _ in 0..many {
                let key = Prng::new(dice.below(distinct)).next() | 1;
                let parent = twin.keys().next_back().copied().unwrap_or(key);
                let new = !twin.contains_key(&key);
                prop_assert_eq!(visited.insert(key, parent), new);
                twin.entry(key).or_insert(parent);
            }
            prop_assert_eq!(visited.len(), twin.len() as u64);
            for (key, parent) in twin {
                prop_assert!(visited.parents(key).contains(&parent));
                prop_assert!(visited.parents(key).len() < 4);
            }
        }
    }

    #[test]
    fn fingerprints_that_crowd_at_the_end_of_a_shard_are_kept_too() {
        let visited = Visited::new(false);
        for n in 0..1000 {
            assert!(visited.insert(u64::MAX - n, 0));
        }
        assert!((0..1000).all(|n| !visited.insert(u64::MAX - n, 0)));
        assert_eq!(visited.len(), 1000);
    }

    #[test]
    fn a_fingerprint_takes_at_most_thirteen_bytes() {
        let visited = Visited::new(false);
        let mut dice = Prng::new(1);
        for _ in 0..500_000 {
            visited.insert(dice.next() | 1, 0);
        }
        assert!(visited.bytes() as u64 <= 14 * visited.len(), "{}", visited.bytes());
    }

    #[test]
    fn the_chance_of_a_collision_grows_with_the_square() {
        assert_eq!(collision_probability(1), 0.0);
        let million = collision_probability(1_000_000);
        assert!((2.6e-8..2.8e-8).contains(&million), "{million}");
        assert!(collision_probability(u64::MAX) > 0.999);
    }
}
