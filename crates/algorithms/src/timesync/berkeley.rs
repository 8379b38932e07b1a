//! The Berkeley algorithm: no site has the true time, so the group agrees on a time.
//!
//! A master polls the clocks of all sites and averages the clocks that agree with each other. It sends each
//! site a correction. Errors of fast and slow clocks partly cancel out. A clock that is far off is left out
//! of the average, but it is corrected, too. The master sends a *correction*, not a time, so the delay of
//! this message does no harm.
//!
//! **Rules** \[GZ89\]
//! 1. The master polls several times and keeps the shortest round trip for each site. It yields an interval
//!    for the difference of the two clocks, as in Cristian's algorithm.
//! 2. The master's own clock takes part with difference 0. The master selects the largest set of clocks that
//!    differ from each other by at most gamma, and averages it ([`average`]).
//! 3. All sites, also the master and the outliers, get the correction average minus difference. A negative
//!    correction is slewed.
//! 4. The master is elected by any algorithm of the [`election`] problem over a detector, and a new one is
//!    elected when it crashes. A site has three layers, as in the elected coordinator of the mutex problem.
//!
//! **Traps**
//! - A correction applies to the clock *at the time of its measurement*. So a reply contains the site's
//!   offset at that time, and the correction returns it. Duplicate and late corrections then do no harm.
//! - Nothing connects the group to the true time: all clocks may move away from it together.
//! - An election may be wrong, or its messages may be lost. Then there are two masters, or none. No promise
//!   is broken, because the polls of each master carry its own pair of term and id. A master that receives a
//!   poll with a larger pair steps down. A master that learns from a reply that its term is over starts a
//!   later term. A site that receives no poll for three periods starts an election.
//!
//! **The interval that a site states** contains the *group's time*: the master's clock after its own
//! correction. The site knows it to within half a round trip, and two drifting clocks part at 2 rho. Each
//! round is a new reference ([`Epoch`](super::Epoch)), so only clocks of the same round are compared with
//! each other.
//!
//! **Differences from the paper**: the paper has an election of its own. Here the master is elected by
//! [`Bully`] (`berkeley`) or by [`ChangRoberts`] (`berkeley-ring`). At boot, site 0 starts the election.

mod rounds;

use conclave_kernel::{Card, Cost, Cx, Input, Load, Measure, NodeId, Protocol, Time};
use serde::{Deserialize, Serialize};

use super::spec::{AGREEMENT, NEVER_BACK};
use super::{Command, Event, Group, Reading, TimeSync};
use crate::detector::{self, Detector, Heartbeat};
use crate::election::{self, Bully, ChangRoberts, Election};

pub use rounds::Stamp;
use rounds::{Duty, Rounds, Said};

/// Returns the fault-tolerant average of the differences to the master's clock. It averages the largest set
/// in which any two differ by at most `gamma`. Of several such sets it takes the narrowest, and then the
/// lowest. Returns `None` for an empty list.
pub fn average(differences: &[i64], gamma: u64) -> Option<i64> {
    let mut sorted = differences.to_vec();
    sorted.sort_unstable();
    // A set in which any two values are close is contiguous in the sorted list.
    let mut best: &[i64] = &[];
    let mut first = 0;
    for last in 0..sorted.len() {
        while sorted[last].abs_diff(sorted[first]) > gamma {
            first += 1;
        }
        let set = &sorted[first..=last];
        let width = |set: &[i64]| set.last().zip(set.first()).map_or(0, |(high, low)| high.abs_diff(*low));
        if set.len() > best.len() || (set.len() == best.len() && width(set) < width(best)) {
            best = set;
        }
    }
    let sum: i128 = best.iter().copied().map(i128::from).sum();
    (!best.is_empty()).then(|| sum.div_euclid(best.len() as i128) as i64)
}

/// One site, in three layers: the rounds, an election and a detector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Berkeley<E: Election = Bully> {
    rounds: Rounds,
    election: E,
    detector: Heartbeat,
}

/// The variant whose master is elected on a ring.
pub type BerkeleyRing = Berkeley<ChangRoberts>;

