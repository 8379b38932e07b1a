//! What each algorithm does not survive, with a seed that shows it; and what it does.

use crate::support::{MS, assert_served, broke, names, reports, run, scenario};
use conclave_algorithms::mutex::CARDS;
use conclave_kernel::{NodeId, Ratio, Verdict};
use conclave_lab::problems::mutex::{Scenario, Workload};
use conclave_sim::{Delay, Fault, Order};

fn crash(text: &str) -> Fault {
    Fault::parse_crash(text).expect("a crash")
}

/// \[L78\] needs FIFO: on other channels a reply overtakes an older request (ME1), and a release its own request,
/// which then stays at the head for ever (ME2).
#[test]
fn lamport_over_channels_that_reorder_breaks_me1_and_me2() {
    for algorithm in ["lamport", "lamport-omission"] {
        let mut reordered = scenario(algorithm, 3, Workload::Relay).with(|work| work.entries = 60);
        reordered.world.delay = Delay::Uniform(MS / 1000, 5 * MS);
        reordered.world.order = Order::Any;
        let runs = reports(0..100, &reordered, |scenario| scenario);
        for property in ["ME1", "ME1-causal", "ME2"] {
            let shown = runs.iter().find(|report| broke(report, property));
            let shown = shown.unwrap_or_else(|| panic!("{algorithm} kept {property} in 100 runs"));
            assert!(!shown.facts.passed());
            assert_eq!(shown.facts.properties[property], Verdict::Violated);
        }
        let in_order = reports(0..100, &reordered, |mut scenario| {
            scenario.world.order = Order::Fifo;
            scenario
        });
        assert!(
            in_order.iter().all(|report| report.facts.passed() && report.entries == 60),
            "{algorithm} with FIFO"
        );
    }
}

/// Judging ME1 causally finds what overlap misses: some run breaks the one and not the other, never the reverse.
#[test]
fn the_causal_verdict_catches_more_than_overlap() {
    let mut reordered = scenario("lamport", 3, Workload::Pair).with(|work| work.entries = 60);
    reordered.world.delay = Delay::Uniform(MS / 1000, 5 * MS);
    reordered.world.order = Order::Any;
    reordered.work.cs = MS / 100;
    let runs = reports(0..100, &reordered, |scenario| scenario);
    let overlapping = runs.iter().filter(|report| broke(report, "ME1")).count();
    let causal = runs.iter().filter(|report| broke(report, "ME1-causal")).count();
    assert!(runs.iter().all(|report| !broke(report, "ME1") || broke(report, "ME1-causal")));
    assert!(causal > overlapping, "causal {causal}, overlap {overlapping}");
}

#[test]
fn nobody_survives_loss() {
    for algorithm in names() {
        let mut lossy = scenario(algorithm, 5, Workload::High).with(|work| work.entries = 300);
        lossy.world.loss = Ratio::percent(5);
        let runs = reports(0..20, &lossy, |scenario| scenario);
        assert!(runs.iter().all(|report| report.facts.ledger.lost > 0), "{algorithm}: nothing was lost");
        assert!(runs.iter().any(|report| broke(report, "ME2")), "{algorithm} survived every loss");
        // Lamport's L1 takes any later message for a sign that nothing older is on its way.
        let may_err = algorithm.starts_with("lamport");
        assert!(may_err || runs.iter().all(|report| !broke(report, "ME1")), "loss makes {algorithm} wait");
    }
}

/// The same, and for the same reason: the link's checksum turns damage into loss.
#[test]
fn nobody_survives_corruption() {
    for algorithm in names() {
        let mut damaged = scenario(algorithm, 5, Workload::High).with(|work| work.entries = 100);
        damaged.world.corrupt = Ratio::percent(5);
        let runs = reports(0..20, &damaged, |scenario| scenario);
        assert!(
            runs.iter().all(|report| report.facts.ledger.corrupted > 0),
            "{algorithm}: nothing was damaged"
        );
        assert!(runs.iter().any(|report| broke(report, "ME2")), "{algorithm} survived all damage");
    }
}

#[test]
fn duplicates_are_harmless_where_the_card_says_so() {
    for card in CARDS.iter().filter(|card| !card.needs.no_duplication) {
        let mut doubled = scenario(card.name, 5, Workload::High).with(|work| work.entries = 100);
        doubled.world.delay = Delay::Exponential(MS);
        doubled.world.order = Order::Any;
        doubled.world.duplicate = Ratio::percent(20);
        for report in reports(0..50, &doubled, |scenario| scenario) {
            assert!(report.facts.ledger.duplicated > 0);
            assert_served(&report, 100);
        }
    }
}

/// Two tokens, two inside, or two grants with one fence; of Lamport's, a copy of a request that comes after its
/// release. Few entries: tokens that breed would soon fill the ring.
#[test]
fn a_duplicate_is_fatal_where_the_card_needs_none() {
    for card in CARDS.iter().filter(|card| card.needs.no_duplication) {
        let mut doubled = scenario(card.name, 5, Workload::High).with(|work| work.entries = 20);
        doubled.world.delay = Delay::Exponential(MS);
        doubled.world.duplicate = Ratio::percent(10);
        let mut runs = (0..60).map(|seed| {
            doubled.world.seed = seed;
            run(&doubled)
        });
        assert!(runs.any(|report| !report.facts.passed()), "{} survived every duplicate", card.name);
    }
}

