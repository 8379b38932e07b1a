//! Runs that prove nothing: no property holds in a run without work, and a livelock ends as bounded.

use std::time::Duration;

use conclave_algorithms::detector;
use conclave_algorithms::election::bully::Timer;
use conclave_algorithms::election::{Bully, Command, Election, Event, Group};
use conclave_kernel::{Buffer, Card, Cx, Effect, Env, Input, NodeId, Protocol, Ratio, Verdict};
use conclave_lab::experiment::Run;
use conclave_lab::problem::{self, Facts, Problem, Report as _};
use conclave_lab::problems::mutex::Workload;
use conclave_lab::problems::{deadlock, detector as detectors, election, mutex, snapshot, timesync};
use conclave_sim::{End, Fault};
use serde::{Deserialize, Serialize};

fn facts<W: Problem>(scenario: &Run<W>) -> Facts {
    problem::run(scenario).expect("the scenario is valid").facts().clone()
}

/// Runs every algorithm of a problem, each changed by `change`, and fails if a property holds or is violated.
#[track_caller]
fn assert_nothing_holds<W: Problem>(change: impl Fn(&mut Run<W>)) {
    for card in W::cards() {
        let mut scenario = Run::default();
        W::choose(&mut scenario, card.name);
        change(&mut scenario);
        let facts = facts(&scenario);
        let held: Vec<_> =
            facts.properties.iter().filter(|(_, verdict)| **verdict == Verdict::Holds).collect();
        assert!(held.is_empty(), "{held:?} held in {}", facts.command);
        assert!(facts.violations.is_empty(), "{:?} in {}", facts.violations, facts.command);
        assert_eq!(reasons(&facts, card), 0, "{:?} in {}", facts.not_judged, facts.command);
    }
}

/// Counts the properties that are not judged but have no reason, and the reasons of the other properties.
fn reasons(facts: &Facts, card: &Card) -> usize {
    let unjudged = |name: &&&str| facts.properties[*name] == Verdict::NotJudged;
    let names = facts.properties.keys();
    names.filter(|name| unjudged(name) != facts.not_judged.contains_key(*name)).count()
        + facts.not_judged.keys().filter(|name| !card.promises(name)).count()
}

fn all_crash_at_once<W: Problem>(scenario: &mut Run<W>) {
    let nodes = scenario.world.nodes;
    let crash = |node| Fault::parse_crash(&format!("{node}@0ms")).expect("well formed");
    scenario.world.faults.extend((0..nodes).map(crash));
}

#[test]
fn nothing_holds_in_a_run_without_work() {
    assert_nothing_holds::<mutex::Work>(|scenario| scenario.work.entries = 0);
    assert_nothing_holds::<deadlock::Work>(|scenario| scenario.work.requests = 0);
    assert_nothing_holds::<timesync::Work>(|scenario| scenario.work.samples = 0);
    assert_nothing_holds::<detectors::Work>(|scenario| scenario.work.duration = Duration::from_nanos(1));
}

#[test]
fn nothing_holds_if_all_sites_crash_at_the_start() {
    assert_nothing_holds::<mutex::Work>(|scenario| {
        scenario.work.load = Workload::High;
        all_crash_at_once(scenario);
    });
    assert_nothing_holds::<election::Work>(all_crash_at_once);
    assert_nothing_holds::<detectors::Work>(all_crash_at_once);
    assert_nothing_holds::<snapshot::Work>(all_crash_at_once);
    assert_nothing_holds::<deadlock::Work>(all_crash_at_once);
    assert_nothing_holds::<timesync::Work>(all_crash_at_once);
}

#[test]
fn nothing_holds_if_no_clock_was_ever_compared() {
    assert_nothing_holds::<timesync::Work>(|scenario| scenario.world.loss = everything());
}

/// The ratio of a network that loses every message.
fn everything() -> Ratio {
    Ratio::from_f64(1.0).expect("a ratio")
}

