//! Dense histories: few names, many owners that hold and wait. After every entry, no request waits that the
//! rules would grant. No member of a deadlock that was left standing becomes a victim. After all running
//! owners have finished, no request waits.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{Dice, Model};
use super::*;

struct Dense {
    world: World,
    client: Client,
    names: &'static [&'static str],
    policies: &'static [VictimPolicy],
    limit: u32,
    /// Every acquire, by its ticket.
    acquires: BTreeMap<u64, (RequestId, Acquire)>,
    live: Vec<(RequestId, u64)>,
    history: Vec<String>,
}

const ENDING: [VictimPolicy; 4] = [
    VictimPolicy::Requester,
    VictimPolicy::Youngest,
    VictimPolicy::LowestPriority,
    VictimPolicy::FewestLocks,
];
const LEAVING: [VictimPolicy; 3] = [VictimPolicy::None, VictimPolicy::Youngest, VictimPolicy::Requester];

impl Dense {
    fn new(seed: u64) -> Self {
        let mut world = World::new();
        let client = world.client();
        world.limit(client, "s", 3);
        let names: &[&str] = match seed % 3 {
            0 => &["a", "b", "c"],
            1 => &["a", "b", "c", "d"],
            _ => &["a", "b", "s", "s*2"],
        };
        let policies: &[VictimPolicy] = if seed % 4 == 3 { &LEAVING } else { &ENDING };
        let (acquires, live, history) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { world, client, names, policies, limit: 3, acquires, live, history }
    }

    fn step(&mut self, dice: &mut Dice) {
        let (op, ticket) = match dice.roll(20) {
            0..=11 => (self.acquire(dice), None),
            12 => {
                self.limit = 2 + dice.roll(3) as u32;
                (Op::Limit { name: name("s"), permits: self.limit }, None)
            }
            _ if self.live.is_empty() => return,
            choice => {
                let (id, ticket) = dice.pick(&self.live);
                let op = match choice {
                    13 | 14 => Op::Cancel { request: id },
                    15 => Op::Downgrade { grant: id },
                    _ => Op::Release { grant: id },
                };
                (op, Some(ticket))
            }
        };
        let (id, answer) = self.world.request(self.client, op.clone());
        self.history.push(format!("{}: {op:?} ({ticket:?}): {answer:?}", self.world.index));
        if let Op::Acquire(acquire) = op {
            self.acquires.insert(self.world.index, (id, acquire));
            self.live.push((id, self.world.index));
        }
        let locks = &self.world.state.locks;
        let is_live = |ticket| locks.grants.contains_key(&ticket) || locks.waiters.contains_key(&ticket);
        self.live.retain(|(_, ticket)| is_live(Ticket(*ticket)));
    }

    fn acquire(&self, dice: &mut Dice) -> Op {
        let leaf = |dice: &mut Dice| {
            let name = dice.pick(self.names);
            let is_shared = !name.starts_with('s') && dice.roll(2) == 0;
            if is_shared { format!("{name}:shared") } else { name.to_owned() }
        };
        let (x, y, z) = (leaf(dice), leaf(dice), leaf(dice));
        let text = match dice.roll(10) {
            0..=3 => x,
            4..=6 => format!("{x} & {y}"),
            7 => format!("{x} & ({y} | {z})"),
            8 => format!("{x} & {y} | {z}"),
            _ => format!("2 of ({x}, {y}, {z})"),
        };
        with(acquire(&text), |acquire| {
            if dice.roll(3) > 0 {
                acquire.owner = label(dice.pick(&["o", "p", "q", "r"]));
            }
            acquire.priority = Priority(dice.pick(&[0, 0, 0, 0, 0, 1]));
            if dice.roll(8) == 0 {
                acquire.wait = Wait::Try;
            }
            acquire.policy = dice.pick(self.policies);
        })
    }

