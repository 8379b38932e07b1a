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
//! 4. A master that falls silent is replaced.
//!
//! **Traps**: a correction applies to the clock *as it was when it was measured*; so a site's answer carries its
//! offset, the correction brings it back, and duplicates and late corrections do no harm. Nothing ties the group to
//! the true time: all may wander off together, in perfect agreement.
//!
//! **What a site states**: where the *group's time*, the master's clock after its own correction, lies. It was
//! measured to within half a round trip, and two drifting clocks part at 2 rho. Each round is a new reference
//! ([`Epoch`]): clocks are compared with those that have heard of the same round.
//!
//! **Where we depart**: the paper holds an election. Here a site takes over by itself after a silence that is
//! longer the higher its id, with the next term; of two masters the one with the smaller (term, id) steps down when
//! it hears of the other.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use conclave_kernel::{Card, Cost, Cx, Load, Measure, NodeId, Protocol, Time};
use serde::{Deserialize, Serialize};

use super::cristian::{self, Minimum};
use super::interval::{Estimate, Interval, drift, local};
use super::slew::Slew;
use super::spec::{AGREEMENT, NEVER_BACK};
use super::{Command, Epoch, Event, Group, Reading, TimeSync};

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

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Berkeley {
    clock: Slew,
    /// Two drifting clocks part at twice rho.
    relative_ppm: u32,
    minimum: Minimum,
    period: Duration,
    probes: u32,
    gamma: u64,
    /// The latest round that I know of, be it mine.
    epoch: Epoch,
    master: Option<Master>,
    /// The group's time minus my local clock, and the round that says so.
    known: Option<(Estimate, Epoch)>,
}

/// What a master keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Master {
    /// When each poll of this round left: at most `probes`.
    polls: Vec<Time>,
    /// The best answer of each site.
    answers: Vec<Option<Answer>>,
}

/// What the master makes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Answer {
    /// The site's clock minus the master's local clock.
    difference: Estimate,
    /// As the site said it.
    stamp: Stamp,
}

/// What a site's clock shows, in two parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// The local clock.
    pub local: Time,
    /// The corrections so far.
    pub offset: i64,
}

/// What sites say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// What does your clock show?
    Poll {
        /// The master's round.
        epoch: Epoch,
        /// The number of the poll in that round.
        probe: u32,
    },
    /// This.
    Clock {
        /// The round of the poll.
        epoch: Epoch,
        /// The number of the poll.
        probe: u32,
        /// What it shows.
        stamp: Stamp,
    },
    /// Correct it.
    Adjust {
        /// The round.
        epoch: Epoch,
        /// By so much.
        correction: i64,
        /// The most by which that is wrong, when the clock was read.
        bound: u64,
        /// The reading that is corrected.
        stamp: Stamp,
    },
}

/// What a site is reminded of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timer {
    /// A master's next poll.
    Poll,
    /// A master waits for no more answers.
    Close,
    /// The master has been silent for too long.
    Silence,
}

impl Protocol for Berkeley {
    type Message = Message;
    type Timer = Timer;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.master = None;
        // Whoever comes back finds another master, or hears nothing and takes over in its turn.
        if cx.me() == NodeId(0) && cx.incarnation() == 0 {
            self.lead(0, cx);
        } else {
            self.listen(cx);
        }
    }

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Poll { epoch, probe } => self.polled(from, epoch, probe, cx),
            Message::Clock { epoch, probe, stamp } if epoch == self.epoch => {
                self.answered(from, probe, stamp, cx);
            }
            Message::Adjust { epoch, correction, bound, stamp } if !self.is_stale(epoch) => {
                self.adjust(epoch, correction, bound, stamp, cx);
            }
            Message::Clock { .. } | Message::Adjust { .. } => {} // of an earlier round
        }
    }

    fn on_timer(&mut self, timer: Timer, cx: &mut Cx<'_, Self>) {
        match timer {
            Timer::Poll => self.poll(cx),
            Timer::Close => self.close(cx),
            Timer::Silence => self.lead(self.epoch.term + 1, cx),
        }
    }

    fn on_command(&mut self, Command::Ask: Command, cx: &mut Cx<'_, Self>) {
        cx.emit(Event::Told(self.read(cx.now())));
    }
}

/// As a master.
impl Berkeley {
    fn lead(&mut self, term: u64, cx: &mut Cx<'_, Self>) {
        let nodes = cx.members().len();
        self.master = Some(Master { polls: Vec::new(), answers: vec![None; nodes] });
        self.epoch = Epoch { term, master: cx.me(), round: 0 };
        cx.disarm(Timer::Silence);
        cx.emit(Event::Leads { term });
        self.begin(cx);
    }

