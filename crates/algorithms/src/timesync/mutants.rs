//! Two algorithms that are wrong on purpose, beside the correct ones. Each makes a common mistake, and the
//! judge must detect both. The correct algorithms have only generic flaws.

use core::time::Duration;

use conclave_kernel::{Card, Cx, NodeId, Protocol, Time};
use serde::{Deserialize, Serialize};

use super::cristian::{self, Cristian, Keep, Narrowest};
use super::dtp::{self, Dtp};
use super::interval::{Estimate, Interval};
use super::slew::Slew;
use super::{Berkeley, Command, Epoch, Event, Group, Marzullo, Ntp, Reading, TimeSync};
use crate::election::Election;
use crate::mutants::flawed::{Fallible, Flawed, View};
use crate::mutants::generic::Rule;

/// Cristian's algorithm without the delay: the client sets its clock to the server's time t. The error is the
/// delay of the answer, which has no bound.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SetToT {
    server: Cristian<Narrowest>,
    is_server: bool,
    clock: Slew,
    drift_ppm: u32,
    period: Duration,
    probe: u64,
    estimate: Option<Estimate>,
}

impl Protocol for SetToT {
    type Message = cristian::Message;
    type Timer = cristian::Timer;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.is_server {
            self.on_timer(cristian::Timer::Round, cx);
        }
    }

    fn on_message(&mut self, from: NodeId, message: cristian::Message, cx: &mut Cx<'_, Self>) {
        match message {
            cristian::Message::Ask { .. } => {
                let input = conclave_kernel::Input::Message { from, message };
                cx.drive(&mut self.server, input, core::convert::identity, core::convert::identity);
            }
            cristian::Message::Tell { time, .. } => {
                let estimate = Estimate::of(Interval::point(time), cx.now());
                self.estimate = Some(estimate);
                self.clock.aim(cx.now(), estimate.offset.guess());
            }
        }
    }

    fn on_timer(&mut self, _: cristian::Timer, cx: &mut Cx<'_, Self>) {
        self.probe += 1;
        cx.send(NodeId(0), cristian::Message::Ask { probe: self.probe });
        cx.arm(cristian::Timer::Round, self.period..=self.period);
    }

    fn on_command(&mut self, Command::Ask: Command, cx: &mut Cx<'_, Self>) {
        cx.emit(Event::Told(self.read(cx.now())));
    }
}

impl TimeSync for SetToT {
    const CARD: Card = Card {
        name: "cristian-set-to-t",
        title: "Cristian, naive",
        summary: "a client asks a server and uses the reply as if it had arrived without delay",
        ..<Cristian<Narrowest>>::CARD
    };

    fn new(me: NodeId, group: &Group) -> Self {
        Self {
            server: Cristian::new(me, group),
            is_server: me == NodeId(0),
            clock: Slew::new(group.slew_ppm),
            drift_ppm: group.drift_ppm,
            period: group.period,
            probe: 0,
            estimate: None,
        }
    }

    fn kind(message: &cristian::Message) -> &'static str {
        <Cristian<Narrowest>>::kind(message)
    }

    fn read(&self, now: Time) -> Reading {
        if self.is_server {
            return self.server.read(now);
        }
        let interval = self.estimate.map(|estimate| estimate.time_at(now, self.drift_ppm));
        Reading { clock: self.clock.read(now), interval, epoch: Epoch::START }
    }
}

/// DTP with over-estimated cable delays. A counter that returns to its sender has then gained ticks. The
/// larger counter always wins, so the group runs too fast.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Overestimate {
    inner: Dtp,
}

impl Protocol for Overestimate {
    type Message = dtp::Message;
    type Timer = dtp::Timer;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.pass(conclave_kernel::Input::Start, cx);
    }

    fn on_message(&mut self, from: NodeId, message: dtp::Message, cx: &mut Cx<'_, Self>) {
        // An INIT-ACK for an INIT that seems to be eight ticks older: the measured delay is four ticks too
        // long.
        let message = match message {
            dtp::Message::InitAck { sent } => dtp::Message::InitAck { sent: sent.saturating_sub(8) },
            message => message,
        };
        self.pass(conclave_kernel::Input::Message { from, message }, cx);
    }

    fn on_timer(&mut self, timer: dtp::Timer, cx: &mut Cx<'_, Self>) {
        self.pass(conclave_kernel::Input::Timer(timer), cx);
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        self.pass(conclave_kernel::Input::Command(command), cx);
    }
}

