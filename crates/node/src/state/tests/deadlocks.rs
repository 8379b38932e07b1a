//! Overtaking (docs/service.md 3) and deadlocks (docs/service.md 4).

use super::*;

/// Lets p hold a and wait for b, which q holds.
fn half_a_cycle(w: &mut World) -> (Client, Client, RequestId) {
    let (p, q) = (w.client(), w.client());
    w.hold(p, by("p", "a"));
    w.hold(q, by("q", "b"));
    let waits = w.wait(p, by("p", "b"));
    (p, q, waits)
}

#[test]
fn a_cycle_of_two_is_refused_to_the_requester_and_the_refusal_names_it() {
    let mut w = World::new();
    let (p, q, waits) = half_a_cycle(&mut w);
    let error = w.refused(q, by("q", "a"));
    assert_eq!(error.code, Code::Deadlock);
    let (p_name, q_name) = (format!("p of session {}", p.0), format!("q of session {}", q.0));
    let expected = format!("{q_name} waits for a, held by {p_name}; {p_name} waits for b, held by {q_name}");
    assert_eq!(error.deadlock.as_ref().unwrap().to_string(), expected);
    assert_eq!(error.deadlock.unwrap().victim, Some(q_name));
    assert_eq!(w.waiting(), 1);
    // The holds of the victim stay. Their release ends the wait of p.
    let (held, _) = w.state.grants(q.0)[0];
    w.release(q, held);
    assert_eq!(w.granted(p, waits).unwrap(), "b");
}

#[test]
fn the_policy_of_the_request_that_closes_decides() {
    for (chosen, victim_is_closer) in [
        (VictimPolicy::Requester, true),
        (VictimPolicy::Youngest, true), // q came after p
        (VictimPolicy::LowestPriority, false),
        (VictimPolicy::FewestLocks, false),
    ] {
        let mut w = World::new();
        let (p, q, waits) = half_a_cycle(&mut w);
        w.hold(q, by("q", "more"));
        let (closes, _) = w.request(q, urgent(policy(by("q", "a"), chosen), 7));
        let refused = if victim_is_closer { w.refusal(q, closes) } else { w.refusal(p, waits) };
        assert_eq!(refused, Some(Code::Deadlock), "{chosen:?}");
        assert_eq!(w.waiting(), 1, "{chosen:?}");
        assert_eq!(w.state.incidents.deadlocks[0].0, w.index);
        assert_eq!(w.state.totals().deadlocks, 1);
    }
}

#[test]
fn the_youngest_is_the_owner_that_came_last_not_the_last_request() {
    let mut w = World::new();
    let (p, q) = (w.client(), w.client());
    w.hold(p, by("old", "a"));
    w.hold(q, by("young", "b"));
    let young = w.wait(q, by("young", "a"));
    let (old, _) = w.request(p, policy(by("old", "b"), VictimPolicy::Youngest));
    assert_eq!(w.refusal(q, young), Some(Code::Deadlock));
    assert_eq!(w.refusal(p, old), None);
}

#[test]
fn a_deadlock_left_standing_is_shown_and_can_be_ended_by_a_release() {
    let mut w = World::new();
    let (p, q, waits) = half_a_cycle(&mut w);
    assert_eq!(w.state.totals().deadlocked, 0);
    w.wait(q, policy(by("q", "a"), VictimPolicy::None));
    assert_eq!((w.state.stuck(), w.state.totals().deadlocked), (2, 2));
    let why = w.state.why(&name("a"));
    assert!(why.waiters[0].stuck);
    assert_eq!(why.deadlocks[0].victim, None);
    // A request that only waits for the deadlock closes no other one.
    w.hold(p, by("r", "c"));
    w.wait(q, acquire("c"));
    w.wait(p, by("r", "a"));
    let (held, _) = w.state.grants(q.0)[0];
    w.release(q, held);
    assert_eq!(w.granted(p, waits).unwrap(), "b");
    assert_eq!((w.state.stuck(), w.state.totals().deadlocked), (0, 0));
}

