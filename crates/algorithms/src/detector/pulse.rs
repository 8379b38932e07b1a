//! Heartbeats: everybody says "I am here" every T, everybody listens to everybody.
//!
//! What the algorithms of the problem differ in is how long silence may last: that is their [`Estimate`]. The rest
//! is the same and stands here.
//!
//! **Rules**
//! 1. Send HEARTBEAT to all every T.
//! 2. On a heartbeat: trust its sender again, if it was suspected, and set its deadline anew.
//! 3. At a deadline: suspect.
//!
//! **Trap**: a heartbeat that arrives exactly at the deadline is in time. So the reminder is set a nanosecond
//! after it; otherwise D equal to the largest delay would not be enough.
//!
//! **Where we depart**: a site that was down begins by trusting everybody and forgets what it had measured:
//! its own absence must not be taken for silence of the others.

use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;
use core::time::Duration;

use conclave_kernel::{Card, Cx, Never, NodeId, NodeSet, Protocol, Time};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Detector, Event, Group};

/// How long silence may last: kept for each peer.
pub trait Estimate: Clone + Debug + Eq + Hash + Serialize + DeserializeOwned + Send + 'static {
    /// What the detector with this estimate says of itself.
    const CARD: Card;

    /// Whether heartbeats must be numbered. Numbers grow for ever: without them, the checker's state space is
    /// finite.
    const NUMBERED: bool;

    /// Before anything was heard.
    fn new(group: &Group) -> Self;

    /// A heartbeat arrives; whether it is news of its sender, or older than what is known already.
    fn arrived(&mut self, number: u64, now: Time) -> bool;

    /// For how long, from now on, silence is no reason to suspect.
    fn patience(&self, now: Time) -> Duration;
}

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Pulse<E: Estimate> {
    group: Group,
    /// The number of my next heartbeat.
    next: u64,
    suspects: NodeSet,
    /// What I know of the gaps between each site's heartbeats; a row a site, mine unused.
    estimates: Vec<E>,
}

/// The only message there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Beat {
    number: u64,
}

/// What a site asks to be reminded of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Timer {
    /// My next heartbeat is due.
    Beat,
    /// That site has been silent for too long.
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
    /// What is known of a peer's heartbeats.
    pub fn estimate(&self, peer: NodeId) -> &E {
        &self.estimates[peer.index()]
    }

    fn beat(&mut self, cx: &mut Cx<'_, Self>) {
        if E::NUMBERED {
            // A site that lost its memory counts on from where nobody can have counted before.
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

/// The lives of a site count in the upper part of a heartbeat's number.
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

/// The kind of the only message.
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
