//! The list of the problem's mutants, with the flaw, the source and the search that catches each of them.

use crate::mutants::{Catch, World, listing, within};
use crate::snapshot::Snapshot;
use crate::snapshot::bank::Bank;

type ChandyLamport = crate::snapshot::ChandyLamport<Bank>;
type LaiYang = crate::snapshot::LaiYang<Bank>;

/// Two sites with one transfer each.
const TWO: World = World::new(2, 1);
/// Three sites. A site then has several channels, on which different things can happen.
const THREE: World = World::new(3, 1);

const CONSERVED: Option<&str> = Some("conserved");
const CONSISTENT: Option<&str> = Some("consistent");
const COMPLETE: Option<&str> = Some("complete");

listing! {
    problem "snapshot" of Snapshot<Bank>, with crate::snapshot::CARDS, made from (me, nodes, app), algorithms {
        "chandy-lamport": ChandyLamport,
        "lai-yang": LaiYang,
    };

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
