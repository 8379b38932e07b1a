//! Tests of the algorithms, stepped by hand, and of the uses of pictures.

mod town;

use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{Cx, Never, NodeId, Prng, Protocol};
use serde::{Deserialize, Serialize};

use super::bank::{Bank, Transfer};
use super::heap::{self, Act, Heap, Object};
use super::restart::Restarted;
use super::work::{Task, Work, terminated};
use super::*;
use crate::mutex::{self, Group, Mutex, TokenRing};
use town::Town;

type Marked = Town<Bank, ChandyLamport<Bank>>;
type Coloured = Town<Bank, LaiYang<Bank>>;

const A: u32 = 0;
const B: u32 = 1;

fn accounts(balances: &[u64]) -> Vec<Bank> {
    balances.iter().map(|balance| Bank { balance: *balance }).collect()
}

fn transfer<P: Snapshot<Bank>>(town: &mut Town<Bank, P>, from: u32, to: u32, amount: u64) {
    town.ask(from, Transfer { to: NodeId(to), amount });
}

/// Returns the balances, then the messages in transit as (from, to, amount).
fn numbers(picture: &Picture<Bank>) -> (Vec<u64>, Vec<(u32, u32, u64)>) {
    let balances = picture.states().map(|account| account.balance).collect();
    (balances, picture.in_transit().map(|(from, to, money)| (from.0, to.0, money.0)).collect())
}

/// The first schedule of the lectures: S1 sends its marker just after t1, and S2 receives it after t4.
fn just_after_t1<P: Snapshot<Bank>>() -> Town<Bank, P> {
    let mut town = Town::new(accounts(&[600, 200]));
    transfer(&mut town, A, B, 50); // t1: (550, 200, 50, 0)
    town.take(A, 1);
    transfer(&mut town, B, A, 80); // t2: (550, 120, 50, 80)
    town.deliver(B, A); // t3: (630, 120, 50, 0)
    town.deliver(A, B); // t4: (630, 170, 0, 0)
    town.settle(&mut Prng::new(1), true, Some(800));
    town
}

/// The second schedule: S1 sends its marker just after t0, and S2 receives it between t2 and t3.
fn just_after_t0<P: Snapshot<Bank>>() -> Town<Bank, P> {
    let mut town = Town::new(accounts(&[600, 200]));
    town.take(A, 1);
    transfer(&mut town, A, B, 50);
    transfer(&mut town, B, A, 80);
    town.deliver(A, B);
    town.settle(&mut Prng::new(1), true, Some(800));
    town
}

#[test]
fn markers_just_after_t1_picture_550_170_and_80_on_its_way() {
    let expected = (vec![550, 170], vec![(B, A, 80)]);
    let (marked, coloured): (Marked, Coloured) = (just_after_t1(), just_after_t1());
    for (breaches, pictures) in [(marked.breaches, marked.pictures), (coloured.breaches, coloured.pictures)] {
        assert_eq!(breaches, []);
        assert_eq!(pictures.len(), 2);
        assert!(pictures.iter().all(|(_, picture)| numbers(picture) == expected));
        assert_eq!(Bank::conserved(&pictures[0].1), Some(800));
    }
}

#[test]
fn markers_just_after_t0_picture_600_120_and_80_on_its_way() {
    let expected = (vec![600, 120], vec![(B, A, 80)]);
    let (marked, coloured): (Marked, Coloured) = (just_after_t0(), just_after_t0());
    assert!(marked.pictures.iter().all(|(_, picture)| numbers(picture) == expected));
    assert!(coloured.pictures.iter().all(|(_, picture)| numbers(picture) == expected));
    assert_eq!((marked.breaches, coloured.breaches), (vec![], vec![]));
}

