//! Leases and sessions (docs/service.md 5), retries and reconnection (docs/service.md 7).

use super::*;

// --- 5. Time, sessions, leases

#[test]
fn an_expiry_ends_the_session_and_hands_its_locks_on() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    w.hold(a, acquire("x"));
    let waits = w.wait(a, acquire("y & x"));
    let next = w.wait(b, acquire("x"));
    let effects = w.expire_session(a);
    assert!(effects.contains(&Effect::SessionEnded { session: a.0, cause: EndCause::Expired }));
    assert_eq!(w.granted(b, next).unwrap(), "x");
    assert_eq!(w.answer(a, waits), None);
    assert_eq!(w.refused(a, acquire("z")).code, Code::SessionEnded);
    assert_eq!(
        w.state.totals(),
        query::Totals { sessions: 1, names: 1, grants: 1, files: 1, ..Default::default() }
    );
}

#[test]
fn an_expiry_of_another_term_or_generation_has_no_effect() {
    let mut w = World::new();
    let a = w.client();
    w.hold(a, acquire("x"));
    let lease = |generation| TimerId::Lease { session: a.0, generation };
    w.term = 2;
    assert_eq!(w.apply(Command::Expire { timer: lease(1), term: 1 }), []);
    assert_eq!(w.apply(Command::Expire { timer: lease(2), term: 2 }), []);
    w.done(a, Op::SetTtl { ttl_ms: 500 });
    assert!(w.effects.contains(&Effect::StopTimer { timer: lease(1) }));
    assert!(w.effects.contains(&Effect::StartTimer { timer: lease(2), after_ms: 10_000 }));
    assert_eq!(w.apply(Command::Expire { timer: lease(1), term: 2 }), []);
    assert_eq!(w.state.totals().sessions, 1);
    w.apply(Command::Expire { timer: lease(2), term: 2 });
    assert_eq!(w.state.totals().sessions, 0);
}

#[test]
fn a_shorter_lease_is_counted_once_the_client_is_known_to_have_heard_of_it() {
    let mut w = World::new();
    let a = w.client();
    let lease = |generation| TimerId::Lease { session: a.0, generation };
    let set_ttl = |w: &mut World, id, ttl_ms| {
        w.send_as(a, RequestId(id), RequestId(id), Op::SetTtl { ttl_ms });
        assert_eq!(w.answer(a, RequestId(id)), Some(Answer::Done));
        w.state.timers()
    };
    assert_eq!(set_ttl(&mut w, 1, 2_000), [(lease(2), 10_000)]);
    assert_eq!(w.state.session(a.0).unwrap().ttl_ms, 2_000);
    // The same request again: the client has not received the answer.
    assert_eq!(set_ttl(&mut w, 1, 2_000), [(lease(2), 10_000)]);
    w.send_as(a, RequestId(2), RequestId(2), Op::Limit { name: name("p"), permits: 1 });
    // The new lease starts before the old one stops. So the leader can see the old deadline.
    let changed =
        [Effect::StartTimer { timer: lease(3), after_ms: 2_000 }, Effect::StopTimer { timer: lease(2) }];
    assert_eq!(w.effects[..2], changed);
    assert_eq!(w.state.timers(), [(lease(3), 2_000)]);
    // After several changes, the longest lease that the client may still count by is used. A longer lease
    // counts at once.
    w.send_as(a, RequestId(3), RequestId(2), Op::SetTtl { ttl_ms: 1_000 });
    w.send_as(a, RequestId(4), RequestId(2), Op::SetTtl { ttl_ms: 500 });
    assert_eq!(w.state.timers(), [(lease(5), 2_000)]);
    assert_eq!(set_ttl(&mut w, 5, 3_000), [(lease(7), 3_000)]);
    assert_eq!(State::from_snapshot(&w.state.to_snapshot()).as_ref(), Ok(&w.state));
}

