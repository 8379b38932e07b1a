//! Chandy and Lamport's snapshot: a marker on every channel separates the messages sent before from those
//! sent after.
//!
//! **Rules** \[CL85 §3\]
//! 1. To record: save the state, *then* send a marker on every outgoing channel, before any other message.
//! 2. On a marker, if the site has not recorded: record. The channel on which the marker arrived is empty.
//! 3. On a marker, if the site has recorded: the state of that channel is the messages that arrived on it
//!    between the recording and the marker.
//! 4. A part is finished when a marker has arrived on every incoming channel.
//! 5. Any site may start a snapshot, and several sites may start the same one. Snapshots with different
//!    numbers are independent.
//!
//! **Trap**: channels must be FIFO. If a message overtakes a marker, the picture contains its receipt but not
//! its sending. If a marker overtakes a message, the picture contains its sending, but neither its receipt
//! nor the message in transit.
//!
//! **Differences from the paper**: a site sends no marker to itself, because it knows how many of its own
//! messages have not arrived yet. Each site sends its part to all others, so that all have the picture; the
//! paper leaves this open.

use alloc::collections::BTreeMap;

use conclave_kernel::{Card, Cost, Cx, Input, Load, Measure, Needs, NodeId, NodeSet, Protocol, Size};
use serde::{Deserialize, Serialize};

use super::album::Album;
use super::hosted::Hosted;
use super::{Command, Event, Part, Snapshot, SnapshotId};

/// A message between two sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Message<A: Protocol> {
    /// The picture contains all messages that the sender sent on this channel before the marker.
    Marker(SnapshotId),
    /// The finished part of the sender.
    Part(Part<A>),
    /// A message of the application.
    App(A::Message),
}

/// One site: its application and its snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct ChandyLamport<A: Protocol> {
    pub(crate) site: Hosted<A>,
    pub(crate) album: Album<A>,
    /// The number of messages from this site to itself that have not arrived yet. `own_awaited` has the
    /// number of those that each snapshot still waits for.
    own_under_way: u32,
    own_awaited: BTreeMap<SnapshotId, u32>,
}

/// The card of the algorithm.
pub const CARD: Card = Card {
    problem: "snapshot",
    name: "chandy-lamport",
    title: "Chandy-Lamport",
    summary: "a site records and sends a marker on every channel; messages that arrive before a marker were in transit",
    papers: &["CL85"],
    needs: Needs::RELIABLE_FIFO,
    promises: super::spec::ALL,
    costs: COSTS,
    survives: "no crash: the part of every site is needed",
    idle_traffic: false,
    reads_clock: false,
};

/// The costs: markers on all N(N-1) channels, then a part from each site to every other. The first markers
/// take T, the markers that they cause take T, and the parts take T.
pub(super) const COSTS: &[Cost] = &[
    Cost { measure: Measure::Messages, load: Load::Low, formula: "2N(N-1)", range: messages },
    Cost { measure: Measure::Messages, load: Load::High, formula: "2N(N-1)", range: messages },
    Cost {
        measure: Measure::Turnaround,
        load: Load::Low,
        formula: "3T",
        range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (3.0, 3.0) },
    },
    Cost {
        measure: Measure::Turnaround,
        load: Load::High,
        formula: "2T",
        range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (2.0, 2.0) },
    },
];

fn messages(size: Size) -> (f64, f64) {
    let all = 2.0 * size.n() * (size.n() - 1.0);
    (all, all)
}

impl<A: Protocol> Protocol for ChandyLamport<A> {
    type Message = Message<A>;
    type Timer = A::Timer;
    type Command = Command<A>;
    type Event = Event<A>;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.drive(Input::Start, cx);
    }

    fn on_recover(&mut self, cx: &mut Cx<'_, Self>) {
        self.drive(Input::Recover, cx);
    }

    fn on_message(&mut self, from: NodeId, message: Message<A>, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Marker(id) => {
                if !self.album.has_recorded(id) {
                    self.record(id, false, cx);
                }
                self.album.close(id, from, cx, Message::Part);
            }
            Message::Part(part) => self.album.add(part, cx),
            Message::App(message) => {
                let listening: smallvec::SmallVec<[_; 2]> = self.album.listening(from).collect();
                listening.into_iter().for_each(|id| self.album.keep(id, from, &message, cx));
                if from == cx.me() {
                    self.hear_myself(cx);
                }
                self.drive(Input::Message { from, message }, cx);
            }
        }
    }

    fn on_timer(&mut self, timer: A::Timer, cx: &mut Cx<'_, Self>) {
        self.drive(Input::Timer(timer), cx);
    }

    fn on_command(&mut self, command: Command<A>, cx: &mut Cx<'_, Self>) {
        match command {
            Command::App(command) => self.drive(Input::Command(command), cx),
            Command::Take(id) => match self.album.may_start(id) {
                Err(why) => cx.emit(Event::Refused { id, why }),
                Ok(()) if self.album.has_recorded(id) => {} // a marker has already arrived
                Ok(()) => self.record(id, true, cx),
            },
        }
    }
}

impl<A: Protocol> ChandyLamport<A> {
    pub(crate) fn record(&mut self, id: SnapshotId, started_here: bool, cx: &mut Cx<'_, Self>) {
        let mut open: NodeSet = cx.peers().iter().collect();
        if self.own_under_way > 0 {
            open.insert(cx.me());
            self.own_awaited.insert(id, self.own_under_way);
        }
        self.album.record(id, &self.site, open, started_here, cx);
        if !cx.peers().is_empty() {
            cx.broadcast(Message::Marker(id));
        }
        self.album.finish_part(id, cx, Message::Part); // a site alone needs no markers
    }

    /// Counts the arrival of one of the site's own messages.
    fn hear_myself(&mut self, cx: &mut Cx<'_, Self>) {
        self.own_under_way = self.own_under_way.saturating_sub(1);
        self.own_awaited.values_mut().for_each(|awaited| *awaited -= 1);
        while let Some((id, _)) = self.own_awaited.iter().find(|(_, awaited)| **awaited == 0) {
            let id = *id;
            self.own_awaited.remove(&id);
            self.album.close(id, cx.me(), cx, Message::Part);
        }
    }

    /// Runs a step of the application.
    fn drive(&mut self, input: Input<A>, cx: &mut Cx<'_, Self>) {
        self.site.step(input, cx, |cx, to, message| {
            self.own_under_way += u32::from(to == cx.me());
            cx.send(to, Message::App(message));
        });
    }
}

impl<A: Protocol> Snapshot<A> for ChandyLamport<A> {
    const CARD: Card = CARD;

    fn new(_me: NodeId, _nodes: u32, app: A) -> Self {
        Self { site: Hosted::new(app), album: Album::new(), own_under_way: 0, own_awaited: BTreeMap::new() }
    }

    fn app(&self) -> &A {
        &self.site.app
    }

    fn kind(message: &Message<A>) -> &'static str {
        match message {
            Message::Marker(_) => "MARKER",
            Message::Part(_) => "PART",
            Message::App(_) => "APP",
        }
    }

    fn carried(message: &Message<A>) -> Option<&A::Message> {
        if let Message::App(message) = message { Some(message) } else { None }
    }
}
