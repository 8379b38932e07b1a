//! Deadlock: who waits for whom, and who waits for ever.
//!
//! | request model | a process proceeds when it has | deadlock shows as |
//! |---|---|---|
//! | single, AND | all it asked for | a cycle |
//! | OR | any one of them | a knot: nobody in it can reach a process that runs |
//! | AND-OR, p-out-of-q | enough, gate by gate | what graph reduction leaves over |
//!
//! In all of them the exact answer is *reduction* (let whoever can proceed finish and give back; the rest is stuck); a
//! cycle or a knot is only how it is explained.
//!
//! - [`request`]: one [`Request`] type for all the models, with modes and counts.
//! - [`graph`]: the wait-for graph a service lives on, decided at every wait.
//! - [`batch`]: a whole graph at once, a million processes in a fraction of a second.
//!
//! **Distributed detection** (`conclave sim deadlock/NAME`): every [`Site`] has a process that asks and grants
//! ([`underlying`]), a detector, and a common way to resolve what is found ([`site`]).
//!
//! | algorithm | requests | idea | messages of a detection |
//! |---|---|---|---|
//! | [`central`] | all | report every edge to one site: phantoms | 1, and 1 a grant |
//! | [`reports`], two | all | ask all sites twice: phantoms | 4(N-1) + 1 |
//! | [`reports`], one | all | ask all sites for both ends of the edges | 2(N-1) + 1 |
//! | [`single`] | single | labels flow against the waits | 2 a wait, s(s-1)/2 on a cycle of s |
//! | [`edge_chasing`] | AND | a probe comes back | 1 an edge |
//! | [`diffusion`] | OR | everybody answers | 2 an edge |
//! | [`p_out_of_q`] | all | flood, echo, exact weights | 4e - 2n + 2l |
//! | [`hierarchical`] | all | clusters, then the root | 2(c-1) + 1 in a cluster of c |
//! | [`stable`] | all | a snapshot of all | N(N-1) + N-1 |
//!
//! **What to do about deadlocks**: [`locking`] runs transactions over locks by detection, by prevention and by avoidance.

pub mod batch;
pub mod central;
pub mod diffusion;
pub mod edge_chasing;
pub mod graph;
pub mod hierarchical;
pub mod locking;
pub mod p_out_of_q;
pub mod records;
pub mod reports;
pub mod request;
mod scc;
pub mod single;
pub mod site;
pub mod spec;
pub mod stable;
#[cfg(test)]
mod tests;
pub mod underlying;
pub mod weight;

use conclave_kernel::{Card, Cost, Needs};

pub use central::Central;
pub use diffusion::Diffusion;
pub use edge_chasing::EdgeChasing;
pub use graph::{Deadlock, GraphError, Link, Resolution, Turn, Verdict, WaitGraph, Why};
pub use hierarchical::Hierarchical;
pub use p_out_of_q::POutOfQ;
pub use reports::{OneReport, TwoReport};
pub use request::{Claim, Demand, Limits, Request, RequestError};
pub use single::MitchellMerritt;
pub use site::{Command, Detection, Event, Group, Model, Site};
pub use stable::Stable;

/// Something to be done with a detector whose name is known only at run time.
pub trait Visit {
    /// What comes of it.
    type Out;

    /// Does it.
    fn visit<D: Detection>(self) -> Self::Out;
}

/// Lists the detectors once: their cards, and the way from a name to a type.
macro_rules! algorithms {
    ($($algorithm:ty),+ $(,)?) => {
        /// The cards of the detectors, in the order in which the problem is told.
        pub const DETECTORS: &[Card] = &[$(<$algorithm as Detection>::CARD),+];

        /// Does something with the detector of that name; `None` if nobody has it.
        pub fn visit<V: Visit>(name: &str, visitor: V) -> Option<V::Out> {
            $(if name == <$algorithm as Detection>::CARD.name {
                return Some(visitor.visit::<$algorithm>());
            })+
            None
        }
    };
}

algorithms![
    Central,
    TwoReport,
    OneReport,
    MitchellMerritt,
    EdgeChasing,
    Diffusion,
    POutOfQ,
    Hierarchical,
    Stable,
];

/// The cards of all algorithms: the detectors, then the ways to live with deadlocks ([`locking`]).
pub const CARDS: &[Card] = &{
    let mut cards = [DETECTORS[0]; DETECTORS.len() + locking::CARDS.len()];
    let mut at = 0;
    while at < cards.len() {
        let ways = at.wrapping_sub(DETECTORS.len());
        cards[at] = if at < DETECTORS.len() { DETECTORS[at] } else { locking::CARDS[ways] };
        at += 1;
    }
    cards
};

/// What an exact detector promises.
const EXACT: &[&str] = &[spec::NO_PHANTOM.name, spec::NO_MISS.name, spec::ONE_VICTIM.name, spec::PURGED.name];

/// A card of this problem: all algorithms need the same of the world.
const fn card(
    name: &'static str,
    title: &'static str,
    summary: &'static str,
    papers: &'static [&'static str],
    promises: &'static [&'static str],
    costs: &'static [Cost],
) -> Card {
    Card {
        problem: "deadlock",
        name,
        title,
        summary,
        papers,
        needs: Needs::RELIABLE_FIFO,
        promises,
        costs,
        survives: "nothing else: a lost grant is a wait for ever, whoever looks",
        idle_traffic: false,
        reads_clock: false,
    }
}
