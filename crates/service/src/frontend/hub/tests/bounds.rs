//! How much may wait, in number and in bytes, and how much is done at a time.

use super::*;
use crate::replica::Machine;
use conclave_node::entry::{Stamped, op_weight};
use conclave_node::state::tree::FileOp;

fn write(bytes: usize) -> Op {
    let path = FilePath::new("/large").unwrap();
    Op::Files(vec![FileOp::Write { path, data: vec![0; bytes], expected: None }])
}

fn request(id: u64, op: Op) -> Ask {
    Ask::Request { id: RequestId(id), lowest: RequestId(1), op }
}

fn asks(connection: ConnectionId, ask: Ask) -> Inbound {
    Inbound::Asks { connection, asks: vec![ask] }
}

/// Asks for writes until there is no room for another; how many were taken.
fn fill(hub: &mut Hub, connection: ConnectionId, first: u64, bytes: usize) -> u64 {
    let many = (MAX_BYTES / op_weight(&write(bytes))) as u64;
    (first..first + many).for_each(|id| hub.on_inbound(asks(connection, request(id, write(bytes)))));
    many
}

#[tokio::test]
async fn what_is_on_its_way_is_bounded_in_bytes_but_letting_go_is_not() {
    let (mut hub, outboxes) = attached(1).await;
    hub.bind(1, SessionId(1), &KeptAlive::default().into());
    told(&outboxes[0]);
    let many = fill(&mut hub, 1, 1, FULL_BYTES);
    assert_eq!(told(&outboxes[0]), [], "all of these are taken");
    hub.on_inbound(asks(1, request(many + 1, write(FULL_BYTES))));
    assert_eq!(answered(&told(&outboxes[0])[0]), (many + 1, Some("overloaded".into())));
    let (grant, session) = (RequestId(1), SessionId(9));
    let letting_go =
        [Op::Release { grant }, Op::Cancel { request: grant }, Op::EndSession { session }, Op::Close];
    for (id, op) in (many + 2..).zip(letting_go) {
        (0..2000).for_each(|_| hub.on_inbound(asks(1, request(id, op.clone()))));
    }
    assert_eq!(told(&outboxes[0]), [], "nor are they refused among thousands");

    // What goes to the disk still counts, until it is there.
    hub.propose(hub.now());
    assert!(hub.commands.is_empty());
    hub.on_inbound(asks(1, request(many + 7, write(FULL_BYTES))));
    assert_eq!(answered(&told(&outboxes[0])[0]), (many + 7, Some("overloaded".into())));
    let answered = hub.proposals.next().await.unwrap();
    hub.on_proposals(answered);
    assert_eq!((hub.bytes, hub.in_flight), (0, 0));
    told(&outboxes[0]);
    hub.on_inbound(asks(1, request(many + 8, write(FULL_BYTES))));
    assert_eq!(told(&outboxes[0]), []);
}

#[tokio::test]
async fn a_session_is_not_opened_where_there_is_no_room_for_its_label() {
    let (mut hub, outboxes) = attached(2).await;
    hub.bind(1, SessionId(1), &KeptAlive::default().into());
    fill(&mut hub, 1, 1, FULL_BYTES);
    let label = "x".repeat(FULL_BYTES);
    hub.on_inbound(asks(2, Ask::Open { ttl_ms: 10_000, lock_delay_ms: 0, label }));
    assert!(matches!(told(&outboxes[1])[..], [server_message::Message::Goodbye(_)]));
    assert!(hub.opening.is_empty());
}

#[tokio::test]
async fn who_asks_for_much_before_a_session_is_not_read_until_there_is_one() {
    let (mut hub, outboxes) = attached(1).await;
    hub.on_inbound(asks(1, Ask::Resume { session: SessionId(7), secret: 1 }));
    hub.on_inbound(asks(1, request(1, write(PARKED_BYTES / 2))));
    assert!(!outboxes[0].is_behind());
    hub.on_inbound(asks(1, request(2, write(PARKED_BYTES / 2))));
    assert!(outboxes[0].is_behind());
    // An answer to an earlier read is no reason to read on.
    hub.answer_query(1, 3, Query::Cluster);
    assert!(outboxes[0].is_behind());
    hub.bind(1, SessionId(7), &KeptAlive::default().into());
    assert!(!outboxes[0].is_behind());
    assert_eq!(hub.commands.len(), 2);
    assert_eq!(hub.bytes, 2 * op_weight(&write(PARKED_BYTES / 2)), "each counts once");
}

