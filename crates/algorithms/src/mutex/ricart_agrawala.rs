//! Ricart and Agrawala: ask everybody, enter when everybody has agreed.
//!
//! A reply means "you may go before me". Who is inside, or asks with an older request, keeps its reply until
//! it is done; so replies alone carry both the permission and the queue, and no release is needed.
//!
//! **Rules** \[RA81 §2\]
//! 1. To ask: stamp the request with one more than the highest number seen, and send it to all.
//! 2. On a request: defer it if inside, or if asking with a smaller (number, site); otherwise reply.
//! 3. Enter when all have replied. On exit, reply to the deferred.
//!
//! **Trap**: numbers tie, so the site's id must be part of the comparison (without it, exclusion fails in a
//! third of random runs at N = 3). A request must raise the receiver's "highest seen" even when it is
//! deferred. Channels need not be FIFO.
//!
//! **Where we depart**: a reply echoes the stamp of the request that it answers, and distinct senders are
//! counted. The paper counts replies; with one duplicated message that lets two sites in, after 9 steps.

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, NodeMap, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::{Bill, Command, Door, Event, Fence, Group, Mutex};
use crate::clock::{LamportClock, Stamp};

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RicartAgrawala {
    door: Door,
    clock: LamportClock,
    /// My request, from the moment I ask until I leave.
    wanted: Option<Stamp>,
    /// Who has agreed to it.
    replies: NodeSet,
    /// Whose requests come after mine: the number of each.
    deferred: NodeMap<u64>,
}

/// What sites say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// May I?
    Request(Stamp),
    /// You may go before me.
    Reply(Stamp),
}

impl Protocol for RicartAgrawala {
    type Message = Message;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Request(theirs) => {
                self.clock.merge(theirs.time);
                match self.wanted {
                    Some(mine) if mine < theirs => _ = self.deferred.insert(from, theirs.time),
                    _ => cx.send(from, Message::Reply(theirs)),
                }
            }
            Message::Reply(stamp) if self.wanted == Some(stamp) => _ = self.replies.insert(from),
            Message::Reply(_) => {} // a late duplicate, of an earlier request
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Acquire => self.door.knock(cx),
            Command::Release if self.door.leave(cx) => self.exit(cx),
            Command::Release => {}
            Command::Witness(time) => self.clock.merge(time),
        }
    }

    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.door.must_ask() {
            let mine = Stamp::new(self.clock.tick(), cx.me());
            self.wanted = Some(mine);
            cx.broadcast(Message::Request(mine));
        }
        if let Some(mine) = self.wanted
            && self.door.is_asking()
            && self.replies.len() == cx.peers().len()
        {
            self.door.enter(Fence(mine.rank(cx.members().len() as u32)), cx);
        }
    }
}

impl RicartAgrawala {
    fn exit(&mut self, cx: &mut Cx<'_, Self>) {
        self.wanted = None;
        self.replies.clear();
        self.deferred.drain(|site, time| cx.send(site, Message::Reply(Stamp::new(time, site))));
    }
}

impl Mutex for RicartAgrawala {
    const CARD: Card = Card {
        room: "mutex",
        name: "ricart-agrawala",
        title: "Ricart-Agrawala",
        summary: "ask everybody; whoever is inside or asked earlier replies when done",
        papers: &["RA81"],
        needs: Needs { no_duplication: false, ..Needs::RELIABLE },
        promises: &["ME1", "ME1-causal", "ME2", "ME3", "fences"],
        costs: &[
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::Low,
                formula: "2(N-1)",
                range: |size| (2.0 * (size.n() - 1.0), 2.0 * (size.n() - 1.0)),
            },
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::High,
                formula: "2(N-1)",
                range: |size| (2.0 * (size.n() - 1.0), 2.0 * (size.n() - 1.0)),
            },
            Cost { measure: Measure::ClientDelay, load: Load::Low, formula: "2T", range: |_| (2.0, 2.0) },
            Cost { measure: Measure::SyncDelay, load: Load::High, formula: "T", range: |_| (1.0, 1.0) },
        ],
        survives: "no crash: everybody's reply is needed",
        idle_traffic: false,
        reads_clock: false,
    };

    fn new(_me: NodeId, group: &Group) -> Self {
        Self {
            door: Door::default(),
            clock: LamportClock::new(),
            wanted: None,
            replies: NodeSet::new(),
            deferred: NodeMap::new(group.nodes),
        }
    }

    fn bill(message: &Message, _from: NodeId, _to: NodeId) -> Bill {
        match message {
            Message::Request(stamp) => Bill::enter("REQUEST", stamp.site, stamp.time),
            Message::Reply(stamp) => Bill::enter("REPLY", stamp.site, stamp.time),
        }
    }

    fn clock(&self) -> u64 {
        self.clock.time()
    }
}
