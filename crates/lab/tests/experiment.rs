//! The flags of every problem: a work that is written as flags is read back unchanged.

use clap::Command;
use conclave_kernel::Prng;
use conclave_lab::case::Explored;
use conclave_lab::experiment::{Experiment, Run, Space, file, flags};
use conclave_lab::problem::Problem;
use conclave_lab::problems::{deadlock, detector, election, mutex, snapshot, timesync};
use serde::Serialize;
use serde_json::{Value, json};

/// Reads flags into the default work.
fn read<W: clap::Args + Default + Serialize>(flags: &[String]) -> W {
    let words = flags.iter().flat_map(|flag| flag.split_whitespace()).map(|word| word.trim_matches('\''));
    let command = flags::added::<W>(Command::new("test").no_binary_name(true));
    let matches = command.try_get_matches_from(words).unwrap_or_else(|error| panic!("{flags:?}: {error}"));
    let mut work = W::default();
    work.update_from_arg_matches(&matches).unwrap_or_else(|error| panic!("{flags:?}: {error}"));
    work
}

fn written<W: Default + Serialize>(work: &W) -> Vec<String> {
    flags::written(work, &W::default())
}

/// Checks random choices of these flags. Together, the flags must change every field of the work.
fn assert_identity<W>(pool: &[&str])
where
    W: clap::Args + Default + PartialEq + std::fmt::Debug + Serialize,
{
    let pool: Vec<_> = pool.iter().map(ToString::to_string).collect();
    for seed in 0..200 {
        let mut random = Prng::new(seed);
        let mut chosen: Vec<_> = pool.iter().filter(|_| random.below(3) == 0).cloned().collect();
        // Of two values for one flag, clap rejects the second.
        let mut names = Vec::new();
        chosen.retain(|flag| {
            let name = flag.split([' ', '=']).next().unwrap_or_default().to_owned();
            let is_new = flag.ends_with(' ') || !names.contains(&name);
            names.push(name);
            is_new
        });
        let work: W = read(&chosen);
        let again: W = read(&written(&work));
        assert_eq!(work, again, "seed {seed}: {chosen:?} is written as {:?}", written(&work));
    }
    let default = serde_json::to_value(W::default()).expect("a work is JSON");
    for name in default.as_object().expect("a work has fields").keys() {
        let flag = format!("--{}", name.replace('_', "-"));
        let of_field = pool.iter().filter(|it| it.split([' ', '=']).next() == Some(&flag));
        let changes =
            |it: &String| serde_json::to_value(read::<W>(std::slice::from_ref(it))).expect("JSON") != default;
        assert!(of_field.into_iter().any(changes), "no flag of the test changes the field {name}");
    }
}

#[test]
fn a_work_of_any_problem_is_written_as_flags_and_read_back() {
    assert_identity::<mutex::Work>(&[
        "--load high",
        "--load script:0@0,1@2ms",
        "--load poisson:1234567ns",
        "--entries 7",
        "--entries 100",
        "--cs 1500us",
        "--cs 0",
        "--quorum all",
        "--quorum plane",
    ]);
    assert_identity::<election::Work>(&[
        "--start 3",
        "--start all",
        "--elections 9",
        "--trigger resign",
        "--ranks 3,1,2",
        "--ranks random",
        "--notice 1ns",
        "--transmission 3ms",
        "--processing 2ms",
        "--period 1s",
    ]);
    assert_identity::<detector::Work>(&[
        "--period 7ms",
        "--margin 0",
        "--threshold 300",
        "--window 2",
        "--duration 100d",
    ]);
    assert_identity::<snapshot::Work>(&[
        "--app heap",
        "--app work",
        "--balance 18446744073709551615",
        "--acts 0",
        "--gap 1ms",
        "--snapshot 0@5ms --snapshot 0+2@0",
        "--snapshot 1@1s",
    ]);
    assert_identity::<deadlock::Work>(&[
        "--requests 3",
        "--model p-out-of-q",
        "--model single",
        "--think 1us",
        "--detect-only",
        "--detect-only=false",
    ]);
    assert_identity::<timesync::Work>(&[
        "--every 1280ns",
        "--samples 3",
        "--probes 1",
        "--servers 4",
        "--liars 1",
        "--fanout 1",
        "--wanted 800us",
    ]);
}

