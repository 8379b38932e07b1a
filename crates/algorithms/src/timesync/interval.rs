//! Intervals: every answer to "what time is it?" must state its uncertainty.
//!
//! A comparison with another clock shows that clock's time only up to the delay of the messages. The result
//! becomes less certain every second, because oscillators drift. So every answer of this problem is an
//! interval that contains the true time. The middle is the best guess, and half the width is the bound.
//!
//! **Rules**
//! 1. A clock within its specification runs at a rate between 1-rho and 1+rho \[C89\]. While it counts `e`,
//!    the true time advances by between `e/(1+rho)` and `e/(1-rho)`. [`drift`] returns the larger deviation.
//! 2. Two intervals that contain the same time overlap, and their intersection contains it, too.
//! 3. Two clocks with drift rate rho part at 2 rho. To stay within M of each other, they must be compared
//!    every M/(2 rho) ([`resync_interval`]).
//! 4. Clocks within D of the true time are within 2D of each other. Clocks within D of each other may all be
//!    far from the true time.
//!
//! **Trap**: taking the bound of the last comparison as a constant. The bound grows by rho per second until
//! the next comparison. All rounding goes outwards. Clocks are read in whole nanoseconds, so a span with
//! drift costs one nanosecond more.

use core::fmt;
use core::time::Duration;

use conclave_kernel::{Time, time};
use serde::{Deserialize, Serialize};

/// An interval of times, or of differences between two clocks, in nanoseconds. Both ends are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end.
    pub lo: i64,
    /// The upper end; never below `lo`.
    pub hi: i64,
}

impl Interval {
    /// Creates the interval from `lo` to `hi`; returns `None` if `lo` is above `hi`.
    pub const fn new(lo: i64, hi: i64) -> Option<Self> {
        if lo <= hi { Some(Self { lo, hi }) } else { None }
    }

    /// Creates an interval with a single point.
    pub const fn point(at: i64) -> Self {
        Self { lo: at, hi: at }
    }

    /// Creates an interval that extends by `bound` on both sides of a guess.
    pub const fn around(guess: i64, bound: u64) -> Self {
        Self { lo: guess.saturating_sub_unsigned(bound), hi: guess.saturating_add_unsigned(bound) }
    }

    /// Returns the best guess: the middle.
    pub const fn guess(self) -> i64 {
        self.lo.midpoint(self.hi)
    }

    /// Returns the largest error of the guess: half the width, rounded up.
    pub const fn bound(self) -> u64 {
        self.width().div_ceil(2)
    }

    /// Returns the distance between the two ends.
    pub const fn width(self) -> u64 {
        self.hi.abs_diff(self.lo)
    }

    /// Returns whether the interval contains this time.
    pub const fn contains(self, at: i64) -> bool {
        self.lo <= at && at <= self.hi
    }

    /// Returns the largest error of a clock that shows `at`, if the interval contains the true time.
    pub const fn farthest(self, at: i64) -> u64 {
        let (below, above) = (at.abs_diff(self.lo), self.hi.abs_diff(at));
        if below > above { below } else { above }
    }

    /// Returns the interval, extended by `by` on both sides.
    #[must_use]
    pub const fn widen(self, by: u64) -> Self {
        Self { lo: self.lo.saturating_sub_unsigned(by), hi: self.hi.saturating_add_unsigned(by) }
    }

    /// Returns the interval, moved by `by`.
    #[must_use]
    pub const fn shift(self, by: i64) -> Self {
        Self { lo: self.lo.saturating_add(by), hi: self.hi.saturating_add(by) }
    }

    /// Returns the intersection; `None` if the intervals do not overlap, because then one of them is wrong.
    pub fn intersect(self, other: Self) -> Option<Self> {
        Self::new(self.lo.max(other.lo), self.hi.min(other.hi))
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns +- {}", self.guess(), time::show(Duration::from_nanos(self.bound())))
    }
}

/// Returns the largest difference, in nanoseconds, between the time that a clock counts and the true time,
/// while the clock counts `elapsed`. The drift rate of the clock is at most `ppm`.
pub const fn drift(elapsed: Duration, ppm: u32) -> u64 {
    const MILLION: u128 = 1_000_000;
    if ppm == 0 {
        return 0;
    }
    let ppm = ppm as u128;
    if ppm >= MILLION {
        return u64::MAX;
    }
    let most = (time::nanos(elapsed) as u128 * ppm).div_ceil(MILLION - ppm) + 1;
    if most > u64::MAX as u128 { u64::MAX } else { most as u64 }
}

/// Returns how often clocks with a maximum drift rate MDR must be compared to stay within `skew` of each
/// other: every M/(2 MDR). Returns `None` if they do not drift, because one comparison is then enough.
pub const fn resync_interval(skew: Duration, mdr_ppm: u32) -> Option<Duration> {
    if mdr_ppm == 0 {
        return None;
    }
    let every = time::nanos(skew) as u128 * 1_000_000 / (2 * mdr_ppm as u128);
    Some(Duration::from_nanos(if every > u64::MAX as u128 { u64::MAX } else { every as u64 }))
}

