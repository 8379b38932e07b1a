//! The messages between the sites, the notes for the judge, and the three kinds of site.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use conclave_client::WatchEvent;
use conclave_kernel::{Cx, NodeId, Protocol, Time};
use conclave_node::cluster::{LogId, ProposeError, ReadError};
use conclave_node::leases::KeepAliveResult;
use conclave_node::node::{BatchId, CallId, ConnectionId, RoundId};
use conclave_node::state::watch::WatchTarget;
use conclave_node::testing::Entry;
use conclave_wire::v1;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::client::Client;
use crate::consensus::Order;
use crate::coverage::Situation;
use crate::scenario::Config;
use crate::server::Server;

/// The length of every lease.
pub const TTL: Duration = Duration::from_millis(2_000);
/// The largest drift of a clock, in millionths. The service assumes the same number.
pub const DRIFT_PPM: u32 = 10_000;
/// The site that models consensus.
pub const CONSENSUS: NodeId = NodeId(0);

/// The number of a start of a server. It is part of every number that outlives the server, so that no result
/// of an earlier start is taken for one of this start.
pub type Epoch = u32;

/// An entry of the log: its identity, and its encoded batch.
pub type Record = (LogId, Option<Vec<u8>>);

/// A message between two sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    // Between a client and a server.
    Connect {
        connection: ConnectionId,
    },
    Accepted {
        connection: ConnectionId,
    },
    Bytes {
        connection: ConnectionId,
        bytes: Vec<u8>,
    },
    /// The client has read so many bytes.
    Read {
        connection: ConnectionId,
        bytes: usize,
    },
    Closed {
        connection: ConnectionId,
    },
    /// The server has restarted: none of its connections exists.
    Reset,
    // From a server to consensus, and back. Batches are encoded as in the log.
    Propose {
        epoch: Epoch,
        batch: BatchId,
        entries: Vec<Vec<u8>>,
    },
    Proposed {
        epoch: Epoch,
        batch: BatchId,
        results: Vec<Result<LogId, ProposeError>>,
    },
    Confirm {
        epoch: Epoch,
        round: RoundId,
    },
    Confirmed {
        epoch: Epoch,
        round: RoundId,
        result: Result<LogId, ReadError>,
    },
    Elected {
        term: u64,
        leader: u64,
    },
    Entry(Record),
    /// A server has restarted with an empty state.
    Rejoin {
        epoch: Epoch,
    },
    /// All later messages are meant for this start of the server.
    Joined {
        epoch: Epoch,
    },
    /// All entries so far.
    Replay {
        entries: Vec<Record>,
    },
    Snapshot {
        id: LogId,
        state: Vec<u8>,
    },
    // Between servers: keep-alives of clients of a server that does not lead.
    Forward {
        epoch: Epoch,
        call: CallId,
        sessions: Vec<u64>,
    },
    Forwarded {
        epoch: Epoch,
        call: CallId,
        results: Vec<KeepAliveResult>,
    },
}

/// The alarms of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Timer {
    /// The real code of the site has something to do.
    Turn,
    /// One part of the workload of a client continues.
    Work(u8),
    /// A client without a connection connects.
    Connect,
    /// A slow client reads.
    Read,
    /// The disk of a single node has synced.
    Sync,
    /// The node handles effects of entries that its state already contains.
    Effects,
}

/// A command of the script of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Script {
    /// To consensus: this server leads from now on.
    Elect(NodeId),
    /// To consensus: this server gets no more entries.
    Lag(NodeId),
    /// To consensus: this server gets a snapshot in the place of the entries that it lacks.
    Jump(NodeId),
    /// To a client: it leaves its connection and connects to this server.
    Move(NodeId),
}

/// An event of a site: there is something new in its [`Notes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Noted;

/// A note of a site for the judge.
#[derive(Debug)]
pub enum Note {
    /// No power cut and no election removes this entry any more.
    Committed(Entry),
    Elected,
    /// A situation that the runs must contain.
    Seen(Situation),
    /// A server has broken a rule.
    Wrong(String),
    /// A client has begun a connection.
    Connected(ConnectionId),
    /// A client sends a message.
    Sent {
        connection: ConnectionId,
        message: v1::ClientMessage,
    },
    /// A client has read a message.
    Received {
        connection: ConnectionId,
        message: v1::ServerMessage,
    },
    /// A watch of a client has begun.
    Watching {
        watch: u64,
        target: WatchTarget,
        index: u64,
    },
    /// The client library delivers a notice of a watch.
    Noticed {
        watch: u64,
        event: WatchEvent,
    },
    /// A watch has ended.
    Unwatched {
        watch: u64,
    },
}

