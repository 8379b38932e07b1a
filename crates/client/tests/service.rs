//! Tests of the client against a server in this process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::task::{Context, Waker};
use std::time::Duration;

use conclave_client::{
    Change, Claim, Client, Code, Create, FileOp, LeaseState, LossReason, SessionId, Version, VictimPolicy,
    WatchEvent,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::Service;

#[tokio::test]
async fn a_lock_is_waited_for_and_its_fence_grows() {
    let service = Service::start().await;
    let (first, second) = (service.client().await, service.client().await);
    let guard = first.lock("src & dst").await.unwrap();
    let names: Vec<&str> = guard.names().iter().map(|held| held.name.as_str()).collect();
    assert_eq!(names, ["dst", "src"]);
    assert_eq!(guard.state(), LeaseState::Valid);
    assert!(guard.remaining() > Duration::from_secs(50));
    assert!(second.lock("src").try_now().await.unwrap().is_none());
    let late = second.lock("src").timeout(Duration::from_millis(5)).await;
    assert_eq!(late.unwrap_err().code, Code::TimedOut);
    let mut waiting = second.lock("dst").start().unwrap();
    let place = waiting.queued().await.expect("it is held");
    assert_eq!(place.holders[0].holder.session, first.session().unwrap());
    let before = guard.fence();
    guard.release().await.unwrap();
    let next = waiting.granted().await.unwrap();
    assert!(next.fence() > before);
    assert_eq!(next.fence_of("/dst"), Some(next.fence()));
    assert_eq!(next.fence_of("src"), None);
}

/// Single requests are written by their callers, bursts by the task. Many threads share one connection here.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_of_many_threads_on_one_client_get_their_own_replies() {
    async fn pairs(client: Client, name: String, count: usize) {
        for _ in 0..count {
            client.lock(&name).await.unwrap().release().await.unwrap();
        }
    }
    let service = Service::start().await;
    for server in [service.address.to_string(), format!("tcp:{}", service.address)] {
        let client = Client::connect(&server).await.unwrap();
        for round in 0..10 {
            pairs(client.clone(), "alone".into(), 5).await;
            let many = (0..8).map(|task| tokio::spawn(pairs(client.clone(), format!("{round}/{task}"), 5)));
            for task in many.collect::<Vec<_>>() {
                task.await.unwrap();
            }
        }
        let all = client.admin().locks("").await.unwrap();
        assert!(all.is_empty(), "{all:?} by {server}");
    }
}