#[test]
fn no_bound_is_shown_if_no_clock_was_ever_compared() {
    for card in timesync::Work::cards() {
        for nodes in [1, 5] {
            let mut scenario = timesync::Scenario::default().with(|work| work.servers = 1);
            timesync::Work::choose(&mut scenario, card.name);
            scenario.world.nodes = nodes;
            scenario.world.loss = everything();
            if scenario.validate().is_err() {
                continue;
            }
            let report = problem::run(&scenario).expect("the scenario is valid");
            let bounds = (report.settled, report.beyond, report.bound_max_ns);
            assert_eq!((report.synced, bounds), (0, (0, 0, None)), "{}", report.facts.command);
            assert!(
                report.moments.iter().all(|moment| moment.bound_ns.is_none()),
                "{}",
                report.facts.command
            );
        }
    }
}

#[test]
fn a_leader_that_crashes_at_the_moment_of_its_election_is_no_evidence() {
    let mut scenario = election::Scenario::of("detector-based");
    all_crash_at_once(&mut scenario);
    let report = problem::run(&scenario).expect("the scenario is valid");
    assert_eq!(report.facts.not_judged["E1"], "every site that decided crashed at the same moment");
    assert_eq!(report.elections, 0, "{}", report.facts.command);
    scenario.world.faults.pop();
    let report = problem::run(&scenario).expect("the scenario is valid");
    assert_eq!((report.facts.properties["E1"], report.elections), (Verdict::Holds, 1));
}

#[test]
fn a_snapshot_whose_only_starter_is_down_is_not_started() {
    let reason = |crash: &str| {
        let mut scenario = snapshot::Scenario::default();
        scenario.world.faults.push(Fault::parse_crash(crash).expect("well formed"));
        let facts = facts(&scenario);
        (facts.properties["complete"], facts.not_judged.get("complete").copied())
    };
    assert_eq!(reason("0@0ms"), (Verdict::NotJudged, Some("no snapshot was started")));
    // Site 0 starts the snapshot, but site 1 never completes it.
    assert_eq!(reason("1@0ms"), (Verdict::Violated, None));
}

#[test]
fn transactions_of_a_group_that_is_down_are_not_judged() {
    let run = |change: &dyn Fn(&mut deadlock::Scenario)| {
        let mut scenario = deadlock::Scenario::of("ordered");
        change(&mut scenario);
        let facts = facts(&scenario);
        (facts.properties["commits"], facts.not_judged.get("commits").copied())
    };
    assert_eq!(run(&all_crash_at_once), (Verdict::NotJudged, Some("no site stayed up")));
    let one_stays_up = |scenario: &mut deadlock::Scenario| {
        all_crash_at_once(scenario);
        scenario.world.faults.pop();
    };
    assert_eq!(run(&one_stays_up), (Verdict::Violated, None));
}

#[test]
fn a_run_that_ends_before_the_first_possible_suspicion_is_no_evidence_of_accuracy() {
    let reasons = |duration: u64, algorithm: &str| {
        let mut scenario = detectors::Scenario::default().with(|work| work.window = 2);
        detectors::Work::choose(&mut scenario, algorithm);
        (scenario.work.duration, scenario.work.margin) =
            (Duration::from_millis(duration), Duration::from_secs(2));
        let facts = facts(&scenario);
        ["accuracy", "constant-accuracy"].map(|name| facts.not_judged.get(name).copied())
    };
    let short = Some("the run is not longer than T + D");
    assert_eq!(reasons(2_100, "heartbeat"), [short, short]);
    assert_eq!(reasons(2_101, "heartbeat"), [None, None]);
    assert_eq!(reasons(2_100, "adaptive"), [None, short]);
    assert_eq!(reasons(2_100, "phi-accrual"), [None, short]);
}

#[test]
fn a_run_of_no_time_is_refused() {
    let scenario = detectors::Scenario::default().with(|work| work.duration = Duration::ZERO);
    assert!(problem::run(&scenario).is_err_and(|error| error.contains("--duration is 0")));
}

