//! Golden scenarios of the time synchronisation problem: scripts in the language of [`conclave_sim::script`].
//!
//! | setting | meaning |
//! |---|---|
//! | `algorithm timesync/NAME` | the algorithm |
//! | `nodes N` | the number of sites |
//! | `servers N` | the number of time servers, which are the first sites |
//! | `clocks H:MM:SS.FFF ...` | the time on each site's clock at the start; no clock drifts |
//! | `probes N` | the number of clock readings in one comparison; 1 by default |
//! | `minimum D` | the shortest time that a message can take |
//! | `agreement D` | Berkeley's gamma |
//! | `every TICKS` | DTP's beacon interval |
//! | `corrections +H:MM ...` | the correction of each site's clock at the end; `none` for a server |
//! | `tells H:MM:SS.FFF+-D ...` | each site's last reply to `ask`; `none` if it does not know the time |
//!
//! The problem's command is `ask A`.
//! `CONCLAVE_REWRITE=1 cargo test -p conclave-algorithms --test all timesync_scenarios` writes the actual
//! effects into the files. It never rewrites `corrections` and `tells`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use conclave_algorithms::timesync::dtp::ticks;
use conclave_algorithms::timesync::{self, Command, Group, Minimum, TimeSync};
use conclave_kernel::{NodeId, time};
use conclave_sim::script::{Played, Script, ScriptError, Stage};

const FOLDER: &str = "scenarios/timesync";

#[test]
fn every_scenario_comes_true() {
    crate::support::come_true(&crate::support::scripts(FOLDER), play);
}

#[test]
fn every_idea_of_the_problem_has_a_scenario() {
    let read = |path: &PathBuf| fs::read_to_string(path).expect("the scenarios are in the repository");
    let told: BTreeSet<String> = crate::support::scripts(FOLDER)
        .iter()
        .filter_map(|path| {
            Script::parse("scenario", &read(path)).expect("it is a script").setting("algorithm")
        })
        .collect();
    for name in ["cristian", "ntp", "marzullo", "berkeley", "dtp"] {
        assert!(told.contains(&format!("timesync/{name}")), "{name}");
    }
}

#[test]
fn a_scenario_that_tells_another_time_fails() {
    let head = "algorithm timesync/cristian\nnodes 2\nclocks 0:00:01 0:00:00\ntells 0:00:01+-0 0:00:02+-0";
    let text = &format!("{head}\n\nsettle\nask 0\nask 1\n----\n");
    let error = play(&Script::parse("test.txt", text).expect("it is a script")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "test.txt:1: `tells 0:00:01+-0 0:00:02+-0` but the result is 0:00:01+-0 0:00:01+-0"
    );
}

macro_rules! player {
    ($algorithm:ty) => {
        (<$algorithm as TimeSync>::CARD, play_with::<$algorithm> as crate::support::Player)
    };
}

fn play(script: &Script) -> Result<Played, ScriptError> {
    script.allow(&[
        "algorithm",
        "nodes",
        "clocks",
        "probes",
        "minimum",
        "agreement",
        "every",
        "servers",
        "corrections",
        "tells",
    ])?;
    let algorithm = script.setting("algorithm").unwrap_or_default();
    let found = timesync::each!(player).into_iter().find(|(card, _)| card.path().to_string() == algorithm);
    let (_, play) = found.ok_or_else(|| script.error(format!("there is no algorithm `{algorithm}`")))?;
    let played = play(script)?;
    for (setting, shown) in [("corrections", corrections as fn(&str, usize) -> _), ("tells", tells)] {
        let Some(promised) = script.setting(setting) else { continue };
        let said = shown(&played.text, script.nodes()? as usize).join(" ");
        if said != promised {
            return Err(script.error(format!("`{setting} {promised}` but the result is {said}")));
        }
    }
    Ok(played)
}

