//! The corrected clock, which is slewed and never set back.
//!
//! A site learns by how much its clock is wrong. It must not simply set the clock: programs that saw 12:00:05
//! must not see 12:00:03 afterwards. So the corrected clock runs a little slower or faster than the local one
//! until the difference is gone.
//!
//! **Rules**
//! 1. The *target* is the local clock plus the latest offset. The *shown* value approaches the target by at
//!    most `rate` per second.
//! 2. A clock that is behind by more than [`STEP`] jumps ahead at once \[RFC5905 §11.3\]: it may leave out
//!    times, but never repeats one. A clock that is ahead is always slewed.
//!
//! **Trap**: applying a correction to the shown value instead of the target. A second correction may arrive
//! while the first is still being slewed. It would then count the first one twice.

use core::time::Duration;

use conclave_kernel::Time;
use serde::{Deserialize, Serialize};

use super::interval::local;

/// The largest lag that is slewed. A clock that is behind by more jumps ahead.
pub const STEP: Duration = Duration::from_millis(128);

/// A corrected clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slew {
    /// The value shown when the local clock showed `since`, in nanoseconds.
    shown: i64,
    since: Time,
    /// The target minus the local clock, in nanoseconds.
    offset: i64,
    rate_ppm: u32,
}

impl Slew {
    /// Creates a clock that shows local time and is slewed by at most `rate_ppm`.
    pub const fn new(rate_ppm: u32) -> Self {
        // At a rate of 1 the clock would stand still, and at a higher rate it would run backwards.
        let rate_ppm = if rate_ppm > 999_999 { 999_999 } else { rate_ppm };
        Self { shown: 0, since: Time::ZERO, offset: 0, rate_ppm }
    }

    /// Returns the value shown when the local clock shows `now`.
    pub fn read(&self, now: Time) -> i64 {
        let elapsed = now.0.saturating_sub(self.since.0);
        let natural = self.shown.saturating_add_unsigned(elapsed);
        let most = (u128::from(elapsed) * u128::from(self.rate_ppm) / 1_000_000) as i64;
        natural.saturating_add(self.target(now).saturating_sub(natural).clamp(-most, most))
    }

    /// Returns the value that the clock would show without slewing.
    pub const fn target(&self, now: Time) -> i64 {
        local(now).saturating_add(self.offset)
    }

    /// Returns the target minus the local clock.
    pub const fn offset(&self) -> i64 {
        self.offset
    }

    /// Sets a new target: the reference is now ahead of the local clock by `offset`.
    pub fn aim(&mut self, now: Time, offset: i64) {
        self.shown = self.read(now);
        self.since = now;
        self.offset = offset;
        let target = self.target(now);
        if target.saturating_sub(self.shown) > STEP.as_nanos() as i64 {
            self.shown = target;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn a_clock_that_is_ahead_runs_slower_until_it_is_right() {
        let mut clock = Slew::new(100_000);
        clock.aim(Time(0), -10 * MS);
        assert_eq!(clock.read(Time(50_000_000)), 45 * MS);
        assert_eq!(clock.read(Time(100_000_000)), 90 * MS);
        assert_eq!(clock.read(Time(200_000_000)), 190 * MS);
    }

    #[test]
    fn a_clock_that_is_far_behind_jumps_and_one_that_is_far_ahead_does_not() {
        let mut clock = Slew::new(500);
        clock.aim(Time(0), 129 * MS);
        assert_eq!(clock.read(Time(0)), 129 * MS);
        clock.aim(Time(0), 129 * MS - 200 * MS);
        assert_eq!(clock.read(Time(0)), 129 * MS);
    }

    proptest! {
        #[test]
        fn no_clock_is_ever_set_back(rate in 0..2_000_000_u32,
                                     aims in prop::collection::vec((0..1_000_000_000_u64, -300 * MS..300 * MS), 1..20)) {
            let (mut clock, mut now, mut last) = (Slew::new(rate), Time(0), i64::MIN);
            for (after, offset) in aims {
                now = now + Duration::from_nanos(after);
                let shown = clock.read(now);
                prop_assert!(shown >= last);
                clock.aim(now, offset);
                last = clock.read(now);
                prop_assert!(last >= shown);
            }
        }
    }
}
