//! The hub: where connections, sessions and the replicated state meet on one node.
//!
//! ```text
//!   connections ---- asks, a batch a read ----> hub ---- commands ----> replica
//!       ^                                        |  <--- effects, in the order of the log
//!       +--------- outbox, one write a flush ----+
//! ```
//!
//! **Intuition.** One task owns all tables, so there is no lock to hold and no order to get wrong: whatever is told to a
//! session is told in the order of the log. It never waits for anybody: asks come in batches, proposals go out in
//! batches, answers are put into outboxes, and each connection is written to once however many answers it gets.
//!
//! **Rules.**
//! - Keep-alives, linearizable reads, watches and resumed sessions wait for a *round*: a quorum confirms the leader. A round
//!   serves only what came before it began; what comes meanwhile is in the next one.
//! - What a client sends behind an open or a resume waits for it: nobody needs a round trip just to begin.
//! - A session is on one connection; resumed elsewhere, it leaves the other with a goodbye.
//!
//! **The trap.** A round may be confirmed by *another* leader, when this node was deposed meanwhile: then the lease that it
//! extended here is worth nothing. So a keep-alive is answered only if the round was of the term in which it was counted.
//!
//! **Bounds.** [`MAX_IN_FLIGHT`] proposals of [`MAX_BYTES`], and [`MAX_WAITING`] that wait for a round, of which one connection has its
//! share ([`MAX_WAITING_EACH`]); [`MAX_BEHIND`] queries of a connection that wait until it has read: beyond them `overloaded`,
//! which is definite. For its bytes nothing is refused that lets go of something. Of keep-alives only the newest of a connection
//! waits, which is no reason to refuse it. [`MAX_PARKED`] asks behind an open: beyond them the connection ends; behind
//! [`PARKED_BYTES`] of them it is not read for a while. The queue towards the hub is bounded; when it is full, connections are not
//! read.

mod connections;
mod door;
mod effects;
mod gathering;
mod rounds;
#[cfg(test)]
pub(super) mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use conclave_api::proto::frame::Frames;
use conclave_api::{Code, Error, SessionId};
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, watch};

use super::Peers;
use super::metrics::{self, Metrics};
use crate::awake;
use crate::lease::{LeaseKeeper, Now, Timing};
use crate::machine::{Service, weight};
use crate::peers;
use crate::replica::{Deliveries, Delivery, Replica};
use crate::state::Command;
use crate::state::watch::Watchers;
use connections::Connection;
pub(crate) use door::{ConnectionId, Door, Inbound, Link};
use effects::{Origin, Proposed};
use gathering::Gathering;
use rounds::{Forwarded, Read, Round, Waiting, confirmed};

/// Proposals that may be on their way.
pub const MAX_IN_FLIGHT: usize = 16 * 1024;
/// What they, and what is parked on all connections, may weigh in bytes; beyond that, only what lets go is taken. All of it may be
/// in one flush, which goes to the leader in one piece.
pub const MAX_BYTES: usize = 32 * 1024 * 1024;
const _: () = assert!(2 * MAX_BYTES <= peers::MAX_BYTES);
/// Reads and watches that may wait for a round.
pub const MAX_WAITING: usize = 64 * 1024;
/// Those of one connection: enough for all the watches and all the queries that a client may have when it resumes.
pub const MAX_WAITING_EACH: usize = 8 * 1024;
/// Queries of one connection that may wait until it has read the answers to others.
pub const MAX_BEHIND: usize = 1024;
/// Asks that may wait for a session to be opened or resumed.
pub const MAX_PARKED: usize = 1024;
/// Behind so many bytes of them nothing more is read from the connection until there is a session.
const PARKED_BYTES: usize = 1024 * 1024;
/// Batches of asks that may wait for the hub.
const INBOUND: usize = 1024;
/// How long the hub stays awake after it had something to do.
const AWAKE: Duration = Duration::from_micros(200);
/// After so many commands a snapshot is taken: the replica counts entries, and an entry may have many commands, all of which
/// would be applied again at the next start.
const SNAPSHOT_COMMANDS: u64 = 400_000;
/// How many handfuls and batches are handled before answers are flushed, to how many connections at a time, and how much of what
/// waited for a round is served at a time.
const AT_ONCE: usize = 128;

/// When what is in the outboxes is sent.
#[derive(PartialEq)]
enum Answers {
    Now,
    /// What was applied may be what the next flush waits for. That is known in a moment; then the disk works while answers are
    /// sent, which takes as long as a sync.
    AfterProposing,
}

