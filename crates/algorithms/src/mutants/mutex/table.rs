//! The list of the problem's mutants, with the flaw, the source and the search that catches each of them.

use super::cyclic::CyclicSuzukiKasami;
use crate::mutants::{Catch, FOREVER, World, listing, within};
use crate::mutex::{
    Central, FairRing, Lamport, LamportOmission, Maekawa, Mutex, NaimiTrehel, Raymond, RicartAgrawala,
    RoucairolCarvalho, SuzukiKasami, TokenRing,
};
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
    problem "mutex" of Mutex, with crate::mutex::CARDS, made from (me, group), algorithms {
        "central": Central,
        "token-ring": TokenRing,
        "fair-ring": FairRing,
        "lamport": Lamport,
        "lamport-omission": LamportOmission,
        "ricart-agrawala": RicartAgrawala,
        "roucairol-carvalho": RoucairolCarvalho,
        "maekawa": Maekawa,
        "suzuki-kasami": SuzukiKasami,
        "raymond": Raymond,
        "naimi-trehel": NaimiTrehel,
    };

    "central-forgets-holder": Central, of "central",
        "grants whenever somebody asks, whoever is inside", "CDK §15.2",
        ME1, within(World::new(3, 1), 1_000);
    "central-believes-release": Central, of "central",
        "a copy of a RELEASE releases whoever is inside now", "CDK §15.2",
        ME1, within(World::new(3, 1).duplicating(), 10_000);
    "central-queues-copies": Central, of "central",
        "a copy of a REQUEST stands in the queue, is granted, and never released", "CDK §15.2",
        ME2, within(World::new(3, 1).duplicating(), 10_000);

    "ring-crash": TokenRing, of "token-ring",
        "the token dies with the site that has it, and nobody makes it anew", "LeLann77",
        ME2, within(World::new(3, 1).crashing(), 1_000);
    "ring-duplicate": TokenRing, of "token-ring",
        "the token arrives twice: two go round", "LeLann77",
        ME1, within(World::new(3, 1).duplicating(), 1_000);
    "ring-wrong-suspicion": TokenRing, of "token-ring",
        "a token that was only late is made anew", "LeLann77",
        ME1, within(World::new(3, 1), 1_000);
    "ring-several-entries": TokenRing, of "token-ring",
        "several entries a visit: who asks again in time keeps the token for ever", "LeLann77",
        ME2, within(World::new(3, FOREVER), 10_000);
    "ring-one-entry": TokenRing, of "token-ring",
        "no fences: nothing else is wrong, and nobody starves", "LeLann77",
        None, within(World::new(3, FOREVER), 10_000);

    "fair-ring-deaf": FairRing, of "fair-ring",
        "the token's arrival does not advance the clock", "L78",
        ME3, within(World::new(3, 3), 100_000);
    "fair-ring-not-wiped": FairRing, of "fair-ring",
        "the stamp stays on the token on exit: everybody passes it on for ever", "L78",
        ME2, Catch::Sim { nodes: 5, relay: false, seeds: 10 };
    "fair-ring-at-sight": FairRing, of "fair-ring",
        "whoever waits goes in when the token comes, however young its request", "LeLann77",
        ME3, Catch::Sim { nodes: 5, relay: true, seeds: 100 };

    "lamport-any-order": Lamport, of "lamport",
        "channels that are not FIFO: a REPLY overtakes an older REQUEST", "L78",
        ME1, within(World::new(3, 1).any_order(), 100_000), 15;
    "lamport-without-l1": Lamport, of "lamport",
        "enters when its request is the first that it knows of", "L78 rule 5",
        ME1, within(World::new(3, 1), 1_000);
    "lamport-any-message": Lamport, of "lamport",
        "any message counts for L1, also one stamped before the request", "L78 rule 5",
        ME1, within(World::new(2, 2), 100_000);
    "lamport-no-tie-break": Lamport, of "lamport",
        "equal times are both the smallest", "L78",
        ME1, within(World::new(2, 1), 1_000);
    "lamport-reply-not-later": Lamport, of "lamport",
        "a REPLY is stamped with the time of its request, not later", "L78 rule 2",
        ME2, within(World::new(2, 1), 1_000);
    "lamport-releases-first": Lamport, of "lamport",
        "a RELEASE removes the first request of its sender; on FIFO links there is only one", "L78 rule 4",
        None, within(World::new(2, 2), 100_000);

    "ra-no-tie-break": RicartAgrawala, of "ricart-agrawala",
        "equal numbers: both reply", "RA81 §2",
        ME1, within(World::new(3, 1).any_order(), 10_000);
    "ra-deaf-clock": RicartAgrawala, of "ricart-agrawala",
        "a request does not raise the highest number seen", "RA81 §2",
        ME1, within(World::new(3, 1).any_order(), 10_000);
    "ra-counts-replies": RicartAgrawala, of "ricart-agrawala",
        "replies are counted; one arrives twice", "RA81 §2",
        ME1, within(World::new(3, 1).duplicating(), 100_000), 9;
    "ra-counts-senders": RicartAgrawala, of "ricart-agrawala",
        "distinct senders are counted, whatever request they answer; one reply arrives twice", "RA81 §2",
        ME1, within(World::new(3, 2).duplicating(), 1_000_000), 15;
    "ra-replies-inside": RicartAgrawala, of "ricart-agrawala",
        "replies while inside", "RA81 §2",
        ME1, within(World::new(3, 1).any_order(), 10_000);
    "ra-forgets-deferred": RicartAgrawala, of "ricart-agrawala",
        "whom it deferred gets no reply on exit", "RA81 §2",
        ME2, within(World::new(3, 1).any_order(), 10_000);
    "ra-silent-replies": RicartAgrawala, of "ricart-agrawala",
        "replies carry no number, as in the paper: a request known from a reply is overtaken", "RA81 §2",
        ME3, within(World::new(3, 2), 3_000_000);
    "ra-time-as-fence": RicartAgrawala, of "ricart-agrawala",
        "the fence is the number without the site: equal ones do not grow", "B06 §2.4",
        FENCES, within(World::new(3, 1).any_order(), 10_000);

    "rc-both-hold": RoucairolCarvalho, of "roucairol-carvalho",
        "both ends hold the permission at first", "CR83",
        ME1, within(World::new(3, 1), 1_000), 2;
    "rc-keeps-at-exit": RoucairolCarvalho, of "roucairol-carvalho",
        "keeps the permission that it gives away on exit", "CR83",
        ME1, within(World::new(2, 2), 1_000), 6;
    "rc-forgets-it-gave": RoucairolCarvalho, of "roucairol-carvalho",
        "keeps the permission that it gives away when asked", "CR83",
        ME1, within(World::new(2, 1), 1_000);
    "rc-does-not-ask-again": RoucairolCarvalho, of "roucairol-carvalho",
        "gives way to an older request while it waits, and does not ask again", "CR83",
        ME2, within(World::new(3, 2), 100_000), 15;
    "rc-no-tie-break": RoucairolCarvalho, of "roucairol-carvalho",
        "equal numbers: gives way; a REQUEST overtakes the permission", "CR83",
        ME1, within(World::new(3, 1).any_order(), 100_000), 10;
    "rc-no-tie-break-fifo": RoucairolCarvalho, of "roucairol-carvalho",
        "equal numbers: gives way, on FIFO links", "CR83",
        None, within(World::new(3, 1), 100_000);
    "rc-no-tie-break-copies": RoucairolCarvalho, of "roucairol-carvalho",
        "equal numbers: gives way; on FIFO links the second question is taken for a copy of the first", "CR83",
        ME2, within(World::new(3, 1), 100_000);
    "rc-gives-inside": RoucairolCarvalho, of "roucairol-carvalho",
        "gives to an older request even inside", "CR83",
        ME1, within(World::new(2, 2), 10_000);
    "rc-stamp-as-fence": RoucairolCarvalho, of "roucairol-carvalho",
        "the stamp is the fence: who re-enters raises its own clock unseen", "CR83",
        FENCES, within(World::new(2, 3), 10_000), 11;

    "maekawa-basic": Maekawa, of "maekawa",
        "no INQUIRE, FAILED and YIELD", "M85 §4",
        ME2, within(TRIANGLE, 100_000), 12;
    "maekawa-failed-by-holder": Maekawa, of "maekawa",
        "FAILED only if the holder is older", "S87",
        ME2, within(ALL, 2_000_000), 23;
    "maekawa-1985": Maekawa, of "maekawa",
        "FAILED if the holder or any queued request is older; who is overtaken is not told", "M85 §4",
        ME2, within(ALL, 2_000_000), 22;
    "maekawa-forgets-inquire": Maekawa, of "maekawa",
        "an INQUIRE that cannot be answered yet is forgotten", "M85 §4",
        ME2, within(ALL, 2_000_000), 21;
    "maekawa-inquired-for-ever": Maekawa, of "maekawa",
        "\"inquired\" is not cleared by RELEASE and YIELD", "M85 §4",
        ME2, within(ALL, 2_000_000), 22;
    "maekawa-own-yield": Maekawa, of "maekawa",
        "a grant that it yielded does not count as FAILED", "M85 §4",
        ME2, within(ALL, 2_000_000), 28;
    "maekawa-failed-and-yielded": Maekawa, of "maekawa",
        "yields if FAILED came and a YIELD was sent: nobody is the first", "M85 §4",
        ME2, within(TRIANGLE, 1_000_000);
    "maekawa-first-failed-only": Maekawa, of "maekawa",
        "yields when the first FAILED comes, and never after", "M85 §4",
        ME2, within(ALL, 2_000_000);
    "maekawa-not-put-back": Maekawa, of "maekawa",
        "a request that yielded is not put back into the queue", "M85 §4",
        ME2, within(ALL, 2_000_000), 28;
    "maekawa-no-tie-break": Maekawa, of "maekawa",
        "FAILED and INQUIRE compare times without ids", "M85 §4",
        ME2, within(TRIANGLE, 1_000_000), 15;
    "maekawa-yields-inside": Maekawa, of "maekawa",
        "yields even inside", "M85 §4",
        ME1, within(TRIANGLE, 1_000_000), 12;
    "maekawa-stale-yield": Maekawa, of "maekawa",
        "an INQUIRE that crossed the RELEASE is answered, and the arbiter believes the YIELD", "M85 §4",
        ME1, within(World::new(3, 2).quorum(Quorum::Plane), 3_000_000);
    "maekawa-disjoint": Maekawa, of "maekawa",
        "quorums that do not intersect", "M85 §2",
        ME1, within(TRIANGLE, 1_000), 8;
    "maekawa-own-fence": Maekawa, of "maekawa",
        "each site counts its own fences", "B06 §2.4",
        FENCES, within(TRIANGLE, 100_000);
    "maekawa-yields-at-once": Maekawa, of "maekawa",
        "yields to every INQUIRE at once", "S87",
        None, within(TRIANGLE, 1_000_000);
    "maekawa-failed-for-ever": Maekawa, of "maekawa",
        "a GRANT does not clear a FAILED", "S87",
        None, within(TRIANGLE, 1_000_000);
    "maekawa-unstamped-inquire": Maekawa, of "maekawa",
        "an INQUIRE is taken to be about the current request", "S87",
        None, within(World::new(2, 2).quorum(Quorum::All), 100_000);

    "sk-without-max": SuzukiKasami, of "suzuki-kasami",
        "RN[j] := n, without the max: a late request takes back a newer one", "SK85",
        ME2, within(World::new(3, 2).any_order(), 1_000_000), 17;
    "sk-idle-silent": SuzukiKasami, of "suzuki-kasami",
        "an idle holder does not answer", "SK85",
        ME2, within(World::new(3, 1), 1_000);
    "sk-deaf-inside": SuzukiKasami, of "suzuki-kasami",
        "a request that comes while it is inside is taken for outdated", "SK85",
        ME2, within(World::new(3, 1), 1_000);
    "sk-not-served": SuzukiKasami, of "suzuki-kasami",
        "LN[i] := RN[i] is forgotten on exit", "SK85",
        ME2, within(World::new(3, 2), 10_000);
    "sk-any-token": SuzukiKasami, of "suzuki-kasami",
        "a late copy of the token is taken, as in the paper", "SK85",
        ME1, within(World::new(3, 1).duplicating(), 100_000);
    "sk-answers-outdated": SuzukiKasami, of "suzuki-kasami",
        "an outdated request is answered, and the token is taken for a late copy", "SK85",
        ME2, within(World::new(3, 1).any_order(), 100_000);
    "sk-outdated-handed-on": SuzukiKasami, of "suzuki-kasami",
        "an outdated request is answered, and the token is handed on from there", "SK85",
        None, within(World::new(3, 1).any_order(), 100_000);
    "sk-lifo": CyclicSuzukiKasami, of "suzuki-kasami",
        "who asked last is served first", "SK85",
        ME2, within(World::new(3, FOREVER), 1_000_000);
    "sk-fifo": CyclicSuzukiKasami, of "suzuki-kasami",
        "numbers go round: nothing else is wrong, and nobody starves", "SK85",
        None, within(World::new(3, FOREVER), 1_000_000);

    "raymond-asked-for-ever": Raymond, of "raymond",
        "ASKED is not reset", "R89",
        ME2, within(World::new(3, 2), 10_000);
    "raymond-does-not-ask-back": Raymond, of "raymond",
        "hands the token on although others wait behind it, and does not ask for it back", "R89",
        ME2, within(World::new(3, 1), 10_000);
    "raymond-gives-inside": Raymond, of "raymond",
        "hands the token on while inside", "R89",
        ME1, within(World::new(3, 1), 1_000);

    "naimi-forwards-only": NaimiTrehel, of "naimi-trehel",
        "only the root takes the requester for father: paths stay long", "NT96",
        None, within(World::new(3, 2), 100_000);
    "naimi-stays-root": NaimiTrehel, of "naimi-trehel",
        "the root does not take the requester for father, and forgets it for the next one", "NT96",
        ME2, within(World::new(3, 1), 10_000);
    "naimi-gives-inside": NaimiTrehel, of "naimi-trehel",
        "gives the token away while inside", "NT96",
        ME1, within(World::new(3, 1), 1_000);
}
