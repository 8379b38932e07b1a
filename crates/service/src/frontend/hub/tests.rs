//! A hub of a node that belongs to no cluster: nothing is applied and nobody leads unless a test says so.

mod bounds;
mod ends;

use std::sync::Mutex;
use std::task::{Context, Poll, Wake, Waker};

use conclave_api::RequestId;
use conclave_api::proto::frame;
use conclave_api::proto::v1::{self, Goodbye, KeptAlive, ServerFrame, server_message};
use tokio::sync::oneshot;

use super::super::outbox::{FULL_BYTES, Outbox};
use super::effects::{Origin, Proposed};
use super::rounds::{Wanted, no_majority};
use super::*;
use crate::peers::Tcp;
use crate::replica::disk::SimDisk;
use crate::replica::log::LogId;
use crate::replica::{Delivery, Identity, Options, ProposeError, ReadError};
use conclave_node::codec::{Ask, Query};
use conclave_node::state::tree::FileChange;
use conclave_node::state::watch::{Change, Event, Notice, WatchTarget, What};
use conclave_node::state::{Answer, Effect, FilePath, Granted, Op, Queued, TimerId};

async fn alone(timing: Timing) -> (Hub, Door) {
    alone_with(Service::new(), timing).await
}

/// A hub that nobody runs: whatever is sent to it waits.
pub(in super::super) async fn unserved() -> (Hub, Door) {
    alone(Timing::default()).await
}

async fn alone_with(service: Service, timing: Timing) -> (Hub, Door) {
    let peers = Arc::new(Peers::new(7, Arc::new(Tcp)));
    let identity = Identity { cluster: 7, node: 1 };
    let disk = Arc::new(SimDisk::new(1).handle());
    let (replica, deliveries) =
        Replica::open(disk, identity, peers.clone(), service, Options::default()).await.unwrap();
    Hub::new(replica, deliveries, peers, timing)
}

/// Who waits for a session is sent away when it is time, though there is never a moment without something else to do.
#[tokio::test]
async fn time_is_looked_at_however_much_there_is_to_do() {
    // A beat has no length: it is always time, and whoever waits has waited too long.
    let (hub, door) = alone(Timing { heartbeat: Duration::ZERO, ..Timing::default() }).await;
    let (waits, busy) = (door.attach(None).await.unwrap(), door.attach(None).await.unwrap());
    waits.send(vec![Ask::Open { ttl_ms: 10_000, lock_delay_ms: 0, label: String::new() }]).await.unwrap();
    for token in 0..4 * AT_ONCE as u64 {
        busy.send(vec![Ask::KeepAlive { token }]).await.unwrap();
    }
    let (done, _stopped) = oneshot::channel();
    assert!(door.sender.try_send(Inbound::Stop { done }).is_ok(), "all of it waits for the hub");
    hub.run().await;
    let Poll::Ready(Some(mut sent)) = waits.outbox.poll_take(&mut Context::from_waker(Waker::noop())) else {
        panic!("not even a goodbye");
    };
    let frame = frame::decode::<ServerFrame>(&mut sent).unwrap().unwrap();
    assert!(sent.is_empty(), "little was said: one frame is enough");
    let last = frame.messages.last().and_then(|last| last.message.clone());
    let sent_away = Goodbye { error: Some((&no_majority()).into()) };
    assert_eq!(
        last,
        Some(server_message::Message::Goodbye(sent_away)),
        "before all was done, and the hub stopped"
    );
}

/// Wakes nobody, and notes who would have been.
struct Noted {
    connection: ConnectionId,
    woken: Arc<Mutex<Vec<ConnectionId>>>,
}

impl Wake for Noted {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap().push(self.connection);
    }
}

