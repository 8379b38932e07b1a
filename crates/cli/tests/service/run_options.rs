//! Tests of the options of `conclave run`: the limits of the wait, the messages during the wait, and
//! `--json`.

use std::io::{BufRead, BufReader};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::service::cluster::three;
use crate::service::support::{Running, Server};

/// Returns the last line of standard error as JSON.
fn summary(errors: &str) -> Value {
    let last = errors.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {errors:?}"))
}

/// Reads the first line of a command's standard error.
fn first_error(running: &mut Running) -> String {
    let mut line = String::new();
    let mut errors = BufReader::new(running.child.stderr.take().unwrap());
    errors.read_line(&mut line).unwrap();
    line
}

#[test]
fn a_timeout_is_a_wait_by_its_usual_name() {
    let server = Server::start();
    let holder = server.hold(&["x"]);
    assert_eq!(server.code(&["run", "--timeout", "10ms", "x", "--", "true"]), 75);
    assert_eq!(server.code(&["run", "--try", "--timeout", "1s", "x", "--", "true"]), 2);
    assert!(server.text(&["run", "--help"]).contains("--timeout"));
    assert_eq!(holder.finish(), 0);
}

#[test]
fn a_waiting_command_names_the_holders_unless_it_is_quiet() {
    let server = Server::start();
    let holder = server.hold(&["x"]);
    let quiet = server.spawn(&["run", "--quiet", "x", "--", "true"]);
    server.until_waiting("x", 1);
    let mut loud = server.spawn(&["run", "x", "--", "true"]);
    let line = first_error(&mut loud);
    assert!(line.starts_with("conclave: waiting for x: x is held by "), "{line}");
    assert!(line.contains("sh of session") && line.ends_with(", 1 ahead\n"), "{line}");
    // The command with `--quiet` has waited longer than the other.
    assert_eq!(holder.finish(), 0);
    assert_eq!(quiet.end(), (0, String::new(), String::new()));
    assert!(loud.child.wait().unwrap().success());
}

#[test]
fn a_try_and_a_timeout_without_a_majority_exit_with_unavailable() {
    let mut nodes = three();
    let holder = nodes[0].hold(&["--ttl", "60s", "taken"]);
    let servers: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
    let servers = servers.join(",");
    // All three commands run at once, because most of their time is a wait.
    let run = |server: &Server| {
        let run = |limit: &[&str], name: &str| {
            let command = [&["run", "--quiet", "--server", &servers], limit, &[name, "--", "true"]].concat();
            server.spawn(&command)
        };
        let (limited, short) = (["--try"], ["--timeout", "100ms"]);
        [run(&limited, "free"), run(&limited, "taken"), run(&short, "taken")].map(Running::end)
    };
    let codes = |ended: [(i32, String, String); 3]| ended.map(|(code, ..)| code);
    assert_eq!(codes(run(&nodes[0])), [0, 75, 75]);
    // First, two nodes accept connections but do not reply. Later, two nodes are killed.
    nodes[1].signal(Signal::STOP);
    nodes[2].signal(Signal::STOP);
    assert_eq!(codes(run(&nodes[0])), [69, 69, 69]);
    nodes[1].kill();
    nodes[2].kill();
    assert_eq!(codes(run(&nodes[0])), [69, 69, 69]);
    drop(holder);
}

#[test]
fn the_result_is_one_object_on_standard_error_and_standard_output_is_the_commands() {
    let server = Server::start();
    let run = |expr: &str, script: &str| {
        let output = server.output(&["run", "--json", expr, "--", "sh", "-c", script]);
        let errors = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), summary(&errors))
    };
    let (code, text, result) = run("b & a", "echo $CONCLAVE_FENCE; exit 7");
    assert_eq!(code, Some(7));
    let fence: u64 = text.trim().parse().unwrap();
    assert!(result["waited_ms"].is_u64(), "{result}");
    let expected = json!({
        "names": ["a", "b"], "fences": { "a": fence, "b": fence }, "waited_ms": result["waited_ms"],
        "exit": 7, "ended": "exited", "lost": null,
    });
    assert_eq!(result, expected);
    let (code, _, result) = run("a", "kill -9 $$");
    assert_eq!((code, &result["exit"], &result["ended"]), (Some(137), &json!(137), &json!("signal")));
}

#[test]
fn the_result_reports_the_loss_of_the_lock() {
    let server = Server::start();
    let mut running = server.spawn(&["run", "--json", "x", "--", "sh", "-c", "echo held; exec sleep 1000"]);
    assert_eq!(running.line(), "held\n");
    server.text(&["break", "x", "--reason", "stuck since noon"]);
    let (code, _, errors) = running.end();
    let result = summary(&errors);
    assert_eq!((code, &result["exit"], &result["ended"]), (76, &json!(76), &json!("lost")));
    assert!(result["lost"].as_str().unwrap().contains("stuck since noon"), "{result}");
}

#[test]
fn a_lock_that_was_not_acquired_is_reported_as_an_error_object() {
    let server = Server::start();
    let holder = server.hold(&["x"]);
    let output = server.output(&["run", "--json", "--try", "x", "--", "true"]);
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((&error["error"]["code"], &error["error"]["exit"]), (&json!("would-wait"), &json!(75)));
    let waiting = server.spawn(&["run", "--json", "x", "--", "true"]);
    server.until_waiting("x", 1);
    waiting.signal(Signal::INT);
    let (code, _, errors) = waiting.end();
    let error: Value = serde_json::from_str(&errors).unwrap();
    assert_eq!((code, &error["error"]["code"]), (130, &json!("signal")));
    let missing = server.output(&["run", "--json", "y", "--", "/no/such/command"]);
    let error: Value = serde_json::from_slice(&missing.stderr).unwrap();
    assert_eq!(error["error"]["exit"], 127);
    assert_eq!(holder.finish(), 0);
}
