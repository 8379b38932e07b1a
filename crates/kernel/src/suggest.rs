//! Error messages for unknown names, with "did you mean ...?".

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// Returns the error message for a name that is not in `allowed`. It lists all allowed names, and suggests
/// the nearest one if the spelling is close.
pub fn unknown<'a>(what: &str, given: &str, allowed: impl Iterator<Item = &'a str>) -> String {
    let allowed: Vec<_> = allowed.collect();
    let nearest = allowed.iter().map(|name| (distance(given, name), *name)).min();
    let hint = match nearest {
        Some((distance, name)) if distance <= 1 + given.chars().count() / 3 => {
            format!("; did you mean {name}?")
        }
        _ => String::new(),
    };
    format!("unknown {what} '{given}'{hint} (there are: {})", allowed.join(", "))
}

/// Returns the edit distance: the letters to add, remove, change or swap with a neighbour to turn `from` into
/// `to`.
fn distance(from: &str, to: &str) -> usize {
    // Names on a command line are short. A longer text is not close to any of them, so its rest is ignored.
    let from: Vec<char> = from.chars().take(64).collect();
    let to: Vec<char> = to.chars().collect();
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let changed = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut best = changed.min(row[j - 1] + 1).min(rows[i - 1][j] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_recognised_and_a_strange_one_is_not() {
        let names = || ["maekawa", "lamport", "central"].into_iter();
        assert!(unknown("algorithm", "maekwa", names()).contains("did you mean maekawa?"));
        assert!(unknown("algorithm", "lamprot", names()).contains("did you mean lamport?"));
        let commands = || ["rm", "sim", "serve"].into_iter();
        assert!(unknown("command", "smi", commands()).contains("did you mean sim?"), "a swap is one mistake");
        assert!(!unknown("algorithm", "zzzz", names()).contains("did you mean"));
    }
}
