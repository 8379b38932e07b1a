//! Cards say what an algorithm needs; the matrix shows it.

use conclave_check::{Bounds, Options, Verdict};
use conclave_kernel::Card;
use conclave_lab::matrix::{self, Agreement, Assumption, Cell};

/// The fair ring's token goes round when nobody asks, and advances the clocks.
const ENDLESS: [&str; 1] = ["fair-ring"];

/// More than six million states at three sites; `tests/election.rs` explores it at two.
const LARGE: (&str, Assumption) = ("election/hirschberg-sinclair", Assumption::NoCrash);

fn cells(problem: &'static str, nodes: u32, entries: u8, most_states: u64) -> Vec<Cell> {
    let row = |card: &'static Card| {
        // Who never comes to rest need not be followed for long.
        let states = if ENDLESS.contains(&card.name) { 50_000 } else { most_states };
        let bounds = Bounds { states, ..Bounds::default() };
        let options = Options { threads: 1, bounds, liveness_states: states, ..Options::default() };
        matrix::row(card, nodes, entries, &options, |_| {}).expect("a row can be explored")
    };
    matrix::rows(Some(problem)).flat_map(row).collect()
}

/// Every cell is as the card says, and explored to its end unless the algorithm never comes to rest.
fn assert_as_the_cards_say(problem: &'static str, cells: &[Cell]) {
    assert_eq!(cells.len(), matrix::rows(Some(problem)).count() * Assumption::ALL.len());
    for cell in cells {
        let (who, what) = (&cell.algorithm, cell.without);
        let expected = match cell.verdict {
            Verdict::Bounded => Agreement::Unknown,
            _ => Agreement::Yes,
        };
        assert_eq!(cell.agrees, expected, "{who} without {what:?}: {} {:?}", cell.verdict, cell.why);
        // What breaks breaks within a few steps: a bound must not hide it.
        let endless = ENDLESS.iter().any(|name| who.ends_with(name));
        let may_be_bounded = !cell.needed && (endless || LARGE == (who.as_str(), what));
        assert!(may_be_bounded || cell.verdict != Verdict::Bounded, "{who} without {what:?}: bounded");
        assert_eq!(cell.counterexample.is_some(), cell.needed, "{who} without {what:?}");
        assert_eq!(cell.steps.is_some(), cell.needed, "{who} without {what:?}");
    }
}

#[test]
fn every_mutex_breaks_where_it_says_so_and_nowhere_else() {
    assert_as_the_cards_say("mutex", &cells("mutex", 2, 2, 3_000_000));
}

#[test]
fn every_election_breaks_where_it_says_so_and_nowhere_else() {
    assert_as_the_cards_say("election", &cells("election", 3, 1, 1_500_000));
}

#[test]
fn every_snapshot_breaks_where_it_says_so_and_nowhere_else() {
    assert_as_the_cards_say("snapshot", &cells("snapshot", 2, 2, 200_000));
}

#[test]
fn every_problem_has_rows_and_a_detector_of_deadlocks_breaks_without_its_assumptions() {
    let problems = ["mutex", "election", "detector", "snapshot", "deadlock", "timesync"];
    assert!(problems.iter().all(|problem| matrix::all_rows(Some(problem)).count() > 1));
    let detector =
        matrix::all_rows(Some("deadlock")).find(|card| card.name == "edge-chasing").expect("a row");
    let cells = matrix::row(detector, 2, 1, &Options::default(), |_| {}).expect("it can be explored");
    let broken = |without| cells.iter().any(|cell| cell.without == without && cell.steps.is_some());
    assert!(broken(Assumption::NoLoss) && broken(Assumption::NoCrash), "{cells:?}");
}

#[test]
fn an_algorithm_that_cannot_be_explored_has_cells_with_a_number_of_seeds() {
    let chosen = ["timesync/ntp", "deadlock/ordered"];
    let cards: Vec<_> =
        matrix::all_rows(None).filter(|card| chosen.contains(&card.path().to_string().as_str())).collect();
    assert_eq!(cards.len(), chosen.len());
    for card in cards {
        let cells = matrix::row(card, 3, 1, &Options::default(), |_| {}).expect("it can be sampled");
        assert_eq!(cells.len(), Assumption::ALL.len());
        for cell in cells {
            assert!(
                cell.seeds.is_some_and(|seeds| seeds > 0),
                "{} without {:?}",
                cell.algorithm,
                cell.without
            );
            assert_eq!(cell.seed.is_some(), cell.verdict == Verdict::Violated, "{cell:?}");
        }
    }
}