impl Overestimate {
    fn pass(&mut self, input: conclave_kernel::Input<Dtp>, cx: &mut Cx<'_, Self>) {
        cx.delegate(&mut self.inner, input, core::convert::identity, core::convert::identity);
    }
}

impl TimeSync for Overestimate {
    const CARD: Card = Card {
        name: "dtp-overestimate",
        title: "DTP, overestimated delay",
        summary: "neighbours exchange counters and take the wire for longer than it is",
        ..Dtp::CARD
    };

    fn new(me: NodeId, group: &Group) -> Self {
        Self { inner: Dtp::new(me, group) }
    }

    fn kind(message: &dtp::Message) -> &'static str {
        Dtp::kind(message)
    }

    fn read(&self, now: Time) -> Reading {
        self.inner.read(now)
    }
}

/// The view of the clock synchronisation problem.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OfTimeSync;

impl<P: TimeSync> View<P> for OfTimeSync {
    const RULES: &'static [Rule] = Rule::OF_MESSAGES;

    fn kind(message: &P::Message) -> &'static str {
        P::kind(message)
    }
}

impl<K: Keep> Fallible for Cristian<K> {}
impl Fallible for Ntp {}
impl Fallible for Marzullo {}
impl<E: Election> Fallible for Berkeley<E> {}
impl Fallible for Dtp {}

impl<P: Fallible + TimeSync> TimeSync for Flawed<P, OfTimeSync> {
    const CARD: Card = P::CARD;

    fn new(me: NodeId, group: &Group) -> Self {
        Self::new(P::new(me, group), "")
    }

    fn kind(message: &Self::Message) -> &'static str {
        P::kind(message)
    }

    fn read(&self, now: Time) -> Reading {
        self.site().read(now)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use conclave_sim::{Clocks, Delay, Setup};

    use super::super::{by_sim, dtp::ticks};
    use super::*;

    /// Returns the promised properties that a run violated.
    fn broken<P: TimeSync>(group: &Group, setup: &Setup, every: Duration, count: u32) -> Vec<&'static str> {
        let breaches = by_sim::judged::<P>(group, setup, every, count);
        let mut names: Vec<_> = breaches.iter().map(|breach| breach.property.name).collect();
        names.retain(|name| P::CARD.promises(name));
        names.sort_unstable();
        names.dedup();
        names
    }

    fn asked_of_a_server(delay: Delay, seed: u64) -> Setup {
        let clocks = Clocks { skew: Duration::from_millis(40), drift_ppm: 100, exact: 1 };
        Setup { nodes: 3, seed, delay, clocks, ..Setup::default() }
    }

    #[test]
    fn setting_the_clock_to_t_leaves_the_true_time_out_and_cristian_does_not() {
        for (seed, delay) in ["constant:1ms", "exponential:5ms", "lognormal:2ms,1.5"].iter().enumerate() {
            let setup = asked_of_a_server(delay.parse().unwrap(), seed as u64);
            let (group, every) = (Group::new(3), Duration::from_millis(70));
            assert!(broken::<SetToT>(&group, &setup, every, 200).contains(&"truth"), "{delay}");
            assert!(broken::<Cristian<Narrowest>>(&group, &setup, every, 200).is_empty(), "{delay}");
        }
    }

    #[test]
    fn nothing_bounds_the_error_of_setting_the_clock_to_t() {
        // The error is the delay, for every delay.
        for delay in [1, 10, 100] {
            let setup = asked_of_a_server(Delay::Constant(Duration::from_millis(delay)), 1);
            let end =
                by_sim::run::<SetToT>(&Group::new(3), &setup, Duration::from_secs(20), 1).pop().unwrap();
            let behind = (end.truth.0 as i64 - end.readings[1].clock) / 100_000;
            assert!(behind.abs_diff(10 * delay as i64) <= 1, "{behind} tenths of {delay} ms");
        }
    }

    #[test]
    fn an_over_estimated_delay_makes_the_group_run_away_and_a_right_one_does_not() {
        let group = Group { fanout: 1, period: ticks(200), ..Group::new(3) };
        let clocks = Clocks { skew: Duration::from_micros(20), drift_ppm: 100, ..Clocks::default() };
        for seed in 0..20 {
            let delay = Delay::Constant(Duration::from_nanos(500 + seed));
            let setup = Setup { nodes: 3, seed, delay, clocks, ..Setup::default() };
            let every = Duration::from_nanos(1_237);
            assert!(broken::<Overestimate>(&group, &setup, every, 300).contains(&"pace"), "seed {seed}");
            assert!(broken::<Dtp>(&group, &setup, every, 300).is_empty(), "seed {seed}");
        }
    }
}
