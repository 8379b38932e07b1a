//! Ticks and units of axes.

/// A step of 1, 2 or 5 times a power of ten, such that at most `most` steps cover `range`.
pub(super) fn nice_step(range: f64, most: usize) -> f64 {
    let range = if range > 0.0 { range } else { 1.0 };
    let least = range / most.max(1) as f64;
    let power = 10_f64.powf(least.log10().floor());
    // The last one catches rounding: `least / power` may come out as 10.
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(10.0 * power)
}

/// The multiples of a nice step within a range.
pub(super) fn ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let step = nice_step(high - low, most);
    let first = (low / step - 1e-9).ceil();
    (0..=most + 1).map(|n| (first + n as f64) * step).take_while(|tick| *tick <= high + step * 1e-9).collect()
}

/// A number as an axis shows it: no more decimals than the step needs.
pub(super) fn shown(value: f64, step: f64) -> String {
    let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    let text = format!("{:.*}", decimals, value + 0.0);
    group(&text)
}

/// A whole number with its thousands apart: `12,345`.
pub(super) fn group(text: &str) -> String {
    let (whole, fraction) =
        text.split_once('.').map_or((text, None), |(whole, fraction)| (whole, Some(fraction)));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut out = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

/// The unit in which a range of nanoseconds reads best: nanoseconds in it, and its name.
pub(super) fn unit_of(range_ns: f64) -> (f64, &'static str) {
    match range_ns {
        range if range < 2e3 => (1.0, "ns"),
        range if range < 2e6 => (1e3, "µs"),
        range if range < 2e9 => (1e6, "ms"),
        range if range < 600e9 => (1e9, "s"),
        _ => (60e9, "min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(0.0, 43.0, 10), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0]);
        assert_eq!(ticks(7.0, 9.0, 5), [7.0, 7.5, 8.0, 8.5, 9.0]);
        for range in [1e-9, 0.3, 1.0, 9.99, 10.0, 12345.0, 1e18] {
            let ticks = ticks(0.0, range, 8);
            assert!((2..=9).contains(&ticks.len()), "{range}: {ticks:?}");
        }
    }

    #[test]
    fn a_range_of_nothing_has_one_tick() {
        assert_eq!(ticks(5.0, 5.0, 8).len(), 1);
    }

    #[test]
    fn numbers_have_the_decimals_of_the_step() {
        assert_eq!(shown(7.5, 0.5), "7.5");
        assert_eq!(shown(12345.0, 5.0), "12,345");
        assert_eq!(shown(-1234.5, 0.5), "-1,234.5");
        assert_eq!(shown(0.30000000000000004, 0.1), "0.3");
    }
}
