//! Intervals: the only honest answer to "what time is it?".
//!
//! A clock that was compared with another knows the other's time only up to the delay of the messages, and
//! knows it less well with every second that passes, because oscillators drift. So every answer of this problem
//! is an interval that holds the true time: the middle is the best guess, half the width is the bound.
//!
//! **Rules**
//! 1. A clock within its specification runs at a rate between 1-rho and 1+rho \[C89\]. While it counts `e`,
//!    the true time advances by between `e/(1+rho)` and `e/(1-rho)`: [`drift`] is the larger deviation.
//! 2. Two intervals that hold the same time overlap, and their intersection holds it too.
//! 3. Two clocks of drift rate rho part at 2 rho: to stay within M of each other they are compared every
//!    M/(2 rho) ([`resync_interval`]).
//! 4. Clocks within D of the true time are within 2D of each other; clocks within D of each other may all be
//!    anywhere.
//!
//! **Trap**: the bound is not a constant of the last comparison. It grows, by rho a second, until the next one.
//! All rounding goes outwards, and clocks are read in whole nanoseconds: a drifting span costs one more.

use core::fmt;
use core::time::Duration;

use conclave_kernel::{Time, time};
use serde::{Deserialize, Serialize};

/// Where a time lies, or by how much one clock is ahead of another: both ends included, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Interval {
    /// The earliest.
    pub lo: i64,
    /// The latest; never before `lo`.
    pub hi: i64,
}

impl Interval {
    /// From `lo` to `hi`; `None` if nothing lies between them.
    pub const fn new(lo: i64, hi: i64) -> Option<Self> {
        if lo <= hi { Some(Self { lo, hi }) } else { None }
    }

    /// Exactly that.
    pub const fn point(at: i64) -> Self {
        Self { lo: at, hi: at }
    }

    /// So far to both sides of a guess.
    pub const fn around(guess: i64, bound: u64) -> Self {
        Self { lo: guess.saturating_sub_unsigned(bound), hi: guess.saturating_add_unsigned(bound) }
    }

    /// The best guess: the middle.
    pub const fn guess(self) -> i64 {
        self.lo.midpoint(self.hi)
    }

    /// The most by which the guess is wrong: half the width, rounded up.
    pub const fn bound(self) -> u64 {
        self.width().div_ceil(2)
    }

    /// From end to end.
    pub const fn width(self) -> u64 {
        self.hi.abs_diff(self.lo)
    }

    /// Whether that time lies inside.
    pub const fn contains(self, at: i64) -> bool {
        self.lo <= at && at <= self.hi
    }

    /// The most by which a clock that shows `at` is wrong, if the interval holds the true time.
    pub const fn farthest(self, at: i64) -> u64 {
        let (below, above) = (at.abs_diff(self.lo), self.hi.abs_diff(at));
        if below > above { below } else { above }
    }

    /// Wider, by so much on both sides.
    #[must_use]
    pub const fn widen(self, by: u64) -> Self {
        Self { lo: self.lo.saturating_sub_unsigned(by), hi: self.hi.saturating_add_unsigned(by) }
    }

    /// Moved.
    #[must_use]
    pub const fn shift(self, by: i64) -> Self {
        Self { lo: self.lo.saturating_add(by), hi: self.hi.saturating_add(by) }
    }

    /// What lies in both; `None` if they are apart: then one of them is wrong.
    pub fn intersect(self, other: Self) -> Option<Self> {
        Self::new(self.lo.max(other.lo), self.hi.min(other.hi))
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns +- {}", self.guess(), time::show(Duration::from_nanos(self.bound())))
    }
}

/// By how much the true time and a clock of that drift rate part while the clock counts `elapsed`.
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

/// How often clocks of maximum drift rate MDR must be compared to stay within `skew` of each other: every
/// M/(2 MDR). `None` if they do not drift: once is enough.
pub const fn resync_interval(skew: Duration, mdr_ppm: u32) -> Option<Duration> {
    if mdr_ppm == 0 {
        return None;
    }
    let every = time::nanos(skew) as u128 * 1_000_000 / (2 * mdr_ppm as u128);
    Some(Duration::from_nanos(if every > u64::MAX as u128 { u64::MAX } else { every as u64 }))
}

/// What a comparison came to: by how much the reference is ahead of the local clock, and when that was so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Estimate {
    /// Reference minus local clock, at that moment.
    pub offset: Interval,
    /// The moment, on the local clock.
    pub at: Time,
}

impl Estimate {
    /// From where the reference's time lies when the local clock shows `at`.
    pub const fn of(reference: Interval, at: Time) -> Self {
        Self { offset: reference.shift(local(at).saturating_neg()), at }
    }

    /// The offset as it is known now: wider by what the clock may have drifted since.
    pub const fn offset_at(self, now: Time, drift_ppm: u32) -> Interval {
        self.offset.widen(drift(now.since(self.at), drift_ppm))
    }

    /// Where the reference's time lies now.
    pub const fn time_at(self, now: Time, drift_ppm: u32) -> Interval {
        self.offset_at(now, drift_ppm).shift(local(now))
    }

    /// The same knowledge, as of now.
    #[must_use]
    pub const fn aged(self, now: Time, drift_ppm: u32) -> Self {
        Self { offset: self.offset_at(now, drift_ppm), at: now }
    }
}

/// A reading of a clock as a number that may be subtracted; saturates after 292 years.
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
        // 100 us, the second-order term, and the nanosecond of the reading.
        assert_eq!(drift(SECOND, 100), 100_011 + 1);
        assert_eq!(drift(SECOND, 0), 0);
        assert_eq!(drift(SECOND, 1_000_000), u64::MAX);
    }

    #[test]
    fn clocks_are_compared_every_m_over_two_mdr() {
        // Within 1 ms of each other at 50 ppm: every 10 s. And that is what it takes: not a nanosecond longer.
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

        /// Whatever a clock within its specification does, what it may have drifted covers it.
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
