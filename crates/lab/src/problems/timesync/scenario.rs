//! The work of the timesync problem, and its experiments in the simulator.

use std::time::Duration;

use conclave_algorithms::mutants::flawed::{Fallible, Flawed};
use conclave_algorithms::timesync::dtp::ticks;
use conclave_algorithms::timesync::mutants::OfTimeSync;
use conclave_algorithms::timesync::spec::TRUTH;
use conclave_algorithms::timesync::{
    self, Averaged, Cristian, Group, Intersected, Minimum, Narrowest, TimeSync, cristian,
};
use conclave_kernel::{Card, NodeId, time};
use conclave_sim::{Clocks, Delay, FaultKind, Setup};
use serde::{Deserialize, Serialize};

use super::{Report, run_algorithm};
use crate::experiment::{Run, flags};
use crate::problem::{self, Entry, Problem, Recorder};

/// An experiment of the timesync problem in the simulator.
pub type Scenario = Run<Work>;

/// The comparisons of clocks, the measurements, and the servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "The work")]
pub struct Work {
    /// The time from one comparison of clocks to the next; dtp has 1280ns
    #[arg(long, value_name = "D", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::duration")]
    pub every: Duration,
    /// The number of measurements of each site's clock, about three per comparison
    #[arg(long, value_name = "N")]
    pub samples: u64,
    /// The number of clock readings in one comparison
    #[arg(long, value_name = "N")]
    pub probes: u32,
    /// The number of time servers of Marzullo, which are the first sites
    #[arg(long, value_name = "N")]
    pub servers: u32,
    /// The number of time servers of Marzullo with a wrong clock, which are the last servers
    #[arg(long, value_name = "N")]
    pub liars: u32,
    /// The number of children of each site in the tree of ntp and dtp; 1 is a chain, which dtp has
    #[arg(long, value_name = "N")]
    pub fanout: u32,
    /// The largest error of a reading that cristian accepts. It repeats a worse reading, at most --probes
    /// times [default: any error]
    #[arg(long, value_name = "D", value_parser = flags::duration)]
    #[serde(with = "conclave_sim::text::optional_duration")]
    pub wanted: Option<Duration>,
}

/// The delay of a cable of 100 m.
const WIRE: Delay = Delay::Constant(Duration::from_nanos(500));

impl Default for Work {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(1),
            samples: 200,
            probes: 4,
            servers: 3,
            liars: 0,
            fanout: 2,
            wanted: None,
        }
    }
}

impl Scenario {
    /// The knowledge of the sites about each other.
    pub fn group(&self, card: &Card) -> Group {
        Group {
            servers: self.servers_of(card),
            faulty: self.work.liars,
            fanout: self.work.fanout,
            period: self.work.every,
            probes: self.work.probes,
            drift_ppm: self.world.clocks.drift_ppm,
            minimum: self.minimum(),
            wanted: self.work.wanted,
            ..Group::new(self.world.nodes)
        }
    }

    /// Returns the setup of a run: the time servers have the true time, except those with a wrong clock.
    pub(super) fn setup(&self, card: &Card) -> Setup {
        let mut setup = self.world.clone();
        let liars = if is_marzullo(card) { self.work.liars } else { 0 };
        setup.clocks.exact = self.servers_of(card) - liars;
        setup
    }

    /// Returns the number of time servers.
    pub(super) fn servers_of(&self, card: &Card) -> u32 {
        match () {
            () if !is_external(card) => 0,
            () if is_marzullo(card) => self.work.servers,
            () => 1,
        }
    }

    /// Returns the time from one measurement to the next. It is no simple fraction of the time between
    /// comparisons.
    pub(super) fn sample_every(&self) -> Duration {
        self.work.every * 37 / 100
    }

    /// Rejects a step of a clock that must be exact: that of a time server, or of dtp.
    fn validate_steps(&self) -> Result<(), String> {
        let stepped = self.world.faults.iter().filter_map(|fault| match fault.kind {
            FaultKind::Step { node, .. } => Some(node),
            _ => None,
        });
        let Some(first) = stepped.min() else { return Ok(()) };
        match timesync::CARDS.iter().find(|card| card.name == self.algorithm) {
            Some(card) if card.name == timesync::Dtp::CARD.name => Err(
                "the clock of dtp counts the ticks of an oscillator, which does not step: leave out --step"
                    .into(),
            ),
            Some(card) if first.0 < self.servers_of(card) => Err(format!(
                "node {} is a time server, and its clock is the true time: step the clock of another node",
                first.0
            )),
            _ => Ok(()),
        }
    }

