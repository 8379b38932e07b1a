//! [`Protocol`], the trait that every algorithm implements.

use core::fmt::Debug;
use core::hash::Hash;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::context::Cx;
use crate::node::NodeId;

/// A value that is sent between sites, or between an algorithm and the layer above it.
///
/// Every type that can be cloned, compared, hashed, printed and serialised implements it. So the simulator
/// can run the same message, the checker can store it, and a real network can carry it.
pub trait Wire: Clone + Debug + Eq + Hash + Serialize + DeserializeOwned + Send + 'static {}
impl<T: Clone + Debug + Eq + Hash + Serialize + DeserializeOwned + Send + 'static> Wire for T {}

/// The name of a timer: a small closed enum. Each value has at most one deadline.
pub trait Tag: Wire + Copy + Ord {}
impl<T: Wire + Copy + Ord> Tag for T {}

/// A type without values. Protocols without timers use it as their tag, and protocols without messages as
/// their message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Never {}

/// An algorithm as a pure state machine. One value of the type is the state of one site.
///
/// # Promises of a world
///
/// - It passes one input at a time to a site and waits until the step is complete. Handlers are never
///   re-entered.
/// - It applies effects in program order, after the handler returned.
/// - It has at most one pending deadline per timer tag.
/// - The local clock never runs backwards.
///
/// # Promises of a protocol
///
/// - It keeps no state outside `self`.
/// - It never iterates over unordered maps.
/// - It uses no clock and no random source except those of `cx`.
/// - It uses bounded memory.
/// - It answers a command that is not allowed now with an event, not with an error.
pub trait Protocol: Clone + Debug + Eq + Hash + Serialize + DeserializeOwned + Send + 'static {
    /// A message from one site to another.
    type Message: Wire;
    /// The name of a timer.
    type Timer: Tag;
    /// A command that the layer above sends to the protocol.
    type Command: Wire;
    /// An event that the protocol sends to the layer above.
    type Event: Wire;

    /// Handles the start of the site.
    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        let _ = cx;
    }

    /// Handles a message from a site.
    fn on_message(&mut self, from: NodeId, message: Self::Message, cx: &mut Cx<'_, Self>);

    /// Handles a timer whose deadline has passed.
    fn on_timer(&mut self, timer: Self::Timer, cx: &mut Cx<'_, Self>) {
        let _ = (timer, cx);
    }

    /// Handles a command of the layer above.
    fn on_command(&mut self, command: Self::Command, cx: &mut Cx<'_, Self>) {
        let _ = (command, cx);
    }

    /// Handles the recovery after a crash. The state is the one before the crash, from stable storage.
    fn on_recover(&mut self, cx: &mut Cx<'_, Self>) {
        self.on_start(cx);
    }

    /// Executes the rules that a paper writes as "upon *condition* do". It runs once after every handler. It
    /// must loop until no condition holds: a second call right after the first has no effect.
    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        let _ = cx;
    }

    /// Executes a whole step: passes the input to its handler, then runs the guards.
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

/// An input to a site. The list is closed: nothing else can happen to a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Input<P: Protocol> {
    /// The site starts.
    Start,
    /// The site recovers from a crash.
    Recover,
    /// A message of a site arrives.
    Message {
        /// The sender.
        from: NodeId,
        /// The message.
        message: P::Message,
    },
    /// The deadline of a timer has passed.
    Timer(P::Timer),
    /// The layer above sends a command.
    Command(P::Command),
}
