//! The rules for grants, overtaking and deadlocks, compared with a simple model. The model keeps lists and
//! tries every alternative of every expression. It examines every request after every entry.

use std::collections::{BTreeMap, BTreeSet};

use conclave_core::Claim;
use conclave_core::expr::Node;

use super::*;

/// A chosen or claimed set of names. Each name occurs once.
pub(super) type Set = BTreeMap<LockName, Claim>;
/// The owner of a request: a label of a session, or the request itself.
pub(super) type Who = (SessionId, Result<String, u64>);

#[derive(Clone, Debug)]
pub(super) struct Waits {
    rank: (i64, u64),
    pub(super) who: Who,
    node: Node,
    alternatives: Vec<Set>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) limits: BTreeMap<LockName, u32>,
    pub(super) grants: BTreeMap<u64, (Who, Set)>,
    pub(super) waits: BTreeMap<u64, Waits>,
    overtakings: u64,
    deadlocks: u64,
}

impl Model {
    fn acquire(&mut self, ticket: u64, session: SessionId, acquire: &Acquire) -> Result<(), Code> {
        let who = match &acquire.owner {
            Owner::Label(label) => (session, Ok(label.as_str().to_owned())),
            _ => (session, Err(ticket)),
        };
        let waits = self.waits(ticket, who.clone(), acquire)?;
        if !waits.alternatives.iter().any(|set| self.is_possible(set)) {
            return Err(Code::Impossible);
        }
        let busy = self.waits.iter().find(|(_, other)| other.who == who).map(|(ticket, _)| *ticket);
        if let Some(set) = self.choice(&waits, &BTreeSet::new()) {
            self.grants.insert(ticket, (who, set));
            self.grant_waiters();
            if let Some(busy) = busy {
                self.refuse_if_stuck(busy);
            }
            return Ok(());
        }
        if busy.is_some() {
            return Err(Code::OwnerBusy);
        }
        self.waits.insert(ticket, waits);
        if acquire.wait == Wait::Try {
            let choice = self.overtaking(ticket);
            self.waits.remove(&ticket);
            let set = choice.ok_or(Code::WouldWait)?;
            self.grants.insert(ticket, (who, set));
            self.grant_waiters();
            return Ok(());
        }
        self.grant_waiters();
        if self.refuse_if_stuck(ticket) { Err(Code::Deadlock) } else { Ok(()) }
    }

    pub(super) fn waits(&self, ticket: u64, who: Who, acquire: &Acquire) -> Result<Waits, Code> {
        let node = acquire.expr.node().clone();
        let alternatives = self.alternatives(&node)?;
        Ok(Waits { rank: (-i64::from(acquire.priority.0), ticket), who, node, alternatives })
    }

    fn set_limit(&mut self, name: &LockName, permits: u32) {
        self.limits.insert(name.clone(), permits);
        let possible =
            |waits: &Waits, model: &Self| waits.alternatives.iter().any(|set| model.is_possible(set));
        let hopeless: Vec<u64> = self
            .waits
            .iter()
            .filter(|(_, waits)| !possible(waits, self))
            .map(|(ticket, _)| *ticket)
            .collect();
        hopeless.iter().for_each(|ticket| _ = self.waits.remove(ticket));
        self.grant_waiters();
        for ticket in self.in_order() {
            if self.waits.get(&ticket).is_some_and(|waits| waits.claims(name).is_some()) {
                self.refuse_if_stuck(ticket);
            }
        }
    }