/// See the module.
pub(crate) struct Hub {
    replica: Replica<Service>,
    peers: Arc<Peers>,
    timing: Timing,
    metrics: Arc<Metrics>,
    inbound: mpsc::Receiver<Inbound>,
    deliveries: Deliveries<Service>,
    began: Instant,
    connections: HashMap<ConnectionId, Connection>,
    sessions: HashMap<SessionId, ConnectionId>,
    /// Who waits for a session to be opened, by its secret, and since when.
    opening: HashMap<u128, (ConnectionId, Now)>,
    /// Connections with something new in the outbox: first those that were granted something, since names are idle until
    /// their new holders hear of it.
    granted: VecDeque<ConnectionId>,
    touched: VecDeque<ConnectionId>,
    /// Connections whose queries have waited for room in the outbox, and may go on.
    drained: VecDeque<ConnectionId>,
    /// Empty between uses: only its room is kept.
    spare: Frames,
    watchers: Watchers,
    keeper: LeaseKeeper,
    /// The term of the last entry applied.
    applied_term: u64,
    /// Commands for the next flush.
    commands: Vec<(Origin, Command)>,
    gathering: Gathering,
    /// Among the commands is one of an heir: it does not wait for the flush that is on its way.
    is_urgent: bool,
    in_flight: usize,
    /// What weighs upon [`MAX_BYTES`]: commands for the next flush, what is in flight, what is parked.
    bytes: usize,
    proposals: FuturesUnordered<BoxFuture<'static, Proposed>>,
    /// What waits for the next round.
    waiting: Vec<Waiting>,
    /// Connections with a keep-alive for the next round.
    alive: Vec<ConnectionId>,
    round: Option<Round>,
    /// What a round has confirmed, and is not served yet.
    confirmed: VecDeque<Read>,
    /// No round before this.
    next_round: Now,
    next_beat: Now,
    /// How many commands were applied when a snapshot was last asked for.
    snapshot_at: u64,
    /// Keep-alives on their way to the leader.
    forwards: FuturesUnordered<BoxFuture<'static, Forwarded>>,
    /// Whether no session and no lock-delay exists.
    quiet: watch::Sender<bool>,
}

impl Hub {
    /// A hub and its door.
    pub(crate) fn new(
        replica: Replica<Service>,
        deliveries: Deliveries<Service>,
        peers: Arc<Peers>,
        timing: Timing,
    ) -> (Self, Door) {
        let (sender, inbound) = mpsc::channel(INBOUND);
        let quiet = replica.peek(|service| service.state().is_quiet());
        let metrics = Arc::new(Metrics::default());
        let door = Door { metrics: metrics.clone(), sender, next: Arc::new(AtomicU64::new(1)) };
        let hub = Self {
            replica,
            peers,
            timing,
            metrics,
            inbound,
            deliveries,
            began: Instant::now(),
            connections: HashMap::new(),
            sessions: HashMap::new(),
            opening: HashMap::new(),
            granted: VecDeque::new(),
            touched: VecDeque::new(),
            drained: VecDeque::new(),
            spare: Frames::default(),
            watchers: Watchers::new(),
            keeper: LeaseKeeper::new(timing),
            applied_term: 0,
            commands: Vec::new(),
            gathering: Gathering::default(),
            is_urgent: false,
            in_flight: 0,
            bytes: 0,
            proposals: FuturesUnordered::new(),
            waiting: Vec::new(),
            alive: Vec::new(),
            round: None,
            confirmed: VecDeque::new(),
            next_round: Duration::ZERO,
            next_beat: Duration::ZERO,
            snapshot_at: 0,
            forwards: FuturesUnordered::new(),
            quiet: watch::Sender::new(quiet),
        };
        (hub, door)
    }

