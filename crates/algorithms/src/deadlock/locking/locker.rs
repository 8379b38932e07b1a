//! Prevention and avoidance: keepers of locks that let nobody wait the wrong way round.
//!
//! **Rules.** A client sends REQUEST to the keeper of a lock, which sends GRANT when it is its turn; RELEASE gives back what was
//! had and takes back what was asked for. What the keeper does with a request that must wait is the [`Rule`].
//!
//! - *All at once*: one request for everything, granted when all of it is free and nobody before it in line wants any of it.
//! - *Ordered*: before a lock all that will be needed and is lower is taken.
//! - *Wait-die*: who is younger than the holder is told DIE. The lock goes to the *youngest* in line.
//! - *Wound-wait*: a holder that is younger is told WOUND, and gives everything back unless it has committed. The lock goes
//!   to the *oldest* in line.
//! - *Safe state*: CLAIM says beforehand what will be needed. A lock is granted if all could still finish, one after the other.
//!
//! **Traps.** A lock that is given back goes to a waiter, and the others now wait for *that* one: hence youngest and
//! oldest. A transaction that starts again keeps its age, or it starves. A GRANT, DIE or WOUND may be of an attempt that is
//! over: all of them carry the attempt.
//!
//! Bounds: a client has one request; a line has at most one entry a site.

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

/// What is done with a request that must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// All locks together.
    AllAtOnce,
    /// In one global order.
    Ordered,
    /// The older waits, the younger dies.
    WaitDie,
    /// The older wounds, the younger waits.
    WoundWait,
    /// Only if all could still finish.
    SafeState,
}

/// A rule as a type.
pub trait Way: Clone + fmt::Debug + Eq + Hash + Send + 'static {
    /// The rule.
    const RULE: Rule;
    /// What it says of itself.
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
    /// All locks together.
    AllAtOnce,
    "all-at-once",
    "All at once",
    "take all locks together, or none: nobody who holds anything waits",
    &["H72"],
    WITHOUT_ABORTS,
    cost!("3", 3u32)
);
way!(
    /// In one global order.
    Ordered,
    "ordered",
    "Ordered acquisition",
    "take the locks in one global order: no cycle can form",
    &["H72"],
    WITHOUT_ABORTS,
    cost!("3 a lock", 3 * PER_TRANSACTION)
);
way!(
    /// The older waits, the younger dies.
    WaitDie,
    "wait-die",
    "Wait-die",
    "the older may wait for the younger; the younger dies, and starts again as old as before",
    &["RSL78"],
    WITH_ABORTS,
    cost!("3 a lock", 3 * PER_TRANSACTION)
);
way!(
    /// The older wounds, the younger waits.
    WoundWait,
    "wound-wait",
    "Wound-wait",
    "the older takes it from the younger, which starts again; the younger waits",
    &["RSL78"],
    WITH_ABORTS,
    cost!("3 a lock", 3 * PER_TRANSACTION)
);
way!(
    /// Only if all could still finish.
    SafeState,
    "safe-state",
    "Safe-state avoidance",
    "say beforehand what will be needed; a lock is granted if all could still finish",
    &["D65"],
    WITHOUT_ABORTS,
    cost!("2 a lock, and 2", 2 * PER_TRANSACTION + 2)
);

/// One attempt of a transaction. The older one is the smaller one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attempt {
    /// The logical time of its first beginning.
    time: u64,
    client: NodeId,
    /// How often it was aborted.
    aborts: u32,
}

impl Attempt {
    fn is_older_than(self, other: Self) -> bool {
        (self.time, self.client) < (other.time, other.client)
    }
}

/// What sites say to each other, of which attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// To the keeper: all that I will need.
    Claim(Attempt, Vec<Lock>),
    /// To the keeper: these, together.
    Request(Attempt, Vec<Lock>),
    /// To the client: they are yours.
    Grant(Attempt, Vec<Lock>),
    /// To the keeper: it is over; what I had of you is free, what I asked for is not needed.
    Release(Attempt),
    /// To the client: you may not wait.
    Die(Attempt),
    /// To the client: an older one wants what you have.
    Wound(Attempt),
}

/// A site: its client, and the locks that it keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Locker<W> {
    estate: (u32, u32),
    clock: u64,
    attempt: Attempt,
    /// What runs: `None` between transactions.
    transaction: Option<Transaction>,
    /// The locks of this site, and what it has to say.
    keeper: Keeper,
    #[serde(skip)]
    way: PhantomData<W>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Transaction {
    needs: BTreeSet<Lock>,
    has: BTreeSet<Lock>,
    /// What was asked for and not yet granted.
    asked: Vec<Lock>,
    /// What the layer above waits for.
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
        let _ = from; // an attempt says whose it is
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

    /// Asks for what comes next on the way to the lock that is wanted, or says that it is there.
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

    /// Everything is free again.
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

    /// Sends what there is to say; what is for this site itself is done at once.
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

/// What a site keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Keeper {
    holders: BTreeMap<Lock, Holder>,
    /// In order of arrival.
    line: Vec<Waiter>,
    /// What each client may still need; of safe states only.
    claims: BTreeMap<NodeId, Vec<Lock>>,
    /// What is to be sent; empty between steps.
    says: VecDeque<(NodeId, Message)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Holder {
    attempt: Attempt,
    /// It was told once.
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

    /// Whether it can have what it asks for now, with so many before it in line.
    fn may_take(&self, rule: Rule, waiter: &Waiter, before: usize) -> bool {
        let is_free = |lock: &Lock| !self.holders.contains_key(lock);
        match rule {
            Rule::AllAtOnce => {
                // Who came before claims what it waits for, or a wide transaction would starve.
                let claimed = |lock| self.line[..before].iter().any(|earlier| earlier.locks.contains(lock));
                waiter.locks.iter().all(|lock| is_free(lock) && !claimed(lock))
            }
            Rule::SafeState => waiter.locks.iter().all(is_free) && self.is_safe_with(waiter),
            Rule::Ordered | Rule::WaitDie | Rule::WoundWait => waiter.locks.iter().all(is_free),
        }
    }

    /// Whether everybody could still finish if the waiter had what it asks for: the banker's question. Whoever has all it
    /// will ever need, counting what is free, finishes and gives back; nobody may be left over.
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