#[test]
fn victims_are_refused_until_no_deadlock_is_left() {
    let mut w = World::new();
    let c = w.client();
    w.hold(c, by("r", "r1 & r2"));
    for (owner, own) in [("p", "x"), ("q", "y")] {
        w.hold(c, by(owner, own));
    }
    let (p, q) = (w.wait(c, by("p", "r1")), w.wait(c, by("q", "r2")));
    let (r, _) = w.request(c, policy(by("r", "x & y"), VictimPolicy::FewestLocks));
    assert_eq!(w.refusal(c, p), Some(Code::Deadlock));
    assert_eq!(w.refusal(c, q), Some(Code::Deadlock));
    assert!(matches!(w.answer(c, r), Some(Answer::Queued(_))));
}

#[test]
fn an_alternative_that_can_be_had_is_no_deadlock() {
    let mut w = World::new();
    let (p, q, _) = half_a_cycle(&mut w);
    let free = w.hold(p, acquire("c"));
    let either = w.wait(q, by("q", "a | c"));
    w.release(p, free);
    assert_eq!(w.granted(q, either).unwrap(), "c");
}

#[test]
fn a_knot_of_alternatives_is_a_deadlock() {
    let mut w = World::new();
    let c = w.client();
    for (owner, own) in [("p", "a"), ("q", "b"), ("r", "c")] {
        w.hold(c, by(owner, own));
    }
    w.wait(c, by("p", "b | c"));
    w.wait(c, by("q", "a | c"));
    let error = w.refused(c, by("r", "a | b"));
    assert_eq!(error.code, Code::Deadlock);
    assert!(error.deadlock.unwrap().cycle.len() >= 3);
}

#[test]
fn a_semaphore_is_a_weighted_p_out_of_q() {
    let mut w = World::new();
    let c = w.client();
    w.limit(c, "pool", 4);
    w.hold(c, by("p", "a & pool*2"));
    w.hold(c, by("q", "b & pool"));
    let third = w.hold(c, by("r", "pool"));
    // p still runs, so this wait is no deadlock.
    w.wait(c, by("q", "a"));
    // p needs two permits. r can release one, q waits for p, and p's own permits do not count: a deadlock.
    assert_eq!(w.refused(c, by("p", "pool*2")).code, Code::Deadlock);
    // r can finish and release one permit: no deadlock.
    let one = w.wait(c, by("p", "pool"));
    w.release(c, third);
    assert_eq!(w.granted(c, one).unwrap(), "pool*1");
}

#[test]
fn lowering_a_limit_can_close_a_deadlock_and_then_somebody_is_refused() {
    let mut w = World::new();
    let c = w.client();
    w.limit(c, "pool", 3);
    w.hold(c, by("p", "pool"));
    w.hold(c, by("q", "x"));
    w.hold(c, by("r", "y"));
    let p = w.wait(c, by("p", "x"));
    let q = w.wait(c, by("q", "pool & y"));
    w.limit(c, "pool", 1);
    assert_eq!(w.refusal(c, q), Some(Code::Deadlock));
    assert_eq!(w.refusal(c, p), None);
}

#[test]
fn an_owner_without_holds_closes_no_deadlock() {
    let mut w = World::new();
    let (_, q, _) = half_a_cycle(&mut w);
    w.wait(q, acquire("a & b"));
    w.wait(q, acquire("a | b"));
}

#[test]
fn two_paths_to_one_holder_are_no_cycle() {
    let mut w = World::new();
    let c = w.client();
    w.hold(c, by("top", "d"));
    w.hold(c, by("left", "b"));
    w.hold(c, by("right", "r"));
    w.wait(c, by("left", "d"));
    w.wait(c, by("right", "d"));
    w.hold(c, by("bottom", "z"));
    w.wait(c, acquire("z"));
    w.wait(c, by("bottom", "b & r"));
}

#[test]
fn a_cycle_through_a_soft_edge_is_broken_by_overtaking() {
    // The wide request waits for x and claims y. r, which holds x, may overtake it on y: the wide request
    // needs r to finish anyway.
    let mut w = World::new();
    let c = w.client();
    let x = w.hold(c, by("r", "x"));
    let wide = w.wait(c, acquire("x & y"));
    let y = w.hold(c, by("r", "y"));
    w.release(c, y);
    assert_eq!(w.granted(c, wide), None);
    w.release(c, x);
    assert_eq!(w.granted(c, wide).unwrap(), "x y");
}

