//! Grants: delivered, released, lost and broken.

use super::*;

#[test]
fn a_grant_of_an_abandoned_request_is_released() {
    let mut core = connected();
    let (id, grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    open(&mut core, ms(1));
    drop(grant);
    answer(&mut core, ms(2), id, granted());
    let Some(Sent::Request(v1::Request { op: Some(v1::request::Op::Release(release)), .. })) =
        sent(&mut core).pop()
    else {
        panic!("not released")
    };
    assert_eq!(release.grant, id);
}

#[test]
fn an_abandoned_wait_is_cancelled_and_its_grant_is_not_handed_out() {
    let mut core = connected();
    let (id, _grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    open(&mut core, ms(1));
    core.abandon(ms(2), id);
    let cancel = sent(&mut core).pop();
    assert!(matches!(cancel, Some(Sent::Request(v1::Request { op: Some(v1::request::Op::Cancel(_)), .. }))));
    answer(&mut core, ms(3), id, granted());
    assert!(core.held.is_empty(), "the cancel releases it in its own entry");
}

#[test]
fn past_the_deadline_everything_held_is_lost_for_good_and_given_back() {
    let mut core = connected();
    let (id, _grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    open(&mut core, ms(1));
    answer(&mut core, ms(2), id, granted());
    assert_eq!(core.grant_state(ms(4_999), id), (LeaseState::Valid, None));
    core.on_tick(ms(6_000));
    let Some(Sent::KeepAlive(v1::KeepAlive { token })) = sent(&mut core).pop() else {
        panic!("not kept alive")
    };
    assert_eq!(core.grant_state(ms(9_900), id), (LeaseState::Lost, Some(LossReason::Deadline)));
    core.on_message(ms(9_950), v1::KeptAlive { token }.into());
    assert_eq!(core.grant_state(ms(9_950), id), (LeaseState::Lost, Some(LossReason::Deadline)));
    let released = sent(&mut core).pop();
    assert!(matches!(
        released,
        Some(Sent::Request(v1::Request { op: Some(v1::request::Op::Release(_)), .. }))
    ));
}

#[test]
fn a_grant_past_the_deadline_waits_until_the_lease_is_confirmed() {
    let mut core = connected();
    let (id, mut grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    open(&mut core, ms(1));
    core.on_tick(ms(9_950));
    let Some(Sent::KeepAlive(v1::KeepAlive { token })) = sent(&mut core).pop() else {
        panic!("not kept alive")
    };
    answer(&mut core, ms(9_960), id, granted());
    assert!(grant.try_recv().is_err(), "not yet");
    core.on_message(ms(9_970), v1::KeptAlive { token }.into());
    assert!(grant.try_recv().unwrap().is_ok());
    assert_eq!(core.grant_state(ms(9_970), id), (LeaseState::Valid, None));
}

#[test]
fn a_broken_lock_is_lost_with_its_reason() {
    let mut core = connected();
    let (id, _grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    open(&mut core, ms(1));
    answer(&mut core, ms(2), id, granted());
    core.on_message(ms(3), v1::Broken { grant: id, name: "x".into(), reason: "stuck".into() }.into());
    let loss = LossReason::Broken { name: "x".into(), reason: "stuck".into() };
    assert_eq!(core.grant_state(ms(3), id), (LeaseState::Lost, Some(loss.clone())));
    assert_eq!(sent(&mut core), [], "its other names are held until its holder has stopped");
    let refusal = core.release(ms(4), id).unwrap_err();
    assert_eq!((refusal.code, refusal.message), (Code::NotHeld, loss.to_string()));
    assert_eq!(releases(&sent(&mut core)), [id], "the release acknowledges the break");
}

#[test]
fn a_grant_that_is_broken_before_it_is_handed_out_is_refused() {
    let mut core = connected();
    let (on_its_way, mut first) = acquire(&mut core, ms(0), "x");
    let (undelivered, mut second) = acquire(&mut core, ms(0), "y");
    sent(&mut core);
    open(&mut core, ms(1));
    core.on_tick(ms(9_950));
    let Some(Sent::KeepAlive(v1::KeepAlive { token })) = sent(&mut core).pop() else {
        panic!("not kept alive")
    };
    answer(&mut core, ms(9_960), undelivered, granted());
    for grant in [on_its_way, undelivered] {
        core.on_message(ms(9_961), v1::Broken { grant, ..Default::default() }.into());
    }
    answer(&mut core, ms(9_962), on_its_way, granted());
    core.on_message(ms(9_970), v1::KeptAlive { token }.into());
    for grant in [&mut first, &mut second] {
        assert_eq!(grant.try_recv().unwrap().unwrap_err().code, Code::NotHeld);
    }
    assert!(core.held.is_empty());
    assert_eq!(releases(&sent(&mut core)), [on_its_way, undelivered]);
}

#[test]
fn a_repeated_break_is_one_loss_and_is_acknowledged_until_a_reply() {
    let (mut core, id) = holding("x");
    let broken = |reason: &str| v1::Broken { grant: id, name: "x".into(), reason: reason.into() };
    core.on_message(ms(3), broken("first").into());
    core.on_message(ms(3), broken("again").into());
    let loss = LossReason::Broken { name: "x".into(), reason: "first".into() };
    assert_eq!(core.grant_state(ms(4), id), (LeaseState::Lost, Some(loss)));
    core.abandon(ms(5), id);
    core.on_message(ms(6), broken("again").into());
    let messages = sent(&mut core);
    assert_eq!(releases(&messages), [id], "once is enough while it is unanswered");
    answer(&mut core, ms(7), requests(&messages)[0], refused(Code::NotHeld));
    core.on_message(ms(8), broken("again").into());
    assert_eq!(releases(&sent(&mut core)), [id]);
}

#[test]
fn a_broken_grant_is_not_released_after_the_end_of_its_session() {
    let (mut core, id) = holding("x");
    core.on_message(ms(3), v1::Broken { grant: id, ..Default::default() }.into());
    core.on_message(ms(4), v1::SessionEnded { session: 7, cause: v1::EndCause::Closed.into() }.into());
    assert!(matches!(core.grant_state(ms(5), id), (LeaseState::Lost, Some(LossReason::Broken { .. }))));
    core.abandon(ms(6), id);
    assert_eq!(sent(&mut core), []);
}

#[test]
fn a_grant_is_not_released_after_the_end_of_its_session() {
    let (mut core, id) = holding("x");
    core.on_message(ms(3), v1::SessionEnded { session: 7, cause: v1::EndCause::Closed.into() }.into());
    assert_eq!(core.release(ms(4), id).unwrap_err().code, Code::NotHeld);
    let (mut core, id) = holding("x");
    core.on_message(ms(3), v1::SessionEnded { session: 7, cause: v1::EndCause::Closed.into() }.into());
    core.abandon(ms(4), id);
    assert_eq!(sent(&mut core), []);
}

#[test]
fn an_abandoned_acquire_is_not_resent_after_a_lost_opening() {
    for is_awaited in [false, true] {
        let mut core = connected();
        let (given_up, _grant) = acquire(&mut core, ms(0), "x");
        let (wanted, _other) = acquire(&mut core, ms(0), "y");
        sent(&mut core);
        let cancelled = match is_awaited {
            true => core.cancel(ms(1), given_up).unwrap(),
            false => {
                core.abandon(ms(1), given_up);
                None
            }
        };
        sent(&mut core);
        disconnected(&mut core, ms(2));
        core.on_connected(ms(3));
        assert_eq!(requests(&sent(&mut core)), [wanted]);
        if let Some(mut cancelled) = cancelled {
            let error = cancelled.try_recv().unwrap().unwrap_err();
            assert_eq!(error.code, Code::Disconnected, "the session with an unknown number may hold it");
        }
    }
}

#[test]
fn an_abandoned_acquire_and_its_cancel_are_resent_after_a_rejected_opening() {
    let mut core = connected();
    let (given_up, _grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    let mut cancelled = core.cancel(ms(1), given_up).unwrap().unwrap();
    sent(&mut core);
    goodbye(&mut core, ms(2), Code::NoQuorum);
    disconnected(&mut core, ms(3));
    core.on_connected(ms(4));
    let again = requests(&sent(&mut core));
    assert_eq!(again[0], given_up);
    open(&mut core, ms(5));
    answer(&mut core, ms(6), again[1], v1::answer::Result::Done(v1::Done {}));
    assert!(cancelled.try_recv().unwrap().is_ok());
}

#[test]
fn a_grant_that_was_given_up_is_released_if_no_cancel_is_on_its_way() {
    let mut core = connected();
    let (id, _grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    open(&mut core, ms(1));
    core.abandon(ms(2), id);
    let cancel = requests(&sent(&mut core))[0];
    answer(&mut core, ms(3), cancel, refused(Code::Internal));
    answer(&mut core, ms(4), id, granted());
    assert_eq!(releases(&sent(&mut core)), [id]);
    assert!(core.held.is_empty() && !core.pending.contains_key(&id));
}

#[test]
fn whether_something_can_still_be_lost_is_known() {
    let (mut core, id) = holding("x");
    assert!(core.is_holding());
    core.on_message(ms(3), v1::Broken { grant: id, ..Default::default() }.into());
    assert!(!core.is_holding());
}
