//! The conversation, by hand: messages in, frames out.

use conclave_api::proto::frame::Frames;
use conclave_api::proto::v1::client_message::Message as Sent;
use conclave_api::proto::{frame, v1};

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

fn ms(ms: u64) -> Now {
    Duration::from_millis(ms)
}

fn connected() -> Core {
    let mut core = Core::new(Opening::default(), PATIENCE);
    core.on_connected(ms(0));
    core.on_greeted(ms(0));
    core
}

fn disconnected(core: &mut Core, now: Now) -> bool {
    core.on_disconnected(now, Error::new(Code::Disconnected, "broken"))
}

/// What would be written now.
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

/// The grants that are given back.
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

fn change(core: &mut Core, now: Now) -> (u64, AnswerToCome) {
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

#[test]
fn the_first_request_opens_the_session_in_the_same_write() {
    let mut core = connected();
    assert!(sent(&mut core).is_empty(), "who asks nothing has no session");
    let (id, _granted) = acquire(&mut core, ms(5), "x");
    let sent = sent(&mut core);
    assert!(matches!(sent[0], Sent::Open(_)));
    assert_eq!(requests(&sent), [id]);
}

#[test]
fn a_resumed_session_asks_again_what_is_unanswered_and_nothing_before() {
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
fn what_was_sent_behind_a_lost_opening_is_not_sent_twice_but_a_lock_is() {
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
fn what_was_sent_behind_a_refused_opening_is_asked_again() {
    let mut core = connected();
    let (id, mut answered) = change(&mut core, ms(0));
    sent(&mut core);
    goodbye(&mut core, ms(2_400), Code::NoQuorum);
    let (late, _answer) = change(&mut core, ms(2_401));
    sent(&mut core);
    assert!(!disconnected(&mut core, ms(2_402)), "it was of no use");
    core.on_connected(ms(2_430));
    let again = sent(&mut core);
    assert!(matches!(again[0], Sent::Open(_)));
    assert_eq!(requests(&again), [id, late]);
    open(&mut core, ms(2_440));
    answer(&mut core, ms(2_450), id, v1::answer::Result::Done(v1::Done {}));
    assert!(answered.try_recv().unwrap().is_ok());
    assert!(disconnected(&mut core, ms(2_460)), "it was of use");
}

#[test]
fn an_overloaded_server_may_have_done_what_was_sent_behind_the_opening() {
    let mut core = connected();
    let (_, mut lost) = change(&mut core, ms(0));
    sent(&mut core);
    goodbye(&mut core, ms(1), Code::Overloaded);
    disconnected(&mut core, ms(2));
    assert_eq!(lost.try_recv().unwrap().unwrap_err().code, Code::Disconnected);
}

#[test]
fn without_a_session_everything_fails_with_the_last_reason_when_patience_is_over() {
    let mut core = connected();
    let (_, mut grant) = acquire(&mut core, ms(0), "x");
    let (_, mut begun) =
        core.watch(ms(0), v1::watch::Target::Lock("x".into()), None, Arc::default()).unwrap();
    let mut now = 0;
    while now < 10_000 {
        assert!(grant.try_recv().is_err() && begun.try_recv().is_err(), "at {now} ms");
        sent(&mut core);
        assert!(!disconnected(&mut core, ms(now + 1)));
        now += 100;
        core.on_connected(ms(now));
    }
    let unreachable = Error::new(Code::Unreachable, "nobody there");
    let (_, mut later) = acquire(&mut core, ms(now), "y");
    core.on_disconnected(ms(now + 1), unreachable.clone());
    assert_eq!(grant.try_recv().unwrap().unwrap_err(), unreachable);
    assert_eq!(begun.try_recv().unwrap().unwrap_err(), unreachable);
    assert!(later.try_recv().is_err(), "it has its own patience");
    core.on_useless(ms(now + 10_001), &unreachable);
    assert!(later.try_recv().unwrap().is_err());
}

#[test]
fn with_a_session_there_is_hope_until_the_deadline() {
    let (mut core, held) = holding("x");
    let (_, mut grant) = acquire(&mut core, ms(3), "y");
    sent(&mut core);
    assert!(disconnected(&mut core, ms(4)));
    for at in [100, 9_899] {
        core.on_connected(ms(at));
        goodbye(&mut core, ms(at), Code::NoQuorum);
        assert!(!disconnected(&mut core, ms(at)));
        assert!(grant.try_recv().is_err());
    }
    core.on_connected(ms(9_900));
    goodbye(&mut core, ms(9_900), Code::NoQuorum);
    disconnected(&mut core, ms(9_900));
    let error = grant.try_recv().unwrap().unwrap_err();
    assert_eq!((error.code, error.message.contains("refused")), (Code::Disconnected, true), "{error}");
    assert_eq!(core.standing(ms(9_900), held).0, Standing::Lost);
    assert_eq!(core.session(), None);
}

#[test]
fn a_server_that_does_not_greet_is_left() {
    let mut core = Core::new(Opening::default(), PATIENCE);
    core.on_connected(ms(0));
    assert_eq!(core.next_tick(ms(0)), Some(SILENCE.0));
    core.on_tick(SILENCE.0 - ms(1));
    assert!(!core.is_silent(SILENCE.0 - ms(1)));
    assert!(core.is_silent(SILENCE.0));
    disconnected(&mut core, SILENCE.0);
    core.on_connected(ms(10_000));
    assert_eq!(core.next_tick(ms(10_000)), Some(ms(10_000) + 2 * SILENCE.0), "it may be slow");
}

#[test]
fn a_server_that_was_asked_and_says_nothing_is_left_and_one_that_says_something_is_not() {
    let mut core = connected();
    core.on_tick(ms(60_000));
    assert!(!core.is_silent(ms(60_000)), "nothing was asked");
    assert_eq!(core.next_tick(ms(60_000)), None);
    let ids = [read(&mut core, ms(60_000)), read(&mut core, ms(61_000))];
    assert_eq!(core.next_tick(ms(61_000)), Some(ms(60_000) + SILENCE.1));
    answer(&mut core, ms(63_000), ids[0], v1::answer::Result::Done(v1::Done {}));
    assert_eq!(core.next_tick(ms(63_000)), Some(ms(60_000) + SILENCE.1), "the alarm is not moved");
    core.on_tick(ms(64_000));
    assert!(!core.is_silent(ms(64_000)));
    assert_eq!(core.next_tick(ms(64_000)), Some(ms(63_000) + SILENCE.1), "but it is when it goes off");
    core.on_tick(ms(67_000));
    assert!(core.is_silent(ms(67_000)));
}

#[test]
fn an_opening_without_an_answer_is_left() {
    let mut core = connected();
    let (_, _grant) = acquire(&mut core, ms(100), "x");
    sent(&mut core);
    assert!(!core.is_silent(ms(100) + SILENCE.1 - ms(1)));
    assert!(core.is_silent(ms(100) + SILENCE.1));
}

#[test]
fn with_a_session_the_lease_says_when_a_server_is_left_and_a_wait_is_no_silence() {
    let mut core = connected();
    let (id, _grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    open(&mut core, ms(1));
    answer(&mut core, ms(2), id, v1::answer::Result::Queued(v1::Queued::default()));
    let mut now = ms(2);
    while now < ms(60_000) {
        now = core.next_tick(now).expect("the lease is kept").max(now + ms(1));
        core.on_tick(now);
        assert!(!core.is_silent(now), "at {now:?}");
        keep_alive(&mut core, now);
    }
    now = core.next_tick(now).expect("the lease is kept");
    core.on_tick(now);
    assert_eq!(sent(&mut core).len(), 1);
    let left = core.next_tick(now).expect("it may be silent");
    assert!(core.is_silent(left));
    assert_eq!(core.standing, Standing::Valid, "not in jeopardy yet");
    assert!(disconnected(&mut core, left), "it was of use until then");
}

fn goodbye(core: &mut Core, now: Now, code: Code) {
    core.on_message(now, v1::Goodbye { error: Some((&Error::new(code, "refused")).into()) }.into());
}

fn read(core: &mut Core, now: Now) -> u64 {
    core.query(now, v1::query::What::Why(v1::Why { name: "x".into() }), Reply::Forget).unwrap()
}

/// Answers what keep-alives there are.
fn keep_alive(core: &mut Core, now: Now) {
    for message in sent(core) {
        if let Sent::KeepAlive(v1::KeepAlive { token }) = message {
            core.on_message(now, v1::KeptAlive { token }.into());
        }
    }
}

#[test]
fn a_client_whose_task_is_gone_refuses_everything_at_once() {
    let (mut core, held) = holding("x");
    let (_, mut grant) = acquire(&mut core, ms(3), "y");
    core.stop();
    assert_eq!(grant.try_recv().unwrap().unwrap_err(), stopped());
    assert_eq!(core.standing(ms(4), held), (Standing::Lost, Some(Loss::Session(stopped().message))));
    let op = v1::request::Op::Limit(v1::Limit { name: "pool".into(), permits: 1 });
    assert_eq!(core.request(ms(4), op, Reply::Forget).unwrap_err(), stopped());
    let target = v1::watch::Target::Lock("x".into());
    assert_eq!(core.watch(ms(4), target, None, Arc::default()).unwrap_err(), stopped());
}

#[test]
fn a_grant_that_nobody_waits_for_is_given_back() {
    let mut core = connected();
    let (id, grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    open(&mut core, ms(1));
    drop(grant);
    answer(&mut core, ms(2), id, granted());
    let Some(Sent::Request(v1::Request { op: Some(v1::request::Op::Release(release)), .. })) =
        sent(&mut core).pop()
    else {
        panic!("not released")
    };
    assert_eq!(release.grant, id);
}

#[test]
fn an_abandoned_wait_is_cancelled_and_its_grant_is_not_handed_out() {
    let mut core = connected();
    let (id, _grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    open(&mut core, ms(1));
    core.abandon(ms(2), id);
    let cancel = sent(&mut core).pop();
    assert!(matches!(cancel, Some(Sent::Request(v1::Request { op: Some(v1::request::Op::Cancel(_)), .. }))));
    answer(&mut core, ms(3), id, granted());
    assert!(core.held.is_empty(), "the cancel releases it in its own entry");
}

#[test]
fn past_the_deadline_everything_held_is_lost_for_good_and_given_back() {
    let mut core = connected();
    let (id, _grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    open(&mut core, ms(1));
    answer(&mut core, ms(2), id, granted());
    assert_eq!(core.standing(ms(4_999), id), (Standing::Valid, None));
    core.on_tick(ms(6_000));
    let Some(Sent::KeepAlive(v1::KeepAlive { token })) = sent(&mut core).pop() else {
        panic!("not kept alive")
    };
    assert_eq!(core.standing(ms(9_900), id), (Standing::Lost, Some(Loss::Deadline)));
    core.on_message(ms(9_950), v1::KeptAlive { token }.into());
    assert_eq!(core.standing(ms(9_950), id), (Standing::Lost, Some(Loss::Deadline)));
    let released = sent(&mut core).pop();
    assert!(matches!(
        released,
        Some(Sent::Request(v1::Request { op: Some(v1::request::Op::Release(_)), .. }))
    ));
}

#[test]
fn a_grant_past_the_deadline_waits_until_the_lease_is_confirmed() {
    let mut core = connected();
    let (id, mut grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    open(&mut core, ms(1));
    core.on_tick(ms(9_950));
    let Some(Sent::KeepAlive(v1::KeepAlive { token })) = sent(&mut core).pop() else {
        panic!("not kept alive")
    };
    answer(&mut core, ms(9_960), id, granted());
    assert!(grant.try_recv().is_err(), "not yet");
    core.on_message(ms(9_970), v1::KeptAlive { token }.into());
    assert!(grant.try_recv().unwrap().is_ok());
    assert_eq!(core.standing(ms(9_970), id), (Standing::Valid, None));
}

#[test]
fn what_was_not_taken_is_asked_again_until_patience_is_over() {
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
fn what_may_have_been_done_is_not_called_refused() {
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

/// A client with a session that holds something.
fn holding(name: &str) -> (Core, u64) {
    let mut core = connected();
    let (id, _grant) = acquire(&mut core, ms(0), name);
    sent(&mut core);
    open(&mut core, ms(1));
    answer(&mut core, ms(2), id, granted());
    (core, id)
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
fn patience_counts_from_the_first_refusal() {
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
fn what_lets_go_is_offered_for_as_long_as_the_session_lives() {
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
    assert_eq!(released.try_recv().unwrap().unwrap_err().code, Code::NoQuorum, "who waits is told");
}

#[test]
fn what_lets_go_is_taken_in_beyond_the_bound_and_offered_again_when_the_server_is_at_its_own() {
    let (mut core, held) = holding("x");
    let (waiting, _grant) = acquire(&mut core, ms(3), "y");
    sent(&mut core);
    let _answers: Vec<_> = (1..MAX_UNANSWERED).map(|_| change(&mut core, ms(4))).collect();
    sent(&mut core);
    let mut released = core.release(ms(5), held).unwrap();
    let cancelled = core.cancel(ms(5), waiting).unwrap();
    let asked = requests(&sent(&mut core));
    assert_eq!(asked.len(), 2);
    asked.iter().for_each(|id| answer(&mut core, ms(6), *id, refused(Code::TooManyUnanswered)));
    core.on_tick(ms(106));
    assert_eq!(requests(&sent(&mut core)), asked);
    answer(&mut core, ms(107), asked[0], v1::answer::Result::Done(v1::Done {}));
    assert!(released.try_recv().unwrap().is_ok());
    assert!(cancelled.unwrap().try_recv().is_err());
}

#[test]
fn what_ended_with_its_session_is_not_given_back_in_another() {
    let (mut core, id) = holding("x");
    core.on_message(ms(3), v1::SessionEnded { session: 7, cause: v1::EndCause::Closed.into() }.into());
    assert_eq!(core.release(ms(4), id).unwrap_err().code, Code::NotHeld);
    let (mut core, id) = holding("x");
    core.on_message(ms(3), v1::SessionEnded { session: 7, cause: v1::EndCause::Closed.into() }.into());
    core.abandon(ms(4), id);
    assert_eq!(sent(&mut core), []);
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
    assert!(matches!(core.standing(ms(3), held), (Standing::Lost, Some(Loss::Session(_)))));
    assert_eq!(waiting.try_recv().unwrap().unwrap_err().code, Code::SessionEnded);
    let (_, _granted) = acquire(&mut core, ms(4), "x");
    assert!(matches!(sent(&mut core)[0], Sent::Open(_)));
}

#[test]
fn the_end_of_the_session_does_not_say_that_what_was_sent_before_was_not_done() {
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
    assert_eq!(unsent.try_recv().unwrap().unwrap_err().code, Code::SessionEnded, "nobody has heard of it");
}

#[test]
fn a_broken_lock_is_lost_with_its_reason() {
    let mut core = connected();
    let (id, _grant) = acquire(&mut core, ms(0), "x");
    sent(&mut core);
    open(&mut core, ms(1));
    answer(&mut core, ms(2), id, granted());
    core.on_message(ms(3), v1::Broken { grant: id, name: "x".into(), reason: "stuck".into() }.into());
    let loss = Loss::Broken { name: "x".into(), reason: "stuck".into() };
    assert_eq!(core.standing(ms(3), id), (Standing::Lost, Some(loss.clone())));
    assert_eq!(sent(&mut core), [], "its other names are held until its holder has stopped");
    let refusal = core.release(ms(4), id).unwrap_err();
    assert_eq!((refusal.code, refusal.message), (Code::NotHeld, loss.to_string()));
    assert_eq!(releases(&sent(&mut core)), [id], "the server hears that we know");
}

#[test]
fn a_grant_that_is_broken_before_it_is_handed_out_is_refused() {
    let mut core = connected();
    let (on_its_way, mut first) = acquire(&mut core, ms(0), "x");
    let (parked, mut second) = acquire(&mut core, ms(0), "y");
    sent(&mut core);
    open(&mut core, ms(1));
    core.on_tick(ms(9_950));
    let Some(Sent::KeepAlive(v1::KeepAlive { token })) = sent(&mut core).pop() else {
        panic!("not kept alive")
    };
    answer(&mut core, ms(9_960), parked, granted());
    for grant in [on_its_way, parked] {
        core.on_message(ms(9_961), v1::Broken { grant, ..Default::default() }.into());
    }
    answer(&mut core, ms(9_962), on_its_way, granted());
    core.on_message(ms(9_970), v1::KeptAlive { token }.into());
    for grant in [&mut first, &mut second] {
        assert_eq!(grant.try_recv().unwrap().unwrap_err().code, Code::NotHeld);
    }
    assert!(core.held.is_empty());
    assert_eq!(releases(&sent(&mut core)), [on_its_way, parked]);
}

#[test]
fn what_is_broken_again_is_lost_once_and_acknowledged_until_that_is_heard() {
    let (mut core, id) = holding("x");
    let broken = |reason: &str| v1::Broken { grant: id, name: "x".into(), reason: reason.into() };
    core.on_message(ms(3), broken("first").into());
    core.on_message(ms(3), broken("again").into());
    let loss = Loss::Broken { name: "x".into(), reason: "first".into() };
    assert_eq!(core.standing(ms(4), id), (Standing::Lost, Some(loss)));
    core.abandon(ms(5), id);
    core.on_message(ms(6), broken("again").into());
    let said = sent(&mut core);
    assert_eq!(releases(&said), [id], "once is enough while it is unanswered");
    answer(&mut core, ms(7), requests(&said)[0], refused(Code::NotHeld));
    core.on_message(ms(8), broken("again").into());
    assert_eq!(releases(&sent(&mut core)), [id]);
}

#[test]
fn what_was_broken_is_not_given_back_in_another_session() {
    let (mut core, id) = holding("x");
    core.on_message(ms(3), v1::Broken { grant: id, ..Default::default() }.into());
    core.on_message(ms(4), v1::SessionEnded { session: 7, cause: v1::EndCause::Closed.into() }.into());
    assert!(matches!(core.standing(ms(5), id), (Standing::Lost, Some(Loss::Broken { .. }))));
    core.abandon(ms(6), id);
    assert_eq!(sent(&mut core), []);
}

#[test]
fn what_fits_no_frame_is_refused_before_it_is_taken_in() {
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
    let what = v1::query::What::Why(v1::Why { name: long });
    assert_eq!(core.query(ms(0), what, Reply::Forget).unwrap_err().code, Code::TooLarge);
    assert_eq!(sent(&mut core), []);
}

#[test]
fn a_server_whose_secret_is_none_is_given_up() {
    let mut core = connected();
    let (_, mut answer) = change(&mut core, ms(0));
    sent(&mut core);
    let opened = v1::Opened { session: 7, secret: vec![0; 17], ttl_ms: 10_000, ..Default::default() };
    core.on_message(ms(1), opened.into());
    assert_eq!(answer.try_recv().unwrap().unwrap_err().code, Code::Disconnected);
    assert_eq!(core.session(), None);
}

#[test]
fn there_is_a_bound_on_what_is_unanswered() {
    let mut core = connected();
    let mut answers: Vec<_> = (0..MAX_UNANSWERED).map(|_| change(&mut core, ms(0))).collect();
    let (sender, _receiver) = oneshot::channel();
    let op = v1::request::Op::SetTtl(v1::SetTtl { ttl_ms: 1 });
    assert_eq!(core.request(ms(0), op, Reply::Once(sender)).unwrap_err().code, Code::TooManyUnanswered);
    let behind = sent(&mut core).len();
    assert!(behind < MAX_UNANSWERED, "the server keeps a bounded number behind an opening");
    open(&mut core, ms(1));
    assert_eq!(behind + sent(&mut core).len(), MAX_UNANSWERED + 1);
    assert!(answers.iter_mut().all(|(_, answer)| answer.try_recv().is_err()));
}

#[test]
fn what_is_asked_while_a_session_is_resumed_goes_behind_what_was_asked_before() {
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

#[test]
fn a_watch_that_goes_on_misses_nothing_of_an_index_that_was_told_in_part() {
    let mut core = connected();
    let queue = Arc::new(Queue::default());
    let target = v1::watch::Target::Children("/d".into());
    let (id, _begun) = core.watch(ms(0), target, Some(3), queue.clone()).unwrap();
    assert_eq!(watches(&sent(&mut core)), [Some(3)]);
    answer(&mut core, ms(1), id, v1::answer::Result::Watching(v1::Watching { index: 3 }));
    let tell = |core: &mut Core, index: u64, names: &[&str]| {
        for name in names {
            core.on_message(ms(2), v1::Event { id, index, name: (*name).into(), change: None }.into());
        }
    };
    tell(&mut core, 4, &["/d/a"]);
    tell(&mut core, 5, &["/d/b", "/d/c"]);
    for rest in [&["/d/b", "/d/c", "/d/d"][..], &["/d/b", "/d/c", "/d/d", "/d/e"]] {
        disconnected(&mut core, ms(3));
        core.on_connected(ms(4));
        assert_eq!(watches(&sent(&mut core)), [Some(4)]);
        tell(&mut core, 5, rest);
    }
    tell(&mut core, 6, &["/d/f"]);
    let name = |notice: Notice| match notice {
        Notice::Changed(event) => event.name,
        Notice::Resync { .. } => panic!("nothing was lost"),
    };
    let told: Vec<String> = std::iter::from_fn(|| queue.pop()).map(|notice| name(notice.unwrap())).collect();
    assert_eq!(told, ["/d/a", "/d/b", "/d/c", "/d/d", "/d/e", "/d/f"]);
    core.on_message(ms(5), v1::Resync { id, index: 9 }.into());
    disconnected(&mut core, ms(6));
    core.on_connected(ms(7));
    assert_eq!(watches(&sent(&mut core)), [Some(9)], "all of that index was said to be read");
}

/// After what index the watches begin.
fn watches(sent: &[Sent]) -> Vec<Option<u64>> {
    let after = |message: &Sent| match message {
        Sent::Watch(watch) => Some(watch.after),
        _ => None,
    };
    sent.iter().filter_map(after).collect()
}
