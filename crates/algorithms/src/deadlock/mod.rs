//! Deadlock: processes that wait for each other for ever.
//!
//! The first table lists the detectors that run as distributed algorithms. All sites run the same application
//! ([`underlying`]) and resolve deadlocks in the same way ([`site`]). N is the number of sites and e the
//! number of wait edges.
//!
//! | detector | idea | requests | messages |
//! |---|---|---|---|
//! | [`central`] | every site reports its edges to one site; this finds phantoms | any | 1 per request, 1 per grant |
//! | [`reports`] | a coordinator collects the edges of all sites | any | 2(N-1) + 1 |
//! | [`single`] | labels travel against the waits | one process | at most s(s-1)/2 on a cycle of s |
//! | [`edge_chasing`] | probes follow the waits | AND | 1 per edge |
//! | [`diffusion`] | queries follow the waits, and replies return | OR | 2e |
//! | [`p_out_of_q`] | a sweep outwards and a sweep inwards | any | at most 4e - 2n + 2l |
//! | [`hierarchical`] | one coordinator per cluster, and a root | any | 2(c-1) + 1 in a cluster of c |
//! | [`stable`] | a snapshot of all processes and channels | any | N(N-1) + N-1 |
//!
//! | module | contents |
//! |---|---|
//! | [`locking`] | six strategies by which transactions get their locks, with and without detection |
//! | [`conclave_deadlock`] | requests, the wait-for graph of a lock service, and the analysis of a whole graph |
//! | [`records`], [`weight`] | the knowledge of a detector about processes; exact weights |
//! | [`spec`] | the properties, and the judge |

pub mod central;
pub mod diffusion;
pub mod edge_chasing;
pub mod hierarchical;
pub mod locking;
pub mod mutants;
pub mod p_out_of_q;
pub mod records;
pub mod reports;
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
pub use conclave_deadlock::{
    Claim, Demand, GraphError, Limits, Link, Request, RequestError, Resolution, Turn, WaitGraph, Why, batch,
    graph, request,
};
pub use diffusion::Diffusion;
pub use edge_chasing::EdgeChasing;
pub use hierarchical::Hierarchical;
pub use p_out_of_q::POutOfQ;
pub use reports::{OneReport, TwoReport};
pub use single::MitchellMerritt;
pub use site::{Command, Detection, Event, Group, Model, Site};
pub use stable::Stable;

/// Expands to an array of `$entry!(P)`, for each detector P, in the order in which the problem is explained.
#[macro_export]
macro_rules! each_deadlock_detector {
    ($entry:ident) => {
        [
            $entry!($crate::deadlock::Central),
            $entry!($crate::deadlock::TwoReport),
            $entry!($crate::deadlock::OneReport),
            $entry!($crate::deadlock::MitchellMerritt),
            $entry!($crate::deadlock::EdgeChasing),
            $entry!($crate::deadlock::Diffusion),
            $entry!($crate::deadlock::POutOfQ),
            $entry!($crate::deadlock::Hierarchical),
            $entry!($crate::deadlock::Stable),
        ]
    };
}

pub use crate::each_deadlock_detector as each;

macro_rules! card {
    ($algorithm:ty) => {
        <$algorithm as Detection>::CARD
    };
}

/// The cards of the detectors, in the order in which the problem is explained.
pub const DETECTORS: &[Card] = &each_deadlock_detector!(card);

/// The cards of all algorithms: the detectors, then the strategies against deadlocks ([`locking`]).
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

/// The promises of an exact detector.
const EXACT: &[&str] = &[spec::NO_PHANTOM.name, spec::NO_MISS.name, spec::ONE_VICTIM.name, spec::PURGED.name];

/// Builds a card of this problem. All its algorithms have the same assumptions about the world.
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
        survives: "no other fault: if a grant is lost, its process waits for ever, and no detector can help",
        idle_traffic: false,
        reads_clock: false,
    }
}
