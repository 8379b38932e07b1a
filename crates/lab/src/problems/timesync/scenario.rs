//! The scenario of the timesync problem.

use std::time::Duration;

use conclave_algorithms::mutants::flawed::{Fallible, Flawed};
use conclave_algorithms::mutants::timesync::OfTimeSync;
use conclave_algorithms::timesync::dtp::ticks;
use conclave_algorithms::timesync::spec::TRUTH;
use conclave_algorithms::timesync::{
    self, Averaged, Cristian, Group, Intersected, Minimum, Narrowest, TimeSync, cristian,
};
use conclave_kernel::{Card, NodeId, time};
use conclave_sim::{Clocks, Delay, FaultKind, Setup, exact};
use serde::{Deserialize, Serialize};

use super::{Report, run_algorithm};
use crate::problem::{self, Entry, Recorder};

/// Everything that determines a run of the timesync problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// The algorithm's name.
    pub algorithm: String,
    /// Network, clocks, faults, seed.
    pub setup: Setup,
    /// The time from one comparison of clocks to the next.
    #[serde(with = "conclave_sim::text::duration")]
    pub every: Duration,
    /// The number of measurements of each site's clock, about three per comparison.
    pub samples: u64,
    /// The number of readings in one comparison, if the algorithm reads more than once.
    pub probes: u32,
    /// Marzullo: the number of time servers, which are the first sites.
    pub servers: u32,
    /// Marzullo: the number of servers with a wrong clock, which are the last servers.
    pub liars: u32,
    /// NTP and DTP: the number of children of each site in the tree; 1 is a chain.
    pub fanout: u32,
    /// Cristian: the largest error of a reading that is accepted. After a worse reading, the site asks again.
    #[serde(with = "conclave_sim::text::optional_duration")]
    pub wanted: Option<Duration>,
}

/// The delay of a cable of 100 m.
const WIRE: Delay = Delay::Constant(Duration::from_nanos(500));

impl Default for Scenario {
    fn default() -> Self {
        let clocks = Clocks { skew: Duration::from_millis(100), drift_ppm: 100, ..Clocks::default() };
        let delay = Delay::Uniform(Duration::from_micros(200), Duration::from_millis(5));
        Self {
            algorithm: "cristian".into(),
            setup: Setup { delay, clocks, ..Setup::default() },
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
            faulty: self.liars,
            fanout: self.fanout,
            period: self.every,
            probes: self.probes,
            drift_ppm: self.setup.clocks.drift_ppm,
            minimum: self.minimum(),
            wanted: self.wanted,
            ..Group::new(self.setup.nodes)
        }
    }

    /// Returns the setup of a run: the time servers have the true time, except those with a wrong clock.
    pub(super) fn world(&self, card: &Card) -> Setup {
        let mut setup = self.setup.clone();
        let liars = if is_marzullo(card) { self.liars } else { 0 };
        setup.clocks.exact = self.servers_of(card) - liars;
        setup
    }

    /// Returns the number of time servers.
    pub(super) fn servers_of(&self, card: &Card) -> u32 {
        match () {
            () if !is_external(card) => 0,
            () if is_marzullo(card) => self.servers,
            () => 1,
        }
    }

    /// Returns the time from one measurement to the next. It is no simple fraction of the time between
    /// comparisons.
    pub(super) fn sample_every(&self) -> Duration {
        self.every * 37 / 100
    }

