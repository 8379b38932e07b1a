use proptest::prelude::*;

use super::lowering::Lowering;
use super::testing::{catalogue, process_wish, stuck_naively};
use super::*;

fn names(standing: &Standing, processes: &[Process]) -> Vec<String> {
    processes.iter().map(|process| standing.process_name(*process).to_owned()).collect()
}

fn lock(resource: Resource) -> Claim<Resource> {
    Claim { resource, demand: Demand::Exclusive }
}

fn wants(resource: Resource) -> Wish {
    Wish::Claim(Claim { resource: Target::Resource(resource), demand: Demand::Exclusive })
}

#[test]
fn golden_and_is_a_cycle_of_four_with_one_stuck_outside() {
    let standing = catalogue(true);
    let findings = standing.judge(Policy::Youngest, 20).unwrap();
    assert_eq!(names(&standing, &findings.stuck), ["P11", "P21", "P24", "P54", "P44"]);
    let [Why::Cycle(links)] = &findings.why[..] else { panic!("one cycle: {:?}", findings.why) };
    let on_cycle: Vec<_> = links.iter().map(|link| standing.process_name(link.waiter)).collect();
    assert_eq!(on_cycle, ["P11", "P21", "P24", "P54"]);
    assert_eq!(names(&standing, &findings.victims), ["P54"], "the youngest on the cycle, not P44 outside it");
}

#[test]
fn golden_or_is_a_knot_only_when_the_way_out_is_closed() {
    let mut standing = catalogue(false);
    assert!(standing.judge(Policy::Youngest, 20).unwrap().stuck.is_empty());
    let p33 = standing.process("P33");
    let wish = process_wish(&mut standing, 1, &["P24"]);
    standing.wait(p33, wish).unwrap();
    let findings = standing.judge(Policy::Youngest, 20).unwrap();
    let [Why::Knot(members)] = &findings.why[..] else { panic!("one knot: {:?}", findings.why) };
    let mut knot = names(&standing, members);
    knot.sort();
    assert_eq!(knot, ["P11", "P21", "P24", "P32", "P33", "P54"]);
    assert_eq!(findings.stuck.len(), 7, "P44 is stuck outside it");
}

#[test]
fn a_request_for_the_wrong_kind_or_for_more_than_there_is_is_refused() {
    let mut standing = Standing::new();
    let (p, q) = (standing.process("p"), standing.process("q"));
    let (a, pool) = (standing.resource("a"), standing.resource("pool"));
    standing.set_limit(pool, 3);
    standing.hold(p, lock(a), false).unwrap();
    assert_eq!(standing.hold(q, lock(a), false), Err(Refusal::Conflict(p)));
    assert_eq!(standing.hold(q, lock(pool), false), Err(Refusal::NotALock(pool)));
    let permits = |resource, count| {
        Wish::Claim(Claim { resource: Target::Resource(resource), demand: Demand::Permits(count) })
    };
    assert_eq!(standing.wait(q, permits(a, 1)), Err(Refusal::NotASemaphore(a)));
    let impossible = Refusal::Impossible { resource: pool, limit: 3 };
    assert_eq!(standing.wait(q, permits(pool, 4)), Err(impossible.clone()));
    let sum = Wish::Gate { need: 2, members: vec![permits(pool, 2), permits(pool, 2)] };
    assert_eq!(standing.wait(q, sum), Err(impossible), "claims on one semaphore add up");
    standing.wait(q, permits(pool, 3)).unwrap();
    assert_eq!(standing.wait(q, wants(a)), Err(Refusal::AlreadyWaiting));
}

