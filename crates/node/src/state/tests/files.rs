//! The tree, watches and snapshots.

use conclave_core::report::{FileResult, WatchEvent};
use conclave_core::{FilePath, Version};

use super::super::snapshot::{SnapshotError, VERSION};
use super::super::tree::{MAX_FILE_BYTES, MAX_OPERATIONS};
use super::super::watch::{HISTORY_LENGTH, WatchTarget};
use super::*;
use crate::node::watches::{MAX_WATCHES, WatcherEvent, WatcherId, Watches};

fn path(text: &str) -> FilePath {
    FilePath::new(text).unwrap()
}

fn create(at: &str, data: &str) -> FileOp {
    FileOp::Create { path: path(at), data: data.into(), ephemeral: false, sequential: false }
}

fn ephemeral(at: &str) -> FileOp {
    FileOp::Create { path: path(at), data: Vec::new(), ephemeral: true, sequential: false }
}

fn sequential(at: &str) -> FileOp {
    FileOp::Create { path: path(at), data: Vec::new(), ephemeral: false, sequential: true }
}

fn write(at: &str, data: &str, expected: Option<u64>) -> FileOp {
    FileOp::Write { path: path(at), data: data.into(), expected: expected.map(Version) }
}

fn delete(at: &str) -> FileOp {
    FileOp::Delete { path: path(at), expected: None }
}

impl World {
    fn files(&mut self, client: Client, operations: Vec<FileOp>) -> Result<Vec<FileResult>, Code> {
        match self.request(client, Op::Files(operations)).1 {
            Answer::Files(done) => Ok(done),
            Answer::Refused(error) => Err(error.code),
            other => panic!("{other:?}"),
        }
    }

    fn data(&self, at: &str) -> Option<String> {
        let (data, _) = self.state.file(&path(at))?;
        Some(String::from_utf8(data.to_vec()).unwrap())
    }

    fn children(&self, at: &str) -> Vec<&str> {
        self.state.list(&path(at)).unwrap().collect()
    }
}

#[test]
fn a_file_is_made_written_read_listed_and_deleted() {
    let mut w = World::new();
    let a = w.client();
    assert_eq!(w.files(a, vec![create("/etc", "")]), Ok(vec![FileResult::Created(path("/etc"))]));
    let created = w.index;
    w.files(a, vec![create("/etc/motd", "hello")]).unwrap();
    assert_eq!(w.files(a, vec![write("/etc/motd", "bye", None)]), Ok(vec![FileResult::Written(Version(2))]));
    assert_eq!(w.data("/etc/motd").unwrap(), "bye");
    assert_eq!(w.children("/etc"), ["motd"]);
    let (_, stat) = w.state.file(&path("/etc")).unwrap();
    assert_eq!((stat.created, stat.children, stat.children_version), (created, 1, 1));
    assert_eq!(w.files(a, vec![delete("/etc")]), Err(Code::NotEmpty));
    assert_eq!(w.files(a, vec![delete("/etc/motd")]), Ok(vec![FileResult::Deleted]));
    assert_eq!(w.data("/etc/motd"), None);
    assert_eq!(w.state.totals().file_bytes, 0);
}

#[test]
fn an_invalid_change_of_files_is_rejected() {
    let mut w = World::new();
    let a = w.client();
    w.files(a, vec![create("/x", "1")]).unwrap();
    assert_eq!(w.files(a, vec![create("/x", "2")]), Err(Code::FileExists));
    assert_eq!(w.files(a, vec![create("/", "")]), Err(Code::FileExists));
    assert_eq!(w.files(a, vec![delete("/")]), Err(Code::NotEmpty));
    assert_eq!(w.files(a, vec![delete("/x"), delete("/")]), Err(Code::InvalidArgument));
    assert_eq!(w.files(a, vec![create("/no/where", "")]), Err(Code::NoSuchFile));
    assert_eq!(w.files(a, vec![write("/nowhere", "", None)]), Err(Code::NoSuchFile));
    assert_eq!(w.files(a, vec![delete("/nowhere")]), Err(Code::NoSuchFile));
    let huge = "x".repeat(MAX_FILE_BYTES + 1);
    assert_eq!(w.files(a, vec![create("/y", &huge)]), Err(Code::TooLarge));
    assert_eq!(w.files(a, vec![write("/x", &huge, None)]), Err(Code::TooLarge));
    assert_eq!(w.files(a, vec![write("/x", "", None); MAX_OPERATIONS + 1]), Err(Code::TooLarge));
    assert_eq!(w.data("/x").unwrap(), "1");
}

