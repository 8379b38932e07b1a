//! A hash map whose keys are numbers that this server made.
//!
//! Clients do not choose these numbers, so nobody can make many keys share a bucket. The hasher is fixed, so
//! two runs with the same inputs iterate in the same order.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from a number of this server to `V`.
pub(super) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Multiplies by a large odd constant and folds the halves, so that consecutive numbers spread over all bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u128(&mut self, number: u128) {
        self.write_u64((number >> 64) as u64);
        self.write_u64(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_numbers_do_not_share_their_low_bits() {
        let hash = |number: u64| {
            let mut hasher = NumberHasher::default();
            hasher.write_u64(number);
            hasher.finish() % 1024
        };
        let mut buckets: Vec<u64> = (0..1024).map(hash).collect();
        buckets.sort_unstable();
        buckets.dedup();
        assert!(buckets.len() > 512, "{} buckets of 1024 are used", buckets.len());
    }
}
