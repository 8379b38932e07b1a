//! Every formula of every card, measured at constant delay: exact where the formula is exact, within its range
//! elsewhere.

use crate::support::{MS, SIZES, T, assert_served, card, names, reports, run, scenario};
use conclave_algorithms::mutex::CARDS;
use conclave_algorithms::quorum::Quorum;
use conclave_kernel::{Load, Measure, NodeId, Prng};
use conclave_lab::problems::mutex::compare;
use conclave_lab::problems::mutex::{Delays, Report, Scenario, Workload, size_at};
use conclave_sim::{Delay, Order};

/// A run that did what was asked of it.
fn measured(scenario: &Scenario) -> Report {
    let report = run(scenario);
    assert_served(&report, scenario.work.entries);
    report
}

/// What every entry cost, demanded to be the same for all.
#[track_caller]
fn assert_every_entry_costs(report: &Report, messages: u32) {
    let extremes = (report.messages_per_entry_min, report.messages_per_entry_max);
    let context = format!("{} at N = {}, load {}", report.facts.algorithm, report.facts.nodes, report.load);
    assert_eq!(extremes, (u64::from(messages), u64::from(messages)), "{context}");
    assert_eq!(report.messages_per_entry, f64::from(messages), "{context}");
}

#[track_caller]
fn assert_always(delays: Option<Delays>, ns: f64, context: &str) {
    let delays = delays.unwrap_or_else(|| panic!("{context}: nothing was measured"));
    assert_eq!((delays.min_ns as f64, delays.mean_ns, delays.max_ns as f64), (ns, ns, ns), "{context}");
}

/// \[RA81 §4\] 2(N-1), at any load; N if a multicast counts as one message.
#[test]
fn ricart_agrawala_takes_2_n_minus_1_messages_at_any_load() {
    for nodes in SIZES {
        for load in [Workload::Low, Workload::Pair, Workload::High] {
            let report = measured(&scenario("ricart-agrawala", nodes, load));
            assert_every_entry_costs(&report, 2 * (nodes - 1));
            assert_eq!(report.multicasts_per_entry, f64::from(nodes), "one REQUEST to all, N-1 replies");
        }
    }
}

/// \[L78\] REQUEST, REPLY and RELEASE with every other site.
#[test]
fn lamport_takes_3_n_minus_1_messages_at_any_load() {
    for nodes in SIZES {
        for load in [Workload::Low, Workload::Pair, Workload::High] {
            let report = measured(&scenario("lamport", nodes, load));
            assert_every_entry_costs(&report, 3 * (nodes - 1));
            let others = f64::from(nodes - 1);
            assert_eq!((report.messages_to_enter, report.messages_to_exit), (2.0 * others, others));
        }
    }
}

#[test]
fn lamport_without_needless_replies_saves_some_under_contention_and_none_without() {
    for nodes in SIZES {
        assert_every_entry_costs(
            &measured(&scenario("lamport-omission", nodes, Workload::Low)),
            3 * (nodes - 1),
        );
        let high = measured(&scenario("lamport-omission", nodes, Workload::High));
        let (least, most) = (2 * u64::from(nodes - 1), 3 * u64::from(nodes - 1));
        assert!(high.messages_per_entry_min >= least && high.messages_per_entry_max <= most);
        assert!(high.messages_per_entry < most as f64, "N = {nodes}: no reply was omitted");
    }
}

/// Two to enter, one to leave; the coordinator talks to itself. With sites in turn the mean is 3(N-1)/N.
#[test]
fn central_takes_3_messages_and_none_for_the_coordinator() {
    for nodes in SIZES {
        for load in [Workload::Low, Workload::High] {
            let report = measured(&scenario("central", nodes, load));
            assert_eq!((report.messages_per_entry_min, report.messages_per_entry_max), (0, 3));
            let clients = report.entries as f64 * f64::from(nodes - 1) / f64::from(nodes);
            assert_eq!(report.facts.messages as f64, 3.0 * clients, "N = {nodes}, load {}", report.load);
            assert_eq!(report.messages_to_enter, 2.0 * report.messages_to_exit);
        }
        let only_clients = (1..nodes).map(|site| (10 * MS * site, NodeId(site))).collect();
        let only_clients = scenario("central", nodes, Workload::Script(only_clients))
            .with(|work| work.entries = u64::from(nodes - 1));
        assert_every_entry_costs(&measured(&only_clients), 3);
    }
}

