//! Expressions, owners, the order of grants, and fences (docs/service.md 1, 2, 3 and 6).

use super::*;

// --- 1. Expressions

#[test]
fn the_choice_is_leftmost_first_and_minimal() {
    let mut w = World::new();
    let a = w.client();
    let (first, _) = w.lock(a, "x | y | z");
    assert_eq!(w.granted(a, first).unwrap(), "x");
    let (second, _) = w.lock(a, "x | y | z");
    assert_eq!(w.granted(a, second).unwrap(), "y");
    let (third, _) = w.lock(a, "2 of (x & q, p, r, s)");
    assert_eq!(w.granted(a, third).unwrap(), "p r");
}

#[test]
fn an_expression_is_granted_whole_or_not_at_all() {
    let mut w = World::new();
    let a = w.client();
    let x = w.hold(a, acquire("x"));
    let both = w.wait(a, acquire("y & x"));
    assert_eq!(w.state.locks("", None, 10).items.iter().map(|lock| lock.holders_total).sum::<u64>(), 1);
    w.release(a, x);
    assert_eq!(w.granted(a, both).unwrap(), "x y");
}

#[test]
fn a_name_twice_in_the_chosen_set_merges_modes_and_adds_permits() {
    let mut w = World::new();
    let a = w.client();
    w.limit(a, "pool", 5);
    let (id, _) = w.lock(a, "m:shared & m & pool*2 & pool");
    assert_eq!(w.granted(a, id).unwrap(), "m pool*3");
}

#[test]
fn permits_that_stand_in_each_others_way_are_chosen_right() {
    let mut w = World::new();
    let a = w.client();
    w.limit(a, "pool", 3);
    let (id, _) = w.lock(a, "(pool*2 | x) & pool*2");
    assert_eq!(w.granted(a, id).unwrap(), "pool*2 x");
}

#[test]
fn permits_of_a_name_without_a_limit_are_refused_saying_so() {
    let mut w = World::new();
    let a = w.client();
    let error = w.refused(a, acquire("pool*3"));
    assert_eq!(error.code, Code::NotASemaphore);
    assert!(error.message.contains("pool is not a semaphore"), "{error}");
    assert_eq!(w.state.totals().names, 0);
}

#[test]
fn a_plain_name_on_a_semaphore_is_one_permit() {
    let mut w = World::new();
    let a = w.client();
    w.limit(a, "pool", 2);
    let (id, _) = w.lock(a, "pool");
    assert_eq!(w.granted(a, id).unwrap(), "pool*1");
    w.hold(a, acquire("pool"));
    w.wait(a, acquire("pool"));
}

#[test]
fn a_limit_reports_the_limit_before() {
    let mut w = World::new();
    let a = w.client();
    let pool = name("pool");
    let set = |w: &mut World, permits| {
        let before = w.limited(a, &pool, permits);
        let changes = w.effects.iter().filter(|effect| matches!(effect, Effect::Changed(_))).count();
        (before, changes)
    };
    assert_eq!(set(&mut w, 0), (None, 0), "it was not a semaphore");
    assert_eq!(set(&mut w, 3), (None, 1));
    assert_eq!(set(&mut w, 3), (Some(3), 0));
    assert_eq!(set(&mut w, 5), (Some(3), 1));
    assert_eq!(set(&mut w, 0), (Some(5), 1));
    assert_eq!(set(&mut w, 2), (None, 1));
}

#[test]
fn a_lock_that_an_ended_session_keeps_back_does_not_become_a_semaphore() {
    let mut w = World::new();
    let (a, b) = (w.client_with(10_000, 1_000), w.client());
    w.hold(a, acquire("x"));
    w.done(b, Op::EndSession { session: a.0 });
    let limit = Op::Limit { name: name("x"), permits: 2 };
    assert_eq!(w.refused(b, limit.clone()).code, Code::WrongKind, "its lock-delay runs");
    let delay = w.state.timers().into_iter().find(|(timer, _)| matches!(timer, TimerId::LockDelay { .. }));
    w.expire(delay.unwrap().0);
    assert_eq!(w.request(b, limit).1, Answer::Limited { before: None });
}

#[test]
fn a_name_is_a_lock_or_a_semaphore_for_its_life() {
    let mut w = World::new();
    let a = w.client();
    let x = w.hold(a, acquire("x"));
    assert_eq!(w.refused(a, Op::Limit { name: name("x"), permits: 2 }).code, Code::WrongKind);
    w.limit(a, "pool", 2);
    assert_eq!(w.refused(a, acquire("pool:shared")).code, Code::WrongKind);
    w.release(a, x);
    w.limit(a, "x", 2);
    w.limit(a, "x", 0);
    let (shared, _) = w.lock(a, "x:shared");
    assert_eq!(w.granted(a, shared).unwrap(), "x:shared");
}