#[test]
fn a_suspicion_that_stands_at_the_end_lowers_the_accuracy() {
    let mut scenario = detectors::Scenario::default().with(|work| work.duration = Duration::from_secs(1));
    scenario.world.loss = everything();
    let report = problem::run(&scenario).expect("the scenario is valid");
    let duration = report.mistake_duration.expect("every site is suspected");
    assert_eq!((duration.count, report.mistakes), (20, 20));
    assert_eq!((duration.min_ns, duration.max_ns), (889_999_999, 889_999_999));
    assert!((report.query_accuracy - 0.11).abs() < 1e-6, "{}", report.query_accuracy);
}

#[test]
fn one_site_alone_cannot_break_exclusion_or_consistency() {
    for card in mutex::Work::cards() {
        let mut scenario = mutex::Scenario::default().with(|work| {
            work.load = Workload::High;
            work.entries = 5;
        });
        mutex::Work::choose(&mut scenario, card.name);
        scenario.world.nodes = 1;
        let facts = facts(&scenario);
        for name in ["ME1", "ME1-causal"].into_iter().filter(|name| card.promises(name)) {
            assert_eq!(facts.not_judged.get(name), Some(&"only one site"), "{}", facts.command);
        }
        assert_eq!(facts.properties["ME2"], Verdict::Holds, "{}", facts.command);
    }
    for card in snapshot::Work::cards() {
        let mut scenario = snapshot::Scenario::default();
        snapshot::Work::choose(&mut scenario, card.name);
        scenario.world.nodes = 1;
        let facts = facts(&scenario);
        assert_eq!(facts.not_judged.get("consistent"), Some(&"only one site"), "{}", facts.command);
    }
}

#[test]
fn a_comparison_runs_with_the_number_of_requests_that_was_given() {
    let card = mutex::Work::cards().first().expect("an algorithm");
    for entries in [0, 1, 7] {
        let base = mutex::Scenario::default().with(|work| work.entries = entries);
        let row = mutex::compare::row(card, &base, 5).expect("the scenario is valid");
        assert_eq!([row.low.entries, row.pair.entries, row.high.entries], [entries; 3]);
    }
    assert_eq!([5, 81].map(mutex::compare::two_turns), [100, 162]);
}

/// The ordinary run of every algorithm puts most of its promises to the test.
#[test]
fn a_run_with_the_default_work_puts_properties_to_the_test() {
    fn judged<W: Problem>(unjudged: &[&str]) {
        for card in W::cards() {
            let mut scenario = Run::<W>::default();
            W::choose(&mut scenario, card.name);
            let facts = facts(&scenario);
            let missing: Vec<_> = facts.not_judged.keys().copied().collect();
            assert!(facts.passed(), "{:?}\n{}", facts.violations, facts.command);
            assert!(missing.iter().all(|name| unjudged.contains(name)), "{missing:?} in {}", facts.command);
        }
    }
    judged::<mutex::Work>(&["ME3"]); // one request at a time
    judged::<election::Work>(&[]);
    judged::<detectors::Work>(&["completeness"]); // without a crash
    judged::<snapshot::Work>(&["stable"]); // a bank has no stable property
    judged::<deadlock::Work>(&[]);
    judged::<timesync::Work>(&[]);
}

#[test]
fn me3_is_judged_where_requests_follow_each_other_and_not_with_one_request_at_a_time() {
    let verdict = |load| facts(&mutex::Scenario::default().with(|work| work.load = load)).properties["ME3"];
    assert_eq!((verdict(Workload::Low), verdict(Workload::Relay)), (Verdict::NotJudged, Verdict::Holds));
}

#[test]
fn the_order_of_more_than_128_sites_is_not_judged() {
    let mut scenario = mutex::Scenario::default().with(|work| {
        work.load = Workload::High;
        work.entries = 300;
    });
    scenario.world.nodes = 129;
    let facts = facts(&scenario);
    assert_eq!(facts.properties["ME3"], Verdict::NotJudged);
    assert_eq!(facts.not_judged["ME3"], "more than 128 sites");
}

