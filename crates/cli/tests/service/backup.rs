//! A cluster is lost and restored from a backup: the tests check which data remains, which is lost, and which
//! numbers grow.

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use conclave_client::{Client, LossReason};
use serde_json::Value;

use crate::service::support::{self, Server, conclave, new_path};

/// A backup file, deleted when the value is dropped.
struct Backup(PathBuf);

impl Backup {
    fn new() -> Self {
        Self(new_path().with_extension("backup"))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

fn fence_of(server: &Server, name: &str) -> u64 {
    server.text(&["run", name, "--", "sh", "-c", "echo $CONCLAVE_FENCE"]).trim().parse().unwrap()
}

/// Starts a node that must fail to start.
fn refused(flags: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } =
        conclave().args(["serve", "--listen", "127.0.0.1:0"]).args(flags).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn a_cluster_that_is_lost_comes_back_from_its_backup() {
    let mut lost = Server::start();
    lost.text(&["put", "-p", "/config/colour", "red"]);
    lost.text(&["put", "/config/colour", "blue"]);
    lost.text(&["limit", "pool", "3"]);
    let holder = lost.hold(&["build & pool*3"]);
    let backup = Backup::new();
    let report = lost.json(&["cluster", "backup", backup.path(), "--json"]);
    assert_eq!(
        (&report["files"], &report["file_bytes"], &report["semaphores"]),
        (&2.into(), &4.into(), &1.into())
    );
    assert_eq!(report["bytes"], std::fs::metadata(&backup.0).unwrap().len());
    let bytes = std::fs::read(&backup.0).unwrap();
    assert!(!bytes.windows(5).any(|window| window == b"build"), "what is held is in it");
    // After the backup: the write will be lost, and the fence was seen by a client.
    lost.text(&["put", "/config/colour", "too late"]);
    let last = fence_of(&lost, "seen");
    lost.kill();

    let mut first = Server::start_with(&["--restore", backup.path()]);
    let restored = |server: &Server| {
        let file = server.json(&["get", "/config/colour", "--json"]);
        assert_eq!((&file["data"], &file["version"]), (&"blue".into(), &2.into()), "{file}");
    };
    restored(&first);
    assert!(first.json(&["locks", "--json"]).as_array().unwrap().iter().all(|lock| lock["name"] == "pool"));
    assert_eq!(first.code(&["run", "--try", "build & pool*3", "--", "true"]), 0, "all is free");
    let fence = fence_of(&first, "seen");
    assert!(fence > last && fence < 1 << 53, "{fence} after {last}");
    drop(holder);

    // Restored data survives a restart, and so does newer data.
    first.text(&["put", "/since", "yes"]);
    first.kill();
    first.start_again();
    restored(&first);
    let second = Server::start_joining(&first);
    support::until("the second votes", || {
        let output = second.output(&["cluster", "status", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        (status["voters"] == 2 && status["healthy"] == true).then_some(())
    });
    restored(&second);
    assert_eq!(second.text(&["get", "/since"]), "yes");
    assert!(fence_of(&second, "seen") > fence);
    // A follower makes an equally good backup. The first backup can be restored again, with fences above all
    // earlier ones.
    let other = Backup::new();
    let report = second.json(&["cluster", "backup", other.path(), "--json"]);
    assert_eq!(report["files"], 3);
    let last = fence_of(&second, "seen");
    let again = Server::start_with(&["--restore", backup.path()]);
    restored(&again);
    assert!(fence_of(&again, "seen") > last);
}

#[test]
fn the_restored_cluster_ends_the_session_of_a_former_holder() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut lost = Server::start();
    // The lease lasts longer than the start of a server on any machine.
    let patient = Client::builder().ttl(Duration::from_secs(300));
    let client = runtime.block_on(patient.connect(&lost.address)).unwrap();
    let guard = runtime.block_on(client.lock("mine").into_future()).unwrap();
    let backup = Backup::new();
    lost.text(&["cluster", "backup", backup.path()]);
    lost.kill();
    // Use the same address, because the client reconnects to it.
    let address = lost.address.clone();
    let again = Server::start_at(&address, &["--restore", backup.path()]);
    assert_eq!(again.address, address);
    let loss = runtime.block_on(guard.lost());
    assert!(matches!(loss, LossReason::Session(_)), "{loss:?}");
    assert_eq!(again.code(&["run", "--try", "mine", "--", "true"]), 0);
    // The client continues with a new session of the restored cluster.
    let other = runtime.block_on(client.lock("other").into_future()).unwrap();
    assert!(other.fence() > guard.fence());
}

#[test]
fn errors_of_backup_and_restore_give_advice() {
    let server = Server::start();
    let backup = Backup::new();
    let says = |args: &[&str], code: i32, wanted: &str| {
        let output = server.output(args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
        assert!(errors.contains(wanted), "{args:?}: {errors}");
    };
    says(&["cluster", "backup", "/no/such/folder/x"], 2, "/no/such/folder/x");
    says(&["cluster", "backup", "/dev/null", "--force"], 2, "is not a regular file");
    says(&["cluster", "backup", backup.path(), "--server", "127.0.0.1:1"], 69, "127.0.0.1:1");
    assert!(!backup.0.exists());
    let text = server.text(&[
        "cluster",
        "backup",
        backup.path(),
        "--server",
        &format!("127.0.0.1:1,{}", server.address),
    ]);
    assert!(text.contains("saved 0 files (0 bytes) and 0 semaphores"), "{text}");
    says(&["cluster", "backup", backup.path()], 2, "--force");
    server.text(&["put", "/a", "x"]);
    assert!(server.text(&["cluster", "backup", backup.path(), "--force"]).contains("saved 1 file (1 byte)"));

    let data = new_path();
    let folder = data.to_str().unwrap();
    let (code, errors) = refused(&["--data", folder, "--restore", backup.path(), "--join", &server.address]);
    assert!(code == Some(2) && errors.contains("--join"), "{errors}");
    let (code, errors) = refused(&["--data", folder, "--restore", "/no/such/file"]);
    assert!(code == Some(2) && errors.contains("check the path"), "{errors}");
    let bad = Backup::new();
    std::fs::write(&bad.0, "no backup at all").unwrap();
    let (code, errors) = refused(&["--data", folder, "--restore", bad.path()]);
    assert!(code == Some(1) && errors.contains("is not a backup"), "{errors}");
    assert!(!data.exists(), "the folder is left behind");
    // First another process uses the folder; then the folder belongs to a node that does not run.
    let (code, errors) = refused(&["--data", server.data.to_str().unwrap(), "--restore", backup.path()]);
    assert!(code == Some(1) && errors.contains("in use"), "{errors}");
    let mut server = server;
    server.kill();
    let (code, errors) = refused(&["--data", server.data.to_str().unwrap(), "--restore", backup.path()]);
    assert!(code == Some(1) && errors.contains("belongs to a node already"), "{errors}");
    server.start_again();
    assert_eq!(server.text(&["get", "/a"]), "x");
}
