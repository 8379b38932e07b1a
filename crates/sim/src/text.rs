//! The notation of scenario files, as on the command line: durations with a unit, probabilities as fractions.

use std::time::Duration;

use conclave_kernel::{Ratio, time};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::fault::exact;

/// Serde functions for a [`Duration`], such as `"1500us"`: `#[serde(with = "...")]`.
pub mod duration {
    use super::{Deserialize, Deserializer, Duration, Serializer, exact, parse};

    /// Writes the duration without loss of precision.
    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&exact(*duration))
    }

    /// Reads the duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        parse(&serde_text(from)?)
    }

    fn serde_text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
        // A bare number is accepted here, so that the error names the expected notation, not the missing
        // string.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Text {
            Words(String),
            Whole(i64),
            Fraction(f64),
        }
        Text::deserialize(from).map(|text| match text {
            Text::Words(words) => words,
            Text::Whole(number) => number.to_string(),
            Text::Fraction(number) => number.to_string(),
        })
    }
}

/// Serde functions for an optional [`Duration`], in the same notation.
pub mod optional_duration {
    use super::{Deserialize, Deserializer, Duration, Serialize, Serializer, exact, parse};

    /// Writes the duration, if there is one, without loss of precision.
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        duration.map(exact).serialize(to)
    }

    /// Reads the duration, if there is one.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Option::<String>::deserialize(from)?.map(|text| parse(&text)).transpose()
    }
}

/// Serde functions for a [`Ratio`], such as `0.01`: `#[serde(with = "...")]`.
pub mod probability {
    use super::{Deserialize, Deserializer, Ratio, Serializer};

    /// Writes the probability as a fraction.
    pub fn serialize<S: Serializer>(ratio: &Ratio, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(ratio.as_f64())
    }

    /// Reads the probability.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Ratio, D::Error> {
        let ratio = Ratio::from_f64(f64::deserialize(from)?);
        ratio.ok_or_else(|| serde::de::Error::custom("expected a probability from 0 to 1"))
    }
}

fn parse<E: serde::de::Error>(text: &str) -> Result<Duration, E> {
    bounded(text).map_err(E::custom)
}

/// The longest duration of a scenario, in days. A sum of thousands of them is still a simulated time.
pub(crate) const MOST_DAYS: u64 = 100;
pub(crate) const LONGEST: Duration = Duration::from_secs(MOST_DAYS * 86_400);

/// Parses a duration of a scenario. Fails if it is longer than 100 days.
pub fn bounded(text: &str) -> Result<Duration, String> {
    match time::parse(text)? {
        long if long > LONGEST => Err(format!("{text} is too long: give at most {MOST_DAYS}d")),
        duration => Ok(duration),
    }
}
