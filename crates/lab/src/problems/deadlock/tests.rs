use conclave_algorithms::deadlock::site::{Out, Part};
use conclave_algorithms::deadlock::underlying::Underlying;
use conclave_algorithms::deadlock::{self, DETECTORS, EdgeChasing, Model, locking, spec};
use conclave_kernel::{Card, Load, Measure, Never, NodeId, Size};
use conclave_sim::Delay;
use serde::{Deserialize, Serialize};

use super::*;
use crate::problem;

/// A run of that seed: two to seven sites, wild delays, found only or resolved.
fn scenario(card: &Card, seed: u64) -> Scenario {
    let mut scenario = Scenario::of(card.name).with(|work| work.requests = 30);
    scenario.world.nodes = 2 + (seed % 6) as u32;
    scenario.world.seed = seed;
    scenario.world.delay = Delay::Exponential(std::time::Duration::from_millis(1 + seed % 3));
    scenario.work.detect_only = seed.is_multiple_of(2);
    scenario
}

/// Histories of one detector: how many deadlocks there were, and how many runs broke each property.
fn histories(card: &Card, seeds: std::ops::Range<u64>) -> (u64, Vec<(String, u64)>) {
    let mut broken: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
    let mut deadlocks = 0;
    for seed in seeds {
        let scenario = scenario(card, seed);
        let Report::Detected(report) = problem::run(&scenario).expect("a sound scenario") else {
            panic!("{} is a detector", card.name);
        };
        deadlocks += report.deadlocks;
        let most = most_messages(card, scenario.world.nodes) * report.requests as f64;
        let detection = report.messages_by_part.get(&Part::Detection).copied().unwrap_or(0);
        assert!(detection as f64 <= most, "{}: {detection} messages", report.facts.command);
        let facts = &report.facts;
        assert!(facts.violations.is_empty(), "{}: {:?}", facts.command, facts.violations);
        let names = facts.unpromised.iter().map(|violation| violation.property.clone());
        for name in names.collect::<std::collections::BTreeSet<_>>() {
            *broken.entry(name).or_default() += 1;
        }
    }
    (deadlocks, broken.into_iter().collect())
}

/// What the card allows for one request, where a detection is started by a request and by nothing else.
fn most_messages(card: &Card, nodes: u32) -> f64 {
    let size = Size { nodes, quorum_min: nodes, quorum_max: nodes };
    let cost = card.cost(Measure::Messages, Load::Low).expect("every card says what a detection costs");
    match card.name {
        // Looked at whenever a blocked process is asked, and each wait may carry labels of others on.
        "one-report" | "hierarchical" | "mitchell-merritt" => f64::INFINITY,
        _ => (cost.range)(size).1,
    }
}

/// Exact detectors declare no phantom and miss no deadlock. Naive detectors declare phantoms, which are aborted.
fn judge(card: &Card, seeds: std::ops::Range<u64>) -> String {
    let runs = seeds.end - seeds.start;
    let (deadlocks, broken) = histories(card, seeds);
    assert!(deadlocks > runs, "{}: {deadlocks} deadlocks are too few to judge by", card.name);
    if card.promises(spec::NO_PHANTOM.name) {
        assert_eq!(broken, [], "{}", card.name);
    } else {
        let seen = |name: &str| broken.iter().any(|(broken, runs)| broken == name && *runs > 0);
        assert!(seen(spec::NO_PHANTOM.name), "{}: {broken:?}", card.name);
        assert!(seen(spec::ONE_VICTIM.name), "{}: phantoms have victims: {broken:?}", card.name);
    }
    format!("{}: {runs} histories, {deadlocks} deadlocks, {broken:?}", card.name)
}

#[test]
fn hundreds_of_histories_of_every_detector() {
    for card in DETECTORS {
        judge(card, 0..400);
    }
}

/// `cargo test --release -p conclave-lab --lib -- --ignored --nocapture a_hundred_thousand_histories`
#[test]
#[ignore = "minutes: the command is in its doc"]
fn a_hundred_thousand_histories_of_every_detector() {
    for card in DETECTORS {
        println!("{}", judge(card, 0..100_000));
    }
}

