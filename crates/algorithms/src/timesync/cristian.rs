//! Cristian's algorithm: ask a time server, and take the middle of the possible times.
//!
//! The server replies with its time t. When the reply arrives, t is out of date by the delay of the reply.
//! This delay is at least min2. It is at most the round trip minus min1, the shortest delay of the question.
//! So the server's time lies in \[t + min2, t + RTT - min1\]. The middle is the best guess, and a short round
//! trip makes it a good one.
//!
//! **Rules** \[C89\]
//! 1. Guess t + (RTT + min2 - min1)/2. The error is at most (RTT - min1 - min2)/2 ([`reading`]).
//! 2. The client measures the round trip on its own clock, which drifts: widen the interval by rho RTT. From
//!    then on the bound grows by rho per second.
//! 3. A client may require a bound. It then repeats its question until a round trip is short enough, or until
//!    it has used all questions of the round. The first reading that is good enough ends the round. If there
//!    is none, the client keeps its old estimate, whose bound continues to grow. Without a required bound,
//!    the client asks all questions of the round and combines the readings by rule 4.
//! 4. There are three ways to combine several readings: keep the narrowest ([`Narrowest`], as in the paper),
//!    take their average ([`Averaged`], as often taught), or intersect them with each other and with the old
//!    estimate ([`Intersected`]). All three contain the true time. The intersection is never wider than the
//!    narrowest reading, and the narrowest reading is never wider than the average.
//!
//! **Trap**: "set the clock to t" ignores the time that has passed since the server sent t. The error is the
//! delay of the reply, which has no bound (`mutants::SetToT`). A round trip shorter than min1 + min2 is
//! impossible, so such a reading is rejected.

use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;
use core::time::Duration;

use conclave_kernel::{Card, Cost, Cx, Load, Measure, NodeId, Protocol, Time, time};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::interval::{Estimate, Interval, drift, local};
use super::slew::Slew;
use super::spec::{AGREEMENT, NEVER_BACK, TRUTH};
use super::{Command, Epoch, Event, Group, Reading, TimeSync};

/// The shortest delays that messages can have, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Minimum {
    /// min1: from the client to the server.
    pub there: u64,
    /// min2: from the server to the client.
    pub back: u64,
}

impl Minimum {
    /// No delay is known to be the shortest.
    pub const NONE: Self = Self { there: 0, back: 0 };

    /// Creates equal shortest delays for both directions.
    pub const fn both(delay: Duration) -> Self {
        Self { there: time::nanos(delay), back: time::nanos(delay) }
    }
}

/// Returns the interval of the server's time at the moment at which its reply `server` arrives. The question
/// left at `sent` and the reply arrived at `received`, both on the client's clock. Returns `None` if the
/// round trip is shorter than possible.
pub fn reading(
    sent: Time,
    received: Time,
    server: i64,
    minimum: Minimum,
    drift_ppm: u32,
) -> Option<Interval> {
    let round_trip = received.since(sent);
    let widened = drift(round_trip, drift_ppm);
    let rtt = time::nanos(round_trip);
    let lo = server.saturating_add_unsigned(minimum.back).saturating_sub_unsigned(widened);
    let hi = server
        .saturating_add_unsigned(rtt)
        .saturating_sub_unsigned(minimum.there)
        .saturating_add_unsigned(widened);
    Interval::new(lo, hi)
}

/// Returns the time after which a client gives up a question. All questions of a round fit into one period.
///
/// It must be longer than the shortest round trip: otherwise no reply ever arrives in time.
pub fn patience(period: Duration, probes: u32) -> Duration {
    period / probes.saturating_add(1)
}

/// A way to combine several readings.
pub trait Keep: Clone + Debug + Eq + Hash + Serialize + DeserializeOwned + Send + 'static {
    /// The card of the algorithm.
    const CARD: Card;

    /// Returns the offset that the client will use. `fresh` has the readings of this round and is not empty;
    /// `before` is the old estimate. All are as of now.
    fn keep(before: Option<Interval>, fresh: &[Interval]) -> Interval;
}

/// Keeps the narrowest reading, also if it is from an earlier round.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Narrowest;

impl Keep for Narrowest {
    const CARD: Card = Card {
        name: "cristian",
        title: "Cristian",
        summary: "a client asks a server several times and keeps the reply with the shortest round trip",
        ..CARD
    };

    fn keep(before: Option<Interval>, fresh: &[Interval]) -> Interval {
        let best = fresh.iter().copied().min_by_key(|reading| reading.width()).unwrap_or(fresh[0]);
        // An earlier reading contradicts this one only if a clock has left its specification since.
        let before = before.filter(|before| before.intersect(best).is_some());
        before.filter(|before| before.width() < best.width()).unwrap_or(best)
    }
}

