//! Marzullo's intersection: the times on which enough servers agree, although some servers are wrong.
//!
//! A client asks several servers, and each answer is an interval. If all servers were right, the true time
//! would lie in all intervals. If at most f of n servers are wrong, it lies in at least n-f intervals. The
//! client cannot know in which ones. So the result extends from the first point that lies in n-f intervals to
//! the last one.
//!
//! **Rules** \[MO85\]
//! 1. Sort all ends of the intervals. Sweep over them and count +1 at a lower end and -1 at an upper end
//!    ([`agreed`]).
//! 2. The result is the hull of the points at which the count reaches n-f. It contains the true time whenever
//!    at most f intervals are wrong.
//!
//! **Trap**: choosing f *after* seeing the answers. Some take the smallest f for which a point exists, or the
//! point in which most intervals meet ([`most_agreed`], the usual form of the algorithm). Both can exclude
//! the true time: an interval that is only slightly wrong overlaps the right ones on one side. A test shows
//! this. Ends that touch count as meeting, so a lower end sorts before an upper end at the same point.
//!
//! **The algorithm**: every site that is not a server asks all servers once per period. It computes a reading
//! from each answer as in Cristian's algorithm, and takes the times on which the answers agree, with f =
//! [`Group::faulty`]. A server that does not reply proves nothing: of m answers, at least m-f are right.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, NodeId, Protocol, Time};
use serde::{Deserialize, Serialize};

use super::cristian::{self, Minimum};
use super::interval::{Estimate, Interval, local};
use super::slew::Slew;
use super::spec::{AGREEMENT, NEVER_BACK, TRUTH};
use super::{Command, Event, Group, Reading, TimeSync};

/// Returns an interval that contains the true time if at most `faulty` of the intervals are wrong. It is the
/// hull of the points that lie in all but `faulty` intervals. Returns `None` if there is no such point: more
/// intervals are wrong than assumed, or no more than `faulty` are given.
pub fn agreed(intervals: &[Interval], faulty: usize) -> Option<Interval> {
    let needed = intervals.len().checked_sub(faulty).filter(|needed| *needed > 0)?;
    let mut lo = None;
    let mut hi = None;
    sweep(intervals, |count, from, to| {
        if count >= needed {
            lo = lo.or(Some(from));
            hi = Some(to);
        }
    });
    Interval::new(lo?, hi?)
}

/// Returns the segment in which most intervals meet, and their number. Of several such segments it returns
/// the first. This is usually called Marzullo's algorithm; the result is a good guess without a guarantee.
pub fn most_agreed(intervals: &[Interval]) -> Option<(Interval, usize)> {
    let mut best: Option<(Interval, usize)> = None;
    sweep(intervals, |count, lo, hi| {
        if best.is_none_or(|(_, most)| count > most) {
            best = Some((Interval { lo, hi }, count));
        }
    });
    best
}

/// Calls `stretch(count, from, to)` for every segment between two neighbouring ends, from left to right.
/// `count` is the number of intervals that contain the segment. At a point where ends meet, `count` is the
/// largest number that meet there. Segments outside all intervals are left out.
fn sweep(intervals: &[Interval], mut stretch: impl FnMut(usize, i64, i64)) {
    let mut ends: Vec<(i64, bool)> =
        intervals.iter().flat_map(|interval| [(interval.lo, false), (interval.hi, true)]).collect();
    ends.sort_unstable();
    let mut count = 0;
    for (index, (at, is_upper)) in ends.iter().enumerate() {
        if *is_upper {
            count -= 1;
        } else {
            count += 1;
        }
        if let Some((next, _)) = ends.get(index + 1).filter(|_| count > 0) {
            stretch(count, *at, *next);
        }
    }
}

/// The state of one site: a server if its id is below [`Group::servers`], else a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Marzullo {
    clock: Slew,
    drift_ppm: u32,
    minimum: Minimum,
    period: Duration,
    faulty: usize,
    is_server: bool,
    /// The number of the present round. Its questions left at `asked`.
    round: u64,
    asked: Time,
    /// The reading from each server in this round; the first valid answer counts.
    answers: Vec<Option<Estimate>>,
    estimate: Option<Estimate>,
}