/// Account A as at t0, and the rest as at t2: the 50 are counted twice.
#[test]
fn what_was_not_seen_together_does_not_add_up() {
    let part = |site: u32, balance, from: u32, amount| Part {
        id: SnapshotId(1),
        site: NodeId(site),
        state: Bank { balance },
        reminders: vec![],
        channels: vec![Channel { from: NodeId(from), messages: vec![bank::Money(amount)] }],
    };
    let naive = Picture { id: SnapshotId(1), parts: vec![part(A, 600, B, 80), part(B, 120, A, 50)] };
    assert_eq!(Bank::conserved(&naive), Some(850));
}

/// \[CL85 §3.2\]: the channel on which the first marker arrives is empty.
#[test]
fn the_channel_of_the_first_marker_is_empty() {
    let mut town = Marked::new(accounts(&[10, 10]));
    transfer(&mut town, A, B, 1);
    town.take(A, 1);
    town.settle(&mut Prng::new(1), true, Some(20));
    assert_eq!(numbers(&town.pictures[0].1), (vec![9, 11], vec![]));
}

#[test]
fn a_message_that_overtakes_a_marker_is_received_and_not_sent() {
    let mut town = Marked::new(accounts(&[10, 10]));
    town.take(A, 1);
    transfer(&mut town, A, B, 3);
    town.deliver_nth(A, B, 1);
    town.settle(&mut Prng::new(1), true, Some(20));
    let broken: Vec<_> = town.breaches.iter().map(|breach| breach.property.name).collect();
    assert_eq!(broken, ["consistent", "conserved"]);
    assert!(town.breaches[0].why.contains("n1 received it before it recorded"));
}

/// \[LY87\]: the same order of messages, with colours.
#[test]
fn a_red_message_makes_its_receiver_record_first() {
    let mut town = Coloured::new(accounts(&[10, 10]));
    town.take(A, 1);
    transfer(&mut town, A, B, 3);
    town.deliver_nth(A, B, 1);
    town.settle(&mut Prng::new(1), true, Some(20));
    assert_eq!(town.breaches, []);
    assert_eq!(numbers(&town.pictures[0].1), (vec![10, 10], vec![]));
}

/// \[M93\]: COUNT arrives first. The part then waits for the white messages that it counts.
#[test]
fn a_count_that_overtakes_white_messages_waits_for_them() {
    let mut town = Coloured::new(accounts(&[10, 10]));
    transfer(&mut town, A, B, 3);
    transfer(&mut town, A, B, 4);
    town.take(A, 1);
    town.deliver_nth(A, B, 2);
    town.deliver(B, A);
    assert!(town.pictures.is_empty());
    town.settle(&mut Prng::new(1), false, Some(20));
    assert_eq!(town.breaches, []);
    let (balances, mut under_way) = numbers(&town.pictures[0].1);
    under_way.sort_unstable();
    assert_eq!((balances, under_way), (vec![3, 10], vec![(A, B, 3), (A, B, 4)]));
}

#[test]
fn a_lone_site_has_its_picture_at_once() {
    let mut town = Marked::new(accounts(&[5]));
    town.take(0, 1);
    assert_eq!((numbers(&town.pictures[0].1), town.sent), ((vec![5], vec![]), 0));
    let mut town = Coloured::new(accounts(&[5]));
    town.take(0, 1);
    assert_eq!((numbers(&town.pictures[0].1), town.sent), ((vec![5], vec![]), 0));
}

/// Runs the bank at random and starts snapshots in between. Each snapshot has one or two starters, and
/// several are under way together.
fn at_random<P: Snapshot<Bank>>(seed: u64, fifo: bool) -> Town<Bank, P> {
    let mut dice = Prng::new(seed);
    let nodes = 2 + dice.below(4) as u32;
    let mut town = Town::<Bank, P>::new(accounts(&vec![100; nodes as usize]));
    let snapshots = 1 + dice.below(3) as u32;
    for round in 0..60 {
        if round % 20 == 10 {
            for id in 1..=snapshots {
                let starters = 1 + dice.below(2);
                (0..starters).for_each(|_| town.take(dice.below(u64::from(nodes)) as u32, round + id));
            }
        }
        let (from, to) = (dice.below(u64::from(nodes)) as u32, dice.below(u64::from(nodes)) as u32);
        let amount = 1 + dice.below(20);
        transfer(&mut town, from, to, amount); // sometimes to itself
        for _ in 0..dice.below(3) {
            town.stir(&mut dice, fifo);
        }
    }
    town.settle(&mut dice, fifo, Some(100 * u64::from(nodes)));
    town
}

