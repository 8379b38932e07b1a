//! Tests of experiments on the command line: the flags of problems, configuration files, and traces of format
//! 1.

use crate::cli::{conclave, folder, line, prints, read, refused, shown, text};

/// Whether a help text lists a flag; an example of another problem may contain it too.
fn lists(help: &str, flag: &str) -> bool {
    help.lines().any(|line| line.trim_start().starts_with(flag))
}

#[test]
fn the_help_of_a_problem_lists_its_flags_only() {
    let general = prints("sim --help", 0);
    for flag in ["--load", "--balance", "--liars", "--requests"] {
        assert!(!lists(&general, flag), "{flag}: {general}");
    }
    assert!(general.contains("conclave sim mutex --help") && general.contains("--delay"), "{general}");
    for (command, own, other) in [
        ("sim mutex", "--load", "--balance"),
        ("sim mutex/maekawa", "--quorum", "--liars"),
        ("sim snapshot", "--balance", "--load"),
        ("compare timesync", "--liars", "--requests"),
        ("replay deadlock/edge-chasing", "--requests", "--liars"),
        ("check election", "--transmission", "--causal"),
        ("check mutex", "--causal", "--transmission"),
    ] {
        let help = prints(&format!("{command} --help"), 0);
        assert!(lists(&help, own) && !lists(&help, other), "{command}: {help}");
        assert!(help.contains("The work:"), "{command}: {help}");
    }
}

#[test]
fn a_flag_of_another_problem_is_refused_with_its_owner() {
    refused(
        "sim mutex/central --app heap",
        &["--app has no effect in problem mutex", "a flag of problem snapshot"],
    );
    refused("compare election --window 3", &["a flag of problem detector"]);
    refused("check mutex/central --caller 1", &["a flag of problem election"]);
    refused("sim mutex/central --period 1ms", &["a flag of problems election, detector"]);
    refused("sim mutx/maekawa --load high", &["unknown problem 'mutx'", "did you mean mutex?"]);
    refused("sim maekawa --load high", &["did you mean mutex/maekawa?"]);
    refused("sim mutex/central --laod high", &["--load"]);
    refused("sim --svg mutex snapshot/lai-yang", &["put PROBLEM/ALGORITHM first"]);
}

#[test]
fn a_wrong_type_in_a_configuration_is_reported_with_line_and_field() {
    let folder = folder("wrong-types");
    for (name, contents, wanted) in [
        (
            "a.toml",
            "[work]\nload = \"high\"\nentries = \"many\"\n",
            ["a.toml, line 3", "work.entries: invalid type"],
        ),
        ("b.toml", "# cs = 1\nentries = 4\ncs = true\n", ["b.toml, line 3", "work.cs"]),
        ("c.toml", "[world]\n\n[world.clocks]\nskew = 3\n", ["c.toml, line 4", "world.clocks.skew"]),
        ("d.json", "{\"work\": {\n \"entries\": -1}}", ["d.json, line 2", "work.entries: invalid value"]),
        ("e.toml", "[work]\nentires = 3\n", ["e.toml, line 2", "unknown field `entires`"]),
    ] {
        let file = folder.join(name);
        std::fs::write(&file, contents).expect("the file is ours");
        refused(&format!("sim mutex/central --config {}", shown(&file)), &wanted);
    }
}

#[test]
fn an_error_about_a_file_names_the_flag_that_gave_it() {
    for (command, flag) in [
        ("sim mutex/central --config no/such/file", "--config no/such/file"),
        ("sim mutex/central --trace no/such/file", "--trace no/such/file"),
        ("sim mutex/central --svg no/such/file", "--svg no/such/file"),
        ("sim mutex/central --shiviz no/such/file", "--shiviz no/such/file"),
        ("compare mutex --nodes 3 --svg no/such/file", "--svg no/such/file"),
        ("check mutex/lamport --order any --svg no/such/file", "--svg no/such/file"),
        ("check mutex/lamport --order any --trace no/such/file", "--trace no/such/file"),
    ] {
        refused(command, &[flag]);
    }
}

/// The files were written by version 0.1.0, for each problem one run, and for each model one counterexample.
#[test]
fn a_trace_of_format_1_is_replayed_and_verified() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format-1");
    let files = std::fs::read_dir(folder).expect("the folder exists");
    let mut seen = 0;
    for file in files.map(|file| file.expect("a file").path()) {
        assert!(read(&file).starts_with("{\"format\":1,"), "{}", file.display());
        let verdict = conclave(&["replay", shown(&file), "--verify"]);
        assert_eq!(verdict.status.code(), Some(0), "{}: {}", file.display(), text(&verdict.stderr));
        assert!(text(&verdict.stdout).contains("repeats exactly"), "{}", file.display());
        seen += 1;
    }
    assert_eq!(seen, 10);
    let mutex = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format-1/mutex.jsonl");
    let tampered = self::folder("format-1").join("tampered.jsonl");
    std::fs::write(&tampered, read(&mutex).replacen("\"stamp\":2", "\"stamp\":3", 1))
        .expect("the file is ours");
    let verdict = line(&format!("replay {} --verify", shown(&tampered)));
    assert_eq!((verdict.status.code(), text(&verdict.stdout).contains("differs")), (Some(1), true));
}
