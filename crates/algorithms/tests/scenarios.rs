//! Golden scenarios of mutual exclusion: the worked examples of papers and lectures, and the traps, step by
//! step.
//!
//! Each file below `scenarios/mutex/` is a script in the language of [`conclave_sim::script`]. Its head names
//! the algorithm and the result, which must hold whatever the detailed effects are:
//!
//! | setting | meaning |
//! |---|---|
//! | `algorithm PROBLEM/NAME` | the algorithm |
//! | `nodes N` | the number of sites |
//! | `quorums A+B B+C C+A` | the quorum of each site, for algorithms that use quorums |
//! | `grants A B ...` | the sites that enter, in this order; `grants none` if there are none |
//! | `breaks ME1` | two sites are inside at once: the script shows the effect of a missing assumption |
//!
//! `CONCLAVE_REWRITE=1 cargo test -p conclave-algorithms --test all scenarios` writes the actual effects into
//! the files of all problems. It never rewrites `grants` and `breaks`.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use conclave_algorithms::mutex::{self, Command, Event, Group, Mutex};
use conclave_kernel::{NodeId, NodeSet};
use conclave_sim::script::{Played, Script, ScriptError, Stage};
use conclave_sim::{Desk, Director, Limits, Setup, World};

const FOLDER: &str = "scenarios/mutex";

#[test]
fn every_scenario_comes_true() {
    crate::support::come_true(&crate::support::scripts(FOLDER), play);
}

#[test]
fn every_algorithm_of_the_mutex_problem_has_a_scenario() {
    let told: BTreeSet<String> = crate::support::scripts(FOLDER)
        .iter()
        .map(|path| Script::parse("scenario", &fs::read_to_string(path).unwrap()).unwrap())
        .filter_map(|script| script.setting("algorithm"))
        .collect();
    let untold: Vec<_> =
        mutex::CARDS.iter().map(|card| card.path().to_string()).filter(|path| !told.contains(path)).collect();
    assert_eq!(untold, [""; 0]);
}

#[test]
fn a_scenario_whose_grants_come_in_another_order_fails() {
    let text = "algorithm mutex/ricart-agrawala\nnodes 2\ngrants 0 1\n\nacquire 1\nsettle\n----\n";
    let error = play(&Script::parse("test.txt", text).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "test.txt:1: `grants 0 1` but the grants went to 1");
}

/// The account holds 1,000. Two machines deposit 10,000 each: both read the balance, then both write it.
#[test]
fn two_machines_lose_a_deposit_without_a_lock_and_none_with_any_algorithms() {
    macro_rules! balance {
        ($algorithm:ty) => {
            (<$algorithm as Mutex>::CARD, balance::<$algorithm> as fn(bool) -> u64)
        };
    }
    for (card, balance) in mutex::each!(balance) {
        assert_eq!(balance(false), 11_000, "{}", card.path());
        assert_eq!(balance(true), 21_000, "{}", card.path());
    }
}

macro_rules! player {
    ($algorithm:ty) => {
        (<$algorithm as Mutex>::CARD, play_with::<$algorithm> as crate::support::Player)
    };
}

fn play(script: &Script) -> Result<Played, ScriptError> {
    script.allow(&["algorithm", "nodes", "quorums", "grants", "breaks"])?;
    let algorithm = script.setting("algorithm").unwrap_or_default();
    let mut players = mutex::each!(player).into_iter().chain(mutex::each_layered!(player));
    let found = players.find(|(card, _)| card.path().to_string() == algorithm);
    let (_, play) = found.ok_or_else(|| script.error(format!("there is no algorithm `{algorithm}`")))?;
    let played = play(script)?;
    judge(script, &played)?;
    Ok(played)
}

fn play_with<P: Mutex>(script: &Script) -> Result<Played, ScriptError> {
    let nodes = script.nodes()?;
    let quorums = script.setting("quorums").map(|text| quorums(&text, nodes)).unwrap_or(Some(Vec::new()));
    let quorums =
        quorums.ok_or_else(|| script.error("expected `quorums A+B B+C ...`, one per site".into()))?;
    if P::USES_QUORUMS == quorums.is_empty() {
        return Err(script.error(
            "`quorums` is allowed only for algorithms that use quorums, and required for these".into(),
        ));
    }
    let group = Group { quorums, ..Group::new(nodes) };
    let mut stage = Stage::new(nodes, move |me| P::new(me, &group));
    script.play(&mut stage, command)
}

fn quorums(text: &str, nodes: u32) -> Option<Vec<NodeSet>> {
    let site = |text: &str| text.parse().ok().filter(|site| *site < nodes).map(NodeId);
    let quorum = |text: &str| text.split('+').map(site).collect::<Option<NodeSet>>();
    text.split_whitespace().map(quorum).collect::<Option<Vec<_>>>().filter(|all| all.len() == nodes as usize)
}

