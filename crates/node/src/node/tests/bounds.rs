//! The bounds of what waits, by number and by bytes, and of the work in one turn.

use super::budget::op_size;
use super::clients::PAUSE_BYTES;
use super::*;
use crate::state::tree::FileOp;

fn write(bytes: usize) -> Op {
    let path = FilePath::new("/large").unwrap();
    Op::Files(vec![FileOp::Write { path, data: vec![0; bytes], expected: None }])
}

fn request(id: u64, op: Op) -> ClientRequest {
    ClientRequest::Request { id: RequestId(id), lowest: RequestId(1), op }
}

fn resume(session: u64) -> ClientRequest {
    ClientRequest::Resume { session: SessionId(session), secret: 1 }
}

/// Sends writes until no other has room, and returns their number.
fn fill(fixture: &mut Fixture, connection: ConnectionId, bytes: usize) -> u64 {
    let many = (MAX_BYTES / op_size(&write(bytes))) as u64;
    (1..=many).for_each(|id| fixture.request(connection, request(id, write(bytes))));
    many
}

/// Returns whether a large write of a connection is rejected for its size. Otherwise it is proposed and
/// applied.
fn is_full(fixture: &mut Fixture, connection: ConnectionId) -> bool {
    fixture.outbox(connection).read();
    fixture.request(connection, request(999, write(FULL_BYTES)));
    let refused = fixture.outbox(connection).read();
    refused.first().map(answered) == Some((999, Some(Code::Overloaded)))
}

#[test]
fn commands_in_flight_are_bounded_in_bytes_but_releases_are_not() {
    let mut fixture = Fixture::attached(1);
    fixture.bind(1);
    let many = fill(&mut fixture, 1, FULL_BYTES);
    assert_eq!(fixture.outbox(1).read(), [], "all of these are admitted");
    assert!(is_full(&mut fixture, 1));
    let (grant, session) = (RequestId(1), SessionId(9));
    let releases =
        [Op::Release { grant }, Op::Cancel { request: grant }, Op::EndSession { session }, Op::Close];
    for (id, op) in (many + 2..).zip(releases) {
        (0..2000).for_each(|_| fixture.request(1, request(id, op.clone())));
    }
    assert_eq!(fixture.outbox(1).read(), [], "nor are they rejected among thousands");

    // A batch in flight counts until it has its result.
    let batch = fixture.proposed()[0];
    assert!(is_full(&mut fixture, 1));
    fixture.applied(batch);
    assert_eq!(fixture.node.batches.budget.commands(), 0);
    assert!(!is_full(&mut fixture, 1));
}

#[test]
fn a_session_is_not_opened_where_there_is_no_room_for_its_label() {
    let mut fixture = Fixture::attached(2);
    fixture.bind(1);
    fill(&mut fixture, 1, FULL_BYTES);
    let label = "x".repeat(FULL_BYTES);
    fixture.request(2, ClientRequest::Open { ttl_ms: 10_000, lock_delay_ms: 0, label });
    assert_eq!(fixture.outbox(2).close_reason(), Some(Code::Overloaded));
    assert_eq!(fixture.node.clients.take_opening(0x5ec_2e7), None);
}

#[test]
fn a_connection_with_large_requests_is_not_read_until_it_has_a_session() {
    let mut fixture = Fixture::attached(1);
    fixture.request(1, resume(7));
    fixture.request(1, request(1, write(PAUSE_BYTES / 2)));
    assert!(!fixture.outbox(1).is_paused.get());
    fixture.request(1, request(2, write(PAUSE_BYTES / 2)));
    assert!(fixture.outbox(1).is_paused.get());
    // Room in the outbox is no reason to read on.
    fixture.handle(Input::Writable(1));
    fixture.end_turn(Cause::Other);
    assert!(fixture.outbox(1).is_paused.get());
    let reply = Reply::Resumed { session: SessionId(7), terms: SessionTerms::default() };
    fixture.cx(|node, cx| node.bind(1, SessionId(7), &reply, cx));
    assert!(!fixture.outbox(1).is_paused.get());
    assert_eq!(fixture.node.batches.queued(), 2);
    let batch = fixture.proposed()[0];
    fixture.applied(batch);
    // Each was counted once: everything has been given back.
    fixture.bind(1);
    fill(&mut fixture, 1, FULL_BYTES);
    assert!(is_full(&mut fixture, 1));
}

#[test]
fn waiting_requests_count_in_the_budget_until_their_connection_ends() {
    let mut fixture = Fixture::attached(3);
    fixture.bind(3);
    (1..=2).for_each(|connection| fixture.request(connection, resume(connection)));
    fill(&mut fixture, 1, FULL_BYTES / 2);
    fixture.request(2, release(1));
    assert_eq!(fixture.outbox(2).close_reason(), None, "a release waits all the same");
    fixture.request(2, request(2, write(FULL_BYTES)));
    assert_eq!(fixture.outbox(2).close_reason(), Some(Code::Overloaded));
    assert!(is_full(&mut fixture, 3));
    (1..=2).for_each(|connection| fixture.handle(Input::Detached(connection)));
    assert!(!is_full(&mut fixture, 3));
}