/// The notes of a site that the judge has not taken.
#[derive(Debug, Default)]
pub struct Notes(Vec<Note>);

impl Notes {
    pub fn add(&mut self, note: Note) {
        self.0.push(note);
    }

    pub fn see(&mut self, situation: Situation) {
        self.0.push(Note::Seen(situation));
    }

    /// Calls the judge, if there is something for it. Called at the end of a step.
    pub fn emit(&self, cx: &mut Cx<'_, Site>) {
        if !self.0.is_empty() {
            cx.emit(Noted);
        }
    }

    pub fn take(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.0)
    }
}

/// A part of a site that holds real code. The real code has no equality and no hash, and a run needs none.
#[derive(Debug)]
pub struct Opaque<T>(Arc<Mutex<T>>);

impl<T> Opaque<T> {
    pub fn new(content: T) -> Self {
        Self(Arc::new(Mutex::new(content)))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Opaque<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> PartialEq for Opaque<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Eq for Opaque<T> {}

impl<T> Hash for Opaque<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl<T> Serialize for Opaque<T> {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("a seed describes the whole run"))
    }
}

impl<'de, T> Deserialize<'de> for Opaque<T> {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("a seed describes the whole run"))
    }
}

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Site {
    Order(Opaque<Order>),
    Server(Opaque<Server>),
    Client(Opaque<Client>),
}

impl Site {
    pub fn take_notes(&self) -> Vec<Note> {
        match self {
            Self::Order(order) => order.lock().notes.take(),
            Self::Server(server) => server.lock().notes.take(),
            Self::Client(client) => client.lock().notes.take(),
        }
    }
}

impl Protocol for Site {
    type Message = Message;
    type Timer = Timer;
    type Command = Script;
    type Event = Noted;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        match self {
            Self::Order(_) => {}
            Self::Server(server) => server.lock().on_start(cx),
            Self::Client(client) => client.lock().on_start(cx),
        }
    }

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match self {
            Self::Order(order) => order.lock().on_message(from, message, cx),
            Self::Server(server) => server.lock().on_message(from, message, cx),
            Self::Client(client) => client.lock().on_message(from, message, cx),
        }
    }

    fn on_timer(&mut self, timer: Timer, cx: &mut Cx<'_, Self>) {
        match self {
            Self::Order(order) => order.lock().on_timer(cx),
            Self::Server(server) => server.lock().on_timer(timer, cx),
            Self::Client(client) => client.lock().on_timer(timer, cx),
        }
    }

    fn on_command(&mut self, script: Script, cx: &mut Cx<'_, Self>) {
        match (self, script) {
            (Self::Order(order), script) => order.lock().on_command(script, cx),
            (Self::Client(client), Script::Move(server)) => client.lock().move_to(server, cx),
            _ => {}
        }
    }
}

/// The clock of a site, with its own zero and its own speed. The simulator's clocks are not enough, because
/// the judge also reads the clock of a paused site.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    pub zero: Duration,
    pub ppm: i64,
}

impl Clock {
    /// Returns the reading of the clock at a time of the world.
    pub fn read(self, world: Time) -> Duration {
        let gained = i128::from(world.0) * i128::from(self.ppm) / 1_000_000;
        self.zero + Duration::from_nanos(world.0.saturating_add_signed(i64::try_from(gained).unwrap_or(0)))
    }

    /// Returns the time of the world until the clock shows `local`, rounded up.
    pub fn wait(self, now: Time, local: Duration) -> Duration {
        let span = local.saturating_sub(self.read(now)).as_nanos();
        let world = (span * 1_000_000).div_ceil(u128::from((1_000_000_i64 + self.ppm).unsigned_abs())) + 1;
        Duration::from_nanos(u64::try_from(world).unwrap_or(u64::MAX))
    }
}

/// Sends the bytes of a connection, sometimes in two parts. Returns `false` if the connection breaks: then
/// only the first of these bytes arrive, and the caller ends the connection.
#[must_use]
pub fn send_bytes(
    config: &Config,
    to: NodeId,
    connection: ConnectionId,
    mut bytes: Vec<u8>,
    cx: &mut Cx<'_, Site>,
) -> bool {
    if bytes.is_empty() {
        return true;
    }
    let mut breaks = false;
    if config.one_break_in > 0 {
        breaks = !config.scenario.is_healed(cx.now()) && cx.choose(config.one_break_in) == 0;
        if breaks || cx.choose(8) == 0 {
            let rest = bytes.split_off(cx.choose(u32::try_from(bytes.len()).expect("few bytes")) as usize);
            if !breaks {
                cx.send(to, Message::Bytes { connection, bytes });
                bytes = rest;
            }
        }
    }
    cx.send(to, Message::Bytes { connection, bytes });
    !breaks
}
