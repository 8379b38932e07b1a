//! Tests of one node over native frames: sessions, locks, files, watches, and results that must not be lost.

use conclave_wire::v1;
use conclave_wire::v1::answer::Result as Answer;
use conclave_wire::v1::server_message::Message;

use crate::support::{Folder, Native, error, fence, start};

#[tokio::test]
async fn a_lock_is_granted_queued_and_handed_over_with_a_larger_fence() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let (mut first, opened) = Native::with_session(&server).await;
    let (mut second, _) = Native::with_session(&server).await;

    let held = first.acquire("orders").await;
    let granted = first.answer(held).await;
    let waiting = second.acquire("orders").await;
    let Answer::Queued(queued) = second.answer(waiting).await else { panic!("not queued") };
    assert_eq!(queued.ahead, 0);
    assert_eq!(queued.holders[0].session, opened.session);

    let released = first.release(held).await;
    assert!(matches!(first.answer(released).await, Answer::Done(_)));
    assert!(fence(&second.answer(waiting).await) > fence(&granted));
    drop((first, second));
    server.shutdown().await;
}

#[tokio::test]
async fn requests_behind_an_open_wait_for_the_session() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let mut client = Native::connect(&server).await;
    let acquire =
        v1::Request { id: 1, lowest: 1, op: Some(v1::request::Op::Acquire(v1::Acquire::of("a & b"))) };
    let messages: [v1::ClientMessage; 3] =
        [v1::Open::default().into(), acquire.into(), v1::KeepAlive { token: 7 }.into()];
    client.send(messages).await;
    let opened = client.expect_opened().await;
    assert_eq!((opened.ttl_ms, opened.drift_ppm, opened.secret.len()), (10_000, 10_000, 16));
    assert_eq!(opened.nodes, [server.address().to_string()]);
    let mut answers = [client.receive().await.unwrap(), client.receive().await.unwrap()];
    answers.sort_by_key(|message| matches!(message, Message::Answer(_)));
    assert!(matches!(answers[0], Message::KeptAlive(v1::KeptAlive { token: 7 })));
    assert!(matches!(&answers[1], Message::Answer(answer) if answer.id == 1));
    drop(client);
    server.shutdown().await;
}

#[tokio::test]
async fn a_resumed_session_keeps_its_place_and_leaves_the_old_connection() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let (mut holder, _) = Native::with_session(&server).await;
    let held = holder.acquire("x").await;
    holder.answer(held).await;

    let (mut lost, opened) = Native::with_session(&server).await;
    let waiting = lost.acquire("x").await;
    assert!(matches!(lost.answer(waiting).await, Answer::Queued(_)));
    let (mut behind, _) = Native::with_session(&server).await;
    let behind_id = behind.acquire("x").await;
    assert!(matches!(behind.answer(behind_id).await, Answer::Queued(_)));

    let mut resumed = Native::connect(&server).await;
    let resume = v1::Resume { session: opened.session, secret: opened.secret, lowest: waiting };
    resumed.send([resume]).await;
    let Some(Message::Resumed(hello)) = resumed.receive().await else { panic!("not resumed") };
    assert_eq!((hello.session, hello.ttl_ms), (opened.session, 60_000));
    assert_eq!(lost.expect_goodbye().await.name, "disconnected");
    assert_eq!(resumed.acquire("x").await, waiting, "the same number");
    assert!(matches!(resumed.answer(waiting).await, Answer::Queued(_)));

    holder.release(held).await;
    fence(&resumed.answer(waiting).await);
    drop((holder, lost, behind, resumed));
    server.shutdown().await;
}

#[tokio::test]
async fn a_retried_request_takes_effect_once() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let (mut client, _) = Native::with_session(&server).await;
    let create = v1::FileOp {
        op: Some(v1::file_op::Op::Create(v1::file_op::Create {
            path: "/job-".into(),
            sequential: true,
            ..Default::default()
        })),
    };
    let request =
        v1::Request { id: 1, lowest: 1, op: Some(v1::request::Op::Files(v1::Files { ops: vec![create] })) };
    client.send([request.clone(), request]).await;
    let first = client.answer(1).await;
    assert!(matches!(first, Answer::Files(_)));
    assert_eq!(client.answer(1).await, first);
    drop(client);
    server.shutdown().await;
}

