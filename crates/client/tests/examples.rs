//! Runs every example as a process against a server in this process, and checks its output.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::PathBuf;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::support::Service;

/// Cargo builds the examples with the tests of this crate, into a folder beside that of the tests.
fn program(example: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples").join(example);
    assert!(path.exists(), "run `cargo build -p conclave-client --examples` first: no {}", path.display());
    path
}

struct Example {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Example {
    fn start(name: &str, service: &Service) -> Self {
        let mut command = Command::new(program(name));
        command.arg(service.address.to_string()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Checks the next lines of the output.
    async fn prints(&mut self, expected: &[&str]) {
        for expected in expected {
            assert_eq!(self.lines.next_line().await.unwrap().as_deref(), Some(*expected));
        }
    }

    async fn ends(mut self) {
        assert_eq!(self.lines.next_line().await.unwrap(), None);
        assert!(self.child.wait().await.unwrap().success());
    }
}

/// Runs an example that ends by itself.
async fn check(name: &str, output: &[&str]) {
    let service = Service::start().await;
    let mut example = Example::start(name, &service);
    example.prints(output).await;
    example.ends().await;
}

#[tokio::test]
async fn lock() {
    let output = [
        "holding orders",
        "holding eu and orders",
        "orders is taken",
        "orders is still taken",
        "two readers hold plan and plan",
        "the writer waits for 2 readers",
        "the writer holds plan",
        "a reader beside the former writer holds plan",
    ];
    check("lock", &output).await;
}

#[tokio::test]
async fn run_while_held() {
    let output = [
        "the report has 3 pages",
        "start again: the work was cancelled: an operator took report away: the disk is full",
    ];
    check("run_while_held", &output).await;
}

#[tokio::test]
async fn leader_election() {
    let output = [
        "node-1:9000 leads",
        "the leader assigns the jobs",
        "node-1:9000, leaving leads",
        "node-2:9000 leads",
        "the leader assigns the jobs",
        "the later term is larger: true",
        "nobody leads",
    ];
    check("leader_election", &output).await;
}

#[tokio::test]
async fn semaphore() {
    let service = Service::start().await;
    let mut example = Example::start("semaphore", &service);
    let output = [
        "all downloads are done, never more than 2 at a time",
        "both slots are held: another one is free: false",
    ];
    example.prints(&output).await;
    let refused = example.lines.next_line().await.unwrap().unwrap();
    assert!(refused.starts_with("three slots: "), "{refused}");
    example.prints(&["with a limit of 3, one is free: true"]).await;
    example.ends().await;
}

#[tokio::test]
async fn config_watch() {
    let service = Service::start().await;
    let files = service.client().await.files();
    files.put("/config", "blue").await.unwrap();
    let mut example = Example::start("config_watch", &service);
    example.prints(&["/config is \"blue\""]).await;
    files.put("/config", "green").await.unwrap();
    example.prints(&["/config is \"green\""]).await;
    files.delete("/config", None).await.unwrap();
    example.prints(&["/config is deleted"]).await;
    example.ends().await;
    check("config_watch", &["there is no /config"]).await;
}

#[tokio::test]
async fn retry_after_restart() {
    let mut service = Service::start().await;
    let mut example = Example::start("retry_after_restart", &service);
    example.prints(&["the counter is 1"]).await;
    service.stop().await;
    service.start_again().await;
    let rest: Vec<String> = (2..=10).map(|number| format!("the counter is {number}")).collect();
    example.prints(&rest.iter().map(String::as_str).collect::<Vec<_>>()).await;
    example.prints(&["one session from begin to end: true", "the lock is held: true"]).await;
    example.ends().await;
}

#[tokio::test]
async fn fence_store() {
    let service = Service::start().await;
    let mut example = Example::start("fence_store", &service);
    let mut output = Vec::new();
    while let Some(line) = example.lines.next_line().await.unwrap() {
        output.push(line);
    }
    let refused = output.iter().find(|line| line.starts_with("the slow one: ")).expect("it is refused");
    assert!(refused.contains("out of date"), "{refused}");
    assert!(output.last().unwrap().contains("and the first, in any order"), "{output:?}");
    example.ends().await;
}
