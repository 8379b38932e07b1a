//! The work of the election problem, and its experiments in the simulator.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use conclave_algorithms::detector;
use conclave_algorithms::election::{self, Election, Group};
use conclave_kernel::{Card, NodeId, Prng};
use conclave_sim::{Delay, Profile};
use serde::{Deserialize, Serialize};

use super::{Report, run_algorithm};
use crate::experiment::{Run, flags};
use crate::problem::{self, Entry, Problem, Recorder};

/// An experiment of the election problem in the simulator.
pub type Scenario = Run<Work>;

/// The elections: their number and causes, and the times that the sites assume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "The work")]
pub struct Work {
    /// The sites that begin, at boot and after a crash: all, lowest, highest, random or a node
    #[arg(long, value_name = "SITES")]
    pub start: Start,
    /// The number of elections, besides those that crashes make necessary. The first one is at boot
    #[arg(long, value_name = "N")]
    pub elections: u64,
    /// The cause of the elections after the first: elect (a command) or resign (of the leader)
    #[arg(long, value_name = "CAUSE")]
    pub trigger: Trigger,
    /// The ranks, which count before the ids: ids (all equal), random or RANK,RANK,...
    #[arg(long, value_name = "RANKS")]
    pub ranks: Ranks,
    /// The time after which the other sites notice a crash or a return
    #[arg(long, value_name = "D", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::duration")]
    pub notice: Duration,
    /// The longest delay of a message that the timeouts of bully assume [default: that of the network, or ten
    /// times the mean delay if the delay has no bound]
    #[arg(long, value_name = "D", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::optional_duration")]
    pub transmission: Option<Duration>,
    /// The longest time that a site takes to reply, for the timeouts
    #[arg(long, value_name = "D", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::duration")]
    pub processing: Duration,
    /// T of an election over a detector: the time from one heartbeat to the next [default: 10 transmissions]
    #[arg(long, value_name = "T", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::optional_duration")]
    pub period: Option<Duration>,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            start: Start::Lowest,
            elections: 1,
            trigger: Trigger::Elect,
            ranks: Ranks::Ids,
            notice: Duration::from_millis(5),
            transmission: None,
            processing: Duration::ZERO,
            period: None,
        }
    }
}

impl Scenario {
    /// The knowledge of the sites about each other.
    pub fn group(&self) -> Group {
        let nodes = self.world.nodes;
        let transmission = self.work.transmission.unwrap_or_else(|| longest(self.world.delay));
        let period = self.work.period.unwrap_or(10 * transmission);
        Group {
            ranks: self.work.ranks.draw(nodes, self.world.seed),
            processing: self.work.processing,
            detector: detector::Group::new(nodes, period, transmission),
            ..Group::new(nodes, transmission)
        }
    }
}

/// Returns the longest delay of a message, or ten times the mean if the delay has no bound.
pub fn longest(delay: Delay) -> Duration {
    match delay {
        Delay::Constant(delay) | Delay::Uniform(_, delay) => delay,
        Delay::Exponential(_) | Delay::LogNormal(..) => 10 * delay.mean(),
    }
}

impl Problem for Work {
    const NAME: &'static str = "election";
    const ALGORITHM: &'static str = "bully";
    type Report = Report;

    fn cards() -> &'static [Card] {
        election::CARDS
    }

    fn entry(run: &Scenario) -> Option<&'static Entry<Self>> {
        ENTRIES.iter().find(|entry| entry.card.name == run.algorithm)
    }

    fn amount(&self) -> u64 {
        self.elections
    }

    fn set_amount(&mut self, amount: u64) {
        self.elections = amount.max(1);
    }

    fn length(run: &Scenario) -> Duration {
        let an_election = run.world.delay.mean().saturating_mul(3 * run.world.nodes);
        an_election.saturating_mul(u32::try_from(run.work.elections).unwrap_or(u32::MAX))
    }

    fn patience(run: &Scenario) -> Duration {
        let group = run.group();
        let round = (group.transmission + run.work.processing).saturating_mul(group.nodes);
        problem::patience(round + run.work.notice)
    }

    fn validate(run: &Scenario) -> Result<(), String> {
        let nodes = run.world.nodes;
        match (&run.work.start, &run.work.ranks) {
            (Start::Site(site), _) if site.0 >= nodes => {
                Err(format!("there is no node {}: the nodes are 0 to {}", site.0, nodes - 1))
            }
            (_, Ranks::List(ranks)) if ranks.len() != nodes as usize => {
                Err(format!("--ranks has {} ranks for {nodes} nodes: give one rank per node", ranks.len()))
            }
            (_, Ranks::List(ranks)) if ranks.contains(&0) => {
                Err("rank 0 means that a node has resigned: give ranks from 1".into())
            }
            _ if run.work.elections == 0 => Err("--elections is 0: give at least 1".into()),
            _ => Ok(()),
        }
    }

    fn profile(run: &Scenario) -> Profile {
        let needs = run.card().map(|card| card.needs).unwrap_or_default();
        // One crash without a recovery: a site that recovers during an announcement violates E1, for every
        // algorithm.
        Profile { crashes: 1, stay_down: true, ..Profile::within(needs, run.length()) }
    }
}