#[test]
fn too_many_requests_before_a_session_close_the_connection() {
    let mut fixture = Fixture::attached(1);
    fixture.request(1, resume(7));
    (1..=MAX_QUEUED as u64).for_each(|id| fixture.request(1, release(id)));
    assert_eq!(fixture.outbox(1).close_reason(), None);
    fixture.request(1, release(1));
    assert_eq!(fixture.outbox(1).close_reason(), Some(Code::Overloaded));
}

#[test]
fn reads_of_a_round_are_served_in_order_over_several_turns() {
    let mut fixture = Fixture::attached(2);
    fixture.lead(1, [lease(2, 1)]);
    fixture.bind(2);
    let many = 2 * MAX_PER_TURN as u64 + 1;
    (1..=many).for_each(|id| fixture.request(1, watch(id)));
    fixture.run_round(Ok(LogId { term: 1, index: 1 }));
    let mut served = Vec::new();
    for turn in 1..=3 {
        assert!(fixture.has_work(), "the node goes on by itself");
        fixture.end_turn(Cause::Other);
        fixture.send();
        served.extend(fixture.outbox(1).read().iter().map(|reply| answered(reply).0));
        assert_eq!(served.len(), (turn * MAX_PER_TURN).min(2 * MAX_PER_TURN + 1));
    }
    assert_eq!(served, (1..=many).collect::<Vec<_>>());
    assert!(!fixture.has_work());
}

#[test]
fn a_keep_alive_does_not_wait_for_the_reads_of_others() {
    let mut fixture = Fixture::attached(2);
    fixture.lead(1, [lease(2, 1)]);
    fixture.bind(2);
    (1..=5 * MAX_PER_TURN as u64).for_each(|id| fixture.request(1, watch(id)));
    fixture.run_round(Ok(LogId { term: 1, index: 1 }));
    fixture.request(2, ClientRequest::KeepAlive { token: 7 });
    fixture.run_round(Ok(LogId { term: 1, index: 1 }));
    assert!(fixture.node.has_reads(), "reads of the first round still wait");
    assert_eq!(fixture.outbox(2).read(), [Reply::KeptAlive { token: 7 }]);
}

#[test]
fn the_proposals_on_their_way_are_counted_down_as_well() {
    let mut fixture = Fixture::attached(1);
    fixture.bind(1);
    fixture.request(1, release(1));
    let batch = fixture.proposed()[0];
    let in_flight =
        |fixture: &Fixture| fixture.node.metrics.in_flight.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(in_flight(&fixture), 1);
    fixture.applied(batch);
    fixture.end_turn(Cause::Work);
    assert_eq!(in_flight(&fixture), 0);
}

#[test]
fn an_unwatch_over_the_limit_ends_a_watch_that_still_waits() {
    let mut fixture = Fixture::attached(1);
    (1..=MAX_WAITING_EACH as u64).for_each(|id| fixture.request(1, watch(id)));
    fixture.request(1, ClientRequest::Unwatch { id: 1 });
    fixture.run_round(Ok(LogId { term: 1, index: 1 }));
    while fixture.has_work() {
        fixture.end_turn(Cause::Other);
        fixture.send();
        fixture.outbox(1).read();
    }
    let object = ChangedObject::File { path: FilePath::new("/").unwrap(), change: FileChange::Deleted };
    let change = Change { index: 2, object };
    let watching: Vec<u64> =
        fixture.node.watches.on_change(&change).into_iter().map(|event| event.watch).collect();
    assert_eq!(watching.first(), Some(&2), "1 does not watch");
}

/// Queries wait because the disk stalls. The frontends read a connection only while reading is not paused.
#[test]
fn a_session_with_many_waiting_queries_lives_while_its_client_sends_keep_alives() {
    let mut fixture = Fixture::attached(1);
    fixture.lead(7, [lease(1, 0)]);
    fixture.bind(1);
    fixture.request(1, release(1));
    assert_eq!(fixture.proposed().len(), 1, "the disk writes a batch, and does not end");
    let query = |id| ClientRequest::Query { id, stale: true, query: Query::Sessions { after: None } };
    (2..MAX_QUEUED as u64 + 2).for_each(|id| fixture.request(1, query(id)));
    for token in 1..=10 {
        fixture.now += Duration::from_secs(3);
        assert!(!fixture.outbox(1).is_paused.get(), "the frontend must read the keep-alive");
        fixture.request(1, ClientRequest::KeepAlive { token });
        fixture.run_round(Ok(LogId { term: 7, index: 0 }));
        assert_eq!(fixture.outbox(1).read(), [Reply::KeptAlive { token }]);
        fixture.end_turn(Cause::Other);
    }
    let expiries = fixture.node.metrics.expiries_total.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(expiries, 0, "the lease has 10 s");
    fixture.request(1, query(5000));
    assert_eq!(answered(&fixture.outbox(1).read()[0]), (5000, Some(Code::Overloaded)));
}
