//! Watches: gaps, retries and repeated events.

use super::*;
use conclave_core::report::WatchEvent;

#[test]
fn a_resumed_watch_gets_the_rest_of_a_partly_delivered_index() {
    let mut core = connected();
    let queue = Arc::new(Queue::default());
    let target = v1::watch::Target::Children("/d".into());
    let (id, _begun) = core.watch(ms(0), target, Some(3), queue.clone()).unwrap();
    assert_eq!(watches(&sent(&mut core)), [Some(3)]);
    answer(&mut core, ms(1), id, v1::answer::Result::Watching(v1::Watching { index: 3 }));
    event(&mut core, id, 4, &["/d/a"]);
    event(&mut core, id, 5, &["/d/b", "/d/c"]);
    for rest in [&["/d/b", "/d/c", "/d/d"][..], &["/d/b", "/d/c", "/d/d", "/d/e"]] {
        disconnected(&mut core, ms(3));
        core.on_connected(ms(4));
        assert_eq!(watches(&sent(&mut core)), [Some(4)]);
        event(&mut core, id, 5, rest);
    }
    event(&mut core, id, 6, &["/d/f"]);
    assert_eq!(delivered(&queue), ["/d/a", "/d/b", "/d/c", "/d/d", "/d/e", "/d/f"]);
    core.on_message(ms(5), v1::Resync { id, index: 9 }.into());
    disconnected(&mut core, ms(6));
    core.on_connected(ms(7));
    assert_eq!(watches(&sent(&mut core)), [Some(9)], "the client has read everything up to that index");
}

#[test]
fn a_resync_after_a_lost_connection_is_followed_by_everything() {
    let mut core = connected();
    let (id, queue) = watching(&mut core);
    event(&mut core, id, 5, &["/d/a", "/d/b"]);
    disconnected(&mut core, ms(3));
    core.on_connected(ms(4));
    sent(&mut core);
    core.on_message(ms(5), v1::Resync { id, index: 9 }.into());
    event(&mut core, id, 10, &["/d/c", "/d/d", "/d/e"]);
    assert_eq!(delivered(&queue), ["/d/a", "/d/b", "resync", "/d/c", "/d/d", "/d/e"]);
}

#[test]
fn a_watch_has_a_session_so_that_a_server_that_falls_silent_is_left() {
    let mut core = connected();
    let (id, _queue) = watching(&mut core);
    assert_eq!(core.session(), Some(7), "it was opened in front of the watch");
    let mut now = ms(2);
    for _ in 0..20 {
        now = core.next_tick(now).expect("the lease is kept").max(now + ms(1));
        core.on_tick(now);
        assert!(!core.is_silent(now), "at {now:?}");
        keep_alive(&mut core, now);
    }
    now = core.next_tick(now).expect("the lease is kept");
    core.on_tick(now);
    sent(&mut core);
    let left = core.next_tick(now).expect("it may be silent");
    assert!(core.is_silent(left));
    disconnected(&mut core, left);
    core.on_connected(left);
    sent(&mut core);
    core.on_message(left, v1::Resumed { session: 7, ttl_ms: 10_000, ..Default::default() }.into());
    assert_eq!(watches(&sent(&mut core)), [Some(3)], "{id} continues");
}

#[test]
fn a_watch_whose_session_has_ended_opens_another() {
    let mut core = connected();
    let (_id, queue) = watching(&mut core);
    core.on_message(ms(3), v1::SessionEnded { session: 7, cause: v1::EndCause::Ended.into() }.into());
    let messages = sent(&mut core);
    assert!(matches!(messages[..], [Sent::Open(_)]), "the watch itself continues: {messages:?}");
    open(&mut core, ms(4));
    // The session ends again; this time a node reports it when the client resumes the session.
    disconnected(&mut core, ms(5));
    core.on_connected(ms(6));
    sent(&mut core);
    goodbye(&mut core, ms(7), Code::SessionEnded);
    assert_eq!(sent(&mut core), [], "that connection ends");
    disconnected(&mut core, ms(8));
    core.on_connected(ms(9));
    let messages = sent(&mut core);
    assert!(matches!(messages[..], [Sent::Open(_), Sent::Watch(_)]), "{messages:?}");
    assert!(queue.pop().is_none(), "nothing was missed");
}

#[test]
fn a_watch_that_no_server_takes_fails_when_patience_is_over_and_one_that_has_begun_does_not() {
    let mut core = connected();
    let (begun, queue) = watching(&mut core);
    let target = v1::watch::Target::Lock("x".into());
    let (new, mut begins) = core.watch(ms(3), target, None, Arc::default()).unwrap();
    sent(&mut core);
    for at in [10, 9_000] {
        [begun, new].into_iter().for_each(|id| answer(&mut core, ms(at), id, refused(Code::NoQuorum)));
        core.on_tick(ms(at + 100));
        assert_eq!(watches(&sent(&mut core)).len(), 2);
        assert!(begins.try_recv().is_err());
    }
    [begun, new].into_iter().for_each(|id| answer(&mut core, ms(10_011), id, refused(Code::NoQuorum)));
    core.on_tick(ms(10_111));
    assert_eq!(begins.try_recv().unwrap().unwrap_err().code, Code::NoQuorum);
    assert_eq!(watches(&sent(&mut core)).len(), 1);
    assert!(queue.pop().is_none(), "it continues");
}

/// Starts a watch after index 3, in a session of its own.
fn watching(core: &mut Core) -> (u64, Arc<Queue>) {
    let queue = Arc::new(Queue::default());
    let target = v1::watch::Target::Children("/d".into());
    let (id, _begun) = core.watch(ms(0), target, Some(3), queue.clone()).unwrap();
    let messages = sent(core);
    assert!(matches!(messages[..], [Sent::Open(_), Sent::Watch(_)]), "{messages:?}");
    open(core, ms(1));
    answer(core, ms(2), id, v1::answer::Result::Watching(v1::Watching { index: 3 }));
    (id, queue)
}

fn event(core: &mut Core, id: u64, index: u64, names: &[&str]) {
    for name in names {
        core.on_message(ms(2), v1::Event { id, index, name: (*name).into(), change: None }.into());
    }
}

/// Returns a text for each event that the reader has not read.
fn delivered(queue: &Queue) -> Vec<String> {
    let name = |event: WatchEvent| match event {
        WatchEvent::Changed { name, .. } => name,
        _ => "resync".to_owned(),
    };
    std::iter::from_fn(|| queue.pop()).map(|event| name(event.unwrap())).collect()
}
