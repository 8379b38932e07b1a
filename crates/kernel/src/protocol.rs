//! What an algorithm is.

use core::fmt::Debug;
use core::hash::Hash;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::context::Cx;
use crate::node::NodeId;

/// What travels: between peers, or between an algorithm and the layer above it.
///
/// Implemented for every type that can be cloned, compared, hashed, printed and serialised, so that the same
/// message runs in the simulator, is stored by the checker and crosses a real network.
pub trait Wire: Clone + Debug + Eq + Hash + Serialize + DeserializeOwned + Send + 'static {}
impl<T: Clone + Debug + Eq + Hash + Serialize + DeserializeOwned + Send + 'static> Wire for T {}

/// What a protocol asks to be reminded of: a closed, small enum with one deadline per value.
pub trait Tag: Wire + Copy + Ord {}
impl<T: Wire + Copy + Ord> Tag for T {}

/// The tag of protocols that need no timer; the message of protocols that send none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Never {}

/// An algorithm, as a pure state machine: one value of the type is one site.
///
/// # What a world promises
///
/// One input at a time, run to completion; effects applied in program order after the handler returned; at
/// most one pending firing per timer tag; a local clock that never runs backwards; no re-entry.
///
/// # What a protocol promises
///
/// No state outside `self`; no iteration over unordered maps; no clock or dice but `cx`'s; bounded memory. A
/// command that makes no sense now is answered by an event, not by an error.
pub trait Protocol: Clone + Debug + Eq + Hash + Serialize + DeserializeOwned + Send + 'static {
    /// What peers say to each other.
    type Message: Wire;
    /// What the protocol asks to be reminded of.
    type Timer: Tag;
    /// What the layer above asks of the protocol.
    type Command: Wire;
    /// What the protocol tells the layer above.
    type Event: Wire;

    /// The site boots.
    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        let _ = cx;
    }

    /// A message arrived.
    fn on_message(&mut self, from: NodeId, message: Self::Message, cx: &mut Cx<'_, Self>);

    /// A deadline passed.
    fn on_timer(&mut self, timer: Self::Timer, cx: &mut Cx<'_, Self>) {
        let _ = (timer, cx);
    }

    /// The layer above wants something.
    fn on_command(&mut self, command: Self::Command, cx: &mut Cx<'_, Self>) {
        let _ = (command, cx);
    }

    /// The site is back after a crash, with the state it had on stable storage.
    fn on_recover(&mut self, cx: &mut Cx<'_, Self>) {
        self.on_start(cx);
    }

    /// The textbook's "upon *condition* do": runs once after every handler, and must leave nothing enabled:
    /// a second call right after the first has no effect.
    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        let _ = cx;
    }

    /// Hands one input to its handler, then runs the guards: a whole step.
    #[inline(always)]
    fn step(&mut self, input: Input<Self>, cx: &mut Cx<'_, Self>) {
        match input {
            Input::Start => self.on_start(cx),
            Input::Recover => self.on_recover(cx),
            Input::Message { from, message } => self.on_message(from, message, cx),
            Input::Timer(timer) => self.on_timer(timer, cx),
            Input::Command(command) => self.on_command(command, cx),
        }
        self.guards(cx);
    }
}

/// Everything that can happen to a site: the list of inputs is closed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Input<P: Protocol> {
    /// The site boots.
    Start,
    /// The site is back after a crash.
    Recover,
    /// A peer's message arrived.
    Message {
        /// The sender.
        from: NodeId,
        /// What it said.
        message: P::Message,
    },
    /// A deadline passed.
    Timer(P::Timer),
    /// The layer above wants something.
    Command(P::Command),
}
