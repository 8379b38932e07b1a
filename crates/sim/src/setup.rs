//! All parameters of a run, except the algorithm and its work.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use conclave_kernel::{NodeId, Ratio, time};
use serde::{Deserialize, Serialize};

use crate::clock::Clocks;
use crate::fault::{Fault, FaultKind, exact};
use crate::text;

/// The world of a run: the number of sites, the behaviour of the network, and the faults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Setup {
    /// N, the number of sites.
    pub nodes: u32,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The distribution of message delays.
    pub delay: Delay,
    /// Links with their own delay.
    pub links: Vec<Link>,
    /// The order in which messages arrive.
    pub order: Order,
    /// The probability that a message is lost.
    #[serde(with = "text::probability")]
    pub loss: Ratio,
    /// The probability that a message is duplicated.
    #[serde(with = "text::probability")]
    pub duplicate: Ratio,
    /// The probability that a message is damaged. The link's checksum detects this, and the message is
    /// discarded.
    #[serde(with = "text::probability")]
    pub corrupt: Ratio,
    /// Bounds for the errors of the local clocks.
    pub clocks: Clocks,
    /// The planned faults.
    pub faults: Vec<Fault>,
    /// The number of events without progress after which a run ends as bounded; at least 1. The caller that
    /// runs the world passes it as [`crate::Limits::events`].
    pub budget: u64,
    /// Whether a recorded run contains the state of the site after each step. It is no part of the scenario:
    /// the run is the same.
    #[serde(skip)]
    pub keeps_states: bool,
}

/// The largest drift, in parts per million: a fifth of the speed. The bounds of the algorithms for clocks assume
/// that a drift is small.
const MOST_DRIFT: u32 = 200_000;

/// The default of [`Setup::budget`].
const DEFAULT_BUDGET: u64 = 10_000_000;

impl Default for Setup {
    fn default() -> Self {
        Self {
            nodes: 5,
            seed: 1,
            delay: Delay::Constant(Duration::from_millis(1)),
            links: Vec::new(),
            order: Order::Fifo,
            loss: Ratio::ZERO,
            duplicate: Ratio::ZERO,
            corrupt: Ratio::ZERO,
            clocks: Clocks::default(),
            faults: Vec::new(),
            budget: DEFAULT_BUDGET,
            keeps_states: false,
        }
    }
}

impl Setup {
    /// Checks the setup. The error describes the first problem in one line.
    pub fn validate(&self) -> Result<(), String> {
        if self.nodes == 0 {
            return Err("a group needs at least 1 node".into());
        }
        if self.nodes > conclave_kernel::node::MOST_NODES {
            return Err(format!("a group has at most {} nodes", conclave_kernel::node::MOST_NODES));
        }
        if self.clocks.drift_ppm > MOST_DRIFT {
            return Err(format!("--drift is too large: give at most {MOST_DRIFT}"));
        }
        if self.budget == 0 {
            return Err("a budget of 0 events ends every run at once: give at least 1".into());
        }
        let named = self.faults.iter().flat_map(|fault| fault.nodes().iter().collect::<Vec<_>>());
        let linked = self.links.iter().flat_map(|link| [link.from, link.to]);
        if let Some(stranger) = named.chain(linked).find(|node| node.0 >= self.nodes) {
            return Err(format!("there is no node {}: the nodes are 0 to {}", stranger.0, self.nodes - 1));
        }
        self.faults.iter().try_for_each(Fault::validate)?;
        self.crashes_apart()
    }

    /// Rejects two crashes of one site that overlap.
    fn crashes_apart(&self) -> Result<(), String> {
        let crash = |fault: &&Fault| matches!(fault.kind, FaultKind::Crash { .. });
        let mut crashes: Vec<_> =
            self.faults.iter().filter(crash).map(|fault| (fault.nodes(), fault)).collect();
        crashes.sort_by_key(|(nodes, fault)| (nodes.clone(), fault.at));
        let overlapping = crashes.windows(2).find(|pair| {
            let ((one, first), (other, second)) = (&pair[0], &pair[1]);
            one == other && first.until.is_none_or(|until| second.at < until)
        });
        match overlapping {
            Some(pair) => Err(format!(
                "{} overlaps {}: let the first crash end before the second begins",
                pair[1].1, pair[0].1
            )),
            None => Ok(()),
        }
    }
}

/// The order in which messages arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Messages of one link arrive in the order in which they were sent.
    #[default]
    Fifo,
    /// Messages arrive in any order, as their delays determine.
    Any,
    /// If one message was sent before another (in the sense of happened-before), no site receives them in the
    /// opposite order.
    Causal,
}

impl FromStr for Order {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "fifo" => Ok(Self::Fifo),
            "any" => Ok(Self::Any),
            "causal" => Ok(Self::Causal),
            _ => Err("expected fifo, any or causal".into()),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fifo => "fifo",
            Self::Any => "any",
            Self::Causal => "causal",
        })
    }
}

/// The distribution of message delays.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Delay {
    /// Always the same delay.
    Constant(Duration),
    /// A uniform distribution between two bounds.
    Uniform(Duration, Duration),
    /// An exponential (memoryless) distribution with this mean.
    Exponential(Duration),
    /// A log-normal distribution with this median and this sigma: mostly near the median, sometimes much
    /// longer.
    LogNormal(Duration, f64),
}