/// \[SK85\] N-1 requests and the token; nothing if the token is here.
#[test]
fn suzuki_kasami_takes_n_messages_or_none() {
    for nodes in SIZES {
        for load in [Workload::Low, Workload::High] {
            let report = measured(&scenario("suzuki-kasami", nodes, load));
            assert_eq!((report.messages_per_entry_min, report.messages_per_entry_max), (0, nodes.into()));
            // The token is at site 0 when it all begins: only the first entry is free.
            assert_eq!(report.facts.messages, u64::from(nodes) * (report.entries - 1));
        }
        let again = vec![(MS, NodeId(0)), (9 * MS, NodeId(0))];
        let again = scenario("suzuki-kasami", nodes, Workload::Script(again)).with(|work| work.entries = 2);
        assert_every_entry_costs(&measured(&again), 0);
    }
}

/// \[M85 §4\] REQUEST, GRANT and RELEASE with every other member of the quorum.
#[test]
fn maekawa_takes_3_k_minus_1_messages_when_nobody_contends() {
    for nodes in SIZES {
        for quorum in Quorum::EVERY {
            let low = scenario("maekawa", nodes, Workload::Low).with(|work| work.quorum = Some(quorum));
            if quorum.quorums(nodes).is_err() {
                assert_eq!((quorum, nodes), (Quorum::Plane, 9), "only this one of the sizes has no plane");
                continue;
            }
            let report = measured(&low);
            let quorums = quorum.quorums(nodes).expect("just asked");
            // A grid with a short last row has quorums of several sizes: every site pays for its own.
            let costs = || quorums.iter().map(|quorum| 3 * (quorum.len() as u64 - 1));
            assert_eq!(
                report.facts.messages,
                4 * costs().sum::<u64>(),
                "{quorum} at N = {nodes}, four rounds"
            );
            let extremes = (report.messages_per_entry_min, report.messages_per_entry_max);
            assert_eq!(Some(extremes), costs().min().zip(costs().max()), "{quorum} at N = {nodes}");
            if quorum != Quorum::Grid || nodes == 9 {
                assert_every_entry_costs(&report, 3 * (report.quorum_size.expect("it has quorums") - 1));
            }
            for kind in ["FAILED", "INQUIRE", "YIELD"] {
                assert!(!report.messages_by_kind.contains_key(kind), "{kind} without contention");
            }
        }
    }
}

/// FACTS C2: 7(K-1) amortised with Sanders' correction, over delays and orders of all kinds.
#[test]
fn maekawa_stays_within_its_corrected_bound_at_high_load() {
    let mut dearest = 0.0_f64;
    for nodes in SIZES {
        let k = f64::from(size_at("maekawa", nodes).expect("maekawa exists").quorum_max);
        let constant = measured(&scenario("maekawa", nodes, Workload::High)).messages_per_entry;
        assert!((3.0 * (k - 1.0)..=7.0 * (k - 1.0)).contains(&constant), "N = {nodes}: {constant}");
        let mut wild = scenario("maekawa", nodes, Workload::High);
        wild.world.delay = Delay::Exponential(MS);
        wild.world.order = Order::Any;
        for report in reports(0..10, &wild, |scenario| scenario) {
            assert_served(&report, wild.work.entries);
            let mean = report.messages_per_entry / (k - 1.0);
            assert!((3.0..=7.0).contains(&mean), "{mean} (K-1) at N = {nodes}\n{}", report.facts.command);
            dearest = dearest.max(mean);
        }
    }
    assert!(dearest > 4.0, "the bound was never put to the test: at most {dearest} (K-1)");
}

/// FACTS C2: N = K = 3, one entry each: 18 to 31 messages over all executions.
#[test]
fn three_maekawa_contenders_with_all_in_one_quorum_take_18_to_31_messages() {
    let mut wild = scenario("maekawa", 3, Workload::Low).with(|work| {
        work.quorum = Some(Quorum::All);
        work.cs = MS / 10;
    });
    wild.world.delay = Delay::Exponential(MS);
    wild.world.order = Order::Any;
    let anytime = |mut scenario: Scenario| {
        let mut dice = Prng::new(scenario.world.seed);
        let requests = (0..3).map(|site| (MS * dice.below(6) as u32, NodeId(site))).collect();
        scenario.work.load = Workload::Script(requests);
        scenario
    };
    let counts: Vec<u64> = reports(0..5_000, &wild, anytime)
        .iter()
        .inspect(|report| assert_served(report, 3))
        .map(|report| report.facts.messages)
        .collect();
    let (least, most) = (*counts.iter().min().expect("runs"), *counts.iter().max().expect("runs"));
    assert!(least >= 18 && most <= 31, "{least} to {most}");
    assert!(least == 18 && most >= 25, "hardly anything was explored: {least} to {most}");
}

