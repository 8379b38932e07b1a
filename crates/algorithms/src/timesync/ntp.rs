//! NTP: the time comes down a tree, through a filter that prefers the fastest exchange.
//!
//! Site 0 has the true time (stratum 1). Every other site asks its parent in the tree, and its children ask
//! it. One exchange has four times: the question leaves at T1 and arrives at T2; the answer leaves at T3 and
//! arrives at T4. They determine the offset and the delay. The offset is exact if both directions take
//! equally long. Otherwise its error is at most half the delay.
//!
//! **Rules** \[RFC5905 §8, §10, §11\]
//! 1. theta = ((T2-T1) + (T3-T4))/2 and delta = (T4-T1) - (T3-T2); epsilon is the possible drift of the clock
//!    in between. The true offset lies in theta +- (delta/2 + epsilon) for any delays in the two directions.
//!    (In the lectures, the offset says how far the child is *ahead of* the parent: minus theta.)
//! 2. [`Filter`] keeps the last eight exchanges. The site uses the one with the smallest delay, but never one
//!    that is older than the one used last. It also rejects one that differs from the one used last by more
//!    than 3 jitters (a popcorn spike), while that one is fresh.
//! 3. A site sends its children the stratum, root delay and root dispersion of the sample in use. The root
//!    distance lambda = root delay/2 + root dispersion bounds the error against stratum 1.
//! 4. An answer counts only if it contains T1 of the open question. This excludes bogus and duplicate
//!    answers.
//! 5. A clock that is behind by more than 128 ms jumps; otherwise it is slewed. A site does not follow a
//!    server that is more than 1,000 s away (panic).
//!
//! **Traps**
//! - The peer dispersion has the weights 2^-(i+1). The skeleton in the RFC's appendix writes `2 ^ (i + 1)`,
//!   which is an exclusive or in C.
//! - There are three versions of the *jitter*. Ours is that of ntpd, see [`Filter::jitter`].
//!
//! **Differences from the paper**
//! - PHI is the group's rho instead of 15 ppm, so that the bound also holds for worse oscillators.
//! - The interval uses the dispersion of the *used* sample itself. The RFC's peer dispersion gives it only
//!   half its weight, so with eight equal samples it is smaller than that of the sample.
//!   [`Filter::dispersion`] computes it for reports.
//! - A site has one source, so it does not select among several. For that see [`marzullo`](super::marzullo).

mod filter;

use core::time::Duration;

use conclave_kernel::{Card, Cost, Cx, Load, Measure, NodeId, Protocol, Time, time};
use serde::{Deserialize, Serialize};

pub use filter::{Filter, MAX_DISPERSION, STAGES, Sample};

use super::interval::{Interval, drift, local};
use super::slew::Slew;
use super::spec::{AGREEMENT, NEVER_BACK, TRUTH};
use super::{Command, Epoch, Event, Group, Reading, TimeSync};

/// The largest offset that a site follows. It rejects a sample with a larger one and emits
/// [`Event::Panicked`].
pub const PANIC: Duration = Duration::from_secs(1000);

/// The stratum of a site that does not know the time.
pub const UNSYNCHRONISED: u8 = 16;

/// Returns theta and delta of an exchange \[RFC5905 §8\], in nanoseconds. The delay is at least 1, the
/// precision of the clocks.
pub const fn exchange(t1: i64, t2: i64, t3: i64, t4: i64) -> (i64, u64) {
    let there = t2 as i128 - t1 as i128;
    let back = t3 as i128 - t4 as i128;
    let delay = (t4 as i128 - t1 as i128) - (t3 as i128 - t2 as i128);
    let theta = (there + back).div_euclid(2);
    (theta as i64, if delay < 1 { 1 } else { delay as u64 })
}

/// The state of one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ntp {
    clock: Slew,
    drift_ppm: u32,
    period: Duration,
    /// The site that it asks; `None` at the root.
    parent: Option<NodeId>,
    /// T1 of the open question; `None` if no question is open.
    asked: Option<Time>,
    filter: Filter,
    used: Option<Sample>,
}

/// A message between a site and its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// A client's question.
    Request {
        /// T1, on the client's clock.
        transmit: Time,
    },
    /// A server's answer.
    Response {
        /// T1, copied from the question.
        origin: Time,
        /// T2, on the server's clock.
        receive: i64,
        /// T3, on the server's clock.
        transmit: i64,
        /// The server's distance from the root; 16 if it does not know the time.
        stratum: u8,
        /// The delay to the root and back, in nanoseconds.
        root_delay: u64,
        /// The dispersion up to the root, in nanoseconds.
        root_dispersion: u64,
    },
}

/// The timers of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timer {
    /// The next question is due.
    Poll,
}