#[test]
fn lock_delay_keeps_names_back_after_an_expiry_and_not_after_a_clean_end() {
    let mut w = World::new();
    let b = w.client();
    for (end, is_clean) in [(Op::Close, true), (acquire("unused"), false)] {
        let a = w.client_with(10_000, 1000);
        w.hold(a, acquire("x"));
        let next = w.wait(b, acquire("x"));
        if is_clean {
            w.done(a, end);
        } else {
            w.expire_session(a);
            assert_eq!(w.granted(b, next), None);
            let timer = TimerId::LockDelay { session: a.0, generation: w.index };
            assert!(w.effects.contains(&Effect::StartTimer { timer, after_ms: 1000 }));
            assert!(w.state.timers().contains(&(timer, 1000)));
            w.expire(TimerId::LockDelay { session: a.0, generation: 1 });
            assert_eq!(w.granted(b, next), None);
            w.expire(timer);
        }
        assert_eq!(w.granted(b, next).unwrap(), "x");
        w.release(b, next);
    }
}

#[test]
fn a_session_ended_by_an_operator_is_an_unclean_end() {
    let mut w = World::new();
    let (a, b) = (w.client_with(10_000, 1000), w.client());
    w.hold(a, acquire("x"));
    w.done(b, Op::EndSession { session: a.0 });
    assert!(w.effects.contains(&Effect::SessionEnded { session: a.0, cause: EndCause::Ended }));
    w.wait(b, acquire("x"));
    assert_eq!(w.refused(b, Op::EndSession { session: a.0 }).code, Code::SessionEnded);
    // A name can be broken during its lock-delay.
    w.done(b, Op::Break { name: name("x"), reason: String::new() });
    assert_eq!(w.waiting(), 0);
}

#[test]
fn wait_at_most_is_ended_by_an_entry_of_its_own_generation() {
    let mut w = World::new();
    let a = w.client();
    w.hold(a, acquire("x"));
    let waits = w.wait(a, at_most(acquire("x"), 250));
    let ticket = Ticket(w.index);
    let timer = TimerId::Wait { session: a.0, request: waits, ticket };
    assert!(w.effects.contains(&Effect::StartTimer { timer, after_ms: 250 }));
    assert!(w.state.timers().contains(&(timer, 250)));
    w.expire(TimerId::Wait { session: a.0, request: waits, ticket: Ticket(ticket.0 + 1) });
    assert_eq!(w.waiting(), 1);
    w.expire(timer);
    assert_eq!(w.refusal(a, waits), Some(Code::TimedOut));
    assert!(w.effects.contains(&Effect::StopTimer { timer }));
    assert_eq!(w.expire(timer), []);
}

#[test]
fn deadline_against_grant_is_decided_by_the_log() {
    let mut w = World::new();
    let a = w.client();
    let x = w.hold(a, acquire("x"));
    let waits = w.wait(a, at_most(acquire("x"), 250));
    let timer = TimerId::Wait { session: a.0, request: waits, ticket: Ticket(w.index) };
    w.release(a, x);
    assert_eq!(w.granted(a, waits).unwrap(), "x");
    assert!(w.effects.contains(&Effect::StopTimer { timer }));
    w.expire(timer);
    assert_eq!(w.state.totals().grants, 1);
}

#[test]
fn a_cancel_that_finds_the_grant_made_releases_it_in_the_same_entry() {
    let mut w = World::new();
    let a = w.client();
    let x = w.hold(a, acquire("x"));
    let next = w.wait(a, acquire("x"));
    let (_, answer) = w.request(a, Op::Cancel { request: x });
    assert_eq!(answer, Answer::Cancelled { released: true });
    assert_eq!(w.granted(a, next).unwrap(), "x");
    // A retry of the acquire is rejected as cancelled, not granted.
    w.send_as(a, x, RequestId(0), acquire("x"));
    assert_eq!(w.refusal(a, x), Some(Code::Cancelled));
}