    fn begin(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(master) = &mut self.master else { return };
        master.polls.clear();
        master.answers.fill(None);
        self.epoch.round += 1;
        cx.arm(Timer::Close, self.period / 2..=self.period / 2);
        self.poll(cx);
    }

    fn poll(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(master) = &mut self.master else { return };
        if master.polls.len() == self.probes as usize {
            // The round is closed and the period over.
            return self.begin(cx);
        }
        let probe = master.polls.len() as u32;
        master.polls.push(cx.now());
        cx.broadcast(Message::Poll { epoch: self.epoch, probe });
        // All polls leave in the first quarter, so that answers have another quarter; then nothing till the end.
        let apart = self.period / (4 * self.probes);
        let next = if probe + 1 < self.probes { apart } else { self.period - apart * probe };
        cx.arm(Timer::Poll, next..=next);
    }

    fn answered(&mut self, from: NodeId, probe: u32, stamp: Stamp, cx: &mut Cx<'_, Self>) {
        let (now, relative_ppm) = (cx.now(), self.relative_ppm);
        let Some(master) = &mut self.master else { return };
        let Some(sent) = master.polls.get(probe as usize) else { return };
        let theirs = local(stamp.local).saturating_add(stamp.offset);
        let Some(reading) = cristian::reading(*sent, now, theirs, self.minimum, relative_ppm) else { return };
        let difference = Estimate::of(reading, now);
        let answer = &mut master.answers[from.index()];
        let better = |known: &Answer| {
            difference.offset.width() < known.difference.offset_at(now, relative_ppm).width()
        };
        if answer.as_ref().is_none_or(better) {
            *answer = Some(Answer { difference, stamp });
        }
    }

    fn close(&mut self, cx: &mut Cx<'_, Self>) {
        let (now, me) = (cx.now(), cx.me());
        let Some(master) = &self.master else { return };
        let answers: Vec<(NodeId, Answer)> = cx
            .peers()
            .iter()
            .filter_map(|site| master.answers[site.index()].map(|answer| (site, answer)))
            .collect();
        // Differences to my own corrected clock, mine being 0.
        let mine = self.clock.offset();
        let difference = |answer: &Answer| answer.difference.offset.guess().saturating_sub(mine);
        let all: Vec<i64> =
            answers.iter().map(|(_, answer)| difference(answer)).chain(core::iter::once(0)).collect();
        let Some(average) = average(&all, self.gamma) else { return };
        for (site, answer) in &answers {
            let correction = average.saturating_sub(difference(answer));
            // Rounding of the two guesses costs a nanosecond.
            let bound = answer.difference.offset.bound() + 1;
            cx.send(*site, Message::Adjust { epoch: self.epoch, correction, bound, stamp: answer.stamp });
        }
        debug_assert_eq!(self.epoch.master, me);
        let offset = mine.saturating_add(average);
        self.clock.aim(now, offset);
        // The group's time is my clock: I know it exactly.
        self.known = Some((Estimate { offset: Interval::point(offset), at: now }, self.epoch));
        cx.emit(if answers.is_empty() { Event::Missed } else { Event::Synced { offset, bound: 0 } });
    }
}

/// As one of the others.
impl Berkeley {
    /// Waits for a master; the higher the id, the longer.
    fn listen(&mut self, cx: &mut Cx<'_, Self>) {
        let patience = self.period * (3 + 2 * cx.me().0);
        cx.arm(Timer::Silence, patience..=patience);
    }

    /// Whether a round is older than what I know.
    fn is_stale(&self, epoch: Epoch) -> bool {
        epoch < self.epoch
    }

    fn polled(&mut self, from: NodeId, epoch: Epoch, probe: u32, cx: &mut Cx<'_, Self>) {
        // Who polls with an earlier term will hear from the later master, and step down.
        if (epoch.term, epoch.master) < (self.epoch.term, self.epoch.master) {
            return;
        }
        if epoch.master != cx.me() && self.master.take().is_some() {
            cx.disarm(Timer::Poll);
            cx.disarm(Timer::Close);
        }
        self.epoch = self.epoch.max(epoch);
        self.listen(cx);
        let stamp = Stamp { local: cx.now(), offset: self.clock.offset() };
        cx.send(from, Message::Clock { epoch, probe, stamp });
    }