fn play_with<P: TimeSync>(script: &Script) -> Result<Played, ScriptError> {
    let nodes = script.nodes()?;
    let wrong = |what: &str| script.error(format!("`{what}` cannot be read"));
    let number = |key: &str| {
        let setting = script.setting(key);
        setting.map(|text| text.parse::<u32>().map_err(|_| wrong(key))).transpose()
    };
    let span =
        |key: &str| script.setting(key).map(|text| time::parse(&text).map_err(|_| wrong(key))).transpose();
    let mut group = Group { probes: 1, drift_ppm: 0, fanout: 1, ..Group::new(nodes) };
    group.probes = number("probes")?.unwrap_or(group.probes);
    group.servers = number("servers")?.unwrap_or(group.servers);
    group.minimum = span("minimum")?.map_or(group.minimum, Minimum::both);
    group.agreement = span("agreement")?.unwrap_or(group.agreement);
    group.period = number("every")?.map_or(group.period, |every| ticks(u64::from(every)));
    let clocks: Vec<Duration> = script
        .setting("clocks")
        .unwrap_or_default()
        .split_whitespace()
        .map(|text| of_day(text).ok_or_else(|| wrong(text)))
        .collect::<Result<_, _>>()?;
    let ahead = move |site: NodeId| clocks.get(site.index()).copied().unwrap_or_default();
    let mut stage = Stage::with_clocks(nodes, ahead, move |me| P::new(me, &group));
    script.play(&mut stage, |verb, arguments| match (verb, arguments) {
        ("ask", []) => Ok(Command::Ask),
        _ => Err(format!("unknown command `{verb}`; the problem has: ask A")),
    })
}

/// Parses `H:MM:SS.FFF`. The seconds and the fraction are optional.
fn of_day(text: &str) -> Option<Duration> {
    let mut parts = text.splitn(3, ':');
    let hours: u64 = parts.next()?.parse().ok()?;
    let minutes: u64 = parts.next()?.parse().ok()?;
    let (seconds, rest) = parts.next().map_or(("0", ""), |text| text.split_once('.').unwrap_or((text, "")));
    let nanos: u64 = format!("{rest:0<9}").parse().ok()?;
    Some(
        Duration::from_secs(hours * 3600 + minutes * 60 + seconds.parse::<u64>().ok()?)
            + Duration::from_nanos(nanos),
    )
}

/// Formats a time so that [`of_day`] can parse it, without trailing zeros.
fn shown(ns: u64) -> String {
    let (seconds, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
    let day = format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let fraction = format!(".{rest:09}");
    day + fraction.trim_end_matches('0').trim_end_matches('.')
}

/// Returns for each site the last line of its steps that starts with `begins`, read by `read`; `none` without
/// such a line.
fn last_said(played: &str, nodes: usize, begins: &str, read: impl Fn(&str) -> String) -> Vec<String> {
    let mut said = vec!["none".to_owned(); nodes];
    let mut actor = None;
    for line in played.lines() {
        if let Some((site, _)) = line.split_once(" <- ") {
            actor = site.strip_prefix('n').and_then(|site| site.parse::<usize>().ok());
        } else if let (Some(rest), Some(actor)) = (line.strip_prefix(begins), actor) {
            said[actor] = read(rest);
        }
    }
    said
}

/// Returns the number after a field name in `Debug` output.
fn field(text: &str, name: &str) -> Option<i64> {
    let rest = &text[text.find(name)? + name.len()..];
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

fn corrections(played: &str, nodes: usize) -> Vec<String> {
    last_said(played, nodes, "  emit Synced { offset: ", |rest| {
        let offset = field(rest, "").unwrap_or_default();
        format!("{}{}", if offset < 0 { '-' } else { '+' }, shown(offset.unsigned_abs()))
    })
}

fn tells(played: &str, nodes: usize) -> Vec<String> {
    last_said(played, nodes, "  emit Told(Reading { ", |rest| {
        let Some((lo, hi)) = field(rest, "lo: ").zip(field(rest, "hi: ")) else { return "none".into() };
        let (guess, bound) = (lo.midpoint(hi), (hi - lo).unsigned_abs().div_ceil(2));
        format!("{}+-{}", shown(guess.unsigned_abs()), conclave_sim::exact(Duration::from_nanos(bound)))
    })
}
