//! Tests of `conclave run` and `conclave elect`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::service::support::Server;

#[test]
fn the_exit_code_is_the_commands_or_ours() {
    let server = Server::start();
    let run = |expr: &str, command: &[&str]| server.code(&[&["run", expr, "--"], command].concat());
    assert_eq!(run("x", &["true"]), 0);
    assert_eq!(run("x", &["sh", "-c", "exit 7"]), 7);
    assert_eq!(run("x", &["sh", "-c", "kill -9 $$"]), 137);
    assert_eq!(run("x", &["/no/such/command"]), 127);
    assert_eq!(run("x", &["/"]), 126);
    assert_eq!(run("x & (", &["true"]), 2);
    assert_eq!(run("pool*3", &["true"]), 2, "no semaphore");
    assert_eq!(server.code(&["run", "--server", "127.0.0.1:1", "x", "--", "true"]), 69);
    assert_eq!(server.code(&["run", "--try", "--wait", "1s", "x", "--", "true"]), 2);
}

#[test]
fn the_command_gets_its_names_and_fences() {
    let server = Server::start();
    let show = ["--", "sh", "-c", "echo \"$CONCLAVE_LOCKS:$CONCLAVE_FENCE\""];
    let first = server.text(&[&["run", "src & dst & x | never"], &show[..]].concat());
    let (names, fence) = first.trim().split_once(':').unwrap();
    assert_eq!(names, "dst src x");
    let second = server.text(&[&["run", "src"], &show[..]].concat());
    let (_, later) = second.trim().split_once(':').unwrap();
    assert!(later.parse::<u64>().unwrap() > fence.parse::<u64>().unwrap());
}

#[test]
fn a_second_run_waits_or_fails_with_try_or_times_out() {
    let server = Server::start();
    let holder = server.hold(&["x"]);
    assert_eq!(server.code(&["run", "--try", "x", "--", "true"]), 75);
    assert_eq!(server.code(&["run", "--wait", "10ms", "x", "--", "true"]), 75);
    let second = server.spawn(&["run", "--quiet", "x", "--", "echo", "mine"]);
    let why = server.until_waiting("x", 1);
    assert!(why["holders"][0]["owner"].as_str().unwrap().contains("sh of session"), "{why}");
    assert!(why["waiters"][0]["owner"].as_str().unwrap().contains("echo of session"), "{why}");
    assert_eq!(holder.finish(), 0);
    assert_eq!(second.end(), (0, "mine\n".to_owned(), String::new()));
}

#[test]
fn a_session_that_ends_during_the_wait_exits_with_75() {
    let server = Server::start();
    let holder = server.hold(&["x"]);
    let waiting = server.spawn(&["run", "x", "--", "true"]);
    server.until_waiting("x", 1);
    let sessions = server.json(&["sessions", "--json"]);
    let waits = |session: &&serde_json::Value| session["grants"] == 0;
    let session = sessions.as_array().unwrap().iter().find(waits).unwrap()["session"].to_string();
    server.text(&["sessions", "end", &session]);
    let (code, _, errors) = waiting.end();
    assert_eq!(code, 75, "{errors}");
    assert_eq!(holder.finish(), 0);
}

#[test]
fn shared_holders_do_not_wait_for_each_other() {
    let server = Server::start();
    let reader = server.hold(&["--shared", "x"]);
    assert_eq!(server.code(&["run", "--try", "--shared", "x", "--", "true"]), 0);
    assert_eq!(server.code(&["run", "--try", "x", "--", "true"]), 75);
    assert_eq!(reader.finish(), 0);
}

#[test]
fn a_wait_that_is_interrupted_leaves_the_queue() {
    let server = Server::start();
    let holder = server.hold(&["x"]);
    let waiting = server.spawn(&["run", "x", "--", "true"]);
    server.until_waiting("x", 1);
    waiting.signal(Signal::INT);
    assert_eq!(waiting.end().0, 130);
    assert_eq!(server.json(&["why", "x", "--json"])["waiters_total"], 0);
    assert_eq!(holder.finish(), 0);
}

#[test]
fn signals_are_passed_on_to_the_command() {
    let server = Server::start();
    let mut running = server.spawn(&[
        "run",
        "x",
        "--",
        "sh",
        "-c",
        "trap 'exit 5' TERM; echo ready; while :; do read x; done",
    ]);
    assert_eq!(running.line(), "ready\n");
    running.signal(Signal::TERM);
    assert_eq!(running.end().0, 5);
}

