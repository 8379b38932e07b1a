//! Tests of commands for operators: `locks`, `sessions`, `limit`, `bench`, `completions`, and the errors of
//! `serve`.

use rustix::process::Signal;

use crate::service::support::{Running, Server, conclave};

#[test]
fn names_and_sessions_in_use_are_listed() {
    let server = Server::start();
    server.text(&["limit", "pool", "3"]);
    let holder = server.hold(&["team/a & pool*2"]);
    let locks = server.json(&["locks", "--json"]);
    assert_eq!(locks[0]["name"], "pool");
    assert_eq!((locks[0]["limit"].as_u64(), locks[0]["holders_total"].as_u64()), (Some(3), Some(1)));
    for prefix in ["team/", "/team/"] {
        assert_eq!(server.json(&["locks", prefix, "--json"]).as_array().unwrap().len(), 1);
    }
    let why = server.text(&["why", "pool"]);
    assert!(why.contains("2 of 3 permits held") && why.contains(", 2 permits\n"), "{why}");
    assert_eq!(server.json(&["why", "pool", "--json"])["holders"][0]["permits"], 2);
    assert_eq!(server.code(&["run", "--try", "pool*2", "--", "true"]), 75);
    assert_eq!(server.code(&["run", "pool*4", "--", "true"]), 2, "can never be");
    assert_eq!(server.json(&["sessions", "--json"])[0]["grants"], 1);
    assert_eq!(holder.finish(), 0);
    assert_eq!(
        server.json(&["sessions", "--json"]).as_array().unwrap().len(),
        0,
        "closed, not left to its lease"
    );
}

#[test]
fn a_change_is_reported_in_one_line_unless_it_must_be_quiet() {
    let server = Server::start();
    let changes: [(&[&str], &str); 6] = [
        (&["limit", "pool", "3"], "made the semaphore pool with 3 permits\n"),
        (&["limit", "pool", "5"], "changed the semaphore pool from 3 to 5 permits\n"),
        (&["limit", "pool", "5"], "pool already has 5 permits; nothing changed\n"),
        (&["put", "/config", "blue"], "wrote /config, version 1\n"),
        (&["put", "/config", "green"], "wrote /config, version 2\n"),
        (&["rm", "/config"], "removed /config\n"),
    ];
    for (args, line) in changes {
        assert_eq!(server.text(args), line, "{args:?}");
    }
    let holders = [server.hold(&["x"]), server.hold(&["y"])];
    assert_eq!(server.text(&["break", "x", "--reason", "test"]), "took x away from all its holders\n");
    let session = server.json(&["why", "y", "--json"])["holders"][0]["session"].to_string();
    assert_eq!(server.text(&["sessions", "end", &session]), format!("ended session {session}\n"));
    drop(holders);
    let quiet: [&[&str]; 4] = [
        &["limit", "pool", "0", "--quiet"],
        &["put", "-q", "/config", "blue"],
        &["rm", "/config", "-q"],
        &["sessions", "end", "1", "-q"],
    ];
    for args in quiet {
        let output = server.output(args);
        assert_eq!(output.stdout, b"", "{args:?}");
        assert_eq!(output.status.success(), output.stderr.is_empty(), "{args:?}: errors are not quiet");
    }
    assert_eq!(server.json(&["limit", "pool", "2", "--json"])["before"], serde_json::Value::Null);
    assert_eq!(server.json(&["limit", "pool", "4", "--json"])["before"], 2);
}

#[test]
fn a_lock_that_is_held_does_not_become_a_semaphore() {
    let server = Server::start();
    let holder = server.hold(&["x"]);
    let output = server.output(&["limit", "x", "3", "--json"]);
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!((&error["error"]["code"], &error["error"]["definite"]), (&"wrong-kind".into(), &true.into()));
    assert!(error["error"]["message"].as_str().unwrap().contains("held or waited for"), "{error}");
    assert_eq!(holder.finish(), 0);
    assert_eq!(server.text(&["limit", "x", "3"]), "made the semaphore x with 3 permits\n");
}