impl Delay {
    /// Returns the mean delay: the T of the cost formulas.
    pub fn mean(self) -> Duration {
        match self {
            Self::Constant(delay) | Self::Exponential(delay) => delay,
            Self::Uniform(low, high) => (low + high) / 2,
            Self::LogNormal(median, sigma) => {
                // The conversion saturates at 584 years, which is long enough.
                Duration::from_nanos((time::nanos(median) as f64 * libm::exp(sigma * sigma / 2.0)) as u64)
            }
        }
    }
}

impl FromStr for Delay {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected constant:D, uniform:A..B, exponential:MEAN or lognormal:MEDIAN,SIGMA, such as uniform:1ms..5ms";
        let (kind, rest) = text.split_once(':').ok_or(EXPECTED)?;
        let delay = match kind {
            "constant" => Self::Constant(text::bounded(rest)?),
            "uniform" => {
                let (low, high) = rest.split_once("..").ok_or(EXPECTED)?;
                Self::Uniform(text::bounded(low)?, text::bounded(high)?)
            }
            "exponential" => Self::Exponential(text::bounded(rest)?),
            "lognormal" => {
                let (median, sigma) = rest.split_once(',').ok_or(EXPECTED)?;
                Self::LogNormal(text::bounded(median)?, sigma.parse().map_err(|_| EXPECTED)?)
            }
            _ => return Err(EXPECTED.into()),
        };
        match delay {
            Self::Uniform(low, high) if low > high => {
                Err(format!("{text}: the first delay must not exceed the second"))
            }
            Self::LogNormal(_, sigma) if !(0.0..=10.0).contains(&sigma) => {
                Err(format!("{text}: sigma must be from 0 to 10"))
            }
            Self::LogNormal(..) if delay.mean() > text::LONGEST => Err(format!(
                "{text}: the mean delay is longer than {}d: give a smaller median or sigma",
                text::MOST_DAYS
            )),
            _ => Ok(delay),
        }
    }
}

impl TryFrom<String> for Delay {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Delay> for String {
    fn from(delay: Delay) -> Self {
        delay.to_string()
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Constant(delay) => write!(f, "constant:{}", exact(delay)),
            Self::Uniform(low, high) => write!(f, "uniform:{}..{}", exact(low), exact(high)),
            Self::Exponential(mean) => write!(f, "exponential:{}", exact(mean)),
            Self::LogNormal(median, sigma) => write!(f, "lognormal:{},{sigma}", exact(median)),
        }
    }
}

/// A link with its own delay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Link {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// The delay of its messages.
    pub delay: Delay,
}

impl FromStr for Link {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected FROM>TO=DELAY, such as 0>2=constant:5ms";
        let (ends, delay) = text.split_once('=').ok_or(EXPECTED)?;
        let (from, to) = ends.split_once('>').ok_or(EXPECTED)?;
        let node = |text: &str| text.parse().map(NodeId).map_err(|_| EXPECTED);
        Ok(Self { from: node(from)?, to: node(to)?, delay: delay.parse()? })
    }
}

impl TryFrom<String> for Link {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Link> for String {
    fn from(link: Link) -> Self {
        link.to_string()
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}={}", self.from.0, self.to.0, self.delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_read_as_it_is_written() {
        for text in ["constant:1ms", "uniform:1us..3ms", "exponential:2s", "lognormal:1ms,0.5"] {
            assert_eq!(text.parse::<Delay>().unwrap().to_string(), text);
        }
        assert_eq!("0>2=constant:5ms".parse::<Link>().unwrap().to_string(), "0>2=constant:5ms");
    }

    #[test]
    fn a_bad_delay_is_refused_with_what_is_allowed() {
        for text in
            ["", "1ms", "uniform:3ms..1ms", "constant:5", "lognormal:1ms", "lognormal:1ms,99", "gamma:1ms"]
        {
            assert!(text.parse::<Delay>().is_err(), "{text}");
        }
        let wild = "lognormal:100d,10".parse::<Delay>().unwrap_err();
        assert!(wild.contains("the mean delay is longer than 100d"), "{wild}");
        assert!("lognormal:100d,0".parse::<Delay>().is_ok());
    }

    #[test]
    fn the_mean_of_a_wild_delay_saturates() {
        assert!(Delay::LogNormal(Duration::from_secs(10), 10.0).mean() > Duration::from_secs(1 << 30));
    }

    #[test]
    fn faults_that_cannot_be_are_refused() {
        let with = |faults: &[Fault]| Setup { faults: faults.to_vec(), ..Setup::default() }.validate();
        let crash = |text| Fault::parse_crash(text).unwrap();
        assert!(with(&[crash("1@5ms..9ms"), crash("1@7ms")]).is_err());
        assert!(with(&[crash("1@5ms"), crash("1@7ms")]).is_err());
        assert!(with(&[crash("1@5ms..7ms"), crash("1@7ms"), crash("2@6ms")]).is_ok());
        let endless = Fault { until: None, ..Fault::parse_pause("1@5ms..9ms").unwrap() };
        assert!(with(&[endless]).is_err());
        let backwards = Fault { until: Some(Duration::ZERO), ..crash("1@5ms") };
        assert!(with(&[backwards]).is_err());
    }

    #[test]
    fn a_fault_at_a_node_that_is_not_there_is_refused() {
        let setup = Setup { faults: vec![Fault::parse_crash("5@1ms").unwrap()], ..Setup::default() };
        assert_eq!(setup.validate().unwrap_err(), "there is no node 5: the nodes are 0 to 4");
    }
}