#[test]
fn an_acquire_that_arrives_after_its_cancel_is_not_granted() {
    let mut w = World::new();
    let a = w.client();
    let late = RequestId(50);
    w.send_as(a, RequestId(51), RequestId(50), Op::Cancel { request: late });
    w.send_as(a, late, RequestId(50), acquire("x"));
    assert_eq!(w.refusal(a, late), Some(Code::Cancelled));
    assert_eq!(w.state.totals().grants, 0);
}

#[test]
fn a_new_leader_finds_every_timer_in_full() {
    let mut w = World::new();
    let a = w.client_with(3000, 0);
    let timers = w.state.timers();
    assert_eq!(timers, [(TimerId::Lease { session: a.0, generation: 1 }, 3000)]);
}

#[test]
fn sessions_out_of_bounds_are_refused() {
    let mut w = World::new();
    let open = OpenSession { secret: 1, ttl_ms: 1000, lock_delay_ms: 0, label: String::new() };
    for bad in [
        OpenSession { ttl_ms: 0, ..open.clone() },
        OpenSession { ttl_ms: u64::MAX, ..open.clone() },
        OpenSession { lock_delay_ms: u64::MAX, ..open.clone() },
        OpenSession { label: "x".repeat(257), ..open.clone() },
    ] {
        let effects = w.apply(Command::OpenSession(bad));
        let [Effect::SessionRefused { secret: 1, error }] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(error.code, Code::InvalidArgument);
    }
    assert_eq!(w.state.totals().sessions, 0);
}

// --- 7. Retries and reconnection

#[test]
fn a_session_is_resumed_with_its_secret_only() {
    let mut w = World::new();
    let a = w.client();
    let secret = (a.0.0 as u128 - 1) << 64 | 7;
    assert_eq!(w.state.authenticate(a.0, secret).unwrap().session, a.0);
    assert_eq!(w.state.authenticate(a.0, secret + 1).unwrap_err().code, Code::WrongSecret);
    assert_eq!(w.state.authenticate(SessionId(1), secret).unwrap_err().code, Code::SessionEnded);
}

#[test]
fn a_retry_gets_the_same_answer_and_takes_effect_once() {
    let mut w = World::new();
    let a = w.client();
    let (x, answer) = w.lock(a, "x");
    w.send_as(a, x, RequestId(0), acquire("x"));
    assert_eq!(w.answer(a, x), Some(answer));
    assert_eq!(w.state.totals().grants, 1);
    let (release, _) = w.request(a, Op::Release { grant: x });
    w.hold(a, acquire("x"));
    w.send_as(a, release, RequestId(0), Op::Release { grant: x });
    assert_eq!(w.answer(a, release), Some(Answer::Done));
    assert_eq!(w.state.totals().grants, 1);
}

#[test]
fn a_retried_acquire_that_waits_keeps_its_place() {
    let mut w = World::new();
    let a = w.client();
    let x = w.hold(a, acquire("x"));
    let (first, second) = (w.wait(a, acquire("x")), w.wait(a, acquire("x")));
    w.send_as(a, first, RequestId(0), acquire("x"));
    let Some(Answer::Queued(position)) = w.answer(a, first) else { panic!("{:?}", w.effects) };
    assert_eq!((position.ahead, position.holders[0].name.as_str()), (0, "x"));
    assert_eq!(position.holders[0].holder.owner, format!("request {x} of session {}", a.0));
    w.release(a, x);
    assert_eq!(w.granted(a, first).unwrap(), "x");
    assert_eq!(w.answer(a, second), None);
}

#[test]
fn queued_tells_the_position() {
    let mut w = World::new();
    let a = w.client();
    w.hold(a, acquire("x"));
    for expected in 0..5 {
        let (_, answer) = w.lock(a, "x");
        assert!(matches!(&answer, Answer::Queued(position) if position.ahead == expected), "{answer:?}");
    }
    let (_, answer) = w.request(a, urgent(acquire("x"), 1));
    assert!(matches!(&answer, Answer::Queued(position) if position.ahead == 0), "{answer:?}");
}