#[tokio::test]
async fn who_was_granted_something_is_woken_before_all_who_are_told_something() {
    let (mut hub, _door) = alone(Timing::default()).await;
    let woken = Arc::new(Mutex::new(Vec::new()));
    for connection in 1..=4 {
        let outbox = Arc::new(Outbox::default());
        hub.on_inbound(Inbound::Attach { connection, outbox: outbox.clone() });
        hub.bind(connection, SessionId(connection), &KeptAlive { token: 0 }.into());
        hub.flush();
        let waker = Waker::from(Arc::new(Noted { connection, woken: woken.clone() }));
        assert!(outbox.poll_take(&mut Context::from_waker(&waker)).is_ready(), "the hello");
        assert!(outbox.poll_take(&mut Context::from_waker(&waker)).is_pending());
    }
    let granted = || Answer::Granted(Granted { names: Vec::new() });
    // 2 is told something first, 4 afterwards: for both of them the grant counts.
    let replies = [
        (1, Answer::Done),
        (2, Answer::Done),
        (3, granted()),
        (4, granted()),
        (2, granted()),
        (4, Answer::Done),
    ];
    for (request, (session, answer)) in (1..).map(RequestId).zip(replies) {
        hub.on_effect(Effect::Reply { session: SessionId(session), request, answer, after: 0 });
    }
    assert!(woken.lock().unwrap().is_empty(), "not before the flush");
    hub.flush();
    assert_eq!(*woken.lock().unwrap(), [3, 4, 2, 1]);
}

#[tokio::test]
async fn many_are_answered_some_at_a_time_and_nobody_is_forgotten() {
    let (mut hub, _door) = alone(Timing::default()).await;
    let many = 2 * AT_ONCE as u64 + 1;
    let outboxes: Vec<_> = (1..=many)
        .map(|connection| {
            let outbox = Arc::new(Outbox::default());
            hub.on_inbound(Inbound::Attach { connection, outbox: outbox.clone() });
            outbox
        })
        .collect();
    let woken = Arc::new(Mutex::new(Vec::new()));
    for (connection, outbox) in (1..).zip(&outboxes) {
        let waker = Waker::from(Arc::new(Noted { connection, woken: woken.clone() }));
        assert!(outbox.poll_take(&mut Context::from_waker(&waker)).is_pending());
        hub.push(connection, &KeptAlive { token: 0 }.into());
    }
    for answered in [AT_ONCE, 2 * AT_ONCE, 2 * AT_ONCE + 1] {
        assert!(hub.has_answers());
        hub.flush();
        assert_eq!(woken.lock().unwrap().len(), answered);
    }
    assert!(!hub.has_answers());
    assert_eq!(*woken.lock().unwrap(), (1..=many).collect::<Vec<_>>());
}

/// What is in an outbox.
fn told(outbox: &Outbox) -> Vec<server_message::Message> {
    let mut told = Vec::new();
    while let Poll::Ready(Some(mut frames)) = outbox.poll_take(&mut Context::from_waker(Waker::noop())) {
        while let Some(frame) = frame::decode::<ServerFrame>(&mut frames).unwrap() {
            told.extend(frame.messages.into_iter().filter_map(|message| message.message));
        }
    }
    told
}

/// The number of an answer, and what went wrong if something did.
fn answered(message: &server_message::Message) -> (u64, Option<String>) {
    let server_message::Message::Answer(answer) = message else { panic!("no answer: {message:?}") };
    match &answer.result {
        Some(v1::answer::Result::Error(error)) => (answer.id, Some(error.name.clone())),
        _ => (answer.id, None),
    }
}

fn read(id: u64) -> Ask {
    Ask::Query { id, stale: true, what: Query::Cluster }
}

fn target() -> WatchTarget {
    WatchTarget::File(FilePath::new("/").unwrap())
}

fn lease(session: u64, generation: u64) -> TimerId {
    TimerId::Lease { session: SessionId(session), generation }
}

/// A flush of one proposal that was answered.
fn proposed(origin: Origin, result: Result<LogId, ProposeError>) -> Proposed {
    Proposed { origins: vec![vec![origin]], results: vec![result], bytes: 0 }
}

async fn attached(connections: u64) -> (Hub, Vec<Arc<Outbox>>) {
    let (mut hub, _door) = alone(Timing::default()).await;
    let outboxes: Vec<_> = (1..=connections).map(|_| Arc::new(Outbox::default())).collect();
    for (connection, outbox) in (1..).zip(&outboxes) {
        hub.on_inbound(Inbound::Attach { connection, outbox: outbox.clone() });
    }
    (hub, outboxes)
}

fn large() -> v1::ServerMessage {
    v1::Broken { reason: "x".repeat(FULL_BYTES / 2), ..Default::default() }.into()
}

