//! Mutants: algorithms that are wrong on purpose, in the ways in which papers, textbooks and programs got
//! them wrong.
//!
//! A mutant is a wrapper *around* the real code. It changes an input, a field or a message, or replaces one
//! handler by a second version. Every harmful mutant must be caught by the property that its [`Mutant`]
//! names. The entry also states whether the simulator or the checker catches it, in which world, and within
//! which budget. Mutants that are wrong but harmless are listed too, with their cost.
//!
//! The mutants of a problem are in its folder, such as `mutex/mutants/`. This module contains what they
//! share. The table has the same form for all problems. A flaw that changes the steps of an algorithm has the
//! name of its mutant in [`Fallible::FLAWS`](flawed::Fallible::FLAWS). Any other mutant is the unmodified
//! algorithm in a world that it does not tolerate.
//!
//! The flaws of [`generic`] need neither code nor an entry in the table. They exist for the algorithms of all
//! problems.

pub mod flawed;
pub mod generic;

use crate::quorum::Quorum;
use crate::{election, mutex, snapshot};

/// A mutant: one way to get an algorithm wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// The mutant's name on the command line.
    pub name: &'static str,
    /// The problem.
    pub problem: &'static str,
    /// The algorithm that is changed.
    pub algorithm: &'static str,
    /// The flaw, in one sentence.
    pub flaw: &'static str,
    /// The source of the flaw: keys of `docs/papers.md`.
    pub source: &'static str,
    /// The property that the mutant breaks; `None` if it is harmless.
    pub breaks: Option<&'static str>,
    /// The search that catches the mutant. If it is harmless, the search that found nothing.
    pub catch: Catch,
    /// The number of steps of a published counterexample, which ours should reach or beat; `None` if there is
    /// none.
    pub published_steps: Option<u32>,
}

impl Mutant {
    /// Returns whether the mutant breaks no property.
    pub const fn is_harmless(&self) -> bool {
        self.breaks.is_none()
    }

    /// Returns `problem/algorithm`.
    pub fn path(&self) -> impl core::fmt::Display + use<> {
        let (problem, algorithm) = (self.problem, self.algorithm);
        core::fmt::from_fn(move |f| write!(f, "{problem}/{algorithm}"))
    }
}

/// The search that catches a mutant, and its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Catch {
    /// The checker catches it in this world.
    Check {
        /// The world.
        world: World,
        /// The largest number of states that the checker may visit.
        states: u64,
    },
    /// The simulator catches it, with this many sites and random delays.
    Sim {
        /// The number of sites.
        nodes: u32,
        /// Mutex only: whether a site that has sent its request triggers the request of another site. This
        /// adds causality outside the algorithm.
        relay: bool,
        /// The largest number of seeds that the simulator may try.
        seeds: u64,
    },
}

/// The world in which the checker runs a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// The number of sites.
    pub nodes: u32,
    /// The number of times that each site acts (enters, calls an election, ...); [`FOREVER`] for no limit.
    pub entries: u8,
    /// The sites that act; all sites if empty.
    pub who: &'static [u32],
    /// The quorums, for algorithms that use them.
    pub quorum: Option<Quorum>,
    /// Whether links keep the order of messages.
    pub fifo: bool,
    /// The number of messages that may be lost.
    pub loss: u8,
    /// The number of messages that may arrive twice.
    pub duplication: u8,
    /// The number of sites that may crash.
    pub crash: u8,
    /// Whether crashed sites may recover. They keep their state.
    pub recovery: bool,
    /// The number of wrong suspicions that the detector may make. It corrects all of them later.
    pub mistakes: u8,
    /// The largest delay of a message in ticks; `None` if there is no bound.
    pub ticks: Option<u16>,
    /// The largest delay of a message that the sites assume, in ticks.
    pub believed: u16,
}

/// The value of [`World::entries`] for no limit.
pub const FOREVER: u8 = u8::MAX;

