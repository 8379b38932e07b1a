//! The algorithms of the mutex problem, explored exhaustively at small sizes. State counts are exact and pinned: a
//! change in one is a change of the algorithm, of the judge or of the checker, and somebody should know why.

use conclave_algorithms::mutex::{
    Central, Group, Lamport, LamportOmission, Maekawa, Mutex, NaimiTrehel, Raymond, RicartAgrawala,
    RoucairolCarvalho, SuzukiKasami, TokenRing,
};
use conclave_algorithms::quorum::Quorum;
use conclave_check::{
    CROSSING, CheckError, Cycles, Faults, Options, Order, Report, Search, Verdict, check, costs,
};
use conclave_kernel::trace::{RawEffect, RawInput};
use conclave_lab::problems::mutex::check::{Entries as Problem, Judged};

fn options(order: Order) -> Options {
    Options { order, threads: 1, ..Options::default() }
}

fn explore<P: Mutex>(judged: Judged, nodes: u32, entries: u8, order: Order) -> Report {
    check(&Problem::<P>::new(nodes, entries).judging(judged), &options(order)).expect("the model is sound")
}

fn holds<P: Mutex>(judged: Judged, nodes: u32, entries: u8, order: Order) -> u64 {
    let report = explore::<P>(judged, nodes, entries, order);
    assert_eq!(report.verdict, Verdict::Holds, "{:?}: {:?}", report.property, report.why);
    assert_eq!(report.cycles, Cycles::Judged);
    let contended = report.sometimes.iter().filter(|sometimes| sometimes.name != CROSSING);
    assert!(contended.clone().count() >= 2 && contended.clone().all(|sometimes| sometimes.seen));
    report.states
}

#[test]
fn everybody_excludes_and_serves_everybody_at_two_sites() {
    let counts = [
        holds::<Central>(Judged::Fences, 2, 2, Order::Any),
        holds::<Lamport>(Judged::Fences, 2, 2, Order::Fifo),
        holds::<LamportOmission>(Judged::Fences, 2, 2, Order::Fifo),
        holds::<RicartAgrawala>(Judged::Fences, 2, 2, Order::Any),
        holds::<RoucairolCarvalho>(Judged::Fences, 2, 2, Order::Any),
        holds::<Maekawa>(Judged::Fences, 2, 2, Order::Any),
        holds::<SuzukiKasami>(Judged::Fences, 2, 2, Order::Any),
        holds::<Raymond>(Judged::Fences, 2, 2, Order::Fifo),
        holds::<NaimiTrehel>(Judged::Fences, 2, 2, Order::Any),
    ];
    assert_eq!(counts, [71, 1748, 1137, 193, 87, 133_085, 83, 64, 69]);
}

#[test]
fn everybody_excludes_and_serves_everybody_at_three_sites() {
    let counts = [
        holds::<Central>(Judged::Fences, 3, 1, Order::Any),
        holds::<RicartAgrawala>(Judged::Fences, 3, 1, Order::Any),
        holds::<Maekawa>(Judged::Fences, 3, 1, Order::Any),
        holds::<SuzukiKasami>(Judged::Fences, 3, 1, Order::Any),
        holds::<RicartAgrawala>(Judged::Exclusion, 3, 2, Order::Any),
    ];
    assert_eq!(counts, [113, 4592, 24_638, 725, 104_796]);
}

#[test]
fn lamport_excludes_at_three_sites_over_fifo_links() {
    assert_eq!(holds::<Lamport>(Judged::Exclusion, 3, 1, Order::Fifo), 599_157);
}

