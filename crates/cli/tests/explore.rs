//! Tests of `check`, `mutants` and `matrix`.

use std::path::PathBuf;
use std::process::{Command, Output};

use conclave_algorithms::mutex;
use serde_json::Value;

fn line(command: &str) -> Output {
    let arguments = command.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_conclave")).args(arguments).output().expect("the binary runs")
}

#[track_caller]
fn prints(command: &str, code: i32) -> String {
    let output = line(command);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{command}: {complaint}");
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

#[track_caller]
fn json(command: &str, code: i32) -> Value {
    serde_json::from_str(&prints(command, code)).expect("--json prints JSON")
}

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    folder
}

#[test]
fn a_counterexample_of_the_checker_is_replayed_and_drawn() {
    let folder = folder("replayed");
    let (trace, svg) = (folder.join("trace.jsonl"), folder.join("trace.svg"));
    let found = json(
        &format!(
            "check mutex/lamport --order any --json --trace {} --svg {}",
            trace.display(),
            svg.display()
        ),
        1,
    );
    assert_eq!(found["property"], "ME1");
    let steps = found["counterexample"].as_array().expect("steps").len();
    let told = prints(&format!("replay {}", trace.display()), 0);
    assert!(told.lines().count() >= steps, "{told}");
    assert!(std::fs::read_to_string(&svg).expect("it was drawn").contains("<svg"));
    let header = std::fs::read_to_string(&trace).expect("it was written");
    let header: Value = serde_json::from_str(header.lines().next().expect("a header")).expect("JSON");
    let case: Value = serde_json::from_str(header["scenario"].as_str().expect("text")).expect("JSON");
    assert_eq!((&case["algorithm"], &case["world"]["order"]), (&Value::from("lamport"), &Value::from("any")));
}

/// In every problem, the counterexample of the checker happens again, and a modified trace is rejected.
#[test]
fn a_counterexample_is_verified_step_by_step() {
    let folder = folder("verified");
    let trace = folder.join("trace.jsonl");
    for (case, says) in [
        ("mutex/lamport --order any", "ME1 breaks at step"),
        ("mutex/maekawa --mutant maekawa-basic", "still waiting at its end"),
        ("mutex/suzuki-kasami --causal", "ME3 breaks at step"),
        ("mutex/ricart-agrawala --mutant ra-counts-replies --duplicate 1", "ME1 breaks at step"),
        ("mutex/token-ring --crash 1", "still waiting at its end"),
        ("election/bully --entries 1", "E1 breaks at step"),
        ("election/bully --sync 1 --crash 1 --recovery stable --order any", "E1 breaks at step"),
        ("election/chang-roberts --order any", "still waiting at its end"),
        ("detector/heartbeat --nodes 2 --order fifo", "accuracy breaks at step"),
        ("snapshot/chandy-lamport --nodes 2 --order any", "conserved breaks at step"),
    ] {
        prints(&format!("check {case} --trace {}", trace.display()), 1);
        let verdict = prints(&format!("replay {} --verify", trace.display()), 0);
        assert!(verdict.contains("repeats exactly") && verdict.contains(says), "{case}: {verdict}");
    }
    let text = std::fs::read_to_string(&trace).expect("it was written");
    let (at, _) = text.match_indices("\"balance\":").last().map_or((0, ""), |found| found);
    assert!(at > 0, "{text}");
    let tampered = format!("{}7{}", &text[..at + 10], &text[at + 10..]);
    std::fs::write(&trace, tampered).expect("it can be written");
    let verdict = prints(&format!("replay {} --verify", trace.display()), 1);
    assert!(verdict.contains("step") && verdict.contains("now:"), "{verdict}");
}

#[test]
fn a_counterexample_shows_the_states_of_its_sites() {
    let folder = folder("states");
    let (trace, svg) = (folder.join("trace.jsonl"), folder.join("trace.svg"));
    let check = "check mutex/lamport --order any --states";
    let text = prints(&format!("{check} --trace {} --svg {}", trace.display(), svg.display()), 1);
    assert!(text.contains("queue = [(1,0)]"), "{text}");
    let drawn = std::fs::read_to_string(&svg).expect("it was written");
    for part in
        ["class=\"violation\"", "ME1 is violated: ", ">conclave check mutex/lamport --order any --states<"]
    {
        assert!(drawn.contains(part), "{part}");
    }
    assert!(drawn.matches("class=\"state\"").count() >= 5, "the picture has the states too");
    let at = prints(&format!("replay {} --at 5", trace.display()), 0);
    assert!(["n0  ", "n1  ", "n2  ", "clock = "].iter().all(|part| at.contains(part)), "{at}");
    let words = |flag: &str| prints(&format!("replay {}{flag}", trace.display()), 0);
    assert!(!words("").contains("says") && words(" --verbose").contains("says"), "only in full");
}

