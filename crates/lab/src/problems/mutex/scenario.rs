//! The scenario of the mutex problem.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use conclave_algorithms::mutex::{self, Group, Mutex};
use conclave_algorithms::quorum::Quorum;
use conclave_kernel::{Card, NodeId};
use conclave_sim::{Setup, exact, text};
use serde::{Deserialize, Serialize};

use super::{Report, run_algorithm};
use crate::diagram::span::{self, Span};
use crate::log::Log;
use crate::problem::{self, Entry, Recorder};

/// Everything that determines a run of the mutex problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// The algorithm's name.
    pub algorithm: String,
    /// Network, clocks, faults, seed.
    pub setup: Setup,
    /// The load.
    pub load: Work,
    /// The number of requests over all sites.
    pub entries: u64,
    /// The time that a site stays in the critical section.
    #[serde(with = "conclave_sim::text::duration")]
    pub cs: Duration,
    /// The quorums, if the algorithm uses quorums. `None`: a projective plane if one exists, else a grid.
    pub quorum: Option<Quorum>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            algorithm: "ricart-agrawala".into(),
            setup: Setup::default(),
            load: Work::Low,
            entries: 100,
            cs: Duration::from_millis(1),
            quorum: None,
        }
    }
}

impl Scenario {
    /// The knowledge of the sites about each other.
    pub fn group<P: Mutex>(&self) -> Result<Group, String> {
        let nodes = self.setup.nodes;
        if !P::USES_QUORUMS {
            return match self.quorum {
                Some(_) => {
                    Err(format!("--quorum has no effect: {} has no quorums; leave it out", P::CARD.name))
                }
                None => Ok(Group::new(nodes)),
            };
        }
        let quorum = self.quorum.unwrap_or_else(|| Quorum::default_for(nodes));
        Ok(Group { nodes, quorums: quorum.quorums(nodes)? })
    }
}

impl problem::Scenario for Scenario {
    const PROBLEM: &'static str = "mutex";
    type Report = Report;

    fn cards() -> &'static [Card] {
        mutex::CARDS
    }

    fn card(&self) -> Option<&'static Card> {
        mutex::CARDS.iter().chain(mutex::LAYERED).find(|card| card.name == self.algorithm)
    }

    problem::accessors!();

    fn work(&self) -> u64 {
        self.entries
    }

    fn set_work(&mut self, work: u64) {
        self.entries = work;
    }

    fn length(&self) -> Duration {
        let an_entry = self.cs + self.setup.delay.mean().saturating_mul(4);
        an_entry.saturating_mul(u32::try_from(self.entries).unwrap_or(u32::MAX))
    }

    /// Allows for rare requests and for a token that circulates: the next entry may be far away.
    fn patience(&self) -> Duration {
        let next = match &self.load {
            Work::Poisson { mean } => mean.saturating_mul(100),
            Work::Burst { every, .. } => *every,
            Work::Script(requests) => requests.iter().map(|(at, _)| *at).max().unwrap_or_default(),
            Work::Low | Work::High | Work::Pair | Work::Relay => Duration::ZERO,
        };
        let an_entry = self.cs + self.setup.delay.mean().saturating_mul(self.setup.nodes.max(4));
        problem::patience(an_entry).saturating_add(next)
    }

    fn validate(&self) -> Result<(), String> {
        self.setup.validate()?;
        if let Work::Script(requests) = &self.load
            && let Some((_, stranger)) = requests.iter().find(|(_, node)| node.0 >= self.setup.nodes)
        {
            return Err(format!(
                "there is no node {}: the nodes are 0 to {}",
                stranger.0,
                self.setup.nodes - 1
            ));
        }
        let is_layered = mutex::LAYERED.iter().any(|card| card.name == self.algorithm);
        if is_layered && self.setup.delay.mean() > Duration::from_secs(60) {
            return Err(
                "--delay is too long for an algorithm with a heartbeat every 20ms: give at most 1m".into()
            );
        }
        Ok(())
    }

    fn flags(&self) -> Vec<String> {
        let default = Self::default();
        let mut flags = Vec::new();
        if self.load != default.load {
            flags.push(format!("--load {}", self.load));
        }
        if self.entries != default.entries {
            flags.push(format!("--entries {}", self.entries));
        }
        if self.cs != default.cs {
            flags.push(format!("--cs {}", exact(self.cs)));
        }
        flags.extend(self.quorum.map(|quorum| format!("--quorum {quorum}")));
        flags
    }

    fn entry(&self) -> Option<&'static Entry<Self>> {
        ENTRIES.iter().chain(LAYERED).find(|entry| entry.card.name == self.algorithm)
    }

    fn spans(log: &Log) -> Vec<Span> {
        span::mutex(log)
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

static ENTRIES: &[Entry<Scenario>] = &mutex::each!(entry);
static LAYERED: &[Entry<Scenario>] = &mutex::each_layered!(entry);

fn simulate<P: Mutex>(scenario: &Scenario, recorder: &mut Recorder) -> Result<Report, String> {
    let (report, trace) = run_algorithm::<P>(scenario, recorder.wants_trace())?;
    recorder.take(trace.as_ref())?;
    Ok(report)
}

/// The load: the times and the sites of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Work {
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

impl FromStr for Work {
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

impl fmt::Display for Work {
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

impl TryFrom<String> for Work {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Work> for String {
    fn from(work: Work) -> Self {
        work.to_string()
    }
}

#[cfg(test)]
mod tests {
    use conclave_sim::Order;

    use super::*;
    use crate::problem::Scenario as _;

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
            assert_eq!(text.parse::<Work>().unwrap().to_string(), text);
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
            assert!(bad.parse::<Work>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_command_line_says_only_what_differs() {
        let mut scenario = Scenario::default();
        assert_eq!(scenario.command_line(), "conclave sim mutex/ricart-agrawala --nodes 5 --seed 1");
        scenario.load = Work::High;
        scenario.setup.order = Order::Any;
        assert_eq!(
            scenario.command_line(),
            "conclave sim mutex/ricart-agrawala --nodes 5 --seed 1 --load high --order any"
        );
    }
}
