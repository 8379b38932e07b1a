//! What to do about deadlocks, beside finding them: the same transactions under six ways to lock, measured.
//!
//! Clients run transactions one after the other; a transaction takes its locks one by one, works a while after each, commits
//! and gives all back. The work of a client is drawn from its own dice, so that it is the same under every strategy.
//!
//! | strategy | rule | price |
//! |---|---|---|
//! | detect | wait; of a deadlock the youngest is aborted | aborts |
//! | all at once | take all locks together, or none | locks are held longer than they are used |
//! | ordered | take the locks in one global order | the same, and the order must be known |
//! | wait-die | the older may wait for the younger; else die and start again, as old as before \[RSL78\] | many aborts |
//! | wound-wait | the older takes it from the younger, who starts again; the younger waits \[RSL78\] | fewer aborts |
//! | safe state | say beforehand what will be needed; a lock that is free is refused if all could not finish then \[D65\] | waiting |
//!
//! **Traps.** A lock that is given back goes to a waiter, and the others now wait for *that* one: under wait-die it must be
//! the youngest of them, under wound-wait the oldest, or somebody waits the wrong way round. A transaction that starts
//! again keeps its age, or it starves; and a victim that is not the youngest may be the next one's victim, for ever.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use conclave_algorithms::deadlock::{Claim, Demand, Request, Turn, Verdict, WaitGraph};
use conclave_kernel::Prng;
use serde::Serialize;

/// How transactions get their locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Wait, and abort the youngest of a deadlock.
    Detect,
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

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Detect, Self::AllAtOnce, Self::Ordered, Self::WaitDie, Self::WoundWait, Self::SafeState];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Detect => "detect",
            Self::AllAtOnce => "all-at-once",
            Self::Ordered => "ordered",
            Self::WaitDie => "wait-die",
            Self::WoundWait => "wound-wait",
            Self::SafeState => "safe-state",
        }
    }
}

/// The work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// How many clients.
    pub clients: u32,
    /// How many locks there are.
    pub locks: u32,
    /// How many a transaction takes.
    pub per_transaction: u32,
    /// How many transactions a client runs.
    pub transactions: u32,
    /// How long it works after each lock, on average.
    pub work: Duration,
    /// The seed of all dice.
    pub seed: u64,
}

/// What a strategy came to. The names are those of the JSON object.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Which.
    pub strategy: &'static str,
    /// Transactions that committed.
    pub commits: u64,
    /// Transactions that had to start again.
    pub aborts: u64,
    /// Waits for a lock.
    pub waits: u64,
    /// How long a transaction waited for locks in all: the mean, in nanoseconds.
    pub wait_ns: f64,
    /// Work that was done and thrown away, as a share of all work.
    pub wasted: f64,
    /// Commits a second of simulated time.
    pub throughput_per_s: f64,
    /// Clients that never came to an end: none, or the strategy is broken.
    pub stuck: u32,
}

/// Runs the work under a strategy.
pub fn run(strategy: Strategy, load: Load) -> Outcome {
    let mut bank = Bank::new(strategy, load);
    while let Some(Reverse((now, _, client, attempt))) = bank.agenda.pop() {
        bank.now = now;
        if bank.clients[client].attempt == attempt {
            bank.goes_on(client);
        }
    }
    bank.outcome()
}

struct Bank {
    strategy: Strategy,
    load: Load,
    now: u64,
    /// When, in order of scheduling, who, in which attempt.
    agenda: BinaryHeap<Reverse<(u64, u64, usize, u64)>>,
    scheduled: u64,
    clients: Vec<Client>,
    /// Who holds each lock.
    holders: Vec<Option<usize>>,
    /// Who waits, in order of arrival.
    line: Vec<usize>,
    graph: WaitGraph<u32, u32>,
    entries: u64,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    commits: u64,
    aborts: u64,
    waits: u64,
    waited: u64,
    work: u64,
    wasted: u64,
}

struct Client {
    dice: Prng,
    left: u32,
    /// The locks of the transaction, in the order in which it takes them.
    wants: Vec<u32>,
    /// How long it works before the first lock, and after each.
    work: Vec<u64>,
    /// How many locks it has; the next one is what it waits for.
    has: usize,
    /// When the transaction began first: what it is judged by.
    age: u64,
    /// Counts starts, so that what was scheduled for an earlier one is recognised.
    attempt: u64,
    waits_since: Option<u64>,
    /// What it worked in this attempt.
    worked: u64,
}

impl Bank {
    fn new(strategy: Strategy, load: Load) -> Self {
        const CLIENT: u64 = 0x636c_6965;
        let client = |index| Client {
            dice: Prng::stream(load.seed, CLIENT, index),
            left: load.transactions,
            wants: Vec::new(),
            work: Vec::new(),
            has: 0,
            age: 0,
            attempt: 0,
            waits_since: None,
            worked: 0,
        };
        let mut bank = Self {
            strategy,
            load,
            now: 0,
            agenda: BinaryHeap::new(),
            scheduled: 0,
            clients: (0..u64::from(load.clients)).map(client).collect(),
            holders: vec![None; load.locks as usize],
            line: Vec::new(),
            graph: WaitGraph::new(),
            entries: 0,
            counts: Counts::default(),
        };
        (0..bank.clients.len()).for_each(|client| bank.begin(client));
        bank
    }

