//! DTP: neighbours exchange counters on the wire itself, and the largest wins.
//!
//! Every network device has an oscillator that ticks every 6.4 ns (10 GbE). Two devices at the ends of a cable
//! first measure how long the cable is, in ticks; then each tells the other its counter, again and again, and
//! whoever is behind jumps ahead to what the other's counter must be by now. The fastest oscillator of the
//! network sets the pace for all.
//!
//! **Rules** \[LWSW16\]
//! 1. INIT: send the tick, the peer echoes it in INIT-ACK; d = (RTT - alpha)/2 with alpha = 3, rounded down, so
//!    that d is never more than the true delay.
//! 2. BEACON, every so many ticks: lc := max(lc, received + d). A switch has one counter, the largest of its ports'.
//! 3. A jump of more than a few ticks is a JOIN: it is passed on at once, so that two networks that are connected
//!    agree after one delay a hop instead of one beacon a hop.
//!
//! **Bound**: 4T between two peers, 4TD in a network of diameter D, 8T more for the programs that read the counters
//! ([`daemon`]). In ticks: d is up to 2.5 short of the cable; oscillators of +-100 ppm part by 1 in 5,000 ticks, so
//! beacons come more often; and two counters that are 3.5 apart show up to 4.
//!
//! **Under which assumption 4T holds**: nobody but the one moves the other. That is so at both ends of a single cable.
//! In a network a device jumps on account of a third one, and its neighbour hears of that with the next beacon: until
//! then they are up to 4 ticks *and the jump* apart. A device jumps by at most one tick more than the one that it
//! follows, for it has drifted by one at most. So 4T holds next to the fastest oscillator, and fails further
//! down. A chain of five at a beacon every 1,200 ticks, in ticks ahead of n4:
//!
//! ```text
//!  1176.1 us   n0 5   n1 7   n2 4   n3 2   n4 0
//!  1176.5 us   n0 5   n1 7   n2 5   n3 2   n4 0   n2 hears n1 and jumps by 1; its beacon is due at 1183.9
//!  1183.9 us   n0 4   n1 7   n2 5   n3 2   n4 0   n3 has just sent its own beacon
//!  1184.3 us   n0 4   n1 7   n2 5   n3 4   n4 0   n3 hears n2: one tick of n2's jump, and one of drift
//!  1191.8 us   n0 6   n1 7   n2 6   n3 5   n4 0   n4 has drifted on: five ticks between neighbours
//!  1192.2 us   n0 4   n1 6   n2 4   n3 3   n4 0   n4 hears n3 and jumps by 2
//! ```
//!
//! 4TD with D the diameter promises neighbours in a network no more than everybody, and that holds. Telling a jump
//! at once would not help: for as long as the news travels, it is not known. *Measured*, many seeds: two peers 3 ticks (4 at a
//! beacon every 4,800); neighbours in a network 4, 5 and 6 at a beacon every 200, 1,200 and 4,800; six hops 13 of 24.
//!
//! **Trap**: an over-estimated d. Then every counter that comes back to its sender has gained, the maximum keeps
//! the gain, and the network runs faster than its fastest oscillator (`mutants::Overestimate`). Cables must be
//! short: over 10,000 ticks of round trip a fast oscillator alone counts one too many. And the round trip is
//! counted on the oscillator, not on the counter: that may jump in between, by what another port hears.
//!
//! **Where we depart**: the ports of a device share one counter, which is what the paper's global counter comes
//! to. The network is the tree of [`Group::parent`]. The wire must have a constant delay. A site states the bound
//! only once its counter has not jumped for as long as a JOIN takes to cross the network.

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

/// What is taken off the round trip, in ticks, so that the delay is never over-estimated.
pub const ALPHA: u64 = 3;

/// The bound between neighbours, in ticks.
pub const BOUND: u64 = 4;

/// A jump of more ticks than this is no correction of drift.
const JOIN: u64 = BOUND;

/// That many ticks, as a duration, rounded down to the nanosecond.
pub const fn ticks(count: u64) -> Duration {
    Duration::from_nanos((count as u128 * TICK_TENTHS as u128 / 10) as u64)
}

/// How often a device's own oscillator has ticked when its clock shows `now`.
fn tick(now: Time) -> u64 {
    (u128::from(now.0) * 10 / u128::from(TICK_TENTHS)) as u64
}

/// One device: a host or a switch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dtp {
    ports: Vec<Port>,
    /// By how many ticks the counter is ahead of the device's own oscillator. Only grows.
    lead: u64,
    beacon: Duration,
    diameter: u32,
    /// Since when, on the local clock, the counter has not jumped; `None` while a port does not know its delay.
    settled: Option<Time>,
}

/// One end of a cable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Port {
    peer: NodeId,
    /// d, in ticks.
    delay: Option<u64>,
}

/// What neighbours say to each other, between the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// How long is the cable?
    Init {
        /// The tick of the sender's oscillator.
        sent: u64,
    },
    /// As long as this took, there and back.
    InitAck {
        /// The tick in the INIT.
        sent: u64,
    },
    /// My counter.
    Beacon {
        /// The counter.
        counter: u64,
    },
    /// My counter, which has just jumped.
    Join {
        /// The counter.
        counter: u64,
    },
}

/// What a device is reminded of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timer {
    /// The next beacon.
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
    /// The counter when the local clock shows `now`.
    pub fn counter(&self, now: Time) -> u64 {
        tick(now).saturating_add(self.lead)
    }

    /// The measured delay to a neighbour, in ticks.
    pub fn delay(&self, peer: NodeId) -> Option<u64> {
        self.ports.iter().find(|port| port.peer == peer)?.delay
    }

    /// Tells every neighbour the counter; asks again for the delay where it is not known.
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

    /// Everything on a wire leaves on a tick. A counter read in mid-tick would be up to one tick too old, and the
    /// bound with it.
    fn arm(&self, cx: &mut Cx<'_, Self>) {
        let due = tick(cx.now() + self.beacon) + 1;
        // Rounded up, and a nanosecond more: a timer may come that much early.
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

    /// From now on it must stay quiet for a while before the bound holds.
    fn joined(&mut self, cx: &mut Cx<'_, Self>) {
        if self.ports.iter().all(|port| port.delay.is_some()) {
            self.settled = Some(cx.now());
        }
    }

    /// How long a JOIN takes to cross the network, generously: INITs and beacons included.
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
        summary: "neighbours exchange counters on the wire itself, and the largest wins",
        papers: &["LWSW16"],
        needs: Needs { no_loss: true, no_crash: true, synchrony: true, ..super::ANY_NETWORK },
        promises: &[AGREEMENT.name, NEVER_BACK.name, PACE.name],
        costs: &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "2(N-1) for a beacon of all, none of them a packet",
            range: |size| (2.0 * (size.n() - 1.0), 2.0 * (size.n() - 1.0)),
        }],
        survives: "duplication and any order: an older counter is a smaller one",
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
        // Half of 4TD for each of the two, rounded up to the nanosecond.
        let half = (BOUND * TICK_TENTHS * u64::from(self.diameter)).div_ceil(20) + 1;
        let interval = quiet.then(|| Interval::around(clock, half));
        Reading { clock, interval, epoch: Epoch::START }
    }
}

#[cfg(test)]
mod tests;
