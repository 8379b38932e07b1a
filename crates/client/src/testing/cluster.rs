//! A cluster in memory: real nodes over the model of consensus.
//!
//! **Intuition.** The nodes are those of the service. Consensus is one log in memory: an entry that a node
//! proposes reaches all nodes at once. So the cluster needs no network, no disk and no clock of its own. The
//! caller passes the time with each call.
//!
//! **Elections.** An election takes 1,050 to 1,400 ms, as in the service. Meanwhile no quorum confirms a
//! leader. During the election half of the proposals are rejected. The outcome of the others is unknown: half
//! of these are lost, and half are appended after the election.
//!
//! **Bounds.** At most [`UNDECIDED_MAX`] entries wait for the end of an election; further proposals are
//! rejected.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use conclave_core::SessionId;
use conclave_node::cluster::{LogId, NodeId, ProposeError, ReadError};
use conclave_node::entry::Batch;
use conclave_node::leases::{Now, Timing};
use conclave_node::node::{BatchId, CallId, Cause, Cx, Input, Node, Output, RoundId};
use conclave_node::state::{Command, TimerId};
use conclave_node::testing::{Consensus, Entry, Replica};

use super::outbox::Outbox;
use super::prng::Prng;

/// The number of nodes.
pub(super) const NODES: usize = 3;
/// The duration of an election.
const ELECTION: RangeInclusive<Duration> = Duration::from_millis(1_050)..=Duration::from_millis(1_400);
/// The most entries that wait for the end of an election. Further proposals are rejected.
const UNDECIDED_MAX: usize = 64;
/// The shortest sleep of a node that has nothing to do. A timer that stays due does not keep the cluster
/// busy.
const SLEEP_MIN: Duration = Duration::from_millis(1);
/// The maximum number of turns of one [`Cluster::run`]. At the limit it returns, and the caller calls it
/// again at once.
const TURNS_MAX: usize = 1_000;

/// The input of a node.
pub(super) type NodeInput = Input<Arc<Outbox>>;

/// The nodes, and the log on which they have agreed.
pub(super) struct Cluster {
    nodes: Vec<Site>,
    log: Consensus,
    /// The node that leads, or led before the present election.
    leader: usize,
    /// The end of the election.
    election: Option<Now>,
    /// The entries whose fate the election decides.
    undecided: Vec<Vec<Command>>,
    /// The nodes that forwarded keep-alives, with their numbers of the calls.
    callers: BTreeMap<CallId, (usize, CallId)>,
    last_call: CallId,
    last_secret: u128,
    prng: Prng,
    /// The range from which the delay of each reply is drawn.
    delay: RangeInclusive<Duration>,
}

/// One node.
struct Site {
    node: Node<Arc<Outbox>>,
    replica: Replica,
    inputs: VecDeque<NodeInput>,
    /// The time of its next turn.
    wake_at: Now,
}

impl Site {
    fn has_work(&self, now: Now) -> bool {
        !self.inputs.is_empty() || self.wake_at <= now || self.node.has_work(&self.replica)
    }
}

impl Cluster {
    /// Creates a cluster with a leader.
    pub(super) fn new(seed: u64) -> Self {
        let mut prng = Prng::new(seed);
        let ids = || (0..NODES).map(id_of);
        let site = |id| Site {
            node: node(),
            replica: Replica::new(id, ids()),
            inputs: VecDeque::new(),
            wake_at: Duration::ZERO,
        };
        let mut cluster = Self {
            nodes: ids().map(site).collect(),
            log: Consensus::default(),
            leader: prng.below(NODES as u64) as usize,
            election: None,
            undecided: Vec::new(),
            callers: BTreeMap::new(),
            last_call: 0,
            last_secret: u128::from(seed) << 64,
            prng,
            delay: Duration::ZERO..=Duration::ZERO,
        };
        cluster.end_election();
        cluster
    }

    /// Adds an input of a node.
    pub(super) fn input(&mut self, node: usize, input: NodeInput) {
        self.nodes[node].inputs.push_back(input);
    }

    /// Runs the nodes until none has anything to do at `now`. Returns the time of the next call.
    pub(super) fn run(&mut self, now: Now) -> Now {
        if self.election.is_some_and(|end| end <= now) {
            self.end_election();
        }
        for _ in 0..TURNS_MAX {
            let Some(next) = self.nodes.iter().position(|site| site.has_work(now)) else {
                return self.nodes.iter().map(|site| site.wake_at).chain(self.election).min().unwrap_or(now);
            };
            self.turn(next, now);
        }
        now
    }

    /// Draws a node.
    pub(super) fn draw_node(&mut self) -> usize {
        self.prng.below(NODES as u64) as usize
    }

    /// Draws the delay of a reply.
    pub(super) fn draw_delay(&mut self) -> Duration {
        self.prng.within(&self.delay)
    }

    /// Sets the range from which the delay of each reply is drawn.
    pub(super) fn delay_replies(&mut self, delay: RangeInclusive<Duration>) {
        self.delay = delay;
    }