#[test]
fn a_condition_names_the_version_it_expects() {
    let mut w = World::new();
    let a = w.client();
    w.files(a, vec![create("/x", "1")]).unwrap();
    assert_eq!(w.files(a, vec![write("/x", "2", Some(2))]), Err(Code::VersionMismatch));
    assert_eq!(w.files(a, vec![write("/x", "2", Some(1))]), Ok(vec![FileResult::Written(Version(2))]));
    let stale = FileOp::Delete { path: path("/x"), expected: Some(Version(1)) };
    assert_eq!(w.files(a, vec![stale]), Err(Code::VersionMismatch));
    let fresh = FileOp::Delete { path: path("/x"), expected: Some(Version(2)) };
    assert_eq!(w.files(a, vec![fresh]), Ok(vec![FileResult::Deleted]));
}

#[test]
fn ephemeral_files_end_with_their_session_and_have_no_children() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    w.files(a, vec![ephemeral("/alive"), ephemeral("/too")]).unwrap();
    assert_eq!(w.files(b, vec![create("/alive/x", "")]), Err(Code::EphemeralParent));
    w.files(b, vec![write("/alive", "still", None), delete("/too")]).unwrap();
    assert_eq!(w.state.sessions[&a.0].ephemerals.len(), 1);
    w.expire_session(a);
    assert_eq!(w.data("/alive"), None);
    let deleted = ChangedObject::File { path: path("/alive"), change: FileChange::Deleted };
    assert!(w.effects.contains(&Effect::Changed(Change { index: w.index, object: deleted })));
    // The path is free for another session, and the ended session does not affect the new file.
    w.files(b, vec![create("/alive", "b")]).unwrap();
    assert_eq!(w.data("/alive").unwrap(), "b");
}

#[test]
fn sequential_files_get_the_directorys_next_number_never_twice() {
    let mut w = World::new();
    let a = w.client();
    w.files(a, vec![create("/q", "")]).unwrap();
    let first = FileResult::Created(path("/q/job-0000000000"));
    assert_eq!(w.files(a, vec![sequential("/q/job-")]), Ok(vec![first]));
    w.files(a, vec![delete("/q/job-0000000000")]).unwrap();
    let second = FileResult::Created(path("/q/job-0000000001"));
    assert_eq!(w.files(a, vec![sequential("/q/job-")]), Ok(vec![second]));
}

#[test]
fn a_multi_is_all_or_nothing() {
    let mut w = World::new();
    let a = w.client();
    w.files(a, vec![create("/d", ""), create("/d/x", "1"), create("/y", "1")]).unwrap();
    let before = w.state.tree.clone();
    let failing = vec![
        write("/d/x", "2", None),
        delete("/d/x"),
        create("/d/x", "3"),
        sequential("/d/s"),
        ephemeral("/e"),
        delete("/y"),
        FileOp::Check { path: path("/d"), expected: Version(7) },
    ];
    let (_, answer) = w.request(a, Op::Files(failing.clone()));
    let Answer::Refused(error) = answer else { panic!("{answer:?}") };
    assert_eq!(error.code, Code::VersionMismatch);
    assert!(error.message.starts_with("operation 7 failed, and none was done: /d has version 1"), "{error}");
    assert_eq!(w.state.tree, before);
    assert!(!w.effects.iter().any(|effect| matches!(effect, Effect::Changed(_))));
    assert_eq!(w.files(a, failing[..6].to_vec()).unwrap().len(), 6);
    assert_eq!(w.data("/d/x").unwrap(), "3");
    assert_eq!(w.data("/y"), None);
}

// --- watches

fn events(sent: &[WatcherEvent]) -> Vec<u64> {
    sent.iter()
        .map(|sent| match &sent.event {
            WatchEvent::Changed { index, .. } => *index,
            _ => 0,
        })
        .collect()
}

/// Returns the events for the changes of the last entry.
fn deliver(w: &World, watchers: &mut Watches) -> Vec<WatcherEvent> {
    let changes = w.effects.iter().filter_map(|effect| match effect {
        Effect::Changed(change) => Some(change),
        _ => None,
    });
    changes.flat_map(|change| watchers.on_change(change)).collect()
}

