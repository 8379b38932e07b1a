//! The access of a program to a device's counter, which adds up to 4 ticks at each end.
//!
//! The counter is in the network card, and a program reads it over the bus. The value was right at some
//! moment between the request and the answer. This is the situation of [`cristian`](super::super::cristian)
//! with a server 30 cm away. The middle is the best guess, and half the access time is the bound.
//!
//! **Rules** \[LWSW16\], as we read its 8T
//! 1. An access takes at most 8 ticks ([`SOFTWARE`]). It adds at most 4 ticks at each of two ends, so the
//!    bound from program to program is 4TD + 8T.
//! 2. An access that takes longer, for example because of an interrupt, is repeated: [`Access::is_quick`].
//! 3. Between accesses the program uses the processor's clock, and the bound grows by the drift of that
//!    clock.

use conclave_kernel::Time;

use super::super::interval::{Interval, drift};
use super::{TICK_TENTHS, tick};

/// The ticks that the programs at both ends add to the bound between their devices.
pub const SOFTWARE: u64 = 8;

/// One access to the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The time of the request, on the processor's clock.
    pub asked: Time,
    /// The time of the answer, on the same clock.
    pub got: Time,
    /// The answer, in ticks.
    pub counter: u64,
}

impl Access {
    /// Returns an interval that contains the counter at the moment `got`, in ticks. Its bound is half the
    /// access time.
    pub fn counter(self) -> Interval {
        let counter = i64::try_from(self.counter).unwrap_or(i64::MAX);
        let took = u128::from(self.got.0.saturating_sub(self.asked.0)) * 10;
        let took = took.div_ceil(u128::from(TICK_TENTHS)) as u64;
        Interval { lo: counter, hi: counter.saturating_add_unsigned(took) }
    }

    /// Returns an interval that contains the counter at a later time of the processor's clock. `drift_ppm` is
    /// the largest drift of this clock against the device's oscillator. One tick more covers the rounding to
    /// whole ticks.
    pub fn counter_at(self, now: Time, drift_ppm: u32) -> Interval {
        let since = now.since(self.got);
        let apart = drift(since, drift_ppm).saturating_mul(10).div_ceil(TICK_TENTHS) + 1;
        let counted = tick(Time::ZERO + since);
        self.counter().shift(i64::try_from(counted).unwrap_or(i64::MAX)).widen(apart)
    }

    /// Returns whether the access adds at most the 4 ticks that are allowed.
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
        /// The counter may be read at any moment of the access and at any phase of a tick. The interval also
        /// holds long afterwards.
        #[test]
        fn the_counter_is_inside(phase in 0..64_u64, there in 0..30_u64, back in 0..30_u64,
                                 later in 0..100_000_000_u64, ppm in 0..=200_u32, slow in any::<bool>()) {
            // The device's oscillator counts tenths of a nanosecond, and the processor's clock counts
            // nanoseconds.
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
