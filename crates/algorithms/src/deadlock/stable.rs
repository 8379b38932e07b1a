//! Detection in the unrestricted model: a deadlock is a stable property, and a consistent snapshot shows
//! every stable property.
//!
//! **Intuition.** A deadlocked process stays deadlocked, whatever rule decides when processes wait. So take a
//! snapshot of all processes and channels that could have been the state at one moment \[CL85\]. A stable
//! property that is true in the snapshot is true now.
//!
//! **Rules**
//! 1. A process that blocks starts a snapshot: it records itself and sends MARKER over all channels.
//! 2. On the first marker of a snapshot, a site records itself and sends MARKER over all channels. A message
//!    that arrives over a channel before its marker was in transit, so the site records it too.
//! 3. After all its markers have arrived, a site sends STATE to the initiator. The initiator waits for all
//!    states and judges.
//!
//! **The trap.** Without the channels, a grant in transit is overlooked, and that is a phantom.
//!
//! **Bounds.** N(N-1) markers and N-1 states, whatever the waits are. An initiator takes one snapshot at a
//! time. If its process blocks again in the meantime, it takes another one afterwards.

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
    /// The recordings of this site for the latest snapshot of each initiator.
    recordings: BTreeMap<NodeId, Recording>,
    /// The states of the site's own snapshot; at most N.
    states: BTreeMap<NodeId, State>,
    number: u64,
    is_taking: bool,
    again: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Recording {
    number: u64,
    /// The channels whose marker has not arrived.
    open: NodeSet,
    state: State,
}

/// The part of one site in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct State {
    wait: Option<Wait>,
    /// The grants in transit to the site: the sender and the number of the request.
    grants: Vec<(NodeId, u64)>,
}

/// A message between detectors, with its snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The marker: messages that arrive before it on a channel were in transit.
    Marker(NodeId, u64),
    /// To the initiator: the part of the sender.
    State(u64, State),
}

impl Detection for Stable {
    type Message = Message;

    const CARD: Card = super::card(
        "stable",
        "Stable property, by snapshot",
        "a consistent snapshot of all processes and channels is searched for deadlocks",
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

    /// Hands in the site's part after all markers have arrived.
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
