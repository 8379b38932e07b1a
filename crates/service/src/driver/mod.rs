//! The driver: one task that connects the [`Node`] with sockets, clocks and the replica.
//!
//! ```text
//!   connections ---- requests, one group per read ---> driver -- inputs --> node
//!       ^                                             |  <-- outputs --
//!       +------- outbox, one write per turn ----------+---- batches ----> replica
//!                                                     <---- effects, in the order of the log
//! ```
//!
//! **Rules.** The driver decides nothing. In each turn it passes all events to the node and executes the
//! node's outputs in their order. It then writes to the connections that the node names. It never waits for a
//! connection.
//!
//! **Bounds.** The queue of events has [`EVENTS`] places. While it is full, the frontends stop reading.

mod handle;
mod outbox;
pub(crate) mod spin;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use conclave_node::cluster::{ReadError, Status};
use conclave_node::entry::{Batch, Service};
use conclave_node::leases::{KeepAliveResult, Now, Timing};
use conclave_node::node::metrics::Metrics;
use conclave_node::node::{CallId, Cause, Cx, Input, MAX_PER_TURN, Node, Output, View};
use conclave_node::state::{Effect, State};
use conclave_wire::frame::Frames;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot, watch};

use crate::peers::Peers;
use crate::replica::{Deliveries, Delivery, Replica};

use self::handle::Event;
pub(crate) use self::handle::{ConnectionHandle, NodeHandle};
pub use self::outbox::OUTBOX_BYTES;
pub(crate) use self::outbox::Outbox;

/// The most events that wait for the driver. Senders wait while the queue is full.
const EVENTS: usize = 1024;

/// A future of a result for the node, with the kind of its event.
type Pending = BoxFuture<'static, (Cause, Input<Arc<Outbox>>)>;

/// The task that connects a node with the network and the replica.
pub(crate) struct Driver {
    node: Node<Arc<Outbox>>,
    replica: Replica<Service>,
    peers: Arc<Peers>,
    events: mpsc::Receiver<Event>,
    deliveries: Deliveries<Service>,
    /// The start of the node's clock.
    began: Instant,
    /// Batches, rounds and calls to the leader that have no result yet.
    pending: FuturesUnordered<Pending>,
    /// The reply senders of nodes that forwarded keep-alives, by call.
    callers: HashMap<CallId, oneshot::Sender<Vec<KeepAliveResult>>>,
    last_call: CallId,
    /// The outputs of the current turn. Empty between turns; kept only to reuse its memory.
    outputs: Vec<Output>,
    /// Empty between turns; kept only to reuse its memory.
    scratch: Frames,
    /// `true` if no session and no lock-delay exists.
    quiet: watch::Sender<bool>,
}

/// The node's view of the replica.
struct ReplicaView<'a>(&'a Replica<Service>);

impl View for ReplicaView<'_> {
    fn read(&self, read: &mut dyn FnMut(&State)) {
        self.0.peek(|service| read(service.state()));
    }

    fn status(&self) -> Status {
        self.0.status()
    }

    fn cluster_id(&self) -> u128 {
        self.0.identity().cluster
    }

    fn may_be_unsynced(&self) -> bool {
        self.0.may_be_unsynced()
    }
}

impl Driver {
    /// Creates a driver and its handle. The driver does nothing until [`Driver::run`].
    pub(crate) fn new(
        replica: Replica<Service>,
        deliveries: Deliveries<Service>,
        peers: Arc<Peers>,
        timing: Timing,
    ) -> (Self, NodeHandle) {
        let (sender, events) = mpsc::channel(EVENTS);
        let quiet = replica.peek(|service| service.state().is_quiet());
        let metrics = Arc::new(Metrics::default());
        let handle = NodeHandle { metrics: metrics.clone(), sender, next: Arc::new(AtomicU64::new(1)) };
        let driver = Self {
            node: Node::new(timing, spin::is_multi_core(), metrics),
            replica,
            peers,
            events,
            deliveries,
            began: Instant::now(),
            pending: FuturesUnordered::new(),
            callers: HashMap::new(),
            last_call: 0,
            outputs: Vec::new(),
            scratch: Frames::default(),
            quiet: watch::Sender::new(quiet),
        };
        (driver, handle)
    }

