//! Tests of the core: messages in, frames out, without a socket.

mod grants;
mod servers;
mod watches;
mod writes;

use conclave_wire::frame::Frames;
use conclave_wire::v1::client_message::Message as Sent;
use conclave_wire::{frame, v1};

use super::sending::MAX_SENT_BEFORE_OPEN;
use super::*;

const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

fn ms(ms: u64) -> Now {
    Duration::from_millis(ms)
}

fn connected() -> Core {
    let mut core = Core::new(Opening::default(), RETRY_TIMEOUT);
    core.on_connected(ms(0));
    core.on_greeted(ms(0));
    core
}

fn disconnected(core: &mut Core, now: Now) -> bool {
    core.on_disconnected(now, Error::new(Code::Disconnected, "broken"))
}

/// Returns the messages that would be written now.
fn sent(core: &mut Core) -> Vec<Sent> {
    let mut out = Frames::default();
    core.drain(&mut out);
    let (mut out, mut messages) = (out.take(), Vec::new());
    while let Some(frame) = frame::decode::<v1::ClientFrame>(&mut out).unwrap() {
        messages.extend(frame.messages.into_iter().map(|message| message.message.unwrap()));
    }
    messages
}

fn requests(sent: &[Sent]) -> Vec<u64> {
    let id = |message: &Sent| match message {
        Sent::Request(request) => Some(request.id),
        _ => None,
    };
    sent.iter().filter_map(id).collect()
}

/// Returns the numbers of the grants that are released.
fn releases(sent: &[Sent]) -> Vec<u64> {
    let grant = |message: &Sent| match message {
        Sent::Request(v1::Request { op: Some(v1::request::Op::Release(release)), .. }) => Some(release.grant),
        _ => None,
    };
    sent.iter().filter_map(grant).collect()
}

type Granted = oneshot::Receiver<Result<v1::Granted, Error>>;

fn acquire(core: &mut Core, now: Now, name: &str) -> (u64, Granted) {
    let (done, granted) = oneshot::channel();
    let op = v1::request::Op::Acquire(v1::Acquire::of(name));
    (core.request(now, op, Reply::Acquire { done, queued: None }).unwrap(), granted)
}

fn change(core: &mut Core, now: Now) -> (u64, PendingAnswer) {
    let (sender, receiver) = oneshot::channel();
    let op = v1::request::Op::Limit(v1::Limit { name: "pool".into(), permits: 1 });
    (core.request(now, op, Reply::Once(sender)).unwrap(), receiver)
}

fn open(core: &mut Core, now: Now) {
    let opened =
        v1::Opened { session: 7, secret: vec![1; 16], ttl_ms: 10_000, drift_ppm: 10_000, nodes: vec![] };
    core.on_message(now, opened.into());
}

fn answer(core: &mut Core, now: Now, id: u64, result: v1::answer::Result) {
    core.on_message(now, v1::Answer { id, result: Some(result) }.into());
}

fn granted() -> v1::answer::Result {
    v1::answer::Result::Granted(v1::Granted::default())
}

fn refused(code: Code) -> v1::answer::Result {
    v1::answer::Result::Error((&Error::new(code, "refused")).into())
}

fn goodbye(core: &mut Core, now: Now, code: Code) {
    core.on_message(now, v1::Goodbye { error: Some((&Error::new(code, "refused")).into()) }.into());
}

fn read(core: &mut Core, now: Now) -> u64 {
    core.query(now, v1::query::Kind::Why(v1::Why { name: "x".into() }), Reply::Forget).unwrap()
}

/// Answers all keep-alives.
fn keep_alive(core: &mut Core, now: Now) {
    for message in sent(core) {
        if let Sent::KeepAlive(v1::KeepAlive { token }) = message {
            core.on_message(now, v1::KeptAlive { token }.into());
        }
    }
}