    /// Begins an election, which another node wins.
    pub(super) fn begin_election(&mut self, now: Now) {
        self.leader = (self.leader + 1) % NODES;
        self.election = Some(now + self.prng.within(&ELECTION));
    }

    /// Restarts every node. The log stays.
    pub(super) fn restart(&mut self, now: Now) {
        for site in &mut self.nodes {
            (site.node, site.wake_at) = (node(), now);
            site.inputs.clear();
        }
        self.callers.clear();
        self.undecided.clear();
        self.begin_election(now);
    }

    /// Ends a session as if its lease had run out. An election ends first. Returns `false` if there is no
    /// such session.
    pub(super) fn expire(&mut self, session: SessionId) -> bool {
        if self.election.is_some() {
            self.end_election();
        }
        let timers = self.nodes[self.leader].replica.state().timers();
        let is_lease =
            |timer: &TimerId| matches!(timer, TimerId::Lease { session: of, .. } if *of == session);
        let Some(timer) = timers.into_iter().map(|(timer, _)| timer).find(is_lease) else { return false };
        self.append(Duration::ZERO, vec![Command::Expire { timer, term: self.log.last().term }]);
        true
    }

    fn end_election(&mut self) {
        self.election = None;
        let entry = self.log.elect();
        for site in &mut self.nodes {
            site.replica.on_leader(entry.id.term, id_of(self.leader));
        }
        self.publish(&entry);
        for commands in std::mem::take(&mut self.undecided) {
            self.append(Duration::ZERO, commands);
        }
    }

    /// Passes the inputs to a node, and carries out its outputs.
    fn turn(&mut self, at: usize, now: Now) {
        let mut outputs = Vec::new();
        let Site { node, replica, inputs, wake_at } = &mut self.nodes[at];
        let mut secret = || {
            self.last_secret += 1;
            Some(self.last_secret)
        };
        let mut cx = Cx { now, view: replica, out: &mut outputs, secret: &mut secret };
        for input in inputs.drain(..) {
            node.handle(input, &mut cx);
        }
        let turn = node.end_turn(Cause::Other, &mut cx);
        *wake_at = turn.wake_at.max(now + SLEEP_MIN);
        if turn.send {
            node.take_sends(|outbox| outbox.send(now + self.prng.within(&self.delay)));
        }
        outputs.into_iter().for_each(|output| self.carry_out(at, now, output));
    }

    fn carry_out(&mut self, from: usize, now: Now, output: Output) {
        match output {
            Output::Propose { batch, entries } => self.propose(from, now, batch, entries),
            Output::Confirm { round, .. } => self.confirm(from, round),
            Output::ForwardKeepAlives { call, to, sessions } => {
                self.last_call += 1;
                self.callers.insert(self.last_call, (from, call));
                let to = (0..NODES).find(|at| id_of(*at) == to).unwrap_or(self.leader);
                self.input(to, Input::KeepAlivesForwarded { call: self.last_call, sessions });
            }
            Output::AnswerKeepAlives { call, results } => {
                if let Some((caller, call)) = self.callers.remove(&call) {
                    self.input(caller, Input::KeepAlivesAnswered { call, results: Some(results) });
                }
            }
            Output::WakeLogWriter => {}
        }
    }

    fn propose(&mut self, from: usize, now: Now, batch: BatchId, entries: Vec<Vec<Command>>) {
        let results = entries.into_iter().map(|commands| self.propose_one(now, commands)).collect();
        self.input(from, Input::Proposed { batch, results });
    }

    fn propose_one(&mut self, now: Now, commands: Vec<Command>) -> Result<LogId, ProposeError> {
        if self.election.is_none() {
            return Ok(self.append(now, commands));
        }
        match self.prng.below(4) {
            0 => Err(ProposeError::Unknown),
            1 if self.undecided.len() < UNDECIDED_MAX => {
                self.undecided.push(commands);
                Err(ProposeError::Unknown)
            }
            _ => Err(ProposeError::Retry),
        }
    }

    fn confirm(&mut self, from: usize, round: RoundId) {
        let result = if self.election.is_some() { Err(ReadError::Retry) } else { Ok(self.log.last()) };
        let Site { replica, inputs, .. } = &mut self.nodes[from];
        inputs.extend(replica.confirm(round, result));
    }

    fn append(&mut self, now: Now, commands: Vec<Command>) -> LogId {
        let wall_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let entry = self.log.append(Batch { wall_ms, commands });
        self.publish(&entry);
        entry.id
    }

    fn publish(&mut self, entry: &Entry) {
        for Site { replica, inputs, .. } in &mut self.nodes {
            inputs.extend(replica.apply(entry.clone()));
        }
    }
}

/// Returns the name at which clients reach a node.
pub(super) fn address(node: usize) -> String {
    // The same as in the membership, which the service sends to its clients.
    format!("node-{}", id_of(node))
}

fn id_of(node: usize) -> NodeId {
    node as NodeId + 1
}

fn node() -> Node<Arc<Outbox>> {
    // A node on one processor delays nothing, and never polls.
    Node::new(Timing::default(), false, Arc::default())
}
