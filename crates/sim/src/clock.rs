//! Local clocks: each with its own zero and its own speed.

use std::time::Duration;

use conclave_kernel::{Prng, Time, time};
use serde::{Deserialize, Serialize};

/// How wrong the clocks of a run may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Clocks {
    /// The most by which a clock is ahead at the start.
    #[serde(with = "crate::text::duration")]
    pub skew: Duration,
    /// The most by which a clock runs too fast or too slow, in parts per million.
    pub drift_ppm: u32,
    /// So many sites, the first, have a clock that shows the world's time: a time server's.
    pub exact: u32,
}

/// One site's clock: reads `skew + t * (1 + ppb / 10^9)` at the world's time `t`. Never runs backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalClock {
    skew: u64,
    ppb: i64,
}

const BILLION: i128 = 1_000_000_000;

impl LocalClock {
    /// The clock of a site.
    pub(crate) fn of(site: u64, clocks: Clocks, prng: &mut Prng) -> Self {
        if site < u64::from(clocks.exact) { Self::default() } else { Self::draw(clocks, prng) }
    }

    pub(crate) fn draw(clocks: Clocks, prng: &mut Prng) -> Self {
        let skew = prng.between(0, time::nanos(clocks.skew));
        let most = i64::from(clocks.drift_ppm.min(999_999)) * 1000;
        let ppb = prng.between(0, 2 * most.unsigned_abs()) as i64 - most;
        Self { skew, ppb }
    }

    #[inline]
    pub(crate) fn read(self, at: u64) -> Time {
        if self.ppb == 0 {
            return Time(self.skew.saturating_add(at));
        }
        let gained = (i128::from(at) * i128::from(self.ppb)) / BILLION;
        Time(self.skew.saturating_add(at).saturating_add_signed(gained as i64))
    }

    /// How long the world waits while this clock counts `local` nanoseconds.
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
        let fast = LocalClock { skew: 5, ppb: 100_000 };
        assert_eq!(fast.read(1_000_000_000), Time(1_000_100_005));
        assert_eq!(fast.world_span(1_000_100_000), 1_000_000_000);
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
            assert!(clock.skew <= 3_000_000 && clock.ppb.abs() <= 50_000);
        }
    }
}