impl Protocol for Ntp {
    type Message = Message;
    type Timer = Timer;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.poll(cx);
    }

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Request { transmit } => self.answer(from, transmit, cx),
            Message::Response { origin, .. } if self.asked != Some(origin) => {} // bogus, late or a duplicate
            Message::Response { receive, transmit, stratum, root_delay, root_dispersion, origin } => {
                self.asked = None;
                if stratum < UNSYNCHRONISED - 1 {
                    let (theta, delta) = exchange(local(origin), receive, transmit, local(cx.now()));
                    let epsilon = drift(cx.now().since(origin), self.drift_ppm) + 1;
                    let at = cx.now();
                    self.take(Sample { theta, delta, epsilon, at, stratum, root_delay, root_dispersion }, cx);
                } else {
                    self.filter.miss();
                    cx.emit(Event::Missed);
                }
            }
        }
    }

    fn on_timer(&mut self, Timer::Poll: Timer, cx: &mut Cx<'_, Self>) {
        if self.asked.take().is_some() {
            self.filter.miss();
            cx.emit(Event::Missed);
        }
        self.poll(cx);
    }

    fn on_command(&mut self, Command::Ask: Command, cx: &mut Cx<'_, Self>) {
        cx.emit(Event::Told(self.read(cx.now())));
    }
}

impl Ntp {
    /// Returns the distance from the root: 1 at the root, and [`UNSYNCHRONISED`] if the site does not know
    /// the time.
    pub fn stratum(&self) -> u8 {
        match (self.parent, &self.used) {
            (None, _) => 1,
            (Some(_), Some(sample)) => sample.stratum + 1,
            (Some(_), None) => UNSYNCHRONISED,
        }
    }

    /// Returns the filter with the last eight exchanges.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    fn poll(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(parent) = self.parent else { return };
        self.asked = Some(cx.now());
        cx.send(parent, Message::Request { transmit: cx.now() });
        cx.arm(Timer::Poll, self.period..=self.period);
    }

    /// Answers with the best guess and its uncertainty. The shown clock would be worse while it is being
    /// slewed.
    fn answer(&self, from: NodeId, origin: Time, cx: &mut Cx<'_, Self>) {
        let now = cx.now();
        let (guess, root_delay, root_dispersion) = match &self.used {
            Some(sample) => {
                let dispersion =
                    sample.dispersion_at(now, self.drift_ppm).saturating_add(sample.root_dispersion);
                (
                    local(now).saturating_add(sample.theta),
                    sample.delta.saturating_add(sample.root_delay),
                    dispersion,
                )
            }
            None => (local(now), 0, 0),
        };
        let (receive, transmit, stratum) = (guess, guess, self.stratum());
        cx.send(from, Message::Response { origin, receive, transmit, stratum, root_delay, root_dispersion });
    }

    fn take(&mut self, sample: Sample, cx: &mut Cx<'_, Self>) {
        if sample.theta.unsigned_abs() > time::nanos(PANIC) {
            return cx.emit(Event::Panicked { offset: sample.theta });
        }
        let used_at = self.used.as_ref().map(|used| used.at);
        let Some(best) = self.filter.push(sample, used_at, self.period, self.drift_ppm) else { return };
        let now = cx.now();
        self.clock.aim(now, best.theta);
        cx.emit(Event::Synced { offset: best.theta, bound: best.root_distance(now, self.drift_ppm) });
        self.used = Some(best);
    }
}