    /// Works until it is stopped, or the replica or all doors are gone.
    pub(crate) async fn run(mut self) {
        let (mut arrived, mut delivered) = (Vec::with_capacity(AT_ONCE), Vec::with_capacity(AT_ONCE));
        let (mut wake, mut now, mut awake_until) = (Now::ZERO, Now::ZERO, Now::ZERO);
        let mut sleep = std::pin::pin!(tokio::time::sleep_until(self.began.into()));
        loop {
            let next_wake = self.next_wake();
            if wake != next_wake {
                wake = next_wake;
                sleep.as_mut().reset((self.began + wake).into());
            }
            let awake = self.gathering.is_waiting() || now < awake_until;
            let (mut is_asked, mut answers) = (false, Answers::Now);
            tokio::select! {
                biased;
                count = self.deliveries.recv_many(&mut delivered, AT_ONCE) => {
                    if count == 0 {
                        break;
                    }
                    let is_foregone =
                        delivered.iter().flatten().any(|delivery| matches!(delivery, Delivery::Foregone { .. }));
                    delivered.drain(..).flatten().for_each(|delivery| self.on_delivery(delivery));
                    self.report_quiet();
                    if !is_foregone && !self.proposals.is_empty() && !self.commands.is_empty() {
                        answers = Answers::AfterProposing;
                    }
                }
                count = self.inbound.recv_many(&mut arrived, AT_ONCE) => {
                    if count == 0 {
                        break;
                    }
                    for inbound in arrived.drain(..) {
                        if let Inbound::Stop { done } = inbound {
                            self.goodbye();
                            // Whoever asked and did not wait does not want to know.
                            let _ = done.send(());
                            return;
                        }
                        self.on_inbound(inbound);
                    }
                    is_asked = true;
                }
                Some(proposed) = self.proposals.next(), if !self.proposals.is_empty() => {
                    self.on_proposals(proposed);
                    is_asked = true;
                }
                result = confirmed(&mut self.round), if self.round.is_some() => self.on_round(result),
                Some((alive, kept)) = self.forwards.next(), if !self.forwards.is_empty() => {
                    self.on_forwarded(alive, kept);
                }
                () = tokio::task::yield_now(), if awake || self.has_answers() => {
                    if !self.has_answers() {
                        thread::yield_now();
                    }
                }
                () = sleep.as_mut() => {}
            }
            // Turns are many: the clock is looked at once in each.
            now = self.now();
            // Whoever was answered often asks again at once, and a thread that sleeps takes longer to wake than that: look
            // again and again for a while.
            if is_asked && awake::is_worth_it() {
                awake_until = now + AWAKE;
            }
            // Not a branch of its own: under load there is always something else to do, and leases must end all the same.
            if now >= wake {
                self.on_time(now);
            }
            self.serve();
            self.propose(now);
            self.begin_round();
            if answers == Answers::Now {
                self.flush();
            }
        }
        self.goodbye();
    }

    /// Whether no session and no lock-delay exists, as of the entries that this node has applied.
    pub(crate) fn quiet(&self) -> watch::Receiver<bool> {
        self.quiet.subscribe()
    }

    /// Reads the state only if the answer may have changed: a session that is connected here exists in the
    /// state.
    fn report_quiet(&self) {
        if self.sessions.is_empty() || *self.quiet.borrow() {
            let is_quiet = self.replica.peek(|service| service.state().is_quiet());
            self.quiet.send_if_modified(|quiet| std::mem::replace(quiet, is_quiet) != is_quiet);
        }
    }

    fn now(&self) -> Now {
        self.began.elapsed()
    }

    fn next_wake(&self) -> Now {
        let round = (self.wants_round() && self.round.is_none()).then_some(self.next_round);
        [self.keeper.next_tick(), round].into_iter().flatten().fold(self.next_beat, Now::min)
    }

    fn on_time(&mut self, now: Now) {
        if now >= self.next_beat {
            self.check_role(now);
            self.check_snapshot();
            self.check_openings(now);
            self.next_beat = now + self.timing.heartbeat;
        }
        for command in self.keeper.on_tick(now) {
            if let Command::Expire { timer, term } = command {
                metrics::add(&self.metrics.expiries_total, 1);
                self.add(Origin::Timer { timer, term }, command);
            }
        }
    }

    /// A command for the next flush.
    fn add(&mut self, origin: Origin, command: Command) {
        self.bytes += weight(&command);
        self.commands.push((origin, command));
    }

    fn check_snapshot(&mut self) {
        let (applied, restored) =
            self.replica.peek(|service| (service.state().applied(), service.restored()));
        if applied >= self.snapshot_at.max(restored) + SNAPSHOT_COMMANDS {
            self.snapshot_at = applied;
            let replica = self.replica.clone();
            tokio::spawn(async move {
                // A replica that has stopped needs none.
                let _ = replica.snapshot().await;
            });
        }
    }

    /// Leases are kept by the leader, from the first entry of its own term on.
    fn check_role(&mut self, now: Now) {
        let status = self.replica.status();
        let leads = status.leads().then_some(status.term);
        if self.keeper.term() == leads {
            return;
        }
        match leads {
            Some(term) if term == self.applied_term => {
                let timers = self.replica.peek(|service| service.state().timers());
                self.keeper.on_leading(now, term, timers);
            }
            _ => self.keeper.on_following(),
        }
    }
}

fn overloaded() -> Error {
    Error::new(Code::Overloaded, "this node has the most requests in flight that it allows")
}

fn stopping() -> Error {
    Error::new(Code::ShuttingDown, "this node stops")
}