#[test]
fn the_command_dies_with_a_run_that_is_killed() {
    let server = Server::start();
    let mut running = server.spawn(&["run", "x", "--", "sh", "-c", "echo held; exec sleep 1000"]);
    assert_eq!(running.line(), "held\n");
    running.child.kill().unwrap();
    // Both processes have the pipe, so it ends only when the command has ended too.
    assert_eq!(running.line(), "");
    running.child.wait().unwrap();
}

#[test]
fn a_lock_survives_the_server() {
    let mut server = Server::start();
    server.text(&["put", "/config", "blue"]);
    let holder = server.hold(&["x"]);
    let before = server.json(&["why", "x", "--json"]);
    server.kill();
    server.start_again();
    let after = server.json(&["why", "x", "--json"]);
    assert_eq!(before["holders"], after["holders"]);
    assert_eq!(server.text(&["get", "/config"]), "blue");
    assert_eq!(server.code(&["run", "--try", "x", "--", "true"]), 75);
    assert_eq!(holder.finish(), 0);
    assert_eq!(server.code(&["run", "--try", "x", "--", "true"]), 0, "given back");
}

#[test]
fn a_broken_lock_stops_the_command() {
    let server = Server::start();
    let mut running = server.spawn(&["run", "x", "--", "sh", "-c", "echo held; exec sleep 1000"]);
    assert_eq!(running.line(), "held\n");
    server.text(&["break", "x", "--reason", "stuck since noon"]);
    let (code, _, errors) = running.end();
    assert_eq!(code, 76);
    assert!(errors.contains("stuck since noon"), "{errors}");
    assert!(server.text(&["why", "x"]).contains("stuck since noon"));
    assert_eq!(server.code(&["break", "x", "--reason", "again"]), 1, "nobody holds it");
}

#[test]
fn a_lock_that_no_server_confirms_stops_the_command_before_the_deadline() {
    let server = Server::start();
    let mut running =
        server.spawn(&["run", "--ttl", "1s", "x", "--", "sh", "-c", "echo held; exec sleep 1000"]);
    assert_eq!(running.line(), "held\n");
    server.signal(Signal::STOP);
    let (code, _, errors) = running.end();
    assert_eq!(code, 76);
    assert!(errors.contains("will be lost in"), "not too late: {errors}");
}

#[test]
fn a_command_that_does_not_stop_is_killed_and_one_that_may_go_on_goes_on() {
    let server = Server::start();
    let deaf = "trap '' TERM; echo held; while :; do read x; done";
    let mut running = server.spawn(&["run", "--ttl", "1s", "x", "--", "sh", "-c", deaf]);
    assert_eq!(running.line(), "held\n");
    server.text(&["break", "x", "--reason", "why not"]);
    assert_eq!(running.end().0, 76);
    let warned = server.hold(&["--on-lost", "warn", "x"]);
    server.text(&["break", "x", "--reason", "why not"]);
    assert_eq!(warned.finish(), 0);
}

#[test]
fn a_session_that_an_operator_ends_is_lost() {
    let server = Server::start();
    let mut running = server.spawn(&["run", "x", "--", "sh", "-c", "echo held; exec sleep 1000"]);
    assert_eq!(running.line(), "held\n");
    let session = server.json(&["why", "x", "--json"])["holders"][0]["session"].to_string();
    server.text(&["sessions", "end", &session]);
    assert_eq!(running.end().0, 76);
    assert_eq!(server.code(&["sessions", "end", &session]), 1);
}

#[test]
fn an_elected_leader_proclaims_and_the_next_takes_over() {
    let server = Server::start();
    let mut first = server.spawn(&["elect", "scheduler", "--value", "one"]);
    assert!(first.line().starts_with("leading scheduler"));
    let second = server.spawn(&["elect", "scheduler", "--value", "two", "--", "echo", "mine"]);
    assert_eq!(server.until_waiting("scheduler", 1)["value"], "one");
    first.signal(Signal::TERM);
    assert_eq!(first.end().0, 0);
    assert_eq!(second.end().1, "mine\n");
}

#[test]
fn a_leader_without_a_command_is_listed_by_its_label() {
    let server = Server::start();
    let mut leader = server.spawn(&["elect", "scheduler", "--json"]);
    assert_eq!(leader.line(), "{\n");
    let owner = server.json(&["why", "scheduler", "--json"])["holders"][0]["owner"].to_string();
    assert!(owner.contains("elect of session"), "{owner}");
    leader.signal(Signal::INT);
    assert_eq!(leader.end().0, 0);
    for refused in [&["--on-lost", "warn"][..], &["--on-lost", "logger lost"], &["--json", "--", "true"]] {
        assert_eq!(server.code(&[&["elect", "scheduler"], refused].concat()), 2, "{refused:?}");
    }
}