    /// A new transaction: its locks and its work are drawn at once, and stay if it starts again.
    fn begin(&mut self, client: usize) {
        let Load { locks, per_transaction, work, .. } = self.load;
        let state = &mut self.clients[client];
        if state.left == 0 {
            return;
        }
        state.left -= 1;
        state.wants.clear();
        while state.wants.len() < per_transaction.min(locks) as usize {
            let lock = state.dice.below(u64::from(locks)) as u32;
            if !state.wants.contains(&lock) {
                state.wants.push(lock);
            }
        }
        let piece = |dice: &mut Prng| (-(1.0 - dice.unit()).ln() * work.as_nanos() as f64) as u64 + 1;
        state.work = (0..=state.wants.len()).map(|_| piece(&mut state.dice)).collect();
        if self.strategy == Strategy::Ordered {
            state.wants.sort_unstable();
        }
        self.entries += 1;
        state.age = self.entries;
        self.works(client, 0..1);
    }

    /// Some pieces of work, then [`Bank::goes_on`].
    fn works(&mut self, client: usize, pieces: std::ops::Range<usize>) {
        self.works_after(0, client, pieces);
    }

    fn works_after(&mut self, pause: u64, client: usize, pieces: std::ops::Range<usize>) {
        let state = &mut self.clients[client];
        let work: u64 = state.work[pieces].iter().sum();
        state.worked += work;
        self.counts.work += work;
        self.scheduled += 1;
        let then = self.now.saturating_add(pause).saturating_add(work);
        self.agenda.push(Reverse((then, self.scheduled, client, state.attempt)));
    }

    fn goes_on(&mut self, client: usize) {
        let Client { wants, has, .. } = &self.clients[client];
        if *has < wants.len() {
            return self.asks(client);
        }
        self.counts.commits += 1;
        self.gives_back(client);
        self.begin(client);
    }

    fn asks(&mut self, client: usize) {
        while !self.may_take(client) {
            let lock = self.next(client);
            let age = |other: usize| self.clients[other].age;
            match (self.strategy, self.holders[lock as usize]) {
                (Strategy::WaitDie, Some(holder)) if age(client) > age(holder) => return self.aborts(client),
                (Strategy::WoundWait, Some(holder)) if age(client) < age(holder) => self.aborts(holder),
                _ => return self.waits(client, lock),
            }
        }
        self.takes(client);
    }

    fn waits(&mut self, client: usize, lock: u32) {
        self.counts.waits += 1;
        self.clients[client].waits_since = Some(self.now);
        self.line.push(client);
        if self.strategy == Strategy::Detect
            && let Some(victim) = self.deadlock_closed_by(client, lock)
        {
            self.aborts(victim);
        }
    }

    /// The youngest on the cycle, if there is one. (To abort whoever closed it may go on for ever.)
    fn deadlock_closed_by(&mut self, client: usize, lock: u32) -> Option<usize> {
        self.entries += 1;
        let turn = Turn { class: 0, entry: self.entries };
        let verdict = self.graph.wait(client as u32, turn, Request::exclusive(lock));
        match verdict.expect("a client waits for one lock at a time") {
            Verdict::Clear => None,
            Verdict::Deadlock(deadlock) => {
                let on_cycle = deadlock.why.candidates().into_iter().map(|owner| owner as usize);
                on_cycle.max_by_key(|client| self.clients[*client].age)
            }
        }
    }

    /// Whether the client can go on now.
    fn may_take(&self, client: usize) -> bool {
        let is_free = |lock: &u32| self.holders[*lock as usize].is_none();
        match self.strategy {
            Strategy::AllAtOnce => {
                // Who came before claims what it waits for, or a wide transaction would starve.
                let place = self.line.iter().position(|waiter| *waiter == client).unwrap_or(self.line.len());
                let claimed = |lock: &u32| {
                    self.line[..place].iter().any(|before| self.clients[*before].wants.contains(lock))
                };
                self.clients[client].wants.iter().all(|lock| is_free(lock) && !claimed(lock))
            }
            Strategy::SafeState => is_free(&self.next(client)) && self.is_safe_with(client),
            _ => is_free(&self.next(client)),
        }
    }