/// A message between a client and a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// A request for the time.
    Ask {
        /// The round of the client.
        round: u64,
    },
    /// The reply of a server.
    Tell {
        /// The round of the question.
        round: u64,
        /// The value of the server's clock.
        time: i64,
    },
}

/// The timers of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timer {
    /// The next round begins.
    Round,
    /// The client gives up waiting for answers.
    Close,
}

impl Protocol for Marzullo {
    type Message = Message;
    type Timer = Timer;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.is_server {
            self.begin(cx);
        }
    }

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Ask { round } if self.is_server => {
                cx.send(from, Message::Tell { round, time: local(cx.now()) });
            }
            Message::Tell { round, time } if round == self.round => self.hear(from, time, cx),
            // A question to a client, or an answer to an earlier round.
            Message::Ask { .. } | Message::Tell { .. } => {}
        }
    }

    fn on_timer(&mut self, timer: Timer, cx: &mut Cx<'_, Self>) {
        match timer {
            Timer::Round => self.begin(cx),
            Timer::Close => self.close(cx),
        }
    }

    fn on_command(&mut self, Command::Ask: Command, cx: &mut Cx<'_, Self>) {
        cx.emit(Event::Told(self.read(cx.now())));
    }
}

impl Marzullo {
    fn begin(&mut self, cx: &mut Cx<'_, Self>) {
        self.round += 1;
        self.asked = cx.now();
        self.answers.fill(None);
        for server in 0..self.answers.len() as u32 {
            cx.send(NodeId(server), Message::Ask { round: self.round });
        }
        cx.arm(Timer::Close, self.period / 2..=self.period / 2);
        cx.arm(Timer::Round, self.period..=self.period);
    }

    fn hear(&mut self, from: NodeId, time: i64, cx: &mut Cx<'_, Self>) {
        let Some(answer @ None) = self.answers.get_mut(from.index()) else { return };
        let reading = cristian::reading(self.asked, cx.now(), time, self.minimum, self.drift_ppm);
        *answer = reading.map(|reading| Estimate::of(reading, cx.now()));
        if self.answers.iter().all(Option::is_some) {
            self.close(cx);
        }
    }

    fn close(&mut self, cx: &mut Cx<'_, Self>) {
        let now = cx.now();
        let answers: Vec<Interval> =
            self.answers.iter().flatten().map(|answer| answer.offset_at(now, self.drift_ppm)).collect();
        // Answers that still arrive belong to a round that is over.
        self.answers.fill(None);
        self.round += 1;
        cx.disarm(Timer::Close);
        let Some(fresh) = agreed(&answers, self.faulty) else { return cx.emit(Event::Missed) };
        // The old estimate is still valid; it has only become wider.
        let before = self.estimate.map(|estimate| estimate.offset_at(now, self.drift_ppm));
        let offset = before.and_then(|before| before.intersect(fresh)).unwrap_or(fresh);
        self.estimate = Some(Estimate { offset, at: now });
        self.clock.aim(now, offset.guess());
        cx.emit(Event::Synced { offset: offset.guess(), bound: offset.bound() });
    }
}

