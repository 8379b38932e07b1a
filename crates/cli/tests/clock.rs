//! Tests of `conclave clock` on loopback: it measures its own server. Both use the system clock, so the true
//! offset is 0 and must lie within the bound. Handmade servers refuse, have no time, lie or are forged.
//! `scripts/test-clock.sh` tests against chrony.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use serde_json::Value;

/// A server process that ends with the test.
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
    // A bound socket that is never read: it neither refuses nor replies.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_conclave"))
        .args(["clock", &address, "--samples", "1", "--timeout", "20ms"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("no answer") && text.contains("no server answered"), "{text}");
}

/// Runs `conclave clock` once against a handmade server. `answers` returns the replies to a request, in the
/// order in which they are sent.
fn asked_by_hand(answers: impl Fn(&[u8; 48]) -> Vec<Vec<u8>> + Send + 'static) -> (Output, Value) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    let address = socket.local_addr().expect("it is bound").to_string();
    let server = thread::spawn(move || {
        let mut question = [0; 48];
        let (_, from) = socket.recv_from(&mut question).expect("it is asked");
        for answer in answers(&question) {
            socket.send_to(&answer, from).expect("loopback takes it");
        }
    });
    let output = Command::new(env!("CARGO_BIN_EXE_conclave"))
        .args(["clock", &address, "--samples", "1", "--timeout", "5s", "--json"])
        .output()
        .expect("the binary runs");
    server.join().expect("it was asked");
    let server = json(&output)["servers"][0].clone();
    (output, server)
}

/// Returns a reply to the request from a server of this stratum, whose clock shows 2026-01-01.
fn answer(question: &[u8; 48], leap: u8, stratum: u8, reference: &[u8; 4]) -> Vec<u8> {
    let mut answer = vec![0; 48];
    answer[0] = leap << 6 | 4 << 3 | 4;
    answer[1] = stratum;
    answer[3] = 0xec;
    answer[12..16].copy_from_slice(reference);
    answer[24..32].copy_from_slice(&question[40..48]);
    for at in [16, 32, 40] {
        answer[at..at + 4].copy_from_slice(&3_976_214_400_u32.to_be_bytes());
    }
    answer
}

#[test]
fn a_kiss_of_death_is_told_and_ends_the_questions() {
    let (output, server) = asked_by_hand(|question| vec![answer(question, 3, 0, b"DENY")]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(server["error"], "the server refuses: DENY");
    assert_eq!((&server["sent"], &server["received"]), (&1.into(), &0.into()));
}

#[test]
fn a_server_that_does_not_know_the_time_is_not_believed() {
    for (leap, stratum) in [(3, 16), (0, 16), (3, 2)] {
        let (output, server) = asked_by_hand(move |question| vec![answer(question, leap, stratum, b"INIT")]);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(server["error"], "the server does not know the time");
        assert!(server.get("offset_ns").is_none(), "{server}");
    }
}

#[test]
fn what_does_not_echo_the_question_is_dropped_and_the_true_answer_counts() {
    let (output, server) = asked_by_hand(|question| {
        let mut forged = answer(question, 0, 1, b"EVIL");
        forged[31] ^= 1;
        let mut question_back = question.to_vec();
        question_back[0] = 4 << 3 | 3;
        vec![forged, question_back, b"short".to_vec(), Vec::new(), answer(question, 0, 1, b"GPS\0")]
    });
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        (&server["reference"], &server["stratum"], &server["received"]),
        (&"GPS".into(), &1.into(), &1.into())
    );
}

#[test]
fn a_server_is_asked_until_its_offset_is_as_exact_as_wanted() {
    let server = Server::start(&["--stratum", "3", "--dispersion", "2ms"]);
    let output = clock(&[&server.address, "--json", "--wanted", "10s"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(json(&output)["servers"][0]["sent"], 1, "the first was good enough");
    // The bound is never smaller than the error that the server states.
    let output = clock(&[&server.address, "--json", "--wanted", "1ms"]);
    assert_eq!(output.status.code(), Some(1));
    let said = &json(&output)["servers"][0];
    assert_eq!((&said["sent"], &said["error"]), (&3.into(), &"less exact than wanted".into()));
    assert!(said["bound_ns"].as_u64() > Some(2_000_000), "told all the same: {said}");
}

#[test]
fn an_unsynchronised_server_of_ours_says_so() {
    // If the kernel reports that its clock is synchronised, the server has the stratum of such a clock.
    let server = Server::start(&[]);
    let output = clock(&[&server.address, "--json"]);
    let said = &json(&output)["servers"][0];
    match output.status.code() {
        Some(0) => assert_eq!(said["stratum"], 10, "{said}"),
        _ => assert_eq!(said["error"], "the server does not know the time"),
    }
}

#[test]
fn bad_usage_is_refused() {
    for args in [
        &[][..],
        &["--stratum", "3", "x"],
        &["x", "--serve", "127.0.0.1:0"],
        &["--serve", "nowhere"],
        &["--serve", "127.0.0.1:0", "--json"],
        &["x", "--samples", "0"],
        &["x", "--samples", "65"],
        &["x", "--interval", "5"],
        &["x", "--timeout", "0"],
        &["x", "--faulty", "1"],
        &["x:99999"],
        &[""],
        &["x", "--wanted", "soon"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_conclave")).arg("clock").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}
