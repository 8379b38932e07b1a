//! The election problem: costs as the books should have them, properties at every step, the proofs and the
//! counterexamples of the checker.

use std::time::Duration;

use conclave_algorithms::detector::{Class, Mute};
use conclave_algorithms::election::{
    Bully, CARDS, ChangRoberts, DetectorBased, Election, Group, HirschbergSinclair,
};
use conclave_check::{Faults, Options, Order, Recovery, Timing, Verdict, check};
use conclave_kernel::{Load, Measure, Size};
use conclave_lab::problem;
use conclave_lab::problems::election::{Elections, Ranks, Report, Scenario, Start, Trigger};
use conclave_lab::sweep::sweep;
use conclave_sim::{Delay, Fault, Order as SimOrder};

const MS: Duration = Duration::from_millis(1);

fn scenario(algorithm: &str, nodes: u32, start: Start) -> Scenario {
    let mut scenario = Scenario::of(algorithm).with(|work| work.start = start);
    scenario.world.nodes = nodes;
    scenario
}

#[track_caller]
fn run(scenario: &Scenario) -> Report {
    let report = problem::run(scenario).expect("the scenario is valid");
    assert!(report.facts.passed(), "{:?}\n{}", report.facts.violations, report.facts.command);
    report
}

fn crash(text: &str) -> Fault {
    Fault::parse_crash(text).expect("it is well formed")
}

/// Calls `each` with every permutation of 1..=n.
fn permutations(n: usize, each: &mut impl FnMut(&[u64])) {
    fn extend(chosen: &mut Vec<u64>, n: usize, each: &mut impl FnMut(&[u64])) {
        if chosen.len() == n {
            return each(chosen);
        }
        for next in (1..=n as u64).filter(|next| !chosen.contains(next)).collect::<Vec<_>>() {
            chosen.push(next);
            extend(chosen, n, each);
            chosen.pop();
        }
    }
    extend(&mut Vec::new(), n, each);
}

/// [FACTS C3]: all starting, over all permutations: 3N-1 to N(N+1)/2 + N, N H_N + N on average; for N = 7 that is
/// 20, 35 and 25.15.
#[test]
fn the_ring_in_which_all_start_costs_what_the_formula_says_over_all_permutations() {
    for n in 2..=7_u32 {
        let (mut least, mut most, mut sum, mut count) = (u64::MAX, 0, 0, 0_u64);
        permutations(n as usize, &mut |ranks| {
            let ranks = Ranks::List(ranks.to_vec());
            let messages =
                run(&scenario("chang-roberts", n, Start::All).with(|work| work.ranks = ranks)).facts.messages;
            (least, most) = (least.min(messages), most.max(messages));
            (sum, count) = (sum + messages, count + 1);
        });
        let n = u64::from(n);
        assert_eq!((least, most), (3 * n - 1, n * (n + 1) / 2 + n));
        let harmonic: f64 = (1..=n).map(|k| 1.0 / k as f64).sum();
        let mean = sum as f64 / count as f64;
        assert!((mean - (n as f64 * harmonic + n as f64)).abs() < 1e-9, "{mean}");
        if n == 7 {
            assert_eq!((least, most, format!("{mean:.2}").as_str()), (20, 35, "25.15"));
        }
    }
}

/// [FACTS C3]: one starter costs 2N if it is the highest, 3N-1 if the highest comes just before it; and turnaround
/// is as many hops but one.
#[test]
fn the_ring_with_one_starter_costs_two_n_to_three_n_minus_one() {
    for n in 2..=9_u32 {
        let cost = |starter: u32| {
            let report = run(&scenario("chang-roberts", n, Start::Site(conclave_kernel::NodeId(starter))));
            (report.facts.messages, report.turnaround_of_last_ns.expect("one was held") / 1_000_000)
        };
        let n = u64::from(n);
        let costs: Vec<_> = (0..n as u32).map(cost).collect();
        assert_eq!(costs[n as usize - 1], (2 * n, 2 * n - 1), "the highest starts");
        assert_eq!(costs[0], (3 * n - 1, 3 * n - 2), "the one after the highest starts");
        assert!(costs.iter().all(|(messages, _)| (2 * n..3 * n).contains(messages)));
    }
}

