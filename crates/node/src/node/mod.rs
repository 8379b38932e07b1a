//! The node: everything between the client connections and the replicated log, as a state machine without
//! I/O.
//!
//! The driver passes every event in as an [`Input`] and, after each group of events, calls
//! [`Node::end_turn`]. The node puts replies into each connection's [`Outbox`] and returns everything else as
//! [`Output`]s. It never blocks, and it has no clock, socket or thread of its own.
//!
//! **Rules.**
//! - Replies to a session follow the order of the log.
//! - Keep-alives, linearizable reads, watches and resumed sessions wait for a *round*, in which a quorum
//!   confirms the leader. A round serves only requests that arrived before it started.
//! - Requests sent after `Open` or `Resume` wait until the session exists. Clients need no extra round trip.
//! - A session has one connection. Resuming it elsewhere closes the old connection.
//!
//! **Trap.** A round can be confirmed by a different leader if this node was deposed meanwhile. The lease
//! that this node extended is then worthless. So a keep-alive is answered only if the round's term is the
//! term in which it was counted.
//!
//! **Bounds.** The [`budget`] limits commands in flight by number and by bytes; operations that only release
//! are never rejected for bytes. Reads that wait for a round: [`MAX_WAITING`] per node, [`MAX_WAITING_EACH`]
//! per connection. Requests that wait on a connection: [`MAX_QUEUED`]. Over a limit the reply is
//! `overloaded`, which is definite. A connection whose session is not open yet is closed with this error
//! instead.
//!
//! **The order of reading.** `requests` turns a client's message into a command, a read or an error;
//! `batches` and `flush` put commands into the log; `effects` turns applied entries into replies; `rounds`
//! serves requests that wait for a quorum.

mod batches;
pub mod budget;
mod clients;
mod effects;
mod flush;
pub mod metrics;
mod number_map;
pub mod query;
mod reply;
mod request;
mod requests;
mod rounds;
#[cfg(test)]
mod tests;
pub mod watches;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use conclave_core::{Code, Error, SessionId};

pub use self::batches::BatchId;
use self::batches::{Batches, Origin};
use self::budget::Class;
pub use self::budget::{MAX_BYTES, MAX_IN_FLIGHT, MAX_WAITING, MAX_WAITING_EACH};
use self::clients::Clients;
pub use self::clients::MAX_QUEUED;
pub use self::flush::Cause;
use self::flush::{FlushPolicy, Situation};
use self::metrics::Metrics;
pub use self::reply::{Reply, SessionTerms};
pub use self::request::{ClientRequest, Query};
use self::rounds::Rounds;
pub use self::rounds::{CallId, RoundId};
use self::watches::Watches;
use crate::cluster::{LogId, NodeId, ProposeError, ReadError, Status};
use crate::leases::{KeepAliveResult, Leases, Now, Timing};
use crate::state::{Command, Effect, State};

/// The number of bytes of unsent replies at which a connection's outbox is full. Queries then wait.
pub const FULL_BYTES: usize = 1024 * 1024;
/// The most events per turn. Also the most reads that the node serves, and the most connections that it sends
/// to, per turn.
pub const MAX_PER_TURN: usize = 128;

/// The number of a client's connection to this node.
pub type ConnectionId = u64;

