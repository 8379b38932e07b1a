//! Comparisons: the algorithms of a problem on the same work, at several sizes.
//!
//! A problem implements [`Compare`]: the runs of a row, the columns of its tables, and the plot. [`compare`]
//! is the driver for all problems.

use conclave_kernel::Card;
use conclave_sim::Setup;
use serde::Serialize;
use serde_json::Value;

use crate::experiment::Run;
use crate::problem::{Facts, Problem};
use crate::sweep;

/// A problem whose algorithms can be compared.
pub trait Compare: Problem {
    /// The result of a row.
    type Row: Serialize + Send + 'static;

    /// The explanation below the tables.
    const LEGEND: &'static str;

    /// Checks the group sizes.
    fn validate_sizes(sizes: &[u32]) -> Result<(), String> {
        let _ = sizes;
        Ok(())
    }

    /// Sets the delays of a comparison for which the user gave none.
    fn set_delays(world: &mut Setup) {
        let _ = world;
    }

    /// The experiments of an algorithm at one size, one for each row. `is_given` returns whether the user
    /// gave a flag.
    fn settings(
        card: &'static Card,
        base: &Run<Self>,
        nodes: u32,
        is_given: &dyn Fn(&str) -> bool,
    ) -> Vec<Run<Self>> {
        let _ = is_given;
        let mut run = base.clone();
        Self::choose(&mut run, card.name);
        run.world.nodes = nodes;
        vec![run]
    }

    /// Makes the runs of a row.
    fn row(card: &'static Card, run: &Run<Self>) -> Result<Self::Row, String>;

    /// The verdict on a row.
    fn verdict(row: &Self::Row) -> Verdict;

    /// The tables of the rows.
    fn tables(rows: &[Self::Row], base: &Run<Self>) -> Vec<Table>;

    /// The plot of the rows, as SVG.
    fn plot(rows: &[Self::Row], base: &Run<Self>) -> Result<String, String> {
        let _ = (rows, base);
        Err(format!("problem {} has no plot: leave out --svg", Self::NAME))
    }
}

/// The result of a comparison.
pub struct Comparison {
    /// The rows as JSON: an array.
    pub json: Value,
    /// The tables.
    pub tables: Vec<Table>,
    /// The explanation below the tables.
    pub legend: String,
    /// The plot as SVG, or the reason why there is none.
    pub plot: Result<String, String>,
    /// The verdicts on the rows.
    pub verdicts: Vec<Verdict>,
}

/// The experiments of a comparison.
pub struct Request<'a, W: Problem> {
    /// The experiment that all runs vary.
    pub base: Run<W>,
    /// The group sizes.
    pub sizes: Vec<u32>,
    /// The algorithms.
    pub cards: Vec<&'static Card>,
    /// Returns whether the user gave a flag.
    pub is_given: &'a dyn Fn(&str) -> bool,
}

/// Runs every algorithm at each size, on all cores. Calls `begin` with the number of rows, and `done` after
/// each row.
pub fn compare<W: Compare>(
    request: &Request<'_, W>,
    begin: impl FnOnce(u64),
    done: impl Fn() + Sync,
) -> Result<Comparison, String> {
    let Request { base, sizes, cards, is_given } = request;
    W::validate_sizes(sizes)?;
    let of_size = |nodes: &u32| {
        let nodes = *nodes;
        let of_card = move |card: &&'static Card| {
            let card = *card;
            W::settings(card, base, nodes, is_given).into_iter().map(move |run| (card, run))
        };
        cards.iter().flat_map(of_card).collect::<Vec<_>>()
    };
    let jobs: Vec<_> = sizes.iter().flat_map(of_size).collect();
    begin(jobs.len() as u64);
    let job = |job: u64| {
        let (card, run) = &jobs[job as usize];
        W::row(card, run)
    };
    let rows = sweep::sweep(0..jobs.len() as u64, job, |_| done());
    let rows = rows.into_iter().collect::<Result<Vec<_>, String>>()?;
    let verdicts: Vec<_> = rows.iter().map(W::verdict).collect();
    Ok(Comparison {
        json: serde_json::to_value(&rows).map_err(|error| error.to_string())?,
        tables: W::tables(&rows, base),
        legend: legend(W::LEGEND, &verdicts),
        plot: W::plot(&rows, base),
        verdicts,
    })
}

fn legend(legend: &str, verdicts: &[Verdict]) -> String {
    let mut text = legend.to_owned();
    if verdicts.contains(&Verdict::NotJudged) {
        text.push_str("-: not judged, because no run of the row tested a promised property\n");
    }
    if verdicts.contains(&Verdict::Bounded) {
        text.push_str("bounded: a run of the row ended without progress; `conclave sim` shows the run\n");
    }
    text
}

/// The verdict on a row of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every promised property that a run tested held.
    Holds,
    /// A promised property was violated, or a fault did not occur.
    Violated,
    /// A run ended without progress.
    Bounded,
    /// No run tested a promised property.
    NotJudged,
}

impl Verdict {
    /// The verdict on the runs of a row.
    pub fn of(runs: &[&Facts]) -> Self {
        match runs {
            _ if runs.iter().any(|facts| !facts.passed()) => Self::Violated,
            _ if runs.iter().any(|facts| facts.is_bounded()) => Self::Bounded,
            _ if runs.iter().any(|facts| facts.has_judged_any()) => Self::Holds,
            _ => Self::NotJudged,
        }
    }

    /// The verdict as a cell of a table.
    pub fn cell(self) -> String {
        match self {
            Self::Holds => "holds",
            Self::Violated => "violated",
            Self::Bounded => "bounded",
            Self::NotJudged => "-",
        }
        .into()
    }
}

/// A table as text, without its layout.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The line above the table; empty if there is none.
    pub title: String,
    /// The headings.
    pub headings: Vec<String>,
    /// The cells, row by row.
    pub rows: Vec<Vec<String>>,
}

/// A column: its heading, and the text of its cell.
pub type Column<'c, T> = (&'static str, &'c dyn Fn(&T) -> String);

impl Table {
    /// Creates a table with one row for each item.
    pub fn of<'r, T: 'r>(
        title: impl Into<String>,
        columns: &[Column<'_, T>],
        items: impl IntoIterator<Item = &'r T>,
    ) -> Self {
        let cells = |item: &T| columns.iter().map(|(_, cell)| cell(item)).collect();
        Self {
            title: title.into(),
            headings: columns.iter().map(|(heading, _)| (*heading).to_owned()).collect(),
            rows: items.into_iter().map(cells).collect(),
        }
    }
}

/// Creates a table for each run of rows of the same size.
pub fn by_size<T>(
    rows: &[T],
    size: fn(&T) -> u32,
    title: impl Fn(u32) -> String,
    columns: &[Column<'_, T>],
) -> Vec<Table> {
    let chunks = rows.chunk_by(|one, next| size(one) == size(next));
    chunks.filter_map(|rows| Some(Table::of(title(size(rows.first()?)), columns, rows))).collect()
}

/// A figure as a cell of a table; `-` if the runs gave no figure.
pub fn cell(has_figure: bool, figure: &impl ToString) -> String {
    if has_figure { figure.to_string() } else { "-".into() }
}
