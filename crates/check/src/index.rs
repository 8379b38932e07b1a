//! The numbers of the states, by their fingerprints.
//!
//! It uses open addressing with linear probing. A slot has the number of a state and eight bits of its
//! fingerprint, in five bytes. The fingerprint itself is in the list of the caller, and is read only if the
//! eight bits agree.

/// The index.
pub(crate) struct Index {
    /// The bits of the fingerprint, and the number plus one; a number of 0 marks a free slot.
    slots: Vec<[u8; 5]>,
    len: usize,
}

const FREE: [u8; 5] = [0; 5];

impl Index {
    /// Creates an index that need not grow for so many states.
    pub(crate) fn for_states(states: usize) -> Self {
        Self { slots: vec![FREE; (states + states / 4).max(64)], len: 0 }
    }

    /// Returns the number of a state. If it is unknown, adds it with the number `fingerprints.len()`, which the
    /// caller must give it.
    #[inline]
    pub(crate) fn find(&mut self, fingerprint: u64, fingerprints: &[u64]) -> u32 {
        let bits = bits(fingerprint);
        let mut slot = self.home(fingerprint);
        while self.slots[slot] != FREE {
            let known = number(self.slots[slot]);
            if self.slots[slot][0] == bits && fingerprints[known as usize] == fingerprint {
                return known;
            }
            slot = self.after(slot);
        }
        let new = fingerprints.len() as u32;
        self.slots[slot] = packed(bits, new);
        self.len += 1;
        // Once the caller's bound is reached, the index grows: it must have free slots.
        if self.len * 8 > self.slots.len() * 7 {
            self.grow(fingerprint, fingerprints);
        }
        new
    }

    /// Loads the home of a fingerprint into the cache. The caller must use the result, but its value has no
    /// meaning.
    #[inline]
    pub(crate) fn touch(&self, fingerprint: u64) -> u8 {
        self.slots[self.home(fingerprint)][0]
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.slots[..])
    }

    /// Grows by half. `latest` is the fingerprint of the state that was added last.
    #[cold]
    fn grow(&mut self, latest: u64, fingerprints: &[u64]) {
        let larger = vec![FREE; self.slots.len() + self.slots.len() / 2];
        for entry in std::mem::replace(&mut self.slots, larger) {
            if entry != FREE {
                let fingerprint = fingerprints.get(number(entry) as usize).copied().unwrap_or(latest);
                let mut slot = self.home(fingerprint);
                while self.slots[slot] != FREE {
                    slot = self.after(slot);
                }
                self.slots[slot] = entry;
            }
        }
    }

    /// Returns the home of a fingerprint, proportional to its value.
    #[inline]
    fn home(&self, fingerprint: u64) -> usize {
        ((u128::from(fingerprint) * self.slots.len() as u128) >> u64::BITS) as usize
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }
}

/// Returns the lowest bits of a fingerprint. The highest ones determine its home.
const fn bits(fingerprint: u64) -> u8 {
    fingerprint as u8
}

fn packed(bits: u8, number: u32) -> [u8; 5] {
    let [a, b, c, d] = (number + 1).to_le_bytes();
    [bits, a, b, c, d]
}

fn number([_, a, b, c, d]: [u8; 5]) -> u32 {
    u32::from_le_bytes([a, b, c, d]).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use conclave_kernel::Prng;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn a_fingerprint_has_the_number_of_its_first_appearance(
            seed: u64,
            many in 1usize..3_000,
            distinct in 1u64..3_000,
            expected in 0usize..4_000,
            shift in 0u32..60,
        ) {
            let mut dice = Prng::new(seed);
            let mut index = Index::for_states(expected);
            let (mut fingerprints, mut twin) = (Vec::new(), HashMap::new());
            for _ in 0..many {
                // A shift makes many fingerprints share a home.
                let fingerprint = Prng::new(dice.below(distinct)).next() >> shift | 1;
                let next = fingerprints.len() as u32;
                let number = index.find(fingerprint, &fingerprints);
                prop_assert_eq!(number, *twin.entry(fingerprint).or_insert(next));
                if number == next {
                    fingerprints.push(fingerprint);
                }
            }
        }
    }

    #[test]
    fn an_index_of_the_right_size_does_not_grow() {
        let mut index = Index::for_states(10_000);
        let bytes = index.bytes();
        let mut dice = Prng::new(1);
        let mut fingerprints = Vec::new();
        for _ in 0..10_000 {
            let fingerprint = dice.next();
            index.find(fingerprint, &fingerprints);
            fingerprints.push(fingerprint);
        }
        assert_eq!((index.bytes(), bytes), (62_500, 62_500));
    }
}