#[tokio::test]
async fn who_asks_for_much_is_answered_as_fast_as_it_reads() {
    let (mut hub, outboxes) = attached(1).await;
    let outbox = &outboxes[0];
    (0..2).for_each(|_| hub.push(1, &large()));
    let asks = (1..=MAX_BEHIND as u64 + 1).map(read).collect();
    hub.on_inbound(Inbound::Asks { connection: 1, asks });
    hub.flush();
    assert!(outbox.is_behind(), "nothing more is read");
    assert!(!outbox.has_room_again());
    let told_first = told(outbox);
    assert_eq!(told_first.len(), 3);
    let too_much = MAX_BEHIND as u64 + 1;
    assert_eq!(answered(&told_first[2]), (too_much, Some("overloaded".into())), "but no goodbye");
    // The task has sent all of it, and says so.
    assert!(outbox.has_room_again());
    assert!(!hub.has_answers());
    hub.on_inbound(Inbound::Drained { connection: 1 });
    assert!(hub.has_answers());
    hub.serve();
    hub.flush();
    let answers: Vec<u64> = told(outbox).iter().map(|message| answered(message).0).collect();
    assert_eq!(answers, (1..too_much).collect::<Vec<_>>());
    assert!(!outbox.is_behind());
}

#[tokio::test]
async fn a_watch_that_missed_more_than_can_wait_is_told_to_read_again() {
    let (mut hub, outboxes) = attached(1).await;
    let path = FilePath::new(&format!("/{}", "x".repeat(1000))).unwrap();
    let missed = |count: usize| -> Vec<Notice> {
        let what = What::File { path: path.clone(), change: FileChange::Deleted };
        let event = Event::Changed(Change { index: 3, what });
        vec![Notice { session: SessionId(1), watch: 5, event }; count]
    };
    hub.tell_missed(1, 5, 9, missed(100));
    assert_eq!(told(&outboxes[0]).len(), 100);
    hub.tell_missed(1, 5, 9, missed(FULL_BYTES / 1000));
    assert_eq!(told(&outboxes[0]), [server_message::Message::Resync(v1::Resync { id: 5, index: 9 })]);
    hub.tell_missed(1, 5, 9, missed(0));
    assert_eq!(told(&outboxes[0]), []);
}

#[tokio::test]
async fn of_keep_alives_only_the_newest_waits() {
    let (mut hub, _outboxes) = attached(2).await;
    (1..=2).for_each(|connection| hub.bind(connection, SessionId(connection), &KeptAlive::default().into()));
    let keep_alive = |connection, token| Inbound::Asks { connection, asks: vec![Ask::KeepAlive { token }] };
    (0..1000).for_each(|token| hub.on_inbound(keep_alive(1, token)));
    hub.on_inbound(keep_alive(2, 7));
    assert_eq!((hub.alive.len(), hub.waiting.len()), (2, 0));
    hub.begin_round();
    // What comes now is not served by a round that has begun.
    hub.on_inbound(keep_alive(1, 1000));
    let tokens = |hub: &Hub| -> Vec<u64> {
        let serves = hub.round.iter().flat_map(|round| &round.serves);
        serves
            .map(|waiting| if let Wanted::KeepAlive(alive) = &waiting.what { alive.token } else { 0 })
            .collect()
    };
    assert_eq!(tokens(&hub), [999, 7]);
    hub.on_round(Err(ReadError::Retry));
    hub.next_round = Now::ZERO;
    hub.begin_round();
    assert_eq!(tokens(&hub), [1000, 7], "one of each waits again");
}

#[tokio::test]
async fn nobody_takes_more_than_its_share_of_a_round() {
    let (mut hub, outboxes) = attached(2).await;
    let asks = (1..=MAX_WAITING_EACH as u64 + 1)
        .map(|id| Ask::Watch { id, after: None, target: target() })
        .collect();
    hub.on_inbound(Inbound::Asks { connection: 1, asks });
    hub.on_inbound(Inbound::Asks {
        connection: 2,
        asks: vec![Ask::Watch { id: 1, after: None, target: target() }],
    });
    assert_eq!(hub.waiting.len(), MAX_WAITING_EACH + 1);
    let refused = told(&outboxes[0]);
    assert_eq!(answered(&refused[0]), (MAX_WAITING_EACH as u64 + 1, Some("overloaded".into())));
    assert_eq!((refused.len(), told(&outboxes[1]).len()), (1, 0));
    hub.begin_round();
    hub.on_round(Err(ReadError::Stopped));
    assert_eq!(hub.connections[&1].waiting, 0, "its share is free again");
}

