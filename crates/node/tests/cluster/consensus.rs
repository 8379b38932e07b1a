//! The site that models consensus: it appends proposals, loses some, and sends every entry to every server in order.

use std::collections::BTreeMap;
use std::time::Duration;

use conclave_kernel::{Cx, NodeId};
use conclave_node::cluster::{LogId, ProposeError, ReadError};
use conclave_node::entry::{Batch, Service};
use conclave_node::node::BatchId;
use conclave_node::state::{Answer, Command, Effect, EndCause};
use conclave_node::testing::{Consensus, Entry};

use crate::bug::Bug;
use crate::site::{Event, Message, SERVERS, Site, Timer};

/// The longest time for which a proposal is held up on its way to the leader.
const MAX_DELAY_MS: u32 = 2_500;

/// The site that models consensus.
#[derive(Debug)]
pub struct Order {
    log: Consensus,
    /// The state of the whole log, from which the judge gets its events.
    service: Service,
    bug: Option<Bug>,
    /// The proposals that are held up, by the time at which they are appended.
    delayed: BTreeMap<(Duration, u64), Proposal>,
    last_delayed: u64,
}

#[derive(Debug)]
struct Proposal {
    from: NodeId,
    batch: BatchId,
    entries: Vec<Batch>,
    /// Whether the server gets the results when the entries are appended. If not, it has got `Unknown` before.
    replies: bool,
}

/// The fate of a proposal.
enum Fate {
    Appended,
    /// Not appended; the server learns it.
    Rejected,
    /// Not appended; the server does not learn it.
    Lost,
    /// Appended; the server does not learn it.
    AppendedUnknown,
    /// Appended later.
    Delayed,
    /// Appended later; the server learns before that the outcome is unknown.
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
    pub fn new(bug: Option<Bug>) -> Self {
        Self {
            log: Consensus::default(),
            service: Service::new(),
            bug,
            delayed: BTreeMap::new(),
            last_delayed: 0,
        }
    }

    pub fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Site>) {
        match message {
            Message::Propose { batch, entries } => {
                let decode = |entry: &Vec<u8>| postcard::from_bytes(entry).expect("a server encoded it");
                let entries = entries.iter().map(decode).collect();
                self.on_proposal(Proposal { from, batch, entries, replies: true }, cx);
            }
            Message::Confirm { round } => {
                // A quorum follows the leader of this moment, or does not answer.
                let fails = cx.choose(32) == 0;
                let result = if fails { Err(ReadError::Retry) } else { Ok(self.log.last()) };
                cx.send(from, Message::Confirmed { round, result });
            }
            _ => {}
        }
    }

    /// Appends the proposals whose delay is over.
    pub fn on_timer(&mut self, cx: &mut Cx<'_, Site>) {
        let now = Duration::from_nanos(cx.now().0);
        while let Some(entry) = self.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
            let proposal = entry.remove();
            self.append(proposal, cx);
        }
        self.arm(cx);
    }

    /// Elects a leader. Its term begins with an empty entry.
    pub fn elect(&mut self, leader: NodeId, cx: &mut Cx<'_, Site>) {
        let entry = self.log.elect();
        for server in (1..=SERVERS).map(NodeId) {
            cx.send(server, Message::Elected { term: entry.id.term, leader: u64::from(leader.0) });
        }
        cx.emit(Event::Elected);
        self.publish(entry, cx);
    }

    fn on_proposal(&mut self, proposal: Proposal, cx: &mut Cx<'_, Site>) {
        let results = |result: Result<LogId, ProposeError>| Message::Proposed {
            batch: proposal.batch,
            results: vec![result; proposal.entries.len()],
        };
        match Fate::draw(cx) {
            Fate::Appended => self.append(proposal, cx),
            Fate::Rejected => cx.send(proposal.from, results(Err(ProposeError::Retry))),
            Fate::Lost => cx.send(proposal.from, results(Err(ProposeError::Unknown))),
            Fate::AppendedUnknown => {
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
            if self.bug == Some(Bug::ExpiresInAnyTerm) {
                rewrite_terms(&mut batch, self.log.last().term);
            }
            let entry = self.log.append(batch);
            results.push(Ok(entry.id));
            self.publish(entry, cx);
        }
        if proposal.replies {
            cx.send(proposal.from, Message::Proposed { batch: proposal.batch, results });
        }
    }

    /// Sends an entry to all servers, and its effects to the judge.
    fn publish(&mut self, entry: Entry, cx: &mut Cx<'_, Site>) {
        let Entry { id, batch } = entry;
        let encode = |batch: &Batch| postcard::to_stdvec(batch).expect("a batch can be encoded");
        let bytes = batch.as_ref().map(encode);
        for server in (1..=SERVERS).map(NodeId) {
            cx.send(server, Message::Entry { id, batch: bytes.clone() });
        }
        for effect in batch.map(|batch| self.service.apply(id, batch)).unwrap_or_default() {
            match effect {
                Effect::Reply { session, answer: Answer::Granted(granted), .. } => {
                    cx.emit(Event::Granted { session: session.0, fence: granted.fence().0 });
                }
                Effect::SessionEnded { session, cause: EndCause::Expired } => {
                    cx.emit(Event::Expired { session: session.0 });
                }
                _ => {}
            }
        }
    }
}

fn rewrite_terms(batch: &mut Batch, of_log: u64) {
    for command in &mut batch.commands {
        if let Command::Expire { term, .. } = command {
            *term = of_log;
        }
    }
}