    /// Rejects a client that gives up every request before the reply can arrive. It would never know the
    /// time.
    fn validate_patience(&self) -> Result<(), String> {
        let is_cristian = CRISTIANS.contains(&self.algorithm.as_str());
        let Some(round_trip) = self.shortest_round_trip().filter(|_| is_cristian) else { return Ok(()) };
        let patience = cristian::patience(self.work.every, self.work.probes);
        if patience > round_trip {
            return Ok(());
        }
        let questions = self.work.probes.saturating_add(1);
        Err(format!(
            "{} gives up a request after {}, but the shortest round trip takes {}: raise --every above {}, or lower \
             --probes or --delay",
            self.algorithm,
            time::show(patience),
            time::show(round_trip),
            time::show(round_trip.saturating_mul(questions)),
        ))
    }

    /// Returns the shortest time from a request to its reply, over all clients; `None` if there is no client.
    fn shortest_round_trip(&self) -> Option<Duration> {
        let server = NodeId(0);
        let one_way = |from, to| {
            let link = self.world.links.iter().rev().find(|link| (link.from, link.to) == (from, to));
            shortest(link.map_or(self.world.delay, |link| link.delay))
        };
        let clients = (1..self.world.nodes).map(NodeId);
        clients.map(|client| one_way(client, server).saturating_add(one_way(server, client))).min()
    }

    /// Returns the shortest delay of a message.
    fn minimum(&self) -> Minimum {
        let links = self.world.links.iter().map(|link| link.delay);
        Minimum::both(links.chain([self.world.delay]).map(shortest).min().unwrap_or_default())
    }
}

/// Returns the shortest delay that a distribution can produce.
fn shortest(delay: Delay) -> Duration {
    match delay {
        Delay::Constant(delay) | Delay::Uniform(delay, _) => delay,
        Delay::Exponential(_) | Delay::LogNormal(..) => Duration::ZERO,
    }
}

/// Returns whether the algorithm stops waiting for a reply after a while.
const CRISTIANS: [&str; 3] =
    [<Cristian<Narrowest>>::CARD.name, <Cristian<Averaged>>::CARD.name, <Cristian<Intersected>>::CARD.name];

/// Returns whether an algorithm follows the true time. The others only keep the group together.
pub(super) fn is_external(card: &Card) -> bool {
    card.promises(TRUTH.name)
}

fn is_marzullo(card: &Card) -> bool {
    card.name == timesync::Marzullo::CARD.name
}

impl Problem for Work {
    const NAME: &'static str = "timesync";
    const ALGORITHM: &'static str = "cristian";
    const REPORTS_PROGRESS: bool = false;
    type Report = Report;

    fn setup() -> Setup {
        let clocks = Clocks { skew: Duration::from_millis(100), drift_ppm: 100, ..Clocks::default() };
        let delay = Delay::Uniform(Duration::from_micros(200), Duration::from_millis(5));
        Setup { delay, clocks, ..Setup::default() }
    }

    fn cards() -> &'static [Card] {
        timesync::CARDS
    }

    fn entry(run: &Scenario) -> Option<&'static Entry<Self>> {
        ENTRIES.iter().find(|entry| entry.card.name == run.algorithm)
    }

    /// DTP runs on cables, a hundred thousand times faster than the others. It sets its own network: a chain
    /// of cables with a beacon every 200 ticks.
    fn choose(run: &mut Scenario, algorithm: &str) {
        algorithm.clone_into(&mut run.algorithm);
        if algorithm == timesync::Dtp::CARD.name {
            run.world.delay = WIRE;
            run.world.clocks.skew = run.world.clocks.skew.min(Duration::from_micros(100));
            run.work.every = ticks(200);
            run.work.fanout = 1;
        }
    }

    fn amount(&self) -> u64 {
        self.samples
    }

    fn set_amount(&mut self, amount: u64) {
        self.samples = amount;
    }

    fn length(run: &Scenario) -> Duration {
        run.sample_every().saturating_mul(u32::try_from(run.work.samples).unwrap_or(u32::MAX))
    }

    fn validate(run: &Scenario) -> Result<(), String> {
        let (work, nodes) = (&run.work, run.world.nodes);
        problem::refuse_budget(&run.world, "--samples")?;
        if work.every < Duration::from_nanos(1_000) {
            return Err("--every is too short: give at least 1us".into());
        }
        if work.probes == 0 || work.probes > 1_000 {
            return Err("--probes is out of range: give 1 to 1000".into());
        }
        if work.fanout == 0 {
            return Err("--fanout is 0: give at least 1".into());
        }
        let is_marzullo = run.algorithm == timesync::Marzullo::CARD.name;
        if is_marzullo && work.servers >= nodes {
            let most = nodes - 1;
            return Err(format!("--servers is too large: of {nodes} nodes, at most {most} can be servers"));
        }
        if is_marzullo && work.liars >= work.servers {
            return Err("--liars is too large: at least 1 server must have the true time".into());
        }
        run.validate_patience()?;
        run.validate_steps()
    }
}

