//! Lai and Yang's snapshot: every message has a colour, and channels may deliver in any order.
//!
//! A site is white until it records and red after; its messages have its colour. Who is white and gets a red
//! message records *before* it takes the message in, so that nothing is received in the picture that is not
//! sent in it. What a red site receives that is white was on its way.
//!
//! **Rules** \[LY87\], with Mattern's counts \[M93 §3\] for the end: every site counts what it sends and
//! receives on each channel. On recording, it tells every peer how many white messages it has sent to it; a
//! channel is closed when as many have come. These counts are also the red wave that reaches sites which hear
//! nothing else.
//!
//! **Trap**: record *before* delivering the first red message. And a colour alone never ends: nobody knows
//! whether another white message is still to come.
//!
//! **Where we depart from the paper**: the colour is the set of snapshots that the sender has recorded and
//! that are not complete at it. So several may be under way at once, and a colour is empty while none is. A
//! complete snapshot needs no colour: everybody's part is finished, so everybody has recorded and has its
//! white messages.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{Card, Cx, Input, Needs, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::album::Album;
use super::hosted::Hosted;
use super::{Command, Event, Part, Snapshot, SnapshotId};

/// The snapshots that a message's sender had recorded; a handful needs no heap.
pub type Colour = SmallVec<[SnapshotId; 2]>;

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Message<A: Protocol> {
    /// I have recorded.
    Count {
        /// Which snapshot.
        id: SnapshotId,
        /// How many messages I sent to you before that.
        sent: u32,
    },
    /// My part is finished.
    Part(Part<A>),
    /// Of the application.
    App {
        /// What the sender had recorded.
        red: Colour,
        /// What it said.
        message: A::Message,
    },
}

/// A site: the application, the snapshots it takes part in, and what went over its channels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct LaiYang<A: Protocol> {
    site: Hosted<A>,
    album: Album<A>,
    /// By peer.
    sent: Vec<u32>,
    received: Vec<u32>,
    pub(crate) tallies: BTreeMap<SnapshotId, Vec<Tally>>,
}

/// The white messages of one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) received: u32,
    /// How many were sent, once that is known.
    sent: Option<u32>,
}

/// What it says of itself.
pub const CARD: Card = Card {
    problem: "snapshot",
    name: "lai-yang",
    title: "Lai-Yang",
    summary: "messages carry the sender's colour; record before the first red one, count the white ones home",
    papers: &["LY87", "M93"],
    needs: Needs::RELIABLE,
    promises: super::spec::ALL,
    costs: super::chandy_lamport::COSTS,
    survives: "no crash: everybody's part is needed",
    idle_traffic: false,
    reads_clock: false,
};

impl<A: Protocol> Protocol for LaiYang<A> {
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
            Message::Count { id, sent } => {
                self.turn_red(id, cx);
                if let Some(tallies) = self.tallies.get_mut(&id) {
                    tallies[from.index()].sent = Some(sent);
                    self.close_if_home(id, from, cx);
                }
            }
            Message::Part(part) => self.album.add(part, cx),
            Message::App { red, message } => {
                red.iter().for_each(|id| self.turn_red(*id, cx));
                self.receive(from, &red, &message, cx);
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
                Ok(()) if self.album.has_recorded(id) => {} // the wave was here already
                Ok(()) => self.record(id, true, cx),
            },
        }
    }
}

impl<A: Protocol> LaiYang<A> {
    /// Somebody has recorded: so must I, before I hear more of him.
    pub(crate) fn turn_red(&mut self, id: SnapshotId, cx: &mut Cx<'_, Self>) {
        if !self.album.has_recorded(id) {
            self.record(id, false, cx);
        }
    }

    fn record(&mut self, id: SnapshotId, started_here: bool, cx: &mut Cx<'_, Self>) {
        let open: NodeSet = cx.members().iter().collect();
        self.album.record(id, &self.site, open, started_here, cx);
        let tally = |received: &u32| Tally { received: *received, sent: None };
        let mut tallies: Vec<_> = self.received.iter().map(tally).collect();
        tallies[cx.me().index()].sent = Some(self.sent[cx.me().index()]);
        self.tallies.insert(id, tallies);
        for peer in cx.peers().iter() {
            cx.send(peer, Message::Count { id, sent: self.sent[peer.index()] });
        }
        self.close_if_home(id, cx.me(), cx);
    }

    /// A message of the application came in: for those snapshots for which it is white, it was on its way.
    pub(crate) fn receive(
        &mut self,
        from: NodeId,
        red: &[SnapshotId],
        message: &A::Message,
        cx: &mut Cx<'_, Self>,
    ) {
        self.received[from.index()] = self.received[from.index()].wrapping_add(1);
        let listening: SmallVec<[_; 2]> = self.album.listening(from).filter(|id| !red.contains(id)).collect();
        for id in listening {
            self.album.keep(id, from, message, cx);
            if let Some(tallies) = self.tallies.get_mut(&id) {
                tallies[from.index()].received = tallies[from.index()].received.wrapping_add(1);
                self.close_if_home(id, from, cx);
            }
        }
    }

    /// Closes a channel when as many white messages have come as were sent.
    fn close_if_home(&mut self, id: SnapshotId, from: NodeId, cx: &mut Cx<'_, Self>) {
        let Some(tallies) = self.tallies.get(&id) else { return };
        if tallies[from.index()].sent != Some(tallies[from.index()].received) {
            return;
        }
        self.album.close(id, from, cx, Message::Part);
        if cx.members().iter().all(|site| tallies[site.index()].sent == Some(tallies[site.index()].received))
        {
            self.tallies.remove(&id);
        }
    }

    /// Runs a step of the application; what it sends gets the site's colour.
    pub(crate) fn drive(&mut self, input: Input<A>, cx: &mut Cx<'_, Self>) {
        self.site.step(input, cx, |cx, to, message| {
            self.sent[to.index()] = self.sent[to.index()].wrapping_add(1);
            cx.send(to, Message::App { red: self.album.recorded().collect(), message });
        });
    }
}

impl<A: Protocol> Snapshot<A> for LaiYang<A> {
    const CARD: Card = CARD;

    fn new(_me: NodeId, nodes: u32, app: A) -> Self {
        let nobody = vec![0; nodes as usize];
        Self {
            site: Hosted::new(app),
            album: Album::new(),
            sent: nobody.clone(),
            received: nobody,
            tallies: BTreeMap::new(),
        }
    }

    fn app(&self) -> &A {
        &self.site.app
    }

    fn kind(message: &Message<A>) -> &'static str {
        match message {
            Message::Count { .. } => "COUNT",
            Message::Part(_) => "PART",
            Message::App { .. } => "APP",
        }
    }

    fn carried(message: &Message<A>) -> Option<&A::Message> {
        if let Message::App { message, .. } = message { Some(message) } else { None }
    }
}
