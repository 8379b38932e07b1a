//! The flags of a run that `sim`, `compare` and `replay` share.

use std::path::PathBuf;
use std::time::Duration;

use conclave_kernel::Ratio;
use conclave_lab::experiment::flags::{duration, probability};
use conclave_lab::experiment::{Run, file};
use conclave_lab::problem::Problem;
use conclave_sim::{Delay, Fault, Link, Order};
use serde_json::Value;

use super::flags::ProblemFlags;
use crate::output::{self, Failure};

/// The world of a run. Every flag overrides the configuration file.
#[derive(clap::Args, Clone, Default, PartialEq)]
#[command(next_help_heading = "The world")]
pub struct WorldArgs {
    /// A file with an experiment in TOML, or in JSON if its name ends in .json: algorithm, a table work and a
    /// table world. The header of a trace contains one
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
    /// The number of events without progress after which a run of mutex, election, deadlock or snapshot ends
    /// as bounded [default: 10000000]
    #[arg(long, value_name = "N")]
    pub budget: Option<u64>,
}

impl WorldArgs {
    /// Returns the experiment that the file and the flags describe.
    pub fn experiment<W: Problem>(
        &self,
        algorithm: &str,
        nodes: Option<u32>,
        flags: &ProblemFlags,
    ) -> Result<Run<W>, Failure> {
        let mut run: Run<W> = self.read_config()?;
        if !algorithm.is_empty() {
            W::choose(&mut run, algorithm);
        }
        let setup = &mut run.world;
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
        flags.update(&mut run.work)?;
        run.validate()?;
        Ok(run)
    }

    fn read_config<W: Problem>(&self) -> Result<Run<W>, Failure> {
        let Some(path) = &self.config else { return Ok(Run::default()) };
        let read = || {
            let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
            let is_json = path.extension().is_some_and(|extension| extension == "json");
            // TOML becomes a JSON value first, so that the compiler makes one reader of TOML and not one per
            // problem.
            let value: Value = match is_json {
                true => serde_json::from_str(&text)
                    .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?,
                false => toml::from_str(&text).map_err(|error| output::in_toml(path, &text, &error))?,
            };
            file::read(value, &Run::default()).map_err(|field| {
                let line = line_of(&text, &field.path).map_or(String::new(), |line| format!(", line {line}"));
                Failure::usage(format!("{}{line}: {field}", path.display()))
            })
        };
        read().map_err(|failure| failure.of_flag("--config"))
    }
}

/// Returns the line of a field, counted from 1. Tables that the text does not name are skipped, because a
/// file of version 0.1.0 has no table `work`.
fn line_of(text: &str, path: &[String]) -> Option<usize> {
    let names = |line: &str, name: &str| {
        let is_comment = line.trim_start().starts_with('#');
        !is_comment
            && line.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|word| word == name)
    };
    let mut found = None;
    for name in path {
        let from = found.unwrap_or(0);
        let next = text.lines().skip(from).position(|line| names(line, name));
        found = next.map(|next| from + next).or(found);
    }
    found.map(|line| line + 1)
}

/// Replaces a value if another one is given.
pub fn replace<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}
