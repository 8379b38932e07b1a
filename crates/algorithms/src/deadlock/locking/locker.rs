//! Prevention and avoidance: keepers of locks that never allow a wait that could close a cycle.
//!
//! **Rules.** A client sends REQUEST to the keeper of a lock, and the keeper sends GRANT when the client may
//! have it. RELEASE ends an attempt: it releases its locks and withdraws its requests. The [`Rule`] decides
//! what the keeper does with a request that must wait.
//!
//! - *All at once*: one request for all locks. The keeper grants it when all are free and no earlier waiter
//!   requests any of them.
//! - *Ordered*: before it takes a lock, a transaction takes all lower locks that it will need.
//! - *Wait-die*: a transaction that is younger than the holder receives DIE. A released lock goes to the
//!   *youngest* waiter.
//! - *Wound-wait*: a holder that is younger than the requester receives WOUND. It releases all its locks
//!   unless it has committed. A released lock goes to the *oldest* waiter.
//! - *Safe state*: CLAIM announces all locks that will be needed. The keeper grants a lock only if afterwards
//!   all transactions could still finish, one after the other.
//!
//! **Traps.**
//! - A released lock goes to one waiter, and the others then wait for *that* one. So it must go to the
//!   youngest or the oldest waiter, as the rules state.
//! - A transaction that restarts keeps its age, or it starves.
//! - A GRANT, DIE or WOUND may belong to an attempt that is over. So each of them names its attempt.
//!
//! **Bounds.** A client has one request. A queue has at most one entry per site.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::hash::Hash;
use core::marker::PhantomData;

use conclave_kernel::{Card, Cx, Never, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{
    Command, Estate, Event, Lock, Locking, PER_TRANSACTION, WITH_ABORTS, WITHOUT_ABORTS, card, cost,
};
use crate::deadlock::site::Part;

/// The treatment of requests that must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// All locks are taken together.
    AllAtOnce,
    /// Locks are taken in one global order.
    Ordered,
    /// The older transaction waits, the younger one dies.
    WaitDie,
    /// The older transaction wounds the younger one, the younger one waits.
    WoundWait,
    /// A lock is granted only if all transactions could still finish.
    SafeState,
}

/// A rule as a type.
pub trait Way: Clone + fmt::Debug + Eq + Hash + Send + 'static {
    /// The rule.
    const RULE: Rule;
    /// The card of the algorithm.
    const CARD: Card;
}

macro_rules! way {
    ($(#[$doc:meta])* $way:ident, $($card:expr),+) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum $way {}
        impl Way for $way {
            const RULE: Rule = Rule::$way;
            const CARD: Card = card($($card),+);
        }
    };
}

way!(
    /// The rule [`Rule::AllAtOnce`].
    AllAtOnce,
    "all-at-once",
    "All at once",
    "a transaction takes all its locks together or none, so no holder ever waits",
    &["H72"],
    WITHOUT_ABORTS,
    cost!("3", 3u32)
);
way!(
    /// The rule [`Rule::Ordered`].
    Ordered,
    "ordered",
    "Ordered acquisition",
    "every transaction takes its locks in one global order, so no cycle can form",
    &["H72"],
    WITHOUT_ABORTS,
    cost!("3 per lock", 3 * PER_TRANSACTION)
);
way!(
    /// The rule [`Rule::WaitDie`].
    WaitDie,
    "wait-die",
    "Wait-die",
    "an older transaction waits for a younger one; a younger one aborts and restarts with its old age",
    &["RSL78"],
    WITH_ABORTS,
    cost!("3 per lock", 3 * PER_TRANSACTION)
);
way!(
    /// The rule [`Rule::WoundWait`].
    WoundWait,
    "wound-wait",
    "Wound-wait",
    "an older transaction aborts a younger holder, which restarts; a younger one waits",
    &["RSL78"],
    WITH_ABORTS,
    cost!("3 per lock", 3 * PER_TRANSACTION)
);
way!(
    /// The rule [`Rule::SafeState`].
    SafeState,
    "safe-state",
    "Safe-state avoidance",
    "each transaction declares its needs first; a lock is granted only if all could still finish",
    &["D65"],
    WITHOUT_ABORTS,
    cost!("2 per lock, plus 2", 2 * PER_TRANSACTION + 2)
);

/// One attempt of a transaction. It is older if its transaction began earlier in logical time; ties go to the
/// smaller client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attempt {
    /// The logical time at which its transaction first began.
    time: u64,
    client: NodeId,
    /// The number of earlier attempts that were aborted.
    aborts: u32,
}

