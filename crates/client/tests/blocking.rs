//! Tests of the client for programs without an async runtime.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::thread;
use std::time::Duration;

use conclave_client::blocking::Client;
use conclave_client::{Code, Create, LeaseState, LossReason, Version, WatchEvent};
use tokio::runtime::{Builder, Runtime};

use crate::support::Service;

fn servers() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn connect(service: &Service) -> Client {
    Client::builder().ttl(Duration::from_secs(60)).connect(&service.address.to_string()).unwrap()
}

#[test]
fn locks_are_waited_for_tried_and_given_back_without_a_runtime() {
    let servers = servers();
    let service = servers.block_on(Service::start());
    let (first, second) = (connect(&service), connect(&service));
    let guard = first.lock("src & dst").wait().unwrap();
    assert_eq!(guard.state(), LeaseState::Valid);
    assert!(second.lock("src").try_now().unwrap().is_none());
    let late = second.lock("src").timeout(Duration::from_millis(5)).wait();
    assert_eq!(late.unwrap_err().code, Code::TimedOut);
    assert_eq!(guard.wait_lost(Duration::ZERO), None);
    let fence = guard.fence_of("dst").unwrap();
    let waiting = thread::spawn(move || second.lock("dst").wait());
    guard.release().unwrap();
    let mut next = waiting.join().unwrap().unwrap();
    assert!(next.fence() > fence);
    next.downgrade().unwrap();
    assert!(first.lock("dst").shared().try_now().unwrap().is_some());
    assert_eq!(first.lock("a & | b").wait().unwrap_err().code, Code::InvalidExpression);
    first.close().unwrap();
}

#[test]
fn a_lost_guard_gives_the_reason() {
    let servers = servers();
    let service = servers.block_on(Service::start());
    let client = connect(&service);
    let guard = client.owner("job").unwrap().lock("x").wait().unwrap();
    servers.block_on(async { service.client().await.admin().break_lock("x", "stuck").await }).unwrap();
    let broken = LossReason::Broken { name: "x".into(), reason: "stuck".into() };
    assert_eq!(guard.wait_lost(Duration::from_secs(60)), Some(broken.clone()));
    assert_eq!(guard.loss(), Some(broken));
    assert_eq!(guard.release().unwrap_err().code, Code::NotHeld);
}

#[test]
fn semaphores_elections_files_and_watches_work_without_a_runtime() {
    let servers = servers();
    let service = servers.block_on(Service::start());
    let client = connect(&service);
    let pool = client.semaphore("pool", 2).unwrap();
    let _both = pool.acquire(2).wait().unwrap();
    assert!(pool.acquire(1).try_now().unwrap().is_none());

    let leadership = client.elect("chief", "one").wait().unwrap();
    leadership.proclaim("two").unwrap();
    let leader = client.leader("chief").unwrap().unwrap();
    assert_eq!((leader.value, leader.term), (b"two".to_vec(), leadership.term()));
    assert!(client.elect("chief", "three").try_now().unwrap().is_none());
    leadership.resign().unwrap();

    let files = client.files();
    files.create("/a", "1", Create::default()).unwrap();
    let mut watch = files.watch("/a", None).unwrap();
    assert_eq!(files.write("/a", "2", Some(Version(1))).unwrap(), Version(2));
    assert!(matches!(watch.next(), Some(Ok(WatchEvent::Changed { name, .. })) if name == "/a"));
    assert_eq!(files.read("/a").unwrap().data, b"2");
    files.delete("/a", None).unwrap();
}

/// `Handle::block_on` of the runtime would panic here.
#[tokio::test]
async fn a_blocking_call_in_async_code_blocks_but_does_not_panic() {
    let servers = servers();
    let service = servers.spawn(Service::start()).await.unwrap();
    let client = connect(&service);
    client.lock("x").wait().unwrap().release().unwrap();
    drop(service);
    servers.shutdown_background();
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let error = Client::connect("127.0.0.1:1").err().unwrap();
    assert_eq!(error.code, Code::Unreachable);
}

#[test]
fn an_operator_needs_no_runtime() {
    let servers = servers();
    let service = servers.block_on(Service::start());
    let (client, operator) = (connect(&service), connect(&service));
    let (guard, admin) = (client.lock("x").wait().unwrap(), operator.admin());
    let report = operator.why("x").unwrap();
    assert_eq!(report.holders[0].session, client.session().unwrap());
    assert_eq!(admin.limit("pool", 3).unwrap(), None);
    let names: Vec<String> = admin.locks("").unwrap().iter().map(|lock| lock.name.to_string()).collect();
    assert_eq!(names, ["pool", "x"]);
    assert_eq!(admin.sessions().unwrap().len(), 2);
    assert_eq!(admin.cluster().unwrap().members.len(), 1);
    admin.break_lock("x", "stuck").unwrap();
    assert!(guard.wait_lost(Duration::from_secs(60)).is_some());
    admin.end_session(client.session().unwrap()).unwrap();
    assert_eq!(admin.sessions().unwrap().len(), 1);
}
