//! Tests of programs in the place of algorithms: `sim`, `check`, `replay` and `grade`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cli::{folder, line, prints, refused, shown, text};

fn example(name: &str) -> String {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sites");
    let file: PathBuf = examples.canonicalize().expect("the examples exist").join(name);
    shown(&file).to_owned()
}

#[test]
fn a_wrong_program_is_found_shrunk_drawn_and_repeated() {
    let folder = folder("wrong-program");
    let (svg, trace) = (folder.join("run.svg"), folder.join("run.jsonl"));
    let program = format!("mutex/{}", example("wrong_ricart_agrawala.py"));
    let found = prints(&format!("sim {program} --nodes 3 --load high --entries 12 --seeds 0..20"), 1);
    let smallest = found.lines().find_map(|line| line.strip_prefix("smallest found:"));
    let command = smallest.expect(&found).trim().strip_prefix("conclave ").expect(&found);
    let drawn = prints(&format!("{command} --svg {} --trace {}", shown(&svg), shown(&trace)), 1);
    assert!(drawn.contains("ME1") && drawn.contains("entered while"), "{drawn}");
    assert!(fs::read_to_string(&svg).expect("it was drawn").contains("request"));
    prints(&format!("replay {} --verify", shown(&trace)), 0);
}

#[test]
fn a_program_is_explored_and_its_counterexample_repeats_with_states() {
    let folder = folder("explored-program");
    let trace = folder.join("run.jsonl");
    let check = |name: &str, code| {
        let program = example(name);
        prints(&format!("check mutex/{program} --order any --trace {}", shown(&trace)), code)
    };
    let right = check("ricart_agrawala.py", 0);
    assert!(right.contains("holds"), "{right}");
    let wrong = check("wrong_ricart_agrawala.py", 1);
    assert!(wrong.contains("entered while"), "{wrong}");
    let verdict = prints(&format!("replay {} --verify", shown(&trace)), 0);
    assert!(verdict.contains("ME1 breaks at step"), "{verdict}");
    let program = example("ricart_agrawala.py");
    let states = [
        prints(&format!("replay {} --states", shown(&trace)), 0),
        prints(&format!("replay 1 mutex/{program} --nodes 2 --entries 1 --states"), 0),
    ];
    assert!(states.iter().all(|states| states.contains("mine = ")), "{states:?}");
}

#[test]
fn a_path_that_is_no_program_is_explained() {
    refused("sim mutex/./no-such-file.py", &["./no-such-file.py", "No such file"]);
    refused("sim snapshot/./ra.py", &["problem snapshot does not take programs", "mutex/./ra.py"]);
    let program = example("chang_roberts.py");
    refused(&format!("sim election/{}", example("conclave.py")), &["the program ended"]);
    let mutex = example("ricart_agrawala.py");
    refused(&format!("sim election/{mutex}"), &["solves problem mutex", &format!("write mutex/{mutex}")]);
    assert!(prints(&format!("sim election/{program} --start all"), 0).contains("holds"));
    let found = prints(&format!("check election/{program} --judged outcome --caller 0"), 0);
    assert!(found.contains("it is not judged where"), "{found}");
    refused("check mutex/../", &["is not a file"]);
}

/// A program that keeps state in a class variable, and prints it.
const SHARED: &str = r#"
import sys
sys.path.insert(0, FOLDER)
from conclave import Site, serve

class Shared(Site):
    count = [0]
    def on_acquire(self):
        self.count[0] += 1
        print("count", self.count[0])
        self.enter(fence=self.count[0])
    def on_release(self):
        pass

serve(Shared, saves=False)
"#;

fn written(folder: &Path, program: &str) -> PathBuf {
    let file = folder.join("program.py");
    let examples = Path::new(&example("conclave.py")).parent().expect("a folder").to_owned();
    fs::write(&file, program.replace("FOLDER", &format!("{examples:?}"))).expect("a file for the test");
    file
}

#[test]
fn state_outside_of_the_sites_is_reported_with_the_output() {
    let file = written(&folder("shared-state"), SHARED);
    let output = line(&format!("sim mutex/{} --entries 2 --nodes 1", shown(&file)));
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("is not deterministic: seed 1 had different runs"), "{complaint}");
    assert!(complaint.contains("program.py, seed 1, n0, step 2: count 1"), "{complaint}");
    let output = line(&format!("check mutex/{}", shown(&file)));
    assert!(text(&output.stderr).contains("does not offer load and save"), "{}", text(&output.stderr));
}

const RUBRIC: &str = r#"
title = "a small rubric"
seconds = 30
[[test]]
name = "exclusion"
points = 2
properties = ["ME1"]
seeds = 3
scenario = { work = { load = "high", entries = 12 }, world = { nodes = 3 } }
[[test]]
name = "cost"
points = 1
messages_per_entry = 4.0
seeds = 2
scenario = { work = { entries = 6 }, world = { nodes = 3 } }
[[test]]
name = "no evidence"
points = 4
properties = ["ME3"]
seeds = 1
scenario = { work = { entries = 1 }, world = { nodes = 2 } }
[[test]]
name = "all executions"
points = 8
explore = { nodes = 2, entries = 1 }
"#;

