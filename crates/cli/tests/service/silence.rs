//! Tests of servers that send nothing, and of signals: no command waits for ever.

use std::io::{BufRead, BufReader};
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
fn try_and_wait_end_on_a_silent_server() {
    let (_listener, address) = support::silent_server();
    let run = |flags: &[&str]| {
        let mut command = conclave();
        let args = [&["run", "--server", &address], flags, &["x", "--", "true"]].concat();
        Running::start(command.args(args))
    };
    let tries = [run(&["--try"]), run(&["--wait", "10ms"])];
    for (code, _, errors) in tries.map(Running::end) {
        assert_eq!(code, 69, "{errors}");
        assert!(errors.contains("does not answer") && errors.contains("or it has no majority"), "{errors}");
    }
}

#[test]
fn a_node_that_reaches_no_member_can_be_stopped() {
    let data = support::new_path();
    let mut command = conclave();
    command.args(["serve", "--listen", "127.0.0.1:0", "--join", "127.0.0.1:1", "--data"]).arg(&data);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // The server handles signals before it creates the folder.
    support::until("it has its folder", || data.exists().then_some(()));
    support::send(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!data.exists(), "its folder is left behind");
}

#[test]
fn a_node_that_reaches_no_member_reports_it_and_joins_later() {
    let (data, member) = (support::new_path(), support::free_address());
    let mut command = conclave();
    command.args(["serve", "--listen", "127.0.0.1:0", "--join"]);
    command.arg(format!("http://{member},127.0.0.1:1")).arg("--data").arg(&data);
    let mut joining = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(joining.stderr.take().unwrap()).lines();
    for _ in 0..2 {
        let line = errors.next().unwrap().unwrap();
        assert!(line.contains("no member has admitted this node yet"), "{line}");
        for address in [&member, "127.0.0.1:1"] {
            assert!(line.contains(&format!("{address}: Connection refused")), "{line}");
        }
    }
    let first = Server::start_at(&member, &[]);
    let mut greeting = String::new();
    BufReader::new(joining.stdout.take().unwrap()).read_line(&mut greeting).unwrap();
    assert!(greeting.contains("node 2"), "{greeting}");
    assert_eq!(first.code(&["cluster", "status"]), 0);
    joining.kill().unwrap();
    joining.wait().unwrap();
    assert!(data.exists());
    drop(std::fs::remove_dir_all(&data));
}

#[test]
fn a_server_that_does_not_start_leaves_no_folder_that_it_has_created() {
    let server = Server::start();
    let folder = support::new_path();
    let data = folder.join("data");
    let bad = folder.with_extension("toml");
    std::fs::write(&bad, "lsten = 1").unwrap();
    let bad = bad.to_str().unwrap();
    let failing: [&[&str]; 5] = [
        &["--listen", &server.address],
        &["--listen", "127.0.0.1:0", "--restore", "/no/such/file"],
        &["--listen", "127.0.0.1:0", "--restore", bad],
        &["--listen", "127.0.0.1:0", "--join", &server.address, "--advertise", &server.address],
        &["--config", bad],
    ];
    for there in [false, true] {
        for flags in failing {
            let output = conclave().args(["serve", "--data"]).arg(&data).args(flags).output().unwrap();
            assert!(!output.status.success(), "{flags:?}");
            assert_eq!(folder.exists(), there, "{flags:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::fs::create_dir_all(&data).unwrap();
    }
    std::fs::remove_file(bad).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_server_without_output_serves_and_keeps_ignored_signals() {
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
fn a_failed_command_leaves_no_session() {
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