/// An event that the driver passes to the node.
pub enum Input<O> {
    /// A client has connected.
    Attached {
        /// The connection.
        connection: ConnectionId,
        /// The place for its replies.
        outbox: O,
        /// Whether the client can close its half of the connection and still get replies.
        half_close: bool,
    },
    /// A client has sent messages.
    Requests {
        /// The connection.
        connection: ConnectionId,
        /// The messages, in order.
        requests: Vec<ClientRequest>,
    },
    /// A connection sent bytes that cannot be decoded.
    ReadFailed {
        /// The connection.
        connection: ConnectionId,
        /// The reason.
        error: Error,
    },
    /// A client has closed its half of the connection: it sends nothing more, and waits for its replies.
    HalfClosed(ConnectionId),
    /// A full outbox has room again.
    Writable(ConnectionId),
    /// A connection has ended.
    Detached(ConnectionId),
    /// An entry was applied on this node.
    Applied {
        /// The entry.
        id: LogId,
        /// Its effects, in order.
        effects: Vec<Effect>,
    },
    /// Effects of an entry that is not on disk yet, which no crash can change.
    Early {
        /// The effects.
        effects: Vec<Effect>,
    },
    /// A snapshot has replaced the state of this node.
    Restored {
        /// The last entry that the snapshot covers.
        id: LogId,
    },
    /// A batch has its results.
    Proposed {
        /// The batch.
        batch: BatchId,
        /// One result for each entry.
        results: Vec<Result<LogId, ProposeError>>,
    },
    /// A round has ended.
    Confirmed {
        /// The round.
        round: RoundId,
        /// The entry up to which a read must see the state, with the leader's term; or the reason why no
        /// quorum confirmed.
        result: Result<LogId, ReadError>,
    },
    /// The leader has answered keep-alives that this node forwarded; `None` if it did not answer.
    KeepAlivesAnswered {
        /// The call.
        call: CallId,
        /// One result for each session.
        results: Option<Vec<KeepAliveResult>>,
    },
    /// Another node forwards keep-alives of its clients.
    KeepAlivesForwarded {
        /// The call, a number of the driver.
        call: CallId,
        /// The sessions.
        sessions: Vec<SessionId>,
    },
    /// The node stops: every connection is closed.
    Stop,
}

/// An action that the driver carries out, in the order of the list.
#[derive(Debug)]
pub enum Output {
    /// Propose entries. The driver adds the wall time and answers with [`Input::Proposed`].
    Propose {
        /// The batch.
        batch: BatchId,
        /// The commands of each entry.
        entries: Vec<Vec<Command>>,
    },
    /// Let a quorum confirm the leader. The driver answers with [`Input::Confirmed`].
    Confirm {
        /// The round.
        round: RoundId,
        /// The longest that it may take. Then the result is [`ReadError::Retry`].
        limit: Duration,
    },
    /// Forward keep-alives to the leader. The driver answers with [`Input::KeepAlivesAnswered`].
    ForwardKeepAlives {
        /// The call.
        call: CallId,
        /// The leader.
        to: NodeId,
        /// The sessions.
        sessions: Vec<SessionId>,
    },
    /// Answer the node that forwarded keep-alives.
    AnswerKeepAlives {
        /// The call of [`Input::KeepAlivesForwarded`].
        call: CallId,
        /// One result for each session; none if this node could not confirm that it leads.
        results: Vec<KeepAliveResult>,
    },
    /// Wake the thread that writes the log: a batch follows soon.
    WakeLogWriter,
}

/// The environment of the node during one call.
pub struct Cx<'a> {
    /// The present time.
    pub now: Now,
    /// The replicated state and the status of the cluster.
    pub view: &'a dyn View,
    /// The list to which the node adds its outputs.
    pub out: &'a mut Vec<Output>,
    /// The source of secrets; `None` if the system has no random numbers.
    pub secret: &'a mut dyn FnMut() -> Option<u128>,
}

/// The replicated state and the status of the cluster, as this node has them now.
pub trait View {
    /// Calls `read` once with the state. The state is locked meanwhile, so `read` must be short.
    fn read(&self, read: &mut dyn FnMut(&State));
    /// Returns the status of the replica.
    fn status(&self) -> Status;
    /// Returns the identity of the cluster.
    fn cluster_id(&self) -> u128;
    /// Returns whether the state may contain entries that are not on disk, as on a single node.
    fn may_be_unsynced(&self) -> bool;
}

/// Reads the state.
fn read_state<R>(view: &dyn View, read: impl FnOnce(&State) -> R) -> R {
    let (mut read, mut result) = (Some(read), None);
    view.read(&mut |state| {
        if let Some(read) = read.take() {
            result = Some(read(state));
        }
    });
    result.expect("a view calls the function that it is given")
}