/// Returns a client with an open session and one grant.
fn holding(name: &str) -> (Core, u64) {
    let mut core = connected();
    let (id, _grant) = acquire(&mut core, ms(0), name);
    sent(&mut core);
    open(&mut core, ms(1));
    answer(&mut core, ms(2), id, granted());
    (core, id)
}

/// Returns the `after` of each watch message.
fn watches(sent: &[Sent]) -> Vec<Option<u64>> {
    let after = |message: &Sent| match message {
        Sent::Watch(watch) => Some(watch.after),
        _ => None,
    };
    sent.iter().filter_map(after).collect()
}

#[test]
fn the_first_request_opens_the_session_in_the_same_write() {
    let mut core = connected();
    assert!(sent(&mut core).is_empty(), "a client without requests has no session");
    let (id, _granted) = acquire(&mut core, ms(5), "x");
    let sent = sent(&mut core);
    assert!(matches!(sent[0], Sent::Open(_)));
    assert_eq!(requests(&sent), [id]);
}

#[test]
fn the_session_is_opened_although_many_queries_are_ahead_of_its_opening() {
    let mut core = connected();
    for _ in 0..2 * MAX_SENT_BEFORE_OPEN {
        read(&mut core, ms(0));
    }
    let (id, _granted) = acquire(&mut core, ms(0), "x");
    let sent = sent(&mut core);
    assert!(matches!(&sent[2 * MAX_SENT_BEFORE_OPEN..], [Sent::Open(_), Sent::Request(_)]), "{}", sent.len());
    assert_eq!(requests(&sent), [id]);
}

#[test]
fn requests_over_the_bound_wait_in_the_client_until_the_session_is_open() {
    let mut core = connected();
    let ids: Vec<u64> = (0..2 * MAX_SENT_BEFORE_OPEN).map(|_| change(&mut core, ms(0)).0).collect();
    let before = sent(&mut core);
    assert!(matches!(before[0], Sent::Open(_)));
    assert_eq!(before.len(), MAX_SENT_BEFORE_OPEN);
    assert_eq!(requests(&before), ids[..MAX_SENT_BEFORE_OPEN - 1]);
    assert_eq!(sent(&mut core), []);
    open(&mut core, ms(10));
    assert_eq!(requests(&sent(&mut core)), ids[MAX_SENT_BEFORE_OPEN - 1..]);
}

#[test]
fn unanswered_requests_are_sent_again_after_the_resumption() {
    let mut core = connected();
    let (waiting, mut grant) = acquire(&mut core, ms(0), "x");
    let (done, mut answered) = change(&mut core, ms(0));
    sent(&mut core);
    open(&mut core, ms(1));
    answer(&mut core, ms(2), waiting, v1::answer::Result::Queued(v1::Queued::default()));
    disconnected(&mut core, ms(2));
    let (new, _answer) = change(&mut core, ms(3));
    core.on_connected(ms(4));
    let first = sent(&mut core);
    assert!(matches!(first[..], [Sent::Resume(_), Sent::KeepAlive(_)]), "{first:?}");
    core.on_message(ms(5), v1::Resumed { session: 7, ttl_ms: 10_000, ..Default::default() }.into());
    let again = sent(&mut core);
    assert_eq!(requests(&again), [waiting, done, new]);
    let Sent::Request(request) = &again[2] else { panic!("not a request") };
    assert_eq!(request.lowest, done, "a queued acquire does not pin the answers");
    answer(&mut core, ms(6), done, v1::answer::Result::Done(v1::Done {}));
    answer(&mut core, ms(6), waiting, granted());
    assert!(answered.try_recv().unwrap().is_ok() && grant.try_recv().unwrap().is_ok());
}

