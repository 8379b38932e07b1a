//! Each fault of the server in memory, as a client sees it.

use std::time::Duration;

use conclave_client::testing::Server;
use conclave_client::{Client, Code, Create, LeaseState, LossReason};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{secs, soon};

async fn started<const N: usize>() -> (Server, [Client; N]) {
    let server = Server::start(7);
    let mut clients = Vec::new();
    for _ in 0..N {
        clients.push(server.client().await.unwrap());
    }
    (server, clients.try_into().ok().unwrap())
}

#[tokio::test(start_paused = true)]
async fn two_clients_exclude_each_other_and_no_time_passes() {
    let (_server, [first, second]) = started().await;
    let began = Instant::now();
    let guard = soon(first.lock("x & y")).await.unwrap();
    assert!(second.lock("x").try_now().await.unwrap().is_none());
    let mut waiting = second.lock("y").start().unwrap();
    waiting.queued().await.expect("it is held");
    let before = guard.fence();
    guard.release().await.unwrap();
    assert!(soon(waiting.granted()).await.unwrap().fence() > before);
    assert_eq!(began.elapsed(), secs(0));
}

#[tokio::test]
async fn the_server_runs_in_real_time_too() {
    let (server, [first, second]) = started().await;
    let guard = soon(first.lock("x")).await.unwrap();
    assert!(second.lock("x").try_now().await.unwrap().is_none());
    server.lose_session(&first);
    assert!(matches!(soon(guard.lost()).await, LossReason::Session(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_on_several_threads_share_the_server() {
    let (_server, clients) = started::<4>().await;
    let work = clients.map(|client| {
        tokio::spawn(async move {
            for _ in 0..50 {
                soon(client.lock("x")).await.unwrap().release().await.unwrap();
            }
        })
    });
    for client in work {
        client.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_kept_while_there_are_no_faults() {
    let (_server, [client]) = started().await;
    let guard = soon(client.lock("x")).await.unwrap();
    sleep(secs(3_600)).await;
    assert_eq!(guard.state(), LeaseState::Valid);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_a_guard_is_a_time_of_the_paused_clock() {
    let (server, [client]) = started().await;
    let guard = soon(client.lock("x")).await.unwrap();
    // From here on, the clock of the test is an hour ahead of the clock of the standard library.
    sleep(secs(3_600)).await;
    server.pause();
    let deadline = Instant::from_std(guard.deadline());
    assert_eq!(deadline, Instant::now() + guard.remaining());
    sleep_until(deadline - Duration::from_millis(1)).await;
    assert_ne!(guard.state(), LeaseState::Lost);
    assert_eq!(Instant::from_std(guard.deadline()), deadline);
    sleep_until(deadline).await;
    assert_eq!(guard.state(), LeaseState::Lost);
}

#[tokio::test(start_paused = true)]
async fn after_a_pause_no_other_client_gets_the_lock_for_another_lease() {
    let (server, [first, second]) = started().await;
    let guard = soon(first.lock("x")).await.unwrap();
    let began = Instant::now();
    server.pause();
    assert_eq!(soon(guard.lost()).await, LossReason::Deadline);
    assert!(began.elapsed() < secs(10), "before the end of the lease: {:?}", began.elapsed());
    sleep(secs(60)).await;
    let resumed = Instant::now();
    server.resume();
    let next = soon(second.lock("x")).await.unwrap();
    assert!(resumed.elapsed() > secs(10), "{:?}", resumed.elapsed());
    assert!(next.fence() > guard.fence());
    assert_eq!(guard.state(), LeaseState::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_short_pause_costs_nothing() {
    let (server, [client]) = started().await;
    let guard = soon(client.lock("x")).await.unwrap();
    server.pause_for(secs(2));
    let began = Instant::now();
    drop(soon(client.lock("y")).await.unwrap());
    assert!(began.elapsed() >= secs(2));
    assert_eq!(guard.state(), LeaseState::Valid);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_cut_off_loses_its_lock_before_another_client_gets_it() {
    let (server, [first, second]) = started().await;
    let guard = soon(first.lock("x")).await.unwrap();
    server.cut_off(&first);
    let mut waiting = second.lock("x").start().unwrap();
    tokio::select! {
        biased;
        granted = waiting.granted() => panic!("{:?} was granted before the loss", granted.map(|guard| guard.fence())),
        loss = soon(guard.lost()) => assert_eq!(loss, LossReason::Deadline),
    }
    let next = soon(waiting.granted()).await.unwrap();
    assert!(next.fence() > guard.fence());
    assert!(first.lock("y").try_now().await.is_err(), "no node can be reached");
    server.reconnect(&first);
    assert!(first.lock("x").try_now().await.unwrap().is_none());
    assert!(first.lock("y").try_now().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_is_noticed_at_once_and_its_lock_is_free_after_the_delay() {
    let (server, [first, second]) = started().await;
    let guard = soon(first.lock("x")).await.unwrap();
    let began = Instant::now();
    server.lose_session(&first);
    assert!(matches!(soon(guard.lost()).await, LossReason::Session(_)));
    assert!(began.elapsed() < secs(1));
    drop(soon(second.lock("x")).await.unwrap());
    assert!(began.elapsed() >= secs(1), "the lock-delay has passed");
}

#[tokio::test(start_paused = true)]
async fn a_suspended_client_believes_in_a_lock_that_another_client_has() {
    let (server, [first, second]) = started().await;
    let guard = soon(first.lock("x")).await.unwrap();
    server.cut_off(&first);
    server.lose_session(&first);
    let next = soon(second.lock("x")).await.unwrap();
    assert_eq!((guard.state(), next.state()), (LeaseState::Valid, LeaseState::Valid));
    assert!(next.fence() > guard.fence(), "a store that checks fences rejects the first");
}

#[tokio::test(start_paused = true)]
async fn a_guard_survives_a_broken_connection_a_new_leader_and_a_power_cut() {
    let (server, [first, second]) = started().await;
    let guard = soon(first.lock("x")).await.unwrap();
    let session = first.session();
    let faults: [fn(&Server); 3] = [Server::drop_connections, Server::change_leader, Server::power_cut];
    for fault in faults {
        fault(&server);
        assert!(second.lock("x").try_now().await.unwrap().is_none());
        sleep(secs(30)).await;
        assert_eq!((guard.state(), first.session()), (LeaseState::Valid, session));
    }
    guard.release().await.unwrap();
    drop(soon(second.lock("x")).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn no_request_is_accepted_during_an_election() {
    for seed in 0..20 {
        let server = Server::start(seed);
        let client = server.client().await.unwrap();
        drop(soon(client.lock("x")).await.unwrap());
        let began = Instant::now();
        server.change_leader();
        drop(soon(client.lock("y")).await.unwrap());
        assert!(began.elapsed() >= secs(1), "seed {seed}: {:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn each_request_takes_effect_once_although_leaders_change_and_the_power_fails() {
    const FAULTS: [fn(&Server); 3] = [Server::drop_connections, Server::change_leader, Server::power_cut];
    for seed in 0..20 {
        let server = Server::start(seed);
        let client = server.client().await.unwrap();
        let files = client.files();
        files.create("/jobs", "", Create::default()).await.unwrap();
        server.delay_replies(secs(0)..=secs(1));
        let faults = async {
            for fault in FAULTS.iter().cycle() {
                sleep(secs(3)).await;
                fault(&server);
            }
        };
        let work = async {
            for _ in 0..20 {
                let how = Create { sequential: true, ..Create::default() };
                files.create("/jobs/job-", "", how).await.unwrap();
            }
        };
        tokio::select! {
            biased;
            () = work => {}
            () = faults => {}
        }
        assert_eq!(files.list("/jobs").await.unwrap().names.len(), 20, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_reply_is_lost_takes_effect_once() {
    let (server, [client]) = started().await;
    let files = client.files();
    files.create("/jobs", "", Create::default()).await.unwrap();
    server.delay_replies(secs(2)..=secs(2));
    let faults = async {
        sleep(secs(1)).await;
        server.drop_connections();
        server.delay_replies(secs(0)..=secs(0));
    };
    let how = Create { sequential: true, ..Create::default() };
    let (created, ()) = tokio::join!(files.create("/jobs/job-", "", how), faults);
    assert_eq!(created.unwrap(), "/jobs/job-0000000000");
    assert_eq!(files.list("/jobs").await.unwrap().names, ["job-0000000000"]);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_reply_arrives_late_and_replies_keep_their_order() {
    let (server, [client]) = started().await;
    drop(soon(client.lock("a")).await.unwrap());
    server.delay_replies(secs(1)..=secs(3));
    let began = Instant::now();
    let requests: Vec<_> = (0..20).map(|name| client.lock(format!("n{name}")).start().unwrap()).collect();
    let mut fences = Vec::new();
    for mut request in requests {
        fences.push(soon(request.granted()).await.unwrap().fence());
    }
    assert!((secs(1)..secs(4)).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert!(fences.is_sorted());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_connections_serves_those_it_has() {
    let (server, [client]) = started().await;
    server.refuse_connections(true);
    assert_eq!(server.client().await.err().unwrap().code, Code::Unreachable);
    soon(client.lock("x")).await.unwrap().release().await.unwrap();
    server.drop_connections();
    assert!(timeout(secs(5), client.lock("x")).await.is_err(), "it waits for a connection");
    server.refuse_connections(false);
    drop(soon(client.lock("x")).await.unwrap());
    server.client().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_watch_misses_nothing_although_connections_break() {
    let (server, [watcher, writer]) = started().await;
    writer.files().create("/config", "0", Create::default()).await.unwrap();
    let mut watch = watcher.files().watch("/config", None).await.unwrap();
    for version in 0..20 {
        if version % 5 == 0 {
            server.drop_connections();
        }
        writer.files().put("/config", format!("{version}")).await.unwrap();
    }
    for _ in 0..20 {
        timeout(secs(60), watch.next()).await.expect("each write is an event").unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_connection_too_many_is_refused() {
    let server = Server::start(1);
    let mut clients = Vec::new();
    while let Ok(client) = server.client().await {
        clients.push(client);
        assert!(clients.len() <= 1024);
    }
    assert_eq!(clients.len(), 1024);
    drop(soon(clients[0].lock("x")).await.unwrap());
    clients.pop();
    sleep(secs(1)).await;
    server.client().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dropped_server_leaves_no_client_waiting() {
    let (server, [client]) = started().await;
    let guard = soon(client.lock("x")).await.unwrap();
    drop(server);
    assert!(soon(client.lock("y")).await.is_err());
    soon(guard.lost()).await;
}

#[test]
fn a_server_and_its_clients_may_outlive_the_runtime() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (server, client, guard) = runtime.block_on(async {
        let (server, [client]) = started().await;
        let guard = soon(client.lock("x")).await.unwrap();
        (server, client, guard)
    });
    drop(runtime);
    assert_eq!(guard.state(), LeaseState::Lost);
    server.pause();
    drop((guard, client, server));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the client is not connected to this server")]
async fn a_fault_for_a_client_of_another_server_is_a_mistake_in_the_test() {
    let ((server, []), (_other, [client])) = (started().await, started().await);
    server.cut_off(&client);
}
