//! The list of the room's mutants: what is wrong with each, who says so, and where it is caught.

use conclave_kernel::NodeId;

use super::Visit;
use crate::mutants::flawed::{Fallible, Flawed};
use crate::mutants::{Catch, Mutant, World};
use crate::snapshot::bank::Bank;
use crate::snapshot::{ChandyLamport, LaiYang, Snapshot};

/// Two sites, with a transfer each.
const TWO: World = World::new(2, 1);
/// Three: a site then has channels on which different things happen.
const THREE: World = World::new(3, 1);

const fn within(world: World, states: u64) -> Catch {
    Catch::Check { world, states }
}

/// Lists the mutants once: the table, and the way from a name to a type.
macro_rules! mutants {
    ($($name:literal: $tenant:ident, of $algorithm:literal,
       $flaw:literal, $source:literal, $breaks:expr, $catch:expr;)+) => {
        /// All of them, algorithm by algorithm.
        pub const MUTANTS: &[Mutant] = &[$(Mutant {
            name: $name,
            room: "snapshot",
            algorithm: $algorithm,
            flaw: $flaw,
            source: $source,
            breaks: $breaks,
            catch: $catch,
            published_steps: None,
        }),+];

        /// Does something with the mutant of that name; `None` if nobody has it.
        pub fn visit<V: Visit>(name: &str, visitor: V) -> Option<V::Out> {
            match name {
                $($name => Some(visitor.visit(|me, nodes, app| make::<$tenant<Bank>>(me, nodes, app, $name))),)+
                _ => None,
            }
        }
    };
}

fn make<P: Fallible + Snapshot<Bank>>(me: NodeId, nodes: u32, app: Bank, flaw: &str) -> Flawed<P> {
    Flawed::new(P::new(me, nodes, app), flaw)
}

/// Does something with the tenant of that name, without a flaw; `None` if nobody has it.
pub fn visit_honest<V: Visit>(algorithm: &str, visitor: V) -> Option<V::Out> {
    Some(match algorithm {
        "chandy-lamport" => visitor.visit(|me, nodes, app| make::<ChandyLamport<Bank>>(me, nodes, app, "")),
        "lai-yang" => visitor.visit(|me, nodes, app| make::<LaiYang<Bank>>(me, nodes, app, "")),
        _ => return None,
    })
}

const CONSERVED: Option<&str> = Some("conserved");
const CONSISTENT: Option<&str> = Some("consistent");
const COMPLETE: Option<&str> = Some("complete");

mutants! {
    "cl-any-order": ChandyLamport, of "chandy-lamport",
        "channels that are not FIFO: a marker is overtaken, or overtakes", "CL85 §3",
        CONSERVED, within(TWO.any_order(), 10_000);
    "cl-records-late": ChandyLamport, of "chandy-lamport",
        "the markers go first, and the state is kept after the next thing that happens", "CL85 §3.1",
        CONSERVED, within(TWO, 10_000);
    "cl-records-again": ChandyLamport, of "chandy-lamport",
        "the state is recorded at every marker, not at the first", "CL85 §3.1",
        CONSERVED, within(TWO, 10_000);
    "cl-first-marker-ends-all": ChandyLamport, of "chandy-lamport",
        "the first marker ends all channels, not only its own", "CL85 §3.1",
        CONSERVED, within(THREE, 1_000_000);
    "cl-past-the-marker": ChandyLamport, of "chandy-lamport",
        "a channel is recorded past its own marker, until the last one is in", "CL85 §3.1",
        CONSERVED, within(THREE, 1_000_000);
    "cl-from-the-start": ChandyLamport, of "chandy-lamport",
        "a channel holds what came before its marker, also before the site recorded", "CL85 §3.1",
        CONSERVED, within(TWO, 10_000);
    "cl-marker-not-passed": ChandyLamport, of "chandy-lamport",
        "only who started sends markers", "CL85 §3.1",
        COMPLETE, within(TWO, 10_000);
    "cl-no-numbers": ChandyLamport, of "chandy-lamport",
        "different snapshots have no numbers, and take each other's markers", "CL85 §3.3",
        CONSISTENT, Catch::Sim { nodes: 4, relay: false, seeds: 50 };
    "cl-markers-twice": ChandyLamport, of "chandy-lamport",
        "every marker is sent twice", "CL85 §3.1",
        None, within(TWO, 100_000);

    "ly-delivers-first": LaiYang, of "lai-yang",
        "the first red message is delivered, and then the site records", "LY87",
        CONSERVED, within(TWO.any_order(), 10_000);
    "ly-no-colour": LaiYang, of "lai-yang",
        "messages have no colour: a red one is received by a site that has not recorded", "LY87",
        COMPLETE, within(TWO.any_order(), 10_000);
    "ly-red-is-white": LaiYang, of "lai-yang",
        "a red message is counted and kept as a white one", "LY87",
        COMPLETE, within(TWO.any_order(), 10_000);
    "ly-ends-at-the-count": LaiYang, of "lai-yang",
        "a channel ends when the count comes, whatever it says", "M93 §3",
        CONSERVED, within(TWO.any_order(), 10_000);
    "ly-no-counts": LaiYang, of "lai-yang",
        "colours alone, without counts: nobody knows when the last white message has come", "M93 §3",
        COMPLETE, within(TWO.any_order(), 10_000);
    "ly-no-wave": LaiYang, of "lai-yang",
        "counts go only to those who were sent something: who hears nothing never records", "M93 §3",
        COMPLETE, within(THREE.any_order(), 100_000);
    "ly-counts-twice": LaiYang, of "lai-yang",
        "every count is sent twice", "M93 §3",
        None, within(TWO.any_order(), 100_000);
}

#[cfg(test)]
mod tests {
    use super::super::Make;
    use super::*;
    use crate::snapshot::CARDS;

    struct Name;
    impl Visit for Name {
        type Out = &'static str;
        fn visit<P: Snapshot<Bank>>(self, _: Make<P>) -> &'static str {
            P::CARD.name
        }
    }

    #[test]
    fn every_name_leads_to_its_algorithm() {
        for card in CARDS {
            assert_eq!(visit_honest(card.name, Name), Some(card.name));
        }
        for mutant in MUTANTS {
            assert_eq!(visit(mutant.name, Name), Some(mutant.algorithm), "{}", mutant.name);
        }
        assert_eq!((visit("nobody", Name), visit_honest("nobody", Name)), (None, None));
    }
}