#[test]
fn memory_and_time_contain_the_graph_in_which_cycles_are_judged() {
    let with = |liveness_states: u64| {
        let options = Options { order: Order::Any, threads: 1, liveness_states, ..Options::default() };
        check(&Problem::<RicartAgrawala>::new(3, 2), &options).unwrap()
    };
    let (judged, not_judged) = (with(u64::MAX), with(1_000));
    assert_eq!((judged.states, judged.cycles), (not_judged.states, Cycles::Judged));
    let (least, most) = (30 * judged.states, 100 * judged.states);
    assert!(judged.bytes >= not_judged.bytes, "{} {}", judged.bytes, not_judged.bytes);
    assert!((least..most).contains(&judged.bytes), "{} of {least}..{most}", judged.bytes);
    assert_eq!(judged.cycles_why, None);
    let why = format!("{} states; cycles are judged up to 1000 states", not_judged.states);
    assert_eq!((not_judged.cycles, not_judged.cycles_why), (Cycles::NotJudged, Some(why)));
}

/// A token that goes round for ever: cycles in which nobody asks, and none in which somebody waits.
#[test]
fn a_ring_goes_round_for_ever_and_serves_everybody() {
    let report = explore::<TokenRing>(Judged::Exclusion, 3, 1, Order::Any);
    assert_eq!((report.verdict, report.cycles), (Verdict::Holds, Cycles::Judged));
    let refused = costs(&Problem::<TokenRing>::new(3, 1), &options(Order::Any));
    assert_eq!(refused, Err(CheckError::NeverEnds));
}

/// Two ask with equal stamps; one's reply overtakes its own request, and the third, who asks too, does the rest:
/// any later message counts.
#[test]
fn lamport_without_fifo_lets_two_in_within_fifteen_steps() {
    let report = explore::<Lamport>(Judged::Exclusion, 3, 1, Order::Any);
    let steps = report.counterexample.as_ref().unwrap().steps;
    assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("ME1")));
    assert!(steps <= 15, "{steps}");
}

#[test]
fn a_counterexample_is_a_trace_that_ends_with_the_breach() {
    let report = explore::<Lamport>(Judged::Exclusion, 3, 1, Order::Any);
    let counterexample = report.counterexample.unwrap();
    let steps: Vec<_> = counterexample.trace.steps.iter().collect();
    assert_eq!(counterexample.trace.header.algorithm, "mutex/lamport");
    assert_eq!(steps.len() as u32, 3 + counterexample.steps);
    assert!(steps[..3].iter().all(|step| step.input == RawInput::Start));
    let granted = |effect: &RawEffect| format!("{effect:?}").contains("granted");
    assert_eq!(steps.iter().filter(|step| step.effects.iter().any(granted)).count(), 2);
    assert!(steps.last().unwrap().effects.iter().any(granted));
    // A message is received after it was sent, by the one to whom it was sent, and once.
    let mut received: Vec<_> = steps.iter().filter_map(|step| step.head.received).collect();
    for step in &steps {
        assert!(step.head.received.is_none_or(|id| id < step.head.first_sent));
    }
    received.sort_unstable();
    assert!(received.is_sorted_by(|one, next| one < next));
}

/// [FACTS C7]: Lamport and Ricart-Agrawala follow causality; the others need not.
#[test]
fn grants_follow_causality_where_that_is_promised() {
    holds::<RicartAgrawala>(Judged::Order, 3, 1, Order::Any);
    holds::<Lamport>(Judged::Order, 2, 2, Order::Fifo);
    let quorums = Quorum::All.quorums(3).unwrap();
    let maekawa = Problem::<Maekawa>::of(Group { nodes: 3, quorums }, 1).judging(Judged::Order);
    let others = [
        explore::<SuzukiKasami>(Judged::Order, 3, 1, Order::Fifo).property,
        explore::<RoucairolCarvalho>(Judged::Order, 3, 2, Order::Fifo).property,
        check(&maekawa, &options(Order::Fifo)).unwrap().property,
    ];
    assert_eq!(others, [Some("ME3"); 3]);
}

