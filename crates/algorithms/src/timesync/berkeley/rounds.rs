//! The rounds: a master polls the clocks and sends corrections, the other sites reply and follow.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use conclave_kernel::{Cx, NodeId, Protocol, Time};
use serde::{Deserialize, Serialize};

use super::super::cristian::{self, Minimum};
use super::super::interval::{Estimate, Interval, drift, local};
use super::super::slew::Slew;
use super::super::{Epoch, Event, Group, Reading};
use super::average;

/// A command: the result of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Duty {
    /// This site is the master.
    Lead,
    /// Another site is the master.
    Follow,
}

/// An event that the rounds report to the layers around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// An event for the layer above.
    Up(Event),
    /// No master has polled for three periods.
    Silent,
}

/// The state of the rounds at one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rounds {
    clock: Slew,
    /// The rate at which two drifting clocks part: twice rho, plus 1 as a margin, in parts per million.
    relative_ppm: u32,
    minimum: Minimum,
    period: Duration,
    probes: u32,
    gamma: u64,
    /// The latest round that this site knows of, its own rounds included.
    epoch: Epoch,
    master: Option<Master>,
    /// The group's time minus the local clock, and the round from which it is known.
    known: Option<(Estimate, Epoch)>,
}

/// The state of a master during a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Master {
    /// The times at which the polls of this round left: at most `probes`.
    polls: Vec<Time>,
    /// The best answer of each site in this round.
    answers: Vec<Option<Answer>>,
}

/// A site's answer, as evaluated by the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Answer {
    /// The site's clock minus the master's local clock.
    difference: Estimate,
    /// The stamp of the answer.
    stamp: Stamp,
}

/// The value of a site's clock, in two parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// The local clock.
    pub local: Time,
    /// The sum of all corrections so far, in nanoseconds.
    pub offset: i64,
}

/// A message between the master and another site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The master's question for the clock of a site.
    Poll {
        /// The round of the master.
        epoch: Epoch,
        /// The number of the poll in that round.
        probe: u32,
    },
    /// The answer to a poll.
    Clock {
        /// The round of the poll.
        epoch: Epoch,
        /// The number of the poll.
        probe: u32,
        /// The value of the site's clock.
        stamp: Stamp,
    },
    /// The master's correction of the site's clock.
    Adjust {
        /// The round.
        epoch: Epoch,
        /// The amount that is added to the clock, in nanoseconds.
        correction: i64,
        /// The largest error of the correction at the time of the stamp, in nanoseconds.
        bound: u64,
        /// The stamp of the answer that is corrected.
        stamp: Stamp,
    },
    /// The answer to a poll of a term that is over.
    Behind {
        /// The latest term that the sender knows of.
        term: u64,
    },
}

impl Message {
    /// Returns the kind of the message. Meters count messages by kind.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Poll { .. } => "POLL",
            Self::Clock { .. } => "CLOCK",
            Self::Adjust { .. } => "ADJUST",
            Self::Behind { .. } => "BEHIND",
        }
    }
}

/// The timers of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timer {
    /// The next poll of a master is due.
    Poll,
    /// A master stops waiting for answers and ends the round.
    Close,
    /// No master has polled for three periods.
    Silence,
}

impl Protocol for Rounds {
    type Message = Message;
    type Timer = Timer;
    type Command = Duty;
    type Event = Said;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.master = None;
        self.listen(cx);
    }

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Poll { epoch, probe } => self.polled(from, epoch, probe, cx),
            Message::Clock { epoch, probe, stamp } if epoch == self.epoch => {
                self.answered(from, probe, stamp, cx);
            }
            Message::Adjust { epoch, correction, bound, stamp } if epoch >= self.epoch => {
                self.adjust(epoch, correction, bound, stamp, cx);
            }
            // The terms are equal if a site with a larger id has used this term.
            Message::Behind { term } if self.master.is_some() && term >= self.epoch.term => {
                self.lead(term.saturating_add(1), cx);
            }
            // A message of an earlier round, or of an earlier term of this site.
            Message::Clock { .. } | Message::Adjust { .. } | Message::Behind { .. } => {}
        }
    }

    fn on_timer(&mut self, timer: Timer, cx: &mut Cx<'_, Self>) {
        match timer {
            Timer::Poll => self.poll(cx),
            Timer::Close => self.close(cx),
            Timer::Silence => {
                cx.emit(Said::Silent);
                self.listen(cx);
            }
        }
    }

    fn on_command(&mut self, duty: Duty, cx: &mut Cx<'_, Self>) {
        match duty {
            Duty::Lead if self.master.is_none() => {
                // A site without its memory has forgotten its terms, but its incarnation is known. So this
                // term is unused.
                let unused = u64::from(cx.incarnation()) << LIFE_BITS;
                self.lead(unused.max(self.epoch.term.saturating_add(1)), cx);
            }
            Duty::Lead => {}
            Duty::Follow => self.follow(cx),
        }
    }
}

/// The number of bits that count the terms of one incarnation. The incarnation itself is in the bits above.
const LIFE_BITS: u32 = 32;

