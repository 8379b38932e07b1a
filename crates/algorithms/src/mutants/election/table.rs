//! The list of the problem's mutants, with the flaw, the source and the search that catches each of them.

use crate::detector::{Heartbeat, Mute};
use crate::election::{Bully, ChangRoberts, DetectorBased, Election, HirschbergSinclair};
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
    problem "election" of Election, with crate::election::CARDS, made from (me, group), algorithms {
        "chang-roberts": ChangRoberts,
        "hirschberg-sinclair": HirschbergSinclair,
        "bully": Bully,
        "detector-based": DetectorBased<Heartbeat>,
    };

    "cr-forwards-participating": ChangRoberts, of "chang-roberts",
        "a participant forwards lower candidates instead of swallowing them: each comes home", "CR79 §2",
        E1, within(RING, 10_000);
    "cr-no-flag": ChangRoberts, of "chang-roberts",
        "no participant flag: every lower candidate is replaced, and announcements are repeated", "CR79 §2",
        None, within(RING, 100_000);
    "cr-swallows-lower": ChangRoberts, of "chang-roberts",
        "a lower candidate is swallowed, and nobody stands in its place", "CR79 §2",
        E2, within(RING, 10_000);
    "cr-flag-for-ever": ChangRoberts, of "chang-roberts",
        "ELECTED does not clear the flag: the next election is swallowed", "CDK §15.3.1",
        E2, within(World::new(3, 2), 100_000);
    "cr-forwards-unmarked": ChangRoberts, of "chang-roberts",
        "who only forwards does not mark itself: it stands needlessly", "CDK §15.3.1",
        None, within(RING, 100_000);
    "cr-keeps-elected": ChangRoberts, of "chang-roberts",
        "ELECTED is not passed on", "CR79 §2",
        E2, within(RING, 10_000);
    "cr-dead-maximum": ChangRoberts, of "chang-roberts",
        "no list of those concerned: the candidate of a dead maximum goes round for ever", "CR79 §2",
        E2, within(RING.crashing(), 1_000_000);
    "cr-any-order": ChangRoberts, of "chang-roberts",
        "channels that are not FIFO: who begins anew overtakes ELECTED and is swallowed", "CR79 §2",
        E2, within(RING.any_order(), 100_000);
    "cr-wrong-suspicion": ChangRoberts, of "chang-roberts",
        "the ring closes over somebody who is alive", "CT96 §2",
        E1, within(RING.erring(), 100_000);

    "hs-first-probe-back": HirschbergSinclair, of "hirschberg-sinclair",
        "who gets the first of its probes back has won, and the second is still under way", "HS80 §2",
        E2, within(RING, 1_000_000);
    "hs-swallows-lower": HirschbergSinclair, of "hirschberg-sinclair",
        "a lower probe is swallowed, and nobody stands in its place", "HS80 §2",
        E2, within(RING, 10_000);
    "hs-goes-on": HirschbergSinclair, of "hirschberg-sinclair",
        "a candidate goes on although it has seen somebody higher", "HS80 §2",
        None, within(World::new(2, 1), 1_000_000);
    "hs-any-order": HirschbergSinclair, of "hirschberg-sinclair",
        "channels that are not FIFO: who begins anew overtakes ELECTED and waits for a reply for ever", "HS80 §2",
        E2, within(World::new(4, 1).any_order().only(&[1, 3]), 1_000_000);

    "bully-short-timeout": Bully, of "bully",
        "the timeout lasts for one message, not for one each way", "GM82 §4",
        E1, within(SYNC, 100_000);
    "bully-late-messages": Bully, of "bully",
        "messages take twice as long as the timeouts assume", "GM82 §4",
        E1, within(SYNC.within_ticks(2).believing(1), 100_000);
    "bully-async": Bully, of "bully",
        "no bound on delays at all: silence means nothing", "GM82 §4",
        E1, within(RING.any_order(), 1_000);
    "bully-no-second-timeout": Bully, of "bully",
        "whoever answered and died is waited for for ever", "CDK §15.3.2",
        E2, within(SYNC.crashing(), 1_000_000);
    "bully-short-second-timeout": Bully, of "bully",
        "T' is no longer than T: who was answered begins again too soon", "CDK §15.3.2",
        None, within(SYNC.crashing(), 3_000_000);
    "bully-only-answers": Bully, of "bully",
        "who is asked answers, and does not stand itself", "GM82 §4",
        E2, within(SYNC, 100_000);
    "bully-no-answer": Bully, of "bully",
        "who is asked stands, and does not answer", "GM82 §4",
        E1, within(SYNC.crashing(), 1_000_000);
    "bully-begins-each-time": Bully, of "bully",
        "begins anew whenever it is asked", "GM82 §4",
        None, within(SYNC, 1_000_000);
    "bully-mid-announcement": Bully, of "bully",
        "a process is back under its old id while another announces itself", "CDK §15.3.2",
        E1, within(SYNC.reviving(), 1_000_000);
    "bully-silent-return": Bully, of "bully",
        "who comes back does not begin an election", "GM82 §4",
        E2, within(PAIR.reviving(), 10_000);
    "bully-announces-to-all": Bully, of "bully",
        "announcements go to everybody, and not only to the lower", "CDK §15.3.2",
        None, within(SYNC, 1_000_000);
    "bully-follows-lower": Bully, of "bully",
        "announcements go to everybody, and that of somebody lower is believed", "CDK §15.3.2",
        E2, within(PAIR.reviving(), 100_000);

    "detector-errs-once": DetectorBased<Mute>, of "detector-based",
        "the detector suspects somebody who is alive, once", "CT96 §2",
        E1, within(RING.within_ticks(1).erring(), 1_000);
    "detector-never-trusts": DetectorBased<Mute>, of "detector-based",
        "suspicions are not taken back: who returns is not elected again", "CT96 §2",
        E2, within(RING.within_ticks(1).reviving(), 10_000);
}
