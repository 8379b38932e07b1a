//! The unrestricted model: a deadlock is a stable property, and a consistent snapshot shows every stable property.
//!
//! **Intuition.** Whatever the rule by which processes wait, who is deadlocked stays deadlocked. So take a picture of the whole
//! that could have been at one moment, states and channels \[CL85\], and look at it at leisure: what is true in it is true now.
//!
//! **Rules**
//! 1. A process that blocks starts a snapshot: it records itself and sends MARKER over all channels.
//! 2. The first marker of a snapshot: record, MARKER over all channels. What arrives over a channel before its marker was
//!    under way: recorded too.
//! 3. When all markers are there, STATE to the initiator, which waits for all of them and judges.
//!
//! **The trap.** Without the channels a grant under way is overlooked, and that is a phantom.
//!
//! N(N-1) markers and N-1 states, whatever the waits. One snapshot of an initiator at a time; who blocks again meanwhile
//! starts another when it is over.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use conclave_kernel::{Card, Cost, Load, Measure, NodeId, NodeSet};
use serde::{Deserialize, Serialize};

use super::records::Known;
use super::site::{Detection, Model, Out};
use super::underlying::{Traffic, Underlying, Wait};

/// The detector of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stable {
    me: NodeId,
    /// The latest snapshot of each initiator, as far as this site has a part in it.
    recordings: BTreeMap<NodeId, Recording>,
    /// The states of the own snapshot: at most N.
    states: BTreeMap<NodeId, State>,
    number: u64,
    is_taking: bool,
    again: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Recording {
    number: u64,
    /// The channels whose marker has not come.
    open: NodeSet,
    state: State,
}

/// What a site adds to a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct State {
    wait: Option<Wait>,
    /// Grants under way to it: from whom, of which request. At most one a channel counts.
    grants: Vec<(NodeId, u64)>,
}

/// What detectors say to each other, of which snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// What comes before this was under way.
    Marker(NodeId, u64),
    /// To the initiator: my part.
    State(u64, State),
}

impl Detection for Stable {
    type Message = Message;

    const CARD: Card = super::card(
        "stable",
        "Stable property, by snapshot",
        "a consistent picture of all processes and channels, judged at leisure",
        &["CL85"],
        super::EXACT,
        &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "N(N-1) + N-1",
            range: |size| {
                let messages = (size.n() + 1.0) * (size.n() - 1.0);
                (messages, messages)
            },
        }],
    );
    const MODEL: Model = Model::POutOfQ;

    fn new(me: NodeId, _nodes: u32) -> Self {
        Self {
            me,
            recordings: BTreeMap::new(),
            states: BTreeMap::new(),
            number: 0,
            is_taking: false,
            again: false,
        }
    }

    fn kind(message: &Message) -> &'static str {
        match message {
            Message::Marker(..) => "MARKER",
            Message::State(..) => "STATE",
        }
    }

    fn on_blocked(&mut self, process: &Underlying, out: &mut Out<Message>) {
        if self.is_taking {
            self.again = true;
        } else {
            self.take(process, out);
        }
    }

    fn on_traffic(&mut self, from: NodeId, traffic: Traffic) {
        let Traffic::Grant(number) = traffic else { return };
        for recording in self.recordings.values_mut() {
            if recording.open.contains(from) {
                recording.state.grants.push((from, number));
            }
        }
    }

    fn on_message(&mut self, from: NodeId, message: Message, process: &Underlying, out: &mut Out<Message>) {
        match message {
            Message::Marker(initiator, number) => {
                let latest = self.recordings.get(&initiator).map_or(0, |recording| recording.number);
                if number > latest {
                    self.record(initiator, number, process, out);
                }
                if let Some(recording) = self.recordings.get_mut(&initiator) {
                    recording.open.remove(from);
                }
                self.hand_in(initiator, process, out);
            }
            Message::State(number, state) => {
                if number == self.number {
                    self.states.insert(from, state);
                    self.conclude(process, out);
                }
            }
        }
    }
}

impl Stable {
    fn take(&mut self, process: &Underlying, out: &mut Out<Message>) {
        self.number += 1;
        self.is_taking = true;
        self.states.clear();
        self.record(self.me, self.number, process, out);
        self.hand_in(self.me, process, out);
    }

    fn record(&mut self, initiator: NodeId, number: u64, process: &Underlying, out: &mut Out<Message>) {
        let mut open = NodeSet::full(process.nodes());
        open.remove(self.me);
        out.send_to(&open, &Message::Marker(initiator, number));
        let state = State { wait: process.wait().cloned(), grants: Vec::new() };
        self.recordings.insert(initiator, Recording { number, open, state });
    }

    /// All markers are there.
    fn hand_in(&mut self, initiator: NodeId, process: &Underlying, out: &mut Out<Message>) {
        let Some(recording) = self.recordings.get(&initiator).filter(|recording| recording.open.is_empty())
        else {
            return;
        };
        let (number, state) = (recording.number, recording.state.clone());
        if initiator == self.me {
            self.states.insert(self.me, state);
            self.conclude(process, out);
        } else {
            out.send(initiator, Message::State(number, state));
        }
    }

    fn conclude(&mut self, process: &Underlying, out: &mut Out<Message>) {
        if self.states.len() < process.nodes() as usize {
            return;
        }
        let states = core::mem::take(&mut self.states);
        let under_way = |by: NodeId, to: NodeId| {
            let grants = states.get(&to).map_or(&[][..], |state| &state.grants);
            grants.iter().filter(|(from, _)| *from == by).map(|(_, number)| *number).max().unwrap_or(0)
        };
        let waits = states.iter().filter_map(|(process, state)| Some((*process, state.wait.as_ref()?)));
        let own = states.get(&self.me).and_then(|state| state.wait.as_ref());
        if let Some(own) = own.filter(|own| process.waits_by(own.number))
            && Known::new(waits, &under_way).is_on_cycle(self.me)
        {
            out.accuse(self.me, own.number);
        }
        self.is_taking = false;
        if core::mem::take(&mut self.again) && process.wait().is_some() {
            self.take(process, out);
        }
    }
}