#[test]
fn a_directory_is_listed_from_anywhere() {
    let mut w = World::new();
    let a = w.client();
    w.files(a, vec![create("/d", ""), create("/d/x", ""), create("/d/y", ""), create("/d/y/z", "")]).unwrap();
    let after = |after: &str| -> Vec<&str> { w.state.list_after(&path("/d"), after).unwrap().collect() };
    assert_eq!(after(""), ["x", "y"]);
    assert_eq!((after("x"), after("xx"), after("y")), (vec!["y"], vec!["y"], vec![]));
    assert!(w.state.list_after(&path("/none"), "").is_none());
}

#[test]
fn no_event_is_lost_between_a_read_and_its_watch() {
    let mut w = World::new();
    let mut watchers = Watches::new();
    let a = w.client();
    w.files(a, vec![create("/x", "1")]).unwrap();
    let read_at = w.state.applied();
    w.files(a, vec![write("/x", "2", None)]).unwrap();
    let written = w.index;
    let missed =
        watchers.watch(&w.state, WatcherId(a.0.0), 1, WatchTarget::File(path("/x")), Some(read_at)).unwrap();
    assert_eq!(events(&missed), [written]);
    w.files(a, vec![write("/x", "3", None)]).unwrap();
    assert_eq!(events(&deliver(&w, &mut watchers)), [w.index]);
}

#[test]
fn a_change_before_a_watch_is_not_sent_to_it() {
    let mut w = World::new();
    let mut watchers = Watches::new();
    let a = w.client();
    w.files(a, vec![create("/x", "1")]).unwrap();
    watchers.watch(&w.state, WatcherId(a.0.0), 1, WatchTarget::File(path("/x")), None).unwrap();
    // The effects of the entry reach the watches only now.
    assert_eq!(deliver(&w, &mut watchers), []);
}

#[test]
fn each_watch_gets_the_changes_of_its_target() {
    let mut w = World::new();
    let mut watchers = Watches::new();
    let (a, b) = (w.client(), w.client());
    w.files(a, vec![create("/d", "")]).unwrap();
    let targets = [
        WatchTarget::Directory(path("/d")),
        WatchTarget::File(path("/d/x")),
        WatchTarget::Lock(name("boss")),
    ];
    for (id, target) in targets.into_iter().enumerate() {
        assert_eq!(watchers.watch(&w.state, WatcherId(b.0.0), id as u64, target, None), Ok(vec![]));
    }
    let mut told =
        |w: &World| -> Vec<u64> { deliver(w, &mut watchers).iter().map(|event| event.watch).collect() };
    w.files(a, vec![create("/d/x", "")]).unwrap();
    assert_eq!(told(&w), [1, 0]);
    w.files(a, vec![write("/d/x", "1", None)]).unwrap();
    assert_eq!(told(&w), [1]);
    let campaign = with(acquire("boss"), |acquire| acquire.value = Some(vec![1]));
    let boss = w.hold(a, campaign);
    assert_eq!(told(&w), [2]);
    w.done(a, Op::Proclaim { grant: boss, value: vec![2] });
    assert_eq!(told(&w), [2]);
    w.release(a, boss);
    assert_eq!(told(&w), [2]);
    watchers.unwatch(WatcherId(b.0.0), 2);
    w.hold(a, acquire("boss"));
    assert_eq!(deliver(&w, &mut watchers), []);
    watchers.end(WatcherId(b.0.0));
    w.files(a, vec![delete("/d/x")]).unwrap();
    assert_eq!(deliver(&w, &mut watchers), []);
}

#[test]
fn watches_resume_by_index_and_a_gap_is_an_explicit_resync() {
    let mut w = World::new();
    let a = w.client();
    w.files(a, vec![create("/x", "")]).unwrap();
    let early = w.index;
    let mut state = std::mem::take(&mut w.state);
    for _ in 0..=HISTORY_LENGTH {
        w.index += 1;
        let at = Position { index: w.index, term: 1, wall_ms: 0 };
        let op = Op::Files(vec![write("/x", "", None)]);
        let id = RequestId(w.index);
        state.apply(at, Command::Request(Request { session: a.0, id, lowest: id, op }));
    }
    let (mut watchers, target) = (Watches::new(), WatchTarget::File(path("/x")));
    let sent = watchers.watch(&state, WatcherId(a.0.0), 1, target.clone(), Some(early)).unwrap();
    let resync = WatchEvent::Resync { index: w.index };
    assert_eq!(sent, [WatcherEvent { watcher: WatcherId(a.0.0), watch: 1, event: resync }]);
    let sent = watchers.watch(&state, WatcherId(a.0.0), 1, target, Some(w.index - 3)).unwrap();
    assert_eq!(events(&sent), [w.index - 2, w.index - 1, w.index]);
}