#[tokio::test]
async fn a_keep_alive_that_crosses_the_end_of_its_session_ends_nothing() {
    let (mut hub, outboxes) = attached(2).await;
    hub.bind(1, SessionId(1), &KeptAlive::default().into());
    hub.forget(SessionId(1));
    for connection in 1..=2 {
        hub.on_inbound(Inbound::Asks { connection, asks: vec![Ask::KeepAlive { token: 5 }] });
    }
    assert_eq!(told(&outboxes[0]).len(), 1, "the hello");
    assert!(matches!(told(&outboxes[1])[..], [server_message::Message::Goodbye(_)]), "there never was one");
}

#[tokio::test]
async fn who_will_ask_nothing_more_hears_what_it_has_asked() {
    let (mut hub, outboxes) = attached(1).await;
    hub.bind(1, SessionId(1), &KeptAlive::default().into());
    for id in 1..=2 {
        let (id, op) = (RequestId(id), Op::Release { grant: RequestId(0) });
        hub.on_inbound(Inbound::Asks { connection: 1, asks: vec![Ask::Request { id, lowest: id, op }] });
    }
    hub.on_inbound(Inbound::Asks {
        connection: 1,
        asks: vec![Ask::Watch { id: 3, after: None, target: target() }],
    });
    hub.on_inbound(Inbound::Finish { connection: 1 });
    hub.flush();
    assert_eq!(told(&outboxes[0]).len(), 1, "the hello");
    let reply =
        |id, answer| Effect::Reply { session: SessionId(1), request: RequestId(id), answer, after: 0 };
    hub.on_effect(reply(1, Answer::Done));
    hub.flush();
    assert_eq!(told(&outboxes[0]).len(), 1);
    // Who waits for a grant does not say that it asks nothing more.
    hub.on_effect(reply(2, Answer::Queued(Queued { ahead: 0, holders: Vec::new() })));
    hub.flush();
    assert_eq!(told(&outboxes[0]).len(), 1);
    hub.begin_round();
    hub.on_round(Err(ReadError::Stopped));
    hub.flush();
    let last = told(&outboxes[0]);
    assert_eq!(answered(&last[0]).0, 3);
    assert!(matches!(last[1..], [server_message::Message::Goodbye(_)]));
}

/// Three clients with a session each, of which [`Hub`] thinks that their requests go to the disk when a test says so.
struct Three {
    hub: Hub,
    request: u64,
}

impl Three {
    async fn attached() -> Self {
        let (mut hub, _door) = alone(Timing::default()).await;
        for connection in 1..=3 {
            hub.on_inbound(Inbound::Attach { connection, outbox: Arc::new(Outbox::default()) });
            hub.bind(connection, SessionId(connection), &KeptAlive { token: 0 }.into());
        }
        hub.flush();
        Self { hub, request: 0 }
    }

    fn asks(&mut self, connection: ConnectionId) {
        self.request += 1;
        let id = RequestId(self.request);
        let asks = vec![Ask::Request { id, lowest: id, op: Op::Release { grant: RequestId(0) } }];
        self.hub.on_inbound(Inbound::Asks { connection, asks });
    }

    /// Whether what was asked goes to the disk now. It is there at once.
    fn goes(&mut self) -> bool {
        self.hub.propose(self.hub.now());
        let goes = !self.hub.proposals.is_empty();
        self.hub.proposals.clear();
        goes
    }

    fn is_answered(&mut self, connection: ConnectionId) {
        let (session, request) = (SessionId(connection), RequestId(self.request));
        self.hub.on_effect(Effect::Reply { session, request, answer: Answer::Done, after: 0 });
    }

    /// Something passes to it ahead of the disk.
    fn inherits(&mut self, connection: ConnectionId) {
        let (session, request) = (SessionId(connection), RequestId(self.request));
        let answer = Answer::Granted(Granted { names: Vec::new() });
        let effects = vec![Effect::Reply { session, request, answer, after: 0 }];
        self.hub.on_delivery(Delivery::Foregone { effects });
    }

    /// 1 and 2 have asked together, and were answered by the same flush.
    async fn two_answered() -> Self {
        let mut three = Self::attached().await;
        three.asks(1);
        three.asks(2);
        assert!(three.goes(), "nobody was answered before");
        three.is_answered(1);
        three.is_answered(2);
        three.hub.flush();
        three
    }
}

// No clock decides here: a pause begins when it is first looked for.