    /// Grants requests in order until no request can be granted. Then lets one request overtake, and starts
    /// again.
    fn grant_waiters(&mut self) {
        'again: loop {
            for ticket in self.in_order() {
                if let Some(set) = self.choice(&self.waits[&ticket], &BTreeSet::new()) {
                    self.grant(ticket, set);
                    continue 'again;
                }
            }
            for ticket in self.in_order() {
                if let Some(set) = self.overtaking(ticket) {
                    self.overtakings += 1;
                    self.grant(ticket, set);
                    continue 'again;
                }
            }
            return;
        }
    }

    fn grant(&mut self, ticket: u64, set: Set) {
        let waits = self.waits.remove(&ticket).unwrap();
        self.grants.insert(ticket, (waits.who, set));
    }

    fn refuse_if_stuck(&mut self, ticket: u64) -> bool {
        let is_stuck = self.waits.contains_key(&ticket) && self.closes_a_deadlock(ticket);
        if is_stuck {
            self.deadlocks += 1;
            self.waits.remove(&ticket);
            self.grant_waiters();
        }
        is_stuck
    }

    /// Returns whether the request is stuck and waits, directly or not, for itself. A request that only waits
    /// for a deadlock closes none.
    pub(super) fn closes_a_deadlock(&self, ticket: u64) -> bool {
        let stuck = self.stuck(None, false);
        let owners: BTreeSet<&Who> = stuck.iter().map(|ticket| &self.waits[ticket].who).collect();
        let edge = |from: &u64, to: &u64| {
            let (from, to) = (&self.waits[from], &self.waits[to]);
            let lacking = self.lacking(from, &from.node, &owners);
            self.grants
                .values()
                .filter(|(who, _)| *who == to.who)
                .flat_map(|(_, set)| set)
                .any(|(name, held)| (from.who != to.who || permits(*held) > 0) && lacking.contains(name))
        };
        let mut ahead = BTreeSet::new();
        let mut open = vec![ticket];
        while let Some(from) = open.pop().filter(|from| stuck.contains(from)) {
            open.extend(stuck.iter().filter(|to| edge(&from, to) && ahead.insert(**to)));
        }
        ahead.contains(&ticket)
    }

    /// Returns the names that block a part of a request if `owners` never finish; empty if the part is
    /// satisfied. For a semaphore, all permits of the request count, even if it names the semaphore twice.
    fn lacking<'a>(&self, me: &Waits, part: &'a Node, owners: &BTreeSet<&Who>) -> BTreeSet<&'a LockName> {
        let (need, nodes) = match part {
            Node::Name(leaf) => {
                let together = me.claims(&leaf.name).filter(|claim| permits(*claim) > 0);
                let set = Set::from([(leaf.name.clone(), together.unwrap_or(leaf.claim))]);
                let fits = self.fits(me, &set, owners, &[]);
                return (!fits).then_some(&leaf.name).into_iter().collect();
            }
            Node::Any(nodes) => (1, nodes),
            Node::All(nodes) => (nodes.len(), nodes),
            Node::AtLeast(count, nodes) => (*count as usize, nodes),
        };
        let lacking: Vec<_> = nodes.iter().map(|node| self.lacking(me, node, owners)).collect();
        let satisfied = lacking.iter().filter(|names| names.is_empty()).count();
        if satisfied < need { lacking.into_iter().flatten().collect() } else { BTreeSet::new() }
    }

    fn in_order(&self) -> Vec<u64> {
        let mut order: Vec<(i64, u64)> = self.waits.values().map(|waits| waits.rank).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, ticket)| ticket).collect()
    }

    /// Returns the first alternative that is free and not claimed. The claims of `free` are ignored.
    pub(super) fn choice(&self, waits: &Waits, free: &BTreeSet<u64>) -> Option<Set> {
        let owners: BTreeSet<&Who> = self.grants.values().map(|(who, _)| who).collect();
        let claims: Vec<&Waits> =
            self.waits.iter().filter(|(ticket, _)| !free.contains(ticket)).map(|(_, waits)| waits).collect();
        waits.alternatives.iter().find(|set| self.fits(waits, set, &owners, &claims)).cloned()
    }

    /// Returns the set that a request may take by overtaking. The claims of requests that cannot proceed
    /// before it finishes do not bind it.
    pub(super) fn overtaking(&self, ticket: u64) -> Option<Set> {
        let me = &self.waits[&ticket];
        if !self.grants.values().any(|(who, _)| *who == me.who) {
            return None;
        }
        let dependent = self.dependents(ticket);
        let held_up = self.stuck(Some(ticket), true);
        self.choice(me, &held_up.intersection(&dependent).copied().collect())
    }

    /// Returns the requests that wait, directly or not, for a name that the owner of this request holds.
    fn dependents(&self, ticket: u64) -> BTreeSet<u64> {
        let holds = |who: &Who, name: &LockName| {
            self.grants.values().any(|(holder, set)| holder == who && set.contains_key(name))
        };
        let names: BTreeSet<&LockName> =
            self.waits.values().flat_map(|waits| &waits.alternatives).flat_map(BTreeMap::keys).collect();
        let owners: BTreeSet<&Who> = self.grants.values().map(|(who, _)| who).collect();
        // A holder that leaves enough of a name for the waiter does not block it.
        let lacks = |from: &Waits, name: &LockName| {
            let claim = from.claims(name).map(|claim| Set::from([(name.clone(), claim)]));
            claim.is_some_and(|set| !self.fits(from, &set, &owners, &[]))
        };
        // An upgrader is the exception: it blocks the waiters after it by its shared hold.
        let yields = |from: &Waits, to: &Waits, name: &LockName| {
            from.claims(name).is_some() && self.upgrades(to, name) && self.is_before(to, from, name)
        };
        let hard = |from: &Waits, to: &Waits| {
            let is_hard = |name: &LockName| lacks(from, name) || yields(from, to, name);
            names.iter().any(|name| holds(&to.who, name) && is_hard(name))
        };
        let soft = |from: &Waits, to: &Waits| {
            let both = |name: &&&LockName| from.claims(name).is_some() && to.claims(name).is_some();
            names.iter().filter(both).any(|name| self.is_before(to, from, name))
        };
        let mut found = BTreeSet::new();
        loop {
            let is_new = |(other, from): (&u64, &Waits)| {
                let leads_on = |to: &u64| hard(from, &self.waits[to]) || soft(from, &self.waits[to]);
                *other != ticket
                    && !found.contains(other)
                    && (hard(from, &self.waits[&ticket]) || found.iter().any(leads_on))
            };
            match self.waits.iter().find(|(other, from)| is_new((other, from))) {
                Some((other, _)) => found.insert(*other),
                None => return found,
            };
        }
    }

    /// Reduces the wait-for graph: removes each request that can proceed, until none can. Returns the rest.
    pub(super) fn stuck(&self, never: Option<u64>, with_claims: bool) -> BTreeSet<u64> {
        let mut stuck: BTreeSet<u64> = self.waits.keys().copied().collect();
        loop {
            let owners: BTreeSet<&Who> = stuck.iter().map(|ticket| &self.waits[ticket].who).collect();
            let claims: Vec<&Waits> =
                stuck.iter().filter(|_| with_claims).map(|ticket| &self.waits[ticket]).collect();
            let proceeds = |ticket: &&u64| {
                let waits = &self.waits[*ticket];
                Some(**ticket) != never
                    && waits.alternatives.iter().any(|set| self.fits(waits, set, &owners, &claims))
            };
            match stuck.iter().find(proceeds).copied() {
                Some(ticket) => stuck.remove(&ticket),
                None => return stuck,
            };
        }
    }

    /// Returns whether `set` can be taken if only the holds of `owners` and only these `claims` count.
    fn fits(&self, me: &Waits, set: &Set, owners: &BTreeSet<&Who>, claims: &[&Waits]) -> bool {
        set.iter().all(|(name, wanted)| {
            let held = self.grants.values().filter_map(|(who, set)| set.get(name).map(|claim| (who, *claim)));
            let held: Vec<(&Who, Claim)> = held.collect();
            let others = held.iter().filter(|(who, _)| *who != &me.who && owners.contains(who));
            let mine: Vec<Claim> =
                held.iter().filter(|(who, _)| *who == &me.who).map(|(_, claim)| *claim).collect();
            let before = claims.iter().filter(|other| other.who != me.who && self.is_before(other, me, name));
            let before: Vec<Claim> = before.filter_map(|other| other.claims(name)).collect();
            match wanted {
                Claim::Shared if !mine.is_empty() => true,
                Claim::Exclusive if mine.contains(&Claim::Exclusive) => true,
                Claim::Shared => {
                    others.clone().all(|(_, claim)| *claim == Claim::Shared)
                        && before.iter().all(|claim| *claim == Claim::Shared)
                }
                Claim::Exclusive => others.count() == 0 && before.is_empty(),
                Claim::Permits(count) => {
                    let own = held.iter().filter(|(who, _)| owners.contains(who) || *who == &me.who);
                    let taken: u32 = own.map(|(_, claim)| permits(*claim)).sum();
                    let claimed: u32 = before.iter().map(|claim| permits(*claim)).sum();
                    count + taken + claimed <= self.limits[name]
                }
            }
        })
    }

    /// Returns whether the claim of `other` on the name comes before `me`. Upgraders come first, then the
    /// rank decides.
    fn is_before(&self, other: &Waits, me: &Waits, name: &LockName) -> bool {
        (!self.upgrades(other, name), other.rank) < (!self.upgrades(me, name), me.rank)
    }

    /// Returns whether the owner holds the name shared and the request wants it exclusively.
    fn upgrades(&self, waits: &Waits, name: &LockName) -> bool {
        let mut mine = self.grants.values().filter(|(who, _)| *who == waits.who);
        waits.claims(name) == Some(Claim::Exclusive)
            && mine.clone().any(|(_, set)| set.contains_key(name))
            && mine.all(|(_, set)| set.get(name) != Some(&Claim::Exclusive))
    }

    fn is_possible(&self, set: &Set) -> bool {
        set.iter().all(|(name, claim)| match claim {
            Claim::Permits(count) => *count <= self.limits[name],
            _ => true,
        })
    }

    /// Returns every set that satisfies an expression, the leftmost first.
    fn alternatives(&self, node: &Node) -> Result<Vec<Set>, Code> {
        match node {
            Node::Name(leaf) => {
                let claim = match (leaf.claim, self.limits.get(&leaf.name)) {
                    (Claim::Exclusive, Some(_)) => Claim::Permits(1),
                    (Claim::Shared, Some(_)) => return Err(Code::WrongKind),
                    (Claim::Permits(_), None) => return Err(Code::NotASemaphore),
                    (claim, _) => claim,
                };
                Ok(vec![Set::from([(leaf.name.clone(), claim)])])
            }
            Node::Any(nodes) => self.choose(1, nodes),
            Node::All(nodes) => self.choose(nodes.len(), nodes),
            Node::AtLeast(count, nodes) => self.choose(*count as usize, nodes),
        }
    }

    fn choose(&self, count: usize, nodes: &[Node]) -> Result<Vec<Set>, Code> {
        let Some((first, rest)) = nodes.split_first() else {
            return Ok(if count == 0 { vec![Set::new()] } else { Vec::new() });
        };
        // Every name is examined, even if no choice is left. So an error does not depend on the other
        // choices.
        let (mine, without) = (self.alternatives(first)?, self.choose(count, rest)?);
        if count == 0 {
            return Ok(vec![Set::new()]);
        }
        let mut sets = Vec::new();
        let tails = self.choose(count - 1, rest)?;
        for head in &mine {
            sets.extend(tails.iter().map(|tail| merge(head, tail)));
        }
        sets.extend(without);
        Ok(sets)
    }
}

