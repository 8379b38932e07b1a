//! What a handler asked for, and who takes it.

use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::node::{NodeId, NodeSet};
use crate::protocol::Protocol;

/// One thing that a handler asked of its world. Effects are applied in program order, after the handler.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Effect<P: Protocol> {
    /// One message to one peer.
    Send {
        /// The receiver.
        to: NodeId,
        /// What it is told.
        message: P::Message,
    },
    /// The same message to each of some peers.
    SendTo {
        /// The receivers; the world skips the sender.
        to: NodeSet,
        /// What they are told.
        message: P::Message,
    },
    /// The same message to every peer. One effect, expanded by the world.
    Broadcast {
        /// What they are told.
        message: P::Message,
    },
    /// Remind me at some moment between `min` and `max` from now; replaces the tag's earlier deadline.
    Arm {
        /// Which reminder.
        timer: P::Timer,
        /// The earliest moment, on the local clock.
        min: Duration,
        /// The latest moment, on the local clock.
        max: Duration,
    },
    /// Forget that reminder.
    Disarm {
        /// Which reminder.
        timer: P::Timer,
    },
    /// Tell the layer above.
    Emit {
        /// What it is told.
        event: P::Event,
    },
}

/// Where effects go: a world, or the adapter that [`Cx::drive`](crate::Cx::drive) puts between two layers.
pub trait Sink<P: Protocol> {
    /// Takes one effect.
    fn push(&mut self, effect: Effect<P>);

    /// Takes the most frequent one. The same as `push`, but a short message then travels in registers: a
    /// world that handles tens of millions of steps a second overrides it to build the effect in its place.
    fn send(&mut self, to: NodeId, message: P::Message) {
        self.push(Effect::Send { to, message });
    }

    /// Throws the dice: a number below `n`, which is at least 1. Drawn from the node's own stream by the
    /// simulator and the network, enumerated by the checker.
    fn choose(&mut self, n: u32) -> u32;
}

/// The simplest sink: keeps the effects in order. Its dice always show 0.
#[derive(Clone, Debug)]
pub struct Buffer<P: Protocol> {
    /// What was asked for since the buffer was last cleared.
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