/// The result of a comparison between the reference and the local clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Estimate {
    /// The reference minus the local clock, at the moment `at`.
    pub offset: Interval,
    /// The moment of the comparison, on the local clock.
    pub at: Time,
}

impl Estimate {
    /// Creates an estimate from an interval that contains the reference's time when the local clock shows
    /// `at`.
    pub const fn of(reference: Interval, at: Time) -> Self {
        Self { offset: reference.shift(local(at).saturating_neg()), at }
    }

    /// Returns the offset as known at `now`, extended by the possible drift since the comparison.
    pub const fn offset_at(self, now: Time, drift_ppm: u32) -> Interval {
        self.offset.widen(drift(now.since(self.at), drift_ppm))
    }

    /// Returns an interval that contains the reference's time at `now`.
    pub const fn time_at(self, now: Time, drift_ppm: u32) -> Interval {
        self.offset_at(now, drift_ppm).shift(local(now))
    }

    /// Returns the same estimate as of `now`.
    #[must_use]
    pub const fn aged(self, now: Time, drift_ppm: u32) -> Self {
        Self { offset: self.offset_at(now, drift_ppm), at: now }
    }
}

/// Converts the reading of a clock to a number that can be subtracted. Saturates after 292 years.
pub const fn local(at: Time) -> i64 {
    if at.0 > i64::MAX as u64 { i64::MAX } else { at.0 as i64 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_middle_is_the_guess_and_half_the_width_the_bound() {
        let interval = Interval::new(-3, 10).unwrap();
        assert_eq!((interval.guess(), interval.bound()), (3, 7));
        assert_eq!(interval.farthest(20), 23);
        assert_eq!(Interval::new(1, 0), None);
    }

    #[test]
    fn a_clock_of_a_hundred_ppm_may_lose_a_hundred_microseconds_a_second() {
        // 100 us, the second-order term, and one nanosecond for reading the clock.
        assert_eq!(drift(SECOND, 100), 100_011 + 1);
        assert_eq!(drift(SECOND, 0), 0);
        assert_eq!(drift(SECOND, 1_000_000), u64::MAX);
    }

    #[test]
    fn clocks_are_compared_every_m_over_two_mdr() {
        // Clocks of 50 ppm stay within 1 ms of each other if they are compared every 10 s, and not if later.
        let every = resync_interval(Duration::from_millis(1), 50).unwrap();
        assert_eq!(every, Duration::from_secs(10));
        let apart = |span: Duration| 2 * span.as_nanos() * 50 / 1_000_000;
        assert_eq!(apart(every), 1_000_000);
        assert!(apart(every + Duration::from_micros(10)) > 1_000_000);
        assert_eq!(resync_interval(SECOND, 0), None);
    }

    #[test]
    fn an_estimate_grows_with_the_time_since() {
        let estimate = Estimate::of(Interval::around(5_000, 10), Time(2_000));
        assert_eq!(estimate.offset, Interval::around(3_000, 10));
        let later = Time(2_000) + SECOND;
        assert_eq!(estimate.time_at(later, 100).bound(), 10 + 100_012);
        assert_eq!(estimate.time_at(later, 100).guess(), 1_000_005_000);
    }

    proptest! {
        /// External synchronisation with bound D implies internal synchronisation with 2D.
        #[test]
        fn external_d_implies_internal_two_d(truth in -1_000_000..1_000_000_i64, d in 0..10_000_u64,
                                             a in -10_000..10_000_i64, b in -10_000..10_000_i64) {
            let clamp = |error: i64| error.clamp(-(d as i64), d as i64);
            let (one, other) = (truth + clamp(a), truth + clamp(b));
            prop_assert!(one.abs_diff(other) <= 2 * d);
            let stated = Interval::around(one, d).intersect(Interval::around(other, d));
            prop_assert!(stated.is_some_and(|both| both.contains(truth)));
        }

        /// The computed drift covers every clock that is within its specification.
        #[test]
        fn drift_covers_every_clock_within_its_specification(span in 0..100_000_000_000_u64,
                                                             ppm in 1..200_000_u32, ppb in -1_000..=1_000_i64) {
            let ppb = i128::from(ppb) * i128::from(ppm);
            let counted = (i128::from(span) * (1_000_000_000 + ppb) / 1_000_000_000) as u64;
            prop_assert!(counted.abs_diff(span) <= drift(Duration::from_nanos(counted), ppm));
        }

        #[test]
        fn an_intersection_holds_what_both_hold(a in -50..50_i64, b in 0..30_u64, c in -50..50_i64, d in 0..30_u64,
                                                at in -100..100_i64) {
            let (one, other) = (Interval::around(a, b), Interval::around(c, d));
            let both = one.intersect(other);
            prop_assert_eq!(both.is_some_and(|both| both.contains(at)), one.contains(at) && other.contains(at));
        }
    }
}