#[test]
fn a_request_that_can_never_be_satisfied_is_refused_at_once() {
    let mut w = World::new();
    let a = w.client();
    w.limit(a, "pool", 2);
    assert_eq!(w.refused(a, acquire("pool*3")).code, Code::Impossible);
    assert_eq!(w.refused(a, acquire("pool*2 & pool")).code, Code::Impossible);
    w.hold(a, acquire("pool*3 | y"));
}

#[test]
fn lowering_a_limit_refuses_the_waiters_it_makes_impossible_and_no_others() {
    let mut w = World::new();
    let a = w.client();
    w.limit(a, "pool", 4);
    let held = w.hold(a, acquire("pool*2"));
    let three = w.wait(a, acquire("pool*3"));
    let two = w.wait(a, acquire("pool*2"));
    w.hold(a, acquire("busy"));
    let other = w.wait(a, acquire("pool*4 | busy"));
    w.limit(a, "pool", 2);
    assert_eq!(w.refusal(a, three), Some(Code::Impossible));
    assert_eq!(w.refusal(a, two), None);
    assert_eq!(w.refusal(a, other), None);
    w.release(a, held);
    assert_eq!(w.granted(a, two).unwrap(), "pool*2");
}

#[test]
fn raising_a_limit_grants_waiters() {
    let mut w = World::new();
    let a = w.client();
    w.limit(a, "pool", 1);
    w.hold(a, acquire("pool"));
    let (b, c) = (w.wait(a, acquire("pool")), w.wait(a, acquire("pool")));
    w.limit(a, "pool", 2);
    assert_eq!(w.granted(a, b).unwrap(), "pool*1");
    assert_eq!(w.granted(a, c), None);
}

#[test]
fn a_limit_below_the_held_permits_releases_none() {
    let mut w = World::new();
    let a = w.client();
    w.limit(a, "pool", 3);
    let (one, two) = (w.hold(a, acquire("pool")), w.hold(a, acquire("pool*2")));
    w.limit(a, "pool", 1);
    let next = w.wait(a, acquire("pool"));
    w.release(a, one);
    assert_eq!(w.granted(a, next), None);
    w.release(a, two);
    assert_eq!(w.granted(a, next).unwrap(), "pool*1");
}

// --- 2. Owners

#[test]
fn two_plain_requests_of_one_client_exclude_each_other() {
    let mut w = World::new();
    let a = w.client();
    let first = w.hold(a, acquire("x"));
    let second = w.wait(a, acquire("x"));
    w.release(a, first);
    assert_eq!(w.granted(a, second).unwrap(), "x");
}

#[test]
fn holds_of_an_owner_are_reentrant_and_counted() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let once = w.hold(a, by("o", "x"));
    let twice = w.hold(a, by("o", "x"));
    let other = w.wait(b, acquire("x"));
    w.release(a, once);
    assert_eq!(w.granted(b, other), None);
    w.release(a, twice);
    assert_eq!(w.granted(b, other).unwrap(), "x");
}

#[test]
fn labels_of_different_sessions_are_different_owners() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    w.hold(a, by("o", "x"));
    w.wait(b, by("o", "x"));
}

#[test]
fn holding_a_and_asking_a_and_b_waits_for_b_only() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    w.hold(a, by("o", "x"));
    let y = w.hold(b, acquire("y"));
    let both = w.wait(a, by("o", "x & y"));
    w.release(b, y);
    assert_eq!(w.granted(a, both).unwrap(), "x y");
}

#[test]
fn holding_a_and_asking_a_or_b_is_satisfied_at_once() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    w.hold(a, by("o", "x"));
    w.wait(b, acquire("x & y"));
    let (either, _) = w.lock(a, "q");
    assert!(w.granted(a, either).is_some());
    let (id, _) = w.request(a, by("o", "x | y"));
    assert_eq!(w.granted(a, id).unwrap(), "x");
}

#[test]
fn an_owner_waits_for_one_request_at_a_time() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    w.hold(b, acquire("x & y"));
    w.wait(a, by("o", "x"));
    let error = w.refused(a, by("o", "y"));
    assert_eq!(error.code, Code::OwnerBusy);
    assert!(error.message.contains("already waits"), "{error}");
    // A request that is granted at once does not count as a second waiting request.
    w.hold(a, by("o", "z"));
    w.wait(a, by("p", "y"));
}