/// [FACTS C4]: N^2-N-1 if the lowest notices, N-1 with the probe of the dead if the second highest does: N-2
/// announcements.
#[test]
fn bully_costs_n_squared_minus_n_minus_one_at_worst_and_n_minus_two_announcements_at_best() {
    for n in 2..=12_u32 {
        let after_crash = |start| {
            let mut scenario = scenario("bully", n, start);
            scenario.world.faults.push(crash(&format!("{}@1s", n - 1)));
            run(&scenario)
        };
        let (worst, best) = (after_crash(Start::Lowest), after_crash(Start::Highest));
        assert_eq!(worst.messages_of_last, u64::from(n * n - n - 1));
        assert_eq!(best.messages_of_last, u64::from(n - 1));
        assert_eq!((worst.leader, best.leader), (Some(n - 2), Some(n - 2)));
        // At boot the highest announces itself to N-1; then N-2 announcements and one ELECTION.
        let announced = best.messages_by_kind["COORDINATOR"] - u64::from(n - 1);
        assert_eq!((announced, best.messages_by_kind["ELECTION"]), (u64::from(n - 2), 1));
        // T = 2 T_trans for the dead, and one more for the announcement, from the moment of notice on.
        let notice = Scenario::default().work.notice;
        let turnaround = Duration::from_nanos(best.turnaround_of_last_ns.expect("two were held"));
        let announcement = if n > 2 { MS } else { Duration::ZERO };
        assert_eq!(turnaround, notice + 2 * MS + Duration::from_nanos(1) + announcement);
    }
}

/// The cards' ranges hold wherever they are stated.
#[test]
fn every_card_tells_the_truth_about_elections_without_crashes() {
    for card in CARDS {
        for n in [1, 2, 3, 4, 7, 12] {
            for (start, load) in
                [(Start::Highest, Load::Low), (Start::Lowest, Load::Low), (Start::All, Load::High)]
            {
                if card.name == "bully" && load == Load::Low {
                    continue; // stated for a group whose highest is dead
                }
                let report = run(&scenario(card.name, n, start));
                let size = Size { nodes: n, quorum_min: n, quorum_max: n };
                let cost = card.cost(Measure::Messages, load).expect("every card states it");
                let (min, max) = (cost.range)(size);
                let measured = report.messages_of_last as f64;
                assert!((min..=max).contains(&measured), "{} N = {n} {start}: {measured}", card.name);
                assert_eq!(report.leader, Some(n - 1));
            }
        }
    }
}

/// The detector's heartbeats are what an election over it costs.
#[test]
fn heartbeats_are_counted_beside_the_messages_of_elections() {
    let report = run(&scenario("detector-based", 5, Start::Lowest));
    assert_eq!(report.messages_per_election_max, 0);
    let expected = 5.0 * 4.0 / 0.010; // N(N-1) every 10 ms
    assert!((report.background_messages_per_s / expected - 1.0).abs() < 0.1, "{report:?}");
    assert_eq!(run(&scenario("bully", 5, Start::Lowest)).background_messages_per_s, 0.0);
}

#[test]
fn a_crash_a_return_and_a_resignation_each_lead_to_the_right_leader() {
    for card in CARDS {
        let mut crashed = scenario(card.name, 5, Start::Random);
        crashed.world.faults.push(crash("4@1s"));
        assert_eq!(run(&crashed).leader, Some(3), "{}", card.name);
        crashed.world.faults[0] = crash("4@1s..2s");
        assert_eq!(run(&crashed).leader, Some(4), "{}", card.name);
        crashed.world.faults[0] = crash("4@1s..2s,amnesia");
        assert_eq!(run(&crashed).leader, Some(4), "{}", card.name);
        let resigned = scenario(card.name, 5, Start::Lowest).with(|work| {
            work.elections = 3;
            work.trigger = Trigger::Resign;
        });
        let report = run(&resigned);
        assert_eq!((report.leader, report.elections), (Some(2), 3), "{}", card.name);
    }
}

/// Crashes in the middle of elections, of the maximum too, on networks as wild as each algorithm allows.
#[test]
fn everybody_decides_rightly_in_hundreds_of_wild_runs_with_crashes() {
    for card in CARDS {
        let base = scenario(card.name, 6, Start::Random).with(|work| {
            work.elections = 3;
            work.ranks = Ranks::Random;
        });
        let reports = sweep(
            0..150,
            |seed| {
                let mut scenario = base.clone();
                scenario.world.seed = seed;
                problem::run(&scenario.swarmed()).expect("the scenario is valid")
            },
            |_| {},
        );
        let mut crashes = 0;
        for report in &reports {
            assert!(report.facts.passed(), "{:?}\n{}", report.facts.violations, report.facts.command);
            crashes += report.facts.ledger.crashes;
        }
        assert!(crashes > 20, "{}: only {crashes} crashes struck", card.name);
    }
}