#[test]
fn a_mutant_is_checked_by_its_name() {
    let found = json("check mutex/maekawa --entries 1 --mutant maekawa-basic --json", 1);
    assert_eq!((&found["verdict"], &found["property"]), (&Value::from("stuck"), &Value::from("ME2")));
    let output = line("check mutex/maekawa --mutant sk-lifo");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_check_without_a_size_explores_growing_sizes() {
    let central = json("check mutex/central --nodes 2 --json", 0);
    assert_eq!((&central["verdict"], &central["properties"]["ME3"]), (&"holds".into(), &"violated".into()));
    assert_eq!(central["finished"]["ME1"], serde_json::json!({ "nodes": 2, "entries": 2 }));
    let found = json("check mutex/maekawa --mutant maekawa-basic --json", 1);
    assert_eq!((&found["nodes"], &found["property"]), (&2.into(), &"ME2".into()));
    let text = prints("check mutex/central --mutant never-sends:RELEASE", 1);
    assert!(text.starts_with("never-sends:RELEASE  N = 2, 1 entry a site: violated"), "{text}");
    let cut = json("check mutex/lamport --most-states 100 --json", 3);
    assert_eq!((&cut["verdict"], &cut["nodes"]), (&"bounded".into(), &Value::Null));
}

#[test]
fn me3_is_judged_on_request() {
    assert_eq!(json("check mutex/suzuki-kasami --entries 1 --json", 0)["verdict"], "holds");
    assert_eq!(json("check mutex/suzuki-kasami --causal --json", 1)["property"], "ME3");
}

/// One message between applications is enough to show that an algorithm ignores the order of requests.
#[test]
fn me3_breaks_where_requests_are_served_in_another_order_and_holds_where_it_is_promised() {
    for name in ["central", "token-ring", "raymond", "naimi-trehel", "roucairol-carvalho"] {
        let found = json(&format!("check mutex/{name} --causal --order any --json"), 1);
        assert_eq!(found["properties"]["ME3"], "violated", "{name}");
        assert_eq!(found["not_judged"]["ME2"], "the exploration stopped when ME3 broke", "{name}");
    }
    let text = prints("check mutex/ricart-agrawala --causal", 0);
    assert!(text.contains("  ME3                   holds\n"), "{text}");
    assert!(text.contains("  ME1-causal            holds\n"), "{text}");
    assert!(
        text.contains("  fences                not judged: `check --causal` does not judge it"),
        "{text}"
    );
    let plain = json("check mutex/central --entries 1 --json", 0);
    assert_eq!(plain["not_judged"]["ME3"], "only `check --causal` judges it");
}

#[test]
fn an_exploration_that_puts_no_promise_to_the_test_ends_with_3() {
    for (command, title) in [
        ("check mutex/central --entries 0", "there is no request"),
        ("check election/bully --entries 0 --sync 1", "there is no election"),
        ("check detector/heartbeat --nodes 1 --sync 1", "no site may crash"),
    ] {
        let text = prints(command, 3);
        assert!(text.lines().next().is_some_and(|first| first.ends_with(": not judged")), "{text}");
        assert!(text.contains(title), "{text}");
    }
    let judged = json("check detector/heartbeat --nodes 2 --sync 1 --json", 0);
    assert_eq!(
        (&judged["properties"]["accuracy"], &judged["properties"]["completeness"]),
        (&"holds".into(), &"not_judged".into())
    );
    let bounded = json("check mutex/lamport --entries 1 --most-states 100 --json", 3);
    assert_eq!(bounded["properties"]["ME1"], "bounded");
    let snapshot = json("check snapshot/lai-yang --nodes 2 --entries 1 --json", 0);
    assert_eq!(snapshot["not_judged"]["stable"], "the checker does not judge it; see `sim`");
}

#[test]
fn the_text_says_whether_and_why_cycles_were_not_judged() {
    let cycles = |command: &str, code: i32| {
        let text = prints(command, code);
        let line = text.lines().find_map(|line| line.strip_prefix("  cycles                "));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    assert_eq!(cycles("check mutex/central --entries 1", 0), "judged");
    assert_eq!(
        cycles("check mutex/lamport --order any", 1),
        "not judged: the search found another violation first"
    );
    assert_eq!(
        cycles("check mutex/lamport --entries 1 --most-states 100", 3),
        "not judged: the exploration is incomplete"
    );
    let report = json("check mutex/lamport --entries 1 --most-states 100 --json", 3);
    assert_eq!(
        (&report["cycles"], &report["cycles_why"]),
        (&"not_judged".into(), &"the exploration is incomplete".into())
    );
}

#[test]
fn each_mutant_is_printed_with_the_property_that_caught_it() {
    let findings = json("mutants --only central --only raymond --json", 0);
    let findings = findings.as_array().expect("an array");
    assert!(findings.len() >= 6);
    for finding in findings {
        for field in ["name", "algorithm", "source", "harmless", "caught", "by", "after"] {
            assert!(!finding[field].is_null(), "{field} of {finding}");
        }
        let command = finding["command"].as_str().expect("the checker ran it");
        let again = json(&format!("{} --json", command.trim_start_matches("conclave ")), 1);
        assert_eq!(again["property"], finding["by"], "{command}");
    }
    let text = prints("mutants --only naimi", 0);
    assert!(text.contains("naimi-stays-root") && text.contains("harmless"), "{text}");
    assert_eq!(line("mutants --only nobody").status.code(), Some(2));
    let text = prints("mutants snapshot --only ly-", 0);
    assert!(text.contains("ly-no-counts") && text.contains("messages, 6 to 6 without the flaw"), "{text}");
    let text = prints("mutants detector --only heartbeat", 0);
    assert!(text.contains("never-sends:HEARTBEAT") && text.contains("accuracy"), "{text}");
    for refused in ["mutants detector --only nobody", "mutants nowhere", "mutants snapshot --only maekawa"] {
        assert_eq!(line(refused).status.code(), Some(2), "{refused}");
    }
}

#[test]
fn the_matrix_has_no_empty_cell() {
    let folder = folder("matrix");
    let command = format!("matrix mutex --most-states 20000 --json --svg {}", folder.display());
    // The fair ring never stops sending: some of its cells end at the bound and report it.
    let cells = json(&command, 3);
    let cells = cells.as_array().expect("an array");
    assert_eq!(cells.len(), mutex::CARDS.len() * 6);
    assert!(
        cells.iter().all(|cell| (cell["verdict"] == "bounded") == (cell["agrees"] == "unknown")),
        "{cells:?}"
    );
    assert!(cells.iter().all(|cell| cell["agrees"] != "no"), "{cells:?}");
    let broken = cells.iter().filter(|cell| !cell["steps"].is_null()).count();
    assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), broken);
    let text = prints("matrix mutex --most-states 2000", 3);
    assert!(text.contains("mutex/lamport") && text.contains("bounded: 2"), "{text}");
}

