//! The site that models consensus: it appends proposals, loses some, and sends every entry to every server in
//! order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use conclave_kernel::{Cx, NodeId};
use conclave_node::cluster::{LogId, ProposeError, ReadError};
use conclave_node::entry::{Batch, Service};
use conclave_node::node::BatchId;
use conclave_node::state::Command;
use conclave_node::testing::{Consensus, Entry};

use crate::bug::Bug;
use crate::coverage::Situation;
use crate::scenario::Config;
use crate::site::{Epoch, Message, Note, Notes, Record, Script, Site, Timer};

/// The longest time for which a proposal is held up on its way to the leader.
const MAX_DELAY_MS: u32 = 2_500;

/// The site that models consensus.
#[derive(Debug)]
pub struct Order {
    config: Config,
    log: Consensus,
    leader: Option<NodeId>,
    /// The whole log, for servers that restart.
    records: Vec<Record>,
    /// The state of the whole log, for snapshots.
    service: Service,
    /// The servers that get no entries.
    lagging: BTreeSet<NodeId>,
    /// The proposals that are held up, by the time at which they are appended.
    delayed: BTreeMap<(Duration, u64), Proposal>,
    last_delayed: u64,
    pub notes: Notes,
}

#[derive(Debug)]
struct Proposal {
    from: NodeId,
    epoch: Epoch,
    batch: BatchId,
    entries: Vec<Batch>,
    /// Whether the server gets the results when the entries are appended. If not, it has got `Unknown`
    /// before.
    replies: bool,
}

/// The fate of a proposal.
enum Fate {
    Appended,
    /// Not appended; the server gets an error.
    Rejected,
    /// Not appended; the server gets `Unknown`.
    Lost,
    /// Appended; the server gets `Unknown`.
    AppendedUnknown,
    /// Appended later.
    Delayed,
    /// Appended later; the server gets `Unknown` before that.
    DelayedUnknown,
}

impl Fate {
    fn draw(cx: &mut Cx<'_, Site>) -> Self {
        match cx.choose(64) {
            0 => Self::Rejected,
            1 => Self::Lost,
            2 => Self::AppendedUnknown,
            3..=5 => Self::Delayed,
            6 | 7 => Self::DelayedUnknown,
            _ => Self::Appended,
        }
    }
}

impl Order {
    pub fn new(config: Config) -> Self {
        let mut service = Service::new();
        service.plant(config.bug.and_then(Bug::of_node));
        Self {
            config,
            log: Consensus::default(),
            leader: None,
            records: Vec::new(),
            service,
            lagging: BTreeSet::new(),
            delayed: BTreeMap::new(),
            last_delayed: 0,
            notes: Notes::default(),
        }
    }