#[test]
fn a_try_may_overtake() {
    let mut w = World::new();
    let c = w.client();
    w.hold(c, by("r", "x"));
    w.wait(c, acquire("x & y"));
    w.hold(c, try_now(by("r", "y")));
    assert_eq!(w.refused(c, try_now(acquire("y"))).code, Code::WouldWait);
}

#[test]
fn a_request_outside_the_cycle_does_not_overtake() {
    let mut w = World::new();
    let c = w.client();
    w.hold(c, acquire("x"));
    w.hold(c, by("r", "unrelated"));
    w.wait(c, acquire("x & y"));
    w.wait(c, by("r", "y"));
    w.wait(c, acquire("unrelated"));
    assert_eq!(w.waiting(), 3);
}

#[test]
fn a_soft_cycle_closed_by_somebody_elses_wait_is_broken_too() {
    // W claims p and needs h, which R holds. X holds x and waits behind W's claim on p. Then R requests x, so
    // X must overtake W.
    let mut w = World::new();
    let c = w.client();
    w.hold(c, by("X", "x"));
    let h = w.hold(c, by("R", "h"));
    let claimant = w.wait(c, acquire("p & h"));
    let behind = w.wait(c, by("X", "p"));
    let r = w.wait(c, by("R", "x"));
    assert_eq!(w.granted(c, behind).unwrap(), "p");
    let (x, _) = w.state.grants(c.0)[0];
    w.release(c, x);
    assert_eq!(w.granted(c, r).unwrap(), "x");
    w.release(c, h);
    w.release(c, behind);
    assert_eq!(w.granted(c, claimant).unwrap(), "h p");
}

#[test]
fn a_cycle_through_two_soft_edges_is_broken() {
    let mut w = World::new();
    let c = w.client();
    w.hold(c, by("R", "h"));
    w.hold(c, by("S", "g"));
    w.wait(c, acquire("p & g"));
    w.wait(c, acquire("q & h"));
    let r = w.wait(c, by("R", "p"));
    let (s, answer) = w.request(c, by("S", "q"));
    // One of the two overtakes. Then no request is stuck.
    assert!(w.granted(c, r).is_some() || matches!(answer, Answer::Granted(_)), "{s}");
    assert_eq!(w.state.stuck(), 0);
    assert!(w.state.incidents.deadlocks.is_empty());
}

#[test]
fn a_soft_cycle_that_an_alternative_hides_is_broken() {
    // W wants m or h. A running owner holds m, but V claims m before W and needs z, which X holds. X also
    // holds h. So W depends on X in both cases, and W's claim on p does not bind X.
    let mut w = World::new();
    let c = w.client();
    w.hold(c, acquire("m"));
    w.hold(c, by("X", "h & z"));
    w.wait(c, acquire("m & z"));
    w.wait(c, acquire("p & (m | h)"));
    w.hold(c, by("X", "p"));
}

#[test]
fn a_request_may_overtake_after_a_shared_claim_leaves() {
    // `first` does not wait for R, so its claim on p binds R. The second request waits for R, so its claim
    // does not.
    let mut w = World::new();
    let c = w.client();
    w.hold(c, acquire("cold"));
    w.hold(c, by("R", "h"));
    let first = w.wait(c, acquire("p:shared & cold"));
    w.wait(c, acquire("p:shared & h"));
    let r = w.wait(c, by("R", "p"));
    w.request(c, Op::Cancel { request: first });
    assert_eq!(w.granted(c, r).as_deref(), Some("p"));
}

#[test]
fn a_request_may_overtake_after_a_shared_claim_takes_its_alternative() {
    let mut w = World::new();
    let c = w.client();
    w.hold(c, acquire("cold"));
    let z = w.hold(c, acquire("z"));
    w.hold(c, by("R", "h"));
    let first = w.wait(c, acquire("(p:shared & cold) | z"));
    w.wait(c, acquire("p:shared & h"));
    let r = w.wait(c, by("R", "p"));
    w.release(c, z);
    assert_eq!(w.granted(c, first).as_deref(), Some("z"));
    assert_eq!(w.granted(c, r).as_deref(), Some("p"));
}