#[tokio::test]
async fn everything_is_there_after_a_restart_on_the_same_folder() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let (mut client, opened) = Native::with_session(&server).await;
    let held = client.acquire("x").await;
    let before = fence(&client.answer(held).await);
    server.shutdown().await;
    assert_eq!(client.expect_goodbye().await.name, "shutting-down");

    let server = start(&folder).await;
    let mut client = Native::connect(&server).await;
    client.send([v1::Resume { session: opened.session, secret: opened.secret, lowest: 1 }]).await;
    assert!(matches!(client.receive().await, Some(Message::Resumed(_))));
    assert_eq!(client.acquire("x").await, held);
    assert_eq!(fence(&client.answer(held).await), before, "the answer was remembered");
    drop(client);
    server.shutdown().await;
}

#[tokio::test]
async fn a_session_that_is_not_kept_alive_expires_and_its_lock_moves_on() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let mut silent = Native::connect(&server).await;
    silent.send([v1::Open { ttl_ms: 100, lock_delay_ms: Some(0), ..Default::default() }]).await;
    let opened = silent.expect_opened().await;
    let held = silent.acquire("x").await;
    fence(&silent.answer(held).await);
    let (mut next, _) = Native::with_session(&server).await;
    let waiting = next.acquire("x").await;
    let Some(Message::Answer(first)) = next.receive().await else { panic!("no answer") };
    if matches!(first.result, Some(Answer::Queued(_))) {
        fence(&next.answer(waiting).await);
    }
    let Some(Message::SessionEnded(ended)) = silent.receive().await else { panic!("not told") };
    assert_eq!((ended.session, ended.cause()), (opened.session, v1::EndCause::Expired));
    let late = silent.acquire("x").await;
    assert_eq!(error(silent.answer(late).await).name, "session-ended");
    drop((silent, next));
    server.shutdown().await;
}

#[tokio::test]
async fn a_closed_session_gets_its_reply_and_its_end() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let (mut client, _) = Native::with_session(&server).await;
    let close = client.request(v1::request::Op::Close(v1::Close {})).await;
    let both = [client.receive().await.unwrap(), client.receive().await.unwrap()];
    assert!(both.iter().any(|message| matches!(message, Message::SessionEnded(_))));
    assert!(both.iter().any(|message| matches!(message, Message::Answer(answer) if answer.id == close)));
    drop(client);
    server.shutdown().await;
}

#[tokio::test]
async fn waits_end_by_the_leaders_clock_and_cancels_are_answered() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let (mut holder, _) = Native::with_session(&server).await;
    let held = holder.acquire("x").await;
    holder.answer(held).await;
    let (mut client, _) = Native::with_session(&server).await;
    let acquire = |wait_ms| v1::request::Op::Acquire(v1::Acquire { wait_ms, ..v1::Acquire::of("x") });

    let tried = client.request(acquire(Some(0))).await;
    assert_eq!(error(client.answer(tried).await).name, "would-wait");
    let patient = client.request(acquire(Some(20))).await;
    assert!(matches!(client.answer(patient).await, Answer::Queued(_)));
    let refusal = error(client.answer(patient).await);
    assert_eq!((refusal.name.as_str(), refusal.definite), ("timed-out", true));
    let waiting = client.request(acquire(None)).await;
    assert!(matches!(client.answer(waiting).await, Answer::Queued(_)));
    let cancel = client.request(v1::request::Op::Cancel(v1::Cancel { request: waiting })).await;
    let mut names = Vec::new();
    for _ in 0..2 {
        let Some(Message::Answer(answer)) = client.receive().await else { panic!("no answer") };
        names.push(answer.id);
    }
    names.sort_unstable();
    assert_eq!(names, [waiting, cancel]);
    drop((holder, client));
    server.shutdown().await;
}