/// One hop from one site to the next; N+1 to find the oldest, come round and move on (FACTS C5).
#[test]
fn saturated_rings_take_1_and_n_plus_1_messages() {
    for nodes in SIZES {
        let plain = measured(&scenario("token-ring", nodes, Workload::High));
        // Hops without an entry only before the first and among the last, who do not ask again.
        let idle_hops = plain.facts.messages - (plain.entries - 1);
        assert!(idle_hops <= u64::from(nodes), "N = {nodes}: {idle_hops}");
        let saturated =
            scenario("token-ring", nodes, Workload::High).with(|work| work.entries = 300 * u64::from(nodes));
        assert!(measured(&saturated).messages_per_entry < 1.005, "N = {nodes}");
        let fair = measured(&scenario("fair-ring", nodes, Workload::High));
        let per_entry = f64::from(nodes + 1);
        assert!((fair.messages_per_entry - per_entry).abs() <= per_entry / 10.0, "N = {nodes}");
        assert!(fair.messages_per_entry_max < 2 * u64::from(nodes), "N = {nodes}");
    }
}

/// \[R89 §4\] About four at high load. \[NT96\] O(log N) on average.
#[test]
fn trees_take_few_messages_at_any_size() {
    for nodes in [31, 57, 127, 511] {
        let log = f64::from(nodes).log2();
        let raymond = measured(&scenario("raymond", nodes, Workload::High));
        assert!(raymond.messages_per_entry <= 4.0, "N = {nodes}: {}", raymond.messages_per_entry);
        for algorithm in ["raymond", "naimi-trehel"] {
            let mut random = scenario(algorithm, nodes, Workload::Poisson { mean: MS * 4 * nodes });
            random.work.entries = 2_000;
            let report = measured(&random);
            let most = if algorithm == "raymond" { 4.0 * log } else { 2.0 * log };
            assert!(report.messages_per_entry <= most, "{algorithm} at N = {nodes}: {report:?}");
        }
    }
}

/// What is not exact lies in the card's range: entry by entry where messages have an account, on average where
/// they serve everybody.
#[test]
fn messages_lie_in_the_range_of_the_card() {
    for card in CARDS {
        for nodes in [1, 2].into_iter().chain(SIZES) {
            for (load, work) in [(Load::Low, Workload::Low), (Load::High, Workload::High)] {
                let report = measured(&scenario(card.name, nodes, work));
                let cost = card.cost(Measure::MessagesPerEntry, load).expect("the card says what it costs");
                let (min, max) = (cost.range)(size_at(card.name, nodes).expect("it exists"));
                let context =
                    format!("{} at N = {nodes}, {load:?}: {} {min}..{max}", card.name, cost.formula);
                // The first and the last hops of a token serve nobody.
                let rounding = if card.idle_traffic { f64::from(nodes) / report.entries as f64 } else { 0.0 };
                assert!(
                    report.messages_per_entry <= max + rounding,
                    "{context}: {}",
                    report.messages_per_entry
                );
                assert!(min <= report.messages_per_entry + 0.5, "{context}: {}", report.messages_per_entry);
                let amortised = ["maekawa", "raymond", "token-ring", "fair-ring"].contains(&card.name);
                if !amortised || load == Load::Low {
                    assert!(report.messages_per_entry_max as f64 <= max, "{context}");
                }
            }
        }
    }
}

/// The synchronisation delays of the cards: central 2T, Lamport 2T, Ricart-Agrawala 2T, Maekawa 2T,
/// Suzuki-Kasami 0 or 2T, ring 0..N hops.
#[test]
fn client_delays_are_those_of_the_book() {
    for nodes in SIZES {
        for algorithm in ["lamport", "lamport-omission", "ricart-agrawala", "maekawa"] {
            let report = measured(&scenario(algorithm, nodes, Workload::Low));
            assert_always(report.client_delay, 2.0 * T, &format!("{algorithm} at N = {nodes}"));
        }
        for algorithm in ["central", "suzuki-kasami", "roucairol-carvalho"] {
            let delays = measured(&scenario(algorithm, nodes, Workload::Low)).client_delay.expect("measured");
            assert_eq!((delays.min_ns, delays.max_ns), (0, 2_000_000), "{algorithm} at N = {nodes}");
            let free = match algorithm {
                "central" => 1.0 / f64::from(nodes),
                _ => 1.0 / delays.count as f64,
            };
            let mean = 2.0 * T * (1.0 - free);
            assert!((delays.mean_ns - mean).abs() < 1.0, "{algorithm} at N = {nodes}: {}", delays.mean_ns);
        }
        let longer = scenario("token-ring", nodes, Workload::Low).with(|work| work.entries = 600);
        let ring = measured(&longer).client_delay.expect("measured");
        assert!(ring.max_ns as f64 <= f64::from(nodes) * T, "0 to N hops");
        let half = f64::from(nodes) / 2.0 * T;
        assert!((ring.mean_ns - half).abs() <= half / 5.0, "N/2 hops on average, at N = {nodes}");
    }
}

