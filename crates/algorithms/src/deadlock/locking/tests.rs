//! The ways to get locks, tested step by step with hand-made schedules.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{Buffer, Cx, Effect, Env, Input, NodeId};

use super::*;
use crate::deadlock::EdgeChasing;

/// Sites, their FIFO links, and the events of their clients.
struct ByHand<L: Locking> {
    sites: Vec<L>,
    links: BTreeMap<(u32, u32), VecDeque<L::Message>>,
    told: Vec<(u32, Event)>,
    sent: Vec<&'static str>,
}

impl<L: Locking> ByHand<L> {
    fn new(nodes: u32, locks: u32) -> Self {
        let estate = Estate { nodes, locks };
        let sites = (0..nodes).map(|id| L::new(NodeId(id), &estate)).collect();
        Self { sites, links: BTreeMap::new(), told: Vec::new(), sent: Vec::new() }
    }

    fn command(&mut self, site: u32, command: Command) {
        self.step(site, Input::Command(command));
    }

    fn begin(&mut self, site: u32, needs: &[Lock]) {
        self.command(site, Command::Begin { needs: needs.to_vec(), again: false });
        self.settle();
    }

    /// Requests a lock, and delivers all messages that follow.
    fn lock(&mut self, site: u32, lock: Lock) {
        self.command(site, Command::Lock(lock));
        self.settle();
    }

    fn step(&mut self, site: u32, input: Input<L>) {
        let env = Env::new(NodeId(site), self.sites.len() as u32);
        let mut buffer = Buffer::default();
        self.sites[site as usize].step(input, &mut Cx::new(env, &mut buffer));
        for effect in buffer.effects {
            match effect {
                Effect::Send { to, message } => {
                    assert_ne!(to.0, site, "a site does not send a message to itself");
                    self.sent.push(L::kind(&message).0);
                    self.links.entry((site, to.0)).or_default().push_back(message);
                }
                Effect::Emit { event } => self.told.push((site, event)),
                other => panic!("not expected by hand: {other:?}"),
            }
        }
    }

    fn deliver(&mut self, from: u32, to: u32) {
        let message = self.links.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        let message = message.expect("something is under way on this link");
        self.step(to, Input::Message { from: NodeId(from), message });
    }

    fn settle(&mut self) {
        self.settle_without((0, 0));
    }

    /// Delivers until no message is in transit, except on one link.
    fn settle_without(&mut self, held: (u32, u32)) {
        let is_busy =
            |(link, messages): &(&(u32, u32), &VecDeque<L::Message>)| **link != held && !messages.is_empty();
        while let Some((&(from, to), _)) = self.links.iter().find(is_busy) {
            self.deliver(from, to);
        }
    }

    fn told(&mut self) -> Vec<(u32, Event)> {
        core::mem::take(&mut self.told)
    }
}

/// Two transactions that take two locks in opposite order. The first one began first.
fn crossed<L: Locking>() -> ByHand<L> {
    let mut bank = ByHand::<L>::new(3, 4);
    bank.begin(1, &[0, 2]);
    bank.begin(2, &[2, 0]);
    bank.lock(1, 0);
    bank.lock(2, 2);
    bank
}

/// [RSL78 §3]
#[test]
fn wait_die_lets_the_older_wait_and_the_younger_die() {
    let mut bank = crossed::<Locker<WaitDie>>();
    assert_eq!(bank.told(), [(1, Event::Locked(0)), (2, Event::Locked(2))]);
    bank.lock(1, 2);
    assert_eq!(bank.told(), [], "the older waits");
    bank.lock(2, 0);
    assert_eq!(
        bank.told(),
        [(2, Event::Aborted), (1, Event::Locked(2))],
        "the younger dies, and releases its locks"
    );
}

/// An abort does not change the age of a transaction. So no transaction wounds the oldest one, whatever began
/// in the meantime.
#[test]
fn who_starts_again_is_as_old_as_before() {
    let mut bank = ByHand::<Locker<WoundWait>>::new(3, 3);
    bank.begin(1, &[0]);
    bank.begin(2, &[0]);
    bank.lock(2, 0);
    bank.lock(1, 0);
    bank.command(2, Command::Begin { needs: vec![0], again: true });
    bank.command(1, Command::Commit);
    bank.begin(1, &[0, 1]);
    bank.lock(2, 0);
    bank.told();
    bank.lock(1, 0);
    assert_eq!(bank.told(), [], "2 began before the second transaction of 1, and is not wounded by it");
}