impl Waits {
    /// Returns the largest claim on a name.
    fn claims(&self, name: &LockName) -> Option<Claim> {
        let claims = self.alternatives.iter().filter_map(|set| set.get(name).copied());
        claims.max_by_key(|claim| (*claim == Claim::Exclusive, permits(*claim)))
    }
}

fn merge(a: &Set, b: &Set) -> Set {
    let mut both = a.clone();
    for (name, claim) in b {
        let merged = match (both.get(name), claim) {
            (None, claim) => *claim,
            (Some(Claim::Permits(one)), Claim::Permits(other)) => Claim::Permits(one + other),
            (Some(Claim::Shared), Claim::Shared) => Claim::Shared,
            _ => Claim::Exclusive,
        };
        both.insert(name.clone(), merged);
    }
    both
}

fn permits(claim: Claim) -> u32 {
    if let Claim::Permits(count) = claim { count } else { 0 }
}

/// A small random generator. A seed gives the same history with every version of every library.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len() as u64) as usize]
    }

    fn leaf(&mut self) -> String {
        if self.roll(4) == 0 {
            return self.pick(&["s", "s*2", "t", "t*2", "t*3"]).into();
        }
        let name = self.pick(&["a", "b", "c", "d"]);
        if self.roll(4) == 0 { format!("{name}:shared") } else { name.into() }
    }

    pub(super) fn expr(&mut self) -> String {
        let leaves = |dice: &mut Self, count: u64| (0..count).map(|_| dice.leaf()).collect::<Vec<_>>();
        let count = 2 + self.roll(2);
        match self.roll(8) {
            0..=3 => self.leaf(),
            4 | 5 => leaves(self, count).join(" & "),
            6 => leaves(self, count).join(" | "),
            _ => match self.roll(3) {
                0 => format!("{} & ({})", self.leaf(), leaves(self, 2).join(" | ")),
                1 => format!("{} | {}", self.leaf(), leaves(self, 2).join(" & ")),
                _ => format!("2 of ({})", leaves(self, 3).join(", ")),
            },
        }
    }
}