#[tokio::test]
async fn a_dropped_guard_and_a_dropped_wait_are_given_back() {
    let service = Service::start().await;
    let (first, second) = (service.client().await, service.client().await);
    let guard = first.lock("x").await.unwrap();
    let mut given_up = second.lock("x").start().unwrap();
    given_up.queued().await.expect("it is held");
    drop(given_up);
    drop(guard);
    first.lock("x").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_cancelled_wait_holds_nothing_when_it_is_answered() {
    let service = Service::start().await;
    let (first, second) = (service.client().await, service.client().await);
    let guard = first.lock("x").await.unwrap();
    let mut waiting = second.lock("x").start().unwrap();
    waiting.queued().await.expect("it is held");
    waiting.cancel().await.unwrap();
    guard.release().await.unwrap();
    // The same must hold if the grant arrives before the cancel.
    let granted = second.lock("x").start().unwrap();
    granted.cancel().await.unwrap();
    assert!(first.lock("x").try_now().await.unwrap().is_some());
}

#[tokio::test]
async fn locks_of_a_client_exclude_each_other_and_those_of_an_owner_do_not() {
    let service = Service::start().await;
    let client = service.client().await;
    let _one = client.lock("x").await.unwrap();
    assert!(client.lock("x").try_now().await.unwrap().is_none());
    let owner = client.owner("job").unwrap();
    let _held = owner.lock("y").await.unwrap();
    assert!(owner.lock("y & z").try_now().await.unwrap().is_some());
    let mut waiting = owner.lock("x").start().unwrap();
    waiting.queued().await.expect("it is held");
    assert_eq!(owner.lock("x").await.unwrap_err().code, Code::OwnerBusy);
}

#[tokio::test]
async fn the_request_that_closes_a_deadlock_is_rejected_with_its_edges() {
    let service = Service::start().await;
    let (first, second) = (service.client().await, service.client().await);
    let (p, q) = (first.owner("p").unwrap(), second.owner("q").unwrap());
    let _a = p.lock("a").await.unwrap();
    let b = q.lock("b").await.unwrap();
    let mut waiting = p.lock("b").start().unwrap();
    waiting.queued().await.expect("it is held");
    let error = q.lock("a").await.unwrap_err();
    assert_eq!(error.code, Code::Deadlock);
    assert_eq!(error.deadlock.unwrap().cycle.len(), 2);
    let other = q.lock("a").on_deadlock(VictimPolicy::Youngest).await;
    assert!(other.is_err(), "its own owner came last");
    b.release().await.unwrap();
    drop(waiting.granted().await.unwrap());
}

#[tokio::test]
async fn a_shared_guard_is_upgraded_and_downgraded() {
    let service = Service::start().await;
    let client = service.client().await;
    let reader = client.lock("x").shared().await.unwrap();
    let mut writer = reader.lock("x").await.unwrap();
    assert!(writer.fence() > reader.fence());
    assert!(client.lock("x:shared").try_now().await.unwrap().is_none());
    writer.downgrade().await.unwrap();
    assert!(client.lock("x:shared").try_now().await.unwrap().is_some());
}

#[tokio::test]
async fn a_guard_is_shared_after_a_downgrade_whose_future_was_dropped() {
    let service = Service::start().await;
    let client = service.client().await;
    let mut guard = client.lock("x").await.unwrap();
    {
        let mut downgrade = std::pin::pin!(guard.downgrade());
        assert!(downgrade.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it is sent");
    }
    assert_eq!(guard.names()[0].claim, Claim::Shared);
    let other = client.lock("x").shared().await.unwrap();
    assert_eq!(other.names()[0].claim, Claim::Shared);
}

#[tokio::test]
async fn a_session_survives_a_server_that_was_away() {
    let mut service = Service::start().await;
    let (first, second) = (service.client().await, service.client().await);
    let guard = first.lock("x").await.unwrap();
    let session = first.session();
    let mut waiting = second.lock("x").start().unwrap();
    waiting.queued().await.expect("it is held");
    service.stop().await;
    service.start_again().await;
    assert_eq!(guard.state(), LeaseState::Valid);
    guard.release().await.unwrap();
    drop(waiting.granted().await.unwrap());
    assert_eq!(first.session(), session);
}

#[tokio::test]
async fn a_request_during_an_outage_takes_effect_once_after_it() {
    let mut service = Service::start().await;
    let client = service.client().await;
    client.files().create("/jobs", "", Create::default()).await.unwrap();
    service.stop().await;
    let files = client.files();
    let how = Create { sequential: true, ..Create::default() };
    let (made, ()) = tokio::join!(files.create("/jobs/job-", "", how), service.start_again());
    made.unwrap();
    assert_eq!(client.files().list("/jobs").await.unwrap().names.len(), 1);
}

#[tokio::test]
async fn an_ended_session_loses_its_guards_and_the_client_goes_on_with_another() {
    let service = Service::start().await;
    let (client, operator) = (service.client().await, service.client().await);
    let guard = client.lock("x").await.unwrap();
    let session = client.session().unwrap();
    operator.admin().end_session(session).await.unwrap();
    assert!(matches!(guard.lost().await, LossReason::Session(_)));
    assert_eq!(guard.release().await.unwrap_err().code, Code::NotHeld);
    let next = client.lock("y").await.unwrap();
    assert_ne!(client.session(), Some(session));
    assert_eq!(next.state(), LeaseState::Valid);
    assert_eq!(
        operator.admin().end_session(SessionId(session.0)).await.unwrap_err().code,
        Code::SessionEnded
    );
}

#[tokio::test]
async fn a_broken_lock_is_lost_with_its_reason() {
    let service = Service::start().await;
    let (client, operator) = (service.client().await, service.client().await);
    let guard = client.lock("x").await.unwrap();
    operator.admin().break_lock("x", "stuck").await.unwrap();
    assert_eq!(guard.lost().await, LossReason::Broken { name: "x".into(), reason: "stuck".into() });
    assert_eq!(client.why("x").await.unwrap().breakings[0].reason, "stuck");
}

#[tokio::test]
async fn a_guard_is_lost_by_itself_when_no_server_answers() {
    let mut service = Service::start().await;
    let options = Client::builder().ttl(Duration::from_millis(300));
    let client = options.connect(&service.address.to_string()).await.unwrap();
    let guard = client.lock("x").await.unwrap();
    let believing = async {
        assert_eq!(guard.changed(LeaseState::Valid).await, LeaseState::Jeopardy);
        guard.lost().await
    };
    let ((), loss) = tokio::join!(service.stop(), believing);
    assert_eq!(loss, LossReason::Deadline);
    assert_eq!(guard.state(), LeaseState::Lost);
    assert_eq!(guard.remaining(), Duration::ZERO);
}

#[tokio::test]
async fn semaphores_and_elections() {
    let service = Service::start().await;
    let client = service.client().await;
    let pool = client.semaphore("pool", 3).await.unwrap();
    let two = pool.acquire(2).await.unwrap();
    assert!(pool.acquire(2).try_now().await.unwrap().is_none());
    assert_eq!(pool.acquire(4).await.unwrap_err().code, Code::Impossible);
    two.release().await.unwrap();

    let odd = client.elect("night & day", "one").await.unwrap();
    assert_eq!(odd.guard().names()[0].name, "night & day", "a name is no expression");
    assert!(client.leader("night & day").await.unwrap().is_some());

    assert_eq!(client.leader("chief").await.unwrap(), None);
    let leadership = client.elect("chief", "one").await.unwrap();
    leadership.proclaim("two").await.unwrap();
    let leader = client.leader("chief").await.unwrap().expect("elected");
    assert_eq!((leader.value, leader.term), (b"two".to_vec(), leadership.term()));
    leadership.resign().await.unwrap();
    assert_eq!(client.leader("chief").await.unwrap(), None);
}

#[tokio::test]
async fn files_change_together_and_a_watch_from_a_read_misses_nothing() {
    let mut service = Service::start().await;
    let client = service.client().await;
    let files = client.files();
    assert_eq!(files.put("/a", "1").await.unwrap(), Version(1));
    let read = files.read("/a").await.unwrap();
    assert_eq!(files.write("/a", "2", Some(Version(1))).await.unwrap(), Version(2));
    let both = vec![FileOp::Check("/a".into(), Version(1)), FileOp::Delete("/a".into(), None)];
    assert_eq!(files.multi(both).await.unwrap_err().code, Code::VersionMismatch);

    let mut watch = files.watch("/a", Some(read.index)).await.unwrap();
    let WatchEvent::Changed { change, .. } = watch.next().await.unwrap().unwrap() else { panic!("a gap") };
    assert_eq!(change, Change::Written(Version(2)));
    service.stop().await;
    service.start_again().await;
    files.delete("/a", Some(Version(2))).await.unwrap();
    match watch.next().await.unwrap().unwrap() {
        WatchEvent::Changed { change, .. } => assert_eq!(change, Change::Deleted),
        _ => assert_eq!(files.read("/a").await.unwrap_err().code, Code::NoSuchFile),
    }
}

#[tokio::test]
async fn a_closed_session_leaves_nothing_behind() {
    let service = Service::start().await;
    let (client, other) = (service.client().await, service.client().await);
    let guard = client.lock("x").await.unwrap();
    client.close().await.unwrap();
    assert_eq!(guard.state(), LeaseState::Lost);
    assert!(other.lock("x").try_now().await.unwrap().is_some(), "no lock-delay after a clean end");
    drop(guard);
    assert_eq!(client.session(), None);
    assert_eq!(other.admin().sessions().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_session_is_closed_also_while_it_is_being_opened() {
    let service = Service::start().await;
    let (client, other) = (service.client().await, service.client().await);
    let _acquiring = client.lock("x").start().unwrap();
    assert_eq!(client.session(), None, "not known yet");
    client.close().await.unwrap();
    assert_eq!(other.admin().sessions().await.unwrap(), []);
}

#[tokio::test]
async fn a_watch_goes_on_when_its_session_is_ended() {
    let service = Service::start().await;
    let (client, operator) = (service.client().await, service.client().await);
    let mut watch = client.files().watch("/a", None).await.unwrap();
    let session = client.session().expect("a watch has one");
    operator.admin().end_session(session).await.unwrap();
    operator.files().put("/a", "1").await.unwrap();
    assert!(matches!(watch.next().await.unwrap().unwrap(), WatchEvent::Changed { .. }));
}

#[tokio::test]
async fn an_unreachable_server_is_an_error_at_once() {
    let error = Client::connect(" , ").await.err().expect("nobody is named");
    assert_eq!(error.code, Code::InvalidArgument);
    let error = Client::connect("127.0.0.1:1").await.err().expect("nobody listens there");
    assert_eq!((error.code, error.code.is_definite()), (Code::Unreachable, true));
}

#[tokio::test]
async fn a_server_of_another_kind_is_named_when_patience_is_over() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let other = async {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            // Reads until the client leaves. Any end is fine.
            drop(connection.read_to_end(&mut Vec::new()).await);
        }
    };
    let asking = async {
        let options = Client::builder().retry_timeout(Duration::from_millis(50));
        let client = options.connect(&format!("tcp:{address}")).await.unwrap();
        let admin = client.admin();
        tokio::join!(client.lock("x").into_future(), admin.limit("pool", 3), client.why("x"))
    };
    let (lock, limit, why) = tokio::select! {
        results = asking => results,
        () = other => unreachable!("it goes on for ever"),
    };
    for error in [lock.unwrap_err(), limit.unwrap_err(), why.unwrap_err()] {
        assert_eq!(error.code, Code::Disconnected);
        assert!(error.message.contains("is not a conclave server"), "{error}");
        assert!(error.message.contains(&address) && error.message.contains("HTTP/1.1"), "{error}");
    }
}

#[tokio::test]
async fn connections_to_a_server_that_closes_them_have_pauses() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut count = 0;
    let closing = async {
        loop {
            drop(listener.accept().await.unwrap());
            count += 1;
        }
    };
    let asking = async {
        let options = Client::builder().retry_timeout(Duration::from_millis(200));
        options.connect(&format!("tcp:{address}")).await.unwrap().lock("x").await
    };
    let error = tokio::select! {
        result = asking => result.unwrap_err(),
        () = closing => unreachable!("it goes on for ever"),
    };
    assert_eq!(error.code, Code::Disconnected);
    // The pauses are at least 10, 20, 40, 80 and 160 ms.
    assert!(count <= 8, "{count} connections");
}

#[tokio::test]
async fn a_silent_server_is_left_for_another() {
    let service = Service::start().await;
    // The system accepts the connections of this listener.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let servers = format!("tcp:{},{}", silent.local_addr().unwrap(), service.address);
    let client = Client::connect(&servers).await.unwrap();
    client.lock("x").await.unwrap().release().await.unwrap();
}

#[test]
fn requests_fail_after_the_end_of_the_runtime() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (servers, clients) = (runtime(), runtime());
    let service = servers.block_on(Service::start());
    let client = clients.block_on(service.client());
    let guard = clients.block_on(client.lock("x").into_future()).unwrap();
    drop(clients);
    servers.block_on(async {
        assert_eq!(client.lock("y").await.unwrap_err().code, Code::Disconnected);
        assert_eq!(client.why("y").await.unwrap_err().code, Code::Disconnected);
        assert_eq!(guard.state(), LeaseState::Lost);
        assert_eq!(guard.release().await.unwrap_err().code, Code::NotHeld);
    });
}