/// Averages the readings of a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Averaged;

impl Keep for Averaged {
    const CARD: Card = Card {
        name: "cristian-average",
        title: "Cristian, averaged",
        summary: "a client asks a server several times and takes the average of the replies",
        ..CARD
    };

    fn keep(_before: Option<Interval>, fresh: &[Interval]) -> Interval {
        let mean = |end: fn(&Interval) -> i64| {
            (fresh.iter().map(|reading| i128::from(end(reading))).sum::<i128>())
                .div_euclid(fresh.len() as i128) as i64
        };
        // Both means are rounded down. One more nanosecond moves the upper end to the safe side.
        Interval { lo: mean(|reading| reading.lo), hi: mean(|reading| reading.hi) + 1 }
    }
}

/// Keeps the intersection of all readings.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Intersected;

impl Keep for Intersected {
    const CARD: Card = Card {
        name: "cristian-intersection",
        title: "Cristian, intersected",
        summary: "a client asks a server several times and keeps the interval that all replies share",
        ..CARD
    };

    fn keep(before: Option<Interval>, fresh: &[Interval]) -> Interval {
        let all = fresh.iter().copied().chain(before).map(Some);
        let common = all.reduce(|one, other| one?.intersect(other?)).flatten();
        common.unwrap_or_else(|| Narrowest::keep(before, fresh))
    }
}

/// The part of the card that the three variants share.
const CARD: Card = Card {
    problem: "timesync",
    name: "",
    title: "",
    summary: "",
    papers: &["C89"],
    needs: super::ANY_NETWORK,
    promises: &[TRUTH.name, AGREEMENT.name, NEVER_BACK.name],
    costs: &[Cost {
        measure: Measure::Messages,
        load: Load::Low,
        formula: "2 per reading",
        range: |_| (2.0, 2.0),
    }],
    survives: "loss, duplication, any order; while the server is down, the bound grows",
    idle_traffic: true,
    reads_clock: true,
};

/// The state of one site. Site 0 is the server; all others are clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Cristian<K: Keep> {
    clock: Slew,
    drift_ppm: u32,
    minimum: Minimum,
    period: Duration,
    probes: u32,
    /// The largest bound of a reading that the client accepts; `None` accepts every reading.
    wanted: Option<u64>,
    is_server: bool,
    /// The number of the latest question. `asked` is the time at which it left; `None` once the question is
    /// answered or given up.
    probe: u64,
    asked: Option<Time>,
    /// The number of questions that this round may still ask.
    left: u32,
    /// The readings of this round: at most `probes`.
    readings: Vec<Estimate>,
    estimate: Option<Estimate>,
    keep: PhantomData<K>,
}

/// The time server.
const SERVER: NodeId = NodeId(0);

/// A message between a client and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// A request for the time.
    Ask {
        /// The number of the question.
        probe: u64,
    },
    /// The reply of the server.
    Tell {
        /// The number of the question. With an answer to an earlier question, the round trip would appear too
        /// short.
        probe: u64,
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
    /// The client gives up waiting for the answer.
    Patience,
}

impl<K: Keep> Protocol for Cristian<K> {
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
            Message::Ask { probe } if self.is_server => {
                cx.send(from, Message::Tell { probe, time: local(cx.now()) });
            }
            Message::Tell { probe, time } if probe == self.probe => self.hear(time, cx),
            // A question to a client, or an answer to a question that was given up.
            Message::Ask { .. } | Message::Tell { .. } => {}
        }
    }

    fn on_timer(&mut self, timer: Timer, cx: &mut Cx<'_, Self>) {
        match timer {
            Timer::Round => self.begin(cx),
            Timer::Patience => {
                self.asked = None;
                self.ask_again(cx);
            }
        }
    }

    fn on_command(&mut self, Command::Ask: Command, cx: &mut Cx<'_, Self>) {
        cx.emit(Event::Told(self.read(cx.now())));
    }
}

impl<K: Keep> Cristian<K> {
    fn begin(&mut self, cx: &mut Cx<'_, Self>) {
        self.left = self.probes;
        self.readings.clear();
        cx.arm(Timer::Round, self.period..=self.period);
        self.ask_again(cx);
    }

    fn ask_again(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(left) = self.left.checked_sub(1) else { return self.finish(cx) };
        self.left = left;
        self.probe += 1;
        self.asked = Some(cx.now());
        cx.send(SERVER, Message::Ask { probe: self.probe });
        let patience = patience(self.period, self.probes);
        cx.arm(Timer::Patience, patience..=patience);
    }