#[test]
fn the_problems_of_election_and_snapshot_have_a_matrix() {
    let text = prints("matrix snapshot --nodes 2", 0);
    assert!(text.contains("snapshot/lai-yang") && text.contains("conserved in 5 steps"), "{text}");
    let text = prints("matrix detector", 3);
    assert!(text.contains("detector/heartbeat") && text.contains("sampled: 20 seeds"), "{text}");
    let output = line("matrix snapshot/lai-yang");
    assert!(String::from_utf8_lossy(&output.stderr).contains("type conclave matrix snapshot"), "{output:?}");
}

#[test]
fn a_table_of_a_problem_has_a_row_for_each_and_says_what_was_not_explored() {
    let text = prints("check mutex --all --most-states 2000", 3);
    assert!(text.contains("| entries a site |"), "{text}");
    assert!(text.contains("| central | 3 | 2 | any order | 869 |"), "{text}");
    assert_eq!(text.lines().count(), 2 + 2 * mutex::CARDS.len(), "{text}");
    let fair_ring = text.lines().find(|row| row.starts_with("| fair-ring |")).expect("a row");
    assert!(fair_ring.ends_with("| bounded |"), "{fair_ring}");
    let text = prints("check election --all --most-states 100", 3);
    assert!(text.contains("| calls a site |") && text.contains("| bounded |"), "{text}");
}