#[test]
fn answers_older_than_the_lowest_unanswered_are_forgotten() {
    let mut w = World::new();
    let a = w.client();
    let x = w.hold(a, acquire("x"));
    w.send_as(a, RequestId(10), RequestId(10), Op::Limit { name: name("p"), permits: 1 });
    assert_eq!(w.state.sessions[&a.0].unanswered(), 1);
    // The answer is forgotten, but the grant exists. So a retry is granted.
    w.send_as(a, x, RequestId(0), acquire("x"));
    assert_eq!(w.granted(a, x).unwrap(), "x");
    w.send_as(a, RequestId(11), RequestId(10), Op::Release { grant: x });
    assert_eq!(w.answer(a, RequestId(11)), Some(Answer::Done));
    w.send_as(a, x, RequestId(0), acquire("x"));
    assert_eq!(w.refusal(a, x), Some(Code::Forgotten));
}

#[test]
fn at_most_1024_unanswered_then_a_clear_error() {
    let mut w = World::new();
    let a = w.client();
    let limit = |permits| Op::Limit { name: name("p"), permits };
    for id in 0..1024 {
        w.send_as(a, RequestId(id), RequestId(0), limit(1));
        let before = (id > 0).then_some(1);
        assert_eq!(w.answer(a, RequestId(id)), Some(Answer::Limited { before }));
    }
    w.send_as(a, RequestId(1024), RequestId(0), limit(2));
    assert_eq!(w.refusal(a, RequestId(1024)), Some(Code::TooManyUnanswered));
    w.send_as(a, RequestId(1024), RequestId(1), limit(2));
    assert_eq!(w.answer(a, RequestId(1024)), Some(Answer::Limited { before: Some(1) }));
}

#[test]
fn a_session_at_its_limit_can_still_release() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let (x, y) = (w.hold(a, acquire("x")), w.hold(a, acquire("y")));
    let ids = || (10_000..).map(RequestId);
    for id in ids().take(1022) {
        w.send_as(a, id, RequestId(0), Op::Limit { name: name("p"), permits: 1 });
    }
    assert_eq!(w.refused(a, acquire("z")).code, Code::TooManyUnanswered);
    let next = w.wait(b, acquire("x & y"));
    w.release(a, x);
    let (_, answer) = w.request(a, Op::Cancel { request: y });
    assert_eq!(answer, Answer::Cancelled { released: true });
    assert_eq!(w.granted(b, next).unwrap(), "x y");
    // Releases have a limit as well.
    for id in ids().skip(1022).take(1022) {
        w.send_as(a, id, RequestId(0), Op::Release { grant: x });
        assert_eq!(w.refusal(a, id), Some(Code::NotHeld));
    }
    assert_eq!(w.refused(a, Op::Close).code, Code::TooManyUnanswered);
    w.send_as(a, RequestId(20_000), RequestId(20_000), Op::Close);
    assert_eq!(w.state.totals().sessions, 1);
}

#[test]
fn the_oldest_of_too_many_late_answers_is_forgotten() {
    let mut w = World::new();
    let a = w.client();
    let ids: Vec<RequestId> = (10..1035).map(RequestId).collect();
    w.hold(a, acquire("x"));
    for id in &ids {
        w.send_as(a, *id, *id, acquire("x"));
    }
    // The answers come in descending order of the numbers: the last answer has the lowest number.
    for (cancel, id) in (2_000..).map(RequestId).zip(ids.iter().rev()) {
        w.send_as(a, cancel, cancel, Op::Cancel { request: *id });
    }
    let again = |w: &mut World, id| {
        w.send_as(a, id, RequestId(0), acquire("x"));
        w.refusal(a, id).unwrap()
    };
    assert!(ids[..1024].iter().all(|id| again(&mut w, *id) == Code::Cancelled));
    assert_eq!(again(&mut w, ids[1024]), Code::Forgotten);
}