/// The other waiters must be allowed to wait for the next holder.
#[test]
fn wait_die_gives_a_lock_to_the_youngest_that_waits() {
    let mut bank = ByHand::<Locker<WaitDie>>::new(4, 1);
    for site in [1, 2, 3] {
        bank.begin(site, &[0]);
    }
    bank.lock(3, 0);
    bank.lock(1, 0);
    bank.lock(2, 0);
    bank.told();
    bank.command(3, Command::Commit);
    bank.settle();
    assert_eq!(bank.told(), [(3, Event::Committed), (2, Event::Locked(0))]);
}

/// [RSL78 §3]
#[test]
fn wound_wait_takes_from_the_younger_and_lets_it_wait() {
    let mut bank = crossed::<Locker<WoundWait>>();
    bank.told();
    bank.lock(2, 0);
    assert_eq!(bank.told(), [], "the younger waits");
    bank.lock(1, 2);
    assert_eq!(bank.told(), [(2, Event::Aborted), (1, Event::Locked(2))]);
    assert!(!bank.sent.contains(&"WOUND"), "site 2 keeps the lock, and wounds its own client");
    bank.command(2, Command::Begin { needs: vec![2, 0], again: true });
    bank.lock(2, 2);
    bank.command(1, Command::Commit);
    bank.settle();
    assert_eq!(bank.told(), [(1, Event::Committed), (2, Event::Locked(2))]);
}

#[test]
fn wound_wait_gives_a_lock_to_the_oldest_that_waits() {
    let mut bank = ByHand::<Locker<WoundWait>>::new(4, 1);
    for site in [1, 2, 3] {
        bank.begin(site, &[0]);
    }
    bank.lock(1, 0);
    bank.lock(3, 0);
    bank.lock(2, 0);
    bank.told();
    bank.command(1, Command::Commit);
    bank.settle();
    assert_eq!(bank.told(), [(1, Event::Committed), (2, Event::Locked(0))]);
}

/// A lock that is granted to an aborted transaction would be lost.
#[test]
fn a_line_forgets_who_was_aborted() {
    let mut bank = crossed::<Locker<WoundWait>>();
    bank.lock(2, 0);
    bank.lock(1, 2); // wounds 2, which waits for lock 0
    bank.command(1, Command::Commit);
    bank.settle();
    bank.told();
    bank.begin(1, &[0]);
    bank.lock(1, 0);
    assert_eq!(bank.told(), [(1, Event::Locked(0))]);
}

#[test]
fn a_wound_that_comes_after_the_commit_hurts_nobody() {
    let mut bank = crossed::<Locker<WoundWait>>();
    bank.lock(2, 0);
    bank.told();
    bank.command(2, Command::Begin { needs: vec![1], again: false });
    assert_eq!(bank.told(), [(2, Event::Refused)], "one transaction at a time");
    let mut bank = ByHand::<Locker<WoundWait>>::new(3, 1);
    bank.begin(1, &[0]);
    bank.begin(2, &[0]);
    bank.lock(2, 0);
    bank.command(1, Command::Lock(0));
    bank.deliver(1, 0); // WOUND is in transit to 2
    bank.command(2, Command::Commit);
    bank.command(2, Command::Begin { needs: vec![0], again: false });
    bank.told();
    bank.settle();
    assert_eq!(bank.told(), [(1, Event::Locked(0))], "the next transaction of 2 is not the wounded one");
}

/// [D65 §6]
#[test]
fn a_free_lock_is_refused_if_not_all_could_finish_then() {
    let mut bank = ByHand::<Locker<SafeState>>::new(3, 3);
    bank.begin(1, &[0, 2]);
    bank.begin(2, &[2, 0]);
    bank.lock(1, 0);
    bank.told();
    bank.lock(2, 2);
    assert_eq!(bank.told(), [], "2 is free, but after this grant neither could finish");
    bank.lock(1, 2);
    assert_eq!(bank.told(), [(1, Event::Locked(2))]);
    bank.command(1, Command::Commit);
    bank.settle();
    assert_eq!(bank.told(), [(1, Event::Committed), (2, Event::Locked(2))]);
}

