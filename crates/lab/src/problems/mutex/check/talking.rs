//! Application messages between the sites of a mutex, for the verdict on ME3.
//!
//! [`Talking`] is a site whose application may also send a message to the application of another site. The
//! message carries the logical clock of its sender, and the receiver passes it on as [`Command::Witness`]. So a
//! request can happen after another one for a reason that the algorithm does not see.
//!
//! The messages of the algorithm keep their form: a trace shows them as the algorithm sends them.

use conclave_algorithms::mutex::{Command, Event, Mutex};
use conclave_kernel::{Cx, Input, NodeId, Protocol};
use serde::{Deserialize, Serialize};

/// A site with its application.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent, bound = "")]
pub struct Talking<P: Mutex> {
    site: P,
}

/// A message between two sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Message<M> {
    /// A message between applications.
    Application(Application),
    /// A message of the algorithm.
    Algorithm(M),
}

/// A message between applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Application {
    /// The logical clock of the sender.
    pub application: u64,
}

/// The kind of messages between applications, beside the kinds of the paper.
pub const APPLICATION: &str = "APPLICATION";

/// A command from the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Instruction {
    /// The application sends a message to another site.
    Inform(Inform),
    /// A command for the algorithm.
    Mutex(Command),
}

/// The order to send an application message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inform {
    /// The receiver.
    pub application_message_to: NodeId,
}

impl<P: Mutex> Talking<P> {
    /// Adds an application to a site.
    pub fn new(site: P) -> Self {
        Self { site }
    }

    fn run(&mut self, input: Input<P>, cx: &mut Cx<'_, Self>) {
        cx.delegate(&mut self.site, input, Message::Algorithm, |timer| timer);
    }
}

impl<P: Mutex> Protocol for Talking<P> {
    type Message = Message<P::Message>;
    type Timer = P::Timer;
    type Command = Instruction;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.run(Input::Start, cx);
    }

    fn on_message(&mut self, from: NodeId, message: Self::Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Algorithm(message) => self.run(Input::Message { from, message }, cx),
            Message::Application(Application { application }) => {
                self.run(Input::Command(Command::Witness(application)), cx);
            }
        }
    }

    fn on_timer(&mut self, timer: P::Timer, cx: &mut Cx<'_, Self>) {
        self.run(Input::Timer(timer), cx);
    }

    fn on_command(&mut self, command: Instruction, cx: &mut Cx<'_, Self>) {
        match command {
            Instruction::Mutex(command) => self.run(Input::Command(command), cx),
            Instruction::Inform(Inform { application_message_to: to }) => {
                cx.send(to, Message::Application(Application { application: self.site.clock() }));
            }
        }
    }

    fn on_recover(&mut self, cx: &mut Cx<'_, Self>) {
        self.run(Input::Recover, cx);
    }
}
