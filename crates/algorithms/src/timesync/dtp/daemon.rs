//! How a program reads a device's counter, and what that costs: 4 ticks at either end.
//!
//! The counter is in the network card. A program asks for it over the bus, and what comes back was right at some
//! moment between asking and getting: the situation of [`cristian`](super::super::cristian) again, with a server
//! that is 30 cm away. The middle is the best guess, and half the time that the access took is the bound.
//!
//! **Rules** \[LWSW16\], as we read its 8T
//! 1. An access takes at most 8 ticks ([`SOFTWARE`]), so that it adds at most 4 at each of two ends: 4TD + 8T from
//!    program to program.
//! 2. One that takes longer (an interrupt came between) is repeated: [`Access::is_quick`].
//! 3. Between accesses the program goes by the processor's clock, and its bound grows by what that drifts.

use conclave_kernel::Time;

use super::super::interval::{Interval, drift};
use super::{TICK_TENTHS, tick};

/// What programs at both ends add to the bound between their devices, in ticks.
pub const SOFTWARE: u64 = 8;

/// One access to the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// When the program asked, on the processor's clock.
    pub asked: Time,
    /// When it got the answer, on the same clock.
    pub got: Time,
    /// The answer, in ticks.
    pub counter: u64,
}

impl Access {
    /// Where the counter lies at the moment `got`, in ticks: the bound is half of what the access took.
    pub fn counter(self) -> Interval {
        let counter = i64::try_from(self.counter).unwrap_or(i64::MAX);
        let took = u128::from(self.got.0.saturating_sub(self.asked.0)) * 10;
        let took = took.div_ceil(u128::from(TICK_TENTHS)) as u64;
        Interval { lo: counter, hi: counter.saturating_add_unsigned(took) }
    }

    /// Where it lies later, by the processor's clock, which drifts by at most so much against the device's
    /// oscillator. Ticks are counted in whole ones, hence one more.
    pub fn counter_at(self, now: Time, drift_ppm: u32) -> Interval {
        let since = now.since(self.got);
        let apart = drift(since, drift_ppm).saturating_mul(10).div_ceil(TICK_TENTHS) + 1;
        let counted = tick(Time::ZERO + since);
        self.counter().shift(i64::try_from(counted).unwrap_or(i64::MAX)).widen(apart)
    }

    /// Whether it was quick enough for the 4 ticks that a program may add.
    pub fn is_quick(self) -> bool {
        self.counter().bound() <= SOFTWARE / 2
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ticks;
    use super::*;

    #[test]
    fn an_access_of_eight_ticks_is_right_to_four() {
        let access = Access { asked: Time(1_000), got: Time(1_000) + ticks(8), counter: 500 };
        assert_eq!((access.counter().guess(), access.counter().bound()), (504, 4));
        assert!(access.is_quick());
        assert!(!Access { got: Time(1_000) + ticks(10), ..access }.is_quick(), "to be repeated");
    }

    proptest! {
        /// Whenever between asking and getting the counter was read, whatever its phase, and long afterwards.
        #[test]
        fn the_counter_is_inside(phase in 0..64_u64, there in 0..30_u64, back in 0..30_u64,
                                 later in 0..100_000_000_u64, ppm in 0..=200_u32, slow in any::<bool>()) {
            // The device's oscillator in tenths of a nanosecond, the processor's clock in nanoseconds.
            let counter = |at: u64| (at * 10 + phase) / TICK_TENTHS;
            let access = Access { asked: Time(0), got: Time(there + back), counter: counter(there) };
            prop_assert!(access.counter().contains(counter(there + back) as i64));
            let drifted = later / 1_000_000 * u64::from(ppm);
            let shown = if slow { later - drifted } else { later + drifted };
            let told = access.counter_at(Time(there + back + shown), ppm);
            prop_assert!(told.contains(counter(there + back + later) as i64), "{:?}", told);
        }
    }
}
