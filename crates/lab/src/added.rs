//! Algorithms of other crates, and programs in any language.
//!
//! A program that has an algorithm of its own calls [`add`] once, before it uses the laboratory. Then the
//! algorithm is in the catalogue, and the simulator, the comparison and the checker know it like the
//! algorithms of the tables. The function `entry` of a problem, such as
//! [`mutex::entry`](crate::problems::mutex::entry), creates an [`Algorithm`]. A program is added
//! when it is opened ([`sites::named`]).

use std::any::Any;
use std::sync::OnceLock;

use conclave_algorithms::catalog;
use conclave_kernel::Card;

use crate::case;
use crate::problem::{Entry, Problem};
use crate::sites;

/// An algorithm of another crate, with the functions that are compiled for its type; or a program.
pub struct Algorithm {
    card: &'static Card,
    /// An [`Entry`] of the problem.
    simulated: Box<dyn Any + Send + Sync>,
    /// A [`case::Entry`] of the problem, if the checker has a model of it.
    explored: Option<Box<dyn Any + Send + Sync>>,
}

impl Algorithm {
    /// Creates the entry of an algorithm for the simulator.
    pub(crate) fn new<W: Problem>(entry: Entry<W>) -> Self {
        Self { card: entry.card, simulated: Box::new(entry), explored: None }
    }

    /// Returns the same algorithm with its entry for the checker.
    pub(crate) fn explored<C: 'static>(self, entry: case::Entry<C>) -> Self {
        Self { explored: Some(Box::new(entry)), ..self }
    }
}

static ADDED: OnceLock<Vec<Algorithm>> = OnceLock::new();

/// Adds the algorithms to the catalogue. Fails if this process has added algorithms before, or if the
/// catalogue has an algorithm of the same problem and name.
pub fn add(algorithms: Vec<Algorithm>) -> Result<(), String> {
    let mut known: Vec<_> = catalog::cards().map(|card| (card.problem, card.name)).collect();
    for Algorithm { card, .. } in &algorithms {
        if known.contains(&(card.problem, card.name)) {
            return Err(format!(
                "the catalogue has an algorithm {} already: give it another name",
                card.path()
            ));
        }
        known.push((card.problem, card.name));
    }
    ADDED.set(algorithms).map_err(|_| "algorithms were added before: add all of them in one call".into())
}

fn all() -> impl Iterator<Item = &'static Algorithm> + Clone {
    ADDED.get().into_iter().flatten().chain(sites::algorithms())
}

/// The cards of all algorithms, those of other crates and programs last.
pub fn cards() -> impl Iterator<Item = &'static Card> + Clone {
    catalog::cards().chain(all().map(|algorithm| algorithm.card))
}

/// The entries of a problem for the simulator.
pub(crate) fn simulated<W: Problem>() -> impl Iterator<Item = &'static Entry<W>> {
    all().filter_map(|algorithm| algorithm.simulated.downcast_ref())
}

/// The entries of a problem for the checker.
pub(crate) fn explored<C: 'static>() -> impl Iterator<Item = &'static case::Entry<C>> + Clone {
    all().filter_map(|algorithm| algorithm.explored.as_ref()?.downcast_ref())
}
