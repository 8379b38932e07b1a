//! Backups: they contain no data of sessions and all other data, and a restore raises all growing numbers.
//! [docs/service.md 6]

use conclave_core::report::WatchEvent;
use conclave_core::{FilePath, Version};

use super::super::early_grant;
use super::super::snapshot::{self, SnapshotError};
use super::super::watch::WatchTarget;
use super::*;
use crate::node::watches::{WatcherId, Watches};

/// A time in 2026, in milliseconds since 1970.
const NOW_MS: u64 = 1_790_000_000_000;

/// Returns a state with files, a semaphore, and sessions with holds, waits, a lock-delay and ephemeral files.
fn busy() -> (World, Client) {
    let mut w = World::new();
    let a = w.client();
    let (b, gone) = (w.client(), w.client_with(10_000, 60_000));
    w.limit(a, "pool", 3);
    w.limit(a, "gone", 2);
    w.limit(a, "gone", 0);
    for (path, ephemeral) in [("/config", false), ("/config/deep", false), ("/config/alive", true)] {
        let path = FilePath::new(path).unwrap();
        w.send(
            a,
            Op::Files(vec![FileOp::Create { path, data: b"one".into(), ephemeral, sequential: false }]),
        );
    }
    let path = FilePath::new("/config").unwrap();
    w.send(a, Op::Files(vec![FileOp::Write { path, data: b"blue".into(), expected: None }]));
    w.hold(a, acquire("x & pool*2"));
    w.wait(b, acquire("x | y & x"));
    w.hold(gone, acquire("z"));
    w.expire_session(gone);
    (w, a)
}

fn restored(bytes: &[u8], now_ms: u64) -> State {
    let (state, _) = State::from_backup(bytes, now_ms).unwrap();
    state.audit().unwrap();
    state
}

/// Returns the fence of the first lock that is acquired in a state.
fn next_fence(state: &State) -> u64 {
    let mut w = World { state: state.clone(), index: state.applied(), ..World::new() };
    let client = w.client();
    let grant = w.hold(client, acquire("x"));
    w.fence(client, grant).0
}

#[test]
fn a_backup_has_no_session_and_no_secret() {
    let (w, a) = busy();
    let secret = w.state.sessions[&a.0].open.secret;
    let in_postcard = postcard::to_stdvec(&secret).unwrap();
    let holds = |bytes: &[u8]| bytes.windows(in_postcard.len()).any(|window| window == in_postcard);
    assert!(holds(&w.state.to_snapshot()), "this is how to find one");
    let bytes = w.state.to_backup();
    assert!(!holds(&bytes));
    for native in [secret.to_le_bytes(), secret.to_be_bytes()] {
        assert!(!bytes.windows(native.len()).any(|window| window == native));
    }
    let kept = State::from_snapshot(&bytes).unwrap();
    let totals = kept.totals();
    assert_eq!((totals.sessions, totals.grants, totals.waiting, totals.names), (0, 0, 0, 1));
    assert_eq!(kept.timers().len(), 0, "nothing is left to end");
}

#[test]
fn files_keep_their_versions_and_semaphores_their_limits() {
    let (w, _) = busy();
    let bytes = w.state.to_backup();
    let (state, contents) = State::from_backup(&bytes, NOW_MS).unwrap();
    for path in ["/config", "/config/deep"].map(|path| FilePath::new(path).unwrap()) {
        let (before, now) = (w.state.file(&path).unwrap(), state.file(&path).unwrap());
        assert_eq!(before.0, now.0);
        assert_eq!((before.1.version, before.1.modified), (now.1.version, now.1.modified));
    }
    assert_eq!(state.file(&FilePath::new("/config").unwrap()).unwrap().1.version, Version(2));
    assert!(state.file(&FilePath::new("/config/alive").unwrap()).is_none(), "it ended with its session");
    let pool = &state.locks("", None, 10).items;
    assert_eq!(
        pool.iter().map(|lock| (lock.name.as_str(), lock.limit)).collect::<Vec<_>>(),
        [("pool", Some(3))]
    );
    assert_eq!(contents, backup::Contents::of(&bytes).unwrap());
    assert_eq!((contents.files, contents.file_bytes, contents.semaphores), (2, 7, 1));
    assert_eq!(contents.applied, w.state.applied());
    let mut w = World { index: state.applied(), state, ..World::new() };
    let client = w.client();
    w.hold(client, acquire("x & y & z & pool*3"));
}

