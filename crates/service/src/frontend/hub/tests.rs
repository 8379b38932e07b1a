//! A hub of a node that belongs to no cluster: nothing is applied and nobody leads unless a test says so.

use std::sync::Mutex;
use std::task::{Context, Poll, Wake, Waker};

use conclave_api::RequestId;
use conclave_api::proto::v1::{Goodbye, KeptAlive, server_message};
use tokio::sync::oneshot;

use super::super::outbox::Outbox;
use super::super::wire::Ask;
use super::rounds::no_majority;
use super::*;
use crate::peers::Tcp;
use crate::replica::disk::SimDisk;
use crate::replica::{Identity, Options};
use crate::state::{Answer, Effect, Granted};

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
    let (waits, busy) = (door.attach().await.unwrap(), door.attach().await.unwrap());
    waits.send(vec![Ask::Open { ttl_ms: 10_000, lock_delay_ms: 0, label: String::new() }]).await.unwrap();
    for token in 0..4 * AT_ONCE as u64 {
        busy.send(vec![Ask::KeepAlive { token }]).await.unwrap();
    }
    let (done, _stopped) = oneshot::channel();
    assert!(door.sender.try_send(Inbound::Stop { done }).is_ok(), "all of it waits for the hub");
    hub.run().await;
    let Poll::Ready(Some(frames)) = waits.outbox.poll_take(&mut Context::from_waker(Waker::noop())) else {
        panic!("not even a goodbye");
    };
    let last = frames.last().and_then(|frame| frame.messages.last()).and_then(|last| last.message.clone());
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
        hub.bind(connection, SessionId(connection), KeptAlive { token: 0 }.into());
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