#[test]
fn the_rings_die_with_one_crash() {
    for algorithm in ["token-ring", "fair-ring"] {
        for victim in 0..5 {
            for load in [Workload::Low, Workload::High] {
                let mut ring = scenario(algorithm, 5, load).with(|work| work.entries = 100);
                ring.world.faults = vec![crash(&format!("{victim}@20ms"))];
                let report = run(&ring);
                assert!(broke(&report, "ME2"), "{algorithm} outlived n{victim}: {}", report.facts.command);
                assert_eq!(report.facts.ledger.crashes, 1);
            }
        }
    }
}

#[test]
fn central_survives_the_crash_of_an_idle_client_and_of_nobody_else() {
    // Site 0 asks first, and is inside until 1ms; site 4 asks last: it is idle when it dies.
    let mut idle = scenario("central", 5, Workload::Low).with(|work| work.entries = 100);
    idle.world.faults = vec![crash("4@1500us")];
    let report = run(&idle);
    assert_served(&report, 100);
    assert_eq!((report.facts.ledger.crashes, report.entries_per_site.1), (1, 0), "n4 never entered");
    assert!(report.facts.ledger.missed == 0, "nobody spoke to the dead");

    idle.world.faults = vec![crash("0@1500us")];
    assert!(broke(&run(&idle), "ME2"), "the coordinator died, and there is no election yet");

    // Everybody asks at once; site 2 is somewhere in the queue when it dies.
    let mut waiting = scenario("central", 5, Workload::High).with(|work| work.entries = 100);
    waiting.world.faults = vec![crash("2@3ms")];
    assert!(broke(&run(&waiting), "ME2"), "the grant went to a dead client");
}

#[test]
fn maekawa_survives_the_crash_of_a_site_in_no_needed_quorum() {
    let quorums = conclave_algorithms::quorum::Quorum::Plane.quorums(7).expect("the Fano plane");
    let victim = NodeId(6);
    let (needing, able): (Vec<_>, Vec<_>) =
        (0..7).map(NodeId).partition(|site| quorums[site.index()].contains(victim));
    assert_eq!((needing.len(), able.len()), (3, 4), "in a plane everybody is in K quorums");
    let run_of = |sites: &[NodeId]| {
        let requests = (0..40u32).map(|turn| (10 * MS * (turn + 1), sites[turn as usize % sites.len()]));
        let mut script = scenario("maekawa", 7, Workload::Script(requests.collect()));
        script.world.faults = vec![crash("6@5ms")];
        run(&script)
    };
    assert_served(&run_of(&able), 40);
    let living: Vec<_> = needing.into_iter().filter(|site| *site != victim).collect();
    assert!(broke(&run_of(&living), "ME2"), "who needs the dead site's permission waits for ever");
}

/// A run goes on after the death of a site in whose turn it would be; the dead are passed over, not waited for.
#[test]
fn a_death_does_not_end_the_work_of_the_living() {
    for algorithm in ["suzuki-kasami", "raymond", "naimi-trehel"] {
        let mut low = scenario(algorithm, 7, Workload::Low).with(|work| work.entries = 60);
        // A leaf, nobody's father, before it ever asked.
        low.world.faults = vec![crash("6@500us")];
        assert_served(&run(&low), 60);
    }
}

/// A site that was down while nothing was said to it comes back and takes part again.
#[test]
fn an_idle_site_comes_back_and_takes_its_turns() {
    for recovery in ["4@1500us..40ms", "4@1500us..40ms,amnesia"] {
        let mut low = scenario("central", 5, Workload::Low).with(|work| work.entries = 100);
        low.world.faults = vec![crash(recovery)];
        let report = run(&low);
        assert_served(&report, 100);
        assert_eq!(report.facts.ledger.recoveries, 1);
        assert!(report.entries_per_site.1 > 10, "n4 has its turns after it is back: {recovery}");
    }
}

/// The metrics survive a death inside: the living are still measured.
#[test]
fn a_death_inside_leaves_the_meters_right() {
    // Site 1 enters at 4ms (2T after the first left and all was quiet) and dies inside; recovery lets it leave.
    let requests = vec![(MS, NodeId(1)), (50 * MS, NodeId(2)), (90 * MS, NodeId(3))];
    let mut script = scenario("central", 5, Workload::Script(requests));
    script.work.cs = 10 * MS;
    script.world.faults = vec![crash("1@5ms..20ms")];
    let report = run(&script);
    assert!(report.facts.passed(), "{:?}", report.facts.violations);
    assert_eq!(report.entries, 3);
    let alone = report.client_delay.expect("each asked with nobody inside or waiting");
    assert_eq!((alone.count, alone.min_ns, alone.max_ns), (3, 2_000_000, 2_000_000));
}

#[test]
fn a_fault_that_was_asked_for_and_never_struck_fails_the_run() {
    let mut late = scenario("central", 5, Workload::Low);
    late.world.faults = vec![crash("4@1h")];
    let ring = Scenario { algorithm: "token-ring".into(), ..late };
    let report = run(&ring);
    assert!(!report.facts.passed() && report.facts.violations.is_empty());
    assert_eq!(report.facts.ledger.unfired, ["--crash 4@3600s"]);
}

#[test]
fn a_partition_that_holds_delays_and_one_that_drops_starves() {
    for algorithm in names() {
        let mut cut = scenario(algorithm, 5, Workload::High).with(|work| work.entries = 60);
        cut.world.faults = vec![Fault::parse_partition("0+1@10ms..200ms").expect("a cut")];
        let held = run(&cut);
        assert_served(&held, 60);
        assert_eq!(held.facts.ledger.partitions, 1);
        cut.world.faults = vec![Fault::parse_partition("0+1@10ms..200ms,drop").expect("a cut")];
        let dropped = run(&cut);
        assert!(dropped.facts.ledger.cut > 0 && broke(&dropped, "ME2"), "{algorithm} survived a loss");
    }
}
