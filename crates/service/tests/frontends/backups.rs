//! Tests of backups: made by a node, and restored to new nodes on disks that lose power.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use conclave_core::{FilePath, RequestId};
use conclave_node::state::backup::Contents;
use conclave_node::state::tree::FileOp;
use conclave_node::state::{Command, Op, OpenSession, Position, Request, State};
use conclave_service::config::Config;
use conclave_service::peers::Tcp;
use conclave_service::replica::disk::{Disk, SimDisk};
use conclave_service::replica::log;
use conclave_service::server::{Environment, Server, StartError};
use conclave_wire::v1;
use tokio::io::AsyncReadExt;

use crate::doors::raw;
use crate::support::{Folder, Native, fence, http_get, start};

/// A backup in a file that is deleted when the value is dropped.
struct Backup(PathBuf);

impl Backup {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("conclave-{name}-{}.backup", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    /// Returns a backup of a state with one file that contains `text`.
    fn saying(text: &str) -> Self {
        Self::of(text, &[("/config".to_owned(), text.into())])
    }

    /// Returns a backup of a state with these files.
    fn of(name: &str, files: &[(String, Vec<u8>)]) -> Self {
        let mut state = State::new();
        let open = OpenSession { secret: 1, ttl_ms: 1000, lock_delay_ms: 0, label: String::new() };
        state.apply(Position { index: 1, term: 1, wall_ms: 0 }, Command::OpenSession(open));
        let session = state.sessions(None, 1).items[0].session;
        for (number, (path, data)) in (1..).zip(files) {
            let path = FilePath::new(path).unwrap();
            let create = FileOp::Create { path, data: data.clone(), ephemeral: false, sequential: false };
            let (id, op) = (RequestId(number), Op::Files(vec![create]));
            let request = Request { session, id, lowest: id, op };
            state.apply(Position { index: 1 + number, term: 1, wall_ms: 0 }, Command::Request(request));
        }
        Self::new(name, &state.to_backup())
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

/// Starts a node on the content of a disk, or restores the backup if there is one.
async fn start_on(disk: &SimDisk, backup: Option<&Backup>) -> Result<Server, StartError> {
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        restore: backup.map(|backup| backup.0.clone()),
        heartbeat: Duration::from_millis(10),
        election: (Duration::from_millis(40), Duration::from_millis(80)),
        log: log::Options { segment_bytes: 64 * 1024, batch_bytes: 16 * 1024, queue: 64 },
        ..Config::default()
    };
    Server::start_in(config, Environment { disk: Arc::new(disk.handle()), dial: Arc::new(Tcp) }).await
}

/// Returns the content of `/config` on a node.
async fn config_of(server: &Server) -> Option<String> {
    let mut client = Native::connect(server).await;
    match client.query(false, v1::query::Kind::File(v1::ReadFile { path: "/config".into() })).await {
        v1::answer::Result::File(file) => Some(String::from_utf8(file.data).unwrap()),
        _ => None,
    }
}

fn names(disk: &SimDisk) -> Vec<String> {
    disk.handle().list().unwrap()
}

/// The result of a restore during which the disk lost power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Untouched,
    CutShort,
    Restored,
}

async fn cut_after(operations: u64, blue: Arc<Backup>, green: Arc<Backup>) -> Fate {
    let disk = SimDisk::new(operations);
    disk.lose_power_after(operations);
    let started = start_on(&disk, Some(&blue)).await;
    disk.crash();
    if let Ok(server) = started {
        server.kill().await;
    }
    let found = names(&disk);
    let has = |wanted: &str| found.iter().any(|name| name == wanted);
    let fate = match (has("identity"), has("snapshot")) {
        (true, _) => Fate::Restored,
        (false, true) => Fate::CutShort,
        (false, false) => Fate::Untouched,
    };
    let (server, says) = match fate {
        Fate::Restored => (start_on(&disk, None).await, "blue"),
        _ => {
            if fate == Fate::CutShort {
                let refused = start_on(&disk, None).await.map(drop).unwrap_err().to_string();
                assert!(refused.contains("restore again"), "after {operations}: {refused}");
            }
            // Restore another backup: nothing of the first may remain.
            (start_on(&disk, Some(&green)).await, "green")
        }
    };
    let server = server.unwrap_or_else(|error| panic!("after {operations}, {fate:?}, {found:?}: {error}"));
    assert_eq!(config_of(&server).await.as_deref(), Some(says), "after {operations}, {fate:?}");
    disk.crash();
    server.kill().await;
    // Start again, without a backup.
    let server = start_on(&disk, None).await.unwrap();
    assert_eq!(config_of(&server).await.as_deref(), Some(says), "after {operations}, {fate:?}");
    server.kill().await;
    fate
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_loses_its_power_has_happened_or_is_done_again() {
    let (blue, green) = (Arc::new(Backup::saying("blue")), Arc::new(Backup::saying("green")));
    // The restore takes about a dozen disk operations; the log follows.
    let cuts: Vec<_> =
        (0..40).map(|operations| tokio::spawn(cut_after(operations, blue.clone(), green.clone()))).collect();
    let mut fates = Vec::new();
    for cut in cuts {
        fates.push(cut.await.unwrap());
    }
    for fate in [Fate::Untouched, Fate::CutShort, Fate::Restored] {
        assert!(fates.contains(&fate), "{fates:?}");
    }
}

#[tokio::test]
async fn a_failed_restore_leaves_the_folder_unchanged() {
    let good = Backup::saying("good");
    let bytes = std::fs::read(&good.0).unwrap();
    let mut flipped = bytes.clone();
    flipped[20] ^= 1;
    let mut newer = bytes.clone();
    newer[4] += 1;
    let disk = SimDisk::new(1);
    for (name, bytes, why) in [
        ("flipped", &flipped[..], "damaged"),
        ("short", &bytes[..bytes.len() / 2], "damaged"),
        ("newer", &newer[..], "the version of conclave that made it"),
        ("foreign", b"{\"files\": []}", "not a backup"),
        ("empty", b"", "not a backup"),
    ] {
        let bad = Backup::new(name, bytes);
        let refused = start_on(&disk, Some(&bad)).await.map(drop).unwrap_err();
        assert!(matches!(refused, StartError::Backup(..)), "{refused:?}");
        assert!(refused.to_string().contains(why) && refused.to_string().contains(name), "{refused}");
        assert_eq!(names(&disk), Vec::<String>::new(), "{name}");
    }
    let server = start_on(&disk, Some(&good)).await.unwrap();
    assert_eq!(config_of(&server).await.as_deref(), Some("good"));
    server.kill().await;

    // The folder now belongs to a node, whatever the backup contains.
    let contents = || names(&disk).into_iter().map(|name| disk.content(&name)).collect::<Vec<_>>();
    let before = contents();
    let refused = start_on(&disk, Some(&Backup::saying("other"))).await.map(drop).unwrap_err();
    assert!(refused.to_string().contains("belongs to a node already"), "{refused}");
    assert!(contents() == before, "the folder was touched");
    let server = start_on(&disk, None).await.unwrap();
    assert_eq!(config_of(&server).await.as_deref(), Some("good"));
    server.kill().await;
}

#[tokio::test]
async fn a_backup_over_http_has_acknowledged_files_and_no_sessions() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let (mut client, opened) = Native::with_session(&server).await;
    let held = client.acquire("x").await;
    let held = fence(&client.answer(held).await);
    let put = v1::FileOp {
        op: Some(v1::file_op::Op::Create(v1::file_op::Create {
            path: "/config".into(),
            data: b"blue".into(),
            ..Default::default()
        })),
    };
    let put = client.request(v1::request::Op::Files(v1::Files { ops: vec![put] })).await;
    assert!(matches!(client.answer(put).await, v1::answer::Result::Files(_)));
    let mut answer = Vec::new();
    let request = b"GET /v1/backup HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    raw(&server, request).await.read_to_end(&mut answer).await.unwrap();
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let (head, bytes) = (String::from_utf8_lossy(&answer[..end]).to_lowercase(), &answer[end + 4..]);
    assert!(head.starts_with("http/1.1 200") && head.contains("application/octet-stream"), "{head}");
    assert!(head.contains(&format!("content-length: {}", bytes.len())), "{head}");
    // The secret as the backup encodes it. A search for the plain bytes would never find anything.
    let secret = u128::from_be_bytes(opened.secret[..].try_into().unwrap());
    let secret = postcard::to_stdvec(&secret).unwrap();
    assert!(!bytes.windows(secret.len()).any(|window| window == secret), "there is a secret in it");
    let totals = State::from_snapshot(bytes).unwrap().totals();
    assert_eq!((totals.sessions, totals.grants, totals.names), (0, 0, 0));
    let contents = Contents::of(bytes).unwrap();
    assert_eq!((contents.files, contents.file_bytes, contents.semaphores), (1, 4, 0));
    assert!(contents.applied >= held);

    let backup = Backup::new("http", bytes);
    let other = Folder::new();
    let config = Config { restore: Some(backup.0.clone()), ..other.config() };
    let second = Server::start(config).await.unwrap();
    assert_ne!(second.identity().cluster, server.identity().cluster);
    // The session and the file exist on the second server, as after a short loss of contact.
    let mut old = Native::connect(&second).await;
    old.send([v1::Resume { session: opened.session, secret: opened.secret.clone(), lowest: 1 }]).await;
    assert_eq!(old.expect_goodbye().await.name, "session-ended");
    let (mut new, _) = Native::with_session(&second).await;
    let granted = new.acquire("x").await;
    assert!(fence(&new.answer(granted).await) > held + (1 << 32));
    let still = client.release(1).await;
    assert!(!matches!(client.answer(still).await, v1::answer::Result::Error(_)));
    assert_eq!(http_get(&second, "/readyz").await.0, 200);
    second.kill().await;
    server.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_two_take_a_backup_a_third_is_refused() {
    // More bytes than the buffers of a connection take while its client does not read.
    let files: Vec<_> = (0..1024).map(|number| (format!("/{number}"), vec![7; 32 * 1024])).collect();
    let large = Backup::of("large", &files);
    let folder = Folder::new();
    let config = Config { restore: Some(large.0.clone()), ..folder.config() };
    let server = Server::start(config).await.unwrap();
    let request = b"GET /v1/backup HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut stream = raw(&server, request).await;
        let mut begins = [0; 12];
        stream.read_exact(&mut begins).await.unwrap();
        assert_eq!(&begins, b"HTTP/1.1 200");
        slow.push(stream);
    }
    let (status, text) = http_get(&server, "/v1/backup").await;
    assert!(status == 503 && text.contains("overloaded") && text.contains("retry later"), "{status} {text}");
    // One client disconnects and the other has received everything: each frees a place.
    drop(slow.pop());
    let mut bytes = Vec::new();
    slow[0].read_to_end(&mut bytes).await.unwrap();
    assert!(bytes.len() > 32 * 1024 * 1024);
    let mut last = Vec::new();
    raw(&server, request).await.read_to_end(&mut last).await.unwrap();
    assert!(last.starts_with(b"HTTP/1.1 200") && last.len() == bytes.len() + 12);
    server.kill().await;
}