struct Twins {
    world: World,
    model: Model,
    clients: Vec<Client>,
    /// Every request that holds or waits: its client, its number and its ticket.
    live: Vec<(Client, RequestId, u64)>,
}

impl Twins {
    fn new() -> Self {
        let mut world = World::new();
        let clients: Vec<Client> = (0..3).map(|_| world.client()).collect();
        let mut model = Model::default();
        for (semaphore, permits) in [("s", 2), ("t", 4)] {
            world.limit(clients[0], semaphore, permits);
            model.limits.insert(name(semaphore), permits);
        }
        Self { world, model, clients, live: Vec::new() }
    }

    fn step(&mut self, dice: &mut Dice) -> String {
        match dice.roll(20) {
            0..=9 => self.acquire(dice),
            10 => {
                let (semaphore, permits) = (name(dice.pick(&["s", "t"])), 1 + dice.roll(4) as u32);
                let client = self.clients[0];
                self.world.limited(client, &semaphore, permits);
                self.model.set_limit(&semaphore, permits);
                format!("limit {semaphore} {permits}")
            }
            11 => {
                let broken = name(dice.pick(&["a", "b", "c", "d", "s", "t"]));
                let client = self.clients[0];
                self.world.request(client, Op::Break { name: broken.clone(), reason: String::new() });
                self.model.grants.values_mut().for_each(|(_, set)| _ = set.remove(&broken));
                self.model.grants.retain(|_, (_, set)| !set.is_empty());
                self.model.grant_waiters();
                format!("break {broken}")
            }
            12 if dice.roll(3) == 0 => self.end_session(dice),
            _ if self.live.is_empty() => "nothing".into(),
            12 | 13 => self.downgrade(dice),
            choice => {
                let (client, id, ticket) = dice.pick(&self.live);
                let op = if choice < 16 { Op::Cancel { request: id } } else { Op::Release { grant: id } };
                let is_waiting = self.model.waits.contains_key(&ticket);
                self.world.request(client, op.clone());
                if matches!(op, Op::Cancel { .. }) || !is_waiting {
                    self.model.waits.remove(&ticket);
                    self.model.grants.remove(&ticket);
                    self.model.grant_waiters();
                }
                format!("{op:?}")
            }
        }
    }

