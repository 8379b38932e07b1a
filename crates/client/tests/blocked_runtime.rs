//! Tests of programs that block the only thread of the runtime of their client.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use conclave_client::{Client, Guard, LeaseState, LossReason, Lost};
use tokio::runtime::{Builder, Runtime};

use crate::support::Service;

/// Short, because the test lasts for longer than this; long enough for a machine with much other work.
const TTL: Duration = Duration::from_secs(2);
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

fn servers() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A program that holds a lock, and blocks its runtime until it may go on.
struct Blocked {
    guard: Arc<Guard>,
    go_on: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Blocked {
    fn start(server: String, name: &'static str) -> Self {
        let (report, held) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
        let program = async move {
            let builder = Client::builder().ttl(TTL).lock_delay(Duration::ZERO);
            let client = builder.connect(&server).await.unwrap();
            let guard = Arc::new(client.lock(name).await.unwrap());
            report.send(guard.clone()).unwrap();
            // From here on neither the tasks of the runtime nor its timers run.
            may_go_on.recv().unwrap();
            // Any result is fine: the lock may be lost.
            drop(client.close().await);
        };
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let thread = thread::spawn(move || runtime.block_on(program));
        Self { guard: held.recv().unwrap(), go_on, thread }
    }

    fn finish(self) {
        self.go_on.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

#[test]
fn a_program_that_blocks_its_only_thread_for_longer_than_the_ttl_keeps_its_lock() {
    let servers = servers();
    let service = servers.block_on(Service::start());
    // One program uses the Unix socket, the other TCP.
    let programs = [
        Blocked::start(service.address.to_string(), "local"),
        Blocked::start(format!("tcp:{}", service.address), "remote"),
    ];
    let first = programs.each_ref().map(|program| program.guard.deadline());
    for (program, first) in programs.iter().zip(first) {
        // Only an answered keep-alive moves the deadline.
        while program.guard.deadline() < first + TTL {
            assert_ne!(program.guard.state(), LeaseState::Lost);
            thread::sleep(CHECK_INTERVAL);
        }
    }
    servers.block_on(async {
        let other = service.client().await;
        for name in ["local", "remote"] {
            assert!(
                other.lock(name).try_now().await.unwrap().is_none(),
                "the server keeps the session of {name}"
            );
        }
    });
    for program in programs {
        assert_ne!(program.guard.state(), LeaseState::Lost);
        program.finish();
    }
}

#[test]
fn a_blocked_program_does_not_believe_in_its_lock_after_the_server_has_gone() {
    let servers = servers();
    let mut service = servers.block_on(Service::start());
    let blocked = Blocked::start(service.address.to_string(), "x");
    servers.block_on(service.kill());
    while blocked.guard.state() != LeaseState::Lost {
        thread::sleep(CHECK_INTERVAL);
    }
    assert_eq!(blocked.guard.remaining(), Duration::ZERO);
    // The connection is lost too, so the program ends only with a server.
    servers.block_on(service.start_again());
    blocked.finish();
}

/// Runs `rest` as the end of work that has blocked its thread until the deadline has passed.
fn run_beyond_the_deadline<T>(rest: impl Future<Output = T>) -> Result<T, Lost<T>> {
    let servers = servers();
    let mut service = servers.block_on(Service::start());
    let server = service.address.to_string();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::builder().ttl(TTL).connect(&server).await.unwrap();
        let guard = client.lock("x").await.unwrap();
        let work = async {
            // Another thread stops the server, because this one is inside a runtime.
            thread::spawn(move || servers.block_on(service.kill())).join().unwrap();
            thread::sleep(TTL);
            rest.await
        };
        guard.run(work).await
    })
}

#[test]
fn work_that_blocked_its_thread_beyond_the_deadline_makes_no_further_step() {
    let lost = run_beyond_the_deadline(async {
        tokio::task::yield_now().await;
        panic!("a step after the deadline");
    });
    assert_eq!(lost.unwrap_err().output, None::<()>);
}

#[test]
fn the_output_of_work_that_ended_after_the_deadline_is_not_taken_for_work_under_the_lock() {
    let lost = run_beyond_the_deadline(async { 7 }).unwrap_err();
    assert_eq!((&lost.reason, lost.output), (&LossReason::Deadline, Some(7)));
}