impl World {
    /// Creates a world without faults, with FIFO links.
    pub const fn new(nodes: u32, entries: u8) -> Self {
        Self {
            nodes,
            entries,
            who: &[],
            quorum: None,
            fifo: true,
            loss: 0,
            duplication: 0,
            crash: 0,
            recovery: false,
            mistakes: 0,
            ticks: None,
            believed: 1,
        }
    }

    /// Returns the same world with these quorums.
    #[must_use]
    pub const fn quorum(self, quorum: Quorum) -> Self {
        Self { quorum: Some(quorum), ..self }
    }

    /// Returns the same world, in which only these sites act. The others only take part.
    #[must_use]
    pub const fn only(self, who: &'static [u32]) -> Self {
        Self { who, ..self }
    }

    /// Returns the same world, in which messages arrive in any order.
    #[must_use]
    pub const fn any_order(self) -> Self {
        Self { fifo: false, ..self }
    }

    /// Returns the same world, in which one message may arrive twice.
    #[must_use]
    pub const fn duplicating(self) -> Self {
        Self { duplication: 1, ..self }
    }

    /// Returns the same world, in which one site may crash.
    #[must_use]
    pub const fn crashing(self) -> Self {
        Self { crash: 1, ..self }
    }

    /// Returns the same world, in which one site may crash and recover.
    #[must_use]
    pub const fn reviving(self) -> Self {
        Self { crash: 1, recovery: true, ..self }
    }

    /// Returns the same world, in which the detector makes one wrong suspicion.
    #[must_use]
    pub const fn erring(self) -> Self {
        Self { mistakes: 1, ..self }
    }

    /// Returns the same world, in which every message arrives within this number of ticks, and the sites
    /// assume this.
    #[must_use]
    pub const fn within_ticks(self, ticks: u16) -> Self {
        Self { ticks: Some(ticks), believed: ticks, ..self }
    }

    /// Returns the same world, in which the sites assume that messages take at most this number of ticks.
    #[must_use]
    pub const fn believing(self, believed: u16) -> Self {
        Self { believed, ..self }
    }

    /// Returns whether the world keeps all assumptions of an algorithm with these needs.
    pub const fn suits(&self, needs: conclave_kernel::Needs) -> bool {
        (self.fifo || !needs.fifo)
            && (self.loss == 0 || !needs.no_loss)
            && (self.duplication == 0 || !needs.no_duplication)
            && (self.crash == 0 || !needs.no_crash)
            && (self.mistakes == 0 || !needs.perfect_detector)
            && (self.is_bounded() || !needs.synchrony)
    }

    /// Returns whether messages take no longer than the sites assume.
    const fn is_bounded(&self) -> bool {
        match self.ticks {
            Some(ticks) => ticks <= self.believed,
            None => false,
        }
    }
}

/// Iterates over all mutants, problem by problem.
pub fn all() -> impl Iterator<Item = &'static Mutant> + Clone {
    let others = election::mutants::MUTANTS.iter().chain(snapshot::mutants::MUTANTS);
    mutex::mutants::MUTANTS.iter().chain(others)
}

/// The problems that have mutants, in order.
pub const PROBLEMS: [&str; 3] = ["mutex", "election", "snapshot"];

/// Returns a search by the checker in this world, with a budget of states.
pub(crate) const fn within(world: World, states: u64) -> Catch {
    Catch::Check { world, states }
}

/// Lists the mutants of a problem.
macro_rules! listing {
    (problem $problem:literal;
     $($name:literal of $algorithm:literal,
       $flaw:literal, $source:literal, $breaks:expr, $catch:expr $(, $steps:literal)?;)+) => {
        /// All mutants of the problem, algorithm by algorithm.
        pub const MUTANTS: &[$crate::mutants::Mutant] = &[$($crate::mutants::Mutant {
            name: $name,
            problem: $problem,
            algorithm: $algorithm,
            flaw: $flaw,
            source: $source,
            breaks: $breaks,
            catch: $catch,
            published_steps: $crate::mutants::listing!(@steps $($steps)?),
        }),+];
    };
    (@steps $steps:literal) => { Some($steps) };
    (@steps) => { None };
}
pub(crate) use listing;
