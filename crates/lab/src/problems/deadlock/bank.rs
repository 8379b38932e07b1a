//! The work of those who lock: transactions, the same under every way to get the locks, and the judge of their runs.
//!
//! A client runs its transactions one after the other: it works, takes a lock, works, takes the next one, and commits. Locks and
//! work are drawn from the client's own random when a transaction is drawn, and stay if it starts again. Who was aborted
//! pauses, by other random and twice as long each time, or it would meet the same holder again and again.

use std::collections::BTreeMap;
use std::time::Duration;

use conclave_algorithms::deadlock::locking::{
    COMMITS, Command, EXCLUSIVE, Event, Lock, Locking, NO_ABORT, PER_TRANSACTION,
};
use conclave_algorithms::deadlock::site::Part;
use conclave_kernel::{Judgement, NodeId, Prng, Property, Time, Violation};
use conclave_sim::{Desk, Director};

use super::Scenario;

/// At most so many violations of one property are described.
const MOST_DESCRIBED: usize = 4;
/// A pause is doubled at most so often.
const MOST_DOUBLINGS: u32 = 6;
const WORK: u64 = 0x636c_6965;
const PAUSE: u64 = 0x7061_7573;

/// How many locks there are for so many clients: contended, but not hopeless.
pub(super) fn locks(nodes: u32) -> u32 {
    (nodes.saturating_mul(3) / 2).max(PER_TRANSACTION)
}

/// The director of those who lock.
pub(super) struct Bank {
    pub(super) violations: Vec<Violation>,
    pub(super) counts: Counts,
    clients: Vec<Client>,
    locks: u32,
    work: Duration,
    /// The client that has each lock, as far as clients know.
    users: Vec<Option<NodeId>>,
    /// The client that was given each lock last.
    last_users: Vec<Option<NodeId>>,
    /// Whether a lock was given to two clients, one after the other.
    is_shared: bool,
    /// The number of sites that are up.
    up: u32,
}

/// What was counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) commits: u64,
    pub(super) aborts: u64,
    pub(super) waits: u64,
    pub(super) waited: u64,
    pub(super) worked: u64,
    pub(super) wasted: u64,
    pub(super) messages: BTreeMap<Part, u64>,
    pub(super) kinds: BTreeMap<&'static str, u64>,
}

struct Client {
    random: Prng,
    pauses: Prng,
    /// Transactions not yet begun.
    left: u64,
    /// The locks of the transaction, in the order in which its work needs them; none between transactions.
    wants: Vec<Lock>,
    /// How long it works before the first lock, and after each.
    work: Vec<u64>,
    /// How many locks it has.
    has: usize,
    /// Counts attempts, so that what was meant for an earlier one is recognised.
    attempt: u32,
    /// When it asked for the next lock.
    asked: Option<Time>,
    /// What it worked in this attempt.
    worked: u64,
    is_aborted: bool,
    /// How often this transaction was aborted.
    aborts: u32,
}

impl Bank {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let (nodes, seed) = (scenario.world.nodes, scenario.world.seed);
        let client = |index: u64| Client {
            random: Prng::stream(seed, WORK, index),
            pauses: Prng::stream(seed, PAUSE, index),
            left: scenario.work.requests / u64::from(nodes)
                + u64::from(index < scenario.work.requests % u64::from(nodes)),
            wants: Vec::new(),
            work: Vec::new(),
            has: 0,
            attempt: 0,
            asked: None,
            worked: 0,
            is_aborted: false,
            aborts: 0,
        };
        Self {
            violations: Vec::new(),
            counts: Counts::default(),
            clients: (0..u64::from(nodes)).map(client).collect(),
            locks: locks(nodes),
            work: scenario.work.think,
            users: vec![None; locks(nodes) as usize],
            last_users: vec![None; locks(nodes) as usize],
            is_shared: false,
            up: nodes,
        }
    }

    /// Returns each property with the evidence that the run lacks.
    pub(super) fn judgements(&self) -> [Judgement; 3] {
        let no_transaction = (self.counts.commits + self.unfinished() == 0, "no transaction");
        let no_grant = (self.last_users.iter().all(Option::is_none), "no lock was granted");
        [
            EXCLUSIVE
                .judged_unless(&[no_transaction, (!self.is_shared, "no two clients used the same lock")]),
            COMMITS.judged_unless(&[no_transaction, (self.is_deserted(), "no site stayed up")]),
            NO_ABORT.judged_unless(&[no_transaction, no_grant]),
        ]
    }

    /// How many transactions have not come to their end.
    pub(super) fn unfinished(&self) -> u64 {
        self.clients.iter().map(|client| client.left + u64::from(!client.wants.is_empty())).sum()
    }

    /// Returns whether transactions are left but every site is down. Then no site can commit them.
    fn is_deserted(&self) -> bool {
        self.up == 0 && self.unfinished() > 0
    }

    pub(super) fn breach(&mut self, property: &Property, at: Time, why: String) {
        let known = self.violations.iter().filter(|violation| violation.property == property.name);
        if known.count() < MOST_DESCRIBED {
            self.violations.push(Violation { property: property.name.into(), at, why });
        }
    }

    /// A new transaction, if there is one left.
    fn draw(&mut self, node: NodeId) -> bool {
        let (locks, work) = (self.locks, self.work);
        let client = &mut self.clients[node.index()];
        client.wants.clear();
        if client.left == 0 {
            return false;
        }
        client.left -= 1;
        client.aborts = 0;
        while client.wants.len() < PER_TRANSACTION as usize {
            let lock = client.random.below(u64::from(locks)) as Lock;
            if !client.wants.contains(&lock) {
                client.wants.push(lock);
            }
        }
        client.work = (0..=client.wants.len()).map(|_| exponential(&mut client.random, work)).collect();
        true
    }

    fn begins<L: Locking>(&mut self, node: NodeId, desk: &mut Desk<'_, L, ()>) {
        let client = &mut self.clients[node.index()];
        let (needs, again) = (client.wants.clone(), client.is_aborted);
        (client.has, client.worked, client.is_aborted) = (0, 0, false);
        desk.command(node, Command::Begin { needs, again });
        self.works(node, desk);
    }

    /// Works as long as what it has allows, then goes on.
    fn works<L: Locking>(&mut self, node: NodeId, desk: &mut Desk<'_, L, ()>) {
        let client = &mut self.clients[node.index()];
        let work = client.work[client.has];
        client.worked = client.worked.saturating_add(work);
        self.counts.worked = self.counts.worked.saturating_add(work);
        desk.wake_in(Duration::from_nanos(work), key(node, client.attempt));
    }

    fn ends_wait(&mut self, node: NodeId, now: Time) {
        if let Some(asked) = self.clients[node.index()].asked.take() {
            let waited = now.0 - asked.0;
            self.counts.waited = self.counts.waited.saturating_add(waited);
            self.counts.waits += u64::from(waited > 0);
        }
    }

    fn has_lock(&mut self, node: NodeId, lock: Lock, now: Time) {
        let before = self.last_users[lock as usize].replace(node);
        self.is_shared |= before.is_some_and(|before| before != node);
        if let Some(other) = self.users[lock as usize].replace(node)
            && other != node
        {
            self.breach(&EXCLUSIVE, now, format!("{node} is given lock {lock}, which {other} has"));
        }
    }

    fn has_none(&mut self, node: NodeId) {
        self.users.iter_mut().filter(|user| **user == Some(node)).for_each(|user| *user = None);
        self.clients[node.index()].attempt += 1;
    }
}