/// [`Bully`] without one half of its rule 4: T' stays armed when COORDINATOR arrives. If the highest site is dead,
/// every T' begins another election, for ever.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Restless(Bully);

impl Restless {
    fn run(&mut self, input: Input<Bully>, cx: &mut Cx<'_, Self>) {
        let env = Env {
            me: cx.me(),
            nodes: cx.members().len() as u32,
            now: cx.now(),
            incarnation: cx.incarnation(),
        };
        let mut said = Buffer::default();
        self.0.step(input, &mut Cx::new(env, &mut said));
        for effect in said.effects {
            match effect {
                Effect::Disarm { timer: Timer::Coordinator } => {}
                Effect::Disarm { timer } => cx.disarm(timer),
                Effect::Arm { timer, min, max } => cx.arm(timer, min..=max),
                Effect::Send { to, message } => cx.send(to, message),
                Effect::SendTo { to, message } => cx.send_to(to, message),
                Effect::Broadcast { message } => cx.broadcast(message),
                Effect::Emit { event } => cx.emit(event),
            }
        }
    }
}

impl Protocol for Restless {
    type Message = <Bully as Protocol>::Message;
    type Timer = Timer;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.run(Input::Start, cx);
    }

    fn on_message(&mut self, from: NodeId, message: Self::Message, cx: &mut Cx<'_, Self>) {
        self.run(Input::Message { from, message }, cx);
    }

    fn on_timer(&mut self, timer: Timer, cx: &mut Cx<'_, Self>) {
        self.run(Input::Timer(timer), cx);
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        self.run(Input::Command(command), cx);
    }
}

impl Election for Restless {
    const CARD: Card = Bully::CARD;

    fn new(me: NodeId, group: &Group) -> Self {
        Self(Bully::new(me, group))
    }

    fn kind(message: &Self::Message) -> &'static str {
        Bully::kind(message)
    }
}

fn without_the_highest() -> election::Scenario {
    let mut scenario = election::Scenario::default();
    scenario.world.faults.push(Fault::parse_crash("4@0ms").expect("well formed"));
    scenario.world.budget = 100_000;
    scenario
}

#[test]
fn an_election_that_is_held_again_and_again_ends_as_bounded() {
    let (report, _) =
        election::run_algorithm::<Restless>(&without_the_highest(), false).expect("the scenario is valid");
    let facts = report.facts;
    assert_eq!((facts.end, facts.is_bounded()), (End::Bounded, true), "{facts:?}");
    assert!(facts.passed(), "a bounded run violates nothing: {:?}", facts.violations);
    assert_eq!((facts.properties["E1"], facts.properties["E2"]), (Verdict::Holds, Verdict::NotJudged));
    assert_eq!(facts.not_judged["E2"], "the run is bounded");
    assert!(facts.command.contains("--budget 100000"), "{}", facts.command);
    let (honest, _) =
        election::run_algorithm::<Bully>(&without_the_highest(), false).expect("the scenario is valid");
    assert_eq!((honest.facts.end, honest.facts.properties["E2"]), (End::Quiet, Verdict::Holds));
}

/// The budget limits events without progress, and never the total.
#[test]
fn a_long_run_is_not_bounded_by_a_small_budget() {
    let passes = |facts: Facts, budget: u64| {
        assert!(facts.passed() && !facts.is_bounded(), "{:?} {}", facts.bounded, facts.command);
        assert!(facts.events > 10 * budget, "{} events: {}", facts.events, facts.command);
    };
    let mut long = mutex::Scenario::default().with(|work| {
        work.load = Workload::High;
        work.entries = 2_000;
    });
    long.world.budget = 500;
    passes(facts(&long), 500);
    let mut long = election::Scenario::default().with(|work| work.elections = 1_000);
    long.world.budget = 500;
    passes(facts(&long), 500);
    let mut long = deadlock::Scenario::default().with(|work| work.requests = 1_000);
    long.world.budget = 500;
    passes(facts(&long), 500);
    let mut long = snapshot::Scenario::default().with(|work| work.acts = 10_000);
    long.world.budget = 500;
    passes(facts(&long), 500);
}