#[test]
fn an_acquire_that_holds_is_never_forgotten() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let names: Vec<String> = (0..1025).map(|number| format!("n{number}")).collect();
    let ids = || (1..).map(RequestId);
    for (id, name) in ids().zip(&names) {
        w.send_as(b, id, id, acquire(name));
        w.send_as(a, id, id, acquire(name));
    }
    w.send_as(a, RequestId(9_000), RequestId(9_000), Op::Limit { name: name("p"), permits: 1 });
    w.send_as(b, RequestId(9_000), RequestId(9_000), Op::Close);
    for (id, name) in ids().zip(&names) {
        w.send_as(a, id, RequestId(0), acquire(name));
        assert_eq!(w.granted(a, id).as_ref(), Some(name));
    }
}

#[test]
fn a_client_that_resumes_learns_of_a_break() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let (heard, unheard) = (w.hold(a, acquire("x")), w.hold(a, acquire("y & z")));
    let broken = |grant, of: &str| Broken { grant, name: name(of), reason: "stuck".into() };
    for of in ["x", "y"] {
        w.done(b, Op::Break { name: name(of), reason: "stuck".into() });
    }
    let known: Vec<Broken> = w.state.broken(a.0).cloned().collect();
    assert_eq!(known, [broken(heard, "x"), broken(unheard, "y")]);
    assert_eq!(State::from_snapshot(&w.state.to_snapshot()).as_ref(), Ok(&w.state));
    // A retry of an acquire that holds nothing any more is rejected.
    w.send_as(a, heard, RequestId(0), acquire("x"));
    let Some(Answer::Refused(error)) = w.answer(a, heard) else { panic!("{:?}", w.effects) };
    assert_eq!(error.code, Code::NotHeld);
    assert!(error.message.contains("x was taken away: stuck"), "{error}");
    // A retry of an acquire that still holds a name is granted, and the break is sent again.
    w.send_as(a, unheard, RequestId(0), acquire("y & z"));
    assert!(w.granted(a, unheard).is_some());
    assert_eq!(w.effects.last(), Some(&Effect::broken(a.0, broken(unheard, "y"))));
    // A release acknowledges the break.
    assert_eq!(w.refused(a, Op::Release { grant: heard }).code, Code::NotHeld);
    w.release(a, unheard);
    assert_eq!(w.state.broken(a.0).count(), 0);
}

#[test]
fn a_late_grant_that_was_broken_is_not_sent_again() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let x = w.hold(b, acquire("x"));
    let waits = w.wait(a, acquire("x"));
    w.send_as(a, RequestId(100), RequestId(100), Op::Limit { name: name("p"), permits: 1 });
    w.release(b, x);
    assert!(w.granted(a, waits).is_some());
    w.done(b, Op::Break { name: name("x"), reason: String::new() });
    w.send_as(a, waits, RequestId(100), acquire("x"));
    assert_eq!(w.refusal(a, waits), Some(Code::NotHeld));
}

#[test]
fn the_oldest_break_is_forgotten_beyond_the_limit() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let grants: Vec<RequestId> = (0..session::MAX_BROKEN as u64 + 1)
        .map(|id| {
            w.send_as(a, RequestId(5_000 + id), RequestId(5_000 + id), acquire("x"));
            w.send_as(
                b,
                RequestId(5_000 + id),
                RequestId(5_000 + id),
                Op::Break { name: name("x"), reason: String::new() },
            );
            RequestId(5_000 + id)
        })
        .collect();
    assert!(w.state.broken(a.0).map(|broken| broken.grant).eq(grants[1..].iter().copied()));
}

