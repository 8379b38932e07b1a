//! DTP: neighbours exchange counters on the wire itself, and the largest counter wins.
//!
//! Every network device has an oscillator that ticks every 6.4 ns (10 GbE). Two devices at the ends of a
//! cable first measure its delay in ticks. Then each sends its counter to the other again and again. The
//! device that is behind jumps ahead to the present value of the other's counter. So the fastest oscillator
//! of the network sets the pace for all.
//!
//! **Rules** \[LWSW16\]
//! 1. INIT: send the tick, and the peer returns it in INIT-ACK. d = (RTT - alpha)/2 with alpha = 3, rounded
//!    down, so that d is never larger than the true delay.
//! 2. BEACON, at a fixed interval: lc := max(lc, received + d). A switch has one counter, the largest of its
//!    ports.
//! 3. A jump of more than a few ticks is a JOIN. The device passes it on at once. Two networks that are
//!    connected then agree after one delay per hop, instead of one beacon interval per hop.
//!
//! **Bound**: 4T between two peers, 4TD in a network of diameter D, and 8T more for the programs that read
//! the counters ([`daemon`]). In ticks: d is up to 2.5 ticks shorter than the cable. Oscillators of +-100 ppm
//! part by 1 tick in 5,000, so the beacon interval is shorter than that. Two counters that are 3.5 ticks
//! apart can show a difference of 4.
//!
//! **The assumption behind 4T**: each of the two devices is moved only by the other. This holds at the two
//! ends of a single cable. In a network, a third device can make a device jump, and the neighbour learns of
//! the jump only from the next beacon. Until then the two are up to 4 ticks *plus the jump* apart. A device
//! has drifted by at most one tick, so it jumps by at most one tick more than the device that it follows. So
//! 4T holds next to the fastest oscillator, and it fails farther away. The example is a chain of five with a
//! beacon every 1,200 ticks; the columns are ticks ahead of n4:
//!
//! ```text
//!  1176.1 us   n0 5   n1 7   n2 4   n3 2   n4 0
//!  1176.5 us   n0 5   n1 7   n2 5   n3 2   n4 0   n2 receives n1's beacon, jumps by 1; next beacon at 1183.9
//!  1183.9 us   n0 4   n1 7   n2 5   n3 2   n4 0   n3 has just sent its own beacon
//!  1184.3 us   n0 4   n1 7   n2 5   n3 4   n4 0   n3 receives n2's beacon: 1 tick of n2's jump, 1 of drift
//!  1191.8 us   n0 6   n1 7   n2 6   n3 5   n4 0   n4 has drifted on: five ticks between neighbours
//!  1192.2 us   n0 4   n1 6   n2 4   n3 3   n4 0   n4 receives n3's beacon and jumps by 2
//! ```
//!
//! In a network, only 4TD holds for neighbours, with D the diameter of the whole network. Sending each jump
//! at once would not help, because the neighbour does not know of it while the message travels. *Measured*
//! over many seeds, in ticks: two peers 3 (4 with a beacon every 4,800); neighbours in a network 4, 5 and 6
//! with a beacon every 200, 1,200 and 4,800; six hops 13 of 24.
//!
//! **Trap**: an over-estimated d. A counter that returns to its sender has then gained ticks, and the maximum
//! keeps the gain. The network runs faster than its fastest oscillator (`mutants::Overestimate`). Two rules
//! follow. Cables must be short: during a round trip of 10,000 ticks, a fast oscillator counts one tick too
//! many. And the device measures the round trip on its oscillator, not on its counter, which may jump in
//! between because of another port.
//!
//! **Differences from the paper**: the ports of a device share one counter, which is equivalent to the
//! paper's global counter. The network is the tree of [`Group::parent`]. The wire must have a constant delay.
//! A site states the bound only if the latest JOIN is so long ago that a JOIN can have crossed the network.

pub mod daemon;

use alloc::vec::Vec;
use core::time::Duration;

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, NodeId, Protocol, Time};
use serde::{Deserialize, Serialize};