#[test]
fn a_grant_to_a_waiting_owner_may_satisfy_its_other_request() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    w.hold(b, acquire("x"));
    w.wait(b, acquire("x & c"));
    let waits = w.wait(a, by("o", "c"));
    let (urgently, _) = w.request(a, urgent(by("o", "c"), 9));
    assert_eq!(w.granted(a, urgently).unwrap(), "c");
    assert_eq!(w.granted(a, waits).unwrap(), "c");
}

#[test]
fn permits_are_never_reentrant() {
    let mut w = World::new();
    let a = w.client();
    w.limit(a, "pool", 6);
    w.hold(a, by("o", "pool*3"));
    w.hold(a, by("o", "pool*3"));
    w.wait(a, acquire("pool"));
}

#[test]
fn an_owner_that_waits_for_its_own_permits_is_a_deadlock() {
    let mut w = World::new();
    let a = w.client();
    w.limit(a, "pool", 5);
    w.hold(a, by("o", "pool*3"));
    assert_eq!(w.refused(a, by("o", "pool*3")).code, Code::Deadlock);
}

#[test]
fn an_upgrade_goes_before_all_waiters_of_that_name() {
    let mut w = World::new();
    let (a, b, c) = (w.client(), w.client(), w.client());
    w.hold(a, by("o", "x:shared"));
    let s = w.hold(b, acquire("x:shared"));
    let q = w.wait(c, urgent(acquire("x"), 9));
    let up = w.wait(a, by("o", "x"));
    w.wait(c, acquire("x:shared"));
    w.release(b, s);
    assert_eq!(w.granted(a, up).unwrap(), "x");
    assert_eq!(w.granted(c, q), None);
}

#[test]
fn an_upgrade_of_a_guard_without_a_label_names_its_grant() {
    let mut w = World::new();
    let a = w.client();
    let shared = w.hold(a, acquire("x:shared"));
    let upgrade = w.hold(a, with(acquire("x"), |acquire| acquire.owner = Owner::OfGrant(shared)));
    let other = w.wait(a, acquire("x:shared"));
    w.release(a, upgrade);
    assert_eq!(w.granted(a, other).unwrap(), "x:shared");
    let missing = with(acquire("x"), |acquire| acquire.owner = Owner::OfGrant(upgrade));
    assert_eq!(w.refused(a, missing).code, Code::NotHeld);
}

#[test]
fn two_upgraders_are_a_deadlock() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    w.hold(a, by("o", "x:shared"));
    let held = w.hold(b, by("o", "x:shared"));
    let first = w.wait(a, by("o", "x"));
    let error = w.refused(b, by("o", "x"));
    assert_eq!(error.code, Code::Deadlock);
    w.release(b, held);
    assert_eq!(w.granted(a, first).unwrap(), "x");
}

#[test]
fn an_upgrader_that_gives_its_shared_hold_back_is_an_ordinary_waiter() {
    let mut w = World::new();
    let (a, b, c) = (w.client(), w.client(), w.client());
    let mine = w.hold(a, by("o", "x:shared"));
    w.hold(b, acquire("x:shared"));
    let up = w.wait(a, by("o", "x"));
    w.release(a, mine);
    assert_eq!(w.granted(a, up), None);
    // The former upgrader is an ordinary waiter now, and a later request must not pass it.
    assert_eq!(w.refused(c, try_now(acquire("x:shared"))).code, Code::WouldWait);
}

#[test]
fn a_downgrade_lets_the_others_share() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let x = w.hold(a, acquire("x"));
    let fence = w.fence(a, x);
    let (s, t) = (w.wait(b, acquire("x:shared")), w.wait(b, acquire("x")));
    let (_, answer) = w.request(a, Op::Downgrade { grant: x });
    let Answer::Granted(granted) = answer else { panic!("{answer:?}") };
    assert_eq!((print(&granted).as_str(), granted.fence()), ("x:shared", fence));
    assert_eq!(w.granted(b, s).unwrap(), "x:shared");
    assert_eq!(w.granted(b, t), None);
}

// --- 3. The order of grants

