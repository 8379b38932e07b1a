//! The ends of sessions, leases and streams: once, in the order of the log, and behind the replies before
//! them.

use super::*;
use crate::leases::KeepAliveResult;
use crate::state::EndCause;

/// Applies an entry with a reply and then the end of session 1, and returns what its client gets.
fn last_replies(fixture: &mut Fixture) -> Vec<Reply> {
    let session = SessionId(1);
    let effects = vec![
        Effect::Reply { session, request: RequestId(7), answer: Answer::Done, after: 0 },
        Effect::SessionEnded { session, cause: EndCause::Ended },
    ];
    fixture.handle(Input::Applied { id: LogId { term: 1, index: 1 }, effects });
    fixture.outbox(1).read()
}

fn assert_answered_then_ended(replies: &[Reply]) {
    let [answer, Reply::SessionEnded { cause, .. }] = replies else { panic!("{replies:?}") };
    assert_eq!((answered(answer), *cause), ((7, None), EndCause::Ended));
}

/// A node that follows another one.
fn following() -> Fixture {
    let mut fixture = Fixture::attached(1);
    fixture.world.status.leader = Some(2);
    fixture.world.status.membership.nodes.insert(2, crate::cluster::Member::default());
    fixture.bind(1);
    fixture
}

#[test]
fn an_end_known_to_the_leader_is_sent_after_earlier_replies() {
    let mut fixture = following();
    let open =
        crate::state::OpenSession { secret: 1, ttl_ms: 10_000, lock_delay_ms: 0, label: String::new() };
    let at = crate::state::Position { index: 1, term: 1, wall_ms: 0 };
    fixture.world.state.apply_into(at, Command::OpenSession(open), &mut Vec::new());
    fixture.request(1, ClientRequest::KeepAlive { token: 5 });
    fixture.run_round(Ok(LogId { term: 1, index: 1 }));
    let call = fixture.out.iter().find_map(|output| match output {
        Output::ForwardKeepAlives { call, to: 2, .. } => Some(*call),
        _ => None,
    });
    let call = call.expect("the keep-alive goes to the leader");
    fixture.handle(Input::KeepAlivesAnswered { call, results: Some(vec![KeepAliveResult::Unknown]) });
    assert_answered_then_ended(&last_replies(&mut fixture));
}

#[test]
fn an_applied_end_is_sent_after_earlier_replies() {
    let mut fixture = following();
    fixture.request(1, ClientRequest::KeepAlive { token: 5 });
    // The state has no such session any more; its effects have not arrived.
    fixture.run_round(Ok(LogId { term: 1, index: 1 }));
    let is_forward = |output: &Output| matches!(output, Output::ForwardKeepAlives { .. });
    assert!(!fixture.out.iter().any(is_forward));
    assert_answered_then_ended(&last_replies(&mut fixture));
}

#[test]
fn an_expiry_of_another_term_does_not_end_a_lease_of_this_one() {
    let (timer, session, id) = (lease(1, 1), SessionId(1), LogId { term: 1, index: 1 });
    let mut fixture = Fixture::attached(1);
    /// Proposes the end of the timer in a term, and passes its result in after the next term has begun.
    fn on_expiry(fixture: &mut Fixture, timer: TimerId, term: u64, result: Result<LogId, ProposeError>) {
        let added = fixture.node.batches.add(
            Origin::Timer { timer, term },
            Command::Expire { timer, term },
            Class::Expiry,
        );
        assert_eq!(added, Ok(()));
        let (batch, _) = fixture.node.batches.take();
        fixture.handle(Input::Proposed { batch, results: vec![result] });
    }
    for former in [Ok(id), Err(ProposeError::Retry)] {
        fixture.node.leases.on_leading(Now::ZERO, 2, [(timer, 100)]);
        let due = fixture.node.leases.next_tick().unwrap();
        assert_eq!(fixture.node.leases.on_tick(due).len(), 1, "it is over, and its end is proposed");
        on_expiry(&mut fixture, timer, 1, former);
        let leases = &mut fixture.node.leases;
        assert_eq!(leases.on_keep_alive(due, session), KeepAliveResult::Ending, "it is not forgotten");
        assert_eq!(leases.next_tick(), None, "nor proposed again while it is in flight");
        on_expiry(&mut fixture, timer, 2, Err(ProposeError::Retry));
        assert!(fixture.node.leases.next_tick().is_some(), "if that fails, it is");
        on_expiry(&mut fixture, timer, 2, Ok(id));
        assert_eq!(fixture.node.leases.on_keep_alive(due, session), KeepAliveResult::Unknown);
    }
}

#[test]
fn a_session_that_the_state_has_already_ended_is_not_opened() {
    let mut fixture = Fixture::attached(1);
    fixture.request(1, ClientRequest::Open { ttl_ms: 10_000, lock_delay_ms: 0, label: String::new() });
    // The state contains a later entry, which ended the session.
    let effects = vec![Effect::SessionOpened { session: SessionId(9), secret: 0x5ec_2e7 }];
    fixture.handle(Input::Applied { id: LogId::default(), effects });
    assert_eq!(fixture.outbox(1).close_reason(), Some(Code::SessionEnded));
    assert_eq!(fixture.outbox(1).read(), []);
}