/// A message of one of the layers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Message<E: Election> {
    /// A message of the rounds.
    Rounds(rounds::Message),
    /// A message of the election.
    Election(E::Message),
    /// A message of the detector.
    Detector(<Heartbeat as Protocol>::Message),
}

/// A timer of one of the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timer<E> {
    /// A timer of the rounds.
    Rounds(rounds::Timer),
    /// A timer of the election.
    Election(E),
    /// A timer of the detector.
    Detector(<Heartbeat as Protocol>::Timer),
}

impl<E: Election> Protocol for Berkeley<E> {
    type Message = Message<E>;
    type Timer = Timer<E::Timer>;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.keep_time(Input::Start, cx);
        self.watch(Input::Start, cx);
        // After a recovery, the election starts by itself.
        self.elect(Input::Start, cx);
        if cx.me() == NodeId(0) && cx.incarnation() == 0 {
            self.elect(Input::Command(election::Command::Elect), cx);
        }
    }

    fn on_message(&mut self, from: NodeId, message: Message<E>, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Rounds(message) => self.keep_time(Input::Message { from, message }, cx),
            Message::Election(message) => self.elect(Input::Message { from, message }, cx),
            Message::Detector(message) => self.watch(Input::Message { from, message }, cx),
        }
    }

    fn on_timer(&mut self, timer: Timer<E::Timer>, cx: &mut Cx<'_, Self>) {
        match timer {
            Timer::Rounds(timer) => self.keep_time(Input::Timer(timer), cx),
            Timer::Election(timer) => self.elect(Input::Timer(timer), cx),
            Timer::Detector(timer) => self.watch(Input::Timer(timer), cx),
        }
    }

    fn on_command(&mut self, Command::Ask: Command, cx: &mut Cx<'_, Self>) {
        cx.emit(Event::Told(self.read(cx.now())));
    }
}

impl<E: Election> Berkeley<E> {
    /// Returns whether the site leads, as far as it knows.
    pub fn leads(&self) -> bool {
        self.rounds.leads()
    }

    /// Runs a step of the rounds.
    fn keep_time(&mut self, input: Input<Rounds>, cx: &mut Cx<'_, Self>) {
        for said in cx.drive(&mut self.rounds, input, Message::Rounds, Timer::Rounds) {
            match said {
                Said::Up(event) => cx.emit(event),
                Said::Silent => self.elect(Input::Command(election::Command::Elect), cx),
            }
        }
    }

    /// Runs a step of the election.
    fn elect(&mut self, input: Input<E>, cx: &mut Cx<'_, Self>) {
        for event in cx.drive(&mut self.election, input, Message::Election, Timer::Election) {
            if let election::Event::Elected { leader } = event {
                let duty = if leader == cx.me() { Duty::Lead } else { Duty::Follow };
                self.keep_time(Input::Command(duty), cx);
            }
        }
    }

    /// Runs a step of the detector.
    fn watch(&mut self, input: Input<Heartbeat>, cx: &mut Cx<'_, Self>) {
        for event in cx.drive(&mut self.detector, input, Message::Detector, Timer::Detector) {
            match event {
                detector::Event::Suspected(site) => {
                    self.elect(Input::Command(election::Command::Suspect(site)), cx);
                    if self.rounds.master() == Some(site) {
                        self.elect(Input::Command(election::Command::Elect), cx);
                    }
                }
                detector::Event::Trusted(site) => {
                    self.elect(Input::Command(election::Command::Trust(site)), cx);
                }
            }
        }
    }
}