impl<L: Locking> Director<L> for Bank {
    type Note = ();

    fn on_begin(&mut self, desk: &mut Desk<'_, L, ()>) {
        for node in (0..self.clients.len() as u32).map(NodeId) {
            if self.draw(node) {
                self.begins(node, desk);
            }
        }
    }

    fn on_wake(&mut self, key: u64, desk: &mut Desk<'_, L, ()>) {
        let (node, attempt) = (NodeId(key as u32), (key >> 32) as u32);
        let client = &mut self.clients[node.index()];
        if client.attempt != attempt {
            return;
        }
        if client.is_aborted {
            self.begins(node, desk);
        } else if let Some(lock) = client.wants.get(client.has) {
            client.asked = Some(desk.now());
            desk.command(node, Command::Lock(*lock));
        } else {
            desk.command(node, Command::Commit);
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event, desk: &mut Desk<'_, L, ()>) {
        let now = desk.now();
        match event {
            Event::Locked(lock) => {
                self.ends_wait(node, now);
                self.has_lock(node, *lock, now);
                self.clients[node.index()].has += 1;
                self.works(node, desk);
            }
            Event::Committed => {
                self.counts.commits += 1;
                // A commit without a transaction is no progress.
                if !self.clients[node.index()].wants.is_empty() {
                    desk.progress();
                }
                self.has_none(node);
                if self.draw(node) {
                    self.begins(node, desk);
                }
            }
            Event::Aborted => {
                self.counts.aborts += 1;
                self.breach(&NO_ABORT, now, format!("{node}'s transaction is aborted"));
                self.ends_wait(node, now);
                self.has_none(node);
                let client = &mut self.clients[node.index()];
                client.is_aborted = true;
                self.counts.wasted = self.counts.wasted.saturating_add(client.worked);
                client.aborts += 1;
                let pause = self.work.saturating_mul(1 << client.aborts.min(MOST_DOUBLINGS));
                let pause = exponential(&mut client.pauses, pause);
                desk.wake_in(Duration::from_nanos(pause), key(node, client.attempt));
            }
            // The client was aborted while the command was on its way to it.
            Event::Refused => {}
        }
    }

    fn on_send(&mut self, _from: NodeId, _to: NodeId, message: &L::Message) {
        let (kind, part) = L::kind(message);
        *self.counts.messages.entry(part).or_default() += 1;
        *self.counts.kinds.entry(kind).or_default() += 1;
    }

    fn on_deliver(&mut self, _from: NodeId, _to: NodeId, (): &()) {}

    fn on_crash(&mut self, _node: NodeId, _desk: &mut Desk<'_, L, ()>) {
        self.up -= 1;
    }

    fn on_recover(&mut self, _node: NodeId, _desk: &mut Desk<'_, L, ()>) {
        self.up += 1;
    }
}

impl Bank {
    /// Judges the end of a run in which no event is left.
    pub(super) fn rests(&mut self, at: Time) {
        let unfinished = self.unfinished();
        if unfinished > 0 && !self.is_deserted() {
            self.breach(&COMMITS, at, format!("{unfinished} transactions have not committed"));
        }
    }
}

fn key(node: NodeId, attempt: u32) -> u64 {
    u64::from(attempt) << 32 | u64::from(node.0)
}

fn exponential(random: &mut Prng, mean: Duration) -> u64 {
    (-(1.0 - random.unit()).ln() * mean.as_nanos() as f64) as u64 + 1
}
