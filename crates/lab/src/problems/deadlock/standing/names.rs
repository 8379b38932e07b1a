//! Names and their numbers, a million of them: the names in one text, the numbers in one open table.
//!
//! A map with a string of its own for every name, twice, is three times as large, and half of what it takes to read a file.
//! The table is never more than half full, so that a few places are looked at; the hash is seeded, so that no file can be
//! written whose names all meet in one place.

use std::hash::{BuildHasher, RandomState};

#[derive(Clone, Debug)]
pub(super) struct Names {
    text: String,
    /// Where each name ends in the text.
    ends: Vec<usize>,
    /// A power of two, at least twice as many as names; a number plus one, or zero.
    table: Vec<u32>,
    seed: u64,
}

impl Default for Names {
    fn default() -> Self {
        let seed = RandomState::new().hash_one(0u8);
        Self { text: String::new(), ends: Vec::new(), table: vec![0; 16], seed }
    }
}

impl Names {
    /// The number of a name: as many as there were before it, if it is new.
    pub(super) fn intern(&mut self, name: &str) -> u32 {
        let mut at = self.place(name);
        while let Some(number) = self.table[at].checked_sub(1) {
            if self.name(number) == name {
                return number;
            }
            at = (at + 1) & (self.table.len() - 1);
        }
        let number = u32::try_from(self.ends.len()).expect("a file has fewer names than bytes");
        self.text.push_str(name);
        self.ends.push(self.text.len());
        self.table[at] = number + 1;
        if self.ends.len() > self.table.len() / 2 {
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
        self.table = vec![0; 2 * self.table.len()];
        for number in 0..self.ends.len() as u32 {
            let mut at = self.place(self.name(number));
            while self.table[at] != 0 {
                at = (at + 1) & (self.table.len() - 1);
            }
            self.table[at] = number + 1;
        }
    }

    /// Eight bytes at a time, folded into each other by multiplication.
    fn place(&self, name: &str) -> usize {
        const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
        let fold = |hash: u64, word: u64| {
            let product = u128::from(hash ^ word) * u128::from(ODD);
            (product as u64) ^ (product >> 64) as u64
        };
        let words = name.as_bytes().chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        let hash = words.fold(fold(self.seed, name.len() as u64), fold);
        fold(hash, self.seed) as usize & (self.table.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_name_has_one_number_and_a_number_one_name(names in prop::collection::vec("[a-c/é]{0,20}", 0..200)) {
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
