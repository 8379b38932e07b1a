//! In place of the crate of this name, for openraft (docs/decisions/0020).
//!
//! openraft keeps statistics of its batches whether anybody can ask for them or not; without its feature `runtime-stats` nobody
//! can. The crate that it keeps them in computes 24 MB of tables when the first of them begins. This one counts samples.

use std::fmt;
use std::marker::PhantomData;

/// How many values there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram<T = ()> {
    samples: u64,
    slots: PhantomData<T>,
}

/// What is told of a [`Histogram`]: the number of values, and of the values nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PercentileStats {
    /// How many values there were.
    pub samples: u64,
    /// Not known: 0, as are all others.
    pub p0_1: u64,
    /// Not known.
    pub p1: u64,
    /// Not known.
    pub p5: u64,
    /// Not known.
    pub p10: u64,
    /// Not known.
    pub p50: u64,
    /// Not known.
    pub p90: u64,
    /// Not known.
    pub p99: u64,
    /// Not known.
    pub p99_9: u64,
}

/// A chart of nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsciiChart;

impl<T> Histogram<T> {
    /// No values yet.
    pub fn new() -> Self {
        Self { samples: 0, slots: PhantomData }
    }

    /// One more.
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// So many more.
    pub fn record_n(&mut self, _: u64, count: u64) {
        self.samples += count;
    }

    /// What is known.
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats { samples: self.samples, ..PercentileStats::default() }
    }
}

impl<T> Default for Histogram<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl AsciiChart {
    /// An empty one.
    pub fn new() -> Self {
        Self
    }

    /// As empty as before.
    #[must_use]
    pub fn add<T>(self, _: impl Into<String>, _: Histogram<T>) -> Self {
        self
    }
}

impl fmt::Display for AsciiChart {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[samples: {}]", self.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_counted() {
        let mut histogram = Histogram::<()>::new();
        histogram.record(7);
        histogram.record_n(9, 2);
        assert_eq!(histogram.percentile_stats(), PercentileStats { samples: 3, ..Default::default() });
    }
}
