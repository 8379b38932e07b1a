//! Ricart-Agrawala over a failure detector: a suspected site's reply is not needed.
//!
//! The plain algorithm waits for a reply of every site, and so waits forever for a crashed one. Over a
//! detector, a suspected site counts as having replied. With a perfect detector that is safe: a crashed site
//! is not in the critical section, and never enters it again.
//!
//! **Rules** (our reading of \[RA81 §6.2\])
//! 1. As in the plain algorithm, but enter when every other site has replied *or is suspected*.
//! 2. A reply to a suspected site is not needed.
//!
//! **Trap**: safety depends on the detector. If it wrongly suspects the site in the critical section, a
//! second site enters: the model checker finds this counterexample. A suspicion that is withdrawn before the
//! entry must not count. So the site does not turn a new suspicion into a reply at once. It looks at its
//! suspicions only when all other replies have arrived.
//!
//! **Differences from the paper**: [`CrashTolerant`] receives the detector's output as commands from the
//! layer above. The checker can therefore run it over an oracle, which behaves like any detector of a class.
//! [`RicartAgrawalaFt`] contains a detector. A crashed site must stay down: after a restart it could have
//! forgotten, or never received, a request that it must reply to.

use conclave_kernel::{Card, Cx, Emitted, Input, Needs, Never, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::super::layered::{Command, Core};
use super::super::{Bill, Event, Group, Mutex, watching};
use super::{Message as Plain, RicartAgrawala};
use crate::detector::{self, Detector, Heartbeat};
use crate::mutex;

/// One site, which receives suspicions as commands from the layer above.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CrashTolerant {
    plain: RicartAgrawala,
    suspects: NodeSet,
}

impl Protocol for CrashTolerant {
    type Message = Plain;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, from: NodeId, message: Plain, cx: &mut Cx<'_, Self>) {
        self.drive(Input::Message { from, message }, cx);
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Mutex(command) => self.drive(Input::Command(command), cx),
            Command::Detector(detector::Event::Suspected(site)) => {
                self.suspects.insert(site);
            }
            Command::Detector(detector::Event::Trusted(site)) => _ = self.suspects.remove(site),
        }
    }

    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(mine) = self.plain.wanted.filter(|_| self.plain.door.is_asking()) else { return };
        let missing: NodeSet = cx.peers().iter().filter(|peer| !self.plain.replies.contains(*peer)).collect();
        if !missing.is_empty() && missing.is_subset(&self.suspects) {
            for dead in missing.iter() {
                // A suspected site counts as having replied. The last of these replies lets this site in.
                self.drive(Input::Message { from: dead, message: Plain::Reply { to: mine, seen: 0 } }, cx);
            }
        }
    }
}

impl Core for CrashTolerant {
    const CARD: Card = RicartAgrawalaFt::<Heartbeat>::CARD;

    const NEEDS_SYNCHRONY: bool = false;

    fn new(me: NodeId, group: &Group) -> Self {
        Self { plain: RicartAgrawala::new(me, group), suspects: NodeSet::new() }
    }

    fn kind(message: &Plain) -> &'static str {
        // The kind of a message does not depend on its sender and receiver.
        RicartAgrawala::bill(message, NodeId(0), NodeId(0)).kind
    }
}

impl CrashTolerant {
    /// Runs one step of the plain algorithm.
    fn drive(&mut self, input: Input<RicartAgrawala>, cx: &mut Cx<'_, Self>) {
        cx.delegate(&mut self.plain, input, |message| message, |never| match never {});
    }
}

/// One site with its own failure detector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct RicartAgrawalaFt<D: Detector> {
    core: CrashTolerant,
    detector: D,
}

/// A message between two sites, by layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Message<D: Detector> {
    /// A message of the algorithm.
    Mutex(Plain),
    /// A message of the detector.
    Detector(D::Message),
}