/// The space in the outbox of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// The outbox accepts the answers of queries.
    Free,
    /// At least [`FULL_BYTES`] wait to be sent, so queries wait too.
    Full,
}

/// The replies of one connection that are not sent yet. It encodes replies into memory; the driver writes
/// them to the socket.
pub trait Outbox {
    /// Adds a reply.
    fn push(&self, reply: &Reply) -> Capacity;
    /// Adds a last message with the reason, and closes the connection when everything is sent.
    fn close(&self, why: &Error);
    /// Stops or resumes reading from the connection. The node reads a connection with a session all the time.
    fn pause_reading(&self, pause: bool);
    /// Returns whether there is room. If not, the driver passes [`Input::Writable`] in as soon as there is.
    fn capacity(&self) -> Capacity;
}

/// A shared outbox is an outbox.
macro_rules! shared_outbox {
    ($($pointer:ident)*) => {$(
        impl<T: Outbox + ?Sized> Outbox for $pointer<T> {
            fn push(&self, reply: &Reply) -> Capacity {
                (**self).push(reply)
            }

            fn close(&self, why: &Error) {
                (**self).close(why);
            }

            fn pause_reading(&self, pause: bool) {
                (**self).pause_reading(pause);
            }

            fn capacity(&self) -> Capacity {
                (**self).capacity()
            }
        }
    )*};
}

shared_outbox! { Arc Rc }

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The time at which the driver calls [`Node::end_turn`] again, at the latest.
    pub wake_at: Now,
    /// Whether the driver sends replies now: see [`Node::take_sends`].
    pub send: bool,
    /// Whether the driver polls for the next event instead of sleeping.
    pub spin: bool,
}

/// A node of the service: its connections, sessions, leases, watches, and the commands for the next log
/// entry.
pub struct Node<O> {
    timing: Timing,
    /// Whether the machine has more than one processor.
    multi_core: bool,
    metrics: Arc<Metrics>,
    clients: Clients<O>,
    leases: Leases,
    rounds: Rounds,
    watches: Watches,
    batches: Batches,
    /// The time of the next check of roles and openings.
    next_beat: Now,
    /// The bug that a test has planted.
    #[cfg(feature = "testing")]
    flaw: Option<crate::testing::Flaw>,
}

impl<O: Outbox> Node<O> {
    /// Creates a node without connections.
    pub fn new(timing: Timing, multi_core: bool, metrics: Arc<Metrics>) -> Self {
        Self {
            timing,
            multi_core,
            metrics,
            clients: Clients::new(),
            leases: Leases::new(timing),
            rounds: Rounds::default(),
            watches: Watches::new(),
            batches: Batches::default(),
            next_beat: Duration::ZERO,
            #[cfg(feature = "testing")]
            flaw: None,
        }
    }

