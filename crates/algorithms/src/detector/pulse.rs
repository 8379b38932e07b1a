//! The heartbeats that all detectors share: every site sends one to all others every T, and watches theirs.
//!
//! The algorithms differ in how long silence may last. This difference is their [`Estimate`]; everything else
//! is in this file.
//!
//! **Rules**
//! 1. Send HEARTBEAT to all sites every T.
//! 2. On a heartbeat: trust its sender again if it was suspected, and set a new deadline for it.
//! 3. At a deadline: suspect the silent site.
//!
//! **Trap**: a heartbeat that arrives exactly at the deadline is in time. The timer therefore fires one
//! nanosecond after the deadline. Otherwise a D equal to the largest delay would not be enough.
//!
//! **Differences from the paper**: a site that recovers first trusts all sites and discards its measurements.
//! Otherwise it would take its own absence for silence of the others.

use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;
use core::time::Duration;

use conclave_kernel::{Card, Cx, Never, NodeId, NodeSet, Protocol, Time};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Detector, Event, Group};

/// The estimate of how long silence may last. A site keeps one estimate for each peer.
pub trait Estimate: Clone + Debug + Eq + Hash + Serialize + DeserializeOwned + Send + 'static {
    /// The card of the detector that uses this estimate.
    const CARD: Card;

    /// Whether heartbeats carry numbers. Numbers grow without bound; without them the checker's state space
    /// is finite.
    const NUMBERED: bool;

    /// Creates an estimate that has seen no heartbeat yet.
    fn new(group: &Group) -> Self;

    /// Records the arrival of a heartbeat. Returns `false` if its number shows that it is not newer than an
    /// earlier arrival.
    fn arrived(&mut self, number: u64, now: Time) -> bool;

    /// Returns how long silence may last from `now` on without a suspicion.
    fn patience(&self, now: Time) -> Duration;
}

/// The state of one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Pulse<E: Estimate> {
    group: Group,
    /// The number of the latest heartbeat sent; always 0 if heartbeats carry no numbers.
    next: u64,
    suspects: NodeSet,
    /// The estimate for each site, by id; the site's own entry is not used.
    estimates: Vec<E>,
}

/// A heartbeat. There are no other messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Beat {
    number: u64,
}

/// The timers of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Timer {
    /// The next heartbeat of this site is due.
    Beat,
    /// The deadline for a heartbeat of that site has passed.
    Silent(NodeId),
}

impl<E: Estimate> Protocol for Pulse<E> {
    type Message = Beat;
    type Timer = Timer;
    type Command = Never;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.beat(cx);
        for peer in cx.peers().iter() {
            if self.suspects.remove(peer) {
                cx.emit(Event::Trusted(peer));
            }
            self.estimates[peer.index()] = E::new(&self.group);
            self.listen(peer, cx);
        }
    }

    fn on_message(&mut self, from: NodeId, beat: Beat, cx: &mut Cx<'_, Self>) {
        if !self.estimates[from.index()].arrived(beat.number, cx.now()) {
            return;
        }
        if self.suspects.remove(from) {
            cx.emit(Event::Trusted(from));
        }
        self.listen(from, cx);
    }

    fn on_timer(&mut self, timer: Timer, cx: &mut Cx<'_, Self>) {
        match timer {
            Timer::Beat => self.beat(cx),
            Timer::Silent(peer) => {
                self.suspects.insert(peer);
                cx.emit(Event::Suspected(peer));
            }
        }
    }
}

impl<E: Estimate> Pulse<E> {
    /// Returns the estimate for a peer.
    pub fn estimate(&self, peer: NodeId) -> &E {
        &self.estimates[peer.index()]
    }

    fn beat(&mut self, cx: &mut Cx<'_, Self>) {
        if E::NUMBERED {
            // After a crash that lost the memory, continue above all numbers that were used before it.
            self.next = self.next.max(u64::from(cx.incarnation()) << LIFE_BITS) + 1;
        }
        cx.broadcast(Beat { number: self.next });
        cx.arm(Timer::Beat, self.group.period..=self.group.period);
    }

    fn listen(&mut self, peer: NodeId, cx: &mut Cx<'_, Self>) {
        let patience = self.estimates[peer.index()].patience(cx.now()) + Duration::from_nanos(1);
        cx.arm(Timer::Silent(peer), patience..=patience);
    }
}

/// The number of bits that count the heartbeats of one incarnation. The incarnation itself is in the bits
/// above.
pub(super) const LIFE_BITS: u32 = 40;

impl<E: Estimate> Detector for Pulse<E> {
    const CARD: Card = E::CARD;

    fn new(_me: NodeId, group: &Group) -> Self {
        let estimates = (0..group.nodes).map(|_| E::new(group)).collect();
        Self { group: *group, next: 0, suspects: NodeSet::new(), estimates }
    }

    fn kind(_message: &Beat) -> &'static str {
        HEARTBEAT
    }

    fn suspects(&self) -> &NodeSet {
        &self.suspects
    }
}

/// The kind of a heartbeat.
pub const HEARTBEAT: &str = "HEARTBEAT";

#[cfg(test)]
mod tests {
    use conclave_kernel::{Buffer, Effect, Env, Input};

    use super::super::Heartbeat;
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const ME: NodeId = NodeId(0);
    const PEER: NodeId = NodeId(1);

    fn step(site: &mut Heartbeat, input: Input<Heartbeat>) -> Vec<Effect<Heartbeat>> {
        let mut buffer = Buffer::default();
        site.step(input, &mut Cx::new(Env::new(ME, 2), &mut buffer));
        buffer.effects
    }

    fn site() -> Heartbeat {
        let mut site = Heartbeat::new(ME, &Group::new(2, 10 * MS, 5 * MS));
        step(&mut site, Input::Start);
        site
    }

    fn silent_at(after: Duration) -> Effect<Heartbeat> {
        Effect::Arm { timer: Timer::Silent(PEER), min: after, max: after }
    }

    #[test]
    fn a_heartbeat_exactly_at_the_deadline_is_in_time() {
        let effects = step(&mut site(), Input::Message { from: PEER, message: Beat { number: 0 } });
        assert_eq!(effects, [silent_at(15 * MS + Duration::from_nanos(1))]);
    }

    #[test]
    fn a_late_heartbeat_takes_the_suspicion_back() {
        let mut site = site();
        let effects = step(&mut site, Input::Timer(Timer::Silent(PEER)));
        assert_eq!(effects, [Effect::Emit { event: Event::Suspected(PEER) }]);
        assert!(site.suspects().contains(PEER));
        let effects = step(&mut site, Input::Message { from: PEER, message: Beat { number: 0 } });
        assert_eq!(effects[0], Effect::Emit { event: Event::Trusted(PEER) });
        assert!(site.suspects().is_empty());
    }

    #[test]
    fn who_was_down_begins_by_trusting_everybody() {
        let mut site = site();
        step(&mut site, Input::Timer(Timer::Silent(PEER)));
        let effects = step(&mut site, Input::Recover);
        assert!(effects.contains(&Effect::Emit { event: Event::Trusted(PEER) }));
        assert!(effects.contains(&silent_at(15 * MS + Duration::from_nanos(1))));
    }
}