#[test]
fn several_snapshots_of_several_starters_are_right_on_fifo_channels() {
    for seed in 0..200 {
        let town = at_random::<ChandyLamport<Bank>>(seed, true);
        assert_eq!(town.breaches, [], "seed {seed}");
        let town = at_random::<LaiYang<Bank>>(seed, true);
        assert_eq!(town.breaches, [], "seed {seed}");
        let carried = town.judge.pictures().filter(|picture| picture.in_transit().next().is_some());
        assert!(carried.count() > 0, "seed {seed}: no message was ever in transit");
    }
}

#[test]
fn colours_are_right_in_any_order_and_markers_are_not() {
    let mut wrong = 0;
    for seed in 0..200 {
        assert_eq!(at_random::<LaiYang<Bank>>(seed, false).breaches, [], "seed {seed}");
        wrong += u32::from(!at_random::<ChandyLamport<Bank>>(seed, false).breaches.is_empty());
    }
    assert!(wrong > 150, "only {wrong} of 200 runs without FIFO were wrong");
}

/// The formula of the card: N(N-1) markers or counts, and as many parts, for any number of starters.
#[test]
fn a_snapshot_costs_two_messages_a_channel() {
    for nodes in 1..7_u32 {
        for starters in [1, nodes] {
            let (mut marked, mut coloured) = (
                Marked::new(accounts(&vec![1; nodes as usize])),
                Coloured::new(accounts(&vec![1; nodes as usize])),
            );
            for site in 0..starters {
                marked.take(site, 1);
                coloured.take(site, 1);
            }
            marked.settle(&mut Prng::new(1), true, None);
            coloured.settle(&mut Prng::new(1), false, None);
            let cost = u64::from(2 * nodes * (nodes - 1));
            assert_eq!((marked.sent, coloured.sent), (cost, cost), "{nodes} sites, {starters} start");
        }
    }
}

#[test]
fn a_snapshot_that_is_over_is_not_taken_again() {
    let mut town = Marked::new(accounts(&[1, 1]));
    town.take(0, 5);
    town.settle(&mut Prng::new(1), true, None);
    town.take(1, 5);
    assert_eq!((town.refused, town.pictures.len()), (vec![(SnapshotId(5), Refusal::Over)], 2));
}

#[test]
fn old_numbers_are_over_and_too_many_at_once_are_refused() {
    let mut town = Coloured::new(accounts(&[1, 1]));
    for id in 0..=MOST_OPEN as u32 {
        town.take(0, 10 + id);
    }
    assert_eq!(town.refused, [(SnapshotId(10 + MOST_OPEN as u32), Refusal::TooMany)]);
    town.settle(&mut Prng::new(1), false, None);
    for id in 100..100 + MOST_REMEMBERED as u32 {
        town.take(0, id);
        town.settle(&mut Prng::new(1), false, None);
    }
    town.take(0, 3); // never used, but below the remembered numbers
    assert_eq!(town.refused.last(), Some(&(SnapshotId(3), Refusal::Over)));
}

#[test]
fn a_bank_that_restarts_from_a_picture_has_all_its_money() {
    for seed in 0..50 {
        let town = at_random::<LaiYang<Bank>>(seed, false);
        let picture = town.judge.pictures().last().expect("one snapshot was taken").clone();
        let sites = picture.parts.iter().map(Restarted::new);
        let mut again = Town::<_, ChandyLamport<Restarted<Bank>>>::new(sites);
        let total: u64 = again.nodes.iter().map(|site| site.app().app().balance).sum();
        assert_eq!(Some(total), Bank::conserved(&picture), "seed {seed}");
        // The restarted bank continues to work, and a snapshot of it is right, too.
        again.ask(0, Transfer { to: NodeId(1), amount: 1 });
        again.take(1, 1);
        again.settle(&mut Prng::new(seed), true, Some(total));
        assert_eq!(again.breaches, [], "seed {seed}");
    }
}