/// Creates a deadlock of D1 and D2, left standing by the policy of D2. V holds b and waits for s, which S
/// holds.
fn beside_a_standing_deadlock(w: &mut World) -> (Client, [RequestId; 3]) {
    let c = w.client();
    for (owner, own) in [("S", "s"), ("V", "b"), ("D1", "d1"), ("D2", "d2")] {
        w.hold(c, by(owner, own));
    }
    let d1 = w.wait(c, by("D1", "d2"));
    let d2 = w.wait(c, policy(by("D2", "d1"), VictimPolicy::None));
    let v = w.wait(c, by("V", "s"));
    assert_eq!(w.state.totals().deadlocks, 1);
    (c, [d1, d2, v])
}

#[test]
fn a_deadlock_left_standing_is_not_ended_by_a_grant_to_one_of_its_members() {
    let mut w = World::new();
    let (c, [d1, d2, _]) = beside_a_standing_deadlock(&mut w);
    w.hold(c, by("D1", "z"));
    assert_eq!((w.refusal(c, d1), w.refusal(c, d2)), (None, None));
    w.hold(c, policy(by("D2", "z2"), VictimPolicy::None));
    assert_eq!((w.waiting(), w.state.totals().deadlocks), (3, 1), "it is the same deadlock");
}

#[test]
fn a_deadlock_left_standing_is_not_ended_by_a_limit() {
    let mut w = World::new();
    let c = w.client();
    w.limit(c, "pool", 5);
    w.hold(c, by("A", "a"));
    w.hold(c, by("B", "b"));
    w.wait(c, by("A", "b & pool"));
    w.wait(c, policy(by("B", "a"), VictimPolicy::None));
    w.limit(c, "pool", 4);
    assert_eq!((w.waiting(), w.state.totals().deadlocks), (2, 1));
}

#[test]
fn a_deadlock_closed_by_a_limit_and_left_standing_is_counted_once() {
    let mut w = World::new();
    let c = w.client();
    w.limit(c, "pool", 4);
    let left = |op| policy(op, VictimPolicy::None);
    w.hold(c, by("A", "a & pool"));
    w.hold(c, by("B", "b & pool"));
    w.hold(c, acquire("x"));
    w.wait(c, left(by("A", "b & pool | x & pool")));
    w.wait(c, left(by("B", "a & pool | x & pool")));
    w.limit(c, "pool", 2);
    assert_eq!((w.waiting(), w.state.stuck(), w.state.totals().deadlocks), (2, 2, 1));
}

#[test]
fn a_deadlock_that_a_grant_closes_uses_the_policy_of_the_grant() {
    for (chosen, refused) in
        [(VictimPolicy::Requester, "o"), (VictimPolicy::Youngest, "o"), (VictimPolicy::None, "")]
    {
        let mut w = World::new();
        let c = w.client();
        w.hold(c, acquire("y"));
        w.hold(c, by("V", "z"));
        w.hold(c, by("o", "k"));
        let waits = if chosen == VictimPolicy::None { VictimPolicy::Requester } else { VictimPolicy::None };
        let o = w.wait(c, policy(by("o", "z"), waits));
        let v = w.wait(c, by("V", "x & y"));
        // o takes x, which V waits for. Now o and V wait for each other.
        w.hold(c, urgent(policy(by("o", "x"), chosen), 5));
        let code = |is_victim: bool| is_victim.then_some(Code::Deadlock);
        assert_eq!((w.refusal(c, o), w.refusal(c, v)), (code(refused == "o"), None), "{chosen:?}");
        let standing = if refused.is_empty() { 2 } else { 0 };
        assert_eq!((w.state.stuck() as u64, w.state.totals().deadlocked), (standing, standing));
        assert_eq!(w.state.totals().deadlocks, 1);
    }
}

#[test]
fn an_owner_outside_the_cycle_is_no_victim() {
    let mut w = World::new();
    let c = w.client();
    w.hold(c, by("S", "s1 & s2"));
    w.hold(c, by("A", "a"));
    w.hold(c, by("V", "b"));
    let a = w.wait(c, by("A", "s1"));
    let v = w.wait(c, by("V", "s2"));
    // The holder of c runs, so S will get c and does not need b. So V waits for S, but S does not wait for V.
    w.hold(c, acquire("c"));
    w.wait(c, policy(by("S", "a & (b | c)"), VictimPolicy::Youngest));
    assert_eq!((w.refusal(c, a), w.refusal(c, v)), (Some(Code::Deadlock), None));
}

