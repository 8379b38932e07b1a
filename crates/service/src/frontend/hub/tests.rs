//! A hub of a node that belongs to no cluster: nothing is applied and nobody leads unless a test says so.

use std::sync::Mutex;
use std::task::{Context, Poll, Wake, Waker};

use conclave_api::RequestId;
use conclave_api::proto::frame;
use conclave_api::proto::v1::{Goodbye, KeptAlive, ServerFrame, server_message};
use tokio::sync::oneshot;

use super::super::outbox::Outbox;
use super::super::wire::Ask;
use super::effects::Origin;
use super::rounds::no_majority;
use super::*;
use crate::peers::Tcp;
use crate::replica::ProposeError;
use crate::replica::disk::SimDisk;
use crate::replica::{Identity, Options};
use crate::state::{Answer, Effect, Granted, Op};

async fn alone(timing: Timing) -> (Hub, Door) {
    let peers = Arc::new(Peers::new(7, Arc::new(Tcp)));
    let identity = Identity { cluster: 7, node: 1 };
    let disk = Arc::new(SimDisk::new(1).handle());
    let (replica, deliveries) =
        Replica::open(disk, identity, peers.clone(), Service::new(), Options::default()).await.unwrap();
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
        hub.on_effect(Effect::Reply { session: SessionId(session), request, answer });
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
        self.hub.on_effect(Effect::Reply { session, request, answer: Answer::Done });
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
    three.hub.on_proposals((vec![vec![origin]], vec![Err(ProposeError::Retry)]));
    three.hub.flush();
    three.asks(3);
    assert_eq!(three.goes(), !awake::is_worth_it());
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