/// E1 is judged at every step: a timeout that is too short elects somebody while a higher one is up.
#[test]
fn bully_errs_when_messages_take_longer_than_it_was_told() {
    let mut late = scenario("bully", 4, Start::Lowest);
    late.world.delay = Delay::Constant(5 * MS);
    late.work.transmission = Some(MS);
    let report = problem::run(&late).expect("the scenario is valid");
    assert!(report.facts.violations.iter().any(|violation| violation.property == "E1"), "{report:?}");
}

#[test]
fn a_ring_on_which_everybody_begins_once_needs_no_order_of_messages() {
    for name in ["chang-roberts", "hirschberg-sinclair"] {
        for seed in 0..100 {
            let mut any = scenario(name, 7, Start::All).with(|work| work.ranks = Ranks::Random);
            any.world.seed = seed;
            any.world.order = SimOrder::Any;
            any.world.delay = Delay::Uniform(MS / 100, 5 * MS);
            run(&any);
        }
    }
}

fn explore<P: Election>(nodes: u32, calls: u8, options: &Options) -> conclave_check::Report {
    check(&Elections::<P>::new(Group::new(nodes, MS), calls), options).expect("the model is small")
}

fn crashes(crash: u8, recovery: Option<Recovery>) -> Options {
    Options { faults: Faults { crash, recovery, ..Faults::default() }, ..Options::default() }
}

fn in_sync(options: &Options) -> Options {
    Options { timing: Timing::Sync { delay: 1, tick: MS }, ..options.clone() }
}

#[track_caller]
fn assert_holds(report: &conclave_check::Report) {
    assert_eq!(report.verdict, Verdict::Holds, "{:?} {:?}", report.property, report.why);
    assert!(report.sometimes.iter().take(2).all(|it| it.seen), "{:?}", report.sometimes);
}

/// Whoever starts, however often, in whatever order, and although anybody may die at any moment.
#[test]
fn rings_elect_the_highest_in_all_executions_with_a_crash() {
    assert_holds(&explore::<ChangRoberts>(3, 2, &Options::default()));
    assert_holds(&explore::<ChangRoberts>(3, 1, &crashes(1, None)));
    assert_holds(&explore::<HirschbergSinclair>(3, 1, &Options::default()));
    assert_holds(&explore::<HirschbergSinclair>(2, 1, &crashes(1, None)));
}

/// Who begins anew behind an announcement, and is faster, is swallowed by a participant that has yet to hear of it.
#[test]
fn without_fifo_a_ring_may_leave_somebody_undecided_for_ever() {
    let report = explore::<ChangRoberts>(3, 1, &Options { order: Order::Any, ..Options::default() });
    assert_eq!((report.verdict, report.property), (Verdict::Stuck, Some("E2")));
}

#[test]
fn bully_is_proven_where_delays_are_bounded_and_refuted_where_they_are_not() {
    assert_holds(&explore::<Bully>(3, 1, &in_sync(&crashes(1, None))));
    let report = explore::<Bully>(3, 1, &Options::default());
    assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("E1")));
    let steps = report.counterexample.expect("it is violated").steps;
    assert!(steps <= 2, "call, and the timer fires: {steps}");
}

/// FACTS part 2, trap (b): a process replaced under the same id during the announcement.
#[test]
fn bully_errs_when_somebody_comes_back_in_mid_announcement_even_with_bounded_delays() {
    let report = explore::<Bully>(3, 1, &in_sync(&crashes(1, Some(Recovery::Stable))));
    assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("E1")));
}

/// Over every perfect detector it is right; over one that errs once it is not.
#[test]
fn the_election_over_a_detector_is_as_right_as_the_detector() {
    let over = |class: Class| {
        let model = Elections::<DetectorBased<Mute>>::new(Group::new(3, MS), 0).told_by(class);
        check(&model, &crashes(2, None)).expect("the model is small")
    };
    let report = over(Class::Perfect);
    assert_eq!(report.verdict, Verdict::Holds, "{:?}", report.why);
    let report = over(Class::EventuallyPerfect { mistakes: 1 });
    assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("E1")));
    assert_eq!(report.counterexample.expect("it is violated").steps, 1);
}