impl TimeSync for Marzullo {
    const CARD: Card = Card {
        problem: "timesync",
        name: "marzullo",
        title: "Marzullo's intersection",
        summary: "a client asks several servers and takes the interval on which all but f of them agree",
        papers: &["MO85", "C89"],
        needs: Needs { no_crash: true, ..super::ANY_NETWORK },
        promises: &[TRUTH.name, AGREEMENT.name, NEVER_BACK.name],
        costs: &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "2S for one round of a client with S servers",
            range: |size| (2.0, 2.0 * size.n()),
        }],
        survives: "loss, duplication, any order, and f servers with wrong time",
        idle_traffic: true,
        reads_clock: true,
    };

    fn new(me: NodeId, group: &Group) -> Self {
        Self {
            clock: Slew::new(group.slew_ppm),
            drift_ppm: group.drift_ppm,
            minimum: group.minimum,
            period: group.period,
            faulty: group.faulty as usize,
            is_server: me.0 < group.servers,
            round: 0,
            asked: Time::ZERO,
            answers: vec![None; group.servers as usize],
            estimate: None,
        }
    }

    fn kind(message: &Message) -> &'static str {
        match message {
            Message::Ask { .. } => "ASK",
            Message::Tell { .. } => "TELL",
        }
    }

    fn read(&self, now: Time) -> Reading {
        if self.is_server {
            return Reading::exact(local(now));
        }
        let interval = self.estimate.map(|estimate| estimate.time_at(now, self.drift_ppm));
        Reading { clock: self.clock.read(now), interval, epoch: super::Epoch::default() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(ends: &[(i64, i64)]) -> Vec<Interval> {
        ends.iter().map(|(lo, hi)| Interval::new(*lo, *hi).unwrap()).collect()
    }

    #[test]
    fn what_two_of_three_agree_upon() {
        // The usual example for [MO85]: 10 +- 2, 12 +- 1 and 11 +- 1. The second list has 14.5 +- 0.5 as its
        // third.
        let all = of(&[(8, 12), (11, 13), (10, 12)]);
        assert_eq!(most_agreed(&all), Some((Interval { lo: 11, hi: 12 }, 3)));
        let one_apart = of(&[(8, 12), (11, 13), (14, 15)]);
        assert_eq!(most_agreed(&one_apart), Some((Interval { lo: 11, hi: 12 }, 2)));
        assert_eq!(agreed(&one_apart, 0), None);
        assert_eq!(agreed(&one_apart, 1), Some(Interval { lo: 11, hi: 12 }));
    }

    #[test]
    fn ends_that_touch_meet() {
        assert_eq!(agreed(&of(&[(0, 5), (5, 9)]), 0), Some(Interval { lo: 5, hi: 5 }));
        assert_eq!(agreed(&of(&[(5, 5), (5, 5)]), 0), Some(Interval { lo: 5, hi: 5 }));
        assert_eq!(agreed(&[], 0), None);
        assert_eq!(agreed(&of(&[(0, 1)]), 1), None);
    }

    #[test]
    fn choosing_f_after_looking_leaves_the_true_time_out() {
        // The true time is 10. Two servers are right. The third is slightly wrong, and its interval overlaps
        // theirs.
        let answers = of(&[(9, 11), (9, 11), (11, 13)]);
        let (popular, count) = most_agreed(&answers).unwrap();
        assert_eq!((count, popular.contains(10)), (3, false));
        assert!(agreed(&answers, 1).unwrap().contains(10));
    }

    fn some_intervals() -> impl Strategy<Value = Vec<Interval>> {
        prop::collection::vec((-20..20_i64, 0..15_u64).prop_map(|(at, by)| Interval::around(at, by)), 0..8)
    }

    proptest! {
        /// A test against a simple version that tries every point.
        #[test]
        fn the_sweep_finds_what_trying_every_point_finds(intervals in some_intervals(), faulty in 0..4_usize) {
            let at = |point: i64| intervals.iter().filter(|interval| interval.contains(point)).count();
            let needed = intervals.len().saturating_sub(faulty);
            let points: Vec<i64> = (-40..40).filter(|point| needed > 0 && at(*point) >= needed).collect();
            let naive = points.first().zip(points.last()).and_then(|(lo, hi)| Interval::new(*lo, *hi));
            prop_assert_eq!(agreed(&intervals, faulty), naive);
            let most = (-40..40).map(at).max().unwrap_or(0);
            prop_assert_eq!(most_agreed(&intervals).map_or(0, |(_, count)| count), most);
        }

        /// If at most f intervals are wrong, the result contains the true time, whatever the wrong ones are.
        #[test]
        fn the_true_time_is_inside_if_at_most_f_are_wrong(right in prop::collection::vec((0..9_u64, 0..9_u64), 1..6),
                                                         wrong in prop::collection::vec((-90..90_i64, 0..40_u64), 0..4)) {
            let truthful = right.iter().map(|(below, above)| Interval { lo: -(*below as i64), hi: *above as i64 });
            let liars = wrong.iter().map(|(at, by)| Interval::around(*at, *by));
            let all: Vec<_> = truthful.chain(liars).collect();
            prop_assert!(agreed(&all, wrong.len()).is_some_and(|interval| interval.contains(0)));
        }
    }
}
