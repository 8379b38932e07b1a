//! "Did you mean ...?"

/// The error for a name that nobody has: what was meant, perhaps, and what is allowed.
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

/// How many letters must be added, removed or changed to get from one to the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    // Names on a command line are short; what is not cannot be near one.
    for (i, a) in from.chars().take(64).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.iter().enumerate() {
            let changed = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_recognised_and_a_strange_one_is_not() {
        let names = || ["maekawa", "lamport", "central"].into_iter();
        assert!(unknown("algorithm", "maekwa", names()).contains("did you mean maekawa?"));
        assert!(unknown("algorithm", "lamprot", names()).contains("did you mean lamport?"));
        assert!(!unknown("algorithm", "zzzz", names()).contains("did you mean"));
    }
}
