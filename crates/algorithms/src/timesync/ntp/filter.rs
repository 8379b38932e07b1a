//! The clock filter: the last eight exchanges with one server, and the choice of the one to use.
//!
//! Delays come mostly from queues, and a queue usually delays only one direction. So the exchange with the
//! smallest delay has the best offset. \[RFC5905 §10\]

use alloc::vec::Vec;
use core::time::Duration;

use conclave_kernel::{Time, time};
use serde::{Deserialize, Serialize};

use super::super::interval::drift;

/// The number of exchanges that the filter keeps.
pub const STAGES: usize = 8;

/// The dispersion of a missed exchange, in nanoseconds: 16 s. The filter ignores a sample whose dispersion
/// has grown to this value.
pub const MAX_DISPERSION: u64 = 16_000_000_000;

/// The number of jitters by which a popcorn spike differs from the sample used last.
const GATE: u64 = 3;

/// The result of one exchange; all times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sample {
    /// The server's clock minus the local clock.
    pub theta: i64,
    /// The round trip.
    pub delta: u64,
    /// The possible drift of the local clock during the exchange, plus the precision of reading it.
    pub epsilon: u64,
    /// The end of the exchange, on the local clock.
    pub at: Time,
    /// The server's stratum.
    pub stratum: u8,
    /// The server's root delay.
    pub root_delay: u64,
    /// The server's root dispersion.
    pub root_dispersion: u64,
}

impl Sample {
    /// Returns the dispersion of the sample at `now`.
    pub fn dispersion_at(&self, now: Time, drift_ppm: u32) -> u64 {
        self.epsilon.saturating_add(drift(now.since(self.at), drift_ppm))
    }

    /// Returns lambda: the largest error of theta at `now`, against stratum 1.
    pub fn root_distance(&self, now: Time, drift_ppm: u32) -> u64 {
        let delay = self.delta.saturating_add(self.root_delay).div_ceil(2);
        let dispersion = self.dispersion_at(now, drift_ppm).saturating_add(self.root_dispersion);
        // Rounding up, and the precision in epsilon, cover the rounding of theta to the nanosecond.
        delay.saturating_add(dispersion)
    }

    /// Returns whether both samples can be right.
    fn agrees(&self, other: &Self, now: Time, drift_ppm: u32) -> bool {
        let farthest = self.root_distance(now, drift_ppm).saturating_add(other.root_distance(now, drift_ppm));
        self.theta.abs_diff(other.theta) <= farthest
    }
}

/// The last eight exchanges, the newest first; `None` for a missed one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Filter {
    stages: [Option<Sample>; STAGES],
    /// The offset used last, and the jitter at that time.
    used: Option<(i64, u64)>,
}

impl Filter {
    /// Adds an exchange. Returns the sample to use now, or `None` if the site must keep the one in use.
    /// `used_at` is the end of the exchange in use.
    ///
    /// Delays cannot explain two samples that cannot both be right. Either one is a spike, or one of the two
    /// clocks jumped in between. If the next sample agrees with the later of the two, it was a jump. Older
    /// samples then say nothing about the present clocks, and the filter discards them.
    pub fn push(
        &mut self,
        sample: Sample,
        used_at: Option<Time>,
        period: Duration,
        drift_ppm: u32,
    ) -> Option<Sample> {
        let now = sample.at;
        let agrees = |old: &Sample| old.agrees(&sample, now, drift_ppm);
        let is_jump = self.stages[0].as_ref().is_some_and(agrees)
            && self.stages[1..].iter().flatten().any(|old| !agrees(old));
        if is_jump {
            self.stages.iter_mut().for_each(|stage| *stage = stage.take().filter(agrees));
            self.used = None;
        }
        self.shift(Some(sample));
        let best = (*self.by_delay(now, drift_ppm).first()?).clone();
        if used_at.is_some_and(|used_at| best.at <= used_at) {
            return None;
        }
        let jitter = self.jitter(now, drift_ppm);
        if let (Some((theta, before)), Some(used_at)) = (self.used, used_at) {
            let is_spike = best.theta.abs_diff(theta) > GATE.saturating_mul(before);
            let is_fresh = time::nanos(now.since(used_at)) < 2 * time::nanos(period);
            if is_spike && is_fresh {
                return None;
            }
        }
        self.used = Some((best.theta, jitter));
        Some(best)
    }