#[test]
fn waiters_are_served_by_priority_then_by_entry() {
    let mut w = World::new();
    let a = w.client();
    let mut held = w.hold(a, acquire("x"));
    let (p, q) = (w.wait(a, acquire("x")), w.wait(a, acquire("x")));
    let (r, s) = (w.wait(a, urgent(acquire("x"), 5)), w.wait(a, urgent(acquire("x"), -5)));
    for next in [r, p, q, s] {
        w.release(a, held);
        assert_eq!(w.granted(a, next).unwrap(), "x");
        held = next;
    }
}

#[test]
fn a_waiter_claims_all_names_of_its_expression_against_those_after_it() {
    let mut w = World::new();
    let a = w.client();
    let x = w.hold(a, acquire("x"));
    let wide = w.wait(a, acquire("x & y & z"));
    let y = w.wait(a, acquire("y"));
    let z = w.wait(a, acquire("z:shared"));
    w.release(a, x);
    assert_eq!(w.granted(a, wide).unwrap(), "x y z");
    w.release(a, wide);
    assert_eq!(w.granted(a, y).unwrap(), "y");
    assert_eq!(w.granted(a, z).unwrap(), "z:shared");
}

#[test]
fn claims_are_in_modes_and_counts() {
    let mut w = World::new();
    let a = w.client();
    w.limit(a, "pool", 5);
    w.hold(a, acquire("x"));
    w.wait(a, acquire("x & y:shared & pool*3"));
    w.hold(a, acquire("y:shared & pool*2"));
    w.wait(a, acquire("pool"));
    w.wait(a, acquire("y"));
}

#[test]
fn a_try_obeys_claims_too() {
    let mut w = World::new();
    let a = w.client();
    w.hold(a, acquire("x"));
    w.wait(a, acquire("x & y"));
    let error = w.refused(a, try_now(acquire("y")));
    assert_eq!(error.code, Code::WouldWait);
    assert!(error.message.contains("others wait for y"), "{error}");
    assert!(w.refused(a, try_now(acquire("x"))).message.contains("x is held by request"));
    assert_eq!(w.waiting(), 1);
}

#[test]
fn a_grant_drops_the_claims_on_alternatives_not_taken() {
    let mut w = World::new();
    let a = w.client();
    let (x, _z) = (w.hold(a, acquire("x")), w.hold(a, acquire("z")));
    let either = w.wait(a, acquire("x & w | y & z"));
    let y = w.wait(a, acquire("y"));
    w.release(a, x);
    assert_eq!(w.granted(a, either).unwrap(), "w x");
    assert_eq!(w.granted(a, y).unwrap(), "y");
}

#[test]
fn a_cancel_lets_those_behind_its_claims_proceed() {
    let mut w = World::new();
    let a = w.client();
    w.hold(a, acquire("x"));
    let wide = w.wait(a, acquire("x & y"));
    let (s, t) = (w.wait(a, acquire("y:shared")), w.wait(a, acquire("y:shared")));
    let (_, answer) = w.request(a, Op::Cancel { request: wide });
    assert_eq!(answer, Answer::Cancelled { released: false });
    assert_eq!(w.refusal(a, wide), Some(Code::Cancelled));
    assert_eq!(w.granted(a, s).unwrap(), "y:shared");
    assert_eq!(w.granted(a, t).unwrap(), "y:shared");
}

#[test]
fn readers_behind_a_waiting_writer_wait() {
    let mut w = World::new();
    let a = w.client();
    let reader = w.hold(a, acquire("x:shared"));
    let writer = w.wait(a, acquire("x"));
    let later = w.wait(a, acquire("x:shared"));
    w.release(a, reader);
    assert_eq!(w.granted(a, writer).unwrap(), "x");
    w.release(a, writer);
    assert_eq!(w.granted(a, later).unwrap(), "x:shared");
}

#[test]
fn a_release_examines_only_those_it_can_help() {
    // 60,000 requests wait for x, and the release of y must not examine them. Quadratic work would take
    // minutes.
    let mut w = World::new();
    let clients: Vec<Client> = (0..60).map(|_| w.client()).collect();
    let mut state = std::mem::take(&mut w.state);
    let mut apply = |client: Client, number: u64, op: Op| {
        w.index += 1;
        let at = Position { index: w.index, term: 1, wall_ms: 0 };
        let request = Request { session: client.0, id: RequestId(number), lowest: RequestId(number), op };
        state.apply(at, Command::Request(request))
    };
    apply(clients[0], 1, acquire("x"));
    for number in 2..1000 {
        for client in &clients {
            apply(*client, number, acquire("x"));
        }
    }
    for number in 1000..6000 {
        apply(clients[0], 2 * number, acquire("y"));
        apply(clients[0], 2 * number + 1, Op::Release { grant: RequestId(2 * number) });
    }
    let mut holder = (clients[0], RequestId(1));
    for number in 20_000..80_000 {
        let client = holder.0;
        let effects = apply(client, number, Op::Release { grant: holder.1 });
        let next = effects.iter().find_map(|effect| match effect {
            Effect::Reply { session, request, answer: Answer::Granted(_), .. } => {
                Some((Client(*session), *request))
            }
            _ => None,
        });
        match next {
            Some(next) => holder = next,
            None => break,
        }
    }
    assert_eq!(state.totals().waiting, 0);
}