    pub fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Site>) {
        match message {
            Message::Propose { epoch, batch, entries } => {
                let entries = entries.iter().map(|entry| decode(entry)).collect();
                self.on_proposal(Proposal { from, epoch, batch, entries, replies: true }, cx);
            }
            Message::Confirm { epoch, round } => {
                // A quorum follows the leader of this moment, or does not answer.
                let fails = !self.is_healed(cx) && cx.choose(32) == 0;
                let result = if fails {
                    self.notes.see(Situation::RoundFailed);
                    Err(ReadError::Retry)
                } else {
                    Ok(self.log.last())
                };
                cx.send(from, Message::Confirmed { epoch, round, result });
            }
            Message::Rejoin { epoch } => self.on_rejoin(from, epoch, cx),
            _ => {}
        }
        self.notes.emit(cx);
    }

    pub fn on_command(&mut self, script: Script, cx: &mut Cx<'_, Site>) {
        match script {
            Script::Elect(leader) => self.elect(leader, cx),
            Script::Lag(server) => _ = self.lagging.insert(server),
            Script::Jump(server) if self.lagging.remove(&server) => self.send_snapshot(server, cx),
            Script::Jump(_) | Script::Move(_) => {}
        }
        self.notes.emit(cx);
    }

    /// Appends the proposals whose delay is over.
    pub fn on_timer(&mut self, cx: &mut Cx<'_, Site>) {
        let now = Duration::from_nanos(cx.now().0);
        while let Some(entry) = self.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
            let proposal = entry.remove();
            self.append(proposal, cx);
        }
        self.arm(cx);
        self.notes.emit(cx);
    }

    fn is_healed(&self, cx: &Cx<'_, Site>) -> bool {
        self.config.scenario.is_healed(cx.now())
    }

    /// Elects a leader. Its term begins with an empty entry.
    fn elect(&mut self, leader: NodeId, cx: &mut Cx<'_, Site>) {
        let entry = self.log.elect();
        self.leader = Some(leader);
        for server in self.config.scenario.servers() {
            self.send_leader(server, cx);
        }
        self.notes.add(Note::Elected);
        self.publish(entry, cx);
    }

    fn send_leader(&self, server: NodeId, cx: &mut Cx<'_, Site>) {
        if let Some(leader) = self.leader {
            let message = Message::Elected { term: self.log.last().term, leader: u64::from(leader.0) };
            cx.send(server, message);
        }
    }

    /// A server has lost its memory. A leader that restarts stands for election again.
    fn on_rejoin(&mut self, server: NodeId, epoch: Epoch, cx: &mut Cx<'_, Site>) {
        self.lagging.remove(&server);
        cx.send(server, Message::Joined { epoch });
        self.send_leader(server, cx);
        if cx.choose(2) == 0 {
            cx.send(server, Message::Replay { entries: self.records.clone() });
        } else {
            self.send_snapshot(server, cx);
        }
        if self.leader == Some(server) {
            let next = self.config.scenario.server(cx.choose(3));
            self.elect(next, cx);
        }
    }

    fn send_snapshot(&self, server: NodeId, cx: &mut Cx<'_, Site>) {
        let (id, state) = (self.log.last(), self.service.to_snapshot());
        cx.send(server, Message::Snapshot { id, state });
    }

    fn on_proposal(&mut self, proposal: Proposal, cx: &mut Cx<'_, Site>) {
        let results = |result: Result<LogId, ProposeError>| Message::Proposed {
            epoch: proposal.epoch,
            batch: proposal.batch,
            results: vec![result; proposal.entries.len()],
        };
        let fate = if self.is_healed(cx) { Fate::Appended } else { Fate::draw(cx) };
        match fate {
            Fate::Appended => self.append(proposal, cx),
            Fate::Rejected => cx.send(proposal.from, results(Err(ProposeError::Retry))),
            Fate::Lost => cx.send(proposal.from, results(Err(ProposeError::Unknown))),
            Fate::AppendedUnknown => {
                self.notes.see(Situation::ProposalUnknown);
                cx.send(proposal.from, results(Err(ProposeError::Unknown)));
                self.append(Proposal { replies: false, ..proposal }, cx);
            }
            Fate::Delayed => self.delay(proposal, cx),
            Fate::DelayedUnknown => {
                cx.send(proposal.from, results(Err(ProposeError::Unknown)));
                self.delay(Proposal { replies: false, ..proposal }, cx);
            }
        }
    }

    fn delay(&mut self, proposal: Proposal, cx: &mut Cx<'_, Site>) {
        self.notes.see(Situation::ProposalDelayed);
        let delay = Duration::from_millis(u64::from(cx.choose(MAX_DELAY_MS)));
        self.last_delayed += 1;
        self.delayed.insert((Duration::from_nanos(cx.now().0) + delay, self.last_delayed), proposal);
        self.arm(cx);
    }

    fn arm(&self, cx: &mut Cx<'_, Site>) {
        if let Some(((due, _), _)) = self.delayed.first_key_value() {
            let wait = due.saturating_sub(Duration::from_nanos(cx.now().0));
            cx.arm(Timer::Turn, wait..=wait);
        }
    }

    fn append(&mut self, proposal: Proposal, cx: &mut Cx<'_, Site>) {
        let mut results = Vec::new();
        for mut batch in proposal.entries {
            if self.config.bug == Some(Bug::ExpiresInAnyTerm) {
                rewrite_terms(&mut batch, self.log.last().term);
            }
            let entry = self.log.append(batch);
            results.push(Ok(entry.id));
            self.publish(entry, cx);
        }
        if proposal.replies {
            let Proposal { from, epoch, batch, .. } = proposal;
            cx.send(from, Message::Proposed { epoch, batch, results });
        }
    }

    /// Sends an entry to all servers that do not lag, and to the judge.
    fn publish(&mut self, entry: Entry, cx: &mut Cx<'_, Site>) {
        let record: Record = (entry.id, entry.batch.as_ref().map(encode));
        for server in self.config.scenario.servers().filter(|server| !self.lagging.contains(server)) {
            cx.send(server, Message::Entry(record.clone()));
        }
        self.records.push(record);
        if let Some(batch) = entry.batch.clone() {
            self.service.apply(entry.id, batch);
        }
        self.notes.add(Note::Committed(entry));
    }
}

/// Encodes a batch as in the log.
pub fn encode(batch: &Batch) -> Vec<u8> {
    postcard::to_stdvec(batch).expect("a batch can be encoded")
}

/// Decodes a batch of the log.
pub fn decode(bytes: &[u8]) -> Batch {
    postcard::from_bytes(bytes).expect("the log is whole")
}

fn rewrite_terms(batch: &mut Batch, of_log: u64) {
    for command in &mut batch.commands {
        if let Command::Expire { term, .. } = command {
            *term = of_log;
        }
    }
}
