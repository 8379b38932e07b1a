//! Tests of `conclave trace` and of the snapshot problem.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn conclave(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_conclave")).args(arguments).output().expect("the binary runs")
}

#[track_caller]
fn prints(arguments: &[&str]) -> String {
    let output = conclave(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

#[track_caller]
fn refused(arguments: &[&str], wanted: &str) {
    let output = conclave(arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.lines().count() == 1 && complaint.contains(wanted), "{complaint}");
}

fn file(name: &str, contents: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, contents).expect("the folder for tests can be written");
    path
}

/// The three processes of the lectures, as another program would log them.
const THREE_PROCESSES: &str = r#"P1 {"P1":1}
A
P1 {"P1":2}
B
P1 {"P1":3}
C
P1 {"P1":4,"P2":3,"P3":1}
D
P1 {"P1":5,"P2":3,"P3":1}
E
P2 {"P2":1,"P3":1}
E'
P2 {"P1":2,"P2":2,"P3":1}
F
P2 {"P1":2,"P2":3,"P3":1}
G
P3 {"P3":1}
H
P3 {"P3":2}
I
P3 {"P1":5,"P2":3,"P3":3}
J
"#;

#[test]
fn the_example_of_three_processes_is_analysed_with_all_its_numbers() {
    let path = file("three.log", THREE_PROCESSES);
    let path = path.to_str().expect("the path is UTF-8");
    let relation = |a: &str, b: &str| -> Value {
        let text = prints(&["trace", path, "--relation", a, b, "--json"]);
        serde_json::from_str::<Value>(&text).expect("--json prints JSON")["relations"][0].clone()
    };
    for (a, b) in [("A", "B"), ("B", "F"), ("A", "F"), ("H", "G"), ("F", "J"), ("H", "J"), ("C", "J")] {
        assert_eq!(relation(a, b)["relation"], "before", "{a} {b}");
        assert_eq!(relation(b, a)["relation"], "after", "{b} {a}");
    }
    for (a, b) in [("C", "F"), ("H", "C")] {
        assert_eq!(relation(a, b)["relation"], "concurrent", "{a} {b}");
    }
    for (name, lamport, vector) in [
        ("A", 1, [1, 0, 0]),
        ("B", 2, [2, 0, 0]),
        ("C", 3, [3, 0, 0]),
        ("D", 5, [4, 3, 1]),
        ("E", 6, [5, 3, 1]),
        ("E'", 2, [0, 1, 1]),
        ("F", 3, [2, 2, 1]),
        ("G", 4, [2, 3, 1]),
        ("H", 1, [0, 0, 1]),
        ("I", 2, [0, 0, 2]),
        ("J", 7, [5, 3, 3]),
    ] {
        let clock = &relation(name, name)["a"];
        assert_eq!(
            (&clock["lamport"], &clock["vector"]),
            (&lamport.into(), &vector.to_vec().into()),
            "{name}"
        );
    }
    let text = prints(&["trace", path, "--past", "P2:3", "--relation", "C", "F"]);
    assert!(
        text.contains("are concurrent")
            && text.contains("7 events")
            && text.contains("5 events, vector (2,3,1)"),
        "{text}"
    );
}

/// The four processes of the lectures. P1 sends m12 at its 2nd event, and P2 receives it at its 3rd. P2 sends
/// m21 at its 4th event, and P1 receives it after its 2nd.
#[test]
fn the_cuts_of_four_processes_are_judged() {
    let mut log = String::new();
    for event in 1..=4 {
        let heard = if event >= 3 { r#","P2":4"# } else { "" };
        log += &format!("P1 {{\"P1\":{event}{heard}}}\n{event}\n");
    }
    for event in 1..=4 {
        let heard = if event >= 3 { r#","P1":2"# } else { "" };
        log += &format!("P2 {{\"P2\":{event}{heard}}}\n{event}\n");
    }
    for (site, events) in [("P3", 4), ("P4", 2)] {
        (1..=events).for_each(|event| log += &format!("{site} {{\"{site}\":{event}}}\n{event}\n"));
    }
    let path = file("four.log", &log);
    let path = path.to_str().expect("the path is UTF-8");
    let text = prints(&["trace", path, "--cut", "1,3,3,2"]);
    assert!(text.contains("cut {1,3,3,2}  inconsistent"), "{text}");
    assert!(text.contains("received but not sent") && text.contains("P1->P2"), "{text}");
    assert!(text.contains("largest consistent cut inside it is {1,2,3,2}"), "{text}");
    let text = prints(&["trace", path, "--cut", "2,4,4,2"]);
    assert!(text.contains("cut {2,4,4,2}  consistent") && text.contains("on its way"), "{text}");
    assert!(text.contains("P2->P1") && !text.contains("P1->P2"), "{text}");
    refused(&["trace", path, "--cut", "1,2"], "2 numbers, but there are 4 sites");
    refused(&["trace", path, "--cut", "1,2,9,1"], "P3 has 4 events, not 9");
}

/// A log of another program. It names P2 first, and its second event comes first by causality.
const OUT_OF_ORDER: &str =
    "P2 {\"P2\":1,\"P1\":1}\nreceives\nP1 {\"P1\":1}\nsends\nP2 {\"P2\":2,\"P1\":1}\nworks\n";

#[test]
fn a_cut_is_given_by_names_or_in_the_order_of_the_printed_site_numbers() {
    let path = file("named.log", OUT_OF_ORDER);
    let path = path.to_str().expect("the path is UTF-8");
    let by_name = prints(&["trace", path, "--cut", "P1:0,P2:1"]);
    assert!(by_name.contains("sites                 2: 0 = P2, 1 = P1"), "{by_name}");
    assert!(by_name.contains("cut {1,0}  inconsistent"), "{by_name}");
    assert_eq!(prints(&["trace", path, "--cut", "P2:1,P1:0"]), by_name);
    assert_eq!(prints(&["trace", path, "--cut", "1,0"]), by_name);
    refused(&["trace", path, "--cut", "P1:0"], "does not name site P2");
    refused(&["trace", path, "--cut", "P1:0,P1:1"], "names site P1 twice");
    refused(
        &["trace", path, "--cut", "P1:0,P3:1"],
        "unknown site 'P3'; did you mean P1? (there are: P2, P1)",
    );
    refused(&["trace", path, "--cut", "P1:0,1"], "'1' is no number of events");
    refused(&["trace", path, "--cut", "a,b"], "'a' is no number of events");
    refused(&["trace", path, "--cut", "P2:3,P1:0"], "P2 has 2 events, not 3");
}

#[test]
fn an_event_has_one_number_in_the_file_in_flags_and_in_every_output() {
    let path = file("numbered.log", OUT_OF_ORDER);
    let path = path.to_str().expect("the path is UTF-8");
    let json = |arguments: &[&str]| -> Value {
        let text = prints(&[&["trace", path, "--json"], arguments].concat());
        serde_json::from_str(&text).expect("--json prints JSON")
    };
    for (number, text) in ["receives", "sends", "works"].into_iter().enumerate() {
        let number = number.to_string();
        let answer = json(&["--relation", &number, text]);
        let (one, other) = (&answer["relations"][0]["a"], &answer["relations"][0]["b"]);
        assert_eq!((&one["text"], &one["event"].to_string()), (&Value::from(text), &number));
        assert_eq!(one, other);
    }
    let answer = json(&["--past", "2", "--cut", "P1:0,P2:1"]);
    assert_eq!(answer["past"]["events"], serde_json::json!([1, 0]), "in an order that causality allows");
    assert_eq!(answer["longest_chain"], serde_json::json!([1, 0, 2]));
    let orphan = &answer["cuts"][0]["received_but_not_sent"][0];
    assert_eq!((&orphan["sent_by"], &orphan["received_by"]), (&1.into(), &0.into()));
    let text = prints(&["trace", path, "--past", "2"]);
    assert!(text.contains("#1      P1  sends\n    #0      P2  receives"), "{text}");
    refused(&["trace", path, "--past", "3"], "there is no event 3: give a number from 0 to 2");
}

/// The clocks of a log do not show lost messages, nor messages that contain nothing new for their receiver.
#[test]
fn a_cut_of_a_log_without_messages_is_never_called_transitless() {
    let path = file("inferred.log", OUT_OF_ORDER);
    let path = path.to_str().expect("the path is UTF-8");
    let judged = |cut: &str| -> (String, Value) {
        let json = prints(&["trace", path, "--cut", cut, "--json"]);
        let json: Value = serde_json::from_str(&json).expect("--json prints JSON");
        assert_eq!(json["messages_inferred"], true);
        (prints(&["trace", path, "--cut", cut]), json["cuts"][0].clone())
    };
    for (cut, consistent, transitless, strongly) in [
        ("P1:1,P2:2", true, Value::Null, Value::Null),
        ("P1:0,P2:0", true, Value::Null, Value::Null),
        ("P1:1,P2:0", true, false.into(), false.into()),
        ("P1:0,P2:1", false, Value::Null, false.into()),
    ] {
        let (text, json) = judged(cut);
        assert!(!text.contains("transitless") && !text.contains("strongly"), "{text}");
        let more = if transitless.is_null() { "messages" } else { "more messages" };
        assert!(text.contains(&format!("not known: whether {more} are in transit")), "{text}");
        assert_eq!(
            (&json["consistent"], &json["transitless"], &json["strongly_consistent"]),
            (&consistent.into(), &transitless, &strongly),
            "{cut}"
        );
    }
    // A trace of the simulator contains its messages.
    let trace = file("recorded.jsonl", "");
    let trace = trace.to_str().expect("the path is UTF-8");
    prints(&["sim", "mutex/central", "--nodes", "2", "--entries", "1", "--trace", trace]);
    let text = prints(&["trace", trace, "--cut", "0,0"]);
    assert!(
        text.contains("cut {0,0}  strongly consistent") && text.contains("sites                 2\n"),
        "{text}"
    );
}

#[test]
fn the_bank_is_pictured_and_the_equivalent_execution_printed() {
    let trace = file("bank.jsonl", "");
    let trace = trace.to_str().expect("the path is UTF-8");
    for algorithm in ["snapshot/chandy-lamport", "snapshot/lai-yang"] {
        let text = prints(&["sim", algorithm, "--nodes", "3", "--acts", "20", "--trace", trace]);
        assert!(text.contains("sum                 600, as expected"), "{text}");
        let text = prints(&["trace", trace, "--snapshot", "1", "--most", "0"]);
        assert!(text.contains("---- the recorded state ----") && text.contains("consistent"), "{text}");
        assert!(prints(&["replay", trace, "--verify"]).contains("the run repeats exactly"));
    }
    refused(&["trace", trace, "--snapshot", "9"], "snapshot 9 was not recorded");
}

#[test]
fn what_cannot_be_read_is_refused_with_its_place() {
    let broken = file("broken.log", "a {\"a\":1}\nA\na {\"a\":}\nB\n");
    refused(&["trace", broken.to_str().expect("UTF-8")], "broken.log:3: column 8: expected a host");
    let good = file("good.log", "a {\"a\":1}\nA\n");
    let good = good.to_str().expect("UTF-8");
    refused(&["trace", good, "--past", "7"], "there is no event 7");
    refused(&["trace", good, "--past", "a:2"], "a has 1 events");
    refused(&["trace", good, "--past", "Z"], "there is no event 'Z'");
    refused(&["trace", good, "--format", "xml"], "expected auto, conclave, shiviz");
    refused(&["trace", good, "--format", "(?<host>a)"], "no group (?<clock>...)");
    refused(&["trace", "nowhere.log"], "nowhere.log");
}
