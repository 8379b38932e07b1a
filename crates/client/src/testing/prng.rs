//! Random numbers from a seed.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A generator of random numbers (SplitMix64). A seed gives the same numbers in every version of this crate.
#[derive(Clone, Debug)]
pub(super) struct Prng(u64);

impl Prng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Draws a number less than `n`, which is not 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Draws a duration, in whole microseconds after the start of the range.
    pub(super) fn within(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let span = range.end().saturating_sub(*range.start()).as_micros();
        let drawn = self.below(u64::try_from(span).unwrap_or(u64::MAX - 1) + 1);
        *range.start() + Duration::from_micros(drawn)
    }
}