impl TimeSync for Ntp {
    const CARD: Card = Card {
        problem: "timesync",
        name: "ntp",
        title: "NTP",
        summary: "time passes down a tree of servers; a filter prefers the fastest exchange",
        papers: &["RFC5905", "M91"],
        needs: super::ANY_NETWORK,
        promises: &[TRUTH.name, AGREEMENT.name, NEVER_BACK.name],
        costs: &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "2(N-1) for one poll by every client",
            range: |size| (2.0 * (size.n() - 1.0), 2.0 * (size.n() - 1.0)),
        }],
        survives: "loss, duplication, any order; the bounds of the sites below a crashed site grow",
        idle_traffic: true,
        reads_clock: true,
    };

    fn new(me: NodeId, group: &Group) -> Self {
        Self {
            clock: Slew::new(group.slew_ppm),
            drift_ppm: group.drift_ppm,
            period: group.period,
            parent: group.parent(me),
            asked: None,
            filter: Filter::default(),
            used: None,
        }
    }

    fn kind(message: &Message) -> &'static str {
        match message {
            Message::Request { .. } => "REQUEST",
            Message::Response { .. } => "RESPONSE",
        }
    }

    fn read(&self, now: Time) -> Reading {
        if self.parent.is_none() {
            return Reading::exact(local(now));
        }
        let interval = self.used.as_ref().map(|used| {
            Interval::around(local(now).saturating_add(used.theta), used.root_distance(now, self.drift_ppm))
        });
        Reading { clock: self.clock.read(now), interval, epoch: Epoch::START }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use conclave_kernel::{Buffer, Effect, Env, Input};
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn step(site: &mut Ntp, now: u64, input: Input<Ntp>) -> Vec<Effect<Ntp>> {
        let mut world = Buffer::default();
        let env = Env { now: Time(now), ..Env::new(NodeId(1), 3) };
        site.step(input, &mut Cx::new(env, &mut world));
        world.effects
    }

    fn response(origin: u64, server: i64, stratum: u8) -> Input<Ntp> {
        let message = Message::Response {
            origin: Time(origin),
            receive: server,
            transmit: server,
            stratum,
            root_delay: 40,
            root_dispersion: 5,
        };
        Input::Message { from: NodeId(0), message }
    }

    fn client() -> Ntp {
        let mut site = Ntp::new(NodeId(1), &Group { fanout: 1, ..Group::new(3) });
        step(&mut site, 100, Input::Start);
        site
    }

    #[test]
    fn offset_and_delay_of_an_exchange() {
        // [RFC5905 §8]: the server is ahead by 50. The question takes 10, the server 5 and the answer 30.
        assert_eq!(exchange(100, 160, 165, 145), (40, 40));
        // The offset of the lectures says how far the child is ahead of the parent: minus theta.
        let (ts1, tr1, ts2, tr2) = (100_i64, 160, 165, 145);
        assert_eq!((ts1 - tr1 + tr2 - ts2) / 2, -40);
    }

    #[test]
    fn an_answer_that_does_not_echo_the_open_question_is_ignored() {
        let mut site = client();
        let before = site.clone();
        step(&mut site, 300, response(99, 1_000, 1));
        assert_eq!(site, before, "bogus");
        assert!(!step(&mut site, 300, response(100, 1_000, 1)).is_empty());
        let before = site.clone();
        step(&mut site, 301, response(100, 1_000, 1));
        assert_eq!(site, before, "a duplicate");
    }

    #[test]
    fn who_hears_from_an_unsynchronised_server_stays_unsynchronised() {
        let mut site = client();
        let effects = step(&mut site, 300, response(100, 1_000, UNSYNCHRONISED));
        assert_eq!(effects, [Effect::Emit { event: Event::Missed }]);
        assert_eq!(site.stratum(), UNSYNCHRONISED);
        assert_eq!(site.read(Time(300)).interval, None);
    }

    #[test]
    fn the_root_distance_adds_up_down_the_tree() {
        let mut site = client();
        step(&mut site, 300, response(100, 1_000, 1));
        assert_eq!(site.stratum(), 2);
        // (delta 200 + root delay 40)/2 = 120; epsilon is 2 for drift and 1 for reading, plus 1 for its age;
        // root dispersion 5.
        let reading = site.read(Time(300));
        assert_eq!(reading.interval.unwrap().bound(), 120 + 4 + 5);
        let asked = Input::Message { from: NodeId(2), message: Message::Request { transmit: Time(7) } };
        let told = step(&mut site, 300, asked);
        let Effect::Send { message: Message::Response { stratum, root_delay, root_dispersion, .. }, .. } =
            told[0]
        else {
            panic!("{told:?}")
        };
        assert_eq!((stratum, root_delay, root_dispersion), (2, 240, 9));
    }

    #[test]
    fn nobody_follows_a_server_that_is_a_quarter_of_an_hour_away() {
        let mut site = client();
        let away = 1_001 * 1_000 * MS as i64;
        let effects = step(&mut site, 300, response(100, away, 1));
        assert_eq!(effects, [Effect::Emit { event: Event::Panicked { offset: away - 200 } }]);
        assert_eq!(site.stratum(), UNSYNCHRONISED);
    }

    proptest! {
        /// [RFC5905 §8]: the true offset is within theta +- delta/2, for any delays in the two directions.
        #[test]
        fn the_true_offset_is_within_half_the_delay(there in 0..1_000_000_i64, back in 0..1_000_000_i64,
                                                    thinks in 0..1_000_i64, ahead in -1_000_000_000..1_000_000_000_i64,
                                                    t1 in 0..1_000_000_000_i64) {
            let (t2, t3) = (t1 + there + ahead, t1 + there + thinks + ahead);
            let (theta, delta) = exchange(t1, t2, t3, t1 + there + thinks + back);
            prop_assert!(Interval::around(theta, delta.div_ceil(2)).contains(ahead));
            prop_assert_eq!(delta, ((there + back) as u64).max(1));
        }
    }
}
