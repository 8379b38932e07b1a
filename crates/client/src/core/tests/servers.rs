//! Useless servers: those that reject, stay silent, or cannot be reached.

use super::*;

#[test]
fn without_a_session_everything_fails_with_the_last_reason_when_patience_is_over() {
    let mut core = connected();
    let (_, mut grant) = acquire(&mut core, ms(0), "x");
    let (_, mut begun) =
        core.watch(ms(0), v1::watch::Target::Lock("x".into()), None, Arc::default()).unwrap();
    let mut now = 0;
    while now < 10_000 {
        assert!(grant.try_recv().is_err() && begun.try_recv().is_err(), "at {now} ms");
        sent(&mut core);
        assert!(!disconnected(&mut core, ms(now + 1)));
        now += 100;
        core.on_connected(ms(now));
    }
    let unreachable = Error::new(Code::Unreachable, "nobody there");
    let (_, mut later) = acquire(&mut core, ms(now), "y");
    core.on_disconnected(ms(now + 1), unreachable.clone());
    assert_eq!(grant.try_recv().unwrap().unwrap_err(), unreachable);
    assert_eq!(begun.try_recv().unwrap().unwrap_err(), unreachable);
    assert!(later.try_recv().is_err(), "it has its own time limit");
    core.on_failed_attempt(ms(now + 10_001), &unreachable);
    assert!(later.try_recv().unwrap().is_err());
}

#[test]
fn with_a_session_there_is_hope_until_the_deadline() {
    let (mut core, held) = holding("x");
    let (_, mut grant) = acquire(&mut core, ms(3), "y");
    sent(&mut core);
    assert!(disconnected(&mut core, ms(4)));
    for at in [100, 9_899] {
        core.on_connected(ms(at));
        goodbye(&mut core, ms(at), Code::NoQuorum);
        assert!(!disconnected(&mut core, ms(at)));
        assert!(grant.try_recv().is_err());
    }
    core.on_connected(ms(9_900));
    goodbye(&mut core, ms(9_900), Code::NoQuorum);
    disconnected(&mut core, ms(9_900));
    let error = grant.try_recv().unwrap().unwrap_err();
    assert_eq!((error.code, error.message.contains("refused")), (Code::Disconnected, true), "{error}");
    assert_eq!(core.grant_state(ms(9_900), held).0, LeaseState::Lost);
    assert_eq!(core.session(), None);
}

#[test]
fn a_server_that_does_not_greet_is_left() {
    let mut core = Core::new(Opening::default(), RETRY_TIMEOUT);
    core.on_connected(ms(0));
    assert_eq!(core.next_tick(ms(0)), Some(SILENCE.0));
    core.on_tick(SILENCE.0 - ms(1));
    assert!(!core.is_silent(SILENCE.0 - ms(1)));
    assert!(core.is_silent(SILENCE.0));
    disconnected(&mut core, SILENCE.0);
    core.on_connected(ms(10_000));
    assert_eq!(core.next_tick(ms(10_000)), Some(ms(10_000) + 2 * SILENCE.0), "it may be slow");
    for round in 0..20 {
        let now = ms(20_000 + round * 100_000);
        core.on_connected(now);
        let silent_at = core.next_tick(now).expect("it is to greet");
        assert!(silent_at <= now + 8 * SILENCE.0, "round {round}");
        assert!(core.is_silent(silent_at));
        disconnected(&mut core, silent_at);
    }
}

#[test]
fn a_client_with_little_patience_leaves_a_silent_server_while_it_has_time_for_another() {
    let retry_timeout = ms(1_500);
    let mut core = Core::new(Opening::default(), retry_timeout);
    core.on_connected(ms(0));
    assert_eq!(core.next_tick(ms(0)), Some(retry_timeout / 4));
    assert!(core.is_silent(retry_timeout / 4));
}