// --- 6. Fences

#[test]
fn a_fence_is_the_base_plus_the_index_of_the_entry() {
    let mut w = World::new();
    let a = w.client();
    let x = w.hold(a, acquire("x & y"));
    assert_eq!(w.fence(a, x), Fence(w.index));
    w.release(a, x);
    w.apply(Command::SingleNodeRestarted { fences: 1_000_000 });
    w.apply(Command::SingleNodeRestarted { fences: 5 });
    let x = w.hold(a, acquire("x"));
    assert_eq!(w.fence(a, x), Fence(1_000_005 + w.index));
}

#[test]
fn grants_made_by_one_entry_share_a_fence() {
    let mut w = World::new();
    let a = w.client();
    let x = w.hold(a, acquire("x"));
    let (s, t) = (w.wait(a, acquire("x:shared")), w.wait(a, acquire("x:shared")));
    w.release(a, x);
    assert_eq!(w.fence(a, s), Fence(w.index));
    assert_eq!(w.fence(a, t), Fence(w.index));
}

#[test]
fn a_reentrant_grant_keeps_the_fence_held_and_an_upgrade_gets_a_new_one() {
    let mut w = World::new();
    let a = w.client();
    let shared = w.hold(a, by("o", "x:shared"));
    let again = w.hold(a, by("o", "x:shared"));
    assert_eq!(w.fence(a, again), w.fence(a, shared));
    let up = w.hold(a, by("o", "x"));
    assert!(w.fence(a, up) > w.fence(a, shared));
    let up_again = w.hold(a, by("o", "x & y"));
    let granted = &w.state.grants(a.0).into_iter().find(|(id, _)| *id == up_again).unwrap().1;
    assert_eq!(granted.names[0].fence, w.fence(a, up));
    assert_eq!(granted.names[1].fence, Fence(w.index));
    assert_eq!(granted.fence(), Fence(w.index));
}

// --- break

#[test]
fn breaking_a_name_tells_the_holder_and_is_recorded() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let both = w.hold(a, acquire("x & y"));
    let next = w.wait(b, acquire("x"));
    w.done(b, Op::Break { name: name("x"), reason: "stuck since noon".into() });
    let told =
        Effect::Broken { session: a.0, grant: both, name: name("x"), reason: "stuck since noon".into() };
    assert!(w.effects.contains(&told));
    assert_eq!(w.granted(b, next).unwrap(), "x");
    assert_eq!(print(&w.state.grants(a.0)[0].1), "y");
    assert_eq!(w.state.why(&name("x")).breakings[0].reason, "stuck since noon");
    w.done(b, Op::Break { name: name("y"), reason: "too".into() });
    assert_eq!(w.refused(a, Op::Release { grant: both }).code, Code::NotHeld);
    assert_eq!(w.refused(b, Op::Break { name: name("y"), reason: String::new() }).code, Code::NotHeld);
}

#[test]
fn breaking_a_shared_lock_ends_the_holds_of_all_owners() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    w.hold(a, by("o", "x:shared"));
    w.hold(a, by("o", "x:shared"));
    w.hold(b, acquire("x:shared"));
    let writer = w.wait(b, acquire("x"));
    w.done(b, Op::Break { name: name("x"), reason: String::new() });
    assert_eq!(w.effects.iter().filter(|effect| matches!(effect, Effect::Broken { .. })).count(), 3);
    assert_eq!(w.granted(b, writer).unwrap(), "x");
}

#[test]
fn why_tells_holder_fence_and_queue() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let held = w.hold(a, by("backup", "x"));
    let since = w.index * 1000;
    w.wait(b, urgent(acquire("x & y:shared"), 3));
    let why = w.state.why(&name("x"));
    assert_eq!(why.holders[0].owner, format!("backup of session {}", a.0));
    assert_eq!(why.holders[0].fence, w.fence(a, held));
    assert_eq!(why.holders[0].since_ms, since);
    assert_eq!(why.waiters[0].waits_for, [format!("backup of session {}", a.0)]);
    assert_eq!(why.waiters[0].priority, Priority(3));
    assert_eq!(why.waiters[0].names, ["x", "y:shared"]);
    assert!(!why.waiters[0].stuck);
    assert!(!w.state.why(&name("nothing")).known);
}

