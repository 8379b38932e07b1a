//! Golden scenarios of the snapshot problem: the schedules of the lectures as scripts in
//! `tests/snapshot/*.txt`.
//!
//! The head of a script names the algorithm, the accounts and the expected picture:
//!
//! | setting | meaning |
//! |---|---|
//! | `algorithm snapshot/NAME` | the algorithm |
//! | `nodes N`, `balances A B ...` | the accounts |
//! | `picture A B ... 1->0:80` | the picture at every site: the balances, then the amounts in flight |
//!
//! The problem's commands are `take A ID` and `transfer A TO AMOUNT`.
//! `CONCLAVE_REWRITE=1 cargo test -p conclave-algorithms --test all snapshot_scenarios` writes the actual
//! effects into the files. It never rewrites `picture`.

use conclave_algorithms::snapshot::bank::{Bank, Transfer};
use conclave_algorithms::snapshot::{self, Command, Snapshot, SnapshotId};
use conclave_kernel::NodeId;
use conclave_sim::script::{Played, Script, ScriptError, Stage};

#[test]
fn every_schedule_comes_true() {
    let scripts = crate::support::scripts("snapshot");
    assert!(scripts.len() >= 4, "{scripts:?}");
    crate::support::come_true(&scripts, play);
}

#[test]
fn a_schedule_with_another_picture_fails() {
    let text = "algorithm snapshot/lai-yang\nnodes 1\nbalances 7\npicture 8\n\ntake 0 1\n----\n";
    let error = play(&Script::parse("test.txt", text).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "test.txt:1: `picture 8` but the picture is 7");
}

macro_rules! player {
    ($algorithm:ty) => {
        (<$algorithm as Snapshot<Bank>>::CARD, play_with::<$algorithm> as crate::support::Player)
    };
}

fn play(script: &Script) -> Result<Played, ScriptError> {
    script.allow(&["algorithm", "nodes", "balances", "picture"])?;
    let algorithm = script.setting("algorithm").unwrap_or_default();
    let found =
        snapshot::each!(player, Bank).into_iter().find(|(card, _)| card.path().to_string() == algorithm);
    let (_, play) = found.ok_or_else(|| script.error(format!("there is no algorithm `{algorithm}`")))?;
    let played = play(script)?;
    let promised = script.setting("picture").unwrap_or_default();
    let pictures: Vec<_> =
        played.text.lines().filter_map(|line| line.strip_prefix("  emit Complete(")).map(numbers).collect();
    match pictures.iter().find(|picture| **picture != promised) {
        Some(other) => Err(script.error(format!("`picture {promised}` but the picture is {other}"))),
        None if pictures.len() as u32 == script.nodes()? => Ok(played),
        None => Err(script.error("the snapshot is not complete at every site".into())),
    }
}

fn play_with<P: Snapshot<Bank>>(script: &Script) -> Result<Played, ScriptError> {
    let nodes = script.nodes()?;
    let balances = script.setting("balances").unwrap_or_default();
    let balances: Option<Vec<u64>> =
        balances.split_whitespace().map(|balance| balance.parse().ok()).collect();
    let balances = balances.filter(|balances| balances.len() == nodes as usize);
    let balances =
        balances.ok_or_else(|| script.error("expected `balances A B ...`, one per site".into()))?;
    let mut stage = Stage::new(nodes, move |me| P::new(me, nodes, Bank { balance: balances[me.index()] }));
    script.play(&mut stage, command)
}

fn command(verb: &str, arguments: &[&str]) -> Result<Command<Bank>, String> {
    let number = |text: &str| text.parse::<u32>().map_err(|_| format!("`{text}` is not a number"));
    match (verb, arguments) {
        ("take", [id]) => Ok(Command::Take(SnapshotId(number(id)?))),
        ("transfer", [to, amount]) => {
            Ok(Command::App(Transfer { to: NodeId(number(to)?), amount: u64::from(number(amount)?) }))
        }
        _ => Err(format!("unknown command `{verb}`; the problem has: take A ID, transfer A TO AMOUNT")),
    }
}

/// Converts the printed form of a picture into the form of the setting: `550 170 1->0:80`.
fn numbers(picture: &str) -> String {
    let (mut balances, mut channels, mut site, mut from) = (Vec::new(), Vec::new(), "", "");
    for word in picture.split(['{', '}', ',', '(', ')', '[', ']']).map(str::trim) {
        if let Some(name) = word.strip_prefix("site: n") {
            site = name;
        } else if let Some(balance) = word.strip_prefix("balance: ") {
            balances.push(balance.to_owned());
        } else if let Some(name) = word.strip_prefix("from: n") {
            from = name;
        } else if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()) && !from.is_empty() {
            channels.push(format!("{from}->{site}:{word}"));
        }
        if word.starts_with("id: ") {
            from = ""; // the next part begins, and its number is not an amount
        }
    }
    balances.into_iter().chain(channels).collect::<Vec<_>>().join(" ")
}