#[test]
fn fences_after_a_restore_are_larger_than_all_before_it_however_often_it_is_restored() {
    let (mut w, a) = busy();
    let bytes = w.state.to_backup();
    // The lost cluster granted a fence after the backup.
    let last = w.hold(a, acquire("late"));
    let last = w.fence(a, last).0;
    let once = restored(&bytes, NOW_MS);
    let first = next_fence(&once);
    assert!(first > last + u64::from(u32::MAX), "{first}");
    // A second restore after one second: the first restored cluster may have granted many fences meanwhile.
    let again = next_fence(&restored(&bytes, NOW_MS + 1000));
    assert!(again > first + 1_000_000, "{again} after {first}");
    // A restore 100 ms later, after the first restored cluster has restarted three times, each time with a
    // leap.
    let mut restarted = once.clone();
    for _ in 0..3 {
        let at = Position { index: restarted.applied() + 1, term: 1, wall_ms: 0 };
        restarted.apply(at, Command::SingleNodeRestarted { fences: early_grant::FENCE_GAP });
    }
    assert!(next_fence(&restored(&bytes, NOW_MS + 100)) > next_fence(&restarted));
    // A backup of the restored state, restored at the same clock time.
    let chained = next_fence(&restored(&once.to_backup(), NOW_MS));
    assert!(chained > first, "{chained} after {first}");
    assert!(chained < 1 << 53, "a reader of JSON takes it for another");
    // Even with a clock at 0, the first restore exceeds the fences of the lost cluster.
    assert!(next_fence(&restored(&bytes, 0)) > last);
}

#[test]
fn a_restored_state_has_no_sessions_and_resyncs_watches() {
    let (mut w, a) = busy();
    let bytes = w.state.to_backup();
    let before = w.state.applied();
    for _ in 0..10 {
        w.lock(a, "later");
    }
    let after = w.state.applied();
    let state = restored(&bytes, NOW_MS);
    let mut w = World { index: state.applied(), state, ..World::new() };
    let b = w.client();
    w.hold(b, acquire("later"));
    assert!(b.0.0 > after, "a number of the lost cluster would be another session's");
    assert!(
        restored(&bytes, NOW_MS + 1000).applied() > b.0.0 + 1_000_000,
        "nor does one come back by a second restore"
    );
    let target = || WatchTarget::Lock(name("later"));
    for from in [1, before, after] {
        let events = Watches::new().watch(&w.state, WatcherId(b.0.0), 1, target(), Some(from)).unwrap();
        assert!(
            matches!(events[..], [ref only] if matches!(only.event, WatchEvent::Resync { .. })),
            "{from}: {events:?}"
        );
    }
    // A watch with an index after the restore gets all changes.
    let since = Watches::new().watch(&w.state, WatcherId(b.0.0), 1, target(), Some(b.0.0)).unwrap();
    assert!(matches!(since[..], [ref only] if matches!(only.event, WatchEvent::Changed { .. })), "{since:?}");
}

#[test]
fn bytes_that_are_no_backup_are_rejected() {
    let bytes = busy().0.state.to_backup();
    let refused = |bytes: &[u8]| State::from_backup(bytes, NOW_MS).unwrap_err();
    assert_eq!(refused(b""), SnapshotError::NotASnapshot);
    assert_eq!(refused(b"CONCSNAP and so on"), SnapshotError::NotASnapshot);
    assert_eq!(refused(&bytes[..bytes.len() - 1]), SnapshotError::Damaged);
    let mut other = bytes.clone();
    other[4..6].copy_from_slice(&(snapshot::VERSION + 1).to_le_bytes());
    assert_eq!(refused(&other), SnapshotError::UnknownVersion(snapshot::VERSION + 1));
    for byte in (0..bytes.len()).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[byte] ^= 4;
        refused(&damaged);
    }
    // The time is too large: the counts would exceed their bound.
    assert!(matches!(State::from_backup(&bytes, u64::MAX), Err(SnapshotError::Inconsistent(_))));
}

#[test]
fn a_restored_state_has_no_sessions_and_is_consistent() {
    for seed in 400..440 {
        let mut state = State::new();
        for (at, command) in fuzz::log(seed, 300) {
            state.apply(at, command);
        }
        let bytes = state.to_backup();
        let again = restored(&bytes, NOW_MS);
        assert_eq!(
            (again.totals().sessions, again.totals().grants, again.timers().len()),
            (0, 0, 0),
            "seed {seed}"
        );
        assert_eq!(
            again.totals().names,
            state.locks.all().filter(|(_, lock)| lock.limit.is_some()).count() as u64
        );
        assert!(next_fence(&again) > next_fence(&state), "seed {seed}");
        // A state without sessions is its own backup.
        assert_eq!(State::from_snapshot(&bytes).unwrap().to_backup(), bytes, "seed {seed}");
    }
}