    fn acquire(&mut self, dice: &mut Dice) -> String {
        let client = dice.pick(&self.clients);
        let text = dice.expr();
        let op = with(acquire(&text), |acquire| {
            if dice.roll(4) > 0 {
                acquire.owner = label(dice.pick(&["o", "p"]));
            }
            acquire.priority = Priority(dice.pick(&[0, 0, 0, 0, 1, -1]));
            acquire.wait =
                dice.pick(&[Wait::Forever, Wait::Forever, Wait::Forever, Wait::AtMost(5), Wait::Try]);
        });
        let Op::Acquire(acquire) = op.clone() else { unreachable!("it was made a line ago") };
        let (id, answer) = self.world.request(client, op);
        let ticket = self.world.index;
        let expected = self.model.acquire(ticket, client.0, &acquire);
        let code = if let Answer::Refused(error) = answer { Err(error.code) } else { Ok(()) };
        assert_eq!(code, expected, "acquire {text}");
        self.live.push((client, id, ticket));
        format!(
            "{ticket}: {client:?} acquires {text} as {:?} {:?} {:?}",
            acquire.owner, acquire.priority, acquire.wait
        )
    }

    fn downgrade(&mut self, dice: &mut Dice) -> String {
        let (client, id, ticket) = dice.pick(&self.live);
        self.world.request(client, Op::Downgrade { grant: id });
        if let Some((_, set)) = self.model.grants.get_mut(&ticket) {
            set.values_mut()
                .filter(|claim| **claim == Claim::Exclusive)
                .for_each(|claim| *claim = Claim::Shared);
            self.model.grant_waiters();
        }
        format!("downgrade {ticket}")
    }