#[test]
fn a_model_that_the_algorithm_cannot_judge_is_refused() {
    let mut scenario = Scenario::default().with(|work| work.model = Some(Model::Or));
    assert!(
        problem::run(&scenario)
            .unwrap_err()
            .contains("edge-chasing supports requests of model and, but not or")
    );
    scenario.work.model = Some(Model::Single);
    assert!(problem::run(&scenario).is_ok(), "one of one is all of one");
}

/// A detector that sees nothing (`WOLF` false), or a deadlock in every wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Broken<const WOLF: bool>(NodeId);

impl<const WOLF: bool> Detection for Broken<WOLF> {
    type Message = Never;
    const CARD: Card = EdgeChasing::CARD;
    const MODEL: Model = Model::POutOfQ;

    fn new(me: NodeId, _nodes: u32) -> Self {
        Self(me)
    }

    fn kind(message: &Never) -> &'static str {
        match *message {}
    }

    fn on_blocked(&mut self, process: &Underlying, out: &mut Out<Never>) {
        if let Some(wait) = process.wait().filter(|_| WOLF) {
            out.accuse(self.0, wait.number);
        }
    }

    fn on_message(&mut self, _: NodeId, message: Never, _: &Underlying, _: &mut Out<Never>) {
        match message {}
    }
}

#[test]
fn a_detector_that_sees_nothing_is_caught() {
    let report = run_algorithm::<Broken<false>>(&scenario(&EdgeChasing::CARD, 5), false).unwrap().0;
    let broken: Vec<_> = report.facts.violations.iter().map(|violation| &violation.property[..]).collect();
    assert_eq!(broken, [spec::NO_MISS.name]);
}

/// Whatever a detector says, only who is deadlocked is aborted, and then nobody is left.
#[test]
fn a_detector_that_cries_wolf_kills_nobody_who_could_proceed() {
    let (mut phantoms, mut aborted) = (0, 0);
    for seed in (1..400).step_by(2) {
        let report = run_algorithm::<Broken<true>>(&scenario(&EdgeChasing::CARD, seed), false).unwrap().0;
        let others =
            report.facts.violations.iter().filter(|violation| violation.property != spec::NO_PHANTOM.name);
        assert_eq!(others.count(), 0, "{}: {:?}", report.facts.command, report.facts.violations);
        phantoms += report.phantoms;
        aborted += report.aborted;
    }
    assert!(phantoms > 1_000 && aborted > 100, "{phantoms} phantoms, {aborted} aborted");
}

/// A run of one way to get locks.
fn locked(name: &str, nodes: u32, requests: u64, seed: u64) -> Locked {
    let mut scenario = Scenario::of(name).with(|work| work.requests = requests);
    scenario.world.nodes = nodes;
    scenario.world.seed = seed;
    // Alone, a transaction meets no message that was overtaken by its work.
    let delay = std::time::Duration::from_micros(300 + 500 * (seed % 3));
    scenario.world.delay = if requests == 1 { Delay::Constant(delay) } else { Delay::Exponential(delay) };
    let Report::Locked(report) = problem::run(&scenario).expect("a sound scenario") else {
        panic!("{name} is a way to get locks");
    };
    *report
}

#[test]
fn every_way_brings_every_transaction_to_an_end() {
    for seed in 0..18 {
        for card in &locking::CARDS {
            let report = locked(card.name, 1 + (seed % 9) as u32, 60, seed);
            let facts = &report.facts;
            assert!(facts.passed(), "{}: {:?}", facts.command, facts.violations);
            assert_eq!((report.commits, facts.end), (60, End::Quiet), "{}", facts.command);
        }
    }
}