    fn adjust(&mut self, epoch: Epoch, correction: i64, bound: u64, stamp: Stamp, cx: &mut Cx<'_, Self>) {
        let offset = stamp.offset.saturating_add(correction);
        let estimate = Estimate { offset: Interval::around(offset, bound), at: stamp.local };
        if self.known.is_some_and(|(_, known)| known >= epoch) {
            return; // a duplicate
        }
        self.known = Some((estimate, epoch));
        let now = cx.now();
        self.clock.aim(now, offset);
        let bound = bound.saturating_add(drift(now.since(stamp.local), self.relative_ppm));
        cx.emit(Event::Synced { offset, bound });
    }
}

impl TimeSync for Berkeley {
    const CARD: Card = Card {
        room: "timesync",
        name: "berkeley",
        title: "Berkeley",
        summary: "a master averages the clocks that agree with each other and tells everybody a correction",
        papers: &["GZ89"],
        needs: super::ANY_NETWORK,
        promises: &[AGREEMENT.name, NEVER_BACK.name],
        costs: &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "(2P+1)(N-1) for a round of P polls",
            range: |size| (3.0 * (size.n() - 1.0), f64::INFINITY),
        }],
        survives: "loss, duplication, any order, and the crash of any site: a silent master is replaced",
        idle_traffic: true,
        reads_clock: true,
    };

    fn new(_me: NodeId, group: &Group) -> Self {
        Self {
            clock: Slew::new(group.slew_ppm),
            relative_ppm: group.drift_ppm.saturating_mul(2).saturating_add(1),
            minimum: group.minimum,
            period: group.period,
            probes: group.probes.max(1),
            gamma: conclave_kernel::time::nanos(group.agreement),
            epoch: Epoch::START,
            master: None,
            known: None,
        }
    }

    fn kind(message: &Message) -> &'static str {
        match message {
            Message::Poll { .. } => "POLL",
            Message::Clock { .. } => "CLOCK",
            Message::Adjust { .. } => "ADJUST",
        }
    }

    fn read(&self, now: Time) -> Reading {
        // My own clock is the group's time as long as I lead: it does not drift from itself.
        let ppm = match self.known {
            Some((_, epoch)) if self.master.is_some() && epoch.master == self.epoch.master => 0,
            _ => self.relative_ppm,
        };
        let interval = self.known.map(|(estimate, _)| estimate.time_at(now, ppm));
        let epoch = self.known.map_or(Epoch::START, |(_, epoch)| epoch);
        Reading { clock: self.clock.read(now), interval, epoch }
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn clocks_of_one_round_are_as_close_as_they_state() {
        for seed in 0..40 {
            let (group, setup) = five(seed);
            let breaches = by_sim::judged::<Berkeley>(&group, &setup, 70 * MS, 400);
            let promised =
                |breach: &&super::super::spec::Breach| Berkeley::CARD.promises(breach.property.name);
            assert_eq!(breaches.iter().find(promised), None, "seed {seed}");
            let end = by_sim::run::<Berkeley>(&group, &setup, 20 * SECOND, 1).pop().unwrap();
            let clocks = end.readings.iter().map(|reading| reading.clock);
            let spread = clocks.clone().max().unwrap() - clocks.min().unwrap();
            assert!(spread < 5_000_000, "{spread} ns apart, seed {seed}");
        }
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

    #[test]
    fn another_leads_when_the_master_dies_and_the_old_one_follows_when_it_is_back() {
        let (group, mut setup) = five(5);
        setup.faults.push(Fault::parse_crash("0@3s..15s").unwrap());
        let sites = by_sim::last::<Berkeley>(&group, &setup, 15 * SECOND);
        let masters: Vec<_> = sites.iter().enumerate().filter(|(_, site)| site.master.is_some()).collect();
        assert_eq!(masters.len(), 1);
        assert_eq!((masters[0].0, masters[0].1.epoch.term), (1, 1));
        assert!(sites.iter().all(|site| site.epoch.master == NodeId(1)), "site 0 follows too");
    }

    #[test]
    fn a_correction_that_comes_twice_counts_once() {
        let mut site = Berkeley::new(NodeId(1), &Group::new(3));
        let epoch = Epoch { term: 0, master: NodeId(0), round: 1 };
        let stamp = Stamp { local: Time(1_000), offset: 0 };
        let adjust = Message::Adjust { epoch, correction: 500, bound: 7, stamp };
        let mut world = conclave_kernel::Buffer::default();
        let env = conclave_kernel::Env { now: Time(2_000), ..conclave_kernel::Env::new(NodeId(1), 3) };
        for _ in 0..2 {
            site.on_message(NodeId(0), adjust, &mut Cx::new(env, &mut world));
        }
        assert_eq!((site.clock.offset(), world.effects.len()), (500, 1));
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
