//! The messages between the sites, and the three kinds of site.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use conclave_kernel::{Cx, NodeId, Protocol, Time};
use conclave_node::cluster::{LogId, ProposeError, ReadError};
use conclave_node::leases::KeepAliveResult;
use conclave_node::node::{BatchId, CallId, ConnectionId, RoundId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::client::Client;
use crate::consensus::Order;
use crate::server::Server;

/// The length of every lease.
pub const TTL: Duration = Duration::from_millis(2_000);
/// The largest drift of a clock, in millionths. The service assumes the same number.
pub const DRIFT_PPM: u32 = 10_000;
/// The site that models consensus.
pub const ORDER: NodeId = NodeId(0);
/// The number of servers. They are the sites from 1 on.
pub const SERVERS: u32 = 3;
/// The number of clients. They are the sites behind the servers.
pub const CLIENTS: u32 = 3;

/// A message between two sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    // Between a client and a server.
    Connect { connection: ConnectionId },
    Accepted { connection: ConnectionId },
    Bytes { connection: ConnectionId, bytes: Vec<u8> },
    Closed { connection: ConnectionId },
    // From a server to consensus, and back. Batches are encoded as in the log.
    Propose { batch: BatchId, entries: Vec<Vec<u8>> },
    Proposed { batch: BatchId, results: Vec<Result<LogId, ProposeError>> },
    Confirm { round: RoundId },
    Confirmed { round: RoundId, result: Result<LogId, ReadError> },
    Elected { term: u64, leader: u64 },
    Entry { id: LogId, batch: Option<Vec<u8>> },
    // Between servers: keep-alives of clients of a server that does not lead.
    Forward { call: CallId, sessions: Vec<u64> },
    Forwarded { call: CallId, results: Vec<KeepAliveResult> },
}

/// The alarms of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Timer {
    /// The real code of the site has something to do.
    Turn,
    /// The workload of a client continues.
    Work,
    /// A client without a connection connects.
    Connect,
}

/// A command of the script of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Script {
    /// To consensus: this server leads from now on.
    Elect(NodeId),
    /// To a client: it leaves its connection and connects to this server.
    Move(NodeId),
}

/// An event that the judge gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Event {
    /// The log grants the lock.
    Granted {
        session: u64,
        fence: u64,
    },
    /// The log ends a session whose lease ran out.
    Expired {
        session: u64,
    },
    Elected,
    /// A client begins to believe that it holds the lock, or its lease is extended.
    Believes {
        fence: u64,
    },
    Jeopardy,
    Lost,
    Released,
    /// A keep-alive was forwarded to the leader.
    Forwarded,
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

impl Protocol for Site {
    type Message = Message;
    type Timer = Timer;
    type Command = Script;
    type Event = Event;

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
            Self::Client(client) => client.lock().on_message(message, cx),
        }
    }

    fn on_timer(&mut self, timer: Timer, cx: &mut Cx<'_, Self>) {
        match self {
            Self::Order(order) => order.lock().on_timer(cx),
            Self::Server(server) => server.lock().on_timer(cx),
            Self::Client(client) => client.lock().on_timer(timer, cx),
        }
    }

    fn on_command(&mut self, script: Script, cx: &mut Cx<'_, Self>) {
        match (self, script) {
            (Self::Order(order), Script::Elect(leader)) => order.lock().elect(leader, cx),
            (Self::Client(client), Script::Move(server)) => client.lock().move_to(server, cx),
            _ => {}
        }
    }
}

/// The clock of a site, with its own zero and its own speed. The simulator's clocks would not do: the judge reads the clock of a
/// site that is paused.
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