    /// Rejects a step of a clock that must be exact: that of a time server, or of dtp.
    fn validate_steps(&self) -> Result<(), String> {
        let stepped = self.setup.faults.iter().filter_map(|fault| match fault.kind {
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
        let patience = cristian::patience(self.every, self.probes);
        if patience > round_trip {
            return Ok(());
        }
        let questions = self.probes.saturating_add(1);
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
            let link = self.setup.links.iter().rev().find(|link| (link.from, link.to) == (from, to));
            shortest(link.map_or(self.setup.delay, |link| link.delay))
        };
        let clients = (1..self.setup.nodes).map(NodeId);
        clients.map(|client| one_way(client, server).saturating_add(one_way(server, client))).min()
    }

    /// Returns the shortest delay of a message.
    fn minimum(&self) -> Minimum {
        let links = self.setup.links.iter().map(|link| link.delay);
        Minimum::both(links.chain([self.setup.delay]).map(shortest).min().unwrap_or_default())
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

impl problem::Scenario for Scenario {
    const PROBLEM: &'static str = "timesync";
    const REPORTS_PROGRESS: bool = false;
    type Report = Report;

    fn cards() -> &'static [Card] {
        timesync::CARDS
    }

    fn algorithm(&self) -> &str {
        &self.algorithm
    }

    /// DTP runs on cables, a hundred thousand times faster than the others. It sets its own network: a chain
    /// of cables with a beacon every 200 ticks.
    fn set_algorithm(&mut self, name: &str) {
        name.clone_into(&mut self.algorithm);
        if name == timesync::Dtp::CARD.name {
            self.setup.delay = WIRE;
            self.setup.clocks.skew = self.setup.clocks.skew.min(Duration::from_micros(100));
            self.every = ticks(200);
            self.fanout = 1;
        }
    }

    fn setup(&self) -> &Setup {
        &self.setup
    }

    fn setup_mut(&mut self) -> &mut Setup {
        &mut self.setup
    }

    fn work(&self) -> u64 {
        self.samples
    }

    fn set_work(&mut self, work: u64) {
        self.samples = work;
    }

    fn length(&self) -> Duration {
        self.sample_every().saturating_mul(u32::try_from(self.samples).unwrap_or(u32::MAX))
    }

    fn validate(&self) -> Result<(), String> {
        self.setup.validate()?;
        problem::refuse_budget(&self.setup, "--samples")?;
        if self.every < Duration::from_nanos(1_000) {
            return Err("--every is too short: give at least 1us".into());
        }
        if self.probes == 0 || self.probes > 1_000 {
            return Err("--probes is out of range: give 1 to 1000".into());
        }
        if self.fanout == 0 {
            return Err("--fanout is 0: give at least 1".into());
        }
        let marzullo = self.algorithm == timesync::Marzullo::CARD.name;
        if marzullo && self.servers >= self.setup.nodes {
            return Err(format!(
                "--servers is too large: of {} nodes, at most {} can be servers",
                self.setup.nodes,
                self.setup.nodes - 1
            ));
        }
        if marzullo && self.liars >= self.servers {
            return Err("--liars is too large: at least 1 server must have the true time".into());
        }
        self.validate_patience()?;
        self.validate_steps()
    }

    fn flags(&self) -> Vec<String> {
        let default = Self::default();
        let mut flags = Vec::new();
        if self.every != default.every {
            flags.push(format!("--every {}", exact(self.every)));
        }
        if self.samples != default.samples {
            flags.push(format!("--samples {}", self.samples));
        }
        let counts = [
            ("probes", self.probes, default.probes),
            ("servers", self.servers, default.servers),
            ("liars", self.liars, default.liars),
            ("fanout", self.fanout, default.fanout),
        ];
        let different = counts.into_iter().filter(|(_, value, default)| value != default);
        flags.extend(different.map(|(name, value, _)| format!("--{name} {value}")));
        flags.extend(self.wanted.map(|wanted| format!("--wanted {}", exact(wanted))));
        flags
    }

    fn entry(&self) -> Option<&'static Entry<Self>> {
        ENTRIES.iter().find(|entry| entry.card.name == self.algorithm)
    }
}

macro_rules! entry {
    ($algorithm:ty) => {
        Entry { card: &<$algorithm as TimeSync>::CARD, simulate: simulate::<$algorithm> }
    };
}

static ENTRIES: &[Entry<Scenario>] = &timesync::each!(entry);

fn simulate<P: Fallible + TimeSync>(scenario: &Scenario, recorder: &mut Recorder) -> Result<Report, String> {
    // Samples of flaws use this type too, so each simulation is compiled once.
    let (report, trace) = run_algorithm::<Flawed<P, OfTimeSync>>(scenario, recorder.wants_trace())?;
    recorder.take(trace.as_ref())?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Scenario as _;

    #[test]
    fn the_command_line_says_only_what_differs() {
        let mut scenario = Scenario::default();
        assert_eq!(scenario.command_line(), "conclave sim timesync/cristian --nodes 5 --seed 1");
        scenario.liars = 1;
        assert!(scenario.command_line().ends_with("--liars 1"));
        scenario.wanted = Some(Duration::from_micros(800));
        assert!(scenario.command_line().ends_with("--liars 1 --wanted 800us"));
    }

    #[test]
    fn dtp_brings_its_own_world_and_the_command_line_says_so() {
        let mut scenario = Scenario::default();
        scenario.set_algorithm("dtp");
        let line = scenario.command_line();
        assert!(line.contains("--every 1280ns") && line.contains("--delay constant:500ns"), "{line}");
    }

    #[test]
    fn a_time_server_and_an_oscillator_do_not_step() {
        let refused = |algorithm: &str, step: &str| {
            let mut scenario = Scenario::default();
            scenario.set_algorithm(algorithm);
            scenario.setup.faults.push(conclave_sim::Fault::parse_step(step).unwrap());
            scenario.validate().is_err()
        };
        assert!(refused("cristian", "0@5s,+1ms") && !refused("cristian", "1@5s,+1ms"));
        assert!(refused("marzullo", "2@5s,+1ms") && !refused("marzullo", "3@5s,+1ms"));
        assert!(refused("dtp", "3@5us,+1ms") && !refused("berkeley", "0@5s,-1ms"));
    }

    #[test]
    fn a_client_that_gives_up_before_any_reply_can_arrive_is_refused() {
        let with = |algorithm: &str, delay: &str, every: u64| {
            let mut scenario = Scenario { every: Duration::from_millis(every), ..Scenario::default() };
            scenario.set_algorithm(algorithm);
            scenario.setup.delay = delay.parse().unwrap();
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
        one_is_near.setup.links = vec!["0>2=constant:1ms".parse().unwrap()];
        assert!(one_is_near.validate().is_err(), "the question takes long");
        one_is_near.setup.links.push("2>0=constant:1ms".parse().unwrap());
        assert!(one_is_near.validate().is_ok());
    }

    #[test]
    fn a_group_of_servers_only_is_refused() {
        let mut scenario = Scenario { algorithm: "marzullo".into(), servers: 5, ..Scenario::default() };
        assert!(scenario.validate().is_err());
        scenario.servers = 4;
        assert!(scenario.validate().is_ok());
        scenario.liars = 4;
        assert!(scenario.validate().is_err());
    }
}
