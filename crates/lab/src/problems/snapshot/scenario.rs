//! The work of the snapshot problem, and its experiments in the simulator.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use conclave_algorithms::snapshot::bank::Bank;
use conclave_algorithms::snapshot::heap::Heap;
use conclave_algorithms::snapshot::work::Work as Tasks;
use conclave_algorithms::snapshot::{self, Snapshot};
use conclave_kernel::{Card, NodeId};
use conclave_sim::{exact, text};
use serde::{Deserialize, Serialize};

use super::play::Played;
use super::{Report, run_made};
use crate::experiment::{Run, flags};
use crate::problem::{self, Entry, Problem, Recorder};

/// An experiment of the snapshot problem in the simulator.
pub type Scenario = Run<Work>;

/// The application, its acts, and the snapshots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "The work")]
pub struct Work {
    /// The application whose state is recorded: bank, work or heap
    #[arg(long, value_name = "APP")]
    pub app: App,
    /// The initial balance of each account
    #[arg(long, value_name = "N")]
    pub balance: u64,
    /// The number of acts (transfers in the bank), over all sites
    #[arg(long, value_name = "N")]
    pub acts: u64,
    /// The mean time from one act to the next
    #[arg(long, value_name = "D", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::duration")]
    pub gap: Duration,
    /// The site that starts a snapshot, and the time: NODE@TIME, or NODE+NODE@TIME for several sites at once;
    /// may be repeated [default: 0, halfway, and again after the end of the work if the application has a
    /// stable property]
    #[arg(long = "snapshot", value_name = "SNAPSHOT")]
    #[serde(rename = "snapshot")]
    pub snapshots: Vec<Shot>,
}

impl Default for Work {
    fn default() -> Self {
        Self {
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
        if !self.work.snapshots.is_empty() {
            return self.work.snapshots.clone();
        }
        let acts = u32::try_from(self.work.acts).unwrap_or(u32::MAX);
        let work = self.work.gap.saturating_mul(acts);
        let halfway = Shot { at: work / 2, nodes: vec![NodeId(0)] };
        // A task is at most eight units of a millisecond. In this time, even a single site completes all
        // tasks.
        let done = work.saturating_add(Duration::from_millis(10).saturating_mul(acts));
        let after = Shot { at: done, nodes: vec![NodeId(0)] };
        if self.work.app == App::Bank { vec![halfway] } else { vec![halfway, after] }
    }
}

impl Problem for Work {
    const NAME: &'static str = "snapshot";
    const ALGORITHM: &'static str = "chandy-lamport";
    type Report = Report;

    fn cards() -> &'static [Card] {
        snapshot::CARDS
    }

    fn entry(run: &Scenario) -> Option<&'static Entry<Self>> {
        let entries = match run.work.app {
            App::Bank => entries::<Bank>(),
            App::Work => entries::<Tasks>(),
            App::Heap => entries::<Heap>(),
        };
        entries.iter().find(|entry| entry.card.name == run.algorithm)
    }

    fn amount(&self) -> u64 {
        self.acts
    }

    fn set_amount(&mut self, amount: u64) {
        self.acts = amount;
    }

    fn length(run: &Scenario) -> Duration {
        let last = run.shots().iter().map(|shot| shot.at).max().unwrap_or_default();
        last.saturating_add(run.world.delay.mean().saturating_mul(4))
    }

    /// Allows for large gaps between acts and snapshots.
    fn patience(run: &Scenario) -> Duration {
        let last = run.shots().iter().map(|shot| shot.at).max().unwrap_or_default();
        problem::patience(run.work.gap + run.world.delay.mean()).saturating_add(last)
    }

    fn validate(run: &Scenario) -> Result<(), String> {
        const MOST_SNAPSHOTS: usize = 1_000;
        let (work, nodes) = (&run.work, run.world.nodes);
        if work.app == App::Bank && work.balance.checked_mul(u64::from(nodes)).is_none() {
            let most = u64::MAX / u64::from(nodes);
            return Err(format!("--balance is too large for {nodes} accounts: give at most {most}"));
        }
        let mut strangers = work.snapshots.iter().flat_map(|shot| &shot.nodes);
        if let Some(stranger) = strangers.find(|node| node.0 >= nodes) {
            return Err(format!("there is no node {}: the nodes are 0 to {}", stranger.0, nodes - 1));
        }
        if work.snapshots.len() > MOST_SNAPSHOTS {
            return Err(format!("too many snapshots: give at most {MOST_SNAPSHOTS}"));
        }
        Ok(())
    }
}

macro_rules! entry {
    ($algorithm:ty) => {
        Entry { card: &<$algorithm as Snapshot<A>>::CARD, simulate: simulate::<A, $algorithm> }
    };
}

/// Returns the algorithms around an application.
fn entries<A: Played>() -> &'static [Entry<Work>] {
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
        scenario.work.app = App::Heap;
        scenario.work.snapshots = vec!["0+1@2ms".parse().unwrap()];
        assert_eq!(
            scenario.command_line(),
            "conclave sim snapshot/chandy-lamport --nodes 5 --seed 1 --app heap --snapshot 0+1@2ms"
        );
    }
}
