//! Golden scenarios of the election problem: scripts in the language of [`conclave_sim::script`].
//!
//! | setting | meaning |
//! |---|---|
//! | `algorithm election/NAME` | the algorithm |
//! | `nodes N` | the number of sites |
//! | `elects A B none ...` | the site that each site has elected at the end |
//!
//! `CONCLAVE_REWRITE=1 cargo test -p conclave-algorithms --test all election_scenarios` writes the actual
//! effects into the files. It never rewrites `elects`.

use std::time::Duration;

use conclave_algorithms::election::{self, Command, Election, Group};
use conclave_kernel::NodeId;
use conclave_sim::script::{Played, Script, ScriptError, Stage};

#[test]
fn every_scenario_comes_true() {
    crate::support::come_true(&crate::support::scripts("scenarios/election"), play);
}

#[test]
fn a_scenario_that_elects_somebody_else_fails() {
    let text = "algorithm election/bully\nnodes 2\nelects 0 0\n\nelect 1\nsettle\n----\n";
    let error = play(&Script::parse("test.txt", text).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "test.txt:1: `elects 0 0` but the sites elected 1 1");
}

macro_rules! player {
    ($algorithm:ty) => {
        (<$algorithm as Election>::CARD, play_with::<$algorithm> as crate::support::Player)
    };
}

fn play(script: &Script) -> Result<Played, ScriptError> {
    script.allow(&["algorithm", "nodes", "elects"])?;
    let algorithm = script.setting("algorithm").unwrap_or_default();
    let found = election::each!(player).into_iter().find(|(card, _)| card.path().to_string() == algorithm);
    let (_, play) = found.ok_or_else(|| script.error(format!("there is no algorithm `{algorithm}`")))?;
    let played = play(script)?;
    judge(script, &played)?;
    Ok(played)
}

fn play_with<P: Election>(script: &Script) -> Result<Played, ScriptError> {
    let nodes = script.nodes()?;
    let group = Group::new(nodes, Duration::from_millis(1));
    let mut stage = Stage::new(nodes, move |me| P::new(me, &group));
    script.play(&mut stage, command)
}

/// Parses a command of the problem: `elect A`, `resign A`, `suspect A B`, `trust A B`.
fn command(verb: &str, arguments: &[&str]) -> Result<Command, String> {
    let site = |text: &str| text.parse().map(NodeId).map_err(|_| format!("`{text}` is not a site"));
    match (verb, arguments) {
        ("elect", []) => Ok(Command::Elect),
        ("resign", []) => Ok(Command::Resign),
        ("suspect", [about]) => site(about).map(Command::Suspect),
        ("trust", [about]) => site(about).map(Command::Trust),
        _ => Err(format!(
            "unknown command `{verb}`; the problem has: elect A, resign A, suspect A B, trust A B"
        )),
    }
}

/// Compares the site that each site elected at the end with the head of the script.
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
    Err(script.error(format!("`elects {promised}` but the sites elected {elected}")))
}