macro_rules! entry {
    ($algorithm:ty) => {
        Entry { card: &<$algorithm as TimeSync>::CARD, simulate: simulate::<$algorithm> }
    };
}

/// Returns the entry of an algorithm of another crate.
pub(super) fn entry_of<P: Fallible + TimeSync>() -> Entry<Work> {
    entry!(P)
}

static ENTRIES: &[Entry<Work>] = &timesync::each!(entry);

fn simulate<P: Fallible + TimeSync>(scenario: &Scenario, recorder: &mut Recorder) -> Result<Report, String> {
    // Samples of flaws use this type too, so each simulation is compiled once.
    let (report, trace) = run_algorithm::<Flawed<P, OfTimeSync>>(scenario, recorder.wants_trace())?;
    recorder.take(trace.as_ref())?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_says_only_what_differs() {
        let mut scenario = Scenario::default();
        assert_eq!(scenario.command_line(), "conclave sim timesync/cristian --nodes 5 --seed 1");
        scenario.work.liars = 1;
        assert!(scenario.command_line().ends_with("--liars 1"));
        scenario.work.wanted = Some(Duration::from_micros(800));
        assert!(scenario.command_line().ends_with("--liars 1 --wanted 800us"));
    }

    #[test]
    fn dtp_brings_its_own_world_and_the_command_line_says_so() {
        let mut scenario = Scenario::default();
        Work::choose(&mut scenario, "dtp");
        let line = scenario.command_line();
        assert!(line.contains("--every 1280ns") && line.contains("--delay constant:500ns"), "{line}");
    }

    #[test]
    fn a_time_server_and_an_oscillator_do_not_step() {
        let refused = |algorithm: &str, step: &str| {
            let mut scenario = Scenario::default();
            Work::choose(&mut scenario, algorithm);
            scenario.world.faults.push(conclave_sim::Fault::parse_step(step).unwrap());
            scenario.validate().is_err()
        };
        assert!(refused("cristian", "0@5s,+1ms") && !refused("cristian", "1@5s,+1ms"));
        assert!(refused("marzullo", "2@5s,+1ms") && !refused("marzullo", "3@5s,+1ms"));
        assert!(refused("dtp", "3@5us,+1ms") && !refused("berkeley", "0@5s,-1ms"));
    }

    #[test]
    fn a_client_that_gives_up_before_any_reply_can_arrive_is_refused() {
        let with = |algorithm: &str, delay: &str, every: u64| {
            let mut scenario = Scenario::default().with(|work| work.every = Duration::from_millis(every));
            Work::choose(&mut scenario, algorithm);
            scenario.world.delay = delay.parse().unwrap();
            scenario
        };
        for algorithm in CRISTIANS {
            let error = with(algorithm, "uniform:100ms..600ms", 1_000).validate().unwrap_err();
            for words in [algorithm, "after 200ms", "takes 200ms", "--every above 1s", "--probes"] {
                assert!(error.contains(words), "'{words}' is not in: {error}");
            }
            assert!(with(algorithm, "uniform:100ms..600ms", 1_001).validate().is_ok());
            assert!(with(algorithm, "exponential:1h", 1_000).validate().is_ok(), "a reply may be quick");
        }
        assert!(with("marzullo", "constant:200ms", 1_000).validate().is_ok(), "it waits for a whole round");
        let mut one_is_near = with("cristian", "constant:200ms", 1_000);
        one_is_near.world.links = vec!["0>2=constant:1ms".parse().unwrap()];
        assert!(one_is_near.validate().is_err(), "the question takes long");
        one_is_near.world.links.push("2>0=constant:1ms".parse().unwrap());
        assert!(one_is_near.validate().is_ok());
    }

    #[test]
    fn a_group_of_servers_only_is_refused() {
        let mut scenario = Scenario::of("marzullo").with(|work| work.servers = 5);
        assert!(scenario.validate().is_err());
        scenario.work.servers = 4;
        assert!(scenario.validate().is_ok());
        scenario.work.liars = 4;
        assert!(scenario.validate().is_err());
    }
}