impl Attempt {
    fn is_older_than(self, other: Self) -> bool {
        (self.time, self.client) < (other.time, other.client)
    }
}

/// A message between sites. Each names its attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// To the keeper: all locks that the sender will need.
    Claim(Attempt, Vec<Lock>),
    /// To the keeper: a request for these locks, together.
    Request(Attempt, Vec<Lock>),
    /// To the client: the grant of these locks.
    Grant(Attempt, Vec<Lock>),
    /// To the keeper: the attempt is over. Its locks are free, and its requests are withdrawn.
    Release(Attempt),
    /// To the client: it may not wait, and must abort.
    Die(Attempt),
    /// To the client: an older transaction requests one of its locks, so it must abort.
    Wound(Attempt),
}

/// The state of a site: its client, and the locks that it keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Locker<W> {
    estate: (u32, u32),
    clock: u64,
    attempt: Attempt,
    /// The running transaction; `None` between transactions.
    transaction: Option<Transaction>,
    /// The locks that the site keeps, and the messages that it must send.
    keeper: Keeper,
    #[serde(skip)]
    way: PhantomData<W>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Transaction {
    needs: BTreeSet<Lock>,
    has: BTreeSet<Lock>,
    /// The locks that were requested and not yet granted.
    asked: Vec<Lock>,
    /// The lock for which the layer above waits.
    wanted: Option<Lock>,
}

impl<W: Way> Locking for Locker<W> {
    const CARD: Card = W::CARD;

    fn new(me: NodeId, estate: &Estate) -> Self {
        Self {
            estate: (estate.nodes, estate.locks),
            clock: 0,
            attempt: Attempt { time: 0, client: me, aborts: 0 },
            transaction: None,
            keeper: Keeper::default(),
            way: PhantomData,
        }
    }

    fn kind(message: &Message) -> (&'static str, Part) {
        match message {
            Message::Claim(..) => ("CLAIM", Part::Process),
            Message::Request(..) => ("REQUEST", Part::Process),
            Message::Grant(..) => ("GRANT", Part::Process),
            Message::Release(_) => ("RELEASE", Part::Process),
            Message::Die(_) => ("DIE", Part::Resolution),
            Message::Wound(_) => ("WOUND", Part::Resolution),
        }
    }
}

impl<W: Way> Protocol for Locker<W> {
    type Message = Message;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        let _ = from; // the attempt names its client
        self.take(message, cx);
        self.settle(cx);
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match (command, &mut self.transaction) {
            (Command::Begin { needs, again }, None) if needs.iter().all(|lock| *lock < self.estate.1) => {
                self.begin(needs.into_iter().collect(), again, cx);
            }
            (Command::Lock(lock), Some(transaction))
                if transaction.wanted.is_none() && transaction.needs.contains(&lock) =>
            {
                transaction.wanted = Some(lock);
                self.go_on(cx);
            }
            (Command::Commit, Some(transaction)) if transaction.wanted.is_none() => {
                cx.emit(Event::Committed);
                self.end();
            }
            _ => cx.emit(Event::Refused),
        }
        self.settle(cx);
    }
}

