//! Tests of `conclave lock` and `unlock`, with real shells and real holders in the background.
//!
//! A holder sends TERM to its shell when the lock is lost. So each test locks from its own shell or with
//! `--for`, never from the process of the tests.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::service::support::{self, Running, Server, with_signals};

/// Starts a shell that runs a script, in which `$C` is conclave.
fn shell(server: &Server, script: &str) -> Running {
    let mut command = with_signals("sh");
    command.args(["-c", script]).env("C", env!("CARGO_BIN_EXE_conclave"));
    Running::start(command.env("CONCLAVE_SERVER", &server.address))
}

/// Runs a script to its end and returns its lines.
fn lines(server: &Server, script: &str) -> Vec<String> {
    let (code, text, errors) = shell(server, script).end();
    assert_eq!(code, 0, "{errors}");
    text.lines().map(ToOwned::to_owned).collect()
}

fn is_held(server: &Server, name: &str) -> bool {
    server.json(&["why", name, "--json"])["holders_total"] != 0
}

fn until_free(server: &Server, name: &str) {
    support::until("the lock is released", || (!is_held(server, name)).then_some(()));
}

fn end_session_of(server: &Server, name: &str) {
    let session = server.json(&["why", name, "--json"])["holders"][0]["session"].to_string();
    server.text(&["sessions", "end", &session]);
}

#[test]
fn a_lock_is_held_until_the_shell_unlocks_it() {
    let server = Server::start();
    let script = "F=$($C lock x) && echo held $F; read go; $C unlock x; echo code $?; $C run --try x -- echo free; \
        $C unlock x; echo code $?";
    let mut running = shell(&server, script);
    let fence = running.line();
    let why = server.json(&["why", "x", "--json"]);
    assert_eq!(fence, format!("held {}\n", why["holders"][0]["fence"]));
    assert!(why["holders"][0]["owner"].as_str().unwrap().contains("lock for process"), "{why}");
    assert_eq!(server.code(&["run", "--try", "x", "--", "true"]), 75);
    running.write("go\n");
    let (code, text, errors) = running.end();
    assert_eq!((code, text.as_str()), (0, "code 0\nfree\ncode 1\n"), "{errors}");
    assert!(errors.contains("no lock x of"), "{errors}");
}

#[test]
fn a_lock_ends_with_its_shell_however_the_shell_ends() {
    let server = Server::start();
    let script = "$C lock x; echo held; read go; exit 0";
    let mut ends = shell(&server, script);
    ends.line();
    assert_eq!(ends.line(), "held\n");
    assert!(is_held(&server, "x"));
    assert_eq!(ends.finish(), 0);
    until_free(&server, "x");
    let mut killed = shell(&server, script);
    killed.line();
    assert_eq!(killed.line(), "held\n");
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    until_free(&server, "x");
}

#[test]
fn a_detached_lock_is_unlocked_by_any_shell_and_ends_by_itself() {
    let server = Server::start();
    assert_eq!(lines(&server, "$C lock --for 1h x > /dev/null; echo $?"), ["0"]);
    assert!(is_held(&server, "x"), "its shell has ended");
    assert_eq!(lines(&server, "$C unlock x; echo $?"), ["0"]);
    assert!(!is_held(&server, "x"), "confirmed");
    assert_eq!(server.code(&["unlock", "x"]), 1);
    assert_eq!(lines(&server, "$C lock --for 10ms x > /dev/null; echo $?"), ["0"]);
    until_free(&server, "x");
    let reports = |wanted: &str| {
        let output = server.output(&["unlock", "x"]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(76), "{errors}");
        assert!(errors.contains(wanted), "{errors}");
        assert_eq!(server.code(&["unlock", "x"]), 1, "reported once");
    };
    reports("the time of --for was over");
    let lock: Value = serde_json::from_str(&server.text(&["lock", "--for", "1h", "--json", "x"])).unwrap();
    // A process that has ended keeps no file open, also before its parent has noticed its end.
    let open_file = format!("/proc/{}/fd/0", lock["holder"]);
    end_session_of(&server, "x");
    support::until("the holder has ended", || std::fs::metadata(&open_file).is_err().then_some(()));
    reports("an operator ended it");
}

#[test]
fn a_shell_whose_lock_is_lost_gets_term_and_learns_it_from_unlock() {
    let server = Server::start();
    let script = "trap '$C unlock x; echo code $?; exit 3' TERM; $C lock x > /dev/null; echo held; \
        while :; do read line; done";
    let mut running = shell(&server, script);
    assert_eq!(running.line(), "held\n");
    end_session_of(&server, "x");
    let (code, text, errors) = running.end();
    assert_eq!((code, text.as_str()), (3, "code 76\n"), "{errors}");
    assert!(errors.contains("an operator ended it"), "{errors}");
}