#[test]
fn a_name_is_known_until_the_history_has_forgotten_it() {
    let mut w = World::new();
    let a = w.client();
    assert!(!w.state.why(&name("x")).known);
    let x = w.hold(a, acquire("x"));
    w.release(a, x);
    let report = w.state.why(&name("x"));
    assert_eq!((report.known, report.holders_total, report.waiters_total), (true, 0, 0));
    for id in 100..100 + watch::HISTORY_LENGTH as u64 {
        let limit = Op::Limit { name: name("pool"), permits: 1 + (id % 2) as u32 };
        w.send_as(a, RequestId(id), RequestId(id), limit);
    }
    assert!(!w.state.why(&name("x")).known);
    assert!(w.state.why(&name("pool")).known);
}

#[test]
fn why_tells_how_a_name_is_held() {
    let mut w = World::new();
    let a = w.client();
    w.limit(a, "pool", 5);
    w.hold(a, acquire("x & y:shared & pool*3"));
    let claim = |of| w.state.why(&name(of)).holders[0].claim;
    assert_eq!([claim("x"), claim("y"), claim("pool")], [Claim::Exclusive, Claim::Shared, Claim::Permits(3)]);
}

#[test]
fn lists_and_reports_are_cut_to_the_size_of_a_frame() {
    let mut w = World::new();
    let a = w.client();
    let long = |number: usize| format!("{}{number:05}", "x".repeat(500));
    let value = Some(vec![7; MAX_VALUE_BYTES]);
    for number in 0..600 {
        let id = RequestId(number as u64 + 1);
        let value = value.clone().filter(|_| number < 3);
        let op = with(acquire(&long(number)), |acquire| acquire.value = value);
        w.send_as(a, id, id, op);
    }
    let (mut listed, mut after) = (0, None);
    loop {
        let query::Page { items, more } = w.state.locks("", after.as_ref(), 1000);
        // Each holder carries the name on the wire.
        let bytes = items.iter().map(|lock| lock.name.as_str().len() * (1 + lock.holders.len()));
        assert!(bytes.sum::<usize>() <= query::PAGE_BYTES);
        (listed, after) = (listed + items.len(), items.last().map(|lock| lock.name.clone()));
        if !more {
            break;
        }
    }
    assert_eq!(listed, 600);
    assert_eq!(w.state.why(&name(&long(0))).value, value);
    // 100 requests wait, each for the largest number of long names.
    let many = (0..8).map(long).collect::<Vec<_>>().join("&");
    for id in (10_000..10_100).map(RequestId) {
        w.send_as(a, id, id, acquire(&many));
    }
    let why = w.state.why(&name(&long(0)));
    assert_eq!(why.waiters_total, 100);
    let names = why.waiters.iter().flat_map(|waiter| &waiter.names).map(String::len);
    assert!((1..=query::PAGE_BYTES).contains(&names.sum()));
    // A page contains at least one item, even if the item is too large.
    assert_eq!(query::page(1..=3, 10, |_| query::PAGE_BYTES + 1), query::Page { items: vec![1], more: true });
}

#[test]
fn names_are_listed_by_prefix_and_from_page_to_page() {
    let mut w = World::new();
    let a = w.client();
    w.hold(a, acquire("a & b & b/1 & b/2 & b/3 & b-x & c"));
    let listed = |prefix, after: Option<&str>, limit| {
        let locks = w.state.locks(prefix, after.map(name).as_ref(), limit).items;
        locks.iter().map(|lock| lock.name.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(listed("", None, 10), "a b b-x b/1 b/2 b/3 c");
    assert_eq!(listed("b/", None, 10), "b/1 b/2 b/3");
    assert_eq!(listed("b/", None, 2), "b/1 b/2");
    assert_eq!(listed("b/", Some("b/2"), 2), "b/3");
    assert_eq!(listed("b/", Some("b/3"), 2), "");
    assert_eq!(listed("b/", Some("a"), 10), "b/1 b/2 b/3", "a page may begin before the prefix");
    assert_eq!(listed("b/", Some("c"), 10), "");
    assert_eq!(listed("zzz", None, 10), "");
}
