//! The work of the mutex problem, and its experiments in the simulator.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use conclave_algorithms::mutex::{self, Group, Mutex};
use conclave_algorithms::quorum::Quorum;
use conclave_kernel::{Card, NodeId};
use conclave_sim::{exact, text};
use serde::{Deserialize, Serialize};

use super::{Report, run_algorithm};
use crate::experiment::{Run, flags};
use crate::problem::{self, Entry, Problem, Recorder};

/// An experiment of the mutex problem in the simulator.
pub type Scenario = Run<Work>;

/// The requests, and the time in the critical section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "The work")]
pub struct Work {
    /// The times and sites of the requests: low, high, pair, relay, poisson:MEAN, burst:SIZE,EVERY or
    /// script:NODE@TIME,...
    #[arg(long, value_name = "LOAD")]
    pub load: Workload,
    /// The number of requests, over all sites
    #[arg(long, value_name = "N")]
    pub entries: u64,
    /// The time that a site stays in the critical section
    #[arg(long, value_name = "D", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::duration")]
    pub cs: Duration,
    /// The quorums of Maekawa: plane, grid, majority or all [default: plane if one exists, else grid]
    #[arg(long, value_name = "QUORUM")]
    pub quorum: Option<Quorum>,
}

impl Default for Work {
    fn default() -> Self {
        Self { load: Workload::Low, entries: 100, cs: Duration::from_millis(1), quorum: None }
    }
}

impl Scenario {
    /// The knowledge of the sites about each other.
    pub fn group<P: Mutex>(&self) -> Result<Group, String> {
        let nodes = self.world.nodes;
        if !P::USES_QUORUMS {
            return match self.work.quorum {
                Some(_) => {
                    Err(format!("--quorum has no effect: {} has no quorums; leave it out", P::CARD.name))
                }
                None => Ok(Group::new(nodes)),
            };
        }
        let quorum = self.work.quorum.unwrap_or_else(|| Quorum::default_for(nodes));
        Ok(Group { nodes, quorums: quorum.quorums(nodes)? })
    }
}

impl Problem for Work {
    const NAME: &'static str = "mutex";
    const ALGORITHM: &'static str = "ricart-agrawala";
    type Report = Report;

    fn cards() -> &'static [Card] {
        mutex::CARDS
    }

    fn card(name: &str) -> Option<&'static Card> {
        mutex::CARDS.iter().chain(mutex::LAYERED).find(|card| card.name == name)
    }

    fn entry(run: &Scenario) -> Option<&'static Entry<Self>> {
        ENTRIES.iter().chain(LAYERED).find(|entry| entry.card.name == run.algorithm)
    }

    fn amount(&self) -> u64 {
        self.entries
    }

    fn set_amount(&mut self, amount: u64) {
        self.entries = amount;
    }

    fn length(run: &Scenario) -> Duration {
        let an_entry = run.work.cs + run.world.delay.mean().saturating_mul(4);
        an_entry.saturating_mul(u32::try_from(run.work.entries).unwrap_or(u32::MAX))
    }

    /// Allows for rare requests and for a token that circulates: the next entry may be far away.
    fn patience(run: &Scenario) -> Duration {
        let next = match &run.work.load {
            Workload::Poisson { mean } => mean.saturating_mul(100),
            Workload::Burst { every, .. } => *every,
            Workload::Script(requests) => requests.iter().map(|(at, _)| *at).max().unwrap_or_default(),
            Workload::Low | Workload::High | Workload::Pair | Workload::Relay => Duration::ZERO,
        };
        let an_entry = run.work.cs + run.world.delay.mean().saturating_mul(run.world.nodes.max(4));
        problem::patience(an_entry).saturating_add(next)
    }

    fn validate(run: &Scenario) -> Result<(), String> {
        let nodes = run.world.nodes;
        if let Workload::Script(requests) = &run.work.load
            && let Some((_, stranger)) = requests.iter().find(|(_, node)| node.0 >= nodes)
        {
            return Err(format!("there is no node {}: the nodes are 0 to {}", stranger.0, nodes - 1));
        }
        let is_layered = mutex::LAYERED.iter().any(|card| card.name == run.algorithm);
        if is_layered && run.world.delay.mean() > Duration::from_secs(60) {
            return Err(
                "--delay is too long for an algorithm with a heartbeat every 20ms: give at most 1m".into()
            );
        }
        Ok(())
    }
}

/// Returns whether an algorithm uses quorums; `false` for an unknown name.
pub(crate) fn uses_quorums(algorithm: &str) -> bool {
    macro_rules! name_if_quorums {
        ($algorithm:ty) => {
            <$algorithm as Mutex>::USES_QUORUMS.then_some(<$algorithm as Mutex>::CARD.name)
        };
    }
    mutex::each!(name_if_quorums).contains(&Some(algorithm))
}