impl<W: Way> Locker<W> {
    fn begin(&mut self, needs: BTreeSet<Lock>, again: bool, cx: &mut Cx<'_, Self>) {
        if again {
            self.attempt.aborts += 1;
        } else {
            self.clock += 1;
            self.attempt = Attempt { time: self.clock, client: cx.me(), aborts: 0 };
        }
        if W::RULE == Rule::SafeState {
            let needs = needs.iter().copied().collect();
            self.tell(self.keeper_of(0), Message::Claim(self.attempt, needs));
        }
        let (has, asked) = (BTreeSet::new(), Vec::new());
        self.transaction = Some(Transaction { needs, has, asked, wanted: None });
    }

    /// Requests the next lock on the way to the wanted one, or emits an event if the wanted one is there.
    fn go_on(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(transaction) = &mut self.transaction else { return };
        let Some(wanted) = transaction.wanted else { return };
        let mut missing = transaction.needs.difference(&transaction.has).copied();
        let next: Vec<Lock> = match W::RULE {
            Rule::AllAtOnce => missing.collect(),
            Rule::Ordered => missing.next().filter(|lowest| *lowest <= wanted).into_iter().collect(),
            Rule::WaitDie | Rule::WoundWait | Rule::SafeState => {
                missing.filter(|lock| *lock == wanted).collect()
            }
        };
        let Some(first) = next.first().copied() else {
            transaction.wanted = None;
            return cx.emit(Event::Locked(wanted));
        };
        transaction.asked.clone_from(&next);
        self.tell(self.keeper_of(first), Message::Request(self.attempt, next));
    }

    /// Ends the attempt: releases all locks and withdraws all requests.
    fn end(&mut self) {
        let Some(Transaction { has, asked, .. }) = self.transaction.take() else { return };
        let mut keepers: BTreeSet<NodeId> =
            has.iter().chain(&asked).map(|lock| self.keeper_of(*lock)).collect();
        if W::RULE == Rule::SafeState {
            keepers.insert(self.keeper_of(0));
        }
        for keeper in keepers {
            self.tell(keeper, Message::Release(self.attempt));
        }
    }

    fn keeper_of(&self, lock: Lock) -> NodeId {
        match W::RULE {
            Rule::AllAtOnce | Rule::SafeState => NodeId(0),
            Rule::Ordered | Rule::WaitDie | Rule::WoundWait => NodeId(lock % self.estate.0),
        }
    }

    fn tell(&mut self, to: NodeId, message: Message) {
        self.keeper.says.push_back((to, message));
    }

    /// Sends all pending messages. A message to this site itself is handled at once.
    fn settle(&mut self, cx: &mut Cx<'_, Self>) {
        while let Some((to, message)) = self.keeper.says.pop_front() {
            if to == cx.me() {
                self.take(message, cx);
            } else {
                cx.send(to, message);
            }
        }
    }

    fn take(&mut self, message: Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Claim(attempt, needs) => _ = self.keeper.claims.insert(attempt.client, needs),
            Message::Request(attempt, locks) => {
                self.clock = self.clock.max(attempt.time);
                self.keeper.on_request(W::RULE, Waiter { attempt, locks });
            }
            Message::Release(attempt) => self.keeper.on_release(W::RULE, attempt),
            Message::Grant(attempt, locks) => {
                if let Some(transaction) = &mut self.transaction
                    && attempt == self.attempt
                    && transaction.asked == locks
                {
                    transaction.asked.clear();
                    transaction.has.extend(locks);
                    self.go_on(cx);
                }
            }
            Message::Die(attempt) | Message::Wound(attempt) => {
                if self.transaction.is_some() && attempt == self.attempt {
                    cx.emit(Event::Aborted);
                    self.end();
                }
            }
        }
    }
}