#[tokio::test]
async fn what_is_parked_counts_with_what_is_on_its_way_and_no_longer_than_its_connection() {
    let (mut hub, outboxes) = attached(3).await;
    hub.bind(3, SessionId(3), &KeptAlive::default().into());
    for connection in 1..=2 {
        hub.on_inbound(asks(connection, Ask::Resume { session: SessionId(connection), secret: 1 }));
    }
    fill(&mut hub, 1, 1, FULL_BYTES / 2);
    hub.on_inbound(asks(2, request(1, Op::Release { grant: RequestId(1) })));
    assert_eq!(told(&outboxes[1]), [], "letting go is parked all the same");
    hub.on_inbound(asks(2, request(2, write(FULL_BYTES))));
    assert!(matches!(told(&outboxes[1])[..], [server_message::Message::Goodbye(_)]));
    told(&outboxes[2]);
    hub.on_inbound(asks(3, request(1, write(FULL_BYTES))));
    assert_eq!(answered(&told(&outboxes[2])[0]), (1, Some("overloaded".into())));
    (1..=2).for_each(|connection| hub.on_inbound(Inbound::Detach { connection }));
    assert_eq!(hub.bytes, 0);
}

#[tokio::test]
async fn what_waited_for_a_round_is_served_some_at_a_time_and_in_order() {
    let (mut hub, outboxes) = attached(2).await;
    hub.bind(2, SessionId(2), &KeptAlive::default().into());
    told(&outboxes[1]);
    let many = 2 * AT_ONCE as u64 + 1;
    let watches = (1..=many).map(|id| Ask::Watch { id, after: None, target: target() });
    hub.on_inbound(Inbound::Asks { connection: 1, asks: watches.collect() });
    hub.begin_round();
    hub.on_round(Ok(LogId { term: 1, index: 1 }));
    let mut served = Vec::new();
    for turn in 1..=3 {
        assert!(hub.has_answers(), "the hub goes on by itself");
        hub.serve();
        hub.flush();
        served.extend(told(&outboxes[0]).iter().map(|message| answered(message).0));
        assert_eq!(served.len(), (turn * AT_ONCE).min(2 * AT_ONCE + 1));
        if turn == 1 {
            // Whoever only keeps its session alive does not wait for the reads of others.
            hub.keeper.on_leading(hub.now(), 1, [(lease(2, 1), 10_000)]);
            hub.on_inbound(asks(2, Ask::KeepAlive { token: 7 }));
            hub.begin_round();
            hub.on_round(Ok(LogId { term: 1, index: 1 }));
            let kept = server_message::Message::KeptAlive(KeptAlive { token: 7 });
            assert_eq!(told(&outboxes[1]), [kept]);
        }
    }
    assert_eq!(served, (1..=many).collect::<Vec<_>>());
    assert!(!hub.has_answers());
    assert_eq!(hub.connections[&1].waiting, 0);
}

#[tokio::test]
async fn the_proposals_on_their_way_are_counted_down_as_well() {
    let mut three = Three::attached().await;
    three.asks(1);
    assert!(three.goes());
    let in_flight = |hub: &Hub| hub.metrics.in_flight.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(in_flight(&three.hub), 1);
    let origin = Origin::Request { session: SessionId(1), id: RequestId(1) };
    three.hub.on_proposals(proposed(origin, Ok(LogId { term: 1, index: 1 })));
    assert_eq!(in_flight(&three.hub), 0);
}

#[tokio::test]
async fn what_is_in_a_snapshot_already_is_no_reason_for_another() {
    let mut service = Service::new();
    let many = usize::try_from(SNAPSHOT_COMMANDS).unwrap();
    let raise = Stamped { wall_ms: 0, commands: vec![Command::Restarted { fences: 0 }; many] };
    service.apply(LogId { term: 1, index: 1 }, raise.clone());
    let service = Service::restore(&service.snapshot()).unwrap();
    let (mut hub, _door) = alone_with(service.clone(), Timing::default()).await;
    hub.check_snapshot();
    assert_eq!(hub.snapshot_at, 0, "not a command was applied since");
    let mut later = service;
    later.apply(LogId { term: 1, index: 2 }, raise);
    let (mut hub, _door) = alone_with(later, Timing::default()).await;
    hub.check_snapshot();
    assert_eq!(hub.snapshot_at, 2 * SNAPSHOT_COMMANDS);
}