macro_rules! entry {
    ($algorithm:ty) => {
        Entry { card: &<$algorithm as Mutex>::CARD, simulate: simulate::<$algorithm> }
    };
}

/// Returns the entry of an algorithm of another crate.
pub(super) fn entry_of<P: Mutex>() -> Entry<Work> {
    entry!(P)
}

static ENTRIES: &[Entry<Work>] = &mutex::each!(entry);
static LAYERED: &[Entry<Work>] = &mutex::each_layered!(entry);

fn simulate<P: Mutex>(scenario: &Scenario, recorder: &mut Recorder) -> Result<Report, String> {
    let (report, trace) = run_algorithm::<P>(scenario, recorder.wants_trace())?;
    recorder.take(trace.as_ref())?;
    Ok(report)
}

/// The load: the times and the sites of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Workload {
    /// One request at a time, from each site in turn. The next request comes when the run is quiet.
    #[default]
    Low,
    /// Every site requests again when it leaves.
    High,
    /// Two requests at a time: one site enters, the other site waits.
    Pair,
    /// Requests at random times and random sites.
    Poisson {
        /// The mean time between two requests.
        mean: Duration,
    },
    /// Bursts of requests at random sites.
    Burst {
        /// The number of requests per burst.
        size: u32,
        /// The time from one burst to the next.
        every: Duration,
    },
    /// A chain of requests: a site that requests informs the next site, outside of the algorithm, which then
    /// requests too.
    Relay,
    /// Requests at the given times and sites.
    Script(Vec<(Duration, NodeId)>),
}

impl FromStr for Workload {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected low, high, pair, relay, poisson:MEAN, burst:SIZE,EVERY or \
                                script:NODE@TIME,NODE@TIME...";
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match (kind, rest) {
            ("low", "") => Ok(Self::Low),
            ("high", "") => Ok(Self::High),
            ("pair", "") => Ok(Self::Pair),
            ("relay", "") => Ok(Self::Relay),
            ("poisson", mean) => Ok(Self::Poisson { mean: text::bounded(mean)? }),
            ("burst", rest) => {
                let (size, every) = rest.split_once(',').ok_or(EXPECTED)?;
                let size = size.parse().ok().filter(|size| *size > 0).ok_or(EXPECTED)?;
                Ok(Self::Burst { size, every: text::bounded(every)? })
            }
            ("script", rest) => {
                let request = |request: &str| {
                    let (node, at) = request.split_once('@').ok_or(EXPECTED)?;
                    Ok((text::bounded(at)?, NodeId(node.parse().map_err(|_| EXPECTED)?)))
                };
                rest.split(',').map(request).collect::<Result<_, String>>().map(Self::Script)
            }
            _ => Err(EXPECTED.into()),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Low => f.pad("low"),
            Self::High => f.pad("high"),
            Self::Pair => f.pad("pair"),
            Self::Relay => f.pad("relay"),
            Self::Poisson { mean } => write!(f, "poisson:{}", exact(*mean)),
            Self::Burst { size, every } => write!(f, "burst:{size},{}", exact(*every)),
            Self::Script(requests) => {
                let requests: Vec<_> =
                    requests.iter().map(|(at, node)| format!("{}@{}", node.0, exact(*at))).collect();
                write!(f, "script:{}", requests.join(","))
            }
        }
    }
}

impl TryFrom<String> for Workload {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Workload> for String {
    fn from(work: Workload) -> Self {
        work.to_string()
    }
}

#[cfg(test)]
mod tests {
    use conclave_sim::Order;

    use super::*;

    #[test]
    fn a_load_is_read_as_it_is_written() {
        for text in [
            "low",
            "high",
            "pair",
            "relay",
            "poisson:5ms",
            "burst:3,20ms",
            "script:0@0,1@2ms",
            "poisson:1234567ns",
        ] {
            assert_eq!(text.parse::<Workload>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            "medium",
            "low:3",
            "burst:0,1ms",
            "burst:3",
            "poisson:",
            "script:",
            "script:0",
            "script:x@1ms",
        ] {
            assert!(bad.parse::<Workload>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_command_line_says_only_what_differs() {
        let mut scenario = Scenario::default();
        assert_eq!(scenario.command_line(), "conclave sim mutex/ricart-agrawala --nodes 5 --seed 1");
        scenario.work.load = Workload::High;
        scenario.world.order = Order::Any;
        assert_eq!(
            scenario.command_line(),
            "conclave sim mutex/ricart-agrawala --nodes 5 --seed 1 --load high --order any"
        );
    }
}
