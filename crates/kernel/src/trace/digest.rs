//! The digest of a run: a fingerprint of 64 bits.

use core::hash::{Hash, Hasher};

use crate::prng::mix;

/// A fingerprint of everything that happened in a run, in order. Two runs with the same digest took the same
/// steps (except for a hash collision).
///
/// It is a [`Hasher`] of our own: each word is rotated in and multiplied, and the end result is mixed. The
/// standard hasher is slower, and its output may change between releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Creates the digest of an empty run.
    pub const fn new() -> Self {
        Self(0x6a09_e667_f3bc_c908)
    }

    /// Adds one more value.
    #[inline]
    pub fn absorb(&mut self, thing: &impl Hash) {
        thing.hash(self);
    }

    /// Adds one more word.
    #[inline]
    pub const fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    /// Adds the value of another digest as one word.
    #[inline]
    pub const fn join(&mut self, other: Self) {
        self.word(other.0);
    }

    /// Returns the fingerprint of everything added so far.
    pub const fn value(self) -> u64 {
        mix(self.0)
    }
}

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.value()
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.word(u64::from_le_bytes(chunk.try_into().expect("each chunk has eight bytes")));
        }
        let mut last = [0; 8];
        last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
        self.word(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.word(u64::from(n));
    }

    #[inline]
    fn write_u16(&mut self, n: u16) {
        self.word(u64::from(n));
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.word(u64::from(n));
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.word(n);
    }

    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.word(n as u64);
    }

    #[inline]
    fn write_isize(&mut self, n: isize) {
        self.word(n as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_what_happened_is_in_the_digest() {
        let digest = |things: &[&str]| {
            let mut digest = Digest::new();
            for thing in things {
                digest.absorb(thing);
            }
            digest.value()
        };
        assert_eq!(digest(&["a", "b"]), digest(&["a", "b"]));
        assert_ne!(digest(&["a", "b"]), digest(&["b", "a"]));
        assert_ne!(digest(&["ab"]), digest(&["a", "b"]));
        assert_ne!(digest(&["a"]), digest(&["a\0"]));
    }

    #[test]
    fn what_is_joined_counts_and_so_does_its_place() {
        let part = |word| {
            let mut part = Digest::new();
            part.word(word);
            part
        };
        let joined = |parts: &[u64]| {
            let mut whole = Digest::new();
            parts.iter().for_each(|word| whole.join(part(*word)));
            whole.value()
        };
        assert_eq!(joined(&[1, 2]), joined(&[1, 2]));
        assert_ne!(joined(&[1, 2]), joined(&[2, 1]));
        assert_ne!(joined(&[1]), joined(&[1, 1]));
    }
}