/// [FACTS C8]: echoed stamps make a second copy harmless.
#[test]
fn one_duplicated_message_does_not_hurt_who_says_so() {
    let faults = Faults { duplication: 1, ..Faults::default() };
    for order in [Order::Fifo, Order::Any] {
        let options = Options { faults, ..options(order) };
        let report = check(&Problem::<RicartAgrawala>::new(2, 2), &options).unwrap();
        assert_eq!(report.verdict, Verdict::Holds, "{:?}", report.why);
        let report = check(&Problem::<SuzukiKasami>::new(2, 2), &options).unwrap();
        assert_eq!(report.verdict, Verdict::Holds, "{:?}", report.why);
    }
    let options = Options { faults, ..options(Order::Fifo) };
    let report = check(&Problem::<TokenRing>::new(2, 1), &options).unwrap();
    assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("ME1")));
    assert_eq!(report.counterexample.unwrap().trace.marks.len(), 1);
}

#[test]
fn a_lost_message_or_a_crash_leaves_somebody_waiting() {
    for faults in [Faults { loss: 1, ..Faults::default() }, Faults { crash: 1, ..Faults::default() }] {
        let options = Options { faults, ..options(Order::Fifo) };
        let report = check(&Problem::<RicartAgrawala>::new(2, 1), &options).unwrap();
        assert_eq!((report.verdict, report.property), (Verdict::Stuck, Some("ME2")));
        let counterexample = report.counterexample.unwrap();
        assert_eq!(counterexample.steps, 2, "ask, and the fault");
    }
}

/// Every way of exploring comes to the same.
#[test]
fn searches_and_threads_agree() {
    let problem = Problem::<Maekawa>::new(3, 1).judging(Judged::Fences);
    let base = options(Order::Any);
    let expected = check(&problem, &base).unwrap();
    for search in [Search::Breadth, Search::Depth] {
        for threads in [1, 2, 3] {
            let report = check(&problem, &Options { search, threads, ..base.clone() }).unwrap();
            assert_eq!(report.verdict, Verdict::Holds);
            assert_eq!(
                (report.states, report.edges),
                (expected.states, expected.edges),
                "{search:?} {threads}"
            );
            assert_eq!(report.sometimes, expected.sometimes);
        }
    }
    let broken = Problem::<Lamport>::new(3, 1);
    for search in [Search::Breadth, Search::Depth] {
        for threads in [1, 2] {
            let options = Options { search, threads, ..options(Order::Any) };
            let report = check(&broken, &options).unwrap();
            assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("ME1")));
            let steps = report.counterexample.unwrap().steps;
            assert!(search == Search::Depth || steps == 7, "{steps}");
        }
    }
}

/// Ricart-Agrawala sends exactly 2(N-1) for each entry, in every execution.
#[test]
fn the_cost_of_ricart_agrawala_is_the_same_in_all_executions() {
    let costs = costs(&Problem::<RicartAgrawala>::new(3, 1), &options(Order::Any)).unwrap();
    assert_eq!((costs.total.min, costs.total.max), (12, Some(12)));
    let kinds: Vec<_> = costs.kinds.iter().map(|(kind, extent)| (*kind, extent.min, extent.max)).collect();
    assert_eq!(kinds, [("REPLY", 6, Some(6)), ("REQUEST", 6, Some(6))]);
}

/// [FACTS C2]: N = K = 3, one entry each; a site asks its own arbiter by messages that take time like any other,
/// and are not counted.
#[test]
fn the_cost_of_maekawa_has_a_range() {
    let quorums = Quorum::All.quorums(3).unwrap();
    let problem = Problem::<Maekawa>::of(Group { nodes: 3, quorums }, 1);
    let costs = costs(&problem, &options(Order::Fifo)).unwrap();
    assert_eq!((costs.total.min, costs.total.max), (18, Some(31)));
}

#[test]
fn messages_cross_and_kinds_are_seen() {
    let report = explore::<RicartAgrawala>(Judged::Exclusion, 2, 1, Order::Any);
    assert!(report.sometimes.iter().any(|sometimes| sometimes.name == CROSSING && sometimes.seen));
    assert_eq!(report.kinds, ["REQUEST", "REPLY"]);
    assert!(report.collision_probability < 1e-12);
}