/// Parses a command of the problem: `acquire A`, `release A`, `witness A TIME`.
fn command(verb: &str, arguments: &[&str]) -> Result<Command, String> {
    match (verb, arguments) {
        ("acquire", []) => Ok(Command::Acquire),
        ("release", []) => Ok(Command::Release),
        ("witness", [time]) => {
            time.parse().map(Command::Witness).map_err(|_| format!("`{time}` is not a time"))
        }
        _ => Err(format!("unknown command `{verb}`; the problem has: acquire A, release A, witness A TIME")),
    }
}

/// Compares the run with the head of the script: the order of entries, and whether two sites were inside at
/// once. The fences must grow unless the script breaks ME1.
fn judge(script: &Script, played: &Played) -> Result<(), ScriptError> {
    let (mut actor, mut inside, mut grants, mut overlap) = ("", Vec::new(), Vec::new(), false);
    let mut fences: Vec<u64> = Vec::new();
    for line in played.text.lines() {
        if let Some((site, _)) = line.split_once(" <- ") {
            actor = site.trim_start_matches('n');
        } else if let Some(fence) = line.strip_prefix("  emit Granted { fence: Fence(") {
            fences.extend(fence.strip_suffix(") }").and_then(|fence| fence.parse::<u64>().ok()));
            overlap |= !inside.is_empty();
            inside.push(actor);
            grants.push(actor);
        } else if line.starts_with("  emit Released") || line.ends_with(" crashed") {
            let gone = line.strip_suffix(" crashed").map_or(actor, |site| site.trim_start_matches('n'));
            inside.retain(|site| *site != gone);
        }
    }
    let breaks = script.setting("breaks");
    if fences.len() != grants.len() || (breaks.is_none() && !fences.is_sorted_by(|a, b| a < b)) {
        return Err(script.error(format!("the fences do not grow: {fences:?}")));
    }
    let grants = if grants.is_empty() { "none".into() } else { grants.join(" ") };
    let promised = script.setting("grants").unwrap_or_default();
    if promised != grants {
        return Err(script.error(format!("`grants {promised}` but the grants went to {grants}")));
    }
    match (breaks.as_deref(), overlap) {
        (None, false) | (Some("ME1"), true) => Ok(()),
        (None, true) => Err(script.error("two are inside at once".into())),
        (Some(_), _) => Err(script.error("`breaks ME1`, but two sites are never inside together".into())),
    }
}

/// Returns the balance after both machines have deposited.
fn balance<P: Mutex>(locked: bool) -> u64 {
    let setup = Setup { nodes: 2, ..Setup::default() };
    let quorums = if P::USES_QUORUMS { vec![NodeSet::full(2); 2] } else { Vec::new() };
    let group = Group { quorums, ..Group::new(2) };
    let bank = Bank { locked, balance: 1_000, read: [0; 2], deposits: 0 };
    let mut world = World::new(setup, bank, move |me| P::new(me, &group));
    world.run(Limits::default());
    world.director().balance
}

/// An account on which two machines deposit. A machine reads the balance, counts the notes for a millisecond,
/// and writes the sum.
struct Bank {
    locked: bool,
    balance: u64,
    read: [u64; 2],
    deposits: u32,
}

impl Bank {
    fn read<P: Mutex>(&mut self, machine: NodeId, desk: &mut Desk<'_, P, ()>) {
        self.read[machine.index()] = self.balance;
        desk.wake_in(Duration::from_millis(1), u64::from(machine.0));
    }
}

impl<P: Mutex> Director<P> for Bank {
    type Note = ();

    fn on_begin(&mut self, desk: &mut Desk<'_, P, ()>) {
        for machine in [NodeId(0), NodeId(1)] {
            match self.locked {
                true => desk.command(machine, Command::Acquire),
                false => self.read(machine, desk),
            }
        }
    }

    fn on_event(&mut self, machine: NodeId, event: &Event, desk: &mut Desk<'_, P, ()>) {
        if matches!(event, Event::Granted { .. }) {
            self.read(machine, desk);
        }
    }

    fn on_wake(&mut self, machine: u64, desk: &mut Desk<'_, P, ()>) {
        self.balance = self.read[machine as usize] + 10_000;
        self.deposits += 1;
        if self.deposits == 2 {
            desk.stop();
        } else if self.locked {
            desk.command(NodeId(machine as u32), Command::Release);
        }
    }

    fn on_send(&mut self, _: NodeId, _: NodeId, _: &P::Message) {}
    fn on_deliver(&mut self, _: NodeId, _: NodeId, (): &()) {}
}
