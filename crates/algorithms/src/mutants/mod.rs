//! The zoo: algorithms that are wrong on purpose, in the ways in which papers, textbooks and programs got them
//! wrong.
//!
//! A mutant stands *beside* the real code, which it contains: a wrapper that tampers with an input, a field or a
//! message, or has a second version of one handler. Every harmful one must be caught, each in the world and by
//! the property that its [`Mutant`] names; who catches it (the simulator or the checker) and within which budget
//! is part of the entry. What is wrong and yet harmless is listed too, with what it costs.
//!
//! The table is the same for all problems; each problem has its own mutants, and its own way from a name to a type.

pub mod election;
pub mod flawed;
pub mod mutex;
pub mod snapshot;

use crate::quorum::Quorum;

/// One way to get an algorithm wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// Its name on the command line.
    pub name: &'static str,
    /// The problem.
    pub problem: &'static str,
    /// The algorithm that is wrong.
    pub algorithm: &'static str,
    /// What is wrong with it, in a sentence.
    pub flaw: &'static str,
    /// Who got it wrong like this, or says so: keys of `docs/papers.md`.
    pub source: &'static str,
    /// Which property it breaks; `None` if it is harmless.
    pub breaks: Option<&'static str>,
    /// Where it is caught; or, if it is harmless, where it was looked at in vain.
    pub catch: Catch,
    /// How many steps a counterexample has that was found elsewhere, to be reproduced or beaten.
    pub published_steps: Option<u32>,
}

impl Mutant {
    /// Whether it breaks nothing.
    pub const fn is_harmless(&self) -> bool {
        self.breaks.is_none()
    }

    /// `problem/algorithm`.
    pub fn path(&self) -> impl core::fmt::Display + use<> {
        let (problem, algorithm) = (self.problem, self.algorithm);
        core::fmt::from_fn(move |f| write!(f, "{problem}/{algorithm}"))
    }
}

/// Who catches a mutant, and within which budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Catch {
    /// The checker, in this world, before it has seen so many states.
    Check {
        /// The world.
        world: World,
        /// The budget.
        states: u64,
    },
    /// The simulator, on this many sites under random delays, before it has tried so many seeds.
    Sim {
        /// How many sites.
        nodes: u32,
        /// Mutex: whether a site that has asked tells another, which then asks too: causality outside of the algorithm.
        relay: bool,
        /// The budget.
        seeds: u64,
    },
}

/// The world in which the checker looks at a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// How many sites.
    pub nodes: u32,
    /// How often each site does what the problem is about; [`FOREVER`] for without end.
    pub entries: u8,
    /// Who does it; everybody, if empty.
    pub who: &'static [u32],
    /// Which quorums, where there are any.
    pub quorum: Option<Quorum>,
    /// Whether links keep the order of messages.
    pub fifo: bool,
    /// How many messages may be lost.
    pub loss: u8,
    /// How many messages may arrive twice.
    pub duplication: u8,
    /// How many sites may crash.
    pub crash: u8,
    /// Whether those who crash may come back, and know everything that they knew.
    pub recovery: bool,
    /// How many mistakes the detector may make, all of which it takes back.
    pub mistakes: u8,
    /// Within how many ticks every message arrives; `None` if there is no bound.
    pub ticks: Option<u16>,
    /// How many ticks the sites believe that a message takes at most.
    pub believed: u16,
}

/// Without end.
pub const FOREVER: u8 = u8::MAX;

impl World {
    /// A world in which nothing goes wrong, with FIFO links.
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

    /// The same with these quorums.
    #[must_use]
    pub const fn quorum(self, quorum: Quorum) -> Self {
        Self { quorum: Some(quorum), ..self }
    }

    /// The same, but only these do what the problem is about; the others join in.
    #[must_use]
    pub const fn only(self, who: &'static [u32]) -> Self {
        Self { who, ..self }
    }

    /// The same, but messages arrive in any order.
    #[must_use]
    pub const fn any_order(self) -> Self {
        Self { fifo: false, ..self }
    }

    /// The same, but a message may arrive twice.
    #[must_use]
    pub const fn duplicating(self) -> Self {
        Self { duplication: 1, ..self }
    }

    /// The same, but a site may crash.
    #[must_use]
    pub const fn crashing(self) -> Self {
        Self { crash: 1, ..self }
    }