macro_rules! entry {
    ($algorithm:ty) => {
        Entry { card: &<$algorithm as Election>::CARD, simulate: simulate::<$algorithm> }
    };
}

/// Returns the entry of an algorithm of another crate.
pub(super) fn entry_of<P: Election>() -> Entry<Work> {
    entry!(P)
}

static ENTRIES: &[Entry<Work>] = &election::each!(entry);

fn simulate<P: Election>(scenario: &Scenario, recorder: &mut Recorder) -> Result<Report, String> {
    let (report, trace) = run_algorithm::<P>(scenario, recorder.wants_trace())?;
    recorder.take(trace.as_ref())?;
    Ok(report)
}

/// The sites that begin an election. Only sites that are up begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Start {
    /// All sites.
    All,
    /// The lowest candidate.
    Lowest,
    /// The highest candidate.
    Highest,
    /// A random site.
    Random,
    /// This site; if it is down, the lowest.
    Site(NodeId),
}

impl FromStr for Start {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "lowest" => Ok(Self::Lowest),
            "highest" => Ok(Self::Highest),
            "random" => Ok(Self::Random),
            site => site
                .parse()
                .map(|site| Self::Site(NodeId(site)))
                .map_err(|_| "expected all, lowest, highest, random or a node".into()),
        }
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.pad("all"),
            Self::Lowest => f.pad("lowest"),
            Self::Highest => f.pad("highest"),
            Self::Random => f.pad("random"),
            Self::Site(site) => write!(f, "{}", site.0),
        }
    }
}

/// The cause of an election.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Trigger {
    /// A command, as at boot.
    #[default]
    Elect,
    /// The leader resigns.
    Resign,
}

impl FromStr for Trigger {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "elect" => Ok(Self::Elect),
            "resign" => Ok(Self::Resign),
            _ => Err("expected elect or resign".into()),
        }
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Elect => "elect",
            Self::Resign => "resign",
        })
    }
}

/// The ranks of the candidates, which count before the ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Ranks {
    /// No ranks: the largest id wins.
    #[default]
    Ids,
    /// Distinct random numbers from 1 to N.
    Random,
    /// The given ranks.
    List(Vec<u64>),
}

impl Ranks {
    /// Returns the ranks of a group; empty if they are all equal.
    fn draw(&self, nodes: u32, seed: u64) -> Vec<u64> {
        const STREAM: u64 = 0x7261_6e6b;
        match self {
            Self::Ids => Vec::new(),
            Self::List(ranks) => ranks.clone(),
            Self::Random => {
                let mut ranks: Vec<u64> = (1..=u64::from(nodes)).collect();
                let mut random = Prng::stream(seed, STREAM, 0);
                for last in (1..ranks.len()).rev() {
                    ranks.swap(last, random.below(last as u64 + 1) as usize);
                }
                ranks
            }
        }
    }
}

impl FromStr for Ranks {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ids" => Ok(Self::Ids),
            "random" => Ok(Self::Random),
            list => {
                let ranks: Result<_, _> = list.split(',').map(str::parse).collect();
                ranks.map(Self::List).map_err(|_| "expected ids, random or RANK,RANK,...".into())
            }
        }
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ids => f.pad("ids"),
            Self::Random => f.pad("random"),
            Self::List(ranks) => {
                let ranks: Vec<_> = ranks.iter().map(ToString::to_string).collect();
                f.pad(&ranks.join(","))
            }
        }
    }
}

/// The scenario file has these types as text.
macro_rules! as_text {
    ($($type:ty),+) => {$(
        impl TryFrom<String> for $type {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    )+};
}

as_text!(Start, Trigger, Ranks);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_is_written() {
        for text in ["all", "lowest", "highest", "random", "3"] {
            assert_eq!(text.parse::<Start>().unwrap().to_string(), text);
        }
        for text in ["ids", "random", "3,1,2"] {
            assert_eq!(text.parse::<Ranks>().unwrap().to_string(), text);
        }
        assert!("some".parse::<Start>().is_err() && "1,x".parse::<Ranks>().is_err());
    }

    #[test]
    fn the_command_line_says_only_what_differs() {
        let mut scenario = Scenario::default();
        assert_eq!(scenario.command_line(), "conclave sim election/bully --nodes 5 --seed 1");
        scenario.work.start = Start::All;
        scenario.work.transmission = Some(Duration::from_millis(3));
        let line = "conclave sim election/bully --nodes 5 --seed 1 --start all --transmission 3ms";
        assert_eq!(scenario.command_line(), line);
    }

    #[test]
    fn random_ranks_are_a_permutation() {
        let mut ranks = Ranks::Random.draw(9, 4);
        assert_ne!(ranks, Ranks::Random.draw(9, 5));
        ranks.sort_unstable();
        assert_eq!(ranks, (1..=9).collect::<Vec<_>>());
    }
}
