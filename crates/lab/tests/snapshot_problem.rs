//! The snapshot problem: what the cards promise holds, what they need is needed, and what pictures are for
//! works.

use std::time::Duration;

use conclave_algorithms::snapshot::bank::Bank;
use conclave_algorithms::snapshot::cut;
use conclave_algorithms::snapshot::{ChandyLamport, LaiYang};
use conclave_check::{Options, Order as CheckOrder, Verdict, check};
use conclave_lab::log;
use conclave_lab::problem::{Recorder, Report as _, run};
use conclave_lab::problems::snapshot::{App, Report, Scenario, Transfers, compare};
use conclave_sim::Order;

fn scenario(algorithm: &str, app: App, seed: u64, order: Order) -> Scenario {
    let mut scenario = Scenario::of(algorithm).with(|work| work.app = app);
    scenario.world.seed = seed;
    scenario.world.order = order;
    scenario.world.nodes = 4;
    scenario.world.delay = "exponential:1ms".parse().expect("a delay");
    scenario.work.snapshots =
        ["0@5ms", "1+3@6ms", "2@6ms", "0+1+2+3@90ms"].map(|shot| shot.parse().expect("a snapshot")).to_vec();
    scenario
}

fn assert_clean(report: &Report, what: &str) {
    assert_eq!(report.facts().violations, [], "{what}: {}", report.facts().command);
    assert_eq!(report.snapshots.len(), 4, "{what}");
    assert!(report.snapshots.iter().all(|shown| shown.turnaround_ns.is_some()), "{what}");
}

#[test]
fn every_promise_holds_on_the_channels_that_an_algorithm_needs() {
    for seed in 0..60 {
        for app in [App::Bank, App::Work, App::Heap] {
            let report = run(&scenario("chandy-lamport", app, seed, Order::Fifo)).unwrap();
            assert_clean(&report, "chandy-lamport");
            let report = run(&scenario("lai-yang", app, seed, Order::Any)).unwrap();
            assert_clean(&report, "lai-yang");
        }
    }
}

/// FACTS: 494 of 500 runs wrong without FIFO.
#[test]
fn without_fifo_nearly_every_picture_of_chandy_lamport_is_wrong() {
    let wrong = |seed| !run(&scenario("chandy-lamport", App::Bank, seed, Order::Any)).unwrap().facts.passed();
    let wrong = (0..100).filter(|seed| wrong(*seed)).count();
    assert!(wrong >= 90, "only {wrong} of 100");
}

#[test]
fn swarms_find_nothing() {
    for seed in 0..40 {
        for algorithm in ["chandy-lamport", "lai-yang"] {
            let scenario = scenario(algorithm, App::Bank, seed, Order::Fifo).swarmed();
            let report = run(&scenario).unwrap();
            assert_eq!(report.facts.violations, [], "{}", report.facts.command);
        }
    }
}

#[test]
fn what_is_measured_is_what_the_card_says() {
    let base = Scenario::default();
    for nodes in [1, 2, 3, 5, 9] {
        for card in compare::cards() {
            let row = compare::row(card, &base, nodes).unwrap();
            let n = f64::from(nodes);
            assert_eq!(row.one.messages_per_snapshot, 2.0 * n * (n - 1.0), "{} at {nodes}", card.name);
            assert_eq!(row.all.messages_per_snapshot, 2.0 * n * (n - 1.0), "{} at {nodes}", card.name);
            let turnaround = |report: &Report| report.snapshots[0].turnaround_ns.unwrap() / 1_000_000;
            let expected = if nodes == 1 { (0, 0) } else { (3, 2) };
            assert_eq!((turnaround(&row.one), turnaround(&row.all)), expected, "{} at {nodes}", card.name);
        }
    }
}

#[test]
fn termination_is_seen_after_the_end_and_garbage_is_found() {
    let few = scenario("lai-yang", App::Work, 1, Order::Any).with(|work| {
        work.acts = 10;
        work.gap = Duration::from_millis(1);
    });
    let report = run(&few).unwrap();
    let shows = |report: &Report, shot: usize| report.snapshots[shot].stable.clone();
    assert_eq!((shows(&report, 0), shows(&report, 3)), (vec![], vec!["terminated".to_owned()]));
    let report = run(&scenario("chandy-lamport", App::Heap, 1, Order::Fifo)).unwrap();
    let (early, late) = (shows(&report, 0), shows(&report, 3));
    assert!(!late.is_empty() && early.iter().all(|object| late.contains(object)), "{early:?} {late:?}");
}

#[test]
fn every_execution_of_two_sites_is_right_on_the_channels_that_an_algorithm_needs() {
    let with = |order| Options { order, ..Options::default() };
    let report = check(&Transfers::<ChandyLamport<Bank>>::new(2, 2), &with(CheckOrder::Fifo)).unwrap();
    assert_eq!((report.verdict, report.property), (Verdict::Holds, None));
    assert!(report.sometimes.iter().all(|it| it.seen), "{:?}", report.sometimes);
    let report = check(&Transfers::<LaiYang<Bank>>::new(2, 2), &with(CheckOrder::Any)).unwrap();
    assert_eq!((report.verdict, report.property), (Verdict::Holds, None));
    let report = check(&Transfers::<ChandyLamport<Bank>>::new(2, 1), &with(CheckOrder::Any)).unwrap();
    assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("conserved")));
    let steps = report.counterexample.map(|counterexample| counterexample.steps);
    assert_eq!(steps, Some(5));
}

/// \[CL85 §3.3\]: the run, reordered, passes through the picture: the cut is consistent, what is on its way
/// across it is what the channels hold, and every event still follows what it depends on.
#[test]
fn the_equivalent_execution_passes_through_the_picture() {
    for (algorithm, order) in [("chandy-lamport", Order::Fifo), ("lai-yang", Order::Any)] {
        let scenario = scenario(algorithm, App::Bank, 3, order);
        let mut recorder = Recorder::new(false, true);
        let report = scenario.run(&mut recorder).unwrap();
        let log = recorder.log.expect("it was asked for");
        for shown in &report.snapshots {
            let cut = log.snapshot(shown.id.0).expect("everybody recorded");
            let judgement = cut::judge(&log.run(), &cut).unwrap();
            assert!(judgement.is_consistent(), "{algorithm}");
            let messages = log.run_messages();
            let kind = |index: &&usize| log.kind(log.messages()[messages[**index]].text) == "app";
            let on_the_way = judgement.in_transit.iter().filter(kind).count();
            let recorded: usize = shown.channels.iter().map(|channel| channel.messages.len()).sum();
            assert_eq!(on_the_way, recorded, "{algorithm}, snapshot {}", shown.id);
            let (events, length) = log.through(&cut);
            assert_eq!(length as u32, cut.0.iter().sum::<u32>());
            let shown = shown.equivalent.as_ref().expect("the run is small");
            assert_eq!((&shown.events, shown.recorded_after), (&events, length), "{algorithm}");
            let mut place = vec![0; events.len()];
            events.iter().enumerate().for_each(|(index, event)| place[*event] = index);
            for message in log.messages() {
                if let log::Fate::Received(event) = message.fate {
                    assert!(place[message.sent_by as usize] < place[event as usize]);
                }
            }
        }
    }
}