impl<E: Election> TimeSync for Berkeley<E> {
    const CARD: Card = Card {
        problem: "timesync",
        name: match E::CARD.name.as_bytes() {
            b"bully" => "berkeley",
            _ => "berkeley-ring",
        },
        title: match E::CARD.name.as_bytes() {
            b"bully" => "Berkeley",
            _ => "Berkeley, elected round a ring",
        },
        summary: "an elected master averages the clocks that agree and sends every site its correction",
        papers: &["GZ89"],
        needs: super::ANY_NETWORK,
        promises: &[AGREEMENT.name, NEVER_BACK.name],
        costs: &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "(2P+1)(N-1) for a round of P polls, not counting elections and heartbeats",
            range: |size| (3.0 * (size.n() - 1.0), f64::INFINITY),
        }],
        survives: "loss, duplication, any order, and the crash of any site: another site is elected master",
        idle_traffic: true,
        reads_clock: true,
    };

    fn new(me: NodeId, group: &Group) -> Self {
        // The network has no bound on delays, so these are estimates. A wrong estimate costs an election.
        let (beat, transmission) = (group.period / 2, group.period / 16);
        Self {
            rounds: Rounds::new(group),
            election: E::new(me, &election::Group::new(group.nodes, transmission)),
            detector: Heartbeat::new(me, &detector::Group::new(group.nodes, beat, beat)),
        }
    }

    fn kind(message: &Message<E>) -> &'static str {
        match message {
            Message::Rounds(message) => message.kind(),
            Message::Election(message) => E::kind(message),
            Message::Detector(message) => Heartbeat::kind(message),
        }
    }

    fn read(&self, now: Time) -> Reading {
        self.rounds.read(now)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;
    use core::time::Duration;

    use conclave_sim::{Clocks, Delay, Fault, Setup};
    use proptest::prelude::*;

    use super::super::by_sim;
    use super::*;

    const MINUTE: i64 = 60_000_000_000;
    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_lectures_example() {
        // The clocks show 3:25, 2:50 and 9:10, the master's shows 3:00, and gamma is an hour.
        let differences = [25 * MINUTE, -10 * MINUTE, 370 * MINUTE, 0];
        let average = average(&differences, 60 * MINUTE as u64).unwrap();
        assert_eq!(average, 5 * MINUTE, "3:05");
        let corrections = differences.map(|difference| (average - difference) / MINUTE);
        assert_eq!(corrections, [-20, 15, -365, 5], "-0:20, +0:15, -6:05, +0:05");
    }

    #[test]
    fn a_chain_of_close_clocks_is_no_agreement() {
        // In sorted order each clock is within 10 of the next, but not of all. The largest set has three
        // clocks.
        assert_eq!(average(&[0, 8, 16, 9], 10), Some(11));
        assert_eq!(average(&[], 10), None);
    }

    /// Returns a group of five whose clocks are up to 40 ms ahead and drift by up to 100 ppm.
    fn five(seed: u64) -> (Group, Setup) {
        let clocks = Clocks { skew: 40 * MS, drift_ppm: 100, ..Clocks::default() };
        let delay = Delay::Uniform(MS / 10, 5 * MS);
        (Group::new(5), Setup { nodes: 5, seed, delay, clocks, ..Setup::default() })
    }

    fn as_close_as_they_state<E: Election>() {
        for seed in 0..40 {
            let (group, setup) = five(seed);
            let breaches = by_sim::judged::<Berkeley<E>>(&group, &setup, 70 * MS, 400);
            let promised =
                |breach: &&super::super::spec::Breach| Berkeley::<E>::CARD.promises(breach.property.name);
            assert_eq!(breaches.iter().find(promised), None, "seed {seed}");
            let end = by_sim::run::<Berkeley<E>>(&group, &setup, 20 * SECOND, 1).pop().unwrap();
            let clocks = end.readings.iter().map(|reading| reading.clock);
            let spread = clocks.clone().max().unwrap() - clocks.min().unwrap();
            assert!(spread < 5_000_000, "{spread} ns apart, seed {seed}");
        }
    }

    #[test]
    fn clocks_of_one_round_are_as_close_as_they_state() {
        as_close_as_they_state::<Bully>();
        as_close_as_they_state::<ChangRoberts>();
    }

    #[test]
    fn an_outlier_is_not_averaged_and_corrected_all_the_same() {
        let (mut group, setup) = five(3);
        // So narrow that outliers are left out of the average.
        group.agreement = 15 * MS;
        let before = by_sim::run::<Berkeley>(&group, &setup, MS / 100, 1).pop().unwrap();
        let after = by_sim::run::<Berkeley>(&group, &setup, 20 * SECOND, 1).pop().unwrap();
        let ahead = |moment: &by_sim::Moment| -> Vec<i64> {
            moment
                .readings
                .iter()
                .map(|reading| (reading.clock - moment.truth.0 as i64) / 1_000_000)
                .collect()
        };
        let (before, after) = (ahead(&before), ahead(&after));
        let mean_of_all = before.iter().sum::<i64>() / 5;
        let spread = after.iter().max().unwrap() - after.iter().min().unwrap();
        assert!(spread <= 5, "all are together: {after:?}");
        assert!(after[0].abs_diff(mean_of_all) > 3, "not at the mean of all: {before:?} to {after:?}");
    }

    /// Returns the sites that lead, and the master of each site, after 45 s.
    fn masters<E: Election>(faults: &[&str]) -> (Vec<usize>, Vec<Option<NodeId>>) {
        let (group, mut setup) = five(5);
        setup.faults.extend(faults.iter().map(|fault| Fault::parse_crash(fault).unwrap()));
        let sites = by_sim::last::<Berkeley<E>>(&group, &setup, 15 * SECOND);
        let leading = sites.iter().enumerate().filter(|(_, site)| site.leads()).map(|(site, _)| site);
        (leading.collect(), sites.iter().map(|site| site.rounds.master()).collect())
    }

    fn the_highest_alive_leads<E: Election>() {
        assert_eq!(masters::<E>(&[]), (vec_of(&[4]), vec![Some(NodeId(4)); 5]));
        // A crashed site still counts itself as the leader.
        let (leading, followed) = masters::<E>(&["4@3s"]);
        assert_eq!((leading, &followed[..4]), (vec_of(&[3, 4]), &vec![Some(NodeId(3)); 4][..]));
        let (leading, followed) = masters::<E>(&["4@3s", "3@9s", "1@4s"]);
        assert_eq!((leading, followed[0]), (vec_of(&[2, 3, 4]), Some(NodeId(2))));
        // After its recovery, with or without its memory, it is elected again.
        assert_eq!(masters::<E>(&["4@3s..15s"]), (vec_of(&[4]), vec![Some(NodeId(4)); 5]));
        assert_eq!(masters::<E>(&["4@3s..15s,amnesia"]), (vec_of(&[4]), vec![Some(NodeId(4)); 5]));
    }

    fn vec_of(sites: &[usize]) -> Vec<usize> {
        sites.to_vec()
    }

    #[test]
    fn when_the_master_dies_the_highest_that_is_left_is_elected() {
        the_highest_alive_leads::<Bully>();
        the_highest_alive_leads::<ChangRoberts>();
    }

    #[test]
    fn a_group_is_kept_together_by_one_master_after_the_other() {
        for seed in 0..20 {
            let (group, mut setup) = five(seed);
            setup.faults.push(Fault::parse_crash("4@3s..12s,amnesia").unwrap());
            setup.faults.push(Fault::parse_crash("3@7s..20s").unwrap());
            for breaches in [
                by_sim::judged::<Berkeley>(&group, &setup, 70 * MS, 400),
                by_sim::judged::<BerkeleyRing>(&group, &setup, 70 * MS, 400),
            ] {
                let agreement = breaches.iter().find(|breach| breach.property == AGREEMENT);
                assert_eq!(agreement, None, "seed {seed}");
            }
        }
    }

    proptest! {
        /// A test against a simple version that tries every subset.
        #[test]
        fn the_largest_agreeing_set_is_found(clocks in prop::collection::vec(-30..30_i64, 1..9), gamma in 0..20_u64) {
            let subsets = (1..1_u32 << clocks.len()).map(|bits| -> Vec<i64> {
                let chosen = |index: &usize| bits >> index & 1 == 1;
                (0..clocks.len()).filter(chosen).map(|index| clocks[index]).collect()
            });
            let agree = |set: &Vec<i64>| set.iter().all(|one| set.iter().all(|other| one.abs_diff(*other) <= gamma));
            let most = subsets.clone().filter(agree).map(|set| set.len()).max().unwrap();
            let average = average(&clocks, gamma).unwrap();
            let same = subsets.filter(agree).any(|set| {
                set.len() == most && set.iter().sum::<i64>().div_euclid(most as i64) == average
            });
            prop_assert!(same, "{average} is the average of no largest set");
        }
    }
}