#[test]
fn a_waiter_behind_a_standing_deadlock_is_not_rejected() {
    let mut w = World::new();
    let (c, _) = beside_a_standing_deadlock(&mut w);
    // S waits for D1, and V waits for S. S does not need b, which V holds, because c is free.
    w.wait(c, by("S", "d1 & (b | c)"));
    assert_eq!((w.waiting(), w.state.totals().deadlocks), (4, 1));
}

#[test]
fn a_deadlock_beside_one_left_standing_has_its_own_victims() {
    for text in ["d1 & b", "d1 | b"] {
        let mut w = World::new();
        let (c, [_, _, v]) = beside_a_standing_deadlock(&mut w);
        w.wait(c, policy(by("S", text), VictimPolicy::Youngest));
        assert_eq!(w.refusal(c, v), Some(Code::Deadlock), "{text}");
        assert_eq!((w.waiting(), w.state.totals().deadlocks), (3, 2), "{text}");
    }
}

#[test]
fn a_member_of_a_standing_deadlock_is_no_victim_of_a_later_request() {
    // S and D1 wait for each other too. D1 is in a deadlock that was left standing, so it is no victim.
    let mut w = World::new();
    let c = w.client();
    for (owner, own) in [("S", "s"), ("D1", "d1"), ("D2", "d2")] {
        w.hold(c, by(owner, own));
    }
    w.wait(c, by("D1", "d2 & s"));
    w.wait(c, policy(by("D2", "d1"), VictimPolicy::None));
    assert_eq!(w.refused(c, policy(by("S", "d1"), VictimPolicy::Youngest)).code, Code::Deadlock);
    assert_eq!((w.waiting(), w.state.stuck()), (2, 2));
}

#[test]
fn a_waiter_behind_a_standing_deadlock_may_close_another() {
    // q waits for b, which r holds. r and o are in a deadlock that was left standing. Then q takes a shared,
    // and r waits for a.
    let mut w = World::new();
    let c = w.client();
    w.hold(c, by("r", "b"));
    w.hold(c, by("o", "a:shared"));
    w.wait(c, by("o", "b"));
    let q = w.wait(c, by("q", "b"));
    w.wait(c, policy(by("r", "a"), VictimPolicy::None));
    w.hold(c, urgent(by("q", "a:shared"), 1));
    assert_eq!(w.refusal(c, q), Some(Code::Deadlock));
    assert_eq!((w.waiting(), w.state.stuck()), (2, 2));
}

#[test]
fn a_grant_in_a_standing_deadlock_may_close_another() {
    // O and D are in a deadlock that was left standing. O also waits for b, which V holds. Then O takes x,
    // which V waits for.
    for chosen in [VictimPolicy::Requester, VictimPolicy::Youngest, VictimPolicy::None] {
        let mut w = World::new();
        let c = w.client();
        let d = w.hold(c, by("D", "d"));
        w.hold(c, by("O", "k"));
        let b = w.hold(c, by("V", "b"));
        let y = w.hold(c, acquire("y"));
        let o = w.wait(c, by("O", "d & b"));
        let waits = w.wait(c, policy(by("D", "k"), VictimPolicy::None));
        let v = w.wait(c, by("V", "x & y"));
        w.hold(c, urgent(policy(by("O", "x"), chosen), 5));
        assert_eq!(w.state.totals().deadlocks, 2, "{chosen:?}: it is found in the entry that closes it");
        // O is in a deadlock that was left standing, so it is no victim. Only V became stuck by the grant.
        let is_victim = chosen != VictimPolicy::None;
        assert_eq!((w.refusal(c, o), w.refusal(c, v)), (None, is_victim.then_some(Code::Deadlock)));
        w.request(c, Op::Cancel { request: waits });
        w.release(c, d);
        w.release(c, y);
        assert_eq!(w.state.totals().deadlocked, if is_victim { 0 } else { 2 }, "{chosen:?}");
        w.release(c, b);
        assert_eq!(w.granted(c, o).as_deref(), Some("b d"));
    }
}

