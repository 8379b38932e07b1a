//! Servers that say nothing, and signals: nothing waits for ever.

use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::service::support::{self, Running, Server, conclave};

#[test]
fn one_signal_ends_a_wait_also_if_the_server_is_stopped() {
    let server = Server::start();
    let holder = server.hold(&["x"]);
    let waiting = server.spawn(&["run", "x", "--", "true"]);
    let campaigning = server.spawn(&["elect", "x"]);
    server.until_waiting("x", 2);
    server.signal(Signal::STOP);
    waiting.signal(Signal::INT);
    campaigning.signal(Signal::TERM);
    assert_eq!(waiting.end().0, 130);
    assert_eq!(campaigning.end().0, 143);
    server.signal(Signal::CONT);
    drop(holder);
}

#[test]
fn who_does_not_want_to_wait_does_not_wait_for_a_silent_server() {
    let (_listener, address) = support::silent_server();
    let run = |flags: &[&str]| {
        let mut command = conclave();
        let args = [&["run", "--server", &address], flags, &["x", "--", "true"]].concat();
        Running::start(command.args(args))
    };
    let tries = [run(&["--try"]), run(&["--wait", "10ms"])];
    for (code, _, errors) in tries.map(Running::end) {
        assert_eq!(code, 69, "{errors}");
        assert!(errors.contains("does not answer"), "{errors}");
    }
}

#[test]
fn a_node_that_finds_nobody_to_join_can_be_stopped() {
    let data = std::env::temp_dir().join(format!("conclave-cli-alone-{}", std::process::id()));
    let mut command = conclave();
    command.args(["serve", "--listen", "127.0.0.1:0", "--join", "127.0.0.1:1", "--data"]).arg(&data);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    // By then it listens for signals.
    support::until("it has its folder", || data.exists().then_some(()));
    support::send(&child, Signal::INT);
    let code = child.wait().unwrap().code();
    drop(std::fs::remove_dir_all(&data));
    assert_eq!(code, Some(0));
}

#[test]
fn a_server_serves_unheard_and_ignores_what_it_was_told_to() {
    let data = std::env::temp_dir().join(format!("conclave-cli-nohup-{}", std::process::id()));
    let address = support::free_address();
    let script = "trap '' HUP; exec \"$0\" serve --listen $1 --data $2 > /dev/full";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_conclave"), &address]).arg(&data);
    let mut child = command.spawn().unwrap();
    let put = || {
        let mut command = conclave();
        let put = command.args(["put", "/x", "y", "--server", &address]).stderr(Stdio::null()).status();
        put.unwrap().success().then_some(())
    };
    support::until("it serves", put);
    support::send(&child, Signal::HUP);
    assert_eq!(put(), Some(()));
    support::send(&child, Signal::TERM);
    let code = child.wait().unwrap().code();
    drop(std::fs::remove_dir_all(&data));
    assert_eq!(code, Some(0));
}

#[test]
fn a_server_does_not_take_every_signal_for_a_clean_end() {
    let mut server = Server::start();
    server.signal(Signal::USR1);
    assert_eq!(server.wait().code(), None, "killed by it");
}

#[test]
fn no_session_is_left_behind_by_what_fails() {
    let server = Server::start();
    assert_eq!(server.code(&["put", "/no/such/directory", "x"]), 1);
    assert_eq!(server.code(&["limit", "x", "0"]), 0);
    assert_eq!(server.json(&["sessions", "--json"]), serde_json::json!([]));
    let holder = server.hold(&["x"]);
    let waiting = server.spawn(&["elect", "x"]);
    server.until_waiting("x", 1);
    waiting.signal(Signal::INT);
    assert_eq!(waiting.end().0, 130);
    assert_eq!(server.json(&["sessions", "--json"]).as_array().unwrap().len(), 1);
    assert_eq!(holder.finish(), 0);
    let mut watching = server.spawn(&["watch", "x"]);
    assert!(watching.line().ends_with("watching\n"));
    watching.signal(Signal::INT);
    assert_eq!(watching.end().0, 130);
    server.text(&["watch", "x", "-n", "0"]);
    assert_eq!(server.json(&["sessions", "--json"]), serde_json::json!([]));
    let bench = server.spawn(&["bench", "--clients", "3", "--seconds", "1000"]);
    server.until_sessions(3);
    bench.signal(Signal::INT);
    assert_eq!(bench.end().0, 130);
    assert_eq!(server.json(&["sessions", "--json"]), serde_json::json!([]));
}