    /// Records a question without a useful answer.
    pub fn miss(&mut self) {
        self.shift(None);
    }

    /// Returns the peer dispersion: the dispersions in order of delay, weighted with 1/2, 1/4, 1/8 and so on.
    /// A missed exchange counts with 16 s.
    pub fn dispersion(&self, now: Time, drift_ppm: u32) -> u64 {
        let known = self.by_delay(now, drift_ppm);
        let known = known.iter().map(|sample| sample.dispersion_at(now, drift_ppm));
        let all = known.chain(core::iter::repeat(MAX_DISPERSION)).take(STAGES);
        all.enumerate().fold(0, |sum: u64, (index, epsilon)| sum.saturating_add(epsilon >> (index + 1)))
    }

    /// Returns the jitter as ntpd computes it: sqrt(sum (theta_i - theta_0)^2 / (m-1)) over the m exchanges.
    /// theta_0 belongs to the exchange with the smallest delay. The result is at least 1 ns, the precision.
    /// (The text of the RFC has sqrt(sum)/(n-1), and its skeleton has sqrt(sum).)
    pub fn jitter(&self, now: Time, drift_ppm: u32) -> u64 {
        let samples = self.by_delay(now, drift_ppm);
        let Some((best, others)) = samples.split_first().filter(|(_, others)| !others.is_empty()) else {
            return 1;
        };
        let square = |other: &&Sample| u128::from(other.theta.abs_diff(best.theta)).pow(2);
        let mean = others.iter().map(square).fold(0, u128::saturating_add) / others.len() as u128;
        (mean.isqrt() as u64).max(1)
    }

    /// Returns the samples in order of delay, and the newest first among equal delays. Samples whose
    /// dispersion has reached 16 s are left out.
    fn by_delay(&self, now: Time, drift_ppm: u32) -> Vec<&Sample> {
        let fit = |sample: &&Sample| sample.dispersion_at(now, drift_ppm) < MAX_DISPERSION;
        let mut samples: Vec<_> = self.stages.iter().flatten().filter(fit).collect();
        samples.sort_by_key(|sample| sample.delta);
        samples
    }