#[test]
fn a_limit_may_close_a_deadlock_behind_a_standing_one() {
    let mut w = World::new();
    let c = w.client();
    w.limit(c, "pool", 3);
    for (owner, own) in [("D1", "d1"), ("D2", "d2"), ("q", "k"), ("V", "pool")] {
        w.hold(c, by(owner, own));
    }
    w.wait(c, by("D1", "d2"));
    w.wait(c, policy(by("D2", "d1"), VictimPolicy::None));
    let q = w.wait(c, by("q", "d1 & pool"));
    let v = w.wait(c, by("V", "k"));
    w.limit(c, "pool", 1);
    assert_eq!((w.refusal(c, q), w.refusal(c, v)), (Some(Code::Deadlock), None));
    assert_eq!((w.waiting(), w.state.totals().deadlocks), (3, 2));
}

#[test]
fn a_limit_may_close_a_deadlock_with_a_standing_one() {
    // As in the test above, but q itself is in the deadlock that was left standing. Only V is new in a
    // deadlock, so V is rejected.
    let mut w = World::new();
    let c = w.client();
    w.limit(c, "pool", 3);
    for (owner, own) in [("D", "d"), ("q", "k"), ("V", "pool")] {
        w.hold(c, by(owner, own));
    }
    let q = w.wait(c, by("q", "d & pool"));
    w.wait(c, policy(by("D", "k"), VictimPolicy::None));
    let v = w.wait(c, by("V", "k"));
    w.limit(c, "pool", 1);
    assert_eq!((w.refusal(c, q), w.refusal(c, v)), (None, Some(Code::Deadlock)));
    assert_eq!((w.waiting(), w.state.totals().deadlocks), (2, 2));
}

#[test]
fn a_waiter_left_in_a_deadlock_by_a_grant_keeps_its_policy() {
    let mut w = World::new();
    let c = w.client();
    w.limit(c, "pool", 3);
    let y = w.hold(c, acquire("y"));
    w.hold(c, by("V", "z"));
    w.hold(c, by("o", "k"));
    let o = w.wait(c, by("o", "z & pool & y"));
    let v = w.wait(c, by("V", "x & y"));
    // o takes x, which V waits for. Its policy `none` concerns this deadlock only, not later ones.
    w.hold(c, urgent(policy(by("o", "x"), VictimPolicy::None), 5));
    assert_eq!(w.state.totals().deadlocked, 2);
    w.request(c, Op::Cancel { request: v });
    assert_eq!(w.state.totals().deadlocked, 0);
    w.hold(c, by("P", "pool"));
    w.wait(c, by("P", "k"));
    w.limit(c, "pool", 1);
    assert_eq!(w.refusal(c, o), Some(Code::Deadlock));
    w.release(c, y);
}

#[test]
fn an_owner_whose_holds_block_nothing_does_not_overtake() {
    // W waits for d1, which it never gets, and for p and one of the four free permits. R holds the fifth
    // permit.
    for (held, wanted) in [("pool", "pool"), ("n:shared", "n:shared")] {
        let mut w = World::new();
        let (c, _) = beside_a_standing_deadlock(&mut w);
        w.limit(c, "pool", 5);
        w.hold(c, by("R", held));
        w.wait(c, acquire(&format!("p & {wanted} & d1")));
        w.wait(c, by("R", "p"));
        assert_eq!(w.waiting(), 5, "{held}");
    }
}

#[test]
fn an_upgrade_overtakes_the_waiters_that_it_blocks() {
    // On b, q goes before the wide request, because q holds b shared and upgrades. On c, the wide request
    // goes first.
    let mut w = World::new();
    let c = w.client();
    let free = w.hold(c, acquire("c"));
    let wide = w.wait(c, acquire("b:shared & c"));
    let q = w.wait(c, by("q", "b & c"));
    w.hold(c, urgent(by("q", "b:shared"), 1));
    w.release(c, free);
    assert_eq!(w.granted(c, q).as_deref(), Some("b c"));
    w.release(c, q);
    assert_eq!(w.granted(c, wide).as_deref(), Some("b:shared c"));
}
