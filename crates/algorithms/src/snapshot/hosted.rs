//! The application inside an algorithm: its state and its armed timers. A snapshot records both.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use conclave_kernel::{Cx, Effect, Input, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Event, Reminder};
use crate::link::tap::{each_receiver, tap};

/// The application's site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Hosted<A: Protocol> {
    pub(crate) app: A,
    /// The armed timers. Each may fire between its two durations after it was armed.
    armed: BTreeMap<A::Timer, (Duration, Duration)>,
}

impl<A: Protocol> Hosted<A> {
    pub(crate) fn new(app: A) -> Self {
        Self { app, armed: BTreeMap::new() }
    }

    /// Returns the armed timers.
    pub(crate) fn reminders(&self) -> Vec<Reminder<A>> {
        self.armed
            .iter()
            .map(|(timer, (min, max))| Reminder { timer: *timer, min: *min, max: *max })
            .collect()
    }

    /// Runs a step of the application. The algorithm wraps the messages that the application sends.
    pub(crate) fn step<P>(
        &mut self,
        input: Input<A>,
        cx: &mut Cx<'_, P>,
        mut send: impl FnMut(&mut Cx<'_, P>, NodeId, A::Message),
    ) where
        P: Protocol<Event = Event<A>, Timer = A::Timer>,
    {
        match &input {
            Input::Timer(timer) => _ = self.armed.remove(timer),
            Input::Start | Input::Recover => self.armed.clear(), // a crash loses all timers
            Input::Message { .. } | Input::Command(_) => {}
        }
        for effect in tap(cx, &mut self.app, input) {
            match effect {
                Effect::Arm { timer, min, max } => {
                    self.armed.insert(timer, (min, max));
                    cx.arm(timer, min..=max);
                }
                Effect::Disarm { timer } => {
                    self.armed.remove(&timer);
                    cx.disarm(timer);
                }
                Effect::Emit { event } => cx.emit(Event::App(event)),
                sends => each_receiver(cx, sends, &mut send),
            }
        }
    }
}
