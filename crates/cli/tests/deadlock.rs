//! `conclave deadlock FILE`: the golden graph of the theory, known bugs of real detectors, and errors with
//! their place in the file.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// A file of this test's own.
fn file(name: &str, contents: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("deadlock-{name}"));
    std::fs::write(&path, contents).expect("a file for the test");
    path
}

fn conclave(path: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conclave"));
    command.arg("deadlock").arg(path).args(arguments).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// The verdict on such a file, whose exit code agrees with it.
#[track_caller]
fn verdict(name: &str, contents: &str, arguments: &[&str]) -> Value {
    let output = conclave(&file(name, contents), &[arguments, &["--json"]].concat());
    assert_eq!(text(&output.stderr), "");
    let verdict: Value = serde_json::from_slice(&output.stdout).expect("--json prints JSON");
    let code = if verdict["deadlock"] == json!(true) { 1 } else { 0 };
    assert_eq!(output.status.code(), Some(code));
    assert_eq!(verdict["deadlock"], json!(verdict["stuck"] != json!([])));
    verdict
}

/// A file that must be refused in one line, which begins with the place and says what is wrong.
#[track_caller]
fn refused(name: &str, contents: &str, place: &str, wanted: &str) {
    let path = file(name, contents);
    let output = conclave(&path, &[]);
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert_eq!(text(&output.stdout), "");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    let expected = format!("conclave: {}:{place}: ", path.display());
    assert!(complaint.starts_with(&expected), "expected {expected}, found {complaint}");
    assert!(complaint.contains(wanted), "'{wanted}' is not in: {complaint}");
}

const GOLDEN_AND: &str = "\
P11 -> P21 & P32
P32 -> P33
P21 -> P24
P24 -> P54
P54 -> P11   # closes the cycle
P44 -> P24
";

const GOLDEN_OR: &str = "P11 -> P21 | P32\nP32 -> P33\nP21 -> P24\nP24 -> P54\nP54 -> P11\nP44 -> P24\n";

#[test]
fn golden_and_a_cycle_of_four_and_one_stuck_outside_it() {
    let output = conclave(&file("golden-and", GOLDEN_AND), &[]);
    assert_eq!(output.status.code(), Some(1));
    let expected = "\
deadlock: 5 of 7 processes are stuck
cycle
  P11 waits for P21
  P21 waits for P24
  P24 waits for P54
  P54 waits for P11
stuck
  P11 P21 P24 P54 P44
abort (youngest)
  P54
";
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn golden_or_no_deadlock_while_p33_can_finish_then_a_knot_of_six() {
    assert_eq!(verdict("golden-or", GOLDEN_OR, &[])["stuck"], json!([]));
    let closed = verdict("golden-knot", &format!("{GOLDEN_OR}P33 -> P24\n"), &[]);
    let mut knot: Vec<_> = closed["why"][0]["knot"].as_array().unwrap().clone();
    knot.sort_by_key(ToString::to_string);
    assert_eq!(json!(knot), json!(["P11", "P21", "P24", "P32", "P33", "P54"]));
    assert_eq!(closed["stuck"].as_array().unwrap().len(), 7, "P44 is stuck outside it");
    assert_eq!(closed["abort"].as_array().unwrap().len(), 1, "one victim frees a knot");
}

/// matrixone#26302: two ways to one holder were taken for a cycle.
#[test]
fn converging_paths_are_not_a_cycle() {
    let diamond = "t1 holds a\nt2 holds b\nt2 waits a\nt3 holds c\nt3 waits a\nt4 waits b & c\n";
    assert_eq!(verdict("converging", diamond, &[])["stuck"], json!([]));
}

/// citus#1803: transactions of one node were taken for one process.
#[test]
fn two_transactions_of_one_node_are_two_processes() {
    let apart = "n1/t1 -> n2/t2\nn2/t3 -> n1/t4\n";
    assert_eq!(verdict("identities", apart, &[])["stuck"], json!([]));
    let attempts = "t7.1 holds a\nt8 waits a\nt8 holds b\nt7.2 waits b\n";
    assert_eq!(verdict("attempts", attempts, &[])["stuck"], json!([]), "an attempt is a process of its own");
    let merged = "n1 -> n2\nn2 -> n1\n";
    assert_eq!(verdict("merged", merged, &[])["stuck"], json!(["n1", "n2"]), "what merging makes of it");
}

/// citus#1572: a process that waits for itself was not found.
#[test]
fn to_wait_for_oneself_is_a_cycle() {
    let itself = verdict("self", "t1 -> t1\nt2 -> t1\n", &[]);
    assert_eq!(itself["stuck"], json!(["t1", "t2"]));
    let link = json!({ "waiter": "t1", "resource": null, "holder": "t1" });
    assert_eq!(itself["why"], json!([{ "cycle": [link] }]));
    assert_eq!(itself["abort"], json!(["t1"]));
    let permits = verdict("permits", "pool has 3 permits\nt1 holds pool*2\nt1 waits pool*2\n", &[]);
    assert_eq!(permits["stuck"], json!(["t1"]), "permits are not re-entrant");
    let lock = verdict("re-entrant", "t1 holds a\nt1 waits a\n", &[]);
    assert_eq!(lock["stuck"], json!([]), "a lock is");
}

/// matrixone#26922: what is perhaps held, or held by whoever is next in line, was taken for held.
#[test]
fn perhaps_held_is_not_held() {
    let perhaps = verdict("perhaps", "t1 holds a\nt2 perhaps holds b\nt1 waits b\nt2 waits a\n", &[]);
    assert_eq!(perhaps["stuck"], json!([]));
    assert_eq!(perhaps["perhaps_stuck"], json!(["t1", "t2"]), "but it is said");
    assert_eq!(perhaps["abort"], json!([]), "and nobody dies for it");
    let line = "t1 holds a\nt2 waits a\nt2 holds b\nt3 waits a & b\n";
    assert_eq!(
        verdict("line", line, &[])["stuck"],
        json!([]),
        "t2 is before t3 in line, and t3 in nobody's way"
    );
}

/// cockroach#45603: a deadlock was broken, and the victim never told. Here: whoever is stuck is named, and so is
/// a victim for every deadlock, by every policy.
#[test]
fn every_deadlock_has_a_victim_that_is_named() {
    let two = "a -> b\nb -> a\nc -> d\nd -> e\ne -> c\nf -> a & c\nf priority -5\na holds x, y\n";
    for (policy, victims) in [
        ("youngest", ["b", "e"]),
        ("lowest-priority", ["b", "e"]),
        ("fewest-locks", ["b", "e"]),
        ("requester", ["b", "e"]),
    ] {
        let verdict = verdict("victims", two, &["--abort", policy]);
        assert_eq!(verdict["stuck"], json!(["a", "b", "c", "d", "e", "f"]));
        assert_eq!(
            verdict["abort"],
            json!(victims),
            "{policy}: one on each cycle, never f, which is on none"
        );
    }
    let nobody = conclave(&file("nobody", two), &["--abort", "none"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(!text(&nobody.stdout).contains("abort"));
}

#[test]
fn locks_modes_semaphores_and_alternatives_are_explained_by_name() {
    let locks = conclave(&file("locks", "t1 holds a\nt2 holds b\nt1 waits b\nt2 waits a:shared\n"), &[]);
    let out = text(&locks.stdout);
    assert!(out.contains("  t1 waits for b, held by t2\n  t2 waits for a, held by t1\n"), "{out}");
    let upgrade = verdict("upgrade", "t1 holds a:shared\nt2 holds a:shared\nt1 waits a\nt2 waits a\n", &[]);
    assert_eq!(upgrade["stuck"], json!(["t1", "t2"]), "two upgraders block each other");
    let part = "pool has 4 permits\nt1 holds pool*2, a\nt2 holds pool*2\nt3 holds b\n\
                t1 waits b & (c | pool*2)\nt2 waits 2 of (a, pool*3, b)\nt3 waits c\n";
    assert_eq!(verdict("part", part, &[])["stuck"], json!([]), "t3 can finish, then t1, then t2");
    let stuck = "pool has 4 permits\nt1 holds pool*3\nt2 holds pool*1, a\nt1 waits x & (a | pool*2)\nt2 waits pool*2\n";
    let output = conclave(&file("stuck-part", stuck), &[]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(out.contains("t1 can never have a | pool*2, because of"), "{out}");
}

#[test]
fn json_lines_say_the_same_as_text() {
    let lines = r#"
{"semaphore": "pool", "permits": 3}
{"process": "t1", "holds": ["a", "pool*2"], "waits": "b & pool", "priority": 2}
{"process": "t2", "holds": ["b"], "waits": "pool*2 | a", "since": 99}
{"process": "t3", "waits_for": "t1 | t2", "perhaps_holds": ["c:shared"]}
"#;
    let text = "\
pool has 3 permits
t1 holds a, pool*2
t1 waits b & pool
t1 priority 2
t2 holds b
t2 waits pool*2 | a
t2 since 99
t3 -> t1 | t2
t3 perhaps holds c:shared
";
    let (one, other) = (verdict("lines", lines, &[]), verdict("text", text, &[]));
    assert_eq!(one, other);
    assert_eq!(one["stuck"], json!(["t1", "t2", "t3"]));
}

#[test]
fn errors_point_at_line_and_column() {
    refused("bad-verb", "a -> b\nb waist a\n", "2:3", "found 'waist'");
    refused("bad-expression", "# fine\n  a -> b & | c\n", "2:12", "expected a name or a group, found '|'");
    refused("bad-threshold", "a -> 3 of (b, c)\n", "1:6", "can never hold");
    refused("twice", "a -> b\nb -> c\na -> c\n", "3:6", "a already waits");
    refused("conflict", "a holds x\nb holds y, x\n", "2:12", "a already holds it");
    refused("no-permits", "a waits x*2\n", "1:9", "x is a lock");
    refused("too-many", "p has 2 permits\na waits b | p*3\n", "2:9", "p has only 2 permits");
    refused("shared-permits", "p has 2 permits\na holds p:shared\n", "2:9", "semaphore");
    refused("claimed", "a -> b*2\n", "1:6", "b is a process");
    refused("bad-number", "a priority high\n", "1:12", "expected a number");
    refused("unicode", "\"ä ö\" waits (\n", "1:14", "found the end");
    refused("json-syntax", "{\"process\": \"a\",}\n", "1:17", "");
    refused(
        "json-field",
        "{\"process\": \"a\"}\n{\"process\": \"b\", \"wait\": \"a\"}\n",
        "2:23",
        "unknown field",
    );
    refused("json-expression", "{\"process\": \"a\", \"waits\": \"b & & c\"}\n", "1:32", "expected a name");
    refused("json-kind", "{\"process\": \"a\", \"waits\": 7}\n", "1:27", "expected a string");
    refused("json-neither", "{\"priority\": 7}\n", "1:1", "either 'process', or 'semaphore'");
    let missing = conclave(Path::new("no/such/file"), &[]);
    assert_eq!(missing.status.code(), Some(2));
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("deadlock-binary");
    std::fs::write(&binary, b"a -> b\nb -> \xff\n").unwrap();
    let output = conclave(&binary, &[]);
    assert!(text(&output.stderr).contains(":2:6: not UTF-8"), "{}", text(&output.stderr));
}

#[test]
fn pictures_are_written_and_standard_input_is_read() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (svg, dot) = (folder.join("deadlock.svg"), folder.join("deadlock.dot"));
    let arguments = ["--svg", svg.to_str().unwrap(), "--dot", dot.to_str().unwrap()];
    conclave(&file("pictures", GOLDEN_AND), &arguments);
    assert!(std::fs::read_to_string(svg).unwrap().contains("Deadlock: 5 of 7 processes are stuck"));
    assert!(std::fs::read_to_string(dot).unwrap().starts_with("digraph waits {"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_conclave"))
        .args(["deadlock", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"a -> b\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), "no deadlock: 1 of 2 processes wait, and all can proceed\n");
}

/// Runs a command line, which must end with that code.
#[track_caller]
fn line(command: &str, code: i32) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_conclave"))
        .args(command.split_whitespace())
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(code), "{command}: {}", text(&output.stderr));
    text(&[output.stdout, output.stderr].concat())
}

#[test]
fn detectors_run_in_the_simulator_and_their_runs_can_be_repeated() {
    let run = "sim deadlock/p-out-of-q --nodes 4 --requests 60 --delay exponential:1ms";
    let report: Value = serde_json::from_str(&line(&format!("{run} --json"), 0)).unwrap();
    assert_eq!(report["requests"], json!(60));
    assert!(report["deadlocks"].as_u64() > Some(0), "{report}");
    assert_eq!(
        report["command"],
        json!(format!("conclave {}", run.replace("--requests", "--seed 1 --requests")))
    );
    let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join("deadlock-run.jsonl");
    line(&format!("{run} --trace {}", trace.display()), 0);
    line(&format!("replay {} --verify", trace.display()), 0);
    let other = line("sim deadlock/edge-chasing --model or", 2);
    assert!(other.contains("edge-chasing supports requests of model and, but not or"), "{other}");
    let stranger = line("sim deadlock/edge-chasing --cs 1ms", 2);
    assert!(stranger.contains("--cs has no effect in problem deadlock"), "{stranger}");
}

#[test]
fn ways_to_get_locks_run_in_the_simulator_like_any_algorithm() {
    for way in ["detect", "all-at-once", "ordered", "wait-die", "wound-wait", "safe-state"] {
        let run = format!("sim deadlock/{way} --nodes 4 --requests 20 --delay exponential:1ms");
        let report: Value = serde_json::from_str(&line(&format!("{run} --json"), 0)).unwrap();
        assert_eq!((&report["commits"], &report["properties"]["exclusive"]), (&json!(20), &json!("holds")));
        assert!(report["messages_per_commit"].as_f64() > Some(0.0), "{report}");
        let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("deadlock-{way}.jsonl"));
        line(&format!("{run} --trace {}", trace.display()), 0);
        line(&format!("replay {} --verify", trace.display()), 0);
    }
    let refused = line("sim deadlock/wait-die --detect-only", 2);
    assert!(refused.contains("have no effect on wait-die"), "{refused}");
}

#[test]
fn reading_and_judging_are_timed_apart_on_standard_error() {
    let output = conclave(&file("timing.txt", GOLDEN_AND), &["--timing"]);
    let timing = text(&output.stderr);
    assert!(timing.starts_with("read in ") && timing.contains(", judged in "), "{timing}");
}

/// Names alone, joined by one sign, are read without a tree: they mean the same as in brackets.
#[test]
fn a_plain_line_means_the_same_as_one_that_needs_a_tree() {
    let same = [
        ("a -> b & c\nb -> a\nc -> 7", "a -> (b & c)\nb -> (a)\nc -> \"7\""),
        ("a -> b|c\nb -> a | c\nc -> b", "a -> (b) | c\nb -> (a | c)\nc -> \"b\""),
        (
            "a holds x\nb holds y\na waits y\nb waits x & z",
            "a holds \"x\"\nb holds /y\na waits (y)\nb waits (x) & z",
        ),
        ("a -> /b\nb -> a", "a -> b\nb -> a"),
    ];
    for (at, (plain, tree)) in same.into_iter().enumerate() {
        let plain = verdict(&format!("plain-{at}.txt"), plain, &[]);
        assert_eq!(plain, verdict(&format!("tree-{at}.txt"), tree, &[]));
        assert_eq!(plain["deadlock"], json!(true));
    }
    refused("plain-twice.txt", "a -> b\na -> c\n", "2:6", "a already waits");
    refused("plain-open.txt", "a -> b &\n", "1:9", "expected a name");
    refused("plain-two.txt", "a -> b c\n", "1:8", "expected '&'");
}

#[test]
fn detection_prevention_and_avoidance_are_compared() {
    let rows: Value =
        serde_json::from_str(&line("compare deadlock --nodes 4 --requests 60 --json", 0)).unwrap();
    let of =
        |kind: &str| rows.as_array().unwrap().iter().filter(|row| row["compares"] == json!(kind)).count();
    assert_eq!((of("detector"), of("strategy")), (9, 6));
    let tables = line("compare deadlock --nodes 3,4", 0);
    for name in ["edge-chasing", "hierarchical", "wound-wait", "safe-state"] {
        assert_eq!(tables.matches(name).count(), 2, "{name} at both sizes: {tables}");
    }
}