    fn shift(&mut self, sample: Option<Sample>) {
        self.stages.rotate_right(1);
        self.stages[0] = sample;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const PERIOD: Duration = Duration::from_secs(1);

    fn sample(at: u64, theta: i64, delta: u64) -> Sample {
        let at = Time(at * SECOND);
        Sample { theta, delta, epsilon: 8, at, stratum: 1, root_delay: 0, root_dispersion: 0 }
    }

    fn filled(samples: &[(i64, u64)]) -> Filter {
        let mut filter = Filter::default();
        for (at, (theta, delta)) in samples.iter().enumerate() {
            filter.shift(Some(sample(at as u64, *theta, *delta)));
        }
        filter
    }

    #[test]
    fn the_smallest_delay_is_used_and_never_one_older_than_the_last_used() {
        let mut filter = Filter::default();
        let first = filter.push(sample(1, 100, 50), None, PERIOD, 0).unwrap();
        // The second exchange is slower than the first, which is already in use.
        assert_eq!(filter.push(sample(2, 100, 60), Some(first.at), PERIOD, 0), None);
        let faster = filter.push(sample(3, 100, 40), Some(first.at), PERIOD, 0).unwrap();
        assert_eq!(faster.delta, 40);
        // The fastest sample stays in use until it leaves the filter, after eight exchanges. Then the newest
        // of the next fastest ones is used.
        for at in 4..11 {
            assert_eq!(filter.push(sample(at, 100, 90), Some(faster.at), PERIOD, 0), None);
        }
        assert_eq!(
            filter.push(sample(11, 100, 95), Some(faster.at), PERIOD, 0).map(|sample| sample.at),
            Some(Time(10 * SECOND))
        );
    }

    #[test]
    fn a_popcorn_spike_is_ignored_while_the_last_used_is_fresh() {
        let mut filter = filled(&[(100, 60), (110, 61), (90, 62)]);
        let used = filter.push(sample(3, 100, 50), None, PERIOD, 0).unwrap();
        let spike = filter.push(sample(4, 100_000, 40), Some(used.at), PERIOD, 0);
        assert_eq!(spike, None, "more than three jitters away");
        // The next exchange has the same offset, so it is not a spike.
        assert!(filter.push(sample(5, 100_000, 39), Some(used.at), PERIOD, 0).is_some());
    }

    #[test]
    fn after_a_jump_what_was_before_is_forgotten_though_it_was_faster() {
        let mut filter = filled(&[(100, 10), (100, 20), (100, 30)]);
        // The period is so long that the sample in use is fresh all the time. So the popcorn test must forget
        // it, too.
        let often = 4 * PERIOD;
        let used = filter.push(sample(3, 100, 5), None, often, 0).unwrap();
        assert_eq!(filter.push(sample(4, 50_000, 60), Some(used.at), often, 0), None, "perhaps a spike");
        let best = filter.push(sample(5, 50_010, 70), Some(used.at), often, 0).unwrap();
        assert_eq!((best.theta, filter.by_delay(best.at, 0).len()), (50_000, 2));
    }

    #[test]
    fn a_spike_that_is_not_seen_again_is_outvoted() {
        let mut filter = filled(&[(100, 30), (110, 31), (90, 32)]);
        let used = filter.push(sample(3, 100, 20), None, PERIOD, 0).unwrap();
        assert_eq!(filter.push(sample(4, 50_000, 60), Some(used.at), PERIOD, 0), None);
        let best = filter.push(sample(5, 101, 10), Some(used.at), PERIOD, 0).unwrap();
        assert_eq!((best.theta, filter.by_delay(best.at, 0).len()), (101, 6));
    }

    #[test]
    fn dispersions_weigh_by_powers_of_two_not_by_exclusive_or() {
        // With epsilon 256 in all stages: 128 + 64 + 32 + 16 + 8 + 4 + 2 + 1. `2 ^ (i + 1)` would divide by 0
        // at i = 1.
        let mut filter = filled(&[(0, 1); STAGES]);
        filter.stages.iter_mut().flatten().for_each(|sample| sample.epsilon = 256);
        assert_eq!(filter.dispersion(Time(0), 0), 255);
        assert_eq!(Filter::default().dispersion(Time(0), 0), MAX_DISPERSION - MAX_DISPERSION / 256);
        // One exchange counts with half its own dispersion; the missed ones make up the rest.
        assert_eq!(
            filled(&[(0, 1)]).dispersion(Time(0), 0),
            4 + (1..8).map(|i| MAX_DISPERSION >> (i + 1)).sum::<u64>()
        );
    }

    #[test]
    fn the_jitter_is_ntpds_and_neither_of_the_rfcs() {
        let filter = filled(&[(100, 1), (103, 2), (96, 3), (100, 4), (100, 5)]);
        // The squares of the differences sum up to 9 + 16 = 25, over four other samples.
        let (text, skeleton, ntpd) = (25_u64.isqrt() / 4, 25_u64.isqrt(), (25_u64 / 4).isqrt());
        assert_eq!((text, skeleton, ntpd), (1, 5, 2));
        assert_eq!(filter.jitter(Time(5 * SECOND), 0), ntpd);
        assert_eq!(filled(&[(100, 1)]).jitter(Time(0), 0), 1, "at least the precision");
    }

    #[test]
    fn what_is_older_than_its_dispersion_allows_is_not_used() {
        let filter = filled(&[(100, 1)]);
        assert_eq!(filter.by_delay(Time(20 * SECOND), 800_000).len(), 0);
        assert_eq!(filter.by_delay(Time(SECOND), 800_000).len(), 1);
    }
}
