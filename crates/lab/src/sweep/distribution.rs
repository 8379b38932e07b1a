//! The distribution of a figure over many runs.

use std::collections::BTreeMap;

/// The values of a figure: mean, spread, percentiles, and the run with the largest value.
///
/// It is exact while there are at most `MOST_VALUES` different values. Then it rounds values down, so that
/// neighbours are counted together, and its size stays bounded. Mean, spread and the largest value are always
/// exact.
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    count: u64,
    mean: f64,
    /// The sum of the squared differences to the mean, as in Welford's method.
    squares: f64,
    /// The largest value, and the first seed that has it.
    worst: Option<(f64, u64)>,
    /// The number of runs with each value. The key is the bits of the value, which are in the order of the values.
    values: BTreeMap<u64, u64>,
    /// The number of low bits of a key that are rounded to zero.
    rounded_bits: u32,
}

/// The number of different values above which values are rounded.
pub const MOST_VALUES: usize = 4096;

impl Distribution {
    /// Adds the value of a run. It must be finite; a negative one counts as 0.
    pub fn add(&mut self, value: f64, seed: u64) {
        let value = value.max(0.0);
        self.count += 1;
        let above = value - self.mean;
        self.mean += above / self.count as f64;
        self.squares += above * (value - self.mean);
        if self.worst.is_none_or(|(worst, _)| value > worst) {
            self.worst = Some((value, seed));
        }
        *self.values.entry(self.key(value)).or_default() += 1;
        while self.values.len() > MOST_VALUES {
            self.round();
        }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the mean; `None` without a value.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }

    /// Returns the standard deviation; `None` without two values.
    pub fn deviation(&self) -> Option<f64> {
        (self.count > 1).then(|| (self.squares / (self.count - 1) as f64).max(0.0).sqrt())
    }

    /// Returns the least value that is not below `percent` percent of all values; `None` without a value.
    pub fn percentile(&self, percent: u64) -> Option<f64> {
        let rank = (u128::from(self.count) * u128::from(percent)).div_ceil(100).max(1);
        let mut below = 0;
        let found = self.values.iter().find(|(_, times)| {
            below += u128::from(**times);
            below >= rank
        });
        found.map(|(key, _)| f64::from_bits(*key))
    }

    /// Returns the largest value, and the first seed that has it.
    pub fn worst(&self) -> Option<(f64, u64)> {
        self.worst
    }

    fn key(&self, value: f64) -> u64 {
        value.to_bits() >> self.rounded_bits << self.rounded_bits
    }

    /// Rounds to one bit less.
    fn round(&mut self) {
        // The lowest bits of values are often zero, so the first rounding removes many at once.
        const FIRST: u32 = 40;
        self.rounded_bits = (self.rounded_bits + 1).max(FIRST);
        for (key, times) in std::mem::take(&mut self.values) {
            *self.values.entry(self.key(f64::from_bits(key))).or_default() += times;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conclave_kernel::Prng;

    fn of(values: impl IntoIterator<Item = f64>) -> Distribution {
        let mut distribution = Distribution::default();
        for (seed, value) in (0..).zip(values) {
            distribution.add(value, seed);
        }
        distribution
    }

    #[test]
    fn few_values_are_counted_exactly() {
        let all = of([4.5, 1.0, 9.25, 1.0, 4.5]);
        assert_eq!((all.count(), all.mean()), (5, Some(4.05)));
        assert!((all.deviation().unwrap() - 3.393_007_5).abs() < 1e-6, "{:?}", all.deviation());
        assert_eq!(
            [0, 40, 41, 80, 81, 100].map(|percent| all.percentile(percent).unwrap()),
            [1.0, 1.0, 4.5, 4.5, 9.25, 9.25]
        );
        assert_eq!(all.worst(), Some((9.25, 2)));
    }

    #[test]
    fn nothing_and_one_value_have_no_spread() {
        assert_eq!((of([]).mean(), of([]).percentile(50), of([]).worst()), (None, None, None));
        assert_eq!((of([3.0]).mean(), of([3.0]).deviation()), (Some(3.0), None));
    }

    #[test]
    fn many_values_need_bounded_memory_and_lose_little() {
        let mut dice = Prng::new(1);
        let mut values: Vec<f64> = (0..100_000).map(|_| (25.0 * dice.unit()).exp()).collect();
        values.extend((0..100_000).map(|_| dice.below(1_000_000_000) as f64));
        let all = of(values.iter().copied());
        values.sort_by(f64::total_cmp);
        assert!(all.values.len() <= MOST_VALUES);
        for percent in [1, 10, 50, 90, 99] {
            let exact = values[values.len() * percent as usize / 100 - 1];
            let found = all.percentile(percent).unwrap();
            assert!((found / exact - 1.0).abs() < 0.02, "{percent} %: {found} instead of {exact}");
        }
        assert_eq!(all.worst().map(|(worst, _)| worst), values.last().copied());
    }
}
