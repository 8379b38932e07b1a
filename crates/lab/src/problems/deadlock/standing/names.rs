//! Names and their numbers, for millions of names: the names in one text, the numbers in one open table.
//!
//! Access to memory determines the time to read a file. So a slot of the table contains a short name itself, and
//! a lookup reads one place. The slot of a long name contains a hash, and the name is compared with the text.
//! The hashes have a random seed, so that no file can be written whose names all meet in one place.

use std::hash::{BuildHasher, RandomState};

#[derive(Clone, Debug)]
pub(super) struct Names {
    text: String,
    /// The end of each name in the text.
    ends: Vec<usize>,
    /// The slots, at most three quarters of them in use; the length is a power of two. The lower 96 bits of a
    /// slot are the key of a name. The upper 32 bits are its number plus one, or 0 in a free slot.
    table: Vec<u128>,
    seed: u64,
}

/// The longest name that a key contains. One more byte of the key is the length of the name, or [`HASHED`].
const SHORT: usize = 11;
const HASHED: u8 = u8::MAX;
const KEY_BITS: u32 = 96;
const FREE: u128 = 0;

impl Default for Names {
    fn default() -> Self {
        let seed = RandomState::new().hash_one(0u8);
        Self { text: String::new(), ends: Vec::new(), table: vec![FREE; 16], seed }
    }
}

impl Names {
    /// Returns the number of a name. A new name gets the number of names before it.
    pub(super) fn intern(&mut self, name: &str) -> u32 {
        let key = self.key(name);
        let mut at = self.place(key);
        while self.table[at] != FREE {
            let (known, number) = split(self.table[at]);
            if known == key && (name.len() <= SHORT || self.name(number) == name) {
                return number;
            }
            at = (at + 1) & (self.table.len() - 1);
        }
        let number = u32::try_from(self.ends.len()).expect("a file has fewer names than bytes");
        self.text.push_str(name);
        self.ends.push(self.text.len());
        self.table[at] = u128::from(number + 1) << KEY_BITS | key;
        if self.ends.len() > self.table.len() / 4 * 3 {
            self.grow();
        }
        number
    }

    pub(super) fn name(&self, number: u32) -> &str {
        let at = number as usize;
        let begin = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[begin..self.ends[at]]
    }

    fn grow(&mut self) {
        let larger = vec![FREE; 2 * self.table.len()];
        for slot in std::mem::replace(&mut self.table, larger) {
            if slot != FREE {
                let mut at = self.place(split(slot).0);
                while self.table[at] != FREE {
                    at = (at + 1) & (self.table.len() - 1);
                }
                self.table[at] = slot;
            }
        }
    }

    /// Returns the key of a name: a short name with its length, or the hash of a long one.
    fn key(&self, name: &str) -> u128 {
        let name = name.as_bytes();
        let mut key = [0; 16];
        if name.len() <= SHORT {
            key[..name.len()].copy_from_slice(name);
            key[SHORT] = name.len() as u8;
        } else {
            let words = name.chunks(8).map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_le_bytes(word)
            });
            let hash = words.fold(fold(self.seed, name.len() as u64), fold);
            key[..8].copy_from_slice(&hash.to_le_bytes());
            key[SHORT] = HASHED;
        }
        u128::from_le_bytes(key)
    }

    /// Returns the slot at which the search for a key begins.
    fn place(&self, key: u128) -> usize {
        let hash = fold(fold(self.seed, key as u64), (key >> 64) as u64);
        fold(hash, self.seed) as usize & (self.table.len() - 1)
    }
}

/// Returns the key and the number of a slot that is not free.
fn split(slot: u128) -> (u128, u32) {
    let number = (slot >> KEY_BITS) as u32;
    (slot & ((1 << KEY_BITS) - 1), number.wrapping_sub(1))
}

/// Adds eight bytes to a hash, by a multiplication to 128 bits.
fn fold(hash: u64, word: u64) -> u64 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let product = u128::from(hash ^ word) * u128::from(ODD);
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_name_has_one_number_and_a_number_one_name(names in prop::collection::vec("[a-c/é\\x00]{0,4}|[a-b]{9,20}", 0..200)) {
            let mut interned = Names::default();
            let mut known: Vec<&str> = Vec::new();
            for name in &names {
                let number = interned.intern(name) as usize;
                match known.iter().position(|known| known == name) {
                    Some(before) => prop_assert_eq!(number, before),
                    None => {
                        prop_assert_eq!(number, known.len());
                        known.push(name);
                    }
                }
            }
            for (number, name) in known.iter().enumerate() {
                prop_assert_eq!(interned.name(number as u32), *name);
            }
        }
    }
}