#[test]
fn nobody_of_the_command_outlives_a_lock_that_is_taken_away() {
    let server = Server::start();
    // The first process ends at TERM; the one in the background ignores it.
    let deaf = "(trap '' TERM; echo held; sleep 20; echo outlived) & wait";
    let mut running = server.spawn(&["run", "--ttl", "1s", "x", "--", "sh", "-c", deaf]);
    assert_eq!(running.line(), "held\n");
    server.text(&["break", "x", "--reason", "why not"]);
    let (code, rest, _) = running.end();
    assert_eq!((code, rest.as_str()), (76, ""));
}

#[test]
fn a_command_is_stopped_if_standard_error_cannot_be_written() {
    let server = Server::start();
    let mut command = server.command(&["run", "x", "--", "sh", "-c", "echo held; exec sleep 1000"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut child = command.stdout(Stdio::piped()).stderr(full).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    server.text(&["break", "x", "--reason", "why not"]);
    assert_eq!(child.wait().unwrap().code(), Some(76));
}

#[test]
fn a_command_is_stopped_if_standard_error_is_a_full_pipe() {
    let server = Server::start();
    let mut command = server.command(&["run", "x", "--", "sh", "-c", "echo held; exec sleep 1000"]);
    let (_reader, mut full) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    while full.write(&[0; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    let mut child = command.stdout(Stdio::piped()).stderr(full).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    server.text(&["break", "x", "--reason", "why not"]);
    assert_eq!(child.wait().unwrap().code(), Some(76));
}

#[test]
fn the_on_lost_command_gets_the_names_and_the_fence() {
    let server = Server::start();
    let hook = "echo \"$CONCLAVE_LOCKS:$CONCLAVE_FENCE\"; kill -s TERM -- -$CONCLAVE_GROUP";
    let show = "echo \"$CONCLAVE_LOCKS:$CONCLAVE_FENCE\"; exec sleep 1000";
    let mut running = server.spawn(&["run", "--on-lost", hook, "x & y", "--", "sh", "-c", show]);
    let held = running.line();
    server.text(&["break", "x", "--reason", "why not"]);
    let (code, told, _) = running.end();
    assert_eq!((code, told), (76, held));
}

#[test]
fn a_signal_ignored_at_the_start_is_ignored_by_the_command() {
    let server = Server::start();
    let script = "trap '' HUP; exec \"$0\" run x -- sh -c 'kill -HUP $PPID; kill -HUP $$; echo alive'";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_conclave")]).env("CONCLAVE_SERVER", &server.address);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "alive\n");
    assert!(output.status.success());
}

#[test]
fn a_run_inside_a_run_does_not_wait_for_the_one_around_it() {
    let server = Server::start();
    let conclave = env!("CARGO_BIN_EXE_conclave");
    let nested = |outer: &[&str], inner: &[&str]| {
        let output =
            server.output(&[&["run"], outer, &["--", conclave, "run"], inner, &["--", "true"]].concat());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, errors) = nested(&["a"], &["a"]);
    assert_eq!(code, Some(77), "{errors}");
    assert!(errors.contains("a is held by the `conclave run` around this one"), "{errors}");
    assert_eq!(nested(&["a & \"b c\""], &["x & \"b c\""]).0, Some(77));
    assert_eq!(nested(&["--shared", "a"], &["a"]).0, Some(77), "no upgrade: it is another session");
    assert_eq!(nested(&["a"], &["a | b"]).0, Some(0), "there is another way");
    assert_eq!(nested(&["--shared", "a"], &["--shared", "a"]).0, Some(0));
    assert_eq!(nested(&["a"], &["--try", "a"]).0, Some(75), "it does not wait");
    server.text(&["limit", "pool", "2"]);
    assert_eq!(nested(&["pool"], &["pool"]).0, Some(0), "there is another permit");
    let other = Server::start();
    assert_eq!(nested(&["a"], &["--server", &other.address, "a"]).0, Some(0), "another a");
}

/// Scripts start the binary often: see `docs/decisions/0017-a-fixed-address.md`.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn the_binary_has_no_pointers_to_correct_when_it_starts() {
    let binary = std::fs::read(env!("CARGO_BIN_EXE_conclave")).unwrap();
    // The type in the header of an ELF file: 2 is a program at a fixed address, 3 one at any address.
    assert_eq!((&binary[..4], binary[16]), (&b"\x7fELF"[..], 2));
}
