//! The flags of a run that `sim`, `compare` and `replay` share.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use conclave_kernel::Ratio;
use conclave_sim::{Delay, Fault, Link, Order};

use super::problems::{Problem, ProblemArgs};
use crate::output::{self, Failure};

/// The world of a run. Every flag overrides the configuration file.
#[derive(clap::Args, Clone, Default, PartialEq)]
#[command(next_help_heading = "The world")]
pub struct WorldArgs {
    /// A file with a scenario in TOML, or in JSON if its name ends in .json. The header of a trace contains a
    /// scenario
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The delay of a message: constant:D, uniform:A..B, exponential:MEAN or lognormal:MEDIAN,SIGMA
    /// [default: constant:1ms]
    #[arg(long, value_name = "DELAY")]
    pub delay: Option<Delay>,
    /// The delay of one link: FROM>TO=DELAY; may be repeated
    #[arg(long = "link", value_name = "LINK")]
    pub links: Vec<Link>,
    /// The order in which messages arrive: fifo, any or causal [default: fifo]
    #[arg(long, value_name = "ORDER")]
    pub order: Option<Order>,
    /// The probability that a message is lost
    #[arg(long, value_name = "P", value_parser = probability)]
    pub loss: Option<Ratio>,
    /// The probability that a message arrives twice
    #[arg(long, value_name = "P", value_parser = probability)]
    pub duplicate: Option<Ratio>,
    /// The probability that a message is damaged; the receiver then drops it
    #[arg(long, value_name = "P", value_parser = probability)]
    pub corrupt: Option<Ratio>,
    /// Crash a site: NODE@TIME for good, NODE@TIME..TIME with a return, ...,amnesia for a return without its
    /// memory; may be repeated
    #[arg(long = "crash", value_name = "CRASH", value_parser = Fault::parse_crash)]
    pub crashes: Vec<Fault>,
    /// Pause a site, which then handles no input: NODE@TIME..TIME; may be repeated
    #[arg(long = "pause", value_name = "PAUSE", value_parser = Fault::parse_pause)]
    pub pauses: Vec<Fault>,
    /// Cut the links between NODE+NODE... and the other sites: NODES@TIME..TIME. Messages wait for the end of
    /// the cut, or are lost with ...,drop; may be repeated
    #[arg(long = "partition", value_name = "CUT", value_parser = Fault::parse_partition)]
    pub partitions: Vec<Fault>,
    /// Step the clock of a site: NODE@TIME,+D or NODE@TIME,-D; may be repeated
    #[arg(long = "step", value_name = "STEP", value_parser = Fault::parse_step)]
    pub steps: Vec<Fault>,
    /// The largest time by which a local clock is ahead at the start
    #[arg(long, value_name = "D", value_parser = duration)]
    pub skew: Option<Duration>,
    /// The largest drift of a local clock, in parts per million
    #[arg(long, value_name = "PPM")]
    pub drift: Option<u32>,
    /// Mutex, election, deadlock, snapshot: the number of events without progress after which a run ends as
    /// bounded [default: 10000000]
    #[arg(long, value_name = "N")]
    pub budget: Option<u64>,
}

impl WorldArgs {
    /// Returns the scenario that the file and the flags describe.
    pub fn scenario<S: Problem>(
        &self,
        algorithm: &str,
        nodes: Option<u32>,
        flags: &ProblemArgs,
    ) -> Result<S, Failure> {
        let mut scenario: S = self.read_config()?;
        if !algorithm.is_empty() {
            scenario.set_algorithm(algorithm);
        }
        let setup = scenario.setup_mut();
        replace(&mut setup.nodes, nodes);
        replace(&mut setup.delay, self.delay);
        replace(&mut setup.order, self.order);
        replace(&mut setup.loss, self.loss);
        replace(&mut setup.duplicate, self.duplicate);
        replace(&mut setup.corrupt, self.corrupt);
        replace(&mut setup.clocks.skew, self.skew);
        replace(&mut setup.clocks.drift_ppm, self.drift);
        replace(&mut setup.budget, self.budget);
        setup.links.extend_from_slice(&self.links);
        for fault in self.crashes.iter().chain(&self.pauses).chain(&self.partitions).chain(&self.steps) {
            setup.faults.push(fault.clone());
        }
        flags.refuse_strangers::<S>()?;
        scenario.read(flags)?;
        scenario.validate()?;
        Ok(scenario)
    }

    fn read_config<S: Problem>(&self) -> Result<S, Failure> {
        let Some(path) = &self.config else { return Ok(S::default()) };
        let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let read = if is_json {
            serde_json::from_str(&text)
        } else {
            // Converts TOML to a JSON value first, so that the compiler makes one reader of TOML and not one
            // per problem.
            let value = toml::from_str::<serde_json::Value>(&text);
            serde_json::from_value(value.map_err(|error| output::in_toml(path, &text, &error))?)
        };
        read.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
    }
}

/// Replaces a value if another one is given.
pub fn replace<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}

/// Reads a duration of a scenario.
pub fn duration(text: &str) -> Result<Duration, String> {
    crate::command::duration(text)?;
    conclave_sim::text::bounded(text)
}

/// Reads a group size.
pub fn nodes(text: &str) -> Result<u32, String> {
    let most = conclave_kernel::node::MOST_NODES;
    let nodes = text.parse().ok().filter(|nodes| (1..=most).contains(nodes));
    nodes.ok_or_else(|| format!("expected a number of nodes from 1 to {most}"))
}

/// Reads a number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    const MOST: usize = 1_024;
    let threads = text.parse().ok().filter(|threads| (1..=MOST).contains(threads));
    threads.ok_or_else(|| format!("expected a number of threads from 1 to {MOST}"))
}

/// Reads a half-open range of seeds.
pub fn seeds(text: &str) -> Result<Range<u64>, String> {
    const EXPECTED: &str = "expected a half-open range of seeds, such as 0..1000";
    let (from, to) = text.split_once("..").ok_or(EXPECTED)?;
    let range: Range<u64> = from.parse().map_err(|_| EXPECTED)?..to.parse().map_err(|_| EXPECTED)?;
    if range.is_empty() {
        return Err("the first seed must be smaller than the second, such as 0..1000".into());
    }
    Ok(range)
}

fn probability(text: &str) -> Result<Ratio, String> {
    let ratio = text.parse().ok().and_then(Ratio::from_f64);
    ratio.ok_or_else(|| "expected a probability from 0 to 1".into())
}