    fn end_session(&mut self, dice: &mut Dice) -> String {
        let place = dice.roll(self.clients.len() as u64) as usize;
        let client = self.clients[place];
        self.world.done(client, Op::Close);
        self.model.waits.retain(|_, waits| waits.who.0 != client.0);
        self.model.grants.retain(|_, (who, _)| who.0 != client.0);
        self.model.grant_waiters();
        self.clients[place] = self.world.client();
        format!("end {client:?}")
    }

    /// Checks that the state and the model have the same holders and the same waiters.
    fn compare(&mut self) -> Result<(), String> {
        let locks = &self.world.state.locks;
        let held = locks.grants.keys().map(|ticket| {
            let names = locks.granted(*ticket).names;
            (ticket.0, names.into_iter().map(|granted| (granted.name, granted.claim)).collect::<Set>())
        });
        let held: BTreeMap<u64, Set> = held.collect();
        let expected: BTreeMap<u64, Set> =
            self.model.grants.iter().map(|(ticket, (_, set))| (*ticket, set.clone())).collect();
        if held != expected {
            return Err(format!("held {held:?}\nexpected {expected:?}"));
        }
        let waiting: Vec<u64> = locks.waiters.keys().map(|ticket| ticket.0).collect();
        let expected: Vec<u64> = self.model.waits.keys().copied().collect();
        if waiting != expected {
            return Err(format!("waiting {waiting:?}, expected {expected:?}"));
        }
        self.live.retain(|(_, _, ticket)| held.contains_key(ticket) || waiting.contains(ticket));
        Ok(())
    }
}

#[test]
fn random_histories_agree_with_the_model() {
    let (mut overtakings, mut deadlocks) = (0, 0);
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let mut twins = Twins::new();
        let mut history = Vec::new();
        for _ in 0..150 {
            history.push(twins.step(&mut dice));
            if let Err(difference) = twins.compare() {
                panic!("seed {seed}:\n{}\n{difference}", history.join("\n"));
            }
        }
        overtakings += twins.model.overtakings;
        deadlocks += twins.model.deadlocks;
    }
    // Without enough of these events the histories would test nothing.
    assert!(overtakings > 100, "{overtakings} overtakings");
    assert!(deadlocks > 100, "{deadlocks} deadlocks");
}
