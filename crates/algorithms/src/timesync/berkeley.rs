//! Berkeley: nobody has the true time, so the group agrees on one.
//!
//! A master asks everybody what their clocks show, averages those that agree with each other, and tells each by
//! how much to correct its clock. Fast and slow clocks cancel out, more or less; a clock that is plainly wrong is
//! left out of the average, and corrected all the same. What travels is a *correction*, not a time: it is as good
//! when it arrives as when it was sent.
//!
//! **Rules** \[GZ89\]
//! 1. The master polls several times and keeps for each site the shortest round trip: the difference of the two
//!    clocks lies in an interval, as Cristian's.
//! 2. The largest set of clocks that differ from each other by at most gamma, the master's own (difference 0)
//!    among the candidates, is averaged ([`average`]).
//! 3. Everybody, the master and the outliers included, gets average minus difference, and slews if that is negative.
//! 4. The master is elected, and elected again when it dies: by any algorithm of the [`election`] problem,
//!    over a detector. Three layers in one site, as in the mutex problem's elected coordinator.
//!
//! **Traps**: a correction applies to the clock *as it was when it was measured*; so a site's answer carries its
//! offset, the correction brings it back, and duplicates and late corrections do no harm. Nothing ties the group to
//! the true time: all may wander off together, in perfect agreement. And an election may be wrong, or its messages
//! lost: two masters at once, or none. Neither breaks a promise: every reign has a term of its own, of two masters the
//! one with the smaller (term, id) steps down when it hears of the other, and who hears no master for three periods
//! calls for an election again.
//!
//! **What a site states**: where the *group's time*, the master's clock after its own correction, lies. It was
//! measured to within half a round trip, and two drifting clocks part at 2 rho. Each round is a new reference
//! ([`Epoch`](super::Epoch)): clocks are compared with those that have heard of the same round.
//!
//! **Where we depart**: the paper has an election of its own; here two algorithms of the election problem are
//! algorithms, [`Bully`] (`berkeley`) and [`ChangRoberts`] (`berkeley-ring`). At boot site 0 calls for the election.

mod rounds;

use conclave_kernel::{Card, Cost, Cx, Input, Load, Measure, NodeId, Protocol, Time};
use serde::{Deserialize, Serialize};

use super::spec::{AGREEMENT, NEVER_BACK};
use super::{Command, Event, Group, Reading, TimeSync};
use crate::detector::{self, Detector, Heartbeat};
use crate::election::{self, Bully, ChangRoberts, Election};

pub use rounds::Stamp;
use rounds::{Duty, Rounds, Said};

/// The fault-tolerant average of differences to the master's clock: of the largest set of which any two differ
/// by at most `gamma`. Of several such sets the closest together, then the lowest.
pub fn average(differences: &[i64], gamma: u64) -> Option<i64> {
    let mut sorted = differences.to_vec();
    sorted.sort_unstable();
    // Clocks on a line: a set in which any two are close is a stretch of the sorted list.
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

/// One site: the rounds, an election and a detector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Berkeley<E: Election = Bully> {
    rounds: Rounds,
    election: E,
    detector: Heartbeat,
}

/// The master is elected round a ring.
pub type BerkeleyRing = Berkeley<ChangRoberts>;

/// What sites say to each other, layer by layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Message<E: Election> {
    /// The rounds'.
    Rounds(rounds::Message),
    /// The election's.
    Election(E::Message),
    /// The detector's.
    Detector(<Heartbeat as Protocol>::Message),
}