/// Transactions under a detector: every one of them commits; how many aborts that took.
fn watched<D: Detection>(seeds: std::ops::Range<u64>) -> u64 {
    let mut aborts = 0;
    for seed in seeds {
        let mut scenario = Scenario::of("detect").with(|work| work.requests = 20);
        scenario.world.seed = seed;
        scenario.world.nodes = 2 + (seed % 4) as u32;
        scenario.world.delay = Delay::Exponential(std::time::Duration::from_millis(1));
        let report = run_way::<locking::Detecting<D>>(&scenario, false).expect("a sound scenario").0;
        let violations = &report.facts.violations;
        assert_eq!((report.commits, violations.len()), (20, 0), "{}, {seed}: {violations:?}", D::CARD.name);
        aborts += report.aborts;
    }
    aborts
}

/// Every detector that checks again also resolves the deadlocks of locks, whose processes are the same.
fn watched_by_all(seeds: std::ops::Range<u64>) -> [u64; 7] {
    [
        watched::<EdgeChasing>(seeds.clone()),
        watched::<deadlock::OneReport>(seeds.clone()),
        watched::<deadlock::MitchellMerritt>(seeds.clone()),
        watched::<deadlock::Diffusion>(seeds.clone()),
        watched::<deadlock::POutOfQ>(seeds.clone()),
        watched::<deadlock::Hierarchical>(seeds.clone()),
        watched::<deadlock::Stable>(seeds),
    ]
}

#[test]
fn transactions_end_whichever_detector_watches_them() {
    let aborts = watched_by_all(0..12);
    assert!(aborts.iter().all(|aborts| *aborts > 10), "too few to judge by: {aborts:?}");
}

/// `cargo test --release -p conclave-lab --lib -- --ignored --nocapture thousands_of_banks`
#[test]
#[ignore = "a minute: the command is in its doc"]
fn thousands_of_banks_of_every_way_and_every_detector() {
    for card in &locking::CARDS {
        let mut aborts = 0;
        for seed in 0..10_000 {
            let report = locked(card.name, 1 + (seed % 9) as u32, 60, seed);
            let facts = &report.facts;
            assert!(facts.passed() && report.commits == 60, "{}: {:?}", facts.command, facts.violations);
            aborts += report.aborts;
        }
        println!("{}: 10000 runs of 60 transactions, {aborts} aborts", card.name);
    }
    println!("aborts by detector: {:?}", watched_by_all(0..2_000));
}

#[test]
fn who_never_meets_anybody_costs_what_the_card_says() {
    let size = Size { nodes: 9, quorum_min: 9, quorum_max: 9 };
    for card in &locking::CARDS {
        let report = locked(card.name, 9, 1, 3);
        let most = card.cost(Measure::Messages, Load::Low).expect("every card says what it costs");
        let messages = report.facts.messages as f64;
        assert!(messages <= (most.range)(size).1, "{}: {messages}", card.name);
        assert_eq!((report.commits, report.aborts), (1, 0), "{}", card.name);
    }
    assert_eq!(locked("all-at-once", 9, 1, 3).facts.messages, 0, "the first client's own site keeps all");
    let detect = locked("detect", 9, 1, 3).facts.messages;
    assert!(detect.is_multiple_of(6) && detect > 0, "six a lock of another site: {detect}");
    let ordered = locked("ordered", 9, 1, 3).facts.messages;
    assert_eq!(2 * ordered, detect, "three a lock");
}

#[test]
fn prevention_and_avoidance_abort_nobody_and_the_others_must() {
    let aborts = |name: &str| -> u64 { (0..3).map(|seed| locked(name, 8, 200, seed).aborts).sum() };
    for name in ["all-at-once", "ordered", "safe-state"] {
        assert_eq!(aborts(name), 0, "{name}");
    }
    let [detect, wait_die, wound_wait] = ["detect", "wait-die", "wound-wait"].map(aborts);
    assert!(detect > 0 && detect < wound_wait && wound_wait < wait_die, "{detect} {wound_wait} {wait_die}");
}

#[test]
fn what_means_nothing_to_a_way_is_refused() {
    let scenario = Scenario::of("wait-die").with(|work| work.detect_only = true);
    let refusal = problem::run(&scenario).expect_err("a transaction must end");
    assert!(refusal.contains("have no effect on wait-die"), "{refusal}");
}
