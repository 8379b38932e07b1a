//! Cards say what an algorithm needs; the matrix shows it.

use conclave_check::{Bounds, Options, Verdict};
use conclave_lab::matrix::{self, Assumption, Cell};

fn cells(most_states: u64) -> Vec<Cell> {
    let bounds = Bounds { states: most_states, ..Bounds::default() };
    let options = Options { threads: 1, bounds, liveness_states: most_states, ..Options::default() };
    let rows = matrix::rows(Some("mutex"));
    rows.flat_map(|card| Assumption::ALL.map(|without| (card, without)))
        .map(|(card, without)| matrix::cell(card, without, 2, 2, &options).expect("a cell can be explored"))
        .collect()
}

#[test]
fn every_algorithm_breaks_where_it_says_so_and_nowhere_else() {
    let cells = cells(100_000);
    assert_eq!(cells.len(), matrix::rows(Some("mutex")).count() * Assumption::ALL.len());
    for cell in &cells {
        let (who, what) = (&cell.algorithm, cell.without);
        assert!(cell.agrees(), "{who} without {what:?}: {} {:?}", cell.verdict, cell.why);
        // What breaks breaks within a few steps: a bound must not hide it.
        assert!(!cell.needed || cell.verdict != Verdict::Bounded, "{who} without {what:?}: not broken");
        assert_eq!(cell.counterexample.is_some(), cell.needed, "{who} without {what:?}");
        assert_eq!(cell.steps.is_some(), cell.needed, "{who} without {what:?}");
    }
}
