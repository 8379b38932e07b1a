//! Tests of the binary: help with examples, results for people and for scripts, exit codes, and one clear
//! line for every mistake.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use conclave_algorithms::mutex;
use serde_json::Value;

pub(crate) fn conclave(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_conclave")).args(arguments).output().expect("the binary runs")
}

pub(crate) fn line(command: &str) -> Output {
    conclave(&command.split_whitespace().collect::<Vec<_>>())
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// Runs a command that must exit with this code, and returns its output.
#[track_caller]
pub(crate) fn prints(command: &str, code: i32) -> String {
    let output = line(command);
    assert_eq!(output.status.code(), Some(code), "{command}: {}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "{command}");
    text(&output.stdout)
}

#[track_caller]
fn json(command: &str, code: i32) -> Value {
    serde_json::from_str(&prints(command, code)).expect("--json prints JSON")
}

/// Checks that a command exits with code 2 and one line that contains each of `wanted`.
#[track_caller]
pub(crate) fn refused(command: &str, wanted: &[&str]) {
    let output = line(command);
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{command}: {complaint}");
    assert_eq!(text(&output.stdout), "", "{command} printed a result");
    assert_eq!(complaint.lines().count(), 1, "{command} is refused in one line: {complaint}");
    assert!(complaint.starts_with("conclave: "), "{complaint}");
    for words in wanted {
        assert!(complaint.contains(words), "{command}: '{words}' is not in: {complaint}");
    }
}

/// Returns a new, empty folder for this test.
pub(crate) fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

pub(crate) fn shown(path: &Path) -> &str {
    path.to_str().expect("the folder of the tests has a plain name")
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the commands in a help text, each with its description.
pub(crate) fn listed(help: &str) -> Vec<(String, String)> {
    // The help of `conclave` lists the commands in groups; the first group is Locks.
    let lines = help.lines().skip_while(|line| !["Commands:", "Locks:"].contains(line)).skip(1);
    let mut commands: Vec<(String, String)> = Vec::new();
    for line in lines.take_while(|line| *line != "Options:").filter(|line| line.starts_with(' ')) {
        let words = line.split_whitespace().collect::<Vec<_>>();
        match commands.last_mut() {
            // A long description continues on the next line, indented more than a name.
            Some((_, about)) if line.starts_with("   ") => *about = format!("{about} {}", words.join(" ")),
            _ => commands.push((words[0].to_owned(), words[1..].join(" "))),
        }
    }
    commands.retain(|(name, _)| name != "help");
    commands
}

#[test]
fn every_command_has_help_with_examples_that_begins_as_it_is_listed() {
    let mut seen = 0;
    let mut unread = vec![(String::new(), None)];
    while let Some((command, about)) = unread.pop() {
        let help = prints(&format!("{command} --help"), 0);
        let first = help.split("\n\n").next().unwrap_or("").split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(about) = about {
            assert_eq!(first, about, "the help of '{command}' does not begin as it is listed");
        }
        let inner = listed(&help);
        assert!(help.contains("Examples:\n  conclave "), "{command}: {help}");
        assert!(help.contains("Exit codes"), "{command}: {help}");
        assert!(help.lines().all(|line| line.chars().count() <= 110), "{command}: {help}");
        let tail = help.split("Examples:").nth(1).unwrap_or_default();
        for (line, next) in tail.lines().zip(tail.lines().skip(1)) {
            let is_text = !line.starts_with(' ') && !next.starts_with(' ') && !line.is_empty();
            let has_room = line.len() + next.split(' ').next().unwrap_or_default().len() < 100;
            let is_end = line.ends_with(['.', ':']) || next.is_empty();
            assert!(!is_text || !has_room || is_end, "wrapped by hand, in the help of {command}: {line}");
        }
        for (name, about) in inner {
            unread.push((format!("{command} {name}").trim().to_owned(), Some(about)));
        }
        seen += 1;
    }
    assert!(seen > 25, "only {seen} commands were found in the help");
    assert!(prints("--version", 0).starts_with("conclave "));
    assert_eq!(conclave(&[]).status.code(), Some(2), "no command is bad usage");
}

/// The examples of the help work, and the files that they write exist.
#[test]
fn the_examples_of_the_help_work() {
    let folder = folder("examples");
    let sites = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sites");
    for (program, name) in [("ricart_agrawala.py", "ra.py"), ("conclave.py", "conclave.py")] {
        std::fs::copy(sites.join(program), folder.join(name)).expect("the program is copied");
    }
    for command in ["", "list", "sim", "compare", "replay"] {
        let help = prints(&format!("{command} --help"), 0);
        let examples = help.lines().filter_map(|line| line.trim().strip_prefix("conclave "));
        // Examples of the service need a server; `tests/service` tests them.
        let is_service =
            |example: &&str| ["serve", "run", "why"].contains(&example.split(' ').next().unwrap_or(""));
        for example in examples.filter(|example| !is_service(example)) {
            // In the general help, an explanation follows each example after two or more spaces. 1,000 seeds
            // take too long in a debug build.
            let example = example.split("  ").next().expect("a line").replace("0..1000", "0..20");
            let output = Command::new(env!("CARGO_BIN_EXE_conclave"))
                .args(example.split_whitespace())
                .current_dir(&folder)
                .output()
                .expect("the binary runs");
            let expected = if example.contains("--order any") { 1 } else { 0 };
            assert_eq!(output.status.code(), Some(expected), "{example}: {}", text(&output.stderr));
        }
    }
    for file in ["run.svg", "clocks.svg", "costs.svg", "run.jsonl"] {
        assert!(folder.join(file).exists(), "{file}");
    }
}

#[test]
fn list_shows_every_card() {
    let all = prints("list", 0);
    let cards = || mutex::CARDS.iter().chain(mutex::LAYERED);
    let names: Vec<_> = cards().map(|card| card.name).collect();
    for name in &names {
        assert!(all.contains(&format!("mutex/{name}  ")), "{name}");
    }
    for line in ["source", "needs", "promises", "cost", "survives"] {
        assert_eq!(prints("list mutex/maekawa", 0).contains(line), all.contains(line));
    }
    let cards = json("list mutex --json", 0);
    let listed: Vec<_> = cards.as_array().expect("an array").iter().map(|card| &card["name"]).collect();
    assert_eq!(listed, names);
    assert_eq!(json("list mutex/lamport --json", 0)[0]["needs"]["fifo"], true);
}

const FIELDS: [&str; 19] = [
    "algorithm",
    "nodes",
    "load",
    "seed",
    "entries",
    "messages",
    "messages_per_entry",
    "messages_per_entry_min",
    "messages_per_entry_max",
    "client_delay_ns",
    "sync_delay_ns",
    "response_time_ns",
    "throughput_per_s",
    "order_inversions",
    "max_bypass",
    "fairness",
    "events_per_s",
    "digest",
    "properties",
];

#[test]
fn one_run_is_one_object_with_every_field() {
    let run = json("sim mutex/ricart-agrawala --nodes 7 --json", 0);
    for field in FIELDS {
        assert!(run.get(field).is_some(), "{field}");
    }
    assert_eq!(
        (&run["algorithm"], &run["nodes"], &run["load"]),
        (&"ricart-agrawala".into(), &7.into(), &"low".into())
    );
    assert_eq!((&run["seed"], &run["entries"], &run["messages"]), (&1.into(), &100.into(), &1200.into()));
    assert_eq!(run["messages_per_entry"], 12.0);
    assert_eq!((&run["messages_per_entry_min"], &run["messages_per_entry_max"]), (&12.into(), &12.into()));
    assert_eq!(run["client_delay_ns"], 2e6);
    assert!(run["events_per_s"].as_f64() > Some(0.0));
    assert_eq!(run["digest"].as_str().map(str::len), Some(16));
    for property in ["ME1", "ME2"] {
        assert_eq!(run["properties"][property], "holds");
    }
    assert_eq!(run["properties"]["ME3"], "not_judged", "one request at a time");
    let central = json("sim mutex/central --json", 0);
    assert_eq!(central["properties"]["ME3"], "not_promised");
}

#[test]
fn defaults_are_those_of_the_book() {
    let run = json("sim mutex/lamport --json", 0);
    assert_eq!(
        (&run["nodes"], &run["seed"], &run["entries"], &run["load"]),
        (&5.into(), &1.into(), &100.into(), &"low".into())
    );
    assert_eq!(run["response_time_ns"], 3e6, "2T to get in at constant:1ms, and 1ms inside");
}

#[test]
fn several_runs_are_an_array_in_the_order_of_seeds() {
    let runs = json("sim mutex/maekawa --nodes 7 --load high --swarm --seeds 3..8 --json", 0);
    let seeds: Vec<_> = runs.as_array().expect("an array").iter().map(|run| run["seed"].as_u64()).collect();
    assert_eq!(seeds, (3..8).map(Some).collect::<Vec<_>>(), "half-open");
    let summary = prints("sim mutex/maekawa --nodes 7 --load high --swarm --seeds 3..8", 0);
    assert!(summary.contains("5 runs") && summary.contains("every promised property held"), "{summary}");
    let figures: Vec<_> = summary.lines().skip_while(|line| !line.starts_with("over the runs")).collect();
    let row = figures.iter().find(|line| line.starts_with("messages per entry")).expect("a row");
    let cells: Vec<_> = row.trim_start_matches("messages per entry").split_whitespace().collect();
    let (largest, seed) = (cells[5], cells[6]);
    let worst = json(&format!("sim mutex/maekawa --nodes 7 --load high --swarm --seed {seed} --json"), 0);
    let messages = worst["messages_per_entry"].as_f64().expect("a number");
    assert_eq!(format!("{messages:.2}").trim_end_matches(".00"), largest, "{summary}");
    let of_seed = |run: &Value| run["messages_per_entry"].as_f64();
    let all: Vec<_> = runs.as_array().expect("an array").iter().filter_map(of_seed).collect();
    assert!(all.iter().all(|other| *other <= messages), "{all:?}");
}

#[test]
fn a_run_for_people_shows_metrics_beside_formulas_and_a_verdict_on_each_property() {
    let shown = prints("sim mutex/maekawa --nodes 13", 0);
    for words in ["N = 13, K = 4", "3(K-1) = 9", "client delay", "sync delay", "ME1", "not promised", "holds"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

/// A violated property causes exit code 1, and prints the seed, a command that repeats the failure, and a
/// smaller run.
#[test]
fn a_violation_ends_with_1_and_a_command_that_repeats_it() {
    let shown =
        prints("sim mutex/lamport --nodes 3 --order any --delay uniform:1us..5ms --load relay --seed 0", 1);
    assert!(shown.contains("violated"), "{shown}");
    for label in ["repeat it:", "smallest found:"] {
        let line = shown.lines().find_map(|line| line.strip_prefix(label)).expect(label);
        let again = prints(line.trim().strip_prefix("conclave ").expect("a command"), 1);
        assert!(again.contains("violated"), "{label} {again}");
    }
    let run = json(
        "sim mutex/lamport --nodes 3 --order any --delay uniform:1us..5ms --load relay --seed 0 --json",
        1,
    );
    assert!(run["properties"].as_object().expect("an object").values().any(|verdict| verdict == "violated"));
}

#[test]
fn a_run_that_proves_nothing_says_why_and_ends_with_3() {
    let shown = prints("sim mutex/maekawa --entries 0", 3);
    assert!(shown.contains("not judged: no entry") && shown.contains("not judged: no request"), "{shown}");
    assert!(!shown.contains("holds"), "{shown}");
    let run = json("sim mutex/maekawa --entries 0 --json", 3);
    assert_eq!(
        (&run["properties"]["ME1"], &run["not_judged"]["ME1"]),
        (&"not_judged".into(), &"no entry".into())
    );
    let shown = prints("sim timesync/cristian --nodes 2 --loss 1", 3);
    assert!(shown.contains("not judged: no site stated an interval") && !shown.contains("holds"), "{shown}");
    let shown = prints("sim deadlock/edge-chasing --requests 0 --seeds 0..3", 3);
    assert!(shown.contains("no run tested a promised property"), "{shown}");
}

#[test]
fn a_sweep_says_in_how_many_runs_each_property_was_judged() {
    let judged = |shown: &str, property: &str| {
        let line = shown.lines().find(|line| line.trim_start().starts_with(&format!("{property} ")));
        line.unwrap_or_default().split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    let low = prints("sim mutex/ricart-agrawala --nodes 3 --seeds 0..4", 0);
    assert_eq!(
        (judged(&low, "ME1"), judged(&low, "ME3")),
        ("judged in 4 of 4 runs".into(), "judged in 0 of 4 runs".into())
    );
    assert!(low.contains("every promised property that was tested held"), "{low}");
    let relay = prints("sim mutex/ricart-agrawala --nodes 3 --load relay --seeds 0..4", 0);
    assert_eq!(judged(&relay, "ME3"), "judged in 4 of 4 runs");
    assert!(relay.contains("every promised property held"), "{relay}");
}

#[test]
fn a_run_without_progress_ends_with_3_and_its_seed() {
    let shown = prints("sim mutex/central --nodes 3 --load high --budget 3 --seed 7", 3);
    for words in
        ["no progress in 3 events; use --budget to allow more", "not judged: the run is bounded", "seed 7"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let command = shown.lines().find_map(|line| line.strip_prefix("repeat it:")).expect("a command");
    let again = prints(&format!("{command} --json").trim().replacen("conclave ", "", 1), 3);
    assert_eq!(serde_json::from_str::<Value>(&again).expect("JSON")["end"], "bounded");
    let shown = prints("sim mutex/central --nodes 3 --load high --budget 3 --seeds 4..6", 3);
    assert!(shown.contains("bounded: 2 runs without progress (seeds 4, 5)"), "{shown}");
    assert!(shown.contains("--seed 4 --load high --budget 3"), "{shown}");
    refused("sim detector/adaptive --budget 5", &["--budget has no effect", "--duration"]);
    refused("sim mutex/central --budget 0", &["at least 1"]);
}

#[test]
fn a_comparison_marks_a_row_that_proves_nothing() {
    let shown = prints("compare deadlock --requests 0 --only edge-chasing,wait-die", 3);
    for way in ["edge-chasing", "wait-die"] {
        let row = shown.lines().find(|line| line.starts_with(way)).expect("a row");
        assert!(row.ends_with('-') && !row.contains("holds"), "{row}");
    }
    assert!(shown.contains("-: not judged"), "{shown}");
    let shown = prints("compare mutex --nodes 3 --only central --budget 3", 3);
    assert!(shown.lines().any(|line| line.starts_with("central") && line.ends_with("bounded")), "{shown}");
    let shown = prints("compare mutex --entries 0 --only central,maekawa", 3);
    for way in ["central", "maekawa"] {
        let row = shown.lines().find(|line| line.starts_with(way)).expect("a row");
        assert!(row.ends_with('-') && !row.contains("holds"), "{row}");
    }
    let shown = prints("compare detector --only adaptive --duration 1s", 3);
    assert!(shown.contains("-: not judged"), "{shown}");
}

/// The command in the report of a swarm run repeats exactly that run.
#[test]
fn the_command_of_a_swarmed_run_repeats_it_to_the_digest() {
    for algorithm in ["token-ring", "lamport", "maekawa"] {
        for seed in 0..6 {
            let run = json(&format!("sim mutex/{algorithm} --swarm --seed {seed} --load high --json"), 0);
            let command = run["command"].as_str().expect("a command").replace('\'', "");
            let again = json(&format!("{} --json", command.strip_prefix("conclave ").expect("ours")), 0);
            assert_eq!(again["digest"], run["digest"], "{command}");
        }
    }
}

#[test]
fn compare_measures_all_algorithms_on_the_same_work() {
    let folder = folder("compare");
    let plot = folder.join("costs.svg");
    let tables = prints(&format!("compare mutex --nodes 3,9 --svg {}", shown(&plot)), 0);
    assert!(tables.contains("mutex, N = 3, T = 1ms") && tables.contains("mutex, N = 9, T = 1ms"));
    assert!(
        tables.lines().filter(|line| line.starts_with("suzuki-kasami")).count() >= 2,
        "a row at each size"
    );
    assert!(read(&plot).starts_with("<svg") || read(&plot).starts_with("<?xml"));
    let rows = json("compare mutex --nodes 3,9 --only raymond,central --json", 0);
    let rows = rows.as_array().expect("an array");
    assert_eq!(rows.len(), 4);
    for row in rows {
        for load in ["low", "pair", "high"] {
            FIELDS.iter().for_each(|field| assert!(row[load].get(field).is_some(), "{field}"));
        }
    }
}

#[test]
fn the_clocks_of_a_run_are_drawn_over_the_true_time() {
    let file = folder("clocks").join("clocks.svg");
    prints(&format!("sim timesync/cristian --nodes 3 --samples 60 --clocks {}", shown(&file)), 0);
    let picture = read(&file);
    assert_eq!(picture.matches("class=\"clock\"").count(), 2, "the server is the true time");
    assert!(picture.contains("M / (2 MDR)") && picture.contains("conclave sim timesync/cristian"));
    refused(&format!("sim mutex/central --clocks {}", shown(&file)), &["choose an algorithm of timesync"]);
}

#[test]
fn a_comparison_of_detectors_without_a_mistake_is_not_plotted() {
    let plot = folder("detector").join("tradeoff.svg");
    let command = format!("compare detector --duration 5s --svg {}", shown(&plot));
    let constant = format!("{command} --delay constant:1ms");
    refused(&constant, &["no setting makes a mistake with delays constant:1ms", "--delay exponential:10ms"]);
    assert!(!plot.exists());
    prints(&command, 0);
    assert!(read(&plot).contains("N = 5, T = 100ms, delays exponential:10ms"));
}

#[test]
fn files_are_written_where_they_were_asked_for() {
    let folder = folder("files");
    let [trace, svg, shiviz] = ["t.jsonl", "t.svg", "t.log"].map(|name| folder.join(name));
    prints(
        &format!(
            "sim mutex/maekawa --nodes 3 --entries 6 --load high --trace {} --svg {} --shiviz {}",
            shown(&trace),
            shown(&svg),
            shown(&shiviz)
        ),
        0,
    );
    let lines = read(&trace);
    assert!(lines.lines().count() > 20);
    for line in lines.lines() {
        serde_json::from_str::<Value>(line).expect("every line of a trace is JSON");
    }
    let header: Value = serde_json::from_str(lines.lines().next().expect("a header")).expect("JSON");
    assert_eq!((&header["algorithm"], &header["nodes"]), (&"mutex/maekawa".into(), &3.into()));
    assert!(read(&svg).contains("</svg>"));
    assert!(read(&shiviz).contains("{\""), "ShiViz lines carry vector clocks");
    let left = std::fs::read_dir(&folder).expect("the folder").count();
    assert_eq!(left, 3, "nothing else is left behind");
}

#[test]
fn a_recorded_run_is_replayed_and_verified() {
    let folder = folder("replay");
    let trace = folder.join("run.jsonl");
    let name = shown(&trace);
    prints(&format!("sim mutex/naimi-trehel --swarm --seed 4 --load poisson:1234567ns --trace {name}"), 0);
    assert!(prints(&format!("replay {name} --verify"), 0).contains("the run repeats exactly"));
    assert!(prints(&format!("replay {name}"), 0).contains("mutex/naimi-trehel, 5 sites"));
    assert_eq!(prints(&format!("replay {name} --json"), 0), read(&trace));
    refused(&format!("replay {name} --nodes 3"), &["a trace contains its scenario", "--nodes"]);
    refused(&format!("replay {name} --loss 0.1"), &["a trace contains its scenario"]);

    let states = prints(&format!("replay {name} --states"), 0);
    assert!(states.contains("father = "), "{states}");
    let at = prints(&format!("replay {name} --at 9"), 0);
    assert!(at.contains("after step 9") && at.matches("father = ").count() == 5, "{at}");
    refused(&format!("replay {name} --at 1000000"), &["there is no step 1000000", "from 0 to"]);

    let tampered = read(&trace).replacen("\"stamp\":2", "\"stamp\":3", 1);
    std::fs::write(&trace, tampered).expect("the file is ours");
    assert!(prints(&format!("replay {name} --verify"), 1).contains("differs"));
    refused(&format!("replay {name} --states"), &["does not repeat", "--verify"]);

    let of_a_seed = prints("replay 7 mutex/maekawa --nodes 3 --load high --entries 3", 0);
    assert!(of_a_seed.contains("mutex/maekawa, 3 sites"));
    assert_eq!(of_a_seed, prints("replay mutex/maekawa --seed 7 --nodes 3 --load high --entries 3", 0));
}

#[test]
fn a_scenario_is_read_from_toml_and_json_and_flags_override_it() {
    let folder = folder("config");
    let (toml, json_file) = (folder.join("run.toml"), folder.join("run.json"));
    std::fs::write(
        &toml,
        "load = \"high\"\nentries = 40\ncs = \"2ms\"\n[setup]\nnodes = 4\ndelay = \"uniform:1ms..3ms\"\nloss = 0.0\n",
    )
    .expect("the file is ours");
    std::fs::write(
        &json_file,
        r#"{"load": "high", "entries": 40, "cs": "2ms", "setup": {"nodes": 4, "delay": "uniform:1ms..3ms"}}"#,
    )
    .expect("the file is ours");
    let flags = json(
        "sim mutex/central --load high --entries 40 --cs 2ms --nodes 4 --delay uniform:1ms..3ms --json",
        0,
    );
    for file in [&toml, &json_file] {
        let run = json(&format!("sim mutex/central --config {} --json", shown(file)), 0);
        assert_eq!(run["digest"], flags["digest"], "{}", file.display());
    }
    let overridden = json(&format!("sim mutex/central --config {} --nodes 6 --json", shown(&toml)), 0);
    assert_eq!((&overridden["nodes"], &overridden["entries"]), (&6.into(), &40.into()));

    let wrong = folder.join("wrong.toml");
    for (mistake, says) in [
        ("entires = 4", "entires"),
        ("load = \"medium\"", "expected low, high"),
        ("[setup]\nnodes = 0", "at least 1 node"),
        ("[setup]\nloss = 1.5", "probability from 0 to 1"),
        ("cs = 5", "duration with a unit"),
        ("load = \"high\"\nentries = ", "line 2"),
    ] {
        std::fs::write(&wrong, mistake).expect("the file is ours");
        refused(&format!("sim mutex/central --config {}", shown(&wrong)), &[says]);
    }
}

/// The comparison crashes the leader: the highest site that is up.
#[test]
fn elections_are_compared_although_a_site_is_down_already() {
    let rows = json("compare election --nodes 5,7 --crash 4@50ms --json", 0);
    let rows = rows.as_array().expect("an array");
    assert!(rows.len() >= 8);
    for row in rows {
        let command = row["crash_lowest"]["command"].as_str().expect("a command");
        // With 5 sites, the highest site is site 4, which is down already.
        let leader = if row["nodes"] == 5 { "--crash 3@" } else { "--crash 6@" };
        assert!(command.contains("--crash 4@50ms") && command.contains(leader), "{command}");
    }
    let text = prints("compare election --nodes 3 --crash 2@50ms..100ms", 0);
    assert!(text.contains("the highest site that --crash leaves up"), "{text}");
    refused(
        "compare election --nodes 5,7 --crash 6@50ms",
        &["election with 5 nodes", "name a node of every size"],
    );
    refused(
        "compare election --nodes 3 --crash 2@9s",
        &["election with 3 nodes", "crashes the leader n2 at", "--crash 2@9s"],
    );
    refused(
        "compare election --nodes 2 --crash 0@5ms --crash 1@5ms",
        &["every site crashes", "leave at least 2 sites up"],
    );
}

#[test]
fn a_fault_that_never_struck_fails_the_run() {
    let shown = prints("sim mutex/token-ring --entries 5 --crash 1@10s", 1);
    assert!(shown.contains("--crash 1@10s did not occur"), "{shown}");
}

#[test]
fn faults_of_every_kind_can_be_asked_for() {
    let run = json(
        "sim mutex/central --nodes 5 --load high --partition 0+1@10ms..50ms --pause 2@20ms..30ms --skew 1ms --drift 50 \
         --link 0>1=constant:5ms --json",
        0,
    );
    assert_eq!((&run["ledger"]["partitions"], &run["ledger"]["pauses"]), (&1.into(), &1.into()));
    let crashed = json("sim mutex/token-ring --load high --crash 1@10ms..20ms,amnesia --json", 1);
    assert_eq!((&crashed["ledger"]["crashes"], &crashed["ledger"]["recoveries"]), (&1.into(), &1.into()));
    assert_eq!(crashed["properties"]["ME2"], "violated");
}

#[test]
fn every_mistake_gets_one_line_that_says_what_is_allowed() {
    refused("sim mutex/maekwa", &["did you mean maekawa?", "naimi-trehel"]);
    refused("sim mutx/maekawa", &["unknown problem 'mutx'", "did you mean mutex?"]);
    refused("sim maekawa", &["did you mean mutex/maekawa?"]);
    refused("sim mutex/zzzz", &["unknown algorithm", "central"]);
    for problem in ["mutex", "election", "timesync"] {
        let others =
            ["mutex/", "election/", "timesync/"].into_iter().filter(|other| !other.starts_with(problem));
        for command in ["sim", "check", "replay"] {
            let wanted =
                format!("'{problem}' is a problem: add one of its algorithms (there are: {problem}/");
            refused(&format!("{command} {problem}"), &[&wanted]);
            let complaint = text(&line(&format!("{command} {problem}")).stderr);
            others.clone().for_each(|other| assert!(!complaint.contains(other), "{complaint}"));
        }
    }
    refused("sim mutex/", &["'mutex' is a problem", "mutex/maekawa"]);
    refused("compare mutex/maekawa", &["type conclave compare mutex --only maekawa"]);
    refused("mutants mutex/maekawa", &["type conclave mutants mutex --only maekawa"]);
    refused("check mutex/maekawa --all", &["type conclave check mutex --all"]);
    refused(
        "sim timesync/cristian --delay constant:150ms",
        &["cristian gives up a request after 200ms", "300ms"],
    );
    refused("sim mutex/central --cs 2w", &["ns, us, ms, s, m or min, h, d"]);
    refused("list mutx", &["did you mean mutex?"]);
    refused("list mutex/lamprot", &["did you mean lamport?"]);
    refused("compare mutx", &["did you mean mutex?"]);
    refused("compare mutex --only maekwa", &["did you mean maekawa?"]);
    refused("smi mutex/maekawa", &["unknown command 'smi'", "did you mean sim?", "compare"]);
    refused("cluster statsu", &["'statsu'", "did you mean status?", "(there are: status, backup)"]);
    refused("sessions kill 3", &["unknown command 'kill'", "there are: end"]);
    refused("sim mutex/central --nodse 3", &["--nodes"]);
    refused("sim mutex/central --nodes 0", &["a number of nodes from 1 to"]);
    refused("sim mutex/central --nodes -1", &["1"]);
    refused("sim mutex/central --nodes many", &["a number of nodes from 1 to"]);
    refused("compare mutex --nodes 3,0", &["a number of nodes from 1 to"]);
    refused("sim mutex/central --loss 1.5", &["a probability from 0 to 1"]);
    refused("sim mutex/central --duplicate 2", &["a probability from 0 to 1"]);
    refused("sim mutex/central --corrupt nan", &["a probability from 0 to 1"]);
    refused("sim mutex/central --loss=-0.1", &["a probability from 0 to 1"]);
    refused("sim mutex/central --delay 1ms", &["constant:D", "lognormal"]);
    refused("sim mutex/central --delay constant:5", &["a unit"]);
    refused("sim mutex/central --delay uniform:3ms..1ms", &["the first delay must not exceed"]);
    refused("sim mutex/central --order random", &["fifo, any or causal"]);
    refused("sim mutex/central --crash 2", &["NODE@TIME"]);
    refused("sim mutex/central --crash 9@1ms", &["the nodes are 0 to 4"]);
    refused("sim mutex/central --crash 2@5ms..1ms", &["the end must lie after the start"]);
    refused("sim mutex/central --partition 0+x@1ms", &["NODE+NODE@TIME"]);
    refused("sim mutex/central --partition 0+7@1ms..2ms", &["the nodes are 0 to 4"]);
    refused("sim mutex/central --pause 1@1ms", &["NODE@TIME..TIME"]);
    refused("sim mutex/central --seeds 5", &["0..1000"]);
    refused("sim mutex/central --seeds 7..3", &["the first seed must be smaller"]);
    refused("sim mutex/central --seed 1 --seeds 0..3", &["--seed"]);
    refused("sim mutex/central --load medium", &["low, high"]);
    refused("sim mutex/central --load script:7@1ms", &["the nodes are 0 to 4"]);
    refused("sim mutex/central --cs 1", &["a unit"]);
    refused("sim mutex/central --entries many", &["--entries"]);
    refused("sim mutex/maekawa --quorum plane --nodes 8", &["8", "7"]);
    refused("sim mutex/maekawa --quorum wheel", &["plane, grid, majority or all"]);
    refused("compare mutex --only maekawa --quorum plane --nodes 8", &["8", "7"]);
    refused("sim mutex/central --config no/such/file.toml", &["no/such/file.toml"]);
    refused("sim mutex/central --trace no/such/folder/t.jsonl", &["no/such/folder/t.jsonl"]);
    refused("compare mutex --nodes 3 --svg no/such/folder/t.svg", &["no/such/folder/t.svg"]);
    refused("replay no-such-file.jsonl", &["no-such-file.jsonl"]);
    refused("replay 7", &["a seed needs its algorithm"]);
    refused("replay", &["FILE", "see `conclave replay --help`"]);
    let json = line("check mutex --all --json");
    assert_eq!((json.status.code(), text(&json.stdout)), (Some(2), String::new()), "the table is no JSON");
    refused("compare mutex --only central-bully", &["not compared", "conclave sim mutex/central-bully"]);
    refused("list mutex election", &["unexpected argument 'election'", "see `conclave list --help`"]);
    refused("watch -n -1 x", &["'-1' is negative"]);
    refused("run x", &["<CMD>", "see `conclave run --help`"]);
    refused("run --timeout 5 x -- true", &["'--timeout <D>'", "a unit"]);
    refused("smi", &["(there are: run, lock, unlock,", ", man, help)"]);
    refused("sim mutex/central --entries 99999999999999999999", &["the number is too large"]);
}

/// A value that a scenario cannot have. Without the bound, the run would panic, saturate or fill the memory.
#[test]
fn a_value_beyond_its_bound_is_refused_with_the_bound() {
    refused("sim timesync/ntp --drift 1000000", &["--drift is too large", "at most 200000"]);
    refused("sim mutex/lamport --cs 99999d", &["--cs", "99999d is too long", "at most 100d"]);
    refused("sim mutex/lamport --cs 99999999999999d", &["the duration is too long"]);
    refused("sim detector/adaptive --skew 10000d", &["--skew", "at most 100d"]);
    refused("sim mutex/lamport --delay constant:9999d", &["--delay", "at most 100d"]);
    refused("sim mutex/lamport --load poisson:9999d", &["--load", "at most 100d"]);
    refused("sim election/bully --step 1@1s,+9999d", &["--step", "at most 100d"]);
    refused(
        "sim mutex/lamport --nodes 1000000",
        &["lamport has state for every pair", "at most 2000 nodes", "raymond"],
    );
    refused("sim mutex/central-bully --delay constant:1d", &["--delay is too long", "at most 1m"]);
    refused("check mutex/lamport --threads 100000000", &["a number of threads from 1 to 1024"]);
    refused("matrix mutex --entries 255", &["--entries", "254"]);
    refused("sim timesync/berkeley --nodes 100000", &["at most 2000 nodes"]);
    refused("sim detector/heartbeat --period 1ns", &["--period is too short", "at least 1us"]);
    refused("sim mutex/lamport --quorum plane", &["--quorum has no effect", "lamport has no quorums"]);
    refused(
        "sim snapshot/lai-yang --balance 18446744073709551615",
        &["--balance", "at most 3689348814741910323"],
    );
}

#[test]
fn extreme_delays_are_run() {
    for run in
        ["mutex/token-ring --delay lognormal:1ms,6 --entries 20", "deadlock/wait-die --delay lognormal:1ms,6"]
    {
        let output = line(&format!("sim {run}"));
        assert!(matches!(output.status.code(), Some(0 | 1 | 3)), "{run}: {}", text(&output.stderr));
    }
    refused("sim mutex/token-ring --delay lognormal:100d,10", &["the mean delay is longer than 100d"]);
    let shown = prints("sim mutex/token-ring --delay constant:100d --entries 5000", 3);
    assert!(shown.contains("584 years") && shown.contains("not judged: the run is bounded"), "{shown}");
}

/// Outside of its assumptions, an algorithm may give wrong answers, but it does not panic.
#[test]
fn duplicated_messages_are_judged() {
    for algorithm in ["diffusion", "p-out-of-q"] {
        for faults in ["--duplicate 1", "--loss 0.2 --duplicate 0.2"] {
            let output = line(&format!("sim deadlock/{algorithm} {faults} --seeds 0..5"));
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 1 | 3)), "{algorithm} {faults}: {}", text(&output.stderr));
        }
    }
}

#[test]
fn a_sweep_counts_the_violations_of_each_property() {
    let sweep = prints("sim mutex/lamport --order any --delay exponential:1ms --load high --seeds 0..20", 1);
    let line = sweep.lines().find(|line| line.starts_with("  ME1 ")).expect("a line for ME1");
    assert!(line.contains("of 20 runs, violated in "), "{sweep}");
}

#[test]
fn a_file_that_is_no_trace_is_refused_with_its_name() {
    let folder = folder("no-trace");
    let file = folder.join("notes.jsonl");
    for contents in [
        "",
        "not json\n",
        "{}\n",
        "{\"format\":99,\"code\":\"9\",\"algorithm\":\"mutex/x\",\"nodes\":1,\"seed\":1,\"scenario\":\"\"}\n",
    ] {
        std::fs::write(&file, contents).expect("the file is ours");
        refused(&format!("replay {}", shown(&file)), &["notes.jsonl"]);
        refused(&format!("replay {} --verify", shown(&file)), &["notes.jsonl"]);
    }
}

/// In `conclave ... | head -1`, the reader closes the pipe, which is no error.
#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_conclave"))
        .args(["replay", "1", "mutex/lamport", "--nodes", "20", "--load", "high", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut pipe = child.stdout.take().expect("piped");
    pipe.read_exact(&mut [0; 16]).expect("it prints something");
    drop(pipe);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(text(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}
