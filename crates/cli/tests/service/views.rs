//! What operators look at: `locks`, `sessions`, `limit`, `bench`, `completions`, and what `serve` refuses.

use std::process::Command;

use crate::support::Server;

#[test]
fn names_and_sessions_in_use_are_listed() {
    let server = Server::start();
    server.text(&["limit", "pool", "3"]);
    let holder = server.hold(&["team/a & pool*2"]);
    let locks = server.json(&["locks", "--json"]);
    assert_eq!(locks[0]["name"], "pool");
    assert_eq!((locks[0]["limit"].as_u64(), locks[0]["holders"].as_u64()), (Some(3), Some(1)));
    assert_eq!(server.json(&["locks", "team/", "--json"]).as_array().unwrap().len(), 1);
    assert!(server.text(&["why", "pool"]).contains("2 of 3 permits held"));
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
fn a_folder_in_use_and_an_open_door_are_refused() {
    let server = Server::start();
    let serve = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_conclave")).arg("serve").args(args).output().unwrap()
    };
    let open = serve(&["--listen", "0.0.0.0:0"]);
    assert_eq!(open.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&open.stderr).contains("--insecure"));
    let taken = serve(&["--listen", "127.0.0.1:0", "--data", server.data.to_str().unwrap()]);
    assert_eq!(taken.status.code(), Some(1), "{}", String::from_utf8_lossy(&taken.stderr));
}

#[test]
fn shells_get_their_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_conclave")).args(["completions", shell]).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("sessions"), "{shell}");
    }
}