/// Exit to next entry with exactly one waiting, whose request has arrived everywhere.
#[test]
fn sync_delays_are_those_of_the_card() {
    for nodes in SIZES {
        for card in CARDS {
            let row = compare::row(card, &scenario(card.name, nodes, Workload::Low), nodes).expect("valid");
            assert!(row.passed());
            let context = format!("{} at N = {nodes}", card.name);
            let one = row.pair.sync_delay_one_waiting.expect("in every pair one waits");
            let cost = card.cost(Measure::SyncDelay, Load::High).expect("the card says so");
            let (min, max) = (cost.range)(size_at(card.name, nodes).expect("it exists"));
            assert!(one.min_ns as f64 >= min * T && one.max_ns as f64 <= max * T, "{context}: {one:?}");
            match card.name {
                "lamport" | "lamport-omission" | "ricart-agrawala" | "roucairol-carvalho"
                | "suzuki-kasami" | "naimi-trehel" => assert_always(Some(one), T, &context),
                "central" | "maekawa" => {
                    assert!(one.min_ns as f64 == T || one.min_ns as f64 == 2.0 * T, "{context}: {one:?}");
                    // In the triangle the common arbiter is always one of the two.
                    let most = if (card.name, nodes) == ("maekawa", 3) { T } else { 2.0 * T };
                    assert!(one.max_ns as f64 == most, "{context}: {one:?}");
                }
                _ => {}
            }
        }
    }
}

/// With every site always asking, from one exit to the next entry.
#[test]
fn sync_delays_at_high_load_are_those_of_the_card() {
    for nodes in SIZES {
        for algorithm in ["lamport", "lamport-omission", "ricart-agrawala", "roucairol-carvalho"] {
            let delays = measured(&scenario(algorithm, nodes, Workload::High)).sync_delay_high_load;
            assert_always(delays, T, &format!("{algorithm} at N = {nodes}"));
        }
        for algorithm in ["suzuki-kasami", "naimi-trehel", "token-ring"] {
            let delays = measured(&scenario(algorithm, nodes, Workload::High)).sync_delay_high_load;
            assert_always(delays, T, &format!("{algorithm} at N = {nodes}"));
        }
        for (algorithm, most) in [("central", 2.0), ("maekawa", 2.0)] {
            let delays = measured(&scenario(algorithm, nodes, Workload::High)).sync_delay_high_load;
            let delays = delays.expect("somebody always waits");
            assert!(delays.min_ns as f64 >= T && delays.max_ns as f64 <= most * T, "{algorithm}: {delays:?}");
        }
    }
}

/// Throughput is 1/(SD+E) where the synchronisation delay is constant.
#[test]
fn throughput_is_one_over_sync_delay_and_section() {
    for algorithm in ["lamport", "ricart-agrawala", "suzuki-kasami", "naimi-trehel", "token-ring"] {
        for section in [MS, 4 * MS] {
            let mut long = scenario(algorithm, 7, Workload::High);
            (long.work.entries, long.work.cs) = (2_000, section);
            let report = measured(&long);
            let expected = 1.0 / (MS + section).as_secs_f64();
            let off = (report.throughput_per_s / expected - 1.0).abs();
            assert!(off < 0.005, "{algorithm}: {} instead of {expected}", report.throughput_per_s);
        }
    }
}

/// Request sent until the section is over: client delay and E when alone.
#[test]
fn response_time_is_client_delay_and_section_when_alone() {
    for algorithm in ["lamport", "ricart-agrawala", "maekawa"] {
        let alone = scenario(algorithm, 7, Workload::Low).with(|work| work.cs = 5 * MS);
        assert_always(measured(&alone).response_time, 7.0 * T, algorithm);
    }
}

#[test]
fn a_lone_site_enters_at_once_for_nothing() {
    for algorithm in names() {
        for load in [Workload::Low, Workload::High, Workload::Poisson { mean: MS }] {
            let report = measured(&scenario(algorithm, 1, load));
            assert_eq!(report.facts.messages, 0, "{algorithm}");
            if let Some(delays) = report.client_delay {
                assert_eq!(delays.max_ns, 0, "{algorithm}");
            }
        }
        let ranges =
            card(algorithm).costs.iter().map(|cost| (cost.range)(size_at(algorithm, 1).expect("exists")));
        assert!(ranges.into_iter().all(|range| range == (0.0, 0.0)), "{algorithm}: the card at N = 1");
    }
}