    /// Runs until the node is stopped, or until the replica or all handles are dropped.
    pub(crate) async fn run(mut self) {
        let (mut arrived, mut delivered) =
            (Vec::with_capacity(MAX_PER_TURN), Vec::with_capacity(MAX_PER_TURN));
        let (mut wake, mut spins) = (Now::ZERO, false);
        let mut sleep = std::pin::pin!(tokio::time::sleep_until(self.began.into()));
        loop {
            let has_work = self.node.has_work(&ReplicaView(&self.replica));
            let mut cause = Cause::Other;
            tokio::select! {
                biased;
                count = self.deliveries.recv_many(&mut delivered, MAX_PER_TURN) => {
                    if count == 0 {
                        break;
                    }
                    cause = self.on_deliveries(delivered.drain(..).flatten());
                    self.report_quiet();
                }
                count = self.events.recv_many(&mut arrived, MAX_PER_TURN) => {
                    if count == 0 {
                        break;
                    }
                    for event in arrived.drain(..) {
                        if let Some(done) = self.on_event(event) {
                            self.handle(Input::Stop);
                            // The caller may have stopped waiting.
                            let _ = done.send(());
                            return;
                        }
                    }
                    cause = Cause::Work;
                }
                Some((of, input)) = self.pending.next(), if !self.pending.is_empty() => {
                    self.handle(input);
                    cause = of;
                }
                () = tokio::task::yield_now(), if spins || has_work => {
                    if !has_work {
                        thread::yield_now();
                    }
                }
                () = sleep.as_mut() => {}
            }
            let turn = {
                let mut cx = Cx {
                    now: self.began.elapsed(),
                    view: &ReplicaView(&self.replica),
                    out: &mut self.outputs,
                    secret: &mut secret,
                };
                self.node.end_turn(cause, &mut cx)
            };
            self.carry_out();
            if turn.send {
                let scratch = &mut self.scratch;
                self.node.take_sends(|outbox| outbox.flush(scratch));
            }
            spins = turn.spin;
            if wake != turn.wake_at {
                wake = turn.wake_at;
                sleep.as_mut().reset((self.began + wake).into());
            }
        }
        self.handle(Input::Stop);
    }

    /// Returns a watch: whether no session and no lock-delay exists, in the state that this node has applied.
    pub(crate) fn quiet(&self) -> watch::Receiver<bool> {
        self.quiet.subscribe()
    }

    /// Reports whether the state is quiet. Skips reading the state while a session is connected here, because
    /// the state then is not quiet.
    fn report_quiet(&self) {
        if !self.node.has_sessions() || *self.quiet.borrow() {
            let is_quiet = self.replica.peek(|service| service.state().is_quiet());
            self.quiet.send_if_modified(|quiet| std::mem::replace(quiet, is_quiet) != is_quiet);
        }
    }

    fn handle(&mut self, input: Input<Arc<Outbox>>) {
        let mut cx = Cx {
            now: self.began.elapsed(),
            view: &ReplicaView(&self.replica),
            out: &mut self.outputs,
            secret: &mut secret,
        };
        self.node.handle(input, &mut cx);
    }

    fn on_deliveries(&mut self, deliveries: impl Iterator<Item = Delivery<Effect>>) -> Cause {
        let mut cause = Cause::Applied;
        for delivery in deliveries {
            self.handle(match delivery {
                Delivery::Applied { id, effects } => Input::Applied { id, effects },
                Delivery::Restored { id } => Input::Restored { id },
                Delivery::Early { effects } => {
                    cause = Cause::Other;
                    Input::Early { effects }
                }
            });
        }
        cause
    }

    /// Passes an event to the node. For `Stop` it returns the sender that waits for the end instead.
    fn on_event(&mut self, event: Event) -> Option<oneshot::Sender<()>> {
        match event {
            Event::Input(input) => self.handle(input),
            Event::Stop { done } => return Some(done),
            Event::KeepAlives { sessions, results } => {
                self.last_call += 1;
                self.callers.insert(self.last_call, results);
                self.handle(Input::KeepAlivesForwarded { call: self.last_call, sessions });
            }
        }
        None
    }

    /// Executes the outputs of the turn, in their order.
    fn carry_out(&mut self) {
        let mut outputs = std::mem::take(&mut self.outputs);
        for output in outputs.drain(..) {
            match output {
                Output::WakeLogWriter => self.replica.wake_writer(),
                Output::Propose { batch, entries } => {
                    let wall_ms = wall_ms();
                    let entries = entries.into_iter().map(|commands| Batch { wall_ms, commands }).collect();
                    let results = self.replica.propose_all(entries);
                    let input =
                        async move { (Cause::Work, Input::Proposed { batch, results: results.await }) };
                    self.pending.push(Box::pin(input));
                }
                Output::Confirm { round, limit } => {
                    let replica = self.replica.clone();
                    self.pending.push(Box::pin(async move {
                        let confirmed = tokio::time::timeout(limit, replica.confirm()).await;
                        let result = confirmed.unwrap_or(Err(ReadError::Retry));
                        (Cause::Other, Input::Confirmed { round, result })
                    }));
                }
                Output::ForwardKeepAlives { call, to, sessions } => {
                    let (peers, member) =
                        (self.peers.clone(), self.replica.status().membership.nodes.remove(&to));
                    self.pending.push(Box::pin(async move {
                        let results = match member {
                            Some(member) => peers.keep_alive(to, &member, &sessions).await.ok(),
                            None => None,
                        };
                        (Cause::Other, Input::KeepAlivesAnswered { call, results })
                    }));
                }
                Output::AnswerKeepAlives { call, results } => {
                    if let Some(caller) = self.callers.remove(&call) {
                        // An error means that the other node has stopped waiting.
                        drop(caller.send(results));
                    }
                }
            }
        }
        self.outputs = outputs;
    }
}

/// Returns the wall time in milliseconds since 1970. It is shown to people and never compared.
fn wall_ms() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a random number that cannot be guessed; `None` if the system has none.
fn secret() -> Option<u128> {
    let mut bytes = [0; 16];
    let read = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    (read == Ok(16)).then(|| u128::from_be_bytes(bytes))
}