#[test]
fn after_a_lost_opening_only_an_acquire_is_sent_again() {
    let mut core = connected();
    let (lock, _grant) = acquire(&mut core, ms(0), "x");
    let (_, mut lost) = change(&mut core, ms(0));
    sent(&mut core);
    disconnected(&mut core, ms(2));
    assert_eq!(lost.try_recv().unwrap().unwrap_err().code, Code::Disconnected);
    core.on_connected(ms(9));
    assert_eq!(requests(&sent(&mut core)), [lock]);
}

#[test]
fn requests_behind_a_rejected_opening_are_sent_again() {
    let mut core = connected();
    let (id, mut answered) = change(&mut core, ms(0));
    sent(&mut core);
    goodbye(&mut core, ms(2_400), Code::NoQuorum);
    let (late, _answer) = change(&mut core, ms(2_401));
    sent(&mut core);
    assert!(!disconnected(&mut core, ms(2_402)), "it was not productive");
    core.on_connected(ms(2_430));
    let again = sent(&mut core);
    assert!(matches!(again[0], Sent::Open(_)));
    assert_eq!(requests(&again), [id, late]);
    open(&mut core, ms(2_440));
    answer(&mut core, ms(2_450), id, v1::answer::Result::Done(v1::Done {}));
    assert!(answered.try_recv().unwrap().is_ok());
    assert!(disconnected(&mut core, ms(2_460)), "it was productive");
}

#[test]
fn requests_behind_an_opening_fail_if_the_server_is_overloaded() {
    let mut core = connected();
    let (_, mut lost) = change(&mut core, ms(0));
    sent(&mut core);
    goodbye(&mut core, ms(1), Code::Overloaded);
    disconnected(&mut core, ms(2));
    assert_eq!(lost.try_recv().unwrap().unwrap_err().code, Code::Disconnected);
}

#[test]
fn a_client_whose_task_is_gone_refuses_everything_at_once() {
    let (mut core, held) = holding("x");
    let (_, mut grant) = acquire(&mut core, ms(3), "y");
    core.stop();
    assert_eq!(grant.try_recv().unwrap().unwrap_err(), stopped());
    assert_eq!(
        core.grant_state(ms(4), held),
        (LeaseState::Lost, Some(LossReason::Session(stopped().message)))
    );
    let op = v1::request::Op::Limit(v1::Limit { name: "pool".into(), permits: 1 });
    assert_eq!(core.request(ms(4), op, Reply::Forget).unwrap_err(), stopped());
    let target = v1::watch::Target::Lock("x".into());
    assert_eq!(core.watch(ms(4), target, None, Arc::default()).unwrap_err(), stopped());
}

#[test]
fn a_rejected_request_is_retried_until_the_retry_timeout() {
    let mut core = connected();
    let (id, mut answered) = change(&mut core, ms(0));
    sent(&mut core);
    open(&mut core, ms(1));
    answer(&mut core, ms(2), id, refused(Code::NoQuorum));
    assert!(requests(&sent(&mut core)).is_empty());
    assert_eq!(core.next_tick(ms(2)), Some(ms(102)));
    core.on_tick(ms(102));
    assert_eq!(requests(&sent(&mut core)), [id]);
    answer(&mut core, ms(11_000), id, refused(Code::NoQuorum));
    core.on_tick(ms(11_100));
    assert_eq!(answered.try_recv().unwrap().unwrap_err().code, Code::NoQuorum);
}

#[test]
fn a_request_that_may_have_been_applied_fails_with_no_answer() {
    let mut core = connected();
    let (id, mut answered) = change(&mut core, ms(0));
    sent(&mut core);
    open(&mut core, ms(1));
    answer(&mut core, ms(2), id, refused(Code::NoAnswer));
    core.on_tick(ms(102));
    answer(&mut core, ms(11_000), id, refused(Code::NoQuorum));
    core.on_tick(ms(11_100));
    assert_eq!(answered.try_recv().unwrap().unwrap_err().code, Code::NoAnswer);
}

