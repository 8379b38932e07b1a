//! The list of the problem's mutants, with the flaw, the source and the search that catches each of them.

use crate::mutants::{Catch, World, listing, within};

/// Two sites with one transfer each.
const TWO: World = World::new(2, 1);
/// Three sites. A site then has several channels, on which different things can happen.
const THREE: World = World::new(3, 1);

const CONSERVED: Option<&str> = Some("conserved");
const CONSISTENT: Option<&str> = Some("consistent");
const COMPLETE: Option<&str> = Some("complete");

listing! {
    problem "snapshot";

    "cl-any-order" of "chandy-lamport",
        "channels are not FIFO: messages overtake markers, and markers overtake messages", "CL85 §3",
        CONSERVED, within(TWO.any_order(), 10_000);
    "cl-records-late" of "chandy-lamport",
        "a site sends the markers first and records its state only after its next step", "CL85 §3.1",
        CONSERVED, within(TWO, 10_000);
    "cl-records-again" of "chandy-lamport",
        "a site records its state at every marker, not only at the first", "CL85 §3.1",
        CONSERVED, within(TWO, 10_000);
    "cl-first-marker-ends-all" of "chandy-lamport",
        "the first marker ends the recording of all channels, not only of its own", "CL85 §3.1",
        CONSERVED, within(THREE, 1_000_000);
    "cl-past-the-marker" of "chandy-lamport",
        "a site records each channel until its last marker arrives, not until the marker of the channel", "CL85 §3.1",
        CONSERVED, within(THREE, 1_000_000);
    "cl-from-the-start" of "chandy-lamport",
        "a channel also contains messages that arrived before the site recorded", "CL85 §3.1",
        CONSERVED, within(TWO, 10_000);
    "cl-marker-not-passed" of "chandy-lamport",
        "only the site that started the snapshot sends markers", "CL85 §3.1",
        COMPLETE, within(TWO, 10_000);
    "cl-no-numbers" of "chandy-lamport",
        "snapshots have no numbers, so each takes the markers of the others", "CL85 §3.3",
        CONSISTENT, Catch::Sim { nodes: 4, relay: false, seeds: 50 };
    "cl-markers-twice" of "chandy-lamport",
        "every marker is sent twice: harmless", "CL85 §3.1",
        None, within(TWO, 100_000);

    "ly-delivers-first" of "lai-yang",
        "a site delivers the first red message and records only then", "LY87",
        CONSERVED, within(TWO.any_order(), 10_000);
    "ly-no-colour" of "lai-yang",
        "messages have no colour: a site that has not recorded receives a red one", "LY87",
        COMPLETE, within(TWO.any_order(), 10_000);
    "ly-red-is-white" of "lai-yang",
        "a red message is counted and recorded as a white one", "LY87",
        COMPLETE, within(TWO.any_order(), 10_000);
    "ly-ends-at-the-count" of "lai-yang",
        "a channel ends when its count arrives, whatever the count is", "M93 §3",
        CONSERVED, within(TWO.any_order(), 10_000);
    "ly-no-counts" of "lai-yang",
        "messages have colours, but no counts are sent: no site knows when the last white one has arrived", "M93 §3",
        COMPLETE, within(TWO.any_order(), 10_000);
    "ly-no-wave" of "lai-yang",
        "counts go only to sites that were sent a message: a site that receives none never records", "M93 §3",
        COMPLETE, within(THREE.any_order(), 100_000);
    "ly-counts-twice" of "lai-yang",
        "every count is sent twice: harmless", "M93 §3",
        None, within(TWO.any_order(), 100_000);
}
