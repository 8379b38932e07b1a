//! Our own random number generator: it is small and fast, and a seed always gives the same numbers.
//!
//! The generator is splitmix64 (Steele, Lea, Flood 2014): one addition and one mixing function. The start of
//! a stream is the hash of its name, so a new stream costs nothing. Every node and every link has its own
//! stream, so removing one fault from a run leaves the numbers that are drawn for the others unchanged.

use serde::{Deserialize, Serialize};

/// A stream of random numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Prng {
    state: u64,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads the bits of a word over the whole word. It is a bijection: a change of one input bit changes about
/// half of the output bits.
#[inline]
pub const fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Prng {
    /// Creates the stream of a seed.
    pub const fn new(seed: u64) -> Self {
        Self { state: mix(seed ^ GOLDEN) }
    }

    /// Creates the stream of one named thing (a node, a link, a workload) under a seed.
    pub const fn stream(seed: u64, kind: u64, index: u64) -> Self {
        Self { state: mix(mix(mix(seed ^ GOLDEN).wrapping_add(kind)).wrapping_add(index)) }
    }

    /// Returns the next 64 bits.
    #[inline]
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Returns a number below `n`, or 0 if `n` is 0. Uses multiply-shift, with a bias below n / 2^64.
    #[inline]
    pub const fn below(&mut self, n: u64) -> u64 {
        ((self.next() as u128 * n as u128) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, both included.
    #[inline]
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high);
        match (high - low).checked_add(1) {
            Some(width) => low + self.below(width),
            None => self.next(),
        }
    }

    /// Draws a number and returns true with the given probability. Draws nothing if the probability is zero.
    #[inline]
    pub const fn chance(&mut self, ratio: Ratio) -> bool {
        ratio.0 != 0 && self.below(Ratio::ONE.0 as u64) < ratio.0 as u64
    }

    /// Returns a number in `[0, 1)`, with 53 random bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// A probability as an integer, in units of 10^-9. Integers avoid rounding that differs between platforms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ratio(pub u32);

impl Ratio {
    /// Probability 0.
    pub const ZERO: Self = Self(0);
    /// Probability 1.
    pub const ONE: Self = Self(1_000_000_000);

    /// Returns a probability of `parts` percent.
    pub const fn percent(parts: u32) -> Self {
        Self(parts * 10_000_000)
    }

    /// Converts a probability; `None` unless it lies between 0 and 1.
    pub fn from_f64(probability: f64) -> Option<Self> {
        (0.0..=1.0).contains(&probability).then_some(Self((probability * 1e9 + 0.5) as u32))
    }

    /// Converts to a floating-point probability.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_numbers_for_ever() {
        let mut prng = Prng::new(1);
        assert_eq!(
            [prng.next(), prng.next(), prng.next()],
            [0x5dc2_0aa7_b2a2_7137, 0xbda5_668a_01d7_049c, 0x82b4_3276_abb8_0226]
        );
    }

    #[test]
    fn numbers_stay_in_range_and_reach_both_ends() {
        let mut prng = Prng::new(7);
        let mut seen = [false; 6];
        for _ in 0..1000 {
            let n = prng.between(10, 15);
            assert!((10..=15).contains(&n));
            seen[(n - 10) as usize] = true;
        }
        assert_eq!(seen, [true; 6]);
        assert_eq!(prng.below(1), 0);
        assert_eq!(prng.below(0), 0);
    }

    #[test]
    fn a_chance_of_one_is_certain_and_of_zero_impossible() {
        let mut prng = Prng::new(7);
        for _ in 0..1000 {
            assert!(prng.chance(Ratio::ONE));
            assert!(!prng.chance(Ratio::ZERO));
        }
        let hits = (0..100_000).filter(|_| prng.chance(Ratio::percent(30))).count();
        assert!((29_000..31_000).contains(&hits), "{hits}");
    }

    #[test]
    fn streams_of_different_things_differ() {
        let first = |kind, index| Prng::stream(1, kind, index).next();
        assert_ne!(first(0, 0), first(0, 1));
        assert_ne!(first(0, 1), first(1, 0));
    }
}