#[test]
fn a_silent_server_with_an_unanswered_request_is_left() {
    let mut core = connected();
    core.on_tick(ms(60_000));
    assert!(!core.is_silent(ms(60_000)), "no request is unanswered");
    assert_eq!(core.next_tick(ms(60_000)), None);
    let ids = [read(&mut core, ms(60_000)), read(&mut core, ms(61_000))];
    assert_eq!(core.next_tick(ms(61_000)), Some(ms(60_000) + SILENCE.1));
    answer(&mut core, ms(63_000), ids[0], v1::answer::Result::Done(v1::Done {}));
    assert_eq!(core.next_tick(ms(63_000)), Some(ms(60_000) + SILENCE.1), "the alarm is not moved");
    core.on_tick(ms(64_000));
    assert!(!core.is_silent(ms(64_000)));
    assert_eq!(core.next_tick(ms(64_000)), Some(ms(63_000) + SILENCE.1), "it is moved after it went off");
    core.on_tick(ms(67_000));
    assert!(core.is_silent(ms(67_000)));
}

#[test]
fn an_opening_without_an_answer_is_left() {
    let mut core = connected();
    let (_, _grant) = acquire(&mut core, ms(100), "x");
    sent(&mut core);
    assert!(!core.is_silent(ms(100) + SILENCE.1 - ms(1)));
    assert!(core.is_silent(ms(100) + SILENCE.1));
}

#[test]
fn with_a_session_the_lease_decides_when_a_server_counts_as_silent() {
    let mut core = connected();
    let (id, _grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    open(&mut core, ms(1));
    answer(&mut core, ms(2), id, v1::answer::Result::Queued(v1::Queued::default()));
    let mut now = ms(2);
    while now < ms(60_000) {
        now = core.next_tick(now).expect("the lease is kept").max(now + ms(1));
        core.on_tick(now);
        assert!(!core.is_silent(now), "at {now:?}");
        keep_alive(&mut core, now);
    }
    now = core.next_tick(now).expect("the lease is kept");
    core.on_tick(now);
    assert_eq!(sent(&mut core).len(), 1);
    let left = core.next_tick(now).expect("it may be silent");
    assert!(core.is_silent(left));
    assert_eq!(core.lease_state, LeaseState::Valid, "not in jeopardy yet");
    assert!(disconnected(&mut core, left), "it was productive until then");
}

#[test]
fn a_server_whose_secret_is_none_is_given_up() {
    let mut core = connected();
    let (_, mut answer) = change(&mut core, ms(0));
    sent(&mut core);
    let opened = v1::Opened { session: 7, secret: vec![0; 17], ttl_ms: 10_000, ..Default::default() };
    core.on_message(ms(1), opened.into());
    assert_eq!(answer.try_recv().unwrap().unwrap_err().code, Code::Disconnected);
    assert_eq!(core.session(), None);
}

#[test]
fn a_session_that_is_being_opened_or_will_be_is_one_to_close() {
    let mut core = connected();
    assert!(!core.has_session());
    read(&mut core, ms(0));
    assert!(!core.has_session(), "a client that only reads has none");
    let (_, _grant) = acquire(&mut core, ms(0), "x");
    assert!(core.has_session());
    sent(&mut core);
    disconnected(&mut core, ms(1));
    assert!(core.has_session(), "the acquire is resent");
}

#[test]
fn a_query_is_retried_for_its_full_time_although_the_session_ended_during_a_suspension() {
    let (mut core, _held) = holding("x");
    let (sender, mut read) = oneshot::channel();
    let query = v1::query::Kind::Why(v1::Why { name: "x".into() });
    core.query(ms(3), query, Reply::Once(sender)).unwrap();
    sent(&mut core);
    disconnected(&mut core, ms(4));
    // The machine was suspended for an hour.
    let woken = ms(3_600_000);
    let unreachable = Error::new(Code::Unreachable, "the network is not up yet");
    core.on_failed_attempt(woken, &unreachable);
    assert!(!core.has_session());
    assert!(read.try_recv().is_err());
    core.on_failed_attempt(woken + RETRY_TIMEOUT, &unreachable);
    assert_eq!(read.try_recv().unwrap().unwrap_err(), unreachable);
}