    /// Returns the simple model of the current state.
    fn model(&self) -> Model {
        let locks = &self.world.state.locks;
        let mut model = Model::default();
        model.limits.insert(name("s"), self.limit);
        for (ticket, grant) in &locks.grants {
            let held = locks.granted(*ticket).names.into_iter().map(|held| (held.name, held.claim));
            model.grants.insert(ticket.0, ((self.client.0, Err(grant.owner.0)), held.collect()));
        }
        for (ticket, waiter) in &locks.waiters {
            let who = (self.client.0, Err(waiter.owner.0));
            let waits = model.waits(ticket.0, who, &self.acquires[&ticket.0].1).expect("it waits");
            model.waits.insert(ticket.0, waits);
        }
        model
    }

    /// Checks the state after an entry. `standing` are the requests in standing deadlocks before the entry;
    /// the result are those after it.
    fn check(&self, standing: &BTreeSet<u64>, counted: u64) -> Result<BTreeSet<u64>, String> {
        let model = self.model();
        for (ticket, waits) in &model.waits {
            if let Some(set) = model.choice(waits, &BTreeSet::new()) {
                return Err(format!("{ticket} can be granted {set:?}"));
            }
            if let Some(set) = model.overtaking(*ticket) {
                return Err(format!("{ticket} may overtake and take {set:?}"));
            }
        }
        let stuck = model.stuck(None, false);
        if !stuck.is_empty() && !self.policies.contains(&VictimPolicy::None) {
            return Err(format!("{stuck:?} are stuck"));
        }
        let refused = self.world.effects.iter().filter_map(|effect| match effect {
            Effect::Reply { request, answer: Answer::Refused(error), .. } if error.code == Code::Deadlock => {
                Some(*request)
            }
            _ => None,
        });
        let refused: Vec<RequestId> = refused.collect();
        if let Some(ticket) = standing.iter().find(|ticket| refused.contains(&self.acquires[ticket].0)) {
            return Err(format!("{ticket} was left standing, and is a victim now"));
        }
        let still: BTreeSet<u64> =
            stuck.into_iter().filter(|ticket| model.closes_a_deadlock(*ticket)).collect();
        let is_counted = self.world.state.totals().deadlocks > counted;
        if is_counted && refused.is_empty() && still.is_subset(standing) {
            return Err("a deadlock that stands is counted again".into());
        }
        if !is_counted && !still.is_subset(standing) {
            return Err(format!("{still:?} are in a deadlock that no rejection reported"));
        }
        Ok(still)
    }

    /// Releases the grants of running owners until no owner runs. Returns the requests that still wait.
    fn left_waiting(&mut self) -> Vec<Ticket> {
        loop {
            let locks = &self.world.state.locks;
            let runs = |grant: &&lock::Grant| locks.owner(grant.owner).waiting.is_none();
            let Some(grant) = locks.grants.values().find(runs).map(|grant| grant.request) else {
                return locks.waiters.keys().copied().collect();
            };
            self.world.release(self.client, grant);
        }
    }
}

impl Dense {
    fn fail(&self, seed: u64, what: &str) -> ! {
        panic!("seed {seed}:\n{}\n{what}", self.history.join("\n"))
    }
}

#[test]
fn in_dense_histories_every_waiter_is_blocked() {
    let (mut deadlocks, mut left_standing) = (0, 0);
    for seed in 0..400 {
        let mut dice = Dice(seed ^ 0xABCD_EF01);
        let mut dense = Dense::new(seed);
        let mut standing = BTreeSet::new();
        for _ in 0..60 {
            let counted = dense.world.state.totals().deadlocks;
            dense.step(&mut dice);
            standing = dense.check(&standing, counted).unwrap_or_else(|what| dense.fail(seed, &what));
            left_standing += u64::from(!standing.is_empty());
        }
        deadlocks += dense.world.state.totals().deadlocks;
        if !dense.policies.contains(&VictimPolicy::None) {
            let waiting = dense.left_waiting();
            if !waiting.is_empty() {
                dense.fail(seed, &format!("{waiting:?} wait for nobody"))
            }
        }
    }
    // Without deadlocks the histories would test nothing.
    assert!(deadlocks > 100, "{deadlocks} deadlocks");
    assert!(left_standing > 100, "{left_standing} entries beside a deadlock left standing");
}
