//! The phi-accrual detector: suspicion is a number, which is compared with a threshold.
//!
//! The detector of Hayashibara and others computes how suspicious a silence is. phi(t) is -log10 of the
//! probability that a heartbeat arrives later than t. The model assumes that gaps between heartbeats are
//! normally distributed, with the mean and the variance of the latest gaps. A suspicion at phi = 8 is wrong
//! once in 10^8 times, *if* the model holds.
//!
//! **Rules** \[HDYK04 §4\]
//! 1. Keep the latest gaps between arrivals, and compute their mean and variance.
//! 2. phi(t) = -log10(1 - F(t - last arrival)), where F is the normal distribution function.
//! 3. Suspect the sender while phi is above the threshold.
//!
//! **Traps**
//! - The logarithm has base 10.
//! - Computed as a difference, 1 - F is 0 from 8.3 sigma on, and phi jumps from 16 to infinity. Here the tail
//!   comes from `erfc`, and beyond 37 sigma from its asymptotic series.
//! - A widely copied logistic formula is not the normal tail: at 8 sigma it gives 21.2, but the true value is
//!   15.2.
//! - With the exponential distribution instead of the normal one, it is a different detector with the same
//!   name.
//!
//! **Differences from the paper**
//! - The site does not compute phi all the time. Phi grows with t, so the site knows at each arrival when phi
//!   will pass the threshold: at mean + z sigma, with one z for each threshold. It sets a timer to this time.
//! - Sigma is at least a hundredth of the mean. Otherwise regular heartbeats would make it 0.
//! - Before two gaps are known, the mean is T and sigma is D/4.
//! - A gap can be longer than the deadline, for example after a pause or a repaired crash. Such a gap enters
//!   the window with the length of the deadline. It raises the deadline, but only a little and only for a
//!   while.

use alloc::collections::VecDeque;
use core::f64::consts::{LOG10_E, PI, SQRT_2};
use core::time::Duration;

use conclave_kernel::{Card, Needs, Time, time};
use serde::{Deserialize, Serialize};

use super::Group;
use super::pulse::{Estimate, Pulse};

/// The phi-accrual detector.
pub type PhiAccrual = Pulse<Normal>;

/// The latest gaps, and the parameters of the model. All fields are whole numbers, because the checker
/// compares and hashes states.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Normal {
    /// The number of gaps to keep; values below 2 count as 2.
    window: u32,
    /// T and D/4 in nanoseconds: the mean and sigma that are used before two gaps are known.
    assumed: (u64, u64),
    /// The distance from the mean at which phi passes the threshold, in units of 10^-9 sigma.
    quantile: u64,
    last: Option<Time>,
    /// The latest gaps in nanoseconds; `sum` is their sum.
    gaps: VecDeque<u64>,
    sum: u64,
}

impl Normal {
    /// Returns how suspicious the silence is at `now`; 0 before the first heartbeat.
    pub fn phi(&self, now: Time) -> f64 {
        let (mean, sigma) = self.moments();
        self.last.map_or(0.0, |last| phi((time::nanos(now.since(last)) as f64 - mean) / sigma))
    }

    /// Returns the mean and the standard deviation of the gaps, in nanoseconds.
    fn moments(&self) -> (f64, f64) {
        if self.gaps.len() < 2 {
            return (self.assumed.0 as f64, self.assumed.1.max(1) as f64);
        }
        let count = self.gaps.len() as f64;
        let mean = self.sum as f64 / count;
        // Two passes, because the difference of two large sums would lose most digits to rounding.
        let squares: f64 = self.gaps.iter().map(|gap| (*gap as f64 - mean) * (*gap as f64 - mean)).sum();
        (mean, libm::sqrt(squares / count).max(mean / 100.0).max(1.0))
    }

    /// Returns how long after an arrival phi passes the threshold, in nanoseconds.
    fn deadline(&self) -> u64 {
        let (mean, sigma) = self.moments();
        (mean + sigma * (self.quantile as f64 / 1e9)).max(0.0) as u64
    }
}

impl Estimate for Normal {
    const CARD: Card = Card {
        problem: "detector",
        name: "phi-accrual",
        title: "Phi-accrual",
        summary: "a site is suspected when the probability of so long a gap is below 10^-Phi; gaps count as normal",
        papers: &["HDYK04"],
        needs: Needs {
            fifo: false,
            no_loss: false,
            no_duplication: false,
            no_crash: false,
            synchrony: false,
            perfect_detector: false,
        },
        promises: &["completeness", "constant-accuracy"],
        costs: &[],
        survives: "any number of crashes, loss, and delays that change",
        idle_traffic: true,
        reads_clock: true,
    };
    const NUMBERED: bool = false;

