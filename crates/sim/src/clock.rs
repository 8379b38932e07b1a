//! Local clocks. Each has its own start value and its own speed, and a fault can make it jump.
//!
//! Drift is part of a clock's specification, and algorithms may rely on its bound. A *step* is a fault: an
//! operator, firmware or a resumed virtual machine sets the clock to another value. Timers count the
//! oscillator, not the displayed time, so a step does not affect them.
//!
//! **Rule**: the world promises that a local clock never runs backwards. A clock that is stepped back stands
//! still until its new time reaches the old reading.

use std::time::Duration;

use conclave_kernel::{Prng, Time, time};
use serde::{Deserialize, Serialize};

/// Bounds for the errors of the local clocks of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clocks {
    /// The largest amount by which a clock may be ahead at the start.
    #[serde(with = "crate::text::duration")]
    pub skew: Duration,
    /// The largest deviation of a clock's speed, in parts per million, in either direction.
    pub drift_ppm: u32,
    /// The number of sites with an exact clock: the sites `0..exact`. Their clocks show the world's time,
    /// like those of time servers.
    pub exact: u32,
}

/// The clock of one site. At the world's time `t` it shows `skew + t * (1 + ppb / 10^9)`, but never less than
/// `least`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalClock {
    skew: i64,
    ppb: i64,
    /// The reading at the last step.
    least: u64,
}

const BILLION: i128 = 1_000_000_000;

impl LocalClock {
    /// Creates the clock of a site: exact or random, as `clocks` requires.
    pub(crate) fn of(site: u64, clocks: Clocks, prng: &mut Prng) -> Self {
        if site < u64::from(clocks.exact) { Self::default() } else { Self::draw(clocks, prng) }
    }

    pub(crate) fn draw(clocks: Clocks, prng: &mut Prng) -> Self {
        let skew = prng.between(0, time::nanos(clocks.skew).min(i64::MAX.unsigned_abs())).cast_signed();
        let most = i64::from(clocks.drift_ppm.min(999_999)) * 1000;
        let ppb = prng.between(0, 2 * most.unsigned_abs()) as i64 - most;
        Self { skew, ppb, least: 0 }
    }

    /// Steps the clock: from the world's time `at` on, it shows `by` nanoseconds more (or less, if negative).
    pub(crate) fn step(&mut self, at: u64, by: i64) {
        self.least = self.read(at).0;
        self.skew = self.skew.saturating_add(by);
    }

    #[inline]
    pub(crate) fn read(self, at: u64) -> Time {
        if self.ppb == 0 {
            return Time(at.saturating_add_signed(self.skew).max(self.least));
        }
        let gained = (i128::from(at) * i128::from(self.ppb)) / BILLION;
        let ahead = self.skew.saturating_add(gained as i64);
        Time(at.saturating_add_signed(ahead).max(self.least))
    }

    /// Returns the duration in the world's time in which this clock counts `local` nanoseconds.
    #[inline]
    pub(crate) fn world_span(self, local: u64) -> u64 {
        if self.ppb == 0 {
            return local;
        }
        let span = i128::from(local) * BILLION / (BILLION + i128::from(self.ppb));
        u64::try_from(span).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_clock_gains_and_its_timers_come_early() {
        let fast = LocalClock { skew: 5, ppb: 100_000, least: 0 };
        assert_eq!(fast.read(1_000_000_000), Time(1_000_100_005));
        assert_eq!(fast.world_span(1_000_100_000), 1_000_000_000);
    }

    #[test]
    fn a_clock_that_is_stepped_ahead_jumps_and_its_timers_do_not() {
        let mut clock = LocalClock { skew: 5, ppb: 0, least: 0 };
        clock.step(1_000, 500);
        assert_eq!((clock.read(1_000), clock.read(1_010)), (Time(1_505), Time(1_515)));
        assert_eq!(clock.world_span(70), 70);
    }

    #[test]
    fn a_clock_that_is_stepped_back_stands_still_until_time_has_caught_up() {
        let mut clock = LocalClock { skew: 100, ppb: 0, least: 0 };
        clock.step(1_000, -300);
        let shown = [1_000, 1_200, 1_300, 1_301, 1_500].map(|at| clock.read(at).0);
        assert_eq!(shown, [1_100, 1_100, 1_100, 1_101, 1_300]);
    }

    #[test]
    fn no_clock_ever_runs_backwards_however_often_it_is_stepped() {
        for seed in 0..200 {
            let mut dice = Prng::new(seed);
            let clocks = Clocks { skew: Duration::from_micros(3), drift_ppm: 900_000, exact: 0 };
            let (mut clock, mut at, mut last) = (LocalClock::draw(clocks, &mut dice), 0, Time(0));
            for _ in 0..50 {
                at += dice.below(1_000);
                let shown = clock.read(at);
                assert!(shown >= last, "seed {seed}");
                clock.step(at, dice.between(0, 10_000).cast_signed() - 5_000);
                last = clock.read(at);
                assert!(last >= shown, "seed {seed}: the step itself");
            }
        }
    }

    #[test]
    fn a_time_server_shows_the_worlds_time() {
        let clocks = Clocks { skew: Duration::from_secs(3), drift_ppm: 50, exact: 1 };
        assert_eq!(LocalClock::of(0, clocks, &mut Prng::new(1)), LocalClock::default());
        assert_ne!(LocalClock::of(1, clocks, &mut Prng::new(1)), LocalClock::default());
    }

    #[test]
    fn clocks_stay_within_what_was_asked() {
        let clocks = Clocks { skew: Duration::from_millis(3), drift_ppm: 50, exact: 0 };
        for seed in 0..500 {
            let clock = LocalClock::draw(clocks, &mut Prng::new(seed));
            assert!((0..=3_000_000).contains(&clock.skew) && clock.ppb.abs() <= 50_000);
        }
    }
}