#[test]
fn each_policy_chooses_by_its_own_measure() {
    let mut standing = Standing::new();
    let resources = ["a", "b", "c"].map(|name| standing.resource(name));
    let processes = ["p", "q", "r"].map(|name| standing.process(name));
    let extra = standing.resource("extra");
    for (process, resource) in processes.into_iter().zip(resources) {
        standing.hold(process, lock(resource), false).unwrap();
    }
    let [p, q, r] = processes;
    standing.hold(r, lock(extra), false).unwrap();
    standing.hold(p, lock(extra), true).unwrap();
    // The waits come in another order than the processes.
    for (process, resource) in [(r, resources[0]), (p, resources[1]), (q, resources[2])] {
        standing.wait(process, wants(resource)).unwrap();
    }
    standing.set_priority(p, -1);
    let chosen = |policy| standing.judge(policy, 20).unwrap().victims;
    assert_eq!(chosen(Policy::Youngest), [r]);
    assert_eq!(chosen(Policy::LowestPriority), [p]);
    assert_eq!(chosen(Policy::FewestLocks), [q], "p and q have one lock each, and q is the younger");
    assert_eq!(chosen(Policy::Requester), [q]);
    assert!(chosen(Policy::None).is_empty());
}

#[test]
fn many_waiters_on_a_lock_with_many_holders_stay_linear() {
    let mut standing = Standing::new();
    let hot = standing.resource("hot");
    let shared = Claim { resource: hot, demand: Demand::Shared };
    for number in 0..1_000 {
        let process = standing.process(&format!("reader {number}"));
        standing.hold(process, shared, false).unwrap();
    }
    for number in 0..20_000 {
        let process = standing.process(&format!("writer {number}"));
        standing.wait(process, wants(hot)).unwrap();
    }
    let snapshot = Lowering::run(&standing, false).unwrap();
    let debug = format!("{snapshot:?}");
    // A node for each process and one gate for all; a wait for each waiter and the members of the gate.
    assert!(debug.matches("Dependent {").count() <= 21_000, "waits were multiplied");
}

/// Up to five processes, three locks, one semaphore of three permits, and any wishes.
fn any_standing() -> impl Strategy<Value = Standing> {
    let holds = prop::collection::vec((0u32..5, 0u32..4, 0u32..3, prop::bool::weighted(0.1)), 0..10);
    let leaf = (0u32..9, 0u32..3).prop_map(|(target, demand)| {
        let demand = match (target, demand) {
            (8, count) => Demand::Permits(1 + count),
            (_, 0) => Demand::Shared,
            _ => Demand::Exclusive,
        };
        let resource = if target < 5 { Target::Process(target) } else { Target::Resource(target - 5) };
        Wish::Claim(Claim { resource, demand })
    });
    let wish = leaf.prop_recursive(3, 12, 3, |inner| {
        (prop::collection::vec(inner, 1..4), 0u32..3)
            .prop_map(|(members, need)| Wish::Gate { need: 1 + need.min(members.len() as u32 - 1), members })
    });
    (holds, prop::collection::vec((0u32..5, wish), 0..6)).prop_map(|(holds, waits)| {
        let mut standing = Standing::new();
        (0..5).for_each(|number| _ = standing.process(&format!("p{number}")));
        (0..4).for_each(|number| _ = standing.resource(&format!("r{number}")));
        standing.set_limit(3, 3);
        for (process, resource, demand, perhaps) in holds {
            let demand = match (resource, demand) {
                (3, count) => Demand::Permits(1 + count),
                (_, 0) => Demand::Shared,
                _ => Demand::Exclusive,
            };
            // What conflicts with what is held already is left out.
            _ = standing.hold(process, Claim { resource, demand }, perhaps);
        }
        for (process, wish) in waits {
            _ = standing.wait(process, wish);
        }
        standing
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn who_is_stuck_is_who_is_stuck_by_definition_and_the_victims_free_all(standing in any_standing()) {
        for policy in [Policy::Youngest, Policy::LowestPriority, Policy::FewestLocks, Policy::Requester] {
            let findings = standing.judge(policy, 20).unwrap();
            prop_assert_eq!(&findings.stuck, &stuck_naively(&standing, &[]));
            prop_assert_eq!(findings.stuck.is_empty(), findings.victims.is_empty());
            prop_assert_eq!(findings.stuck.is_empty(), findings.why.is_empty());
            prop_assert!(findings.victims.iter().all(|victim| findings.stuck.contains(victim)));
            prop_assert_eq!(stuck_naively(&standing, &findings.victims), Vec::<Process>::new());
        }
    }
}
