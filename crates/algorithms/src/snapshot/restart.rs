//! Checkpoint and restart: a system that continues from a picture.
//!
//! Only a picture is left of the system. Every site restores its recorded state and arms the recorded timers.
//! It then receives the messages that were in transit to it, channel by channel, in the recorded order. The
//! application does not notice the restart. The picture is a state that the system could have been in, so the
//! continued run is one that the system could have had.
//!
//! **Trap**: states that each site saved at a time of its own choice are not a checkpoint of the system. One
//! site may have received a message that another has not sent;
//! [`cut::recovery_line`](super::cut::recovery_line) computes how far back such states lead. And without the
//! channels, the messages in transit are lost.

use alloc::vec::Vec;

use conclave_kernel::{Cx, Input, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Application, Channel, Part, Picture, Reminder};

/// A site that continues from its part of a picture. Once started, it behaves like the application's site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Restarted<A: Protocol> {
    app: A,
    /// The timers and messages of the part. The site takes them over when it starts.
    reminders: Vec<Reminder<A>>,
    arriving: Vec<(NodeId, A::Message)>,
}

impl<A: Protocol> Restarted<A> {
    /// Creates the site of this part.
    pub fn new(part: &Part<A>) -> Self {
        let arriving = part
            .channels
            .iter()
            .flat_map(|channel| channel.messages.iter().map(|message| (channel.from, message.clone())));
        Self { app: part.state.clone(), reminders: part.reminders.clone(), arriving: arriving.collect() }
    }

    /// Returns the application's site.
    pub fn app(&self) -> &A {
        &self.app
    }

    fn run(&mut self, input: Input<A>, cx: &mut Cx<'_, Self>) {
        cx.delegate(&mut self.app, input, |message| message, |timer| timer);
    }
}

impl<A: Protocol> Protocol for Restarted<A> {
    type Message = A::Message;
    type Timer = A::Timer;
    type Command = A::Command;
    type Event = A::Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        for Reminder { timer, min, max } in core::mem::take(&mut self.reminders) {
            cx.arm(timer, min..=max);
        }
        for (from, message) in core::mem::take(&mut self.arriving) {
            self.run(Input::Message { from, message }, cx);
        }
    }

    fn on_message(&mut self, from: NodeId, message: A::Message, cx: &mut Cx<'_, Self>) {
        self.run(Input::Message { from, message }, cx);
    }

    fn on_timer(&mut self, timer: A::Timer, cx: &mut Cx<'_, Self>) {
        self.run(Input::Timer(timer), cx);
    }

    fn on_command(&mut self, command: A::Command, cx: &mut Cx<'_, Self>) {
        self.run(Input::Command(command), cx);
    }

    fn on_recover(&mut self, cx: &mut Cx<'_, Self>) {
        self.run(Input::Recover, cx);
    }
}

impl<A: Application> Application for Restarted<A> {
    fn conserved(picture: &Picture<Self>) -> Option<u64> {
        A::conserved(&of_app(picture))
    }

    fn stable_facts(picture: &Picture<Self>) -> alloc::collections::BTreeSet<u64> {
        A::stable_facts(&of_app(picture))
    }

    fn fact(number: u64) -> alloc::string::String {
        A::fact(number)
    }
}

/// Converts a picture of restarted sites into one of the application, so that pictures of a restarted system
/// can be judged.
fn of_app<A: Protocol>(picture: &Picture<Restarted<A>>) -> Picture<A> {
    let parts = picture.parts.iter().map(|part| Part {
        id: part.id,
        site: part.site,
        state: part.state.app.clone(),
        reminders: part
            .reminders
            .iter()
            .map(|reminder| Reminder { timer: reminder.timer, min: reminder.min, max: reminder.max })
            .collect(),
        channels: part
            .channels
            .iter()
            .map(|channel| Channel { from: channel.from, messages: channel.messages.clone() })
            .collect(),
    });
    Picture { id: picture.id, parts: parts.collect() }
}