#[tokio::test]
async fn the_first_who_asks_again_waits_for_the_other() {
    let mut three = Three::two_answered().await;
    three.asks(1);
    assert_eq!(three.goes(), !awake::is_worth_it());
    three.asks(2);
    assert!(three.goes());
}

#[tokio::test]
async fn who_was_refused_is_waited_for_as_well() {
    let mut three = Three::attached().await;
    three.asks(1);
    assert!(three.goes());
    let origin = Origin::Request { session: SessionId(1), id: RequestId(1) };
    three.hub.on_proposals(proposed(origin, Err(ProposeError::Retry)));
    three.hub.flush();
    three.asks(3);
    assert_eq!(three.goes(), !awake::is_worth_it());
}

#[tokio::test]
async fn what_an_heir_asks_does_not_wait_for_the_flush_on_its_way() {
    let mut three = Three::attached().await;
    let flushes = |three: &mut Three| {
        three.hub.propose(three.hub.now());
        three.hub.proposals.len()
    };
    three.asks(1);
    assert_eq!(flushes(&mut three), 1);
    three.asks(2);
    assert_eq!(flushes(&mut three), 1, "one at a time");
    three.inherits(3);
    assert_eq!(flushes(&mut three), 1, "it has asked nothing yet");
    three.asks(3);
    assert_eq!(flushes(&mut three), 2, "with whatever else there is");
    assert!(three.hub.commands.is_empty());
    three.asks(3);
    assert_eq!(flushes(&mut three), 2, "once");
    // Who reads is served between two flushes: there must be such a time.
    three.inherits(1);
    three.hub.drained.push_back(2);
    three.asks(1);
    assert_eq!(flushes(&mut three), 2);
    three.hub.drained.clear();
    assert_eq!(flushes(&mut three), 3);
}

#[tokio::test]
async fn who_hung_up_is_not_waited_for() {
    let mut three = Three::two_answered().await;
    three.hub.on_inbound(Inbound::Detach { connection: 2 });
    three.asks(1);
    assert!(three.goes());
}

#[tokio::test]
async fn nobody_is_late_before_the_answers_are_sent() {
    let mut three = Three::attached().await;
    three.asks(1);
    assert!(three.goes());
    three.is_answered(1);
    assert!(!three.goes(), "there is nothing, but it is looked who comes");
    // Sending takes longer than anybody is waited for.
    three.hub.began -= Duration::from_millis(1);
    three.hub.flush();
    three.asks(3);
    assert_eq!(three.goes(), !awake::is_worth_it());
}

/// A node of which it is not known that it is not alone may have applied what its disk still writes.
#[tokio::test]
async fn while_a_flush_is_on_its_way_the_state_is_told_to_nobody_and_leases_are_kept() {
    let (mut hub, outboxes) = attached(2).await;
    let session = SessionId(1);
    hub.keeper.on_leading(Now::ZERO, 7, [(TimerId::Lease { session, generation: 0 }, 10_000)]);
    hub.bind(1, session, &KeptAlive::default().into());
    told(&outboxes[0]);
    let (id, op) = (RequestId(1), Op::Release { grant: RequestId(0) });
    hub.on_inbound(Inbound::Asks { connection: 1, asks: vec![Ask::Request { id, lowest: id, op }] });
    hub.propose(hub.now());
    assert!(!hub.proposals.is_empty());
    let sessions = |id, stale| Ask::Query { id, stale, what: Query::Sessions { after: None } };
    let asks = vec![sessions(1, true), sessions(2, false), read(3)];
    hub.on_inbound(Inbound::Asks { connection: 2, asks });
    hub.on_inbound(Inbound::Asks { connection: 1, asks: vec![Ask::KeepAlive { token: 5 }] });
    hub.begin_round();
    hub.on_round(Ok(LogId { term: 7, index: 0 }));
    hub.serve();
    hub.flush();
    assert_eq!(told(&outboxes[0]), [server_message::Message::KeptAlive(KeptAlive { token: 5 })]);
    assert_eq!(told(&outboxes[1]), []);
    assert!(!hub.has_answers(), "the end of the flush wakes it");
    hub.proposals.clear();
    hub.serve();
    hub.flush();
    let mut answers: Vec<u64> = told(&outboxes[1]).iter().map(|message| answered(message).0).collect();
    answers.sort_unstable();
    assert_eq!(answers, [1, 2, 3]);
}