impl Rounds {
    pub(super) fn new(group: &Group) -> Self {
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

    /// Returns whether the site leads.
    pub(super) const fn leads(&self) -> bool {
        self.master.is_some()
    }

    /// Returns the master of the latest round that the site knows of; `None` before any round.
    pub(super) fn master(&self) -> Option<NodeId> {
        (self.epoch > Epoch::START).then_some(self.epoch.master)
    }

    /// Returns the clock's value, and the interval of the group's time.
    pub(super) fn read(&self, now: Time) -> Reading {
        // While this site leads, its own clock is the group's time, and it does not drift from itself.
        let ppm = match self.known {
            Some((_, epoch)) if self.master.is_some() && epoch.master == self.epoch.master => 0,
            _ => self.relative_ppm,
        };
        let interval = self.known.map(|(estimate, _)| estimate.time_at(now, ppm));
        let epoch = self.known.map_or(Epoch::START, |(_, epoch)| epoch);
        Reading { clock: self.clock.read(now), interval, epoch }
    }
}

/// The steps of a master.
impl Rounds {
    fn lead(&mut self, term: u64, cx: &mut Cx<'_, Self>) {
        let nodes = cx.members().len();
        self.master = Some(Master { polls: Vec::new(), answers: vec![None; nodes] });
        self.epoch = Epoch { term, master: cx.me(), round: 0 };
        cx.disarm(Timer::Silence);
        cx.emit(Said::Up(Event::Leads { term }));
        self.begin(cx);
    }

    fn begin(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(master) = &mut self.master else { return };
        master.polls.clear();
        master.answers.fill(None);
        self.epoch.round = self.epoch.round.saturating_add(1);
        cx.arm(Timer::Close, self.period / 2..=self.period / 2);
        self.poll(cx);
    }

    fn poll(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(master) = &mut self.master else { return };
        if master.polls.len() == self.probes as usize {
            // All polls are sent and the period is over.
            return self.begin(cx);
        }
        let probe = master.polls.len() as u32;
        master.polls.push(cx.now());
        cx.broadcast(Message::Poll { epoch: self.epoch, probe });
        // All polls leave in the first quarter of the period, and answers may take until the end of the
        // second.
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
        // Differences to the master's own corrected clock, whose difference is 0.
        let mine = self.clock.offset();
        let difference = |answer: &Answer| answer.difference.offset.guess().saturating_sub(mine);
        let all: Vec<i64> =
            answers.iter().map(|(_, answer)| difference(answer)).chain(core::iter::once(0)).collect();
        let Some(average) = average(&all, self.gamma) else { return };
        for (site, answer) in &answers {
            let correction = average.saturating_sub(difference(answer));
            // The rounding of the two guesses costs one nanosecond.
            let bound = answer.difference.offset.bound() + 1;
            cx.send(*site, Message::Adjust { epoch: self.epoch, correction, bound, stamp: answer.stamp });
        }
        debug_assert_eq!(self.epoch.master, me);
        let offset = mine.saturating_add(average);
        self.clock.aim(now, offset);
        // The group's time is this site's own clock, so it is known exactly.
        self.known = Some((Estimate { offset: Interval::point(offset), at: now }, self.epoch));
        cx.emit(Said::Up(if answers.is_empty() {
            Event::Missed
        } else {
            Event::Synced { offset, bound: 0 }
        }));
    }
}

/// The steps of the other sites.
impl Rounds {
    /// Waits for a poll of a master.
    fn listen(&self, cx: &mut Cx<'_, Self>) {
        let patience = self.period * 3;
        cx.arm(Timer::Silence, patience..=patience);
    }

    /// Stops leading, if the site is a master.
    fn follow(&mut self, cx: &mut Cx<'_, Self>) {
        if self.master.take().is_some() {
            cx.disarm(Timer::Poll);
            cx.disarm(Timer::Close);
            self.listen(cx);
        }
    }

    fn polled(&mut self, from: NodeId, epoch: Epoch, probe: u32, cx: &mut Cx<'_, Self>) {
        if (epoch.term, epoch.master) < (self.epoch.term, self.epoch.master) {
            return cx.send(from, Message::Behind { term: self.epoch.term });
        }
        self.follow(cx);
        self.epoch = self.epoch.max(epoch);
        self.listen(cx);
        let stamp = Stamp { local: cx.now(), offset: self.clock.offset() };
        cx.send(from, Message::Clock { epoch, probe, stamp });
    }

    fn adjust(&mut self, epoch: Epoch, correction: i64, bound: u64, stamp: Stamp, cx: &mut Cx<'_, Self>) {
        let offset = stamp.offset.saturating_add(correction);
        let estimate = Estimate { offset: Interval::around(offset, bound), at: stamp.local };
        if self.known.is_some_and(|(_, known)| known >= epoch) {
            return; // a duplicate, or of an earlier round
        }
        self.known = Some((estimate, epoch));
        let now = cx.now();
        self.clock.aim(now, offset);
        let bound = bound.saturating_add(drift(now.since(stamp.local), self.relative_ppm));
        cx.emit(Said::Up(Event::Synced { offset, bound }));
    }
}

#[cfg(test)]
mod tests {
    use conclave_kernel::{Buffer, Effect, Env, Input};

