//! `conclave get`, `put`, `ls`, `rm` and `watch`.

use conclave_client::{Client, Create, FileOp};

use crate::service::support::Server;

#[test]
fn files_are_written_read_listed_and_removed() {
    let server = Server::start();
    server.text(&["put", "/config", "blue"]);
    assert_eq!(server.text(&["get", "/config"]), "blue");
    assert_eq!(server.json(&["put", "/config", "green", "--expect", "1", "--json"])["version"], 2);
    assert_eq!(server.code(&["put", "/config", "red", "--expect", "1"]), 1);
    assert_eq!(server.code(&["put", "/config", "red", "--create"]), 1);
    assert_eq!(server.json(&["get", "/config", "--json"])["data"], "green");
    assert_eq!(server.code(&["put", "/jobs/a/b", "x"]), 1, "no such directory");
    server.text(&["put", "-p", "/jobs/a/b", "x"]);
    assert_eq!(server.text(&["put", "/jobs/job-", "x", "--sequential"]), "/jobs/job-0000000000\n");
    assert_eq!(server.text(&["ls"]), "config\njobs\n");
    assert_eq!(server.json(&["ls", "/jobs", "--json"]), serde_json::json!(["a", "job-0000000000"]));
    assert_eq!(server.code(&["rm", "/jobs"]), 1, "not empty");
    assert_eq!(server.json(&["rm", "-r", "/jobs", "--json"])["removed"], 4);
    assert_eq!(server.code(&["get", "/jobs"]), 1);
}

#[test]
fn a_path_may_be_written_without_its_leading_slash() {
    let server = Server::start();
    let mut watch = server.spawn(&["watch", "--file", "config", "-n", "1"]);
    assert!(watch.line().ends_with(" /config watching\n"));
    assert_eq!(server.text(&["put", "config", "blue"]), "wrote /config, version 1\n");
    assert_eq!(watch.end().1.split_once(' ').unwrap().1, "/config created\n");
    assert_eq!(server.text(&["get", "config"]), server.text(&["get", "/config"]));
    assert_eq!(server.json(&["get", "config", "--json"])["path"], "/config");
    let mut watch = server.spawn(&["watch", "--children", "jobs", "-n", "1", "--json"]);
    server.text(&["put", "-p", "jobs/a", "x"]);
    assert!(watch.line().contains("\"/jobs\""));
    assert!(watch.end().1.contains("\"/jobs/a\""));
    assert_eq!(server.text(&["ls", "jobs"]), "a\n");
    assert_eq!(server.text(&["rm", "-r", "jobs"]), "removed /jobs: 2 files\n");
    assert_eq!(server.text(&["ls"]), "config\n");
}

#[test]
fn the_root_is_neither_written_nor_removed() {
    let server = Server::start();
    for args in [
        &["put", "/", "x"][..],
        &["put", "", "x"],
        &["put", "/", "--sequential", "x"],
        &["rm", "/"],
        &["rm", "-r", "/"],
    ] {
        let output = server.output(args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains("/ is the root directory"), "{args:?}: {errors}");
    }
    assert_eq!(server.json(&["get", "/", "--json"])["data"], "");
}

/// The tree needs more than one transaction. Without the check, the first ones would remove files before the
/// root is rejected.
#[test]
fn everything_at_once_is_refused_before_anything_is_removed() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&server.address).await.unwrap();
        for tens in 0..11 {
            let create = |n| FileOp::Create(format!("/file-{tens}-{n}"), Vec::new(), Create::default());
            client.files().multi((0..10).map(create).collect()).await.unwrap();
        }
        client.close().await.unwrap();
    });
    assert_eq!(server.code(&["rm", "-r", "/"]), 2);
    assert_eq!(server.text(&["ls"]).lines().count(), 110);
}

#[test]
fn bytes_from_standard_input_are_stored_unchanged() {
    use std::io::Write;
    use std::process::Stdio;

    let server = Server::start();
    let mut put = server.command(&["put", "/bytes"]).stdin(Stdio::piped()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(&[0, 255, 10, 13]).unwrap();
    assert!(put.wait().unwrap().success());
    assert_eq!(server.output(&["get", "/bytes"]).stdout, [0, 255, 10, 13]);
}

#[test]
fn a_watch_tells_every_change_in_order() {
    let server = Server::start();
    let mut file = server.spawn(&["watch", "/config", "-n", "3"]);
    assert!(file.line().ends_with("/config watching\n"));
    let mut lock = server.spawn(&["watch", "db", "-n", "2", "--json"]);
    assert!(lock.line().contains("watching"));
    server.text(&["put", "/config", "blue"]);
    server.text(&["put", "/config", "green"]);
    server.text(&["rm", "/config"]);
    server.text(&["run", "db", "--", "true"]);
    let (code, lines, _) = file.end();
    let changes: Vec<&str> = lines.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    assert_eq!(changes, ["/config created", "/config written 2", "/config deleted"]);
    let (_, lines, _) = lock.end();
    let changes: Vec<String> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["change"].to_string())
        .collect();
    assert_eq!((code, changes), (0, vec!["\"taken\"".to_owned(), "\"released\"".to_owned()]));
}

#[test]
fn a_watch_goes_on_when_the_server_was_away() {
    let mut server = Server::start();
    let mut watch = server.spawn(&["watch", "/config", "-n", "2"]);
    assert!(watch.line().ends_with("watching\n"));
    server.text(&["put", "/config", "blue"]);
    assert!(watch.line().ends_with("created\n"));
    server.kill();
    server.start_again();
    server.text(&["put", "/config", "green"]);
    let last = watch.line();
    assert!(last.ends_with("written 2\n") || last.ends_with("resync\n"), "{last}");
}
