//! The scenario of the snapshot problem.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use conclave_algorithms::snapshot::bank::Bank;
use conclave_algorithms::snapshot::heap::Heap;
use conclave_algorithms::snapshot::work::Work;
use conclave_algorithms::snapshot::{self, Snapshot};
use conclave_kernel::{Card, NodeId};
use conclave_sim::{Setup, exact, text};
use serde::{Deserialize, Serialize};

use super::play::Played;
use super::{Report, run_made};
use crate::problem::{self, Entry, Recorder};

/// Everything that determines a run of the snapshot problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// The algorithm's name.
    pub algorithm: String,
    /// Network, clocks, faults, seed.
    pub setup: Setup,
    /// The application.
    pub app: App,
    /// The initial balance of each account.
    pub balance: u64,
    /// The number of acts over all sites.
    pub acts: u64,
    /// The mean time from one act to the next.
    #[serde(with = "conclave_sim::text::duration")]
    pub gap: Duration,
    /// The snapshots; the first has number 1. If the list is empty, the first site starts one halfway. If the
    /// application has a stable property, it starts another one after the end of the work.
    pub snapshots: Vec<Shot>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            algorithm: "chandy-lamport".into(),
            setup: Setup::default(),
            app: App::Bank,
            balance: 200,
            acts: 100,
            gap: Duration::from_micros(200),
            snapshots: Vec::new(),
        }
    }
}

impl Scenario {
    /// Returns the snapshots of the run.
    pub(super) fn shots(&self) -> Vec<Shot> {
        if !self.snapshots.is_empty() {
            return self.snapshots.clone();
        }
        let acts = u32::try_from(self.acts).unwrap_or(u32::MAX);
        let work = self.gap.saturating_mul(acts);
        let halfway = Shot { at: work / 2, nodes: vec![NodeId(0)] };
        // A task is at most eight units of a millisecond. In this time, even a single site completes all
        // tasks.
        let done = work.saturating_add(Duration::from_millis(10).saturating_mul(acts));
        let after = Shot { at: done, nodes: vec![NodeId(0)] };
        if self.app == App::Bank { vec![halfway] } else { vec![halfway, after] }
    }
}

impl problem::Scenario for Scenario {
    const PROBLEM: &'static str = "snapshot";
    type Report = Report;

    fn cards() -> &'static [Card] {
        snapshot::CARDS
    }

    problem::accessors!();

    fn work(&self) -> u64 {
        self.acts
    }

    fn set_work(&mut self, work: u64) {
        self.acts = work;
    }

    fn length(&self) -> Duration {
        let last = self.shots().iter().map(|shot| shot.at).max().unwrap_or_default();
        last.saturating_add(self.setup.delay.mean().saturating_mul(4))
    }

    /// Allows for large gaps between acts and snapshots.
    fn patience(&self) -> Duration {
        let last = self.shots().iter().map(|shot| shot.at).max().unwrap_or_default();
        problem::patience(self.gap + self.setup.delay.mean()).saturating_add(last)
    }

    fn validate(&self) -> Result<(), String> {
        const MOST_SNAPSHOTS: usize = 1_000;
        self.setup.validate()?;
        if self.app == App::Bank && self.balance.checked_mul(u64::from(self.setup.nodes)).is_none() {
            let most = u64::MAX / u64::from(self.setup.nodes);
            return Err(format!(
                "--balance is too large for {} accounts: give at most {most}",
                self.setup.nodes
            ));
        }
        let strangers = self.snapshots.iter().flat_map(|shot| &shot.nodes);
        if let Some(stranger) = strangers.into_iter().find(|node| node.0 >= self.setup.nodes) {
            return Err(format!(
                "there is no node {}: the nodes are 0 to {}",
                stranger.0,
                self.setup.nodes - 1
            ));
        }
        if self.snapshots.len() > MOST_SNAPSHOTS {
            return Err(format!("too many snapshots: give at most {MOST_SNAPSHOTS}"));
        }
        Ok(())
    }

    fn flags(&self) -> Vec<String> {
        let default = Self::default();
        let mut flags = Vec::new();
        if self.app != default.app {
            flags.push(format!("--app {}", self.app));
        }
        if self.balance != default.balance {
            flags.push(format!("--balance {}", self.balance));
        }
        if self.acts != default.acts {
            flags.push(format!("--acts {}", self.acts));
        }
        if self.gap != default.gap {
            flags.push(format!("--gap {}", exact(self.gap)));
        }
        // The flags always list the snapshots, because the default times depend on the amount of work.
        flags.extend(self.snapshots.iter().map(|shot| format!("--snapshot {shot}")));
        flags
    }

    fn entry(&self) -> Option<&'static Entry<Self>> {
        let entries = match self.app {
            App::Bank => entries::<Bank>(),
            App::Work => entries::<Work>(),
            App::Heap => entries::<Heap>(),
        };
        entries.iter().find(|entry| entry.card.name == self.algorithm)
    }
}