#[test]
fn a_session_with_many_waits_can_still_release_and_cancel() {
    let mut w = World::new();
    let a = w.client();
    let x = w.hold(a, acquire("x"));
    let waits: Vec<RequestId> = (0..1100).map(|_| w.wait(a, acquire("x"))).collect();
    w.release(a, x);
    assert_eq!(w.granted(a, waits[0]).unwrap(), "x");
    let (_, answer) = w.request(a, Op::Cancel { request: waits[1] });
    assert_eq!(answer, Answer::Cancelled { released: false });
}

#[test]
fn an_acquire_that_was_queued_is_remembered_below_the_lowest_too() {
    let mut w = World::new();
    let a = w.client();
    let x = w.hold(a, acquire("x"));
    let (waits, refused) = (w.wait(a, acquire("x")), w.wait(a, acquire("x")));
    // The client counts `queued` as the answer, and sends more requests than may be unanswered.
    for id in 100..1300 {
        w.send_as(a, RequestId(id), RequestId(id), Op::Limit { name: name("p"), permits: 1 });
        let before = (id > 100).then_some(1);
        assert_eq!(w.answer(a, RequestId(id)), Some(Answer::Limited { before }));
    }
    w.send_as(a, waits, RequestId(1300), acquire("x"));
    assert!(matches!(w.answer(a, waits), Some(Answer::Queued(_))));
    w.send_as(a, RequestId(1300), RequestId(1300), Op::Cancel { request: refused });
    w.send_as(a, RequestId(1301), RequestId(1301), Op::Release { grant: x });
    assert_eq!(w.granted(a, waits).unwrap(), "x");
    w.send_as(a, RequestId(1302), RequestId(1302), Op::Limit { name: name("p"), permits: 1 });
    w.send_as(a, waits, RequestId(1302), acquire("x"));
    assert_eq!(w.granted(a, waits).unwrap(), "x");
    w.send_as(a, refused, RequestId(1302), acquire("x"));
    assert_eq!(w.refusal(a, refused), Some(Code::Cancelled));
    assert_eq!(w.state.totals().grants, 1);
}

#[test]
fn an_entry_applied_twice_has_no_effect() {
    let mut w = World::new();
    let a = w.client();
    w.hold(a, acquire("x"));
    let before = w.state.clone();
    let at = Position { index: w.index, term: 1, wall_ms: 0 };
    let effects = w.state.apply(at, Command::SingleNodeRestarted { fences: 9 });
    assert_eq!(effects, []);
    assert_eq!(w.state, before);
}

#[test]
fn a_name_that_is_not_held_cannot_be_released_or_downgraded() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let x = w.hold(a, acquire("x"));
    let waits = w.wait(b, acquire("x"));
    assert_eq!(w.refused(b, Op::Release { grant: x }).code, Code::NotHeld);
    assert_eq!(w.refused(b, Op::Release { grant: waits }).code, Code::NotHeld);
    assert_eq!(w.refused(b, Op::Downgrade { grant: waits }).code, Code::NotHeld);
    w.release(a, x);
    assert_eq!(w.refused(a, Op::Release { grant: x }).code, Code::NotHeld);
}

#[test]
fn an_ended_session_with_a_lock_delay_counts_as_a_session() {
    let mut state = State::new();
    let delay = Delay { generation: 1, after_ms: 1000, grants: BTreeSet::new() };
    state.delays = (0..MAX_SESSIONS as u64).map(|id| (SessionId(id), delay.clone())).collect();
    let open = OpenSession { secret: 1, ttl_ms: 1000, lock_delay_ms: 0, label: String::new() };
    let open = |state: &mut State, index| {
        state.apply(Position { index, term: 1, wall_ms: 0 }, Command::OpenSession(open.clone()))
    };
    assert!(matches!(open(&mut state, 1)[..], [Effect::SessionRefused { .. }]));
    state.delays.pop_first();
    assert!(matches!(open(&mut state, 2)[..], [Effect::SessionOpened { .. }, _]));
}