    fn new(group: &Group) -> Self {
        Self {
            window: group.window,
            assumed: (time::nanos(group.period), time::nanos(group.margin / 4)),
            quantile: (quantile(f64::from(group.threshold)) * 1e9) as u64,
            last: None,
            gaps: VecDeque::new(),
            sum: 0,
        }
    }

    fn arrived(&mut self, _number: u64, now: Time) -> bool {
        if let Some(last) = self.last.replace(now) {
            let gap = time::nanos(now.since(last)).min(self.deadline().max(1));
            if self.gaps.len() >= self.window.max(2) as usize {
                self.sum -= self.gaps.pop_front().unwrap_or(0);
            }
            self.gaps.push_back(gap);
            self.sum = self.sum.saturating_add(gap);
        }
        true
    }

    fn patience(&self, _now: Time) -> Duration {
        Duration::from_nanos(self.deadline())
    }
}

/// Returns -log10 of the probability that a normal variable is more than `z` sigma above its mean.
pub fn phi(z: f64) -> f64 {
    /// The z from which the series is used; here `erfc` comes close to the smallest positive `f64`.
    const FAR: f64 = 37.0;
    if z < FAR {
        return -libm::log10(0.5 * libm::erfc(z / SQRT_2));
    }
    // The tail is the density divided by z, times 1 - 1/z^2 + 3/z^4 - ...
    let correction = 1.0 - 1.0 / (z * z) + 3.0 / (z * z * z * z);
    z * z / 2.0 * LOG10_E + libm::log10(z * libm::sqrt(2.0 * PI)) - libm::log10(correction)
}

/// Returns the z at which [`phi`] reaches the threshold; 0 if phi has reached it at the mean already.
fn quantile(threshold: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1e6);
    if phi(low) >= threshold {
        return low;
    }
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if phi(middle) < threshold { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn fresh() -> Normal {
        Normal::new(&Group::new(2, Duration::from_millis(10), Duration::from_millis(8)))
    }

    #[track_caller]
    fn assert_near(value: f64, expected: f64, within: f64) {
        assert!((value - expected).abs() < within, "{value} is not {expected}");
    }

    /// The logistic formula would give 7.3, 10.8 and 21.2 at 5, 6 and 8 sigma.
    #[test]
    fn the_tail_is_the_normal_one() {
        for (sigmas, expected) in [(1.0, 0.7995), (5.0, 6.5426), (6.0, 9.0059), (8.0, 15.2062)] {
            assert_near(phi(sigmas), expected, 1e-3);
        }
    }

    #[test]
    fn phi_grows_smoothly_where_one_minus_f_is_zero_and_beyond() {
        let values: alloc::vec::Vec<f64> = (0..2_000).map(|tenth| phi(f64::from(tenth) / 10.0)).collect();
        assert!(values.iter().all(|value| value.is_finite()));
        assert!(values.is_sorted_by(|one, next| one < next && next - one < 10.0));
        assert_near(phi(37.0 - 1e-9), phi(37.0), 1e-6);
    }

    #[test]
    fn the_reminder_is_where_phi_passes_the_threshold() {
        let mut estimate = fresh();
        let mut at = 0;
        for step in 0..200_u64 {
            at += (9 + step % 3) * MS;
            estimate.arrived(0, Time(at));
        }
        let patience = time::nanos(estimate.patience(Time(at)));
        assert!(estimate.phi(Time(at + patience - MS / 100)) < 8.0);
        assert!(estimate.phi(Time(at + patience + MS / 100)) > 8.0);
        assert_near(quantile(8.0), 5.6120, 1e-3);
    }

    #[test]
    fn regular_heartbeats_do_not_make_sigma_zero() {
        let mut estimate = fresh();
        (0..50).for_each(|beat| _ = estimate.arrived(0, Time(10 * beat * MS)));
        let patience = estimate.patience(Time(490 * MS));
        assert!(patience > Duration::from_micros(10_500) && patience < Duration::from_micros(10_600));
    }

    #[test]
    fn before_two_gaps_are_known_the_configured_figures_stand() {
        let mut estimate = fresh();
        let bootstrap = estimate.patience(Time(0));
        assert!(bootstrap > Duration::from_millis(18), "{bootstrap:?}");
        estimate.arrived(0, Time(5));
        estimate.arrived(0, Time(10 * MS));
        assert_eq!(estimate.patience(Time(10 * MS)), bootstrap);
    }

    #[test]
    fn a_long_pause_enters_the_window_only_as_long_as_the_deadline() {
        let mut estimate = fresh();
        (0..50).for_each(|beat| _ = estimate.arrived(0, Time(10 * beat * MS)));
        let before = estimate.deadline();
        estimate.arrived(0, Time(100_000 * MS));
        assert_eq!(estimate.gaps.back(), Some(&before));
        assert!(estimate.deadline() < 2 * before);
    }
}
