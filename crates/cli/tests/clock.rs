//! `conclave clock` on loopback: what it serves, it measures. The system clock is both sides' clock, so the true
//! offset is 0 and must lie within the bound. Against chrony: `scripts/test-clock.sh`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A server that ends with the test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_conclave"))
            .args(["clock", "--serve", "127.0.0.1:0"])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped"))
            .read_line(&mut line)
            .expect("it says where it serves");
        // "serving the system clock at 127.0.0.1:40123: stratum 3, ..."
        let address = line.split_whitespace().nth(5).expect("an address").trim_end_matches(':').to_owned();
        Self { child, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().expect("it runs until now");
        self.child.wait().expect("it has ended");
    }
}

fn clock(args: &[&str]) -> Output {
    let quick = ["--samples", "3", "--interval", "1ms", "--timeout", "5s"];
    Command::new(env!("CARGO_BIN_EXE_conclave"))
        .arg("clock")
        .args(args)
        .args(quick)
        .output()
        .expect("the binary runs")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("--json prints JSON")
}

#[test]
fn what_is_served_is_measured_and_the_true_offset_is_within_the_bound() {
    let (one, other) =
        (Server::start(&["--stratum", "3", "--dispersion", "2ms"]), Server::start(&["--dispersion", "3ms"]));
    let output = clock(&[&one.address, &other.address, "--json"]);
    assert!(output.status.success(), "{output:?}");
    let verdict = json(&output);
    let servers = verdict["servers"].as_array().unwrap();
    assert_eq!((servers[0]["stratum"].as_u64(), servers[1]["stratum"].as_u64()), (Some(3), Some(10)));
    for said in servers.iter().chain([&verdict]) {
        let (offset, bound) = (said["offset_ns"].as_i64().unwrap(), said["bound_ns"].as_u64().unwrap());
        assert!(offset.unsigned_abs() <= bound, "{said}");
    }
    assert!(
        servers[1]["bound_ns"].as_u64() > Some(3_000_000),
        "the dispersion that was vouched for is in it"
    );
    assert!(servers.iter().all(|server| server["received"] == 3), "{verdict}");
}

#[test]
fn where_nobody_answers_the_exit_code_is_1_and_says_why() {
    // A socket that is bound and never read: nothing is refused and nothing answered.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_conclave"))
        .args(["clock", &address, "--samples", "1", "--timeout", "20ms"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("no answer") && text.contains("no server answered"), "{text}");
}

#[test]
fn bad_usage_is_refused() {
    for args in [&[][..], &["--stratum", "3", "x"], &["x", "--serve", "127.0.0.1:0"], &["--serve", "nowhere"]]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_conclave")).arg("clock").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}