#[test]
fn a_lock_that_no_server_confirms_stops_the_shell_before_the_deadline() {
    let server = Server::start();
    let script = "trap 'echo stopped; exit 3' TERM; $C lock --ttl 1s x > /dev/null; echo held; while :; do read line; done";
    let mut running = shell(&server, script);
    assert_eq!(running.line(), "held\n");
    server.signal(Signal::STOP);
    assert_eq!(running.line(), "stopped\n");
    server.signal(Signal::CONT);
    assert_eq!(running.end().0, 3);
}

#[test]
fn a_shell_chooses_its_end_when_the_lock_is_lost() {
    let server = Server::start();
    let mut killed = shell(&server, "$C lock --on-lost kill x; while :; do read line; done");
    killed.line();
    end_session_of(&server, "x");
    // The shell has no exit code, because KILL ended it.
    assert_eq!(killed.child.wait().unwrap().code(), None);
    let file = server.data.join("lost");
    let hook = format!(
        "echo \"$CONCLAVE_LOCKS $CONCLAVE_FENCE $CONCLAVE_SHELL\" > {0}.new; mv {0}.new {0}",
        file.display()
    );
    let script = format!("$C lock --on-lost '{hook}' y; echo $$; read go; $C unlock y; echo $?");
    let mut hooked = shell(&server, &script);
    let (fence, number) = (hooked.line(), hooked.line());
    end_session_of(&server, "y");
    let told = support::until("the hook has run", || std::fs::read_to_string(&file).ok());
    assert_eq!(told, format!("y {} {number}", fence.trim()));
    hooked.write("go\n");
    assert_eq!(hooked.end().1, "76\n", "the shell went on");
    let mut warned = shell(&server, "$C lock --on-lost warn z; read go; $C unlock z; echo $?");
    warned.line();
    end_session_of(&server, "z");
    warned.write("go\n");
    assert_eq!(warned.end().1, "76\n", "the shell went on");
}

#[test]
fn a_second_lock_of_a_name_in_one_shell_is_refused() {
    let server = Server::start();
    let script = "$C lock 'x & \"y z\"' > /dev/null; for how in '' '--wait 1h' --shared --try; do $C lock $how x; echo $?; done; \
        $C run '\"y z\"' -- true; echo $?; $C lock 'x | w' > /dev/null; echo $?";
    assert_eq!(lines(&server, script), ["77", "77", "77", "75", "77", "0"]);
    until_free(&server, "x");
    let shared = "$C lock --shared x > /dev/null && $C lock --shared x > /dev/null; echo $?; $C unlock x && $C unlock x; echo $?";
    assert_eq!(lines(&server, shared), ["0", "0"], "they do not wait for each other");
    assert!(!is_held(&server, "x"));
}

#[test]
fn a_lock_command_that_ends_during_its_wait_leaves_the_queue() {
    let server = Server::start();
    let mut holder = server.hold(&["x"]);
    let free = |server: &Server| {
        support::until("nobody waits", || {
            (server.json(&["why", "x", "--json"])["waiters_total"] == 0).then_some(())
        });
    };
    let number = holder.child.id().to_string();
    let wait = || {
        let waiting = server.spawn(&["lock", "--quiet", "--pid", &number, "x"]);
        server.until_waiting("x", 1);
        waiting
    };
    let interrupted = wait();
    interrupted.signal(Signal::INT);
    assert_eq!(interrupted.end(), (130, String::new(), String::new()));
    assert_eq!(server.json(&["why", "x", "--json"])["waiters_total"], 0, "confirmed");
    let mut killed = wait();
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    free(&server);
    let mut orphaned = shell(&server, "$C lock x; echo over");
    server.until_waiting("x", 1);
    orphaned.child.kill().unwrap();
    orphaned.child.wait().unwrap();
    free(&server);
    let timed = server.code(&["lock", "--pid", &number, "--wait", "10ms", "x"]);
    assert_eq!(timed, 75);
    holder.write("over\n");
    assert_eq!(holder.end().0, 0);
}

#[test]
fn the_shell_is_the_parent_of_the_command() {
    let server = Server::start();
    let after = |script: &str| {
        let mut running = shell(&server, &format!("{script}\necho over; read go"));
        while running.line() != "over\n" {}
        running
    };
    let subshell = after("( $C lock a; true; )");
    until_free(&server, "a");
    let group = after("{ $C lock b; true; } | cat");
    until_free(&server, "b");
    let held = [
        ("c", after("$C lock c | cat")),
        ("d", after("F=$($C lock d)")),
        ("e", after("( $C lock --pid $$ e; true; )")),
        ("f", after("sh -c '$C lock --pid $PPID f; true'")),
    ];
    for (name, running) in held {
        assert!(is_held(&server, name), "{name}");
        assert_eq!(running.finish(), 0);
        until_free(&server, name);
    }
    assert_eq!((subshell.finish(), group.finish()), (0, 0));
}