macro_rules! entry {
    ($algorithm:ty) => {
        Entry { card: &<$algorithm as Snapshot<A>>::CARD, simulate: simulate::<A, $algorithm> }
    };
}

/// Returns the algorithms around an application.
fn entries<A: Played>() -> &'static [Entry<Scenario>] {
    const { &snapshot::each!(entry, A) }
}

fn simulate<A: Played, P: Snapshot<A>>(
    scenario: &Scenario,
    recorder: &mut Recorder,
) -> Result<Report, String> {
    let (report, trace) = run_made::<A, P>(scenario, P::new, recorder.wants_trace())?;
    recorder.take(trace.as_ref())?;
    Ok(report)
}

/// The application of which the snapshots are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum App {
    /// Transfers between accounts. The sum is conserved.
    #[default]
    Bank,
    /// Tasks that spread and end. The end of all work is stable.
    Work,
    /// Objects that refer to each other. Garbage is stable.
    Heap,
}

impl FromStr for App {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "bank" => Ok(Self::Bank),
            "work" => Ok(Self::Work),
            "heap" => Ok(Self::Heap),
            _ => Err("expected bank, work or heap".into()),
        }
    }
}

impl fmt::Display for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bank => "bank",
            Self::Work => "work",
            Self::Heap => "heap",
        })
    }
}

/// A snapshot: its time, and the sites that start it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Shot {
    /// The time of the start.
    pub at: Duration,
    /// The sites that start it. Several sites may start one snapshot at the same time.
    pub nodes: Vec<NodeId>,
}

impl FromStr for Shot {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected NODE@TIME or NODE+NODE...@TIME, such as 0@5ms";
        let (nodes, at) = text.split_once('@').ok_or(EXPECTED)?;
        let node = |node: &str| node.parse().map(NodeId).map_err(|_| EXPECTED.to_owned());
        Ok(Self { at: text::bounded(at)?, nodes: nodes.split('+').map(node).collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for Shot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.nodes.iter().map(|node| node.0.to_string()).collect();
        write!(f, "{}@{}", nodes.join("+"), exact(self.at))
    }
}

impl TryFrom<String> for Shot {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Shot> for String {
    fn from(shot: Shot) -> Self {
        shot.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Scenario as _;

    #[test]
    fn a_snapshot_is_read_as_it_is_written() {
        for text in ["0@5ms", "0+2@0", "1+3+4@1500us"] {
            assert_eq!(text.parse::<Shot>().unwrap().to_string(), text);
        }
        for bad in ["", "0", "@5ms", "0+@5ms", "x@5ms", "0@5"] {
            assert!(bad.parse::<Shot>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_command_line_says_only_what_differs() {
        let mut scenario = Scenario::default();
        assert_eq!(scenario.command_line(), "conclave sim snapshot/chandy-lamport --nodes 5 --seed 1");
        scenario.app = App::Heap;
        scenario.snapshots = vec!["0+1@2ms".parse().unwrap()];
        assert_eq!(
            scenario.command_line(),
            "conclave sim snapshot/chandy-lamport --nodes 5 --seed 1 --app heap --snapshot 0+1@2ms"
        );
    }
}
