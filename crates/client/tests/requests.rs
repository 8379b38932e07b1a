//! Tests of the options of requests, and of work under a guard.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use conclave_client::{Client, Code, Error, Expr, LossReason, WatchEvent};
use conclave_core::Claim;
use futures_core::Stream;
use tokio::sync::oneshot;

use crate::support::Service;

#[tokio::test]
async fn a_text_that_is_no_expression_fails_without_a_server() {
    let mut service = Service::start().await;
    let client = service.client().await;
    service.stop().await;
    for request in [client.lock("a & | b"), client.lock("a & | b".to_owned()).shared()] {
        let error = request.await.unwrap_err();
        assert_eq!(error.code, Code::InvalidExpression);
        assert!(error.message.ends_with("a & | b\n      ^"), "{error}");
    }
    let owner = client.owner("job").unwrap();
    assert_eq!(owner.lock("pool*0").start().err().unwrap().code, Code::InvalidExpression);
    assert_eq!(client.lock("pool*2").shared().await.unwrap_err().code, Code::InvalidExpression);
    assert_eq!(client.elect("", "me").await.err().unwrap().code, Code::InvalidName);
}

#[tokio::test]
async fn a_parsed_expression_is_requested_shared_and_as_a_whole() {
    let service = Service::start().await;
    let client = service.client().await;
    let expr: Expr = "\"night shift\" & (eu | us)".parse().unwrap();
    let one = client.lock(expr.clone()).shared().await.unwrap();
    let two = client.lock(expr.clone()).shared().await.unwrap();
    for guard in [&one, &two] {
        let names: Vec<_> = guard.names().iter().map(|held| (held.name.as_str(), held.claim)).collect();
        assert_eq!(names, [("eu", Claim::Shared), ("night shift", Claim::Shared)]);
    }
    assert!(client.lock(expr).try_now().await.unwrap().is_none());
}

#[tokio::test]
async fn a_request_of_no_permits_is_refused_and_a_semaphore_keeps_its_name() {
    let service = Service::start().await;
    let client = service.client().await;
    let pool = client.semaphore("pool 1", 2).await.unwrap();
    assert_eq!(pool.acquire(0).await.unwrap_err().code, Code::InvalidArgument);
    let _both = pool.acquire(2).await.unwrap();
    assert!(pool.acquire(1).try_now().await.unwrap().is_none());
    pool.set_limit(3).await.unwrap();
    assert!(pool.acquire(1).timeout(Duration::from_secs(30)).await.is_ok());
}

#[tokio::test]
async fn an_election_without_a_leader_is_won_at_once_and_the_term_grows() {
    let service = Service::start().await;
    let (first, second) = (service.client().await, service.client().await);
    let leadership = first.elect("chief", "one").try_now().await.unwrap().expect("no leader");
    assert!(second.elect("chief", "two").try_now().await.unwrap().is_none());
    let late = second.elect("chief", "two").timeout(Duration::from_millis(5)).await;
    assert_eq!(late.err().unwrap().code, Code::TimedOut);
    let term = leadership.term();
    let campaign = tokio::spawn(second.elect("chief", "two").priority(1).into_future());
    leadership.resign().await.unwrap();
    assert!(campaign.await.unwrap().unwrap().term() > term);
}

#[tokio::test]
async fn work_that_ends_under_the_lock_returns_its_output() {
    let service = Service::start().await;
    let guard = service.client().await.lock("x").await.unwrap();
    assert_eq!(guard.run(async { 7 }).await, Ok(7));
}

#[tokio::test]
async fn work_is_dropped_when_an_operator_takes_the_lock_away() {
    let service = Service::start().await;
    let (client, operator) = (service.client().await, service.client().await);
    let guard = client.lock("x").await.unwrap();
    let (running, dropped) = oneshot::channel::<()>();
    let work = guard.run(async move {
        let _running = running;
        std::future::pending::<()>().await;
    });
    let breaking = operator.admin();
    let (worked, broken) = tokio::join!(work, breaking.break_lock("x", "stuck"));
    broken.unwrap();
    let lost = worked.unwrap_err();
    assert_eq!(lost.reason, LossReason::Broken { name: "x".into(), reason: "stuck".into() });
    assert!(lost.output.is_none());
    assert!(dropped.await.is_err(), "the work is dropped");
    let error = guard.run(async { unreachable!("lost before the work") }).await.unwrap_err();
    assert_eq!(Error::from(error).code, Code::NotHeld);
}

#[tokio::test]
async fn work_is_cancelled_before_the_deadline_when_no_server_answers() {
    let mut service = Service::start().await;
    let builder = Client::builder().ttl(Duration::from_millis(300));
    let client = builder.connect(&service.address.to_string()).await.unwrap();
    let guard = client.lock("x").await.unwrap();
    let ((), worked) = tokio::join!(service.stop(), guard.run(std::future::pending::<()>()));
    let lost = worked.unwrap_err();
    assert_eq!((&lost.reason, lost.output), (&LossReason::Deadline, None));
}

#[tokio::test]
async fn a_watch_is_a_stream() {
    let service = Service::start().await;
    let client = service.client().await;
    let mut watch = client.files().watch("/a", None).await.unwrap();
    client.files().put("/a", "1").await.unwrap();
    let next = poll_fn(|cx| Pin::new(&mut watch).poll_next(cx)).await;
    assert!(matches!(next, Some(Ok(WatchEvent::Changed { name, .. })) if name == "/a"));
}
