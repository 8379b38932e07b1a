//! Golden scenarios of the election room: scripts in the language of [`conclave_sim::script`].
//!
//! | setting | meaning |
//! |---|---|
//! | `algorithm election/NAME` | the tenant |
//! | `nodes N` | how many sites |
//! | `elects A B none ...` | whom each site has elected in the end |
//!
//! `CONCLAVE_REWRITE=1 cargo test -p conclave-algorithms --test election_scenarios` writes what happened into the
//! files; `elects` is never rewritten.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use conclave_algorithms::election::{self, Command, Election, Group, Visit};
use conclave_kernel::NodeId;
use conclave_sim::script::{Played, Script, ScriptError, Stage, golden};

#[test]
fn every_scenario_comes_true() {
    let scenarios = scenarios();
    assert!(!scenarios.is_empty());
    for path in scenarios {
        golden(&path, play).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn a_scenario_that_elects_somebody_else_fails() {
    let text = "algorithm election/bully\nnodes 2\nelects 0 0\n\nelect 1\nsettle\n----\n";
    let error = play(&Script::parse("test.txt", text).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "test.txt:1: `elects 0 0` but they elected 1 1");
}

fn scenarios() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/election")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the scenarios are in the repository") {
            let path = entry.expect("a folder can be listed").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "txt") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn play(script: &Script) -> Result<Played, ScriptError> {
    script.allow(&["algorithm", "nodes", "elects"])?;
    let algorithm = script.setting("algorithm").unwrap_or_default();
    let tenant = algorithm.strip_prefix("election/").and_then(|name| election::visit(name, Play(script)));
    let played = tenant.ok_or_else(|| script.error(format!("there is no algorithm `{algorithm}`")))??;
    judge(script, &played)?;
    Ok(played)
}

struct Play<'a>(&'a Script);

impl Visit for Play<'_> {
    type Out = Result<Played, ScriptError>;

    fn visit<P: Election>(self) -> Self::Out {
        let nodes = self.0.nodes()?;
        let group = Group::new(nodes, Duration::from_millis(1));
        let mut stage = Stage::new(nodes, move |me| P::new(me, &group));
        self.0.play(&mut stage, command)
    }
}

/// The room's commands: `elect A`, `resign A`, `suspect A B`, `trust A B`.
fn command(verb: &str, arguments: &[&str]) -> Result<Command, String> {
    let site = |text: &str| text.parse().map(NodeId).map_err(|_| format!("`{text}` is no site"));
    match (verb, arguments) {
        ("elect", []) => Ok(Command::Elect),
        ("resign", []) => Ok(Command::Resign),
        ("suspect", [about]) => site(about).map(Command::Suspect),
        ("trust", [about]) => site(about).map(Command::Trust),
        _ => Err(format!("`{verb}` is no command; the room has: elect A, resign A, suspect A B, trust A B")),
    }
}

/// Whom each site elected in the end, as against what the head says.
fn judge(script: &Script, played: &Played) -> Result<(), ScriptError> {
    let mut elected = vec!["none".to_owned(); script.nodes()? as usize];
    let mut actor = 0;
    let number = |text: &str| text.trim_start_matches('n').parse::<usize>().ok();
    for line in played.text.lines() {
        if let Some((site, _)) = line.split_once(" <- ") {
            actor = number(site).unwrap_or(0);
        } else if let Some(leader) = line.strip_prefix("  emit Elected { leader: n") {
            leader.trim_end_matches(" }").clone_into(&mut elected[actor]);
        } else if line == "  emit Vacant" {
            "none".clone_into(&mut elected[actor]);
        } else if let Some(dead) = line.strip_suffix(" crashed").and_then(number) {
            "none".clone_into(&mut elected[dead]);
        }
    }
    let (elected, promised) = (elected.join(" "), script.setting("elects").unwrap_or_default());
    if promised == elected {
        return Ok(());
    }
    Err(script.error(format!("`elects {promised}` but they elected {elected}")))
}
