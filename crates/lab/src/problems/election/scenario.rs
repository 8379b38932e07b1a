//! The scenario of the election problem.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use conclave_algorithms::detector;
use conclave_algorithms::election::{self, Election, Group};
use conclave_kernel::{Card, NodeId, Prng};
use conclave_sim::{Delay, Profile, Setup, exact};
use serde::{Deserialize, Serialize};

use super::{Report, run_algorithm, spans};
use crate::diagram::span::Span;
use crate::log::Log;
use crate::problem::{self, Entry, Recorder};
use crate::sites;

/// Everything that determines a run of the election problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// The algorithm's name.
    pub algorithm: String,
    /// Network, clocks, faults, seed.
    pub setup: Setup,
    /// The sites that begin an election, at boot and after a crash is noticed.
    pub start: Start,
    /// The number of elections. The first one is at boot. Elections after crashes come in addition.
    pub elections: u64,
    /// The cause of the elections after the first.
    pub trigger: Trigger,
    /// The ranks, which count before the ids.
    pub ranks: Ranks,
    /// The time after which the other sites notice a crash or a recovery.
    #[serde(with = "conclave_sim::text::duration")]
    pub notice: Duration,
    /// The longest delay of a message that the timeouts of bully assume. `None`: the longest delay of the
    /// network, or ten times the mean delay if the delay has no bound.
    #[serde(with = "conclave_sim::text::optional_duration")]
    pub transmission: Option<Duration>,
    /// The longest time to reply that the timeouts assume.
    #[serde(with = "conclave_sim::text::duration")]
    pub processing: Duration,
    /// The time from one heartbeat to the next in an election over a detector. `None`: ten transmissions.
    #[serde(with = "conclave_sim::text::optional_duration")]
    pub period: Option<Duration>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            algorithm: "bully".into(),
            setup: Setup::default(),
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
        let nodes = self.setup.nodes;
        let transmission = self.transmission.unwrap_or_else(|| longest(self.setup.delay));
        let period = self.period.unwrap_or(10 * transmission);
        Group {
            ranks: self.ranks.draw(nodes, self.setup.seed),
            processing: self.processing,
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

impl problem::Scenario for Scenario {
    const PROBLEM: &'static str = "election";
    type Report = Report;

    fn cards() -> &'static [Card] {
        election::CARDS
    }

    fn card(&self) -> Option<&'static Card> {
        if sites::is_program(&self.algorithm) {
            return sites::election::program(&self.algorithm).ok().map(|program| program.card());
        }
        election::CARDS.iter().find(|card| card.name == self.algorithm)
    }

    problem::accessors!();

    fn work(&self) -> u64 {
        self.elections
    }

    fn set_work(&mut self, work: u64) {
        self.elections = work.max(1);
    }

    fn length(&self) -> Duration {
        let an_election = self.setup.delay.mean().saturating_mul(3 * self.setup.nodes);
        an_election.saturating_mul(u32::try_from(self.elections).unwrap_or(u32::MAX))
    }

    fn patience(&self) -> Duration {
        let group = self.group();
        problem::patience((group.transmission + self.processing).saturating_mul(group.nodes) + self.notice)
    }

    fn validate(&self) -> Result<(), String> {
        self.setup.validate()?;
        let nodes = self.setup.nodes;
        match (&self.start, &self.ranks) {
            (Start::Site(site), _) if site.0 >= nodes => {
                Err(format!("there is no node {}: the nodes are 0 to {}", site.0, nodes - 1))
            }
            (_, Ranks::List(ranks)) if ranks.len() != nodes as usize => {
                Err(format!("--ranks has {} ranks for {nodes} nodes: give one rank per node", ranks.len()))
            }
            (_, Ranks::List(ranks)) if ranks.contains(&0) => {
                Err("rank 0 means that a node has resigned: give ranks from 1".into())
            }
            _ if self.elections == 0 => Err("--elections is 0: give at least 1".into()),
            _ => Ok(()),
        }
    }

    fn flags(&self) -> Vec<String> {
        let default = Self::default();
        let mut flags = Vec::new();
        let mut differs = |name: &str, value: String, differs: bool| {
            if differs {
                flags.push(format!("--{name} {value}"));
            }
        };
        differs("start", self.start.to_string(), self.start != default.start);
        differs("elections", self.elections.to_string(), self.elections != default.elections);
        differs("trigger", self.trigger.to_string(), self.trigger != default.trigger);
        differs("ranks", self.ranks.to_string(), self.ranks != default.ranks);
        differs("notice", exact(self.notice), self.notice != default.notice);
        differs("transmission", self.transmission.map_or(String::new(), exact), self.transmission.is_some());
        differs("processing", exact(self.processing), self.processing != default.processing);
        differs("period", self.period.map_or(String::new(), exact), self.period.is_some());
        flags
    }

    fn entry(&self) -> Option<&'static Entry<Self>> {
        ENTRIES.iter().find(|entry| entry.card.name == self.algorithm)
    }

    fn run(&self, recorder: &mut Recorder) -> Result<Report, String> {
        if sites::is_program(&self.algorithm) {
            return sites::election::simulate(self, recorder);
        }
        let entry = self.entry().ok_or_else(|| self.unknown_algorithm())?;
        (entry.simulate)(self, recorder)
    }

    fn spans(log: &Log) -> Vec<Span> {
        spans::spans(log)
    }

    fn profile(&self) -> Profile {
        let needs = self.card().map(|card| card.needs).unwrap_or_default();
        // One crash without a recovery: a site that recovers during an announcement violates E1, for every
        // algorithm.
        Profile { crashes: 1, stay_down: true, ..Profile::within(needs, self.length()) }
    }
}

macro_rules! entry {
    ($algorithm:ty) => {
        Entry { card: &<$algorithm as Election>::CARD, simulate: simulate::<$algorithm> }
    };
}

static ENTRIES: &[Entry<Scenario>] = &election::each!(entry);

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
                let mut dice = Prng::stream(seed, STREAM, 0);
                for last in (1..ranks.len()).rev() {
                    ranks.swap(last, dice.below(last as u64 + 1) as usize);
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
    use crate::problem::Scenario as _;

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
        scenario.start = Start::All;
        scenario.transmission = Some(Duration::from_millis(3));
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
