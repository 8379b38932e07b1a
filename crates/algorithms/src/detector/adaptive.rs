//! The adaptive detector of Bertier, Marin and Sens: the deadline follows the delays that were observed.
//!
//! The detector first predicts when the next heartbeat will arrive. It uses the estimate of Chen, Toueg and
//! Aguilera. The sender sends heartbeat i at time i*T of its own schedule. The mean of (arrival - i*T) over
//! the latest arrivals, plus (i+1)*T, is the expected arrival of the next heartbeat.
//!
//! The detector then decides how late this heartbeat may be. Bertier's margin is Jacobson's estimator from
//! TCP: keep a smoothed error and a smoothed deviation of the prediction, and allow the error plus four
//! deviations.
//!
//! **Rules** \[CTA02 §6, BMS02 §3\]. A(i) is the arrival time of heartbeat i.
//! 1. EA(k+1) = mean of (A(i) - i*T) over the window, + (k+1)*T.
//! 2. error = A(k) - EA(k) - delay; delay += error/10; deviation += (|error| - deviation)/10.
//! 3. Suspect the sender at EA(k+1) + delay + 4 deviations.
//!
//! **Trap**: averaging the gaps between arrivals instead of the differences from the schedule. A gap contains
//! the delays of two messages, so a late heartbeat would also move the deadline of the next one, which is not
//! late. A lost heartbeat would count as one gap of 2T.
//!
//! **Differences from the paper**: the margin is at least D/8, because on a network without jitter it would
//! become 0. Until two heartbeats have arrived, silence may last T + D. When the sender restarts, the
//! estimate starts a new schedule for it.

use alloc::collections::VecDeque;
use core::time::Duration;

use conclave_kernel::{Card, Needs, Time, time};
use serde::{Deserialize, Serialize};

use super::Group;
use super::pulse::{Estimate, LIFE_BITS, Pulse};

/// The adaptive detector.
pub type Adaptive = Pulse<Expected>;

/// The prediction of the next arrival, and the state of its margin. All times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Expected {
    period: i64,
    margin: i64,
    window: u32,
    /// The largest heartbeat number received; `None` before the first heartbeat.
    latest: Option<u64>,
    /// Arrival time minus scheduled time, for the latest heartbeats; at most `window` entries.
    offsets: VecDeque<i64>,
    /// The sum of `offsets`.
    sum: i64,
    /// Jacobson's smoothed prediction error; `deviation` is the smoothed absolute deviation from it.
    delay: i64,
    deviation: i64,
}

impl Expected {
    /// Returns how much later than expected the next heartbeat may arrive.
    pub fn margin(&self) -> Duration {
        let margin = self.delay.saturating_add(self.deviation.saturating_mul(DEVIATIONS));
        Duration::from_nanos(margin.max(self.margin / 8).unsigned_abs())
    }

    /// Returns the expected arrival of heartbeat `number` of the sender's present incarnation; `None` before
    /// the first arrival.
    fn expected(&self, number: u64) -> Option<i64> {
        let mean = self.sum.checked_div(self.offsets.len() as i64)?;
        Some(mean.saturating_add(self.due(number)))
    }

    fn due(&self, number: u64) -> i64 {
        let in_this_life = (number & ((1 << LIFE_BITS) - 1)) as i64;
        in_this_life.saturating_mul(self.period)
    }

    /// Updates the smoothed error and the smoothed deviation with the result of one prediction.
    fn correct(&mut self, expected: i64, arrival: i64) {
        let error = arrival.saturating_sub(expected).saturating_sub(self.delay);
        self.delay += error / SMOOTHING;
        self.deviation += (error.saturating_abs() - self.deviation) / SMOOTHING;
    }

    fn remember(&mut self, offset: i64) {
        if self.offsets.len() >= self.window.max(1) as usize {
            self.sum -= self.offsets.pop_front().unwrap_or(0);
        }
        self.offsets.push_back(offset);
        self.sum = self.sum.saturating_add(offset);
    }
}

/// The divisor of each correction: 1/gamma \[BMS02 §5\].
const SMOOTHING: i64 = 10;
/// The number of deviations in the margin: phi \[BMS02 §5\].
const DEVIATIONS: i64 = 4;

