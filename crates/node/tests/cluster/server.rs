//! A server: the real node, between the simulated network and the model of consensus.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use conclave_core::SessionId;
use conclave_kernel::{Cx, NodeId};
use conclave_node::cluster::ReadError;
use conclave_node::entry::Batch;
use conclave_node::leases::Timing;
use conclave_node::node::{self, BatchId, CallId, Cause, ConnectionId, Input, Node, Output, RoundId};
use conclave_node::state::Command;
use conclave_node::testing::{Entry, Replica};

use crate::bug::Bug;
use crate::consensus::{decode, encode};
use crate::coverage::Situation;
use crate::disk::{Disk, Synced};
use crate::outbox::{Connection, Replies};
use crate::scenario::{Config, Scenario};
use crate::site::{CONSENSUS, Clock, Epoch, Message, Note, Notes, Record, Site, Timer, send_bytes};

/// The longest wait for the leader's results of forwarded keep-alives.
const CALL_LIMIT: Duration = Duration::from_secs(1);
/// The time between two polls of a node that does not sleep.
const POLL: Duration = Duration::from_micros(50);

/// A server.
pub struct Server {
    config: Config,
    clock: Clock,
    epoch: Epoch,
    node: Node<Arc<Replies>>,
    replica: Replica,
    /// True if consensus has received the restart of this server. Messages that arrive before that are meant
    /// for its earlier start.
    has_joined: bool,
    /// The disk of a single node.
    disk: Option<Disk>,
    /// The effects that the node has not handled yet, of entries that its state contains.
    effects: VecDeque<Input<Arc<Replies>>>,
    connections: BTreeMap<ConnectionId, Connection>,
    /// The ends of rounds and calls that have no answer.
    limits: BTreeMap<(Duration, u64), Limit>,
    last_limit: u64,
    /// The servers that forwarded keep-alives, with their numbers of the calls.
    callers: BTreeMap<CallId, (NodeId, Epoch, CallId)>,
    last_call: CallId,
    last_secret: u128,
    /// The outputs of the present turn.
    outputs: Vec<Output>,
    pub notes: Notes,
}

enum Limit {
    Round(RoundId),
    Call(CallId),
}

impl Server {
    /// Creates a server. `disk` is the disk of a single node, which survives the server.
    pub fn new(me: NodeId, clock: Clock, config: Config, disk: Disk) -> Self {
        let bug = config.bug;
        let flaw = bug.and_then(Bug::of_node);
        let timing = Timing { drift_ppm: Bug::assumed_drift_ppm(bug), heartbeat: Duration::from_millis(150) };
        let node = Node::new(timing, config.multi_core, Arc::default());
        let members = config.scenario.servers().map(|server| u64::from(server.0));
        Self {
            config,
            clock,
            epoch: 0,
            node: node.with_flaw(flaw).with_most_in_flight(config.most_in_flight),
            replica: Replica::new(u64::from(me.0), members).with_flaw(flaw),
            has_joined: true,
            disk: (config.scenario == Scenario::Single).then_some(disk),
            effects: VecDeque::new(),
            connections: BTreeMap::new(),
            limits: BTreeMap::new(),
            last_limit: 0,
            callers: BTreeMap::new(),
            last_call: 0,
            last_secret: u128::from(me.0) << 96,
            outputs: Vec::new(),
            notes: Notes::default(),
        }
    }

    pub fn on_start(&mut self, cx: &mut Cx<'_, Site>) {
        self.epoch = cx.incarnation();
        self.last_secret += u128::from(self.epoch) << 64;
        if self.epoch > 0 {
            self.notes.see(Situation::RestartedServer);
            cx.broadcast(Message::Reset);
        }
        if self.disk.is_some() {
            self.start_alone(cx);
        } else if self.epoch > 0 {
            self.has_joined = false;
            cx.send(CONSENSUS, Message::Rejoin { epoch: self.epoch });
        }
        self.end_turn(Cause::Other, cx);
    }