#[test]
fn a_rubric_gives_points_for_each_test_and_in_total() {
    let folder = folder("rubric");
    let rubric = folder.join("rubric.toml");
    fs::write(&rubric, RUBRIC).expect("a file for the test");
    let grade = |program: &str| {
        let printed =
            prints(&format!("grade {program} --rubric {} --seed-base 50 --json", shown(&rubric)), 1);
        serde_json::from_str::<Value>(&printed).expect("--json prints JSON")
    };
    let right = grade(&example("ricart_agrawala.py"));
    let points = |grade: &Value| {
        let lines = grade["tests"].as_array().expect("tests").iter();
        lines.map(|line| line["points"].as_u64().expect("a number")).collect::<Vec<_>>()
    };
    assert_eq!(points(&right), [2, 1, 0, 8], "{right}");
    assert_eq!((&right["points"], &right["of"]), (&Value::from(11), &Value::from(15)));
    assert!(right["tests"][2]["why"].as_str().expect("text").contains("no run tested ME3"), "{right}");
    let wrong = grade(&example("wrong_ricart_agrawala.py"));
    assert_eq!(points(&wrong)[0], 0, "{wrong}");
    let command = wrong["tests"][0]["command"].as_str().expect("a command");
    prints(command.strip_prefix("conclave ").expect(command), 1);
}

/// Ricart-Agrawala that fails in groups of three.
const CRASHING: &str = r#"
import sys
sys.path.insert(0, FOLDER)
from conclave import serve
from ricart_agrawala import RicartAgrawala

class Crashing(RicartAgrawala):
    def on_acquire(self):
        if self.nodes == 3:
            1 / 0
        super().on_acquire()

serve(Crashing)
"#;

#[test]
fn a_crash_costs_the_tests_in_which_it_happens() {
    let folder = folder("rubric-crash");
    let program = written(&folder, CRASHING);
    let rubric = folder.join("rubric.toml");
    fs::write(&rubric, RUBRIC).expect("a file for the test");
    let output = line(&format!("grade {} --rubric {}", shown(&program), shown(&rubric)));
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(printed.contains("0 of 2    exclusion") && printed.contains("8 of 8    all exec"), "{printed}");
    assert!(printed.contains("ended (exit status: 1): ZeroDivisionError: division by zero"), "{printed}");
    assert!(printed.contains("8 of 15   in total"), "{printed}");
    assert!(text(&output.stderr).contains("n0, step 4: Traceback"), "{}", text(&output.stderr));
}

#[test]
fn a_rubric_with_a_mistake_names_the_line_or_the_test() {
    let rubric = folder("rubric-mistakes").join("rubric.toml");
    let command = format!("grade {} --rubric {}", example("ricart_agrawala.py"), shown(&rubric));
    for (text, words) in [
        ("title = 3\n", "line 1"),
        ("test = []\n", "the rubric has no test"),
        ("[[test]]\nname = \"a\"\npoints = 1\n", "test \"a\": it demands nothing"),
        ("[[test]]\nname = \"a\"\npoints = 1\nproperties = [\"ME9\"]\n", "unknown property 'ME9'"),
        ("[[test]]\nname = \"a\"\npoints = 1\nproperties = [\"ME1\"]\ncrash = [\"9@1ms\"]\n", "no node 9"),
    ] {
        fs::write(&rubric, text).expect("a file for the test");
        refused(&command, &[words]);
    }
}

/// Prints its process id, then loops for ever and ignores the end of its input.
const ENDLESS: &str = r#"
import os, signal, sys
sys.path.insert(0, FOLDER)
from conclave import Site, serve
signal.signal(signal.SIGINT, signal.SIG_IGN)

class Endless(Site):
    def on_acquire(self):
        open(os.path.join(os.path.dirname(__file__), "pid"), "w").write("%d\n" % os.getpid())
        while True: pass

serve(Endless)
"#;

/// Whether a process of this id exists. A process that has ended and waits for its parent counts as ended.
fn is_alive(process: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|state| !state.is_empty() && !state.starts_with('Z'))
}

#[test]
fn a_killed_command_leaves_no_child_behind() {
    let folder = folder("endless");
    let program = format!("mutex/{}", shown(&written(&folder, ENDLESS)));
    let mut command = Command::new(env!("CARGO_BIN_EXE_conclave"));
    let command = command.args(["sim", &program]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut conclave = command.spawn().expect("the binary runs");
    let limit = Instant::now() + Duration::from_secs(60);
    let process = loop {
        match fs::read_to_string(folder.join("pid")) {
            Ok(process) if process.ends_with('\n') => break process.trim().to_owned(),
            _ => thread::sleep(Duration::from_millis(5)),
        }
        assert!(Instant::now() < limit, "the program did not start");
    };
    assert!(is_alive(&process));
    conclave.kill().expect("it runs");
    conclave.wait().expect("it was killed");
    while is_alive(&process) {
        assert!(Instant::now() < limit, "process {process} is still there");
        thread::sleep(Duration::from_millis(5));
    }
}