    /// The same, but a site may crash and come back.
    #[must_use]
    pub const fn reviving(self) -> Self {
        Self { crash: 1, recovery: true, ..self }
    }

    /// The same, but the detector errs once.
    #[must_use]
    pub const fn erring(self) -> Self {
        Self { mistakes: 1, ..self }
    }

    /// The same, but every message arrives within so many ticks, and the sites know that.
    #[must_use]
    pub const fn within_ticks(self, ticks: u16) -> Self {
        Self { ticks: Some(ticks), believed: ticks, ..self }
    }

    /// The same, but the sites believe that messages take so many ticks at most.
    #[must_use]
    pub const fn believing(self, believed: u16) -> Self {
        Self { believed, ..self }
    }

    /// Whether nothing happens in it that an algorithm with such needs does not stand.
    pub const fn suits(&self, needs: conclave_kernel::Needs) -> bool {
        (self.fifo || !needs.fifo)
            && (self.loss == 0 || !needs.no_loss)
            && (self.duplication == 0 || !needs.no_duplication)
            && (self.crash == 0 || !needs.no_crash)
            && (self.mistakes == 0 || !needs.perfect_detector)
            && (self.is_bounded() || !needs.synchrony)
    }

    /// Whether messages take no longer than the sites believe.
    const fn is_bounded(&self) -> bool {
        match self.ticks {
            Some(ticks) => ticks <= self.believed,
            None => false,
        }
    }
}

/// All mutants, problem by problem.
pub fn all() -> impl Iterator<Item = &'static Mutant> + Clone {
    mutex::MUTANTS.iter().chain(election::MUTANTS).chain(snapshot::MUTANTS)
}

/// The problems that have mutants, in order.
pub const PROBLEMS: [&str; 3] = ["mutex", "election", "snapshot"];

/// The checker, in that world, before it has seen so many states.
const fn within(world: World, states: u64) -> Catch {
    Catch::Check { world, states }
}

/// Lists a problem's mutants once: the table, and the way from a name to a type, also of algorithms without a flaw. `$cards` are those
/// of the problem; `$parts` is what a site is made from.
macro_rules! listing {
    (problem $problem:literal of $trait:path, with $cards:path, made from $parts:tt, algorithms {
         $($honest_name:literal: $honest:ty,)+
     };
     $($name:literal: $type:ty, of $algorithm:literal,
       $flaw:literal, $source:literal, $breaks:expr, $catch:expr $(, $steps:literal)?;)+) => {
        /// All of them, algorithm by algorithm.
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

        /// Does something with the mutant of that name; `None` if nobody has it.
        pub fn visit<V: super::Visit>(name: &str, visitor: V) -> Option<V::Out> {
            Some(match name {
                $($name => visitor.visit($crate::mutants::listing!(@make $parts, $type, $trait, $name)),)+
                _ => return None,
            })
        }

        /// Does something with the algorithm of that name, without a flaw; `None` if nobody has it.
        pub fn visit_honest<V: super::Visit>(algorithm: &str, visitor: V) -> Option<V::Out> {
            Some(match algorithm {
                $($honest_name => visitor.visit(<$crate::mutants::flawed::Flawed<$honest> as $trait>::new),)+
                _ => return None,
            })
        }

        #[cfg(test)]
        mod tests {
            use super::super::{Make, Visit};
            use super::*;

            struct Name;
            impl Visit for Name {
                type Out = &'static str;
                fn visit<P: $trait>(self, _: Make<P>) -> &'static str {
                    P::CARD.name
                }
            }

            #[test]
            fn every_name_leads_to_its_algorithm() {
                for card in $cards {
                    assert_eq!(visit_honest(card.name, Name), Some(card.name));
                }
                for mutant in MUTANTS {
                    assert_eq!(visit(mutant.name, Name), Some(mutant.algorithm), "{}", mutant.name);
                }
                assert_eq!((visit("nobody", Name), visit_honest("nobody", Name)), (None, None));
            }
        }
    };
    (@make ($($part:ident),+), $type:ty, $trait:path, $name:literal) => {
        |$($part),+| $crate::mutants::flawed::Flawed::new(<$type as $trait>::new($($part),+), $name)
    };
    (@steps $steps:literal) => { Some($steps) };
    (@steps) => { None };
}
use listing;