#[tokio::test]
async fn reads_see_acknowledged_writes_and_watches_miss_nothing() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let (mut writer, _) = Native::with_session(&server).await;
    let create = |path: &str, data: &[u8]| v1::FileOp {
        op: Some(v1::file_op::Op::Create(v1::file_op::Create {
            path: path.into(),
            data: data.into(),
            ..Default::default()
        })),
    };
    let files = |op| v1::request::Op::Files(v1::Files { ops: vec![op] });
    let made = writer.request(files(create("/config", b"one"))).await;
    assert!(matches!(writer.answer(made).await, Answer::Files(_)));

    // Reads work without a session.
    let mut reader = Native::connect(&server).await;
    let read = v1::query::Kind::File(v1::ReadFile { path: "/config".into() });
    let Answer::File(file) = reader.query(false, read).await else { panic!("no file") };
    assert_eq!(file.data, b"one");
    let write = v1::file_op::Write { path: "/config".into(), data: b"two".to_vec(), expected: Some(1) };
    let written = writer.request(files(v1::FileOp { op: Some(v1::file_op::Op::Write(write)) })).await;
    assert!(matches!(writer.answer(written).await, Answer::Files(_)));

    let target = Some(v1::watch::Target::File("/config".into()));
    reader.send([v1::Watch { id: 50, after: Some(file.index), target }]).await;
    assert!(matches!(reader.answer(50).await, Answer::Watching(_)));
    let Some(Message::Event(event)) = reader.receive().await else { panic!("the write was missed") };
    assert_eq!((event.id, event.change), (50, Some(v1::event::Change::Written(2))));
    let deleted = v1::file_op::Delete { path: "/config".into(), expected: None };
    writer.request(files(v1::FileOp { op: Some(v1::file_op::Op::Delete(deleted)) })).await;
    let Some(Message::Event(event)) = reader.receive().await else { panic!("the delete was missed") };
    assert!(matches!(event.change, Some(v1::event::Change::Deleted(_))));

    let read = v1::query::Kind::File(v1::ReadFile { path: "/config".into() });
    assert_eq!(error(reader.query(true, read).await).name, "no-such-file");
    drop((writer, reader));
    server.shutdown().await;
}

#[tokio::test]
async fn many_large_files_are_read_at_once() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let (mut client, _) = Native::with_session(&server).await;
    let data = vec![7; 256 * 1024];
    let create = v1::file_op::Create { path: "/large".into(), data: data.clone(), ..Default::default() };
    let ops = vec![v1::FileOp { op: Some(v1::file_op::Op::Create(create)) }];
    let made = client.request(v1::request::Op::Files(v1::Files { ops })).await;
    assert!(matches!(client.answer(made).await, Answer::Files(_)));
    // Far more replies than an outbox takes. Some of the reads wait for a majority and some do not.
    let kind = || Some(v1::query::Kind::File(v1::ReadFile { path: "/large".into() }));
    let reads: Vec<_> = (100..200).map(|id| v1::Query { id, stale: id % 2 == 0, kind: kind() }).collect();
    client.send(reads).await;
    let mut read = Vec::new();
    for _ in 100..200 {
        let Some(Message::Answer(answer)) = client.receive().await else { panic!("no answer") };
        let Some(Answer::File(file)) = answer.result else { panic!("no file") };
        assert!(file.data == data);
        read.push(answer.id);
    }
    read.sort_unstable();
    assert!(read.into_iter().eq(100..200), "each is answered once");
    drop(client);
    server.shutdown().await;
}

#[tokio::test]
async fn why_locks_sessions_and_cluster_report_the_state() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let (mut client, opened) = Native::with_session(&server).await;
    let held = client.acquire("team/a").await;
    client.answer(held).await;
    let other = client.acquire("other").await;
    client.answer(other).await;
    let why = v1::query::Kind::Why(v1::Why { name: "team/a".into() });
    let Answer::Report(report) = client.query(false, why).await else { panic!("no report") };
    assert_eq!(report.holders[0].session, opened.session);
    let locks = v1::query::Kind::Locks(v1::ReadLocks { prefix: "team/".into(), ..Default::default() });
    let Answer::Locks(locks) = client.query(false, locks).await else { panic!("no locks") };
    assert_eq!(locks.locks.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), ["team/a"]);
    let sessions = v1::query::Kind::Sessions(v1::ReadSessions::default());
    let Answer::Sessions(sessions) = client.query(true, sessions).await else { panic!("no sessions") };
    assert_eq!(sessions.sessions[0].grants, 2);
    let Answer::Cluster(cluster) = client.query(false, v1::query::Kind::Cluster(v1::ReadCluster {})).await
    else {
        panic!("no cluster")
    };
    assert_eq!((cluster.leader, cluster.members.len()), (Some(cluster.node), 1));
    drop(client);
    server.shutdown().await;
}

