//! How sessions, leases and streams end: once, in the order of the log, and behind whatever is still to be told.

use super::super::rounds::Alive;
use super::*;
use conclave_node::leases::Kept;
use conclave_node::state::EndCause;

fn alive(session: u64) -> Alive {
    Alive { connection: session, session: SessionId(session), token: 5, term: None }
}

/// What a client hears whose session has a reply and then its end on the way here.
fn told_at_last(hub: &mut Hub, outbox: &Outbox) -> Vec<server_message::Message> {
    told(outbox);
    let session = SessionId(1);
    hub.on_delivery(Delivery::Applied {
        id: LogId { term: 1, index: 1 },
        effects: vec![
            Effect::Reply { session, request: RequestId(7), answer: Answer::Done, after: 0 },
            Effect::SessionEnded { session, cause: EndCause::Ended },
        ],
    });
    told(outbox)
}

fn assert_answered_then_ended(told: &[server_message::Message]) {
    let [answer, server_message::Message::SessionEnded(ended)] = told else { panic!("{told:?}") };
    assert_eq!(answered(answer), (7, None));
    assert_eq!(ended.cause(), v1::EndCause::Ended);
}

#[tokio::test]
async fn an_end_that_the_leader_knows_of_is_told_behind_the_answers_before_it() {
    let (mut hub, outboxes) = attached(1).await;
    hub.bind(1, SessionId(1), &KeptAlive::default().into());
    hub.on_forwarded(vec![alive(1)], Some(vec![Kept::Unknown]));
    assert_answered_then_ended(&told_at_last(&mut hub, &outboxes[0]));
}

#[tokio::test]
async fn an_end_that_this_node_has_applied_is_told_behind_the_answers_before_it() {
    let (mut hub, outboxes) = attached(1).await;
    hub.bind(1, SessionId(1), &KeptAlive::default().into());
    hub.keep_alive(alive(1));
    hub.begin_round();
    // The state has no session any more; what was applied has not come by here.
    hub.on_round(Ok(LogId { term: 1, index: 1 }));
    assert!(hub.forwards.is_empty());
    assert_answered_then_ended(&told_at_last(&mut hub, &outboxes[0]));
}

#[tokio::test]
async fn an_expiry_of_another_term_says_nothing_about_this_one() {
    let (mut hub, _outboxes) = attached(1).await;
    let (timer, session, id) = (lease(1, 1), SessionId(1), LogId { term: 1, index: 1 });
    let on_expiry = |hub: &mut Hub, term, result| {
        hub.in_flight += 1;
        hub.on_proposals(proposed(Origin::Timer { timer, term }, result));
    };
    for former in [Ok(id), Err(ProposeError::Retry)] {
        hub.keeper.on_leading(Now::ZERO, 2, [(timer, 100)]);
        let due = hub.keeper.next_tick().unwrap();
        assert_eq!(hub.keeper.on_tick(due).len(), 1, "it is over, and its end is proposed");
        on_expiry(&mut hub, 1, former);
        assert_eq!(hub.keeper.on_keep_alive(due, session), Kept::Ending, "it is not forgotten");
        assert_eq!(hub.keeper.next_tick(), None, "nor proposed again while it is on its way");
        on_expiry(&mut hub, 2, Err(ProposeError::Retry));
        assert!(hub.keeper.next_tick().is_some(), "if that fails, it is");
        on_expiry(&mut hub, 2, Ok(id));
        assert_eq!(hub.keeper.on_keep_alive(due, session), Kept::Unknown);
    }
}
