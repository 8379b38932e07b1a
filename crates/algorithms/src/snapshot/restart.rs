//! Checkpoint and restart: a system that goes on from a picture.
//!
//! Everything is lost but a picture. Every site takes its recorded state up, arms the reminders that it
//! waited for, and gets what was on its way to it, channel by channel, in the recorded order. The application
//! notices nothing. Because the picture is a state that the system could have been in, what follows is a run
//! that it could have had.
//!
//! **Trap**: states that every site saved for itself, when it liked, are no checkpoint: what one has received
//! another may not have sent ([`cut::recovery_line`](super::cut::recovery_line) says how far back they lead);
//! and without the channels, what was on its way is lost.

use alloc::vec::Vec;

use conclave_kernel::{Cx, Input, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Application, Channel, Part, Picture, Reminder};

/// A site that goes on from its part of a picture. From its start on it is the application's site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Restarted<A: Protocol> {
    app: A,
    /// What it waited for, and what was on its way here; taken up when the site starts.
    reminders: Vec<Reminder<A>>,
    arriving: Vec<(NodeId, A::Message)>,
}

impl<A: Protocol> Restarted<A> {
    /// The site that this part is of.
    pub fn new(part: &Part<A>) -> Self {
        let arriving = part
            .channels
            .iter()
            .flat_map(|channel| channel.messages.iter().map(|message| (channel.from, message.clone())));
        Self { app: part.state.clone(), reminders: part.reminders.clone(), arriving: arriving.collect() }
    }

    /// The application's site.
    pub fn app(&self) -> &A {
        &self.app
    }

    fn run(&mut self, input: Input<A>, cx: &mut Cx<'_, Self>) {
        for event in cx.drive(&mut self.app, input, |message| message, |timer| timer) {
            cx.emit(event);
        }
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

/// A picture of restarted sites as one of the application: a restarted system may be pictured again.
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
