//! Both algorithms on the same work.

use conclave_algorithms::snapshot;
use conclave_kernel::{Card, Load, Measure, NodeId, Size};
use serde::Serialize;

use super::{Report, Scenario, Shot};
use crate::problem::{Facts, run};

/// One algorithm at one size: one site starts, and all start at once.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// N.
    pub nodes: u32,
    /// One site starts.
    pub one: Report,
    /// All sites start at the same moment.
    pub all: Report,
    /// Its card.
    #[serde(skip)]
    pub card: &'static Card,
}

impl Row {
    /// Returns the facts of both runs.
    pub fn facts(&self) -> [&Facts; 2] {
        [&self.one.facts, &self.all.facts]
    }

    /// Returns whether every promised property held in both runs.
    pub fn passed(&self) -> bool {
        self.facts().iter().all(|facts| facts.passed())
    }

    /// The formula of the card, and the range that it gives.
    pub fn formula(&self, measure: Measure, load: Load) -> Option<(&'static str, f64, f64)> {
        let size = Size { nodes: self.nodes, quorum_min: self.nodes, quorum_max: self.nodes };
        let cost = self.card.cost(measure, load)?;
        let (min, max) = (cost.range)(size);
        Some((cost.formula, min, max))
    }
}

/// Runs one algorithm at one size.
pub fn row(card: &'static Card, base: &Scenario, nodes: u32) -> Result<Row, String> {
    let with = |starters: u32| {
        let mut scenario = base.clone();
        card.name.clone_into(&mut scenario.algorithm);
        scenario.world.nodes = nodes;
        let at = scenario.shots().first().map_or_else(Default::default, |shot| shot.at);
        scenario.work.snapshots = vec![Shot { at, nodes: (0..starters).map(NodeId).collect() }];
        run(&scenario)
    };
    Ok(Row { algorithm: card.name, nodes, one: with(1)?, all: with(nodes)?, card })
}

/// The algorithms' cards.
pub fn cards() -> &'static [Card] {
    snapshot::CARDS
}