#[test]
fn a_work_of_the_checker_is_written_as_flags_and_read_back() {
    assert_identity::<mutex::check::Work>(&[
        "--entries 255",
        "--entries 2",
        "--quorum grid",
        "--judged causality",
        "--judged exclusion",
        "--causal",
        "--mistakes 1",
    ]);
    assert_identity::<election::check::Work>(&[
        "--entries 0",
        "--caller 1 --caller 3",
        "--transmission 2ms",
        "--period 5ms",
        "--margin 1us",
        "--mistakes 1",
        "--judged outcome",
    ]);
    assert_identity::<snapshot::check::Work>(&["--entries 3"]);
    assert_identity::<detector::check::Work>(&["--period 4ms", "--margin 3ms"]);
    assert_identity::<deadlock::check::Work>(&["--entries 2", "--resolves", "--phantoms"]);
}

#[test]
fn the_help_shows_the_default_of_each_flag() {
    let help = flags::added::<mutex::Work>(Command::new("test")).render_help().to_string();
    for words in ["[default: low]", "[default: 100]", "[default: 1ms]", "[default: plane if"] {
        assert!(help.contains(words), "{words}: {help}");
    }
}

fn run<W: Problem>(file: Value) -> Result<Run<W>, String> {
    file::read(file, &Run::default()).map_err(|field| field.to_string())
}

#[test]
fn an_experiment_in_a_file_has_the_defaults_of_its_problem() {
    let given =
        run::<timesync::Work>(json!({"work": {"liars": 1}, "world": {"nodes": 7}})).expect("a good file");
    let mut expected = Run::<timesync::Work>::default().with(|work| work.liars = 1);
    expected.world.nodes = 7;
    assert_eq!(given, expected, "also the delays are those of the problem");
    let old =
        run::<timesync::Work>(json!({"liars": 1, "setup": {"nodes": 7}})).expect("the form of format 1");
    assert_eq!(old, expected);
}

#[test]
fn a_run_with_a_flaw_is_refused_and_not_made_without_it() {
    let flawed = run::<mutex::Work>(json!({"algorithm": "maekawa", "flaw": "maekawa-basic", "work": {}}));
    let refusal = flawed.expect("a good file").validate().expect_err("it is refused");
    assert!(refusal.contains("conclave check mutex/maekawa --mutant maekawa-basic"), "{refusal}");
}

#[test]
fn a_mistake_in_a_file_is_reported_with_its_field() {
    for (file, mistake) in [
        (json!({"work": {"entries": "many"}}), "work.entries: invalid type"),
        (json!({"work": {"entries": 3, "cs": 5}}), "work.cs: "),
        (json!({"work": {"entires": 3}}), "work.entires: unknown field"),
        (json!({"world": {"clocks": {"drift_ppm": -1}}}), "world.clocks.drift_ppm: invalid value"),
        (json!({"entries": "many"}), "work.entries: invalid type"),
        (json!({"work": {}, "seed": 3}), "seed: unknown field"),
        (json!([1]), "invalid type"),
    ] {
        let error = run::<mutex::Work>(file).expect_err(mistake);
        assert!(error.starts_with(mistake), "{error}");
    }
}

#[test]
fn the_command_of_an_exploration_names_its_flaw_and_its_world() {
    fn command<W: Explored>(algorithm: &str, work: W, world: Space) -> String {
        use conclave_lab::case::Case as _;
        Experiment { algorithm: algorithm.into(), flaw: Some("flawed".into()), work, world }.command_line()
    }
    let world = Space { nodes: 4, duplicate: 1, sync: Some(2), ..Space::default() };
    let work = mutex::check::Work { entries: 2, ..Default::default() };
    assert_eq!(
        command("maekawa", work, world),
        "conclave check mutex/maekawa --nodes 4 --mutant flawed --entries 2 --duplicate 1 --sync 2"
    );
}