use super::interval::Interval;
use super::spec::{AGREEMENT, NEVER_BACK, PACE};
use super::{Command, Epoch, Event, Group, Reading, TimeSync};

/// T, in tenths of a nanosecond: 6.4 ns.
pub const TICK_TENTHS: u64 = 64;

/// The ticks that are subtracted from the round trip, so that the delay is never over-estimated.
pub const ALPHA: u64 = 3;

/// The bound between neighbours, in ticks.
pub const BOUND: u64 = 4;

/// The largest jump in ticks that drift can explain. A larger one is a JOIN.
const JOIN: u64 = BOUND;

/// Returns the duration of `count` ticks, rounded down to the nanosecond.
pub const fn ticks(count: u64) -> Duration {
    Duration::from_nanos((count as u128 * TICK_TENTHS as u128 / 10) as u64)
}

/// Returns how often a device's own oscillator has ticked when its clock shows `now`.
fn tick(now: Time) -> u64 {
    (u128::from(now.0) * 10 / u128::from(TICK_TENTHS)) as u64
}

/// One device: a host or a switch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dtp {
    ports: Vec<Port>,
    /// The number of ticks by which the counter is ahead of the device's own oscillator. It only grows.
    lead: u64,
    beacon: Duration,
    diameter: u32,
    /// The local time of the latest JOIN or delay measurement; `None` while a port does not know its delay.
    settled: Option<Time>,
}

/// One end of a cable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Port {
    peer: NodeId,
    /// d, in ticks; `None` until it is measured.
    delay: Option<u64>,
}

/// A message between neighbours, sent between the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The start of a delay measurement.
    Init {
        /// The tick of the sender's oscillator.
        sent: u64,
    },
    /// The answer to INIT, which ends the measurement.
    InitAck {
        /// The tick in the INIT.
        sent: u64,
    },
    /// The regular message with the sender's counter.
    Beacon {
        /// The counter.
        counter: u64,
    },
    /// The counter of a sender that has just measured a delay or made a large jump.
    Join {
        /// The counter.
        counter: u64,
    },
}

/// The timers of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timer {
    /// The next beacon is due.
    Beacon,
}

impl Protocol for Dtp {
    type Message = Message;
    type Timer = Timer;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.settled = None;
        self.ports.iter_mut().for_each(|port| port.delay = None);
        self.arm(cx);
    }

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        let (tick, counter) = (tick(cx.now()), self.counter(cx.now()));
        let Some(port) = self.ports.iter_mut().find(|port| port.peer == from) else { return };
        match message {
            Message::Init { sent } => cx.send(from, Message::InitAck { sent }),
            Message::InitAck { sent } => {
                if port.delay.is_none() {
                    port.delay = Some(tick.saturating_sub(sent).saturating_sub(ALPHA) / 2);
                    self.joined(cx);
                    cx.send(from, Message::Join { counter });
                }
            }
            Message::Beacon { counter: theirs } | Message::Join { counter: theirs } => {
                if let Some(delay) = port.delay {
                    self.hear(from, theirs.saturating_add(delay), cx);
                }
            }
        }
    }

    fn on_timer(&mut self, Timer::Beacon: Timer, cx: &mut Cx<'_, Self>) {
        self.beacon(cx);
    }

    fn on_command(&mut self, Command::Ask: Command, cx: &mut Cx<'_, Self>) {
        cx.emit(Event::Told(self.read(cx.now())));
    }
}

impl Dtp {
    /// Returns the counter when the local clock shows `now`.
    pub fn counter(&self, now: Time) -> u64 {
        tick(now).saturating_add(self.lead)
    }

    /// Returns the measured delay to a neighbour, in ticks.
    pub fn delay(&self, peer: NodeId) -> Option<u64> {
        self.ports.iter().find(|port| port.peer == peer)?.delay
    }

