//! The list of the problem's mutants, with the flaw, the source and the search that catches each of them.

use crate::mutants::{Catch, FOREVER, World, listing, within};
use crate::quorum::Quorum;

/// Three sites with one entry each. Every site's quorum is all sites, so each arbiter has three contenders.
const ALL: World = World::new(3, 1).quorum(Quorum::All);
/// The triangle: three sites with one entry each, and two contenders at each arbiter.
const TRIANGLE: World = World::new(3, 1).quorum(Quorum::Plane);

const ME1: Option<&str> = Some("ME1");
const ME2: Option<&str> = Some("ME2");
const ME3: Option<&str> = Some("ME3");
const FENCES: Option<&str> = Some("fences");

listing! {
    problem "mutex";

    "central-forgets-holder" of "central",
        "the coordinator grants each request at once, even if a site is inside", "CDK §15.2",
        ME1, within(World::new(3, 1), 1_000);
    "central-believes-release" of "central",
        "a duplicate RELEASE frees the lock of the site that is inside now", "CDK §15.2",
        ME1, within(World::new(3, 1).duplicating(), 10_000);
    "central-queues-copies" of "central",
        "a duplicate REQUEST enters the queue and is granted, but never released", "CDK §15.2",
        ME2, within(World::new(3, 1).duplicating(), 10_000);

    "ring-crash" of "token-ring",
        "the token is lost when its holder crashes, and no site makes a new one", "LeLann77",
        ME2, within(World::new(3, 1).crashing(), 1_000);
    "ring-duplicate" of "token-ring",
        "the token is duplicated: two tokens travel round the ring", "LeLann77",
        ME1, within(World::new(3, 1).duplicating(), 1_000);
    "ring-wrong-suspicion" of "token-ring",
        "a late token is taken for lost, and a second one is made", "LeLann77",
        ME1, within(World::new(3, 1), 1_000);
    "ring-several-entries" of "token-ring",
        "several entries per visit: a site that asks again in time keeps the token for ever", "LeLann77",
        ME2, within(World::new(3, FOREVER), 10_000);
    "ring-one-entry" of "token-ring",
        "one entry per visit, without fences: harmless, no site starves", "LeLann77",
        None, within(World::new(3, FOREVER), 10_000);

    "fair-ring-deaf" of "fair-ring",
        "the arrival of the token does not advance the clock", "L78",
        ME3, within(World::new(3, 3), 100_000);
    "fair-ring-not-wiped" of "fair-ring",
        "an exit leaves the stamp on the token: all sites forward the token for ever", "L78",
        ME2, Catch::Sim { nodes: 5, relay: false, seeds: 10 };
    "fair-ring-at-sight" of "fair-ring",
        "a waiting site enters when the token arrives, even if its request is not the oldest", "LeLann77",
        ME3, Catch::Sim { nodes: 5, relay: true, seeds: 100 };

    "lamport-any-order" of "lamport",
        "channels are not FIFO: a REPLY overtakes an older REQUEST", "L78",
        ME1, within(World::new(3, 1).any_order(), 100_000), 15;
    "lamport-without-l1" of "lamport",
        "a site enters as soon as its request is the first in its own queue", "L78 rule 5",
        ME1, within(World::new(3, 1), 1_000);
    "lamport-any-message" of "lamport",
        "any message counts for condition L1, even with a stamp older than the request", "L78 rule 5",
        ME1, within(World::new(2, 2), 100_000);
    "lamport-no-tie-break" of "lamport",
        "times without site ids: two requests with the same time are both first", "L78",
        ME1, within(World::new(2, 1), 1_000);
    "lamport-reply-not-later" of "lamport",
        "a REPLY carries the time of its request instead of a later one", "L78 rule 2",
        ME2, within(World::new(2, 1), 1_000);
    "lamport-releases-first" of "lamport",
        "a RELEASE removes the first request of its sender: harmless, as FIFO links allow only one", "L78 rule 4",
        None, within(World::new(2, 2), 100_000);

    "ra-no-tie-break" of "ricart-agrawala",
        "no tie-break: with equal numbers, both sites reply", "RA81 §2",
        ME1, within(World::new(3, 1).any_order(), 10_000);
    "ra-deaf-clock" of "ricart-agrawala",
        "a received request does not raise the highest number seen", "RA81 §2",
        ME1, within(World::new(3, 1).any_order(), 10_000);
    "ra-counts-replies" of "ricart-agrawala",
        "replies are counted, and one of them arrives twice", "RA81 §2",
        ME1, within(World::new(3, 1).duplicating(), 100_000), 9;
    "ra-counts-senders" of "ricart-agrawala",
        "replies count by sender only: a duplicate reply to an earlier request counts for a later one", "RA81 §2",
        ME1, within(World::new(3, 2).duplicating(), 1_000_000), 15;
    "ra-replies-inside" of "ricart-agrawala",
        "a site replies while it is inside", "RA81 §2",
        ME1, within(World::new(3, 1).any_order(), 10_000);
    "ra-forgets-deferred" of "ricart-agrawala",
        "a site sends no deferred replies when it leaves", "RA81 §2",
        ME2, within(World::new(3, 1).any_order(), 10_000);
    "ra-silent-replies" of "ricart-agrawala",
        "replies carry no number, as in the paper: a request overtakes one that is known from a reply", "RA81 §2",
        ME3, within(World::new(3, 2), 3_000_000);
    "ra-time-as-fence" of "ricart-agrawala",
        "the fence is the number without the site id: two equal numbers give equal fences", "B06 §2.4",
        FENCES, within(World::new(3, 1).any_order(), 10_000);

    "rc-both-hold" of "roucairol-carvalho",
        "both sites of a pair hold the permission at the start", "CR83",
        ME1, within(World::new(3, 1), 1_000), 2;
    "rc-keeps-at-exit" of "roucairol-carvalho",
        "a site sends the permission when it leaves, but also keeps it", "CR83",
        ME1, within(World::new(2, 2), 1_000), 6;
    "rc-forgets-it-gave" of "roucairol-carvalho",
        "a site sends the permission when asked, but also keeps it", "CR83",
        ME1, within(World::new(2, 1), 1_000);
    "rc-does-not-ask-again" of "roucairol-carvalho",
        "a waiting site yields to an older request, but does not ask for the permission again", "CR83",
        ME2, within(World::new(3, 2), 100_000), 15;
    "rc-no-tie-break" of "roucairol-carvalho",
        "with equal numbers, a site yields; its next REQUEST overtakes the permission", "CR83",
        ME1, within(World::new(3, 1).any_order(), 100_000), 10;
    "rc-no-tie-break-fifo" of "roucairol-carvalho",
        "with equal numbers, a site yields; links are FIFO", "CR83",
        None, within(World::new(3, 1), 100_000);
    "rc-no-tie-break-copies" of "roucairol-carvalho",
        "with equal numbers, a site yields; on FIFO links its second REQUEST is taken for a duplicate", "CR83",
        ME2, within(World::new(3, 1), 100_000);
    "rc-gives-inside" of "roucairol-carvalho",
        "a site gives the permission to an older request even while it is inside", "CR83",
        ME1, within(World::new(2, 2), 10_000);
    "rc-stamp-as-fence" of "roucairol-carvalho",
        "the stamp is the fence: a site that re-enters raises its clock unseen by the others", "CR83",
        FENCES, within(World::new(2, 3), 10_000), 11;

    "maekawa-basic" of "maekawa",
        "no INQUIRE, FAILED or YIELD: the basic algorithm", "M85 §4",
        ME2, within(TRIANGLE, 100_000), 12;
    "maekawa-failed-by-holder" of "maekawa",
        "an arbiter sends FAILED only if the holder is older", "S87",
        ME2, within(ALL, 2_000_000), 23;
    "maekawa-1985" of "maekawa",
        "an arbiter sends FAILED if any known request is older, but not to a request overtaken later", "M85 §4",
        ME2, within(ALL, 2_000_000), 22;
    "maekawa-forgets-inquire" of "maekawa",
        "a site forgets an INQUIRE that it cannot answer yet", "M85 §4",
        ME2, within(ALL, 2_000_000), 21;
    "maekawa-inquired-for-ever" of "maekawa",
        "RELEASE and YIELD do not clear the flag \"inquired\"", "M85 §4",
        ME2, within(ALL, 2_000_000), 22;
    "maekawa-own-yield" of "maekawa",
        "a grant that a site yielded does not count as FAILED", "M85 §4",
        ME2, within(ALL, 2_000_000), 28;
    "maekawa-failed-and-yielded" of "maekawa",
        "a site yields only after both a FAILED and a YIELD of its own: no site yields first", "M85 §4",
        ME2, within(TRIANGLE, 1_000_000);
    "maekawa-first-failed-only" of "maekawa",
        "a site yields when the first FAILED arrives, and never later", "M85 §4",
        ME2, within(ALL, 2_000_000);
    "maekawa-not-put-back" of "maekawa",
        "the request of a site that yielded does not return to the queue", "M85 §4",
        ME2, within(ALL, 2_000_000), 28;
    "maekawa-no-tie-break" of "maekawa",
        "FAILED and INQUIRE compare times without site ids", "M85 §4",
        ME2, within(TRIANGLE, 1_000_000), 15;
    "maekawa-yields-inside" of "maekawa",
        "a site yields even while it is inside", "M85 §4",
        ME1, within(TRIANGLE, 1_000_000), 12;
    "maekawa-stale-yield" of "maekawa",
        "an INQUIRE that crossed the RELEASE gets a YIELD, and the arbiter accepts it", "M85 §4",
        ME1, within(World::new(3, 2).quorum(Quorum::Plane), 3_000_000);
    "maekawa-disjoint" of "maekawa",
        "the quorums do not intersect", "M85 §2",
        ME1, within(TRIANGLE, 1_000), 8;
    "maekawa-own-fence" of "maekawa",
        "each site numbers its own fences", "B06 §2.4",
        FENCES, within(TRIANGLE, 100_000);
    "maekawa-yields-at-once" of "maekawa",
        "a site yields to every INQUIRE at once", "S87",
        None, within(TRIANGLE, 1_000_000);
    "maekawa-failed-for-ever" of "maekawa",
        "a GRANT does not clear an earlier FAILED of its arbiter", "S87",
        None, within(TRIANGLE, 1_000_000);
    "maekawa-unstamped-inquire" of "maekawa",
        "an INQUIRE has no stamp, so a late one counts for the current request", "S87",
        None, within(World::new(2, 2).quorum(Quorum::All), 100_000);

    "sk-without-max" of "suzuki-kasami",
        "RN[j] := n without the maximum: a late request replaces a newer number", "SK85",
        ME2, within(World::new(3, 2).any_order(), 1_000_000), 17;
    "sk-idle-silent" of "suzuki-kasami",
        "an idle token holder ignores requests", "SK85",
        ME2, within(World::new(3, 1), 1_000);
    "sk-deaf-inside" of "suzuki-kasami",
        "a site ignores requests while it is inside", "SK85",
        ME2, within(World::new(3, 1), 1_000);
    "sk-not-served" of "suzuki-kasami",
        "LN[i] := RN[i] is omitted on exit", "SK85",
        ME2, within(World::new(3, 2), 10_000);
    "sk-any-token" of "suzuki-kasami",
        "a site accepts a late duplicate of the token, as in the paper", "SK85",
        ME1, within(World::new(3, 1).duplicating(), 100_000);
    "sk-answers-outdated" of "suzuki-kasami",
        "an outdated request is answered, and its site takes the token for a late duplicate", "SK85",
        ME2, within(World::new(3, 1).any_order(), 100_000);
    "sk-outdated-handed-on" of "suzuki-kasami",
        "an outdated request is answered, and its site forwards the token", "SK85",
        None, within(World::new(3, 1).any_order(), 100_000);
    "sk-lifo" of "suzuki-kasami",
        "the site that asked last is served first", "SK85",
        ME2, within(World::new(3, FOREVER), 1_000_000);
    "sk-fifo" of "suzuki-kasami",
        "request numbers wrap around, and the queue is first-in, first-out: harmless, no site starves", "SK85",
        None, within(World::new(3, FOREVER), 1_000_000);

    "raymond-asked-for-ever" of "raymond",
        "ASKED is never cleared", "R89",
        ME2, within(World::new(3, 2), 10_000);
    "raymond-does-not-ask-back" of "raymond",
        "a site forwards the token while others wait behind it, but does not ask for it back", "R89",
        ME2, within(World::new(3, 1), 10_000);
    "raymond-gives-inside" of "raymond",
        "a site forwards the token while it is inside", "R89",
        ME1, within(World::new(3, 1), 1_000);

    "naimi-forwards-only" of "naimi-trehel",
        "only the root makes the requester its father: paths stay long", "NT96",
        None, within(World::new(3, 2), 100_000);
    "naimi-stays-root" of "naimi-trehel",
        "the root does not make the requester its father, so the next request replaces it", "NT96",
        ME2, within(World::new(3, 1), 10_000);
    "naimi-gives-inside" of "naimi-trehel",
        "a site sends the token away while it is inside", "NT96",
        ME1, within(World::new(3, 1), 1_000);
}
