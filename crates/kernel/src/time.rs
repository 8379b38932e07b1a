//! Readings of a local clock, and durations with units.

use alloc::string::String;
use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

use serde::{Deserialize, Serialize};

/// A reading of one clock, in nanoseconds since the start of that clock. Readings of different nodes are not
/// comparable, because their clocks may differ by any amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// The start of the clock.
    pub const ZERO: Self = Self(0);
    /// A moment after every event of a run. Stands for "no deadline".
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the duration from `earlier` to this reading, or zero if `earlier` is not earlier.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;
    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(by)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&show(Duration::from_nanos(self.0)))
    }
}

/// Converts a duration to whole nanoseconds. Saturates at `u64::MAX`, which is about 584 years.
pub const fn nanos(duration: Duration) -> u64 {
    let wide = duration.as_nanos();
    if wide > u64::MAX as u128 { u64::MAX } else { wide as u64 }
}

/// Parses a duration with its unit: `250us`, `1.5ms`, `2s`, `1m` or `1min`, `1h`, `1d`. Only `0` may stand
/// without a unit.
pub fn parse(text: &str) -> Result<Duration, &'static str> {
    const EXPECTED: &str =
        "expected a duration with a unit (ns, us, ms, s, m or min, h, d), such as 250us, 1.5ms or 2h";
    const TOO_LONG: &str = "the duration is too long: give at most 200000d";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(EXPECTED)?;
    let (number, unit) = text.split_at(split);
    let unit: u64 = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return Err(EXPECTED),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() {
        return Err(EXPECTED);
    }
    let mut total: u64 = whole.parse::<u64>().map_err(|_| TOO_LONG)?.checked_mul(unit).ok_or(TOO_LONG)?;
    let mut place = unit;
    for digit in fraction.bytes() {
        place /= 10;
        total = total.checked_add(u64::from(digit.wrapping_sub(b'0')) * place).ok_or(TOO_LONG)?;
        if !digit.is_ascii_digit() {
            return Err(EXPECTED);
        }
    }
    Ok(Duration::from_nanos(total))
}

/// Formats a duration for readers, in the largest unit in which the number is at least 1. Writes at most
/// three decimals; the largest unit is the second.
pub fn show(duration: Duration) -> String {
    let ns = nanos(duration);
    let (unit, name) = match ns {
        0 => return String::from("0"),
        1..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let mut text = alloc::format!("{}.{:03}", ns / unit, ns % unit * 1_000 / unit);
    text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    text.push_str(name);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_units_and_fractions() {
        assert_eq!(parse("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        assert_eq!(parse("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(parse("1.5d"), Ok(Duration::from_secs(36 * 3600)));
        assert_eq!((parse("3m"), parse("3min")), (parse("180s"), parse("180000000us")));
        for unit in ["ns", "us", "ms", "s", "m", "min", "h", "d"] {
            assert!(parse(&alloc::format!("1{unit}")).is_ok(), "{unit}");
            let named =
                parse("1 week").unwrap_err().split(|c: char| !c.is_alphanumeric()).any(|word| word == unit);
            assert!(named, "the error names {unit}");
        }
        for bad in
            ["", "5", "1D", "2days", "d", "ms", "-1s", "1.x5ms", "1..5s", "9999999999999h", "1 s", "1e3s"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for long in ["9999999999999h", "99999999999999999999s"] {
            assert!(parse(long).unwrap_err().contains("too long"), "{long}");
        }
    }

    #[test]
    fn durations_are_shown_in_the_largest_unit_that_fits() {
        for text in ["0", "1ns", "999ns", "1.5us", "1ms", "1.001ms", "12.34s"] {
            assert_eq!(show(parse(text).unwrap()), text);
        }
    }

    #[test]
    fn a_later_reading_is_zero_ago() {
        assert_eq!(Time(5).since(Time(9)), Duration::ZERO);
        assert_eq!(Time(9).since(Time(5)), Duration::from_nanos(4));
        assert_eq!(Time::NEVER + Duration::from_secs(1), Time::NEVER);
    }
}