    /// Sends the counter to every neighbour, or INIT to a neighbour whose delay is not known.
    fn beacon(&mut self, cx: &mut Cx<'_, Self>) {
        let counter = self.counter(cx.now());
        for port in &self.ports {
            let message = match port.delay {
                Some(_) => Message::Beacon { counter },
                None => Message::Init { sent: tick(cx.now()) },
            };
            cx.send(port.peer, message);
        }
        self.arm(cx);
    }

    /// Sets the timer for the next beacon to a tick, because everything on a wire leaves on a tick. A counter
    /// that is read between two ticks would be up to one tick too old, and the bound would not hold.
    fn arm(&self, cx: &mut Cx<'_, Self>) {
        let due = tick(cx.now() + self.beacon) + 1;
        // Rounded up, plus one nanosecond, because a timer may fire that much early.
        let at = (u128::from(due) * u128::from(TICK_TENTHS)).div_ceil(10) as u64 + 1;
        let after = Time(at).since(cx.now());
        cx.arm(Timer::Beacon, after..=after);
    }

    fn hear(&mut self, from: NodeId, theirs: u64, cx: &mut Cx<'_, Self>) {
        let ahead = theirs.saturating_sub(self.counter(cx.now()));
        self.lead = self.lead.saturating_add(ahead);
        if ahead > JOIN {
            self.joined(cx);
            let counter = self.counter(cx.now());
            for port in self.ports.iter().filter(|port| port.peer != from) {
                cx.send(port.peer, Message::Join { counter });
            }
        }
    }

    /// Restarts the wait for the bound, if all delays are known.
    fn joined(&mut self, cx: &mut Cx<'_, Self>) {
        if self.ports.iter().all(|port| port.delay.is_some()) {
            self.settled = Some(cx.now());
        }
    }

    /// Returns a generous estimate of the time in which a JOIN crosses the network, INITs and beacons
    /// included.
    fn crossing(&self) -> Duration {
        let longest = self.ports.iter().filter_map(|port| port.delay).max().unwrap_or(0) + 2 * ALPHA;
        (ticks(longest) * 3 + self.beacon * 2) * (self.diameter + 1)
    }
}

impl TimeSync for Dtp {
    const CARD: Card = Card {
        problem: "timesync",
        name: "dtp",
        title: "DTP",
        summary: "neighbours exchange counters in the physical layer, and the largest counter wins",
        papers: &["LWSW16"],
        needs: Needs { no_loss: true, no_crash: true, synchrony: true, ..super::ANY_NETWORK },
        promises: &[AGREEMENT.name, NEVER_BACK.name, PACE.name],
        costs: &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "2(N-1) for one beacon of every site; none is a packet",
            range: |size| (2.0 * (size.n() - 1.0), 2.0 * (size.n() - 1.0)),
        }],
        survives: "duplication and any order: an older counter is smaller and has no effect",
        idle_traffic: true,
        reads_clock: true,
    };

    fn new(me: NodeId, group: &Group) -> Self {
        let neighbours = (0..group.nodes).map(NodeId).filter(|peer| group.hops(me, *peer) == 1);
        Self {
            ports: neighbours.map(|peer| Port { peer, delay: None }).collect(),
            lead: 0,
            beacon: group.period,
            diameter: group.diameter(),
            settled: None,
        }
    }

    fn kind(message: &Message) -> &'static str {
        match message {
            Message::Init { .. } => "INIT",
            Message::InitAck { .. } => "INIT-ACK",
            Message::Beacon { .. } => "BEACON",
            Message::Join { .. } => "JOIN",
        }
    }

    fn read(&self, now: Time) -> Reading {
        let clock = (u128::from(self.counter(now)) * u128::from(TICK_TENTHS) / 10) as i64;
        let quiet = self.settled.is_some_and(|settled| now.since(settled) >= self.crossing());
        // Each of two sites states half of 4TD, rounded up, plus one nanosecond.
        let half = (BOUND * TICK_TENTHS * u64::from(self.diameter)).div_ceil(20) + 1;
        let interval = quiet.then(|| Interval::around(clock, half));
        Reading { clock, interval, epoch: Epoch::START }
    }
}

#[cfg(test)]
mod tests;
