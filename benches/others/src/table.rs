//! From the figures of all rounds to one table: the median of each, and how far the rounds lie apart.

use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::Result;

/// What comes before the figures of one measurement.
#[derive(Deserialize)]
struct Heading {
    row: String,
    system: String,
}

/// What is looked at of the figures; the floor has a p50 only.
#[derive(Deserialize)]
struct Measured {
    pairs_per_s: Option<f64>,
    acquire_p50_us: f64,
    acquire_p99_us: Option<f64>,
    fairness: Option<f64>,
}

/// All of it.
#[derive(Serialize)]
struct Report<'a> {
    about: &'a str,
    rows: Vec<Row>,
}

/// One workload, in the order in which it was first met; so are its systems.
#[derive(Serialize)]
struct Row {
    row: String,
    systems: Vec<Summary>,
    /// Of the medians of pairs a second.
    ratios: Vec<Ratio>,
}

#[derive(Serialize)]
struct Summary {
    system: String,
    rounds: usize,
    pairs_per_s: Option<Spread>,
    acquire_p50_us: Option<Spread>,
    acquire_p99_us: Option<Spread>,
    fairness: Option<Spread>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    lowest: f64,
    highest: f64,
}

#[derive(Serialize)]
struct Ratio {
    of: String,
    ratio: f64,
}

/// Prints what `input` says about all rounds.
pub fn print(input: impl Read, about: &str, json: bool) -> Result<()> {
    let report = Report { about, rows: summarize(read(input)?) };
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{about}\n{}", describe(&report.rows));
    }
    Ok(())
}

fn read(input: impl Read) -> Result<Vec<(Heading, Measured)>> {
    let mut values = serde_json::Deserializer::from_reader(input).into_iter::<serde_json::Value>();
    let mut read = Vec::new();
    while let Some(heading) = values.next() {
        let measured = values.next().ok_or("a heading without figures")?;
        read.push((serde_json::from_value(heading?)?, serde_json::from_value(measured?)?));
    }
    Ok(read)
}

fn summarize(measured: Vec<(Heading, Measured)>) -> Vec<Row> {
    let mut rows: Ordered<Ordered<Vec<Measured>>> = Vec::new();
    for (heading, figures) in measured {
        let systems = entry(&mut rows, heading.row);
        entry(systems, heading.system).push(figures);
    }
    rows.into_iter()
        .map(|(row, systems)| {
            let systems: Vec<Summary> =
                systems.into_iter().map(|(system, rounds)| summary(system, &rounds)).collect();
            let ratios = ratios(&systems);
            Row { row, systems, ratios }
        })
        .collect()
}

/// A map that keeps the order in which its keys were first met.
type Ordered<T> = Vec<(String, T)>;

fn entry<T: Default>(list: &mut Ordered<T>, key: String) -> &mut T {
    let at = list.iter().position(|(known, _)| *known == key).unwrap_or(list.len());
    if at == list.len() {
        list.push((key, T::default()));
    }
    &mut list[at].1
}

fn summary(system: String, rounds: &[Measured]) -> Summary {
    let spread_of = |figure: fn(&Measured) -> Option<f64>| spread(rounds.iter().filter_map(figure).collect());
    Summary {
        system,
        rounds: rounds.len(),
        pairs_per_s: spread_of(|round| round.pairs_per_s),
        acquire_p50_us: spread_of(|round| Some(round.acquire_p50_us)),
        acquire_p99_us: spread_of(|round| round.acquire_p99_us),
        fairness: spread_of(|round| round.fairness),
    }
}

/// `None` of nothing; of an even number, the mean of the two in the middle.
fn spread(mut figures: Vec<f64>) -> Option<Spread> {
    figures.sort_by(f64::total_cmp);
    let (lowest, highest) = (*figures.first()?, *figures.last()?);
    let middle = figures.len() / 2;
    let median = (figures[(figures.len() - 1) / 2] + figures[middle]) / 2.0;
    Some(Spread { median, lowest, highest })
}

/// Conclave beside each of the others.
fn ratios(systems: &[Summary]) -> Vec<Ratio> {
    let pairs =
        |summary: &Summary| summary.pairs_per_s.map(|pairs| pairs.median).filter(|pairs| *pairs > 0.0);
    let Some(ours) = systems.iter().find(|summary| summary.system == "conclave").and_then(pairs) else {
        return Vec::new();
    };
    systems
        .iter()
        .filter(|summary| summary.system != "conclave")
        .filter_map(|other| {
            Some(Ratio { of: format!("conclave / {}", other.system), ratio: ours / pairs(other)? })
        })
        .collect()
}

fn describe(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let heads = ["pairs/s", "lowest .. highest", "p50 us", "p99 us", "fairness"];
        let [pairs, spread, p50, p99, fairness] = heads;
        text += &format!("\n{:<34}{pairs:>9} {spread:>20} {p50:>9} {p99:>9} {fairness:>9}\n", row.row);
        for system in &row.systems {
            let median = |spread: Option<Spread>| spread.map_or("-".into(), |spread| number(spread.median));
            let ends = system.pairs_per_s.map_or("-".into(), |spread| {
                format!("{} .. {}", number(spread.lowest), number(spread.highest))
            });
            let fairness = system.fairness.map_or("-".into(), |spread| format!("{:.3}", spread.highest));
            text += &format!(
                "  {:<32}{:>9} {ends:>20} {:>9} {:>9} {fairness:>9}\n",
                system.system,
                median(system.pairs_per_s),
                median(system.acquire_p50_us),
                median(system.acquire_p99_us),
            );
        }
        for Ratio { of, ratio } in &row.ratios {
            text += &format!("  {of:<32}{ratio:>9.2}\n");
        }
    }
    text
}

/// Rounded, with commas between thousands.
fn number(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_become_medians_and_ratios() {
        let round = |system: &str, pairs: u32| {
            format!(
                r#"{{"row": "own", "system": "{system}"}}
                   {{"pairs_per_s": {pairs}, "acquire_p50_us": 10.4, "acquire_p99_us": 20, "fairness": null, "x": 1}}"#
            )
        };
        let rounds =
            [("redis", 2_000), ("conclave", 9_000), ("redis", 1_000), ("conclave", 3_000), ("redis", 4_000)];
        let input: String = rounds.map(|(system, pairs)| round(system, pairs)).concat();
        let rows = summarize(read(input.as_bytes()).unwrap());
        assert_eq!(rows.len(), 1);
        let redis = &rows[0].systems[0];
        assert_eq!((redis.system.as_str(), redis.rounds), ("redis", 3));
        assert_eq!(redis.pairs_per_s, Some(Spread { median: 2_000.0, lowest: 1_000.0, highest: 4_000.0 }));
        assert_eq!(redis.fairness, None);
        let Ratio { of, ratio } = &rows[0].ratios[0];
        assert_eq!((of.as_str(), *ratio), ("conclave / redis", 3.0));
        assert!(describe(&rows).contains("1,000 .. 4,000"));
        assert!(read(&br#"{"row": "own", "system": "redis"}"#[..]).is_err());
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([0.4, 999.0, 1_000.0, 1_234_567.0].map(number), ["0", "999", "1,000", "1,234,567"]);
    }
}