#[test]
fn an_acquire_that_was_queued_is_offered_for_as_long_as_the_session_lives() {
    let mut core = connected();
    let (id, mut grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    open(&mut core, ms(1));
    answer(&mut core, ms(2), id, v1::answer::Result::Queued(v1::Queued::default()));
    for at in [60_000, 80_000] {
        answer(&mut core, ms(at), id, refused(Code::NoQuorum));
        core.on_tick(ms(at + 100));
        assert_eq!(requests(&sent(&mut core)), [id]);
    }
    answer(&mut core, ms(81_000), id, granted());
    assert!(grant.try_recv().is_err(), "the lease is long past its deadline: not yet");
    assert_eq!(core.late.len(), 1);
}

#[test]
fn the_retry_timeout_counts_from_the_first_rejection() {
    let mut core = connected();
    let (id, mut answered) = change(&mut core, ms(0));
    sent(&mut core);
    open(&mut core, ms(1));
    answer(&mut core, ms(60_000), id, refused(Code::Overloaded));
    core.on_tick(ms(60_100));
    assert_eq!(requests(&sent(&mut core)), [id], "the server was slow, and that was the first");
    answer(&mut core, ms(70_001), id, refused(Code::Overloaded));
    core.on_tick(ms(70_101));
    assert_eq!(answered.try_recv().unwrap().unwrap_err().code, Code::NoQuorum);
}

#[test]
fn a_release_is_retried_for_as_long_as_the_session_lives() {
    let (mut core, id) = holding("x");
    let (other, _grant) = acquire(&mut core, ms(3), "y");
    sent(&mut core);
    answer(&mut core, ms(4), other, granted());
    let mut released = core.release(ms(5), id).unwrap();
    core.abandon(ms(5), other);
    let first = sent(&mut core);
    assert_eq!(releases(&first), [id, other]);
    let first = requests(&first);
    for at in [10, 20_000, 40_000] {
        first.iter().for_each(|id| answer(&mut core, ms(at), *id, refused(Code::NoQuorum)));
        core.on_tick(ms(at + 100));
        let mut again = requests(&sent(&mut core));
        again.sort_unstable();
        assert_eq!(again, first);
    }
    assert_eq!(released.try_recv().unwrap().unwrap_err().code, Code::NoQuorum, "the caller gets the error");
}

#[test]
fn a_release_is_accepted_over_the_bound_and_retried_if_the_server_rejects_it() {
    let (mut core, held) = holding("x");
    let (waiting, _grant) = acquire(&mut core, ms(3), "y");
    sent(&mut core);
    let _answers: Vec<_> = (1..MAX_UNANSWERED).map(|_| change(&mut core, ms(4))).collect();
    sent(&mut core);
    let mut released = core.release(ms(5), held).unwrap();
    let cancelled = core.cancel(ms(5), waiting).unwrap();
    let sent_ids = requests(&sent(&mut core));
    assert_eq!(sent_ids.len(), 2);
    sent_ids.iter().for_each(|id| answer(&mut core, ms(6), *id, refused(Code::TooManyUnanswered)));
    core.on_tick(ms(106));
    assert_eq!(requests(&sent(&mut core)), sent_ids);
    answer(&mut core, ms(107), sent_ids[0], v1::answer::Result::Done(v1::Done {}));
    assert!(released.try_recv().unwrap().is_ok());
    assert!(cancelled.unwrap().try_recv().is_err());
}

#[test]
fn the_end_of_the_session_ends_everything_in_it_and_the_next_request_opens_another() {
    let mut core = connected();
    let (held, _grant) = acquire(&mut core, ms(0), "x");
    let (_, mut waiting) = acquire(&mut core, ms(0), "y");
    sent(&mut core);
    open(&mut core, ms(1));
    answer(&mut core, ms(2), held, granted());
    core.on_message(ms(3), v1::SessionEnded { session: 7, cause: v1::EndCause::Ended.into() }.into());
    assert!(matches!(core.grant_state(ms(3), held), (LeaseState::Lost, Some(LossReason::Session(_)))));
    assert_eq!(waiting.try_recv().unwrap().unwrap_err().code, Code::SessionEnded);
    let (_, _granted) = acquire(&mut core, ms(4), "x");
    assert!(matches!(sent(&mut core)[0], Sent::Open(_)));
}

#[test]
fn the_end_of_a_session_leaves_the_outcome_of_sent_requests_unknown() {
    let mut core = connected();
    let (_, mut grant) = acquire(&mut core, ms(0), "x");
    let (_, mut changed) = change(&mut core, ms(0));
    sent(&mut core);
    open(&mut core, ms(1));
    disconnected(&mut core, ms(2));
    let (_, mut unsent) = change(&mut core, ms(2));
    core.on_connected(ms(3));
    core.on_message(ms(4), v1::SessionEnded { session: 7, cause: v1::EndCause::Expired.into() }.into());
    assert_eq!(changed.try_recv().unwrap().unwrap_err().code, Code::NoAnswer, "it may have been done");
    assert_eq!(grant.try_recv().unwrap().unwrap_err().code, Code::SessionEnded, "it is not held");
    assert_eq!(unsent.try_recv().unwrap().unwrap_err().code, Code::SessionEnded, "it was never sent");
}

#[test]
fn a_request_larger_than_a_frame_is_rejected_at_once() {
    let mut core = connected();
    let long = "x".repeat(MAX_FRAME_BYTES);
    let target = v1::watch::Target::Lock(long.clone());
    assert_eq!(core.watch(ms(0), target, None, Arc::default()).unwrap_err().code, Code::TooLarge);
    for op in [
        v1::request::Op::Limit(v1::Limit { name: long.clone(), permits: 1 }),
        v1::request::Op::Break(v1::Break { name: "x".into(), reason: long.clone() }),
    ] {
        assert_eq!(core.request(ms(0), op, Reply::Forget).unwrap_err().code, Code::TooLarge);
    }
    let query = v1::query::Kind::Why(v1::Why { name: long });
    assert_eq!(core.query(ms(0), query, Reply::Forget).unwrap_err().code, Code::TooLarge);
    assert_eq!(sent(&mut core), []);
}

#[test]
fn unanswered_requests_are_bounded() {
    let mut core = connected();
    let mut answers: Vec<_> = (0..MAX_UNANSWERED).map(|_| change(&mut core, ms(0))).collect();
    let (sender, _receiver) = oneshot::channel();
    let op = v1::request::Op::SetTtl(v1::SetTtl { ttl_ms: 1 });
    assert_eq!(core.request(ms(0), op, Reply::Once(sender)).unwrap_err().code, Code::TooManyUnanswered);
    let before_reply = sent(&mut core).len();
    assert!(before_reply < MAX_UNANSWERED, "the number of messages before the reply to `Open` is bounded");
    open(&mut core, ms(1));
    assert_eq!(before_reply + sent(&mut core).len(), MAX_UNANSWERED + 1);
    assert!(answers.iter_mut().all(|(_, answer)| answer.try_recv().is_err()));
}

#[test]
fn requests_during_a_resume_follow_the_resent_ones() {
    let (mut core, held) = holding("x");
    core.abandon(ms(3), held);
    let before = requests(&sent(&mut core));
    disconnected(&mut core, ms(4));
    core.on_connected(ms(5));
    sent(&mut core);
    let (new, _grant) = acquire(&mut core, ms(6), "x");
    let target = v1::watch::Target::Lock("x".into());
    let (_watch, _begun) = core.watch(ms(6), target, None, Arc::default()).unwrap();
    core.on_message(ms(7), v1::Resumed { session: 7, ttl_ms: 10_000, ..Default::default() }.into());
    let again = sent(&mut core);
    assert_eq!(requests(&again), [before[0], new], "each once");
    assert_eq!(watches(&again).len(), 1);
}