#[test]
fn a_holder_keeps_no_pipe_of_its_shell_open() {
    let server = Server::start();
    // The shell waits for the end of each pipe, which the holder must have closed.
    let script = "O=$($C lock x 2>&1 3>&1); P=$($C lock --for 1h y 2>&1 3>&1); echo $?; $C unlock y";
    assert_eq!(lines(&server, script), ["0"]);
}

#[test]
fn a_holder_that_is_killed_has_lost_the_lock() {
    let server = Server::start();
    let mut running =
        shell(&server, "$C lock --ttl 1s --json x; read go; $C unlock x; echo $?; $C unlock x; echo $?");
    let lock: Value = serde_json::from_str(&running.line()).unwrap();
    assert_eq!((&lock["names"], &lock["fences"]["x"]), (&json!(["x"]), &lock["fence"]));
    let holder = i32::try_from(lock["holder"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(holder).unwrap(), Signal::KILL).unwrap();
    until_free(&server, "x");
    running.write("go\n");
    assert_eq!(running.end().1, "76\n1\n");
}

#[test]
fn a_holder_that_is_stopped_by_a_signal_stops_its_shell() {
    let server = Server::start();
    let mut running =
        shell(&server, "trap 'echo stopped; exit 3' TERM; $C lock --json x; while :; do read line; done");
    let lock: Value = serde_json::from_str(&running.line()).unwrap();
    let holder = i32::try_from(lock["holder"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(holder).unwrap(), Signal::TERM).unwrap();
    let (code, text, _) = running.end();
    assert_eq!((code, text.as_str()), (3, "stopped\n"));
    until_free(&server, "x");
}

#[test]
fn several_detached_permits_are_told_apart_by_their_fences() {
    let server = Server::start();
    server.text(&["limit", "pool", "2"]);
    let lock = || server.text(&["lock", "--for", "1h", "pool"]).trim().to_owned();
    let (first, second) = (lock(), lock());
    let refused = server.output(&["unlock", "pool"]);
    let errors = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(errors.contains("--fence") && errors.contains(&first) && errors.contains(&second), "{errors}");
    assert_eq!(server.code(&["unlock", "--fence", &first, "pool"]), 0);
    assert_eq!(server.json(&["why", "pool", "--json"])["holders"][0]["fence"].to_string(), second);
    assert_eq!(server.json(&["unlock", "--json", "pool"]), json!({ "unlocked": "pool" }));
}

#[test]
fn a_lock_whose_fence_cannot_be_printed_is_released() {
    let server = Server::start();
    assert_eq!(lines(&server, "$C lock x > /dev/full; echo $?; $C run --try x -- echo free"), ["74", "free"]);
}

#[test]
fn a_lock_that_cannot_be_had_gives_the_reason_and_the_exit_code_of_run() {
    let server = Server::start();
    let says = |args: &[&str], code: i32, wanted: &str| {
        let output = server.output(args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
        assert!(errors.contains(wanted), "{args:?}: {errors}");
        assert_eq!(output.stdout, b"", "{args:?}");
    };
    says(&["lock", "--for", "1h", "x & ("], 2, "x & (");
    says(&["lock", "--for", "0s", "x"], 2, "--for 0");
    says(&["lock", "--for", "1h", "--pid", "1", "x"], 2, "--pid");
    says(&["lock", "--for", "1h", "--on-lost", "kill", "x"], 2, "--on-lost warn");
    says(&["lock", "--pid", "0", "x"], 2, "number of a process");
    says(&["lock", "--holder", "detached", "--for", "1h", "x"], 2, "leave this flag out");
    says(&["lock", "--for", "1h", "--server", "127.0.0.1:1", "x"], 69, "127.0.0.1:1");
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    says(&["lock", "--pid", &ended.id().to_string(), "x"], 1, "no such process");
    let holder = server.hold(&["x"]);
    says(&["lock", "--for", "1h", "--try", "x"], 75, "held by");
    let refused = server.output(&["lock", "--json", "--for", "1h", "--try", "x"]);
    let error: Value = serde_json::from_slice(&refused.stderr).unwrap();
    assert_eq!(error["error"]["code"], "would-wait");
    assert_eq!(holder.finish(), 0);
}