#[test]
fn who_claims_nothing_in_common_is_not_refused() {
    let mut bank = ByHand::<Locker<SafeState>>::new(3, 4);
    bank.begin(1, &[0, 1]);
    bank.begin(2, &[2, 3]);
    bank.lock(1, 0);
    bank.lock(2, 2);
    assert_eq!(bank.told(), [(1, Event::Locked(0)), (2, Event::Locked(2))]);
}

#[test]
fn ordered_takes_what_is_lower_first() {
    let mut bank = ByHand::<Locker<Ordered>>::new(3, 9);
    bank.begin(1, &[8, 3, 5]);
    bank.lock(1, 5);
    assert_eq!(bank.told(), [(1, Event::Locked(5))]);
    assert_eq!(bank.sent, ["REQUEST", "GRANT", "REQUEST", "GRANT"], "3 and 5, of sites 0 and 2");
    bank.begin(2, &[3]);
    bank.lock(2, 3);
    assert_eq!(bank.told(), [], "it is held before it is used");
}

#[test]
fn all_at_once_takes_nothing_before_it_can_have_everything() {
    let mut bank = ByHand::<Locker<AllAtOnce>>::new(4, 3);
    bank.begin(1, &[0]);
    bank.begin(2, &[0, 1]);
    bank.begin(3, &[1, 2]);
    bank.lock(1, 0);
    bank.lock(2, 1);
    bank.lock(3, 2);
    assert_eq!(bank.told(), [(1, Event::Locked(0))], "3 does not overtake 2, which wants 1");
    bank.command(1, Command::Commit);
    bank.settle();
    assert_eq!(bank.told(), [(1, Event::Committed), (2, Event::Locked(1))]);
    bank.sent.clear();
    bank.lock(2, 0);
    assert_eq!(
        (bank.told(), bank.sent.len()),
        (vec![(2, Event::Locked(0))], 0),
        "the client has the lock already"
    );
}

#[test]
fn a_deadlock_of_locks_has_one_victim_and_the_other_goes_on() {
    let mut bank = crossed::<Detecting<EdgeChasing>>();
    bank.told();
    bank.command(1, Command::Lock(2));
    bank.command(2, Command::Lock(0));
    bank.settle();
    let told = bank.told();
    let victims: Vec<u32> =
        told.iter().filter(|(_, event)| *event == Event::Aborted).map(|(site, _)| *site).collect();
    assert_eq!(victims.len(), 1, "{told:?}");
    let (other, lock) = if victims == [1] { (2, 0) } else { (1, 2) };
    assert!(told.contains(&(other, Event::Locked(lock))), "{told:?}");
}

/// The victim's abort lets the other transaction commit and return the lock for which the victim waited. The
/// lock is granted to the victim while its cancellation is in transit. It must become free, and must not be
/// lost.
#[test]
fn a_lock_that_an_aborted_client_never_took_is_free() {
    let mut bank = ByHand::<Detecting<EdgeChasing>>::new(3, 3);
    bank.begin(1, &[2, 0]);
    bank.begin(2, &[0, 2]);
    bank.lock(1, 2);
    bank.lock(2, 0);
    bank.lock(2, 2);
    bank.command(1, Command::Lock(0));
    while !bank.told.contains(&(1, Event::Aborted)) {
        let busy = bank.links.iter().find(|(_, link)| !link.is_empty()).map(|(link, _)| *link);
        let (from, to) = busy.expect("the transaction that closes the cycle is aborted in the end");
        bank.deliver(from, to);
    }
    bank.told();
    bank.settle_without((1, 0));
    assert_eq!(bank.told(), [(2, Event::Locked(2))]);
    bank.command(2, Command::Commit);
    bank.settle_without((1, 0));
    bank.settle();
    bank.told();
    bank.begin(2, &[0]);
    bank.lock(2, 0);
    assert_eq!(bank.told(), [(2, Event::Locked(0))]);
}
