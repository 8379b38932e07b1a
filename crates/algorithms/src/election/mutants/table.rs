//! The list of the problem's mutants, with the flaw, the source and the search that catches each of them.

use crate::mutants::{World, listing, within};

/// Three sites, each of which may call one election.
const RING: World = World::new(3, 1);
/// The same, with messages that take at most one tick. All sites assume this.
const SYNC: World = World::new(3, 1).any_order().within_ticks(1);

/// Two such sites. With three sites, one that recovers during an announcement may leave another with the
/// wrong leader, although no site breaks a rule.
const PAIR: World = World::new(2, 1).any_order().within_ticks(1);

const E1: Option<&str> = Some("E1");
const E2: Option<&str> = Some("E2");

listing! {
    problem "election";

    "cr-forwards-participating" of "chang-roberts",
        "a participant forwards lower candidates instead of dropping them: each candidate returns", "CR79 §2",
        E1, within(RING, 10_000);
    "cr-no-flag" of "chang-roberts",
        "no participant flag: each lower candidate is replaced, and announcements repeat", "CR79 §2",
        None, within(RING, 100_000);
    "cr-swallows-lower" of "chang-roberts",
        "a site drops a lower candidate and does not stand itself", "CR79 §2",
        E2, within(RING, 10_000);
    "cr-flag-for-ever" of "chang-roberts",
        "ELECTED does not clear the participant flag: the next election is dropped", "CDK §15.3.1",
        E2, within(World::new(3, 2), 100_000);
    "cr-forwards-unmarked" of "chang-roberts",
        "a site that only forwards does not set its flag: it stands without need", "CDK §15.3.1",
        None, within(RING, 100_000);
    "cr-keeps-elected" of "chang-roberts",
        "ELECTED is not forwarded", "CR79 §2",
        E2, within(RING, 10_000);
    "cr-dead-maximum" of "chang-roberts",
        "messages carry no view of crashed sites: the candidate of a crashed maximum travels for ever", "CR79 §2",
        E2, within(RING.crashing(), 1_000_000);
    "cr-any-order" of "chang-roberts",
        "channels are not FIFO: a new candidate overtakes ELECTED and is dropped", "CR79 §2",
        E2, within(RING.any_order(), 100_000);
    "cr-wrong-suspicion" of "chang-roberts",
        "the ring skips a site that is up", "CT96 §2",
        E1, within(RING.erring(), 100_000);

    "hs-first-probe-back" of "hirschberg-sinclair",
        "a site wins when the first of its two probes returns, although the second is still on its way", "HS80 §2",
        E2, within(RING, 1_000_000);
    "hs-swallows-lower" of "hirschberg-sinclair",
        "a site drops a lower probe and does not stand itself", "HS80 §2",
        E2, within(RING, 10_000);
    "hs-goes-on" of "hirschberg-sinclair",
        "a candidate continues although it has seen a higher one", "HS80 §2",
        None, within(World::new(2, 1), 1_000_000);
    "hs-any-order" of "hirschberg-sinclair",
        "channels are not FIFO: a new probe overtakes ELECTED, and its sender waits for a reply for ever", "HS80 §2",
        E2, within(World::new(4, 1).any_order().only(&[1, 3]), 1_000_000);

    "bully-short-timeout" of "bully",
        "the timeout T covers one message, not a message and its reply", "GM82 §4",
        E1, within(SYNC, 100_000);
    "bully-late-messages" of "bully",
        "messages take twice as long as the timeouts assume", "GM82 §4",
        E1, within(SYNC.within_ticks(2).believing(1), 100_000);
    "bully-async" of "bully",
        "delays have no bound: silence proves nothing", "GM82 §4",
        E1, within(RING.any_order(), 1_000);
    "bully-no-second-timeout" of "bully",
        "no timeout T': a site waits for ever for a site that answered and then crashed", "CDK §15.3.2",
        E2, within(SYNC.crashing(), 1_000_000);
    "bully-short-second-timeout" of "bully",
        "T' is not longer than T: a site that got an answer starts again too soon", "CDK §15.3.2",
        None, within(SYNC.crashing(), 3_000_000);
    "bully-never-disarms" of "bully",
        "T' stays armed when COORDINATOR arrives: elections follow each other for ever", "GM82 §4",
        E2, within(SYNC, 1_000_000);
    "bully-only-answers" of "bully",
        "a site that is asked answers, but does not start an election itself", "GM82 §4",
        E2, within(SYNC, 100_000);
    "bully-no-answer" of "bully",
        "a site that is asked starts an election, but does not answer", "GM82 §4",
        E1, within(SYNC.crashing(), 1_000_000);
    "bully-begins-each-time" of "bully",
        "a site starts a new election each time it is asked", "GM82 §4",
        None, within(SYNC, 1_000_000);
    "bully-mid-announcement" of "bully",
        "a process returns with its old id while another one announces itself", "CDK §15.3.2",
        E1, within(SYNC.reviving(), 1_000_000);
    "bully-silent-return" of "bully",
        "a site that recovers does not start an election", "GM82 §4",
        E2, within(PAIR.reviving(), 10_000);
    "bully-announces-to-all" of "bully",
        "announcements go to all sites, not only to the lower ones", "CDK §15.3.2",
        None, within(SYNC, 1_000_000);
    "bully-follows-lower" of "bully",
        "announcements go to all sites, and a site accepts that of a lower one", "CDK §15.3.2",
        E2, within(PAIR.reviving(), 100_000);

    "detector-errs-once" of "detector-based",
        "the detector once suspects a site that is up", "CT96 §2",
        E1, within(RING.within_ticks(1).erring(), 1_000);
    "detector-never-trusts" of "detector-based",
        "suspicions are never withdrawn: a site that recovers is not elected again", "CT96 §2",
        E2, within(RING.within_ticks(1).reviving(), 10_000);
}