    fn hear(&mut self, time: i64, cx: &mut Cx<'_, Self>) {
        // The question is answered already: a duplicate answer is not a second reading.
        let Some(asked) = self.asked.take() else { return };
        let now = cx.now();
        let reading = reading(asked, now, time, self.minimum, self.drift_ppm);
        let wanted = self.wanted.unwrap_or(u64::MAX);
        let reading = reading.filter(|reading| reading.bound() <= wanted);
        self.readings.extend(reading.map(|reading| Estimate::of(reading, now)));
        if reading.is_some() && self.wanted.is_some() {
            self.left = 0;
        }
        self.ask_again(cx);
    }

    fn finish(&mut self, cx: &mut Cx<'_, Self>) {
        cx.disarm(Timer::Patience);
        let now = cx.now();
        let fresh: Vec<_> = self.readings.drain(..).map(|one| one.offset_at(now, self.drift_ppm)).collect();
        if fresh.is_empty() {
            return cx.emit(Event::Missed);
        }
        let before = self.estimate.map(|estimate| estimate.offset_at(now, self.drift_ppm));
        let offset = K::keep(before, &fresh);
        self.estimate = Some(Estimate { offset, at: now });
        self.clock.aim(now, offset.guess());
        cx.emit(Event::Synced { offset: offset.guess(), bound: offset.bound() });
    }
}

impl<K: Keep> TimeSync for Cristian<K> {
    const CARD: Card = K::CARD;