    /// Plants a bug.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_flaw(mut self, flaw: Option<crate::testing::Flaw>) -> Self {
        (self.flaw, self.leases.flaw) = (flaw, flaw);
        self
    }

    /// Admits fewer commands in flight than [`MAX_IN_FLIGHT`], so that a test can reach the bound.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_most_in_flight(mut self, commands: Option<usize>) -> Self {
        self.batches.budget.most_commands = commands;
        self
    }

    /// Handles one event.
    pub fn handle(&mut self, input: Input<O>, cx: &mut Cx<'_>) {
        match input {
            Input::Attached { connection, outbox, half_close } => {
                self.clients.attach(connection, outbox, half_close);
                metrics::set(&self.metrics.connections, self.clients.connections_len());
            }
            Input::Requests { connection, requests } => {
                requests.into_iter().for_each(|request| self.on_request(connection, request, cx));
            }
            Input::ReadFailed { connection, error } => self.clients.close(connection, &error),
            Input::HalfClosed(connection) => {
                if let Some(known) = self.clients.get_mut(connection) {
                    known.is_half_closed = true;
                    self.clients.touch(connection);
                }
            }
            Input::Writable(connection) => self.clients.on_writable(connection),
            Input::Detached(connection) => self.on_detached(connection),
            Input::Applied { id, effects } => self.on_applied(id, effects, cx),
            Input::Early { effects } => effects.into_iter().for_each(|effect| self.on_early(effect, cx)),
            Input::Restored { id } => self.on_restored(id, cx),
            Input::Proposed { batch, results } => self.on_proposed(batch, &results, cx),
            Input::Confirmed { round, result } => self.on_round(round, result, cx),
            Input::KeepAlivesAnswered { call, results } => self.on_keep_alives_answered(call, results),
            Input::KeepAlivesForwarded { call, sessions } => self.on_forwarded(call, sessions, cx),
            Input::Stop => self.clients.close_all(&stopping()),
        }
    }

    /// Ends a turn: runs timers that are due, serves reads, and proposes the queued commands if the flush
    /// policy permits it.
    pub fn end_turn(&mut self, cause: Cause, cx: &mut Cx<'_>) -> Turn {
        // Checked in every turn: under load the driver never sleeps, but leases must still end in time.
        if cx.now >= self.wake_at() {
            self.on_time(cx);
        }
        if self.may_serve(cx.view) {
            self.serve(cx);
        }
        let decision = self.batches.policy.decide(&Situation {
            now: cx.now,
            queued: self.batches.queued(),
            in_flight: self.batches.in_flight(),
            reads_ready: self.has_reads(),
            cause,
            multi_core: self.multi_core,
        });
        if decision.wake_log_writer {
            cx.out.push(Output::WakeLogWriter);
        }
        if decision.propose {
            let (batch, entries) = self.batches.take();
            cx.out.push(Output::Propose { batch, entries });
        }
        metrics::set(&self.metrics.in_flight, self.batches.budget.commands());
        self.start_round(cx);
        Turn { wake_at: self.wake_at(), send: decision.send, spin: decision.spin }
    }

    /// Calls `send` with the outbox of each connection that has replies, in the order of their first reply. It
    /// serves at most [`MAX_PER_TURN`] connections per call, so that other events need not wait for thousands.
    pub fn take_sends(&mut self, mut send: impl FnMut(&O)) {
        if !self.clients.has_replies() {
            return;
        }
        for _ in 0..MAX_PER_TURN {
            if !self.clients.send_next(&mut send) {
                break;
            }
        }
        self.batches.policy.on_sent();
    }

    /// Returns whether the node can go on without an event: replies to send, or reads to serve.
    pub fn has_work(&self, view: &dyn View) -> bool {
        self.clients.has_replies() || self.may_serve(view)
    }

    /// Returns whether a session is connected to this node.
    pub fn has_sessions(&self) -> bool {
        self.clients.sessions_len() > 0
    }

    fn wake_at(&self) -> Now {
        [self.leases.next_tick(), self.rounds.next_start()]
            .into_iter()
            .flatten()
            .fold(self.next_beat, Now::min)
    }

    fn on_time(&mut self, cx: &mut Cx<'_>) {
        if cx.now >= self.next_beat {
            self.check_role(cx);
            self.check_openings(cx.now);
            self.next_beat = cx.now + self.timing.heartbeat;
        }
        for command in self.leases.on_tick(cx.now) {
            if let Command::Expire { timer, term } = command {
                metrics::add(&self.metrics.expiries_total, 1);
                let added = self.batches.add(Origin::Timer { timer, term }, command, Class::Expiry);
                debug_assert!(added.is_ok(), "an expiry is never rejected");
            }
        }
    }

    /// Starts or ends the counting of leases when this node starts or ends leading.
    fn check_role(&mut self, cx: &Cx<'_>) {
        let status = cx.view.status();
        let leads = status.leads().then_some(status.term);
        self.leases.on_status(cx.now, leads, || read_state(cx.view, State::timers));
    }
}

fn stopping() -> Error {
    Error::new(Code::ShuttingDown, "this node stops")
}