#[test]
fn why_explains_each_name_of_an_expression() {
    let server = Server::start();
    let holder = server.hold(&["b"]);
    let text = server.text(&["why", "(a | b) & c*2 & a"]);
    let heads: Vec<&str> = text.lines().filter(|line| !line.starts_with(' ')).collect();
    assert_eq!(heads.len(), 3, "{text}");
    assert!(heads[0].starts_with("a: never seen") && heads[1] == "b: a lock", "{text}");
    let reports = server.json(&["why", "a & b", "--json"]);
    assert_eq!((&reports[0]["name"], &reports[1]["holders_total"]), (&"a".into(), &1.into()));
    assert_eq!(server.http("/v1/why/a%20&%20b"), (200, reports));
    assert_eq!(server.json(&["why", "b:shared", "--json"])["holders_total"], 1, "one name is no array");
    let wrong = server.output(&["why", "a &"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    assert_eq!(holder.finish(), 0);
}

#[test]
fn a_free_name_differs_from_one_that_was_never_seen() {
    let server = Server::start();
    let known = |name: &str| {
        let report = server.json(&["why", name, "--json"]);
        assert_eq!(server.http(&format!("/v1/why/{name}")), (200, report.clone()));
        report["known"].as_bool().unwrap()
    };
    assert!(!known("db"));
    assert!(server.text(&["why", "db"]).starts_with("db: never seen, or forgotten since;"));
    server.text(&["run", "db", "--", "true"]);
    assert!(known("db"));
    assert_eq!(server.text(&["why", "db"]), "db: free; nobody holds it or waits for it\n");
    let holder = server.hold(&["x"]);
    assert!(known("x") && server.text(&["why", "x"]).starts_with("x: a lock\n  held by "));
    assert_eq!(holder.finish(), 0);
    server.text(&["limit", "pool", "3"]);
    assert!(server.text(&["why", "pool"]).ends_with("0 of 3 permits held\n  nobody holds it\n"));
}

#[test]
fn how_a_name_is_held_is_shown() {
    let server = Server::start();
    let reader = server.hold(&["--shared", "x"]);
    let writer = server.hold(&["y"]);
    assert!(server.text(&["why", "x"]).contains(", shared\n"));
    assert!(!server.text(&["why", "y"]).contains("shared"));
    let holder = |name: &str| server.json(&["why", name, "--json"])["holders"][0].clone();
    assert_eq!((holder("x")["shared"].as_bool(), holder("y")["shared"].as_bool()), (Some(true), Some(false)));
    assert_eq!([reader, writer].map(Running::finish), [0, 0]);
}

#[test]
fn control_characters_of_a_proclaimed_value_are_escaped_in_text() {
    let server = Server::start();
    let mut leader = server.spawn(&["elect", "scheduler", "--value", "a\x1b[2Jb"]);
    let won = leader.line();
    assert!(won.contains("proclaiming a\\u{1b}[2Jb"), "{won}");
    let why = server.text(&["why", "scheduler"]);
    assert!(why.contains("proclaimed: a\\u{1b}[2Jb"), "{why}");
    assert_eq!(server.json(&["why", "scheduler", "--json"])["value"], "a\x1b[2Jb", "JSON has its own way");
    leader.signal(Signal::TERM);
    assert_eq!(leader.end().0, 0);
}

#[test]
fn a_server_tells_the_address_by_which_it_is_found() {
    let data = std::env::temp_dir().join(format!("conclave-cli-found-{}", std::process::id()));
    let mut command = conclave();
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--advertise", "locks.example:7411", "--data"])
        .arg(&data);
    let mut server = Running::start(&mut command);
    let lines: Vec<String> = (0..3).map(|_| server.line()).collect();
    server.signal(Signal::TERM);
    assert_eq!(server.end().0, 0);
    drop(std::fs::remove_dir_all(&data));
    assert_eq!(lines[2], "  conclave run --server locks.example:7411 build -- make\n");
}

#[test]
fn over_http_it_reads_as_on_the_command_line() {
    let server = Server::start();
    server.text(&["limit", "pool", "3"]);
    let holders = [server.hold(&["x & pool*2"]), server.hold(&["y:shared"])];
    let waiting = server.spawn(&["run", "x", "--", "true"]);
    server.until_waiting("x", 1);
    for (command, path) in [
        (&["locks"][..], "/v1/locks"),
        (&["sessions"], "/v1/sessions"),
        (&["why", "x"], "/v1/why/x"),
        (&["why", "pool"], "/v1/why/pool"),
        (&["why", "y"], "/v1/why/y"),
    ] {
        let printed = server.json(&[command, &["--json"]].concat());
        assert_eq!((200, printed), server.http(path), "{path}");
    }
    holders.into_iter().for_each(|holder| assert_eq!(holder.finish(), 0));
    assert_eq!(waiting.end().0, 0);
}

#[test]
fn a_bench_measures_and_finds_no_violation() {
    let server = Server::start();
    for workload in ["own", "contended", "shared", "expression"] {
        let args = ["bench", "--clients", "4", "--seconds", "0.2", "--json", "--workload", workload];
        let figures = server.json(&args);
        assert_eq!(figures["violations"], 0, "{figures}");
        assert!(figures["pairs_per_s"].as_f64().unwrap() > 0.0, "{figures}");
        for field in ["acquire_p50_us", "acquire_p99_us", "acquire_p999_us"] {
            assert!(figures[field].as_f64().unwrap() > 0.0, "{field}: {figures}");
        }
    }
}

#[test]
fn clients_of_a_bench_share_the_requests_in_flight_of_a_connection() {
    let server = Server::start();
    let bench = ["bench", "--seconds", "0.2", "--json", "--connections", "1", "--clients"];
    let figures = server.json(&[&bench[..], &["64", "--in-flight", "64"]].concat());
    assert_eq!(figures["violations"], 0, "{figures}");
    assert!(figures["fairness"].is_number(), "nobody starves: {figures}");
    assert_eq!(server.code(&[&bench[..], &["1001"]].concat()), 2, "more than a session may ask at a time");
}

#[test]
fn a_folder_in_use_and_an_open_door_are_refused() {
    let server = Server::start();
    let serve = |args: &[&str]| conclave().arg("serve").args(args).output().unwrap();
    let open = serve(&["--listen", "0.0.0.0:0"]);
    assert_eq!(open.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&open.stderr).contains("--insecure"));
    let taken = serve(&["--listen", "127.0.0.1:0", "--data", server.data.to_str().unwrap()]);
    assert_eq!(taken.status.code(), Some(1), "{}", String::from_utf8_lossy(&taken.stderr));
}

#[test]
fn shells_get_their_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let output = conclave().args(["completions", shell]).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("sessions"), "{shell}");
    }
}
