//! Effects, which a handler requests, and sinks, which receive them.

use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::node::{NodeId, NodeSet};
use crate::protocol::Protocol;

/// One request of a handler to its world. The world applies effects in program order, after the handler
/// returned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Effect<P: Protocol> {
    /// One message to one site.
    Send {
        /// The receiver.
        to: NodeId,
        /// The message.
        message: P::Message,
    },
    /// The same message to each site of a set.
    SendTo {
        /// The receivers. The world skips the sender.
        to: NodeSet,
        /// The message.
        message: P::Message,
    },
    /// The same message to all other sites. This is a single effect, which the world expands.
    Broadcast {
        /// The message.
        message: P::Message,
    },
    /// A new deadline for a timer, at some moment between `min` and `max` from now. It replaces the earlier
    /// deadline.
    Arm {
        /// The tag of the timer.
        timer: P::Timer,
        /// The shortest delay, on the local clock.
        min: Duration,
        /// The longest delay, on the local clock.
        max: Duration,
    },
    /// The cancellation of a timer.
    Disarm {
        /// The tag of the timer.
        timer: P::Timer,
    },
    /// An event for the layer above.
    Emit {
        /// The event.
        event: P::Event,
    },
}

/// A receiver of effects: a world, or the adapter that [`Cx::drive`](crate::Cx::drive) puts between two
/// layers.
pub trait Sink<P: Protocol> {
    /// Receives one effect.
    fn push(&mut self, effect: Effect<P>);

    /// Receives [`Effect::Send`], the most frequent effect, in parts. The default calls `push`. A fast world
    /// overrides it: a short message then travels in registers, and the world builds the effect at its final
    /// place in memory.
    fn send(&mut self, to: NodeId, message: P::Message) {
        self.push(Effect::Send { to, message });
    }

    /// Returns a number below `n`, which is at least 1. The simulator and the network draw it from the node's
    /// own random stream; the checker tries all values.
    fn choose(&mut self, n: u32) -> u32;
}

/// The simplest sink: it stores the effects in order, and its `choose` always returns 0.
#[derive(Clone, Debug)]
pub struct Buffer<P: Protocol> {
    /// The effects since the buffer was last cleared.
    pub effects: Vec<Effect<P>>,
}

impl<P: Protocol> Default for Buffer<P> {
    fn default() -> Self {
        Self { effects: Vec::new() }
    }
}

impl<P: Protocol> Sink<P> for Buffer<P> {
    fn push(&mut self, effect: Effect<P>) {
        self.effects.push(effect);
    }

    fn choose(&mut self, _n: u32) -> u32 {
        0
    }
}