/// Work that is rarer than once an hour is no livelock.
#[test]
fn a_run_with_long_breaks_is_not_bounded() {
    let loads = ["poisson:3h", "burst:3,2h", "script:0@1ms,1@5h"];
    for load in loads.map(|load| load.parse::<Workload>().expect("well formed")) {
        let facts = facts(&mutex::Scenario::default().with(|work| {
            work.load = load;
            work.entries = 5;
        }));
        assert!(facts.passed() && !facts.is_bounded(), "{:?} {}", facts.bounded, facts.command);
        assert!(Duration::from_nanos(facts.simulated_ns) > Duration::from_secs(3_600), "{}", facts.command);
    }
    let mut cut = mutex::Scenario::default().with(|work| work.load = Workload::High);
    cut.world.faults.push(Fault::parse_partition("0@5ms..10h").expect("well formed"));
    assert!(!facts(&cut).is_bounded());
}

#[test]
fn a_budget_is_refused_where_runs_end_by_another_flag() {
    let mut scenario = timesync::Scenario::default();
    scenario.world.budget = 5;
    assert!(problem::run(&scenario).is_err_and(|error| error.contains("--samples")));
    let mut scenario = detectors::Scenario::default();
    scenario.world.budget = 5;
    assert!(problem::run(&scenario).is_err_and(|error| error.contains("--duration")));
    scenario.world.budget = 0;
    assert!(problem::run(&scenario).is_err_and(|error| error.contains("at least 1")));
}

/// Detectors are taken from the catalogue, so that no new one is forgotten.
#[test]
fn no_detector_suspects_a_site_on_a_constant_network() {
    for card in detector::CARDS {
        assert!(card.promises("constant-accuracy"), "{} does not promise it", card.name);
        for (window, delay) in
            [(100, "constant:1ms"), (10, "constant:1ms"), (7, "constant:100ms"), (2, "constant:0")]
        {
            let mut scenario = detectors::Scenario::default().with(|work| work.window = window);
            detectors::Work::choose(&mut scenario, card.name);
            scenario.world.delay = delay.parse().expect("well formed");
            let facts = facts(&scenario);
            assert_eq!(
                facts.properties["constant-accuracy"],
                Verdict::Holds,
                "{:?}\n{}",
                facts.violations,
                facts.command
            );
        }
    }
}

#[test]
fn accuracy_on_a_constant_network_is_not_judged_elsewhere() {
    let reason = |change: &dyn Fn(&mut detectors::Scenario)| {
        let mut scenario = detectors::Scenario::of("adaptive");
        change(&mut scenario);
        facts(&scenario).not_judged.get("constant-accuracy").copied()
    };
    let fault = || Fault::parse_pause("1@5s..6s").expect("well formed");
    assert_eq!(reason(&|_| {}), None);
    assert_eq!(
        reason(&|run| run.world.delay = "uniform:1ms..2ms".parse().expect("well formed")),
        Some("the delay is not constant")
    );
    assert_eq!(
        reason(&|run| run.world.links.push("0>1=exponential:1ms".parse().expect("well formed"))),
        Some("the delay is not constant")
    );
    assert_eq!(
        reason(&|run| run.world.delay = "constant:101ms".parse().expect("well formed")),
        Some("a message takes longer than a period")
    );
    assert_eq!(reason(&|run| run.world.loss = Ratio::percent(1)), Some("messages are lost or duplicated"));
    assert_eq!(reason(&|run| run.world.clocks.drift_ppm = 1), Some("the clocks drift"));
    assert_eq!(reason(&|run| run.world.faults.push(fault())), Some("the run has faults"));
    assert_eq!(
        reason(&|run| run.work.duration = Duration::from_secs(29)),
        Some("the run is shorter than three windows")
    );
    assert_eq!(reason(&|run| run.world.nodes = 1), Some("only one site"));
}