/// What a site asks to be reminded of, layer by layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timer<E> {
    /// The rounds'.
    Rounds(rounds::Timer),
    /// The election's.
    Election(E),
    /// The detector's.
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
        // Who comes back calls for an election by itself.
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
    /// Whether the site leads, as far as it knows.
    pub fn leads(&self) -> bool {
        self.rounds.leads()
    }

    /// A step of the rounds.
    fn keep_time(&mut self, input: Input<Rounds>, cx: &mut Cx<'_, Self>) {
        for said in cx.drive(&mut self.rounds, input, Message::Rounds, Timer::Rounds) {
            match said {
                Said::Up(event) => cx.emit(event),
                Said::Silent => self.elect(Input::Command(election::Command::Elect), cx),
            }
        }
    }

    /// A step of the election.
    fn elect(&mut self, input: Input<E>, cx: &mut Cx<'_, Self>) {
        for event in cx.drive(&mut self.election, input, Message::Election, Timer::Election) {
            if let election::Event::Elected { leader } = event {
                let duty = if leader == cx.me() { Duty::Lead } else { Duty::Follow };
                self.keep_time(Input::Command(duty), cx);
            }
        }
    }

    /// A step of the detector.
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
        summary: "an elected master averages the clocks that agree with each other and tells everybody a correction",
        papers: &["GZ89"],
        needs: super::ANY_NETWORK,
        promises: &[AGREEMENT.name, NEVER_BACK.name],
        costs: &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "(2P+1)(N-1) for a round of P polls, besides elections and heartbeats",
            range: |size| (3.0 * (size.n() - 1.0), f64::INFINITY),
        }],
        survives: "loss, duplication, any order, and the crash of any site: another master is elected",
        idle_traffic: true,
        reads_clock: true,
    };

    fn new(me: NodeId, group: &Group) -> Self {
        // Nobody promises how long a message takes. These are guesses: what they get wrong costs an election.
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
        // 3:25, 2:50 and 9:10 against the master's 3:00; an hour of agreement.
        let differences = [25 * MINUTE, -10 * MINUTE, 370 * MINUTE, 0];
        let average = average(&differences, 60 * MINUTE as u64).unwrap();
        assert_eq!(average, 5 * MINUTE, "3:05");
        let corrections = differences.map(|difference| (average - difference) / MINUTE);
        assert_eq!(corrections, [-20, 15, -365, 5], "-0:20, +0:15, -6:05, +0:05");
    }

    #[test]
    fn a_chain_of_close_clocks_is_no_agreement() {
        // Each is within 10 of the next, but not of all: the largest set is of three.
        assert_eq!(average(&[0, 8, 16, 9], 10), Some(11));
        assert_eq!(average(&[], 10), None);
    }

    /// A group of five whose clocks are up to 40 ms ahead and drift by up to 100 ppm.
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
        // The agreement is so narrow that who is far off stays out.
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

    /// Who leads, and whom all follow, after 30 s.
    fn masters<E: Election>(faults: &[&str]) -> (Vec<usize>, Vec<Option<NodeId>>) {
        let (group, mut setup) = five(5);
        setup.faults.extend(faults.iter().map(|fault| Fault::parse_crash(fault).unwrap()));
        let sites = by_sim::last::<Berkeley<E>>(&group, &setup, 15 * SECOND);
        let leading = sites.iter().enumerate().filter(|(_, site)| site.leads()).map(|(site, _)| site);
        (leading.collect(), sites.iter().map(|site| site.rounds.master()).collect())
    }

    fn the_highest_alive_leads<E: Election>() {
        assert_eq!(masters::<E>(&[]), (vec_of(&[4]), vec![Some(NodeId(4)); 5]));
        // Dead ones do not know that they no longer lead.
        let (leading, followed) = masters::<E>(&["4@3s"]);
        assert_eq!((leading, &followed[..4]), (vec_of(&[3, 4]), &vec![Some(NodeId(3)); 4][..]));
        let (leading, followed) = masters::<E>(&["4@3s", "3@9s", "1@4s"]);
        assert_eq!((leading, followed[0]), (vec_of(&[2, 3, 4]), Some(NodeId(2))));
        // Back, it is elected again: with its memory, and without.
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
        /// Against a naive twin that tries every subset.
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