#[tokio::test]
async fn a_break_is_reported_to_the_holder() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let (mut holder, _) = Native::with_session(&server).await;
    let held = holder.acquire("x").await;
    holder.answer(held).await;
    let (mut operator, _) = Native::with_session(&server).await;
    let breaking = v1::Break { name: "x".into(), reason: "stuck since noon".into() };
    let broken = operator.request(v1::request::Op::Break(breaking)).await;
    assert!(matches!(operator.answer(broken).await, Answer::Done(_)));
    let Some(Message::Broken(broken)) = holder.receive().await else { panic!("not told") };
    assert_eq!((broken.grant, broken.name.as_str(), broken.reason.as_str()), (held, "x", "stuck since noon"));
    drop((holder, operator));
    server.shutdown().await;
}

#[tokio::test]
async fn a_break_is_sent_at_each_resume_until_the_release() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let (mut holder, opened) = Native::with_session(&server).await;
    let held = holder.acquire("x").await;
    holder.answer(held).await;
    drop(holder);
    let (mut operator, _) = Native::with_session(&server).await;
    let breaking = v1::Break { name: "x".into(), reason: "stuck since noon".into() };
    let broken = operator.request(v1::request::Op::Break(breaking)).await;
    assert!(matches!(operator.answer(broken).await, Answer::Done(_)));
    let resume = v1::Resume { session: opened.session, secret: opened.secret, ..Default::default() };
    for _ in 0..2 {
        let mut holder = Native::connect(&server).await;
        holder.send([resume.clone()]).await;
        assert!(matches!(holder.receive().await, Some(Message::Resumed(_))));
        let Some(Message::Broken(broken)) = holder.receive().await else { panic!("not told") };
        assert_eq!((broken.grant, broken.reason.as_str()), (held, "stuck since noon"));
    }
    let mut holder = Native::connect(&server).await;
    holder.send([resume.clone()]).await;
    assert!(matches!(holder.receive().await, Some(Message::Resumed(_))));
    assert!(matches!(holder.receive().await, Some(Message::Broken(_))));
    let op = Some(v1::request::Op::Release(v1::Release { grant: held }));
    holder.send([v1::Request { id: held + 1, lowest: held + 1, op }]).await;
    assert_eq!(error(holder.answer(held + 1).await).name, "not-held");
    let mut holder = Native::connect(&server).await;
    holder.send([resume]).await;
    assert!(matches!(holder.receive().await, Some(Message::Resumed(_))));
    holder.send([v1::KeepAlive { token: 7 }]).await;
    assert!(matches!(holder.receive().await, Some(Message::KeptAlive(_))), "no break is left to report");
    drop((holder, operator));
    server.shutdown().await;
}

#[tokio::test]
async fn a_hundred_clients_of_one_name_are_served_in_order() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let mut clients = Vec::new();
    for place in 0..100_u64 {
        let (mut client, _) = Native::with_session(&server).await;
        let id = client.acquire("hot").await;
        match client.answer(id).await {
            Answer::Queued(queued) => assert_eq!(queued.ahead + 1, place),
            other => assert_eq!((place, fence(&other) > 0), (0, true)),
        }
        clients.push((client, id));
    }
    let mut last = 0;
    for (place, (client, id)) in clients.iter_mut().enumerate() {
        if place > 0 {
            let now = fence(&client.answer(*id).await);
            assert!(now > last);
            last = now;
        }
        client.release(*id).await;
    }
    drop(clients);
    server.shutdown().await;
}
