//! Exact weights: sums of powers of two. The parts of a split weight add up to it exactly.
//!
//! The initiator of a detection sends out a weight of 1. The weight is split at every fork and returns in
//! parts. The detection ends when all of it has returned.
//!
//! **The trap.** Six copies of 1/6 do not add up to 1.0 in double precision. So a weight is never divided. To
//! get enough shares, its smallest power of two is halved several times. Sums carry like binary numbers.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// A weight: the sum of 2^-e over these exponents e. Each exponent occurs once, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Weight(Vec<u32>);

impl Weight {
    /// The weight 0.
    pub const ZERO: Self = Self(Vec::new());

    /// Returns the weight 1.
    pub fn one() -> Self {
        Self([0].into())
    }

    /// Returns whether the weight is 1.
    pub fn is_one(&self) -> bool {
        self.0 == [0]
    }

    /// Adds a weight. Two equal powers become the next larger power. Duplicated messages can return more than was
    /// sent out: 1 and 1 become 1.
    pub fn add(&mut self, other: &Self) {
        for &exponent in &other.0 {
            let mut exponent = exponent;
            while let Ok(at) = self.0.binary_search(&exponent) {
                self.0.remove(at);
                exponent = exponent.saturating_sub(1);
            }
            let at = self.0.partition_point(|smaller| *smaller < exponent);
            self.0.insert(at, exponent);
        }
    }

    /// Splits the weight into `shares` parts that add up to exactly this weight. No part is zero, and the
    /// first is the largest.
    ///
    /// The smallest power of two is cut into equal parts. Their number is the next power of two that is not
    /// below `shares`.
    pub fn split(mut self, shares: usize) -> Vec<Self> {
        let mut parts = Vec::with_capacity(shares);
        if shares > 1
            && let Some(smallest) = self.0.pop()
        {
            let halvings = shares.next_power_of_two().trailing_zeros();
            let part = Self([smallest + halvings].into());
            for _ in 0..(1usize << halvings) - (shares - 1) {
                self.add(&part);
            }
            parts.extend(core::iter::repeat_n(part, shares - 1));
        }
        if shares > 0 {
            parts.insert(0, self);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conclave_kernel::Prng;

    fn sum(parts: &[Weight]) -> Weight {
        let mut sum = Weight::ZERO;
        parts.iter().for_each(|part| sum.add(part));
        sum
    }

    #[test]
    fn shares_of_any_fan_out_add_up_to_one() {
        for shares in 1..=300 {
            let parts = Weight::one().split(shares);
            assert_eq!(parts.len(), shares);
            assert!(parts.iter().all(|part| *part != Weight::ZERO), "{shares}");
            assert!(sum(&parts).is_one(), "{shares}");
            assert!(shares == 1 || !sum(&parts[1..]).is_one(), "{shares}: a share less is less");
        }
    }

    #[test]
    fn a_weight_that_returns_twice_is_still_one() {
        let mut home = Weight::one();
        home.add(&Weight::one());
        assert!(home.is_one());
    }

    #[test]
    fn a_random_tree_of_forks_adds_up_to_one_in_any_order() {
        let mut dice = Prng::new(7);
        for _ in 0..200 {
            let mut parts = Vec::from([Weight::one()]);
            for _ in 0..30 {
                let at = dice.below(parts.len() as u64) as usize;
                let split = parts.swap_remove(at).split(1 + dice.below(9) as usize);
                parts.extend(split);
            }
            let mut back = Weight::ZERO;
            while !parts.is_empty() {
                assert!(!back.is_one(), "nothing is left to come");
                back.add(&parts.swap_remove(dice.below(parts.len() as u64) as usize));
            }
            assert!(back.is_one());
        }
    }
}
