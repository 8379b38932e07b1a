//! What the sites say to each other, and which of the three a site is.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use conclave_kernel::{Cx, NodeId, Protocol, Time};
use conclave_node::state::TimerId;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::holder::Holder;
use crate::order::Order;
use crate::server::Server;

/// The lease of every session.
pub const TTL: Duration = Duration::from_millis(2_000);
/// What clocks are assumed, and allowed, to drift.
pub const DRIFT_PPM: u32 = 10_000;
/// The total order.
pub const ORDER: NodeId = NodeId(0);
/// How many servers there are: sites 1 and on.
pub const SERVERS: u32 = 3;
/// How many clients there are: the sites behind them.
pub const CLIENTS: u32 = 3;

/// A bug to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The client counts from the answer instead of the sending.
    CountsFromAnswer,
    /// A keep-alive is answered because this node believes that it leads, without a round.
    AnswersFromLeaderLease,
    /// A new leader goes on with what it knows of the leases instead of starting them anew.
    KeepsOldLeases,
    /// Nobody leaves room for drift.
    IgnoresDrift,
    /// An expiry counts in any term.
    ExpiresInAnyTerm,
    /// A keep-alive is answered although the end of its lease is on its way.
    AnswersWhileEnding,
    /// A keep-alive is answered because a majority was led, whether or not in the term in which it was counted.
    ConfirmsInAnyTerm,
}

impl Mutant {
    pub const ALL: [Self; 7] = [
        Self::CountsFromAnswer,
        Self::AnswersFromLeaderLease,
        Self::KeepsOldLeases,
        Self::IgnoresDrift,
        Self::ExpiresInAnyTerm,
        Self::AnswersWhileEnding,
        Self::ConfirmsInAnyTerm,
    ];

    /// Where to begin to look for it. Most are seen by every few hundredth seed; a rare one by one in tens of thousands: should the
    /// harness change, look for another seed.
    pub fn first_seed(self) -> u64 {
        if self == Self::AnswersWhileEnding { 57_000 } else { 0 }
    }

    /// The drift that leases leave room for.
    pub fn drift_ppm(mutant: Option<Self>) -> u32 {
        if mutant == Some(Self::IgnoresDrift) { 0 } else { DRIFT_PPM }
    }
}

/// What a session asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum What {
    Acquire,
    Release { grant: u64 },
}

/// What goes into the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Proposal {
    Open { secret: u64 },
    Ask { session: u64, id: u64, lowest: u64, what: What },
    Expire { timer: TimerId, term: u64 },
}

/// Everything that travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    // From a client to a server, and back.
    Open {
        secret: u64,
    },
    Ask {
        session: u64,
        id: u64,
        lowest: u64,
        what: What,
    },
    Alive {
        session: u64,
        token: u64,
    },
    Opened {
        session: u64,
        secret: u64,
    },
    /// The fence, if it is a grant.
    Answered {
        session: u64,
        id: u64,
        fence: Option<u64>,
    },
    Kept {
        session: u64,
        token: u64,
    },
    Ended {
        session: u64,
    },
    // From a server to the order, and back.
    Propose(Proposal),
    Round {
        number: u64,
    },
    Entry {
        index: u64,
        term: u64,
        leader: NodeId,
        proposal: Option<Proposal>,
    },
    Confirmed {
        number: u64,
        term: u64,
        index: u64,
    },
    // Between servers: keep-alives of clients of one that does not lead.
    Forward {
        client: NodeId,
        session: u64,
        token: u64,
    },
    Forwarded {
        client: NodeId,
        session: u64,
        token: u64,
        kept: Kept,
    },
}

/// [`conclave_node::leases::KeepAliveResult`], as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kept {
    Extended,
    Ended,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Timer {
    /// The keeper's tick, or whatever a client's lease does next.
    Lease,
    /// The client has held it long enough, or has not been answered for long.
    Work,
}

/// What the script does to a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Script {
    /// To the order: this server leads from now on.
    Elect(NodeId),
    /// To a client: its connection is to this server from now on.
    Move(NodeId),
}

/// What the judge hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Event {
    /// The order granted the lock.
    Granted {
        session: u64,
        fence: u64,
    },
    /// The order ended a session whose lease ran out.
    Expired {
        session: u64,
    },
    Elected,
    /// A client begins to believe, or goes on: it holds by this fence.
    Believes {
        fence: u64,
    },
    Jeopardy,
    Lost,
    Released,
    /// A keep-alive went by way of another server.
    Forwarded,
}

/// A part of the program that the kernel's traits are not made for: compared and written as it is printed.
#[derive(Clone, Debug)]
pub struct Opaque<T>(pub T);

impl<T: Debug> PartialEq for Opaque<T> {
    fn eq(&self, other: &Self) -> bool {
        format!("{:?}", self.0) == format!("{:?}", other.0)
    }
}

impl<T: Debug> Eq for Opaque<T> {}

impl<T: Debug> Hash for Opaque<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        format!("{:?}", self.0).hash(hasher);
    }
}

impl<T: Debug> Serialize for Opaque<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:?}", self.0))
    }
}

impl<'de, T> Deserialize<'de> for Opaque<T> {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("only the order of a seed brings it back"))
    }
}

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Site {
    Order(Opaque<Box<Order>>),
    Server(Opaque<Box<Server>>),
    Client(Opaque<Box<Holder>>),
}

impl Site {
    /// The client, if this is one.
    pub fn client(&self) -> Option<&Holder> {
        match self {
            Self::Client(Opaque(holder)) => Some(holder),
            _ => None,
        }
    }
}

impl Protocol for Site {
    type Message = Message;
    type Timer = Timer;
    type Command = Script;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        if let Self::Client(Opaque(holder)) = self {
            holder.on_start(cx);
        }
    }

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match self {
            Self::Order(Opaque(order)) => order.on_message(from, message, cx),
            Self::Server(Opaque(server)) => server.on_message(from, message, cx),
            Self::Client(Opaque(holder)) => holder.on_message(message, cx),
        }
    }

    fn on_timer(&mut self, timer: Timer, cx: &mut Cx<'_, Self>) {
        match self {
            Self::Order(_) => {}
            Self::Server(Opaque(server)) => server.on_tick(cx),
            Self::Client(Opaque(holder)) => holder.on_timer(timer, cx),
        }
    }

    fn on_command(&mut self, script: Script, cx: &mut Cx<'_, Self>) {
        match (self, script) {
            (Self::Order(Opaque(order)), Script::Elect(leader)) => order.elect(leader, cx),
            (Self::Client(Opaque(holder)), Script::Move(server)) => holder.move_to(server, cx),
            _ => {}
        }
    }
}

/// A clock of a site's own: another zero, another speed. Here and not in the simulator, because the judge must be able to
/// read the clock of a site that is paused.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    pub zero: Duration,
    pub ppm: i64,
}

impl Clock {
    pub fn read(self, world: Time) -> Duration {
        let gained = i128::from(world.0) * i128::from(self.ppm) / 1_000_000;
        self.zero + Duration::from_nanos(world.0.saturating_add_signed(i64::try_from(gained).unwrap_or(0)))
    }

    /// Until when the world waits for this clock to show `local`: rounded up, so that it does.
    pub fn wait(self, now: Time, local: Duration) -> Duration {
        let span = local.saturating_sub(self.read(now)).as_nanos();
        let world = (span * 1_000_000).div_ceil(u128::from((1_000_000_i64 + self.ppm).unsigned_abs())) + 1;
        Duration::from_nanos(u64::try_from(world).unwrap_or(u64::MAX))
    }
}