#[test]
fn after_a_snapshot_watches_get_the_missed_changes() {
    let mut w = World::new();
    let mut watchers = Watches::new();
    let a = w.client();
    watchers.watch(&w.state, WatcherId(a.0.0), 1, WatchTarget::Lock(name("x")), None).unwrap();
    let x = w.hold(a, acquire("x"));
    assert_eq!(deliver(&w, &mut watchers).len(), 1);
    w.release(a, x);
    let missed = w.index;
    let installed = State::from_snapshot(&w.state.to_snapshot()).unwrap();
    assert_eq!(events(&watchers.on_snapshot(&installed)), [missed]);
    assert_eq!(watchers.on_snapshot(&installed), []);
}

#[test]
fn watches_of_a_session_are_bounded() {
    let mut w = World::new();
    let mut watchers = Watches::new();
    let a = w.client();
    for id in 0..MAX_WATCHES as u64 {
        watchers.watch(&w.state, WatcherId(a.0.0), id, WatchTarget::Lock(name("x")), None).unwrap();
    }
    let target = WatchTarget::Lock(name("x"));
    let error = watchers.watch(&w.state, WatcherId(a.0.0), u64::MAX, target.clone(), None).unwrap_err();
    assert_eq!(error.code, Code::LimitReached);
    assert!(watchers.watch(&w.state, WatcherId(a.0.0), 0, target, None).is_ok());
}

// --- snapshots

#[test]
fn a_snapshot_contains_the_whole_state() {
    let mut w = World::new();
    let a = w.client_with(5000, 500);
    w.limit(a, "pool", 3);
    w.hold(a, by("o", "x & pool*2"));
    w.wait(a, at_most(acquire("x | pool*2"), 100));
    w.files(a, vec![create("/x", "1"), ephemeral("/y")]).unwrap();
    let b = w.client_with(5000, 500);
    w.hold(b, acquire("kept"));
    w.expire_session(b);
    let again = State::from_snapshot(&w.state.to_snapshot()).unwrap();
    assert_eq!(again, w.state);
}

#[test]
fn bytes_that_are_no_snapshot_are_refused() {
    let mut w = World::new();
    let a = w.client();
    w.hold(a, acquire("x"));
    w.wait(a, acquire("x"));
    let good = w.state.to_snapshot();
    assert_eq!(State::from_snapshot(b""), Err(SnapshotError::NotASnapshot));
    assert_eq!(State::from_snapshot(b"something else"), Err(SnapshotError::NotASnapshot));
    let mut future = good.clone();
    future[4] += 1;
    assert_eq!(State::from_snapshot(&future), Err(SnapshotError::UnknownVersion(VERSION + 1)));
    for at in 6..good.len() {
        let mut damaged = good.clone();
        damaged[at] ^= 0x40;
        assert_eq!(State::from_snapshot(&damaged), Err(SnapshotError::Damaged), "byte {at}");
    }
    assert_eq!(State::from_snapshot(&good[..good.len() - 1]), Err(SnapshotError::Damaged));
}

#[test]
fn a_snapshot_with_a_right_checksum_that_contradicts_itself_is_refused() {
    // After a change of one byte, the snapshot is either rejected or a consistent state.
    let mut w = World::new();
    let a = w.client();
    w.limit(a, "pool", 3);
    w.hold(a, by("o", "x:shared & pool"));
    w.hold(a, acquire("x:shared"));
    w.wait(a, by("o", "x & y"));
    w.files(a, vec![ephemeral("/y")]).unwrap();
    let good = w.state.to_snapshot();
    let mut refused = 0;
    for at in 10..good.len() {
        for flip in [0x01, 0x02, 0x80] {
            let mut bytes = good.clone();
            bytes[at] ^= flip;
            let checksum = crc32fast::hash(&bytes[10..]);
            bytes[6..10].copy_from_slice(&checksum.to_le_bytes());
            match State::from_snapshot(&bytes) {
                Ok(state) => state.audit().unwrap(),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > good.len(), "{refused} of {}", 3 * good.len());
}