impl Application for TokenRing {}

/// In some of the pictures the token is in transit; the states alone would have lost it.
#[test]
fn a_token_ring_that_restarts_from_a_picture_has_one_token() {
    let group = Group::new(3);
    let mut on_its_way = 0;
    for seed in 0..20 {
        let mut dice = Prng::new(seed);
        let mut town =
            Town::<_, LaiYang<TokenRing>>::new((0..3).map(|site| TokenRing::new(NodeId(site), &group)));
        for _ in 0..dice.below(20) {
            town.stir(&mut dice, false);
        }
        town.take(dice.below(3) as u32, 1);
        while town.pictures.is_empty() {
            town.stir(&mut dice, false);
        }
        let picture = &town.pictures[0].1;
        on_its_way += picture.in_transit().count();
        let mut again =
            Town::<_, LaiYang<Restarted<TokenRing>>>::new(picture.parts.iter().map(Restarted::new));
        (0..3).for_each(|site| again.ask(site, mutex::Command::Acquire));
        // Each site enters when the token arrives, and keeps the others out until it leaves.
        for _ in 0..3 {
            let before = again.told.len();
            (0..50).for_each(|_| _ = again.stir(&mut dice, false));
            assert_eq!(again.told.len(), before + 1, "seed {seed}: {:?}", again.told);
            let (inside, _) = again.told[before];
            again.ask(inside, mutex::Command::Release);
            again.told.retain(|(_, event)| *event != mutex::Event::Released);
        }
    }
    assert!(on_its_way > 0, "the token was never in transit");
}

#[test]
fn termination_is_seen_when_it_is_there_and_not_before() {
    let (mut early, mut late) = (0, 0);
    for seed in 0..100 {
        let mut dice = Prng::new(seed);
        let mut town = Town::<_, LaiYang<Work>>::new(vec![Work::default(); 4]);
        town.ask(0, Task(12));
        for id in 1.. {
            for _ in 0..dice.below(30) {
                town.stir(&mut dice, false);
            }
            town.take(dice.below(4) as u32, id);
            while town.judge.pictures().count() < id as usize {
                town.stir(&mut dice, false);
            }
            let seen = terminated(town.judge.pictures().last().expect("it is complete"));
            early += u32::from(!seen);
            if seen {
                late += 1;
                break;
            }
        }
        town.settle(&mut dice, false, None);
        assert_eq!(town.breaches, [], "seed {seed}");
    }
    assert!(late == 100 && early > 50, "{early} pictures before the end");
}

/// Both sites are passive when they are asked, one after the other. The task is always at the site that is
/// not being asked.
#[test]
fn asking_one_after_the_other_sees_an_end_that_is_none() {
    let mut town = Town::<_, ChandyLamport<Work>>::new(vec![Work::default(); 2]);
    let first = town.nodes[0].app().left == 0;
    town.ask(1, Task(1));
    town.ask(0, Task(1));
    town.step(1, conclave_kernel::Input::Timer(work::Unit));
    let second = town.nodes[1].app().left == 0;
    assert!(first && second, "both replied that they are passive");
    town.take(0, 1);
    town.settle(&mut Prng::new(1), true, None);
    assert!(!terminated(&town.pictures[0].1));
}

fn object(site: u32, number: u32) -> Object {
    Object { site: NodeId(site), number }
}