/// The locks that a site keeps, and its pending messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Keeper {
    holders: BTreeMap<Lock, Holder>,
    /// The queue, in order of arrival.
    line: Vec<Waiter>,
    /// The locks that each client may need. Used for safe states only.
    claims: BTreeMap<NodeId, Vec<Lock>>,
    /// The messages to send; empty between steps.
    says: VecDeque<(NodeId, Message)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Holder {
    attempt: Attempt,
    /// Whether WOUND was sent to the holder. It is sent once.
    is_wounded: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Waiter {
    attempt: Attempt,
    locks: Vec<Lock>,
}

impl Keeper {
    fn on_request(&mut self, rule: Rule, waiter: Waiter) {
        if self.may_take(rule, &waiter, self.line.len()) {
            return self.grant(waiter);
        }
        let me = waiter.attempt;
        let holder = waiter.locks.first().and_then(|lock| self.holders.get_mut(lock));
        match (rule, holder) {
            (Rule::WaitDie, Some(holder)) if holder.attempt.is_older_than(me) => {
                return self.says.push_back((me.client, Message::Die(me)));
            }
            (Rule::WoundWait, Some(holder)) if me.is_older_than(holder.attempt) && !holder.is_wounded => {
                holder.is_wounded = true;
                let wounded = holder.attempt;
                self.says.push_back((wounded.client, Message::Wound(wounded)));
            }
            _ => {}
        }
        self.line.push(waiter);
    }

    fn on_release(&mut self, rule: Rule, attempt: Attempt) {
        self.holders.retain(|_, holder| holder.attempt != attempt);
        self.line.retain(|waiter| waiter.attempt != attempt);
        self.claims.remove(&attempt.client);
        while let Some(at) = self.next_in_line(rule) {
            let waiter = self.line.remove(at);
            self.grant(waiter);
        }
    }

    fn grant(&mut self, Waiter { attempt, locks }: Waiter) {
        for lock in &locks {
            self.holders.insert(*lock, Holder { attempt, is_wounded: false });
        }
        self.says.push_back((attempt.client, Message::Grant(attempt, locks)));
    }

    fn next_in_line(&self, rule: Rule) -> Option<usize> {
        let mut able = (0..self.line.len()).filter(|at| self.may_take(rule, &self.line[*at], *at));
        let age = |at: &usize| (self.line[*at].attempt.time, self.line[*at].attempt.client);
        match rule {
            Rule::WaitDie => able.max_by_key(age),
            Rule::WoundWait => able.min_by_key(age),
            Rule::AllAtOnce | Rule::Ordered | Rule::SafeState => able.next(),
        }
    }

    /// Returns whether the waiter can have its locks now. `before` is the number of waiters that came
    /// earlier.
    fn may_take(&self, rule: Rule, waiter: &Waiter, before: usize) -> bool {
        let is_free = |lock: &Lock| !self.holders.contains_key(lock);
        match rule {
            Rule::AllAtOnce => {
                // An earlier waiter claims the locks for which it waits. Otherwise a transaction with many
                // locks would starve.
                let claimed = |lock| self.line[..before].iter().any(|earlier| earlier.locks.contains(lock));
                waiter.locks.iter().all(|lock| is_free(lock) && !claimed(lock))
            }
            Rule::SafeState => waiter.locks.iter().all(is_free) && self.is_safe_with(waiter),
            Rule::Ordered | Rule::WaitDie | Rule::WoundWait => waiter.locks.iter().all(is_free),
        }
    }

    /// Returns whether all transactions could still finish if the waiter had its locks (the banker's
    /// algorithm). A client whose locks are all free or its own finishes and releases them. No client may be
    /// left over.
    fn is_safe_with(&self, waiter: &Waiter) -> bool {
        let mut holders: BTreeMap<Lock, NodeId> =
            self.holders.iter().map(|(lock, holder)| (*lock, holder.attempt.client)).collect();
        holders.extend(waiter.locks.iter().map(|lock| (*lock, waiter.attempt.client)));
        let mut rest: Vec<_> = self.claims.iter().collect();
        loop {
            let finishes = |(client, needs): &(&NodeId, &Vec<Lock>)| {
                needs.iter().all(|lock| holders.get(lock).is_none_or(|holder| holder == *client))
            };
            let Some(at) = rest.iter().position(finishes) else { return rest.is_empty() };
            let (done, _) = rest.swap_remove(at);
            holders.retain(|_, holder| holder != done);
        }
    }
}