    /// Whether everybody could still finish if the client had its next lock: the banker's question. Whoever has all it
    /// will ever need, counting what is free, finishes and gives back; nobody may be left over.
    fn is_safe_with(&self, client: usize) -> bool {
        let mut holders = self.holders.clone();
        holders[self.next(client) as usize] = Some(client);
        let mut rest: Vec<usize> = (0..self.clients.len()).collect();
        loop {
            let finishes = |other: &usize| {
                let needs = &self.clients[*other].wants;
                needs.iter().all(|lock| holders[*lock as usize].is_none_or(|holder| holder == *other))
            };
            let Some(at) = rest.iter().position(finishes) else { return rest.is_empty() };
            let done = rest.swap_remove(at);
            holders.iter_mut().filter(|holder| **holder == Some(done)).for_each(|holder| *holder = None);
        }
    }

    fn next(&self, client: usize) -> u32 {
        let Client { wants, has, .. } = &self.clients[client];
        wants[*has]
    }

    fn takes(&mut self, client: usize) {
        self.line.retain(|waiter| *waiter != client);
        let state = &mut self.clients[client];
        if let Some(since) = state.waits_since.take() {
            self.counts.waited += self.now - since;
        }
        let before = state.has;
        state.has = if self.strategy == Strategy::AllAtOnce { state.wants.len() } else { before + 1 };
        let after = state.has;
        for lock in state.wants[before..after].iter().copied() {
            self.holders[lock as usize] = Some(client);
            if self.strategy == Strategy::Detect {
                let claim = Claim { resource: lock, demand: Demand::Exclusive };
                self.graph.grant(client as u32, &[claim]).expect("nobody else holds it");
            }
        }
        self.works(client, before + 1..after + 1);
    }

    /// The transaction starts again, as old as it is.
    fn aborts(&mut self, client: usize) {
        self.counts.aborts += 1;
        let state = &mut self.clients[client];
        self.counts.wasted += state.worked;
        if let Some(since) = state.waits_since.take() {
            self.counts.waited += self.now - since;
        }
        self.line.retain(|waiter| *waiter != client);
        self.gives_back(client);
        // A pause first, or it meets the same holder again at once.
        let pause = u64::try_from(self.load.work.as_nanos()).unwrap_or(u64::MAX);
        self.works_after(pause, client, 0..1);
    }

    /// Everything is free again, and whoever can go on does.
    fn gives_back(&mut self, client: usize) {
        let state = &mut self.clients[client];
        (state.has, state.worked) = (0, 0);
        state.attempt += 1;
        self.holders.iter_mut().filter(|holder| **holder == Some(client)).for_each(|holder| *holder = None);
        self.graph.remove(client as u32);
        while let Some(next) = self.next_in_line() {
            self.takes(next);
        }
    }

    fn next_in_line(&self) -> Option<usize> {
        let mut able = self.line.iter().copied().filter(|waiter| self.may_take(*waiter));
        match self.strategy {
            Strategy::WaitDie => able.max_by_key(|waiter| self.clients[*waiter].age),
            Strategy::WoundWait => able.min_by_key(|waiter| self.clients[*waiter].age),
            _ => able.next(),
        }
    }

    fn outcome(self) -> Outcome {
        let Counts { commits, aborts, waits, waited, work, wasted } = self.counts;
        let per = |sum: u64, count: u64| if count == 0 { 0.0 } else { sum as f64 / count as f64 };
        let unfinished = |client: &&Client| client.left > 0 || client.waits_since.is_some();
        Outcome {
            strategy: self.strategy.name(),
            commits,
            aborts,
            waits,
            wait_ns: per(waited, commits),
            wasted: per(wasted, work),
            throughput_per_s: per(commits, self.now) * 1e9,
            stuck: self.clients.iter().filter(unfinished).count() as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(seed: u64) -> Load {
        let work = Duration::from_millis(1);
        Load { clients: 8, locks: 12, per_transaction: 4, transactions: 50, work, seed }
    }

    #[test]
    fn every_strategy_brings_every_transaction_to_an_end() {
        for seed in 0..10 {
            for strategy in Strategy::ALL {
                let outcome = run(strategy, load(seed));
                assert_eq!((outcome.commits, outcome.stuck), (400, 0), "{outcome:?}, seed {seed}");
            }
        }
    }

    #[test]
    fn prevention_and_avoidance_abort_nobody_and_the_others_must() {
        for strategy in Strategy::ALL {
            let outcome = run(strategy, load(1));
            let aborts = matches!(strategy, Strategy::Detect | Strategy::WaitDie | Strategy::WoundWait);
            assert_eq!(outcome.aborts > 0, aborts, "{outcome:?}");
            assert_eq!(outcome.wasted > 0.0, aborts, "{outcome:?}");
        }
        let aborts = |strategy| run(strategy, load(1)).aborts;
        assert!(aborts(Strategy::Detect) < aborts(Strategy::WaitDie), "detection aborts only who must be");
    }

    #[test]
    fn who_never_meets_anybody_never_waits() {
        for strategy in Strategy::ALL {
            let outcome = run(strategy, Load { clients: 1, ..load(3) });
            assert_eq!((outcome.waits, outcome.aborts, outcome.commits), (0, 0, 50), "{outcome:?}");
        }
    }
}