    /// Reads the log from the disk, and begins a term with the commands of a restart.
    fn start_alone(&mut self, cx: &mut Cx<'_, Site>) {
        let Some(mut disk) = self.disk.take() else { return };
        let lost = disk.recover(cx);
        if let Some((lost, kept)) = lost {
            (0..lost).for_each(|_| self.notes.see(Situation::EntryLost));
            (0..kept).for_each(|_| self.notes.see(Situation::EntrySurvived));
        }
        for entry in disk.entries() {
            drop(self.replica.apply::<Arc<Replies>>(entry));
        }
        let is_restart = self.replica.state().applied() > 0;
        let mut entries = vec![disk.elect()];
        if is_restart {
            let fences = conclave_node::state::early_grant::FENCE_GAP;
            let commands = vec![Command::SingleNodeRestarted { fences }];
            entries.push(disk.append(Batch { wall_ms: 0, commands }));
        }
        disk.sync_all().into_iter().for_each(|entry| self.notes.add(Note::Committed(entry)));
        self.replica.on_leader(entries[0].id.term, u64::from(cx.me().0));
        for entry in entries {
            self.replica.apply(entry).into_iter().for_each(|input| self.handle(input, cx));
        }
        self.disk = Some(disk);
    }

    /// Passes one event to the node, then ends the turn.
    pub fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Site>) {
        let cause = match message {
            Message::Connect { .. }
            | Message::Bytes { .. }
            | Message::Closed { .. }
            | Message::Proposed { .. } => Cause::Work,
            Message::Entry(_) => Cause::Applied,
            _ => Cause::Other,
        };
        self.inputs(from, message, cx).into_iter().for_each(|input| self.pass_on(input, cx));
        self.end_turn(cause, cx);
    }

    /// Passes an input to the node, or lets it wait, if the node handles effects late. The state contains an
    /// entry at once. Its effects arrive later, in the order of the log, while rounds and results overtake
    /// them.
    fn pass_on(&mut self, input: Input<Arc<Replies>>, cx: &mut Cx<'_, Site>) {
        let is_effect = matches!(input, Input::Applied { .. } | Input::Early { .. } | Input::Restored { .. });
        if !is_effect || self.config.effects_us == 0 {
            return self.handle(input, cx);
        }
        self.notes.see(Situation::EffectsLate);
        self.effects.push_back(input);
        if self.effects.len() == 1 {
            self.wait_for_effects(cx);
        }
    }

    fn wait_for_effects(&self, cx: &mut Cx<'_, Site>) {
        let wait = Duration::from_micros(1 + u64::from(cx.choose(self.config.effects_us)));
        cx.arm(Timer::Effects, wait..=wait);
    }

    /// Passes on some of the effects that wait.
    fn on_effects(&mut self, cx: &mut Cx<'_, Site>) {
        let count = 1 + cx.choose(u32::try_from(self.effects.len()).expect("few entries"));
        for input in self.effects.drain(..count as usize).collect::<Vec<_>>() {
            self.handle(input, cx);
        }
        if !self.effects.is_empty() {
            self.wait_for_effects(cx);
        }
    }

    fn inputs(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Site>) -> Vec<Input<Arc<Replies>>> {
        match message {
            Message::Connect { connection } => vec![self.attach(from, connection, cx)],
            Message::Bytes { connection, bytes } => match self.connections.get_mut(&connection) {
                Some(known) => known.read(connection, &bytes).into_iter().collect(),
                None => {
                    cx.send(from, Message::Closed { connection });
                    Vec::new()
                }
            },
            Message::Read { connection, bytes } => {
                let known = self.connections.get(&connection);
                let is_awaited = known.is_some_and(|known| known.replies.on_read(bytes));
                is_awaited.then_some(Input::Writable(connection)).into_iter().collect()
            }
            Message::Closed { connection } => {
                self.connections.remove(&connection);
                vec![Input::Detached(connection)]
            }
            Message::Elected { term, leader } => {
                self.replica.on_leader(term, leader);
                Vec::new()
            }
            Message::Entry(record) if self.has_joined => self.replica.apply(entry_of(record)),
            Message::Joined { epoch } => {
                self.has_joined |= epoch == self.epoch;
                Vec::new()
            }
            Message::Replay { entries } if self.has_joined => {
                entries.into_iter().flat_map(|record| self.replica.apply(entry_of(record))).collect()
            }
            Message::Snapshot { id, state } if self.has_joined => {
                self.notes.see(Situation::Restored);
                self.replica.restore(id, &state).expect("consensus encoded it")
            }
            Message::Proposed { epoch, batch, results } if epoch == self.epoch => {
                vec![Input::Proposed { batch, results }]
            }
            Message::Confirmed { epoch, round, result } if epoch == self.epoch => {
                self.replica.confirm(round, result).into_iter().collect()
            }
            Message::Forward { epoch, call, sessions } => {
                self.notes.see(Situation::Forwarded);
                self.last_call += 1;
                self.callers.insert(self.last_call, (from, epoch, call));
                let sessions = sessions.into_iter().map(SessionId).collect();
                vec![Input::KeepAlivesForwarded { call: self.last_call, sessions }]
            }
            Message::Forwarded { epoch, call, results } if epoch == self.epoch => {
                vec![Input::KeepAlivesAnswered { call, results: Some(results) }]
            }
            _ => Vec::new(),
        }
    }

    pub fn on_timer(&mut self, timer: Timer, cx: &mut Cx<'_, Site>) {
        match timer {
            Timer::Sync => self.on_synced(cx),
            Timer::Effects => self.on_effects(cx),
            _ => {}
        }
        let now = self.clock.read(cx.now());
        while let Some(limit) = self.limits.first_entry().filter(|limit| limit.key().0 <= now) {
            let input = match limit.remove() {
                Limit::Round(round) => Input::Confirmed { round, result: Err(ReadError::Retry) },
                Limit::Call(call) => Input::KeepAlivesAnswered { call, results: None },
            };
            self.handle(input, cx);
        }
        let cause = match timer {
            Timer::Sync => Cause::Work,
            Timer::Effects => Cause::Applied,
            _ => Cause::Other,
        };
        self.end_turn(cause, cx);
    }

    /// The disk of a single node has synced: delivers the effects, then the results of the batches.
    fn on_synced(&mut self, cx: &mut Cx<'_, Site>) {
        let Some(disk) = &mut self.disk else { return };
        let Synced { entries, inputs } = disk.on_synced(cx);
        entries.into_iter().for_each(|entry| self.notes.add(Note::Committed(entry)));
        inputs.into_iter().for_each(|input| self.pass_on(input, cx));
    }

    /// A single node writes a batch and applies it before the sync.
    fn write(&mut self, batch: BatchId, entries: Vec<Vec<Command>>, cx: &mut Cx<'_, Site>) {
        let Some(mut disk) = self.disk.take() else { return };
        let mut early = Vec::new();
        for commands in entries {
            let entry = disk.append(Batch { wall_ms: 0, commands });
            let (sent, held) = self.replica.apply_unsynced(entry.clone(), disk.durable_commands());
            early.extend(sent);
            if self.config.bug == Some(Bug::RepliesBeforeSync) {
                self.handle(Input::Applied { id: entry.id, effects: held }, cx);
            } else {
                disk.hold(entry.id, held);
            }
        }
        disk.write(batch, cx);
        self.disk = Some(disk);
        if !early.is_empty() {
            self.notes.see(Situation::EarlyGrant);
            self.pass_on(Input::Early { effects: early }, cx);
        }
    }

    fn attach(
        &mut self,
        client: NodeId,
        connection: ConnectionId,
        cx: &mut Cx<'_, Site>,
    ) -> Input<Arc<Replies>> {
        let known = Connection::new(client, self.config.full_bytes);
        let outbox = known.replies.clone();
        self.connections.insert(connection, known);
        cx.send(client, Message::Accepted { connection });
        Input::Attached { connection, outbox, half_close: false }
    }

    fn handle(&mut self, input: Input<Arc<Replies>>, cx: &Cx<'_, Site>) {
        self.with_node(cx, |node, cx| node.handle(input, cx));
    }

    fn with_node<R>(
        &mut self,
        cx: &Cx<'_, Site>,
        act: impl FnOnce(&mut Node<Arc<Replies>>, &mut node::Cx<'_>) -> R,
    ) -> R {
        let secret = &mut self.last_secret;
        let mut secret = || {
            *secret += 1;
            Some(*secret)
        };
        let now = self.clock.read(cx.now());
        let mut cx = node::Cx { now, view: &self.replica, out: &mut self.outputs, secret: &mut secret };
        act(&mut self.node, &mut cx)
    }

    /// Ends the turn as the driver does: carries out the outputs, sends the replies, and sets the alarm.
    fn end_turn(&mut self, mut cause: Cause, cx: &mut Cx<'_, Site>) {
        let turn = loop {
            let turn = self.with_node(cx, |node, cx| node.end_turn(cause, cx));
            self.carry_out(cx);
            if turn.send {
                self.node.take_sends(|replies| replies.name());
            }
            self.send(cx);
            if !(self.node.has_work(&self.replica) || self.read_held(cx)) {
                break turn;
            }
            cause = Cause::Other;
        };
        self.check_sessions();
        let now = self.clock.read(cx.now());
        let mut wake = turn.wake_at;
        if turn.spin {
            wake = wake.min(now + POLL);
        }
        if let Some(((limit, _), _)) = self.limits.first_key_value() {
            wake = wake.min(*limit);
        }
        let wait = self.clock.wait(cx.now(), wake);
        cx.arm(Timer::Turn, wait..=wait);
        self.notes.emit(cx);
    }

    /// Checks that each session has one connection. The node closes the old one before it sends `Resumed`.
    fn check_sessions(&mut self) {
        let mut sessions = BTreeSet::new();
        for session in self.connections.values().filter_map(|connection| connection.replies.session()) {
            if !sessions.insert(session) {
                self.notes.add(Note::Wrong(format!("session {session} has two open connections")));
            }
        }
    }

    fn carry_out(&mut self, cx: &mut Cx<'_, Site>) {
        let (now, epoch) = (self.clock.read(cx.now()), self.epoch);
        for output in std::mem::take(&mut self.outputs) {
            match output {
                Output::Propose { batch, entries } if self.disk.is_some() => self.write(batch, entries, cx),
                Output::Propose { batch, entries } => {
                    let encode = |commands| encode(&Batch { wall_ms: 0, commands });
                    let entries = entries.into_iter().map(encode).collect();
                    cx.send(CONSENSUS, Message::Propose { epoch, batch, entries });
                }
                Output::Confirm { round, limit } => {
                    self.limit(now + limit, Limit::Round(round));
                    match &self.disk {
                        Some(disk) => {
                            let result = Ok(disk.last());
                            cx.send(cx.me(), Message::Confirmed { epoch, round, result });
                        }
                        None => cx.send(CONSENSUS, Message::Confirm { epoch, round }),
                    }
                }
                Output::ForwardKeepAlives { call, to, sessions } => {
                    self.limit(now + CALL_LIMIT, Limit::Call(call));
                    let to = NodeId(u32::try_from(to).expect("a site"));
                    let sessions = sessions.into_iter().map(|session| session.0).collect();
                    cx.send(to, Message::Forward { epoch, call, sessions });
                }
                Output::AnswerKeepAlives { call, results } => {
                    if let Some((caller, epoch, call)) = self.callers.remove(&call) {
                        cx.send(caller, Message::Forwarded { epoch, call, results });
                    }
                }
                Output::WakeLogWriter => {}
            }
        }
    }

    fn limit(&mut self, at: Duration, limit: Limit) {
        self.last_limit += 1;
        self.limits.insert((at, self.last_limit), limit);
    }

    /// Sends the replies, and ends the connections that the node has closed or that break.
    fn send(&mut self, cx: &mut Cx<'_, Site>) {
        let mut ended = Vec::new();
        for (id, connection) in &self.connections {
            let bytes = connection.replies.take();
            let breaks = !send_bytes(&self.config, connection.client, *id, bytes, cx);
            if breaks {
                self.notes.see(Situation::ConnectionBroken);
            }
            if breaks || connection.replies.is_closed() {
                ended.push(*id);
            }
        }
        for id in ended {
            if let Some(connection) = self.connections.remove(&id) {
                self.see(&connection);
                cx.send(connection.client, Message::Closed { connection: id });
            }
            self.handle(Input::Detached(id), cx);
        }
    }

    fn see(&mut self, connection: &Connection) {
        let (was_full, has_overflowed, _) = connection.replies.situation();
        if was_full {
            self.notes.see(Situation::OutboxFull);
        }
        if has_overflowed {
            self.notes.see(Situation::OutboxOverflowed);
        }
    }

    /// Passes on requests that arrived while reading was paused. Returns whether there were any.
    fn read_held(&mut self, cx: &Cx<'_, Site>) -> bool {
        let mut inputs = Vec::new();
        for (id, connection) in &mut self.connections {
            if connection.replies.situation().2 {
                self.notes.see(Situation::ReadingPaused);
            }
            inputs.extend(connection.read(*id, &[]));
        }
        let has_read = !inputs.is_empty();
        inputs.into_iter().for_each(|input| self.handle(input, cx));
        has_read
    }
}

fn entry_of((id, batch): Record) -> Entry {
    Entry { id, batch: batch.map(|batch| decode(&batch)) }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}