    fn new(me: NodeId, group: &Group) -> Self {
        Self {
            clock: Slew::new(group.slew_ppm),
            drift_ppm: group.drift_ppm,
            minimum: group.minimum,
            period: group.period,
            probes: group.probes.max(1),
            wanted: group.wanted.map(time::nanos),
            is_server: me == SERVER,
            probe: 0,
            asked: None,
            left: 0,
            readings: Vec::new(),
            estimate: None,
            keep: PhantomData,
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
        Reading { clock: self.clock.read(now), interval, epoch: Epoch::START }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use conclave_kernel::{Buffer, Effect, Env, Input};
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns a time of day in nanoseconds.
    fn clock(hours: u64, minutes: u64, seconds: u64, ms: u64) -> u64 {
        ((hours * 60 + minutes) * 60 + seconds) * 1000 * MS + ms * MS
    }

    #[test]
    fn the_lectures_example() {
        let (sent, received) = (Time(clock(5, 8, 15, 100)), Time(clock(5, 8, 15, 900)));
        let server = clock(5, 9, 25, 300) as i64;
        let minimum = Minimum { there: 200 * MS, back: 200 * MS };
        let answer = reading(sent, received, server, minimum, 0).unwrap();
        assert_eq!(answer.guess(), clock(5, 9, 25, 700) as i64);
        assert_eq!(answer.bound(), 200 * MS);
    }

    #[test]
    fn different_minima_move_the_guess() {
        // t + (RTT + min2 - min1)/2 [C89]
        let answer = reading(Time(0), Time(100), 1_000, Minimum { there: 10, back: 30 }, 0).unwrap();
        assert_eq!((answer.lo, answer.hi), (1_030, 1_090));
        assert_eq!(answer.guess(), 1_000 + (100 + 30 - 10) / 2);
        assert_eq!(answer.bound(), (100 - 30 - 10) / 2);
    }

    #[test]
    fn a_round_trip_shorter_than_it_can_be_is_refused() {
        assert_eq!(reading(Time(0), Time(39), 0, Minimum { there: 20, back: 20 }, 0), None);
    }

    fn step(
        site: &mut Cristian<Narrowest>,
        now: u64,
        input: Input<Cristian<Narrowest>>,
    ) -> Vec<Effect<Cristian<Narrowest>>> {
        let mut world = Buffer::default();
        let env = Env { now: Time(now), ..Env::new(NodeId(1), 2) };
        site.step(input, &mut Cx::new(env, &mut world));
        world.effects
    }

    fn client(group: &Group) -> Cristian<Narrowest> {
        let mut site = Cristian::new(NodeId(1), group);
        step(&mut site, 0, Input::Start);
        site
    }

    fn tell(probe: u64, time: i64) -> Input<Cristian<Narrowest>> {
        Input::Message { from: SERVER, message: Message::Tell { probe, time } }
    }

    #[test]
    fn the_shortest_round_trip_of_several_is_kept() {
        let mut site = client(&Group { probes: 2, drift_ppm: 0, ..Group::new(2) });
        step(&mut site, 10 * MS, tell(1, 500));
        let effects = step(&mut site, 12 * MS, tell(2, 5_000_000_000));
        let bound = MS; // half of 2 ms, not of 10
        let offset = 5_000_000_000 + MS as i64 - 12 * MS as i64;
        assert!(effects.contains(&Effect::Emit { event: Event::Synced { offset, bound } }), "{effects:?}");
    }

    #[test]
    fn a_duplicate_or_a_late_answer_is_no_reading() {
        let mut site = client(&Group { probes: 1, ..Group::new(2) });
        step(&mut site, MS, Input::Timer(Timer::Patience));
        let before = site.clone();
        step(&mut site, 2 * MS, tell(1, 77));
        assert_eq!(site, before, "given up");
        let mut site = client(&Group { probes: 2, ..Group::new(2) });
        step(&mut site, MS, tell(1, 77));
        let before = site.clone();
        step(&mut site, MS, tell(1, 77));
        assert_eq!(site, before, "a duplicate");
    }

    #[test]
    fn the_first_reading_that_is_good_enough_ends_the_round() {
        let group =
            Group { probes: 3, drift_ppm: 0, wanted: Some(Duration::from_millis(1)), ..Group::new(2) };
        let mut site = client(&group);
        let again = step(&mut site, 3 * MS, tell(1, 0));
        assert!(
            again.contains(&Effect::Send { to: SERVER, message: Message::Ask { probe: 2 } }),
            "{again:?}"
        );
        let good = step(&mut site, 5 * MS, tell(2, 5 * MS as i64));
        assert!(
            good.contains(&Effect::Emit { event: Event::Synced { offset: MS as i64, bound: MS } }),
            "{good:?}"
        );
        assert!(!good.iter().any(|effect| matches!(effect, Effect::Send { .. })), "{good:?}");
    }

    #[test]
    fn no_reading_good_enough_is_no_answer() {
        let mut site = client(&Group { probes: 1, wanted: Some(Duration::from_millis(1)), ..Group::new(2) });
        assert!(step(&mut site, 3 * MS, tell(1, 0)).contains(&Effect::Emit { event: Event::Missed }));
        assert_eq!(site.read(Time(4 * MS)).interval, None);
    }

    #[test]
    fn between_readings_the_bound_grows_by_rho() {
        let mut site = client(&Group { probes: 1, drift_ppm: 100, ..Group::new(2) });
        step(&mut site, 2 * MS, tell(1, 0));
        let bound = |at: u64| site.read(Time(at)).interval.unwrap().bound();
        assert!(bound(2 * MS).abs_diff(MS + 201) <= 4, "half of 2 ms, and rho of 2 ms");
        assert!((bound(1_002 * MS) - bound(2 * MS)).abs_diff(100_011) <= 2);
    }

    proptest! {
        /// For all delays and drifts within the specification, the interval contains the server's time.
        #[test]
        fn the_servers_time_is_inside(there in 0..1_000_000_u64, back in 0..1_000_000_u64,
                                      known in (0..=100_u64, 0..=100_u64), ppb in -100_000..=100_000_i64,
                                      skew in 0..1_000_000_000_u64, began in 0..1_000_000_000_000_u64) {
            let local = |at: u64| {
                Time((i128::from(skew) + i128::from(at) + i128::from(at) * i128::from(ppb) / 1_000_000_000) as u64)
            };
            let minimum = Minimum { there: there * known.0 / 100, back: back * known.1 / 100 };
            let (asked, arrives) = (began + there, began + there + back);
            let answer = reading(local(began), local(arrives), asked as i64, minimum, 100);
            prop_assert!(answer.is_some_and(|answer| answer.contains(arrives as i64)));
        }

        /// All three rules keep the true time inside. The intersection is never wider than the narrowest
        /// reading, and the narrowest is never wider than the average.
        #[test]
        fn all_rules_hold_the_true_time(readings in prop::collection::vec((0..99_u64, 0..99_u64), 1..6),
                                        before in prop::option::of((0..99_u64, 0..99_u64))) {
            let around_zero = |(below, above): (u64, u64)| Interval { lo: -(below as i64), hi: above as i64 };
            let fresh: Vec<_> = readings.into_iter().map(around_zero).collect();
            let before = before.map(around_zero);
            let kept = vec![
                Intersected::keep(before, &fresh),
                Narrowest::keep(before, &fresh),
                Averaged::keep(before, &fresh),
            ];
            prop_assert!(kept.iter().all(|interval| interval.contains(0)), "{kept:?}");
            prop_assert!(kept.is_sorted_by_key(|interval| interval.width()), "{kept:?}");
        }
    }
}