impl Estimate for Expected {
    const CARD: Card = Card {
        problem: "detector",
        name: "adaptive",
        title: "Adaptive heartbeat (Bertier)",
        summary: "the deadline is the expected arrival plus a margin that follows the recent prediction errors",
        papers: &["BMS02", "CTA02"],
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
    const NUMBERED: bool = true;

    fn new(group: &Group) -> Self {
        Self {
            period: signed(time::nanos(group.period)),
            margin: signed(time::nanos(group.margin)),
            window: group.window,
            latest: None,
            offsets: VecDeque::new(),
            sum: 0,
            delay: 0,
            deviation: 0,
        }
    }

    fn arrived(&mut self, number: u64, now: Time) -> bool {
        if self.latest.is_some_and(|latest| number <= latest) {
            return false;
        }
        let arrival = signed(now.0);
        if self.latest.is_some_and(|latest| latest >> LIFE_BITS != number >> LIFE_BITS) {
            self.offsets.clear();
            self.sum = 0;
        }
        if let Some(expected) = self.expected(number) {
            self.correct(expected, arrival);
        }
        self.latest = Some(number);
        self.remember(arrival.saturating_sub(self.due(number)));
        true
    }

    fn patience(&self, now: Time) -> Duration {
        let next = self.latest.filter(|_| self.offsets.len() > 1);
        match next.and_then(|latest| self.expected(latest + 1)) {
            None => Duration::from_nanos(self.period.saturating_add(self.margin).unsigned_abs()),
            Some(expected) => {
                let deadline = expected.max(0).unsigned_abs();
                (Time(deadline) + self.margin()).since(now)
            }
        }
    }
}

/// Converts to a signed number, so that differences can be negative. Saturates at 292 years.
fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn fresh() -> Expected {
        Expected::new(&Group::new(2, Duration::from_millis(10), Duration::from_millis(8)))
    }

    #[test]
    fn without_jitter_the_margin_is_the_least_there_is() {
        let mut estimate = fresh();
        for number in 1..=50 {
            estimate.arrived(number, Time((10 * number + 3) * MS));
        }
        assert_eq!(estimate.margin(), Duration::from_millis(1));
        assert_eq!(estimate.patience(Time(503 * MS)), Duration::from_millis(11));
    }

    #[test]
    fn a_late_heartbeat_does_not_put_off_the_next() {
        let mut estimate = fresh();
        for number in 1..=100 {
            estimate.arrived(number, Time(10 * number * MS));
        }
        estimate.arrived(101, Time(1_015 * MS)); // 5 ms late
        let deadline = Time(1_015 * MS) + estimate.patience(Time(1_015 * MS));
        // Heartbeat 102 is expected at 1020 + 5/100 ms. The margin is error/10 plus four deviations of
        // error/10 each.
        assert!(deadline.0 > 1_020 * MS && deadline.0 < 1_023 * MS, "{deadline}");
    }

    #[test]
    fn jitter_raises_the_margin_and_calm_lowers_it() {
        let mut estimate = fresh();
        let late = |number: u64| if number.is_multiple_of(2) { 6 } else { 0 };
        (1..=60).for_each(|number| _ = estimate.arrived(number, Time((10 * number + late(number)) * MS)));
        let wild = estimate.margin();
        assert!(wild > Duration::from_millis(8), "{wild:?}");
        (61..=400).for_each(|number| _ = estimate.arrived(number, Time((10 * number + 3) * MS)));
        assert!(estimate.margin() < Duration::from_millis(2), "{:?}", estimate.margin());
    }

    #[test]
    fn an_old_heartbeat_is_no_news() {
        let mut estimate = fresh();
        assert!(estimate.arrived(5, Time(50 * MS)));
        let before = estimate.clone();
        assert!(!estimate.arrived(4, Time(51 * MS)) && !estimate.arrived(5, Time(52 * MS)));
        assert_eq!(estimate, before);
    }

    #[test]
    fn a_new_life_begins_a_new_schedule() {
        let mut estimate = fresh();
        (1..=20).for_each(|number| _ = estimate.arrived(number, Time(10 * number * MS)));
        let life = 1 << LIFE_BITS;
        estimate.arrived(life + 1, Time(900 * MS));
        estimate.arrived(life + 2, Time(910 * MS));
        let patience = estimate.patience(Time(910 * MS));
        assert!(
            patience >= Duration::from_millis(10) && patience < Duration::from_millis(20),
            "{patience:?}"
        );
    }
}