    use super::*;

    fn step(site: &mut Rounds, me: u32, now: u64, input: Input<Rounds>) -> Vec<Effect<Rounds>> {
        let mut world = Buffer::default();
        let env = Env { now: Time(now), ..Env::new(NodeId(me), 3) };
        site.step(input, &mut Cx::new(env, &mut world));
        world.effects
    }

    fn said(effects: &[Effect<Rounds>]) -> Vec<Message> {
        let message = |effect: &Effect<Rounds>| match effect {
            Effect::Send { message, .. } | Effect::Broadcast { message } => Some(*message),
            _ => None,
        };
        effects.iter().filter_map(message).collect()
    }

    const SECOND_REIGN: Epoch = Epoch { term: 2, master: NodeId(0), round: 7 };

    fn poll(epoch: Epoch) -> Input<Rounds> {
        Input::Message { from: epoch.master, message: Message::Poll { epoch, probe: 0 } }
    }

    #[test]
    fn a_correction_that_comes_twice_counts_once() {
        let mut site = Rounds::new(&Group::new(3));
        let epoch = Epoch { term: 1, master: NodeId(0), round: 1 };
        let stamp = Stamp { local: Time(1_000), offset: 0 };
        let adjust = Message::Adjust { epoch, correction: 500, bound: 7, stamp };
        let twice: Vec<_> = (0..2)
            .map(|_| step(&mut site, 1, 2_000, Input::Message { from: NodeId(0), message: adjust }).len())
            .collect();
        assert_eq!((site.clock.offset(), twice), (500, [1, 0].to_vec()));
    }

    #[test]
    fn a_correction_of_a_reign_that_is_over_is_not_followed() {
        let mut site = Rounds::new(&Group::new(3));
        step(&mut site, 1, 0, poll(SECOND_REIGN));
        let epoch = Epoch { term: 1, master: NodeId(2), round: 90 };
        let stamp = Stamp { local: Time(1_000), offset: 0 };
        let message = Message::Adjust { epoch, correction: 500, bound: 7, stamp };
        assert!(step(&mut site, 1, 2_000, Input::Message { from: NodeId(2), message }).is_empty());
        assert_eq!(site.read(Time(2_000)).interval, None);
    }

    #[test]
    fn a_master_that_hears_of_a_later_term_steps_down() {
        let mut site = Rounds::new(&Group::new(3));
        step(&mut site, 1, 0, Input::Command(Duty::Lead));
        assert!(site.leads());
        let answer = said(&step(&mut site, 1, 10, poll(SECOND_REIGN)));
        assert!(matches!(answer[..], [Message::Clock { .. }]), "{answer:?}");
        assert_eq!((site.leads(), site.master()), (false, Some(NodeId(0))));
    }

    #[test]
    fn who_is_elected_with_an_old_term_learns_of_it_and_begins_a_later_one() {
        // First a later term than the site's own, then the same term, used by a larger id.
        for (term, master) in [(2, NodeId(0)), (1, NodeId(2))] {
            let mut follower = Rounds::new(&Group::new(3));
            step(&mut follower, 0, 0, poll(Epoch { term, master, round: 7 }));
            let mut elected = Rounds::new(&Group::new(3));
            let polls = said(&step(&mut elected, 1, 0, Input::Command(Duty::Lead)));
            let ask = Input::Message { from: NodeId(1), message: polls[0] };
            let behind = said(&step(&mut follower, 0, 10, ask));
            assert_eq!(behind, [Message::Behind { term }]);
            let told = || Input::Message { from: NodeId(0), message: behind[0] };
            let again = said(&step(&mut elected, 1, 20, told()));
            let epoch = Epoch { term: term + 1, master: NodeId(1), round: 1 };
            assert_eq!(again, [Message::Poll { epoch, probe: 0 }]);
            assert!(step(&mut elected, 1, 21, told()).is_empty(), "told twice");
        }
    }

    #[test]
    fn terms_of_an_earlier_life_are_not_used_again() {
        let mut site = Rounds::new(&Group::new(3));
        let mut world = Buffer::default();
        let env = Env { incarnation: 3, ..Env::new(NodeId(2), 3) };
        site.step(Input::Command(Duty::Lead), &mut Cx::new(env, &mut world));
        assert_eq!(site.epoch.term, 3 << LIFE_BITS);
    }

    #[test]
    fn silence_is_told_again_and_again() {
        let mut site = Rounds::new(&Group::new(3));
        for _ in 0..2 {
            let effects = step(&mut site, 1, 0, Input::Timer(Timer::Silence));
            assert!(effects.contains(&Effect::Emit { event: Said::Silent }), "{effects:?}");
            assert!(effects.iter().any(|effect| matches!(effect, Effect::Arm { timer: Timer::Silence, .. })));
        }
    }
}
