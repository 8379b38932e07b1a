//! Lai and Yang's snapshot: every message has a colour, and channels may deliver in any order.
//!
//! A site is white until it records its state, and red from then on. Its messages have its colour. A white
//! site that receives a red message records *before* it handles the message. So the picture contains no
//! receipt without the sending. A white message that a red site receives was in transit.
//!
//! **Rules** \[LY87\], with Mattern's counts \[M93 §3\] to end a snapshot
//! 1. Count the messages sent and received on each channel.
//! 2. To record: save the state, and send COUNT to every peer, with the number of white messages sent to it.
//! 3. On a red message or on COUNT, if the site is white: record first.
//! 4. On a white message, if the site is red: add the message to the state of its channel.
//! 5. A channel is closed when as many white messages have arrived as its COUNT says. A part is finished when
//!    all channels are closed.
//!
//! COUNT also reaches the sites that receive no red message of the application, so that they record, too.
//!
//! **Trap**: a white site must record *before* it handles the first red message. Otherwise the picture
//! contains the receipt of a message that is not sent in it. And colours alone never end a snapshot, because
//! no site knows whether another white message will arrive.
//!
//! **Differences from the paper**: the colour is a set. It names the snapshots that the sender has recorded
//! and that are not complete at the sender. So several snapshots may be under way at once, and the colour is
//! empty while there is none. A complete snapshot needs no colour: all parts are finished, so all sites have
//! recorded and have received their white messages.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{Card, Cx, Input, Needs, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::album::Album;
use super::hosted::Hosted;
use super::{Command, Event, Part, Snapshot, SnapshotId};

/// The snapshots that the sender of a message had recorded. Two of them fit without a heap allocation.
pub type Colour = SmallVec<[SnapshotId; 2]>;

/// A message between two sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Message<A: Protocol> {
    /// The sender has recorded its state.
    Count {
        /// The number of the snapshot.
        id: SnapshotId,
        /// The number of messages that the sender sent to the receiver before it recorded.
        sent: u32,
    },
    /// The finished part of the sender.
    Part(Part<A>),
    /// A message of the application.
    App {
        /// The snapshots that the sender had recorded.
        red: Colour,
        /// The message itself.
        message: A::Message,
    },
}

/// One site: its application, its snapshots, and the message counts of its channels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct LaiYang<A: Protocol> {
    site: Hosted<A>,
    album: Album<A>,
    /// The number of application messages sent to each site; `received` counts those received from each site.
    sent: Vec<u32>,
    received: Vec<u32>,
    pub(crate) tallies: BTreeMap<SnapshotId, Vec<Tally>>,
}

/// The number of white messages on one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) received: u32,
    /// The number sent; `None` until COUNT has arrived.
    sent: Option<u32>,
}

/// The card of the algorithm.
pub const CARD: Card = Card {
    problem: "snapshot",
    name: "lai-yang",
    title: "Lai-Yang",
    summary: "messages carry their sender's colour; a site records before the first red one and counts the white ones",
    papers: &["LY87", "M93"],
    needs: Needs::RELIABLE,
    promises: super::spec::ALL,
    costs: super::chandy_lamport::COSTS,
    survives: "no crash: the part of every site is needed",
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
                Ok(()) if self.album.has_recorded(id) => {} // a red message or a COUNT has already arrived
                Ok(()) => self.record(id, true, cx),
            },
        }
    }
}

impl<A: Protocol> LaiYang<A> {
    /// Records the site's state, unless it has recorded already. Another site has recorded, so this site must
    /// do so before it handles the message.
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

    /// Counts a message of the application. The message was in transit for those snapshots that are not in
    /// its colour.
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

    /// Closes a channel when as many white messages have arrived on it as were sent.
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

    /// Runs a step of the application. Its messages get the site's colour.
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