/// Two objects that refer to each other across sites, without any other reference to them.
#[test]
fn a_cycle_across_sites_is_garbage_once_nobody_holds_it() {
    let mut town = Town::<_, ChandyLamport<Heap>>::new(vec![Heap::default(); 2]);
    let (x, y) = (object(0, 0), object(1, 0));
    town.ask(0, Act::Make);
    town.ask(1, Act::Make);
    town.ask(0, Act::Send { to: NodeId(1), reference: x });
    town.ask(1, Act::Send { to: NodeId(0), reference: y });
    town.deliver(0, 1);
    town.deliver(1, 0);
    town.ask(0, Act::Store { into: x, reference: y });
    town.ask(1, Act::Store { into: y, reference: x });
    town.take(0, 1);
    for site in [0, 1] {
        [x, y].into_iter().for_each(|held| town.ask(site, Act::Forget(held)));
    }
    town.take(1, 2);
    town.settle(&mut Prng::new(1), true, None);
    let garbage = |id: u32| {
        let picture = town.judge.pictures().find(|picture| picture.id.0 == id).expect("it is complete");
        heap::garbage(picture).into_iter().collect::<Vec<_>>()
    };
    assert_eq!((garbage(1), garbage(2), town.breaches), (vec![], vec![x, y], vec![]));
}

#[test]
fn an_object_whose_only_reference_is_on_its_way_is_no_garbage() {
    let mut town = Town::<_, ChandyLamport<Heap>>::new(vec![Heap::default(); 2]);
    let x = object(0, 0);
    town.ask(0, Act::Make);
    town.ask(0, Act::Send { to: NodeId(1), reference: x });
    town.ask(0, Act::Forget(x));
    town.take(1, 1);
    town.settle(&mut Prng::new(1), true, None);
    let picture = &town.pictures[0].1;
    assert!(heap::garbage(picture).is_empty());
    let mut blind = picture.clone();
    blind.parts.iter_mut().for_each(|part| part.channels.clear());
    assert!(!heap::garbage(&blind).is_empty(), "a collector that ignores channels would free it");
}

#[test]
fn what_the_program_does_not_hold_it_cannot_use() {
    let mut town = Town::<_, ChandyLamport<Heap>>::new(vec![Heap::default(); 2]);
    town.ask(0, Act::Make);
    for act in [
        Act::Send { to: NodeId(1), reference: object(1, 0) },
        Act::Send { to: NodeId(9), reference: object(0, 0) },
        Act::Store { into: object(1, 0), reference: object(0, 0) },
        Act::Load { out_of: object(0, 0), reference: object(0, 7) },
    ] {
        town.ask(0, act);
        assert_eq!(town.told.last(), Some(&(0, heap::Told::Refused)), "{act:?}");
    }
}

/// An application that sends messages to itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Monologue {
    heard: u32,
}

impl Protocol for Monologue {
    type Message = u32;
    type Timer = Never;
    type Command = u32;
    type Event = Never;

    fn on_message(&mut self, _from: NodeId, _word: u32, _cx: &mut Cx<'_, Self>) {
        self.heard += 1;
    }

    fn on_command(&mut self, word: u32, cx: &mut Cx<'_, Self>) {
        cx.send(cx.me(), word);
    }
}

impl Application for Monologue {
    fn conserved(picture: &Picture<Self>) -> Option<u64> {
        Some(
            picture.states().map(|site| u64::from(site.heard)).sum::<u64>()
                + picture.in_transit().count() as u64,
        )
    }
}

#[test]
fn what_a_site_says_to_itself_is_on_its_way_too() {
    fn run<P: Snapshot<Monologue>>(fifo: bool) {
        let mut town = Town::<_, P>::new(vec![Monologue::default(); 2]);
        town.ask(0, 1);
        town.ask(0, 2);
        town.take(1, 1);
        town.deliver(1, 0);
        town.settle(&mut Prng::new(3), fifo, Some(2));
        assert_eq!(town.breaches, []);
        let said: Vec<_> = town.pictures[0].1.in_transit().map(|(from, to, _)| (from.0, to.0)).collect();
        assert_eq!(said, [(0, 0), (0, 0)]);
    }
    run::<ChandyLamport<Monologue>>(true);
    run::<LaiYang<Monologue>>(false);
}