impl<D: Detector> Protocol for RicartAgrawalaFt<D> {
    type Message = Message<D>;
    type Timer = D::Timer;
    type Command = mutex::Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.watch(Input::Start, cx);
    }

    fn on_message(&mut self, from: NodeId, message: Message<D>, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Mutex(message) => self.core(Input::Message { from, message }, cx),
            Message::Detector(message) => self.watch(Input::Message { from, message }, cx),
        }
    }

    fn on_timer(&mut self, timer: D::Timer, cx: &mut Cx<'_, Self>) {
        self.watch(Input::Timer(timer), cx);
    }

    fn on_command(&mut self, command: mutex::Command, cx: &mut Cx<'_, Self>) {
        self.core(Input::Command(Command::Mutex(command)), cx);
    }
}

impl<D: Detector> RicartAgrawalaFt<D> {
    fn core(&mut self, input: Input<CrashTolerant>, cx: &mut Cx<'_, Self>) {
        cx.delegate(&mut self.core, input, Message::Mutex, |never| match never {});
    }

    fn watch(&mut self, input: Input<D>, cx: &mut Cx<'_, Self>) {
        let said: Emitted<D> = cx.drive(&mut self.detector, input, Message::Detector, |timer| timer);
        for event in said {
            self.core(Input::Command(Command::Detector(event)), cx);
        }
    }
}

impl<D: Detector> Mutex for RicartAgrawalaFt<D> {
    const CARD: Card = Card {
        problem: "mutex",
        name: "ricart-agrawala-ft",
        title: "Ricart-Agrawala over a detector",
        summary: "a site asks all others and does not wait for the reply of a suspected site",
        papers: &["RA81", "CT96"],
        needs: Needs { no_duplication: false, no_crash: false, synchrony: true, ..Needs::RELIABLE },
        promises: &["ME1", "ME1-causal", "ME2", "fences"],
        costs: &[],
        survives: "any number of crashes, while delays are bounded and crashed sites stay down",
        idle_traffic: true,
        reads_clock: D::CARD.reads_clock,
    };

    fn new(me: NodeId, group: &Group) -> Self {
        Self { core: CrashTolerant::new(me, group), detector: D::new(me, &watching(group.nodes)) }
    }

    fn bill(message: &Message<D>, from: NodeId, to: NodeId) -> Bill {
        match message {
            Message::Mutex(message) => RicartAgrawala::bill(message, from, to),
            Message::Detector(message) => Bill::shared(D::kind(message)),
        }
    }

    fn clock(&self) -> u64 {
        self.core.plain.clock()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use conclave_kernel::{Buffer, Effect, Env};

    use super::*;

    const ME: NodeId = NodeId(0);

    fn step(site: &mut CrashTolerant, input: Input<CrashTolerant>) -> Vec<Effect<CrashTolerant>> {
        let mut buffer = Buffer::default();
        site.step(input, &mut Cx::new(Env::new(ME, 3), &mut buffer));
        buffer.effects
    }

    fn say(site: &mut CrashTolerant, event: detector::Event) -> bool {
        let effects = step(site, Input::Command(Command::Detector(event)));
        effects.iter().any(|effect| matches!(effect, Effect::Emit { event: Event::Granted { .. } }))
    }

    fn asking() -> CrashTolerant {
        let mut site = CrashTolerant::new(ME, &Group::new(3));
        step(&mut site, Input::Command(Command::Mutex(mutex::Command::Acquire)));
        site
    }

    #[test]
    fn the_dead_have_no_objection() {
        let mut site = asking();
        assert!(!say(&mut site, detector::Event::Suspected(NodeId(1))));
        assert!(say(&mut site, detector::Event::Suspected(NodeId(2))));
    }

    #[test]
    fn a_suspicion_that_was_taken_back_in_time_is_no_consent() {
        let mut site = asking();
        say(&mut site, detector::Event::Suspected(NodeId(1)));
        say(&mut site, detector::Event::Trusted(NodeId(1)));
        assert!(!say(&mut site, detector::Event::Suspected(NodeId(2))));
        assert!(say(&mut site, detector::Event::Suspected(NodeId(1))));
    }
}
